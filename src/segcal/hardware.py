"""Settings of this machine that matter for speed; `make bench` measures their effect."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's names for mallopt
_KEEP, _KEEP_OLD = 1 << 30, 1 << 25  # bytes; glibc before 2.35 refuses more than 32 MB


def before_torch() -> None:
    """Call before torch is imported: idle threads sleep.

    Threads that spin are ten times slower on a machine with other busy processes."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def keep_pages() -> None:
    """Let the allocator keep freed memory: new pages cost as much as a convolution."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(_M_MMAP_THRESHOLD, _KEEP) or libc.mallopt(_M_MMAP_THRESHOLD, _KEEP_OLD)
            libc.mallopt(_M_TRIM_THRESHOLD, _KEEP)


def channels_last(module: nn.Module) -> nn.Module:
    """The fastest memory layout for convolutions on CPU and GPU; images must have it too."""
    import torch  # not at the top: the command line needs this file before torch

    move: Any = module.to  # its types leave memory_format out
    moved: nn.Module = move(memory_format=torch.channels_last)
    return moved


def inference_batch(height: int, width: int) -> int:
    """Slices per forward pass without gradients: few enough to stay in the processor's cache.

    >>> inference_batch(52, 42), inference_batch(192, 192)
    (60, 4)
    """
    return max(4, (1 << 17) // (height * width))
