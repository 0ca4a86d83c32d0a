"""The kept voxels of stored maps against the same scores from dense arrays."""

import numpy as np
import pytest
import torch
from made_predictions import made_case
from scipy.ndimage import distance_transform_cdt

from segcal.auditing.temperatures import calibrated
from segcal.calibrators.curves import curves
from segcal.calibrators.regions import RINGS, scale_regions
from segcal.predictors import Prediction
from segcal.scoring import kept as module
from segcal.scoring.cases import bin_rows, statistics
from segcal.scoring.kept import curves_of, gather, statistics_of
from segcal.types import IGNORE

SPACING = (2.0, 0.8, 0.7)
CLASSES = ("a", "b")


def case_of(n_classes=2, shape=(6, 40, 36), ignored=0, **settings):
    """Maps (K, D, H, W) and a label map of which some voxels are ignored."""
    made = made_case("case", seed=3, n_classes=n_classes, shape=shape, **settings)
    label = made.label.astype(np.int16)
    label[:ignored] = IGNORE
    return made.probs, label


def dense(probs, label, spacing=SPACING):
    logits = torch.from_numpy(probs).log().clamp_min(-87.3)
    return Prediction(logits, torch.from_numpy(label).long(), None, spacing)


def kept_of(probs, label, spacing=SPACING):
    return gather(iter(probs), label, spacing, len(probs), logs=False)


def same_rows(statistics_a, statistics_b, n_classes, tolerance=1e-6):
    names = tuple(f"class {k}" for k in range(1, n_classes + 1))
    a, b = (bin_rows("case", each, names) for each in (statistics_a, statistics_b))
    assert [{**row, "value": 0} for row in a] == [{**row, "value": 0} for row in b]
    for one, other in zip(a, b, strict=True):
        expected = pytest.approx(one["value"], rel=tolerance, abs=tolerance, nan_ok=True)
        assert other["value"] == expected, one


@pytest.mark.parametrize("ignored", [0, 2])
@pytest.mark.parametrize("shape", [(6, 40, 36), (1, 60, 50)])
def test_scores_are_those_of_the_dense_maps(shape, ignored):
    probs, label = case_of(shape=shape, ignored=ignored if shape[0] > 1 else 0)
    kept = kept_of(probs, label)
    case = dense(probs, label)
    found, wanted = statistics_of(kept, kept.stored), statistics(case, case.slices)
    same_rows(wanted, found, 2)
    for name, values in vars(wanted.bands).items():
        np.testing.assert_allclose(getattr(found.bands, name), values, atol=1e-4, err_msg=name)
    assert (kept.prediction.numpy() == probs.argmax(0)).all()


def test_few_voxels_are_kept_of_a_large_background_and_sums_stay_close(monkeypatch):
    """Far from everything a regular sample of the background stands for all of it."""
    probs, label = case_of(shape=(6, 40, 36))
    wide = [(0, 0), (4, 4), (120, 120), (120, 120)]
    probs, label = np.pad(probs, wide), np.pad(label, wide[1:])
    rng = np.random.default_rng(0)
    far = probs.sum(0) == 0
    share = rng.uniform(1e-4, 1e-3, far.sum()).astype(np.float32)
    probs[1, far], probs[0, far] = share, 1 - share
    monkeypatch.setattr(module, "LEAST", 20_000)
    monkeypatch.setattr(module, "ROOM", 0)
    kept, case = kept_of(probs, label), dense(probs, label)
    assert len(kept.labels) < label.size / 5
    assert kept.weight > 5
    found, wanted = statistics_of(kept, kept.stored), statistics(case, case.slices)
    assert int(found.sets["all"].n_voxels.round()) == label.size
    same_rows(wanted, found, 2, tolerance=5e-3)
    found, wanted = (each.sums.sum(1) for each in (curves_of(kept), _curves(case)))
    np.testing.assert_allclose(found, wanted, atol=2e-3 * abs(wanted).max())


def _curves(case):
    return curves(lambda: [(case.slices, case.reference, case.slices)], RINGS)


def test_curves_are_those_of_the_dense_maps():
    probs, label = case_of(ignored=1)
    found, wanted = (
        curves_of(kept_of(probs, label)),
        _curves(dense(probs, label)),
    )
    assert (found.n_voxels == wanted.n_voxels).all()
    np.testing.assert_allclose(found.sums, wanted.sums, rtol=1e-5, atol=1e-4)


def test_voxels_outside_of_the_crop_count_in_scores_and_in_no_fit():
    probs, label = case_of(margin=1)
    kept = gather(iter(probs), label, SPACING, len(probs), logs=False, cropped=True)
    outside = (probs[0] == 1) & (probs[1:] == 0).all(0)
    assert int(kept.unseen.sum()) == outside.sum() > 0
    assert int(statistics_of(kept, kept.stored).sets["all"].n_voxels) == label.size
    assert curves_of(kept).n_voxels.sum() == label.size - outside.sum()


def test_rings_are_distances_to_predicted_foreground_in_steps():
    probs, label = case_of()
    kept = kept_of(probs, label)
    steps = distance_transform_cdt(probs.argmax(0) == 0, metric="taxicab")
    wanted = np.clip(steps, 1, RINGS[-1] + 1) - 1
    for k in range(3):
        counts = [
            np.bincount(x, minlength=9) for x in (kept.ring[kept.labels == k], wanted[label == k])
        ]
        assert (counts[0] == counts[1]).all(), k


@pytest.mark.parametrize("values", [{"temperature": 1.7}, {"near": 2.0, "far": 0.8, "radius": 2.0}])
def test_temperatures_are_applied_as_the_calibrators_do(values):
    probs, label = case_of()
    kept, case = kept_of(probs, label), dense(probs, label)
    if "temperature" in values:
        logits = case.slices / values["temperature"]
    else:
        parameters = {name: torch.tensor(value) for name, value in values.items()}
        logits = scale_regions(case.slices.log_softmax(1), None, **parameters)
    found = statistics_of(kept, calibrated(kept, values))
    same_rows(statistics(case, logits), found, 2, tolerance=1e-5)


def test_logits_are_scored_as_their_softmax():
    probs, label = case_of()
    rng = np.random.default_rng(0)
    shift = rng.normal(size=label.shape).astype(np.float32)
    logits = np.log(probs) + shift
    normalised = logits - np.log(np.exp(logits).sum(0))
    of_logits = gather(iter(normalised), label, SPACING, 3, logs=True)
    found, wanted = statistics_of(of_logits, of_logits.stored), kept_of(probs, label)
    same_rows(statistics_of(wanted, wanted.stored), found, 2, tolerance=1e-5)


def test_rounding_below_zero_counts_as_zero():
    probs, label = case_of()
    probs[1, :2] = 0
    rounded = probs.copy()
    rounded[1, :2] = -1e-3
    wanted, found = kept_of(probs, label), kept_of(rounded, label)
    assert found.log_probs.isfinite().all()
    same_rows(statistics_of(wanted, wanted.stored), statistics_of(found, found.stored), 2)
