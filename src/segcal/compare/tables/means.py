"""Tables of means, and of the settings that were tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from segcal.calibrators import CALIBRATORS
from segcal.compare import Contender, Settings, network_label, setting_text
from segcal.compare.tables.entries import Column, main_columns, rows_of
from segcal.compare.tables.notes import notes_on
from segcal.compare.tables.records import Entry, Request, Row, Table
from segcal.corruptions import CORRUPTIONS, parse
from segcal.metrics import METRICS

Block = tuple[str, Sequence[Contender], list[Column]]  # heading, rows, columns
FITTED = "Pre is before; calibrators are fitted on the validation cases, and on nothing else."
CLASSES = "Validation scores are of the classes that networks are trained on, not of the regions."


def _table(request: Request, blocks: Sequence[Block], *notes: str) -> Table:
    """A table of means; the columns of all blocks have the same heads."""
    contenders = list({c.key: c for _, part, _ in blocks for c in part}.values())
    request.results.require(contenders, calibrator=request.calibrator)
    rows: list[Row] = []
    for heading, part, columns in blocks:
        rows += rows_of(request, part, columns, heading)
    columns = blocks[0][2]
    notes = (*notes_on(request, contenders, rows, columns), *notes)
    headers, digits = [c.header for c in columns], [c.digits for c in columns]
    return request.table(headers, rows, notes, digits)


def discriminative(request: Request) -> Table:
    """Dice and surface distance per class (or region) and their mean."""
    data, columns, regions = request.results.data(request.dataset), [], []
    kinds = [f"{name} (region)" for name in data["regions"]] or list(data["classes"])
    if len(kinds) > 1:  # one class is its own mean
        kinds = [request.results.mean_class(request.dataset), *kinds]
    source = "" if request.calibrator else "discriminative"
    for kind in kinds:
        for metric in ("dice", "asd"):
            columns.append(Column(metric, kind, request.calibrator, name=kind, source=source))
    for name, labels in data["regions"].items():
        regions.append(f"{name} is {' and '.join(data['classes'][k - 1] for k in labels)}")
    note = f"DSC and ASD are of regions ({'; '.join(regions)}); calibration is of the raw classes."
    return _table(request, [("", request.contenders, columns)], *[note] * bool(regions))


def calibration(request: Request) -> Table:
    """ECE and CECE over the foreground voxels of the reference."""
    data, key = request.results.data(request.dataset), request.calibrator
    source = "posthoc" if key else "calibration"
    columns = [Column(metric, "all", key, source=source) for metric in ("ece", "cece")]
    note = f"Of the raw classes {', '.join(data['classes'])}, not of regions."
    return _table(request, [("", request.contenders, columns)], *[note] * bool(data["regions"]))


def posthoc(request: Request) -> Table | None:
    """ECE and CECE before and after each calibrator that was fitted."""
    labels, columns = {"": "Pre"}, []
    for key, row in CALIBRATORS.items():
        if any(not request.results.lacking([c], calibrator=key) for c in request.contenders):
            labels[key] = row.label
    for metric in ("ece", "cece"):
        for key, label in labels.items():
            columns.append(Column(metric, "all", key, suffix=label, source="posthoc"))
    blocks = [("", request.contenders, columns)]
    return _table(replace(request, calibrator=""), blocks, FITTED) if len(labels) > 1 else None


def penalty(request: Request) -> Table | None:
    """Methods beside their variants on the main network, such as the L1 beside the L2 penalty."""
    main = request.contenders
    here = [c for c in request.results.on(request.dataset) if c.network == main[0].network]
    varied = dict.fromkeys(c.method for c in here if c.variant or c not in main)
    columns = main_columns(request, source="" if request.calibrator else "penalty")
    blocks: list[Block] = []
    for method in dict.fromkeys(c.method for c in here if c.method in varied):
        same = [c for c in here if c.method == method]
        blocks.append((same[0].label if len(varied) > 1 else "", same, columns))
    return _table(request, blocks) if sum(len(same) for _, same, _ in blocks) > 1 else None


def robustness(request: Request) -> Table | None:
    """The main metrics on corrupted test images, a block per corruption; nothing is fitted."""
    rows = request.results.scores
    rows = rows[rows["chosen"] & (rows["dataset"] == request.dataset) & (rows["split"] == "test")]
    corruptions = rows.loc[rows["calibrator"] == request.calibrator, "corruption"].unique()
    labels = {"": "as they are"}
    for corruption in sorted(filter(None, corruptions), key=lambda text: _parsed(text)[0]):
        labels[corruption] = _parsed(corruption)[1]
    request, blocks = replace(request, published=False), []
    for corruption, label in labels.items():
        blocks.append((label, request.contenders, main_columns(request, corruption)))
    return _table(request, blocks) if len(blocks) > 1 else None


def _parsed(corruption: str) -> tuple[tuple[int, float, str], str]:
    """The place of a corruption among others, and its label."""
    spec, _, seed = corruption.partition("@")
    key, severity = parse(spec)
    row, suffix = CORRUPTIONS[key], f", seed {seed}" if seed else ""
    place = list(CORRUPTIONS).index(key), abs(severity - row.neutral), seed
    return place, f"{row.label} {severity:g}{suffix}"


def backbones(request: Request) -> Table | None:
    """The methods that were run on other networks too, a block per network."""
    everything, main = request.results.on(request.dataset), request.contenders[0].network
    elsewhere = {c.method for c in everything if c.network != main}
    columns, blocks = main_columns(request), []
    for network in dict.fromkeys(c.network for c in everything):
        here = request.results.main(request.dataset, network)
        if same := [c for c in here if c.method in elsewhere and not c.variant]:
            blocks.append((network_label(network), same, columns))
    return _table(replace(request, published=False), blocks) if len(blocks) > 1 else None


def selection(request: Request) -> Table | None:
    """Every setting that was run, with its validation Dice; the chosen ones are marked."""
    rows, used = [], "chosen setting, which other tables use"
    for c in request.results.on(request.dataset):
        if not c.setting or c.members > 1:  # an ensemble has no validation Dice
            continue
        chosen = set(c.chosen.values())
        if len(chosen) > 1:
            used = "setting that each fold chose"
        for settings in sorted(c.tried, key=_values):
            dice, text = c.tried[settings], setting_text(settings)
            value, n = None if math.isnan(dice) else dice, len(c.runs_tried[settings])
            entry = Entry(value, n=n, best=settings in chosen)
            rows.append(Row(f"{c.label}, {text}", (entry,), f"{c.key} {text}"))
    if not rows:
        return None
    notes = [f"Bold is the {used}; test cases take no part in the choice."]
    if request.results.data(request.dataset)["regions"]:
        notes.append(CLASSES)
    header = f"validation {METRICS['dice'].label} {METRICS['dice'].arrow}"
    return replace(request, calibrator="").table([header], rows, notes, [4], "setting")


def _values(settings: Settings) -> list[tuple[str, float, str]]:
    """A sorting key: numbers by value, then texts."""
    place = []
    for name, value in settings:
        number = isinstance(value, (int, float))
        place.append((name, float(value), "") if number else (name, math.inf, str(value)))
    return place
