"""Train one run with Lightning, from prepared slices to a run's folder.

Every epoch draws its random numbers from the seed and its own number, and a checkpoint ends every
epoch. A run that was killed therefore resumes to the same result as without the interruption (on a
CPU; GPU kernels do not always add up in the same order)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

from segcal import folders
from segcal.config import RunSettings, checked
from segcal.data.inspect import counts_pixels
from segcal.data.sampling import EpochSampler, ShareOfCases
from segcal.data.slices import Batches, Slices
from segcal.differences import differences
from segcal.folders import CaseSet
from segcal.hardware import keep_pages
from segcal.losses import LOSSES
from segcal.networks import NETWORKS
from segcal.provenance import identity, versions
from segcal.training import loggers, processes
from segcal.training.callbacks import NEEDED, Bar, Checkpoints, Keep, Log
from segcal.training.extending import BEFORE, extend, only_epochs_grow
from segcal.training.module import Segmentation
from segcal.types import IGNORE, AnyPath, UserError, check_choice

__all__ = ["Keep", "Segmentation", "facts", "resolved", "train"]

# What Lightning prints for its developers, and its advertisements.
HIDDEN = "LeafSpec|num_workers|log_every_n_steps|exists and is not empty|sync_dist|GPU available"


def train(
    settings: RunSettings,
    out: AnyPath,
    *,
    again: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train a run, or resume it; returns the content of `run.json`.

    A finished run is skipped unless `again`, or goes on if only the number of epochs grew and its
    learning rate has been that of a longer run. `say` is told which, and from which epoch."""
    out, cases = Path(out), folders.open_cases(Path(settings.data))
    cases.require_prepared()
    chosen: dict[str, Any] = settings.training.model_dump(include={"keep_empty", "augment"})
    slices = Slices(cases, "train", fold=settings.fold, **chosen)
    model = Segmentation(settings, cases, slices)  # checks loss and network before any writing
    settings = resolved(settings, cases)
    keep, last = Keep(out), folders.checkpoint_path(out)
    trainer, validation = _trainer(settings, out, keep, progress), _case_loader(cases, settings)
    # Of several processes only the first writes to the run's folder.
    info: dict[str, Any] = {"status": "running"}
    with ExitStack() as held:

        def begin() -> str:
            if not folders.is_run(out) and not folders.is_empty_run(out):
                raise UserError(f"{out} exists and is not a run; choose another --out")
            held.enter_context(folders.alone(out))
            accelerator = type(trainer.accelerator).__name__
            info.update(_begin(settings, out, cases, slices, accelerator, again))
            keep.extended = BEFORE in info
            if info["status"] == "finished":
                return "skip"
            values = settings.model_dump(mode="json")
            trainer.loggers = loggers.begin(settings.machine.loggers, out, values)
            return "resume" if last.is_file() else "start"

        step = processes.decided(trainer, begin) or ("resume" if last.is_file() else "start")
        if step == "skip":
            say(f"{out} is trained already; --again starts it over")
            return info
        if step == "resume" and trainer.is_global_zero:
            done, epochs = len(folders.read_log(out)), settings.training.epochs
            say(f"{out} goes on with epoch {done + 1} of {epochs}")
        keep_pages()
        loader = _loader(settings, slices, model.order)
        trainer.fit(model, loader, validation, ckpt_path=last if step == "resume" else None)
        loggers.end(trainer.loggers)
        if trainer.is_global_zero and trainer.current_epoch >= settings.training.epochs:
            info |= {"status": "finished"} | _from_one(keep.finished()) | _totals(out)
            folders.write_run(out, info)
            folders.keep_candidates(out, ())
    return info


def resolved(settings: RunSettings, cases: CaseSet) -> RunSettings:
    """The same settings with every default written out, so that later defaults do not matter."""
    values = settings.model_dump(mode="json")
    if values["loss"].get("ignore_index", IGNORE) != IGNORE:
        raise UserError(f"a run marks ignored voxels with {IGNORE}; leave loss.ignore_index out")
    for part, table in (("loss", LOSSES), ("network", NETWORKS)):
        defaults: dict[str, Any] = table[values[part]["name"]].settings
        for key, value in values[part].items():
            if isinstance(defaults.get(key), float):
                values[part][key] = float(value)
        values[part] = {"name": values[part]["name"]} | defaults | values[part]
    if settings.training.keep_empty is None:
        values["training"]["keep_empty"] = cases.info["settings"]["recipe"]["keep_empty"]
    return checked(values)


def _begin(
    settings: RunSettings, out: Path, cases: CaseSet, slices: Slices, accelerator: str, again: bool
) -> dict[str, Any]:
    """The content of `run.json`: of the run that resumes, or of a new one."""
    cases.check_content()
    folders.sweep_run(out)
    where = str(cases.root.absolute())
    if folders.is_run(out):
        info = folders.read_run(out)
        folders.refuse_packed(out, info)
        if info.get("kind", "run") != "run":
            raise UserError(f"{out} is an {info['kind']}, not a run; choose another --out")
        if not again and info["status"] != folders.REMOVED:
            return _resumed(out, info, settings, cases, where)
        folders.remove_run(out, loggers.FILES)
    values = settings.model_dump(mode="json") | {"data": where}
    values["machine"]["accelerator"] = accelerator.removesuffix("Accelerator").lower()
    info = {"id": identity(), "status": "running", folders.FIRST: 1, "settings": values}
    info |= {"data": facts(cases, settings.fold), "frame": list(slices.shape)}
    info |= {"versions": versions()}
    out.mkdir(parents=True, exist_ok=True)
    folders.write_run(out, info)
    return info


