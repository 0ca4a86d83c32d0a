"""Corruptions: laws over the whole table, and MONAI and Fourier transforms as oracles."""

import math
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.corruptions import CORRUPTIONS, case_seed, corrupt, parse
from segcal.types import UserError

ROWS = pytest.mark.parametrize("key", CORRUPTIONS)
RANDOM = [key for key in CORRUPTIONS if key not in ("blur", "gamma", "low_resolution")]


def volume(shape=(12, 2, 24, 20)):
    """A smooth body with some texture, away from the borders of [0, 1]."""
    axes = [torch.linspace(-1, 1, n) if n > 1 else torch.zeros(1) for n in (shape[0], *shape[2:])]
    z, y, x = torch.meshgrid(*axes, indexing="ij")
    body = torch.sigmoid(8 * (0.7 - (z**2 + y**2 + x**2).sqrt())) * (
        0.6 + 0.2 * torch.sin(9 * x + 5 * z)
    )
    return torch.stack([body / (c + 1) + 0.1 for c in range(shape[1])], 1)


def strongest(key):
    return f"{key}:{CORRUPTIONS[key].severities[-1]}"


@ROWS
def test_neutral_is_the_identity(key):
    image, row = volume(), CORRUPTIONS[key]
    out = corrupt(image, f"{key}:{row.neutral}", seed=1)
    assert torch.equal(out, image)
    assert out.data_ptr() != image.data_ptr()


@ROWS
def test_near_neutral_is_near_the_identity(key):
    """No jump at the neutral severity, which is taken as a special case."""
    image, row = volume(), CORRUPTIONS[key]
    out = row.function(image, row.neutral + 1e-4, torch.Generator().manual_seed(0))
    assert (out - image).abs().max() < 2e-3


@ROWS
def test_same_seed_same_image(key):
    image = volume()
    state = torch.get_rng_state()
    first, again, other = (corrupt(image, strongest(key), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (key not in RANDOM)
    assert torch.equal(torch.get_rng_state(), state), (
        "the caller's own random numbers are left alone"
    )


@ROWS
@pytest.mark.parametrize("seed", range(3))
def test_damage_grows_with_severity(key, seed):
    image, row = volume(), CORRUPTIONS[key]
    damage = [
        (corrupt(image, f"{key}:{s}", seed=seed) - image).square().mean().sqrt().item()
        for s in row.severities
    ]
    assert damage[0] == 0
    assert all(low < high for low, high in pairwise(damage)), damage


@ROWS
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (1, 3, 2, 1), (2, 1, 1, 5), (3, 1, 7, 4), (1, 1, 16, 16)]
)
@pytest.mark.parametrize("fill", [0.0, 0.5, 1.0, None])
def test_small_and_constant_volumes(key, shape, fill):
    image = torch.rand(shape) if fill is None else torch.full(shape, fill)
    kept = image.clone()
    for severity in CORRUPTIONS[key].severities:
        out = corrupt(image, f"{key}:{severity}", seed=0)
        assert out.shape == image.shape
        assert out.dtype == image.dtype
        assert out.isfinite().all()
    assert torch.equal(image, kept)


@ROWS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_are_kept(key, dtype):
    image = volume()
    out = corrupt(image.to(dtype), strongest(key), seed=0)
    assert out.dtype == dtype
    torch.testing.assert_close(
        out.float(), corrupt(image, strongest(key), seed=0), rtol=0, atol=0.02
    )


@ROWS
def test_memory_layout_does_not_matter(key):
    image = volume()
    strided = image.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    torch.testing.assert_close(
        corrupt(strided, strongest(key), seed=0), corrupt(image, strongest(key), seed=0)
    )


