"""Each objective against its formula, its laws, and other people's implementations."""

import math

import monai.losses
import oracles
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from segcal import losses
from segcal.losses import LOSSES
from segcal.losses.pointwise import _soft_targets

SHAPES = [(2, 3, 5, 4), (1, 4, 3, 4, 2), (6, 2)]


def example(shape, scale=4.0, dtype=torch.float64, ignored=True):
    logits = torch.randn(shape, dtype=dtype) * scale
    labels = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    if ignored:
        labels.view(-1)[::5] = -100
    return logits, labels


def close(value, expected):
    torch.testing.assert_close(
        torch.as_tensor(value, dtype=torch.float64), torch.as_tensor(expected, dtype=torch.float64)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ignored", [False, True])
def test_pointwise_losses_follow_their_formula(shape, ignored):
    x, y = example(shape, ignored=ignored)
    mean = oracles.mean_over_voxels
    close(losses.ce(x, y), mean(oracles.ce, x, y))
    for gamma in (0.0, 0.5, 1.0, 3.0):
        close(
            losses.focal(x, y, gamma=gamma),
            mean(lambda r, t, g=gamma: oracles.focal(r, t, g), x, y),
        )
    close(losses.ecp(x, y, weight=0.3), mean(lambda r, t: oracles.ecp(r, t, 0.3), x, y))
    by_class = losses.ecp(x, y, weight=0.3, class_reduction="mean")
    close(by_class, mean(lambda r, t: oracles.ecp(r, t, 0.3, "mean"), x, y))
    close(losses.ls(x, y, alpha=0.2), mean(lambda r, t: oracles.ls(r, t, 0.2), x, y))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("penalty", ["l1", "l2"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_margin_follows_its_formula(shape, penalty, reduction):
    x, y = example(shape)
    settings = {"margin": 3.0, "penalty": penalty, "class_reduction": reduction}
    term = oracles.mean_over_voxels(lambda r, t: oracles.margin(r, 3.0, penalty, reduction), x, y)
    assert term > 0
    close(losses.margin_penalty(x, y, **settings), term)
    close(
        losses.mbls(x, y, weight=0.2, **settings),
        oracles.mean_over_voxels(oracles.ce, x, y) + 0.2 * term,
    )
    everywhere = oracles.mean_over_voxels(
        lambda r, t: oracles.margin(r, 3.0, penalty, reduction), x, y, ignore=None
    )
    close(losses.margin_penalty(x, **settings), everywhere)
    close(
        losses.margin_penalty(x, ignore_index=0, **settings), everywhere
    )  # nothing to ignore without labels


def sparse(shape, *foreground):
    """Logits, and labels that are background but at these positions, the last voxel ignored."""
    x, y = torch.randn(shape, dtype=torch.float64) * 4, torch.zeros(shape[0], *shape[2:]).long()
    for position in foreground:
        y[position] = shape[1] - 1
    y.view(-1)[-1] = -100
    return x, y


FEW = [((3, 3, 9), (0, 0), (1, 5)), ((2, 3, 7, 6), (0, 1, 4)), ((2, 2, 3, 5, 4), (0, 0, 2, 1))]


@pytest.mark.parametrize(("shape", "foreground"), [(row[0], row[1:]) for row in FEW])
@pytest.mark.parametrize("penalty", ["l1", "l2"])
@pytest.mark.parametrize("reach", [0, 1, 2])
def test_margin_near_foreground_follows_its_formula(shape, foreground, penalty, reach):
    x, y = sparse(shape, *foreground)
    settings = {"margin": 2.0, "penalty": penalty, "class_reduction": "mean"}
    term = oracles.near_margin(x, y, reach, 2.0, penalty, "mean")
    near = {"where": "near", "reach": reach}
    assert 0 < term < losses.margin_penalty(x, y, **settings)
    close(losses.margin_penalty(x, y, **settings, **near), term)
    ce = oracles.mean_over_voxels(oracles.ce, x, y)
    close(losses.mbls(x, y, weight=0.2, **settings, **near), ce + 0.2 * term)
    both = losses.mbls_dice(x, y, weight=0.2, **settings, **near)
    close(both, ce + oracles.soft_dice(x, y) + 0.2 * term)


@pytest.mark.parametrize("ignore", [-100, 9])
def test_ignored_labels_are_no_foreground_to_be_near(ignore):
    x, y = torch.randn(2, 3, 6, 6, dtype=torch.float64) * 9, torch.zeros(2, 6, 6).long()
    y[0, 2, 2] = ignore
    near = {"margin": 1.0, "where": "near", "reach": 2, "ignore_index": ignore}
    assert losses.margin_penalty(x, y, **near) == 0  # nor has either item any other
    y[1, 0, 0] = 1
    x.requires_grad_()
    losses.margin_penalty(x, y, **near).backward()
    assert x.grad[0].abs().max() == 0
    felt = x.grad[1].abs().sum(0) > 0
    assert felt[:3, :3].any()
    assert not felt[3:].any()
    assert not felt[:, 3:].any()


@pytest.mark.parametrize("shape", [(2, 3, 7, 6), (2, 4, 3, 4, 5)])
@pytest.mark.parametrize("key", ["mbls", "mbls_dice"])
def test_a_margin_that_reaches_everywhere_is_the_papers(shape, key):
    x, y = sparse(shape, (0, 2, 1), (1, 0, 0))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    function = LOSSES[key].function
    left, right = function(a, y, margin=2.0), function(b, y, margin=2.0, where="near", reach=99)
    left.backward()
    right.backward()
    assert torch.equal(left, right)
    assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 3, 3, 4, 2), (2, 2, 7)])