def _resumed(
    out: Path, info: dict[str, Any], settings: RunSettings, cases: CaseSet, where: str
) -> dict[str, Any]:
    """A run that is there; refused if it was started with other settings or data."""
    start_over = "choose another --out, or --again to start over"
    old, new = resolved(checked(info["settings"]), cases).deciding, settings.deciding
    longer = only_epochs_grow(old, new)
    if not longer and any(old.get(key) != new[key] for key in new):
        raise UserError(f"{differences(old, new, str(out))}; {start_over}")
    if info["data"]["checksum"] != cases.info["checksum"]:
        raise UserError(f"{cases.root} has changed since {out} was started; {start_over}")
    for weights in folders.WEIGHTS:
        # An older run without `best` kept one set of weights.
        kept = weights in info and "best" in info
        if kept and not folders.weights_path(out, weights).is_file():
            raise UserError(f"{out} is finished but has lost its weights; train it with --again")
    if longer:
        info = extend(out, info, settings)
    if info["status"] == "finished":
        folders.keep_candidates(out, ())  # a kill may have left some
    if info["settings"]["data"] != where:  # the same data have moved
        info["settings"]["data"] = where
        folders.write_run(out, info)
    return info


def _from_one(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of weights with epochs counted from 1."""
    return {name: dict(each) | {"epoch": each["epoch"] + 1} for name, each in facts.items()}


def _totals(out: Path) -> dict[str, Any]:
    """Seconds and memory over all epochs, also those before an interruption."""
    rows = folders.read_log(out, columns=("seconds", "memory_mb"))
    seconds = sum(float(row["seconds"]) for row in rows)
    memory = max(float(row["memory_mb"]) for row in rows)
    return {"seconds": round(seconds, 2), "peak_memory_mb": round(memory)}


def facts(cases: CaseSet, fold: int = 0) -> dict[str, Any]:
    """What a run records of its data."""
    keys = ("name", "classes", "channels", "regions", "checksum", "orientation")
    data = {key: cases.info[key] for key in keys}
    data["recipe"] = cases.info["settings"]["recipe"]
    data["distances"] = "pixels" if counts_pixels(cases) else "mm"
    data["splits"] = {name: len(cases.split(name, fold)) for name in ("train", "val", "test")}
    data["patients"] = None
    if cases.info.get("patients_known", True):
        patients = {id: record["patient"] for id, record in cases.info["cases"].items()}
        data["patients"] = {id: patient for id, patient in patients.items() if patient != id}
    return data


def _trainer(settings: RunSettings, out: Path, keep: Keep, progress: bool) -> L.Trainer:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=f".*({HIDDEN}).*")
    machine = settings.machine
    loggers.check(machine.loggers)
    check_choice("strategy", machine.strategy, processes.STRATEGIES)
    check_choice("accelerator", machine.accelerator, processes.ACCELERATORS)
    options: dict[str, Any] = machine.model_dump(include={"devices", "strategy", "precision"})
    # On a Mac, "auto" would be its GPU, which is untested.
    on_mac = machine.accelerator == "auto" and torch.backends.mps.is_available()
    options["accelerator"] = "cpu" if on_mac else machine.accelerator
    # One checkpoint after every epoch; Lightning's own `save_last` waits for the end of the run.
    last = folders.checkpoint_path(out)
    saving: dict[str, Any] = {"save_on_train_epoch_end": True, "enable_version_counter": False}
    resume = ModelCheckpoint(last.parent, last.stem, **saving)
    options |= {
        "num_nodes": machine.nodes,
        "max_epochs": settings.training.epochs,
        "callbacks": [keep, Log(out), resume, *([Bar()] if progress else [])],
        "logger": False,  # loggers start when the run's folder exists
        "enable_progress_bar": progress,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,  # EpochSampler distributes the slices
        "default_root_dir": last.parent,  # --again deletes what Lightning leaves there
    }
    try:
        trainer = L.Trainer(**options, plugins=[Checkpoints(NEEDED), *processes.environments()])
        processes.check(trainer)
    except UserError:
        raise
    except (ValueError, RuntimeError, MisconfigurationException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"Lightning refuses these machine settings: {reason}") from None
    return trainer


def _loader(
    settings: RunSettings, slices: Slices, order: EpochSampler
) -> DataLoader[tuple[Tensor, Tensor]]:
    # A generator of its own: otherwise the loader draws from the network's random numbers.
    n_workers = settings.machine.workers
    options: dict[str, Any] = {"num_workers": n_workers, "persistent_workers": n_workers > 0}
    options |= {"batch_size": None, "sampler": order, "generator": torch.Generator()}
    return DataLoader(Batches(slices), **options)


def _case_loader(cases: CaseSet, settings: RunSettings) -> DataLoader[str]:
    ids = cases.split("val", settings.fold)
    if not ids:
        where = f"{cases.root} has no validation case in fold {settings.fold}"
        raise UserError(f"{where}; choosing a checkpoint needs one")
    return DataLoader(ShareOfCases(ids), batch_size=None)
