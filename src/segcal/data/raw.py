"""A raw data set, listed and checked before any image is read."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from segcal.data import splits
from segcal.data.bare import Bare
from segcal.data.catalog import Recipe, Source, changed_recipe, source_of
from segcal.data.images import orientation
from segcal.data.leaks import as_one
from segcal.data.pairs import check_files
from segcal.data.readers import RawCase
from segcal.folders import (
    check_name,
    check_text,
)
from segcal.folders.cases import is_case_set
from segcal.types import UserError


@dataclass(frozen=True)
class RawSet:
    """A raw data set and how it will be prepared."""

    name: str
    root: Path
    target: Path
    source: Source
    recipe: Recipe
    cases: list[RawCase]
    settings: dict[str, Any]  # as in cases.json
    orientation: str | None  # that most cases have; the others are turned to it
    notes: tuple[str, ...] = ()


def checked_root(root: Path | None, name: str, target: Path, within: bool) -> Path:
    """The folder of the raw data, if there is one and preparation replaces no user's folder."""
    if root is None:
        raise UserError(f"say where the raw data of {name} is, with --from")
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; --from takes the data set's unpacked folder")
    here, there = root.resolve(), target.resolve()
    if here.is_relative_to(there) or (there.is_relative_to(here) and not within):
        raise UserError(f"{target} and the raw data in {root} overlap; choose another --to")
    if target.exists() and not is_case_set(target):
        problem = f"{target} exists and is not a prepared data set"
        raise UserError(f"{problem}; choose another name or --to")
    return Path(os.path.normpath(root))  # as in the paths that readers return


def raw_set(
    name: str,
    root: Path,
    target: Path,
    files: Sequence[Path | None],
    settings: dict[str, Any],
    overrides: dict[str, Any],
    bare: Bare | None,
) -> RawSet:
    """List the raw cases, and check everything that can be checked before images are read."""
    split_file, patients_file = files
    if split_file is not None and "folds" in settings:
        raise UserError("a split file says all folds; leave --folds out, or --split")
    source = bare.source if bare else source_of(name, root)
    recipe = changed_recipe(source.recipe, overrides)
    cases = list(source.reader(root))
    if not cases:
        layout = source.layout or "imagesTr and labelsTr beside dataset.json"
        raise UserError(f"found no case in {root}; expected {layout}")
    _check_names(source, cases)
    id, n_times = Counter(case.id for case in cases).most_common(1)[0]
    if n_times > 1:
        raise UserError(f"{root} has two cases named {id!r}; every case needs a name of its own")
    notes = check_files(root, cases, skip_broken=settings["skip_broken"])
    if patients_file is not None:
        patients = splits.patients_from_file(patients_file, {case.id for case in cases})
        settings = settings | {"patients": patients}
        cases = [replace(case, patient=patients.get(case.id, case.id)) for case in cases]
        _check_names(source, cases)
    same = as_one({case.id: case.patient for case in cases})
    cases = [replace(case, patient=same[case.id]) for case in cases]
    meaning = {
        "classes": source.classes,
        "codes": list((source.codes or {}).items()),
        "ignore": source.ignore,
        "regions": source.regions,
        "channels": source.channels,
    }
    settings = settings | {"recipe": asdict(recipe), "source": meaning}
    if split_file is not None:
        patient_of = {case.id: case.patient for case in cases}
        settings["splits"] = splits.from_file(split_file, patient_of)
    settings = json.loads(json.dumps(settings))  # as it will be read back
    codes = Counter(orientation(case.images[0]) for case in cases)
    del codes[None]
    common = codes.most_common(1)[0][0] if codes else None
    told = (*(bare.notes if bare else ()), *notes)
    return RawSet(name, root, target, source, recipe, cases, settings, common, told)


def _check_names(source: Source, cases: list[RawCase]) -> None:
    for case in cases:
        check_name("case", case.id)
        check_text("patient", case.patient)
    for what, names in (("class", source.classes), ("channel", source.channels)):
        for name in names:
            check_text(what, name)
    for name in source.regions:
        check_text("region", name)
