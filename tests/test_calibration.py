"""Calibration statistics against loops, laws, torchmetrics, netcal and scikit-learn."""

import math
import warnings
from fractions import Fraction

import monai.data
import netcal.metrics
import numpy as np
import oracles
import pytest
import sklearn.metrics
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from segcal import metrics
from segcal.metrics import METRICS, reliability, reliability_of_probs
from segcal.types import UserError

SCORES = [key for key, row in METRICS.items() if row.of == "bins" and not row.fine]


def example(shape=(2, 4, 6, 5), scale=2.0, dtype=torch.float32):
    logits = (torch.randn(shape) * scale).to(dtype)
    return logits, torch.randint(0, shape[1], (shape[0], *shape[2:]))


def values(bins):
    return torch.stack([METRICS[key].function(bins).double() for key in SCORES])


def rows(logits, labels, keep):
    probs = F.softmax(logits.double(), 1).movedim(1, -1)[keep]
    return probs.tolist(), labels[keep].tolist()


@pytest.mark.parametrize("shape", [(2, 4, 6, 5), (1, 3, 4, 3, 5), (40, 2)])
@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_scores_follow_their_formula(shape, n_bins):
    x, y = example(shape)
    bins = reliability(x.double(), y, n_bins=n_bins, mask="reference")
    probs, truth = rows(x, y, y > 0)
    assert bins.n_voxels == len(truth)
    assert metrics.ece(bins).item() == pytest.approx(oracles.ece(probs, truth, n_bins))
    assert metrics.cece(bins, class_reduction="sum").item() == pytest.approx(
        oracles.cece(probs, truth, n_bins)
    )
    assert metrics.cece(bins).item() == pytest.approx(oracles.cece(probs, truth, n_bins) / shape[1])
    table = oracles.bins(
        [(max(p), p.index(max(p)) == t) for p, t in zip(probs, truth, strict=True)], n_bins
    )
    gaps = [c - a for _, c, a in table]
    assert metrics.mce(bins).item() == pytest.approx(max(map(abs, gaps)))
    assert metrics.ace(bins).item() == pytest.approx(sum(map(abs, gaps)) / len(gaps))
    over = sum(n * max(c - a, 0) for n, c, a in table) / len(truth)
    assert metrics.overconfidence(bins).item() == pytest.approx(over)
    assert metrics.nll(bins).item() == pytest.approx(
        sum(-math.log(p[t]) for p, t in zip(probs, truth, strict=True)) / len(truth)
    )
    brier = [
        sum((q - (k == t)) ** 2 for k, q in enumerate(p)) for p, t in zip(probs, truth, strict=True)
    ]
    assert metrics.brier(bins).item() == pytest.approx(sum(brier) / len(truth))


def test_parts_of_the_error_add_up():
    bins = reliability(*example(), mask="all")
    over, under = metrics.overconfidence(bins), metrics.underconfidence(bins)
    torch.testing.assert_close(over + under, metrics.ece(bins))
    torch.testing.assert_close(over - under, metrics.confidence_gap(bins))
    per_class = metrics.cece(bins, class_reduction="none")
    torch.testing.assert_close(per_class.sum(), metrics.cece(bins, class_reduction="sum"))


@pytest.mark.parametrize("n_bins", [10, 15])
def test_agrees_with_torchmetrics(n_bins):
    """ECE and MCE. torchmetrics bins in float32, the same (lo, hi] but for rounding at the edges,
    and a bin of its own for confidence 1, which none of these voxels has.
    """
    x, y = example((3, 4, 20, 20))
    bins = reliability(x, y, n_bins=n_bins, mask="all")
    for norm, ours in (("l1", metrics.ece), ("max", metrics.mce)):
        theirs = multiclass_calibration_error(
            F.softmax(x, 1), y, num_classes=4, n_bins=n_bins, norm=norm
        )
        torch.testing.assert_close(ours(bins).float(), theirs, rtol=1e-4, atol=1e-6)


