"""Predict on anyone's images: label map, confidence and probabilities in the image's own geometry, and a summary."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk
import torch
from numpy.typing import NDArray

from segcal import calibrators
from segcal.data.case import prepared_image, read_images
from segcal.data.catalog import Recipe
from segcal.data.images import Grid, from_array, restored
from segcal.evaluation import calibrator_path
from segcal.inference import Run
from segcal.store import write_image, write_json
from segcal.types import UserError

Progress = Callable[[int, int], None]
UNSURE = 0.7  # foreground voxels below this confidence are counted


def predict(
    run: Run,
    images: Sequence[Path],
    out: Path,
    *,
    calibrator: str = "",
    probabilities: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Write `<name>_seg.nii.gz`, `<name>_confidence.nii.gz` and `<name>.json` per case; returns the summaries.

    Channels of a case come as `name_0000`, `name_0001` ..., or in one 4D file.
    """
    groups = grouped(images, len(run.info["data"]["channels"]))
    fitted = calibrators.load(calibrator_path(run, calibrator), expect=run.identity) if calibrator else None
    out.mkdir(parents=True, exist_ok=True)
    summaries = {}
    for i, (name, paths) in enumerate(groups.items(), start=1):
        probs, original = _probabilities(run, paths, fitted)
        label, confidence = probs.argmax(0).astype(np.uint8), probs.max(0)
        write_image(out / f"{name}_seg.nii.gz", from_array(label, original))
        write_image(out / f"{name}_confidence.nii.gz", from_array(confidence, original))
        if probabilities:
            for k, kind in enumerate(("background", *run.classes)):
                slug = re.sub(r"\W+", "-", kind)
                write_image(out / f"{name}_prob_{k}_{slug}.nii.gz", from_array(probs[k], original))
        about = {"images": [path.name for path in paths], "run": run.root.name, "calibrator": calibrator or None}
        summaries[name] = about | summary(probs, run.classes, original.spacing)
        write_json(out / f"{name}.json", summaries[name])
        if progress is not None:
            progress(i, len(groups))
    return summaries


def grouped(images: Sequence[Path], n_channels: int) -> dict[str, tuple[Path, ...]]:
    """Files by case: `name_0000.nii.gz` and `name_0001.nii.gz` are two channels of `name`.

    >>> {k: len(v) for k, v in grouped([Path("a_0001.nii.gz"), Path("a_0000.nii.gz"), Path("b.mha")], 2).items()}
    {'a': 2, 'b': 1}
    """
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in images:
        stem = re.sub(r"(\.nii)?\.\w+$", "", path.name)
        channel = re.fullmatch(r"(.+)_\d{4}", stem)
        groups[channel[1] if channel else stem].append(path)
    for name, paths in groups.items():
        numbered = len(paths) > 1
        if len({p.name for p in paths}) < len(paths) or (numbered and len(paths) != n_channels):
            listed = ", ".join(sorted(p.name for p in paths))
            raise UserError(f"case {name!r} has {len(paths)} files ({listed}) where this run needs {n_channels} channels")
    return {name: tuple(sorted(paths)) for name, paths in groups.items()}


def _probabilities(run: Run, paths: tuple[Path, ...], fitted: Any) -> tuple[NDArray[np.float32], Grid]:
    """Class probabilities (K, z, y, x) on the grid of the first file, and that grid."""
    data = run.info["data"]
    images = read_images(paths, tuple(data["channels"]))
    kept: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in data["recipe"].items()}
    recipe = Recipe(**kept)
    array, grid = prepared_image(images, recipe, data["orientation"])
    image = torch.from_numpy(array)
    logits = run.logits(image)
    if fitted is not None:
        logits = fitted(logits, image)
    probs = torch.softmax(logits.float(), 1).movedim(1, 0).numpy()  # (K, D, H, W)
    original = Grid.of(images[0])
    moved = [sitk.GetArrayFromImage(restored(part, grid, original, labels=False)) for part in probs[1:]]
    foreground = np.clip(np.stack(moved), 0, 1)
    background = np.clip(1 - foreground.sum(0), 0, 1)  # also where the network was not asked
    return np.concatenate([background[None], foreground]).astype(np.float32), original


def summary(probs: NDArray[np.float32], classes: tuple[str, ...], spacing: Sequence[float]) -> dict[str, Any]:
    """Volumes and confidence of one case, from probabilities (K, z, y, x).

    The expected volume is the sum of the probabilities. Its interval takes all errors as one: if the whole outline is drawn
    wide or narrow together, the volume's 5th and 95th percentiles are the volumes where p > 0.95 and p > 0.05.
    """
    label, confidence = probs.argmax(0), probs.max(0)
    millilitres = float(np.prod(spacing)) / 1000
    found = {}
    for k, name in enumerate(classes, start=1):
        low, high = (float((probs[k] > level).sum()) * millilitres for level in (0.95, 0.05))
        found[name] = {
            "voxels": int((label == k).sum()),
            "ml": round(float((label == k).sum()) * millilitres, 4),
            "expected_ml": round(float(probs[k].sum(dtype=np.float64)) * millilitres, 4),
            "interval_90_ml": [round(low, 4), round(high, 4)],
        }
    inside = confidence[label > 0]
    return {
        "classes": found,
        "mean_confidence": round(float(inside.mean(dtype=np.float64)), 4) if inside.size else None,
        "unsure_share": round(float((inside < UNSURE).mean()), 4) if inside.size else None,
    }
