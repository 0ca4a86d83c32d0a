"""Tables of means, and of the settings that were tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from segcal.calibrators import CALIBRATORS
from segcal.compare import Contender, Settings, network_label, setting_text
from segcal.compare.ranking import VERDICTS, confidences
from segcal.compare.tables.entries import NOT_SCORED, Column, main_columns, rows_of, with_perfect
from segcal.compare.tables.notes import notes_on
from segcal.compare.tables.records import Entry, Request, Row, Table
from segcal.corruptions import CORRUPTIONS, parse
from segcal.metrics import METRICS

Block = tuple[str, Sequence[Contender], list[Column]]  # heading, rows, columns
FITTED = "Calibrators are fitted on the validation cases, and on nothing else."
OUT_OF_FOLD = "For each case, calibrators are fitted without its patient."
MISPLACED = (
    "Misplaced 0.14: probability equal to 14 % of the foreground is in the wrong place. NLL is of"
    " all voxels, per foreground voxel. Near: within 5 steps between neighbouring voxels of"
    " predicted foreground. E/O above 1: the probabilities add up to more than the true volume."
    " Slope below 1: they are too extreme."
)
CONFIDENCE = (
    "Confidence gap: mean confidence minus accuracy, per voxel near predicted foreground, and over"
    " all voxels per foreground voxel. Above 0 is overconfident. E/O above 1: the probabilities add"
    " up to more than the true volume. Mixed: too sure near the organ and too unsure far away, or"
    " the reverse; or only the volume is off."
)
CLASSES = "Validation scores are of the classes that networks are trained on, not of the regions."
TOGETHER = "{} of all cases together, those without foreground too."


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
    distance = request.results.metrics.distance
    kinds = [f"{name} (region)" for name in data["regions"]] or list(data["classes"])
    if len(kinds) > 1:  # one class is its own mean
        kinds = [request.results.mean_class(request.dataset), *kinds]
    source = "" if request.calibrator else "discriminative"
    for kind in kinds:
        for metric in ("dice", distance):
            columns.append(Column(metric, kind, request.calibrator, name=kind, source=source))
    for name, labels in data["regions"].items():
        regions.append(f"{name} is {' and '.join(data['classes'][k - 1] for k in labels)}")
    names = f"DSC and {METRICS[distance].label} are of regions ({'; '.join(regions)})"
    note = f"{names}; calibration is of the raw classes."
    return _table(request, [("", request.contenders, columns)], *[note] * bool(regions))


def calibration(request: Request) -> Table:
    """Calibration over all voxels and near the prediction; in the paper's set ECE and CECE."""
    data, key = request.results.data(request.dataset), request.calibrator
    raw = f"Of the raw classes {', '.join(data['classes'])}, not of regions."
    raws = [raw] * bool(data["regions"])
    if request.results.metrics.key == "paper":
        return _reference(request, *raws)
    columns = [Column(metric, "all", key) for metric in ("misplaced", "nll")]
    columns.append(Column("ece", "all", key, voxels="near"))
    columns.append(Column("volume_ratio", "all", key))
    columns.append(Column("slope", "all", key, voxels="near"))
    if len(data["classes"]) > 1:
        for kind in data["classes"]:
            columns.append(Column("misplaced", kind, key, name=kind))
    notes = [MISPLACED, TOGETHER.format("E/O is"), *raws]
    return _table(request, [("", request.contenders, _known(request, columns))], *notes)


def _known(request: Request, columns: Sequence[Column]) -> list[Column]:
    """The columns that any run was scored for: older runs lack some."""
    results, dataset = request.results, request.dataset
    return [c for c in columns if c.values(results, dataset).notna().any(axis=None)]


def confidence(request: Request) -> Table | None:
    """Over- or underconfident: the numbers that decide it, a block per verdict."""
    key, classes = request.calibrator, request.results.data(request.dataset)["classes"]
    keys = [c.key for c in request.contenders]
    known = confidences(request.results, request.dataset, keys, calibrator=key)
    if not known:
        return None
    columns = [Column("confidence_gap", "all", key, voxels=voxels) for voxels in ("near", "all")]
    columns.append(Column("volume_ratio", "all", key))
    if len(classes) > 1:
        columns += [Column("volume_ratio", kind, key, name=kind) for kind in classes]
    together = TOGETHER.format("E/O and the gap over all voxels are")
    table = _table(request, [("", request.contenders, columns)], CONFIDENCE, together)
    blocks = {key: each.verdict for key, each in known.items()}
    rows = [replace(row, block=blocks.get(row.key, NOT_SCORED)) for row in table.rows]
    order = [*VERDICTS, NOT_SCORED]
    return replace(table, rows=tuple(sorted(rows, key=lambda row: order.index(row.block))))


