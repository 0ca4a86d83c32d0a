"""The verbs about data: list, prepare, phantom, inspect, download."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import DownloadColumn
from rich.table import Table
from rich.text import Text

from segcal.cli.app import AsJson, app, bar, counting, listing, show
from segcal.types import UserError


def _numbers(text: str | None, kind: type = float) -> tuple[Any, ...] | None:
    """`"1,2.5"` -> (1.0, 2.5)."""
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"expected numbers with commas between them, such as 1,2,3; got {text!r}"
        ) from None


@listing.command("datasets", epilog="Example: segcal list datasets --json")
def list_datasets(as_json: AsJson = False) -> None:
    """The data sets that segcal knows: classes, licence, where to get them, layout, citation."""
    from segcal.data.catalog import DATASETS

    table = Table("data set", "about", show_lines=True)
    for key, row in DATASETS.items():
        where = row.homepage or "segcal prepare phantom"
        if row.archive:
            where = f"segcal download {key}"
        regions = f"; regions {', '.join(row.regions)}" if row.regions else ""
        lines = [f"classes: {', '.join(row.classes)}{regions}", f"licence: {row.licence}"]
        lines += [f"get it: {where}", f"layout: {row.layout}", f"cite: {row.citation}"]
        table.add_row(key, Text("\n".join(lines), overflow="fold"))
    values = {}
    for key, row in DATASETS.items():
        facts: dict[str, Any] = {
            "classes": row.classes,
            "regions": list(row.regions),
            "licence": row.licence,
        }
        facts |= {"homepage": row.homepage, "download": bool(row.archive)}
        values[key] = facts | {"layout": row.layout, "citation": row.citation}
    show(values, table, as_json)


@app.command(epilog="Example: segcal prepare my-organs --from Dataset123_MyOrgans --to cases")
def prepare(
    name: Annotated[
        str, typer.Argument(help="A known data set (segcal list datasets), or a name for your own.")
    ],
    source: Annotated[
        Path | None, typer.Option("--from", help="The raw data's folder, as downloaded.")
    ] = None,
    to: Annotated[Path, typer.Option(help="Where prepared data sets go.")] = Path("cases"),
    split: Annotated[
        Path | None,
        typer.Option(help="A JSON file with lists train, val, test of case or patient ids."),
    ] = None,
    patients: Annotated[
        Path | None,
        typer.Option(help="A JSON object case: patient, where patients have several cases."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split (and of the phantom).")] = 0,
    workers: Annotated[int, typer.Option(help="Processes.")] = os.cpu_count() or 1,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave broken cases out and say which.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Replace what was prepared before.")
    ] = False,
    size: Annotated[str | None, typer.Option(help="Resize slices: height,width.")] = None,
    spacing: Annotated[str | None, typer.Option(help="Resample to voxels of z,y,x mm.")] = None,
    crop: Annotated[
        str | None, typer.Option(help="Crop or pad about the centre to z,y,x voxels.")
    ] = None,
    window: Annotated[str | None, typer.Option(help="Clip intensities, e.g. CT: low,high.")] = None,
    axis: Annotated[
        int | None, typer.Option(help="The array axis that slices are taken along (0 is z).")
    ] = None,
    keep_empty: Annotated[
        bool | None, typer.Option(help="Whether slices without foreground are trained on.")
    ] = None,
    cases: Annotated[int, typer.Option(help="phantom: how many cases.")] = 40,
    shape: Annotated[str, typer.Option(help="phantom: slices,height,width.")] = "16,64,64",
    as_json: AsJson = False,
) -> None:
    """Turn raw data in its official layout into prepared cases."""
    from segcal.data.inspect import summary
    from segcal.data.prepare import prepare as run

    recipe: dict[str, Any] = {"size": _numbers(size, int), "spacing": _numbers(spacing)}
    recipe |= {"crop": _numbers(crop, int), "window": _numbers(window)}
    recipe |= {"axis": axis, "keep_empty": keep_empty}
    options: dict[str, Any] = {"split_file": split, "patients_file": patients, "seed": seed}
    options |= {"workers": workers, "skip_broken": skip_broken, "again": again}
    options |= {"n_cases": cases, "shape": _triple(shape)}
    with counting(f"preparing {name}") as progress:
        prepared = run(name, source, to, progress=progress, **options, **recipe)
    facts = summary(prepared.cases)
    for line in facts["warnings"]:
        print(f"note: {line}", file=sys.stderr)
    if as_json:
        show(facts | {"fresh": prepared.fresh}, Table(), as_json)
        return
    counts = ", ".join(f"{n} {name}" for name, n in facts["splits"].items())
    classes = ", ".join(prepared.cases.classes)
    print(f"{prepared.cases.root}: {facts['cases']} cases ({counts}), classes {classes}")
    print("prepared" if prepared.fresh else "already prepared; nothing to do")


def _triple(text: str) -> tuple[int, int, int]:
    values = _numbers(text, int) or ()
    if len(values) != 3:
        raise UserError(f"expected three numbers such as 16,64,64; got {text!r}")
    return values[0], values[1], values[2]


@app.command(epilog="Example: segcal phantom nnunet --to Dataset123_Phantom --cases 10")
def phantom(
    layout: Annotated[
        str, typer.Argument(help="nnunet (nnU-Net v2) or msd (Medical Segmentation Decathlon).")
    ],
    to: Annotated[Path, typer.Option(help="The folder to write into; it must be empty or new.")],
    cases: Annotated[int, typer.Option(help="How many cases.")] = 10,
    shape: Annotated[str, typer.Option(help="slices,height,width.")] = "16,64,64",
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write synthetic raw data in the layout of nnU-Net or of the Decathlon, to try things on."""
    from segcal.data.layouts import write_layout

    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is not an empty folder; choose a new one with --to")
    partial = to.resolve().with_name(f".{to.resolve().name}.partial")
    try:
        write_layout(layout, partial, n_cases=cases, seed=seed, size=_triple(shape))
        partial.replace(to)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "writing failed"
        raise UserError(f"cannot write to {to} ({reason}); make room there") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(json.dumps({"folder": str(to)}) if as_json else to)


