"""The verbs about runs: train, evaluate, calibrate, predict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn
from rich.table import Table

from segcal.cli.app import Again, AsJson, app, bar, show
from segcal.hardware import before_torch

if TYPE_CHECKING:
    from segcal.config import RunSettings

MovedData = Annotated[
    Path | None, typer.Option(help="Where the run's prepared data are, if they have moved.")
]
RunFolder = Annotated[Path, typer.Argument(help="A run's folder, as segcal train made it.")]


@app.command(
    epilog="Example: segcal train cases/hippocampus --loss mbls --set loss.margin=5 --out runs/mbls"
)
def train(
    data: Annotated[
        Path | None, typer.Argument(help="A prepared data set's folder; or data in --config.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder; by default in runs/, named after its settings."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="ce, ce_dice, focal, ecp, ls, svls, mbls or mbls_dice.")
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="unet, attention_unet, unetpp or transunet.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Short for --set training.epochs=N.")] = None,
    fold: Annotated[
        int | None, typer.Option(help="The fold, where the data set has several.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and order.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting: key=value, such as network.width=8."),
    ] = None,
    devices: Annotated[int | None, typer.Option(help="Devices per node.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Lightning's strategy: auto or ddp.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Lightning's precision, such as 16-mixed or bf16-mixed.")
    ] = None,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Train a network, or go on with a run that was interrupted."""
    before_torch()
    from segcal.config import run_settings
    from segcal.training import train as run

    machine = {"devices": devices, "nodes": nodes, "strategy": strategy, "precision": precision}
    flags = {
        "data": str(data) if data else None,
        "loss.name": loss,
        "network.name": network,
        "training.epochs": epochs,
    }
    flags |= {"fold": fold, "seed": seed} | {
        f"machine.{key}": value for key, value in machine.items()
    }
    settings = run_settings(flags, config=config, overrides=sets or [])
    folder = out or _default_folder(settings)
    info = run(settings, folder, again=again)
    if info["status"] != "finished":  # of several processes only the first sees the end
        return
    best = info.get("best", {})
    table = Table("run", "kept epoch", "val DSC", "val ECE", "seconds")
    cells = [
        best.get("epoch", ""),
        best.get("val_dice", ""),
        best.get("val_ece", ""),
        info.get("seconds", ""),
    ]
    table.add_row(
        str(folder), *(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in cells)
    )
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
    split: Annotated[str, typer.Option(help="test, val or train.")] = "test",
    corrupt: Annotated[
        list[str] | None, typer.Option(help="Corrupt the images: name:severity. May be repeated.")
    ] = None,
    noise_series: Annotated[
        bool, typer.Option("--noise-series", help="Gaussian noise of 0, 0.01 ... 0.05.")
    ] = False,
    calibrator: Annotated[str, typer.Option(help="With a fitted calibrator: ts, lts or vs.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of the corruption.")] = 0,
    data: MovedData = None,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Score whole volumes: rows of scores.csv, and bins.json for reliability figures."""
    before_torch()
    from segcal.corruptions import CORRUPTIONS
    from segcal.folders import open_cases
    from segcal.predictors.run import open_run
    from segcal.scoring import evaluate as score

    opened = open_run(run)
    cases = open_cases(data) if data else None
    series = (
        [f"gaussian_noise:{s:g}" if s else "" for s in CORRUPTIONS["gaussian_noise"].severities]
        if noise_series
        else []
    )
    kinds = [*(corrupt or []), *series] or [""]
    tables = {}
    with bar(MofNCompleteColumn()) as shown:
        for kind in kinds:
            task = shown.add_task(f"{run.name} {split} {kind}".strip(), total=None)

            def progress(done: int, total: int, task: Any = task) -> None:
                shown.update(task, completed=done, total=total)

            tables[kind or "clean"] = score(
                opened,
                split=split,
                corruption=kind,
                calibrator=calibrator,
                seed=seed,
                again=again,
                cases=cases,
                progress=progress,
            )
    _show_scores(tables, as_json)


@app.command(epilog="Example: segcal calibrate runs/mbls --with ts --with lts")
def calibrate(
    run: RunFolder,
    names: Annotated[
        list[str] | None, typer.Option("--with", help="ts, lts or vs; by default ts and lts.")
    ] = None,
    data: MovedData = None,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Fit post-hoc calibrators on the validation split, and add their test scores."""
    before_torch()
    import sys

    from segcal.fitting import calibrate as fit
    from segcal.folders import open_cases
    from segcal.predictors.run import open_run
    from segcal.scoring import evaluate as score

    opened, cases = open_run(run), open_cases(data) if data else None
    chosen = names or ["ts", "lts"]
    with bar(MofNCompleteColumn()) as shown:
        task = shown.add_task(f"calibrating {run.name}", total=None)
        facts = fit(
            opened,
            chosen,
            again=again,
            cases=cases,
            progress=lambda i, n: shown.update(task, completed=i, total=n),
        )
    for name, said in facts.items():
        for line in said["warnings"]:
            print(f"warning: {name}: {line}", file=sys.stderr)
    _show_scores(
        {"before": score(opened)} | {name: score(opened, calibrator=name) for name in chosen},
        as_json,
        facts,
    )


