"""segcal: calibrated medical image segmentation, from training losses to a report.

Importing this package imports nothing else; each room is loaded when it is first used.
"""

from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"
__all__ = ["__version__", "losses", "metrics"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
