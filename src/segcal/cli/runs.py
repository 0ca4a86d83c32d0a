"""The verbs about runs: train, evaluate, calibrate, predict, ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from typer import Argument, Option

from segcal.cli.app import (
    Again,
    AsJson,
    Calibrator,
    Names,
    Out,
    app,
    console,
    counting,
    note,
    show,
)
from segcal.cli.scores import coverage, show_scores

if TYPE_CHECKING:
    from segcal.config import RunSettings
    from segcal.conformal import Coverage

Row = dict[str, Any]

MaybePath = Path | None
MaybeText = str | None

WEIGHTS_HELP = (
    "best (by validation Dice, the default), last, or nll (lowest NLL among epochs about as good in"
    " Dice)."
)
MovedData = Annotated[MaybePath, Option(help="The run's data set, if it has moved.")]
RunFolder = Annotated[Path, Argument(help="The folder of a run or an ensemble.")]
Weights = Annotated[MaybeText, Option(help=WEIGHTS_HELP)]
CORRUPT = "Corrupt the images: name:severity (segcal list corruptions). Repeatable."
CALIBRATORS = "A calibrator (segcal list calibrators); by default ts, ts2 and lts."
VOXELS = (
    "What fits count: near (within 5 steps between neighbouring voxels of predicted foreground) or"
    " all voxels; by default near for ts, all for lts and vs. ts2 counts all."
)
PLACES = {"near": "near predicted foreground", "all": "all"}
NOISE = "Gaussian noise of 0, 0.01 ... 0.05."
LEVEL = "The level of volume intervals, 0.5 to 0.99; by default 0.9, if there are patients enough."
IMAGES = "Images, or folders of them such as imagesTs; channels as name_0000, name_0001 ..."
IMAGES += " A prepared data set: its test cases."
FEW = 5  # validation cases: with fewer, another case gives another calibrator


@app.command(epilog="Example: segcal train cases/hippocampus --loss mbls --set loss.margin=5")
def train(
    data: Annotated[MaybePath, Argument(help="A prepared data set; or data in --config.")] = None,
    out: Annotated[MaybePath, Option(help="The run's folder; by default in runs/.")] = None,
    config: Annotated[MaybePath, Option(help="A TOML file with settings.")] = None,
    loss: Annotated[MaybeText, Option(help="A loss (segcal list losses).")] = None,
    network: Annotated[MaybeText, Option(help="A network (segcal list networks).")] = None,
    epochs: Annotated[int | None, Option(help="Short for --set training.epochs=N.")] = None,
    fold: Annotated[int | None, Option(help="The fold, where there are several.")] = None,
    seed: Annotated[int | None, Option(help="Seed of weights and order.")] = None,
    sets: Annotated[Names, Option("--set", help="Any setting, such as network.width=8.")] = None,
    devices: Annotated[int | None, Option(help="Devices per node.")] = None,
    nodes: Annotated[int | None, Option(help="Nodes.")] = None,
    strategy: Annotated[MaybeText, Option(help="Lightning's strategy: auto or ddp.")] = None,
    precision: Annotated[MaybeText, Option(help="Lightning's precision, such as 16-mixed.")] = None,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Train a network, or resume a run that was interrupted."""
    from segcal.config import run_settings
    from segcal.folders import WEIGHTS
    from segcal.training import train as run
    from segcal.unlearned import warning

    flags: dict[str, Any] = {"data": str(data) if data else None, "fold": fold, "seed": seed}
    flags |= {"loss.name": loss, "network.name": network, "training.epochs": epochs}
    flags |= {"machine.devices": devices, "machine.nodes": nodes}
    flags |= {"machine.strategy": strategy, "machine.precision": precision}
    settings = run_settings(flags, config=config, overrides=sets or [])
    folder = out or _default_folder(settings)
    info = run(settings, folder, again=again, say=note)
    if info["status"] != "finished":  # of several processes only the first sees the end
        return
    shown = {"val_dice": "DSC", "val_nll": "NLL", "val_misplaced": "misplaced"}
    heads = [f"val {label}" for label in shown.values()]
    table = Table("run", "weights", "epoch", *heads, "seconds")
    for name in [name for name in WEIGHTS if name in info]:  # older runs have fewer
        scores = [f"{info[name][key]:.4f}" if key in info[name] else "" for key in shown]
        table.add_row(str(folder), name, str(info[name]["epoch"]), *scores, str(info["seconds"]))
    show(info | {"folder": str(folder)}, table, as_json)
    lacking: dict[str, list[str]] = {}  # mostly the same classes with all weights
    for name in WEIGHTS:
        lacking.setdefault(warning(info, name), []).append(name)
    for sentence, names in lacking.items():
        if sentence:
            note(f"{', '.join(names)} weights: {sentence}", "warning")


