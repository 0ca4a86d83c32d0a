"""The data of the slice viewer: which cases it shows, and their pictures.

All slices of a volume are in one PNG."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segcal.calibrators import CALIBRATORS, Fitted
from segcal.compare import Contender, Results
from segcal.compare.metric_sets import PERFECT
from segcal.data.catalog import class_colours
from segcal.data.orientation import edges
from segcal.figures.collected import best_calibrator, main_scores
from segcal.folders import IGNORED
from segcal.metrics import METRICS, label_map
from segcal.predictors import Predictor, open_predictor
from segcal.scoring import load_calibrator
from segcal.types import IGNORE, UserError

BUDGET = 6_500_000  # bytes of pictures in a report; as text in the page they take a third more
MOST_METHODS = 8
COLOUR_MAP = "cividis"  # as in the figures
MARGIN = 8  # voxels around the labels that are shown, in the plane; a quarter of that in depth
THICK = 48  # a stack of more slices loses slices before its slices lose resolution
COARSE = 32  # slices keep at least this many voxels in height and width
Stack = NDArray[np.uint8]  # slices (D, H, W) of grey values or labels
DICE = METRICS["dice"].label


def chosen_cases(results: Results, dataset: str, n_cases: int) -> dict[str, list[str]]:
    """The cases to show with the reasons: worst, best and median Dice, worst calibration, others.

    Scores are means over the contenders. A case may have several reasons; then there are fewer.
    """
    dice = main_scores(results, dataset, "dice").mean(axis=1).dropna().sort_values(kind="stable")
    metric = results.metrics.of_figures
    error = main_scores(results, dataset, metric).mean(axis=1).dropna()
    order, wanted = list(dice.index), list[tuple[str, str]]()
    if order:
        median = order[(len(order) - 1) // 2]
        wanted = [(order[0], f"worst {DICE}"), (order[-1], f"best {DICE}")]
        wanted.append((median, f"median {DICE}"))
    if len(error):
        wanted.insert(2, (str(error.idxmax()), f"worst {METRICS[metric].label}"))
    if len(dice.index.union(error.index)) == 1:
        return {wanted[0][0]: ["the only case"]}
    reasons: dict[str, list[str]] = {}
    for case, reason in wanted[:n_cases]:
        reasons.setdefault(case, []).append(reason)
    others = [case for case in order if case not in reasons]
    n_others = max(0, min(n_cases - 4, len(others)))
    for i in np.linspace(0, len(others) - 1, n_others).round().astype(int):
        reasons[others[i]] = [f"{DICE} in between"]
    return {case: reasons[case] for case in sorted(reasons, key=lambda c: dice.get(c, -1.0))}


def viewer_data(
    results: Results,
    dataset: str,
    *,
    n_cases: int = 4,
    budget: int = BUDGET,
    step: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Everything that the viewer needs, ready for JSON; `step` is called before each case."""
    metric, reasons = results.metrics.of_figures, chosen_cases(results, dataset, n_cases)
    label = METRICS[metric].label
    if not reasons:
        raise UserError(f"no case of {dataset} has a {DICE} or {label} to choose by")
    info, methods = results.data(dataset), results.main(dataset)[:MOST_METHODS]
    dice, error = (main_scores(results, dataset, name) for name in ("dice", metric))
    perfect: Any = main_scores(results, dataset, PERFECT[metric]) if metric in PERFECT else {}
    opened, cases = cache(open_predictor), []
    # The saved calibrators of an audit were fitted on the cases that are shown.
    names = ["" if results.out_of_fold else best_calibrator(results, c) for c in methods]
    for case, why in reasons.items():
        step(f"{dataset}: {case}")
        shown = [opened(_folder(results, c, case), weights=c.weights) for c in methods]
        fits = [_fit(predictor, name) for predictor, name in zip(shown, names, strict=True)]
        names = [name if fitted else "" for name, fitted in zip(names, fits, strict=True)]
        content = _pictures(shown, fits, case, budget // len(reasons))
        content |= {"id": case, "why": ", ".join(why), "scores": []}
        for key in (c.key for c in methods):
            text = f"{DICE} {dice[key][case]:.3f} · {label} {error[key][case]:.3f}"
            if key in perfect:
                text += f", if perfect {perfect[key][case]:.3f}"
            content["scores"].append(text.replace("nan", "–"))
        cases.append(content)
    # Red, green and blue of 256 steps of confidence, from the lowest to 1.
    palette = matplotlib.colormaps[COLOUR_MAP](np.linspace(0, 1, 256), bytes=True)[:, :3]
    colours = [None, *class_colours(len(info["classes"]))]
    classes = zip(results.classes(dataset), colours, strict=True)
    return {
        "classes": [{"name": name, "colour": colour} for name, colour in classes],
        "channels": info["channels"],
        "methods": [
            {"key": c.key, "label": c.label, "calibrator": name and CALIBRATORS[name].label}
            for c, name in zip(methods, names, strict=True)
        ],
        "left_out": [c.label for c in results.on(dataset) if c not in methods],
        "lowest": 1 / len(colours),
        "edges": edges(info["orientation"], info["recipe"]["axis"]),
        "map": palette.ravel().tolist(),
        "cases": cases,
    }


def _fit(predictor: Predictor, name: str) -> Fitted | None:
    """A fitted calibrator; `None` without one, or if it is of other weights."""
    with suppress(UserError):
        return load_calibrator(predictor, name) if name else None
    return None


def _folder(results: Results, contender: Contender, case: str) -> Path:
    """The run of a contender that has the case in its test split; the first of several seeds."""
    rows = results.rows()
    rows = rows[(rows["case"] == case) & rows["run"].isin(contender.runs)]
    run = rows.sort_values("seed", kind="stable")["run"].iloc[0]
    return Path(results.runs[run]["folder"])


def _pictures(
    predictors: Sequence[Predictor], fits: Sequence[Fitted | None], case: str, budget: int
) -> dict[str, Any]:
    """A case as each predictor sees it, cropped so that every false positive is visible.

    Confidence is also that after each predictor's fit; without one it is the same."""
    labels, confidences, calibrated = [], [], []
    for predictor, fitted in zip(predictors, fits, strict=True):
        prediction = predictor.case(case)
        logits = prediction.slices
        labels.append(label_map(logits).numpy().astype(np.uint8))
        lowest = 1 / logits.shape[1]
        confidences.append(_bytes(logits.softmax(1).amax(1).numpy(), lowest, 1.0))
        if fitted is not None:
            logits = fitted(logits, prediction.image)
        calibrated.append(_bytes(logits.softmax(1).amax(1).numpy(), lowest, 1.0))
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
    if any(fitted is not None for fitted in fits):
        stacks["calibrated"] = [stack[box] for stack in calibrated]
    content = pictures(stacks, budget)
    for name, sheets in content.pop("sheets").items():
        content[name] = [data_uri(png) for png in sheets]
    content |= {"first": box[0].start, "slices": len(reference)}
    return content | {"pixel": list(prediction.spacing[1:])}


def _bytes(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Values from `low` to `high` as 0 to 255."""
    scaled = (values - low) / max(high - low, 1e-6)
    return np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)


def crop(*labels: NDArray[Any]) -> tuple[slice, slice, slice]:
    """The part in which any label map has foreground, with a margin; everything if none has.

    >>> label = np.zeros((40, 100, 90)); label[20, 50, 30:33] = 1
    >>> crop(label)
    (slice(18, 23, None), slice(42, 59, None), slice(22, 41, None))
    """
    foreground = np.any([label > 0 for label in labels], axis=0)
    if not foreground.any():
        foreground[:] = True
    places = np.argwhere(foreground)
    margin = np.array([MARGIN // 4, MARGIN, MARGIN])
    start = np.maximum(places.min(0) - margin, 0).tolist()
    stop = np.minimum(places.max(0) + margin + 1, foreground.shape).tolist()
    return slice(start[0], stop[0]), slice(start[1], stop[1]), slice(start[2], stop[2])


def pictures(stacks: Mapping[str, Sequence[Stack]], budget: int) -> dict[str, Any]:
    """Stacks of one shape as PNGs, thinned until they fit into `budget` bytes.

    What is left out: `images` but the first, then every second slice or voxel, again and again
    until no more can be left out.
    """
    step = across = 1
    depth, *sides = stacks["images"][0].shape
    while True:
        content = _sheets(stacks, step, across)
        size = sum(len(png) for sheets in content["sheets"].values() for png in sheets)
        fine = min(sides) // across >= 2 * COARSE  # enough voxels to leave out half of them
        if size <= budget or (step >= depth and not fine):
            return content
        if len(stacks["images"]) > 1:
            stacks = {**stacks, "images": stacks["images"][:1]}
        elif depth / step > THICK or not fine:
            step *= 2
        else:
            across *= 2


def _sheets(stacks: Mapping[str, Sequence[Stack]], step: int, across: int) -> dict[str, Any]:
    """PNGs of every `step`-th slice with every `across`-th voxel, and how to find a slice again."""
    depth, height, width = stacks["images"][0][::step, ::across, ::across].shape
    columns = max(1, min(depth, round(math.sqrt(depth * height / width))))
    sheets: dict[str, list[bytes]] = {}
    for name, group in stacks.items():
        thinned = [stack[::step, ::across, ::across] for stack in group]
        sheets[name] = [_png(tiled(stack, columns)) for stack in thinned]
    shape = [depth, height, width]
    return {"shape": shape, "step": step, "across": across, "columns": columns, "sheets": sheets}


def tiled(stack: Stack, columns: int) -> NDArray[np.uint8]:
    """Slices (D, H, W) row by row in one picture.

    >>> tiled(np.arange(3, dtype=np.uint8).reshape(3, 1, 1), 2)
    array([[0, 1],
           [2, 0]], dtype=uint8)
    """
    depth, height, width = stack.shape
    rows = math.ceil(depth / columns)
    filled = np.zeros((rows * columns, height, width), dtype=np.uint8)
    filled[:depth] = stack
    grid = filled.reshape(rows, columns, height, width).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width)


def _png(picture: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG", compress_level=6)
    return out.getvalue()


def data_uri(content: bytes, kind: str = "image/png") -> str:
    """A file's content as an address that needs no file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
