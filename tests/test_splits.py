"""Splits: by patient, exact where the paper's count is met, never leaking."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segcal.data import splits
from segcal.data.catalog import DATASETS
from segcal.types import UserError


def patients(n, per_patient=1):
    return {f"case{i:03d}_{j}": f"p{i:03d}" for i in range(n) for j in range(per_patient)}


@pytest.mark.parametrize(
    "row", [row for key, row in DATASETS.items() if key != "phantom"], ids=lambda row: row.homepage
)
def test_the_papers_sizes_are_exact(row):
    split = splits.by_patient(patients(sum(row.split)), row.split, seed=0)
    assert tuple(len(split[name]) for name in splits.NAMES) == row.split


@given(
    st.integers(3, 300),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from([row.split for row in DATASETS.values()]),
)
def test_every_case_once_and_no_patient_twice(n, per_patient, seed, sizes):
    patient_of = patients(n, per_patient)
    split = splits.by_patient(patient_of, sizes, seed)
    assert sorted(id for ids in split.values() for id in ids) == sorted(patient_of)
    where = [{patient_of[id] for id in ids} for ids in split.values()]
    assert all(where)
    assert len(set.union(*where)) == sum(map(len, where)) == n
    if n >= 20:
        for name, share in zip(splits.NAMES, sizes, strict=True):
            assert len(split[name]) / len(patient_of) == pytest.approx(share / sum(sizes), abs=0.06)


def test_seeds_matter_and_order_does_not():
    patient_of = patients(50)
    shuffled = dict(reversed(patient_of.items()))
    assert splits.by_patient(patient_of, (70, 10, 20), 0) == splits.by_patient(
        shuffled, (70, 10, 20), 0
    )
    assert splits.by_patient(patient_of, (70, 10, 20), 0) != splits.by_patient(
        patient_of, (70, 10, 20), 1
    )


def test_leaving_one_out():
    folds = splits.leave_one_out(patients(7))
    assert len(folds) == 7
    assert sorted(fold["test"][0] for fold in folds) == sorted(patients(7))
    for fold in folds:
        assert [len(fold[name]) for name in splits.NAMES] == [5, 1, 1]
        assert not set(fold["train"]) & set(fold["test"])
        assert fold["val"] != fold["test"]


def written(tmp_path, value):
    path = tmp_path / "split.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_users_file_wins_by_case_or_patient(tmp_path):
    patient_of = patients(4, 2)
    path = written(
        tmp_path, {"train": ["p000", "p001"], "val": ["case002_0", "case002_1"], "test": ["p003"]}
    )
    (split,) = splits.from_file(path, patient_of)
    assert split["train"] == ["case000_0", "case000_1", "case001_0", "case001_1"]
    assert split["test"] == ["case003_0", "case003_1"]
    two = written(tmp_path, [{"train": ["p000"], "val": ["p001"], "test": ["p002"]}] * 2)
    assert len(splits.from_file(two, patient_of)) == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "cannot read"),
        ({"train": []}, "must be a JSON object with the lists train, val and test"),
        (
            {"train": ["p000"], "val": ["nobody"], "test": []},
            "names 'nobody' in val, which is no case or patient",
        ),
        (
            {"train": ["case000_0"], "val": [], "test": ["case000_1"]},
            "puts patient 'p000' in both train and test",
        ),
        (
            {"train": ["p000"], "val": ["p000"], "test": []},
            "puts patient 'p000' in both train and val",
        ),
    ],
)
def test_bad_split_files_are_refused(tmp_path, value, message):
    with pytest.raises(UserError, match=message):
        splits.from_file(written(tmp_path, value), patients(4, 2))


def test_too_few_patients():
    with pytest.raises(UserError, match="needs at least 3 patients; got 1"):
        splits.by_patient(patients(1), (70, 10, 20), 0)
    with pytest.raises(UserError, match="needs at least 3 patients; got 2"):
        splits.leave_one_out(patients(2))
