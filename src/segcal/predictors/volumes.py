"""Maps in image files: 4D, one vector per voxel, or one 3D map alone."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import SimpleITK as sitk

from segcal.data.images import Grid, read, read_header
from segcal.predictors.arrays import check_type, step_of, streamed, whole
from segcal.predictors.maps import Map, Maps
from segcal.types import UserError

_NIFTI_TYPES = {2: "u1", 512: "u2", 16: "f4", 64: "f8", 4: "i2", 8: "i4", 256: "i1", 768: "u4"}


def open_volume(path: Path) -> Maps:
    """The maps of an image file: the last axis of a 4D image, or the components of its voxels."""
    reader = read_header(path)
    n_components = reader.GetNumberOfComponents()
    size = reader.GetSize()
    if (len(size) == 4 and n_components > 1) or len(size) > 4:
        raise UserError(f"{path} has {len(size)} axes and {n_components} components; export 4D")
    n_maps = size[3] if len(size) == 4 else n_components
    grid = _grid(reader)
    shape = (int(n_maps), *(int(n) for n in grid.size[::-1]))
    nifti = nifti_of(path)
    if nifti is not None and math.prod(nifti.sizes) == math.prod(shape):
        return _streamed_nifti(path, nifti, shape, grid)
    return _read_at_once(path, shape, grid, reader.GetPixelID())


def _grid(reader: sitk.ImageFileReader) -> Grid:
    """The 3D grid of a 2D, 3D or 4D image."""
    n = reader.GetDimension()
    kept = min(n, 3)
    direction = np.eye(3)
    direction[:kept, :kept] = np.reshape(reader.GetDirection(), (n, n))[:kept, :kept]
    pad = 3 - kept
    size = (*reader.GetSize()[:kept], *(1,) * pad)
    spacing = (*reader.GetSpacing()[:kept], *(1.0,) * pad)
    origin = (*reader.GetOrigin()[:kept], *(0.0,) * pad)
    return Grid(size, spacing, origin, tuple(direction.ravel().tolist()))


@dataclass(frozen=True)
class Nifti:
    """What the header of a NIfTI-1 file says of its values."""

    sizes: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int  # of the first value in the file
    slope: float
    offset: float


def opened(path: Path) -> IO[bytes]:
    """A file to read, decompressed if its name ends with `.gz`."""
    compressed = path.name.lower().endswith(".gz")
    return cast("IO[bytes]", gzip.open(path)) if compressed else path.open("rb")


def nifti_of(path: Path) -> Nifti | None:
    """The header of a single-file NIfTI-1 image; `None` for anything else."""
    if not path.name.lower().endswith((".nii", ".nii.gz")):
        return None
    with whole(path), opened(path) as file:
        header = file.read(348)
    if len(header) < 348 or header[344:348] != b"n+1\0":
        return None
    order = "<" if header[:4] == struct.pack("<i", 348) else ">"
    n, *sizes = struct.unpack(f"{order}8h", header[40:56])
    code = struct.unpack(f"{order}h", header[70:72])[0]
    start, slope, offset = struct.unpack(f"{order}3f", header[108:120])
    if code not in _NIFTI_TYPES or not 0 < n < 8:
        return None
    dtype = np.dtype(order + _NIFTI_TYPES[code])
    slope = slope if math.isfinite(slope) and slope else 1.0  # NaN means none
    offset = offset if math.isfinite(offset) else 0.0
    return Nifti(tuple(sizes[:n]), dtype, int(start), slope, offset)


def _streamed_nifti(path: Path, nifti: Nifti, shape: Any, grid: Grid) -> Maps:
    """Its maps one after the other: in the file, the class is the slowest axis."""
    scaled = (nifti.slope, nifti.offset) != (1.0, 0.0)
    if not scaled:
        check_type(path, nifti.dtype.newbyteorder("="))

    def classes() -> Iterator[Map]:
        with whole(path), opened(path) as file:
            file.read(nifti.start)
            parts = streamed(file, nifti.dtype, shape, fortran=False, divide=not scaled)
            for values in parts:
                yield (
                    values * np.float32(nifti.slope) + np.float32(nifti.offset)
                    if scaled
                    else values
                )

    step = step_of(nifti.dtype)
    if scaled and nifti.dtype.kind in "iu":
        step = abs(nifti.slope)
    return Maps(shape, classes, grid, step)


def _read_at_once(path: Path, shape: Any, grid: Grid, pixel: int) -> Maps:
    """The maps of any other format, all in memory."""

    def classes() -> Iterator[Map]:
        image = read(path)
        array = sitk.GetArrayViewFromImage(image)
        check_type(path, array.dtype)
        if image.GetNumberOfComponentsPerPixel() > 1:
            array = np.moveaxis(array, -1, 0)
        divisor = np.float32(np.iinfo(array.dtype).max if array.dtype.kind == "u" else 1)
        for values in array.reshape(shape):
            yield values.astype(np.float32) / divisor

    pixels = {sitk.sitkUInt8: np.uint8, sitk.sitkVectorUInt8: np.uint8}
    pixels |= {sitk.sitkUInt16: np.uint16, sitk.sitkVectorUInt16: np.uint16}
    dtype = np.dtype(pixels.get(pixel, np.float32))
    return Maps(shape, classes, grid, step_of(dtype))
