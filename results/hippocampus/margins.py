"""What the margin did to logits and confidence on the foreground, computed from the published bins
of all test cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from packed_study import Study
from wording import markdown, points


def ceiling(margin: float, n_classes: int = 3) -> float:
    """The confidence at which all other logits lie a margin below the largest.

    >>> f"{ceiling(5):.3f}"
    '0.987'
    """
    return 1 / (1 + (n_classes - 1) * math.exp(-margin))


def shown_ceiling(margin: float) -> str:
    """The same as text."""
    return f"{ceiling(margin):.3f}"


def room(margin: float, places: int = 3) -> str:
    """How much confidence a margin can take at the most."""
    return f"{1 - ceiling(margin):.{places}f}"


@dataclass(frozen=True)
class Foreground:
    """Voxels of the foreground, of all test cases and seeds together."""

    span: float  # from the lowest to the highest mean logit, mean over the foreground classes
    lead: float  # of the true class's mean logit over the next
    confidence: float
    accuracy: float
    sure: float  # share of voxels with a confidence above the ceiling of margin 5


def foreground(study: Study, key: str) -> Foreground:
    """Read off a contender's bins."""
    bins = study.all.bins(study.contender(key), voxels="reference")
    logits, top = (
        bins["mean_logits"][1:],
        bins["top"],
    )  # (true class, logit), without the background's row
    own = np.arange(1, len(logits) + 1)
    true = logits[own - 1, own]
    others = logits.copy()
    others[own - 1, own] = -np.inf
    n_voxels = top["count"].sum()
    counts = bins["fine"]["count"]
    first = math.ceil(
        ceiling(5, study.n_classes) * len(counts)
    )  # bins from here on lie above the ceiling
    return Foreground(
        span=float((logits.max(axis=1) - logits.min(axis=1)).mean()),
        lead=float((true - others.max(axis=1)).mean()),
        confidence=float(top["conf"].sum() / n_voxels),
        accuracy=float(top["hit"].sum() / n_voxels),
        sure=float(counts[first:].sum() / n_voxels),
    )


def margin_table(studies: Mapping[str, Study], margin5: Mapping[str, Study]) -> str:
    """CE and MbLS in every study, and MbLS with margin 5 where it was run besides."""
    rows = []
    for title, study in studies.items():
        rows += [_row(title, study, key) for key in ("ce", "mbls")]
        rows += [
            _row(title, other, "mbls") for other in margin5.values() if other.name == study.name
        ]
    heads = ["span of the mean logits", "lead of the true class", "mean confidence", "accuracy"]
    return markdown(["", *heads, f"above {shown_ceiling(5)}"], rows)


def _row(title: str, study: Study, key: str) -> list[str]:
    f = foreground(study, key)
    label = ", ".join(filter(None, [title, study.contender(key).label, study.setting(key)]))
    return [
        label,
        f"{f.span:.1f}",
        f"{f.lead:.1f}",
        f"{f.confidence:.3f}",
        f"{f.accuracy:.3f}",
        f"{100 * f.sure:.0f} %",
    ]


def least_gap(studies: Sequence[Study]) -> str:
    """The smallest gap between confidence and accuracy of CE."""
    return points(min(_gaps(studies)))[1:]


def most_gap(studies: Sequence[Study]) -> str:
    """The largest."""
    return points(max(_gaps(studies)))[1:]


def _gaps(studies: Sequence[Study]) -> list[float]:
    found = [foreground(study, "ce") for study in studies]
    return [f.confidence - f.accuracy for f in found]
