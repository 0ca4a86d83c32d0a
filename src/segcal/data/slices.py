"""Prepared cases as torch tensors: slice by slice for training, volume by volume for evaluation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from segcal.folders.cases import IGNORED, CaseSet
from segcal.types import IGNORE, UserError

GAIN, BIAS, SHIFT = 0.1, 0.05, 0.05
"""Augmentation: intensities times 1 ± GAIN, plus ± BIAS; moved by ± SHIFT of height and width."""


class Slices(Dataset[tuple[Tensor, Tensor]]):
    """The slices of a split: item i is the image (C, H, W) float32 and the label map (H, W) int64.

    Reading an item reads that slice alone. Ignored voxels are labelled `IGNORE`. Smaller slices are
    padded at the bottom and right to `shape`, the largest height and width of the split, with image
    0 and label `IGNORE`.

    `keep_empty=False` leaves out slices without foreground; by default they are left out of `train`
    alone, where the data set's recipe says so. `augment=True` multiplies each channel's intensities
    by 1 ± 0.1, adds ± 0.05 (and clips to [0, 1]), and moves image and label together by up to 5 %
    of the size, with torch's generator."""

    def __init__(
        self,
        cases: CaseSet,
        split: str,
        *,
        fold: int = 0,
        keep_empty: bool | None = None,
        augment: bool = False,
    ) -> None:
        self.cases, self.augment = cases, augment
        if keep_empty is None:
            keep_empty = split != "train" or bool(cases.info.get("keep_empty", True))
        self._places: list[tuple[str, int]] = []
        height = width = 0
        ids = cases.split(split, fold)
        for id in ids:
            cases.image(id)  # a damaged file is an error here, not during training
            n_slices, h, w = cases.label(id).shape
            height, width = max(height, h), max(width, w)
            kept = range(n_slices) if keep_empty else cases.case(id)["foreground_slices"]
            self._places += [(id, s) for s in kept]
        if not self._places:
            why = "no slice with foreground; keep the empty ones"
            if not ids:
                why = "no cases; choose another split or fold"
            raise UserError(f"split {split!r} of {cases.name} (fold {fold}) has {why}")
        self.shape = (height, width)
        self._open: dict[str, tuple[NDArray[np.float32], NDArray[np.uint8]]] = {}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def class_shares(self) -> Tensor:
        """The share of each class (K,) among the labelled voxels, and no class at 0.

        From what preparation counted; only ignored voxels in slices that are left out are
        mistaken for background's."""
        counts = torch.zeros(len(self.cases.classes) + 1, dtype=torch.float64)
        kept = Counter(id for id, _ in self._places)
        for id, n_kept in kept.items():
            record = self.cases.case(id)
            counts += torch.tensor(record["voxels"])
            n_slices, height, width = record["shape"]
            counts[0] -= (n_slices - n_kept) * height * width
        counts = counts.clamp_min(1)
        return (counts / counts.sum()).float()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.batch([index])
        return image[0], label[0]

    def batch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Several items as one batch (N, C, H, W) and (N, H, W): half the time of stacking them."""
        n = len(indices)
        image = torch.zeros(n, len(self.cases.channels), *self.shape)
        label = torch.full((n, *self.shape), IGNORE)
        frames = zip(indices, image.numpy(), label.numpy(), strict=True)
        for index, into_image, into_label in frames:
            one_image, one_label = self._stored(*self._places[index])
            shift = (0, 0)
            if self.augment:
                one_image, shift = _augmented(one_image, self.shape)
            inside, part = _overlap(one_label.shape, self.shape, shift)
            into_image[inside] = one_image[part]
            into_label[inside] = one_label[part]
        return image, label.masked_fill_(label == IGNORED, IGNORE)

    def _stored(self, id: str, s: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """A slice (C, h, w) and its label map (h, w)."""
        if id not in self._open:
            image = _without_descriptor(self.cases.image(id), torch.float32)
            self._open[id] = image, _without_descriptor(self.cases.label(id), torch.uint8)
        images, labels = self._open[id]
        return images[s], labels[s]

    def __getstate__(self) -> dict[str, Any]:
        # A pickled map is the whole volume; each worker of a DataLoader opens its own instead.
        return self.__dict__ | {"_open": {}}


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """Slices by the batch: an item is given by a list of indices and a seed for augmentation."""

    def __init__(self, slices: Slices) -> None:
        self.slices = slices

    def __getitem__(self, wanted: tuple[list[int], int]) -> tuple[Tensor, Tensor]:
        indices, seed = wanted
        if not self.slices.augment:
            return self.slices.batch(indices)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return self.slices.batch(indices)


def volume(cases: CaseSet, id: str) -> tuple[Tensor, Tensor]:
    """A whole case: image (D, C, H, W) float32 and label map (D, H, W) int64, with `IGNORE`."""
    label = torch.from_numpy(np.array(cases.label(id), dtype=np.int64))
    return torch.from_numpy(np.array(cases.image(id))), label.masked_fill_(label == IGNORED, IGNORE)


def _without_descriptor(mapped: np.memmap[Any, Any], dtype: torch.dtype) -> NDArray[Any]:
    """The same map without NumPy's file descriptor: a process may have only 256 of them."""
    header = mapped.offset // mapped.itemsize
    file = torch.from_file(str(mapped.filename), size=header + mapped.size, dtype=dtype)
    return file[header:].view(mapped.shape).numpy()


def _overlap(
    size: tuple[int, ...], shape: tuple[int, int], shift: tuple[int, int]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The part of a frame that an array covers when moved by `shift`, and that part of the array.

    >>> frame, array = np.zeros((2, 3), int), np.array([[1, 2], [3, 4]])
    >>> inside, part = _overlap(array.shape, frame.shape, (1, -1))
    >>> frame[inside] = array[part]
    >>> frame
    array([[0, 0, 0],
           [2, 0, 0]])
    """
    inside: list[Any] = [...]
    part: list[Any] = [...]
    for n, room, move in zip(size, shape, shift, strict=True):
        first, last = max(move, 0), max(min(n + move, room), 0)
        inside.append(slice(first, last))
        part.append(slice(first - move, last - move))
    return tuple(inside), tuple(part)


def _augmented(
    image: NDArray[np.float32], shape: tuple[int, int]
) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """An image with other intensities, and how far it is to be moved down and to the right."""
    gain, bias = (torch.rand(2, image.shape[0], 1, 1) * 2 - 1).numpy()  # each (C, 1, 1), in [-1, 1)
    changed: NDArray[np.float32] = (image * (1 + GAIN * gain) + BIAS * bias).clip(0, 1)
    reach = [int(SHIFT * size) for size in shape]
    down, right = (int(torch.randint(-n, n + 1, ())) for n in reach)
    return changed, (down, right)
