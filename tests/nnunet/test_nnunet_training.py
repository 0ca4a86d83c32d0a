"""nnU-Net trains, validates and predicts with segcal's trainers."""

import json

import numpy as np
import pytest
import SimpleITK as sitk
import torch

TERM = "nnU-Net's loss plus 0.1 times the margin term, margin 5"


@pytest.fixture(scope="session")
def softmax(home):
    """Two folds by nnU-Net's default and with the margin."""
    trainers = ("nnUNetTrainerShort", "nnUNetTrainerShortMbLS_m5")
    return {
        (trainer, fold): home.train(4, "2d", fold, trainer, "--npz")
        for trainer in trainers
        for fold in (0, 1)
    }


def validation(home, results):
    """Each validation case's probabilities and reference."""
    dataset = results.parents[1].name
    labels = home.root / "raw" / dataset / "labelsTr"
    files = sorted((results / "validation").glob("*.npz"))
    assert len(files) == home.n_cases // 5
    for file in files:
        probs = read(file)
        truth = sitk.GetArrayFromImage(sitk.ReadImage(str(labels / f"{file.stem}.nii.gz")))
        assert probs.shape[1:] == truth.shape
        yield probs, truth


def test_two_folds_with_and_without_the_margin(home, softmax):
    for (trainer, _), results in softmax.items():
        assert (TERM in home.log(results)) == ("MbLS" in trainer)
        for probs, _ in validation(home, results):
            assert len(probs) == 3
            np.testing.assert_allclose(probs.sum(0), 1, atol=1e-3)
    checkpoint = softmax["nnUNetTrainerShortMbLS_m5", 0] / "checkpoint_final.pth"
    saved = torch.load(checkpoint, map_location="cpu", weights_only=False)
    assert saved["trainer_name"] == "nnUNetTrainerShortMbLS_m5"


@pytest.fixture(scope="session")
def predicted(home, softmax):
    """A case that no fold has seen, by both folds."""
    assert softmax
    images, out = home.root / "raw" / "Dataset004_Softmax" / "imagesTs", home.root / "predicted"
    places = ["-i", images, "-o", out, "-d", 4, "-c", "2d", "-f", 0, 1]
    settings = ["-tr", "nnUNetTrainerShortMbLS_m5", "-device", "cpu", "-npp", 1, "-nps", 1]
    home.run("nnUNetv2_predict", *places, *settings, "--save_probabilities")
    return out


def read(file):
    with np.load(file) as archive:
        return archive["probabilities"]


def test_new_cases_are_predicted_with_probabilities(home, predicted):
    (file,) = predicted.glob("*.npz")
    (image,) = (home.root / "raw" / "Dataset004_Softmax" / "imagesTs").iterdir()
    probs = read(file)
    assert probs.shape == (3, *sitk.GetArrayFromImage(sitk.ReadImage(str(image))).shape)
    label = sitk.GetArrayFromImage(sitk.ReadImage(str(file.with_suffix(".nii.gz"))))
    np.testing.assert_array_equal(label, probs.argmax(0))


def test_both_are_audited_compared_and_calibrated(home, softmax, predicted):
    audits = []
    for trainer in ("nnUNetTrainerShort", "nnUNetTrainerShortMbLS_m5"):
        audits.append(home.root / "audits" / trainer)
        home.segcal("audit", softmax[trainer, 0].parent, "--out", audits[-1])
        facts = json.loads((audits[-1] / "audit.json").read_text())
        assert (facts["kind"], facts["n_cases"], facts["n_folds"]) == ("softmax", 4, 2)
    told = home.segcal("compare", *audits).stdout
    assert "nnUNetTrainerShort, 2d" in told
    assert "nnUNetTrainerShortMbLS_m5, 2d" in told
    report = home.root / "report.html"
    home.segcal("report", *audits, "-o", report)
    assert report.stat().st_size > 10_000
    home.segcal("apply", audits[1], predicted, "--out", home.root / "calibrated")
    (before,) = predicted.glob("*.npz")
    after = read(home.root / "calibrated" / before.name)
    assert not np.allclose(after, read(before))
    np.testing.assert_array_equal(after.argmax(0), read(before).argmax(0))


def test_regions_have_a_sigmoid_each(home):
    results = home.train(5, "2d", 0, "nnUNetTrainerShortMbLS_m5", "--npz")
    assert TERM in home.log(results)
    for probs, _ in validation(home, results):
        assert len(probs) == 2
        assert probs.min() >= 0
        assert probs.max() <= 1


def test_an_ignore_label(home):
    results = home.train(6, "2d", 0, "nnUNetTrainerShortMbLS_m5", "--npz")
    assert TERM in home.log(results)
    for probs, truth in validation(home, results):
        assert len(probs) == 3
        assert (truth == 3).any()


@pytest.mark.parametrize(
    ("configuration", "trainer"),
    [("2d", "nnUNetTrainerShortNoDSMbLS_m5"), ("3d_fullres", "nnUNetTrainerShortMbLS_m5")],
)
def test_without_deep_supervision_and_in_3d(home, configuration, trainer):
    results = home.train(4, configuration, 0, trainer)
    assert TERM in home.log(results)
    summary = json.loads((results / "validation" / "summary.json").read_text())
    assert len(summary["metric_per_case"]) == home.n_cases // 5


def test_an_interrupted_training_of_one_foreground_class_goes_on(home):
    trainer = "nnUNetTrainerShortStoppedCEMbLS_m5"
    with pytest.raises(AssertionError, match="stopped"):
        home.train(7, "2d", 0, trainer)
    results = home.train(7, "2d", 0, trainer, "--c")
    log = home.log(results)
    assert "goes on from epoch 1" in log
    assert log.count("nnU-Net's loss without Dice plus 0.1 times the margin term, margin 5") == 2
    assert (results / "checkpoint_final.pth").is_file()
