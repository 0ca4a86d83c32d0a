"""The cases that the slice viewer shows: which, and what image, reference, prediction and
confidence look like there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

from segcal.compare import Contender, Results
from segcal.data.catalog import class_colours
from segcal.data.orientation import edges
from segcal.data.slices import volume
from segcal.folders import IGNORED, CaseSet
from segcal.metrics import METRICS, label_map
from segcal.predictors.run import Run, open_run
from segcal.report.sprites import Volumes, data_uri, pictures
from segcal.scoring import data_of
from segcal.types import IGNORE, UserError

Progress = Callable[[int, int], None]
BUDGET = 6_500_000
"""Bytes of pictures in a report; in the page a third more, as text."""

MOST_METHODS = 8
COLOUR_MAP = "cividis"  # as in the figures


def chosen_cases(results: Results, dataset: str, n_cases: int) -> dict[str, list[str]]:
    """The cases to show, each with why: the worst, best and median Dice, the worst ECE, then some
    evenly between.

    Means over the contenders decide. A case may stand for several reasons; then there are fewer
    cases."""
    dice, ece = (
        _per_case(results, dataset, metric).mean(axis=1).dropna() for metric in ("dice", "ece")
    )
    dice = dice.sort_values(kind="stable")
    label = METRICS["dice"].label
    wanted: list[tuple[str, str]] = []
    if len(dice):
        order = list(dice.index)
        wanted = [
            (order[0], f"worst {label}"),
            (order[-1], f"best {label}"),
            (order[(len(order) - 1) // 2], f"median {label}"),
        ]
    if len(ece):
        wanted.insert(2, (str(ece.idxmax()), f"worst {METRICS['ece'].label}"))
    if len({case for case, _ in wanted}) == 1 == len(dice.index.union(ece.index)):
        return {wanted[0][0]: ["the only case"]}
    found: dict[str, list[str]] = {}
    for case, why in wanted[:n_cases]:
        found.setdefault(case, []).append(why)
    rest = [case for case in dice.index if case not in found]
    n_more = min(n_cases - 4, len(rest))
    for place in np.linspace(0, len(rest) - 1, n_more).round().astype(int) if n_more > 0 else ():
        found[rest[place]] = [f"{label} in between"]
    return {
        case: found[case] for case in sorted(found, key=lambda case: float(dice.get(case, -1.0)))
    }


def _per_case(results: Results, dataset: str, metric: str) -> pd.DataFrame:
    """The score of each case by each main contender."""
    table = results.per_case(dataset, metric, results.overall_class(dataset, metric))
    return table[[c.key for c in results.main(dataset)]]


def viewer_data(
    results: Results,
    dataset: str,
    *,
    n_cases: int = 4,
    budget: int = BUDGET,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """All that the viewer in the page needs, ready for JSON; raises `UserError` if data or weights
    are no longer there.
    """
    shown, why = results.main(dataset)[:MOST_METHODS], chosen_cases(results, dataset, n_cases)
    if not why:
        raise UserError(
            f"no case of {dataset} has a {METRICS['dice'].label} or {METRICS['ece'].label} to"
            " choose by"
        )
    info, rows = results.data(dataset), results.rows()
    opened: dict[str, Run] = {}
    cases = []
    for i, case in enumerate(why, start=1):
        names = [_run_of(rows, contender, case) for contender in shown]
        for name in names:
            opened[name] = opened.get(name) or open_run(Path(results.runs[name]["folder"]))
        content = _case(
            data_of(opened[names[0]]), case, [opened[name] for name in names], budget // len(why)
        )
        cases.append(
            {
                "id": case,
                "why": ", ".join(why[case]),
                "scores": _scores(results, dataset, case, shown),
            }
            | content
        )
        if progress is not None:
            progress(i, len(why))
    lowest = 1 / (len(info["classes"]) + 1)
    coloured = zip(info["classes"], class_colours(len(info["classes"])), strict=True)
    return {
        "classes": [
            {"name": "background", "colour": None},
            *({"name": n, "colour": c} for n, c in coloured),
        ],
        "channels": info["channels"],
        "methods": [{"key": c.key, "label": c.label} for c in shown],
        "left_out": [c.label for c in results.on(dataset) if c not in shown],
        "lowest": lowest,
        "map": colour_map(),
        "cases": cases,
    }


def colour_map() -> list[int]:
    """Red, green and blue of 256 steps of confidence, from the lowest to 1, one after the other."""
    table = matplotlib.colormaps[COLOUR_MAP](np.linspace(0, 1, 256))[:, :3]
    return [int(v) for v in np.rint(table * 255).ravel()]


def _run_of(rows: pd.DataFrame, contender: Contender, case: str) -> str:
    """The run whose test split has the case; of several seeds the first."""
    own = rows[(rows["case"] == case) & rows["run"].isin(contender.runs)]
    return str(own.sort_values("seed", kind="stable")["run"].iloc[0])


def _case(cases: CaseSet, id: str, runs: Sequence[Run], budget: int) -> dict[str, Any]:
    image, label = volume(cases, id)
    predictions, confidences = [], []
    for run in runs:
        logits = run.logits(image)
        predictions.append(label_map(logits).numpy().astype(np.uint8))
        confidences.append(logits.softmax(1).amax(1).numpy())
    label[label == IGNORE] = IGNORED
    lowest = 1 / (len(runs[0].classes) + 1)
    reference = label.numpy().astype(np.uint8)
    content = pictures(Volumes(image.numpy(), reference, predictions, confidences, lowest), budget)
    sheets = [data_uri(sheet) for sheet in content.pop("sheets")]
    n, m = content.pop("n_channels"), len(runs)
    where = {"images": sheets[:n], "reference": sheets[n]}
    where |= {"predictions": sheets[n + 1 : n + 1 + m], "confidences": sheets[n + 1 + m :]}
    spacing = cases.case(id)["spacing"]
    return content | where | {"pixel": [spacing[1], spacing[2]], "edges": edges(cases.info)}


def _scores(
    results: Results, dataset: str, case: str, shown: Sequence[Contender]
) -> list[dict[str, float | None]]:
    """Dice and ECE of the case, per contender."""
    tables = {metric: _per_case(results, dataset, metric) for metric in ("dice", "ece")}
    found = []
    for contender in shown:
        values = {metric: float(table[contender.key][case]) for metric, table in tables.items()}
        found.append(
            {
                metric: None if np.isnan(value) else round(value, 4)
                for metric, value in values.items()
            }
        )
    return found
