"""Dice and surface distances against loops, laws, MONAI and medpy."""

import math
from collections import Counter

import medpy.metric.binary as medpy
import monai.metrics
import numpy as np
import oracles
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import ndimage

from segcal import metrics
from segcal.types import UserError

SPACING = (2.5, 0.8, 1.1)


def blobs(seed, shape=(14, 16, 12), n_classes=3, fill=0.5):
    """A label map of smooth random shapes that touch each other and the border."""
    rng = np.random.default_rng(seed)
    fields = [ndimage.gaussian_filter(rng.standard_normal(shape), 2) for _ in range(n_classes)]
    fields[0] += np.quantile(fields[0], fill) - np.median(fields[0])
    return torch.from_numpy(np.argmax(fields, 0))


def surfaces(pred, labels, n_classes=3, spacing=SPACING, **kwargs):
    return metrics.surfaces(pred, labels, n_classes=n_classes, spacing=spacing, **kwargs)


def scores(found):
    return torch.stack([metrics.asd(found), metrics.assd(found), metrics.hd95(found)])


# Dice
# ------------------------------------------------------------------------------


@given(st.integers(0, 2**31))
def test_dice_is_counted_voxel_by_voxel_and_agrees_with_medpy(seed):
    pred, ref = blobs(seed), blobs(seed + 1)
    for k, value in enumerate(metrics.dice(pred, ref, n_classes=3), start=1):
        p, r = (
            set(map(tuple, (pred == k).nonzero().tolist())),
            set(map(tuple, (ref == k).nonzero().tolist())),
        )
        assume(p and r)
        assert value.item() == pytest.approx(2 * len(p & r) / (len(p) + len(r)))
        assert value.item() == pytest.approx(medpy.dc((pred == k).numpy(), (ref == k).numpy()))


def test_dice_agrees_with_monai():
    pred, ref = blobs(3), blobs(4)
    one_hot = [torch.nn.functional.one_hot(v, 3).movedim(-1, 0)[None] for v in (pred, ref)]
    theirs = monai.metrics.DiceMetric(include_background=False, reduction="none")(*one_hot)[0]
    torch.testing.assert_close(metrics.dice(pred, ref, n_classes=3), theirs.double())


def test_confusions_add_up():
    pred, ref = blobs(3), blobs(4)
    parts = sum(metrics.confusion(p, r, n_classes=3) for p, r in zip(pred, ref, strict=True))
    assert torch.equal(parts, metrics.confusion(pred, ref, n_classes=3))
    torch.testing.assert_close(
        metrics.dice_of_confusion(parts), metrics.dice(pred, ref, n_classes=3)
    )


def test_ignored_voxels_do_not_count():
    pred, ref = blobs(3), blobs(4)
    ref[:4] = -100
    torch.testing.assert_close(
        metrics.dice(pred, ref, n_classes=3), metrics.dice(pred[4:], ref[4:], n_classes=3)
    )
    torch.testing.assert_close(scores(surfaces(pred, ref)), scores(surfaces(pred[4:], ref[4:])))


@pytest.mark.parametrize("ignored", [-100, 0, 2])
@pytest.mark.parametrize("n_classes", [15, 16, 40])
def test_confusion_is_a_count_of_pairs(n_classes, ignored):
    generator = torch.Generator().manual_seed(n_classes)
    pred, ref = (torch.randint(n_classes, (9, 11), generator=generator) for _ in range(2))
    ref[3] = ignored
    pairs = [
        (p, r)
        for p, r in zip(pred.flatten().tolist(), ref.flatten().tolist(), strict=True)
        if r != ignored
    ]
    counted = metrics.confusion(pred, ref, n_classes=n_classes, ignore_index=ignored)
    assert {
        (p, r): n for p, row in enumerate(counted.tolist()) for r, n in enumerate(row) if n
    } == Counter(pairs)


def test_label_map_is_argmax():
    x = torch.randn(2, 5, 7, 6)
    assert torch.equal(metrics.label_map(x), x.argmax(1))


# Empty objects
# ------------------------------------------------------------------------------


def test_empty_classes_follow_the_rules():
    pred, ref = torch.zeros(3, 6, 6, 6).long()[0], torch.zeros(6, 6, 6).long()
    ref[2:4, 2:4, 2:4] = 1  # missed
    pred[4, 4, 4] = 2  # invented
    pred[0, 0, 0] = ref[0, 0, 0] = 4  # found; class 3 is nowhere
    dice, found = metrics.dice(pred, ref, n_classes=5), surfaces(pred, ref, n_classes=5)
    torch.testing.assert_close(
        dice, torch.tensor([0, 0, math.nan, 1], dtype=torch.float64), equal_nan=True
    )
    assert metrics.missed(found).tolist() == [1, 1, 0, 0]
    expected = torch.tensor([math.nan, math.nan, math.nan, 0], dtype=torch.float64)
    for metric in (metrics.asd, metrics.assd, metrics.hd95):
        torch.testing.assert_close(metric(found), expected, equal_nan=True)


