"""Metrics take torch tensors and NumPy arrays; here both become tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = Tensor | NDArray[Any]


def tensor_of(values: Array) -> Tensor:
    """A tensor as it is, or a tensor of an array's values.

    The memory is shared where torch allows it. An array of the other byte order, as NIfTI files may
    hold, one that may not be written and one with negative strides are copied.

    >>> tensor_of(np.arange(3, dtype=">u2")[::-1])
    tensor([2, 1, 0])
    """
    if not isinstance(values, np.ndarray):
        return values
    wide = values.dtype.kind == "u" and values.dtype.itemsize > 1  # torch has few operations on it
    native = np.int64 if wide else values.dtype.newbyteorder("=")
    array = np.ascontiguousarray(values, dtype=native)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
