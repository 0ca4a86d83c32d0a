"""Measure everything, print each line as it comes, and keep the table in docs/performance.md.

`python -m benchmarks pipeline` measures that file's rows alone and puts them in the place of the
old ones."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import (
    audit,
    calibration,
    losses,
    pipeline,
    ranking,
    report,
    settings,
    slices,
    study,
    surface,
)
from benchmarks.measure import HEAD, Row

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PAGE_TEXT = """# Performance

Written by `make bench`. Ratios of medians, ours to the peer's: both take turns in one process,
with one thread. `python -m benchmarks pipeline` measures one file's rows again, so that rows may
come from different runs. A busy machine moves a ratio by some hundredths: a training step at
(8, 1, 64, 64) came out between 1.03× and 1.05×. The logits of a volume are as sure as those of
trained networks; all metrics of one came out between 0.23× and 0.27× in three runs, of which the
table has the first, when the machine was least busy. A network that gives foreground more than
1/15 far from it, as label smoothing does, has every voxel sorted; scoring then takes 0.5 to 0.6 of
the inference. Memory is the peak of resident memory beyond what inputs need, each in a fresh
process.

{table}

Measured with {versions} on {machine}.

How the peers are called is in [`benchmarks/`](../benchmarks/): each gets the same arrays, values
are compared before times.
"""


MODULES = (losses, calibration, surface, slices, pipeline, settings, ranking, report, study, audit)


def markdown(cells: Iterable[tuple[str, ...]]) -> str:
    lines = [HEAD, tuple("---" for _ in HEAD), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def merged(rows: list[Row], page: str) -> list[tuple[str, ...]]:
    """The rows of a page, with those that were measured now in the place of the old ones, or at the
    end.
    """
    new = {row.cells()[:2]: row.cells() for row in rows}
    lines = [line for line in page.splitlines() if line.startswith("| ")][2:]
    old = [tuple(line.removeprefix("| ").removesuffix(" |").split(" | ")) for line in lines]
    return [new.pop((cells[0], cells[1]), cells) for cells in old] + list(new.values())


def main(names: list[str]) -> int:
    known = {module.__name__.rpartition(".")[2]: module for module in MODULES}
    if unknown := [name for name in names if name not in known]:
        print(f"no benchmark {unknown[0]!r}; choose from {', '.join(known)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    rows: list[Row] = []
    for module in (known[name] for name in names or known):
        print(f"== {module.__name__}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        for row in module.rows():
            what, against, value, reach, reached, detail = row.cells()
            print(f"{what:52} {against:30} {value:>9} {reach:>9}  {reached:4} {detail}", flush=True)
            rows.append(row)
    versions = ", ".join(
        f"{name} {version(name)}"
        for name in (
            "torch",
            "torchmetrics",
            "monai",
            "netcal",
            "medpy",
            "scipy",
            "h5py",
            "lightning",
            "fiducio",
        )
    )
    machine = (
        f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, no GPU"
    )
    cells = (
        merged(rows, PAGE.read_text(encoding="utf-8")) if names else [row.cells() for row in rows]
    )
    PAGE.write_text(
        PAGE_TEXT.format(table=markdown(cells), versions=versions, machine=machine),
        encoding="utf-8",
    )
    print(
        f"{sum(row.reached for row in rows)} of {len(rows)} reached; written to"
        f" {PAGE.relative_to(Path.cwd())}"
    )
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
