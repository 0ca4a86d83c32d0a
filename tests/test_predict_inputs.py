"""What `predict` takes: files, folders, DICOM series, prepared data sets; and what it writes."""

import json
import shutil

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from test_bare import write_dicom

from segcal.config import run_settings
from segcal.data.layouts import write_layout
from segcal.data.prepare import prepare
from segcal.predicting import predict
from segcal.predictors import open_run
from segcal.training import train
from segcal.types import UserError


def trained(cases, out):
    small = ["network.width=4", "training.epochs=2"]
    train(run_settings({"data": cases.root}, overrides=small), out, progress=False)
    return open_run(out)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Raw files with two channels, and a run on their prepared cases, cropped and resampled."""
    root = tmp_path_factory.mktemp("world")
    write_layout("nnunet", root / "raw", n_cases=5, size=(5, 24, 24))
    cases = prepare("mine", root / "raw", root, crop=(4, 20, 20)).cases
    return root, cases, trained(cases, root / "run")


def written(folder):
    arrays = {}
    for path in folder.iterdir():
        if path.suffix != ".json":
            arrays[path.name] = sitk.GetArrayFromImage(sitk.ReadImage(str(path)))
    return arrays


def test_a_folder_is_its_images(world, tmp_path):
    root, _, run = world
    (tmp_path / "imagesTs").mkdir()
    images = sorted((root / "raw" / "imagesTr").glob("phantom_00[01]_*"))
    for path in images:
        shutil.copy(path, tmp_path / "imagesTs")
    (tmp_path / "imagesTs" / "dataset.json").write_text("{}")
    (tmp_path / "imagesTs" / "._x_0000.nii.gz").write_text("what macOS leaves")
    one = predict(run, tmp_path / "imagesTs", tmp_path / "one")
    assert one == predict(run, images, tmp_path / "other")
    assert list(one) == ["phantom_000", "phantom_001"]


def test_a_prepared_data_set_gives_what_its_images_give(world, tmp_path):
    root, cases, run = world
    ids = cases.split("test")
    images = [p for id in ids for p in sorted((root / "raw" / "imagesTr").glob(f"{id}_*"))]
    ours = predict(run, cases.root, tmp_path / "ours", probabilities=True)
    theirs = predict(run, images, tmp_path / "theirs", probabilities=True)
    assert list(ours) == list(ids)
    for id in ids:
        assert ours[id]["classes"] == theirs[id]["classes"]
    mine, other = written(tmp_path / "ours"), written(tmp_path / "theirs")
    assert mine.keys() == other.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, other[name])
    raw = sitk.ReadImage(str(images[0]))
    assert (
        sitk.ReadImage(str(tmp_path / "ours" / f"{ids[0]}_seg.nii.gz")).GetSize() == raw.GetSize()
    )
    assert list(predict(run, cases.root, tmp_path / "val", split="val")) == list(cases.split("val"))


def test_a_data_set_that_was_prepared_differently_is_refused(world, tmp_path):
    root, _, run = world
    other = prepare("other", root / "raw", tmp_path).cases
    with pytest.raises(UserError, match="was prepared differently: recipe is .*predict its images"):
        predict(run, other.root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_images_is_refused(world, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(UserError, match="holds no image, no DICOM series and no prepared data set"):
        predict(world[2], tmp_path, tmp_path / "out")
    (tmp_path / "imagesTs").mkdir()
    with pytest.raises(UserError, match="; name one of its folders: imagesTs"):
        predict(world[2], tmp_path, tmp_path / "out")


def test_two_cases_of_one_name_are_refused(world, tmp_path):
    root, cases, run = world
    (id, *_) = cases.split("test")
    images = sorted((root / "raw" / "imagesTr").glob(f"{id}_*"))
    with pytest.raises(UserError, match=f"two cases are named '{id}'"):
        predict(run, [*images, cases.root], tmp_path / "out")


@pytest.fixture(scope="module")
def one_channel(tmp_path_factory):
    root = tmp_path_factory.mktemp("one")
    cases = prepare("phantom", to=root, n_cases=5, shape=(5, 24, 24)).cases
    return trained(cases, root / "run")


@pytest.mark.parametrize(("given", "mask"), [("mha", "mha"), ("nrrd", "nrrd"), ("mhd", "mha")])
def test_label_maps_have_the_format_of_the_image(one_channel, tmp_path, given, mask):
    image = sitk.GetImageFromArray(np.random.default_rng(0).random((5, 24, 24), np.float32))
    image.SetSpacing((0.9, 0.9, 3.0))
    sitk.WriteImage(image, str(tmp_path / f"scan.{given}"))
    predict(one_channel, tmp_path / f"scan.{given}", tmp_path / "out")
    label = sitk.ReadImage(str(tmp_path / "out" / f"scan_seg.{mask}"))
    assert label.GetSize() == image.GetSize()
    np.testing.assert_allclose(label.GetSpacing(), image.GetSpacing())


def test_a_dicom_series_and_a_folder_of_series_are_cases(one_channel, tmp_path):
    values = (np.random.default_rng(0).random((5, 24, 24)) * 900).astype(np.int16)
    image = sitk.GetImageFromArray(values)
    sitk.WriteImage(image, str(tmp_path / "anna.nii.gz"))
    write_dicom(image, tmp_path / "patients" / "anna")
    write_dicom(image, tmp_path / "patients" / "bert")
    (whole,) = predict(one_channel, tmp_path / "anna.nii.gz", tmp_path / "a").values()
    (series,) = predict(one_channel, tmp_path / "patients" / "anna", tmp_path / "b").values()
    both = predict(one_channel, tmp_path / "patients", tmp_path / "c")
    assert list(both) == ["anna", "bert"]
    assert whole["classes"] == series["classes"] == both["bert"]["classes"]
    assert len(series["images"]) == 5
    assert (tmp_path / "b" / "anna_seg.nii.gz").is_file()


# Pictures
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A run on pictures that are made larger, and the pictures."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for i in range(4):
        mask = np.zeros((20, 30), np.uint8)
        mask[4 : 10 + i, 6:20] = 255
        image = (mask // 2 + rng.integers(0, 90, mask.shape)).astype(np.uint8)
        sitk.WriteImage(sitk.GetImageFromArray(mask), str(root / f"m{i}.png"))
        sitk.WriteImage(sitk.GetImageFromArray(image), str(root / f"i{i}.png"))
    patterns = {"images": str(root / "i*.png"), "labels": str(root / "m*.png")}
    cases = prepare("us", to=root / "cases", size=(40, 60), **patterns).cases
    return root, cases, trained(cases, root / "run")


def test_pictures_have_areas_in_pixels_and_give_pictures(pictures, tmp_path):
    root, cases, run = pictures
    (about,) = predict(run, root / "i0.png", tmp_path, probabilities=True).values()
    assert not any("ml" in key for key in json.dumps(about).split('"'))
    probs = run.logits(torch.from_numpy(np.array(cases.image("0")))).softmax(1)[0, 1]
    row = about["classes"]["label 255"]
    # every pixel of the picture is four of those that the network sees
    assert row["expected_pixels"] == pytest.approx(probs.sum().item() / 4, rel=1e-5)
    assert about["image_pixels"] == pytest.approx(20 * 30)
    label = sitk.ReadImage(str(tmp_path / "i0_seg.png"))
    assert label.GetSize() == (30, 20)
    assert row["pixels"] == row["voxels"] == int(sitk.GetArrayViewFromImage(label).sum())
    confidence = sitk.ReadImage(str(tmp_path / "i0_confidence.tif"))
    assert confidence.GetSize() == (30, 20)
    assert confidence.GetPixelID() == sitk.sitkFloat32
    assert sorted(path.name for path in tmp_path.glob("i0_prob*"))[1] == "i0_prob_1_label-255.tif"
    (prepared,) = predict(run, cases.root, tmp_path / "set").values()
    assert prepared["unit"] == "pixels"


def test_what_is_predicted_is_skipped_and_has_another_run_refused(pictures, tmp_path):
    root, _, run = pictures
    first = predict(run, root / "i0.png", tmp_path / "out")
    label = tmp_path / "out" / "i0_seg.png"
    before = label.stat().st_mtime_ns
    assert predict(run, root / "i0.png", tmp_path / "out") == first
    assert label.stat().st_mtime_ns == before
    differs = r'of .i0., but weights is "best" in i0_summary.json and "last" here; choose'
    with pytest.raises(UserError, match=differs):
        predict(open_run(run.root, weights="last"), root / "i0.png", tmp_path / "out")
