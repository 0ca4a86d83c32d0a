"""Trainings of an hour or less on a processor: the class that a comparison adds to each trainer."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from segcal.integrations.nnunet.trainers.segcal_trainers import (
    nnUNetTrainerMbLS_m5,
    nnUNetTrainerMbLS_m8,
)


class Brief:
    """60 epochs of 100 steps in place of 1000 of 250; a checkpoint every fifth epoch."""

    def initialize(self):
        self.num_epochs, self.save_every = 60, 5
        self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 100, 10
        super().initialize()


class nnUNetTrainerBrief(Brief, nnUNetTrainer):
    """nnU-Net's default loss."""


class nnUNetTrainerBriefMbLS_m5(Brief, nnUNetTrainerMbLS_m5):
    """The same with margin 5."""


class nnUNetTrainerBriefMbLS_m8(Brief, nnUNetTrainerMbLS_m8):
    """The same with margin 8."""


class nnUNetTrainerShort(nnUNetTrainer):
    """A network in minutes, to try things on: 5 epochs of 50 steps."""

    def initialize(self):
        self.num_epochs, self.save_every = 5, 1
        self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 50, 5
        super().initialize()
