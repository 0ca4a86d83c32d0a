"""A folder of predictions that anyone's network made, opened: which format, which kind, and the
files of each case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from segcal.data.splits import read_patients
from segcal.predictors.formats import Files, files_of
from segcal.predictors.maps import Checks, Maps
from segcal.predictors.nnunet import (
    Description,
    dataset_name,
    described,
    model_folder,
    open_nnunet,
    reader_of,
)
from segcal.predictors.reading import case_maps, check_shape, open_maps
from segcal.predictors.source import (
    KINDS,
    LeftOut,
    Source,
    SourceCase,
    by_stem,
    listed,
    with_patients,
)
from segcal.types import UserError, check_choice

MOST_MAPS = 255
"""Maps of a case: one for each class, background too; labels are bytes, and one of them is kept."""


def open_source(
    path: Path,
    *,
    labels: Path | None = None,
    images: Path | None = None,
    patients: Path | None = None,
    kind: str | None = None,
    keep_going: bool = False,
) -> Source:
    """Find the predictions in a folder and say what they are.

    What they are follows from the format or from `kind`; the values of the smallest case are
    checked against it, so that a wrong guess is an error. References are those in `labels`, else
    those that nnU-Net's own files name. With `keep_going`, cases that do not fit are left out."""
    if kind is not None:
        check_choice("kind", kind, KINDS)
    for folder in (path, labels, images):
        if folder is not None and not folder.is_dir():
            raise UserError(f"{folder} is no folder; name the folder that holds the files")
    left_out = LeftOut(keep_going)
    model = model_folder(path)
    if model is None:
        _refuse_models_below(path)
        source = _plain(path, labels, images, kind, left_out)
    else:
        source = open_nnunet(*model, labels, images, left_out)
        source = _with_kind(source, kind)
    source = _checked(source, left_out)
    if patients is None:
        note = "no patients file was given, so every case counts as a patient of its own"
        return replace(source, notes=(*source.notes, note))
    cases, notes = with_patients(source.cases, read_patients(patients), patients)
    return replace(source, cases=cases, notes=(*source.notes, *notes))


def _refuse_models_below(path: Path) -> None:
    """Ask for one of several nnU-Net models."""
    below = [folder for pattern in ("*__*__*", "*/*__*__*") for folder in path.glob(pattern)]
    models = [str(folder.relative_to(path)) for folder in below if model_folder(folder)]
    if models:
        raise UserError(f"{path} holds nnU-Net models; name one of them: {listed(models)}")


def _with_kind(source: Source, kind: str | None) -> Source:
    """An nnU-Net source of the kind that the user says, if it can be."""
    if kind in (None, source.kind):
        return source
    if kind != "logits":
        problem = f"--kind {kind} is not what {source.root / 'dataset.json'} says"
        raise UserError(f"{problem}: {source.kind}; leave --kind out")
    note = f"logits, as --kind says, for {source.notes[0]}"
    return replace(source, kind="logits", notes=(note, *source.notes[1:]))


def _checked(source: Source, left_out: LeftOut) -> Source:
    """The source, once a case has shown the values that its kind must have.

    With `keep_going`, cases that cannot be read are left out before, and up to two whose values
    are wrong: then it is the kind that is wrong."""
    n_wrong = 0
    for case in sorted(source.cases, key=_n_bytes):
        readable = False
        try:
            maps = case_maps(source, case)
            check_shape(source, case, maps)  # swapped axes explain wrong sums
            readable = True
            check_values(case, source.kind, maps)
        except UserError as error:
            n_wrong += readable
            if not left_out.keep_going or n_wrong == 3:
                raise
            left_out.add([case.id], str(error))
            continue
        kept = tuple(one for one in source.cases if one.id not in left_out.why)
        notes = (*source.notes, *_notes_on(maps))
        return replace(source, cases=kept, notes=notes, left_out=left_out.why)
    raise UserError(f"{source.root} holds no case that can be read")


def check_values(case: SourceCase, kind: str, maps: Maps) -> None:
    """Raise unless the values of a case are what `kind` says; one pass over them."""
    checks = Checks(case.id, kind, step=maps.step)
    for k, values in enumerate(maps.classes()):
        checks.add(k, values)
    checks.finish()


def _n_bytes(case: SourceCase) -> int:
    return sum(path.stat().st_size for path in case.files if path.is_file())


def _notes_on(maps: Maps) -> list[str]:
    if maps.step in (1 / 255, 1 / 65535):
        largest = round(1 / maps.step)
        return [f"maps hold whole numbers, which are divided by {largest}"]
    return []


