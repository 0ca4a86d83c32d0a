"""segcal: calibrated medical image segmentation, from training losses to a report.

Importing this package imports nothing else; each room is loaded when it is first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_FUNCTIONS = {
    "prepare": "segcal.data.prepare",
    "run_settings": "segcal.config",
    "train": "segcal.training",
    "open_run": "segcal.predictors.run",
    "evaluate": "segcal.scoring",
    "calibrate": "segcal.fitting",
    "predict": "segcal.predicting",
}
_ROOMS = ("calibrators", "corruptions", "losses", "metrics", "networks")
__all__ = [
    "__version__",
    "calibrate",
    "calibrators",
    "corruptions",
    "evaluate",
    "losses",
    "metrics",
    "networks",
    "open_run",
]
__all__ += ["predict", "prepare", "run_settings", "train"]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(import_module(_FUNCTIONS[name]), name)
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
