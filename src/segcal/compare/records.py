"""What is compared, and what it scored: values that tables, ranks and figures are functions of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from segcal.calibrators import CALIBRATORS
from segcal.folders import found, read_json
from segcal.metrics import METRICS
from segcal.types import UserError, check_choice

MAIN_NETWORK = "unet"


@dataclass(frozen=True)
class Contender:
    """What is compared: a loss on a network and a data set, at the setting that validation
    chose.
    """

    key: str  # "mbls", "mbls penalty=l2", "transunet mbls"
    label: str  # "MbLS", "MbLS (penalty l2)", "MbLS, TransUNet"
    dataset: str
    network: str
    method: str
    # the chosen one: "margin=10", "margin=8 (5 folds), margin=5 (2 folds)"; empty where nothing is
    # tuned
    setting: str
    runs: tuple[str, ...]  # of the setting chosen in each fold: one per seed and fold
    tried: Mapping[str, float]  # every setting that was run, with its mean validation Dice
    runs_tried: Mapping[str, tuple[str, ...]]  # and its runs

    @property
    def variant(self) -> str:
        """What sets it apart from the plain method: "penalty=l2"; empty for the method with its
        defaults.
        """
        return self.key.removeprefix(f"{self.network} ").removeprefix(self.method).strip()


@dataclass(frozen=True)
class Results:
    """Scores and bins of some runs, read once."""

    scores: pd.DataFrame  # scores.csv of all runs, with contender, seed, fold, patient and chosen
    contenders: tuple[Contender, ...]  # in the order of `LOSSES`, the main network first
    runs: Mapping[
        str, dict[str, Any]
    ]  # run.json of each, with "folder", and "patients" (None if unknown)
    failed: Mapping[str, str] = field(
        default_factory=dict
    )  # cells of a study that are left out, and why

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets, in the order in which they come."""
        return tuple(dict.fromkeys(c.dataset for c in self.contenders))

    def on(self, dataset: str, network: str | None = None) -> tuple[Contender, ...]:
        """The contenders on a data set, and on a network if named."""
        return tuple(
            c for c in self.contenders if c.dataset == dataset and network in (None, c.network)
        )

    def main(self, dataset: str) -> tuple[Contender, ...]:
        """The contenders of the main tables: on the main network, each method as it is, or its
        variants if only they ran.
        """
        here = self.on(dataset, MAIN_NETWORK) or self.on(dataset, self.on(dataset)[0].network)
        plain = {c.method for c in here if not c.variant}
        return tuple(c for c in here if not c.variant or c.method not in plain)

    def data(self, dataset: str) -> dict[str, Any]:
        """What the runs remember of a data set: classes, regions, recipe."""
        data: dict[str, Any] = next(
            r["data"] for r in self.runs.values() if r["data"]["name"] == dataset
        )
        return data

    def mean_class(self, dataset: str) -> str:
        """The class whose row is the mean over foreground classes; over regions where the data set
        is scored by regions.
        """
        return "mean (region)" if self.data(dataset)["regions"] else "mean"

    def overall_class(self, dataset: str, metric: str) -> str:
        """The class whose row sums a metric up: `all` for calibration, which knows no regions, else
        the mean.
        """
        return "all" if METRICS[metric].of == "bins" else self.mean_class(dataset)

    def rows(self, **condition: str) -> pd.DataFrame:
        """The rows of the chosen runs under one condition (`split`, `corruption`, `calibrator`),
        pooled ones left out.
        """
        return self._parts[3].get(_under(**condition), self.scores.iloc[:0])

    @cached_property
    def _parts(self) -> dict[int, dict[tuple[str, ...], pd.DataFrame]]:
        """Rows by condition (3 texts), and by condition and what was measured (6 texts).

        Tables ask for the same parts again and again, and to find them by comparing texts would
        take most of their time."""
        used = self.scores[self.scores["chosen"] & (self.scores["case"] != "pooled")]
        columns = ["split", "corruption", "calibrator", "dataset", "metric", "class"]
        return {
            n: {tuple(map(str, key)): rows for key, rows in used.groupby(columns[:n])}
            for n in (3, 6)
        }

    def per_case(self, dataset: str, metric: str, kind: str, **condition: str) -> pd.DataFrame:
        """Values of a metric, a row per case and a column per contender that has them in all its
        runs; means over seeds.

        NaN where there is no value. A surface distance is none where an object was missed or
        invented, be it in one of several seeds or, for the mean over classes, in one of several
        classes: else missing one would look like success. Where some seeds rightly leave out an
        object that others invent, with a Dice of 0, theirs is 1 in the mean."""
        table = self._mean_over_seeds(dataset, metric, kind, condition)
        if METRICS[metric].of == "surfaces" and metric != "missed":
            table = table.mask(self._mean_over_seeds(dataset, "missed", kind, condition) > 0)
        return table

    def _mean_over_seeds(
        self, dataset: str, metric: str, kind: str, condition: Mapping[str, str]
    ) -> pd.DataFrame:
        rows = self._parts[6].get(
            (*_under(**condition), dataset, metric, kind), self.scores.iloc[:0]
        )
        if METRICS[metric].of == "confusion":
            best = rows.groupby(["case", "contender"])["value"].transform(
                "max"
            )  # over seeds; NaN if none has a value
            rows = rows.assign(value=rows["value"].mask(rows["value"].isna() & (best == 0), 1.0))
        table = rows.pivot_table(
            index="case",
            columns="contender",
            values="value",
            aggfunc="mean",
            dropna=False,
            sort=True,
        )
        found = set(rows["run"])
        return table[[c.key for c in self.on(dataset) if found.issuperset(c.runs)]]

    def lacking(self, contenders: Sequence[Contender], **condition: str) -> tuple[str, ...]:
        """The runs of contenders that were not scored under a condition, such as
        `calibrator="ts"`.
        """
        found = set(self.rows(**condition)["run"])
        return tuple(run for c in contenders for run in c.runs if run not in found)

    def require(self, contenders: Sequence[Contender], *, calibrator: str) -> None:
        """Raise unless all were scored with a calibrator; empty for none."""
        check_choice("calibrator", calibrator, ("", *CALIBRATORS))
        for run in self.lacking(contenders, calibrator=calibrator):
            how = (
                f"segcal calibrate {self.runs[run]['folder']} --with {calibrator}"
                if calibrator
                else "segcal evaluate on it"
            )
            raise UserError(
                f"{run} has no test scores{calibrator and f' with {calibrator}'}; run {how} first"
            )

    def patients(self, dataset: str) -> pd.Series[str]:
        """The patient of each test case."""
        rows = self.scores[self.scores["dataset"] == dataset]
        return rows.drop_duplicates("case").set_index("case")["patient"]

    def bins(
        self,
        contender: Contender,
        *,
        split: str = "test",
        corruption: str = "",
        calibrator: str = "",
    ) -> dict[str, Any]:
        """Reliability bins of a contender, its seeds and folds added up: arrays under `top` (B,)
        and `per_class` (K, B).

        Also `mean_logits` (true class, logit), `voxels` per true class, and the names of the
        `classes`."""
        what = {"split": split, "corruption": corruption, "calibrator": calibrator}
        total: dict[str, Any] = {}
        for run in contender.runs:
            part = _bins(Path(self.runs[run]["folder"]) / "bins.json", run, what)
            total = _added(total, part) if total else part
        sums = total["mean_logits"] / np.maximum(total["voxels"], 1)[:, None]
        return total | {"mean_logits": sums, "classes": self.classes(contender.dataset)}

    def classes(self, dataset: str) -> list[str]:
        """The classes of a data set, the background first."""
        return ["background", *self.data(dataset)["classes"]]


