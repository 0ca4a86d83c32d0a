"""Every row of the table: sizes, gradients, learning, padding, seeds; and the parts against other
people's.
"""

import monai.networks.nets as monai_nets
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from segcal.networks import NETWORKS, STRIDE, Padded, build_network, last_layer
from segcal.networks.transunet import _Encoder, _Layer, _StandardConv, _Stem
from segcal.types import UserError

every_network = pytest.mark.parametrize("name", NETWORKS)


def small(name, in_channels=1, n_classes=3, width=4, **settings):
    shallow = {"depth": 2} if "depth" in NETWORKS[name].settings else {}
    return build_network(name, in_channels, n_classes, width=width, **shallow, **settings)


def n_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def largest_gradients(network):
    """Of each parameter, in float64, where a gradient that should be 0 is below 1e-12."""
    network = network.double()
    images, labels = torch.randn(2, 1, 32, 48).double(), torch.randint(0, 3, (2, 32, 48))
    F.cross_entropy(network(images), labels).backward()
    return {
        key: 0.0 if p.grad is None else p.grad.abs().max().item()
        for key, p in network.named_parameters()
    }


@every_network
def test_rows_are_complete(name):
    row = NETWORKS[name]
    assert row.label
    assert row.help
    assert any(mark in row.citation for mark in ("doi:", "arXiv:"))
    assert row.settings["width"] >= 1
    assert row.build.__doc__


def test_keys_and_labels_are_unique():
    assert set(NETWORKS) >= {"unet", "attention_unet", "unetpp", "transunet"}
    assert len({row.label for row in NETWORKS.values()}) == len(NETWORKS)


@every_network
@pytest.mark.parametrize("size", [(1, 1), (5, 37), (33, 64), (1, 70)])
def test_any_size_comes_in_and_goes_out(name, size):
    network = small(name, in_channels=2, n_classes=4)
    assert network(torch.randn(1, 2, *size)).shape == (
        1,
        4,
        *size,
    )  # also a batch of one pixel can train
    network.eval()
    logits = network(torch.randn(3, 2, *size))
    assert logits.shape == (3, 4, *size)
    assert logits.isfinite().all()


@every_network
def test_the_size_of_the_paper(name):
    assert small(name).eval()(torch.randn(1, 1, 224, 224)).shape == (1, 3, 224, 224)


class Remember(nn.Module):
    """Gives its input back, and remembers it."""

    def forward(self, image):
        self.seen = image
        return image


@settings(max_examples=30)
@given(height=st.integers(1, 70), width=st.integers(1, 70))
def test_padding_fits_and_is_undone(height, width):
    inner = Remember()
    image = torch.randn(1, 1, height, width)
    assert torch.equal(Padded(inner, 1)(image), image)
    for got, size in zip(inner.seen.shape[-2:], (height, width), strict=True):
        assert got % STRIDE == 0
        assert size <= got < max(size + STRIDE, 2 * STRIDE + 1)
    assert inner.seen.min() == image.min()  # nothing but the image's own values is added
    assert inner.seen.max() == image.max()


@every_network
def test_a_size_that_fits_is_left_alone(name):
    network = small(name).eval()
    image = torch.randn(2, 1, 2 * STRIDE, 3 * STRIDE)
    assert torch.equal(network(image), network.network(image))


@every_network
def test_every_parameter_gets_a_gradient(name):
    dead = [key for key, gradient in largest_gradients(small(name)).items() if gradient < 1e-9]
    assert not dead


def test_a_dead_parameter_would_be_seen():
    plain = monai_nets.AttentionUnet(2, 1, 3, (4, 8, 16), (2, 2))
    assert any(gradient < 1e-12 for gradient in largest_gradients(plain).values())


