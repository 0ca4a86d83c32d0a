"""nnU-Net trains, validates and predicts with segcal's trainers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch

TERM = "nnU-Net's loss plus 0.1 times the margin term, margin 5"


PAGE = Path(__file__).parents[2] / "docs" / "use" / "nnunet.md"
DEFAULT, MARGIN = "nnUNetTrainerShort", "nnUNetTrainerShortMbLS_m8"


@pytest.fixture(scope="session")
def page(home):
    """Two folds by nnU-Net's default, then every command of the page; what they printed."""
    home.train(4, "2d", 0, DEFAULT, "--npz")
    home.train(4, "2d", 1, DEFAULT)  # probabilities were forgotten, and come later
    home.train(4, "2d", 1, DEFAULT, "--val", "--npz")
    shutil.copytree(
        home.root / "nnUNet_raw/Dataset004_Hippocampus/imagesTs", home.root / "imagesTs"
    )
    return home.follow(PAGE)


def read(file):
    with np.load(file) as archive:
        return archive["probabilities"]


def validation(home, results):
    """Each validation case's probabilities and reference."""
    dataset = results.parents[1].name
    labels = home.root / "nnUNet_raw" / dataset / "labelsTr"
    files = sorted((results / "validation").glob("*.npz"))
    assert len(files) == home.n_cases // 5
    for file in files:
        probs = read(file)
        truth = sitk.GetArrayFromImage(sitk.ReadImage(str(labels / f"{file.stem}.nii.gz")))
        assert probs.shape[1:] == truth.shape
        yield probs, truth


def test_two_folds_with_and_without_the_margin(home, page):
    assert page
    for trainer in (DEFAULT, MARGIN):
        for fold in (0, 1):
            results = home.results(4, "2d", fold, trainer)
            margin = "nnU-Net's loss plus 0.1 times the margin term, margin 8" in home.log(results)
            assert margin == (trainer == MARGIN)
            for probs, _ in validation(home, results):
                assert len(probs) == 3
                np.testing.assert_allclose(probs.sum(0), 1, atol=1e-3)
        saved = torch.load(results / "checkpoint_final.pth", map_location="cpu", weights_only=False)
        assert saved["trainer_name"] == trainer


def test_they_are_audited_and_compared(home, page):
    for name in ("default", "mbls"):
        facts = json.loads((home.root / "audits" / name / "audit.json").read_text())
        assert (facts["kind"], facts["n_cases"], facts["n_folds"]) == ("softmax", 4, 2)
    assert f"{DEFAULT}, 2d" in page
    assert f"{MARGIN}, 2d" in page
    assert (home.root / "report.html").stat().st_size > 10_000


def test_new_cases_are_predicted_and_calibrated(home, page):
    assert page
    (image,) = (home.root / "imagesTs").iterdir()
    (file,) = (home.root / "predictions").glob("*.npz")
    probs, calibrated = read(file), read(home.root / "calibrated" / file.name)
    assert probs.shape == (3, *sitk.GetArrayFromImage(sitk.ReadImage(str(image))).shape)
    label = sitk.GetArrayFromImage(sitk.ReadImage(str(file.with_suffix(".nii.gz"))))
    np.testing.assert_array_equal(label, probs.argmax(0))
    np.testing.assert_array_equal(label, calibrated.argmax(0))
    assert not np.allclose(calibrated, probs)


def test_regions_have_a_sigmoid_each(home):
    results = home.train(5, "2d", 0, "nnUNetTrainerShortMbLS_m5", "--npz")
    assert TERM in home.log(results)
    for probs, _ in validation(home, results):
        assert len(probs) == 2
        assert probs.min() >= 0
        assert probs.max() <= 1


def test_an_ignore_label_in_3d(home):
    results = home.train(6, "3d_fullres", 0, "nnUNetTrainerShortMbLS_m5", "--npz")
    assert TERM in home.log(results)
    for probs, truth in validation(home, results):
        assert len(probs) == 3
        assert (truth == 3).any()


def test_an_interrupted_training_of_one_class_without_deep_supervision_goes_on(home):
    trainer = "nnUNetTrainerShortStoppedCEMbLS_m5"
    with pytest.raises(AssertionError, match="stopped"):
        home.train(7, "2d", 0, trainer)
    results = home.train(7, "2d", 0, trainer, "--c")
    log = home.log(results)
    assert "goes on from epoch 1" in log
    assert log.count("nnU-Net's loss without Dice plus 0.1 times the margin term, margin 5") == 2
    summary = json.loads((results / "validation" / "summary.json").read_text())
    assert len(summary["metric_per_case"]) == home.n_cases // 5
