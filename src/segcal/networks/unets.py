"""The three convolutional networks: MONAI's, set as close to the published ones as MONAI allows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from monai.networks.nets.attentionunet import AttentionLayer, AttentionUnet, ConvBlock
from monai.networks.nets.basic_unet import BasicUNet, UpCat
from monai.networks.nets.basic_unetplusplus import BasicUNetPlusPlus
from torch import Tensor, nn

from segcal.types import check_range

# Batch norm and ReLU; a bias before a norm is subtracted again, so it would never learn.
_NORM: dict[str, Any] = {"act": ("relu", {"inplace": True}), "norm": "batch", "bias": False}


def unet(in_channels: int, n_classes: int, *, width: int = 32) -> nn.Module:
    """U-Net with five levels of `width` × 1, 2, 4, 8, 16 channels (Ronneberger et al. 2015: 64).

    Differs from the original: convolutions keep the size (padding 1), batch norm after each, no
    dropout at the bottom, and the last upsampling does not halve its 2 × `width` channels.
    """
    check_range("width", width, 1)
    return _with_joins(BasicUNet(2, in_channels, n_classes, _features(width), **_NORM))


def attention_unet(in_channels: int, n_classes: int, *, width: int = 32) -> nn.Module:
    """Attention U-Net with five levels of `width` × 1, 2, 4, 8, 16 channels (Oktay et al. 2018).

    Differs from the original: 2D; strided convolutions instead of max-pooling; a gate sees the
    upsampled features at the resolution of its skip, and the finest skip has one too; no deep
    supervision. Differs from MONAI's: two convolutions with batch norm and ReLU follow a skip, as
    in the original, where MONAI has one with instance norm and PReLU; no biases before a norm.
    """
    check_range("width", width, 2)  # a gate has half as many channels
    network = AttentionUnet(2, in_channels, n_classes, _features(width)[:5], strides=(2, 2, 2, 2))
    for layer in list(network.modules()):
        if isinstance(layer, AttentionLayer):
            channels = layer.merge.out_channels
            layer.add_module("merge", ConvBlock(2, 2 * channels, channels))
    leaves = [module for module in network.modules() if not list(module.children())]
    for layer, behind in pairwise(leaves):  # a batch norm subtracts the bias before it again
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and isinstance(behind, nn.BatchNorm2d):
            layer.bias = None
    return network


def unetpp(in_channels: int, n_classes: int, *, width: int = 32) -> nn.Module:
    """U-Net++ with five levels of `width` × 1, 2, 4, 8, 16 channels (Zhou et al. 2018: 32).

    Differs from the original: batch norm instead of dropout, one output instead of deep
    supervision, and the upsampling to the finest level keeps its 2 × `width` channels. Without
    MONAI's three unused output heads.
    """
    check_range("width", width, 1)
    return _with_joins(_SingleOutput(in_channels, n_classes, width))


class _SingleOutput(BasicUNetPlusPlus):
    """MONAI's U-Net++ with the deepest output alone, without heads that never get a gradient."""

    def __init__(self, in_channels: int, n_classes: int, width: int) -> None:
        super().__init__(2, in_channels, n_classes, _features(width), **_NORM)
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
