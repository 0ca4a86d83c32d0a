"""Predictions that anyone's network made, as they were found in a folder: the records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from segcal.data.leaks import as_one
from segcal.types import UserError

KINDS = ("softmax", "regions", "logits", "confidence")
"""What maps can be: probabilities that add up to 1, one probability for each region, logits, or
the probability of the predicted class alone."""

IMAGES = (".nii.gz", ".nii", ".nrrd", ".nhdr", ".mha", ".mhd", ".png", ".tif", ".tiff", ".bmp")
"""The endings of image files, the longest of several first."""


@dataclass(frozen=True)
class SourceCase:
    """Where the files of one case are."""

    id: str
    patient: str
    fold: str  # "" where there are no folds
    files: tuple[Path, ...]  # with the maps, in the order of classes
    label: Path | None  # the reference
    segmentation: Path | None  # the label map that the predictor stored
    image: Path | None


@dataclass(frozen=True)
class Source:
    """Predictions that anyone's network made, found in a folder."""

    root: Path
    format: str  # nnunet, npz, npy, volumes, class maps, segcal or confidence
    kind: str  # one of KINDS
    name: str  # of the data set
    method: str  # nnU-Net's trainer, else the folder's name
    network: str  # nnU-Net's configuration, else ""
    classes: tuple[str, ...]  # foreground; the regions, in the order of maps, where there are such
    regions: Mapping[str, tuple[int, ...]]  # the labels of each region; empty without regions
    region_order: tuple[int, ...]  # nnU-Net's regions_class_order
    ignore_label: int | None
    cases: tuple[SourceCase, ...]
    notes: tuple[str, ...]  # sentences to print
    left_out: Mapping[str, str]  # case or file -> why
    reader: str = ""  # nnU-Net's image_reader_writer
    in_folders: bool = False  # a folder per case, as MONAI writes

    @property
    def n_maps(self) -> int:
        """How many maps a case has."""
        if self.kind == "confidence":
            return 1
        return len(self.regions) or len(self.classes) + 1

    def place(self, path: Path) -> Path:
        """Where a file belongs in a folder of the same form."""
        return path.relative_to(self.root) if self.in_folders else Path(path.name)

    @property
    def labels(self) -> frozenset[int] | None:
        """The labels that a reference may hold; `None` if that is not known."""
        if self.regions:
            return frozenset({0}.union(*self.regions.values()))
        return frozenset(range(len(self.classes) + 1)) if self.classes else None


class LeftOut:
    """What is left out and why; without `keep_going`, the first such thing is an error."""

    def __init__(self, keep_going: bool) -> None:
        self.keep_going = keep_going
        self.why: dict[str, str] = {}

    def add(self, ids: Iterable[str], problem: str) -> None:
        """Leave out cases or files for one reason."""
        ids = sorted(ids)
        if ids and not self.keep_going:
            raise UserError(f"{problem}: {listed(ids)}; leave out such cases with --keep-going")
        self.why |= dict.fromkeys(ids, problem)


def listed(names: Collection[str], most: int = 5) -> str:
    """A few names, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    first = ", ".join(sorted(names)[:most])
    return f"{first} and {len(names) - most} more" if len(names) > most else first


def stem(path: Path, endings: tuple[str, ...] = IMAGES) -> str | None:
    """The name of a file without its ending; `None` if it has none of these endings.

    >>> stem(Path("case_1.0.nii.gz"))
    'case_1.0'
    """
    name = path.name.lower()
    for ending in endings:
        if name.endswith(ending) and len(name) > len(ending):
            return path.name[: -len(ending)]
    return None


def by_stem(folder: Path, endings: tuple[str, ...] = IMAGES) -> dict[str, Path]:
    """The files of a folder that have one of these endings, by name without it."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder} cannot be listed ({error.strerror})") from None
    files: dict[str, Path] = {}
    for path in paths:
        name = None if path.name.startswith(".") else stem(path, endings)
        if name is None:
            continue
        if name in files:
            both = f"{files[name].name} and {path.name}"
            raise UserError(f"{folder} holds {both}, which would be one case; keep one of them")
        files[name] = path
    return files


def with_patients(
    cases: tuple[SourceCase, ...], patients: Mapping[str, str], path: Path
) -> tuple[tuple[SourceCase, ...], list[str]]:
    """Cases with the patients of a file, and what to say of it."""
    known = [case.id for case in cases if case.id in patients]
    if not known:
        example = cases[0].id if cases else ""
        raise UserError(f"{path} names none of the cases, which are called such as {example!r}")
    patient_of = as_one({case.id: patients.get(case.id, case.id) for case in cases})
    named = tuple(replace(case, patient=patient_of[case.id]) for case in cases)
    fold_of: dict[str, str] = {}
    for case in named:
        other = fold_of.setdefault(case.patient, case.fold)
        if other != case.fold:
            problem = f"patient {case.patient!r} is in folds {other} and {case.fold}"
            remedy = "that network was trained on other cases of the patient; split by patient"
            raise UserError(f"{problem}: {remedy}")
    notes = []
    if n_missing := len(cases) - len(known):
        notes.append(f"{path} does not name {n_missing} cases; each counts as a patient")
    return named, notes