def reference(request: Request) -> Table | None:
    """The paper's ECE and CECE, each beside what a perfect network would have."""
    if request.results.metrics.key == "paper":  # it is the table `calibration`
        return None
    columns = [Column(metric, "all", request.calibrator) for metric in ("ece", "cece")]
    return _reference(request) if len(_known(request, columns)) == 2 else None


def _reference(request: Request, *notes: str) -> Table:
    key, columns = request.calibrator, list[Column]()
    for metric in ("ece", "cece"):
        source = "posthoc" if key else "calibration"
        columns += with_perfect(request, metric, key, source=source)
    return _table(request, [("", request.contenders, _known(request, columns))], *notes)


def posthoc(request: Request) -> Table | None:
    """What decides whether a calibrator helps, before and after each: a block per calibrator.

    In the paper's set a column per calibrator, as in the paper."""
    results, labels = request.results, {"": "before"}
    fitted = OUT_OF_FOLD if results.out_of_fold else FITTED
    for key, row in CALIBRATORS.items():
        if any(not results.lacking([c], calibrator=key) for c in request.contenders):
            labels[key] = row.label
    if len(labels) < 2:
        return None
    request = replace(request, calibrator="")
    if results.metrics.key == "paper":
        columns = list[Column]()
        for metric in ("ece", "cece"):
            for key, label in (labels | {"": "Pre"}).items():
                columns += with_perfect(request, metric, key, suffix=label, source="posthoc")
        block = "", request.contenders, _known(request, columns)
        return _table(request, [block], f"Pre is before; {fitted[0].lower()}{fitted[1:]}")
    sets = {key: _after(request, key) for key in labels}
    known = {c.header for columns in sets.values() for c in _known(request, columns)}
    blocks = []
    for key, label in labels.items():
        blocks.append((label, request.contenders, [c for c in sets[key] if c.header in known]))
    together = [TOGETHER.format("E/O is")] * any(head.startswith("E/O") for head in known)
    return _table(request, blocks, *together, fitted)


def _after(request: Request, key: str) -> list[Column]:
    """What is shown of a calibrator; of none if the key is empty."""
    columns = [Column(metric, "all", key) for metric in ("nll", "misplaced")]
    columns += [Column("ece", "all", key, voxels="near"), Column("volume_ratio", "all", key)]
    return columns + with_perfect(request, "ece", key)


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
    """Every setting that was run, with its validation scores; the chosen ones are marked."""
    rows, used = [], "chosen setting, which other tables use"
    here = request.results.on(request.dataset)
    keys = ("dice", "nll") if any(c.tried_nll for c in here) else ("dice",)
    heads = [f"validation {METRICS[key].label} {METRICS[key].arrow}" for key in keys]
    for c in here:
        if not c.setting or c.members > 1:  # an ensemble has no validation Dice
            continue
        chosen = set(c.chosen.values())
        if len(chosen) > 1:
            used = "setting that each fold chose"
        for settings in sorted(c.tried, key=_values):
            n, entries, text = len(c.runs_tried[settings]), [], setting_text(settings)
            for score in (c.tried[settings], c.tried_nll.get(settings, math.nan))[: len(keys)]:
                value = None if math.isnan(score) else score
                entries.append(Entry(value, n=n, best=settings in chosen))
            rows.append(Row(f"{c.label}, {text}", tuple(entries), f"{c.key} {text}"))
    if not rows:
        return None
    notes = [f"Bold is the {used}."]
    if request.results.data(request.dataset)["regions"]:
        notes.append(CLASSES)
    digits = [4] * len(heads)
    return replace(request, calibrator="").table(heads, rows, notes, digits, "setting")


def _values(settings: Settings) -> list[tuple[str, float, str]]:
    """A sorting key: numbers by value, then texts."""
    place = []
    for name, value in settings:
        number = isinstance(value, (int, float))
        place.append((name, float(value), "") if number else (name, math.inf, str(value)))
    return place
