"""What a study adds to its runs, and what a second worker brings."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row
from segcal.data.prepare import prepare
from segcal.folders import CaseSet
from segcal.predictors.run import open_run
from segcal.scoring import evaluate
from segcal.study.plan import Plan, read_plan
from segcal.study.runner import run_study
from segcal.training import train

LOSSES = '["ce", "ls", "focal", "mbls"]'


def plan(cases: CaseSet, losses: str, epochs: int) -> Plan:
    """A cell per loss, each of which is chosen and scored on test."""
    sets = [
        f"studies.methods.loss={losses}",
        f"training.epochs={epochs}",
        "network.width=8",
        "training.batch=8",
    ]
    return read_plan(
        "smoke",
        data=str(cases.root),
        overrides=[*sets, "after.calibrators=[]", "after.corruptions=[]"],
    )


def directly(wanted: Plan, out: Path) -> float:
    """Seconds of the same runs in a plain loop."""
    start = time.perf_counter()
    for cell in wanted.cells:
        train(cell.settings, out / cell.name, progress=False)
        evaluate(open_run(out / cell.name))
    return time.perf_counter() - start


def studied(wanted: Plan, out: Path, workers: int) -> float:
    start = time.perf_counter()
    assert not run_study(wanted, out, workers=workers)["failed"]
    return time.perf_counter() - start


def rows(
    losses: str = LOSSES,
    n_cases: int = 10,
    shape: tuple[int, int, int] = (12, 64, 64),
    epochs: tuple[int, int] = (1, 8),
    repeats: int = 3,
) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        root, number = Path(folder), itertools.count()
        cases = prepare("phantom", to=root, n_cases=n_cases, shape=shape).cases
        short, long = (plan(cases, losses, n) for n in epochs)
        n = len(short.cells)
        studied(short, root / "warm", 1)
        pairs = [
            (studied(short, root / f"{next(number)}", 1), directly(short, root / f"{next(number)}"))
            for _ in range(repeats)
        ]
        ours, theirs = (statistics.median(taken) for taken in zip(*pairs, strict=True))
        detail = f"{ours / n:.3g} s / {theirs / n:.3g} s a cell"
        yield Row(
            "a cell of a study",
            "beyond train + evaluate",
            (ours - theirs) / n,
            2.0,
            detail,
            unit=" s",
        )

        pairs = [
            (studied(long, root / f"{next(number)}", 2), studied(long, root / f"{next(number)}", 1))
            for _ in range(repeats)
        ]
        two, one = (statistics.median(taken) for taken in zip(*pairs, strict=True))
        detail = f"{3600 * n / two:.0f} / {3600 * n / one:.0f} cells an hour, one thread each"
        yield Row("a study with two workers", "with one worker, time", two / one, 1 / 1.7, detail)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    for row in rows():
        print(*row.cells(), sep=" | ")
