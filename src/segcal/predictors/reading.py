"""One case of a source, read: its maps, its reference on their grid, and the stored label map."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from segcal.data.images import Grid, read_single
from segcal.predictors.arrays import open_npy, open_npz
from segcal.predictors.maps import Map, Maps, together
from segcal.predictors.source import IMAGES, Source, SourceCase, stem
from segcal.predictors.volumes import open_volume
from segcal.types import IGNORE, UserError

_REORIENTED = "NibabelIOWithReorient"  # nnU-Net's reader that turns every image to RAS


@dataclass(frozen=True)
class CaseData:
    """What is read of one case; arrays have the axes (D, H, W) of the maps."""

    maps: Maps
    label: NDArray[np.int16] | None  # IGNORE where voxels are to be ignored
    spacing: tuple[float, float, float]  # of the axes, in mm
    segmentation: NDArray[Any] | None  # the label map that the predictor stored
    geometry: Grid | None  # to write maps and labels where they belong


def open_maps(path: Path) -> Maps:
    """The maps in one file, whatever its format."""
    if not path.is_file():
        raise UserError(f"{path} is missing or is no file")
    name = path.name.lower()
    if name.endswith(".npz"):
        return open_npz(path)
    if name.endswith(".npy"):
        return open_npy(path)
    if stem(path) is None:
        raise UserError(f"{path} is no .npz, .npy or image file ({', '.join(IMAGES)})")
    return open_volume(path)


def case_maps(source: Source, case: SourceCase) -> Maps:
    """The maps of a case, as many as the source has."""
    parts = [open_maps(path) for path in case.files]
    n_maps = sum(part.shape[0] for part in parts)
    # A file with all maps of a case has its background too, or it is wrong.
    may_lack = source.format == "class maps" and source.kind == "softmax"
    rest = may_lack and n_maps == source.n_maps - 1
    maps = together(parts, case.id, rest=rest) if rest or len(parts) > 1 else parts[0]
    if maps.shape[0] != source.n_maps:
        held = f"{case.files[0]} holds {maps.shape[0]} maps"
        names = ", ".join(source.classes)
        background = "" if source.regions or source.kind == "confidence" else "background and "
        raise UserError(f"{held} where {source.n_maps} are expected ({background}{names})")
    return maps


def check_shape(source: Source, case: SourceCase, maps: Maps) -> None:
    """Raise if the reference must have the shape of the maps and has another one."""
    if maps.grid is None and case.segmentation is None and case.label is not None:
        label = _label_image(case.label, source.reader == _REORIENTED)
        _on_grid_of(maps, None, label, case, resample=False)


def read_case(source: Source, case: SourceCase, *, resample: bool = False) -> CaseData:
    """Read a case; with `resample`, a reference on another grid is moved to that of the maps."""
    maps = case_maps(source, case)
    turn = source.reader == _REORIENTED
    stored = _label_image(case.segmentation, turn) if case.segmentation else None
    grid = maps.grid
    if grid is None and stored is not None and _shape(stored) == maps.shape[1:]:
        grid = Grid.of(stored)
    label = _label_image(case.label, turn) if case.label else None
    if label is not None:
        label = _on_grid_of(maps, grid, label, case, resample)
        grid = grid or Grid.of(label)
    if grid is None and case.image is not None:
        image = Grid.of(_turned(read_single(case.image), turn))
        grid = image if image.size[::-1] == maps.shape[1:] else None
    if stored is not None and _shape(stored) != maps.shape[1:]:
        assert case.segmentation is not None
        raise UserError(_shapes(case.segmentation, _shape(stored), case.files[0], maps))
    z, y, x = grid.spacing[::-1] if grid else (1.0, 1.0, 1.0)
    return CaseData(
        maps,
        None if label is None else _reference(label, source, case),
        (z, y, x),
        None if stored is None else sitk.GetArrayFromImage(stored),
        grid,
    )


def read_probs(path: str | Path) -> Map:
    """The maps (K, D, H, W) in one file, as stored; integers are divided by their maximum."""
    return open_maps(Path(path)).stacked()


def _label_image(path: Path, turn: bool) -> sitk.Image:
    image = read_single(path)
    if image.GetNumberOfComponentsPerPixel() > 1:
        raise UserError(f"{path} holds colours where label numbers are expected")
    return _turned(image, turn)


def _turned(image: sitk.Image, turn: bool) -> sitk.Image:
    return sitk.DICOMOrient(image, "RAS") if turn else image


def _shape(image: sitk.Image) -> tuple[int, ...]:
    return tuple(image.GetSize()[::-1])


def _on_grid_of(
    maps: Maps, grid: Grid | None, label: sitk.Image, case: SourceCase, resample: bool
) -> sitk.Image:
    """The reference where the voxels of the maps are; not known outside of it."""
    same = _shape(label) == maps.shape[1:]
    if same and (grid is None or grid.close_to(Grid.of(label), apart=0.1)):
        return label
    assert case.label is not None
    if grid is not None and resample:
        return _resampled(label, grid)
    if not same:
        problem = _shapes(case.label, _shape(label), case.files[0], maps)
        raise UserError(problem + ("" if grid is None else ", or resample it with --resample"))
    problem = f"{case.label} has another spacing, origin or direction than the maps of {case.id}"
    raise UserError(f"{problem}; correct the header, or resample the reference with --resample")


def _resampled(label: sitk.Image, grid: Grid) -> sitk.Image:
    size = [int(n) for n in grid.size]
    settings = (size, sitk.Transform(), sitk.sitkNearestNeighbor, grid.origin, grid.spacing)
    outside = IGNORE
    wide = sitk.Cast(label, sitk.sitkInt32)
    return sitk.Resample(wide, *settings, grid.direction, outside)


def _shapes(path: Path, shape: tuple[int, ...], maps_path: Path, maps: Maps) -> str:
    """What differs, and whether other axes would fit."""
    found = f"{path} has shape {shape} where the maps in {maps_path} have {maps.shape[1:]}"
    for axes in permutations(range(4)):
        if tuple(maps.shape[axis] for axis in axes)[1:] == shape:
            return f"{found}; they would fit if the maps were transposed by {axes}"
    if maps_path.suffix == ".npz":
        return f"{found}; nnU-Net v1 stores maps of the cropped image only, other tools do not"
    return f"{found}; give the reference on the grid of the maps"


def _reference(image: sitk.Image, source: Source, case: SourceCase) -> NDArray[np.int16]:
    """The label map (D, H, W) with class numbers and IGNORE."""
    array = sitk.GetArrayFromImage(image)
    ignored = array == IGNORE
    if source.ignore_label is not None:
        ignored |= array == source.ignore_label
    array[ignored] = 0
    allowed = source.labels
    if wrong := _wrong_labels(array, allowed):
        held = ", ".join(f"{value:g}" for value in wrong[:5])
        fits = f"0 to {max(allowed)}" if allowed else "0, 1, 2 and so on"
        rule = f"labels of this predictor must be {fits}"
        raise UserError(f"{case.label} holds the label {held}; {rule}")
    label = array.astype(np.int16)
    label[ignored] = IGNORE
    return label


def _wrong_labels(array: NDArray[Any], allowed: frozenset[int] | None) -> list[float]:
    """The values that are no label; sorting all values is avoided where their range shows it."""
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind in "iu":
        if allowed is None and low >= 0:
            return []
        if allowed is not None and high - low < 1000 and allowed.issuperset(_range(low, high)):
            return []
    values: list[float] = np.unique(array).tolist()
    if allowed is None:
        return [value for value in values if value < 0 or value % 1]
    return [value for value in values if value not in allowed]


def _range(low: float, high: float) -> range:
    return range(int(low), int(high) + 1)
