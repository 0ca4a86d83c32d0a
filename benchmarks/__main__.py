"""Measure everything, print each line as it comes, and keep the table in docs/performance.md."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import calibration, losses, pipeline, ranking, report, settings, slices, study, surface
from benchmarks.measure import HEAD, Row

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PAGE_TEXT = """# Performance

Written by `make bench`. Ratios of medians, ours to the peer's: both take turns in one process, with one thread.
Memory is the peak of resident memory beyond what inputs need, each in a fresh process.

{table}

Measured with {versions} on {machine}.

How the peers are called is in [`benchmarks/`](../benchmarks/): each gets the same arrays, values are compared before times.
"""


def markdown(rows: list[Row]) -> str:
    lines = [HEAD, tuple("---" for _ in HEAD), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    torch.set_num_threads(1)
    rows: list[Row] = []
    for module in (losses, calibration, surface, slices, pipeline, settings, ranking, report, study):
        print(f"== {module.__name__}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        for row in module.rows():
            what, against, value, reach, reached, detail = row.cells()
            print(f"{what:52} {against:30} {value:>9} {reach:>9}  {reached:4} {detail}", flush=True)
            rows.append(row)
    versions = ", ".join(
        f"{name} {version(name)}"
        for name in ("torch", "torchmetrics", "monai", "netcal", "medpy", "scipy", "h5py", "lightning", "fiducio")
    )
    machine = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, no GPU"
    PAGE.write_text(PAGE_TEXT.format(table=markdown(rows), versions=versions, machine=machine))
    print(f"{sum(row.reached for row in rows)} of {len(rows)} reached; written to {PAGE.relative_to(Path.cwd())}")
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
