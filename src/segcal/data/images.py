"""Images in and out through SimpleITK, and the grids that say where their voxels lie.

Everything is a 3D image: a 2D one becomes a volume of one slice, a 4D one several channels.
Resizing, cropping, padding and resampling are one operation, a move to another grid, so that going
back is the same operation the other way."""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from segcal.types import UserError

sitk.ProcessObject.SetGlobalWarningDisplay(False)  # what matters is raised and reworded here


@dataclass(frozen=True)
class Grid:
    """Where the voxels of a 3D image lie, in SimpleITK's order x, y, z (arrays are z, y, x)."""

    size: tuple[int, ...]
    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    direction: tuple[float, ...]

    @staticmethod
    def of(image: sitk.Image) -> Grid:
        """The grid of an image."""
        return Grid(image.GetSize(), image.GetSpacing(), image.GetOrigin(), image.GetDirection())

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Grid:
        """A grid as it stands in a JSON file."""
        return Grid(*(tuple(values[key]) for key in ("size", "spacing", "origin", "direction")))

    def to_dict(self) -> dict[str, Any]:
        """The grid as it stands in a JSON file."""
        return {key: list(value) for key, value in asdict(self).items()}

    def close_to(self, other: Grid, *, apart: float = 1e-2) -> bool:
        """Whether both place every voxel alike, to a hundredth of a voxel; first voxels may be
        `apart` voxels away.
        """
        near = [
            np.allclose(a, b, rtol=0, atol=voxels * min(self.spacing))
            for a, b, voxels in (
                (self.spacing, other.spacing, 1e-2),
                (self.origin, other.origin, apart),
            )
        ]
        return (
            self.size == other.size
            and all(near)
            and np.allclose(self.direction, other.direction, rtol=0, atol=1e-3)
        )

    def with_spacing(self, spacing: tuple[float, ...]) -> Grid:
        """The same field of view with other voxels (x, y, z); sizes are rounded."""
        size = tuple(
            max(1, round(n * old / new))
            for n, old, new in zip(self.size, self.spacing, spacing, strict=True)
        )
        return self._moved(size, spacing)

    def with_size(self, size: tuple[int, ...]) -> Grid:
        """The same field of view with another number of voxels (x, y, z)."""
        return self._moved(
            size, tuple(n * s / m for n, s, m in zip(self.size, self.spacing, size, strict=True))
        )

    def centred(self, size: tuple[int, ...]) -> Grid:
        """Cropped or padded to a size (x, y, z) about the centre, by whole voxels."""
        start = [(n - m) // 2 for n, m in zip(self.size, size, strict=True)]
        return replace(self, size=size, origin=self._at(start))

    def _moved(self, size: tuple[int, ...], spacing: tuple[float, ...]) -> Grid:
        # The corner of the field of view stays; the first voxel's centre lies half a voxel inside.
        start = [0.5 * new / old - 0.5 for old, new in zip(self.spacing, spacing, strict=True)]
        return Grid(size, spacing, self._at(start), self.direction)

    def _at(self, index: list[Any]) -> tuple[float, ...]:
        matrix = np.reshape(self.direction, (3, 3))
        return tuple(np.asarray(self.origin) + matrix @ (np.asarray(index, float) * self.spacing))


def read(path: Path) -> sitk.Image:
    """Any whole image that SimpleITK reads."""
    if path.is_dir():
        raise UserError(
            f"{path} is a folder where an image file is expected; turn a DICOM series into a NIfTI"
            " file first"
        )
    if not path.is_file():
        raise UserError(f"{path} is missing")
    try:
        image = sitk.ReadImage(str(path))
    except RuntimeError:
        image = None
    if image is None or not _complete(path, image):
        raise UserError(f"{path} cannot be read: it is no image, or it is truncated")
    if image.GetPixelIDTypeAsString().startswith("complex"):
        raise UserError(f"{path} holds complex numbers; store their magnitude")
    if _has_nan(path, image):
        raise UserError(f"{path} holds NaN or infinite values; replace them")
    return image


def companions(path: Path) -> list[Path]:
    """The files that an image's header file points to (`.mhd`, `.nhdr`), if they can be told."""
    if path.suffix.lower() not in (".mhd", ".nhdr") or not path.is_file():
        return []
    names = re.findall(
        r"^(?:ElementDataFile|data ?file)\s*[=:]\s*(\S.*?)\s*$",
        path.read_text(errors="replace"),
        re.M | re.I,
    )
    return [
        path.with_name(name) for name in names if "/" not in name and path.with_name(name).is_file()
    ]


def _is_nifti(path: Path, image: sitk.Image) -> bool:
    return path.name.lower().endswith((".nii", ".nii.gz")) and image.HasMetaDataKey("bitpix")


def _complete(path: Path, image: sitk.Image) -> bool:
    """Whether a NIfTI file holds as many bytes as its header says; ITK fills what is missing
    without a word.
    """
    if not _is_nifti(path, image):
        return True
    n_bytes = math.prod(image.GetSize()) * int(image.GetMetaData("bitpix")) // 8
    expected = int(float(image.GetMetaData("vox_offset"))) + n_bytes
    if not path.name.lower().endswith(".gz"):
        return path.stat().st_size >= expected
    with path.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        length = int.from_bytes(
            file.read(4), "little"
        )  # of the content, modulo 2^32, if the stream is whole
    # The slow way is for streams of several parts, which end in the length of the last one.
    return length == expected % (1 << 32) or sum(map(len, _content(path))) >= expected


def _has_nan(path: Path, image: sitk.Image) -> bool:
    """Whether a volume has values that are no numbers; ITK turns those of NIfTI files into zeros,
    so the file is asked.
    """
    if not _is_nifti(path, image):
        return not bool(np.isfinite(sitk.GetArrayViewFromImage(image)).all())
    kind = {"16": "f4", "64": "f8"}.get(image.GetMetaData("datatype"))
    if kind is None:
        return False
    order = (
        "<" if int.from_bytes(next(_content(path))[:4], "little") in (348, 540) else ">"
    )  # the header's own length
    n_bytes = math.prod(image.GetSize()) * int(image.GetMetaData("bitpix")) // 8
    for block in _content(path, skip=int(float(image.GetMetaData("vox_offset")))):
        if not np.isfinite(np.frombuffer(block[: max(n_bytes, 0)], order + kind)).all():
            return True
        n_bytes -= len(block)  # what follows the voxels is not ours to judge
    return False


def _content(path: Path, skip: int = 0) -> Iterator[bytes]:
    """The bytes of a file, unzipped if it is zipped, as far as they go."""
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as stream:
            stream.read(skip)
            while block := stream.read(1 << 20):
                yield block
    except (OSError, EOFError, zlib.error):
        return


def read_channels(path: Path, n_channels: int = 1) -> list[sitk.Image]:
    """The channels of an image file, each 3D: those of a 4D file, or the components of its voxels.

    The colours of a single slice become grey unless that many channels are expected; alpha is left
    out."""
    image = read(path)
    n_parts = image.GetNumberOfComponentsPerPixel()
    parts = (
        [sitk.VectorIndexSelectionCast(image, i, sitk.sitkFloat32) for i in range(n_parts)]
        if n_parts > 1
        else [image]
    )
    flat = image.GetDimension() == 2 or image.GetSize()[2:] == (1,)
    if n_parts in (2, 3, 4) and n_parts != n_channels and flat:
        parts = [
            0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2] if n_parts > 2 else parts[0]
        ]
    if image.GetDimension() == 2:
        return [sitk.JoinSeries([part]) for part in parts]
    if image.GetDimension() == 4:
        return [part[..., i] for part in parts for i in range(part.GetSize()[3])]
    return parts


