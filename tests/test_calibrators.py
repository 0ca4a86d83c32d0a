"""Post-hoc calibrators against grids, scipy, slow loops, and their laws."""

import json
import math
import re
import weakref
from functools import partial

import numpy as np
import pytest
import scipy.optimize
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from segcal.calibrators import (
    CALIBRATORS,
    HIGHEST,
    LOWEST,
    NoForegroundError,
    OutdatedError,
    _digest,
    fit,
    load,
    local,
    save,
)
from segcal.calibrators.curves import GRID, at, curves
from segcal.calibrators.fitting import FLOOR, log_probs, with_labels_of
from segcal.calibrators.local import first_weights, temperatures
from segcal.calibrators.regions import RADII, scale_regions
from segcal.predictors import Prediction
from segcal.types import IGNORE, UserError
from segcal.voxels import NEAR, grown, predicted

ROWS = pytest.mark.parametrize("key", CALIBRATORS)
QUICK = {"ts": {}, "ts2": {}, "lts": {"epochs": 2, "least_steps": 1}, "vs": {}}


def drawn(logits, temperature=1.0):
    """Labels drawn from softmax(logits / T)."""
    probs = (logits.double() / temperature).softmax(1).movedim(1, -1)
    return torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1).reshape(probs.shape[:-1])


def example(n=6, k=3, size=(20, 24), scale=4.0, temperature=1.6, channels=1):
    """Batches of two slices, with some voxels to ignore."""
    logits = torch.randn(n, k, *size) * scale
    logits[:, 0] += 2
    labels = drawn(logits, temperature)
    labels[:, 0] = IGNORE
    image = torch.rand(n, channels, *size)
    return [tuple(x[i : i + 2] for x in (logits, labels, image)) for i in range(0, n, 2)]


def joined(data):
    return tuple(torch.cat(parts) for parts in zip(*data, strict=True))


def flat(data):
    """Voxels that count, as (V, K) and (V,) in float64 NumPy."""
    logits, labels, _ = joined(data)
    kept = labels != IGNORE
    return logits.movedim(1, -1)[kept].double().numpy(), labels[kept].numpy()


def mean_nll(logits, labels):
    shifted = logits - logits.max(1, keepdims=True)
    return (np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]).mean()


def nll(fitted, data):
    """The mean NLL after a calibrator; each batch is a volume of its own."""
    after = torch.cat([fitted(logits, image).double() for logits, _, image in data])
    return F.cross_entropy(after, joined(data)[1], ignore_index=IGNORE).item()


def counting(data):
    """The data as a function that starts a pass, and the list that grows with each."""
    passes = []

    def batches():
        passes.append(1)
        return iter(data)

    return batches, passes


def identity(logits, image):
    return logits


# --- temperature scaling ---


@pytest.mark.parametrize("temperature", [0.08, 0.3, 0.8, 1.0, 1.3, 2.5, 7.0, 15.0])
@pytest.mark.parametrize("k", [2, 3, 7])
def test_ts_is_where_scipy_and_a_grid_find_the_minimum(temperature, k):
    data = example(k=k, temperature=temperature)
    found = fit("ts", lambda: data).facts()
    logits, labels = flat(data)
    loss = lambda log_t: mean_nll(logits * math.exp(-log_t), labels)  # noqa: E731
    best = scipy.optimize.minimize_scalar(
        loss, bounds=(math.log(LOWEST), math.log(HIGHEST)), options={"xatol": 1e-9}
    )
    assert found["temperature"] == pytest.approx(math.exp(best.x), rel=2e-5)
    assert found["nll_after"] == pytest.approx(best.fun, rel=1e-6)
    assert found["nll_before"] == pytest.approx(loss(0), rel=1e-6)
    assert (
        found["nll_after"]
        <= min(loss(math.log(t)) for t in np.linspace(LOWEST, HIGHEST, 300)) + 1e-7
    )
    assert found["n_voxels"] == len(labels)
    assert found["warnings"] == []


@pytest.mark.parametrize("temperature", [0.2, 0.7, 1.0, 2.0, 6.0])
def test_ts_recovers_the_temperature_of_drawn_labels(temperature):
    logits = torch.randn(4, 3, 150, 150) * 3 * temperature
    labels = drawn(logits, temperature)
    fitted = fit("ts", lambda: [(logits, labels, logits)])
    assert fitted.facts()["temperature"] == pytest.approx(temperature, rel=0.02)


@pytest.mark.parametrize("factor", [0.25, 0.5, 3.0, 6.0])
def test_ts_scales_with_the_logits(factor):
    data = example(scale=2.0)
    scaled = [(x * factor, y, i) for x, y, i in data]
    one, other = (fit("ts", lambda d=d: d).facts() for d in (data, scaled))
    assert other["temperature"] == pytest.approx(factor * one["temperature"], rel=1e-5)
    assert other["nll_after"] == pytest.approx(one["nll_after"], rel=1e-6)


def test_ts_ignores_what_is_common_to_all_classes():
    data = example()
    shifted = [(x + 50 * torch.randn(len(x), 1, *x.shape[2:]), y, i) for x, y, i in data]
    one, other = (fit("ts", lambda d=d: d).facts()["temperature"] for d in (data, shifted))
    assert other == pytest.approx(one, rel=1e-4)