def _plain(
    root: Path, labels: Path | None, images: Path | None, kind: str | None, left_out: LeftOut
) -> Source:
    """The predictions in a folder of files."""
    references = _references(labels) if labels is not None else {}
    facts = _description(root, labels)
    held = files_of(root, references, kind, facts)
    channels = _channels(images) if images is not None else {}
    cases = []
    for id, files in sorted(held.maps.items()):
        reference = references.get(id)
        found = files, reference, held.segmentations.get(id), channels.get(id)
        cases.append(SourceCase(id, id, "", *found))
    if labels is not None:
        without = {case.id for case in cases if case.label is None}
        if len(without) == len(cases):
            example = f"{min(held.maps)} here, {min(references, default='nothing')} there"
            problem = f"no file in {labels} has the name of a case in {root} ({example})"
            raise UserError(f"{problem}; call references as their cases")
        left_out.add(without, f"no reference in {labels}")
        left_out.add(set(references) - set(held.maps), f"no prediction in {root}")
    kept = tuple(case for case in cases if case.id not in left_out.why)
    said, method = kind or held.kind, root.resolve().name
    dataset = method if labels is None else _dataset_of(labels.resolve())
    source = Source(
        root, held.format, said, dataset, method, "", (), {}, (),
        facts.ignore_label if facts else None, kept, (), left_out.why, reader_of(root),
        held.in_folders,
    )  # fmt: skip
    return _named(source, held, facts, said_by_user=kind is not None)


def _dataset_of(labels: Path) -> str:
    """The name of the data set, by the folder of its references: predictors are compared on it."""
    general = labels.name.lower().startswith(("label", "gt", "mask", "seg"))
    return dataset_name(labels.parent.name if general else labels.name) or labels.name


def _named(source: Source, held: Files, facts: Description | None, *, said_by_user: bool) -> Source:
    """The source with its classes or regions, and a sentence on what it is."""
    regional = source.kind == "regions" or (
        source.kind == "logits" and bool(facts and facts.regions)
    )
    if source.kind == "confidence":
        classes = held.classes or (facts.classes if facts and not facts.regions else ())
        note = "confidence of the predicted class beside a label map: top-label scores only"
        return replace(source, classes=classes, notes=(note, *source.notes))
    n_maps = _n_maps(source)
    if n_maps > MOST_MAPS:
        problem = f"{source.root} has {n_maps} maps a case, and labels go to {MOST_MAPS - 1}"
        raise UserError(f"{problem}; store maps as (K, z, y, x), the classes first")
    n_classes = n_maps if regional else n_maps - 1
    if source.format in ("class maps", "segcal"):
        n_classes = len(held.classes)
    classes = held.classes or (facts.classes if facts and bool(facts.regions) == regional else ())
    if classes and len(classes) != n_classes:
        names = ", ".join(classes)
        problem = f"{source.root} has {n_maps} maps a case, which do not fit the classes {names}"
        raise UserError(f"{problem}; correct dataset.json or export every class")
    classes = classes or tuple(f"label {k}" for k in range(1, n_classes + 1))
    regions: Mapping[str, tuple[int, ...]] = {}
    order: tuple[int, ...] = ()
    if regional:
        regions = {name: (k,) for k, name in enumerate(classes, start=1)}
        order = tuple(range(1, len(classes) + 1))
        if facts is not None and facts.regions:
            regions, order = facts.regions, facts.region_order
    why = "as --kind says" if said_by_user else "which the values are checked against"
    if regional and not (facts and facts.regions):
        why += "; each is one label of the references, as no dataset.json says otherwise"
    note = f"{source.kind}: {', '.join(classes)}, {why}"
    return replace(
        source, classes=classes, regions=regions, region_order=order, notes=(note, *source.notes)
    )


def _n_maps(source: Source) -> int:
    """How many maps the cases have, as the first one says that can be read."""
    for case in source.cases:
        try:
            return sum(open_maps(path).shape[0] for path in case.files)
        except UserError as error:
            first = error
    raise first if source.cases else UserError(f"{source.root} holds no case with all its files")


def _description(root: Path, labels: Path | None) -> Description | None:
    """The `dataset.json` beside the predictions or the references, if there is one."""
    folders = [root] if labels is None else [root, labels, labels.resolve().parent]
    for folder in folders:
        if (folder / "dataset.json").is_file():
            return described(folder / "dataset.json")
    return None


def _references(folder: Path) -> dict[str, Path]:
    files = by_stem(folder)
    if not files:
        raise UserError(f"{folder} holds no image files, so there are no references in it")
    return files


def _channels(folder: Path) -> dict[str, Path]:
    """The first channel of each case."""
    known = {}
    for name, path in by_stem(folder).items():
        if not re.search(r"_\d{4}$", name) or name.endswith("_0000"):
            known[name.removesuffix("_0000")] = path
    return known