@given(st.integers(0, 2**31))
def test_a_missed_object_never_scores_well(seed):
    ref = blobs(seed)
    pred = ref.clone()
    pred[pred == 1] = 0
    assume((ref == 1).any())
    assert metrics.dice(pred, ref, n_classes=3)[0] == 0
    found = surfaces(pred, ref)
    assert found[0].missed
    assert scores(found)[:, 0].isnan().all()


# Surfaces
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("spacing", [SPACING, None])
@pytest.mark.parametrize("seed", range(3))
def test_distances_follow_their_definition(seed, spacing):
    pred, ref = blobs(seed, (6, 7, 5)), blobs(seed + 50, (6, 7, 5))
    found = surfaces(pred, ref, spacing=spacing)
    for k, surface in enumerate(found, start=1):
        p, r = (oracles.outline(list(map(tuple, (v == k).nonzero().tolist()))) for v in (pred, ref))
        there = oracles.nearest(p, r, spacing or (1, 1, 1))
        back = oracles.nearest(r, p, spacing or (1, 1, 1))
        np.testing.assert_allclose(sorted(surface.to_reference), sorted(there))
        np.testing.assert_allclose(sorted(surface.to_prediction), sorted(back))
        asd, assd, hd95 = scores([surface])[:, 0].tolist()
        assert asd == pytest.approx(sum(there) / len(there))
        assert assd == pytest.approx((sum(there) + sum(back)) / (len(there) + len(back)))
        assert hd95 == pytest.approx(max(np.quantile(there, 0.95), np.quantile(back, 0.95)))


def test_agrees_with_scipys_distance_transform():
    pred, ref = blobs(1), blobs(2)
    for k, surface in enumerate(surfaces(pred, ref), start=1):
        p, r = ((v == k).numpy() & ~ndimage.binary_erosion((v == k).numpy()) for v in (pred, ref))
        away = ndimage.distance_transform_edt(~r, sampling=SPACING)[p]
        np.testing.assert_allclose(np.sort(surface.to_reference), np.sort(away))


def test_many_classes_and_unsigned_labels():
    pred, ref = torch.zeros(6, 6).long(), torch.zeros(6, 6).long()
    pred[1, 1] = ref[1, 4] = 300
    assert metrics.asd(surfaces(pred, ref, n_classes=301, spacing=None))[299] == 3
    pred[1, 1] = ref[1, 4] = 156
    for kind in (torch.uint8, torch.int64):
        assert (
            metrics.asd(surfaces(pred.to(kind), ref.to(kind), n_classes=200, spacing=None))[155]
            == 3
        )
    with pytest.raises(UserError, match=r"one case in 2D or 3D; got shape \(1, 4, 4, 4\)"):
        surfaces(torch.zeros(1, 4, 4, 4).long(), torch.zeros(1, 4, 4, 4).long(), spacing=None)


@pytest.mark.parametrize("shape", [(14, 16, 12), (20, 24)])
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_medpy(seed, shape):
    """asd, assd: the same. hd95: medpy's percentile is of both directions together, rebuilt
    here.
    """
    pred, ref, spacing = blobs(seed, shape), blobs(seed + 9, shape), SPACING[: len(shape)]
    found = surfaces(pred, ref, spacing=spacing)
    for k in (1, 2):
        p, r = (pred == k).numpy(), (ref == k).numpy()
        asd, assd, _ = scores(found)[:, k - 1].tolist()
        assert asd == pytest.approx(medpy.asd(p, r, spacing))
        assert assd == pytest.approx(medpy.assd(p, r, spacing))
        pooled = np.percentile(
            np.hstack([found[k - 1].to_reference, found[k - 1].to_prediction]), 95
        )
        assert medpy.hd95(p, r, spacing) == pytest.approx(pooled)


