"""The verbs about data: list datasets, prepare, inspect, phantom, download."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

from rich.progress import DownloadColumn
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from segcal.cli.app import AsJson, Names, app, counting, listing, note, show
from segcal.types import UserError, check_choice

DATA_SET = "A known data set (segcal list datasets), or a name for your own."
SPLIT = "A JSON file with lists train, val, test of case or patient ids."
PERCENTILES = (
    "Clip each image and channel to its own: low,high. By default 0.5,99.5 for your data, 0,100"
    " (the range) for known data sets."
)
PATIENTS = "JSON (case: patient) or CSV (case, patient), where patients have several cases."
IMAGES = "Images in no known layout: a pattern in quotes whose star is the case, as in"
IMAGES += " 'own/*/image.nii.gz'. Repeat it for several channels."
LABELS = "Their label maps, likewise: 'own/*/seg.nii.gz'."
CLASSES = "Names of the labels of --labels: CSF,GM,WM. By default every label is a class."
FOLDS = "Divide patients into N folds; each is tested once (segcal train --fold, study --folds)."
ALLOW = "Keep identical images, also across train, val and test."
DROP = "Leave out images that are identical to earlier ones."
MaybeText = str | None
MaybePath = Path | None


def _numbers(flag: str, text: str | None, n: int, kind: type = int) -> Any:
    """`"16,64,64"`, what a flag was given, -> (16, 64, 64); `None` stays."""
    if text is None:
        return None
    try:
        values = tuple(kind(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != n:
        wanted = f"{n} {'whole ' if kind is int else ''}numbers"
        raise UserError(f"{flag} takes {wanted} with commas between them; got {text!r}")
    return values


@listing.command("datasets", epilog="Example: segcal list datasets --json")
def list_datasets(as_json: AsJson = False) -> None:
    """The data sets that segcal knows: classes, licence, where to get them, layout, citation."""
    from segcal.data.catalog import DATASETS

    table = Table("data set", "about", show_lines=True)
    values = {}
    for key, row in DATASETS.items():
        where = row.homepage or "segcal prepare phantom"
        if row.archive:
            where = f"segcal download {key}"
        regions = f"; regions {', '.join(row.regions)}" if row.regions else ""
        lines = [f"classes: {', '.join(row.classes)}{regions}", f"licence: {row.licence}"]
        lines += [f"get it: {where}", f"layout: {row.layout}", f"cite: {row.citation}"]
        table.add_row(key, Text("\n".join(lines), overflow="fold"))
        facts: dict[str, Any] = {"classes": row.classes, "regions": list(row.regions)}
        facts |= {"licence": row.licence, "homepage": row.homepage, "download": bool(row.archive)}
        values[key] = facts | {"layout": row.layout, "citation": row.citation}
    show(values, table, as_json)


@app.command(epilog="Example: segcal prepare my-organs --from Dataset123_MyOrgans --to cases")
def prepare(
    name: Annotated[str, Argument(help=DATA_SET)],
    source: Annotated[MaybePath, Option("--from", help="The raw data, as downloaded.")] = None,
    to: Annotated[Path, Option(help="Where prepared data sets go.")] = Path("cases"),
    split: Annotated[MaybePath, Option(help=SPLIT)] = None,
    patients: Annotated[MaybePath, Option(help=PATIENTS)] = None,
    seed: Annotated[int, Option(help="Seed of the split (and of the phantom).")] = 0,
    folds: Annotated[int | None, Option(help=FOLDS)] = None,
    images: Annotated[Names, Option(help=IMAGES)] = None,
    labels: Annotated[MaybeText, Option(help=LABELS)] = None,
    classes: Annotated[MaybeText, Option(help=CLASSES)] = None,
    workers: Annotated[int, Option(help="Processes.")] = os.cpu_count() or 1,
    skip_broken: Annotated[bool, Option("--skip-broken", help="Leave broken cases out.")] = False,
    allow: Annotated[bool, Option("--allow-duplicates", help=ALLOW)] = False,
    drop: Annotated[bool, Option("--drop-duplicates", help=DROP)] = False,
    again: Annotated[bool, Option("--again", help="Replace what was prepared before.")] = False,
    size: Annotated[MaybeText, Option(help="Resize slices: height,width.")] = None,
    spacing: Annotated[MaybeText, Option(help="Resample to voxels of z,y,x mm.")] = None,
    crop: Annotated[MaybeText, Option(help="Crop or pad about the centre to z,y,x voxels.")] = None,
    window: Annotated[MaybeText, Option(help="Clip intensities, e.g. CT: low,high.")] = None,
    percentiles: Annotated[MaybeText, Option(help=PERCENTILES)] = None,
    axis: Annotated[int | None, Option(help="The array axis of the slices (0 is z).")] = None,
    keep_empty: Annotated[bool | None, Option(help="Train on slices without foreground.")] = None,
    cases: Annotated[int, Option(help="phantom: how many cases.")] = 40,
    shape: Annotated[str, Option(help="phantom: slices,height,width.")] = "16,64,64",
    as_json: AsJson = False,
) -> None:
    """Turn raw data in its official layout into prepared cases."""
    from segcal.data.inspect import summary
    from segcal.data.prepare import prepare as run

    options: dict[str, Any] = {"size": _numbers("--size", size, 2)}
    options |= {"crop": _numbers("--crop", crop, 3), "shape": _numbers("--shape", shape, 3)}
    options |= {"spacing": _numbers("--spacing", spacing, 3, float)}
    options |= {"window": _numbers("--window", window, 2, float)}
    options |= {"percentiles": _numbers("--percentiles", percentiles, 2, float)}
    options |= {"axis": axis, "keep_empty": keep_empty}
    options |= {"split_file": split, "patients_file": patients, "seed": seed, "n_cases": cases}
    names = [name.strip() for name in classes.split(",")] if classes else None
    options |= {"folds": folds, "images": images or (), "labels": labels or "", "classes": names}
    options |= {"workers": workers, "skip_broken": skip_broken, "again": again}
    if allow or drop:
        options["duplicates"] = "allow" if allow else "drop"
    with counting(f"preparing {name}") as progress:
        prepared = run(name, source, to, progress=progress, **options)
    facts = summary(prepared.cases)
    for line in (*prepared.notes, *facts["warnings"]):
        note(line)
    if as_json:
        show(facts | {"fresh": prepared.fresh}, Table(), as_json)
        return
    counts = ", ".join(f"{n} {name}" for name, n in facts["splits"].items())
    if facts["folds"] > 1:
        counts += f" in the first of {facts['folds']} folds"
    classes = ", ".join(prepared.cases.classes)
    print(f"{prepared.cases.root}: {facts['cases']} cases ({counts}), classes {classes}")
    print("prepared" if prepared.fresh else "already prepared; nothing to do")


@app.command(epilog="Example: segcal inspect cases/hippocampus --figure sheet.png")
def inspect(
    cases: Annotated[Path, Argument(help="A prepared data set, such as cases/hippocampus.")],
    figure: Annotated[MaybePath, Option(help="Draw a contact sheet (png, pdf or svg).")] = None,
    n: Annotated[int, Option("-n", min=1, help="How many cases the sheet shows.")] = 24,
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
        table.add_row(Text("warning", style="yellow"), Text(line))
    if figure is not None:
        from segcal.figures import contact_sheet

        title = f"{data.name}: {facts['cases']} cases"
        save_figure(figure, contact_sheet(middle_slices(data, n), data.classes, title))
        table.add_row("contact sheet", Text(str(figure)))
    show(facts, table, as_json)


@app.command(epilog="Example: segcal phantom nnunet --to Dataset123_Phantom --cases 10")
def phantom(
    layout: Annotated[str, Argument(help="nnunet (nnU-Net v2) or msd (Decathlon).")],
    to: Annotated[Path, Option(help="The folder to write into; it must be empty or new.")],
    cases: Annotated[int, Option(help="How many cases.")] = 10,
    shape: Annotated[str, Option(help="slices,height,width.")] = "16,64,64",
    seed: Annotated[int, Option(help="Seed.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write synthetic raw data in the layout of nnU-Net or of the Decathlon, to try things on."""
    from segcal.data.layouts import write_layout
    from segcal.folders import whole_or_not

    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is not an empty folder; choose a new one with --to")
    options: dict[str, Any] = {"n_cases": cases, "seed": seed}
    options |= {"size": _numbers("--shape", shape, 3)}
    with whole_or_not(to.resolve(), [layout, options]) as partial:
        write_layout(layout, partial, **options)
    print(json.dumps({"folder": str(to)}) if as_json else to)


@app.command(epilog="Example: segcal download hippocampus --to raw")
def download(
    name: Annotated[str, Argument(help="A data set with an open address (segcal list datasets).")],
    to: Annotated[Path, Option(help="Where raw data goes.")] = Path("raw"),
    as_json: AsJson = False,
) -> None:
    """Fetch a data set that anyone may download; for the others, say where to ask."""
    from segcal.data.catalog import DATASETS
    from segcal.data.download import download as fetch

    check_choice("data set", name, tuple(DATASETS))
    row = DATASETS[name]
    if row.archive is None:
        where = row.homepage or "segcal prepare phantom (built in)"
        raise UserError(f"{name} has no open address; ask for access at {where}")
    with counting(f"downloading {name}", DownloadColumn()) as progress:
        folder = fetch(*row.archive, to, progress=progress)
    print(json.dumps({"folder": str(folder)}) if as_json else folder)
