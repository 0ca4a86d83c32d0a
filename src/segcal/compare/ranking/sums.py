"""Scores over all voxels as ratios of sums over cases, which the answer of no case weighs.

What a case has per voxel of its own foreground is divided by the answer, and a case without
foreground has no such value. A mean over cases of it is off even if every probability is right: the
cases that turn out to be small weigh most, and those that turn out to be empty are left out."""

from __future__ import annotations

import pandas as pd

from segcal.compare.ranking.bootstrap import bootstrap_ratios
from segcal.compare.records import Results
from segcal.scoring.volumes import EVERY, EXPECTED, GAP, TRUE

SUMS = {"confidence_gap": GAP, "volume_ratio": EXPECTED}
"""Of a score over all voxels what is summed, to be divided by the summed true volume."""


def summed(
    results: Results, dataset: str, metric: str, kind: str = "all", **condition: str
) -> pd.DataFrame:
    """What is summed for a score: a row per case, those without foreground too."""
    kinds = [EVERY] if SUMS[metric] == GAP else _classes(results, dataset, kind)
    return results.volumes(dataset, SUMS[metric], kinds, **condition)


def ratios_of_sums(
    results: Results, dataset: str, metric: str, kind: str = "all", **condition: str
) -> pd.DataFrame:
    """A score per contender, as `mean`, with its interval over patients from `low` to `high`."""
    top = summed(results, dataset, metric, kind, **condition)
    true = results.volumes(dataset, TRUE, _classes(results, dataset, kind), **condition)
    return bootstrap_ratios(top, true.reindex_like(top), results.patients(dataset))


def _classes(results: Results, dataset: str, kind: str) -> list[str]:
    return list(results.data(dataset)["classes"]) if kind == "all" else [kind]
