"""The margin term beside nnU-Net's own loss. Needs torch and `segcal.losses` alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from segcal.losses import margin_penalty, region_margin_penalty
from segcal.types import IGNORE


class WithMargin(nn.Module):
    """nnU-Net's loss of one output, plus `weight` times the margin term.

    Targets are as nnU-Net makes them: (N, 1, *S) labels; for regions (N, R, *S), one mask per
    region, and one more of the ignored voxels if there is an ignore label.
    """

    def __init__(
        self,
        loss: nn.Module,
        *,
        margin: float,
        weight: float = 0.1,
        regions: bool = False,
        ignore_label: int | None = None,
    ) -> None:
        super().__init__()
        self.loss, self.margin, self.weight = loss, margin, weight
        self.regions, self.ignore_label = regions, ignore_label

    def forward(self, logits: Tensor, target: Tensor) -> Any:
        """The sum of both; nnU-Net's loss may be the number 0, where all voxels are ignored."""
        return self.loss(logits, target) + self.weight * self.penalty(logits, target)

    def penalty(self, logits: Tensor, target: Tensor) -> Tensor:
        """The margin term: the mean over voxels, and over regions if there are any."""
        if self.regions:
            ignored = None if self.ignore_label is None else target[:, -1:]
            return region_margin_penalty(logits, margin=self.margin, ignored=ignored)
        ignore = IGNORE if self.ignore_label is None else self.ignore_label
        labels = target[:, 0].long()
        return margin_penalty(logits, labels, margin=self.margin, ignore_index=ignore)
