"""Region-based training: a sigmoid per region, whose margin term is that of two logits 0 and z."""

import pytest
import torch

from segcal.losses import Criterion, margin_penalty, region_margin_penalty
from segcal.types import UserError


def example(dtype=torch.float32):
    torch.manual_seed(3)
    return 9 * torch.randn(2, 3, 4, 5, 6, dtype=dtype)


@pytest.mark.parametrize("margin", [0.0, 5.0, 8.0])
def test_each_region_is_a_problem_of_two_classes(margin):
    z = example(torch.float64).requires_grad_()
    other = z.detach().clone().requires_grad_()
    value = region_margin_penalty(z, margin=margin)
    pairs = torch.stack([torch.zeros_like(other), other], 2).flatten(0, 1)  # (N*R, 2, *S)
    expected = margin_penalty(pairs, margin=margin)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(z.grad, other.grad)


def test_ignored_voxels_do_not_count():
    z = example()
    ignored = torch.rand(2, 1, 4, 5, 6) < 0.4
    total = 0.0
    for n, region in torch.cartesian_prod(torch.arange(2), torch.arange(3)).tolist():
        kept = z[n, region][~ignored[n, 0]]
        total += sum(max(0.0, abs(value) - 5.0) for value in kept.tolist())
    expected = total / (3 * (~ignored).sum().item())
    assert region_margin_penalty(z, margin=5.0, ignored=ignored).item() == pytest.approx(expected)
    assert region_margin_penalty(z, margin=5.0, ignored=ignored.float()) > 0  # as nnU-Net has it


def test_nothing_counted_costs_nothing():
    z = example().requires_grad_()
    value = region_margin_penalty(z, ignored=torch.ones(2, 1, 4, 5, 6, dtype=torch.bool))
    value.backward()
    assert value == 0
    assert z.grad.abs().max() == 0


def test_half_precision_is_widened():
    z = example().half()
    torch.testing.assert_close(region_margin_penalty(z), region_margin_penalty(z.float()))


@pytest.mark.parametrize(
    ("logits", "settings", "message"),
    [
        (example(), {"margin": -1.0}, "margin must be at least 0; got -1"),
        (
            example().long(),
            {},
            r"floating point \(N, R, \*S\) .* got torch.int64",
        ),
        (torch.zeros(3), {}, r"R >= 1 regions; got torch.float32 of shape \(3,\)"),
        (example(), {"ignored": torch.zeros(2, 3, 4, 5, 6)}, r"one channel; got \(2, 3"),
    ],
)
def test_bad_input_is_named_in_one_sentence(logits, settings, message):
    with pytest.raises(UserError, match=message):
        region_margin_penalty(logits, **settings)


@pytest.mark.parametrize("channels", [3, 4])  # nnU-Net's fourth is the mask of ignored voxels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_a_criterion_says_what_serves_regions(channels, dtype):
    target = torch.zeros(2, channels, 8, 8, dtype=dtype)
    for call in (Criterion("mbls_dice"), Criterion("mbls_dice").parts):
        with pytest.raises(UserError, match=r"region-based training.*region_margin_penalty"):
            call(torch.zeros(2, 3, 8, 8), target)


def test_one_region_is_region_based_too():
    with pytest.raises(UserError, match="region-based training"):
        Criterion("mbls")(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8))