@pytest.mark.parametrize("sigma", CORRUPTIONS["gaussian_noise"].severities[1:])
def test_noise_has_its_sigma_and_is_not_clipped(sigma):
    noise = corrupt(torch.zeros(20, 1, 100, 100), f"gaussian_noise:{sigma}", seed=0)
    n = noise.numel()
    assert abs(noise.mean()) < 5 * sigma / math.sqrt(n)
    assert noise.std().item() == pytest.approx(sigma, rel=5 / math.sqrt(2 * n))
    assert (noise < 0).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_a_series_is_one_artefact_growing():
    image = volume()
    one, three = (corrupt(image, f"gaussian_noise:{s}", seed=5) - image for s in (0.01, 0.03))
    torch.testing.assert_close(3 * one, three, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_blur_is_monais_away_from_the_border(sigma):
    from monai.transforms import GaussianSmooth

    image = volume((3, 2, 40, 36))
    ours = corrupt(image, f"blur:{sigma}", seed=0)
    smooth = GaussianSmooth(sigma, approx="sampled")
    gain = torch.as_tensor(smooth(torch.ones(1, 40, 36)))[
        0, 20, 18
    ]  # MONAI's kernel does not sum to 1
    theirs = torch.stack([torch.as_tensor(smooth(s)) for s in image]) / gain
    inside = (..., slice(9, -9), slice(9, -9))
    torch.testing.assert_close(ours[inside], theirs[inside], rtol=0, atol=2e-4)
    assert not torch.allclose(theirs[..., 0, 0], ours[..., 0, 0], atol=0.02), (
        "MONAI's border is dark"
    )


def test_blur_stays_in_its_slice_and_in_range():
    image = torch.zeros(3, 1, 9, 9)
    image[1, 0, 4, 4] = 1
    out = corrupt(image, "blur:1", seed=0)
    assert out[0].abs().max() == out[2].abs().max() == 0
    assert out.sum().item() == pytest.approx(1)
    flat = corrupt(torch.full((2, 1, 5, 6), 0.3), "blur:3", seed=0)
    torch.testing.assert_close(flat, torch.full_like(flat, 0.3))


def test_gamma_is_monais():
    from monai.transforms import AdjustContrast

    image = volume()
    image = (image - image.min()) / (
        image.max() - image.min()
    )  # MONAI stretches to the image's own range
    torch.testing.assert_close(
        corrupt(image, "gamma:1.7", seed=0),
        torch.as_tensor(AdjustContrast(1.7)(image)),
        rtol=0,
        atol=1e-5,
    )
    assert (
        corrupt(image, "gamma:0.5", seed=0).mean()
        > image.mean()
        > corrupt(image, "gamma:2", seed=0).mean()
    )


def test_spikes_are_single_points_of_k_space():
    """With a whole number of waves and an image so bright that the magnitude is linear, one pair of
    points sticks out.
    """
    height, width, amplitude = 32, 24, 0.05
    found = (
        corrupt(
            torch.full((1, 1, height, width), 1e3, dtype=torch.float64),
            f"spikes:{amplitude}",
            seed=2,
        )
        - 1e3
    )
    draw = torch.rand(3, generator=torch.Generator().manual_seed(2)).double()
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    turns = (draw[0] - 0.5) * rows + (draw[1] - 0.5) * columns + draw[2]
    torch.testing.assert_close(
        found[0, 0], amplitude * torch.cos(2 * math.pi * turns), rtol=0, atol=1e-5
    )
    window = torch.hann_window(height, periodic=False)[:, None] * torch.hann_window(
        width, periodic=False
    )
    power = torch.fft.fft2(found[0, 0] * window).abs().square()
    assert power.flatten().topk(32).values.sum() > 0.98 * power.sum()


def test_motion_that_never_changes_is_a_shift(monkeypatch):
    """Displaced by the same all the time, the image just moves; so the phase has the right sign and
    size.
    """
    image = volume((2, 1, 32, 16))
    monkeypatch.setattr(torch, "sin", torch.ones_like)
    torch.testing.assert_close(
        corrupt(image, "motion:3", seed=0), image.roll(3, 2), rtol=0, atol=1e-5
    )


def test_motion_makes_ghosts_along_one_axis():
    image = torch.zeros(1, 1, 64, 32)
    image[..., 28:36, 12:20] = 1
    ghosts = corrupt(image, "motion:2", seed=0)
    assert ghosts[..., :20, 12:20].mean() > 1e-3
    assert ghosts[..., :12].abs().max() < 1e-6
    power = [x.square().sum().item() for x in (image, ghosts)]
    assert power[0] == pytest.approx(power[1], rel=1e-5), "a change of phase keeps the energy"


def test_bias_field_is_smooth_bounded_and_shared():
    ones = torch.ones(10, 2, 30, 30)
    field = corrupt(ones, "bias_field:0.5", seed=0).log()
    assert field.abs().max().item() == pytest.approx(0.5, rel=1e-4)
    assert torch.equal(field[:, 0], field[:, 1])
    assert field.mean().abs() < 1e-5
    waves = np.abs(scipy.fft.dctn(field[:, 0].double().numpy(), norm="ortho"))
    order = np.indices(waves.shape).sum(0)
    assert waves[(order == 0) | (order > 3)].max() < 1e-4 < waves[(order > 0) & (order <= 3)].min()
    image = volume()
    ratio = corrupt(image, "bias_field:0.3", seed=1) / image
    torch.testing.assert_close(ratio, corrupt(torch.ones_like(image), "bias_field:0.3", seed=1))


def test_low_resolution_averages_slices():
    image = torch.rand(8, 1, 3, 3)
    out = corrupt(image, "low_resolution:4", seed=0)
    thick = image.reshape(2, 4, 1, 3, 3).mean(1)
    torch.testing.assert_close(out[0], thick[0])
    torch.testing.assert_close(out[7], thick[1])
    torch.testing.assert_close(out[3], thick[0] * 0.625 + thick[1] * 0.375)
    ramp = torch.arange(12.0).reshape(12, 1, 1, 1) / 12
    torch.testing.assert_close(corrupt(ramp, "low_resolution:3", seed=0)[1:-1], ramp[1:-1])
    single = torch.rand(1, 1, 4, 4)
    torch.testing.assert_close(corrupt(single, "low_resolution:5", seed=0), single)


@given(st.integers(-(10**6), 10**6), st.text(max_size=20))
def test_case_seeds_fit_a_generator(seed, case_id):
    value = case_seed(seed, case_id)
    assert 0 <= value < 2**63
    torch.Generator().manual_seed(value)


def test_case_seeds_differ_and_are_stable():
    seeds = {case_seed(seed, f"case_{i}") for seed in range(20) for i in range(100)}
    assert len(seeds) == 2000
    code = "from segcal.corruptions import case_seed; print(case_seed(7, 'a'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == case_seed(7, "a"), (
        "the same in another process, whose hash() is salted differently"
    )


