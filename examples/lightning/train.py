"""A plain LightningModule with segcal: its loss, and exact scores over several processes.

    python examples/lightning/train.py --devices 2

Data are phantoms made here, so nothing is fetched.
"""

import argparse
import json

import lightning
import torch
from monai.networks.nets import BasicUNet
from torch.utils.data import DataLoader

from segcal.data.phantom import CLASSES, phantoms
from segcal.losses import Criterion
from segcal.metrics import CalibrationScores, OverlapScores

N_CLASSES = 1 + len(CLASSES)


class Segmentation(lightning.LightningModule):
    """What a LightningModule needs: a loss, and metrics that it owns."""

    def __init__(self):
        super().__init__()
        features = (8, 8, 16, 16, 32, 8)
        self.network = BasicUNet(3, 1, N_CLASSES, features=features, norm="instance")
        self.criterion = Criterion("mbls_dice", margin=8.0)
        self.calibration = CalibrationScores(N_CLASSES, items_are_cases=True)
        self.overlap = OverlapScores(N_CLASSES, distances=False)

    def training_step(self, batch, _):
        image, target = batch
        return self.criterion(self.network(image), target)

    def validation_step(self, batch, _):
        image, target = batch
        logits = self.network(image)
        self.calibration.update(logits, target)
        for item, truth in zip(logits, target, strict=True):
            self.overlap.update(item[None], truth[None], spacing=None)

    def on_validation_epoch_end(self):
        # compute() adds up over processes; Lightning need not do it again.
        scores = self.calibration.compute() | self.overlap.compute()
        names = ("misplaced", "nll", "volume_ratio", "dice_mean")
        # Lightning logs float32
        self.log_dict({name: scores[name].float() for name in names})
        self.calibration.reset()
        self.overlap.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


class Cases(lightning.LightningDataModule):
    """Each process takes every n-th case, so that none is scored twice.

    Lightning's own sampler repeats cases to make the parts even.
    """

    def __init__(self, n_training, n_validation, batch):
        super().__init__()
        self.numbers, self.batch = (n_training, n_validation), batch

    def setup(self, stage):
        made = phantoms(sum(self.numbers), size=(16, 32, 32))
        pairs = [(torch.as_tensor(p.image) / 500 - 1, torch.as_tensor(p.label)[None]) for p in made]
        part = slice(self.trainer.global_rank, None, self.trainer.world_size)
        self.training = pairs[: self.numbers[0]][part]
        self.validation = pairs[self.numbers[0] :][part]

    def train_dataloader(self):
        return DataLoader(self.training, batch_size=self.batch // self.trainer.world_size)

    def val_dataloader(self):
        return DataLoader(self.validation, batch_size=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10)
    settings = parser.parse_args()

    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=settings.devices,
        strategy="ddp" if settings.devices > 1 else "auto",  # gloo on CPUs
        max_epochs=settings.epochs,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Segmentation(), datamodule=Cases(8, 5, batch=2))
    if trainer.is_global_zero:
        print(json.dumps({name: value.item() for name, value in trainer.callback_metrics.items()}))


if __name__ == "__main__":
    main()
