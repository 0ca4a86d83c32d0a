"""`Results`: contenders and their scores, the value that tables, ranks and figures start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from segcal.calibrators import CALIBRATORS
from segcal.compare.contenders import Contender
from segcal.compare.metric_sets import METRIC_SETS, MetricSet
from segcal.compare.names import MAIN_NETWORK
from segcal.folders import WEIGHTS, read_bins
from segcal.folders.audits import KIND as AUDIT
from segcal.metrics import METRICS
from segcal.networks import NETWORKS
from segcal.types import UserError, check_choice

CONDITION = ["split", "corruption", "calibrator"]


@dataclass(frozen=True)
class Results:
    """Scores and bins of some runs, read once."""

    scores: pd.DataFrame  # of all runs, with contender, chosen, seed, fold and patient
    contenders: tuple[Contender, ...]  # in the order of `LOSSES`, the main network first
    runs: Mapping[str, dict[str, Any]]  # records, with their "folder"
    failed: Mapping[str, str] = field(default_factory=dict)  # cells that are left out, and why
    choose: str = "dice"  # the rule of `CHOICES` by which validation chose settings
    metrics: MetricSet = METRIC_SETS["main"]  # those that order and lead

    @property
    def out_of_fold(self) -> bool:
        """Whether all are audits, whose calibrators are fitted without the patient of a case."""
        return all(info.get("kind") == AUDIT for info in self.runs.values())

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets, in the order in which they come."""
        return tuple(dict.fromkeys(c.dataset for c in self.contenders))

    def on(self, dataset: str) -> tuple[Contender, ...]:
        """The contenders on a data set."""
        return tuple(c for c in self.contenders if c.dataset == dataset)

    def main(self, dataset: str, network: str | None = None) -> tuple[Contender, ...]:
        """The contenders of the main tables, or those on another network by the same rule.

        Methods on the main network, ensembles, and networks that are not ours. Each has its default
        settings and the best weights, or what there is without these."""
        everything = self.on(dataset)
        used = [c.network for c in everything]
        first = MAIN_NETWORK if MAIN_NETWORK in used else used[0]
        main = []
        for c in everything:
            beside = c.members > 1 or c.network not in NETWORKS
            there = c.network == (network or first) or (network is None and beside)
            same = [o for o in everything if o.method == c.method and o.network == c.network]
            same = [o for o in same if o.members == c.members]
            defaults = [o for o in same if not o.variant] or same
            if there and c in defaults:
                kinds = [o.weights for o in defaults if o.variant == c.variant]
                if c.weights == min(kinds, key=WEIGHTS.index):
                    main.append(c)
        return tuple(main)

    def data(self, dataset: str) -> Any:
        """What the runs recorded of a data set: classes, regions, recipe."""
        records = (info["data"] for info in self.runs.values())
        return next(record for record in records if record["name"] == dataset)

    def classes(self, dataset: str) -> list[str]:
        """The classes of a data set, the background first."""
        return ["background", *self.data(dataset)["classes"]]

    def mean_class(self, dataset: str) -> str:
        """The class whose rows are means over foreground classes, or over regions if it has any."""
        return "mean (region)" if self.data(dataset)["regions"] else "mean"

    def overall_class(self, dataset: str, metric: str) -> str:
        """The class whose rows sum a metric up: `all` for calibration, else the mean."""
        return "all" if METRICS[metric].of == "bins" else self.mean_class(dataset)

    def rows(self, **condition: str) -> pd.DataFrame:
        """The rows of the chosen runs under a condition (`split`, `corruption`, `calibrator`).

        Pooled scores are left out, and calibration scores over other voxels than `metrics` says."""
        return self._parts[len(CONDITION)].get(_under(**condition), self.scores.iloc[:0])

    @cached_property
    def _parts(self) -> dict[int, dict[tuple[str, ...], pd.DataFrame]]:
        """Rows by condition, and by condition and what was measured.

        Tables ask for the same parts many times; to search by text takes most of their time."""
        used = self.scores["chosen"] & (self.scores["case"] != "pooled")
        rows = self.scores[used]
        voxels = {key: self.metrics.voxels_of(key) for key in METRICS}  # not of volumes in ml
        default = rows["voxels"] == rows["metric"].map(voxels)
        parts = {}
        for columns in (CONDITION, [*CONDITION, "dataset", "metric", "class", "voxels"]):
            groups = (rows[default] if columns is CONDITION else rows).groupby(columns)
            parts[len(columns)] = {tuple(map(str, key)): part for key, part in groups}
        return parts

    def per_case(
        self, dataset: str, metric: str, kind: str, *, voxels: str = "", **condition: str
    ) -> pd.DataFrame:
        """Values of a metric: a row per case, a column per contender that has them in all its runs.

        `voxels` names the set of a calibration score, if not that of `metrics`. Means over seeds;
        NaN where there is no value. A surface distance has none if one seed, or for the mean over
        classes one class, missed or invented the object: otherwise missing it would look like
        success. If some seeds rightly leave out an object that others invent, with a Dice of 0,
        they count as 1 in the mean."""
        table = self._mean_over_seeds(dataset, metric, kind, condition, voxels)
        if METRICS[metric].of == "surfaces" and metric != "missed":
            table = table.mask(self._mean_over_seeds(dataset, "missed", kind, condition) > 0)
        return table

    def volumes(
        self, dataset: str, name: str, kinds: Sequence[str], **condition: str
    ) -> pd.DataFrame:
        """Volumes in ml, such as `true_ml`, of some classes together: per case and contender."""
        total: Any = 0
        for kind in kinds:
            key = (*_under(**condition), dataset, name, kind, "")
            rows = self._parts[len(key)].get(key, self.scores.iloc[:0])
            total += self._table(dataset, rows)
        return total

    def _mean_over_seeds(
        self,
        dataset: str,
        metric: str,
        kind: str,
        condition: Mapping[str, str],
        voxels: str = "",
    ) -> pd.DataFrame:
        voxels = voxels or self.metrics.voxels_of(metric)
        key = (*_under(**condition), dataset, metric, kind, voxels)
        rows = self._parts[len(key)].get(key, self.scores.iloc[:0])
        if METRICS[metric].of == "confusion":
            best = rows.groupby(["case", "contender"])["value"].transform("max")  # over seeds
            rows = rows.assign(value=rows["value"].mask(rows["value"].isna() & (best == 0), 1.0))
        return self._table(dataset, rows)

    def _table(self, dataset: str, rows: pd.DataFrame) -> pd.DataFrame:
        """Means over seeds, of the contenders that have rows in all their runs."""
        table = rows.groupby(["case", "contender"])["value"].mean().unstack("contender")
        scored = _scored(rows)
        return table[[c.key for c in self.on(dataset) if _missing(c, scored) == []]]

    def lacking(self, contenders: Sequence[Contender], **condition: str) -> tuple[str, ...]:
        """The runs of contenders that were not scored under a condition such as a calibrator."""
        scored = _scored(self.rows(**condition))
        return tuple(run for c in contenders for run in _missing(c, scored))

    def require(self, contenders: Sequence[Contender], *, calibrator: str) -> None:
        """Raise unless all were scored with a calibrator; empty for none."""
        check_choice("calibrator", calibrator, ("", *CALIBRATORS))
        for c in contenders:
            for run in self.lacking([c], calibrator=calibrator):
                option = "" if c.weights == "best" else f" --weights {c.weights}"
                lacking, command = f"{run} has no test scores", f"segcal evaluate{option} on it"
                if calibrator:
                    lacking, folder = f"{lacking} with {calibrator}", self.runs[run]["folder"]
                    command = f"segcal calibrate {folder} --with {calibrator}{option}"
                only = "" if c.weights == "best" else ", or read only best weights (--weights best)"
                raise UserError(f"{lacking}; run {command} first{only}")

    def patients(self, dataset: str) -> pd.Series[str]:
        """The patient of each test case."""
        rows = self.scores[self.scores["dataset"] == dataset]
        return rows.drop_duplicates("case").set_index("case")["patient"]

    def bins(self, contender: Contender, *, voxels: str = "", **condition: str) -> dict[str, Any]:
        """Reliability bins, seeds and folds added: arrays under `top` (B,) and `per_class` (K, B).

        Of a set of voxels, by default that of `metrics`. Also `bands`, `mean_logits` (true class,
        logit), `voxels` per true class, and the `classes`."""
        wanted = dict(zip(CONDITION, _under(**condition), strict=True))
        total: dict[str, Any] = {}
        for run in contender.runs:
            root = Path(self.runs[run]["folder"])
            condition = wanted | {"weights": contender.weights}
            part = _bins_of(run, root, condition, voxels or self.metrics.voxels)
            total = _added(total, part) if total else part
        logits = total["mean_logits"] / np.maximum(total["voxels"], 1)[:, None]
        return total | {"mean_logits": logits, "classes": self.classes(contender.dataset)}