def test_torchmetrics_has_one_more_bin_for_confidence_1():
    """docs/metrics.md quotes these numbers; just below 1 both agree again."""
    for sure, theirs in ((1.0, 0.525), (1 - 1e-6, 0.475)):
        probs, y = torch.tensor([[1 - sure, sure], [0.05, 0.95]]), torch.tensor([0, 1])
        ours = metrics.ece(reliability_of_probs(probs, y, mask="all")).item()
        assert ours == pytest.approx(0.475, abs=1e-5)
        peer = multiclass_calibration_error(probs, y, num_classes=2, n_bins=15).item()
        assert peer == pytest.approx(theirs, abs=1e-5)


def test_agrees_with_netcal():
    """netcal's bins are [lo, hi): other than ours only for a confidence on an edge. Its ACE is the
    average, as ours.
    """
    x, y = example((3, 4, 20, 20))
    probs = F.softmax(x.double(), 1).movedim(1, -1).reshape(-1, 4).numpy()
    bins = reliability(x.double(), y, mask="all")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for peer, ours in (
            (netcal.metrics.ECE, metrics.ece),
            (netcal.metrics.MCE, metrics.mce),
            (netcal.metrics.ACE, metrics.ace),
        ):
            assert ours(bins).item() == pytest.approx(
                peer(15).measure(probs, y.numpy().reshape(-1)), rel=1e-6
            )


def test_agrees_with_scikit_learn():
    x, y = example((3, 4, 20, 20))
    probs = F.softmax(x.double(), 1).movedim(1, -1).reshape(-1, 4).numpy()
    bins = reliability(x.double(), y, mask="all")
    truth = y.numpy().reshape(-1)
    assert metrics.nll(bins).item() == pytest.approx(
        sklearn.metrics.log_loss(truth, probs, labels=range(4))
    )
    squared = sum(sklearn.metrics.brier_score_loss(truth == k, probs[:, k]) for k in range(4))
    assert metrics.brier(bins).item() == pytest.approx(squared)
    assert metrics.accuracy(bins).item() == pytest.approx(np.mean(probs.argmax(1) == truth))


# Laws
# ------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.sampled_from([(15, 67), (10, 7), (1, 3)]))
def test_joining_bins_is_counting_with_fewer(seed, shape):
    n_bins, times = shape
    torch.manual_seed(seed)
    edges = torch.randint(0, 2 * n_bins + 1, (200,)) / (
        2 * n_bins
    )  # many confidences on or beside an edge
    probs, y = torch.stack([edges, 1 - edges], 1), torch.randint(0, 2, (200,))
    joined = reliability_of_probs(probs, y, n_bins=n_bins * times).coarser(n_bins)
    whole = reliability_of_probs(probs, y, n_bins=n_bins)
    assert torch.equal(joined.top.count, whole.top.count)
    assert torch.equal(joined.classes.count, whole.classes.count)
    torch.testing.assert_close(values(joined), values(whole), equal_nan=True)


def test_bins_that_do_not_join():
    with pytest.raises(UserError, match="10 bins cannot be joined into 3; choose a divisor"):
        reliability(*example(), n_bins=10).coarser(3)


@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from(metrics.MASKS))
def test_merging_is_concatenation(seed, cut, mask):
    torch.manual_seed(seed)
    x, y = example((6, 3, 7, 4))
    whole = reliability(x, y, mask=mask)
    parts = reliability(x[:cut], y[:cut], mask=mask) + reliability(x[cut:], y[cut:], mask=mask)
    torch.testing.assert_close(values(parts), values(whole), equal_nan=True)
    assert torch.equal(parts.classes.count, whole.classes.count)
    torch.testing.assert_close(
        values(sum(reliability(x[i : i + 1], y[i : i + 1], mask=mask) for i in range(6))),
        values(whole),
        equal_nan=True,
    )


def test_chunks_do_not_show(monkeypatch):
    x, y = example((3, 4, 9, 8))
    whole = reliability(x, y)
    for size in (1, 7, 72, 100, 216):
        monkeypatch.setattr("segcal.metrics.statistics.CHUNK", size)
        torch.testing.assert_close(values(reliability(x, y)), values(whole))


