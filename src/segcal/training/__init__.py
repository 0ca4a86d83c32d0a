"""Train one run with Lightning: prepared slices in, `runs/<run>/{run.json, log.csv, checkpoints/}`
out.

Every epoch draws its random numbers from the seed and its own number, and a checkpoint ends every
epoch, so that a run that was killed goes on to the very result it would have had (on a CPU; the
kernels of GPUs do not always add up in one order)."""

from __future__ import annotations

import logging
import shutil
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

from segcal.config import RunSettings, checked
from segcal.data.inspect import counts_pixels
from segcal.data.sampling import EpochSampler, ShareOfCases
from segcal.data.slices import Batches, Slices
from segcal.folders import (
    CaseSet,
    alone,
    open_cases,
    read_rows,
    read_run,
    refuse_packed,
    sweep,
    write_json,
)
from segcal.hardware import keep_pages
from segcal.losses import LOSSES
from segcal.networks import NETWORKS
from segcal.provenance import identity, versions
from segcal.training import loggers, processes
from segcal.training.callbacks import Bar, Best, Checkpoints, Log
from segcal.training.module import Segmentation
from segcal.types import IGNORE, UserError, check_choice

__all__ = ["Best", "Segmentation", "facts", "resolved", "train"]

REMOVED = "removed"
# What --again takes away.
OURS = (
    "checkpoints",
    "calibrators",
    "log.csv",
    "scores.csv",
    "bins.json",
    *loggers.FILES,
    "run.json",
)


def train(
    settings: RunSettings, out: Path, *, again: bool = False, progress: bool = True
) -> dict[str, Any]:
    """Train a run, or go on with it; returns what `run.json` says. A finished run is left alone
    unless `again`.
    """
    cases = open_cases(Path(settings.data))
    slices = _slices(settings, cases)
    model = Segmentation(
        settings, cases, slices
    )  # also checks loss and network settings, before anything is written
    settings = resolved(settings, cases)
    _quieten()
    best = Best(out, last=settings.training.keep == "last")
    last = out / "checkpoints" / "last.ckpt"
    trainer, validation = _trainer(settings, out, best, progress), _case_loader(cases, settings)
    info: dict[str, Any] = {
        "status": "running"
    }  # of several processes only the first touches the run's folder
    with ExitStack() as held:

        def begin() -> str:
            _check_folder(out)
            held.enter_context(alone(out, nested=True))
            info.update(_begin(settings, out, cases, slices, trainer, again))
            if info["status"] == "finished":
                return "leave"
            trainer.loggers = loggers.begin(
                settings.machine.loggers, out, settings.model_dump(mode="json")
            )
            return "resume" if last.is_file() else "start"

        step = processes.decided(trainer, begin) or ("resume" if last.is_file() else "start")
        if step == "leave":
            return info
        keep_pages()
        loader = _loader(settings, slices, model.order)
        trainer.fit(model, loader, validation, ckpt_path=last if step == "resume" else None)
        loggers.end(trainer.loggers)
        if trainer.is_global_zero and trainer.current_epoch >= settings.training.epochs:
            info |= {"status": "finished", "best": best.facts} | _totals(out)
            write_json(out / "run.json", info)
    return info


def resolved(settings: RunSettings, cases: CaseSet) -> RunSettings:
    """The same settings with every default written out, so that they mean the same when a default
    changes.
    """
    values = settings.model_dump(mode="json")
    for part, table in (("loss", LOSSES), ("network", NETWORKS)):
        defaults: dict[str, Any] = table[values[part]["name"]].settings
        if values[part].get("ignore_index", IGNORE) != IGNORE:
            raise UserError(
                f"a run marks voxels to ignore with {IGNORE} itself; leave loss.ignore_index out"
            )
        given = {
            k: float(v) if isinstance(defaults.get(k), float) else v
            for k, v in values[part].items()
        }
        values[part] = {"name": values[part]["name"]} | defaults | given
    if settings.training.keep_empty is None:
        values["training"]["keep_empty"] = cases.info["settings"]["recipe"]["keep_empty"]
    return checked(values)


def _begin(
    settings: RunSettings,
    out: Path,
    cases: CaseSet,
    slices: Slices,
    trainer: L.Trainer,
    again: bool,
) -> dict[str, Any]:
    """What `run.json` says of a run that goes on; or begin one."""
    cases.check_content()
    for folder in (out, out / "checkpoints"):
        sweep(folder)
    path, where = out / "run.json", str(cases.root.absolute())
    if path.is_file():
        refuse_packed(out, read_run(out))
    if path.is_file() and (again or read_run(out)["status"] == REMOVED):
        _remove(out)
    if path.is_file():
        info = read_run(out)
        _check_same(out, info, settings, cases)
        complete = (
            info["status"] != "finished" or (out / "checkpoints" / "best.safetensors").is_file()
        )
        if not complete:
            raise UserError(f"{out} is finished but has lost its weights; --again trains it anew")
        if info["settings"]["data"] != where:  # the same data have moved
            info["settings"]["data"] = where
            write_json(path, info)
        return info
    values = settings.model_dump(mode="json") | {"data": where}
    values["machine"]["accelerator"] = (
        type(trainer.accelerator).__name__.removesuffix("Accelerator").lower()
    )
    info = {
        "id": identity(),
        "status": "running",
        "settings": values,
        "data": facts(cases, settings.fold),
    }
    info |= {"frame": list(slices.shape), "versions": versions()}
    out.mkdir(parents=True, exist_ok=True)
    write_json(path, info)
    return info


