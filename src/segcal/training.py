"""Train one run with Lightning: prepared slices in, `runs/<run>/{run.json, log.csv, checkpoints/}` out.

Every epoch draws its random numbers from the seed and its own number, and a checkpoint ends every epoch, so that a run that
was killed goes on to the very result it would have had.
"""

from __future__ import annotations

import logging
import resource
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

from segcal.config import RunSettings
from segcal.data.sampling import EpochSampler, ShareOfCases, epoch_seed
from segcal.data.slices import Batches, Slices, volume
from segcal.hardware import channels_last, keep_pages
from segcal.inference import volume_logits
from segcal.losses import Criterion
from segcal.metrics import CalibrationScores, OverlapScores
from segcal.networks import build_network
from segcal.provenance import identity, versions
from segcal.store import CaseSet, open_cases, read_rows, read_run, save_weights, write_json, write_rows
from segcal.types import UserError

PARTS_EVERY = 20  # batches between looks at the parts of a loss, which cost a pass over the logits each


def train(settings: RunSettings, out: Path, *, again: bool = False, progress: bool = True) -> dict[str, Any]:
    """Train a run, or go on with it; returns what `run.json` says. A finished run is left alone unless `again`."""
    cases = open_cases(Path(settings.data))
    slices = _slices(settings, cases)
    model = Segmentation(settings, cases, slices.shape)  # also checks loss and network settings, before anything is written
    trainer, validation = _trainer(settings, out, progress), _case_loader(cases, settings)
    if out.exists() and not (out / "run.json").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not a run; choose another --out")
    first = getattr(rank_zero_only, "rank", 0) == 0  # of several processes only one touches the run's folder
    if again and first:
        shutil.rmtree(out, ignore_errors=True)
    elif not again and (out / "run.json").is_file():
        info = read_run(out)
        _check_same(out, info, settings, cases)
        if info["status"] == "finished":
            return info
    keep_pages()
    _quieten()
    info = {"id": identity(), "status": "running", "settings": settings.model_dump(mode="json"), "data": facts(cases)}
    info |= {"frame": list(slices.shape), "versions": versions()}
    if first and not (out / "run.json").is_file():
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "run.json", info)
    info = read_run(out) if first else info
    last = out / "checkpoints" / "last.ckpt"
    trainer.fit(model, _loader(settings, slices), validation, ckpt_path=last if last.is_file() else None)
    if trainer.is_global_zero and trainer.current_epoch >= settings.training.epochs:
        rows = read_rows(out / "log.csv")
        best = max(rows, key=lambda row: float(row["val_dice"]))
        info |= {
            "status": "finished",
            "best": {"epoch": int(best["epoch"]), "val_dice": float(best["val_dice"]), "val_ece": float(best["val_ece"])},
            "seconds": round(sum(float(row["seconds"]) for row in rows), 2),
            "peak_memory_mb": round(_peak_memory()),
        }
        write_json(out / "run.json", info)
    return info