@given(st.integers(0, 2**31), st.permutations([1, 2, 3]))
def test_names_of_foreground_classes_do_not_matter(seed, order):
    torch.manual_seed(seed)
    x, y = example()
    order = torch.tensor([0, *order])
    renamed = reliability(x[:, order], order.argsort()[y])
    torch.testing.assert_close(values(renamed), values(reliability(x, y)))


def test_logits_and_probabilities_give_the_same():
    x, y = example(dtype=torch.float64)
    torch.testing.assert_close(
        values(reliability_of_probs(F.softmax(x, 1), y)), values(reliability(x, y))
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_first(dtype):
    x, y = example(dtype=dtype)
    torch.testing.assert_close(values(reliability(x, y)), values(reliability(x.float(), y)))
    halved = reliability_of_probs(F.softmax(x.float(), 1).to(dtype), y)
    torch.testing.assert_close(
        values(halved), values(reliability(x.float(), y)), rtol=0.3, atol=0.05
    )


@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([-1, 0, 1]))
def test_every_probability_falls_in_its_bin(n_bins, step, beside):
    """(lo, hi], and confidence 0 in the first bin: exact for float32, at every edge and for the
    floats beside it.
    """
    edge = np.float32(min(step, n_bins) / n_bins)
    p = np.clip(np.nextafter(edge, np.float32(9 * beside)) if beside else edge, 0, 1)
    probs = torch.tensor([[1 - p, p]], dtype=torch.float32)
    bins = reliability_of_probs(probs, torch.tensor([1]), n_bins=n_bins)
    expected = max(math.ceil(Fraction(float(p)) * n_bins) - 1, 0)
    assert bins.classes.count[1].nonzero().item() == expected
    assert bins.classes.count.sum() == 2  # no probability falls through, not even 0


@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([-1, 0, 1]))
def test_precision_does_not_move_a_probability_to_another_bin(n_bins, step, beside):
    edge = np.float64(min(step, n_bins) / n_bins)
    p = np.clip(np.nextafter(edge, np.float64(9 * beside)) if beside else edge, 0, 1)
    probs = torch.tensor([[1 - p, p]], dtype=torch.float64)
    wide = reliability_of_probs(probs, torch.tensor([1]), n_bins=n_bins)
    narrow = reliability_of_probs(probs.float(), torch.tensor([1]), n_bins=n_bins)
    assert torch.equal(wide.classes.count, narrow.classes.count)
    assert torch.equal(wide.top.count, narrow.top.count)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_probability_of_zero_has_the_nll_of_scikit_learn(dtype):
    probs = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.25, 0.75]], dtype=dtype)
    truth = torch.tensor([1, 1, 1])
    bins = reliability_of_probs(probs, truth)
    theirs = sklearn.metrics.log_loss(truth.numpy(), probs.numpy(), labels=[0, 1])
    assert metrics.nll(bins).isfinite()
    assert metrics.nll(bins).item() == pytest.approx(theirs, rel=2e-3)


def test_perfect_and_hopeless():
    y = torch.randint(1, 3, (1, 50, 50))
    sure = F.one_hot(y, 3).movedim(-1, 1).float() * 1e4
    good, bad = reliability(sure, y), reliability(sure.roll(1, 1), y)
    assert metrics.ece(good) == metrics.cece(good) == metrics.nll(good) == metrics.brier(good) == 0
    assert metrics.ece(bad) == metrics.overconfidence(bad) == metrics.mce(bad) == 1
    assert metrics.brier(bad) == 2
    assert metrics.nll(bad) == 1e4


def test_a_calibrated_forecast_scores_near_zero():
    probs = torch.rand(1, 400_000, dtype=torch.float64)
    y = (torch.rand_like(probs) < probs).long()
    bins = reliability_of_probs(torch.stack([1 - probs, probs], 1), y, mask="all")
    assert metrics.ece(bins) < 0.005
    assert metrics.cece(bins) < 0.005
    overconfident = torch.stack([1 - probs, probs], 1).square()
    overconfident = overconfident / overconfident.sum(1, keepdim=True)
    assert metrics.confidence_gap(reliability_of_probs(overconfident, y, mask="all")) > 0.05


