"""The data of the slice viewer: which cases it shows, and their pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from segcal.compare import Contender, Results
from segcal.data.catalog import class_colours
from segcal.data.orientation import edges
from segcal.folders import IGNORED
from segcal.metrics import METRICS, label_map
from segcal.predictors import Predictor, open_predictor
from segcal.report.sprites import crop, data_uri, pictures
from segcal.types import IGNORE, UserError

BUDGET = 6_500_000  # bytes of pictures in a report; as text in the page they take a third more
MOST_METHODS = 8
COLOUR_MAP = "cividis"  # as in the figures
DICE, ECE = METRICS["dice"].label, METRICS["ece"].label


def chosen_cases(results: Results, dataset: str, n_cases: int) -> dict[str, list[str]]:
    """The cases to show with the reasons: worst, best and median Dice, worst ECE, then others.

    Scores are means over the contenders. A case may have several reasons; then there are fewer.
    """
    dice = _scores(results, dataset, "dice").mean(axis=1).dropna().sort_values(kind="stable")
    ece = _scores(results, dataset, "ece").mean(axis=1).dropna()
    order, wanted = list(dice.index), list[tuple[str, str]]()
    if order:
        median = order[(len(order) - 1) // 2]
        wanted = [(order[0], f"worst {DICE}"), (order[-1], f"best {DICE}")]
        wanted.append((median, f"median {DICE}"))
    if len(ece):
        wanted.insert(2, (str(ece.idxmax()), f"worst {ECE}"))
    if len(dice.index.union(ece.index)) == 1:
        return {wanted[0][0]: ["the only case"]}
    reasons: dict[str, list[str]] = {}
    for case, reason in wanted[:n_cases]:
        reasons.setdefault(case, []).append(reason)
    others = [case for case in order if case not in reasons]
    n_others = max(0, min(n_cases - 4, len(others)))
    for i in np.linspace(0, len(others) - 1, n_others).round().astype(int):
        reasons[others[i]] = [f"{DICE} in between"]
    return {case: reasons[case] for case in sorted(reasons, key=lambda c: dice.get(c, -1.0))}


def _scores(results: Results, dataset: str, metric: str) -> pd.DataFrame:
    """The score of each case by each main contender."""
    table = results.per_case(dataset, metric, results.overall_class(dataset, metric))
    return table[[c.key for c in results.main(dataset)]]


def viewer_data(
    results: Results,
    dataset: str,
    *,
    n_cases: int = 4,
    budget: int = BUDGET,
    step: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Everything that the viewer needs, ready for JSON; `step` is called before each case.

    Raises `UserError` if the prepared data or the weights are no longer there.
    """
    reasons = chosen_cases(results, dataset, n_cases)
    if not reasons:
        raise UserError(f"no case of {dataset} has a {DICE} or {ECE} to choose by")
    info, methods = results.data(dataset), results.main(dataset)[:MOST_METHODS]
    dice, ece = _scores(results, dataset, "dice"), _scores(results, dataset, "ece")
    opened, cases = cache(open_predictor), []
    for case, why in reasons.items():
        step(f"{dataset}: {case}")
        shown = [opened(_folder(results, c, case), weights=c.weights) for c in methods]
        content = _pictures(shown, case, budget // len(reasons))
        content |= {"id": case, "why": ", ".join(why), "scores": []}
        for key in (c.key for c in methods):
            text = f"{DICE} {dice[key][case]:.3f} · {ECE} {ece[key][case]:.3f}"
            content["scores"].append(text.replace("nan", "–"))
        cases.append(content)
    # Red, green and blue of 256 steps of confidence, from the lowest to 1.
    palette = matplotlib.colormaps[COLOUR_MAP](np.linspace(0, 1, 256), bytes=True)[:, :3]
    colours = [None, *class_colours(len(info["classes"]))]
    classes = zip(results.classes(dataset), colours, strict=True)
    return {
        "classes": [{"name": name, "colour": colour} for name, colour in classes],
        "channels": info["channels"],
        "methods": [{"key": c.key, "label": c.label} for c in methods],
        "left_out": [c.label for c in results.on(dataset) if c not in methods],
        "lowest": 1 / len(colours),
        "edges": edges(info["orientation"], info["recipe"]["axis"]),
        "map": palette.ravel().tolist(),
        "cases": cases,
    }


def _folder(results: Results, contender: Contender, case: str) -> Path:
    """The run of a contender that has the case in its test split; the first of several seeds."""
    rows = results.rows()
    rows = rows[(rows["case"] == case) & rows["run"].isin(contender.runs)]
    run = rows.sort_values("seed", kind="stable")["run"].iloc[0]
    return Path(results.runs[run]["folder"])


def _pictures(predictors: Iterable[Predictor], case: str, budget: int) -> dict[str, Any]:
    """A case as each predictor sees it, cropped so that every false positive is visible."""
    labels, confidences = [], []
    for predictor in predictors:
        prediction = predictor.case(case)
        logits = prediction.slices
        labels.append(label_map(logits).numpy().astype(np.uint8))
        confidence = logits.softmax(1).amax(1).numpy()
        confidences.append(_bytes(confidence, 1 / logits.shape[1], 1.0))
    label, image = prediction.reference, prediction.image
    if image is None:
        raise UserError(f"there is no image of {case} to show")
    reference = label.masked_fill(label == IGNORE, IGNORED).numpy().astype(np.uint8)
    box = crop(reference, *labels)
    channels = [channel[box] for channel in image.numpy().swapaxes(0, 1)]
    stacks = {
        # A few bright voxels must not darken the rest.
        "images": [_bytes(channel, *np.quantile(channel, (0.002, 0.998))) for channel in channels],
        "reference": [reference[box]],
        "predictions": [stack[box] for stack in labels],
        "confidences": [stack[box] for stack in confidences],
    }
    content = pictures(stacks, budget)
    for name, sheets in content.pop("sheets").items():
        content[name] = [data_uri(png) for png in sheets]
    return content | {
        "first": box[0].start,
        "slices": len(reference),
        "pixel": list(prediction.spacing[1:]),
    }


def _bytes(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Values from `low` to `high` as 0 to 255."""
    scaled = (values - low) / max(high - low, 1e-6)
    return np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)
