"""One case, predicted again by each contender."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from segcal.compare import Results
from segcal.data.catalog import class_colours
from segcal.data.orientation import edges, turned
from segcal.data.slices import volume
from segcal.figures import pictures
from segcal.figures.looks import looks_of
from segcal.figures.pictures import Outcome
from segcal.metrics import label_map, reliability
from segcal.predictors.run import open_run
from segcal.scoring import data_of
from segcal.types import UserError


class _Predicted(NamedTuple):
    logits: Tensor  # (D, K, H, W)
    image: Tensor  # (D, C, H, W)
    label: Tensor  # (D, H, W)
    spacing: tuple[float, float, float]  # z, y, x
    edges: dict[str, Any]  # how the slices are turned, and the letters of their sides


def _predicted(folder: Path, case: str) -> _Predicted:
    run = open_run(folder)
    cases = data_of(run)
    image, label = volume(cases, case)
    return _Predicted(
        run.logits(image), image, label, cases.case(case)["spacing"], edges(cases.info)
    )


def qualitative(results: Results, dataset: str) -> Figure | None:
    """The median test case by DSC, mean over methods, in its slice with most foreground. Top: image
    and outlines of the predicted classes; middle: reference and confidence of the predicted class;
    bottom: reliability over the foreground voxels of the whole case. Letters are the sides of the
    patient: right, left, anterior, posterior, superior, inferior."""
    contenders = results.main(dataset)
    case = median_case(results, dataset)
    scored = results.rows()
    scored = scored[(scored["dataset"] == dataset) & (scored["case"] == case)]
    outcomes = {}
    for c in contenders:
        run = next(run for run in c.runs if run in set(scored["run"]))
        try:
            seen = _predicted(Path(results.runs[run]["folder"]), case)
        except UserError:
            return None
        z = int((seen.label > 0).flatten(1).sum(1).argmax())
        top = reliability(seen.logits, seen.label).top
        bins = {"count": top.count.numpy(), "conf": top.conf.numpy(), "hit": top.hit.numpy()}
        confidence = torch.softmax(seen.logits[z], 0).amax(0)
        labels = label_map(seen.logits)[z]
        outcomes[c.key] = Outcome(_shown(labels, seen), _shown(confidence, seen), bins)
    classes = results.data(dataset)["classes"]
    return pictures.qualitative(
        _shown(seen.image[z, 0], seen),
        _shown(seen.label[z], seen),
        outcomes,
        looks_of(contenders),
        classes,
        class_colours(len(classes)),
        aspect=seen.spacing[1] / seen.spacing[2],
        edges=seen.edges,
        title=f"{case}, slice {z + 1} of {len(seen.label)}",
    )


def _shown(slice: Tensor, seen: _Predicted) -> NDArray[Any]:
    return turned(slice.numpy(), seen.edges["flip"])


def median_case(results: Results, dataset: str) -> str:
    """The median case by Dice, mean over contenders; cases without Dice are left out."""
    table = results.per_case(dataset, "dice", results.overall_class(dataset, "dice"))
    means = table[[c.key for c in results.main(dataset)]].mean(axis=1).dropna()
    order = means.sort_values(kind="stable").index
    return str(order[(len(order) - 1) // 2])
