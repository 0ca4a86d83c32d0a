"""TransUNet (Chen et al. 2021): a ResNet-50 stem, a vision transformer, and a U-Net's decoder.

Follows the authors' R50-ViT-B/16 at `width` 64 and `depth` 12. Differs from it: no pre-training;
max-pooling is padded; the shortcut's group norm has groups like all others, where theirs normalises
each channel alone; small widths have fewer groups; the position embedding is interpolated, so that
any size can come in. The attention is PyTorch's: MONAI's `TransformerBlock` needs einops, and has a
norm that never learns.
"""

from __future__ import annotations

from math import gcd

import torch
import torch.nn.functional as F
from monai.networks.blocks.mlp import MLPBlock
from monai.networks.nets.basic_unet import TwoConv
from torch import Tensor, nn

from segcal.networks.unets import LAST, end_linear
from segcal.types import check_choice, check_range

_HEADS = 12
_GRID = 14  # of the learnt position embedding: 224 pixels / 16, as in the original


def transunet(
    in_channels: int,
    n_classes: int,
    *,
    width: int = 64,
    depth: int = 12,
    dropout: float = 0.1,
    last_activation: str = "none",
) -> nn.Module:
    """TransUNet with `depth` transformer layers of 12 heads and 12 × `width` channels."""
    check_range("width", width, 4)  # below, standardised 1×1 filters have nothing left to learn
    check_range("depth", depth, 1)
    check_range("dropout", dropout, 0, 1)
    check_choice("last_activation", last_activation, LAST)
    network = _TransUNet(in_channels, n_classes, width, depth, dropout)
    if last_activation == "none":
        end_linear(network.ups[-1].convs)
    return network


class _TransUNet(nn.Module):
    """Images (N, C, H, W), with H and W multiples of 16, to logits (N, K, H, W)."""

    def __init__(
        self, in_channels: int, n_classes: int, width: int, depth: int, dropout: float
    ) -> None:
        super().__init__()
        hidden = _HEADS * width
        *ups, last = (max(8, channels * width // 64) for channels in (512, 256, 128, 64, 16))
        self.stem = _Stem(in_channels, width)
        self.encoder = _Encoder(16 * width, hidden, depth, dropout)
        entry = nn.Conv2d(hidden, ups[0], 3, padding=1, bias=False)
        self.entry = nn.Sequential(entry, nn.BatchNorm2d(ups[0]), nn.ReLU(True))
        skips = (8 * width, 4 * width, width, 0)
        channels = zip(ups, skips, [*ups[1:], last], strict=True)
        self.ups = nn.ModuleList(_Up(*three) for three in channels)
        self.head = nn.Conv2d(last, n_classes, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        x, skips = self.stem(image)
        x = self.entry(self.encoder(x))
        for up, skip in zip(self.ups, [*skips[::-1], None], strict=True):
            x = up(x, skip)
        return self.head(x)


class _Stem(nn.Module):
    """The first three stages of ResNet-50: a map at 1/16 and skips at 1/2, 1/4 and 1/8."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        first = _StandardConv(in_channels, width, 7, stride=2)
        self.root = nn.Sequential(first, _norm(width), nn.ReLU(True))
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        fine = _stage(width, width, n_blocks=3, stride=1)
        middle = _stage(4 * width, 2 * width, n_blocks=4, stride=2)
        coarse = _stage(8 * width, 4 * width, n_blocks=9, stride=2)
        self.stages = nn.ModuleList([fine, middle, coarse])

    def forward(self, image: Tensor) -> tuple[Tensor, list[Tensor]]:
        maps = [self.root(image)]
        x = self.pool(maps[0])
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return x, maps[:-1]


class _Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut; 4 × `n_mid` channels come out."""

    def __init__(self, n_in: int, n_mid: int, stride: int) -> None:
        super().__init__()
        n_out = 4 * n_mid
        self.branch = nn.Sequential(
            *(_StandardConv(n_in, n_mid, 1), _norm(n_mid), nn.ReLU(True)),
            *(_StandardConv(n_mid, n_mid, 3, stride=stride), _norm(n_mid), nn.ReLU(True)),
            *(_StandardConv(n_mid, n_out, 1), _norm(n_out)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if n_in != n_out or stride != 1:
            self.shortcut = nn.Sequential(
                _StandardConv(n_in, n_out, 1, stride=stride), _norm(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.branch(x))


class _StandardConv(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1 (Qiao et al., arXiv:1903.10520)."""

    def __init__(self, n_in: int, n_out: int, size: int, *, stride: int = 1) -> None:
        super().__init__(n_in, n_out, size, stride=stride, padding=size // 2, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        filters = F.layer_norm(self.weight, self.weight.shape[1:], eps=1e-5)  # the same formula
        return self._conv_forward(input, filters, None)


class _Encoder(nn.Module):
    """A vision transformer over the pixels of a map (N, C, h, w); gives (N, hidden, h, w)."""

    def __init__(self, n_in: int, hidden: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Conv2d(n_in, hidden, 1)
        self.position = nn.Parameter(torch.empty(1, hidden, _GRID, _GRID))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(*(_Layer(hidden, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(hidden, eps=1e-6)
        nn.init.trunc_normal_(self.position, std=0.02)
        for module in self.layers.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        grid = x.shape[-2:]
        # Bilinear, not bicubic, because PyTorch can do its gradient deterministically on a GPU.
        position = F.interpolate(self.position, size=grid, mode="bilinear", align_corners=False)
        embedded = self.dropout(self.embed(x) + position)
        tokens = self.layers(embedded.flatten(2).transpose(1, 2))  # (N, h·w, hidden)
        return self.norm(tokens).transpose(1, 2).unflatten(2, grid)  # (N, hidden, h, w)


class _Layer(nn.Module):
    """A layer of ViT (Dosovitskiy et al. 2021): attention, perceptron, norms and shortcuts."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(hidden, eps=1e-6)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.project = nn.Linear(hidden, hidden)
        self.norm_mlp = nn.LayerNorm(hidden, eps=1e-6)
        self.mlp = MLPBlock(hidden, 4 * hidden, dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        qkv = self.qkv(self.norm_attention(tokens)).unflatten(-1, (3, _HEADS, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (N, heads, L, hidden / heads)
        mixed = F.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.project(mixed.transpose(1, 2).flatten(2))
        return tokens + self.mlp(self.norm_mlp(tokens))


class _Up(nn.Module):
    """A step of the decoder: twice the size, joined with a skip if any, then two convolutions."""

    def __init__(self, n_in: int, n_skip: int, n_out: int) -> None:
        super().__init__()
        relu = ("relu", {"inplace": True})
        self.convs = TwoConv(2, n_in + n_skip, n_out, act=relu, norm="batch", bias=False)

    def forward(self, x: Tensor, skip: Tensor | None) -> Tensor:
        # Corners are aligned as in the original.
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        return self.convs(x if skip is None else torch.cat((x, skip), dim=1))


def _stage(n_in: int, n_mid: int, *, n_blocks: int, stride: int) -> nn.Sequential:
    first = _Bottleneck(n_in, n_mid, stride)
    return nn.Sequential(first, *(_Bottleneck(4 * n_mid, n_mid, 1) for _ in range(n_blocks - 1)))


def _norm(channels: int) -> nn.GroupNorm:
    """32 groups as in the original, fewer where a group would have a single channel."""
    return nn.GroupNorm(max(1, gcd(64, channels) // 2), channels, eps=1e-6)
