"""No patient and no image is on both sides of a split."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from official_layouts import write_layout

from segcal.data import splits
from segcal.data.leaks import as_one, check_apart, later_ones, refuse_across, same_images
from segcal.data.prepare import prepare
from segcal.fitting import _check_apart
from segcal.types import UserError


@pytest.fixture
def root(tmp_path):
    """Six phantoms; the second one has the image of the first."""
    write_layout("msd", tmp_path / "raw", n_cases=6, size=(5, 24, 24))
    files = sorted((tmp_path / "raw" / "imagesTr").iterdir())
    shutil.copy(files[0], files[1])
    return tmp_path / "raw"


def split_file(tmp_path, *folds):
    path = tmp_path / "split.json"
    ids = [f"phantom_{i:03d}" for i in range(6)]
    values = [{name: [ids[i] for i in fold[name]] for name in fold} for fold in folds]
    path.write_text(json.dumps(values))
    return path


ACROSS = {"train": [0, 2], "val": [3], "test": [1, 4]}
TOGETHER = {"train": [0, 1, 2], "val": [3], "test": [4, 5]}


def test_an_image_in_two_splits_is_refused_in_every_fold(root, tmp_path):
    path = split_file(tmp_path, TOGETHER, ACROSS)
    with pytest.raises(UserError, match=r"_000, phantom_001 are the same image, across train and"):
        prepare("mine", root, tmp_path / "cases", split_file=path)
    assert not (tmp_path / "cases").exists()
    assert prepare("mine", root, tmp_path / "a", split_file=split_file(tmp_path, TOGETHER)).fresh


def test_identical_images_can_be_kept_or_left_out(root, tmp_path):
    path = split_file(tmp_path, ACROSS)
    kept = prepare("mine", root, tmp_path / "a", split_file=path, duplicates="allow").cases
    assert len(kept.ids) == 6
    left = prepare("mine", root, tmp_path / "b", split_file=path, duplicates="drop").cases
    assert set(kept.ids) - set(left.ids) == {"phantom_001"}
    assert left.info["left_out"] == {"phantom_001": "it holds the same image as phantom_000"}
    assert left.split("test") == ("phantom_004",)
    assert not list(left.root.glob("phantom_001*"))
    again = prepare("mine", root, tmp_path / "b", split_file=path, duplicates="drop")
    assert not again.fresh
    with pytest.raises(UserError, match='duplicates is "drop" in .* and "allow" here'):
        prepare("mine", root, tmp_path / "b", split_file=path, duplicates="allow")
    with pytest.raises(UserError, match="unknown duplicates 'keep'"):
        prepare("mine", root, tmp_path / "c", duplicates="keep")


def test_spellings_of_one_patient_stay_together(tmp_path):
    write_layout("msd", tmp_path / "raw", n_cases=8, size=(5, 24, 24))
    ids = [f"phantom_{i:03d}" for i in range(8)]
    names = ["Anna", "anna ", "ANNA", "Ben", "ben", "Carl", "Dora", "Emil"]
    (tmp_path / "patients.json").write_text(json.dumps(dict(zip(ids, names, strict=True))))
    patients = tmp_path / "patients.json"
    for seed in range(4):
        to = tmp_path / str(seed)
        cases = prepare("mine", tmp_path / "raw", to, patients_file=patients, seed=seed).cases
        for name in splits.NAMES:
            inside = {*cases.split(name)}
            assert {*ids[:3]} <= inside or not {*ids[:3]} & inside
            assert {*ids[3:5]} <= inside or not {*ids[3:5]} & inside
    parts = {"train": ["aNNa"], "val": ["BEN "], "test": ["carl"]}
    (tmp_path / "split.json").write_text(json.dumps(parts))
    options = {"patients_file": patients, "split_file": tmp_path / "split.json"}
    cases = prepare("mine", tmp_path / "raw", tmp_path / "x", **options).cases
    assert cases.split("train") == tuple(ids[:3])


def test_groups_of_the_same_images():
    """Against a loop over all pairs."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 5, 12)
    records = {
        f"c{i:02d}": {"sha256": {"image": str(d)}, "intensity": []} for i, d in enumerate(images)
    }
    pairs = set()
    for i, a in enumerate(images):
        for j in range(i):
            if images[j] == a:
                pairs.add((f"c{j:02d}", f"c{i:02d}"))
    assert {(a, b) for ids in same_images(records) for a in ids for b in ids if a < b} == pairs
    assert set(later_ones(records)) == {b for _, b in pairs}
    apart = {"train": ["c00"], "val": [], "test": [b for a, b in sorted(pairs) if a == "c00"]}
    with pytest.raises(UserError, match="c00.* are the same image, across train and test"):
        refuse_across(records, [apart])


def test_what_is_fitted_on_is_not_reported():
    check_apart(["a"], ["b"], {"a": "Anna", "b": "Ben"}, "patient")
    check_apart(["a"], ["b"], {"a": None, "b": None}, "image")
    assert as_one({"a": "X"}) == {"a": "X"}
    info = {"data": {"patients": {"v": "Anna", "t": " anna"}}}
    ids = {"val": ("v",), "test": ("t", "u")}
    digests = {"v": "1", "t": "2", "u": "1"}
    predictor = SimpleNamespace(info=info, ids=ids.get, image_id=digests.get)
    with pytest.raises(UserError, match="v and t are of one patient, but calibrators are fitted"):
        _check_apart(predictor)
    info["data"]["patients"] = None
    with pytest.raises(UserError, match="v and u are of one image, but"):
        _check_apart(predictor)
    digests["u"] = "3"
    _check_apart(predictor)