@pytest.mark.parametrize("shape", [(14, 16, 12), (20, 24)])
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_monai(seed, shape):
    pred, ref, spacing = blobs(seed, shape), blobs(seed + 9, shape), SPACING[: len(shape)]
    one_hot = [torch.nn.functional.one_hot(v, 3).movedim(-1, 0)[None] for v in (pred, ref)]
    theirs = torch.cat(
        [
            monai.metrics.compute_average_surface_distance(*one_hot, spacing=spacing),
            monai.metrics.compute_average_surface_distance(
                *one_hot, symmetric=True, spacing=spacing
            ),
            monai.metrics.compute_hausdorff_distance(*one_hot, percentile=95, spacing=spacing),
        ]
    )
    torch.testing.assert_close(
        scores(surfaces(pred, ref, spacing=spacing)), theirs.double(), rtol=1e-5, atol=1e-6
    )


@given(
    st.lists(st.floats(0, 50), min_size=1, max_size=60),
    st.lists(st.floats(0, 50), min_size=1, max_size=60),
)
def test_hd95_lies_between_its_directions_and_the_maximum(there, back):
    surface = metrics.Surface(np.array(there), np.array(back), missed=False)
    value = metrics.hd95([surface]).item()
    assert value <= max(*there, *back) + 1e-9
    assert value >= np.percentile(there, 95) - 1e-9
    assert value >= np.percentile(back, 95) - 1e-9


@given(st.integers(0, 2**31), st.permutations([0, 1, 2]))
def test_laws_of_distance(seed, axes):
    pred, ref = blobs(seed, (8, 9, 7)), blobs(seed + 1, (8, 9, 7))
    found = surfaces(pred, ref)
    assume(not metrics.missed(found).any())
    value = scores(found)
    torch.testing.assert_close(
        scores(surfaces(ref, ref)).nan_to_num(0), torch.zeros(3, 2, dtype=torch.float64)
    )
    doubled = scores(surfaces(pred, ref, spacing=[2 * s for s in SPACING]))
    torch.testing.assert_close(doubled, 2 * value, equal_nan=True)
    turned = scores(
        surfaces(pred.permute(axes), ref.permute(axes), spacing=[SPACING[a] for a in axes])
    )
    torch.testing.assert_close(turned, value, equal_nan=True)
    swapped = scores(surfaces(ref, pred))
    torch.testing.assert_close(
        swapped[1:], value[1:], equal_nan=True
    )  # assd and hd95 are symmetric, asd is not
    bigger = scores(surfaces(*(torch.nn.functional.pad(v, (3, 3) * 3) for v in (pred, ref))))
    torch.testing.assert_close(
        bigger, value, equal_nan=True
    )  # empty space around them changes nothing


def test_a_known_shift():
    pred, ref = torch.zeros(9, 9, 9).long(), torch.zeros(9, 9, 9).long()
    pred[4, 4, 4] = ref[4, 4, 6] = 1
    assert scores(surfaces(pred, ref, n_classes=2, spacing=(1, 1, 0.5))).flatten().tolist() == [
        1.0,
        1.0,
        1.0,
    ]
    assert scores(surfaces(pred, ref, n_classes=2, spacing=None)).flatten().tolist() == [
        2.0,
        2.0,
        2.0,
    ]


# Mistakes
# ------------------------------------------------------------------------------

MAP = torch.zeros(4, 4).long()


@pytest.mark.parametrize(
    ("pred", "ref", "settings", "message"),
    [
        (MAP, MAP[:3], {}, r"must have one shape; got \(4, 4\) and \(3, 4\)"),
        (MAP + 3, MAP, {}, r"prediction must lie in 0\.\.2; got 3"),
        (MAP - 100, MAP, {}, r"prediction must lie in 0\.\.2; got -100"),
        (MAP, MAP - 1, {}, r"labels must lie in 0\.\.2, or equal ignore_index -100; got -1"),
        (MAP.float(), MAP, {}, "prediction must hold integers; got torch.float32"),
        (MAP, MAP, {"n_classes": 1}, "n_classes must be at least 2; got 1"),
        (
            MAP,
            MAP,
            {"spacing": (1, 1, 1)},
            r"spacing must be 2 positive numbers, one per axis; got \(1, 1, 1\)",
        ),
        (MAP, MAP, {"spacing": (1, 0)}, "spacing must be 2 positive numbers"),
        (MAP, MAP, {"spacing": (1, math.nan)}, "spacing must be 2 positive numbers"),
    ],
)
def test_bad_input_is_named_in_one_sentence(pred, ref, settings, message):
    settings = {"n_classes": 3, "spacing": None} | settings
    with pytest.raises(UserError, match=message):
        metrics.surfaces(pred, ref, **settings)
    if "spacing" not in message:
        with pytest.raises(UserError, match=message):
            metrics.dice(pred, ref, n_classes=settings["n_classes"])