@pytest.mark.parametrize(("size", "sigma"), [(3, 1.0), (5, 0.7), (7, 2.0)])
def test_svls_follows_its_kernel(shape, size, sigma):
    for ignored in (False, True):
        x, y = example(shape, ignored=ignored)
        close(losses.svls(x, y, kernel_size=size, sigma=sigma), oracles.svls(x, y, size, sigma))


def test_svls_keeps_half_of_its_own_label():
    labels = torch.zeros(1, 5, 5).long()
    labels[0, 2, 2] = 1
    target = _soft_targets(labels, 2, torch.ones(1, 5, 5), 3, 1.0)
    assert target[0, 1, 2, 2].item() == pytest.approx(0.5)
    torch.testing.assert_close(target.sum(1), torch.ones(1, 5, 5))
    assert (target[0, 1, 1:4, 1:4] > 0).all()
    assert target[0, 1].count_nonzero() == 9


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("background", [False, True])
def test_dice_follows_its_formula(shape, background):
    x, y = example(shape)
    expected = oracles.soft_dice(x, y, first=0 if background else 1)
    close(losses.soft_dice(x, y, include_background=background), expected)
    ce = oracles.mean_over_voxels(oracles.ce, x, y)
    close(losses.ce_dice(x, y, include_background=background), ce + expected)
    margin = oracles.mean_over_voxels(lambda r, t: oracles.margin(r, 2.0), x, y)
    both = losses.mbls_dice(x, y, margin=2.0, weight=0.3, include_background=background)
    close(both, ce + expected + 0.3 * margin)


@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (1, 4, 5, 6, 7)])
@pytest.mark.parametrize("background", [False, True])
def test_value_and_gradient_are_those_of_monai_and_torch(shape, background):
    x, y = example(shape, ignored=False)
    peer = monai.losses.DiceCELoss(softmax=True, to_onehot_y=True, include_background=background)
    pairs = [
        (
            lambda x: losses.ce_dice(x, y, include_background=background),
            lambda x: peer(x, y.unsqueeze(1)),
        ),
        (
            lambda x: losses.ls(x, y, alpha=0.3),
            lambda x: F.cross_entropy(x, y, label_smoothing=0.3),
        ),
        (lambda x: losses.focal(x, y, gamma=2.0), lambda x: _monai_focal(x, y, 2.0)),
        (
            lambda x: losses.mbls(x, y, margin=3.0),
            lambda x: F.cross_entropy(x, y) + 0.1 * _autograd_margin(x, 3.0, 1),
        ),
        (
            lambda x: losses.mbls(x, y, margin=3.0, penalty="l2", class_reduction="mean"),
            lambda x: F.cross_entropy(x, y) + 0.1 * _autograd_margin(x, 3.0, 2) / x.shape[1],
        ),
    ]
    for ours, theirs in pairs:
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        left, right = ours(a), theirs(b)
        left.backward()
        right.backward()
        close(left.detach(), right.detach())
        torch.testing.assert_close(a.grad, b.grad)


