"""How things are measured: times interleaved in one process, memory in processes of their own."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm


@dataclass(frozen=True)
class Row:
    """One line of the table: a measured ratio (or size) and what it must not exceed."""

    what: str
    against: str
    value: float
    reach: float
    detail: str
    unit: str = "×"

    @property
    def reached(self) -> bool:
        return self.value <= self.reach

    def cells(self) -> tuple[str, ...]:
        limit = f"≤ {self.reach:.3g}{self.unit}"
        return (
            self.what,
            self.against,
            f"{self.value:.3g}{self.unit}",
            limit,
            "yes" if self.reached else "NO",
            self.detail,
        )


HEAD = ("what", "against", "measured", "reach", "reached", "median times or sizes")


def times(*functions: Callable[[], Any], repeats: int) -> list[float]:
    """Median seconds of each function; they take turns, so that a busy moment of the machine hits
    all of them.
    """
    samples: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()  # warm up
    for _ in tqdm(range(repeats), leave=False, desc="repeats", disable=repeats < 3):
        for function, taken in zip(functions, samples, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in samples]


def time_row(
    what: str,
    against: str,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    reach: float,
    repeats: int,
) -> Row:
    a, b = times(ours, theirs, repeats=repeats)
    return Row(what, against, a / b, reach, f"{a * 1e3:.3g} ms / {b * 1e3:.3g} ms")


def peak_in_new_process(module: str, *args: str) -> float:
    """Megabytes that `python -m module args` reports; a fresh process, so that nothing was
    allocated before.
    """
    command = [sys.executable, "-m", module, *args]
    # A fixed threshold makes the allocator return every large block at once, so that the peak is
    # what was really held.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return float(done.stdout.split()[-1])


class PeakMemory:
    """The most resident memory used inside the `with` block beyond what was resident at its start
    (Linux).
    """

    def __enter__(self) -> PeakMemory:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self.start = self._status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.megabytes = self._status("VmHWM") - self.start

    @staticmethod
    def _status(field: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(field)) / 1024
