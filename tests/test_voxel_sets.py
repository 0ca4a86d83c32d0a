"""Calibration over all voxels, near the prediction, over the reference: laws and slow oracles."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from sklearn.linear_model import LogisticRegression

from segcal import metrics
from segcal.metrics import METRICS, N_FINE, SETS, reliability, reliability_of_sets
from segcal.metrics.by_distance import BANDS, bands
from segcal.metrics.edges import bin_of, fine_edges
from segcal.metrics.logistic import class_intercept, class_slope
from segcal.metrics.sets import top_of_all
from segcal.predictors import Prediction
from segcal.scoring.cases import bin_rows, statistics
from segcal.voxels import grown, near, predicted, square_distance


def volume(shape=(12, 40, 44), n_classes=3, sharpness=6.0, seed=0):
    """Smooth logits (K, D, H, W) with an organ in the middle and sure background around it."""
    generator = torch.Generator().manual_seed(seed)
    small = [max(2, size // 6) for size in shape]
    noise = torch.randn(1, n_classes, *small, generator=generator)
    logits = 3 * F.interpolate(noise, shape, mode="trilinear")[0]
    axes = [torch.linspace(-1, 1, size) for size in shape]
    radius = sum(axis**2 for axis in torch.meshgrid(*axes, indexing="ij"))
    logits[0] += sharpness * (4 * radius - 1)
    return logits


def drawn(logits, seed=0):
    """Labels (*S) drawn from the probabilities of logits (K, *S)."""
    probs = logits.double().softmax(0).flatten(1).T
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(probs, 1, generator=generator).reshape(logits.shape[1:])


def sets_of(logits, labels):
    """The statistics of logits (K, *S) and labels (*S) over each set of voxels."""
    return reliability_of_sets(logits[None], labels[None], near(logits[None]))


def sets_of_many(logits, labels):
    """The same of one network on several label maps (n, *S)."""
    shown = logits.expand(len(labels), *logits.shape)
    return reliability_of_sets(shown, labels, near(shown))


def score(sets, key, voxels=None):
    row = METRICS[key]
    voxels = voxels or row.voxels[0]
    bins = sets[voxels] if row.fine else sets[voxels].coarser()
    return row.over(voxels, bins).item()


# Regions
# ------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_regions_grow_like_scipy_dilates(seed, radius):
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(torch.randint(1, 14, (3,), generator=generator).tolist())
    region = torch.rand(2, *shape, generator=generator) > 0.97
    want = region.numpy()
    if radius:  # SciPy takes no iterations for iterations without end
        want = np.stack([ndimage.binary_dilation(part, iterations=radius) for part in want])
    assert np.array_equal(grown(region, radius).numpy(), want)


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (3.0, 0.7, 0.7), (2.5, 1.0, 0.9)])
def test_distances_are_those_of_scipy(spacing):
    region = torch.rand(9, 30, 31, generator=torch.Generator().manual_seed(1)) > 0.995
    want = ndimage.distance_transform_edt(~region.numpy(), sampling=spacing)
    got = square_distance(region, spacing, 5.0).sqrt().numpy()
    within = want <= 5 + 1e-6
    np.testing.assert_allclose(got[within], want[within], atol=1e-5)
    assert (got[~within] > 5 + 1e-6).all()


# Sums
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("sharpness", [0.5, 6.0, 60.0])
def test_one_pass_is_as_good_as_three(n_classes, ignored, sharpness):
    logits = volume(n_classes=n_classes, sharpness=sharpness)
    labels = drawn(logits / 1.5)
    if ignored:
        labels[:, :5] = -100
    around = near(logits[None])[0]
    sets = sets_of(logits, labels)
    kept = {"all": labels >= 0, "near": around & (labels >= 0), "reference": labels > 0}
    for name, where in kept.items():
        chosen = labels.masked_fill(~where, -100)[None]
        n_bins = 15 if name == "all" else N_FINE
        want = reliability(logits.double()[None], chosen, mask="all", n_bins=n_bins)
        for got, part in zip(sets[name].parts, want.parts, strict=True):
            torch.testing.assert_close(got, part, rtol=1e-6, atol=2e-4)
        assert sets[name].n_voxels == where.sum()


def test_the_sets_are_those_that_masks_choose():
    logits = volume()
    labels = drawn(logits)
    sets = sets_of(logits, labels)
    for name in SETS:
        want = reliability(logits[None], labels[None], mask=name)
        ours = sets[name].coarser()
        torch.testing.assert_close(ours.sums, want.sums, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_predicted_class_alone_is_summed_as_with_all_classes(dtype):
    logits = volume(sharpness=1.0).to(dtype)[None]
    labels = drawn(logits[0])[None]
    labels[..., :7] = -100
    want = reliability(logits, labels)
    found = top_of_all(logits, labels)
    for part in ("count", "conf", "hit"):
        torch.testing.assert_close(getattr(found.bins, part), getattr(want.top, part))
    torch.testing.assert_close(found.nll, want.nll)
    torch.testing.assert_close(found.selection, want.selection)
    torch.testing.assert_close(found.ece_perfect, metrics.ece_perfect(want))


def test_background_that_a_network_rules_out_is_not_sure():
    logits = torch.tensor([-math.inf, -math.inf, 2.0, 0.0])[None, :, None].repeat(1, 1, 9)
    labels, nowhere = torch.zeros(1, 9).long(), torch.zeros(1, 9, dtype=torch.bool)
    labels[0, 4:] = 2
    bins = reliability_of_sets(logits, labels, nowhere)["all"]
    torch.testing.assert_close(bins.sums, reliability(logits, labels).sums)


def test_a_volume_of_certain_background_costs_nothing_and_counts():
    logits = torch.stack([torch.full((4, 9, 9), 30.0), torch.zeros(4, 9, 9)])
    sets = sets_of(logits, torch.zeros(4, 9, 9).long())
    assert sets["all"].n_voxels == 4 * 81
    assert sets["near"].n_voxels == sets["reference"].n_voxels == 0
    assert sets["all"].nll.item() == pytest.approx(4 * 81 * math.exp(-30), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_an_impossible_label_is_infinite_in_its_own_set_alone(dtype):
    logits = torch.full((3, 1, 1, 30), -5.0, dtype=dtype)
    logits[0] = 30
    logits[1, 0, 0, :3] = 35
    logits[2, 0, 0, 20] = -math.inf
    labels = torch.zeros(1, 1, 30).long()
    labels[0, 0, 20] = 2  # far from what is predicted
    sets = sets_of(logits, labels)
    assert score(sets, "nll", "all") == score(sets, "nll", "reference") == math.inf
    assert math.isfinite(score(sets, "nll", "near"))


def test_the_table_of_bins_is_that_of_their_edges():
    edges = fine_edges()
    beside = [edges.nextafter(torch.tensor(end)) for end in (0.0, 1.0)]
    special = torch.tensor([0.0, 1e-45, 1e-38, 0.5, 1.0]), torch.rand(10**5)
    tails = torch.linspace(-25, 25, 10**5).sigmoid()
    for probs in (edges, *beside, *special, tails):
        assert torch.equal(bin_of(probs, N_FINE), torch.bucketize(probs, edges, out_int32=True))
        fifteenths = probs.double().mul(15).ceil().int().sub(1).clamp(0, 14)
        assert torch.equal(bin_of(probs, 15), fifteenths)


def test_oracle_of_what_is_said_per_foreground_voxel():
    logits = volume((5, 20, 22))
    labels = drawn(logits / 2)
    sets = sets_of(logits, labels)
    probs = logits.double().softmax(0)
    conf, pred = probs.max(0)
    bins = [[0.0, 0.0] for _ in range(15)]
    nll = brier = 0.0
    for where in np.ndindex(labels.shape):
        truth = labels[where].item()
        place = max(math.ceil(float(conf[where].float()) * 15) - 1, 0)
        bins[place][0] += conf[where].item()
        bins[place][1] += pred[where].item() == truth
        nll -= math.log(probs[(truth, *where)])
        for k in range(3):
            brier += (probs[(k, *where)].item() - (k == truth)) ** 2
    n = (labels > 0).sum().item()
    misplaced = sum(abs(c - h) for c, h in bins) / n
    assert score(sets, "misplaced") == pytest.approx(misplaced, rel=1e-5)
    assert metrics.misplaced(sets["all"].coarser()).item() == pytest.approx(misplaced, rel=1e-5)
    assert score(sets, "nll") == pytest.approx(nll / n, rel=1e-5)
    assert score(sets, "brier") == pytest.approx(brier / n, rel=1e-5)
    assert score(sets, "volume_ratio") == pytest.approx(probs[1:].sum().item() / n, rel=1e-6)
    gap = sum(c - h for c, h in bins) / n
    assert score(sets, "confidence_gap") == pytest.approx(gap, rel=1e-4)


def test_class_scores_are_of_each_class_s_own_probability():
    logits = volume((6, 20, 22))
    labels = drawn(logits / 2)
    bins = sets_of(logits, labels)["all"].coarser()
    probs = logits.double().softmax(0)
    for k in (1, 2):
        own = torch.stack([1 - probs[k], probs[k]])
        pair = reliability((own.log())[None], (labels == k).long()[None], mask="all")
        n = (labels == k).sum()
        want = pair.classes.gap[1].abs().sum() / n
        assert metrics.calibration.class_misplaced(bins)[k - 1].item() == pytest.approx(
            want.item(), rel=1e-4
        )
        ratio = metrics.calibration.class_volume_ratio(bins)[k - 1].item()
        assert ratio == pytest.approx((probs[k].sum() / n).item(), rel=1e-6)


# Laws
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ece", "cece", "misplaced"])
def test_there_is_a_perfect_value_where_there_is_a_measured_one(key):
    logits = volume((4, 12, 12))
    labels = drawn(logits)
    measured, perfect = METRICS[key], METRICS[f"{key}_perfect"]
    for truth in (labels, labels.clamp_max(1), 0 * labels):  # all classes, one, none
        sets = sets_of(logits, truth)
        voxels = measured.voxels[0]
        values = score(sets, key, voxels), score(sets, f"{key}_perfect")
        assert {math.isnan(value) for value in values} == {not truth.any()}
        if perfect.per_class is not None:
            bins = sets["all"].coarser()
            both = [row.per_class(bins).isnan().tolist() for row in (measured, perfect)]
            assert both[0] == both[1] == [not (truth == k).any() for k in (1, 2)]


def test_a_perfect_network_is_found_to_be_perfect():
    errors = []
    for size in (24, 72):
        logits = volume((size // 3, size, size))
        sets = sets_of(logits, drawn(logits))
        errors.append(score(sets, "misplaced"))
        assert score(sets, "volume_ratio") == pytest.approx(1, abs=3 / size)
    assert errors[1] < errors[0] / 2
    assert errors[1] < 0.02
    assert score(sets, "slope") == pytest.approx(1, abs=0.03)
    assert score(sets, "intercept") == pytest.approx(0, abs=0.05)
    # The score over reference voxels says otherwise: they are chosen by the answer.
    assert score(sets, "ece", "reference") > 0.05


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_padding_with_certain_background_changes_nothing(factor):
    logits = volume((6, 24, 24))
    labels = drawn(logits)
    shown = logits * factor
    padded = F.pad(shown, (20,) * 6, value=0.0)
    padded[0][F.pad(torch.zeros(shown.shape[1:]), (20,) * 6, value=1.0) > 0] = 60.0
    wide = F.pad(labels, (20,) * 6)
    before, after = sets_of(shown, labels), sets_of(padded, wide)
    for key in ("misplaced", "nll", "brier", "volume_ratio", "confidence_gap", "ece_perfect"):
        assert score(after, key) == pytest.approx(score(before, key), rel=1e-4), key
    assert score(before, "confidence_gap") * (factor - 1) >= 0


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_no_perturbation_beats_the_truth_in_expectation(seed):
    """NLL and Brier are proper: of labels drawn from p, p itself has the least of both."""
    generator = torch.Generator().manual_seed(seed)
    logits = volume((4, 16, 16), sharpness=3.0, seed=seed)
    labels = torch.stack([drawn(logits, 100 * seed + i) for i in range(20)])
    honest = sets_of_many(logits, labels)
    noise = torch.randn(logits.shape, generator=generator)
    for shown in (logits + noise, logits + noise / 2, 2 * logits, logits / 2):
        other = sets_of_many(shown, labels)
        for key in ("nll", "brier"):
            assert score(honest, key) < score(other, key)


def test_over_reference_voxels_nll_is_not_proper():
    """To call everything foreground lowers it; over all voxels that is punished."""
    logits = volume()
    labels = drawn(logits)
    greedy = logits.clone()
    greedy[1:] += 4
    honest, wrong = sets_of(logits, labels), sets_of(greedy, labels)
    assert score(wrong, "nll", "reference") < score(honest, "nll", "reference")
    assert score(wrong, "nll", "all") > score(honest, "nll", "all")


def test_a_missed_object_is_never_rewarded():
    labels = torch.zeros(6, 20, 20).long()
    labels[2:4, 8:12, 8:12] = 1
    sure = torch.stack([torch.full(labels.shape, 40.0), torch.zeros(labels.shape)])
    missed = sets_of(sure, labels)
    assert score(missed, "misplaced") == pytest.approx(1)
    assert score(missed, "volume_ratio") == pytest.approx(0, abs=1e-6)
    assert math.isnan(score(missed, "ece", "near"))  # no value, which ranks last


@pytest.mark.parametrize("n_ignored", [0, 20])
def test_the_closed_forms_are_the_means_over_drawn_labels(n_ignored):
    logits = volume((14, 48, 48))

    def labels(seed):
        label_map = drawn(logits, seed)
        label_map[:, :n_ignored] = -100
        return label_map

    sets = sets_of(logits, labels(0))
    parts = {"reference": [], "all": []}
    for seed in range(200):
        for mask, of_mask in parts.items():
            of_mask.append(reliability(logits[None], labels(seed)[None], mask=mask))
    # Together the drawn maps have so many voxels that their counts are the expected ones.
    pooled = sum(parts["reference"])
    for key in ("ece", "cece"):
        assert score(sets, f"{key}_perfect") == pytest.approx(
            METRICS[key].function(pooled).item(), rel=0.01
        ), key
    # One map has noise in every bin on top.
    each = np.mean([metrics.ece(part).item() for part in parts["reference"]])
    assert score(sets, "ece_perfect") < each < 1.2 * score(sets, "ece_perfect")
    # All that is misplaced is such noise.
    row = METRICS["misplaced"]
    each = np.mean([row.over("all", part).item() for part in parts["all"]])
    assert score(sets, "misplaced_perfect") == pytest.approx(each, rel=0.05)
    each = np.mean([row.per_class(part).numpy() for part in parts["all"]], 0)
    everything = sets["all"].coarser()
    np.testing.assert_allclose(
        METRICS["misplaced_perfect"].per_class(everything).numpy(), each, rtol=0.05
    )


def test_a_rare_voxel_misplaces_twice_its_probability_by_chance():
    """The normal approximation would say sqrt(2 p / pi), which is far more."""
    p = 1e-3
    logits = torch.tensor([[-math.log(p / (1 - p)), 0.0]])
    bins = reliability(logits, torch.tensor([1]))  # without foreground there is no value
    exact = p * (1 - p) + (1 - p) * p
    assert metrics.misplaced_perfect(bins).item() == pytest.approx(exact / p, rel=1e-4)


def test_the_closed_form_looks_at_the_labels_only_for_whether_there_is_foreground():
    logits = volume()
    values = []
    for labels in (drawn(logits), torch.ones(logits.shape[1:]).long()):
        sets = sets_of(logits, labels)
        values.append([score(sets, f"{key}_perfect") for key in ("ece", "cece", "misplaced")])
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_murphy_s_parts_add_up_and_name_the_fault():
    logits = volume()
    labels = drawn(logits)
    for factor in (1.0, 3.0):
        sets = sets_of(logits * factor, labels)
        parts = [score(sets, f"brier_{part}") for part in ("calibration", "refinement")]
        assert sum(parts) == pytest.approx(score(sets, "brier"))
        if factor == 1:
            honest = parts
    assert honest[0] < 0.01 * honest[1]
    assert parts[0] > 10 * honest[0]
    assert parts[1] == pytest.approx(honest[1], rel=0.1)  # the order of voxels is the same


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.8])
def test_slope_and_intercept_are_those_of_a_logistic_regression(factor):
    logits = volume((16, 60, 60), n_classes=2)
    labels = drawn(logits)
    shown = logits * factor + torch.tensor([0.3, 0.0])[:, None, None, None]
    bins = sets_of(shown, labels)["near"]
    around = near(shown[None])[0]
    x = (shown[1] - shown[0])[around].double()[:, None].numpy()
    peer = LogisticRegression(C=np.inf, tol=1e-10).fit(x, labels[around].numpy())
    # Log-odds beyond 9 share a bin; only a network that is too sharp has many of them.
    near_enough = 0.003 if factor <= 1 else 0.03
    assert class_slope(bins)[0].item() == pytest.approx(peer.coef_[0, 0], rel=near_enough)
    assert class_intercept(bins)[0].item() == pytest.approx(peer.intercept_[0], abs=0.003)
    assert class_slope(bins)[0].item() == pytest.approx(1 / factor, rel=0.05)


def test_labels_that_say_nothing_have_no_slope():
    logits = volume((4, 12, 12))
    assert class_slope(sets_of(logits, torch.zeros(4, 12, 12).long())["all"]).isnan().all()
    fair = torch.zeros(2, 4, 12, 12)
    fair[1, :, :, 6:] = 1e-3  # one probability only
    assert class_slope(sets_of(fair, drawn(fair))["all"]).isnan().all()


# Bands
# ------------------------------------------------------------------------------


def test_bands_are_counted_like_a_loop():
    logits = volume((7, 18, 20))
    labels = drawn(logits / 1.5)
    labels[0] = -100
    spacing = (2.0, 1.0, 0.8)
    inside = logits.argmax(0) > 0
    places = {True: np.argwhere(inside.numpy()), False: np.argwhere(~inside.numpy())}
    probs = logits.double().softmax(0)
    want, class_conf, class_hit = (np.zeros((n, len(BANDS))) for n in (4, 3, 3))
    for where in np.ndindex(labels.shape):
        if labels[where] == -100:
            continue
        here = bool(inside[where])
        apart = (places[not here] - np.array(where)) * np.array(spacing)
        away = math.sqrt((apart**2).sum(1).min())
        if away > 5 + 1e-6:
            continue
        step = max(math.ceil(away - 1e-4), 1)
        band = BANDS.index(f"{'inside' if here else 'outside'} {step}")
        column = probs[(slice(None), *where)]
        truth = labels[where].item()
        hit = column.argmax().item() == truth
        want[:, band] += [1, column.max().item(), hit, -math.log(column[truth])]
        class_conf[:, band] += column.numpy()
        class_hit[truth, band] += 1
    got = bands(logits, labels, spacing)
    parts = (*want, class_conf, class_hit)
    for ours, theirs in zip(got.parts, parts, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-4)


def test_bands_of_a_calibrated_map_are_of_the_original_outline():
    logits = volume()
    labels = drawn(logits)
    outline = predicted(logits[None])[0]
    other = bands(logits.flip(0), labels, (1, 1, 1), outline)
    assert torch.equal(other.count, bands(logits, labels, (1, 1, 1)).count)
    nothing = torch.stack([torch.ones(3, 4, 5), torch.zeros(3, 4, 5)])
    assert bands(nothing, torch.zeros(3, 4, 5).long(), (1, 1, 1)).count.sum() == 0


def test_near_voxels_of_a_calibrated_map_are_those_before_calibration():
    """A calibrator that may change the label map is scored over the same voxels."""
    logits = volume()
    case = Prediction(logits, drawn(logits), None, (1.0, 1.0, 1.0))
    less = case.slices.clone()
    less[:, 0] += 3  # predicts less foreground
    before, after = statistics(case, case.slices), statistics(case, less)
    assert predicted(less).sum() < predicted(case.slices).sum()
    for name in SETS:
        assert after.sets[name].n_voxels == before.sets[name].n_voxels
    assert after.sets["near"].n_voxels == near(logits[None]).sum()


# Rows
# ------------------------------------------------------------------------------


def test_a_case_without_foreground_is_kept_apart():
    logits = volume()
    labels = torch.zeros(logits.shape[1:]).long()
    case = Prediction(logits, labels, None, (1.0, 1.0, 1.0))
    rows = bin_rows("a", statistics(case, case.slices), ("x", "y"))
    values = {(r["voxels"], r["metric"]): r["value"] for r in rows if r["class"] == "all"}
    assert math.isnan(values["all", "misplaced"])
    assert math.isnan(values["all", "nll"])
    nll = F.cross_entropy(logits[None].double(), labels[None]).item()
    assert values["empty", "nll"] == pytest.approx(1000 * nll, rel=1e-5)
    assert ("empty", "ece") not in values
