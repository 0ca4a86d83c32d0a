"""The numbers behind the figures: areas and ellipses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.patches import Ellipse
from numpy.typing import NDArray
from scipy.special import digamma
from scipy.stats import chi2, f

from segcal.metrics import Bins

Floats = NDArray[np.float64]
# Sums per bin: `count` (voxels), `conf` (their confidences), `hit` (how many are right).
BinSums = Mapping[str, Floats]


def ece_of(bins: BinSums) -> float:
    """Expected calibration error of stored bins (B,); NaN without voxels.

    >>> count, conf, hit = np.array([4, 6]), np.array([2, 5]), np.array([1, 5])
    >>> ece_of({"count": count, "conf": conf, "hit": hit})
    0.1
    """
    sums = [torch.as_tensor(bins[name], dtype=torch.float64) for name in ("count", "conf", "hit")]
    return Bins(*sums).error.item()


def risk_curve(bins: BinSums, n_points: int = 200) -> tuple[Floats, Floats]:
    """Coverage and risk: the error rate among the most confident share of the voxels.

    Bins go from the least to the most confident. Within a bin the order is not known: each voxel
    is equally likely to come first, so errors grow evenly there."""
    kept, errors = _cumulated(bins)
    if kept[-1] == 0:
        return np.array([]), np.array([])
    places = np.union1d(kept, np.linspace(0, kept[-1], n_points + 1))
    places = places[places >= min(kept[-1] / n_points, kept[kept > 0][0])]
    risk = np.interp(places, kept, errors) / places
    # Up to the end of the first bin with voxels only its error rate is known.
    return np.concatenate([[0.0], places / kept[-1]]), np.concatenate([risk[:1], risk])


def aurc(bins: BinSums) -> float:
    r"""Area under the risk-coverage curve, $\frac{1}{N} \sum_n E_n / n$; NaN without voxels.

    $E_n$ is the number of errors among the n most confident voxels. Exact for binned voxels: a bin
    of $c$ voxels with error rate $r$, after $M$ voxels with $E$ errors, adds the sum of
    $(E + r (n - M)) / n$. That is $r c + (E - r M) (H_{M+c} - H_M)$; digamma gives the harmonic
    numbers $H$.

    The voxel with less confidence is wrong, (0/1 + 1/2) / 2:

    >>> aurc({"count": np.array([1.0, 1.0]), "hit": np.array([0.0, 1.0])})
    0.25
    """
    kept, errors = _cumulated(bins)
    if kept[-1] == 0:
        return float("nan")
    size = np.diff(kept)
    before, wrong = kept[:-1][size > 0], errors[:-1][size > 0]
    rate = np.diff(errors)[size > 0] / size[size > 0]
    size = size[size > 0]
    harmonic = digamma(before + size + 1) - digamma(before + 1)
    return float((rate * size + (wrong - rate * before) * harmonic).sum() / kept[-1])


def _cumulated(bins: BinSums) -> tuple[Floats, Floats]:
    """Voxels kept and errors among them, from 0 on, after each bin from the most confident on."""
    count = np.asarray(bins["count"], dtype=float)[::-1]
    wrong = count - np.asarray(bins["hit"], dtype=float)[::-1]
    return np.concatenate([[0.0], count.cumsum()]), np.concatenate([[0.0], wrong.cumsum()])


def spread_ellipse(points: Floats, level: float = 0.5) -> Ellipse:
    """Contains a share `level` of points (N, 2), three or more, if they are normal."""
    return _ellipse(points, chi2.ppf(level, 2))


def mean_ellipse(points: Floats, level: float = 0.95) -> Ellipse:
    """Contains the mean of points (N, 2) with confidence `level` (Hotelling)."""
    n = len(points)
    return _ellipse(points, 2 * (n - 1) / (n * (n - 2)) * f.ppf(level, 2, n - 2))


def _ellipse(points: Floats, squared_radius: float) -> Ellipse:
    x, y = points.mean(0)
    sizes, directions = np.linalg.eigh(np.cov(points.T))
    width, height = 2 * np.sqrt(np.maximum(sizes, 0) * squared_radius)
    angle = float(np.degrees(np.arctan2(*directions[::-1, 0])))
    return Ellipse((float(x), float(y)), float(width), float(height), angle=angle)
