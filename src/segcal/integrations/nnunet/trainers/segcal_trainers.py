"""Margin-based label smoothing (Murugesan et al. 2023) in nnU-Net, a class per margin.

The name of the class is the name of the results' folder, and nnU-Net looks the class up again when
it predicts. Everything but the loss is nnU-Net's. Its own loss stays as it is, with batch Dice,
deep supervision, ignore label and regions. Another length of training, or another margin, is a
class of your own that inherits from one of these.
"""

from __future__ import annotations

from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from torch import nn

import segcal
from segcal.integrations.nnunet.margin import WithMargin

__all__ = ["nnUNetTrainerCEMbLS_m5", "nnUNetTrainerCEMbLS_m8", "nnUNetTrainerCEMbLS_m10"]
__all__ += ["nnUNetTrainerMbLS_m5", "nnUNetTrainerMbLS_m8", "nnUNetTrainerMbLS_m10"]


class nnUNetTrainerMbLS_m10(nnUNetTrainer):
    """nnU-Net's own loss plus 0.1 times the margin term, margin 10."""

    margin = 10.0
    dice = True

    def _build_loss(self) -> nn.Module:
        loss = super()._build_loss()
        deep = isinstance(loss, DeepSupervisionWrapper)
        of_one_output = loss.loss if deep else loss
        if not self.dice:
            of_one_output.weight_dice = 0
        summed = WithMargin(
            of_one_output,
            margin=self.margin,
            regions=self.label_manager.has_regions,
            ignore_label=self.label_manager.ignore_label,
        )
        what = "nnU-Net's loss" if self.dice else "nnU-Net's loss without Dice"
        term = f"{summed.weight:g} times the margin term, margin {summed.margin:g}"
        self.print_to_log_file(f"segcal {segcal.__version__}: {what} plus {term}")
        if not deep:
            return summed
        loss.loss = summed
        return loss


class nnUNetTrainerMbLS_m8(nnUNetTrainerMbLS_m10):
    """The same with margin 8."""

    margin = 8.0


class nnUNetTrainerMbLS_m5(nnUNetTrainerMbLS_m10):
    """The same with margin 5."""

    margin = 5.0


class nnUNetTrainerCEMbLS_m10(nnUNetTrainerMbLS_m10):
    """Cross-entropy plus 0.1 times the margin term, margin 10, without Dice: the paper's loss."""

    dice = False


class nnUNetTrainerCEMbLS_m8(nnUNetTrainerCEMbLS_m10):
    """The same with margin 8."""

    margin = 8.0


class nnUNetTrainerCEMbLS_m5(nnUNetTrainerCEMbLS_m10):
    """The same with margin 5."""

    margin = 5.0
