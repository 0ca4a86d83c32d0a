"""segcal: calibrated medical image segmentation, from training losses to a report.

Importing this package imports nothing else; each part is loaded when it is first used."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_FUNCTIONS = {
    "audit": "segcal.auditing",
    "open_audit": "segcal.auditing",
    "read_probs": "segcal.predictors.reading",
    "prepare": "segcal.data.prepare",
    "run_settings": "segcal.config",
    "train": "segcal.training",
    "open_run": "segcal.predictors",
    "open_predictor": "segcal.predictors",
    "make_ensemble": "segcal.predictors",
    "evaluate": "segcal.scoring",
    "calibrate": "segcal.fitting",
    "predict": "segcal.predicting",
    "read_results": "segcal.compare",
    "save_figures": "segcal.figures",
}
_PACKAGES = ("calibrators", "corruptions", "figures", "losses", "metrics", "networks")


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(import_module(_FUNCTIONS[name]), name)
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__version__", *_FUNCTIONS, *_PACKAGES])
