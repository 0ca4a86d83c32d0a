"""Other logs of a run: TensorBoard, Weights & Biases, MLflow, through Lightning, if installed.

Their variables (`WANDB_MODE`, `MLFLOW_TRACKING_URI` ...) are respected; by default everything stays
in the run's folder."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from lightning.pytorch.loggers import Logger

from segcal.types import UserError, check_choice


def _mlflow(out: Path) -> Logger:
    here = f"sqlite:///{(out / 'mlflow.db').absolute()}"  # MLflow has given up plain files
    uri, files = os.environ.get("MLFLOW_TRACKING_URI", here), str((out / "mlflow").absolute())
    return loggers.MLFlowLogger(run_name=out.name, tracking_uri=uri, artifact_location=files)


LOGGERS = {
    "tensorboard": lambda out: loggers.TensorBoardLogger(save_dir=out / "tensorboard"),
    "wandb": lambda out: loggers.WandbLogger(name=out.name, save_dir=out),  # in a folder `wandb`
    "mlflow": _mlflow,
}
FILES = (*LOGGERS, "mlflow.db")  # what they leave in the run's folder


def check(names: tuple[str, ...]) -> None:
    """Raise unless all are known and installed."""
    for name in names:
        check_choice("logger", name, tuple(LOGGERS))
        if find_spec(name) is None:
            raise UserError(f"the logger {name} is not installed; pip install {name}")


def begin(names: tuple[str, ...], out: Path, settings: dict[str, Any]) -> list[Logger]:
    """Start the loggers of a run with its settings; some write into its folder at once."""
    begun = []
    for name in names:
        try:
            logger = LOGGERS[name](out)
            logger.log_hyperparams(settings)
        except Exception as error:  # each has its own: no account, no server, no permission
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            remedy = "correct it, or leave it out of machine.loggers"
            raise UserError(f"the logger {name} does not work ({reason}); {remedy}") from None
        begun.append(logger)
    return begun


def end(all: list[Logger]) -> None:
    """Close Weights & Biases, which would otherwise also record the next run."""
    for logger in all:
        if isinstance(logger, loggers.WandbLogger):
            logger.experiment.finish()
