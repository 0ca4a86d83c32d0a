"""Several processes that train one network: who may start them, and how all of them hear what the
first one decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import lightning as L
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

from segcal.types import UserError

STRATEGIES = (
    "auto",
    "ddp",
)  # each process has the whole network, and the first one sees the end of the run
T = TypeVar("T")


def environments() -> list[ClusterEnvironment]:
    """Slurm's, if it started this process, without Lightning's requeueing, which leaves checkpoints
    beside ours.
    """
    by_slurm = (
        SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    )  # torchrun may run inside Slurm
    return [SLURMEnvironment(auto_requeue=False)] if by_slurm else []


def check(trainer: L.Trainer) -> None:
    """Raise unless there will be as many processes as asked for, each of which sees the end of the
    run.
    """
    strategy, sizes = (
        trainer.strategy,
        {"num_devices": trainer.num_devices, "num_nodes": trainer.num_nodes},
    )
    if isinstance(
        strategy.launcher, _MultiProcessingLauncher
    ):  # its processes take what they know with them
        raise UserError(
            "a notebook cannot train on several devices; use segcal train, or machine.devices=1"
        )
    if isinstance(strategy, DDPStrategy):
        environment = strategy.cluster_environment
        if isinstance(environment, LightningEnvironment) and trainer.num_nodes > 1:
            raise UserError(
                "several nodes need srun or torchrun to start their processes; got nodes"
                f" {trainer.num_nodes}"
            )
        if environment is not None:
            environment.validate_settings(**sizes)
    elif TorchElasticEnvironment.detect():
        TorchElasticEnvironment().validate_settings(**sizes)


def decided(trainer: L.Trainer, decide: Callable[[], T]) -> T | None:
    """What the first process decides, told to all; its failure ends them all, else they would wait
    for it in vain.

    Processes that Lightning starts itself come after the decision, find its outcome in the run's
    folder, and get `None`."""
    if not _started_together(trainer):
        return decide() if trainer.is_global_zero else None
    trainer.strategy.setup_environment()  # now, to be able to talk; `fit` finds it done
    decision, failure = None, None
    if trainer.is_global_zero:
        try:
            decision = decide()
        except Exception as error:
            failure = error
    decision, sentence = trainer.strategy.broadcast(
        (decision, failure and (str(failure) or type(failure).__name__))
    )
    trainer.strategy.barrier()  # the first must not leave before all have heard it
    if failure is not None:
        raise failure
    if sentence is not None:
        raise UserError(f"the first process failed: {sentence}")
    return decision


def _started_together(trainer: L.Trainer) -> bool:
    strategy = trainer.strategy
    return isinstance(strategy, DDPStrategy) and not isinstance(
        strategy.cluster_environment, LightningEnvironment
    )
