"""Images in and out through SimpleITK, and the grids that say where their voxels are.

Every image is 3D: a 2D one becomes a volume of one slice, a 4D one several channels. Resizing,
cropping, padding, resampling and the way back are one operation: a move to another grid.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from segcal.data.containers import check_file, check_header
from segcal.data.series import read_series
from segcal.types import UserError

sitk.ProcessObject.SetGlobalWarningDisplay(False)  # what matters is raised and reworded here


@dataclass(frozen=True)
class Grid:
    """Where the voxels of a 3D image are, in SimpleITK's order x, y, z (arrays are z, y, x)."""

    size: tuple[int, ...]
    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    direction: tuple[float, ...]

    @staticmethod
    def of(image: sitk.Image) -> Grid:
        """The grid of an image."""
        return Grid(image.GetSize(), image.GetSpacing(), image.GetOrigin(), image.GetDirection())

    @property
    def orientation(self) -> str:
        """The anatomical orientation code, such as LPS."""
        code: str = sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(self.direction)
        return code

    def close_to(self, other: Grid, *, apart: float = 1e-2) -> bool:
        """Whether voxels are at the same places; the first ones may be `apart` voxels away."""
        voxel = min(self.spacing)
        return (
            self.size == other.size
            and np.allclose(self.spacing, other.spacing, rtol=0, atol=1e-2 * voxel)
            and np.allclose(self.origin, other.origin, rtol=0, atol=apart * voxel)
            and np.allclose(self.direction, other.direction, rtol=0, atol=1e-3)
        )

    def with_spacing(self, spacing: tuple[float, ...]) -> Grid:
        """The same field of view with other voxels (x, y, z); sizes are rounded."""
        extents = zip(self.size, self.spacing, spacing, strict=True)
        return self._moved(tuple(max(1, round(n * old / new)) for n, old, new in extents), spacing)

    def with_size(self, size: tuple[int, ...]) -> Grid:
        """The same field of view with another number of voxels (x, y, z)."""
        extents = zip(self.size, self.spacing, size, strict=True)
        return self._moved(size, tuple(n * spacing / m for n, spacing, m in extents))

    def centred(self, size: tuple[int, ...]) -> Grid:
        """Cropped or padded to a size (x, y, z) about the centre, by whole voxels."""
        start = [(n - m) // 2 for n, m in zip(self.size, size, strict=True)]
        return replace(self, size=size, origin=self._at(start))

    def _moved(self, size: tuple[int, ...], spacing: tuple[float, ...]) -> Grid:
        # The corner of the field of view stays; the first voxel's centre is half a voxel inside.
        start = [0.5 * new / old - 0.5 for old, new in zip(self.spacing, spacing, strict=True)]
        return Grid(size, spacing, self._at(start), self.direction)

    def _at(self, index: list[Any]) -> tuple[float, ...]:
        matrix = np.reshape(self.direction, (3, 3))
        return tuple(np.asarray(self.origin) + matrix @ (np.asarray(index, float) * self.spacing))


def read(path: Path) -> sitk.Image:
    """Read an image of any of `FORMATS`, or a folder of DICOM files; files are checked first."""
    values = None
    if path.is_dir():
        image = read_series(path)
    else:
        contents, reader = check_file(path)
        values = contents.values  # those of the file: ITK may have replaced NaN by 0
        try:
            image = sitk.ReadImage(str(path), sitk.sitkUnknown, reader)
        except RuntimeError:
            raise UserError(f"{path} cannot be read: it is no image, or it is truncated") from None
    if image.GetPixelIDTypeAsString().startswith("complex"):
        raise UserError(f"{path} holds complex numbers; store their magnitude")
    if values is None:
        values = sitk.GetArrayViewFromImage(image)
    if not np.isfinite(values).all():
        raise UserError(f"{path} holds NaN or infinite values; replace them")
    return image


def read_channels(path: Path, n_channels: int = 1) -> list[sitk.Image]:
    """The channels of an image file, each 3D: those of a 4D file, or the components of its voxels.

    The colours of a single slice become grey unless that many channels are expected; alpha is left
    out."""
    image = read(path)
    dimension, n_parts = image.GetDimension(), image.GetNumberOfComponentsPerPixel()
    parts = [image]
    if n_parts > 1:
        components = range(n_parts)
        parts = [sitk.VectorIndexSelectionCast(image, i, sitk.sitkFloat32) for i in components]
    flat = dimension == 2 or image.GetSize()[2:] == (1,)
    if n_parts in (2, 3, 4) and n_parts != n_channels and flat:
        grey = n_parts == 2  # and alpha
        parts = parts[:1] if grey else [0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2]]
    if dimension == 2:
        return [sitk.JoinSeries([part]) for part in parts]
    if dimension == 4:
        return [part[..., i] for part in parts for i in range(part.GetSize()[3])]
    return parts


def read_single(path: Path) -> sitk.Image:
    """A file that must hold one 3D (or 2D) image."""
    channels = read_channels(path)
    if len(channels) > 1:
        raise UserError(f"{path} holds {len(channels)} volumes where one is expected")
    return channels[0]


def read_header(path: Path) -> sitk.ImageFileReader:
    """What the header of an image file says, which is checked first; no voxel is read."""
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    reader.SetImageIO(check_header(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError:
        raise UserError(f"{path} cannot be read: it is no image, or it is truncated") from None
    return reader


def orientation(path: Path) -> str | None:
    """The anatomical orientation code in the header of a 3D image; `None` if it has none."""
    if path.is_dir():
        with suppress(UserError):
            return Grid.of(read_series(path)).orientation
        return None
    try:
        reader = read_header(path)
    except UserError:  # said when the image is read
        return None
    n = reader.GetDimension()
    if n not in (3, 4):
        return None
    direction = np.reshape(reader.GetDirection(), (n, n))[:3, :3].ravel().tolist()
    return Grid((), (), (), tuple(direction)).orientation


def on_grid(image: sitk.Image, grid: Grid, *, labels: bool) -> sitk.Image:
    """Move an image to another grid: nearest neighbour for labels, else linear; 0 outside."""
    if Grid.of(image) == grid:
        return image
    target = _placed(sitk.Image([int(n) for n in grid.size], image.GetPixelID()), grid)
    interpolator = sitk.sitkNearestNeighbor if labels else sitk.sitkLinear
    return sitk.Resample(image, target, sitk.Transform(), interpolator, 0)


def from_array(array: NDArray[Any], grid: Grid) -> sitk.Image:
    """An array (z, y, x) as an image on a grid."""
    return _placed(sitk.GetImageFromArray(array), grid)


def _placed(image: sitk.Image, grid: Grid) -> sitk.Image:
    image.SetSpacing(grid.spacing)
    image.SetOrigin(grid.origin)
    image.SetDirection(grid.direction)
    return image


def restored(array: NDArray[Any], prepared: Grid, original: Grid, *, labels: bool) -> sitk.Image:
    """A prediction (z, y, x) on the prepared grid, moved back to the grid of its image file."""
    return on_grid(from_array(array, prepared), original, labels=labels)
