"""What a training loop does to a loss: half precision, compilation, extreme logits, other
libraries' tensors, mistakes.
"""

import shutil

import monai.data
import pytest
import torch

from segcal import losses
from segcal.losses import LOSSES, Criterion
from segcal.types import UserError

EVERY = pytest.mark.parametrize("key", LOSSES)
VARIANTS = [(key, dict(settings)) for key, row in LOSSES.items() for settings in row.grid]
VARIANTS += [
    ("mbls", {"penalty": "l2", "margin": 0.5}),
    ("mbls", {"class_reduction": "mean", "margin": 0.5}),
    ("mbls", {"where": "near", "reach": 1, "margin": 0.5}),
    ("mbls_dice", {"where": "near", "reach": 0, "margin": 0.5, "penalty": "l2"}),
]
VARIANTS += [
    ("focal", {"gamma": 0.5}),
    ("ecp", {"class_reduction": "mean"}),
    ("svls", {"kernel_size": 5, "sigma": 2.0}),
    ("ce_dice", {"include_background": True}),
]


def example(shape=(2, 3, 6, 5), scale=3.0):
    return torch.randn(shape) * scale, torch.randint(0, shape[1], (shape[0], *shape[2:]))


@pytest.mark.parametrize(("key", "settings"), VARIANTS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (1, 2, 3, 3, 2)])
def test_gradient_is_the_derivative(key, settings, shape):
    x, y = example(shape)
    y.view(-1)[0] = -100
    x = x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: LOSSES[key].function(x, y, **settings), (x,))


@pytest.mark.parametrize("margin", [0.5, 3.0])
def test_penalty_alone_has_its_gradient(margin):
    x = example((2, 4, 3))[0].double().requires_grad_()
    for penalty in ("l1", "l2"):
        assert torch.autograd.gradcheck(
            lambda x, p=penalty: losses.margin_penalty(x, margin=margin, penalty=p), (x,)
        )


def test_closed_form_gradients_refuse_a_second_derivative():
    x, y = example()
    x.requires_grad_()
    for loss in (losses.mbls, losses.soft_dice):
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(loss(x, y), x, create_graph=True)


@pytest.mark.parametrize(("key", "settings"), VARIANTS)
def test_extreme_logits_stay_finite(key, settings):
    x = torch.tensor([1e4, -1e4, 0.0, 1e4]).repeat(2, 3, 4, 1) * torch.tensor(
        [1.0, -1.0, 0.5]
    ).view(1, 3, 1, 1)
    x.requires_grad_()
    for y in torch.tensor([0, 1, 2]).view(3, 1, 1, 1).expand(3, 2, 4, 4):
        x.grad = None
        value = LOSSES[key].function(x, y, **settings)
        value.backward()
        assert value.isfinite()
        assert x.grad.isfinite().all()


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(key, dtype):
    x, y = example(scale=20.0)
    half = x.to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = LOSSES[key].function(half, y)
    value.backward()
    assert value.dtype is torch.float32
    assert half.grad.dtype is dtype
    wide = half.detach().float().requires_grad_()
    expected = LOSSES[key].function(wide, y)
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(half.grad, wide.grad.to(dtype))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_does_not_narrow_the_gradient(key, dtype):
    """Matrix products inside a loss would be done in half precision, unless it says no."""
    x, y = example((1, 4, 16, 16, 16))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    with torch.autocast("cpu", dtype):
        LOSSES[key].function(a, y).backward()
    LOSSES[key].function(b, y).backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-12)


@EVERY
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "expanded"])
def test_memory_layout_does_not_matter(key, layout):
    x, y = example((2, 3, 6, 5))
    if layout == "expanded":
        x, y = x[:, :, :1].expand(2, 3, 6, 5), y[:, :1].expand(2, 6, 5)
    plain = x.contiguous().requires_grad_()
    odd = (
        (x.contiguous(memory_format=torch.channels_last) if layout == "channels_last" else x)
        .detach()
        .requires_grad_()
    )
    values = [LOSSES[key].function(plain, y.contiguous()), LOSSES[key].function(odd, y)]
    torch.testing.assert_close(*values)
    for value in values:
        value.backward()
    torch.testing.assert_close(odd.grad, plain.grad)


