"""Classes that a trained network never predicts on validation: which they are, and what helps.

A mean over classes hides them, and the loss goes on falling without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segcal.folders import NEVER_PREDICTED


def unlearned(info: Mapping[str, Any], weights: str) -> tuple[str, ...]:
    """These classes, by the `run.json` of a run; older runs and ensembles do not name any.

    >>> unlearned({"best": {"epoch": 3, "never_predicted": ["RV"]}}, "best")
    ('RV',)
    """
    facts = info.get(weights)
    return tuple(facts.get(NEVER_PREDICTED, ())) if isinstance(facts, Mapping) else ()


def warning(info: Mapping[str, Any], weights: str) -> str:
    """A sentence that names them and the remedy; empty if every class is predicted."""
    names = unlearned(info, weights)
    return f"{problem(names)}; {remedy(info['settings'])}" if names else ""


def problem(names: tuple[str, ...]) -> str:
    """What is wrong, of these classes.

    >>> problem(("RV", "LV"))
    'no voxel of the validation cases is predicted as RV, LV'
    """
    return f"no voxel of the validation cases is predicted as {', '.join(names)}"


def remedy(settings: Mapping[str, Any]) -> str:
    """What to change in the settings of a run that lacks classes."""
    changes = []
    if settings["network"].get("last_activation") == "relu":
        changes.append("network.last_activation=none")
    if not settings["training"].get("class_prior", True):
        changes.append("training.class_prior=true")
    if changes:
        return f"train with {' and '.join(f'--set {change}' for change in changes)}"
    return "train for more epochs, or with another training.lr or a larger network.width"
