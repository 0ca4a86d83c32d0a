"""A report of seven methods on fifty cases: how long it takes to build, and how large it is."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import Row
from segcal.compare import read_results
from segcal.config import run_settings
from segcal.data.prepare import prepare
from segcal.folders import CaseSet, read_bins, read_scores, write_bins, write_scores
from segcal.predictors.run import open_run
from segcal.report import build_report
from segcal.scoring import evaluate
from segcal.training import train

METHODS = ("ce", "ce_dice", "focal", "ecp", "ls", "svls", "mbls")
SECONDS, MEGABYTES = 60.0, 15.0


def prepared(root: Path, n_test: int, shape: tuple[int, int, int]) -> CaseSet:
    """Phantoms of which all but four are tested on: what is trained here is barely trained
    at all.
    """
    ids = [f"phantom_{i:03d}" for i in range(n_test + 4)]
    split = {"train": ids[:2], "val": ids[2:4], "test": ids[4:]}
    (root / "split.json").write_text(json.dumps(split))
    split_file = root / "split.json"
    return prepare("phantom", to=root, n_cases=len(ids), shape=shape, split_file=split_file).cases


def runs(root: Path, cases: CaseSet, methods: Sequence[str]) -> list[Path]:
    """A run per method. The first is scored for real; the others' scores are made from its own,
    which takes no time.

    Weights are real for all, since the slice viewer asks every network for its cases.
    """
    made = []
    for method in methods:
        small = ["network.width=8", "training.epochs=3", f"loss.name={method}"]
        train(
            run_settings({"data": str(cases.root)}, overrides=small), root / method, progress=False
        )
        made.append(root / method)
    evaluate(open_run(made[0]))
    rows, bins = read_scores(made[0]), read_bins(made[0])
    classes = ("background", *cases.classes)
    for i, folder in enumerate(made):
        rng = np.random.default_rng(i)
        named = {"run": folder.name, "method": folder.name}
        scored = []
        for key in ("", "ts", "lts"):
            moved = [
                1.0 if row["metric"] == "missed" else rng.normal(1 - 0.02 * i, 0.05) for row in rows
            ]
            for row, by in zip(rows, moved, strict=True):
                scored.append(row | named | {"calibrator": key, "value": row["value"] * by})
        write_scores(folder, scored)
        write_bins(folder, classes, bins)
    return made


def rows(
    methods: Sequence[str] = METHODS,
    n_test: int = 50,
    shape: tuple[int, int, int] = (20, 128, 128),
) -> Iterator[Row]:
    root = Path(tempfile.mkdtemp())
    try:
        folders = runs(root, prepared(root, n_test, shape), methods)
        start = time.perf_counter()
        page = build_report(read_results(folders))
        taken, size = time.perf_counter() - start, len(page.encode()) / 1e6
    finally:
        shutil.rmtree(root)
    what = f"report of {len(methods)} methods × {n_test} cases {shape}"
    detail = "with inference on four cases by each, width 8"
    yield Row(what, "a minute", taken, SECONDS, detail, unit=" s")
    yield Row(what, "15 MB", size, MEGABYTES, "one HTML file", unit=" MB")
