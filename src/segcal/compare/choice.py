"""The rule by which a setting stands for its contender: in each fold the one with the best mean
validation Dice over seeds.

Every fold chooses for itself, since the validation cases of one are test cases of others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Infos = Mapping[str, Mapping[str, Any]]  # run.json of each run


def by_fold(tried: Mapping[str, Sequence[str]], infos: Infos) -> dict[int, dict[str, list[str]]]:
    """The runs of each setting, fold by fold."""
    found: dict[int, dict[str, list[str]]] = {}
    for text, names in tried.items():
        for name in names:
            found.setdefault(infos[name]["settings"]["fold"], {}).setdefault(text, []).append(name)
    return dict(sorted(found.items()))


def with_all_seeds(tried: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The settings of a fold without those that lack a seed which others have."""
    most = max(map(len, tried.values()))
    return {text: names for text, names in tried.items() if len(names) == most}


def mean_dice(tried: Mapping[str, Sequence[str]], infos: Infos) -> dict[str, float]:
    """The mean validation Dice of each setting."""
    return {
        text: float(np.mean([infos[name]["best"]["val_dice"] for name in names]))
        for text, names in tried.items()
    }


def best(means: Mapping[str, float]) -> str:
    """The setting with the highest mean; of equals the first, and one that is no number only where
    all are none.

    >>> best({"alpha=0.1": 0.7, "alpha=0.2": 0.8, "alpha=0.3": math.nan})
    'alpha=0.2'
    """
    return max(means, key=lambda text: -1.0 if math.isnan(means[text]) else means[text])


def as_text(chosen: Mapping[int, str]) -> str:
    """What the folds chose, to be printed: one setting, or each with the number of its folds.

    >>> as_text({0: "margin=5", 1: "margin=5"})
    'margin=5'
    >>> as_text({0: "margin=5", 1: "margin=8", 2: "margin=8"})
    'margin=8 (2 folds), margin=5 (1 fold)'
    """
    counts = Counter(chosen.values()).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{text} ({n} {'fold' if n == 1 else 'folds'})" for text, n in counts)
