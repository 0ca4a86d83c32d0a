"""What all packages share: the error that a user sees, and the checks of arrays and settings.

`logits` and `probs` are (N, K, *S): items, classes, then zero or more spatial axes. `labels` are
(N, *S) integers. Nothing here imports torch: `segcal --help` and `import segcal` stay fast."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

IGNORE = -100
"""The label of voxels that no loss and no metric counts; the same as PyTorch's."""

Progress = Callable[[int, int], None]
"""Called with how many steps of a task are done, and how many there are (0: not known)."""


AnyPath = str | os.PathLike[str]
"""What every function for users takes where a file or folder is meant."""


class UserError(ValueError):
    """An error that the user can correct, in one sentence: what, what was got, what is allowed."""


def as_paths(paths: AnyPath | Iterable[AnyPath]) -> list[Path]:
    """One path or several as a list.

    >>> [path.name for path in as_paths("runs/mbls")]
    ['mbls']
    """
    if isinstance(paths, (str, os.PathLike)):
        return [Path(paths)]
    return [Path(path) for path in paths]


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless a setting has one of its allowed values.

    >>> check_choice("penalty", "l3", ("l1", "l2"))
    Traceback (most recent call last):
    segcal.types.UserError: unknown penalty 'l3'; choose one of l1, l2
    """
    if value not in allowed:
        raise UserError(f"unknown {name} {value!r}; choose one of {', '.join(allowed)}")


def check_range(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Raise unless a number lies in [low, high]; NaN never does.

    >>> check_range("alpha", 1.5, 0, 1)
    Traceback (most recent call last):
    segcal.types.UserError: alpha must lie in [0, 1]; got 1.5
    """
    if not isinstance(value, (int, float)):  # as settings come from files
        raise UserError(f"{name} must be a number; got {value!r}")
    if not low <= value <= high:
        allowed = f"lie in [{low:g}, {high:g}]" if high < float("inf") else f"be at least {low:g}"
        raise UserError(f"{name} must {allowed}; got {value}")


def settings_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a function, its keyword-only arguments with a default, and these defaults.

    >>> settings_of(check_arrays)
    {'name': 'logits'}
    """
    keyword_only = [p for p in signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return {p.name: p.default for p in keyword_only if p.default is not p.empty}


def check_settings(
    family: str, table: Mapping[str, Any], key: str, settings: Iterable[str]
) -> None:
    """Raise unless a table such as `LOSSES` has the row `key`, and that row all the settings."""
    check_choice(family, key, tuple(table))
    for name in settings:
        check_choice(f"setting of {key}", name, tuple(table[key].settings))


def check_tensors(**values: object) -> None:
    """Raise unless all are torch tensors: losses and calibrators take nothing else."""
    for name, value in values.items():
        if not hasattr(value, "is_floating_point"):
            got = f"{type(value).__module__}.{type(value).__name__}"
            raise UserError(f"{name} must be a torch tensor; got {got}")


def check_arrays(scores: Tensor, labels: Tensor, *, name: str = "logits") -> None:
    """Raise unless the shapes and types of `scores` (logits or probs) and `labels` fit."""
    check_tensors(**{name: scores, "labels": labels})
    if not scores.is_floating_point():
        raise UserError(f"{name} must be floating point; got {scores.dtype}")
    if scores.ndim < 2 or scores.shape[1] < 2:
        raise UserError(
            f"{name} must be (N, K, *S) with K >= 2 classes; got shape {tuple(scores.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise UserError(f"labels must be integers; got {labels.dtype}")
    if scores.numel() == 0:
        raise UserError(f"{name} must not be empty; got shape {tuple(scores.shape)}")
    expected = (scores.shape[0], *scores.shape[2:])
    if labels.shape != expected:
        raise UserError(
            f"labels must have shape {expected} for {name} of shape {tuple(scores.shape)}; got"
            f" {tuple(labels.shape)}"
        )


def check_labels(
    labels: Tensor, n_classes: int, ignore_index: int | None = None, *, name: str = "labels"
) -> bool:
    """Raise unless integer labels lie in 0..K-1 or equal `ignore_index`.

    Returns whether any may equal `ignore_index`; if none does, the caller can save a pass."""
    if labels.numel() == 0:
        return False
    low, high = (int(value) for value in labels.aminmax())
    may_ignore = ignore_index is not None and low <= ignore_index <= high
    if low >= 0 and high < n_classes:
        return may_ignore
    kept = labels
    if ignore_index is not None and may_ignore:
        kept = labels.where(labels.ne(ignore_index), 0)
    if any(not 0 <= int(value) < n_classes for value in kept.aminmax()):
        also = "" if ignore_index is None else f", or equal ignore_index {ignore_index}"
        first = int(kept[(kept < 0) | (kept >= n_classes)][0])
        raise UserError(f"{name} must lie in 0..{n_classes - 1}{also}; got {first}")
    return may_ignore
