"""What a training writes: the weights it keeps, a row of the log per epoch, and checkpoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, RichProgressBar

from segcal import folders
from segcal.choice import Validated, choose, still_open
from segcal.folders import (
    read_log,
    replacing,
    save_weights,
    seal,
    seal_holds,
    weights_path,
    write_log,
)
from segcal.training.module import Segmentation
from segcal.types import UserError

NEEDED = (
    *("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks"),
    *("epoch", "global_step", "pytorch-lightning_version"),
)
"""What a training resumes from."""


class Checkpoints(TorchCheckpointIO):
    """Checkpoints that are written beside their place and then renamed: a kill leaves one intact.

    Lightning writes them to the system's temporary folder, and its last move may be a copy."""

    def __init__(self, needed: Collection[str] = ()) -> None:
        """Without the keys that are `needed` a checkpoint counts as damaged."""
        super().__init__()
        self.needed = frozenset(needed)

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Write, then rename."""
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as partial:
                with partial.open("wb") as file:
                    torch.save(checkpoint, file)
                seal(partial)
        except (OSError, RuntimeError) as error:
            # torch hides why a write failed
            reason = error.__context__ if isinstance(error, RuntimeError) else error
            if not isinstance(reason, OSError):
                raise
            failure = f"cannot write {target}: {reason.strerror or reason}"
            remedy = "make room, and the same command goes on from the epoch before"
            raise UserError(f"{failure}; {remedy}") from None

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Read tensors and simple values, nothing else."""
        state: Any = None
        try:
            if seal_holds(Path(path)):
                state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # torch names a dozen: a damaged archive, a short file, a foreign class
            state = None
        if not isinstance(state, dict) or not self.needed <= set(state):
            raise UserError(f"{path} is damaged; --again starts the run over")
        return state


class Keep(Callback):
    """Keep three sets of weights: `best`, the first with the best validation Dice, `last`, and
    `nll`, by the rule of that name in `segcal.choice`.

    The rule needs the best Dice of all epochs. Until the end, the weights of every epoch that it
    could still choose are candidates, each in a file of its own. What the checkpoint says is what
    counts: files that it does not name go away after the next one is written."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.facts: dict[str, Any] = {}  # by name: the epoch, and its validation scores
        # By epoch; None if an older version, which kept none, began this run.
        self.candidates: dict[int, dict[str, Any]] | None = {}
        self.extended = False  # whether the run was finished before, with fewer epochs

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Delete files that the last checkpoint does not name."""
        if trainer.is_global_zero:
            folders.keep_candidates(self.out, self.candidates or ())

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the weights of this epoch if it is the best so far, the last, or a candidate."""
        module, epoch = cast(Segmentation, pl_module), trainer.current_epoch
        facts = {"epoch": epoch} | module.scores | {folders.NEVER_PREDICTED: module.never_predicted}
        is_best = "best" not in self.facts or facts["val_dice"] > self.facts["best"]["val_dice"]
        is_last = epoch + 1 == trainer.max_epochs
        names = ["best"] * is_best + ["last"] * is_last
        self.facts = self.facts | dict.fromkeys(names, facts)
        paths = [weights_path(self.out, name) for name in names]
        if self.candidates is not None:
            known = self.candidates | {epoch: facts}
            kept = still_open(_validated(known), module.n_cases)
            self.candidates = {epoch: known[epoch] for epoch in kept}
            if epoch in kept:
                paths.append(folders.candidate_path(self.out, epoch))
        for path in paths if trainer.is_global_zero else ():
            save_weights(path, module.network.state_dict())

    def finished(self) -> dict[str, Any]:
        """The facts of all weights; the chosen candidate is now `nll`."""
        if self.candidates is None:
            return self.facts
        epoch = choose(_validated(self.candidates), "nll")
        folders.name_candidate(self.out, epoch, "nll")
        return self.facts | {"nll": self.candidates[epoch]}

    def state_dict(self) -> dict[str, Any]:
        """Goes into the checkpoint, so that a resumed run knows its best epoch."""
        return {"facts": self.facts, "candidates": self.candidates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Comes back from it; a checkpoint of an older version has the facts alone."""
        self.facts = state_dict.get("facts", state_dict)
        self.candidates = known = state_dict.get("candidates")
        if self.extended and known is not None:  # a finished run kept only some of them
            kept = {e: facts for e, facts in known.items() if self._is_kept(e)}
            self.candidates = kept

    def _is_kept(self, epoch: int) -> bool:
        return folders.candidate_path(self.out, epoch).is_file()