def _monai_focal(x, y, gamma):
    # MONAI averages over voxels and classes, and its softmax version sums over classes where the
    # target is 1.
    peer = monai.losses.FocalLoss(gamma=gamma, use_softmax=True, to_onehot_y=True)
    return peer(x, y.unsqueeze(1)) * x.shape[1]


def _autograd_margin(x, margin, power):
    distance = x.amax(1, keepdim=True) - x
    return (distance - margin).relu().pow(power).sum(1).mean()


def test_gradients_survive_ties_and_are_shared_between_winners():
    x = torch.tensor([[5.0, 5.0, -9.0]], dtype=torch.float64, requires_grad=True)
    losses.margin_penalty(x, margin=1.0).backward()
    torch.testing.assert_close(x.grad, torch.tensor([[0.5, 0.5, -1.0]], dtype=torch.float64))


@pytest.mark.parametrize("key", LOSSES)
def test_sums_are_right_over_two_million_voxels(key):
    """A running float32 sum stalls here; the margin is small enough to be felt."""
    labels = torch.zeros(1, 1 << 21).long()
    labels[:, ::3] = 1
    row = torch.tensor([1.0, -0.3])
    logits = row.view(1, 2, 1).expand(1, 2, 1 << 21)
    variants = (
        [{"margin": 0.1, "penalty": penalty} for penalty in ("l1", "l2")] if "mbls" in key else [{}]
    )
    for settings in variants:
        wide = LOSSES[key].function(logits.double(), labels, **settings)
        assert LOSSES[key].function(logits, labels, **settings).item() == pytest.approx(
            wide.item(), rel=2e-6
        )


# Laws
# ------------------------------------------------------------------------------

finite = st.floats(-30, 30)
rows = st.integers(2, 6).flatmap(lambda k: st.lists(finite, min_size=k, max_size=k))


@given(rows, st.data())
def test_special_cases_are_cross_entropy(row, data):
    x, y = (
        torch.tensor([row], dtype=torch.float64),
        torch.tensor([data.draw(st.integers(0, len(row) - 1))]),
    )
    ce = losses.ce(x, y)
    close(losses.mbls(x, y, margin=math.inf), ce)
    close(losses.mbls(x, y, weight=0.0, margin=0.0), ce)
    close(losses.ls(x, y, alpha=0.0), ce)
    close(losses.focal(x, y, gamma=0.0), ce)
    close(losses.ecp(x, y, weight=0.0), ce)


@given(rows, st.data(), st.floats(0.01, 0.9))
def test_label_smoothing_is_cross_entropy_plus_a_divergence(row, data, alpha):
    r"""LS / (1 - a) = CE + a/(1-a) KL(u||s) + a/(1-a) log K."""
    x, y = (
        torch.tensor([row], dtype=torch.float64),
        torch.tensor([data.draw(st.integers(0, len(row) - 1))]),
    )
    k = len(row)
    kl = -math.log(k) - F.log_softmax(x, 1).mean()
    close(
        losses.ls(x, y, alpha=alpha) / (1 - alpha),
        losses.ce(x, y) + alpha / (1 - alpha) * (kl + math.log(k)),
    )


