"""Volume intervals by split conformal prediction, and how often they held.

The score of a case is `r = |log(V + c) - log(E + c)| / s`: its true volume V against the expected
one E, the sum of the probabilities. c is the volume of one voxel, so that a missed or absent object
(V = 0 or E = 0) has a finite score. The scale s follows from the prediction alone and says which
cases are less certain: `s = sqrt((S + c) / (E + c))`, with S the sum of p (1 - p), is the square
root of the share of the volume that is uncertain. It lies in (0, 1].
docs/concepts/volume-intervals.md compares it with others.

Errors of either sign count alike: an interval with a bound for each sign would need twice as many
patients for the same level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import betabinom, binomtest

from segcal.types import UserError, check_range

LEVEL = 0.9
"""The level of an interval, unless asked otherwise."""

TAIL = 0.025  # of a two-sided test at 5 %

Floats = NDArray[np.float64]


def scores(true: ArrayLike, expected: ArrayLike, spread: ArrayLike, voxel: ArrayLike) -> Floats:
    """How wrong expected volumes are, in units of their scale; volumes in any one unit.

    >>> print(f"{scores(399.0, 99.0, 24.0, 1.0):.4f}")  # log 4, where a quarter is uncertain
    2.7726
    """
    true, expected, voxel = (np.asarray(x, dtype=float) for x in (true, expected, voxel))
    error = np.abs(np.log((true + voxel) / (expected + voxel)))
    return error / _scale(expected, np.asarray(spread, dtype=float), voxel)


def interval(
    expected: ArrayLike, spread: ArrayLike, voxel: ArrayLike, quantile: float
) -> tuple[Floats, Floats]:
    """The volumes whose score is at most a quantile: from low to high.

    >>> low, high = interval(99.0, 24.0, 1.0, quantile=2.0)
    >>> print(f"{low:.2f} to {high:.2f}")
    35.79 to 270.83
    """
    expected, voxel = np.asarray(expected, dtype=float), np.asarray(voxel, dtype=float)
    width = quantile * _scale(expected, np.asarray(spread, dtype=float), voxel)
    with np.errstate(over="ignore"):  # infinite: the interval has no upper end
        low, high = ((expected + voxel) * np.exp(side * width) - voxel for side in (-1, 1))
    return np.maximum(low, 0.0), high


def _scale(expected: Floats, spread: Floats, voxel: Floats) -> Floats:
    return np.sqrt((np.maximum(spread, 0) + voxel) / (expected + voxel))


def check_level(level: float) -> None:
    """Raise unless a level is one that intervals can have."""
    check_range("level", level, 0.5, 0.99)


def needed(level: float) -> int:
    """The fewest patients that give an interval of a level, 1/α − 1.

    >>> needed(0.9), needed(0.95), needed(0.5)
    (9, 19, 1)
    """
    wrong = 1 - _exact(level)
    return ceil(1 / wrong - 1)


def quantile(each: Sequence[float], level: float) -> float:
    """The ceil((n + 1) level)-th smallest of the scores of n patients.

    The score of a new patient is at most this with a probability of at least `level`, if patients
    are exchangeable; with exactly ceil((n + 1) level) / (n + 1) if no two scores are equal.

    >>> quantile([0.1, 0.5, 0.2, 0.3], level=0.8)
    0.5
    """
    check_level(level)
    n = len(each)
    if n < needed(level):
        raise UserError(too_few(n, level))
    return sorted(each)[_rank(n, level) - 1]


def _rank(n: int, level: float) -> int:
    """Which of the scores of n patients is the quantile, from 1."""
    return ceil((n + 1) * _exact(level))


def too_few(n: int, level: float) -> str:
    """Why n patients give no interval of a level, and what helps.

    >>> too_few(4, 0.9)
    'a 90 % volume interval needs at least 9 validation patients, and there are 4; ask for a level \
of at most 0.8'
    """
    lacks = f"a {_percent(level)} volume interval needs at least {needed(level)} validation"
    remedy = f"ask for a level of at most {int(100 * n / (n + 1)) / 100:g}"
    return f"{lacks} patients, and there are {n}; {remedy}"


def _exact(level: float) -> Fraction:
    """The level as it is written: 20 * 0.55 is 11, not 11.000000000000002."""
    return Fraction(str(level))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def by_patient(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The largest value of each patient: what holds for it holds for all cases of a patient.

    >>> by_patient([("a", 0.1), ("b", 0.2), ("a", 0.4)])
    {'a': 0.4, 'b': 0.2}
    """
    groups = defaultdict(list)
    for patient, value in values:
        groups[patient].append(value)
    return {patient: max(group) for patient, group in groups.items()}


