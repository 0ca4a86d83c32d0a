"""Who is trained on, who chooses, who is only reported. A patient is in one split only, always."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from segcal.types import UserError

Split = dict[str, list[str]]
NAMES = ("train", "val", "test")


def by_patient(patient_of: Mapping[str, str], sizes: tuple[int, int, int], seed: int) -> Split:
    """Split case ids by patient: exactly `sizes` patients if there are that many, else in their
    proportions.

    Patients are ordered by a hash of seed and name, so that a split depends on no library's random
    numbers.

    >>> split = by_patient({f"c{i}": f"p{i // 2}" for i in range(20)}, (7, 1, 2), seed=0)
    >>> {name: len(ids) for name, ids in split.items()}
    {'train': 14, 'val': 2, 'test': 4}
    """
    patients = sorted(
        set(patient_of.values()), key=lambda p: hashlib.sha256(f"{seed}:{p}".encode()).hexdigest()
    )
    n = len(patients)
    if n < len(NAMES):
        raise UserError(
            f"a split into train, val and test needs at least 3 patients; got {n}: add some, or"
            " give a --split file"
        )
    n_val, n_test = (
        sizes[i] if n == sum(sizes) else max(1, round(n * sizes[i] / sum(sizes))) for i in (1, 2)
    )
    n_train = max(1, n - n_val - n_test)
    chosen = {
        p: "train" if i < n_train else "val" if i < n - n_test else "test"
        for i, p in enumerate(patients)
    }
    return {name: sorted(id for id, p in patient_of.items() if chosen[p] == name) for name in NAMES}


def leave_one_out(patient_of: Mapping[str, str]) -> list[Split]:
    """A split per patient, who is its test set; the next patient validates, so that the test never
    chooses.
    """
    patients = sorted(set(patient_of.values()))
    if len(patients) < len(NAMES):
        raise UserError(f"leaving one patient out needs at least 3 of them; got {len(patients)}")
    folds = []
    for i, out in enumerate(patients):
        val = patients[(i + 1) % len(patients)]
        role = {p: "test" if p == out else "val" if p == val else "train" for p in patients}
        folds.append(
            {name: sorted(id for id, p in patient_of.items() if role[p] == name) for name in NAMES}
        )
    return folds


def patients_from_file(path: Path, ids: set[str]) -> dict[str, str]:
    """A user's word on which cases are of one patient: a JSON object `case: patient`; a case left
    out stands alone.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the patients file {path}: {error}") from None
    if not isinstance(values, dict) or not all(
        isinstance(value, str) and value for value in values.values()
    ):
        raise UserError(
            f'{path} must be a JSON object of cases and their patients, as in {{"scan_001":'
            ' "anna"}'
        )
    unknown = sorted(set(values) - ids)
    if unknown:
        raise UserError(f"{path} names {unknown[0]!r}, which is no case of this data set")
    return values


def from_file(path: Path, patient_of: Mapping[str, str], left_out: set[str]) -> list[Split]:
    """A user's split: a JSON object with lists train, val, test of case or patient ids, or a list
    of such objects.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the split file {path}: {error}") from None
    folds = values if isinstance(values, list) else [values]
    fits = [
        isinstance(f, dict) and set(f) == set(NAMES) and all(_is_names(f[name]) for name in NAMES)
        for f in folds
    ]
    if not folds or not all(fits):
        raise UserError(
            f"{path} must be a JSON object with the lists train, val and test, or a list of such"
            " objects"
        )
    return [_checked(path, fold, patient_of, left_out) for fold in folds]


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _checked(
    path: Path, fold: dict[str, list[str]], patient_of: Mapping[str, str], left_out: set[str]
) -> Split:
    cases_of: dict[str, list[str]] = {id: [id] for id in patient_of}
    for id, patient in patient_of.items():
        cases_of.setdefault(patient, []).append(id)
    split: Split = {}
    role: dict[str, str] = {}
    for name in NAMES:
        ids = [id for id in fold[name] if id not in left_out]
        unknown = [id for id in ids if id not in cases_of]
        if unknown:
            raise UserError(
                f"{path} names {unknown[0]!r} in {name}, which is no case or patient of this"
                " data set"
            )
        split[name] = sorted({case for id in ids for case in cases_of[id]})
        for case in split[name]:
            if role.setdefault(patient_of[case], name) != name:
                raise UserError(
                    f"{path} puts patient {patient_of[case]!r} in both {role[patient_of[case]]} and"
                    f" {name}"
                )
    return split