@every_network
def test_one_batch_is_learnt_by_heart(name):
    network = small(name, width=8)
    labels = torch.randint(0, 3, (2, 4, 4)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    images = labels.unsqueeze(1) + 0.3 * torch.randn(2, 1, 32, 32)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(50):
        optimiser.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimiser.step()
    assert loss < 0.15


@every_network
def test_the_seed_decides_the_weights(name):
    def weights(seed):
        torch.manual_seed(seed)
        return small(name).state_dict()

    first, second, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@every_network
def test_weights_travel(name):
    first, second = small(name), small(name)
    first(torch.randn(2, 1, 32, 32))  # moves the running statistics
    second.load_state_dict(first.state_dict())
    image = torch.randn(1, 1, 40, 40)
    assert torch.equal(first.eval()(image), second.eval()(image))


@every_network
def test_memory_layout_and_precision_change_little(name):
    network, image = small(name).eval(), torch.randn(2, 1, 33, 64)
    logits = network(image)
    network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(
        network(image.to(memory_format=torch.channels_last)), logits, atol=1e-5, rtol=1e-5
    )
    network.train()
    with torch.autocast("cpu", torch.bfloat16):
        network(image).float().square().mean().backward()
        rough = network.eval()(image)
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())
    assert rough.dtype == torch.bfloat16


@every_network
def test_compiles_in_one_piece(name):
    network, image = small(name).eval(), torch.randn(1, 1, 33, 64)
    with torch.no_grad():
        compiled = torch.compile(network, backend="eager", fullgraph=True)(image)
        torch.testing.assert_close(compiled, network(image))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "unet3",
            {},
            "unknown network 'unet3'; choose one of unet, attention_unet, unetpp, transunet",
        ),
        (
            "unet",
            {"depth": 3},
            "unknown setting of unet 'depth'; choose one of width, last_activation, norm,"
            " upsample, last_pool",
        ),
        ("unet", {"norm": "layer"}, "unknown norm 'layer'; choose one of batch, instance, none"),
        ("unet", {"norm": 1}, "unknown norm 1; choose one of batch, instance, none"),
        ("unet", {"upsample": "cubic"}, "unknown upsample 'cubic'; choose one of deconv, nearest"),
        ("unet", {"last_pool": 3}, "last_pool must be 2 or 4; got 3"),
        ("unet", {"width": 2.5}, "width must be a whole number; got 2.5"),
        ("unet", {"width": True}, "width must be a whole number; got True"),
        ("transunet", {"depth": 0}, "depth must be at least 1; got 0"),
        ("transunet", {"dropout": 2}, "dropout must lie in [0, 1]; got 2"),
        ("transunet", {"dropout": "much"}, "dropout must be a number; got 'much'"),
    ],
)
def test_bad_settings_are_one_sentence(name, settings, message):
    with pytest.raises(UserError) as error:
        build_network(name, 1, 2, **settings)
    assert str(error.value) == message


@every_network
def test_last_activation_is_one_of_two(name):
    with pytest.raises(UserError, match="unknown last_activation 'tanh'; choose one of none, relu"):
        build_network(name, 1, 2, last_activation="tanh")


def last_features(network, image):
    """What comes into the layer that makes logits."""
    seen = []
    hook = last_layer(network).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(image)
    hook.remove()
    return seen[0]


@every_network
def test_the_last_features_are_below_0_too(name):
    """Behind a ReLU, half of them are 0, and a pixel where all are 0 has no gradient."""
    image = torch.randn(2, 1, 32, 48)
    assert (last_features(small(name), image) < 0).float().mean() > 0.3
    behind = last_features(small(name, last_activation="relu"), image)
    assert behind.min() == 0
    assert (behind == 0).float().mean() > 0.3


@every_network
def test_both_forms_have_the_same_weights(name):
    torch.manual_seed(3)
    new = small(name).state_dict()
    torch.manual_seed(3)
    old = small(name, last_activation="relu").state_dict()
    assert list(new) == list(old)
    assert all(torch.equal(new[key], old[key]) for key in new)


