"""The model folders of nnU-Net v2: references, held-out cases, regions, and what is refused."""

import json
import shutil
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
    write_image,
    write_json,
    write_labels,
    write_nnunet,
    write_npz,
)

from segcal.predictors.files import open_source
from segcal.predictors.reading import read_case
from segcal.types import IGNORE, UserError

CASES = made_cases(6, sharpness=2, margin=1)
BY_ID = {case.id: case for case in CASES}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("nnUNet_preprocessed", "nnUNet_raw", "nnUNet_results"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def model(tmp_path):
    return write_nnunet(tmp_path, CASES, marker=tmp_path / "unpickled")


def change_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def splits_of(model):
    return model.parents[2] / "nnUNet_preprocessed" / model.parent.name / "splits_final.json"


def assert_all_read(source, cases=BY_ID):
    assert {case.id for case in source.cases} == set(cases)
    for case in source.cases:
        data, made = read_case(source, case), cases[case.id]
        np.testing.assert_array_equal(data.maps.stacked(), made.probs)
        np.testing.assert_array_equal(data.label, made.label)
        assert data.label.dtype == np.int16
        np.testing.assert_array_equal(
            data.segmentation, segmentation_of(made, regions=bool(source.regions))
        )
        np.testing.assert_allclose(data.spacing, SPACING, rtol=1e-6)


def test_a_model_folder(model, tmp_path):
    source = open_source(model)
    assert (source.format, source.kind, source.name) == ("nnunet", "softmax", "hippocampus")
    assert (source.method, source.network) == ("nnUNetTrainer", "2d")
    assert source.classes == ("anterior", "posterior")
    assert [case.fold for case in source.cases] == ["0"] * 3 + ["1"] * 3
    assert all(case.image.name == f"{case.id}_0000.nii.gz" for case in source.cases)
    assert not source.left_out
    assert_all_read(source)
    assert not (tmp_path / "unpickled").exists()


def test_the_geometry_is_that_of_the_stored_label_map(model):
    source = open_source(model)
    data = read_case(source, source.cases[0])
    stored = sitk.ReadImage(str(source.cases[0].segmentation))
    for key in ("Size", "Spacing", "Origin", "Direction"):
        assert getattr(data.geometry, key.lower()) == getattr(stored, f"Get{key}")()


@pytest.mark.parametrize("below", ["fold_1", "fold_1/validation"])
def test_one_fold_alone(model, below):
    source = open_source(model / below)
    assert {case.fold for case in source.cases} == {"1"}
    assert_all_read(source, {case.id: case for case in CASES[1::2]})


def test_several_models(model):
    shutil.copytree(model, model.with_name("nnUNetTrainer__nnUNetPlans__3d_fullres"))
    for above in (model.parent, model.parents[1]):
        with pytest.raises(UserError, match="name one of them: .*2d, .*3d_fullres"):
            open_source(above)


def test_regions(tmp_path):
    cases = made_cases(4, make=made_regions, margin=1)
    source = open_source(write_nnunet(tmp_path, cases, regions=True))
    assert source.kind == "regions"
    assert source.regions == {"whole": (1, 2), "core": (2,)}
    assert list(source.classes) == list(source.regions) == ["whole", "core"]
    assert source.region_order == (1, 2)
    assert source.n_maps == 2
    assert_all_read(source, {case.id: case for case in cases})


def test_a_list_of_one_label_makes_no_region(model):
    change_json(model / "dataset.json", lambda d: d["labels"].update(anterior=[1]))
    assert open_source(model).kind == "softmax"


def test_regions_without_their_order(tmp_path):
    root = write_nnunet(tmp_path, made_cases(2, make=made_regions), regions=True)
    change_json(root / "dataset.json", lambda d: d.pop("regions_class_order"))
    with pytest.raises(UserError, match="regions_class_order with 2 labels"):
        open_source(root)


def test_regions_through_the_sigmoid_twice(tmp_path):
    cases = made_cases(2, make=made_regions)
    twice = [replace(case, probs=1 / (1 + np.exp(-case.probs))) for case in cases]
    with pytest.raises(UserError, match="sigmoid was applied twice"):
        open_source(write_nnunet(tmp_path, twice, regions=True))


def test_ignored_voxels(tmp_path):
    cases = []
    for case in CASES:
        label = case.label.copy()
        label[::3] = 3
        cases.append(replace(case, label=label))
    source = open_source(write_nnunet(tmp_path, cases, ignore=3))
    assert source.ignore_label == 3
    assert source.classes == ("anterior", "posterior")
    for case in source.cases:
        label = read_case(source, case).label
        assert (label[::3] == IGNORE).all()
        np.testing.assert_array_equal(label[1::3], BY_ID[case.id].label[1::3])


def test_logits_of_an_early_version(tmp_path):
    cases = [replace(case, probs=np.log(case.probs + 1e-6)) for case in CASES]
    root = write_nnunet(tmp_path, cases)
    with pytest.raises(UserError, match="logits.*--kind logits"):
        open_source(root)
    source = open_source(root, kind="logits")
    assert source.kind == "logits"
    assert source.notes[0].startswith("logits, as --kind says")
    with pytest.raises(UserError, match="--kind regions is not what .*dataset.json says: softmax"):
        open_source(root, kind="regions")


# Where references come from


def test_references_of_summary_json_lead(tmp_path):
    root = write_nnunet(tmp_path, CASES)
    elsewhere = write_labels(tmp_path / "elsewhere", CASES)
    for path in root.glob("fold_*/validation/summary.json"):
        path.write_text(
            path.read_text().replace(
                str(splits_of(root).parent / "gt_segmentations"), str(elsewhere)
            )
        )
    assert {case.label.parent for case in open_source(root).cases} == {elsewhere}


def test_references_of_another_machine_are_found_in_gt_segmentations(tmp_path):
    root = write_nnunet(tmp_path, CASES)
    for path in root.glob("fold_*/validation/summary.json"):
        change_json(
            path,
            lambda d: [
                e.update(reference_file="/gone/" + e["reference_file"].split("/")[-1])
                for e in d["metric_per_case"]
            ],
        )
    assert {case.label.parent.name for case in open_source(root).cases} == {"gt_segmentations"}


def test_gt_segmentations_by_environment_variable(tmp_path, monkeypatch):
    root = write_nnunet(tmp_path / "a", CASES, summary=False)
    moved = tmp_path / "b"
    shutil.move(tmp_path / "a" / "nnUNet_preprocessed", moved)
    monkeypatch.setenv("nnUNet_preprocessed", str(moved))
    assert_all_read(open_source(root))


def test_references_may_be_given(tmp_path):
    root = write_nnunet(tmp_path, CASES, summary=False, preprocessed=False)
    source = open_source(root)
    assert all(case.label is None for case in source.cases)
    assert read_case(source, source.cases[0]).label is None
    labels = write_labels(tmp_path / "labels", CASES)
    source = open_source(root, labels=labels)
    assert_all_read(source)
    assert any("splits_final.json was not found" in note for note in source.notes)


def test_a_summary_that_names_no_label_file(model, tmp_path):
    hostile = tmp_path / "hostile.pkl"
    hostile.write_bytes(b"cos\nsystem\n(S'touch unpickled'\ntR.")
    path = model / "fold_0" / "validation" / "summary.json"
    change_json(path, lambda d: d["metric_per_case"][0].update(reference_file=str(hostile)))
    with pytest.raises(UserError, match="hostile.pkl as a reference, which is no .nii.gz file"):
        open_source(model)
    path.write_text("[]")
    with pytest.raises(UserError, match="must have a reference_file"):
        open_source(model)


def test_a_reference_that_is_no_image(model):
    source = open_source(model)
    source.cases[0].label.unlink()
    source.cases[0].label.symlink_to(source.cases[0].files[0].with_suffix(".pkl"))
    with pytest.raises(UserError, match="it is no image"):
        read_case(source, source.cases[0])


# Held out or not


def test_a_case_that_its_fold_was_trained_on(model):
    def swap(splits):
        splits[0]["train"].append(splits[0]["val"].pop())

    change_json(splits_of(model), swap)
    for keep_going in (False, True):  # a leak is never left out quietly
        with pytest.raises(UserError, match="of fold 0 was trained on case_004"):
            open_source(model, keep_going=keep_going)


def test_a_case_in_neither_list(model):
    change_json(splits_of(model), lambda splits: splits[1]["val"].remove("case_003"))
    with pytest.raises(UserError, match="in neither list of fold 1 .*case_003"):
        open_source(model)
    source = open_source(model, keep_going=True)
    assert set(source.left_out) == {"case_003"}
    assert len(source.cases) == 5


def test_a_fold_beyond_the_split(model):
    change_json(splits_of(model), lambda splits: splits.pop())
    source = open_source(model)
    assert any("has no fold 1" in note for note in source.notes)


@pytest.mark.parametrize("content", [{}, [{"train": []}] * 2, [1, 2]])
def test_a_split_that_is_none(model, content):
    write_json(splits_of(model), content)
    with pytest.raises(UserError, match="a list of folds, each with the lists train and val"):
        open_source(model)


def test_a_case_in_two_folds(tmp_path):
    root = write_nnunet(tmp_path, CASES, preprocessed=False)
    for ending in (".npz", ".nii.gz"):
        source = root / "fold_0" / "validation" / f"case_000{ending}"
        shutil.copy(source, root / "fold_1" / "validation")
    labels = tmp_path / "nnUNet_raw" / "Dataset004_Hippocampus" / "labelsTr"
    with pytest.raises(UserError, match="held out in fold 0 and in fold 1: case_000"):
        open_source(root, labels=labels)
    source = open_source(root, labels=labels, keep_going=True)
    assert "case_000" in source.left_out
    assert "case_000" not in {case.id for case in source.cases}


def test_a_patient_in_two_folds(model, tmp_path):
    patients = tmp_path / "patients.csv"
    patients.write_text("case,patient\ncase_000,anna\ncase_001,anna\ncase_002,ben\n")
    with pytest.raises(UserError, match="patient 'anna' is in folds 0 and 1"):
        open_source(model, patients=patients)
    patients.write_text("case,patient\ncase_000,anna\ncase_002,anna\ncase_001,ben\n")
    source = open_source(model, patients=patients)
    assert [case.patient for case in source.cases[:2]] == ["anna", "anna"]
    assert any("does not name 3 cases" in note for note in source.notes)


def test_fold_all_is_refused(model):
    (model / "fold_1").rename(model / "fold_all")
    notes = open_source(model).notes
    assert any("fold_all was trained on every case" in note for note in notes)
    shutil.rmtree(model / "fold_0")
    with pytest.raises(UserError, match="none is held out; train folds 0 to 4"):
        open_source(model)


# What is missing or damaged


def test_no_probabilities(model):
    for path in model.glob("fold_*/validation/*.npz"):
        path.unlink()
    with pytest.raises(UserError, match="validate again with nnUNetv2_train .* --val --npz"):
        open_source(model)


def test_a_fold_without_probabilities_or_validation(model):
    for path in model.glob("fold_1/validation/*.npz"):
        path.unlink()
    (model / "fold_2").mkdir()
    source = open_source(model)
    assert {case.fold for case in source.cases} == {"0"}
    assert any("fold_1 holds no probabilities" in note for note in source.notes)
    assert any("fold_2 has no validation folder" in note for note in source.notes)


def test_a_case_without_probabilities(model):
    (model / "fold_0" / "validation" / "case_002.npz").unlink()
    with pytest.raises(UserError, match="no probabilities in fold 0 .*--npz.*: case_002"):
        open_source(model)
    source = open_source(model, keep_going=True)
    assert set(source.left_out) == {"case_002"}
    assert len(source.cases) == 5


def test_a_case_without_a_reference(model, tmp_path):
    labels = write_labels(tmp_path / "labels", CASES[1:])
    with pytest.raises(UserError, match="no reference for cases of fold 0: case_000"):
        open_source(model, labels=labels)
    assert set(open_source(model, labels=labels, keep_going=True).left_out) == {"case_000"}


def test_a_damaged_case_is_left_out_with_keep_going(model):
    path = model / "fold_0" / "validation" / "case_002.npz"
    path.write_bytes(path.read_bytes()[:200])  # now the smallest, which is looked at first
    with pytest.raises(UserError, match="truncated or damaged"):
        open_source(model)
    source = open_source(model, keep_going=True)
    assert "truncated" in source.left_out["case_002"]
    assert len(source.cases) == 5


def test_labels_beyond_the_classes(model):
    source = open_source(model)
    case = source.cases[1]
    label = BY_ID[case.id].label.copy()
    label[0, 0, :2] = 3, 7
    write_image(case.label, label)
    with pytest.raises(UserError, match="holds the label 3, 7; .* must be 0 to 2"):
        read_case(source, case)
    write_image(case.label, label + np.float32(0.5))
    with pytest.raises(UserError, match="holds the label 0.5, 1.5"):
        read_case(source, case)


def test_references_stored_as_floating_point(model):
    source = open_source(model)
    write_image(source.cases[0].label, BY_ID["case_000"].label.astype(np.float32))
    label = read_case(source, source.cases[0]).label
    np.testing.assert_array_equal(label, BY_ID["case_000"].label)


def test_another_number_of_maps(model):
    source = open_source(model)
    write_npz(source.cases[0].files[0], BY_ID["case_000"].probs[:2])
    with pytest.raises(UserError, match="2 maps where 3 are expected .background and anterior"):
        read_case(source, source.cases[0])


def test_swapped_axes(model):
    source = open_source(model)
    case = source.cases[0]
    write_npz(case.files[0], BY_ID["case_000"].probs.transpose(0, 3, 2, 1))
    with pytest.raises(
        UserError, match=r"\(6, 20, 18\).*\(18, 20, 6\).*transposed by \(0, 3, 2, 1\)"
    ):
        read_case(source, case)


def test_maps_of_a_cropped_image(tmp_path):
    root = write_nnunet(tmp_path, CASES, key="softmax")  # as version 1 calls them
    source = open_source(root)
    assert_all_read(source)
    write_npz(source.cases[0].files[0], BY_ID["case_000"].probs[:, 1:], key="softmax")
    with pytest.raises(UserError, match="nnU-Net v1 stores maps of the cropped image only"):
        read_case(source, source.cases[0])


def test_a_reference_on_another_grid(model):
    source = open_source(model)
    case = source.cases[0]
    image = image_of(BY_ID[case.id].label)
    finer = sitk.Expand(image, (2, 2, 2), sitk.sitkNearestNeighbor)
    sitk.WriteImage(finer, str(case.label))
    with pytest.raises(UserError, match="--resample"):
        read_case(source, case)
    label = read_case(source, case, resample=True).label
    inside = label != IGNORE
    assert inside.mean() > 0.8
    np.testing.assert_array_equal(label[inside], BY_ID[case.id].label[inside])


def test_a_reference_that_lies_elsewhere(model):
    source = open_source(model)
    case = source.cases[0]
    write_image(case.label, BY_ID[case.id].label, origin=(-40.0, 25.5 + SPACING[1], 10.25))
    with pytest.raises(UserError, match="another spacing, origin or direction.*--resample"):
        read_case(source, case)
    assert (read_case(source, case, resample=True).label == IGNORE).any()


def test_images_that_nnunet_turned(tmp_path):
    """Its reader NibabelIOWithReorient turns images to RAS, and so are the maps that it stores."""
    cases = made_cases(2, shape=(5, 9, 7))
    root = write_nnunet(tmp_path, cases, n_folds=1, reader="NibabelIOWithReorient")
    label_dir = splits_of(root).parent / "gt_segmentations"
    for case in cases:  # files in the orientation ASL, made from arrays (S, A, R) by hand
        for array, folder in (
            (case.label, label_dir),
            (segmentation_of(case), root / "fold_0/validation"),
        ):
            turned = array[:, :, ::-1].transpose(2, 0, 1)  # axes (L, S, A); a file has A first
            image = sitk.GetImageFromArray(np.ascontiguousarray(turned))
            image.SetDirection((0, 0, 1, -1, 0, 0, 0, 1, 0))  # columns A, S, L in LPS
            sitk.WriteImage(image, str(folder / f"{case.id}.nii.gz"))
    source = open_source(root)
    assert source.reader == "NibabelIOWithReorient"
    for case, made in zip(source.cases, cases, strict=True):
        data = read_case(source, case)
        np.testing.assert_array_equal(data.label, made.label)
        np.testing.assert_array_equal(data.segmentation, segmentation_of(made))
        assert data.geometry.orientation == "RAS"


def test_a_model_without_dataset_json(model):
    (model / "dataset.json").unlink()
    with pytest.raises(UserError, match=r"dataset.json is missing; copy it from"):
        open_source(model)


def test_a_dataset_json_that_is_none(model):
    for content, message in (
        ({}, "must have labels as an object"),
        ({"labels": {"background": 0, "a": 2}}, "labels must be 0, 1, 2 and so on"),
        ({"labels": {"background": 0, "a": "x"}}, "whole numbers"),
    ):
        write_json(model / "dataset.json", dataset_json() | content if content else content)
        with pytest.raises(UserError, match=message):
            open_source(model)
