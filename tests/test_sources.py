"""Folders of predictions in every other format: which files are which case, and what is refused."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import SimpleITK as sitk
from made_predictions import (
    SPACING,
    dataset_json,
    image_of,
    made_cases,
    made_regions,
    segmentation_of,
    write_arrays,
    write_class_maps,
    write_confidences,
    write_image,
    write_json,
    write_labels,
    write_monai,
    write_npz,
    write_segcal,
    write_volumes,
)

from segcal.predictors.files import open_source
from segcal.predictors.reading import read_case
from segcal.types import UserError

CASES = made_cases(4, sharpness=2, margin=1)
BY_ID = {case.id: case for case in CASES}
FORMATS = {
    "npz": lambda root: write_arrays(root, CASES),
    "npy": lambda root: write_arrays(root, CASES, ending=".npy"),
    "volumes": lambda root: write_volumes(root, CASES),
    "volumes (vector)": lambda root: write_volumes(root, CASES, ending=".nrrd", vector=True),
    "volumes (folders)": lambda root: write_monai(root, CASES),
    "volumes (folders, named)": lambda root: write_monai(root, CASES, postfix="softmax_map"),
    "class maps": lambda root: write_class_maps(root, CASES),
    "class maps (background)": lambda root: write_class_maps(root, CASES, background=True),
    "segcal": lambda root: write_segcal(root, CASES),
}


@pytest.fixture
def labels(tmp_path):
    return write_labels(tmp_path / "labels", CASES)


def assert_all_read(source, cases=BY_ID):
    assert [case.id for case in source.cases] == sorted(cases)
    for case in source.cases:
        data, made = read_case(source, case), cases[case.id]
        np.testing.assert_allclose(data.maps.stacked(), made.probs, atol=1e-6)
        np.testing.assert_array_equal(data.label, made.label)
        np.testing.assert_allclose(data.spacing, SPACING, rtol=1e-6)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format(form, tmp_path, labels):
    source = open_source(FORMATS[form](tmp_path / "probs"), labels=labels)
    assert source.format == form.split(" (")[0]
    assert source.kind == "softmax"
    assert len(source.classes) == 2
    of_data = labels.parent.name.lower()  # the folder of labels has a general name
    assert (source.name, source.method, source.network) == (of_data, "probs", "")
    assert any(note.startswith("softmax: ") for note in source.notes)
    assert any("every case counts as a patient" in note for note in source.notes)
    assert_all_read(source)


@pytest.mark.parametrize("form", FORMATS)
def test_without_references(form, tmp_path):
    source = open_source(FORMATS[form](tmp_path / "probs"))
    assert [case.id for case in source.cases] == sorted(BY_ID)
    for case in source.cases:
        data = read_case(source, case)
        assert data.label is None
        np.testing.assert_allclose(data.maps.stacked(), BY_ID[case.id].probs, atol=1e-6)


def test_stored_label_maps_and_images(tmp_path, labels):
    root, images = write_arrays(tmp_path / "probs", CASES), tmp_path / "images"
    for case in CASES:
        write_image(root / f"{case.id}.nii.gz", segmentation_of(case))
        for channel in range(2):
            write_image(images / f"{case.id}_{channel:04d}.nii.gz", case.probs[channel])
    source = open_source(root, labels=labels, images=images)
    for case in source.cases:
        data = read_case(source, case)
        np.testing.assert_array_equal(data.segmentation, segmentation_of(BY_ID[case.id]))
        assert case.image.name == f"{case.id}_0000.nii.gz"
    source = open_source(write_arrays(tmp_path / "alone", CASES), images=images)
    assert read_case(source, source.cases[0]).spacing == pytest.approx(SPACING)


def test_a_confidence_map_beside_a_label_map(tmp_path, labels):
    root = write_confidences(tmp_path / "probs", CASES)
    source = open_source(root, labels=labels)
    assert (source.format, source.kind, source.n_maps) == ("confidence", "confidence", 1)
    assert "top-label scores only" in source.notes[0]
    for case in source.cases:
        data, made = read_case(source, case), BY_ID[case.id]
        np.testing.assert_array_equal(data.maps.stacked()[0], made.probs.max(0))
        np.testing.assert_array_equal(data.segmentation, segmentation_of(made))
        np.testing.assert_array_equal(data.label, made.label)
    (root / "case_000_seg.nii.gz").unlink()
    with pytest.raises(UserError, match="case_000 has a confidence map but no label map"):
        open_source(root, labels=labels)


def test_a_confidence_map_is_asked_for_but_not_there(tmp_path):
    root = write_class_maps(tmp_path / "probs", CASES)
    with pytest.raises(UserError, match="holds no confidence maps beside label maps"):
        open_source(root, kind="confidence")


def test_regions_as_the_user_says(tmp_path):
    cases = made_cases(3, make=made_regions)
    labels = write_labels(tmp_path / "labels", cases)
    root = write_arrays(tmp_path / "probs", cases)
    with pytest.raises(UserError, match="--kind regions"):
        open_source(root, labels=labels)
    source = open_source(root, labels=labels, kind="regions")
    assert source.regions == {"label 1": (1,), "label 2": (2,)}
    assert "each is one label of the references" in source.notes[0]
    write_json(root / "dataset.json", dataset_json(regions=True))
    source = open_source(root, labels=labels)
    assert source.kind == "regions"
    assert source.regions == {"whole": (1, 2), "core": (2,)}
    assert_all_read(source, {case.id: case for case in cases})


def test_logits_as_the_user_says(tmp_path, labels):
    root = tmp_path / "probs"
    for case in CASES:
        write_npz(root / f"{case.id}.npz", np.log(case.probs + 1e-6))
    with pytest.raises(UserError, match="say --kind logits"):
        open_source(root, labels=labels)
    assert open_source(root, labels=labels, kind="logits").classes == ("label 1", "label 2")
    with pytest.raises(UserError, match="unknown kind 'sigmoid'"):
        open_source(root, kind="sigmoid")


def test_integer_maps_are_scaled_and_it_is_said(tmp_path, labels):
    root = tmp_path / "probs"
    for case in CASES:
        write_image(root / f"{case.id}.nii.gz", np.rint(case.probs * 255).astype(np.uint8))
    source = open_source(root, labels=labels)
    assert "maps hold whole numbers, which are divided by 255" in source.notes
    maps = read_case(source, source.cases[0]).maps.stacked()
    np.testing.assert_allclose(maps, CASES[0].probs, atol=0.5 / 255 + 1e-6)


# Names of classes


def test_names_of_dataset_json(tmp_path, labels):
    write_json(labels.parent / "dataset.json", dataset_json(ignore=3))
    source = open_source(write_arrays(tmp_path / "probs", CASES), labels=labels)
    assert source.classes == ("anterior", "posterior")
    assert source.ignore_label == 3


def test_a_dataset_json_of_other_classes(tmp_path, labels):
    write_json(labels.parent / "dataset.json", dataset_json(classes=("a", "b", "c")))
    with pytest.raises(UserError, match="3 maps a case, which do not fit the classes a, b, c"):
        open_source(write_arrays(tmp_path / "probs", CASES), labels=labels)


def test_class_maps_by_name(tmp_path, labels):
    """`posterior` is label 1 and `anterior` label 2, against the alphabet."""
    root = write_class_maps(tmp_path / "probs", CASES, words=("posterior", "anterior"))
    with pytest.raises(UserError, match="which labels anterior, posterior have is not known"):
        open_source(root, labels=labels)
    info = dataset_json(classes=("posterior", "anterior"))
    write_json(root / "dataset.json", info)
    source = open_source(root, labels=labels)
    assert source.classes == ("posterior", "anterior")
    assert_all_read(source)
    write_json(root / "dataset.json", dataset_json(classes=("posterior", "other")))
    with pytest.raises(UserError, match="maps of anterior, posterior where .* posterior, other"):
        open_source(root, labels=labels)


def test_class_maps_by_a_number_from_2(tmp_path, labels):
    root = write_class_maps(tmp_path / "probs", CASES, words=("2", "3"))
    with pytest.raises(UserError, match="count from 1"):
        open_source(root, labels=labels)


def test_a_missing_class_map(tmp_path, labels):
    root = write_class_maps(tmp_path / "probs", CASES)
    (root / "case_001_2.nii.gz").unlink()
    with pytest.raises(UserError, match="'case_001' has no map of 2; export every class"):
        open_source(root, labels=labels)


def test_class_maps_of_a_case_without_reference(tmp_path):
    root = write_class_maps(tmp_path / "probs", CASES)
    labels = write_labels(tmp_path / "labels", CASES[1:])
    with pytest.raises(UserError, match="no reference in .*labels: case_000"):
        open_source(root, labels=labels)


def test_a_case_is_the_longest_name_of_a_reference(tmp_path):
    """`a_b_1` is of case `a_b`, though there is a case `a`."""
    cases = [replace(case, id=id) for case, id in zip(CASES[:2], ("a", "a_b"), strict=True)]
    labels = write_labels(tmp_path / "labels", cases)
    source = open_source(write_class_maps(tmp_path / "probs", cases), labels=labels)
    assert_all_read(source, {case.id: case for case in cases})


def test_one_map_of_the_only_class(tmp_path):
    cases = made_cases(3, n_classes=1)
    labels, root = write_labels(tmp_path / "labels", cases), tmp_path / "probs"
    for case in cases:
        write_image(root / f"{case.id}.nii.gz", case.probs[1])
    source = open_source(root, labels=labels)
    assert source.classes == ("foreground",)
    assert_all_read(source, {case.id: case for case in cases})


def test_what_segcal_predict_writes_has_these_names(tmp_path):
    from pathlib import Path

    from segcal.data.inputs import Input
    from segcal.predicting import _files

    root = write_segcal(tmp_path / "probs", CASES, classes=("left-side", "right-side"))
    written = {path.name for path in root.iterdir() if path.name.endswith(".nii.gz")}
    real = set()
    for case in CASES:
        given = Input(case.id, (Path("image.nii.gz"),))
        real |= {path.name for path in _files(Path(), given, ["left side", "right side"], True)}
    assert written == real
    write_json(root / "case_000_summary.json", {"classes": {"left side": {}, "right side": {}}})
    assert open_source(root).classes == ("left side", "right side")


# Patients


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_patients(tmp_path, ending):
    patient_of = {"case_000": "anna", "case_001": "anna", "case_002": "ben", "elsewhere": "carl"}
    path = tmp_path / f"patients.{ending}"
    rows = [f"{case},{patient}" for case, patient in patient_of.items()]
    path.write_text(
        "\n".join(["case,patient", *rows]) if ending == "csv" else json.dumps(patient_of)
    )
    source = open_source(write_arrays(tmp_path / "probs", CASES), patients=path)
    assert [case.patient for case in source.cases] == ["anna", "anna", "ben", "case_003"]
    assert f"{path} does not name 1 cases; each counts as a patient" in source.notes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("case,patient\nother,anna\n", "names none of the cases, which are called .*'case_000'"),
        ("id,patient\ncase_000,anna\n", "must have the columns case and patient"),
        ("case,patient\ncase_000\n", "must have the columns case and patient"),
        ("case,patient\ncase_000,a\ncase_000,b\n", "gives case 'case_000' two patients"),
    ],
)
def test_patients_files_that_do_not_fit(tmp_path, content, message):
    path = tmp_path / "patients.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        open_source(write_arrays(tmp_path / "probs", CASES), patients=path)


# What is missing or wrong


def test_labels_without_predictions_and_the_reverse(tmp_path):
    root = write_arrays(tmp_path / "probs", CASES[:3])
    labels = write_labels(tmp_path / "labels", CASES[1:])
    with pytest.raises(UserError, match="no reference in .*labels: case_000; .*--keep-going"):
        open_source(root, labels=labels)
    (root / "case_000.npz").unlink()
    with pytest.raises(UserError, match="no prediction in .*probs: case_003; .*--keep-going"):
        open_source(root, labels=labels)
    source = open_source(write_arrays(root, CASES[:3]), labels=labels, keep_going=True)
    assert set(source.left_out) == {"case_000", "case_003"}
    assert [case.id for case in source.cases] == ["case_001", "case_002"]


def test_names_that_never_fit(tmp_path):
    root = write_arrays(tmp_path / "probs", CASES)
    labels = tmp_path / "labels"
    write_image(labels / "patient7_gt.nii.gz", CASES[0].label)
    for keep_going in (False, True):
        with pytest.raises(UserError, match="case_000 here, patient7_gt there"):
            open_source(root, labels=labels, keep_going=keep_going)


def test_label_maps_only(tmp_path, labels):
    with pytest.raises(UserError, match="holds label maps only; export the probabilities"):
        open_source(labels, labels=labels)
    with pytest.raises(UserError, match="holds label maps only"):
        open_source(labels)
    for case in CASES:  # as MONAI's AsDiscreted and SaveImaged leave them
        write_image(tmp_path / case.id / f"{case.id}_trans.nii.gz", case.label.astype(np.float32))
    with pytest.raises(UserError, match="holds label maps only; .*MONAI: without AsDiscreted"):
        open_source(tmp_path, labels=labels)


def test_files_of_monai_in_one_folder(tmp_path, labels):
    root = write_monai(tmp_path / "probs", CASES)
    for path in root.glob("*/*"):
        path.rename(root / path.name)
    assert_all_read(open_source(root, labels=labels))
    for path in labels.iterdir():  # a data set whose own names end so
        path.rename(labels / path.name.replace(".nii.gz", "_trans.nii.gz"))
    source = open_source(root, labels=labels)
    assert [case.id for case in source.cases] == [f"{id}_trans" for id in sorted(BY_ID)]


def test_folders_of_cases_hold_one_file_of_maps_each(tmp_path, labels):
    root = write_monai(tmp_path / "probs", CASES)
    id = CASES[0].id
    write_image(root / id / f"{id}_seg.nii.gz", CASES[0].label)
    write_image(root / id / "notes.nii.gz", CASES[0].label)
    (root / ".hidden").mkdir()
    source = open_source(root, labels=labels)
    assert_all_read(source)
    assert source.cases[0].segmentation == root / id / f"{id}_seg.nii.gz"
    write_image(root / id / f"{id}_other.nii.gz", CASES[0].label)
    with pytest.raises(UserError, match=f"{id}_other.*_trans.* would be one case; keep one"):
        open_source(root, labels=labels)


def test_folders_that_hold_nothing(tmp_path, labels):
    empty = tmp_path / "empty"
    with pytest.raises(UserError, match="is no folder"):
        open_source(empty)
    empty.mkdir()
    with pytest.raises(UserError, match="holds no files with maps"):
        open_source(empty)
    with pytest.raises(UserError, match="holds no image files"):
        open_source(write_arrays(tmp_path / "probs", CASES), labels=empty)
    with pytest.raises(UserError, match="is no folder"):
        open_source(tmp_path / "probs" / "case_000.npz")


def test_two_files_of_one_case(tmp_path, labels):
    root = write_volumes(tmp_path / "probs", CASES)
    sitk.WriteImage(image_of(CASES[0].probs), str(root / "case_000.nrrd"))
    with pytest.raises(UserError, match="would be one case; keep one of them"):
        open_source(root, labels=labels)


@pytest.mark.parametrize("form", ["npz", "volumes"])
def test_another_shape(form, tmp_path, labels):
    source = open_source(FORMATS[form](tmp_path / "probs"), labels=labels)
    case = source.cases[0]
    write_image(case.label, CASES[0].label[1:])
    with pytest.raises(UserError, match=r"\(5, 20, 18\) where .* \(6, 20, 18\)"):
        read_case(source, case)


def test_axes_of_classes_last(tmp_path, labels):
    root = tmp_path / "probs"
    for case in CASES:
        write_npz(root / f"{case.id}.npz", case.probs.transpose(1, 2, 3, 0))
    with pytest.raises(UserError, match=r"would fit if the maps were transposed by \(3, 0, 1, 2\)"):
        open_source(root, labels=labels)
    with pytest.raises(UserError, match="export the softmax"):
        open_source(root)


def test_maps_on_another_grid(tmp_path, labels):
    """References of half the voxel size; maps of two voxels more on one side."""
    root = write_volumes(tmp_path / "probs", CASES)
    for case in CASES:
        fine = sitk.Expand(image_of(case.label), (2, 2, 2), sitk.sitkNearestNeighbor)
        sitk.WriteImage(fine, str(labels / f"{case.id}.nii.gz"))
    source = open_source(root, labels=labels)
    with pytest.raises(UserError, match="--resample"):
        read_case(source, source.cases[0])
    label = read_case(source, source.cases[0], resample=True).label
    inside = label >= 0
    assert inside.mean() > 0.8
    np.testing.assert_array_equal(label[inside], CASES[0].label[inside])


def test_a_damaged_case(tmp_path, labels):
    root = write_arrays(tmp_path / "probs", CASES)
    path = root / "case_002.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="case_002.npz is truncated or damaged"):
        open_source(root, labels=labels)
    assert set(open_source(root, labels=labels, keep_going=True).left_out) == {"case_002"}


def test_damaged_cases_do_not_end_an_audit_that_keeps_going(tmp_path, labels):
    root = write_arrays(tmp_path / "probs", CASES)
    for i in range(3):
        (root / f"case_00{i}.npz").write_bytes(b"cut")
    source = open_source(root, labels=labels, keep_going=True)
    assert [case.id for case in source.cases] == ["case_003"]


def test_wrong_values_everywhere_are_no_cases_to_leave_out(tmp_path, labels):
    root = tmp_path / "probs"
    for case in CASES:
        write_npz(root / f"{case.id}.npz", 100 * case.probs)
    with pytest.raises(UserError, match="look like percent"):
        open_source(root, labels=labels, keep_going=True)


def test_hidden_files_are_left_alone(tmp_path, labels):
    root = write_arrays(tmp_path / "probs", CASES)
    (root / "._case_000.npz").write_bytes(b"of macOS")
    assert len(open_source(root, labels=labels).cases) == 4


def test_a_data_set_is_called_as_the_folder_of_its_references(tmp_path):
    """So that predictors from several folders are compared on it, those of nnU-Net too."""
    root = write_arrays(tmp_path / "probs", CASES)
    for folder, name in (
        ("Dataset004_Hippocampus/labelsTr", "hippocampus"),
        ("Organs/masks", "organs"),
        ("Raters", "raters"),
    ):
        labels = write_labels(tmp_path / folder, CASES)
        assert open_source(root, labels=labels).name == name


def test_one_case(tmp_path):
    root = write_arrays(tmp_path / "probs", CASES[:1])
    assert len(open_source(root, labels=write_labels(tmp_path / "labels", CASES[:1])).cases) == 1


def test_ten_thousand_files(tmp_path):
    """Only one of them is opened."""
    root, labels = tmp_path / "probs", tmp_path / "labels"
    write_npz(root / "case_00000.npz", CASES[0].probs)
    write_image(labels / "case_00000.nii.gz", CASES[0].label)
    for i in range(1, 10_000):
        for first in (root / "case_00000.npz", labels / "case_00000.nii.gz"):
            first.with_name(first.name.replace("00000", f"{i:05d}")).hardlink_to(first)
    start = time.perf_counter()
    source = open_source(root, labels=labels)
    assert len(source.cases) == 10_000
    assert time.perf_counter() - start < 20