def _check_folder(out: Path) -> None:
    is_run = (out / "run.json").is_file()
    if (
        out.exists()
        and not is_run
        and (not out.is_dir() or any(not p.name.startswith(".partial-") for p in out.iterdir()))
    ):
        raise UserError(f"{out} exists and is not a run; choose another --out")


def _remove(out: Path) -> None:
    """Take away what a run left. It says so first, so that one killed in the middle of this is not
    taken for finished.
    """
    write_json(out / "run.json", read_run(out) | {"status": REMOVED})
    for name in OURS:
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _totals(out: Path) -> dict[str, Any]:
    """Over all epochs, and so over all processes that a run has had."""
    rows = read_rows(out / "log.csv", columns=("seconds", "memory_mb"))
    seconds, memory = ([float(row[key]) for row in rows] for key in ("seconds", "memory_mb"))
    return {"seconds": round(sum(seconds), 2), "peak_memory_mb": round(max(memory))}


def _quieten() -> None:
    """Leave out what Lightning says to its developers and advertises to its users."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings(
        "ignore",
        message=(
            ".*(LeafSpec|num_workers|log_every_n_steps|exists and is not empty|sync_dist|GPU"
            " available).*"
        ),
    )


def facts(cases: CaseSet, fold: int = 0) -> dict[str, Any]:
    """What a run remembers of its data."""
    keys = ("name", "classes", "channels", "regions", "checksum", "orientation")
    patients = {
        id: record["patient"]
        for id, record in cases.info["cases"].items()
        if record["patient"] != id
    }
    sizes = {name: len(cases.split(name, fold)) for name in ("train", "val", "test")}
    found = {key: cases.info[key] for key in keys} | {"recipe": cases.info["settings"]["recipe"]}
    found["distances"] = "pixels" if counts_pixels(cases) else "mm"
    return found | {
        "splits": sizes,
        "patients": patients if cases.info.get("patients_known", True) else None,
    }


def _check_same(out: Path, info: dict[str, Any], settings: RunSettings, cases: CaseSet) -> None:
    old, new = resolved(checked(info["settings"]), cases).deciding, settings.deciding
    differ = [key for key in new if old.get(key) != new[key]]
    if differ:
        raise UserError(
            f"{out} was started with another {', '.join(differ)}; choose another --out, or --again"
            " to start over"
        )
    if info["data"]["checksum"] != cases.info["checksum"]:
        raise UserError(
            f"{cases.root} has changed since {out} was started; choose another --out, or --again to"
            " start over"
        )


def _trainer(settings: RunSettings, out: Path, best: Best, progress: bool) -> L.Trainer:
    machine = settings.machine
    loggers.check(machine.loggers)
    check_choice("strategy", machine.strategy, processes.STRATEGIES)
    checkpoints = (
        ModelCheckpoint(  # one, after every epoch; its own `save_last` waits for the end of the run
            out / "checkpoints",
            "last",
            save_top_k=1,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )
    )
    callbacks: list[Callback] = [best, Log(out), checkpoints]
    if progress:
        callbacks.append(Bar())
    kwargs: dict[str, Any] = {
        "accelerator": _accelerator(machine.accelerator),
        "devices": machine.devices,
        "num_nodes": machine.nodes,
        "strategy": machine.strategy,
        "precision": machine.precision,
        "max_epochs": settings.training.epochs,
        "callbacks": callbacks,
        "logger": False,  # they come when the run's folder is there
        "enable_progress_bar": progress,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,  # ours shares the work itself, the same way every time
        "default_root_dir": (
            out / "checkpoints"
        ),  # should it leave anything there, --again takes it away
    }
    try:
        trainer = L.Trainer(**kwargs, plugins=[Checkpoints(), *processes.environments()])
        processes.check(trainer)
    except UserError:
        raise
    except (ValueError, RuntimeError, MisconfigurationException) as error:
        raise UserError(
            f"Lightning refuses these machine settings: {str(error).splitlines()[0]}"
        ) from None
    return trainer


def _accelerator(name: str) -> str:
    """What is asked for; `auto` is Lightning's choice, but the CPU on a Mac, whose GPU we have not
    tried.
    """
    return "cpu" if name == "auto" and torch.backends.mps.is_available() else name


def _slices(settings: RunSettings, cases: CaseSet) -> Slices:
    chosen = settings.training
    return Slices(
        cases, "train", fold=settings.fold, keep_empty=chosen.keep_empty, augment=chosen.augment
    )


def _loader(
    settings: RunSettings, slices: Slices, order: EpochSampler
) -> DataLoader[tuple[Tensor, Tensor]]:
    own = (
        torch.Generator()
    )  # else it draws from the network's random numbers, once before and once after they are seeded
    kwargs: dict[str, Any] = {
        "num_workers": settings.machine.workers,
        "persistent_workers": settings.machine.workers > 0,
    }
    return DataLoader(Batches(slices), batch_size=None, sampler=order, generator=own, **kwargs)


def _case_loader(cases: CaseSet, settings: RunSettings) -> DataLoader[str]:
    ids = cases.split("val", settings.fold)
    if not ids:
        raise UserError(
            f"{cases.root} has no validation case in fold {settings.fold}; choosing a checkpoint"
            " needs one"
        )
    return DataLoader(ShareOfCases(ids), batch_size=None)
