"""What no value counts as: the one rule behind marks, ranks, tests and first places.

A contender has no value in a case for one of two reasons. *Empty*: the object is not there, and it
rightly predicts none. Where another invents the object, this is perfect (`credited`: Dice 1,
distance 0); where nobody does, there is nothing to compare and the case is left out. *Lacking*: it
missed or invented the object and so has no distance, or it has no value where others have one. This
is the worst there is: an infinite loss (`losses`), which ranks last in the case and is the largest
difference of a test; in a mean, which cannot hold it, the worst value that anyone had on any case
(`counted`). Means that are printed leave both out."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from segcal.metrics import METRICS
from segcal.types import check_choice

Floats = NDArray[np.float64]


def credited(values: pd.DataFrame, metric: str, missed: pd.DataFrame | None = None) -> pd.DataFrame:
    """Values in which a contender that rightly leaves out what another invents is perfect.

    `missed` counts the objects that were missed or invented, a table like `values`. Without it a
    Dice of 0 is one, and distances stay as they are. A NaN where another has the object is no
    success.

    >>> credited(pd.DataFrame({"a": [0.0, 0.4], "b": [float("nan")] * 2}), "dice").values.tolist()
    [[0.0, 1.0], [0.4, nan]]
    """
    check_choice("metric", metric, tuple(METRICS))
    row = METRICS[metric]
    if row.of == "bins" or metric == "missed" or (missed is None and row.of != "confusion"):
        return values
    wrong = (values == 0).astype(float) if missed is None else missed.reindex_like(values)
    there = (values.notna() & (wrong == 0)).any(axis=1)
    invented = ((wrong > 0).any(axis=1) & ~there).to_numpy()
    perfect = 1.0 if row.better == "higher" else 0.0
    return values.mask(values.isna() & (wrong == 0) & invented[:, None], perfect)


def losses(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Lower is better, infinite where others have a value; rows without any are left out."""
    known = credited(values, metric).dropna(how="all")
    loss = loss_of(known.to_numpy(dtype=float), METRICS[metric].better)
    loss = np.where(np.isnan(loss), np.inf, loss)
    return pd.DataFrame(rounded(loss), known.index, known.columns)


def loss_of(values: Floats, better: str) -> Floats:
    """Values such that lower is better; for a ratio the distance of its logarithm to 0.

    >>> loss_of(np.array([0.5, 1.0, 2.0]), "one").round(3).tolist()
    [0.693, 0.0, 0.693]
    """
    if better == "one":
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                values > 0, np.abs(np.log(values)), np.where(values <= 0, np.inf, values)
            )
    return {"higher": -values, "zero": np.abs(values)}.get(better, values)


def rounded(values: Floats, like: Floats | None = None) -> Floats:
    """Values to the decimals of 12 significant digits of `like`, by default of themselves.

    So what is equal but for floating point ranks as a tie.

    >>> rounded(np.array([0.1 + 0.2, 0.3, np.inf])).tolist()
    [0.3, 0.3, inf]
    >>> rounded(np.array([0.9 - 0.8, 0.1]), like=np.array([0.9, 0.3])).tolist()
    [0.1, 0.1]
    """
    size = np.abs(values if like is None else like)
    known = np.isfinite(values) & np.isfinite(size) & (size > 1e-280)
    digits = 11 - np.floor(np.log10(size, where=known, out=np.zeros_like(size)))
    scale = 10.0**digits
    with np.errstate(invalid="ignore"):
        return np.where(known, np.rint(values * scale) / scale, values)


def counted(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Values as they count in an order of means; rows without any are left out.

    >>> counted(pd.DataFrame({"a": [2.0, 1.0], "b": [float("nan"), 3.0]}), "asd").values.tolist()
    [[2.0, 3.0], [1.0, 3.0]]
    """
    loss = losses(values, metric)
    known = credited(values, metric).loc[loss.index]
    finite = loss.to_numpy()[np.isfinite(loss)]
    worst = known.to_numpy()[loss == finite.max()][0] if finite.size else np.nan
    return known.mask(np.isinf(loss), worst)
