"""The networks: functions that build them, the table `NETWORKS`, and `build_network`.

>>> import torch
>>> from segcal.networks import build_network
>>> network = build_network("unet", in_channels=1, n_classes=3, width=4)
>>> network(torch.zeros(2, 1, 50, 37)).shape
torch.Size([2, 3, 50, 37])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segcal.networks.transunet import transunet
from segcal.networks.unets import attention_unet, unet, unetpp
from segcal.types import UserError, check_range, check_settings, settings_of

__all__ = ["NETWORKS", "Network", "Padded", "attention_unet", "build_network", "last_layer"]
__all__ += ["transunet", "unet", "unetpp"]

STRIDE = 16  # heights and widths inside the networks are multiples of it (32 if `last_pool` is 4)

MOST, MOST_WEIGHTS = 1000, 1_000_000_000
"""The largest width or depth, and the most weights: training takes 16 bytes for each."""


@dataclass(frozen=True)
class Network:
    """A row of `NETWORKS`."""

    build: Callable[..., nn.Module]
    label: str
    help: str
    citation: str

    @property
    def settings(self) -> dict[str, Any]:
        """The names and defaults of the function's settings."""
        return settings_of(self.build)


_RONNEBERGER = "Ronneberger et al., MICCAI 2015, doi:10.1007/978-3-319-24574-4_28"
_OKTAY = "Oktay et al., MIDL 2018, arXiv:1804.03999"
_ZHOU = "Zhou et al., DLMIA 2018, doi:10.1007/978-3-030-00889-5_1"
_CHEN = "Chen et al., 2021, arXiv:2102.04306"

NETWORKS: dict[str, Network] = {
    "unet": Network(unet, "U-Net", "U-Net with batch norm", _RONNEBERGER),
    "attention_unet": Network(attention_unet, "Attention U-Net", "U-Net with gated skips", _OKTAY),
    "unetpp": Network(unetpp, "U-Net++", "U-Net with nested skips", _ZHOU),
    "transunet": Network(transunet, "TransUNet", "ResNet-50, transformer, U-Net decoder", _CHEN),
}


def build_network(name: str, in_channels: int, n_classes: int, **settings: Any) -> nn.Module:
    """A network of the table, with new weights, for images (N, C, H, W) of any size.

    >>> build_network("unet3", 1, 2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    segcal.types.UserError: unknown network 'unet3'; choose one of unet, ...
    """
    check_settings("network", NETWORKS, name, settings)
    row = NETWORKS[name]
    for key, value in settings.items():
        if isinstance(row.settings[key], str):  # the function knows the words it allows
            continue
        whole = isinstance(row.settings[key], int)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise UserError(f"{key} must be a {'whole ' if whole else ''}number; got {value!r}")
    defaults = row.settings.items()
    if larger := [key for key, n in defaults if isinstance(n, int) and settings.get(key, n) > n]:
        for key in larger:
            check_range(key, settings[key], 0, MOST)
        with torch.device("meta"):  # shapes alone: no memory
            shapes = row.build(in_channels, n_classes, **settings)
        _check_size(shapes, " or ".join(larger))
    stride = STRIDE // 2 * settings.get("last_pool", 2)
    return Padded(row.build(in_channels, n_classes, **settings), in_channels, stride)


def _check_size(network: nn.Module, setting: str) -> None:
    """Refuse a network that no memory holds."""
    n_weights = sum(each.numel() for each in network.parameters())
    if n_weights > MOST_WEIGHTS:
        problem = f"this network would have {n_weights:,} weights, more than {MOST_WEIGHTS:,}"
        raise UserError(f"{problem}; choose a smaller {setting}")


def last_layer(network: nn.Module) -> nn.Conv2d:
    """The convolution that gives the logits: its bias has a value per class."""
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    return convolutions[-1]


class Padded(nn.Module):
    """A network for any size: it repeats the image's border, and crops the logits back."""

    def __init__(self, network: nn.Module, in_channels: int, stride: int = STRIDE) -> None:
        super().__init__()
        self.network, self.in_channels, self.stride = network, in_channels, stride

    def forward(self, image: Tensor) -> Tensor:
        """Logits (N, K, H, W) of images (N, C, H, W)."""
        shape = tuple(image.shape)
        if image.ndim != 4 or shape[1] != self.in_channels or 0 in shape:
            allowed = f"(N, {self.in_channels}, H, W) and not empty"
            raise UserError(f"images for this network must be {allowed}; got shape {shape}")
        height, width = image.shape[-2:]
        (top, bottom), (left, right) = (_margins(size, self.stride) for size in (height, width))
        if top or bottom or left or right:
            # Not mirrored: that needs more than one pixel, and adds structure to be segmented.
            image = F.pad(image, (left, right, top, bottom), mode="replicate")
        logits: Tensor = self.network(image)
        return logits[..., top : top + height, left : left + width]


def _margins(size: int, stride: int) -> tuple[int, int]:
    """How much to add before and after, to reach a multiple of the stride.

    At least two strides: batch norm cannot train on one image with one pixel on its coarsest map.

    >>> _margins(37, 16), _margins(1, 16), _margins(64, 32)
    ((5, 6), (15, 16), (0, 0))
    """
    missing = max(2 * stride, -(-size // stride) * stride) - size
    return missing // 2, missing - missing // 2
