"""One case: its raw files -> two arrays, and a record of where they came from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from segcal.data.catalog import Recipe, Source
from segcal.data.containers import data_files
from segcal.data.containers.contents import check_voxels
from segcal.data.images import Grid, from_array, on_grid, read_channels, read_single
from segcal.data.orientation import slices_first
from segcal.data.readers import RawCase
from segcal.folders import IGNORED, array_path
from segcal.folders.files import fingerprint, sha256
from segcal.types import UserError


def source_marks(raw: RawCase, root: Path) -> dict[str, Any]:
    """The fingerprints of a case's files, and of the files that they point to."""
    marks = {}
    for path in (*raw.images, *raw.labels):
        for part in (path, *data_files(path)):
            marks[str(part.relative_to(root))] = fingerprint(part)
    return marks


def prepare_case(
    raw: RawCase, source: Source, recipe: Recipe, orientation: str | None, root: Path, folder: Path
) -> dict[str, Any]:
    """Write the image and label arrays into `folder`; return the case's record for `cases.json`."""
    marks = source_marks(raw, root)
    images = read_images(raw.images, source.channels)
    label = _label(raw, source)
    original = Grid.of(images[0])
    if label.GetSize() != original.size:
        pair = f"{raw.labels[0]} and {raw.images[0]}"
        sizes = f"different sizes {label.GetSize()} and {original.size}"
        raise UserError(f"{pair} have {sizes}; a label map must fit its image")
    label_elsewhere = not Grid.of(label).close_to(original)
    label.CopyInformation(images[0])

    views = [sitk.GetArrayViewFromImage(image) for image in images]
    image_array, grid = prepared_image(images, recipe, orientation)
    turned_label = oriented(label, orientation, recipe.axis)
    label_array = sitk.GetArrayFromImage(on_grid(turned_label, grid, labels=True))  # (D, H, W)
    digests, n_bytes = {}, {}
    for kind, array in (("image", image_array), ("label", label_array)):
        path = array_path(folder, raw.id, kind)
        np.save(path, np.ascontiguousarray(array), allow_pickle=False)
        digests[kind] = sha256(path)
        n_bytes[kind] = path.stat().st_size

    foreground = (label_array > 0) & (label_array != IGNORED)
    counts = np.bincount(label_array.ravel(), minlength=256)
    return {
        "patient": raw.patient,
        "sources": marks,
        "original": asdict(original),
        "prepared": asdict(grid),
        "shape": list(label_array.shape),
        "spacing": list(grid.spacing[::-1]),
        "intensity": [(float(view.min()), float(view.max())) for view in views],
        "voxels": counts[: len(source.classes) + 1].tolist(),
        "ignored_voxels": int(counts[IGNORED]),
        "foreground_slices": np.flatnonzero(foreground.any((1, 2))).tolist(),
        "label_elsewhere": label_elsewhere,
        "reoriented": orientation not in (None, original.orientation),
        "sha256": digests,
        "bytes": n_bytes,
    }


def read_images(paths: tuple[Path, ...], channels: tuple[str, ...]) -> list[sitk.Image]:
    """The channels of a case as float32 on one grid."""
    n_expected = len(channels)
    n_each = n_expected if len(paths) == 1 else 1
    parts = [(path, image) for path in paths for image in read_channels(path, n_each)]
    if len(parts) != n_expected:
        expected = "one is" if n_expected == 1 else f"{n_expected} ({', '.join(channels)}) are"
        raise UserError(f"{paths[0]} holds {len(parts)} volumes where {expected} expected")
    first = parts[0][1]
    return [_aligned(path, image, paths[0], first) for path, image in parts]


def _aligned(path: Path, image: sitk.Image, first_path: Path, first: sitk.Image) -> sitk.Image:
    """A channel as float32 on the grid of the first one, from which it may differ by rounding."""
    if image.GetSize() != first.GetSize():
        sizes = f"size {image.GetSize()} where {first_path} has {first.GetSize()}"
        raise UserError(f"{path} has {sizes}; channels must align")
    if not Grid.of(image).close_to(Grid.of(first), apart=0.5):
        problem = f"{path} and {first_path} have different spacing, origin or direction"
        raise UserError(f"{problem}; resample one to the other's grid, or correct its header")
    wide = sitk.Cast(image, sitk.sitkFloat32)
    if not np.isfinite(sitk.GetArrayViewFromImage(wide)).all():
        raise UserError(f"{path} holds values beyond the range of float32; rescale it")
    wide.CopyInformation(first)
    return wide


