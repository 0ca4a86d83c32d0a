"""Figures: functions from values to a matplotlib Figure, and the table `FIGURES`, which draws each
from finished runs.

Drawing functions know nothing of runs and touch no file; `save_figures` writes into a folder. Names
load when they are first used, so that a contact sheet needs neither torch nor pandas.

>>> import numpy as np
>>> from segcal import figures
>>> looks, classes = {"ce": figures.look_of("ce")}, ["background", "tumour"]
>>> figures.mean_logits({"ce": np.eye(2)}, looks, classes).axes[0].get_title()
'CE'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segcal.figures.calibration import before_and_after, reliability, reliability_per_class
    from segcal.figures.comparison import dice_vs_calibration, mean_logits, rank_heatmap
    from segcal.figures.from_runs import FIGURES, FigureRow
    from segcal.figures.looks import Look, look_of, looks_of
    from segcal.figures.outlines import contact_sheet
    from segcal.figures.overlay import confidence_overlay
    from segcal.figures.pictures import Outcome, qualitative
    from segcal.figures.saving import save_figures
    from segcal.figures.series import (
        distance,
        learning_curves,
        risk_coverage,
        robustness,
        sensitivity,
    )
    from segcal.figures.values import aurc, risk_curve

__all__ = ["FIGURES", "FigureRow", "Look", "Outcome", "aurc", "before_and_after"]
__all__ += [
    "confidence_overlay",
    "contact_sheet",
    "dice_vs_calibration",
    "distance",
    "learning_curves",
    "look_of",
    "looks_of",
    "mean_logits",
    "qualitative",
    "rank_heatmap",
]
__all__ += ["reliability", "reliability_per_class", "risk_coverage", "risk_curve", "robustness"]
__all__ += ["save_figures", "sensitivity"]

# Where names are looked for, in this order; the first needs the fewest other packages.
_MODULES = ["outlines", "looks", "values", "calibration", "comparison", "overlay", "pictures"]
_MODULES += ["series", "from_runs", "saving"]


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        contents = vars(import_module(f"{__name__}.{module}"))
        if name in contents:
            return contents[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
