"""What the settings in `segcal/hardware.py` bring on this machine: a training step with each of
them taken away.

`python -m benchmarks.settings pages` prints the median step in milliseconds without kept pages.
"""

from __future__ import annotations

import os
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


def step_time(*without: str) -> float:
    """Milliseconds of a training step in a process of its own, one thread."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.settings", *without]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return float(done.stdout.split()[-1])


def rows() -> Iterator[Row]:
    rounds = [{key: step_time(key) for key in ("", *WITHOUT)} for _ in range(5)]
    for key, what in WITHOUT.items():
        ours, theirs = (sorted(r[k] for r in rounds)[2] for k in ("", key))
        yield Row(
            "training step (8, 1, 64, 64), width 8",
            what,
            ours / theirs,
            1.05,
            f"{ours:.3g} ms / {theirs:.3g} ms",
        )

    fused, loop = (adam_step(fused=fused) for fused in (True, False))
    yield time_row("Adam's step, unet width 8", "a loop over tensors", fused, loop, 1.0, 15)

    keep_pages()
    network, image = (
        channels_last(build_network("unet", 1, 3, width=8).eval()),
        torch.rand(36, 1, 52, 42),
    )

    @torch.inference_mode()
    def by_four() -> None:
        for part in image.split(4):
            network(part.contiguous(memory_format=torch.channels_last))

    @torch.inference_mode()
    def by_many() -> None:
        volume_logits(network, image, (52, 42))

    yield time_row(
        "inference (36, 1, 52, 42), width 8", "four slices at a time", by_many, by_four, 1.0, 15
    )


def adam_step(*, fused: bool) -> Callable[[], object]:
    parameters = list(channels_last(build_network("unet", 1, 4, width=8)).parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.Adam(parameters, fused=fused, foreach=False).step


def main(without: str = "") -> None:
    if without != "pages":
        keep_pages()
    torch.manual_seed(0)
    network = build_network("unet", 1, 4, width=8)
    image, labels = torch.rand(8, 1, 64, 64), torch.randint(0, 4, (8, 64, 64))
    if without != "layout":
        network, image = channels_last(network), image.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        mbls(network(image), labels).backward()
        optimizer.step()

    print(times(step, repeats=25)[0] * 1e3)


if __name__ == "__main__":
    main(*sys.argv[1:])
