"""The validation scores of an epoch: values that add, over cases and over processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from segcal.metrics import METRICS, Reliability, confusion, ece, label_map, reliability
from segcal.metrics.sets import top_of_all
from segcal.metrics.statistics import detached

SCORES = ("val_dice", "val_dice_se", "val_ece", "val_ece_perfect", "val_nll", "val_misplaced")
"""Dice and ECE (over reference voxels) are means over cases, with the standard error of Dice and
the ECE of a perfect network.

NLL and misplaced confidence are sums over all voxels of all cases, empty ones too, divided by the
number of all foreground voxels. No prediction changes this divisor: the NLL is lowest for the true
probabilities. A mean of what each case has per foreground voxel is not, because a case that turns
out to be empty would be left out."""

DIGITS = 6  # of a score in `log.csv`; choices are made by the same digits


@dataclass(frozen=True, eq=False)
class Sums:
    """Scores of cases, summed. A case without foreground has no ECE."""

    moments: Tensor  # (3, K+2): cases with a value, their sum, and that of the squares
    of_all: Tensor  # (2,): NLL and misplaced confidence, summed over all voxels
    voxels: Tensor  # (2, K-1): voxels predicted as each foreground class, and labelled so
    reference: Reliability  # of all cases together, over reference voxels

    @staticmethod
    def zero(n_classes: int) -> Sums:
        """The value of no case."""
        moments = torch.zeros(3, n_classes + 2, dtype=torch.float64)
        voxels = torch.zeros(2, n_classes - 1, dtype=torch.float64)
        return Sums(moments, moments[0, :2], voxels, Reliability.zero(n_classes))

    def __add__(self, other: Sums) -> Sums:
        of_all, reference = self.of_all + other.of_all, self.reference + other.reference
        return Sums(self.moments + other.moments, of_all, self.voxels + other.voxels, reference)

    @property
    def means(self) -> Tensor:
        """Dice per foreground class, their mean, ECE, and ECE if perfect; NaN without any case."""
        return self.moments[1] / self.moments[0]

    @property
    def dice(self) -> Tensor:
        """The mean Dice of each foreground class (K-1,)."""
        return self.means[:-3]

    @property
    def never_predicted(self) -> list[int]:
        """The foreground classes (from 1) that are labelled somewhere and predicted nowhere."""
        predicted, labelled = self.voxels
        return (((predicted == 0) & (labelled > 0)).nonzero().flatten() + 1).tolist()

    @property
    def n_cases(self) -> int:
        """The cases with foreground; these have a Dice in every epoch."""
        return int(self.moments[0, -1])

    @property
    def scores(self) -> dict[str, float]:
        """The value of each of `SCORES`.

        NaN Dice means that there is nothing to find in any case; it counts as 0. One case has no
        standard error; it is 0 then, so that Dice alone decides."""
        n, total, squares = self.moments[:, -3]
        variance = (squares - total**2 / n).clamp_min(0) / (n - 1)
        error = (variance / n).sqrt() if n > 1 else torch.zeros(())
        (dice, *eces), foreground = self.means[-3:], self.reference.n_voxels
        of_all = torch.where(foreground > 0, self.of_all / foreground, torch.nan)
        values = (dice.nan_to_num(0.0), error, *eces, *of_all)
        return {name: round(float(x), DIGITS) for name, x in zip(SCORES, values, strict=True)}

    def reduced(self, reduce: Callable[[Tensor], Tensor]) -> Sums:
        """The same after a function that adds up one tensor over processes."""
        parts = (self.moments, self.of_all, self.voxels, *self.reference.parts)
        flat = reduce(torch.cat([part.flatten() for part in parts]))
        split = flat.split([part.numel() for part in parts])
        whole = [values.reshape(part.shape) for values, part in zip(split, parts, strict=True)]
        moments, of_all, voxels, *of_reference = whole
        return Sums(moments, of_all, voxels, Reliability(*of_reference))


def case_sums(logits: Tensor, labels: Tensor) -> Sums:
    """The scores of one case, from its logits (D, K, H, W) and labels (D, H, W)."""
    logits, labels = detached(logits), detached(labels)
    counts = confusion(label_map(logits), labels, n_classes=logits.shape[1])
    dices = METRICS["dice"].function(counts).double()
    reference = reliability(logits, labels, mask="reference")
    everywhere = top_of_all(logits, labels)
    of_all = torch.stack([everywhere.nll, everywhere.bins.gap.abs().sum()]).cpu()
    perfect = everywhere.ece_perfect.where(reference.n_voxels > 0, torch.nan)
    eces = torch.stack([ece(reference), perfect])
    values = torch.cat([dices, dices.nanmean()[None], eces]).cpu()
    known = values.where(~values.isnan(), 0)
    moments = torch.stack([(~values.isnan()).double(), known, known**2])
    voxels = torch.stack([counts[1:].sum(1), counts[:, 1:].sum(0)]).double().cpu()
    return Sums(moments, of_all, voxels, Reliability(*(part.cpu() for part in reference.parts)))