def _validated(facts: Mapping[int, Mapping[str, Any]]) -> dict[int, Validated]:
    """The scores that decide."""
    keys = ("val_dice", "val_dice_se", "val_nll")
    return {epoch: Validated(*(scores[key] for key in keys)) for epoch, scores in facts.items()}


class Log(Callback):
    """A row of the log per epoch: losses and their parts, validation, rate, time, memory."""

    def __init__(self, out: Path) -> None:
        self.out, self.start, self.lr = out, 0.0, 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock, and note the learning rate before the schedule changes it."""
        self.start, self.lr = time.perf_counter(), trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the row, over all processes; rows of epochs that a kill undid are dropped."""
        module = cast(Segmentation, pl_module)
        losses, memory = _over_processes(trainer, module)
        if not trainer.is_global_zero:
            return
        number = trainer.current_epoch + 1
        row: dict[str, Any] = {"epoch": number}
        for name, value in losses.items():
            row[f"train_{name}"] = round(value, 6)
        row |= module.scores
        seconds = round(time.perf_counter() - self.start, 2)
        row |= {"lr": self.lr, "seconds": seconds, "memory_mb": round(memory)}
        metrics = {key: value for key, value in row.items() if key != "epoch"}
        row[folders.NEVER_PREDICTED] = "; ".join(module.never_predicted)
        before = [old for old in read_log(self.out) if int(old["epoch"]) < number]
        write_log(self.out, [*before, row])
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=number)


def _over_processes(trainer: L.Trainer, module: Segmentation) -> tuple[dict[str, float], float]:
    """Mean losses of the epoch, and the peak of memory."""

    def reduced(values: Any, operation: str) -> torch.Tensor:
        tensor = torch.tensor(values, device=module.device)
        return cast(torch.Tensor, trainer.strategy.reduce(tensor, reduce_op=operation))

    names = list(module.sums)  # the same in every process: each has a first batch
    sums = reduced([module.sums[name] for name in names], "sum")
    counts = reduced([float(module.counts[name]) for name in names], "sum")
    means = dict(zip(names, (sums / counts).tolist(), strict=True))
    return means, reduced(_peak_memory(), "max").item()


class Bar(RichProgressBar):
    """Lightning's bar of an epoch, with what validation lacks and the time left for the run."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10, console_kwargs={"stderr": True})
        self.start, self.first = 0.0, 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock; a resumed run starts at a later step."""
        super().on_train_start(trainer, pl_module)
        self.start, self.first = time.perf_counter(), trainer.global_step

    def _get_train_description(self, current_epoch: int) -> str:
        epochs = self.trainer.max_epochs
        return f"Epoch {current_epoch + 1}/{epochs} "  # Lightning counts from 0

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        """Validation scores, the classes that it never predicted, and the time left.

        Each step's share of validation is included."""
        metrics: dict[str, Any] = dict(super().get_metrics(trainer, pl_module))
        if lacking := cast(Segmentation, pl_module).never_predicted:
            metrics[folders.NEVER_PREDICTED] = ",".join(lacking)
        done = trainer.global_step - self.first
        if done:
            all_steps = int(trainer.num_training_batches) * (trainer.max_epochs or 0)
            per_step = (time.perf_counter() - self.start) / done
            left = round(per_step * (all_steps - trainer.global_step))
            metrics["left"] = str(timedelta(seconds=left))
        return metrics


def _peak_memory() -> float:
    """The peak memory of this process in MB: the GPU's, or else the system's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / (1 << 20)
    import resource  # which Windows does not have

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