@given(rows)
def test_proposition_1_bounds_the_linear_penalty(row):
    """KL(u||s) - log K <= mean distance - log K <= KL(u||s), the additive constant being log K."""
    x, k = torch.tensor([row], dtype=torch.float64), len(row)
    kl = float(-math.log(k) - F.log_softmax(x, 1).mean())
    distance = float(losses.margin_penalty(x, margin=0.0, class_reduction="mean"))
    assert kl - 1e-9 <= distance <= kl + math.log(k) + 1e-9


@given(rows, st.data(), st.sampled_from([1.0, 2.0, 3.0]))
def test_focal_bounds_cross_entropy_less_entropy(row, data, gamma):
    x, y = (
        torch.tensor([row], dtype=torch.float64),
        torch.tensor([data.draw(st.integers(0, len(row) - 1))]),
    )
    assert losses.focal(x, y, gamma=gamma) >= losses.ce(x, y) - gamma * oracles.entropy(row) - 1e-9


@given(rows, st.floats(0, 20), st.sampled_from(["l1", "l2"]))
def test_margin_gradient_vanishes_under_the_margin(row, margin, penalty):
    x = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    losses.margin_penalty(x, margin=margin, penalty=penalty).backward()
    distance = max(row) - x.detach()
    loser = distance > 0
    assert (x.grad[loser & (distance <= margin)] == 0).all()
    assert (x.grad[loser & (distance > margin + 1e-9)] < 0).all()
    assert x.grad.sum().abs() < 1e-9 * (1 + distance.sum())  # shifting all logits changes nothing


@pytest.mark.parametrize("key", LOSSES)
def test_invariances(key):
    """Permuting voxels or items with their labels, or shifting all logits of a voxel, changes no
    loss.
    """
    function = LOSSES[key].function
    x, y = example((3, 4, 6, 5))
    value = function(x, y)
    close(function(x.flip(0), y.flip(0)), value)
    close(function(x.transpose(2, 3), y.transpose(1, 2)), value)
    close(function(x + torch.randn(3, 1, 6, 5), y), value)
    swap = torch.tensor([0, 3, 1, 2])  # foreground classes change names
    renamed = torch.where(y < 0, y, swap.argsort()[y.clamp_min(0)])
    close(function(x[:, swap], renamed), value)


@pytest.mark.parametrize("key", ["ce", "ce_dice", "focal", "ecp", "svls"])
def test_an_impossible_class_is_one_that_is_not_there(key):
    """A logit of -inf is a probability of 0, and 0 log 0 is 0: as if the class did not exist."""
    x, y = example((2, 3, 6, 5), ignored=False)
    impossible = torch.cat([x, torch.full((2, 1, 6, 5), -math.inf, dtype=x.dtype)], 1)
    a, b = x.clone().requires_grad_(), impossible.clone().requires_grad_()
    left, right = LOSSES[key].function(a, y), LOSSES[key].function(b, y)
    left.backward()
    right.backward()
    if key != "ce_dice":  # Dice averages over the classes, one more here
        close(right.detach(), left.detach())
        torch.testing.assert_close(b.grad[:, :3], a.grad)
    assert right.isfinite()
    assert b.grad.isfinite().all()
    assert (b.grad[:, 3] == 0).all()
    assert LOSSES[key].function(impossible, torch.full_like(y, 3)).item() == math.inf


@pytest.mark.parametrize("key", LOSSES)
def test_ignored_voxels_have_no_say(key):
    function = LOSSES[key].function
    x, y = example((2, 3, 6, 6))
    x.requires_grad_()
    value = function(x, y)
    value.backward()
    assert (x.grad.movedim(1, -1)[y == -100] == 0).all()
    changed = x.detach().clone()
    changed.movedim(1, -1)[y == -100] = 77.0
    close(function(changed, y), value.detach())
    close(function(x.detach(), y.where(y >= 0, 9), ignore_index=9), value.detach())


@pytest.mark.parametrize("key", LOSSES)
def test_nothing_annotated_gives_nothing(key):
    x = torch.randn(1, 3, 4, 4, requires_grad=True)
    value = LOSSES[key].function(x, torch.full((1, 4, 4), -100))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert x.grad.abs().max() == 0
