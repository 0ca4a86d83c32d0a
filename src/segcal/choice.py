"""The rules by which validation chooses a setting or an epoch.

`dice`, as in the paper: the best Dice. `nll`: the lowest NLL among those whose Dice is within one
standard error of the best one's. Dice can hardly tell these apart, and NLL says whose probabilities
are worth more. The standard error is that of the best one, over validation cases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from segcal.types import check_choice

CHOICES = {
    "dice": "the best mean validation DSC",
    "nll": "the lowest mean validation NLL among those whose DSC is within one standard error of"
    " the best, over validation cases",
}
"""The rules, and what each takes."""

DEFAULT: Final = "nll"

K = TypeVar("K")


@dataclass(frozen=True)
class Validated:
    """The mean validation scores of a setting or an epoch, over cases."""

    dice: float  # NaN, none at all, counts as -1
    dice_se: float  # the standard error of `dice` over cases; NaN counts as 0
    nll: float  # per voxel of foreground; NaN counts as infinite

    @property
    def order(self) -> tuple[float, float]:
        """Lower is better: NLL, and of equals the higher Dice."""
        return _known(self.nll, math.inf), -self.order_dice

    @property
    def order_dice(self) -> float:
        """Higher is better."""
        return _known(self.dice, -1.0)

    @property
    def least(self) -> float:
        """The lowest Dice that is within one standard error of this one."""
        return self.order_dice - _known(self.dice_se, 0.0)


def _known(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value


def choose(scores: Mapping[K, Validated], rule: str) -> K:
    """The key that a rule chooses; of equals the first.

    >>> scores = {"a": Validated(0.80, 0.02, 1.4), "b": Validated(0.79, 0.02, 1.2)}
    >>> choose(scores, "dice"), choose(scores, "nll")
    ('a', 'b')
    """
    check_choice("choose", rule, tuple(CHOICES))
    best = max(scores, key=lambda key: scores[key].order_dice)
    if rule == "dice":
        return best
    near = [key for key, value in scores.items() if value.order_dice >= scores[best].least]
    return min(near, key=lambda key: scores[key].order)


def still_open(scores: Mapping[K, Validated], n_cases: int) -> dict[K, Validated]:
    """Those that rule `nll` could choose when more epochs follow.

    One that is no better than another in Dice and in NLL is never chosen. Nor is one whose Dice is
    too low for any best epoch to come: `lowest_least`. `n_cases` is the number of validation cases
    that have a Dice in every epoch."""
    best = choose(scores, "dice")  # it stays, because the rule asks for its standard error
    least, highest, kept = lowest_least(scores[best].order_dice, n_cases), -math.inf, {best}
    for key in sorted(scores, key=lambda key: scores[key].order):  # stable: the first of equals
        dice = scores[key].order_dice
        if dice > highest and dice >= least:
            kept.add(key)
        highest = max(highest, dice)
    return {key: value for key, value in scores.items() if key in kept}


def lowest_least(best: float, n_cases: int) -> float:
    r"""A bound: no best epoch with a Dice of at least `best` admits a Dice below it.

    Values in [0, 1] with mean m have a sample variance of at most $\frac{n}{n-1} m (1 - m)$, so the
    standard error is at most $\sqrt{m (1 - m) / (n - 1)}$. What this leaves of m is convex in m,
    and lowest at $m = \frac12 (1 - \sqrt{(n - 1) / n})$.

    >>> round(lowest_least(0.8, 17), 3)
    0.7
    """
    n = max(n_cases, 2)
    m = max(best, (1 - math.sqrt((n - 1) / n)) / 2)
    rounding = 1e-5  # scores are rounded
    return m - math.sqrt(max(m * (1 - m), 0) / (n - 1)) - rounding
