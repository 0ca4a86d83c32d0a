"""Predict on new images: label map, confidence and volumes, in each image's own geometry."""

from __future__ import annotations

import re
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
from segcal.data.images import Grid, from_array, restored
from segcal.data.inputs import FLAT, Input, inputs_of, unit_of
from segcal.differences import differences
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
from segcal.types import AnyPath, Progress, UserError, as_paths

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
    images: AnyPath | Sequence[AnyPath],
    out: AnyPath,
    *,
    split: str = "test",
    calibrator: str = "",
    probabilities: bool = False,
    again: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Write label map, confidence and summary of every case; returns the summaries.

    Images are files, folders such as nnU-Net's `imagesTs`, folders of a DICOM series, and prepared
    data sets, of which a split is predicted. Channels of a case come as `name_0000`, `name_0001`
    ..., or in one 4D file. Label maps have the format of the image. A case that was predicted from
    the same files is skipped unless `again`, even if its label map was corrected by hand. Files of
    another predictor are not replaced. Sizes have intervals if `calibrate` fitted them for these
    weights and this calibrator."""
    out = Path(out)
    inputs = inputs_of(as_paths(images), predictor.info["data"], split)
    fitted = load_calibrator(predictor, calibrator) if calibrator else None
    guarantee = load_guarantee(predictor.root, calibrator, predictor.weights)
    out.mkdir(parents=True, exist_ok=True)
    sweep(out)
    summaries = {}
    for i, each in enumerate(inputs, start=1):
        name = each.name
        source = _source(predictor, each, calibrator, probabilities)
        files = _files(out, each, predictor.classes, probabilities)
        summary_path = path_of(out, name, "_summary.json")
        known = read_summary(summary_path)
        if known is not None and not again and all(path.is_file() for path in files):
            before = {key: known.get(key) for key in source}
            if before != source:
                for name_of, mark in (("run", "run_id"), ("calibrator", "calibrator_sha256")):
                    if before[name_of] != source[name_of]:  # then the mark says nothing more
                        before[mark] = source[mark]
                told = differences(before, source, summary_path.name)
                remedy = "choose another --out, or --again to replace it"
                raise UserError(f"{out} has a prediction of {name!r}, but {told}; {remedy}")
            summaries[name] = with_intervals(known, guarantee)
            if summaries[name] != known:  # fitted since then
                write_json(summary_path, summaries[name])
            continue
        maps = _predicted(predictor, each, fitted)
        for old in _files(out, each, predictor.classes, probabilities=True):
            old.unlink(missing_ok=True)  # of a prediction with other options
        arrays = (maps.label, maps.confidence, *(maps.probs if probabilities else ()))
        for path, array in zip(files, arrays, strict=True):
            _write(path, array, maps.grid)
        about = summary(maps, predictor.classes, unit_of(each.ending, maps.grid))
        summaries[name] = source | with_intervals(about, guarantee)
        write_json(summary_path, summaries[name])
        if progress is not None:
            progress(i, len(inputs))
    return summaries


def _write(path: Path, array: NDArray[Any], grid: Grid) -> None:
    """A map as an image; a single slice in the format of a picture as a picture."""
    image = from_array(array, grid)
    write_image(path, image[:, :, 0] if path.suffix in FLAT and len(array) == 1 else image)


def _files(out: Path, case: Input, classes: Sequence[str], probabilities: bool) -> list[Path]:
    """The images of a case: label map, confidence, and a map per class if asked."""
    kinds = ["confidence"]
    if probabilities:
        for k, word in enumerate(("background", *classes)):
            safe = re.sub(r"\W+", "-", word)
            kinds.append(f"prob_{k}_{safe}")
    maps = [path_of(out, case.name, f"_{kind}{case.map_ending}") for kind in kinds]
    return [path_of(out, case.name, f"_seg{case.ending}"), *maps]


def _source(
    predictor: ImagePredictor, case: Input, calibrator: str, probabilities: bool
) -> dict[str, Any]:
    """What a prediction is made from."""
    fit = None
    if calibrator:  # another fit gives another prediction
        path = calibrator_path(predictor.root, calibrator, predictor.weights)
        fit = sha256(path.with_name(f"{path.name}.json"))
    return {
        "format": FORMAT,
        "images": case.marks,
        "run": predictor.root.resolve().name,
        "run_id": predictor.info["id"],
        "weights": predictor.weights,
        "probabilities": probabilities,
        "calibrator": calibrator or None,
        "calibrator_sha256": fit,
    }


def _predicted(predictor: ImagePredictor, case: Input, fitted: Fitted | None) -> Maps:
    """The maps of a case, on the grid of its first file.

    A calibrator that keeps the label map keeps it here too: interpolating calibrated probabilities
    could change it."""
    array, grid, original = case.read(predictor.info["data"])
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


def summary(
    maps: Maps, classes: Sequence[str], unit: tuple[str, float] = ("ml", 1.0)
) -> dict[str, Any]:
    """Sizes and confidence of one case; the expected size is the sum of the probabilities.

    `unit` is the name of a unit and how many of it are a millilitre."""
    name, n = unit
    millilitres, sizes = _millilitres(maps.grid.spacing), {}
    given = zip(classes, maps.volumes.expected_ml, maps.volumes.spread_ml, strict=True)
    for k, (kind, expected, spread) in enumerate(given, start=1):
        n_voxels = int((maps.label == k).sum())
        sizes[kind] = {
            "voxels": n_voxels,
            name: round(n_voxels * millilitres * n, 4),
            f"expected_{name}": _rounded(expected * n),
            f"spread_{name}": _rounded(spread * n),
        }
    inside = _of_label(maps.probs, maps.label)[maps.label > 0]
    mean = unsure = None
    if inside.size:
        mean = round(float(inside.mean(dtype=np.float64)), 4)
        unsure = round(float((inside < UNSURE).mean()), 4)
    return {
        "classes": sizes,
        "unit": name,
        f"voxel_{name}": _rounded(maps.volumes.voxel_ml * n),
        f"image_{name}": _rounded(maps.volumes.image_ml * n),
        "mean_confidence": mean,
        "unsure_share": unsure,
        "unseen_share": round(1 - float(maps.seen.mean()), 4),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def with_intervals(summary: dict[str, Any], guarantee: Guarantee | None) -> dict[str, Any]:
    """A summary with the intervals of this guarantee, and no others; none exceeds the image."""
    classes, unit = {}, summary.get("unit", "ml")  # older ones name none
    for name, known in summary["classes"].items():
        row = {key: known[key] for key in known if key not in (f"interval_{unit}", "level")}
        if guarantee is not None:
            sizes = row[f"expected_{unit}"], row[f"spread_{unit}"], summary[f"voxel_{unit}"]
            low, high = (float(end) for end in interval(*sizes, guarantee.quantile(name)))
            ends = [_rounded(low), _rounded(min(high, summary[f"image_{unit}"]))]
            row |= {f"interval_{unit}": ends, "level": guarantee.level}
        classes[name] = row
    return summary | {"classes": classes}
