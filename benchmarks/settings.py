"""What the settings in `segcal/hardware.py` bring on this machine: a training step with each of
them taken away.

`python -m benchmarks.settings 64 25 pages` prints the median of 25 steps on 64 × 64 pixels, in
milliseconds, without kept pages.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator

import torch

from benchmarks.measure import Row, time_row, times
from segcal.hardware import channels_last, keep_pages
from segcal.losses import mbls
from segcal.networks import build_network
from segcal.predictors.run import volume_logits

WITHOUT = {
    "pages": "allocator gives pages back",
    "layout": "channels first",
}


def step_time(size: int, repeats: int, without: str) -> float:
    """Milliseconds of a training step in a process of its own, one thread."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.settings", str(size), str(repeats), without]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return float(done.stdout.split()[-1])


def rows(
    size: int = 64, n_slices: int = 36, n_rounds: int = 5, steps: int = 25, repeats: int = 15
) -> Iterator[Row]:
    taken: dict[str, list[float]] = {"": [], **{key: [] for key in WITHOUT}}
    for _ in range(n_rounds):
        for key, milliseconds in taken.items():
            milliseconds.append(step_time(size, steps, key))
    ours = statistics.median(taken[""])
    for key, against in WITHOUT.items():
        theirs = statistics.median(taken[key])
        what, detail = f"training step (8, 1, {size}, {size}), width 8", f"{ours:.3g} ms"
        yield Row(what, against, ours / theirs, 1.05, f"{detail} / {theirs:.3g} ms")

    fused, loop = (adam_step(fused=fused) for fused in (True, False))
    yield time_row("Adam's step, unet width 8", "a loop over tensors", fused, loop, 1.0, repeats)

    keep_pages()
    network = channels_last(build_network("unet", 1, 3, width=8).eval())
    image = torch.rand(n_slices, 1, 52, 42)

    @torch.inference_mode()
    def by_four() -> None:
        for part in image.split(4):
            network(part.contiguous(memory_format=torch.channels_last))

    @torch.inference_mode()
    def by_many() -> None:
        volume_logits(network, image, (52, 42))

    what = f"inference ({n_slices}, 1, 52, 42), width 8"
    yield time_row(what, "four slices at a time", by_many, by_four, 1.0, repeats)


def adam_step(*, fused: bool) -> Callable[[], object]:
    parameters = list(channels_last(build_network("unet", 1, 4, width=8)).parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.Adam(parameters, fused=fused, foreach=False).step


def main(size: str, repeats: str, without: str) -> None:
    if without != "pages":
        keep_pages()
    torch.manual_seed(0)
    network = build_network("unet", 1, 4, width=8)
    side = int(size)
    image, labels = torch.rand(8, 1, side, side), torch.randint(0, 4, (8, side, side))
    if without != "layout":
        network, image = channels_last(network), image.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        mbls(network(image), labels).backward()
        optimizer.step()

    print(times(step, repeats=int(repeats))[0] * 1e3)


if __name__ == "__main__":
    main(*sys.argv[1:])
