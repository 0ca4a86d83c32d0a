"""What Lightning trains: network, objective and protocol in one module."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor

from segcal.config import RunSettings
from segcal.data.sampling import EpochSampler, epoch_seed
from segcal.data.slices import Slices, volume
from segcal.folders import CaseSet
from segcal.hardware import channels_last
from segcal.losses import Criterion, Validation
from segcal.networks import build_network, last_layer
from segcal.predictors.run import volume_logits
from segcal.training.validation import Sums, case_sums
from segcal.types import UserError

PARTS_EVERY = 20  # batches; each part of a loss costs a pass over the logits


class Segmentation(L.LightningModule):
    """Network, objective and protocol; thin over the functions."""

    def __init__(self, settings: RunSettings, cases: CaseSet, slices: Slices) -> None:
        super().__init__()
        self.run, self.cases, self.frame = settings, cases, slices.shape
        self.order = EpochSampler(len(slices), settings.training.batch, settings.seed)
        torch.manual_seed(settings.seed)
        n_classes = len(cases.classes) + 1
        loss, network = settings.loss, settings.network
        built = build_network(network.name, len(cases.channels), n_classes, **network.settings)
        if settings.training.class_prior:
            with torch.no_grad():
                cast(Tensor, last_layer(built).bias).copy_(slices.class_shares.log())
        self.network = channels_last(built)
        self.criterion = Criterion(loss.name, n_classes=n_classes, **loss.settings)
        self.cases_seen = Sums.zero(n_classes)  # by validation, in this epoch
        self.scores: dict[str, float] = {}  # of the last validation
        self.never_predicted: list[str] = []  # classes that it lacks
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Set the order of the next epoch: Lightning asks for batches before it sets the epoch.

        The rate falls at half of the epochs that the run has now, if it was extended."""
        stored, epoch = checkpoint["state_dict"], checkpoint["epoch"]
        shapes = {name: tensor.shape for name, tensor in self.state_dict().items()}
        known = isinstance(stored, dict) and isinstance(epoch, int)
        if not known or shapes != {name: getattr(t, "shape", None) for name, t in stored.items()}:
            raise UserError("the checkpoint is of another network; --again starts the run over")
        self.order.set_epoch(epoch + 1)
        for state in checkpoint["lr_schedulers"]:
            state["milestones"] = Counter([self._half])

    def on_train_epoch_start(self) -> None:
        """Begin the epoch's own random numbers (dropout, augmentation)."""
        torch.manual_seed(epoch_seed(self.run.seed, self.current_epoch) * 1009 + self.global_rank)
        self.sums, self.counts = {}, {}

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of one batch; its parts now and then."""
        image, label = batch
        logits = self.network(image.contiguous(memory_format=torch.channels_last))
        loss: Tensor = self.criterion(logits, label)
        value = loss.item()
        if not math.isfinite(value):
            where = f"the loss is {value} in epoch {self.current_epoch + 1}"
            raise UserError(f"{where}; lower training.lr or the loss's weight")
        self._note("loss", value)
        if index % PARTS_EVERY == 0:
            for name, part in self.criterion.parts(logits, label).items():
                self._note(name, part)
        return loss

    def _note(self, name: str, value: Tensor | float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float(value)
        self.counts[name] = self.counts.get(name, 0) + 1

    def on_validation_epoch_start(self) -> None:
        """Forget the last epoch's scores."""
        self.cases_seen = Sums.zero(len(self.cases.classes) + 1)

    def validation_step(self, id: str, index: int) -> None:
        """One whole volume; a process with fewer cases than others gets an empty id at the end."""
        if not id:
            return
        image, label = volume(self.cases, id)
        image = image.to(self.device, next(self.network.parameters()).dtype)
        logits = volume_logits(self.network, image, self.frame)  # (D, K, H, W)
        self.cases_seen += case_sums(logits, label.to(self.device))

    def on_validation_epoch_end(self) -> None:
        """Log the scores of all processes; a loss with state learns from them."""
        if self.trainer.world_size > 1:
            self.cases_seen = self.cases_seen.reduced(self._over_processes)
        total = self.cases_seen
        self.scores = total.scores
        self.never_predicted = [self.cases.classes[k - 1] for k in total.never_predicted]
        for name in ("val_dice", "val_nll"):
            self.log(name, self.scores[name], logger=False, sync_dist=False, prog_bar=True)
        self.criterion.update(Validation(total.reference, total.dice))

    def _over_processes(self, values: Tensor) -> Tensor:
        whole = self.trainer.strategy.reduce(values.to(self.device), reduce_op="sum")
        return cast(Tensor, whole).cpu()

    @property
    def n_cases(self) -> int:
        """The validation cases with foreground, in all processes."""
        return self.cases_seen.n_cases

    @property
    def _half(self) -> int:
        """The epoch from which the rate is lower."""
        return max(1, self.run.training.epochs // 2)

    def configure_optimizers(self) -> Any:
        """Adam, and a lower rate from half-time."""
        chosen = self.run.training
        optimizer = torch.optim.Adam(self.network.parameters(), lr=chosen.lr, fused=True)
        options: Any = {"milestones": [self._half], "gamma": chosen.lr_drop}
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, **options)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}