@EVERY
def test_inputs_are_left_alone(key):
    x, y = example()
    before = x.clone(), y.clone()
    LOSSES[key].function(x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def compiled_agrees(key, backend, **settings):
    torch.compiler.reset()
    criterion = Criterion(key, **settings)
    fast = torch.compile(criterion, backend=backend, fullgraph=True)
    x, y = example()
    y[0, 0, :3] = -100
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    values = criterion(a, y), fast(b, y)
    torch.testing.assert_close(*values)
    for value in values:
        value.backward()
    torch.testing.assert_close(a.grad, b.grad)


@EVERY
def test_compiles_into_one_graph(key):
    compiled_agrees(key, "aot_eager")


def test_a_margin_near_foreground_compiles_into_one_graph():
    compiled_agrees("mbls", "aot_eager", margin=1.0, where="near", reach=2)


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("key", ["mbls", "mbls_dice"])
def test_compiles_to_machine_code(key):
    compiled_agrees(key, "inductor")


# The module
# ------------------------------------------------------------------------------


@EVERY
def test_criterion_takes_every_usual_target(key):
    x, y = example()
    expected = LOSSES[key].function(x, y)
    for target in (
        y,
        y.unsqueeze(1),
        y.int(),
        y.to(torch.uint8),
        y.float(),
        y.unsqueeze(1).float(),
    ):
        torch.testing.assert_close(Criterion(key)(x, target), expected)
        torch.testing.assert_close(Criterion(key).parts(x, target), Criterion(key).parts(x, y))


@EVERY
def test_criterion_takes_monai_tensors(key):
    x, y = example()
    x.requires_grad_()
    logits, target = monai.data.MetaTensor(x), monai.data.MetaTensor(y.unsqueeze(1).float())
    value = Criterion(key)(logits, target)
    assert type(value) is torch.Tensor
    value.backward()
    torch.testing.assert_close(value.detach(), LOSSES[key].function(x.detach(), y))
    assert x.grad.abs().sum() > 0


def test_criterion_tells_which_loss_it_is():
    assert (
        repr(Criterion("mbls", margin=5.0, ignore_index=4))
        == "Criterion(mbls, margin=5.0, ignore_index=4)"
    )


@pytest.mark.parametrize(("key", "row"), LOSSES.items())
def test_every_row_is_complete(key, row):
    assert row.function.__name__ == key
    assert row.label
    assert row.help
    assert "doi:" in row.citation or "arXiv:" in row.citation or "MIT Press" in row.citation
    assert "ignore_index" in row.settings
    for settings in row.grid:
        assert set(settings) <= set(row.settings)
    assert ">>>" in row.function.__doc__


def test_the_grid_is_the_papers():
    seven = ("ce", "ce_dice", "focal", "ecp", "ls", "svls", "mbls")
    assert sum(len(LOSSES[key].grid) for key in seven) == 15


# Mistakes
# ------------------------------------------------------------------------------

X, Y = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4).long()
MISTAKES = [
    (X, torch.zeros(2, 4, 5).long(), {}, r"labels must have shape \(2, 4, 4\).*got \(2, 4, 5\)"),
    (
        X,
        torch.zeros(2, 3, 4, 4).long(),
        {},
        r"labels must have shape \(2, 4, 4\).*got \(2, 3, 4, 4\)",
    ),
    (X[:, :1], Y, {}, r"K >= 2 classes; got shape \(2, 1, 4, 4\)"),
    (X[:, 0, 0, 0], Y[:, 0, 0], {}, r"logits must be \(N, K, \*S\).*got shape \(2,\)"),
    (X[:0], Y[:0], {}, r"logits must not be empty; got shape \(0, 3, 4, 4\)"),
    (X.long(), Y, {}, "logits must be floating point; got torch.int64"),
    (X, Y.float(), {}, "labels must be integers; got torch.float32"),
    (X, Y + 3, {}, r"labels must lie in 0\.\.2, or equal ignore_index -100; got 3"),
    (X, Y - 1, {}, r"labels must lie in 0\.\.2, or equal ignore_index -100; got -1"),
]


