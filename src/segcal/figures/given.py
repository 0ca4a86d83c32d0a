"""What drawing functions take: stored sums per bin, or what `segcal.metrics` gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from segcal.figures.looks import METHOD_LOOKS, Look, Looks, look_of
from segcal.figures.values import BinSums
from segcal.losses import LOSSES
from segcal.metrics import Bands, Bins, Reliability

Given = BinSums | Reliability | Bins | Bands


def sums_of(given: Mapping[str, Given] | Given, *, classes: bool = False) -> dict[str, BinSums]:
    """Sums per bin as arrays, by the name of a method; a single value has no name.

    Of a `Reliability` those of the predicted class, or of every foreground class if `classes`."""
    if isinstance(given, (Reliability, Bins, Bands)):
        given = {"": given}
    return {key: _sums(value, classes) for key, value in given.items()}  # type: ignore[arg-type]


def _sums(value: Given, classes: bool) -> BinSums:
    if isinstance(value, Reliability):
        part = value.classes if classes else value.top
        first = 1 if classes else 0
        return {name: array[first:] for name, array in _sums(part, classes).items()}
    fields: Any = value if isinstance(value, Mapping) else vars(value)
    return {name: _array(values) for name, values in fields.items()}


def _array(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def looks_or_own(looks: Looks | None, keys: Iterable[str]) -> Looks:
    """The looks that were given; else those of the methods, and the next colours for other names.

    >>> list(looks_or_own(None, ["mine", "ce"])), looks_or_own(None, ["mine"])["mine"].label
    (['mine', 'ce'], 'mine')
    """
    if looks is not None:
        return looks
    free = [look for look in METHOD_LOOKS if look[0] not in ("#000000", "#737373")]
    own: dict[str, Look] = {}
    for key in keys:
        if key in LOSSES:
            own[key] = look_of(key)
        else:
            colour, marker = free[len(own) % len(free)]
            own[key] = Look(key, colour, marker, "-", "full")
    return own