@dataclass(frozen=True)
class Guarantee:
    """A fitted interval: its level, and for each class the scores of the validation patients."""

    level: float
    scores: Mapping[str, Sequence[float]]

    def quantile(self, kind: str) -> float:
        """What the score of a class must not exceed."""
        return quantile(self.scores[kind], self.level)

    def values(self) -> dict[str, Any]:
        """Everything as JSON: `classes` with the quantile and the sorted scores of each."""
        classes = {}
        for kind, each in self.scores.items():
            classes[kind] = {"quantile": self.quantile(kind), "scores": sorted(each)}
        return {"level": self.level, "classes": classes}

    @staticmethod
    def of(values: Mapping[str, Any]) -> Guarantee:
        """The guarantee whose `values` these are."""
        return Guarantee(values["level"], {k: v["scores"] for k, v in values["classes"].items()})


@dataclass(frozen=True)
class Coverage:
    """For how many of some patients an interval held that was fitted on others."""

    level: float
    held: int
    patients: int
    fitted: int  # the validation patients that it was fitted on

    @property
    def share(self) -> float:
        """The share of the patients for whom it held."""
        return self.held / self.patients

    @property
    def bounds(self) -> tuple[float, float]:
        """The exact 95 % binomial interval of the share (Clopper and Pearson 1934)."""
        exact = binomtest(self.held, self.patients).proportion_ci(method="exact")
        return float(exact.low), float(exact.high)

    @property
    def verdict(self) -> str:
        """What to think of it if it held for fewer than chance explains; else nothing.

        The interval from the k-th smallest of n scores covers a share of new patients that follows
        the beta distribution (k, n + 1 - k), so the patients for whom it holds are beta-binomial. A
        count at the lower 2.5 % of these is too few. Too many harm nobody.
        """
        k = _rank(self.fitted, self.level)
        if betabinom.cdf(self.held, self.patients, k, self.fitted + 1 - k) > TAIL:
            return ""
        fit = f"a {_percent(self.level)} interval fitted on {self.fitted} patients"
        return f"fewer than {fit} would hold for"

    def values(self) -> dict[str, float]:
        """Everything as JSON."""
        low, high = self.bounds
        counts = {"level": self.level, "held": self.held, "patients": self.patients}
        counts |= {"fitted": self.fitted}
        return counts | {"share": self.share, "low": low, "high": high}

    def sentence(self) -> str:
        """What is printed of it.

        >>> Coverage(0.9, 46, 50, fitted=25).sentence()
        'the 90 % interval held for 46 of 50 patients, 92 % (81 to 98 %)'
        >>> Coverage(0.9, 30, 50, fitted=25).sentence()
        'the 90 % interval held for 30 of 50 patients, 60 % (45 to 74 %): fewer than a 90 % \
interval fitted on 25 patients would hold for'
        """
        low, high = self.bounds
        counts = f"held for {self.held} of {self.patients} patients, {100 * self.share:.0f} %"
        text = f"the {_percent(self.level)} interval {counts} ({100 * low:.0f} to {100 * high:.0f}"
        return f"{text} %)" + (f": {self.verdict}" if self.verdict else "")


def coverage(held: Iterable[tuple[str, bool]], level: float, fitted: int) -> Coverage:
    """Coverage over patients, from whether the interval held in each of their cases.

    It held for a patient if it held in all of his cases. `fitted` is the number of validation
    patients.

    >>> coverage([("a", True), ("a", False), ("b", True)], 0.9, fitted=25)
    Coverage(level=0.9, held=1, patients=2, fitted=25)
    """
    failed = by_patient((patient, 1.0 - each) for patient, each in held)
    return Coverage(level, list(failed.values()).count(0.0), len(failed), fitted)