def _show_scores(
    tables: dict[str, list[dict[str, Any]]], as_json: bool, facts: dict[str, Any] | None = None
) -> None:
    """Means over cases of the main metrics, a row per table."""
    from segcal.metrics import METRICS

    regions = any(row["class"] == "mean (region)" for rows in tables.values() for row in rows)
    mean = (
        "mean (region)" if regions else "mean"
    )  # where a data set is scored by regions, those are its scores
    keys = {
        "dice": mean,
        "asd": mean,
        "hd95": mean,
        "missed": mean,
        "ece": "all",
        "cece": "all",
        "nll": "all",
    }
    title = "mean over cases" + (", overlap and distances of regions" if regions else "")
    table = Table("", *(f"{METRICS[key].label} {METRICS[key].arrow}" for key in keys), title=title)
    values: dict[str, Any] = {}
    for name, rows in tables.items():
        means = {key: _mean(rows, key, kind) for key, kind in keys.items()}
        values[name] = means
        table.add_row(name, *(f"{value:.4g}" for value in means.values()))
    show(values if facts is None else {"scores": values, "fits": facts}, table, as_json)


def _mean(rows: list[dict[str, Any]], metric: str, kind: str) -> float:
    found = [
        float(r["value"])
        for r in rows
        if r["metric"] == metric and r["class"] == kind and r["case"] != "pooled"
    ]
    known = [value for value in found if not math.isnan(value)]
    return sum(known) / len(known) if known else float("nan")


@app.command(
    epilog="Example: segcal predict runs/mbls scan.nii.gz --out predictions --calibrator ts"
)
def predict(
    run: RunFolder,
    images: Annotated[
        list[Path], typer.Argument(help="Images; channels of a case as name_0000, name_0001 ...")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the predictions go.")],
    calibrator: Annotated[str, typer.Option(help="With a fitted calibrator: ts, lts or vs.")] = "",
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write a map per class.")
    ] = False,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Segment images: label map, confidence and volumes, in each image's own geometry."""
    before_torch()
    import sys

    from segcal.predicting import predict as apply
    from segcal.predictors.run import open_run

    with bar(MofNCompleteColumn()) as shown:
        task = shown.add_task("predicting", total=None)
        done = apply(
            open_run(run),
            images,
            out,
            calibrator=calibrator,
            probabilities=probabilities,
            again=again,
            progress=lambda i, n: shown.update(task, completed=i, total=n),
        )
    table = Table(
        "case", "class", "ml", "expected ml", "90 % interval", "mean confidence", "unsure share"
    )
    for name, about in done.items():
        for kind, row in about["classes"].items():
            low, high = row["interval_90_ml"]
            cells = [
                row["ml"],
                row["expected_ml"],
                f"{low} to {high}",
                about["mean_confidence"],
                about["unsure_share"],
            ]
            table.add_row(name, kind, *map(str, cells))
        if about.get("unseen_share"):
            share = f"{100 * about['unseen_share']:.2g} %"
            print(
                f"note: {name}: the network did not look at {share} of the image; confidence is 0"
                " there",
                file=sys.stderr,
            )
    show(done, table, as_json)
