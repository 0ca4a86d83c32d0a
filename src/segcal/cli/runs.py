"""The verbs about runs: train, evaluate, calibrate, predict, ensemble."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from typer import Argument, Option

from segcal.cli.app import Again, AsJson, Calibrator, Names, Out, app, counting, note, show

if TYPE_CHECKING:
    from segcal.config import RunSettings

MaybePath = Path | None
MaybeText = str | None

MovedData = Annotated[MaybePath, Option(help="The run's data set, if it has moved.")]
RunFolder = Annotated[Path, Argument(help="The folder of a run or an ensemble.")]
Weights = Annotated[MaybeText, Option(help="best (by validation Dice, the default) or last.")]
CORRUPT = "Corrupt the images: name:severity (segcal list corruptions). Repeatable."
CALIBRATORS = "A calibrator (segcal list calibrators); by default ts and lts."
NOISE = "Gaussian noise of 0, 0.01 ... 0.05."
IMAGES = "Images; channels of a case as name_0000, name_0001 ..."
MAIN = {"dice": "mean", "asd": "mean", "hd95": "mean", "missed": "mean"}
MAIN |= {"ece": "all", "cece": "all", "nll": "all"}  # the metrics that are shown, and their class


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

    flags: dict[str, Any] = {"data": str(data) if data else None, "fold": fold, "seed": seed}
    flags |= {"loss.name": loss, "network.name": network, "training.epochs": epochs}
    flags |= {"machine.devices": devices, "machine.nodes": nodes}
    flags |= {"machine.strategy": strategy, "machine.precision": precision}
    settings = run_settings(flags, config=config, overrides=sets or [])
    folder = out or _default_folder(settings)
    info = run(settings, folder, again=again)
    if info["status"] != "finished":  # of several processes only the first sees the end
        return
    table = Table("run", "weights", "epoch", "val DSC", "val ECE", "seconds")
    for name in [name for name in WEIGHTS if name in info]:  # older runs kept one of them
        scores = [f"{info[name][key]:.4f}" for key in ("val_dice", "val_ece")]
        table.add_row(str(folder), name, str(info[name]["epoch"]), *scores, str(info["seconds"]))
    show(info | {"folder": str(folder)}, table, as_json)


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

    predictor = open_predictor(run, weights=weights, data=data)
    kinds = list(corrupt or [])
    if noise_series:
        for severity in CORRUPTIONS["gaussian_noise"].severities:
            kinds.append(f"gaussian_noise:{severity:g}" if severity else "")
    tables = {}
    for kind in kinds or [""]:
        options: dict[str, Any] = {"split": split, "corruption": kind, "calibrator": calibrator}
        with counting(f"{run.name} {split} {kind}".strip()) as progress:
            options |= {"seed": seed, "again": again, "progress": progress}
            tables[kind or "clean"] = score(predictor, **options)
    after = f", after {calibrator}" if calibrator else ""
    source = f"{run.name}, {predictor.weights} weights, {split} split{after}"
    _show_scores(source, tables, as_json)


@app.command(epilog="Example: segcal calibrate runs/mbls --with ts --with lts")
def calibrate(
    run: RunFolder,
    names: Annotated[Names, Option("--with", help=CALIBRATORS)] = None,
    weights: Weights = None,
    data: MovedData = None,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Fit post-hoc calibrators on the validation split, and add their test scores."""
    from segcal.fitting import calibrate as fit
    from segcal.predictors import open_predictor
    from segcal.scoring import evaluate as score

    predictor = open_predictor(run, weights=weights, data=data)
    wanted = names or ["ts", "lts"]
    with counting(f"calibrating {run.name}") as progress:
        facts = fit(predictor, wanted, again=again, progress=progress)
    for name, fact in facts.items():
        for line in fact["warnings"]:
            note(f"{name}: {line}", "warning")
    tables = {name or "before": score(predictor, calibrator=name) for name in ("", *wanted)}
    _show_scores(f"{run.name}, {predictor.weights} weights, test split", tables, as_json, facts)


def _show_scores(source: str, tables: Mapping[str, Any], as_json: bool, facts: Any = None) -> None:
    """Means over cases of the main metrics of a source, a row per table."""
    from segcal.metrics import METRICS

    regions = any(row["class"] == "mean (region)" for rows in tables.values() for row in rows)
    title = f"{source}: mean over cases" + ", overlap and distances of regions" * regions
    table = Table("", *(f"{METRICS[key].label} {METRICS[key].arrow}" for key in MAIN), title=title)
    values: dict[str, dict[str, float]] = {}
    for name, rows in tables.items():
        values[name] = {}
        for key, kind in MAIN.items():
            is_region = regions and kind == "mean"
            values[name][key] = _mean(rows, key, "mean (region)" if is_region else kind)
        table.add_row(name, *(f"{value:.4g}" for value in values[name].values()))
    show(values if facts is None else {"scores": values, "fits": facts}, table, as_json)


def _mean(rows: list[dict[str, Any]], metric: str, kind: str) -> float:
    values = []
    for row in rows:
        wanted = (row["metric"], row["class"]) == (metric, kind) and row["case"] != "pooled"
        if wanted and not math.isnan(row["value"]):
            values.append(row["value"])
    return sum(values) / len(values) if values else math.nan


@app.command(epilog="Example: segcal predict runs/mbls scan.nii.gz --out predictions")
def predict(
    run: RunFolder,
    images: Annotated[list[Path], Argument(help=IMAGES)],
    out: Annotated[Path, Out],
    calibrator: Calibrator = "",
    weights: Weights = None,
    probabilities: Annotated[bool, Option("--probabilities", help="A map per class too.")] = False,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Segment images: label map, confidence and volumes, in each image's own geometry."""
    from segcal.predicting import predict as apply
    from segcal.predictors import open_predictor

    predictor = open_predictor(run, weights=weights)
    options: dict[str, Any] = {"calibrator": calibrator, "probabilities": probabilities}
    with counting("predicting") as progress:
        summaries = apply(predictor, images, out, again=again, progress=progress, **options)
    columns = ("ml", "expected ml", "90 % interval", "mean confidence", "unsure share")
    table = Table("case", "class", *columns)
    for name, summary in summaries.items():
        case = [summary["mean_confidence"], summary["unsure_share"]]
        for kind, row in summary["classes"].items():
            low, high = row["interval_90_ml"]
            values = [row["ml"], row["expected_ml"], f"{low} to {high}", *case]
            table.add_row(name, kind, *map(str, values))
        if summary.get("unseen_share"):
            share = f"{100 * summary['unseen_share']:.2g} %"
            note(f"{name}: the network did not look at {share} of the image; confidence is 0 there")
    show(summaries, table, as_json)


@app.command(epilog="Example: segcal ensemble runs/s0 runs/s1 runs/s2 --out runs/ensemble")
def ensemble(
    runs: Annotated[list[Path], Argument(help="Finished runs on the same data and split.")],
    out: Annotated[Path, Out],
    average: Annotated[str, Option(help="Average probs, or logits as in nnU-Net.")] = "probs",
    calibrator: Annotated[str, Option(help="Calibrate each run with it before averaging.")] = "",
    weights: Annotated[str, Option(help="The weights of the runs: best or last.")] = "best",
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
