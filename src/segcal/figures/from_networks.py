"""From the networks of finished runs to a figure: one case, segmented anew by each."""

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
from segcal.data.slices import volume
from segcal.figures import pictures
from segcal.figures.pictures import Outcome
from segcal.metrics import label_map, reliability
from segcal.predictors.run import Run, open_run
from segcal.scoring import data_of
from segcal.types import UserError


def qualitative(results: Results, dataset: str) -> Figure | None:
    """The case whose Dice, mean over contenders, is the median of all, in its slice with most
    foreground.

    `None` where the weights or the prepared data are no longer there.
    """
    contenders = results.main(dataset)
    case = median_case(results, dataset)
    scored = results.rows()
    scored = scored[(scored["dataset"] == dataset) & (scored["case"] == case)]
    try:
        runs = {
            c.key: _opened(results, next(run for run in c.runs if run in set(scored["run"])))
            for c in contenders
        }
        cases = data_of(next(iter(runs.values())))
        image, label = volume(cases, case)  # (D, C, H, W), (D, H, W)
    except UserError:
        return None
    z = int((label > 0).flatten(1).sum(1).argmax())
    outcomes, ends = {}, edges(cases.info)

    def shown(slice: Tensor) -> NDArray[Any]:
        return turned(slice.numpy(), ends["flip"])

    for key, run in runs.items():
        logits = run.logits(image)
        confidence = torch.softmax(logits[z], 0).amax(0)
        top = reliability(logits, label).top
        sums = {"count": top.count.numpy(), "conf": top.conf.numpy(), "hit": top.hit.numpy()}
        outcomes[key] = Outcome(shown(label_map(logits)[z]), shown(confidence), sums)
    spacing = cases.case(case)["spacing"]  # z, y, x
    classes = results.data(dataset)["classes"]
    return pictures.qualitative(
        shown(image[z, 0]),
        shown(label[z]),
        outcomes,
        {c.key: c.label for c in contenders},
        classes,
        class_colours(len(classes)),
        aspect=spacing[1] / spacing[2],
        edges=ends,
        title=f"{case}, slice {z + 1} of {len(label)}",
    )


def median_case(results: Results, dataset: str) -> str:
    """The case in the middle when they are ordered by Dice, mean over contenders; cases without
    Dice are left out.
    """
    table = results.per_case(dataset, "dice", results.overall_class(dataset, "dice"))
    order = (
        table[[c.key for c in results.main(dataset)]]
        .mean(axis=1)
        .dropna()
        .sort_values(kind="stable")
    )
    return str(order.index[(len(order) - 1) // 2])


def _opened(results: Results, run: str) -> Run:
    return open_run(Path(results.runs[run]["folder"]))