def _quieten() -> None:
    """Leave out what Lightning says to its developers and advertises to its users."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*(LeafSpec|num_workers|log_every_n_steps).*")


def facts(cases: CaseSet) -> dict[str, Any]:
    """What a run remembers of its data."""
    keys = ("name", "classes", "channels", "regions", "checksum", "colours", "orientation")
    return {key: cases.info[key] for key in keys} | {"recipe": cases.info["settings"]["recipe"]}


def _check_same(out: Path, info: dict[str, Any], settings: RunSettings, cases: CaseSet) -> None:
    old, new = RunSettings.model_validate(info["settings"]).deciding, settings.deciding
    differ = [key for key in new if old.get(key) != new[key]]
    if differ:
        raise UserError(
            f"{out} was started with another {', '.join(differ)}; choose another --out, or --again to start over"
        )
    if info["data"]["checksum"] != cases.info["checksum"]:
        raise UserError(f"{cases.root} has changed since {out} was started; choose another --out, or --again to start over")


def _peak_memory() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _trainer(settings: RunSettings, out: Path, progress: bool) -> L.Trainer:
    machine = settings.machine
    checkpoints = ModelCheckpoint(out / "checkpoints", save_last=True, save_top_k=0, save_on_train_epoch_end=True)
    callbacks: list[Callback] = [Best(out), Log(out), checkpoints]
    if progress:
        from lightning.pytorch.callbacks import RichProgressBar

        callbacks.append(RichProgressBar(refresh_rate=10, console_kwargs={"stderr": True}))
    kwargs: dict[str, Any] = {
        "accelerator": machine.accelerator,
        "devices": machine.devices,
        "num_nodes": machine.nodes,
        "strategy": machine.strategy,
        "precision": machine.precision,
        "max_epochs": settings.training.epochs,
        "callbacks": callbacks,
        "logger": _loggers(machine.loggers, out),
        "enable_progress_bar": progress,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,  # ours shares the work itself, the same way every time
        "default_root_dir": out,
    }
    try:
        return L.Trainer(**kwargs)
    except (ValueError, MisconfigurationException) as error:
        raise UserError(f"Lightning refuses these machine settings: {str(error).splitlines()[0]}") from None


def _loggers(names: tuple[str, ...], out: Path) -> Any:
    from lightning.pytorch import loggers

    known = {"tensorboard": "TensorBoardLogger", "wandb": "WandbLogger", "mlflow": "MLFlowLogger"}
    made = []
    for name in names:
        if name not in known:
            raise UserError(f"unknown logger {name!r}; choose one of {', '.join(known)}")
        try:
            made.append(getattr(loggers, known[name])(save_dir=str(out / name)))
        except ModuleNotFoundError:
            raise UserError(f"the logger {name} is not installed; pip install {name}") from None
    return made or False


def _slices(settings: RunSettings, cases: CaseSet) -> Slices:
    chosen = settings.training
    return Slices(cases, "train", fold=settings.fold, keep_empty=chosen.keep_empty, augment=chosen.augment)


def _loader(settings: RunSettings, slices: Slices) -> DataLoader[tuple[Tensor, Tensor]]:
    sampler = EpochSampler(len(slices), settings.training.batch, settings.seed)
    workers = settings.machine.workers
    return DataLoader(Batches(slices), batch_size=None, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)


def _case_loader(cases: CaseSet, settings: RunSettings) -> DataLoader[str]:
    ids = cases.split("val", settings.fold)
    if not ids:
        raise UserError(f"{cases.root} has no validation case in fold {settings.fold}; choosing a checkpoint needs one")
    return DataLoader(ShareOfCases(ids), batch_size=None)


class Segmentation(L.LightningModule):
    """Network, objective and protocol; thin over the functions."""

    def __init__(self, settings: RunSettings, cases: CaseSet, frame: tuple[int, int]) -> None:
        super().__init__()
        self.run, self.cases, self.frame = settings, cases, frame
        torch.manual_seed(settings.seed)
        n_classes = len(cases.classes) + 1
        network = build_network(settings.network.name, len(cases.channels), n_classes, **settings.network.settings)
        self.network = channels_last(network)
        self.criterion = Criterion(settings.loss.name, **settings.loss.settings)
        self.overlap = OverlapScores(n_classes, distances=False)
        self.calibration = CalibrationScores(n_classes)
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def on_train_epoch_start(self) -> None:
        """Begin the epoch's own random numbers (dropout, augmentation)."""
        torch.manual_seed(epoch_seed(self.run.seed, self.current_epoch) * 1009 + self.global_rank)
        self.sums, self.counts = {}, {}

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of one batch; its parts now and then."""
        image, label = batch
        logits = self.network(image.contiguous(memory_format=torch.channels_last))
        loss: Tensor = self.criterion(logits, label)
        if not torch.isfinite(loss):
            raise UserError(
                f"the loss is {loss.item()} in epoch {self.current_epoch}; lower training.lr or the loss's weight"
            )
        self._note("loss", loss.detach())
        if index % PARTS_EVERY == 0:
            for name, value in self.criterion.parts(logits, label).items():
                self._note(name, value)
        return loss

    def _note(self, name: str, value: Tensor) -> None:
        self.sums[name] = self.sums.get(name, torch.zeros((), device=value.device)) + value
        self.counts[name] = self.counts.get(name, 0) + 1

    def on_validation_epoch_start(self) -> None:
        """Forget the last epoch's scores."""
        self.overlap.reset()
        self.calibration.reset()

    def validation_step(self, id: str, index: int) -> None:
        """One whole volume; a process with fewer cases than others gets an empty id at the end."""
        if not id:
            return
        image, label = volume(self.cases, id)
        image, label = image.to(self.device), label.to(self.device)
        logits = volume_logits(self.network, image, self.frame).movedim(0, 1)[None]  # (1, K, D, H, W)
        self.overlap.update(logits, label[None], spacing=None)
        self.calibration.update(logits, label[None])

    def on_validation_epoch_end(self) -> None:
        """The scores of all processes; the mean volume Dice chooses the checkpoint."""
        self.log("val_dice", self.overlap.compute()["dice_mean"].float(), sync_dist=False, prog_bar=True)
        self.log("val_ece", self.calibration.compute()["ece"].float(), sync_dist=False, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """Adam, and a lower rate from half-time."""
        chosen = self.run.training
        optimizer = torch.optim.Adam(self.network.parameters(), lr=chosen.lr, fused=True)
        half = max(1, chosen.epochs // 2)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [half], gamma=chosen.lr_drop)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Best(Callback):
    """Keep the weights with the best validation Dice as safetensors; the first of equals."""

    def __init__(self, out: Path) -> None:
        self.path, self.score = out / "checkpoints" / "best.safetensors", -1.0

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save if this epoch is better than all before."""
        score = float(trainer.callback_metrics["val_dice"].nan_to_num(0))
        if score > self.score:
            self.score = score
            if trainer.is_global_zero:
                save_weights(self.path, cast(Segmentation, pl_module).network.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Goes into the checkpoint, so that a resumed run knows what it has to beat."""
        return {"score": self.score}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Comes back from it."""
        self.score = state_dict["score"]


class Log(Callback):
    """A row of `log.csv` per epoch: losses, their parts, validation Dice and ECE, learning rate, seconds."""

    def __init__(self, out: Path) -> None:
        self.path, self.start, self.lr = out / "log.csv", 0.0, 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock, and note the rate before the schedule moves on."""
        self.start, self.lr = time.perf_counter(), trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the row; rows of epochs that were lost with a killed run are dropped."""
        if not trainer.is_global_zero:
            return
        module = cast(Segmentation, pl_module)
        sums, counts = module.sums, module.counts
        row: dict[str, Any] = {"epoch": trainer.current_epoch}
        row |= {f"train_{name}": round(float(sums[name]) / counts[name], 6) for name in sums}
        row |= {name: round(float(trainer.callback_metrics[name]), 6) for name in ("val_dice", "val_ece")}
        row |= {"lr": self.lr, "seconds": round(time.perf_counter() - self.start, 2)}
        before = [old for old in read_rows(self.path) if int(old["epoch"]) < trainer.current_epoch]
        write_rows(self.path, [*before, row])
