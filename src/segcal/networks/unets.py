"""The three convolutional networks: MONAI's, set as close to the published ones as MONAI allows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from monai.networks.blocks.upsample import UpSample
from monai.networks.nets.attentionunet import AttentionLayer, AttentionUnet, ConvBlock
from monai.networks.nets.basic_unet import BasicUNet, TwoConv, UpCat
from monai.networks.nets.basic_unetplusplus import BasicUNetPlusPlus
from torch import Tensor, nn

from segcal.types import UserError, check_choice, check_range

_RELU = ("relu", {"inplace": True})
_NORMS: dict[str, Any] = {"batch": "batch", "instance": ("instance", {"affine": True})}
_NORMS["none"] = None
# A bias before a norm is subtracted again, so it would never learn.
_BLOCK: dict[str, Any] = {"act": _RELU, "norm": "batch", "bias": False}
LAST = ("none", "relu")
"""What can be between the last features and the convolution that makes logits of them."""


def unet(
    in_channels: int,
    n_classes: int,
    *,
    width: int = 32,
    last_activation: str = "none",
    norm: str = "batch",
    upsample: str = "deconv",
    last_pool: int = 2,
) -> nn.Module:
    """U-Net with five levels of `width` × 1, 2, 4, 8, 16 channels (Ronneberger et al. 2015: 64).

    Differs from the original: convolutions keep the size (padding 1), batch norm after each, no
    dropout at the bottom, and the last upsampling does not halve its 2 × `width` channels. The
    paper's authors have `width` 32, no norm, `upsample` "nearest" (nearest neighbours, without a
    convolution) and `last_pool` 4 (the last pooling is of 4×4 pixels).
    """
    check_range("width", width, 1)
    check_choice("last_activation", last_activation, LAST)
    check_choice("norm", norm, tuple(_NORMS))
    check_choice("upsample", upsample, ("deconv", "nearest"))
    if last_pool not in (2, 4):
        raise UserError(f"last_pool must be 2 or 4; got {last_pool}")
    block = _BLOCK | {"norm": _NORMS[norm], "bias": norm == "none"}
    features = _features(width)
    network = BasicUNet(2, in_channels, n_classes, features, **block)
    if last_pool != 2:
        network.down_4.max_pooling = nn.MaxPool2d(last_pool)
        network.upcat_4.upsample = UpSample(2, features[4], features[3], last_pool)
    if upsample == "nearest":
        for level in range(4):
            join = getattr(network, f"upcat_{level + 1}")
            n_out, n_below = features[level : level + 2]
            join.upsample = nn.Upsample(scale_factor=last_pool if level == 3 else 2)
            join.convs = TwoConv(2, n_out + n_below, n_out, **block)
    if last_activation == "none":
        end_linear(network.upcat_1.convs)
    return _with_joins(network)


def attention_unet(
    in_channels: int, n_classes: int, *, width: int = 32, last_activation: str = "none"
) -> nn.Module:
    """Attention U-Net with five levels of `width` × 1, 2, 4, 8, 16 channels (Oktay et al. 2018).

    Differs from the original: 2D; strided convolutions instead of max-pooling; a gate sees the
    upsampled features at the resolution of its skip, and the finest skip has one too; no deep
    supervision. Differs from MONAI's: two convolutions with batch norm and ReLU follow a skip, as
    in the original, where MONAI has one with instance norm and PReLU; no biases before a norm.
    """
    check_range("width", width, 2)  # a gate has half as many channels
    check_choice("last_activation", last_activation, LAST)
    network = AttentionUnet(2, in_channels, n_classes, _features(width)[:5], strides=(2, 2, 2, 2))
    for layer in list(network.modules()):
        if isinstance(layer, AttentionLayer):
            channels = layer.merge.out_channels
            layer.add_module("merge", ConvBlock(2, 2 * channels, channels))
    leaves = [module for module in network.modules() if not list(module.children())]
    for layer, behind in pairwise(leaves):  # a batch norm subtracts the bias before it again
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and isinstance(behind, nn.BatchNorm2d):
            layer.bias = None
    if last_activation == "none":
        outermost: Any = network.model[1]
        end_linear(outermost.merge.conv)
    return network


def unetpp(
    in_channels: int, n_classes: int, *, width: int = 32, last_activation: str = "none"
) -> nn.Module:
    """U-Net++ with five levels of `width` × 1, 2, 4, 8, 16 channels (Zhou et al. 2018: 32).

    Differs from the original: batch norm instead of dropout, one output instead of deep
    supervision, and the upsampling to the finest level keeps its 2 × `width` channels. Without
    MONAI's three unused output heads.
    """
    check_range("width", width, 1)
    check_choice("last_activation", last_activation, LAST)
    network = _SingleOutput(in_channels, n_classes, width)
    if last_activation == "none":
        end_linear(network.upcat_0_4.convs)
    return _with_joins(network)


def end_linear(convs: Any) -> None:
    """Take the activation out of the last of some convolutions of MONAI's."""
    del convs[-1].adn.A


class _SingleOutput(BasicUNetPlusPlus):
    """MONAI's U-Net++ with the deepest output alone, without heads that never get a gradient."""

    def __init__(self, in_channels: int, n_classes: int, width: int) -> None:
        super().__init__(2, in_channels, n_classes, _features(width), **_BLOCK)
        self.final_conv_0_1 = self.final_conv_0_2 = self.final_conv_0_3 = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


def _features(width: int) -> tuple[int, ...]:
    return (width, 2 * width, 4 * width, 8 * width, 16 * width, width)


class _Join(nn.Module):
    """MONAI's `UpCat` for even sizes, without padding and the check that stops torch.compile."""

    def __init__(self, block: UpCat) -> None:
        super().__init__()
        self.upsample, self.convs = block.upsample, block.convs

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.convs(torch.cat((skip, self.upsample(x)), dim=1))


def _with_joins(network: nn.Module) -> nn.Module:
    for name, block in list(network.named_children()):
        if isinstance(block, UpCat):
            setattr(network, name, _Join(block))
    return network
