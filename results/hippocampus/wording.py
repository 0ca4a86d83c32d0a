"""How the page writes numbers and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from segcal.compare.tables import p_text
from segcal.metrics import METRICS


def shown(value: float, metric: str) -> str:
    """A mean, to as many places as it deserves."""
    return f"{value:.{2 if METRICS[metric].of == 'surfaces' else 3}f}"


def chance(p: float) -> str:
    """A p.

    >>> chance(0.0123), chance(1e-7)
    ('p = 0.012', 'p < 0.0001')
    """
    return f"p {p_text(p)}" if p < 1e-4 else f"p = {p_text(p)}"


def percent(share: float) -> str:
    """A change, with its sign.

    >>> percent(-0.37), percent(0.001)
    ('−37 %', '±0 %')
    """
    found = f"{100 * share:+.0f} %".replace("-", "−")
    return f"±{found[1:]}" if found[1:] == "0 %" else found


def points(difference: float) -> str:
    """A difference, with its sign.

    >>> points(-0.0181)
    '−0.018'
    """
    return f"{difference:+.3f}".replace("-", "−")


def welch(one: ArrayLike, two: ArrayLike) -> Any:
    """Welch's test of two groups of seeds."""
    return scipy.stats.ttest_ind(one, two, equal_var=False)


def spread(values: Sequence[float]) -> str:
    """A mean, and the standard deviation if there are several.

    >>> spread([0.8, 0.82])
    '0.810 ± 0.014'
    """
    return f"{np.mean(values):.3f}" + (
        f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    )


def markdown(heads: Sequence[str], rows: Iterable[list[str]]) -> str:
    """A table; all columns but the first hold numbers."""
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
