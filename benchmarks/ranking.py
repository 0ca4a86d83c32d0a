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
from segcal.compare.ranking import rank_results
from segcal.compare.tables import all_tables
from segcal.losses import LOSSES
from segcal.metrics import METRICS

METHODS = [key for key in LOSSES if key != "mbls_dice"]


def results(n_cases: int) -> Results:
    """As many scores as a study's runs have: every metric, per class and case, before and after two
    calibrators.
    """
    rng = np.random.default_rng(0)
    kinds = [
        (name, m) for m, row in METRICS.items() if row.of != "bins" for name in ("A", "B", "mean")
    ]
    kinds += [("all", m) for m, row in METRICS.items() if row.of == "bins"]
    cases = [f"case{i:02}" for i in range(n_cases)]
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
    scores["voxels"] = scores["metric"].map(lambda metric: [*METRICS[metric].voxels, ""][0])
    constants = {"dataset": "bench", "weights": "best", "split": "test", "corruption": ""}
    scores = scores.assign(**constants, chosen=True, seed=0, fold=0)
    contenders = []
    for m in METHODS:
        tried: dict[str, Any] = {"chosen": {0: ()}, "tried": {(): 0.9}, "runs_tried": {(): (m,)}}
        tried["tried_nll"] = {(): 1.0}
        contenders.append(Contender(dataset="bench", method=m, runs=(m,), **tried))
    info: dict[str, Any] = {
        "data": {"name": "bench", "classes": ["A", "B"], "regions": {}, "patients": {}},
        "settings": {"seed": 0},
    }
    return Results(
        scores,
        tuple(contenders),
        dict.fromkeys(METHODS, info),
    )


def rows(
    n_cases: int = 50, n_samples: int = 2000, repeats: tuple[int, int] = (5, 3)
) -> Iterator[Row]:
    given = results(n_cases)
    (taken,) = times(lambda: rank_results(given, "bench", n=n_samples), repeats=repeats[0])
    what = f"ranking, {len(METHODS)} methods × {n_cases} cases × {len(given.metrics.lead)} metrics"
    yield Row(what, f"{n_samples:,} samples", taken, 5.0, f"{taken * 1e3:.3g} ms", unit=" s")
    (taken,) = times(lambda: all_tables(given), repeats=repeats[1])
    what, against = "all tables of the same", f"{len(given.scores):,} scores"
    yield Row(what, against, taken, 10.0, f"{taken * 1e3:.3g} ms", unit=" s")
