"""The bins that probabilities are sorted into, and a table that finds them fast."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

N_BINS = 15  # as in the paper
LOG_ODDS = 9.0  # fine bins are cut at log-odds from -9 to 9, in steps of 1/4
_BITS = 14  # of a float32 that cells of the table leave out


@lru_cache(maxsize=1)
def fine_edges() -> Tensor:
    """The upper edges of the fine bins but the last, as the largest float32 below each."""
    cuts = torch.arange(-4 * LOG_ODDS, 4 * LOG_ODDS + 1, dtype=torch.float64).div(4).sigmoid()
    return _below(torch.cat([cuts, torch.arange(1, N_BINS, dtype=torch.float64) / N_BINS]).unique())


def _below(exact: Tensor) -> Tensor:
    """The largest float32 up to each value."""
    edges = exact.float()
    return torch.where(edges.double() > exact, edges.nextafter(torch.tensor(0.0)), edges)


N_FINE = len(fine_edges()) + 1


def bin_of(probs: Tensor, n_bins: int) -> Tensor:
    """The bin (int32) of each float32 probability."""
    if probs.device.type == "cpu" and n_bins in (N_BINS, N_FINE):
        return torch.from_numpy(_looked_up(probs.numpy(), n_bins))
    if n_bins == N_FINE:
        return torch.bucketize(probs, fine_edges().to(probs.device), out_int32=True)
    return probs.double().mul_(n_bins).ceil_().int().sub_(1).clamp_(0, n_bins - 1)


def _looked_up(probs: NDArray[np.float32], n_bins: int) -> NDArray[np.int32]:
    """The bin of each probability by a table, ten times as fast as `torch.bucketize`."""
    bins, edges = _table(n_bins)
    cell = _cell(probs)
    found = bins.take(cell)
    found += probs > edges.take(cell)
    return found


def _cell(probs: NDArray[np.float32]) -> NDArray[np.int32]:
    """The first bits of min(p, 1 - p), and a bit for p > 1/2: cells narrow in both tails.

    Both are exact: 1 - p has no rounding for p >= 1/2."""
    cell = np.minimum(probs, 1 - probs).view(np.int32)
    cell >>= _BITS
    cell += (probs > 0.5).astype(np.int32) << 16
    return cell


@lru_cache(maxsize=2)
def _table(n_bins: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Per cell the bin of its smallest probability, and the one edge that may be in it."""
    half = np.float32(0.5).view(np.int32) >> _BITS
    begin = (np.arange(half + 2, dtype=np.int32) << _BITS).view(np.float32).astype(np.float64)
    inner = torch.arange(1, N_BINS, dtype=torch.float64) / N_BINS
    edges = (fine_edges() if n_bins == N_FINE else _below(inner)).double().numpy()
    bins = np.zeros(1 << 17, dtype=np.int32)
    bins[: half + 1] = np.searchsorted(edges, begin[:-1])
    # p > 1/2: a cell has 1 - p from `begin` to below the next, so p from above 1 - the next
    bins[1 << 16 :][: half + 1] = np.searchsorted(edges, 1 - begin[1:], side="right")
    return bins, np.append(edges, np.inf).astype(np.float32)[bins]
