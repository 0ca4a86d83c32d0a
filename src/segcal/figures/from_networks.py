"""One case, predicted again by each contender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from segcal.compare import Results
from segcal.data.catalog import class_colours
from segcal.data.orientation import edges, turned
from segcal.figures import pictures
from segcal.figures.looks import looks_of
from segcal.figures.pictures import Outcome
from segcal.metrics import label_map, reliability
from segcal.predictors import open_predictor
from segcal.types import UserError


def qualitative(results: Results, dataset: str) -> Figure | None:
    """The median test case by DSC, mean over methods, in its slice with most foreground. Top: image
    and outlines of the predicted classes; middle: reference and confidence of the predicted class;
    bottom: reliability over the foreground voxels of the whole case. Letters are the sides of the
    patient: right, left, anterior, posterior, superior, inferior."""
    contenders = results.main(dataset)
    case = median_case(results, dataset)
    scored = results.rows()
    scored = scored[(scored["dataset"] == dataset) & (scored["case"] == case)]
    predictions = {}
    for c in contenders:
        run = next(run for run in c.runs if run in set(scored["run"]))
        try:
            predictor = open_predictor(Path(results.runs[run]["folder"]), weights=c.weights)
            predictions[c.key] = predictor.case(case)
        except UserError:
            return None
    first = next(iter(predictions.values()))
    image, label = first.image, first.label
    if image is None or label is None:
        return None
    data = results.data(dataset)
    sides = edges(data["orientation"], data["recipe"]["axis"])
    z = int((label > 0).flatten(1).sum(1).argmax())

    def shown(slice: Tensor) -> NDArray[Any]:
        return turned(slice.numpy(), sides["flip"])

    outcomes = {}
    for key, prediction in predictions.items():
        logits = prediction.slices
        top = reliability(logits, label).top
        bins = {"count": top.count.numpy(), "conf": top.conf.numpy(), "hit": top.hit.numpy()}
        confidence = torch.softmax(logits[z], 0).amax(0)
        outcomes[key] = Outcome(shown(label_map(logits)[z]), shown(confidence), bins)
    return pictures.qualitative(
        shown(image[z, 0]),
        shown(label[z]),
        outcomes,
        looks_of(contenders),
        data["classes"],
        class_colours(len(data["classes"])),
        aspect=first.spacing[1] / first.spacing[2],
        edges=sides,
        title=f"{case}, slice {z + 1} of {len(label)}",
    )


def median_case(results: Results, dataset: str) -> str:
    """The median case by Dice, mean over contenders; cases without Dice are left out."""
    table = results.per_case(dataset, "dice", results.overall_class(dataset, "dice"))
    means = table[[c.key for c in results.main(dataset)]].mean(axis=1).dropna()
    order = means.sort_values(kind="stable").index
    return str(order[(len(order) - 1) // 2])