def test_curves_are_the_sums_of_autograd():
    data = [(x.double(), y, i) for x, y, i in example(scale=2.0)]
    table = curves(lambda: data)
    assert table.sums.shape == (3, 1, 3, len(GRID)), "a patient for each volume"
    for i, (logits, labels, _) in enumerate(data):
        for j in (0, 5, len(GRID) // 2, len(GRID) - 1):
            u = torch.tensor(GRID[j], requires_grad=True)
            value = F.cross_entropy(logits * u.exp(), labels, ignore_index=IGNORE, reduction="sum")
            (slope,) = torch.autograd.grad(value, u, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, u)
            expected = [value.item(), slope.item(), curvature.item()]
            np.testing.assert_allclose(table.sums[i, 0, :, j], expected, rtol=1e-9)


@pytest.mark.parametrize("k", [2, 3, 7])
def test_between_the_points_of_a_curve_is_the_nll(k):
    data = example(k=k)
    sums = curves(lambda: data).sums.sum(0, keepdims=True)
    logits, labels = flat(data)
    for u in np.linspace(GRID[0], GRID[-1], 50):
        expected = mean_nll(logits * math.exp(u), labels) * len(labels)
        assert at(sums, np.array([u]))[0, 0, 0] == pytest.approx(expected, rel=1e-6)


def test_ts_reads_the_data_once():
    batches, passes = counting(example())
    fit("ts", batches)
    fit("ts2", batches)
    assert len(passes) == 2


def test_ts_finds_the_minimum_of_a_saturated_softmax():
    """At T = 1 there is a slope and hardly any curvature: a plain Newton step would fail."""
    logits = torch.tensor([[20.0, 0.0]]).repeat(1000, 1)
    labels = (torch.arange(1000) < 200).long()
    facts = fit("ts", lambda: [(logits, labels, logits)], voxels="all").facts()
    assert facts["temperature"] == pytest.approx(20 / math.log(0.8 / 0.2), rel=2e-5)
    assert facts["warnings"] == []


@given(st.integers(0, 10**6), st.floats(-2, 4), st.floats(-3, 3))
def test_ts_never_makes_the_nll_worse(seed, log_scale, log_temperature):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(40, 3, generator=generator) * math.exp(log_scale)
    probs = (logits / math.exp(log_temperature)).softmax(1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    facts = fit("ts", lambda: [(logits, labels, logits)], voxels="all").facts()
    assert facts["nll_after"] <= facts["nll_before"] + 1e-9
    assert LOWEST - 1e-12 <= facts["temperature"] <= HIGHEST + 1e-12
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
@pytest.mark.parametrize(
    ("kind", "bound", "words"),
    [
        ("separable", LOWEST, "separate the labels"),
        ("noise", HIGHEST, "say .almost. nothing"),
        ("wrong", HIGHEST, "nothing"),
    ],
)
def test_ts_reports_a_temperature_that_runs_away(scale, kind, bound, words):
    logits = torch.randn(2, 3, 50, 50) * scale
    logits[..., 0] = 0.01 * scale * torch.tensor([1.0, 0, 0])[:, None]  # some near the boundary
    labels = {
        "separable": logits.argmax(1),
        "wrong": logits.argmin(1),
        "noise": torch.randint(0, 3, (2, 50, 50)),
    }[kind]
    if (
        kind == "noise"
        # on a finite sample, noise is a little right or a little wrong: as often as not, exactly
        # neither
    ):
        logits = torch.cat([logits, logits.roll(1, 1), logits.roll(2, 1)])
        labels = labels.repeat(3, 1, 1)
    facts = fit("ts", lambda: [(logits, labels, logits)]).facts()
    assert facts["temperature"] == pytest.approx(bound)
    assert len(facts["warnings"]) == 1
    assert re.search(words, facts["warnings"][0])
    assert facts["interval"] is None


@pytest.mark.parametrize(
    ("logits", "temperature", "words"),
    [
        (torch.zeros(10, 3), 1, "does not depend on the temperature"),
        (torch.eye(3).repeat(4, 1) * 1e4, LOWEST, "separate the labels"),
    ],
    ids=["equal", "certain"],
)
def test_ts_reports_logits_that_leave_nothing_to_fit(logits, temperature, words):
    facts = fit("ts", lambda: [(logits, logits.argmax(1), logits)], voxels="all").facts()
    assert facts["temperature"] == temperature
    assert words in facts["warnings"][0]
    assert facts["interval"] is None


# --- local temperature scaling ---


def random_weights(k, channels, scale=0.3):
    return {
        name: torch.randn_like(w) * scale for name, w in first_weights(k, channels, 1.0, 0).items()
    }


@pytest.mark.parametrize(
    ("size", "mode"),
    [((9, 11), "reflect"), ((5, 6), "reflect"), ((4, 9), "replicate"), ((1, 1), "replicate")],
)
def test_lts_is_a_tree_of_nine_convolutions(size, mode):
    """The network as described: nine separate layers, mixed pixel by pixel."""
    k, channels = 3, 2
    weights = random_weights(k, channels)

    def layer(maps, weight, bias):
        convolution = torch.nn.Conv2d(maps.shape[1], 1, 5, dilation=2, padding=4, padding_mode=mode)
        convolution.weight.data, convolution.bias.data = weight[None], bias[None]
        return convolution(maps)

    logits, image = torch.randn(2, k, *size), torch.rand(2, channels, *size)
    centred = logits - logits.mean(1, keepdim=True)
    eight = [layer(centred, w, b) for w, b in zip(weights["weight"], weights["bias"], strict=True)]
    leaves, gates = eight[:4], [torch.sigmoid(m) for m in eight[4:]]
    image_leaf = layer(image, weights["image_weight"][0], weights["image_bias"][0])
    left = gates[0] * leaves[0] + (1 - gates[0]) * leaves[1]
    right = gates[1] * leaves[2] + (1 - gates[1]) * leaves[3]
    tree = gates[2] * left + (1 - gates[2]) * right
    root = gates[3] * tree + (1 - gates[3]) * image_leaf
    expected = torch.relu(root + 1 - LOWEST) + LOWEST
    assert expected.min() < 0.9, "some at the relu"
    torch.testing.assert_close(temperatures(logits, image, weights), expected.clamp_max(HIGHEST))


def test_lts_starts_at_exactly_one():
    weights = first_weights(3, 1, 2.0, 0)
    start = temperatures(torch.randn(2, 3, 8, 8) * 9, torch.rand(2, 1, 8, 8), weights)
    assert (start == 1).all()
    zero = {name: torch.zeros_like(w) for name, w in weights.items()}
    assert (temperatures(torch.randn(2, 3, 8, 8) * 9, torch.rand(2, 1, 8, 8), zero) == 1).all()


def test_lts_leaves_come_apart():
    """With gates of zero, as in the authors' code, all four leaves would get the same gradient, for
    ever.
    """
    data = example()
    weight = fit("lts", lambda: data, epochs=3, least_steps=1).parameters["weight"]
    assert all((weight[i] - weight[j]).abs().max() > 1e-5 for i in range(4) for j in range(i))

    weights = first_weights(3, 1, 4.0, 0)
    weights["weight"].data.zero_()
    logits, labels, image = data[0]
    F.cross_entropy(
        logits / temperatures(logits, image, weights), labels, ignore_index=IGNORE
    ).backward()
    grad = weights["weight"].grad
    assert (grad[:4] == grad[0]).all()
    assert (grad[4:7] == 0).all()


def by_region(n=40, size=24):
    """Left half over-confident, right half under-confident; the image tells which is which."""
    logits = torch.randn(n, 3, size, size) * 3
    logits = F.avg_pool2d(logits, 3, 1, 1) * 3
    truth = torch.ones(size) * 4
    truth[size // 2 :] = 0.4
    image = torch.zeros(n, 1, size, size)
    image[..., size // 2 :] = 1
    return [
        (logits[i : i + 2], drawn(logits / truth)[i : i + 2], image[i : i + 2])
        for i in range(0, n, 2)
    ]


def test_lts_finds_regions_where_ts_cannot():
    data, test = by_region(), by_region()
    one, local = (
        fit(key, lambda: data, **settings)
        for key, settings in (("ts", {}), ("lts", {"epochs": 30, "lr": 0.01}))
    )
    assert nll(local, data) < nll(one, data) - 0.05
    assert nll(local, test) < nll(one, test) - 0.05
    logits, _, image = joined(test)
    found = temperatures(log_probs(logits), image, local.parameters)
    assert found[..., :8].mean() > 2
    assert found[..., -8:].mean() < 1


def test_lts_keeps_the_best_epoch_and_says_so():
    data = by_region()
    fitted = fit("lts", lambda: data, epochs=12, least_steps=1, lr=0.01)
    facts = fitted.facts()
    assert facts["nll_after"] < facts["nll_before"]
    assert facts["nll_after"] == pytest.approx(nll(fitted, data), rel=1e-5)
    assert facts["nll_before"] == pytest.approx(nll(identity, data), rel=1e-5)
    assert 1 <= facts["best_epoch"] <= 12
    logits, _, image = joined(data)
    mean = temperatures(log_probs(logits), image, fitted.parameters).mean().item()
    assert facts["temperature"]["mean"] == pytest.approx(mean, rel=1e-4)


def test_lts_that_does_not_gain_changes_nothing():
    """The one case without a gain: temperatures cannot help, and a huge rate throws them about."""
    logits = torch.randn(2, 2, 12, 12)
    logits[:, 1] = -logits[:, 0]
    labels, image = drawn(logits), torch.rand(2, 1, 12, 12)
    fitted = fit("lts", lambda: [(logits, labels, image)], epochs=1, least_steps=1, lr=10.0)
    facts = fitted.facts()
    assert facts["best_epoch"] == 0
    assert facts["nll_after"] == facts["nll_before"]
    assert facts["warnings"] == [
        "no epoch had a lower NLL than uncalibrated logits, so this calibrator changes nothing"
    ]
    torch.testing.assert_close(fitted(logits, image), logits.log_softmax(1))


def test_lts_is_the_same_twice_and_leaves_the_callers_seed_alone():
    data = example()
    state = torch.get_rng_state()
    one, two, other = (
        fit("lts", lambda: data, epochs=2, least_steps=1, seed=seed).parameters
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["weight"], other["weight"])
    assert torch.equal(torch.get_rng_state(), state)


def test_lts_takes_a_scan_in_parts_to_the_same_end(monkeypatch):
    data = [
        (torch.randn(5, 3, 12, 12) * 3, torch.randint(0, 3, (5, 12, 12)), torch.rand(5, 1, 12, 12))
        for _ in range(2)
    ]
    whole = fit("lts", lambda: data, epochs=3, least_steps=1)
    seen = []
    monkeypatch.setattr(local, "PART", 300)  # two slices at a time, and a last one
    monkeypatch.setattr(
        local, "temperatures", lambda x, of, w: seen.append(len(x)) or temperatures(x, of, w)
    )
    parts = fit("lts", lambda: data, epochs=3, least_steps=1)
    assert set(seen) == {1, 2}
    for name, value in whole.parameters.items():
        torch.testing.assert_close(parts.parameters[name], value, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(
        parts(data[0][0], data[0][2]), whole(data[0][0], data[0][2]), rtol=1e-3, atol=1e-4
    )


def test_lts_reports_temperatures_at_their_bounds():
    logits = torch.randn(2, 2, 16, 16) * 2
    facts = fit(
        "lts", lambda: [(logits, logits.argmax(1), torch.rand(2, 1, 16, 16))], epochs=200, lr=0.05
    ).facts()
    assert facts["temperature"]["at_lowest"] > 0.1
    assert "at its lower bound 0.05" in facts["warnings"][0]


# --- vector scaling ---


@pytest.mark.parametrize("k", [2, 3, 5])
def test_vs_is_where_scipy_finds_the_minimum(k):
    data = example(k=k, scale=2.0)
    for logits, labels, _ in data:  # calibrated by another scale and bias per class
        labels[:, 1:] = drawn(
            logits * torch.linspace(0.3, 1.5, k)[:, None, None] + torch.randn(k, 1, 1)
        )[:, 1:]
    fitted = fit("vs", lambda: data, ridge=1e-4)
    logits, labels = flat([(x.double().log_softmax(1), y, i) for x, y, i in data])

    def loss(theta):
        ridge = 0.5e-4 * (((theta[:k] - 1) ** 2).sum() + (theta[k:] ** 2).sum())
        return mean_nll(logits * theta[:k] + theta[k:], labels) + ridge

    start = np.concatenate([np.ones(k), np.zeros(k)])
    best = scipy.optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-9})
    facts = fitted.facts()
    np.testing.assert_allclose([*facts["scale"], *facts["bias"]], best.x, atol=2e-4)
    assert sum(facts["bias"]) == pytest.approx(0, abs=1e-9)
    assert facts["nll_after"] == pytest.approx(
        mean_nll(logits * facts["scale"] + facts["bias"], labels), rel=1e-9
    )
    assert facts["nll_before"] == pytest.approx(mean_nll(logits, labels), rel=1e-6)
    assert facts["warnings"] == []


def test_vs_is_no_worse_than_ts_and_takes_few_passes():
    for scale in (1.0, 10.0):
        for temperature in (0.3, 1.0, 4.0):
            batches, passes = counting(example(scale=scale, temperature=temperature))
            facts = fit("vs", batches).facts()
            assert facts["nll_after"] <= fit("ts", batches).facts()["nll_after"] + 1e-5
            assert facts["passes"] <= 20
            assert len(passes) > facts["passes"]


def test_vs_reports_what_only_the_ridge_holds():
    logits = torch.randn(2, 3, 30, 30)
    separable = fit("vs", lambda: [(logits, logits.argmax(1), logits)])
    assert "separate the labels" in separable.facts()["warnings"][0]
    labels = drawn(logits[:, :2])
    absent = fit("vs", lambda: [(logits, labels, logits)])
    assert "class 2 has no voxel here" in absent.facts()["warnings"][0]
    for fitted in (separable, absent):
        json.dumps(fitted.facts(), allow_nan=False)
        assert fitted(logits * 100).isfinite().all()
        assert max(map(abs, fitted.facts()["scale"] + fitted.facts()["bias"])) < 1e3


def test_vs_can_change_the_label_map():
    logits = torch.tensor([[2.0, 0.0]]).repeat(10, 1)
    labels = torch.tensor([1] * 9 + [0])
    assert not CALIBRATORS["vs"].keeps_labels
    fitted = fit("vs", lambda: [(logits, labels, logits)], voxels="all")
    assert (fitted(logits).argmax(1) == 1).all()


# --- the label map ---


@given(
    st.integers(0, 10**6),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.floats(-60, 60),
)
def test_a_division_keeps_the_label_map(seed, dtype, log_scale):
    """Ties, neighbours that round to one value, overflow and underflow; compared with the first of
    the largest.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randint(-3, 4, (50, 4), generator=generator).double() / 3).to(dtype)
    step = torch.randint(-2, 3, (50, 4), generator=generator).to(dtype) * torch.finfo(dtype).eps
    logits = (
        ((logits + step).double() * math.exp(log_scale))
        .clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
        .to(dtype)
    )
    temperature = (
        torch.empty(50, 1)
        .uniform_(LOWEST, HIGHEST, generator=generator)
        .to(torch.float64 if dtype == torch.float64 else torch.float32)
    )
    out = with_labels_of(logits, (log_probs(logits) / temperature).to(dtype))
    assert out.dtype == dtype
    assert torch.equal(out.argmax(1), logits.argmax(1))
    assert not out.isnan().any()


def test_a_bare_division_would_not():
    logits = torch.tensor([1.501, 1.502], dtype=torch.float16)[None]
    assert (logits / 1.5).argmax(1) == 0
    assert with_labels_of(logits, logits / 1.5).argmax(1) == logits.argmax(1) == 1


@pytest.mark.parametrize("key", [key for key, row in CALIBRATORS.items() if row.keeps_labels])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_calibrators_that_promise_it_keep_the_label_map(key, dtype):
    data = by_region()
    fitted = fit(key, lambda: data, **({"epochs": 5, "lr": 0.05} if key == "lts" else {}))
    logits, _, image = joined(data)
    hard = (logits * 8).round().div(8).to(dtype)  # many ties
    for test in (logits.to(dtype), hard, hard * 1000, hard * 1e-6):
        out = fitted(test, image)
        assert out.dtype == dtype
        assert out.shape == test.shape
        assert torch.equal(out.argmax(1), test.argmax(1))
        assert out.isfinite().all()
    assert not torch.equal(fitted(logits, image), logits)


# --- functions of log-probabilities ---


@ROWS
def test_a_constant_added_to_a_voxel_changes_nothing(key):
    data = example()
    shifted = [(x + 9 * torch.randn(len(x), 1, *x.shape[2:]), y, i) for x, y, i in data]
    one, other = (fit(key, lambda d=d: d, **QUICK[key]) for d in (data, shifted))
    for (x, _, image), (moved, _, _) in zip(data, shifted, strict=True):
        probs = one(x, image).softmax(1)
        torch.testing.assert_close(one(moved, image).softmax(1), probs, rtol=0, atol=1e-4)
        torch.testing.assert_close(other(x, image).softmax(1), probs, rtol=0, atol=1e-3)


@ROWS
@pytest.mark.parametrize("scale", [2.0, 30.0], ids=["soft", "some probabilities are 0"])
def test_fitted_on_logits_it_is_right_on_stored_probabilities(key, scale):
    """And the other way round, also where a probability is too small for float32."""
    data = example(scale=scale)
    stored = [(x.softmax(1).log(), y, i) for x, y, i in data]
    assert any(x.isinf().any() for x, _, _ in stored) == (scale > 2)
    one, other = (fit(key, lambda d=d: d, **QUICK[key]) for d in (data, stored))
    assert other.facts()["nll_after"] == pytest.approx(one.facts()["nll_after"], rel=1e-3)
    for (x, _, image), (logs, _, _) in zip(data, stored, strict=True):
        probs = one(x, image).softmax(1)
        for fitted in (one, other):
            out = fitted(logs, image)
            assert out.isfinite().all()
            torch.testing.assert_close(out.softmax(1), probs, rtol=0, atol=2e-3)


def test_the_floor_is_that_of_float32():
    assert math.log(torch.finfo(torch.float32).smallest_normal) == pytest.approx(FLOOR, abs=0.05)


# --- near the prediction ---


def organ(n=3, depth=9, size=40, near=1.0, far=1.0, radius=0):
    """Volumes with a small organ, and labels drawn from probabilities that were sharpened by known
    factors up to a distance from predicted foreground, and beyond.
    """
    out = []
    for _ in range(n):
        axes = (torch.linspace(-1, 1, x) for x in (depth, size, size))
        z, y, x = torch.meshgrid(*axes, indexing="ij")
        shape = 2.4 - 7 * (z**2 + 3 * y**2 + 3 * x**2).sqrt()
        noise = torch.randn(2, depth, size, size)
        # certain background would tell nothing about the temperature there
        foreground = shape.clamp_min(-2)[None] + noise.clamp(-1.9, 1.9)
        honest = torch.cat([torch.zeros(1, depth, size, size), foreground]).movedim(0, 1)
        honest = honest.contiguous()
        weight = weight_of(predicted(honest), radius)
        factor = 1 / (weight / near + (1 - weight) / far)
        out.append((honest * factor[:, None], drawn(honest), torch.rand(depth, 1, size, size)))
    return out


def weight_of(foreground, radius):
    """The share of the temperature near foreground, from the steps between all voxels."""
    places, everywhere = foreground.nonzero(), torch.ones_like(foreground).nonzero()
    distance = torch.cdist(everywhere.float(), places.float(), p=1).amin(1)
    return ((radius + 3 - distance) / 3).clamp(0, 1).reshape(foreground.shape)


def test_near_is_the_region_that_scores_are_over():
    """In three axes, of the whole case: fitted on the slices one by one the fit is another."""
    data = organ(depth=13, far=3.0, near=1.2, radius=1)
    inside = []
    for logits, labels, image in data:
        case = Prediction(logits.movedim(1, 0), labels, image, (1.0, 1.0, 1.0))
        region = grown(predicted(case.logits[None]), NEAR)[0]  # as scoring has it
        assert 0 < region.float().mean() < 0.9
        inside.append((case.slices, labels.masked_fill(~region, IGNORE), image))
    one_by_one = [tuple(x[i : i + 1] for x in case) for case in data for i in range(13)]
    found, masked, sliced = (
        fit("ts", lambda d=d: d, voxels=voxels).facts()["temperature"]
        for d, voxels in ((data, "near"), (inside, "all"), (one_by_one, "near"))
    )
    assert found == pytest.approx(masked, rel=1e-6)
    assert abs(found - sliced) > 1e-3


@pytest.mark.parametrize("key", ["ts", "ts2", "vs"])
def test_slices_of_one_volume_and_several_volumes_agree(key):
    data = organ(far=1.5, near=2.5, radius=1)
    volumes = [tuple(torch.stack(parts) for parts in zip(*data, strict=True))]
    volumes = [(x.movedim(1, 2), y, i.movedim(1, 2)) for x, y, i in volumes]  # (N, K, D, H, W)
    one, other = (fit(key, lambda d=d: d) for d in (data, volumes))
    for name, value in one.parameters.items():
        torch.testing.assert_close(other.parameters[name], value, rtol=1e-6, atol=1e-9)
    for name in {"interval", "near_interval", "far_interval"} & set(one.record):
        assert other.record[name] == pytest.approx(one.record[name]), "a patient for each volume"
    after = torch.stack([one(x) for x, _, _ in data]).movedim(1, 2)
    torch.testing.assert_close(one(volumes[0][0]), after)


@ROWS
def test_cases_without_predicted_foreground(key):
    """They say nothing about what is near it; and if none has any, a remedy is told."""
    data = organ(far=1.5, near=2.5, radius=1)
    empty = [(x - 50 * torch.eye(3)[0][:, None, None] * -1, y, i) for x, y, i in data[:1]]
    assert not predicted(empty[0][0]).any()
    if key == "ts2":  # takes all voxels
        facts = fit(key, lambda: empty).facts()
        assert facts["near"] == 1
        assert "near predicted foreground, the NLL does not depend" in facts["warnings"][0]
    else:
        with pytest.raises(NoForegroundError, match=r"near predicted foreground; .*--voxels all"):
            fit(key, lambda: empty, voxels="near")
    if key in ("ts", "vs"):
        one, other = (
            fit(key, lambda d=d: d, voxels="near").parameters for d in (data, data + empty)
        )
        for name, value in one.items():
            torch.testing.assert_close(other[name], value)


@pytest.mark.parametrize(("key", "options"), [("ts", {}), ("ts2", {}), ("vs", {"voxels": "near"})])
def test_voxels_without_a_place_are_refused(key, options):
    logits = torch.randn(50, 3)
    with pytest.raises(UserError, match=r"only in logits \(D, K, H, W\) or .* got 2 axes"):
        fit(key, lambda: [(logits, drawn(logits), logits)], **options)


# --- two temperatures ---


@pytest.mark.parametrize(("near", "far", "radius"), [(2.0, 1.0, 2), (1.3, 0.7, 3), (0.8, 1.6, 1)])
def test_ts2_finds_by_what_two_regions_were_sharpened(near, far, radius):
    data = organ(n=6, depth=11, near=near, far=far, radius=radius)
    facts = fit("ts2", lambda: data).facts()
    assert facts["near"] == pytest.approx(near, rel=0.06)
    assert facts["far"] == pytest.approx(far, rel=0.06)
    assert facts["radius"] == radius
    assert facts["nll_after"] == min(facts["nll_of_radius"].values())
    assert list(facts["nll_of_radius"]) == [str(r) for r in RADII]
    assert facts["warnings"] == []
    assert facts["nll_after"] < fit("ts", lambda: data, voxels="all").facts()["nll_after"]


def test_ts2_is_where_scipy_finds_the_minimum():
    data = [(x.double(), y, i) for x, y, i in organ(near=2.0, far=0.8, radius=2)]
    facts = fit("ts2", lambda: data).facts()
    radius = torch.tensor(facts["radius"])

    def loss(log_t):
        near, far = torch.tensor(log_t).exp()
        total = 0.0
        for logits, labels, _ in data:
            out = scale_regions(logits.log_softmax(1), None, near=near, far=far, radius=radius)
            total += F.cross_entropy(out, labels).item()
        return total / len(data)

    best = scipy.optimize.minimize(loss, [0.0, 0.0], method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose([facts["near"], facts["far"]], np.exp(best.x), rtol=2e-5)
    assert facts["nll_after"] == pytest.approx(best.fun, rel=1e-6)
    assert facts["nll_before"] == pytest.approx(loss([0.0, 0.0]), rel=1e-6)


@pytest.mark.parametrize("radius", RADII)
def test_ts2_is_joined_over_two_voxels(radius):
    logits = torch.randn(5, 3, 16, 17)
    logits[:, 0] += 5
    logits[2, 1, 3, 4] = 20
    values = {"near": torch.tensor(2.0), "far": torch.tensor(0.5), "radius": torch.tensor(radius)}
    out = scale_regions(logits, None, **values)
    weight = weight_of(predicted(logits), radius)
    torch.testing.assert_close(out, logits * (weight / 2 + (1 - weight) * 2)[:, None])


def test_ts2_leaves_alone_what_the_data_do_not_determine():
    """No error far away: any certainty would look good there."""
    data = organ(near=2.0, radius=2)
    far = [~grown(predicted(x)[None], 4)[0] for x, _, _ in data]
    data = [(x, y * ~place, i) for (x, y, i), place in zip(data, far, strict=True)]
    facts = fit("ts2", lambda: data).facts()
    chosen = [text for text in facts["warnings"] if "stays 1 there" in text]
    assert (facts["far"] == 1) == bool(chosen)
    quiet = [(x, torch.zeros_like(y), i) for x, y, i in data]
    facts = fit("ts2", lambda: quiet).facts()
    assert facts["far"] == 1
    assert facts["far_interval"] is None
    assert "far from predicted foreground, the temperature ran into" in facts["warnings"][-1]


# --- intervals over patients ---


def test_an_interval_covers_the_temperature_of_all_patients():
    """Each patient has a temperature of its own: an interval over voxels would be far too short."""
    generator = torch.Generator().manual_seed(0)

    def patients(n):
        spread = (0.4 * torch.randn(n, 1, 1, generator=generator)).exp()
        honest = torch.randn(n, 3, 200, generator=generator) * 2
        probs = honest.softmax(1).movedim(1, 2).reshape(-1, 3)
        labels = torch.multinomial(probs, 1, generator=generator).reshape(n, 200)
        return 1.5 * spread * honest, labels

    logits, labels = patients(4000)
    truth = fit("ts", lambda: [(logits, labels, logits)], voxels="all").facts()["temperature"]
    for n in (4, 12):
        hits = 0
        for _ in range(100):
            logits, labels = patients(n)
            batches = [(x[None], y[None], x) for x, y in zip(logits, labels, strict=True)]
            low, high = fit("ts", lambda b=batches: b, voxels="all").facts()["interval"]
            hits += low <= truth <= high
        assert 88 <= hits <= 99, n


def test_patients_and_not_cases_are_what_intervals_are_over():
    data = organ(n=4, near=1.7, far=1.2, radius=2)
    named = [(*case, "ab"[i // 2]) for i, case in enumerate(data)]
    one, other, alone = (
        fit("ts", lambda d=d: d).facts() for d in (data, named, [(*case, "a") for case in data])
    )
    assert [facts["n_patients"] for facts in (one, other, alone)] == [4, 2, 1]
    assert one["temperature"] == pytest.approx(other["temperature"])
    for facts in (one, other):
        low, high = facts["interval"]
        assert low < facts["temperature"] < high
    assert one["interval"] != pytest.approx(other["interval"], rel=1e-3)
    assert alone["interval"] is None
    assert alone["over_all"]["interval"] is None


def test_ts_tells_when_one_temperature_cannot_serve_both():
    for near, far, apart in ((2.5, 1.0, True), (1.5, 1.5, False)):
        data = organ(n=6, near=near, far=far, radius=NEAR)
        facts = fit("ts", lambda d=data: d).facts()
        everywhere = fit("ts", lambda d=data: d, voxels="all").facts()
        assert facts["over_all"]["temperature"] == pytest.approx(everywhere["temperature"])
        assert facts["over_all"]["interval"] == pytest.approx(everywhere["interval"])
        told = [text for text in facts["warnings"] if "one temperature cannot serve both" in text]
        assert bool(told) == apart
        assert everywhere["warnings"] == []


# --- every calibrator ---


@pytest.mark.parametrize("key", ["ts", "lts", "vs"])  # ts2 sees the slices of a batch as one volume
def test_streaming_gives_what_one_batch_gives(key):
    data = example()
    settings = (
        {"epochs": 1} if key == "lts" else {}
    )  # lts steps per batch: only the evaluation is the same
    one, many = (fit(key, lambda d=d: d, **settings) for d in ([joined(data)], data))
    assert one.facts()["nll_before"] == pytest.approx(many.facts()["nll_before"], rel=1e-6)
    if key != "lts":
        for name, value in one.parameters.items():
            torch.testing.assert_close(many.parameters[name], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("key", ["ts", "vs"])
@pytest.mark.parametrize("chunk", [20, 1000, 3000])
def test_chunks_give_what_the_whole_gives(key, chunk, monkeypatch):
    data = example()
    whole = fit(key, lambda: data).parameters
    monkeypatch.setattr("segcal.calibrators.fitting.CHUNK", chunk)
    for name, value in fit(key, lambda: data).parameters.items():
        torch.testing.assert_close(value, whole[name], rtol=1e-6, atol=1e-8)


@ROWS
def test_ignored_voxels_do_not_count(key):
    data = example()
    other = [(x.clone(), y, i) for x, y, i in data]
    for logits, labels, _ in other:
        logits.movedim(1, -1)[labels == IGNORE] *= 7  # the same regions
    before, after = (fit(key, lambda d=d: d, **QUICK[key]) for d in (data, other))
    assert after.facts()["nll_before"] == pytest.approx(before.facts()["nll_before"], rel=1e-9)
    if key != "lts":  # whose convolutions see neighbours
        for name, value in before.parameters.items():
            torch.testing.assert_close(after.parameters[name], value, rtol=1e-9, atol=1e-12)


@ROWS
def test_batches_are_in_memory_one_at_a_time(key):
    alive = []

    def batches():
        for _ in range(6):
            assert sum(ref() is not None for ref in alive) <= 1, "the one before last is gone"
            torch.manual_seed(len(alive) % 6)
            batch = example(n=2)[0]
            alive.append(weakref.ref(batch[0]))
            yield batch
            del batch

    fit(key, batches, **QUICK[key])
    assert len(alive) >= 6


@ROWS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_cached_logits_may_be_of_any_type(key, dtype):
    data = example()
    narrow = [(x.to(dtype), y.to(torch.int32), i.to(dtype)) for x, y, i in data]
    one, other = (fit(key, lambda d=d: d, **QUICK[key]).facts() for d in (data, narrow))
    assert other["nll_after"] == pytest.approx(one["nll_after"], rel=0.01)


@ROWS
def test_a_fit_lowers_the_nll_and_is_ready_for_json(key):
    data = example()
    fitted = fit(key, lambda: data, **QUICK[key])
    facts = fitted.facts()
    assert facts["key"] == key
    assert facts["settings"] == {**CALIBRATORS[key].settings, **QUICK[key]}
    assert nll(fitted, data) == pytest.approx(facts["nll_after"], rel=1e-5)
    assert facts["nll_after"] < facts["nll_before"]
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    facts["warnings"].append("mine")
    assert "mine" not in fitted.facts()["warnings"]


@ROWS
def test_no_gradient_flows_and_inputs_stay(key):
    data = example()
    fitted = fit(key, lambda: data, **QUICK[key])
    logits, _, image = data[0]
    kept = logits.clone()
    out = fitted(logits.requires_grad_(), image)
    assert not out.requires_grad
    assert torch.equal(logits, kept)
    assert not any(value.requires_grad for value in fitted.parameters.values())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fitted(logits, image), out)


@pytest.mark.parametrize("key", ["ts", "vs"])
def test_any_number_of_axes(key):
    for shape in ((50, 3), (4, 3, 9), (2, 3, 4, 5, 6)):
        logits = torch.randn(shape) * 3
        labels = drawn(logits)
        fitted = fit(key, lambda x=logits, y=labels: [(x, y, x)], voxels="all")
        assert fitted(logits).shape == shape
    plane = torch.randn(2, 3, 5, 7)
    torch.testing.assert_close(fitted(plane).flatten(2), fitted(plane.flatten(2)))


@ROWS
def test_small_slices_and_single_voxels(key):
    for size in ((1, 1), (2, 3), (4, 9), (5, 5)):
        data = example(n=4, size=size)
        for _, labels, _ in data:
            labels[labels == IGNORE] = 0
        data[0][0][0, 1] += 9  # there must be predicted foreground
        fitted = fit(key, lambda d=data: d, **QUICK[key])
        assert fitted(data[0][0], data[0][2]).isfinite().all()


# --- errors ---


@ROWS
def test_no_voxels_is_a_user_error(key):
    logits, labels, image = example()[0]
    for data in ([], [(logits, torch.full_like(labels, IGNORE), image)]):
        with pytest.raises(UserError, match="no voxels to fit on"):
            fit(key, lambda d=data: d)


@pytest.mark.parametrize("key", ["lts", "vs"])  # the others need one pass
def test_a_pass_that_can_be_made_only_once_is_noticed(key):
    once = iter(example())
    with pytest.raises(UserError, match="no voxels|the same voxels"):
        fit(key, lambda: once)


@ROWS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_a_user_error(key, bad):
    data = example()
    data[1][0][0, 1, 5, 5] = bad
    with pytest.raises(UserError, match="must be finite"):
        fit(key, lambda: data)


@ROWS
def test_bad_batches_are_told_in_one_sentence(key):
    logits, labels, image = example()[0]
    cases = [
        ((logits, labels[:1], image), "labels must have shape"),
        ((logits, labels.float(), image), "labels must be integers"),
        ((logits.long(), labels, image), "must be floating point"),
        ((logits, labels + 7, image), "labels must lie in 0..2"),
        ((logits[:, :1], labels, image), "K >= 2"),
        (
            (logits.softmax(1), labels, image),
            "these are probabilities, not logits; take their logarithm",
        ),
        ((logits.softmax(1).half(), labels, image), "these are probabilities"),
    ]
    for batch, words in cases:
        with pytest.raises(UserError, match=words):
            fit(key, lambda b=batch: [b])
    assert fit(key, lambda: [(logits.softmax(1).log(), labels, image)]).facts()[
        "nll_before"
    ] == pytest.approx(fit(key, lambda: [(logits, labels, image)]).facts()["nll_before"], rel=1e-4)


@ROWS
def test_other_classes_than_fitted_are_a_user_error(key):
    data = example()
    fitted = fit(key, lambda: data, **QUICK[key])
    for shape in ((2, 4, 20, 24), (3,)):
        with pytest.raises(UserError, match=f"this {key} was fitted on 3 classes"):
            fitted(torch.zeros(shape), data[0][2])


def test_lts_wants_slices_and_their_image():
    data = example()
    fitted = fit("lts", lambda: data, epochs=1, least_steps=1)
    logits, labels, image = data[0]
    with pytest.raises(UserError, match="got none"):
        fitted(logits)
    with pytest.raises(UserError, match="got shape"):
        fitted(logits, image[..., :-1])
    with pytest.raises(UserError, match="2D slices"):
        fitted(logits[..., None], image[..., None])
    with pytest.raises(UserError, match="2D slices"):
        fit("lts", lambda: [(logits[..., None], labels[..., None], image[..., None])])


def test_unknown_names_and_bad_settings_are_user_errors():
    never = partial(pytest.fail, "data were read")
    with pytest.raises(
        UserError, match="unknown calibrator 'platt'; choose one of ts, ts2, lts, vs"
    ):
        fit("platt", never)
    with pytest.raises(UserError, match="unknown setting of ts 'epochs'; choose one of voxels"):
        fit("ts", never, epochs=3)
    for key in ("ts", "lts", "vs"):
        with pytest.raises(UserError, match="unknown voxels 'far'; choose one of near, all"):
            fit(key, example, voxels="far")
    for key, settings in (
        ("lts", {"epochs": 0}),
        ("lts", {"lr": 0.0}),
        ("vs", {"ridge": 0.0}),
    ):
        with pytest.raises(UserError, match=f"{next(iter(settings))} must"):
            fit(key, never, **settings)


# --- files ---

IDENTITY = {"run": "ce-0", "data": "abc123"}


@ROWS
def test_saved_and_loaded_is_the_same(key, tmp_path):
    data = example()
    fitted = fit(key, lambda: data, **QUICK[key])
    stem = tmp_path / "new" / f"{key}.v1"
    save(fitted, stem, identity=IDENTITY)
    assert sorted(path.name for path in stem.parent.iterdir()) == [
        f"{key}.v1.json",
        f"{key}.v1.safetensors",
    ]
    again = load(stem, expect=IDENTITY)
    assert again.facts() == {**fitted.facts(), "identity": IDENTITY}
    logits, _, image = data[0]
    assert torch.equal(again(logits, image), fitted(logits, image))
    save(again, tmp_path / "copy")
    assert load(tmp_path / "copy", expect=IDENTITY).facts() == again.facts()


def saved(tmp_path, **identity):
    logits, labels, image = example()[0]
    save(fit("ts", lambda: [(logits, labels, image)]), tmp_path / "ts", identity=identity)
    return tmp_path / "ts"


@pytest.mark.parametrize("expect", [{"run": "mbls-0"}, {"data": "other"}, {**IDENTITY, "fold": 2}])
def test_fitted_on_another_run_or_data_is_refused(tmp_path, expect):
    stem = saved(tmp_path, **IDENTITY)
    load(stem)
    load(stem, expect={"run": "ce-0"})
    with pytest.raises(
        UserError, match=r"was fitted on \w+ .*, not .*; segcal calibrate --again fits it"
    ):
        load(stem, expect=expect)


def test_a_changed_file_is_refused(tmp_path):
    stem = saved(tmp_path, **IDENTITY)
    text, data = (tmp_path / "ts.json").read_text(), (tmp_path / "ts.safetensors").read_bytes()
    (tmp_path / "ts.json").write_text(text.replace("ce-0", "mbls-0"))
    with pytest.raises(UserError, match="was changed after it was written"):
        load(stem, expect={"run": "mbls-0"})
    (tmp_path / "ts.json").write_text(text)
    (tmp_path / "ts.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match="was changed after it was written"):
        load(stem)
    (tmp_path / "ts.safetensors").write_bytes(data)
    load(stem)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"format": 1}'])
def test_a_damaged_file_is_refused(tmp_path, text):
    stem = saved(tmp_path)
    (tmp_path / "ts.json").write_text(text)
    with pytest.raises(UserError, match="ts.json is damaged; fit the calibrator again"):
        load(stem)


def test_missing_and_future_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="there is no fitted calibrator"):
        load(tmp_path / "ts")
    stem = saved(tmp_path)
    content = json.loads((tmp_path / "ts.json").read_text())
    (tmp_path / "ts.json").write_text(json.dumps({**content, "format": 3}))
    with pytest.raises(UserError, match="has format 3, this segcal reads 2"):
        load(stem)
    (tmp_path / "ts.safetensors").unlink()
    with pytest.raises(UserError, match="ts.safetensors is missing"):
        load(stem)


def in_format_1(stem, key):
    """Rewrite a saved calibrator as an older version of segcal wrote it."""
    path = stem.with_name(f"{stem.name}.json")
    facts = json.loads(path.read_text()) | {"format": 1}
    for name in ("voxels", "sha256", "interval", "over_all", "val_nll"):
        facts.pop(name, None)
    facts["settings"].pop("voxels", None)
    facts["sha256"] = _digest(stem.with_name(f"{stem.name}.safetensors").read_bytes(), facts)
    path.write_text(json.dumps(facts))


@ROWS
def test_an_older_file_is_read_where_it_means_the_same(key, tmp_path):
    """A temperature does; scales, biases and convolutions of raw logits do not."""
    data = example()
    fitted = fit(key, lambda: data, **QUICK[key])
    save(fitted, tmp_path / key)
    in_format_1(tmp_path / key, key)
    if key == "ts":
        older = load(tmp_path / key)
        assert older.facts()["voxels"] == "all"
        assert torch.equal(older(data[0][0]), fitted(data[0][0]))
    else:
        with pytest.raises(OutdatedError, match=r"on raw logits, .*; segcal calibrate fits it on"):
            load(tmp_path / key)


@ROWS
def test_every_row_is_complete(key):
    row = CALIBRATORS[key]
    assert row.label
    assert row.help
    assert row.citation
    assert row.fit.__doc__
    assert row.fit.__name__ == key


@pytest.mark.parametrize("n_cases", [1, 3])
def test_few_cases_are_enough_for_local_temperatures(n_cases):
    """Logits four times too large: a tree of temperatures must come as near to 4 as one temperature
    does.
    """
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(n_cases):
        coarse = torch.randn(4, 3, 6, 6, generator=generator) * 3
        honest = torch.nn.functional.interpolate(coarse, size=(24, 24), mode="bilinear")
        labels = torch.distributions.Categorical(logits=honest.movedim(1, -1)).sample()
        data.append((honest * 4, labels, torch.rand(4, 1, 24, 24, generator=generator)))
    one, local = (fit(name, lambda: data).facts() for name in ("ts", "lts"))
    assert local["nll_after"] < one["nll_after"] + 0.01
    assert local["temperature"]["mean"] == pytest.approx(4, abs=0.4)
