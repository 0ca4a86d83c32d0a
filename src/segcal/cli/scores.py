"""How the scores of `evaluate` and `calibrate` are printed: a row per class and one for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from segcal.cli.app import show

if TYPE_CHECKING:
    from segcal.conformal import Coverage
    from segcal.metrics import Metric
    from segcal.predictors import Predictor

Row = dict[str, Any]

# What is shown: the metric, its class in the last row, and the voxels.
MAIN = [(key, "mean", "") for key in ("dice", "assd", "hd95", "missed")]
MAIN += [(key, "all", "all") for key in ("misplaced", "nll", "volume_ratio")]
MAIN += [("ece", "all", "near"), ("ece", "all", "reference"), ("ece_perfect", "all", "all")]
DISTANCES = ("assd", "hd95")
OF_CLASSES = ("dice", "assd", "hd95", "missed", "misplaced", "volume_ratio")
NAMED = 5  # cases in a sentence
REGION = " (region)"


def coverage(predictor: Predictor, rows: list[Row], calibrator: str) -> dict[str, Coverage]:
    """For how many patients the volume interval of each class held; nothing without a fit."""
    from segcal.scoring.volumes import class_coverage, load_guarantee, patients_of

    guarantee = load_guarantee(predictor.root, calibrator, predictor.weights)
    return class_coverage(rows, guarantee, patients_of(predictor)) if guarantee else {}


def show_scores(
    source: str,
    tables: Mapping[str, list[Row]],
    held: Mapping[str, Mapping[str, Coverage]],
    as_json: bool,
    facts: Any = None,
    *,
    unit: str = "mm",
) -> None:
    """The main metrics of a source, by condition and class; what was missed; coverage of volumes.

    Means over cases; distances are in `unit`, mm or pixels. Missed objects are counted, and
    expected over true volume is of all cases together, as in comparisons."""
    from segcal.metrics import METRICS

    regions = any(row["class"] == f"mean{REGION}" for rows in tables.values() for row in rows)
    basis = f"means over cases, distances in {unit}"
    title = f"{source}: {basis} (Missed: objects in all cases; E/O: of all together)"
    heads = [_head(METRICS[key], voxels) for key, _, voxels in MAIN]
    several = len(tables) > 1
    table = Table(*([""] if several else []), "class", *heads, title=title)
    values: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    for name, rows in tables.items():
        table.add_section()
        kinds = _classes(rows, regions)
        by_class = {kind: {key: _of_class(rows, key, kind) for key in OF_CLASSES} for kind in kinds}
        overall = _overall(rows, regions)
        values[name] = overall | {"classes": by_class, "objects": objects(rows, kinds)}
        for kind, scores in by_class.items():
            first = [name if kind == kinds[0] else ""] if several else []
            cells = [_text(scores[key]) if key in scores else "" for key, _, _ in MAIN]
            table.add_row(*first, kind, *cells)
        table.add_row(*([""] if several else []), "all", *map(_text, overall.values()))
        before = f"{name}, " if several else ""
        told = reasons(rows, kinds)
        if told != reasons(next(iter(tables.values())), kinds):  # most calibrators keep the labels
            lines += [f"{before}{line}" for line in told]
        elif not lines:
            lines += told
    for name, each in held.items():
        if each:
            values[name]["coverage"] = {kind: one.values() for kind, one in each.items()}
        before = f"{name}, " if len(held) > 1 else ""
        lines += [f"{before}{kind}: {one.sentence()}" for kind, one in each.items()]
    show(values if facts is None else {"scores": values, "fits": facts}, table, as_json, *lines)


def _classes(rows: Sequence[Row], regions: bool) -> list[str]:
    """The foreground classes; and regions, where the mean is over these."""
    kinds = dict.fromkeys(row["class"] for row in rows if row["metric"] == "dice")
    return [kind for kind in kinds if kind != "mean" and (kind != f"mean{REGION}" or not regions)]


def _overall(rows: list[Row], regions: bool) -> dict[str, float]:
    scores = {}
    for key, of, voxels in MAIN:
        kind = f"mean{REGION}" if regions and of == "mean" else of
        shown = f"{key} {voxels}" if key == "ece" else key
        if key == "volume_ratio":
            scores[shown] = _ratio(rows)
        elif key == "missed":
            scores[shown] = sum(_values(rows, key, kind).values())
        else:
            scores[shown] = _mean(_values(rows, key, kind, voxels))
    return scores


def _of_class(rows: list[Row], key: str, kind: str) -> float:
    """A metric of one class; NaN where it has none."""
    if key == "volume_ratio":
        return _ratio([row for row in rows if row["class"] == kind])
    if key == "missed":
        return sum(_values(rows, key, kind).values())
    return _mean(_values(rows, key, kind, "all" if key == "misplaced" else ""))


def objects(rows: Sequence[Row], kinds: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """The cases in which an object of a class was missed, or one was invented."""
    found: dict[str, dict[str, list[str]]] = {"missed": {}, "invented": {}}
    for kind in kinds:
        dice = _values(rows, "dice", kind)
        true = _values(rows, "true_ml", kind)
        for case, value in _values(rows, "missed", kind).items():
            if value and dice.get(case) == 0:
                word = "invented" if true.get(case) == 0 else "missed"
                found[word].setdefault(kind, []).append(case)
    return found


def reasons(rows: Sequence[Row], kinds: Sequence[str]) -> list[str]:
    """Sentences that name missed and invented objects, and say where a distance is missing."""
    lines, found = [], objects(rows, kinds)
    for word, of_kinds in found.items():
        for kind, cases in of_kinds.items():
            more = f" and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
            lines.append(f"{kind} was {word} in {', '.join(cases[:NAMED])}{more}")
    for kind in kinds:
        distances = _values(rows, DISTANCES[0], kind)
        lacking = [case for case, value in distances.items() if math.isnan(value)]
        if lacking:
            gone = {case for of_kinds in found.values() for case in of_kinds.get(kind, ())}
            n_absent = len([case for case in lacking if case not in gone])
            why = [f"missed or invented in {len(gone)}"] * bool(gone)
            why += [f"in neither label map in {n_absent}"] * bool(n_absent)
            count = f"{len(lacking)} of {len(distances)} cases"
            lines.append(f"{kind} has no ASSD and HD95 in {count}: {', '.join(why)}")
    return lines


def _values(rows: Sequence[Row], metric: str, kind: str, voxels: str = "") -> dict[str, float]:
    """The value of every case."""
    values, wanted = {}, (metric, kind, voxels)
    for row in rows:
        there = (row["metric"], row["class"], row["voxels"]) == wanted
        if there and row["case"] != "pooled":
            values[str(row["case"])] = float(row["value"])
    return values


def _mean(values: Mapping[str, float]) -> float:
    known = [value for value in values.values() if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _ratio(rows: Sequence[Row]) -> float:
    """Expected over true volume of all foreground in all cases."""
    true, expected = 0.0, 0.0
    for row in rows:
        true += row["value"] if row["metric"] == "true_ml" else 0.0
        expected += row["value"] if row["metric"] == "expected_ml" else 0.0
    return expected / true if true else math.nan


def _text(value: float) -> str:
    return "—" if math.isnan(value) else f"{value:.4g}"


def _head(metric: Metric, voxels: str) -> str:
    """The head of a column; of several sets of voxels it names its own."""
    if metric.label.endswith("if perfect"):
        return metric.label
    several = metric.label == "ECE"
    arrow = "" if several and voxels == "reference" else metric.arrow  # no value is better
    return " ".join(filter(None, (metric.label, voxels if several else "", arrow)))