def _default_folder(settings: RunSettings) -> Path:
    parts = [Path(settings.data).name, settings.network.name, settings.loss.name]
    parts += [f"{key}{value}" for key, value in sorted(settings.loss.settings.items())]
    if settings.fold:
        parts.append(f"f{settings.fold}")
    return Path("runs") / "-".join([*parts, f"s{settings.seed}"])


@app.command(epilog="Example: segcal evaluate runs/mbls --corrupt gaussian_noise:0.03")
def evaluate(
    run: RunFolder,
    split: Annotated[str, Option(help="test, val or train.")] = "test",
    corrupt: Annotated[Names, Option(help=CORRUPT)] = None,
    noise_series: Annotated[bool, Option("--noise-series", help=NOISE)] = False,
    calibrator: Calibrator = "",
    weights: Weights = None,
    seed: Annotated[int, Option(help="Seed of the corruption.")] = 0,
    data: MovedData = None,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Score whole volumes: rows of scores.csv, and bins.json for reliability figures."""
    from segcal.corruptions import CORRUPTIONS
    from segcal.predictors import open_predictor
    from segcal.scoring import evaluate as score
    from segcal.unlearned import warning

    predictor = open_predictor(run, weights=weights, data=data)
    kinds = list(corrupt or [])
    if noise_series:
        for severity in CORRUPTIONS["gaussian_noise"].severities:
            kinds.append(f"gaussian_noise:{severity:g}" if severity else "")
    tables: dict[str, list[Row]] = {}
    held: dict[str, dict[str, Coverage]] = {}
    for kind in kinds or [""]:
        options: dict[str, Any] = {"split": split, "corruption": kind, "calibrator": calibrator}
        with counting(f"{run.name} {split} {kind}".strip()) as progress:
            options |= {"seed": seed, "again": again, "progress": progress}
            tables[kind or "clean"] = rows = score(predictor, **options)
        held[kind or "clean"] = coverage(predictor, rows, calibrator)
    after = f", after {calibrator}" if calibrator else ""
    worse = f", {kinds[0]}" if len(kinds) == 1 and kinds[0] else ""  # several are named in rows
    source = f"{run.name}, {predictor.weights} weights, {split} split{worse}{after}"
    show_scores(source, tables, held, as_json, unit=predictor.info["data"].get("distances", "mm"))
    if sentence := warning(predictor.info, predictor.weights):
        note(f"{run.name}: {sentence}", "warning")


@app.command(epilog="Example: segcal calibrate runs/mbls --with ts --with lts")
def calibrate(
    run: RunFolder,
    names: Annotated[Names, Option("--with", help=CALIBRATORS)] = None,
    voxels: Annotated[MaybeText, Option(help=VOXELS)] = None,
    level: Annotated[float | None, Option(help=LEVEL)] = None,
    weights: Weights = None,
    data: MovedData = None,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Fit post-hoc calibrators and volume intervals on the validation split; score them on test."""
    from segcal.fitting import calibrate as fit
    from segcal.predictors import open_predictor
    from segcal.scoring import evaluate as score
    from segcal.scoring.volumes import lacking

    predictor = open_predictor(run, weights=weights, data=data)
    wanted = names or ["ts", "ts2", "lts"]
    with counting(f"calibrating {run.name}") as progress:
        facts = fit(predictor, wanted, voxels=voxels, level=level, again=again, progress=progress)
    if (n_cases := len(predictor.ids("val"))) < FEW:
        cases = "1 validation case" if n_cases == 1 else f"{n_cases} validation cases"
        note(
            f"fitted on {cases}; with fewer than {FEW}, calibrators vary from case to case",
            "warning",
        )
    for name, fact in facts.items():
        for line in fact["warnings"]:
            note(f"{name}: {line}", "warning")
    fitted = _temperatures(facts)
    if fitted.row_count and not as_json:
        console(160).print(fitted)
    tables: dict[str, list[Row]] = {}
    held: dict[str, dict[str, Coverage]] = {}
    for name in ("", *wanted):
        tables[name or "before"] = rows = score(predictor, calibrator=name)
        held[name or "before"] = coverage(predictor, rows, name)
    if not held["before"] and (lack := lacking(predictor)):
        note(lack, "warning")
    source = f"{run.name}, {predictor.weights} weights, test split"
    unit = predictor.info["data"].get("distances", "mm")
    show_scores(source, tables, held, as_json, facts, unit=unit)


def _temperatures(facts: Mapping[str, Any]) -> Table:
    """The temperatures of `ts` and `ts2`, each with its interval over patients."""
    table = Table("", "voxels", "temperature", "95 % interval", title="fitted on validation cases")
    for name, fact in facts.items():
        rows = []
        if name == "ts":
            rows.append((PLACES[fact["voxels"]], fact["temperature"], fact.get("interval")))
            if fact["voxels"] == "near":
                every = fact["over_all"]
                rows.append(("all, not applied", every["temperature"], every["interval"]))
        elif name == "ts2":
            steps = "1 step" if fact["radius"] == 1 else f"{fact['radius']} steps"
            near = f"up to {steps} from predicted foreground"
            rows.append((near, fact["near"], fact["near_interval"]))
            far = f"{fact['radius'] + 3} steps or further, joined between"
            rows.append((far, fact["far"], fact["far_interval"]))
        for place, temperature, interval in rows:
            ends = "none" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
            table.add_row(name, place, f"{temperature:.3f}", ends)
    return table


@app.command(epilog="Example: segcal predict runs/mbls scan.nii.gz --out predictions")
def predict(
    run: RunFolder,
    images: Annotated[list[Path], Argument(help=IMAGES)],
    out: Annotated[Path, Out],
    calibrator: Calibrator = "",
    weights: Weights = None,
    split: Annotated[str, Option(help="Of a prepared data set: test, val or train.")] = "test",
    probabilities: Annotated[bool, Option("--probabilities", help="A map per class too.")] = False,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Segment images: label map, confidence and volumes, in each image's own geometry."""
    from segcal.predicting import predict as apply
    from segcal.predictors import open_predictor

    predictor = open_predictor(run, weights=weights)
    options: dict[str, Any] = {"calibrator": calibrator, "probabilities": probabilities}
    options["split"] = split
    with counting("predicting") as progress:
        summaries = apply(predictor, images, out, again=again, progress=progress, **options)
    levels = {row.get("level") for about in summaries.values() for row in about["classes"].values()}
    units = dict.fromkeys(about.get("unit", "ml") for about in summaries.values())
    columns = [f"{100 * level:.3g} % interval" for level in levels if level]
    unit = " / ".join(units)
    table = Table("case", "class", unit, f"expected {unit}", *columns)
    about_cases = Table("case", "mean confidence", "unsure share")
    for name, summary in summaries.items():
        own = summary.get("unit", "ml")
        for kind, row in summary["classes"].items():
            values = [_short(row[own]), _short(row[f"expected_{own}"])]
            if f"interval_{own}" in row:
                values.append(" to ".join(map(_short, row[f"interval_{own}"])))
            table.add_row(name, kind, *values)
        sure = summary["mean_confidence"], summary["unsure_share"]
        about_cases.add_row(name, *("—" if value is None else str(value) for value in sure))
        if summary.get("unseen_share"):
            share = f"{100 * summary['unseen_share']:.2g} %"
            note(f"{name}: the network did not look at {share} of the image; confidence is 0 there")
    if not columns:
        note("sizes have no interval; segcal calibrate fits one on the validation patients")
    show(summaries, table, as_json, about_cases)


def _short(value: float) -> str:
    """A number with four digits: 0.001234, 12350."""
    return f"{float(f'{value:.4g}'):.10g}"


@app.command(epilog="Example: segcal ensemble runs/s0 runs/s1 runs/s2 --out runs/ensemble")
def ensemble(
    runs: Annotated[list[Path], Argument(help="Finished runs on the same data and split.")],
    out: Annotated[Path, Out],
    average: Annotated[str, Option(help="Average probs, or logits as in nnU-Net.")] = "probs",
    calibrator: Annotated[str, Option(help="Calibrate each run with it before averaging.")] = "",
    weights: Annotated[str, Option(help="The weights of the runs: best, last or nll.")] = "best",
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Average several runs; evaluate, calibrate, predict, compare and report take it like a run."""
    from segcal.predictors import make_ensemble

    options: dict[str, Any] = {"average": average, "calibrator": calibrator, "weights": weights}
    info = make_ensemble(runs, out, again=again, **options)
    table = Table("ensemble", "members", *options)
    row = [info[key] or "none" for key in options]
    table.add_row(str(out), str(len(info["members"])), *row)
    show(info | {"folder": str(out)}, table, as_json)
