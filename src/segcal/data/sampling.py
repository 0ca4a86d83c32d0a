"""Which items an epoch visits, in which order and in which process: from seed and epoch alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch.utils.data import Dataset, Sampler


class EpochSampler(Sampler[tuple[list[int], int]]):
    """Batches in a new order every epoch; each process takes its share of the items.

    Each batch comes with a seed for its augmentation, which does not depend on the process that
    loads it or on what was loaded before."""

    def __init__(self, n_items: int, batch: int, seed: int) -> None:
        self.n_items, self.batch, self.seed, self.epoch = n_items, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[list[int], int]]:
        generator = torch.Generator().manual_seed(epoch_seed(self.seed, self.epoch))
        order = torch.randperm(self.n_items, generator=generator)
        rank, world = _place()
        padded = torch.cat([order, order[: -self.n_items % world]])  # shares of the same length
        seeds = torch.randint(1 << 62, (len(self), world), generator=generator)
        parts = padded[rank::world].split(self.batch)
        indices = [part.tolist() for part in parts]
        return iter([*zip(indices, seeds[:, rank].tolist(), strict=True)])

    def __len__(self) -> int:
        return math.ceil(_share(self.n_items) / self.batch)


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of one epoch."""
    return seed * 1_000_003 + epoch


def _place() -> tuple[int, int]:
    """The rank of this process, and how many there are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _share(n_items: int) -> int:
    return math.ceil(n_items / _place()[1])


class ShareOfCases(Dataset[str]):
    """This process's case ids. All shares have one length; shorter ones end in an empty id."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return _share(len(self.ids))

    def __getitem__(self, index: int) -> str:
        rank, world = _place()
        place = rank + index * world
        return self.ids[place] if place < len(self.ids) else ""
