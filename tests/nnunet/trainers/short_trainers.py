"""Short trainings, as a user would write them: another length is a class of one's own."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from segcal.integrations.nnunet.trainers.segcal_trainers import (
    nnUNetTrainerCEMbLS_m5,
    nnUNetTrainerMbLS_m5,
    nnUNetTrainerMbLS_m8,
)


class Short:
    """Two epochs of a few steps."""

    def initialize(self):
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 2, 4, 1
        super().initialize()


class nnUNetTrainerShort(Short, nnUNetTrainer):
    """nnU-Net's default."""


class nnUNetTrainerShortMbLS_m5(Short, nnUNetTrainerMbLS_m5):
    """With the margin."""


class nnUNetTrainerShortMbLS_m8(Short, nnUNetTrainerMbLS_m8):
    """The one that the page shows."""


class nnUNetTrainerShortStoppedCEMbLS_m5(Short, nnUNetTrainerCEMbLS_m5):
    """Without Dice and deep supervision. Stops after an epoch, unless it goes on from one."""

    def initialize(self):
        self.enable_deep_supervision = False
        super().initialize()

    def load_checkpoint(self, *args):
        super().load_checkpoint(*args)
        self.print_to_log_file(f"goes on from epoch {self.current_epoch}")

    def on_epoch_end(self):
        self.save_every = 1
        super().on_epoch_end()
        if self.current_epoch == 1:
            raise SystemExit("stopped")
