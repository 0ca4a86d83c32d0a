"""Which items an epoch visits, in which order, and which process takes which: from seed and epoch
alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Dataset, Sampler


class EpochSampler(Sampler[tuple[list[int], int]]):
    """Batches of a new order every epoch, from seed and epoch alone; each process takes every so
    many-th item of it.

    With each batch comes a seed of its own, for what augmentation draws, whoever loads it and
    whatever was loaded before."""

    def __init__(self, n_items: int, batch: int, seed: int) -> None:
        self.n_items, self.batch, self.seed, self.epoch = n_items, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning tells which epoch it is."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[list[int], int]]:
        generator = torch.Generator().manual_seed(epoch_seed(self.seed, self.epoch))
        order = torch.randperm(self.n_items, generator=generator)
        rank, world = _place()
        padded = torch.cat(
            [order, order[: -self.n_items % world]]
        )  # every process has the same number
        seeds = torch.randint(1 << 62, (len(self), world), generator=generator)
        parts = padded[rank::world].split(self.batch)
        return iter(
            [(part.tolist(), int(seed)) for part, seed in zip(parts, seeds[:, rank], strict=True)]
        )

    def __len__(self) -> int:
        world = _place()[1]
        share = (self.n_items + world - 1) // world
        return (share + self.batch - 1) // self.batch


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of one epoch."""
    return seed * 1_000_003 + epoch


def _place() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class ShareOfCases(Dataset[str]):
    """This process's share of case ids; all shares have one length, the shorter ones end in an
    empty id.
    """

    def __init__(self, ids: tuple[str, ...]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        world = _place()[1]
        return (len(self.ids) + world - 1) // world

    def __getitem__(self, index: int) -> str:
        rank, world = _place()
        place = rank + index * world
        return self.ids[place] if place < len(self.ids) else ""
