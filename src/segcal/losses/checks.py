"""What every objective asks of its input, written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from segcal.types import IGNORE, check_arrays, check_labels

F = TypeVar("F", bound=Callable[..., Tensor])


def objective(function: F) -> F:
    """Check shapes and types before a loss runs, and compute it in at least float32.

    Half-precision logits (autocast) are widened: a softmax in 8 or 11 bits is no basis for
    calibration. Label values are not scanned here: the first look-up of a label inside the loss
    fails, and that failure is reworded.
    """

    @wraps(function)
    def checked(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
        check_arrays(logits, labels)
        logits, labels = _without_subclass(logits), _without_subclass(labels).long()
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        try:
            # Autocast would narrow matrix products again.
            with torch.autocast(logits.device.type, enabled=False):
                return function(logits, labels, **settings)
        except (IndexError, RuntimeError) as error:
            if "out of bounds" in str(error):
                check_labels(labels, logits.shape[1], settings.get("ignore_index", IGNORE))
            raise

    return cast(F, checked)


def _without_subclass(tensor: Tensor) -> Tensor:
    # A MONAI MetaTensor slows every operation.
    return tensor if type(tensor) is Tensor else tensor.as_subclass(Tensor)


def counted(labels: Tensor, ignore_index: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """1.0 where a voxel counts and 0.0 where it is ignored; and how many count, at least 1."""
    weight = labels.ne(ignore_index).to(like.dtype)
    return weight, weight.sum().clamp_min(1)