@ROWS
def test_every_row_is_complete(key):
    row = CORRUPTIONS[key]
    assert row.label
    assert row.meaning
    assert row.function.__doc__
    assert row.function.__name__ == key
    assert list(row.severities) == sorted(set(row.severities))
    for severity in row.severities:
        assert parse(f"{key}:{severity:g}") == (key, severity)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("fog:1", "unknown corruption 'fog'; choose one of gaussian_noise"),
        ("", "unknown corruption ''"),
        ("blur", "as in blur:3; got 'blur'"),
        ("blur:", "got 'blur:'"),
        ("blur:much", "got 'blur:much'"),
        ("blur:1:2", "got 'blur:1:2'"),
        ("gaussian_noise:-0.1", r"must lie in \[0, 100\]; got -0.1"),
        ("gaussian_noise:nan", r"must lie in \[0, 100\]; got nan"),
        ("gaussian_noise:inf", r"must lie in \[0, 100\]; got inf"),
        ("gamma:0", "must lie in \\[0.05, 20\\]; got 0"),
        ("low_resolution:0.5", "must lie in \\[1, 1000\\]; got 0.5"),
    ],
)
def test_bad_specs_are_told_in_one_sentence(spec, words):
    with pytest.raises(UserError, match=words):
        parse(spec)


def test_monai_is_not_needed():
    code = "import sys, segcal.corruptions; print('monai' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "False"
    )