@app.command(epilog="Example: segcal inspect cases/hippocampus --figure sheet.png")
def inspect(
    cases: Annotated[
        Path, typer.Argument(help="A prepared data set's folder, such as cases/hippocampus.")
    ],
    figure: Annotated[
        Path | None, typer.Option(help="Also draw a contact sheet here (png, pdf or svg).")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many cases the sheet shows.")] = 24,
    as_json: AsJson = False,
) -> None:
    """Show what is in a prepared data set, and what looks wrong with it."""
    from segcal.data.inspect import middle_slices, summary
    from segcal.folders import open_cases, save_figure

    data = open_cases(cases)
    facts = summary(data)
    table = Table("what", "value", title=Text(facts["name"]))
    patients = "not known" if facts["patients"] is None else facts["patients"]
    rows = {"cases / patients / folds": f"{facts['cases']} / {patients} / {facts['folds']}"}
    rows["train / val / test"] = " / ".join(str(n) for n in facts["splits"].values())
    for title, key in (("slices, rows, columns", "shape"), ("their spacing (mm)", "spacing")):
        rows[title] = f"{facts[key]['min']} to {facts[key]['max']}"
    for channel, limits in facts["intensity"].items():
        rows[f"intensity of {channel}"] = f"{limits['min']:g} to {limits['max']:g}"
    for name, row in facts["classes"].items():
        voxels = f"{row['voxels']:,} voxels ({row['share']:.2%})"
        rows[f"class {name}"] = f"{voxels} in {row['cases']} cases"
    for title, value in rows.items():
        table.add_row(Text(title), Text(value))
    for line in facts["warnings"]:
        table.add_row("[yellow]warning[/]", Text(line))
    if figure is not None:
        from segcal.figures import contact_sheet

        title = f"{data.name}: {facts['cases']} cases"
        save_figure(figure, contact_sheet(middle_slices(data, n), data.classes, title))
        table.add_row("contact sheet", Text(str(figure)))
    show(facts, table, as_json)


@app.command(epilog="Example: segcal download hippocampus --to raw")
def download(
    name: Annotated[
        str, typer.Argument(help="A data set with an open address (segcal list datasets).")
    ],
    to: Annotated[Path, typer.Option(help="Where raw data goes.")] = Path("raw"),
    as_json: AsJson = False,
) -> None:
    """Fetch a data set that anyone may download; for the others, say where to ask."""
    from segcal.data.catalog import DATASETS
    from segcal.data.download import download as fetch
    from segcal.types import check_choice

    check_choice("data set", name, tuple(DATASETS))
    row = DATASETS[name]
    if row.archive is None:
        where = row.homepage or "segcal prepare phantom (built in)"
        raise UserError(f"{name} has no open address; ask for access at {where}")
    with bar(DownloadColumn()) as shown:
        task = shown.add_task(f"downloading {name}", total=None)
        folder = fetch(
            *row.archive,
            to,
            progress=lambda done, total: shown.update(task, completed=done, total=total or None),
        )
    print(json.dumps({"folder": str(folder)}) if as_json else folder)