def _scored(rows: pd.DataFrame) -> set[tuple[str, str]]:
    return set(rows[["contender", "run"]].drop_duplicates().itertuples(index=False, name=None))


def _missing(c: Contender, scored: set[tuple[str, str]]) -> list[str]:
    return [run for run in c.runs if (c.key, run) not in scored]


def _under(split: str = "test", corruption: str = "", calibrator: str = "") -> tuple[str, ...]:
    return split, corruption, calibrator


def _bins_of(run: str, root: Path, condition: Mapping[str, str], voxels: str) -> dict[str, Any]:
    """A run's bins under a condition as arrays; mean logits times voxels, so that they add."""
    for entry in read_bins(root):
        if all(entry.get(key) == value for key, value in condition.items()):
            n_voxels = np.array(entry["voxels"], dtype=float)
            part = {"voxels": n_voxels, "mean_logits": entry["mean_logits"] * n_voxels[:, None]}
            sums = entry["sets"].get(voxels)
            if sums is None:
                lacks = f"the bins of {run} are of reference voxels alone, not of {voxels} ones"
                raise UserError(f"{lacks}; run segcal evaluate --again on it")
            sums = sums | {"bands": entry.get("bands", {})}
            for kind in ("top", "per_class", "fine", "bands"):
                for name, values in sums.get(kind, {}).items():
                    part.setdefault(kind, {})[name] = np.array(values, dtype=float)
            return part
    missing = ", ".join(f"{key} {value}" for key, value in condition.items() if value)
    raise UserError(f"{run} has no bins for {missing}; run segcal evaluate or calibrate first")


def _added(a: Any, b: Any) -> Any:
    """The sum of two sets of bins, part by part."""
    return {key: _added(a[key], b[key]) for key in a} if isinstance(a, dict) else a + b
