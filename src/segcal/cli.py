"""The command line: each verb a few lines that call one function. Heavy imports wait until a verb needs them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from segcal import __version__
from segcal.types import UserError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Calibrated medical image segmentation: from raw data to a report.",
    epilog="Example: segcal prepare hippocampus --from Task04_Hippocampus",
)
listing = typer.Typer(no_args_is_help=True, help="List what segcal knows.", epilog="Example: segcal list datasets")
app.add_typer(listing, name="list")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    """Run the command line: a user error is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"segcal: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("segcal: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def _print(value: Any, table: Table, as_json: bool) -> None:
    """Results go to standard output, as JSON or as a table."""
    if as_json:
        print(json.dumps(value, indent=1, ensure_ascii=False))
    else:
        Console().print(table)


def _bar(*columns: Any) -> Progress:
    """Progress goes to standard error."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn(), console=Console(stderr=True)
    )


def _numbers(text: str | None, kind: type = float) -> tuple[Any, ...] | None:
    """`"1,2.5"` -> (1.0, 2.5)."""
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"expected numbers with commas between them, such as 1,2,3; got {text!r}") from None


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Print the version if asked."""
    if show:
        print(__version__)
        raise typer.Exit


@listing.command("datasets", epilog="Example: segcal list datasets --json")
def list_datasets(as_json: AsJson = False) -> None:
    """The data sets that segcal knows: classes, licence, where to get them, layout, citation."""
    from segcal.data.catalog import DATASETS

    table = Table("data set", "about", show_lines=True)
    for key, row in DATASETS.items():
        where = f"segcal download {key}" if row.archive else row.homepage or "segcal prepare phantom"
        regions = f"; regions {', '.join(row.regions)}" if row.regions else ""
        lines = [f"classes: {', '.join(row.classes)}{regions}", f"licence: {row.licence}", f"get it: {where}"]
        lines += [f"layout: {row.layout}", f"cite: {row.citation}"]
        table.add_row(key, Text("\n".join(lines), overflow="fold"))
    values = {
        key: {
            "classes": row.classes,
            "regions": list(row.regions),
            "licence": row.licence,
            "homepage": row.homepage,
            "download": bool(row.archive),
            "layout": row.layout,
            "citation": row.citation,
        }
        for key, row in DATASETS.items()
    }
    _print(values, table, as_json)


@app.command(epilog="Example: segcal prepare my-organs --from Dataset123_MyOrgans --to cases")
def prepare(
    name: Annotated[str, typer.Argument(help="A known data set (segcal list datasets), or a name for your own.")],
    source: Annotated[Path | None, typer.Option("--from", help="The raw data's folder, as downloaded.")] = None,
    to: Annotated[Path, typer.Option(help="Where prepared data sets go.")] = Path("cases"),
    split: Annotated[
        Path | None, typer.Option(help="A JSON file with lists train, val, test of case or patient ids.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split (and of the phantom).")] = 0,
    workers: Annotated[int, typer.Option(help="Processes.")] = os.cpu_count() or 1,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave broken cases out and say which.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Replace what was prepared before.")] = False,
    size: Annotated[str | None, typer.Option(help="Resize slices: height,width.")] = None,
    spacing: Annotated[str | None, typer.Option(help="Resample to voxels of z,y,x mm.")] = None,
    crop: Annotated[str | None, typer.Option(help="Crop or pad about the centre to z,y,x voxels.")] = None,
    window: Annotated[str | None, typer.Option(help="Clip intensities, e.g. CT: low,high.")] = None,
    axis: Annotated[int | None, typer.Option(help="The array axis that slices are taken along (0 is z).")] = None,
    keep_empty: Annotated[bool | None, typer.Option(help="Whether slices without foreground are trained on.")] = None,
    cases: Annotated[int, typer.Option(help="phantom: how many cases.")] = 40,
    shape: Annotated[str, typer.Option(help="phantom: slices,height,width.")] = "16,64,64",
    as_json: AsJson = False,
) -> None:
    """Turn raw data in its official layout into prepared cases."""
    from segcal.data.inspect import summary
    from segcal.data.prepare import prepare as run

    with _bar(MofNCompleteColumn()) as bar:
        task = bar.add_task(f"preparing {name}", total=None)
        done = run(
            name,
            source,
            to,
            split_file=split,
            seed=seed,
            workers=workers,
            skip_broken=skip_broken,
            again=again,
            progress=lambda i, n: bar.update(task, completed=i, total=n),
            n_cases=cases,
            shape=_triple(shape),
            size=_numbers(size, int),
            spacing=_numbers(spacing),
            crop=_numbers(crop, int),
            window=_numbers(window),
            axis=axis,
            keep_empty=keep_empty,
        )
    facts = summary(done.cases)
    for line in facts["warnings"]:
        print(f"note: {line}", file=sys.stderr)
    counts = ", ".join(f"{n} {name}" for name, n in facts["splits"].items())
    table = Table.grid()
    table.add_row(f"{done.cases.root}: {facts['cases']} cases ({counts}), classes {', '.join(done.cases.classes)}")
    table.add_row("prepared" if done.fresh else "already prepared; nothing to do")
    _print(facts | {"fresh": done.fresh}, table, as_json)


