"""Ranks, intervals, tests and stability of seven methods, with 2,000 bootstrap samples of the
patients.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.measure import Row, times
from segcal.compare import Contender, Results
from segcal.compare.ranking import MAIN, rank_results
from segcal.compare.tables import all_tables
from segcal.losses import LOSSES
from segcal.metrics import METRICS

N_CASES, N_SAMPLES = 50, 2000
METHODS = [key for key in LOSSES if key != "mbls_dice"]


def results() -> Results:
    """As many scores as a study's runs have: every metric, per class and case, before and after two
    calibrators.
    """
    rng = np.random.default_rng(0)
    kinds = [
        (name, m) for m, row in METRICS.items() if row.of != "bins" for name in ("A", "B", "mean")
    ]
    kinds += [("all", m) for m, row in METRICS.items() if row.of == "bins"]
    cases = [f"case{i:02}" for i in range(N_CASES)]
    rows = [
        (method, calibrator, case, name, metric)
        for method, calibrator, case, (name, metric) in product(
            METHODS, ("", "ts", "lts"), cases, kinds
        )
    ]
    scores = pd.DataFrame(rows, columns=["run", "calibrator", "case", "class", "metric"])
    scores = scores.assign(
        value=rng.random(len(rows)), contender=scores["run"], patient=scores["case"]
    )
    scores.loc[scores["metric"] == "missed", "value"] = 0.0
    scores = scores.assign(
        dataset="bench", split="test", corruption="", chosen=True, seed=0, fold=0
    )
    contenders = tuple(
        Contender(m, LOSSES[m].label, "bench", "unet", m, "", (m,), {"": 0.9}, {"": (m,)})
        for m in METHODS
    )
    info: dict[str, Any] = {
        "data": {"name": "bench", "classes": ["A", "B"], "regions": {}},
        "settings": {"seed": 0},
    }
    return Results(
        scores,
        contenders,
        {m: info | {"patients": {case: case for case in cases}} for m in METHODS},
    )


def rows() -> Iterator[Row]:
    given = results()
    (taken,) = times(lambda: rank_results(given, "bench", n=N_SAMPLES), repeats=5)
    what = f"ranking, {len(METHODS)} methods × {N_CASES} cases × {len(MAIN)} metrics"
    yield Row(what, f"{N_SAMPLES:,} samples", taken, 5.0, f"{taken * 1e3:.3g} ms", unit=" s")
    (taken,) = times(lambda: all_tables(given), repeats=3)
    yield Row(
        "all tables of the same",
        f"{len(given.scores):,} scores",
        taken,
        10.0,
        f"{taken * 1e3:.3g} ms",
        unit=" s",
    )
