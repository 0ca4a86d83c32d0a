"""An nnU-Net v2 model folder: the held-out cases of its folds, and what describes them.

`.pkl` files are never opened: geometry comes from the stored label map or from the reference."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.data.catalog import label_numbers
from segcal.data.readers import description
from segcal.folders.files import read_users_json
from segcal.predictors.source import LeftOut, Source, SourceCase, by_stem, listed
from segcal.types import UserError

VALIDATE = "validate again with nnUNetv2_train … --val --npz"


@dataclass(frozen=True)
class Description:
    """What a `dataset.json` says of labels."""

    classes: tuple[str, ...]  # foreground, or the regions in the order of maps
    regions: Mapping[str, tuple[int, ...]]
    region_order: tuple[int, ...]
    ignore_label: int | None
    file_ending: str


def described(path: Path) -> Description:
    """The labels of a `dataset.json`.

    Regions are those of nnU-Net: once one label is a list of several, every entry but the
    background and `ignore` is a region, and there is a map for each in this order."""
    if not path.is_file():
        raise UserError(f"{path} is missing; copy it from the data set's nnUNet_preprocessed")
    content = description(path.parent)
    labels = content.get("labels")
    if not isinstance(labels, dict):
        raise UserError(f"{path} must have labels as an object, such as {{'background': 0}}")
    numbers = label_numbers(path, labels)
    ignore = numbers.pop("ignore", (None,))[0]
    foreground = {name: group for name, group in numbers.items() if set(group) != {0}}
    ending = str(content.get("file_ending", ".nii.gz"))
    if any(len(group) > 1 for group in foreground.values()):
        order = content.get("regions_class_order")
        rule = f"must have regions_class_order with {len(foreground)} labels, one per region"
        if not isinstance(order, list) or len(order) != len(foreground):
            raise UserError(f"{path} {rule}; got {order}")
        if not all(isinstance(label, int) for label in order):
            raise UserError(f"{path} {rule}; got {order}")
        return Description(tuple(foreground), foreground, tuple(order), ignore, ending)
    by_label = {group[0]: name for name, group in foreground.items()}
    if sorted(by_label) != list(range(1, len(by_label) + 1)):
        raise UserError(f"{path}: labels must be 0, 1, 2 and so on; got {sorted(by_label)}")
    classes = tuple(by_label[k] for k in sorted(by_label))
    return Description(classes, {}, (), ignore, ending)


def model_folder(path: Path) -> tuple[Path, str | None] | None:
    """The model folder that a path is or is in, and the one fold that was asked for."""
    inside = path.parent if path.name == "validation" else path
    if re.fullmatch(r"fold_\w+", inside.name) and (inside.parent / "dataset.json").is_file():
        return inside.parent, inside.name.removeprefix("fold_")
    return (path, None) if any(_folds(path)) else None


def _folds(root: Path) -> Iterator[Path]:
    for folder in sorted(root.glob("fold_*")):
        if folder.is_dir():
            yield folder


def open_nnunet(
    root: Path, fold: str | None, labels: Path | None, images: Path | None, left_out: LeftOut
) -> Source:
    """The held-out cases of a model folder, with references and the checks of their split."""
    facts = described(root / "dataset.json")
    model = _Model(root, facts, _plans(root), labels, images)
    notes: list[str] = []
    cases: list[SourceCase] = []
    for folder in _chosen(root, fold, notes):
        cases += model.cases_of(folder, left_out, notes)
    if not cases and not left_out.why:
        raise UserError(f"{root} holds no probabilities; {VALIDATE}")
    cases = _once(cases, left_out)
    trainer, _, configuration = [*root.name.split("__"), "", ""][:3]
    kind = "regions" if facts.regions else "softmax"
    notes.insert(0, _kind_note(facts))
    return Source(
        root,
        "nnunet",
        kind,
        dataset_name(model.datasets()[0]),
        trainer,
        configuration,
        facts.classes,
        facts.regions,
        facts.region_order,
        facts.ignore_label,
        tuple(cases),
        tuple(notes),
        left_out.why,
        reader_of(root),
    )


def dataset_name(folder: str) -> str:
    """What the data set of nnU-Net's folder is called in comparisons.

    >>> dataset_name("Dataset004_Hippocampus")
    'hippocampus'
    """
    return re.sub(r"^Dataset\d+_(?=.)", "", folder).lower()


def _plans(root: Path) -> dict[str, Any]:
    path = root / "plans.json"
    plans = read_users_json(path) if path.is_file() else {}
    return plans if isinstance(plans, dict) else {}


def reader_of(root: Path) -> str:
    """How nnU-Net read the images, as the `plans.json` of a folder says; "" without one."""
    return str(_plans(root).get("image_reader_writer", ""))


def _kind_note(facts: Description) -> str:
    names = ", ".join(facts.classes)
    if facts.regions:
        return f"regions ({names}): labels in dataset.json are lists, so each region has a map"
    return f"softmax over background and {names}, as dataset.json says"


def _chosen(root: Path, fold: str | None, notes: list[str]) -> list[Path]:
    """The folds that hold out cases."""
    folds = [root / f"fold_{fold}"] if fold is not None else list(_folds(root))
    kept = [folder for folder in folds if folder.name != "fold_all"]
    if not kept:
        problem = "fold_all was trained on every case, so none is held out"
        raise UserError(f"{root}: {problem}; train folds 0 to 4, or predict other cases with it")
    if len(kept) < len(folds):
        notes.append("fold_all was trained on every case and is not read")
    return kept


def _once(cases: list[SourceCase], left_out: LeftOut) -> list[SourceCase]:
    """The cases, each in one fold."""
    fold_of: dict[str, str] = {}
    kept = []
    for case in cases:
        other = fold_of.setdefault(case.id, case.fold)
        if other == case.fold:
            kept.append(case)
        else:
            left_out.add([case.id], f"held out in fold {other} and in fold {case.fold}")
    return [case for case in kept if case.id not in left_out.why]


@dataclass(frozen=True)
class _Model:
    """A model folder, and where other files of its data set may be."""

    root: Path
    facts: Description
    plans: dict[str, Any]
    labels: Path | None
    images: Path | None

    def datasets(self) -> list[str]:
        """The folder names that the data set may have."""
        named = Path(str(self.plans.get("dataset_name", ""))).name
        above = self.root.resolve().parent.name
        return [above, named] if named and above.startswith("Dataset") else [named or above]

    def beside(self, kind: str, name: str) -> Path | None:
        """What is in `nnUNet_preprocessed/<data set>` or `nnUNet_raw/<data set>`, if found."""
        bases = [self.root.resolve().parent.parent.parent / kind]
        if os.environ.get(kind):
            bases.insert(0, Path(os.environ[kind]))
        for base in bases:
            for dataset in self.datasets():
                if (base / dataset / name).exists():
                    return base / dataset / name
        return None

    def cases_of(self, folder: Path, left_out: LeftOut, notes: list[str]) -> list[SourceCase]:
        """The cases that a fold holds out."""
        fold, place = folder.name.removeprefix("fold_"), folder / "validation"
        if not place.is_dir():
            notes.append(f"{folder.name} has no validation folder and is not read")
            return []
        maps = by_stem(place, (".npz",))
        stored = by_stem(place, (self.facts.file_ending,))
        if not maps:
            notes.append(f"{folder.name} holds no probabilities and is not read; {VALIDATE}")
            return []
        unsaved = set(stored) - set(maps)
        left_out.add(unsaved, f"no probabilities in fold {fold} ({VALIDATE})")
        self.check_split(fold, set(maps), left_out, notes)
        references = self.references(place, set(maps))
        images = self.channel_files()
        cases = []
        for id, path in maps.items():
            if id in left_out.why:
                continue
            files = (path,), references.get(id), stored.get(id), images.get(id)
            cases.append(SourceCase(id, id, fold, *files))
        missing = {case.id for case in cases if case.label is None}
        if self.labels is not None or len(missing) < len(cases):
            left_out.add(missing, f"no reference for cases of fold {fold}")
        return [case for case in cases if case.id not in left_out.why]

    def check_split(self, fold: str, ids: set[str], left_out: LeftOut, notes: list[str]) -> None:
        """Raise unless the cases are those that the fold holds out."""
        path = self.beside("nnUNet_preprocessed", "splits_final.json")
        if path is None:
            note = "splits_final.json was not found, so that cases are held out is not checked"
            if note not in notes:
                notes.append(note)
            return
        split = _split(path, fold)
        if split is None:
            notes.append(f"{path} has no fold {fold}; that its cases are held out is not checked")
            return
        if learned := ids & split["train"]:
            problem = f"the network of fold {fold} was trained on {listed(learned)}"
            raise UserError(f"{problem}, as {path} says; audit cases that the network has not seen")
        unknown = ids - split["val"]
        left_out.add(unknown, f"in neither list of fold {fold} in {path}")
        left_out.add(split["val"] - ids, f"no probabilities in fold {fold} ({VALIDATE})")

    def references(self, place: Path, ids: set[str]) -> dict[str, Path]:
        """The reference of each case: of `--labels`, else as nnU-Net's own files say."""
        endings = (self.facts.file_ending,)
        if self.labels is not None:
            return by_stem(self.labels, endings)
        summary = place / "summary.json"
        named = self.summarised(summary) if summary.is_file() else {}
        known = {id: path for id, path in named.items() if id in ids and path.is_file()}
        if len(known) < len(ids):
            stored = self.beside("nnUNet_preprocessed", "gt_segmentations")
            if stored is not None:
                known = by_stem(stored, endings) | known
        return known

    def summarised(self, path: Path) -> dict[str, Path]:
        """The reference files that a `summary.json` names; only label files are taken."""
        content = read_users_json(path)
        known = {}
        try:
            for entry in content["metric_per_case"]:
                file = Path(str(entry["reference_file"]))
                ending = self.facts.file_ending
                if not file.name.endswith(ending):
                    problem = f"{path} names {file} as a reference, which is no {ending} file"
                    raise UserError(f"{problem}; give the references with --labels")
                known[file.name.removesuffix(ending)] = file
        except (KeyError, TypeError):
            rule = "must have a reference_file for each entry of metric_per_case"
            raise UserError(f"{path} {rule}; validate again, or give --labels") from None
        return known

    def channel_files(self) -> dict[str, Path]:
        """The first channel of each case."""
        folder = self.images or self.beside("nnUNet_raw", "imagesTr")
        if folder is None:
            return {}
        files = by_stem(folder, (self.facts.file_ending,))
        first = {name.removesuffix("_0000"): path for name, path in files.items()}
        return {id: path for id, path in first.items() if not re.search(r"_\d{4}$", id)}


def _split(path: Path, fold: str) -> dict[str, set[str]] | None:
    """The lists of a fold; `None` if the file has no such fold."""
    folds = read_users_json(path)
    try:
        if isinstance(folds, list) and (not fold.isdecimal() or int(fold) >= len(folds)):
            return None
        return {name: set(folds[int(fold)][name]) for name in ("train", "val")}
    except (KeyError, TypeError):
        rule = "must be a list of folds, each with the lists train and val"
        raise UserError(f"{path} {rule}") from None
