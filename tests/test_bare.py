"""Images and labels in folders of any form, files that do not match, DICOM, cross-validation."""

import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given
from hypothesis import strategies as st
from official_layouts import write_dicom

from segcal.data.bare import bare_source, matches
from segcal.data.images import read
from segcal.data.layouts import write_layout
from segcal.data.prepare import prepare
from segcal.data.splits import by_fold
from segcal.study.plan import read_plan
from segcal.types import UserError


@pytest.fixture
def nnunet(tmp_path):
    write_layout("nnunet", tmp_path / "raw", n_cases=5, size=(5, 24, 24))
    return tmp_path / "raw"


@pytest.fixture
def own(nnunet, tmp_path, monkeypatch):
    """The same cases in a folder each; paths are relative, as users type them."""
    for label in sorted((nnunet / "labelsTr").iterdir()):
        id = label.name.removesuffix(".nii.gz")
        (tmp_path / "own" / id).mkdir(parents=True)
        shutil.copy(label, tmp_path / "own" / id / "seg.nii.gz")
        for k, name in enumerate(("t1", "t2")):
            source = nnunet / "imagesTr" / f"{id}_000{k}.nii.gz"
            shutil.copy(source, tmp_path / "own" / id / f"{name}.nii.gz")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own"


PATTERNS = {"images": ["own/*/t1.nii.gz", "own/*/t2.nii.gz"], "labels": "own/*/seg.nii.gz"}


def arrays_of(cases):
    return {id: record["sha256"] for id, record in cases.info["cases"].items()}


@pytest.mark.parametrize("workers", [1, 2])
def test_bare_folders_give_the_arrays_of_the_same_files_in_nnunets_layout(own, nnunet, workers):
    theirs = prepare("theirs", nnunet, "cases").cases
    done = prepare("mine", **PATTERNS, classes=["CSF", "GM", "WM"], workers=workers)
    assert arrays_of(done.cases) == arrays_of(theirs)
    assert done.cases.classes == ("CSF", "GM", "WM")
    assert done.cases.channels == ("t1", "t2")
    assert done.notes == ("labels: 1 is CSF, 2 is GM, 3 is WM",)
    again = prepare("mine", **PATTERNS, classes=["CSF", "GM", "WM"])
    assert not again.fresh
    seg = own / "phantom_001" / "seg.nii.gz"
    image = sitk.ReadImage(str(seg))
    sitk.WriteImage(image * 0 + 1, str(seg))
    with pytest.raises(UserError, match=r"sources of cases.mine have changed .*phantom_001.seg"):
        prepare("mine", **PATTERNS, classes=["CSF", "GM", "WM"])


def test_classes_are_read_from_the_labels_and_said(own):
    done = prepare("mine", **PATTERNS)
    assert done.cases.classes == ("label 1", "label 2", "label 3")
    assert done.notes == ("labels: 1 is label 1, 2 is label 2, 3 is label 3",)


def test_one_class_of_a_mask_of_0_and_255(own, tmp_path):
    for path in own.glob("*/seg.nii.gz"):
        image = sitk.ReadImage(str(path))
        sitk.WriteImage(sitk.Cast(image > 0, sitk.sitkUInt8) * 255, str(path))
    done = prepare("mine", **PATTERNS, classes=["organ"])
    assert done.notes == ("labels: 255 is organ",)
    assert {int(value) for value in np.unique(done.cases.label(done.cases.ids[0]))} == {0, 1}


def test_a_mask_beside_its_image_is_no_image(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        mask = np.zeros((12, 12), np.uint8)
        mask[2 : 5 + i, 3:8] = 255
        sitk.WriteImage(sitk.GetImageFromArray(mask), f"b{i}_mask.png")
        sitk.WriteImage(sitk.GetImageFromArray(mask // 2), f"b{i}.png")
    cases = prepare("mine", images="b*.png", labels="b*_mask.png").cases
    assert cases.ids == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["a", "b"]}, r"holds the labels 1, 2, 3, and --classes names 2 classes"),
        ({"images": "own/x/t1.nii.gz"}, "needs a star that stands for the case"),
        ({"images": "own/*/t3.nii.gz"}, r"no file matches 'own/\*/t3.nii.gz'; there are own/"),
        ({"images": "own/*/*.dcm"}, r"'own/\*/\*.dcm'; of a DICOM series name the folder"),
        ({"images": "mine/*.nii.gz"}, r"no file matches 'mine/\*.nii.gz'; there is no folder mine"),
        ({"labels": ""}, "--images and --labels go together"),
        ({"images": "own/*/*.nii.gz"}, "several stars stand for the same text"),
    ],
)
def test_patterns_that_do_not_fit_are_a_sentence(own, change, message):
    with pytest.raises(UserError, match=message):
        prepare("mine", **(PATTERNS | change))
    assert not (own.parent / "cases").exists()


