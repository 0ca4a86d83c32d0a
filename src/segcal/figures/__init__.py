"""Figures: functions from values to a matplotlib Figure, and the table `FIGURES`, which draws each
from finished runs.

Drawing functions know nothing of runs and touch no file; `save_figures` writes into a folder. Names
load when they are first used, so that a contact sheet needs neither torch nor pandas.

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
    from segcal.figures.comparison import Web, backbones, dice_vs_ece, objectives, radar
    from segcal.figures.logits import mean_logits, penalty_shape
    from segcal.figures.looks import Look, look_of, looks_of
    from segcal.figures.outlines import contact_sheet
    from segcal.figures.pictures import Outcome, qualitative
    from segcal.figures.series import learning_curves, risk_coverage, robustness, sensitivity
    from segcal.figures.table import FIGURES, FigureRow, save_figures
    from segcal.figures.values import aurc, risk_curve

_HOMES = {
    "calibration": ["reliability", "reliability_per_class"],
    "comparison": ["Web", "backbones", "dice_vs_ece", "objectives", "radar", "rank_heatmap"],
    "logits": ["mean_logits", "penalty_shape"],
    "looks": ["Look", "look_of", "looks_of"],
    "outlines": ["contact_sheet"],
    "pictures": ["Outcome", "qualitative"],
    "series": ["learning_curves", "risk_coverage", "robustness", "sensitivity"],
    "table": ["FIGURES", "FigureRow", "save_figures"],
    "values": ["aurc", "risk_curve"],
}
__all__ = ["FIGURES", "FigureRow", "Look", "Outcome", "Web", "aurc", "backbones", "contact_sheet"]
__all__ += ["dice_vs_ece", "learning_curves", "look_of", "looks_of", "mean_logits", "objectives"]
__all__ += ["penalty_shape", "qualitative", "radar", "rank_heatmap", "reliability"]
__all__ += ["reliability_per_class", "risk_coverage", "risk_curve", "robustness", "save_figures"]
__all__ += ["sensitivity"]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
