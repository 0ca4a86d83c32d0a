"""Predict on anyone's images: label map, confidence and probabilities in the image's own geometry,
and a summary.
"""

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
from torch import Tensor

from segcal import calibrators
from segcal.calibrators import CALIBRATORS
from segcal.data.case import prepared_image, read_images
from segcal.data.catalog import Recipe
from segcal.data.images import Grid, from_array, restored
from segcal.folders import read_json, sha256, write_image, write_json
from segcal.predictors.run import Run
from segcal.scoring import calibrator_path
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
    again: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Write `<name>_seg.nii.gz`, `<name>_confidence.nii.gz` and `<name>_summary.json` per case;
    returns the summaries.

    Channels of a case come as `name_0000`, `name_0001` ..., or in one 4D file. A case that this run
    has predicted from these files is left alone unless `again`, also if its label map was corrected
    by hand; another's files are not replaced."""
    groups = grouped(images, len(run.info["data"]["channels"]))
    fitted = (
        calibrators.load(calibrator_path(run, calibrator), expect=run.identity)
        if calibrator
        else None
    )
    keeps_labels = not calibrator or CALIBRATORS[calibrator].keeps_labels
    out.mkdir(parents=True, exist_ok=True)
    summaries = {}
    for i, (name, paths) in enumerate(groups.items(), start=1):
        about = _about(run, paths, calibrator, probabilities)
        known = read_json(out / f"{name}_summary.json")
        if (
            known is not None
            and not again
            and all((out / file).is_file() for file in _files(name, run, probabilities))
        ):
            if any(known.get(key) != value for key, value in about.items()):
                raise UserError(
                    f"{out} has another prediction of {name!r}; choose another --out, or --again to"
                    " replace it"
                )
            summaries[name] = known
            continue
        probs, label, seen, original = _probabilities(run, paths, fitted, keeps_labels=keeps_labels)
        confidence = np.take_along_axis(probs, label[None].astype(np.intp), 0)[0] * seen
        for old in _files(name, run, probabilities=True):
            (out / old).unlink(missing_ok=True)  # of a prediction with another calibrator, say
        maps = (label, confidence, *(probs if probabilities else ()))
        for file, values in zip(_files(name, run, probabilities), maps, strict=True):
            write_image(out / file, from_array(values, original))
        summaries[name] = about | summary(probs, label, run.classes, original.spacing)
        summaries[name]["unseen_share"] = round(1 - float(seen.mean()), 4)
        write_json(out / f"{name}_summary.json", summaries[name])
        if progress is not None:
            progress(i, len(groups))
    return summaries


def _files(name: str, run: Run, probabilities: bool) -> list[str]:
    """The images of a case: label map, confidence, and a map per class if asked."""
    kinds = (
        [re.sub(r"\W+", "-", kind) for kind in ("background", *run.classes)]
        if probabilities
        else []
    )
    maps = ["seg", "confidence", *(f"prob_{k}_{kind}" for k, kind in enumerate(kinds))]
    return [f"{name}_{kind}.nii.gz" for kind in maps]


def _about(run: Run, paths: Sequence[Path], calibrator: str, probabilities: bool) -> dict[str, Any]:
    """What a prediction was made from."""
    sources = {path.name: sha256(path) for path in paths if path.is_file()}
    made = {
        "run": run.root.resolve().name,
        "run_id": run.info["id"],
        "probabilities": probabilities,
    }
    fit = (
        sha256(calibrator_path(run, calibrator).with_suffix(".json")) if calibrator else None
    )  # a new fit is another one
    return {"images": sources} | made | {"calibrator": calibrator or None, "calibrator_sha256": fit}