def test_a_known_name_keeps_its_layout(own):
    with pytest.raises(UserError, match="acdc is a known data set with a layout of its own"):
        prepare("acdc", **PATTERNS)


@pytest.mark.parametrize("gone", ["t1.nii.gz", "t2.nii.gz", "seg.nii.gz"])
def test_a_case_without_one_of_its_files_is_named(own, gone):
    (own / "phantom_001" / gone).unlink()
    with pytest.raises(UserError, match=f"own/phantom_001/{gone} is missing; .*--skip-broken"):
        prepare("mine", **PATTERNS)
    done = prepare("mine", **PATTERNS, skip_broken=True)
    assert list(done.cases.info["left_out"]) == ["phantom_001"]


@given(st.lists(st.text("ab[]!.-x", min_size=1, max_size=5), min_size=1, max_size=4, unique=True))
def test_a_star_stands_for_what_was_put_there(ids):
    """Names with the signs that patterns use, and with dots, are names."""
    with tempfile.TemporaryDirectory() as folder:
        for id in ids:
            Path(folder, f"n{id}_1.nii.gz").touch()
        found = matches(os.path.join(folder, "n*_1.nii.gz"))
    assert sorted(found) == sorted(ids)


def test_the_reader_can_be_sent_to_a_process(own):
    source = bare_source("mine", PATTERNS["images"], PATTERNS["labels"], None).source
    assert [case.id for case in pickle.loads(pickle.dumps(source.reader))(own)]


# Files that do not match
# ------------------------------------------------------------------------------


def test_an_image_without_a_channel_number_is_named(nnunet, tmp_path):
    image = nnunet / "imagesTr" / "phantom_003_0000.nii.gz"
    image.rename(image.with_name("phantom_003.nii.gz"))
    told = r"phantom_003.nii.gz belongs to no case \(it has no channel number, such as _0000\)"
    with pytest.raises(UserError, match=told):
        prepare("mine", nnunet, tmp_path / "cases")
    done = prepare("mine", nnunet, tmp_path / "cases", skip_broken=True)
    assert "phantom_003.nii.gz belongs to no case" in done.notes[0]
    assert list(done.cases.info["left_out"]) == ["phantom_003"]


def test_a_label_without_images_is_named(nnunet, tmp_path):
    for path in (nnunet / "imagesTr").glob("phantom_003*"):
        path.unlink()
    with pytest.raises(UserError, match="imagesTr/phantom_003_0000.nii.gz is missing"):
        prepare("mine", nnunet, tmp_path / "cases")
    done = prepare("mine", nnunet, tmp_path / "cases", skip_broken=True)
    assert list(done.cases.info["left_out"]) == ["phantom_003"]


def test_an_image_without_a_label_is_named(nnunet, tmp_path):
    (nnunet / "labelsTr" / "phantom_003.nii.gz").unlink()
    with pytest.raises(UserError, match="labelsTr/phantom_003.nii.gz is missing"):
        prepare("mine", nnunet, tmp_path / "cases")


@pytest.mark.parametrize("layout", ["nnunet", "msd"])
def test_a_wrong_number_of_cases_is_named(tmp_path, layout):
    write_layout(layout, tmp_path / "raw", n_cases=4, size=(5, 24, 24))
    path = tmp_path / "raw" / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"numTraining": 5}))
    told = "dataset.json says numTraining 5, and there are 4 cases"
    with pytest.raises(UserError, match=told):
        prepare("mine", tmp_path / "raw", tmp_path / "cases")
    done = prepare("mine", tmp_path / "raw", tmp_path / "cases", skip_broken=True)
    assert told in done.notes[0]


def test_files_of_other_formats_are_named_and_what_is_no_image_is_not(nnunet, tmp_path):
    image = nnunet / "imagesTr" / "phantom_003_0000.nii.gz"
    sitk.WriteImage(sitk.ReadImage(str(image)), str(image.with_name("new_0000.mha")))
    (image.parent / "._other_0000.nii.gz").write_text("what macOS leaves")
    (image.parent / "notes.txt").write_text("no image")
    with pytest.raises(UserError) as caught:
        prepare("mine", nnunet, tmp_path / "cases")
    assert str(caught.value).count("belongs to no case") == 1
    assert "new_0000.mha belongs to no case; mend it" in str(caught.value)


# DICOM
# ------------------------------------------------------------------------------


