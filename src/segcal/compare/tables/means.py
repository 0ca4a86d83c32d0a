"""Tables of means: discriminative, calibration, post-hoc, penalty, robustness, backbones; and how
settings were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from segcal.calibrators import CALIBRATORS
from segcal.compare import Contender, Results
from segcal.compare.tables.cells import (
    Column,
    build_rows,
    calibrated,
    digits_of,
    headers_of,
    main_columns,
    notes_on,
)
from segcal.compare.tables.records import Cell, Row, Table
from segcal.corruptions import CORRUPTIONS, parse
from segcal.metrics import METRICS
from segcal.networks import NETWORKS


def _table(
    key: str,
    title: str,
    results: Results,
    contenders: Sequence[Contender],
    columns: Sequence[Column],
    rows: Sequence[Row] = (),
    notes: Sequence[str] = (),
    with_published: bool = False,
) -> Table:
    dataset = contenders[0].dataset
    rows = rows or build_rows(results, contenders, columns, with_published=with_published)
    lines = (*notes_on(results, contenders, rows, columns, with_published), *notes)
    return Table(
        key,
        f"{title}: {dataset}",
        headers_of(columns),
        tuple(rows),
        lines,
        digits_of(columns),
        dataset,
    )


def discriminative(results: Results, dataset: str, calibrator: str, with_published: bool) -> Table:
    """Dice and surface distance per class and their mean, per contender; by regions where the data
    set has them.
    """
    contenders, data = results.main(dataset), results.data(dataset)
    results.require(contenders, calibrator=calibrator)
    kinds = [f"{name} (region)" for name in data["regions"]] or list(data["classes"])
    if len(kinds) > 1:  # one class is its own mean
        kinds = [results.mean_class(dataset), *kinds]
    source = "" if calibrator else "discriminative"
    columns = [
        Column(m, kind, calibrator, name=kind, source=source)
        for kind in kinds
        for m in ("dice", "asd")
    ]
    notes = []
    if data["regions"]:
        parts = (
            f"{name} is {' and '.join(data['classes'][k - 1] for k in ks)}"
            for name, ks in data["regions"].items()
        )
        notes.append(
            f"DSC and ASD are of regions ({'; '.join(parts)}); calibration is of the raw classes."
        )
    title = calibrated("Discriminative performance", calibrator)
    return _table("discriminative", title, results, contenders, columns, (), notes, with_published)


def calibration(results: Results, dataset: str, calibrator: str, with_published: bool) -> Table:
    """ECE and CECE per contender, over the voxels that the reference calls foreground."""
    contenders, data = results.main(dataset), results.data(dataset)
    results.require(contenders, calibrator=calibrator)
    source = "posthoc" if calibrator else "calibration"
    columns = [Column(m, "all", calibrator, source=source) for m in ("ece", "cece")]
    notes = (
        [f"Of the raw classes {', '.join(data['classes'])}, not of regions."]
        if data["regions"]
        else []
    )
    title = calibrated("Calibration", calibrator)
    return _table("calibration", title, results, contenders, columns, (), notes, with_published)


def posthoc(results: Results, dataset: str, calibrator: str, with_published: bool) -> Table | None:
    """ECE and CECE before and after each calibrator that was fitted."""
    contenders = results.main(dataset)
    found = [
        key
        for key in CALIBRATORS
        if any(not results.lacking([c], calibrator=key) for c in contenders)
    ]
    if not found:
        return None
    columns = [
        Column(m, "all", key, suffix=CALIBRATORS[key].label if key else "Pre", source="posthoc")
        for m in ("ece", "cece")
        for key in ("", *found)
    ]
    notes = ["Pre is before; calibrators are fitted on the validation cases, and on nothing else."]
    return _table(
        "posthoc", "Post-hoc calibration", results, contenders, columns, (), notes, with_published
    )


def penalty(results: Results, dataset: str, calibrator: str, with_published: bool) -> Table | None:
    """Methods beside their variants on the main network: the L1 beside the L2 penalty of the
    margin, and the like.
    """
    network = results.main(dataset)[0].network
    varied = {c.method for c in results.on(dataset, network) if c.variant}
    contenders = [c for c in results.on(dataset, network) if c.method in varied]
    if len(contenders) < 2:
        return None
    results.require(contenders, calibrator=calibrator)
    source = "" if calibrator else "penalty"
    columns = [
        Column(c.metric, c.kind, calibrator, source=source) for c in main_columns(results, dataset)
    ]
    rows = [
        row
        for method in dict.fromkeys(c.method for c in contenders)
        for row in build_rows(
            results,
            [c for c in contenders if c.method == method],
            columns,
            block=(
                next(c.label for c in contenders if c.method == method) if len(varied) > 1 else ""
            ),
            with_published=with_published,
        )
    ]
    title = calibrated("Penalty and other variants", calibrator)
    return _table("penalty", title, results, contenders, columns, rows, (), with_published)


def robustness(
    results: Results, dataset: str, calibrator: str, with_published: bool
) -> Table | None:
    """The main metrics on corrupted test images, a block per corruption; nothing was fitted
    anew.
    """
    contenders = results.main(dataset)
    s = results.scores
    there = s[
        s["chosen"]
        & (s["dataset"] == dataset)
        & (s["split"] == "test")
        & (s["calibrator"] == calibrator)
    ]
    found = sorted((c for c in there["corruption"].unique() if c), key=_place)
    if not found:
        return None
    results.require(contenders, calibrator=calibrator)
    rows = [
        row
        for corruption in ("", *found)
        for row in build_rows(
            results,
            contenders,
            main_columns(results, dataset, calibrator, corruption),
            block=_corruption_label(corruption),
        )
    ]
    title = calibrated("Robustness to corrupted images", calibrator)
    return _table("robustness", title, results, contenders, main_columns(results, dataset), rows)


def _place(corruption: str) -> tuple[int, float, str]:
    spec, _, seed = corruption.partition("@")
    key, severity = parse(spec)
    return list(CORRUPTIONS).index(key), abs(severity - CORRUPTIONS[key].neutral), seed


def _corruption_label(corruption: str) -> str:
    if not corruption:
        return "as they are"
    spec, _, seed = corruption.partition("@")
    key, severity = parse(spec)
    return f"{CORRUPTIONS[key].label} {severity:g}" + (f", seed {seed}" if seed else "")


def backbones(
    results: Results, dataset: str, calibrator: str, with_published: bool
) -> Table | None:
    """The methods that were run on other networks too, a block per network."""
    main = results.main(dataset)[0].network
    elsewhere = {c.method for c in results.on(dataset) if c.network != main}
    contenders = [c for c in results.on(dataset) if c.method in elsewhere and not c.variant]
    if len({c.network for c in contenders}) < 2:
        return None
    results.require(contenders, calibrator=calibrator)
    columns = main_columns(results, dataset, calibrator)
    rows: list[Row] = []
    for network in dict.fromkeys(c.network for c in contenders):
        here = [c for c in contenders if c.network == network]
        rows += build_rows(results, here, columns, block=NETWORKS[network].label)
    return _table(
        "backbones", calibrated("Backbones", calibrator), results, contenders, columns, rows
    )


def selection(
    results: Results, dataset: str, calibrator: str, with_published: bool
) -> Table | None:
    """Every setting that was run, with its validation Dice; the best of each contender, marked,
    stands for it.
    """
    contenders = [c for c in results.on(dataset) if c.setting]
    if not contenders:
        return None
    rows = tuple(
        Row(f"{c.label}, {text}", (_tried(c, text, value),), f"{c.key} {text}")
        for c in contenders
        for text, value in sorted(c.tried.items(), key=lambda tried: _by_number(tried[0]))
    )
    header = f"validation {METRICS['dice'].label} {METRICS['dice'].arrow}"
    notes = [
        "Bold is the setting that stands for its method everywhere else; test cases had no say"
        " in it."
    ]
    if any(" (" in c.setting for c in contenders):
        notes[0] = (
            "Bold settings stand for their method, each in the folds that chose it; test cases of a"
            " fold had no say in it."
        )
    if results.data(dataset).get("regions"):
        notes.append(
            "Validation scores are of the classes that networks are trained on, not of the regions."
        )
    title = f"Settings chosen on validation: {dataset}"
    return Table("selection", title, (header,), rows, tuple(notes), (4,), dataset, "setting")


def _by_number(setting: str) -> list[tuple[str, float, str]]:
    """A place among settings such as "margin=10": by the number where it is one."""
    found = []
    for part in setting.split():
        name, _, value = part.partition("=")
        try:
            found.append((name, float(value), ""))
        except ValueError:
            found.append((name, math.inf, value))
    return found


def _tried(contender: Contender, setting: str, value: float) -> Cell:
    n = len(contender.runs_tried[setting])
    return Cell(
        None if math.isnan(value) else value,
        n=n,
        best=any(run in contender.runs for run in contender.runs_tried[setting]),
    )