@EVERY
@pytest.mark.parametrize(("x", "y", "settings", "message"), MISTAKES)
def test_bad_arrays_are_named_in_one_sentence(key, x, y, settings, message):
    with pytest.raises(UserError, match=message) as caught:
        LOSSES[key].function(x, y, **settings)
    assert "\n" not in str(caught.value)


@EVERY
def test_one_bad_label_among_many_is_found_in_3d(key):
    x, y = torch.zeros(1, 3, 4, 4, 4), torch.zeros(1, 4, 4, 4).long()
    y[0, 3, 2, 1] = 7
    y[0, 0, 0, 0] = 255
    with pytest.raises(
        UserError, match=r"labels must lie in 0\.\.2, or equal ignore_index 255; got 7"
    ):
        LOSSES[key].function(x, y, ignore_index=255)


@pytest.mark.parametrize(
    ("key", "settings", "message"),
    [
        ("mbls", {"margin": -1.0}, "margin must be at least 0; got -1"),
        ("mbls", {"margin": float("nan")}, "margin must be at least 0; got nan"),
        ("mbls", {"weight": -0.1}, "weight must be at least 0; got -0.1"),
        ("mbls", {"penalty": "l3"}, "unknown penalty 'l3'; choose one of l1, l2"),
        (
            "mbls",
            {"class_reduction": "max"},
            "unknown class_reduction 'max'; choose one of sum, mean",
        ),
        ("mbls", {"where": "far"}, "unknown where 'far'; choose one of all, near"),
        ("mbls", {"reach": -1}, "reach must be a whole number of voxels from 0; got -1"),
        ("mbls_dice", {"reach": 2.5}, "reach must be a whole number of voxels from 0; got 2.5"),
        ("mbls_dice", {"margin": -1.0}, "margin must be at least 0"),
        ("mbls_dice", {"weight": -1.0}, "weight must be at least 0"),
        ("ls", {"alpha": 1.5}, r"alpha must lie in \[0, 1\]; got 1.5"),
        ("ls", {"alpha": -0.5}, r"alpha must lie in \[0, 1\]; got -0.5"),
        ("focal", {"gamma": -2.0}, "gamma must be at least 0"),
        ("ecp", {"weight": -1.0}, "weight must be at least 0"),
        ("ecp", {"class_reduction": "none"}, "unknown class_reduction 'none'; choose one of sum"),
        ("svls", {"kernel_size": 4}, "kernel_size must be an odd number from 3; got 4"),
        ("svls", {"sigma": 0.0}, r"sigma must lie in \[0.3, 1000\]; got 0"),
    ],
)
def test_bad_settings_are_named_in_one_sentence(key, settings, message):
    with pytest.raises(UserError, match=message):
        LOSSES[key].function(X, Y, **settings)
    with pytest.raises(UserError, match=message):
        Criterion(key, **settings)


def test_margin_penalty_checks_its_input():
    with pytest.raises(UserError, match="margin must be at least 0"):
        losses.margin_penalty(X, margin=-3.0)
    with pytest.raises(UserError, match=r"logits must be \(N, K, \*S\)"):
        losses.margin_penalty(X.flatten())
    with pytest.raises(UserError, match=r"labels must lie in 0\.\.2.*got 7"):
        losses.margin_penalty(X, Y + 7)
    with pytest.raises(UserError, match="labels must have shape"):
        losses.margin_penalty(X, Y[:1])
    with pytest.raises(UserError, match="near labelled foreground; give margin_penalty labels"):
        losses.margin_penalty(X, where="near")


def test_criterion_names_the_allowed():
    with pytest.raises(UserError, match="unknown loss 'mbsl'; choose one of ce, ce_dice"):
        Criterion("mbsl")
    with pytest.raises(
        UserError, match="unknown setting of mbls 'marign'; choose one of margin, weight"
    ):
        Criterion("mbls", marign=5)
    with pytest.raises(UserError, match=r"logits must be \(N, K"):
        Criterion("ce")(X.flatten(), Y.flatten())
    with pytest.raises(UserError, match="whole numbers"):
        Criterion("ce")(X, Y.float() + 0.5)
