"""Figures: functions from values to a matplotlib Figure, and the table `FIGURES`, which draws each
from finished runs.

The functions that draw know nothing of runs and touch no file; `save_figures` writes those of some
runs into a folder. Names load when they are first used, so that a contact sheet needs neither torch
nor pandas.

>>> from segcal import figures
>>> figure = figures.penalty_shape(margin=10.0)
>>> [ax.get_title() for ax in figure.axes[:2]]
['linear', 'margin 10']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segcal.figures.calibration import reliability, reliability_per_class
    from segcal.figures.comparison import (
        Web,
        backbones,
        dice_vs_ece,
        objectives,
        radar,
        rank_heatmap,
    )
    from segcal.figures.logits import mean_logits, penalty_shape
    from segcal.figures.pictures import Outcome, qualitative
    from segcal.figures.series import learning_curves, risk_coverage, robustness, sensitivity
    from segcal.figures.sheet import contact_sheet
    from segcal.figures.style import colour_of, look_of
    from segcal.figures.table import FIGURES, FigureRow, save_figures
    from segcal.figures.values import aurc, risk_curve

__all__ = [
    "FIGURES",
    "FigureRow",
    "Outcome",
    "Web",
    "aurc",
    "backbones",
    "colour_of",
    "contact_sheet",
    "dice_vs_ece",
    "learning_curves",
    "look_of",
    "mean_logits",
    "objectives",
    "penalty_shape",
    "qualitative",
    "radar",
    "rank_heatmap",
    "reliability",
    "reliability_per_class",
    "risk_coverage",
    "risk_curve",
    "robustness",
    "save_figures",
    "sensitivity",
]

_HOMES = {
    "table": ("FIGURES", "FigureRow", "save_figures"),
    "calibration": ("reliability", "reliability_per_class"),
    "comparison": ("Web", "backbones", "dice_vs_ece", "objectives", "radar", "rank_heatmap"),
    "logits": ("mean_logits", "penalty_shape"),
    "pictures": ("Outcome", "qualitative"),
    "series": ("learning_curves", "risk_coverage", "robustness", "sensitivity"),
    "sheet": ("contact_sheet",),
    "style": ("colour_of", "look_of"),
    "values": ("aurc", "risk_curve"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
