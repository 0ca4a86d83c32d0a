"""Overlap of a predicted label map with the reference. No rule here rewards a missed object."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.metrics.arrays import Array, tensor_of
from segcal.types import IGNORE, UserError, check_labels, check_range


def label_map(scores: Array) -> Tensor:
    """The class (N, *S) of the largest of scores (N, K, *S), the first of several."""
    scores = tensor_of(scores)
    last = scores.shape[1] - 1
    if scores.device.type != "cpu" or scores.dtype == torch.bfloat16 or last > 255:
        return scores.max(1).indices
    # Of the classes that have the largest score, the one with most classes after it. NumPy compares
    # and counts in bytes, item by item in the processor's cache: half of the time of `max`.
    after = np.arange(last, -1, -1, dtype=np.uint8).reshape(-1, *[1] * (scores.ndim - 2))
    labels = np.empty((len(scores), *scores.shape[2:]), dtype=np.uint8)
    for item, out in zip(scores.detach().numpy(), labels, strict=True):
        np.subtract(last, ((item == item.max(0)) * after).max(0), out=out)
    return torch.from_numpy(labels).long()


def confusion(pred: Array, labels: Array, *, n_classes: int, ignore_index: int = IGNORE) -> Tensor:
    """Voxel counts (K, K), a row per predicted and a column per reference class; counts add.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), n_classes=2)
    tensor([[1, 0],
            [1, 1]])
    """
    pred, labels = tensor_of(pred), tensor_of(labels)
    may_ignore = check_label_maps(pred, labels, n_classes, ignore_index)
    n_cells = n_classes**2
    narrow = torch.uint8 if n_cells <= 256 else torch.int64  # bytes are counted three times as fast
    pred, labels = (values.detach().as_subclass(Tensor).reshape(-1) for values in (pred, labels))
    cell = pred.to(narrow) * n_classes + labels.to(narrow)
    if not may_ignore:
        return torch.bincount(cell, minlength=n_cells).reshape(n_classes, n_classes)
    kept = labels.ne(ignore_index)
    counts = torch.bincount(cell * kept, minlength=n_cells)
    counts[0] -= (
        len(kept) - kept.count_nonzero()
    )  # ignored voxels are counted there; that is fastest
    return counts.reshape(n_classes, n_classes)


def dice(pred: Array, labels: Array, *, n_classes: int, ignore_index: int = IGNORE) -> Tensor:
    r"""Dice similarity $\frac{2|P \cap R|}{|P| + |R|}$ of label maps, per foreground class (K-1,).

    A class absent from both is NaN and left out of means; a class present in only one is 0.

    >>> dice(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 0, 0]), n_classes=4)
    tensor([0.6667, 0.0000,    nan], dtype=torch.float64)
    """
    counts = confusion(pred, labels, n_classes=n_classes, ignore_index=ignore_index)
    return dice_of_confusion(counts)


def dice_of_confusion(counts: Tensor) -> Tensor:
    """Dice per foreground class from the counts that `confusion` gives."""
    counts = counts.double()
    return (2 * counts.diagonal() / (counts.sum(0) + counts.sum(1)))[1:]


def check_label_maps(pred: Tensor, labels: Tensor, n_classes: int, ignore_index: int) -> bool:
    """Raise unless two label maps fit each other; returns whether a voxel may be ignored."""
    check_range("n_classes", n_classes, 2)
    if pred.shape != labels.shape:
        shapes = f"{tuple(pred.shape)} and {tuple(labels.shape)}"
        raise UserError(f"prediction and labels must have one shape; got {shapes}")
    for name, values in (("prediction", pred), ("labels", labels)):
        if values.is_floating_point() or values.is_complex():
            raise UserError(f"{name} must hold integers; got {values.dtype}")
    # Bytes stay bytes, which are read eight times as fast; torch has no minimum of some types.
    pred, labels = (x if x.dtype == torch.uint8 else x.long() for x in (pred, labels))
    check_labels(pred, n_classes, name="prediction")
    return check_labels(labels, n_classes, ignore_index)
