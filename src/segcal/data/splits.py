"""Which cases train, which choose, which are only reported. A patient is in one split only."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segcal.folders.files import read_users_json
from segcal.folders.names import one_name
from segcal.types import UserError

Split = dict[str, list[str]]
NAMES = ("train", "val", "test")


def by_patient(patient_of: Mapping[str, str], sizes: tuple[int, int, int], seed: int) -> Split:
    """Split case ids by patient: `sizes` patients if there are that many, else in proportion.

    Patients are ordered by a hash of seed and name, so that a split depends on no library's random
    numbers.

    >>> split = by_patient({f"c{i}": f"p{i // 2}" for i in range(20)}, (7, 1, 2), seed=0)
    >>> {name: len(ids) for name, ids in split.items()}
    {'train': 14, 'val': 2, 'test': 4}
    """
    patients = _shuffled(patient_of, seed)
    n, total = len(patients), sum(sizes)
    _, n_val, n_test = sizes
    if n != total:
        n_val, n_test = (max(1, round(n * size / total)) for size in (n_val, n_test))
    n_train = max(1, n - n_val - n_test)
    role = dict.fromkeys(patients, "val")
    role |= dict.fromkeys(patients[n - n_test :], "test")
    role |= dict.fromkeys(patients[:n_train], "train")
    return _by_role(patient_of, role)


def leave_one_out(patient_of: Mapping[str, str]) -> list[Split]:
    """A split per patient, who is its test set; the next patient is its validation set."""
    patients = sorted(_patients(patient_of))
    folds = []
    for i, patient in enumerate(patients):
        role = dict.fromkeys(patients, "train")
        role |= {patient: "test", patients[(i + 1) % len(patients)]: "val"}
        folds.append(_by_role(patient_of, role))
    return folds


def by_fold(
    patient_of: Mapping[str, str], n_folds: int, sizes: tuple[int, int, int], seed: int
) -> list[Split]:
    """Splits for cross-validation: every patient is tested once, in one of `n_folds` splits.

    The rest is divided into train and val as `sizes` are. The order is that of `by_patient`.

    >>> folds = by_fold({f"c{i}": f"c{i}" for i in range(20)}, 5, (7, 1, 2), seed=0)
    >>> [{name: len(ids) for name, ids in fold.items()} for fold in folds][0]
    {'train': 14, 'val': 2, 'test': 4}
    >>> len({id for fold in folds for id in fold["test"]})
    20
    """
    patients = _shuffled(patient_of, seed)
    n, (n_train, n_val, _) = len(patients), sizes
    least = 2 if n > 3 else 3  # beside those of the test, one patient trains and one validates
    if not least <= n_folds <= n:
        raise UserError(f"folds must be {least} to {n}, the number of patients; got {n_folds}")
    folds = []
    for k in range(n_folds):
        first, end = k * n // n_folds, (k + 1) * n // n_folds
        rest = patients[end:] + patients[:first]
        role = dict.fromkeys(rest, "train") | dict.fromkeys(patients[first:end], "test")
        share = max(1, round(len(rest) * n_val / (n_train + n_val)))
        role |= dict.fromkeys(rest[: min(share, len(rest) - 1)], "val")
        folds.append(_by_role(patient_of, role))
    return folds


def _shuffled(patient_of: Mapping[str, str], seed: int) -> list[str]:
    """The patients by a hash of seed and name, which depends on no library's random numbers."""

    def digest(patient: str) -> str:
        return hashlib.sha256(f"{seed}:{patient}".encode()).hexdigest()

    return sorted(_patients(patient_of), key=digest)


def _patients(patient_of: Mapping[str, str]) -> set[str]:
    patients = set(patient_of.values())
    if len(patients) < len(NAMES):
        needed = "a split into train, val and test needs at least 3 patients"
        raise UserError(f"{needed}; got {len(patients)}: add some, or give a --split file")
    return patients


def _by_role(patient_of: Mapping[str, str], role: Mapping[str, str]) -> Split:
    split: Split = {name: [] for name in NAMES}
    for id, patient in sorted(patient_of.items()):
        split[role[patient]].append(id)
    return split


def patients_from_file(path: Path, ids: set[str]) -> dict[str, str]:
    """Which patient a case is of, from a file as `read_patients` takes it."""
    values = read_patients(path)
    for id in sorted(set(values) - ids):
        raise UserError(f"{path} names {id!r}, which is no case of this data set")
    return values


def read_patients(path: Path) -> dict[str, str]:
    """Patients by case: a JSON object `case: patient`, or a CSV file with these two columns."""
    if path.suffix.lower() == ".csv":
        return _patients_of_csv(path)
    values = read_users_json(path)
    if not isinstance(values, dict) or not _are_names([*values.values()]):
        expected = 'a JSON object of cases and their patients, as in {"scan_001": "anna"}'
        raise UserError(f"{path} must be {expected}")
    return values


def _patients_of_csv(path: Path) -> dict[str, str]:
    patient_of: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    for row in rows:
        case, patient = row.get("case"), row.get("patient")
        if not case or not patient:
            raise UserError(f"{path} must have the columns case and patient, filled in every row")
        if patient_of.setdefault(case, patient) != patient:
            raise UserError(f"{path} gives case {case!r} two patients; keep one row")
    return patient_of


def from_file(path: Path, patient_of: Mapping[str, str]) -> list[Split]:
    """A JSON object with lists train, val, test of case or patient ids, or a list of such."""
    values = read_users_json(path)
    folds = values if isinstance(values, list) else [values]
    for fold in folds or [None]:
        fits = isinstance(fold, dict) and set(fold) == set(NAMES)
        if not fits or not all(map(_are_names, fold.values())):
            expected = "a JSON object with the lists train, val and test, or a list of such objects"
            raise UserError(f"{path} must be {expected}")
    return [_checked(path, fold, patient_of) for fold in folds]


def _are_names(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) and value for value in values)


def _checked(path: Path, fold: Split, patient_of: Mapping[str, str]) -> Split:
    """A fold with patients replaced by their cases; a patient must be in one split only."""
    cases_of: dict[str, list[str]] = {id: [id] for id in patient_of}
    for id, patient in patient_of.items():
        cases_of.setdefault(patient, []).append(id)
    spelled = {one_name(name): name for name in cases_of}
    split: Split = {}
    role: dict[str, str] = {}
    for name in NAMES:
        cases: set[str] = set()
        for id in fold[name]:
            known = id if id in cases_of else spelled.get(one_name(id))
            if known is None:
                problem = f"names {id!r} in {name}, which is no case or patient of this data set"
                raise UserError(f"{path} {problem}")
            cases.update(cases_of[known])
        for patient in sorted({patient_of[case] for case in cases}):
            if role.setdefault(patient, name) != name:
                both = f"{role[patient]} and {name}"
                raise UserError(f"{path} puts patient {patient!r} in both {both}")
        split[name] = sorted(cases)
    return split