def read_single(path: Path) -> sitk.Image:
    """A file that must hold one 3D (or 2D) image."""
    channels = read_channels(path)
    if len(channels) > 1:
        raise UserError(f"{path} holds {len(channels)} volumes where one is expected")
    return channels[0]


def orientation(path: Path) -> str | None:
    """The anatomical orientation code of a 3D image, such as LPS, from its header; `None` if it has
    none.
    """
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError:
        return None
    if reader.GetDimension() not in (3, 4):
        return None
    n = reader.GetDimension()
    direction = np.reshape(reader.GetDirection(), (n, n))[:3, :3].ravel().tolist()
    code: str = sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(direction)
    return code


def on_grid(image: sitk.Image, grid: Grid, *, labels: bool) -> sitk.Image:
    """An image moved to another grid: nearest neighbour for labels, linear for intensities, 0
    outside.
    """
    if Grid.of(image) == grid:
        return image
    target = sitk.Image([int(n) for n in grid.size], image.GetPixelID())
    target.SetSpacing(grid.spacing)
    target.SetOrigin(grid.origin)
    target.SetDirection(grid.direction)
    return sitk.Resample(
        image, target, sitk.Transform(), sitk.sitkNearestNeighbor if labels else sitk.sitkLinear, 0
    )


def from_array(array: NDArray[Any], grid: Grid) -> sitk.Image:
    """An array (z, y, x) as an image on a grid."""
    image = sitk.GetImageFromArray(array)
    image.SetSpacing(grid.spacing)
    image.SetOrigin(grid.origin)
    image.SetDirection(grid.direction)
    return image


def restored(array: NDArray[Any], prepared: Grid, original: Grid, *, labels: bool) -> sitk.Image:
    """A prediction (z, y, x) on the prepared grid, back in the geometry of the file it came
    from.
    """
    return on_grid(from_array(array, prepared), original, labels=labels)
