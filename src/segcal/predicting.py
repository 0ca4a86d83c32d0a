"""Predict on new images: label map, confidence and volumes, in each image's own geometry."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.calibrators import CALIBRATORS, Fitted
from segcal.conformal import Guarantee, interval
from segcal.data.case import prepared_image, read_images
from segcal.data.catalog import Recipe
from segcal.data.containers import data_files
from segcal.data.images import Grid, from_array, restored
from segcal.folders import (
    calibrator_path,
    path_of,
    read_summary,
    sha256,
    sweep,
    write_image,
    write_json,
)
from segcal.metrics import reliability
from segcal.predictors import ImagePredictor
from segcal.scoring import load_calibrator
from segcal.scoring.volumes import load_guarantee
from segcal.types import Progress, UserError

UNSURE = 0.7  # foreground voxels below this confidence are counted
FORMAT = 2  # of a summary


@dataclass(frozen=True)
class Volumes:
    """What intervals are made from: as in scoring, on the grid that the network sees."""

    expected_ml: tuple[float, ...]  # of each foreground class, the sum of its probabilities
    spread_ml: tuple[float, ...]  # the sum of p (1 - p)
    voxel_ml: float
    image_ml: float  # all that the network looked at


@dataclass(frozen=True)
class Maps:
    """What was predicted for one case, on the grid of its first file."""

    probs: NDArray[np.float32]  # (K, z, y, x)
    label: NDArray[np.uint8]  # (z, y, x)
    seen: NDArray[np.uint8]  # 1 where the network looked
    grid: Grid
    volumes: Volumes

    @property
    def confidence(self) -> NDArray[np.float32]:
        """The probability of the predicted class; 0 where the network did not look."""
        return _of_label(self.probs, self.label) * self.seen


def predict(
    predictor: ImagePredictor,
    images: Sequence[Path],
    out: Path,
    *,
    calibrator: str = "",
    probabilities: bool = False,
    again: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Write label map, confidence and summary of every case; returns the summaries.

    Channels of a case come as `name_0000`, `name_0001` ..., or in one 4D file. A case that was
    predicted from the same files is skipped unless `again`, even if its label map was corrected by
    hand. Files of another predictor are not replaced. Volumes have intervals if `calibrate` fitted
    them for these weights and this calibrator."""
    groups = grouped(images, len(predictor.info["data"]["channels"]))
    fitted = load_calibrator(predictor, calibrator) if calibrator else None
    guarantee = load_guarantee(predictor.root, calibrator, predictor.weights)
    out.mkdir(parents=True, exist_ok=True)
    sweep(out)
    summaries = {}
    for i, (name, paths) in enumerate(groups.items(), start=1):
        source = _source(predictor, paths, calibrator, probabilities)
        files = _files(out, name, predictor.classes, probabilities)
        summary_path = path_of(out, name, "_summary.json")
        known = read_summary(summary_path)
        if known is not None and not again and all(path.is_file() for path in files):
            if any(known.get(key) != value for key, value in source.items()):
                raise UserError(
                    f"{out} has another prediction of {name!r}; choose another --out, or --again"
                    " to replace it"
                )
            summaries[name] = with_intervals(known, guarantee)
            if summaries[name] != known:  # fitted since then
                write_json(summary_path, summaries[name])
            continue
        maps = _predicted(predictor, paths, fitted)
        for old in _files(out, name, predictor.classes, probabilities=True):
            old.unlink(missing_ok=True)  # of a prediction with other options
        arrays = (maps.label, maps.confidence, *(maps.probs if probabilities else ()))
        for path, array in zip(files, arrays, strict=True):
            write_image(path, from_array(array, maps.grid))
        summaries[name] = source | with_intervals(summary(maps, predictor.classes), guarantee)
        write_json(summary_path, summaries[name])
        if progress is not None:
            progress(i, len(groups))
    return summaries


def _files(out: Path, name: str, classes: Sequence[str], probabilities: bool) -> list[Path]:
    """The images of a case: label map, confidence, and a map per class if asked."""
    kinds = ["seg", "confidence"]
    if probabilities:
        for k, word in enumerate(("background", *classes)):
            safe = re.sub(r"\W+", "-", word)
            kinds.append(f"prob_{k}_{safe}")
    return [path_of(out, name, f"_{kind}.nii.gz") for kind in kinds]


def _source(
    predictor: ImagePredictor, paths: Sequence[Path], calibrator: str, probabilities: bool
) -> dict[str, Any]:
    """What a prediction is made from."""
    fit = None
    if calibrator:  # another fit gives another prediction
        path = calibrator_path(predictor.root, calibrator, predictor.weights)
        fit = sha256(path.with_name(f"{path.name}.json"))
    read = [part for path in paths for part in (path, *data_files(path))]
    return {
        "format": FORMAT,
        "images": {path.name: sha256(path) for path in read if path.is_file()},
        "run": predictor.root.resolve().name,
        "run_id": predictor.info["id"],
        "weights": predictor.weights,
        "probabilities": probabilities,
        "calibrator": calibrator or None,
        "calibrator_sha256": fit,
    }


