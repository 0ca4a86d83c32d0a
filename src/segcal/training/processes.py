"""Several processes that train one network: how they start, and what the first one decides."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import lightning as L
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

from segcal.types import UserError

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
STRATEGIES = ("auto", "ddp")  # each process has the whole network
FEW = 8  # processes that may share fewer cores
T = TypeVar("T")


def environments() -> list[ClusterEnvironment]:
    """Slurm's, if it started this process; Lightning's requeueing leaves other checkpoints."""
    # torchrun may run inside Slurm
    by_slurm = SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    return [SLURMEnvironment(auto_requeue=False)] if by_slurm else []


def check(trainer: L.Trainer) -> None:
    """Raise unless as many processes will start as were asked for."""
    strategy = trainer.strategy
    most = max(os.cpu_count() or 1, FEW)
    if isinstance(trainer.accelerator, CPUAccelerator) and trainer.num_devices > most:
        problem = f"machine.devices={trainer.num_devices} would start that many processes"
        raise UserError(f"{problem} on {os.cpu_count()} CPU cores; the most are {most}")
    sizes = {"num_devices": trainer.num_devices, "num_nodes": trainer.num_nodes}
    if isinstance(strategy.launcher, _MultiProcessingLauncher):  # its processes return nothing
        remedy = "use segcal train, or machine.devices=1"
        raise UserError(f"a notebook cannot train on several devices; {remedy}")
    if isinstance(strategy, DDPStrategy):
        environment = strategy.cluster_environment
        if isinstance(environment, LightningEnvironment) and trainer.num_nodes > 1:
            rule = "several nodes need srun or torchrun to start their processes"
            raise UserError(f"{rule}; got nodes {trainer.num_nodes}")
        if environment is not None:
            environment.validate_settings(**sizes)
    elif TorchElasticEnvironment.detect():
        TorchElasticEnvironment().validate_settings(**sizes)


def decided(trainer: L.Trainer, decide: Callable[[], T]) -> T | None:
    """The decision of the first process, in all processes; its failure ends them all.

    Processes that Lightning starts later read the outcome in the run's folder; they get `None`."""
    if not _started_together(trainer):
        return decide() if trainer.is_global_zero else None
    trainer.strategy.setup_environment()  # now, so that processes can communicate
    decision, failure = None, None
    if trainer.is_global_zero:
        try:
            decision = decide()
        except Exception as error:
            failure = error
    sentence = failure and (str(failure) or type(failure).__name__)
    decision, sentence = trainer.strategy.broadcast((decision, sentence))
    trainer.strategy.barrier()  # the first must not end before all have received it
    if failure is not None:
        raise failure
    if sentence is not None:
        raise UserError(f"the first process failed: {sentence}")
    return decision


def _started_together(trainer: L.Trainer) -> bool:
    strategy = trainer.strategy
    if not isinstance(strategy, DDPStrategy):
        return False
    return not isinstance(strategy.cluster_environment, LightningEnvironment)