def _triple(text: str) -> tuple[int, int, int]:
    values = _numbers(text, int) or ()
    if len(values) != 3:
        raise UserError(f"expected three numbers such as 16,64,64; got {text!r}")
    return values[0], values[1], values[2]


@app.command(epilog="Example: segcal phantom acdc --to raw/acdc --cases 10")
def phantom(
    layout: Annotated[str, typer.Argument(help="The layout: acdc, brats, mrbrains, nnunet, msd, ...")],
    to: Annotated[Path, typer.Option(help="The folder to write into; it must be empty or new.")],
    cases: Annotated[int, typer.Option(help="How many cases.")] = 10,
    shape: Annotated[str, typer.Option(help="slices,height,width.")] = "16,64,64",
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Write synthetic raw data in a public data set's official layout, to try things on."""
    from segcal.data.layouts import write_layout

    if to.exists() and any(to.iterdir()):
        raise UserError(f"{to} is not empty; choose a new folder with --to")
    write_layout(layout, to, n_cases=cases, seed=seed, size=_triple(shape))
    print(to)


@app.command(epilog="Example: segcal inspect cases/hippocampus --figure sheet.png")
def inspect(
    cases: Annotated[Path, typer.Argument(help="A prepared data set's folder, such as cases/hippocampus.")],
    figure: Annotated[Path | None, typer.Option(help="Also draw a contact sheet here (png, pdf or svg).")] = None,
    n: Annotated[int, typer.Option("-n", help="How many cases the sheet shows.")] = 24,
    as_json: AsJson = False,
) -> None:
    """Show what is in a prepared data set, and what looks wrong with it."""
    from segcal.data.inspect import middle_slices, summary
    from segcal.store import open_cases, save_figure

    found = open_cases(cases)
    facts = summary(found)
    table = Table("what", "value", title=facts["name"])
    table.add_row("cases / patients / folds", f"{facts['cases']} / {facts['patients']} / {facts['folds']}")
    table.add_row("train / val / test", " / ".join(str(v) for v in facts["splits"].values()))
    table.add_row("shape (z, y, x)", f"{facts['shape']['min']} to {facts['shape']['max']}")
    table.add_row("spacing (z, y, x) mm", f"{facts['spacing']['min']} to {facts['spacing']['max']}")
    for channel, limits in facts["intensity"].items():
        table.add_row(f"intensity of {channel}", f"{limits['min']:g} to {limits['max']:g}")
    for name, row in facts["classes"].items():
        table.add_row(f"class {name}", f"{row['voxels']:,} voxels ({row['share']:.2%}) in {row['cases']} cases")
    for line in facts["warnings"]:
        table.add_row("[yellow]warning[/]", line)
    if figure is not None:
        from segcal.figures import contact_sheet

        title = f"{found.name}: {facts['cases']} cases"
        save_figure(figure, contact_sheet(middle_slices(found, n), found.classes, found.info["colours"], title))
        table.add_row("contact sheet", str(figure))
    _print(facts, table, as_json)


@app.command(epilog="Example: segcal download hippocampus --to raw")
def download(
    name: Annotated[str, typer.Argument(help="A data set with an open address (segcal list datasets).")],
    to: Annotated[Path, typer.Option(help="Where raw data goes.")] = Path("raw"),
) -> None:
    """Fetch a data set that anyone may download; for the others, say where to ask."""
    from segcal.data.catalog import DATASETS
    from segcal.data.download import download as fetch
    from segcal.types import check_choice

    check_choice("data set", name, tuple(DATASETS))
    row = DATASETS[name]
    if row.archive is None:
        raise UserError(
            f"{name} has no open address; ask for access at {row.homepage or 'segcal prepare phantom (built in)'}"
        )
    with _bar(DownloadColumn()) as bar:
        task = bar.add_task(f"downloading {name}", total=None)
        folder = fetch(*row.archive, to, progress=lambda done, total: bar.update(task, completed=done, total=total))
    print(folder)