def prepared_image(
    images: list[sitk.Image], recipe: Recipe, orientation: str | None
) -> tuple[NDArray[np.float32], Grid]:
    """Channels on one grid -> the array (D, C, H, W) that a network sees, and its grid."""
    turned = [oriented(scaled(image, recipe), orientation, recipe.axis) for image in images]
    grid = target_grid(Grid.of(turned[0]), recipe)
    arrays = [sitk.GetArrayFromImage(on_grid(image, grid, labels=False)) for image in turned]
    return np.clip(np.stack(arrays, axis=1), 0, 1), grid


def _label(raw: RawCase, source: Source) -> sitk.Image:
    """The label map with class numbers, 255 where voxels are to be ignored."""
    images = [read_single(path) for path in raw.labels]
    arrays = [sitk.GetArrayFromImage(image) for image in images]
    if source.masks:
        if len({array.shape for array in arrays}) > 1:
            raise UserError(f"{raw.labels[0]} and the other masks of its case differ in size")
        union = np.any([array > 0 for array in arrays], axis=0)
        return from_array(union.astype(np.uint8), Grid.of(images[0]))
    unchanged = {k: k for k in range(len(source.classes) + 1)}
    codes = {0: 0, **(raw.codes or source.codes or unchanged)}
    if source.ignore is not None:
        codes[source.ignore] = IGNORED
    label = np.zeros(arrays[0].shape, np.uint8)
    for value in np.unique(arrays[0]).tolist():
        if value not in codes:
            allowed = f"allowed are {', '.join(map(str, sorted(codes)))}"
            raise UserError(f"{raw.labels[0]} holds the unknown label {value!r}; {allowed}")
        label[arrays[0] == value] = codes[int(value)]
    return from_array(label, Grid.of(images[0]))


def scaled(image: sitk.Image, recipe: Recipe) -> sitk.Image:
    """Intensities to [0, 1], from a window or the image's own; constant images become 0."""
    values = sitk.GetArrayFromImage(image).astype(np.float64)
    low, high = recipe.window or _limits(values, recipe.percentiles)
    unit = np.clip((values - low) / (high - low), 0, 1) if high > low else np.zeros_like(values)
    return from_array(unit.astype(np.float32), Grid.of(image))


def _limits(values: NDArray[np.float64], percentiles: tuple[float, float]) -> tuple[float, float]:
    """Two percentiles of an image; its range where these are one value, as in a sparse image."""
    ends = (0.0, 100.0)
    if percentiles != ends:
        low, high = np.percentile(values, percentiles)
        if low < high:
            return float(low), float(high)
    return float(values.min()), float(values.max())


def oriented(image: sitk.Image, orientation: str | None, axis: int) -> sitk.Image:
    """Turned to an orientation code, slicing axis first in the array; values are only moved."""
    if orientation is not None and Grid.of(image).orientation != orientation:
        image = sitk.DICOMOrient(image, orientation)
    if axis:
        image = sitk.PermuteAxes(image, slices_first((2, 1, 0), axis)[::-1])
    return image


def target_grid(grid: Grid, recipe: Recipe) -> Grid:
    """The grid that a recipe (in the order of a file's array) asks for, from the turned grid."""
    if recipe.spacing is not None:
        grid = grid.with_spacing(slices_first(recipe.spacing, recipe.axis)[::-1])
    if recipe.size is not None:
        grid = grid.with_size((recipe.size[1], recipe.size[0], grid.size[2]))
    if recipe.crop is not None:
        grid = grid.centred(slices_first(recipe.crop, recipe.axis)[::-1])
    check_voxels("preparation would give an image", grid.size)
    return grid
