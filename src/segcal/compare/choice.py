"""The choice of a setting: in each fold the one with the best mean validation Dice over seeds.

Every fold chooses for itself, because its validation cases are test cases of other folds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from segcal.compare.names import Settings, setting_text
from segcal.types import UserError

Infos = Mapping[str, Mapping[str, Any]]  # the content of each run's record
Tried = Mapping[Settings, Sequence[str]]  # the runs of each setting


def by_fold(tried: Tried, infos: Infos) -> dict[int, dict[Settings, list[str]]]:
    """The runs of each setting, fold by fold."""
    folds: dict[int, dict[Settings, list[str]]] = {}
    for settings, names in tried.items():
        for name in names:
            fold = folds.setdefault(infos[name]["settings"]["fold"], {})
            fold.setdefault(settings, []).append(name)
    return dict(sorted(folds.items()))


def with_all_seeds(tried: Mapping[Settings, list[str]]) -> dict[Settings, list[str]]:
    """The settings of a fold without those that lack a seed which others have."""
    most = max(map(len, tried.values()))
    return {settings: names for settings, names in tried.items() if len(names) == most}


def mean_dice(tried: Tried, infos: Infos, weights: str = "best") -> dict[Settings, float]:
    """The mean validation Dice of each setting; NaN if its runs have none."""
    means = {}
    for settings, names in tried.items():
        values = [infos[name].get(weights, {}).get("val_dice", math.nan) for name in names]
        means[settings] = float(np.mean(values))
    return means


def best(tried: Tried, infos: Infos, weights: str) -> Settings:
    """The setting with the highest mean; the first of equals, and NaN only if all are."""
    names = [name for group in tried.values() for name in group]
    if len(tried) > 1 and not all(weights in infos[name] for name in names):
        texts = ", ".join(map(setting_text, tried))
        raise UserError(
            f"{', '.join(names)} have no validation Dice to choose one of {texts}; name the runs"
            " of one setting"
        )
    means = mean_dice(tried, infos, weights)
    return max(means, key=lambda settings: -1.0 if math.isnan(means[settings]) else means[settings])