def grouped(images: Sequence[Path], n_channels: int) -> dict[str, tuple[Path, ...]]:
    """Files by case: with two channels, `name_0000.nii.gz` and `name_0001.nii.gz` are those of
    `name`.

    A run with one channel takes every file for a case of its own, but for those whose `_0000` is
    there too: they look like further channels, and a wrong number of channels must not go by
    unseen.

    >>> cases = grouped([Path("a_0001.nii"), Path("a_0000.nii"), Path("b.mha")], 2)
    >>> {k: [p.name for p in v] for k, v in cases.items()}
    {'a': ['a_0000.nii', 'a_0001.nii'], 'b': ['b.mha']}
    """
    groups: dict[str, dict[int, Path]] = defaultdict(dict)
    stems = [re.sub(r"(\.nii)?\.\w+$", "", path.name) for path in images]
    for path, stem in zip(images, stems, strict=True):
        numbered = re.fullmatch(r"(.+)_(\d{4})", stem)
        if numbered and (n_channels > 1 or f"{numbered[1]}_0000" in stems):
            name, number = numbered[1], int(numbered[2])
        else:
            name, number = stem, -1  # the whole case
        if number in groups[name]:
            raise UserError(
                f"{path} and {groups[name][number]} would both be case {name!r}; predict them into"
                " two folders"
            )
        groups[name][number] = path
    for name, files in groups.items():
        if set(files) not in ({-1}, set(range(n_channels))):
            listed = ", ".join(sorted(p.name for p in files.values()))
            needs = f"{n_channels} channels, from _0000 on" if n_channels > 1 else "one channel"
            raise UserError(
                f"case {name!r} has the files {listed} where this run needs {needs}; name other"
                " cases otherwise"
            )
    return {
        name: tuple(path for _, path in sorted(files.items())) for name, files in groups.items()
    }


def _probabilities(
    run: Run, paths: tuple[Path, ...], fitted: Any, *, keeps_labels: bool
) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint8], Grid]:
    """Probabilities (K, z, y, x), label map and where the network looked (z, y, x), all on the
    first file's grid; that grid.

    A calibrator that keeps the label map keeps it here too: interpolating calibrated probabilities
    could change it."""
    data = run.info["data"]
    images = read_images(paths, tuple(data["channels"]))
    kept: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in data["recipe"].items()
    }
    array, grid = prepared_image(images, Recipe(**kept), data["orientation"])
    original = Grid.of(images[0])
    image = torch.from_numpy(array)
    logits = run.logits(image)
    plain = _restored(logits, grid, original)
    probs = plain if fitted is None else _restored(fitted(logits, image), grid, original)
    seen = sitk.GetArrayFromImage(
        restored(np.ones(array[:, 0].shape, np.uint8), grid, original, labels=True)
    )
    return probs, (plain if keeps_labels else probs).argmax(0).astype(np.uint8), seen, original


def _restored(logits: Tensor, grid: Grid, original: Grid) -> NDArray[np.float32]:
    probs = torch.softmax(logits.float(), 1).movedim(1, 0).numpy()  # (K, D, H, W)
    moved = [
        sitk.GetArrayFromImage(restored(part, grid, original, labels=False)) for part in probs[1:]
    ]
    foreground = np.clip(np.stack(moved), 0, 1)
    background = np.clip(1 - foreground.sum(0), 0, 1)  # also where the network was not asked
    return np.concatenate([background[None], foreground]).astype(np.float32)


def summary(
    probs: NDArray[np.float32],
    label: NDArray[np.uint8],
    classes: tuple[str, ...],
    spacing: Sequence[float],
) -> dict[str, Any]:
    """Volumes and confidence of one case, from probabilities (K, z, y, x) and label map (z, y, x).

    The expected volume is the sum of the probabilities. Its interval takes all errors as one: if
    the whole outline is drawn wide or narrow together, the volume's 5th and 95th percentiles are
    the volumes where p > 0.95 and p > 0.05. Where many small probabilities add up to more than
    that, it is widened to hold the expected volume."""
    confidence = np.take_along_axis(probs, label[None].astype(np.intp), 0)[0]
    millilitres = float(np.prod(spacing)) / 1000
    found = {}
    for k, name in enumerate(classes, start=1):
        low, high = (float((probs[k] > level).sum()) * millilitres for level in (0.95, 0.05))
        expected = float(probs[k].sum(dtype=np.float64)) * millilitres
        low, high = min(low, expected), max(high, expected)
        found[name] = {
            "voxels": int((label == k).sum()),
            "ml": round(float((label == k).sum()) * millilitres, 4),
            "expected_ml": round(expected, 4),
            "interval_90_ml": [round(low, 4), round(high, 4)],
        }
    inside = confidence[label > 0]
    return {
        "classes": found,
        "mean_confidence": round(float(inside.mean(dtype=np.float64)), 4) if inside.size else None,
        "unsure_share": round(float((inside < UNSURE).mean()), 4) if inside.size else None,
    }