@every_network
def test_the_last_layer_gives_the_logits(name):
    network = small(name, n_classes=5).eval()
    layer, logits = last_layer(network), []
    layer.register_forward_hook(lambda _, inputs, output: logits.append(output))
    assert torch.equal(network(torch.randn(1, 1, 32, 32)), logits[0])
    assert layer.bias.shape == (5,)


NORMS = (nn.BatchNorm2d, nn.InstanceNorm2d)


def n_norms(network):
    return [sum(isinstance(m, kind) for m in network.modules()) for kind in NORMS]


@pytest.mark.parametrize(
    ("norm", "expected"), [("batch", [18, 0]), ("instance", [0, 18]), ("none", [0, 0])]
)
def test_norms_of_unet(norm, expected):
    network = small("unet", norm=norm)
    assert n_norms(network) == expected
    biases = [m.bias is not None for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert biases == [norm == "none"] * 18 + [True]  # a bias where no norm takes it out again
    dead = [key for key, size in largest_gradients(network).items() if size < 1e-12]
    assert not dead


AUTHORS = {"norm": "none", "upsample": "nearest", "last_pool": 4, "last_activation": "relu"}


class Authors(nn.Module):
    """The U-Net of the paper's authors, written from its description: nothing but convolutions,
    ReLU, max-pooling 2, 2, 2, 4 and nearest neighbours 4, 2, 2, 2.
    """

    def __init__(self, convs, last):
        super().__init__()
        self.convs, self.last = convs, last  # pairs of each level down, then up

    def forward(self, x):
        skips = []
        for pair, size in zip(self.convs[:5], (1, 2, 2, 2, 4), strict=True):
            x = F.max_pool2d(x, size)
            for conv in pair:
                x = F.relu(F.conv2d(x, conv.weight, conv.bias, padding=1))
            skips.append(x)
        skips.pop()
        for pair, size in zip(self.convs[5:], (4, 2, 2, 2), strict=True):
            x = x.repeat_interleave(size, -1).repeat_interleave(size, -2)
            x = torch.cat([skips.pop(), x], 1)
            for conv in pair:
                x = F.relu(F.conv2d(x, conv.weight, conv.bias, padding=1))
        return self.last(x)


def test_the_network_of_the_authors():
    network = small("unet", **AUTHORS)
    assert not [m for m in network.modules() if isinstance(m, nn.ConvTranspose2d)]
    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    inner = network.network
    order = [inner.conv_0, *(getattr(inner, f"down_{i}").convs for i in (1, 2, 3, 4))]
    order += [getattr(inner, f"upcat_{i}").convs for i in (4, 3, 2, 1)]
    pairs = [(block.conv_0.conv, block.conv_1.conv) for block in order]
    assert len(convs) == 2 * len(pairs) + 1
    image = torch.randn(2, 1, 64, 96)
    torch.testing.assert_close(network(image), Authors(pairs, inner.final_conv)(image))


@pytest.mark.parametrize(("upsample", "last_pool"), [("deconv", 4), ("nearest", 2), ("nearest", 4)])
def test_maps_of_unet(upsample, last_pool):
    network, sizes = small("unet", upsample=upsample, last_pool=last_pool), []
    inner = network.network
    for block in (inner.down_3, inner.down_4, inner.upcat_4, inner.upcat_1):
        block.register_forward_hook(lambda _, inputs, output: sizes.append(tuple(output.shape[1:])))
    assert network(torch.randn(1, 1, 64, 128)).shape == (1, 3, 64, 128)
    bottom = (64, 8 // last_pool, 16 // last_pool)
    assert sizes == [(32, 8, 16), bottom, (32, 8, 16), (4, 64, 128)]


@pytest.mark.parametrize("size", [(1, 1), (33, 64), (70, 97)])
def test_the_network_of_the_authors_takes_any_size(size):
    network = small("unet", **AUTHORS)
    assert network(torch.randn(2, 1, *size)).shape == (2, 3, *size)


@every_network
def test_bad_numbers_are_one_sentence(name):
    with pytest.raises(UserError, match=r"^width must be at least \d; got 0$"):
        build_network(name, 1, 2, width=0)


@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (2, 8, 8), (1, 2, 0, 8)])
def test_wrong_images_are_one_sentence(shape):
    with pytest.raises(UserError, match=r"must be \(N, 2, H, W\) and not empty; got shape \("):
        small("unet", in_channels=2)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("name", "plain"), [("unet", monai_nets.BasicUNet), ("unetpp", monai_nets.BasicUNetPlusPlus)]
)
def test_the_form_of_the_paper_is_still_the_network_of_monai(name, plain):
    ours = small(name, last_activation="relu").network
    theirs = plain(2, 1, 3, (4, 8, 16, 32, 64, 4), act="relu", norm="batch", bias=False)
    unused = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not unused.unexpected_keys
    assert all("final_conv" in key for key in unused.missing_keys)
    image = torch.randn(2, 1, 32, 48)
    expected = theirs(image)
    torch.testing.assert_close(ours(image), expected[0] if isinstance(expected, list) else expected)


