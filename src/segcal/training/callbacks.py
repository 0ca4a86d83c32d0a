"""What a run keeps: its best weights, a row of `log.csv` per epoch, and the checkpoint to go on
from.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, RichProgressBar

from segcal.folders import read_rows, replacing, save_weights, write_rows
from segcal.training.module import Segmentation
from segcal.types import UserError


class Checkpoints(TorchCheckpointIO):
    """Checkpoints written beside their place and then renamed: a kill leaves the old one or the new
    one, whole.

    Lightning's own writes them in the system's temporary folder, from where the last move may be a
    copy."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write, then rename."""
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as partial, partial.open("wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            reason = (
                error.__context__ if isinstance(error, RuntimeError) else error
            )  # torch hides why a write failed
            if not isinstance(reason, OSError):
                raise
            remedy = "make room, and the same command goes on from the epoch before"
            raise UserError(
                f"cannot write {target}: {reason.strerror or reason}; {remedy}"
            ) from None

    def load_checkpoint(
        self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read tensors and plain values, nothing else."""
        try:
            found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # torch names a dozen: a damaged archive, a short file, a foreign class
            raise UserError(f"{path} is damaged; --again starts the run over") from None
        return found


class Best(Callback):
    """Keep the weights with the best validation Dice as safetensors, the first of equals; or the
    last, if asked to.
    """

    def __init__(self, out: Path, *, last: bool = False) -> None:
        self.path, self.last = out / "checkpoints" / "best.safetensors", last
        self.facts: dict[str, Any] = {"epoch": -1, "val_dice": -1.0, "val_ece": -1.0}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save if this epoch is better than all before, or the one that is asked for."""
        dice, ece = (trainer.callback_metrics[name] for name in ("val_dice", "val_ece"))
        dice = dice.nan_to_num(
            0
        )  # nothing to find in any case; ECE stays NaN without foreground, for 0 would be perfect
        is_last = trainer.current_epoch + 1 == trainer.max_epochs
        if is_last if self.last else float(dice) > self.facts["val_dice"]:
            self.facts = {
                "epoch": trainer.current_epoch,
                "val_dice": float(dice),
                "val_ece": float(ece),
            }
            if trainer.is_global_zero:
                save_weights(self.path, cast(Segmentation, pl_module).network.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Goes into the checkpoint, so that a resumed run knows what it has to beat."""
        return self.facts

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Comes back from it."""
        self.facts = state_dict


class Log(Callback):
    """A row of `log.csv` per epoch: losses, their parts, validation Dice and ECE, learning rate,
    seconds, memory.
    """

    def __init__(self, out: Path) -> None:
        self.path, self.start, self.lr = out / "log.csv", 0.0, 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock, and note the rate before the schedule moves on."""
        self.start, self.lr = time.perf_counter(), trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the row, over all processes; rows of epochs that were lost with a killed run are
        dropped.
        """
        module = cast(Segmentation, pl_module)
        names = list(module.sums)  # the same in every process: each has a first batch
        values = (
            [module.sums[name] for name in names],
            [float(module.counts[name]) for name in names],
            _peak_memory(),
        )
        sums, counts, memory = (torch.tensor(value, device=module.device) for value in values)
        sums, counts, memory = (
            trainer.strategy.reduce(x, reduce_op=op)
            for x, op in ((sums, "sum"), (counts, "sum"), (memory, "max"))
        )
        if not trainer.is_global_zero:
            return
        row: dict[str, Any] = {"epoch": trainer.current_epoch}
        row |= {
            f"train_{name}": round(value, 6)
            for name, value in zip(names, (sums / counts).tolist(), strict=True)
        }
        row |= {
            name: round(float(trainer.callback_metrics[name]), 6)
            for name in ("val_dice", "val_ece")
        }
        row |= {
            "lr": self.lr,
            "seconds": round(time.perf_counter() - self.start, 2),
            "memory_mb": round(memory.item()),
        }
        before = [old for old in read_rows(self.path) if int(old["epoch"]) < trainer.current_epoch]
        write_rows(self.path, [*before, row])
        for logger in trainer.loggers:
            logger.log_metrics(
                {key: value for key, value in row.items() if key != "epoch"},
                step=trainer.current_epoch,
            )


class Bar(RichProgressBar):
    """Lightning's bar of an epoch, with the time that the whole run still needs."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10, console_kwargs={"stderr": True})
        self.start, self.first = 0.0, 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock; a resumed run has steps behind it already."""
        super().on_train_start(trainer, pl_module)
        self.start, self.first = time.perf_counter(), trainer.global_step

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        """Validation scores, and the time left; validation takes its share of every step."""
        found: dict[str, Any] = dict(super().get_metrics(trainer, pl_module))
        done = trainer.global_step - self.first
        if done:
            steps = (
                int(trainer.num_training_batches) * (trainer.max_epochs or 0) - trainer.global_step
            )
            found["left"] = str(
                timedelta(seconds=round((time.perf_counter() - self.start) * steps / done))
            )
        return found


def _peak_memory() -> float:
    """Of this process: what the GPU held, or else what the system counted."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / (1 << 20)
    import resource  # which Windows does not have

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
