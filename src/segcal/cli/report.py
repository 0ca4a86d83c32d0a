"""The verbs that show and publish runs: figures, report, pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from rich.text import Text
from typer import Option

from segcal.cli.app import (
    AsJson,
    ByMetrics,
    Names,
    OnlyWeights,
    Out,
    Published,
    Runs,
    app,
    bar,
    show,
)

FILES = Option("--out", "-o", help="The folder; files are DATASET-FIGURE.FORMAT.")
PAGE = Option("--out", "-o", help="The HTML file to write.")


@app.command(epilog="Example: segcal figures runs/ce runs/mbls --out figures --format pdf")
def figures(
    runs: Runs,
    out: Annotated[Path, FILES],
    format: Annotated[str, Option(help="svg, pdf or png.")] = "svg",
    figure: Annotated[Names, Option(help="Only this (segcal list figures). Repeatable.")] = None,
    metrics: ByMetrics = "main",
    weights: OnlyWeights = None,
    as_json: AsJson = False,
) -> None:
    """Draw the figures that compare finished runs."""
    from segcal.compare import read_results
    from segcal.figures import save_figures

    results = read_results(runs, weights=weights, metrics=metrics)
    rows = save_figures(results, out, format=format, keys=figure or ())
    table = Table("figure", "shows", "file", title=Text(str(out)))
    for row in rows:
        drawn = bool(row["file"])
        text = Path(row["file"]).name if drawn else f"left out: needs {row['needs']}"
        file = Text(text, style="" if drawn else "yellow", overflow="fold")
        table.add_row(row["figure"], row["label"], file)
    show(rows, table, as_json)


@app.command(epilog="Example: segcal report runs/ce runs/mbls -o report.html")
def report(
    runs: Runs,
    out: Annotated[Path, PAGE] = Path("report.html"),
    cases: Annotated[int, Option(min=1, help="How many cases the viewer shows at most.")] = 4,
    no_viewer: Annotated[bool, Option("--no-viewer", help="Leave the slice viewer out.")] = False,
    metrics: ByMetrics = "main",
    published: Published = False,
    weights: OnlyWeights = None,
    as_json: AsJson = False,
) -> None:
    """Show the outcome of runs in one HTML file: words, tables, figures, cases, provenance."""
    from segcal.compare import read_results
    from segcal.report import build_report, check_target, save_report, summaries

    check_target(out)
    results = read_results(runs, weights=weights, metrics=metrics)
    with bar() as shown:
        task = shown.add_task("reading", total=None)

        def progress(step: str, done: int, total: int) -> None:
            shown.update(task, description=step, completed=done, total=total)

        options: dict[str, Any] = {"viewer": not no_viewer, "published": published}
        html = build_report(results, n_cases=cases, progress=progress, **options)
    save_report(out, html)
    size = out.stat().st_size
    texts = {dataset: summary.text for dataset, summary in summaries(results).items()}
    if as_json:
        show({"report": str(out), "bytes": size, "summary": texts}, Table(), as_json)
    else:
        print("\n\n".join([f"{out} ({size / 1e6:.1f} MB)", *texts.values()]))


@app.command(epilog="Example: segcal pack studies/paper-acdc --out results/acdc")
def pack(runs: Runs, out: Annotated[Path, Out], as_json: AsJson = False) -> None:
    """Copy runs without weights and images: compare, figures and report read the small copy."""
    from segcal.compare import pack

    packed = pack(runs, out)
    table = Table("folder", "runs", "size")
    table.add_row(packed["out"], str(packed["runs"]), f"{packed['bytes'] / 1e3:,.0f} kB")
    show(packed, table, as_json)
