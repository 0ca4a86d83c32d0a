"""Prepared cases as torch tensors: slice by slice for training, volume by volume for evaluation."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from segcal.folders import IGNORED, CaseSet, SliceFile
from segcal.types import IGNORE, UserError

OPEN_CASES = 64
"""How many cases are kept mapped: each takes two of a process's file descriptors, which may be as
few as 256.
"""

GAIN, BIAS, SHIFT = 0.1, 0.05, 0.05
"""How far augmentation goes: intensities times 1 ± GAIN, plus ± BIAS; moved by ± SHIFT of the
height and width.
"""


Scalar = TypeVar("Scalar", np.float32, np.uint8)


class Slices(Dataset[tuple[Tensor, Tensor]]):
    """The slices of a split: item i is the image (C, H, W) float32 and the label map (H, W) int64.

    Reading an item reads that slice alone. Ignored voxels are labelled `IGNORE`. Smaller slices are
    padded at the bottom and right to `shape`, the largest height and width of the split, with image
    0 and label `IGNORE`, so that they batch.

    `keep_empty=False` leaves out slices without foreground; by default they are left out of `train`
    alone, where the data set's recipe says so. `augment=True` multiplies each channel's intensities
    by 1 ± 0.1, adds ± 0.05 (and clips to [0, 1]), and moves image and label together by up to 5 %
    of the size; what comes in from outside has image 0 and label `IGNORE`. It draws from torch's
    generator: `torch.manual_seed` repeats it."""

    def __init__(
        self,
        cases: CaseSet,
        split: str,
        *,
        fold: int = 0,
        keep_empty: bool | None = None,
        augment: bool = False,
    ) -> None:
        self.cases, self.split, self.fold, self.augment = cases, split, fold, augment
        if keep_empty is None:
            keep_empty = split != "train" or bool(cases.info.get("keep_empty", True))
        ids = cases.split(split, fold)
        self._files = {id: _files(cases, id) for id in ids}
        shapes = {id: label.shape for id, (_, label) in self._files.items()}
        self._places = [
            (id, s)
            for id, (n_slices, _, _) in shapes.items()
            for s in (range(n_slices) if keep_empty else _foreground_slices(cases, id, n_slices))
        ]
        if not self._places:
            why = (
                "no slice with foreground; keep the empty ones"
                if ids
                else "no cases; choose another split or fold"
            )
            raise UserError(f"split {split!r} of {cases.name} (fold {fold}) has {why}")
        self.shape = (max(h for _, h, _ in shapes.values()), max(w for _, _, w in shapes.values()))
        self._open: dict[str, tuple[NDArray[np.float32], NDArray[np.uint8]]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        id, s = self._places[index]
        image, label = self._stored(id, s)
        shift = (0, 0)
        if self.augment:
            image = _other_intensities(image)
            shift = _small_shift(self.shape)
        return (
            torch.from_numpy(_placed(image, self.shape, shift, outside=0.0)),
            torch.from_numpy(_with_ignore(_placed(label, self.shape, shift, outside=IGNORED))),
        )

    def batch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Several items as one batch (N, C, H, W) and (N, H, W), written in place: half the time of
        stacking items.
        """
        if self.augment:
            images, labels = zip(*(self[i] for i in indices), strict=True)
            return torch.stack(images), torch.stack(labels)
        n_channels = len(self.cases.channels)
        image, label = (
            torch.zeros(len(indices), n_channels, *self.shape),
            torch.full((len(indices), *self.shape), IGNORE),
        )
        into_image, into_label = image.numpy(), label.numpy()
        for place, index in enumerate(indices):
            id, s = self._places[index]
            one_image, one_label = self._stored(id, s)
            h, w = one_label.shape
            into_image[place, :, :h, :w] = one_image
            into_label[place, :h, :w] = one_label
        return image, label.masked_fill_(label == IGNORED, IGNORE)

    def _stored(self, id: str, s: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """A slice (C, h, w) and its label map (h, w): from a map that stays open, or read if there
        are enough of those.
        """
        if id not in self._open:
            if len(self._open) == OPEN_CASES:
                image, label = self._files[id]
                return image.read(s), label.read(s)
            # As plain arrays over the same memory: indexing NumPy's memmap class costs five times
            # as much.
            self._open[id] = np.asarray(self.cases.image(id)), np.asarray(self.cases.label(id))
        images, labels = self._open[id]
        return images[s], labels[s]

    def __getstate__(self) -> dict[str, Any]:
        # A pickled map is the whole volume; each worker process of a DataLoader opens its own
        # instead.
        return self.__dict__ | {"_open": {}}


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """Slices by the batch: an item is what a list of indices and a seed for augmentation
    ask for.
    """

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
    """A whole case: the image (D, C, H, W) float32 and the label map (D, H, W) int64, with
    `IGNORE`.
    """
    _files(cases, id)  # raises if they do not fit together
    return torch.from_numpy(np.array(cases.image(id))), torch.from_numpy(
        _with_ignore(cases.label(id))
    )


def _files(cases: CaseSet, id: str) -> tuple[SliceFile, SliceFile]:
    """The image (D, C, H, W) and label map (D, H, W) of a case, of which the headers alone are
    read.
    """
    cases.case(id)  # raises for an unknown id
    image, label = cases.image(id), cases.label(id)
    fits = image.ndim == 4 and label.shape == (image.shape[0], *image.shape[2:])
    if not fits or image.dtype != np.float32 or label.dtype != np.uint8:
        got = f"{image.dtype} {image.shape} and {label.dtype} {label.shape}"
        raise UserError(
            f"case {id!r} of {cases.name} must be float32 (D, C, H, W) and uint8 (D, H, W); got"
            f" {got}; prepare the data set again with --again"
        )
    return SliceFile.of(image), SliceFile.of(label)


def _foreground_slices(cases: CaseSet, id: str, n_slices: int) -> list[int]:
    """The slices with a foreground voxel, as the case's record says; counted where it does not."""
    known: list[int] | None = cases.case(id).get("foreground_slices")
    if known is None:
        return [
            s for s, label in enumerate(cases.label(id)) if ((label > 0) & (label != IGNORED)).any()
        ]
    if not all(0 <= s < n_slices for s in known):
        raise UserError(
            f"case {id!r} of {cases.name} has {n_slices} slices, but cases.json lists others; "
            "prepare the data set again with --again"
        )
    return known


def _with_ignore(label: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Stored labels as the losses and metrics expect them.

    >>> _with_ignore(np.array([0, 3, 255], dtype=np.uint8))
    array([   0,    3, -100])
    """
    out = np.array(label, dtype=np.int64)
    ignored = label == IGNORED
    if ignored.any():  # rarely, and assigning to a mask is slow even when it is empty
        out[ignored] = IGNORE
    return out


def _placed(
    array: NDArray[Scalar], shape: tuple[int, int], shift: tuple[int, int], outside: float
) -> NDArray[Scalar]:
    """The array (..., h, w) in one of (..., *shape), moved down and right by `shift`.

    >>> _placed(np.array([[1, 2], [3, 4]]), (2, 3), (1, -1), outside=0)
    array([[0, 0, 0],
           [2, 0, 0]])
    """
    if array.shape[-2:] == shape and shift == (0, 0):
        return np.array(array)  # the usual case, three times as fast as the general one
    out = np.full((*array.shape[:-2], *shape), outside, dtype=array.dtype)
    window, source = [], []
    for size, room, move in zip(array.shape[-2:], shape, shift, strict=True):
        first, last = max(move, 0), max(min(size + move, room), 0)
        window.append(slice(first, last))
        source.append(slice(first - move, last - move))
    out[..., window[0], window[1]] = array[..., source[0], source[1]]
    return out


def _other_intensities(image: NDArray[np.float32]) -> NDArray[np.float32]:
    gain, bias = (torch.rand(2, image.shape[0], 1, 1) * 2 - 1).numpy()  # each (C, 1, 1), in [-1, 1)
    changed: NDArray[np.float32] = (image * (1 + GAIN * gain) + BIAS * bias).clip(0, 1)
    return changed


def _small_shift(shape: tuple[int, int]) -> tuple[int, int]:
    down, right = (
        int(torch.randint(-reach, reach + 1, ())) for reach in (int(SHIFT * size) for size in shape)
    )
    return down, right