def _bins(path: Path, run: str, what: Mapping[str, str]) -> dict[str, Any]:
    """One entry of `bins.json` as arrays; mean logits times voxels, so that they add."""
    value, real = read_json(path), found(path)
    if value is None and real is not None:
        raise UserError(f"{real} is damaged; run segcal evaluate --again on {run}")
    try:
        entries = (value or {"entries": []})["entries"]
        entry = next((e for e in entries if all(e[k] == v for k, v in what.items())), None)
        part: dict[str, Any] = {}
        if entry is not None:
            kinds = [kind for kind in ("top", "per_class", "fine") if kind in entry]
            part = {
                kind: {k: np.array(v, dtype=float) for k, v in entry[kind].items()}
                for kind in kinds
            }
            part["voxels"] = np.array(entry["voxels"], dtype=float)
            part["mean_logits"] = np.array(entry["mean_logits"]) * part["voxels"][:, None]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise UserError(f"{path} is damaged; run segcal evaluate --again on {run}") from None
    if not part:
        missing = ", ".join(f"{k} {v}" for k, v in what.items() if v)
        raise UserError(f"{run} has no bins for {missing}; run segcal evaluate or calibrate first")
    return part


def _added(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """What both have, added; fine bins of different number, from different versions, are
    left out.
    """
    total: dict[str, Any] = {}
    for key, mine in a.items():
        if (
            isinstance(mine, dict)
            and key in b
            and all(mine[part].shape == b[key][part].shape for part in mine)
        ):
            total[key] = {part: mine[part] + b[key][part] for part in mine}
        elif not isinstance(mine, dict):
            total[key] = mine + b[key]
    return total


def _under(
    *, split: str = "test", corruption: str = "", calibrator: str = ""
) -> tuple[str, str, str]:
    return split, corruption, calibrator