def test_a_missed_object_never_scores_well():
    """An object that the network confidently takes for background is the worst case, not an empty
    one.
    """
    y = torch.zeros(1, 20, 20).long()
    y[0, 5:9, 5:9] = 1
    blind = torch.stack([torch.full((1, 20, 20), 12.0), torch.zeros(1, 20, 20)], 1)
    bins = reliability(blind, y, mask="reference")
    assert metrics.ece(bins) > 0.99
    assert metrics.overconfidence(bins) > 0.99
    assert metrics.nll(bins) > 10


def test_sums_do_not_drift():
    """Two million voxels of one confidence: a float32 running sum is off by half a percent."""
    n = 2_000_000
    x = torch.tensor([0.0, 0.9]).view(1, 2, 1).expand(1, 2, n)
    bins = reliability(x, torch.ones(1, n).long())
    conf = F.softmax(x[0, :, 0].double(), 0)[1].item()
    assert (bins.top.conf.sum() / n).item() == pytest.approx(conf, rel=1e-7)
    assert metrics.ece(bins).item() == pytest.approx(1 - conf, rel=1e-6)


def test_no_voxels_give_no_score():
    bins = reliability(torch.zeros(1, 2, 4), torch.zeros(1, 4).long(), mask="reference")
    assert bins.n_voxels == 0
    assert values(bins).isnan().all()
    assert values(bins + reliability(*example((1, 2, 30)))).isfinite().all()


# Masks
# ------------------------------------------------------------------------------


def places(mask):
    """The indices of all voxels of a mask (*S)."""
    return torch.ones_like(mask).nonzero().tolist()


@pytest.mark.parametrize("mask", metrics.MASKS)
@pytest.mark.parametrize("shape", [(2, 3, 7, 8), (1, 3, 6, 5, 7)])
def test_masks_choose_the_voxels_they_name(mask, shape):
    x, _ = example(shape)
    y = torch.zeros(shape[0], *shape[2:]).long()
    y[..., 2:5, 3:6] = 2
    y[..., 0] = 9
    bins = reliability(x, y, mask=mask, ring=1, ignore_index=9)
    kept, pred, fg = y != 9, x.argmax(1) > 0, (y > 0) & (y != 9)
    near = torch.zeros_like(kept)  # both kinds within one step
    for n, *where in kept.nonzero().tolist():
        steps = [sum(abs(a - b) for a, b in zip(where, o, strict=True)) for o in places(kept[n])]
        around = [o for o, step in zip(places(kept[n]), steps, strict=True) if step <= 1]
        kinds = {bool(fg[(n, *o)]) for o in around if kept[(n, *o)]}
        near[(n, *where)] = len(kinds) == 2
    expected = {
        "all": kept,
        "reference": fg,
        "prediction": pred & kept,
        "union": (pred & kept) | fg,
        "ring": near & kept,
        "near": kept,  # 5 voxels reach everywhere here; tests/test_voxels.py looks closer
    }
    probs, truth = rows(x, y, expected[mask])
    assert bins.n_voxels == len(truth) > 0
    assert metrics.ece(bins).item() == pytest.approx(oracles.ece(probs, truth), rel=1e-5)


def test_ignored_voxels_are_neither_side_of_a_ring():
    y = torch.tensor([[1, 1, 1, 9, 9, 0, 0, 0]])
    bins = reliability(torch.zeros(1, 2, 8), y, mask="ring", ring=2, ignore_index=9)
    assert bins.n_voxels == 0  # three voxels apart, with nothing known between them
    assert reliability(torch.zeros(1, 2, 8), y, mask="ring", ring=3, ignore_index=9).n_voxels == 2


def test_unsigned_labels_do_not_wrap_into_the_ignored():
    x, y = torch.randn(1, 200, 4), torch.full((1, 4), 156)
    for kind in (torch.uint8, torch.int16, torch.int64):
        assert reliability(x, y.to(kind)).n_voxels == 4