def test_dicom_series_are_the_volumes_that_they_came_from(own):
    for folder in own.iterdir():
        image = sitk.Cast(sitk.ReadImage(str(folder / "t1.nii.gz")), sitk.sitkInt16)
        sitk.WriteImage(image, str(folder / "whole.nii.gz"))
        write_dicom(image, folder / "series")
    ours = prepare("dcm", images="own/*/series", labels=PATTERNS["labels"]).cases
    theirs = prepare("nii", images="own/*/whole.nii.gz", labels=PATTERNS["labels"]).cases
    for id in theirs.ids:
        np.testing.assert_array_equal(ours.image(id), theirs.image(id))
        np.testing.assert_array_equal(ours.label(id), theirs.label(id))
        np.testing.assert_allclose(ours.case(id)["spacing"], theirs.case(id)["spacing"], rtol=1e-4)
    changed = own / "phantom_000" / "series" / "0_1.2.3.1.dcm"
    changed.write_bytes(changed.read_bytes() + b"\0\0")
    with pytest.raises(UserError, match="have changed"):
        prepare("dcm", images="own/*/series", labels=PATTERNS["labels"])


def test_a_folder_with_two_series_or_none_is_refused(own):
    image = sitk.Cast(sitk.ReadImage(str(own / "phantom_000" / "t1.nii.gz")), sitk.sitkInt16)
    for folder in own.iterdir():
        (folder / "series").mkdir()
    with pytest.raises(UserError, match="series is a folder with no DICOM series"):
        prepare("dcm", images="own/*/series", labels=PATTERNS["labels"])
    for series in ("1.2.3.1", "1.2.3.2"):
        write_dicom(image, own / "phantom_000" / "series", series)
    with pytest.raises(UserError, match="series is a folder with 2 DICOM series"):
        prepare("dcm", images="own/*/series", labels=PATTERNS["labels"])


def cut(folder):
    path = folder / "10_1.2.3.1.dcm"
    path.write_bytes(path.read_bytes()[:600])


def empty(folder):
    (folder / "10_1.2.3.1.dcm").write_bytes(b"")


MIDDLE = "3_1.2.3.1.dcm"  # of five slices
DAMAGED_SERIES = {
    "10_1.2.3.1.dcm is damaged: its element .* is longer than the file": cut,
    "10_1.2.3.1.dcm is damaged, or no slice of the series": empty,
    "are not evenly spaced: one may be missing": lambda folder: (folder / MIDDLE).unlink(),
    "x is a pipe or a device": lambda folder: os.mkfifo(folder / "x"),
}


@pytest.mark.parametrize("sentence", DAMAGED_SERIES)
def test_a_series_with_a_damaged_or_missing_slice_is_refused(tmp_path, sentence):
    image = sitk.GetImageFromArray(np.arange(5 * 24 * 24, dtype=np.int16).reshape(5, 24, 24))
    write_dicom(image, tmp_path)
    assert read(tmp_path).GetSize() == (24, 24, 5)
    DAMAGED_SERIES[sentence](tmp_path)
    with pytest.raises(UserError, match=sentence):
        read(tmp_path)


def test_a_series_of_more_voxels_than_the_limit_is_refused(tmp_path, monkeypatch):
    write_dicom(sitk.Image(24, 24, 5, sitk.sitkInt16), tmp_path)
    monkeypatch.setenv("SEGCAL_MAX_VOXELS", "2000")
    with pytest.raises(UserError, match="says a size of 24 x 24 x 5, more than 2,000 voxels"):
        read(tmp_path)


# Folds
# ------------------------------------------------------------------------------


@given(st.integers(3, 40), st.integers(2, 8), st.integers(0, 5), st.integers(1, 3))
def test_folds_test_every_patient_once_and_keep_patients_together(n, n_folds, seed, each):
    patient_of = {f"c{i}": f"p{i // each}" for i in range(n * each)}
    if n_folds > n or (n, n_folds) == (3, 2):
        with pytest.raises(UserError, match=f"folds must be {2 + (n == 3)} to {n}"):
            by_fold(patient_of, n_folds, (70, 10, 20), seed)
        return
    folds = by_fold(patient_of, n_folds, (70, 10, 20), seed)
    tested = [id for fold in folds for id in fold["test"]]
    assert sorted(tested) == sorted(patient_of)
    for fold in folds:
        parts = [{patient_of[id] for id in fold[name]} for name in ("train", "val", "test")]
        assert all(parts)
        assert sum(map(len, parts)) == n == len(set.union(*parts))
    sizes = [len({patient_of[id] for id in fold["test"]}) for fold in folds]
    assert max(sizes) - min(sizes) <= 1
    assert by_fold(patient_of, n_folds, (70, 10, 20), seed) == folds


def test_a_study_runs_every_fold(own):
    cases = prepare("mine", **PATTERNS, folds=5, seed=3).cases
    assert cases.n_folds == 5
    plan = read_plan("smoke", data=cases.root, folds=5)
    assert {cell.settings.fold for cell in plan.cells} == set(range(5))
    with pytest.raises(UserError, match="has 5 folds, so fold must lie in 0..4; got 5"):
        read_plan("smoke", data=cases.root, folds=6)
    split = own.parent / "split.json"
    split.write_text("{}")
    with pytest.raises(UserError, match="leave --folds out"):
        prepare("other", **PATTERNS, folds=5, split_file=split)