def grouped(images: Sequence[Path], n_channels: int) -> dict[str, tuple[Path, ...]]:
    """Files by case: with two channels, `name_0000.nii.gz` and `name_0001.nii.gz` are those of
    `name`.

    With one channel every file is a case, unless a `_0000` of the same name is there: such files
    look like further channels, and a wrong number of channels must be noticed.

    >>> cases = grouped([Path("a_0001.nii"), Path("a_0000.nii"), Path("b.mha")], 2)
    >>> {k: [p.name for p in v] for k, v in cases.items()}
    {'a': ['a_0000.nii', 'a_0001.nii'], 'b': ['b.mha']}
    """
    groups: dict[str, dict[int, Path]] = defaultdict(dict)
    stems = [re.sub(r"(\.nii)?\.\w+\Z", "", path.name) for path in images]
    for path, stem in zip(images, stems, strict=True):
        name, number = stem, -1  # the whole case
        numbered = re.fullmatch(r"(?s)(.+)_(\d{4})", stem)
        if numbered and (n_channels > 1 or f"{numbered[1]}_0000" in stems):
            name, number = numbered[1], int(numbered[2])
        if number in groups[name]:
            raise UserError(
                f"{path} and {groups[name][number]} would both be case {name!r}; predict them into"
                " two folders"
            )
        groups[name][number] = path
    cases = {}
    for name, files in groups.items():
        if set(files) not in ({-1}, set(range(n_channels))):
            listed = ", ".join(sorted(p.name for p in files.values()))
            needs = f"{n_channels} channels, from _0000 on" if n_channels > 1 else "one channel"
            raise UserError(
                f"case {name!r} has the files {listed} where this run needs {needs}; name other"
                " cases otherwise"
            )
        cases[name] = tuple(files[number] for number in sorted(files))
    return cases


def _predicted(predictor: ImagePredictor, paths: tuple[Path, ...], fitted: Fitted | None) -> Maps:
    """The maps of a case, on the grid of its first file.

    A calibrator that keeps the label map keeps it here too: interpolating calibrated probabilities
    could change it."""
    data = predictor.info["data"]
    images = read_images(paths, tuple(data["channels"]))
    recipe: dict[str, Any] = {}
    for key, value in data["recipe"].items():
        recipe[key] = tuple(value) if isinstance(value, list) else value
    array, grid = prepared_image(images, Recipe(**recipe), data["orientation"])
    original = Grid.of(images[0])
    image = torch.from_numpy(array)
    logits = predictor.logits(image)
    probs = uncalibrated = _restored(logits, grid, original)
    if fitted is not None:
        logits = fitted(logits, image)
        probs = _restored(logits, grid, original)
    keeps_labels = fitted is None or CALIBRATORS[fitted.key].keeps_labels
    label = (uncalibrated if keeps_labels else probs).argmax(0).astype(np.uint8)
    everywhere = np.ones(array[:, 0].shape, np.uint8)
    seen = sitk.GetArrayFromImage(restored(everywhere, grid, original, labels=True))
    volumes = _volumes(logits, grid.spacing)
    return Maps(probs, label, seen, original, volumes)


def _volumes(logits: Tensor, spacing: Sequence[float]) -> Volumes:
    """The volumes in logits (D, K, H, W)."""
    anything = torch.zeros(logits[:, 0].shape).long()  # these sums do not depend on labels
    sums, voxel = reliability(logits, anything, mask="all", n_bins=1), _millilitres(spacing)
    expected, spread = ((x[1:] * voxel).tolist() for x in (sums.n_expected, sums.spread))
    return Volumes(tuple(expected), tuple(spread), voxel, anything.numel() * voxel)


def _millilitres(spacing: Sequence[float]) -> float:
    return float(np.prod(spacing)) / 1000


def _restored(logits: Tensor, grid: Grid, original: Grid) -> NDArray[np.float32]:
    """Probabilities (K, z, y, x) on the original grid; outside of the prepared image background."""
    probs = torch.softmax(logits.float(), 1).movedim(1, 0).numpy()  # (K, D, H, W)
    moved = []
    for part in probs[1:]:
        moved.append(sitk.GetArrayFromImage(restored(part, grid, original, labels=False)))
    foreground = np.clip(np.stack(moved), 0, 1)
    background = np.clip(1 - foreground.sum(0), 0, 1)
    return np.concatenate([background[None], foreground]).astype(np.float32)


def _of_label(probs: NDArray[np.float32], label: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.take_along_axis(probs, label[None].astype(np.intp), 0)[0]


def summary(maps: Maps, classes: Sequence[str]) -> dict[str, Any]:
    """Volumes and confidence of one case; the expected volume is the sum of the probabilities."""
    millilitres, volumes = _millilitres(maps.grid.spacing), {}
    given = zip(classes, maps.volumes.expected_ml, maps.volumes.spread_ml, strict=True)
    for k, (name, expected, spread) in enumerate(given, start=1):
        n_voxels = int((maps.label == k).sum())
        volumes[name] = {
            "voxels": n_voxels,
            "ml": round(n_voxels * millilitres, 4),
            "expected_ml": _rounded(expected),
            "spread_ml": _rounded(spread),
        }
    inside = _of_label(maps.probs, maps.label)[maps.label > 0]
    mean = unsure = None
    if inside.size:
        mean = round(float(inside.mean(dtype=np.float64)), 4)
        unsure = round(float((inside < UNSURE).mean()), 4)
    return {
        "classes": volumes,
        "voxel_ml": _rounded(maps.volumes.voxel_ml),
        "image_ml": _rounded(maps.volumes.image_ml),
        "mean_confidence": mean,
        "unsure_share": unsure,
        "unseen_share": round(1 - float(maps.seen.mean()), 4),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def with_intervals(summary: dict[str, Any], guarantee: Guarantee | None) -> dict[str, Any]:
    """A summary with the intervals of this guarantee, and no others; none exceeds the image."""
    classes = {}
    for name, known in summary["classes"].items():
        row = {key: known[key] for key in known if key not in ("interval_ml", "level")}
        if guarantee is not None:
            volumes = row["expected_ml"], row["spread_ml"], summary["voxel_ml"]
            low, high = (float(end) for end in interval(*volumes, guarantee.quantile(name)))
            row["interval_ml"] = [_rounded(low), _rounded(min(high, summary["image_ml"]))]
            row["level"] = guarantee.level
        classes[name] = row
    return summary | {"classes": classes}