def test_monai_tensors_leave_no_trace():
    x, y = example()
    bins = reliability(monai.data.MetaTensor(x), monai.data.MetaTensor(y))
    assert type(bins.nll) is type(metrics.ece(bins)) is torch.Tensor


def test_wider_rings_take_in_more():
    x, y = example((1, 2, 30, 30))
    y = torch.zeros_like(y)
    y[0, 10:20, 10:20] = 1
    sizes = [reliability(x, y, mask="ring", ring=r).n_voxels.item() for r in (1, 2, 3)]
    grown = [100 + 40 * r + 2 * r * (r - 1) for r in (1, 2, 3)]  # corners are steps, not squares
    assert sizes == [whole - (10 - 2 * r) ** 2 for r, whole in zip((1, 2, 3), grown, strict=True)]


# Mistakes
# ------------------------------------------------------------------------------

X, Y = torch.zeros(1, 3, 4), torch.ones(1, 4).long()


@pytest.mark.parametrize(
    ("x", "y", "settings", "message"),
    [
        (X, Y[:, :3], {}, r"labels must have shape \(1, 4\)"),
        (X[:, :1], Y, {}, "K >= 2 classes"),
        (X.int(), Y, {}, "logits must be floating point; got torch.int32"),
        (X, Y + 2, {}, r"labels must lie in 0\.\.2, or equal ignore_index -100; got 3"),
        (X, Y - 2, {}, r"labels must lie in 0\.\.2, or equal ignore_index -100; got -1"),
        (X / 0, Y, {}, r"logits must not be NaN or \+inf"),
        (X + math.inf, Y, {}, r"logits must not be NaN or \+inf"),
        (X, Y, {"mask": "foreground"}, "unknown mask 'foreground'; choose one of all, near"),
        (X, Y, {"n_bins": 0}, "n_bins must be at least 1; got 0"),
        (X, Y, {"mask": "ring", "ring": 0}, "ring must be at least 1; got 0"),
    ],
)
def test_bad_input_is_named_in_one_sentence(x, y, settings, message):
    with pytest.raises(UserError, match=message) as caught:
        reliability(x, y, **settings)
    assert "\n" not in str(caught.value)


def test_nan_outside_the_mask_is_still_an_error():
    x, y = torch.zeros(1, 2, 4), torch.tensor([[1, 0, 0, 0]])
    x[0, 0, 3] = math.nan
    with pytest.raises(UserError, match="NaN"):
        reliability(x, y)


def test_minus_infinity_is_a_legal_logit():
    x = torch.tensor([[0.0, 1.0, -math.inf]])
    bins = reliability(x, torch.tensor([1]))
    assert metrics.ece(bins).isfinite()
    assert metrics.nll(bins).isfinite()


def test_logits_given_as_probabilities_are_refused():
    with pytest.raises(UserError, match="for logits use `reliability`"):
        reliability_of_probs(X + 3, Y)
    with pytest.raises(UserError, match="got values from nan to nan"):
        reliability_of_probs(X / 0, Y)
    for off in (0.5, 0.35):
        with pytest.raises(UserError, match="must sum to 1"):
            reliability_of_probs(X + off, Y)


def test_unlike_values_do_not_add():
    with pytest.raises(
        UserError,
        match="statistics add only with the same classes and bins; got 3 classes in 15 bins and 3"
        " classes in 10 bins",
    ):
        reliability(X, Y) + reliability(X, Y, n_bins=10)
    with pytest.raises(UserError, match="unknown class_reduction 'max'"):
        metrics.cece(reliability(X, Y), class_reduction="max")


@pytest.mark.parametrize(("key", "row"), METRICS.items())
def test_every_row_is_complete(key, row):
    assert row.label
    assert row.help
    assert row.arrow in ("↑", "↓", "→0", "→1")
    assert row.of in ("bins", "confusion", "surfaces")
    assert bool(row.voxels) == (row.of == "bins")
    assert row.function.__doc__
    assert getattr(metrics, key)