@pytest.mark.parametrize(
    ("name", "width", "millions"),
    # U-Net at width 32 and U-Net++ as Zhou et al. 2018 count them; the others as commonly reported
    [
        ("unet", 32, 7.76),
        ("unetpp", 32, 9.04),
        ("unet", 64, 31.0),
        ("attention_unet", 64, 34.9),
        ("transunet", 64, 105.3),
    ],
)
def test_original_widths_have_the_known_number_of_parameters(name, width, millions):
    with torch.device("meta"):
        network = build_network(name, 1, 4, width=width)
    assert n_parameters(network) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("depth", [1, 12])
def test_transformer_layers_have_the_size_of_vit(depth):
    hidden = 768
    with torch.device("meta"):
        encoder = _Encoder(1024, hidden, depth, 0.1)
    assert n_parameters(encoder.layers) == depth * (12 * hidden**2 + 13 * hidden)


def test_transformer_layer_is_that_of_pytorch():
    ours, hidden = _Layer(48, dropout=0.0).eval(), 48
    theirs = nn.TransformerEncoderLayer(
        hidden, 12, 4 * hidden, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True
    )
    pairs = {
        "self_attn.in_proj_": ours.qkv,
        "self_attn.out_proj.": ours.project,
        "linear1.": ours.mlp.linear1,
        "linear2.": ours.mlp.linear2,
        "norm1.": ours.norm_attention,
        "norm2.": ours.norm_mlp,
    }
    theirs.load_state_dict(
        {
            key + kind: getattr(part, kind)
            for key, part in pairs.items()
            for kind in ("weight", "bias")
        }
    )
    tokens = torch.randn(2, 7, hidden)
    torch.testing.assert_close(ours(tokens), theirs.eval()(tokens))


def test_stem_has_skips_at_a_half_a_quarter_and_an_eighth():
    coarsest, skips = _Stem(1, 4)(torch.randn(1, 1, 64, 96))
    assert coarsest.shape == (1, 64, 4, 6)
    assert [skip.shape for skip in skips] == [(1, 4, 32, 48), (1, 16, 16, 24), (1, 32, 8, 12)]


def test_standardised_filters_ignore_shift_and_scale():
    conv, image = _StandardConv(3, 5, 3), torch.randn(1, 3, 8, 8)
    nn.init.normal_(conv.weight)
    before = conv(image)
    conv.weight.data = 7 * conv.weight.data - 3
    torch.testing.assert_close(conv(image), before, atol=1e-3, rtol=1e-3)


def test_positions_tell_pixels_apart():
    """Without its position embedding, the encoder would treat all pixels of a flat image alike."""
    encoder = _Encoder(4, 24, 1, 0.0).eval()
    flat = torch.ones(1, 4, 3, 5)
    assert encoder(flat).std(dim=(2, 3)).max() > 1e-3
    nn.init.zeros_(encoder.position)
    assert encoder(flat).std(dim=(2, 3)).max() < 1e-5
