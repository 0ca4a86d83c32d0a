"""Every objective, forward and backward, against `F.cross_entropy`; memory in fresh processes.

`python -m benchmarks.losses mbls 4,4,224,224` prints the peak extra megabytes of one step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import PeakMemory, Row, peak_in_new_process, time_row
from segcal.losses import LOSSES

Shape = tuple[int, ...]
SIZES = (((4, 4, 224, 224), 41), ((1, 14, 96, 96, 96), 9))  # shapes, and how often each is timed


def step(function: Callable[[Tensor, Tensor], Tensor], shape: Shape) -> Callable[[], None]:
    torch.manual_seed(0)
    logits = (torch.randn(shape) * 5).requires_grad_()
    labels = torch.randint(0, shape[1], (shape[0], *shape[2:]))

    def run() -> None:
        logits.grad = None
        function(logits, labels).backward()

    return run


def peak(name: str, shape: Shape) -> float:
    size = ",".join(map(str, shape))
    return peak_in_new_process("benchmarks.losses", name, size)


def rows(sizes: Sequence[tuple[Shape, int]] = SIZES) -> Iterator[Row]:
    for shape, repeats in sizes:
        for key, row in LOSSES.items():
            reach = 2.8 if key == "mbls" else 8.0 if key == "svls" and len(shape) == 5 else 4.0
            ours, theirs = step(row.function, shape), step(F.cross_entropy, shape)
            yield time_row(f"`{key}` {shape}", "cross_entropy, time", ours, theirs, reach, repeats)
        a, b = peak("mbls", shape), peak("cross_entropy", shape)
        detail = f"{a:.0f} MB / {b:.0f} MB"
        yield Row(f"`mbls` {shape}", "cross_entropy, peak memory", a / max(b, 1e-9), 1.3, detail)


def main(name: str, size: str) -> None:
    torch.set_num_threads(1)
    function = F.cross_entropy if name == "cross_entropy" else LOSSES[name].function
    shape = tuple(map(int, size.split(",")))
    step(function, (1, shape[1], *(2 for _ in shape[2:])))()  # load every library page first
    run = step(function, shape)
    with PeakMemory() as memory:
        run()
    print(memory.megabytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
