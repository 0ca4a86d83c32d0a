"""Maps written as they came: same format, names, axes and geometry, one map after the other."""

from __future__ import annotations

import gzip
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import SimpleITK as sitk
from numpy.lib import format as npy

from segcal.data.containers.contents import LIMIT, max_voxels
from segcal.data.images import read, read_header
from segcal.folders import write_image
from segcal.predictors.arrays import Layout, layout_of, whole
from segcal.predictors.maps import Map, Maps
from segcal.predictors.volumes import Nifti, nifti_of, opened
from segcal.types import UserError

NO_FLOATS = (".png", ".bmp", ".mhd", ".nhdr")
"""Endings that are not written: whole numbers only, or values in a file of their own."""

_BLOCK = 1 << 18  # values that are compressed at once


def type_to_write(path: Path) -> np.dtype[Any]:
    """The type in which maps of a file are written again: its own if that is floating point."""
    dtype = stored_type(path)
    return dtype.newbyteorder("=") if dtype.kind == "f" else np.dtype(np.float32)


def stored_type(path: Path) -> np.dtype[Any]:
    """The type of the values in a file."""
    name = path.name.lower()
    if name.endswith((".npz", ".npy")):
        return layout_of(path).dtype
    if name.endswith(NO_FLOATS):
        allowed = "save maps as .npz, .nii.gz, .nrrd or .mha"
        raise UserError(f"{path} cannot be written again with calibrated values; {allowed}")
    nifti = nifti_of(path)
    if nifti is not None:
        return nifti.dtype
    return np.dtype(_PIXELS.get(read_header(path).GetPixelID(), np.float32))


_PIXELS: dict[int, type] = {
    sitk.sitkUInt8: np.uint8,
    sitk.sitkVectorUInt8: np.uint8,
    sitk.sitkUInt16: np.uint16,
    sitk.sitkVectorUInt16: np.uint16,
    sitk.sitkFloat64: np.float64,
    sitk.sitkVectorFloat64: np.float64,
}


def write_like(source: Path, target: Path, maps: Maps, values: Iterator[Map]) -> None:
    """Write new values of the maps in `source`, which are `maps`, to `target`."""
    dtype = type_to_write(source)
    name = source.name.lower()
    if name.endswith(".npz"):
        _write_npz(source, target, layout_of(source), values, dtype)
    elif name.endswith(".npy"):
        with target.open("wb") as file:
            _write_array(file, layout_of(source), values, dtype)
    else:
        nifti = nifti_of(source)
        if nifti is not None:
            _write_nifti(source, target, nifti, values, dtype)
        else:
            _write_image(source, target, maps, values, dtype)


def _write_npz(
    source: Path, target: Path, layout: Layout, values: Iterator[Map], dtype: np.dtype[Any]
) -> None:
    """The same archive, in which only the maps are new."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        name_of_maps = f"{layout.key}.npy"
        n_bytes = sum(part.file_size for part in old.infolist() if part.filename != name_of_maps)
        if n_bytes > max_voxels():
            problem = f"{source} holds {n_bytes:,} bytes beside its maps"
            raise UserError(f"{problem}; remove them, or raise the limit with {LIMIT}=N")
        for name in old.namelist():
            with new.open(name, "w", force_zip64=True) as file:
                if name == name_of_maps:
                    _write_array(file, layout, values, dtype)
                else:
                    file.writelines(_blocks(source, old, name))


def _blocks(source: Path, archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """The content of a part of an archive; one sentence if it is damaged."""
    with whole(source), archive.open(name) as part:
        while block := part.read(_BLOCK):
            yield block


def _write_array(
    file: IO[bytes], layout: Layout, values: Iterator[Map], dtype: np.dtype[Any]
) -> None:
    header = {"descr": dtype.str, "fortran_order": False, "shape": layout.shape}
    npy.write_array_header_1_0(file, header)
    for each in values:
        _write_values(file, each, dtype)


def _write_values(file: IO[bytes], values: Map, dtype: np.dtype[Any]) -> None:
    flat = values.reshape(-1)
    for start in range(0, len(flat), _BLOCK):
        file.write(flat[start : start + _BLOCK].astype(dtype).tobytes())


def _write_nifti(
    source: Path, target: Path, nifti: Nifti, values: Iterator[Map], dtype: np.dtype[Any]
) -> None:
    """The same header, in which only the type is new: so the geometry is the same to the bit."""
    with opened(source) as file:
        header = bytearray(file.read(nifti.start))
    order: Literal["<", ">"] = "<" if header[:4] == struct.pack("<i", 348) else ">"
    code = {4: 16, 8: 64}[dtype.itemsize]
    struct.pack_into(f"{order}2h", header, 70, code, 8 * dtype.itemsize)
    struct.pack_into(f"{order}2f", header, 112, 1.0, 0.0)  # slope and offset of values
    struct.pack_into(f"{order}2f", header, 124, 0.0, 0.0)  # the range to show: not known
    with _compressing(target) as file:
        file.write(bytes(header))
        for each in values:
            _write_values(file, each, dtype.newbyteorder(order))


@contextmanager
def _compressing(path: Path) -> Iterator[IO[bytes]]:
    """A new file, compressed if its name ends with `.gz`; equal content gives equal bytes."""
    with path.open("wb") as raw:
        if not path.name.lower().endswith(".gz"):
            yield raw
            return
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as file:
            yield file  # type: ignore[misc]  # it is a binary file


def _write_image(
    source: Path, target: Path, maps: Maps, values: Iterator[Map], dtype: np.dtype[Any]
) -> None:
    """An image of any other format, all in memory."""
    old = read(source)
    vector = old.GetNumberOfComponentsPerPixel() > 1
    array = np.empty(maps.shape, dtype)
    for k, each in enumerate(values):
        array[k] = each
    if vector:
        array = np.moveaxis(array, 0, -1)
    array = array.reshape(sitk.GetArrayViewFromImage(old).shape)
    new = sitk.GetImageFromArray(array, isVector=vector)
    new.CopyInformation(old)
    write_image(target, new)
