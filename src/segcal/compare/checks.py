"""What cannot be compared, each refused with a sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from segcal.compare.contenders import Contender
from segcal.compare.metric_sets import MetricSet
from segcal.config import Machine, Training
from segcal.folders import COLUMNS, is_study
from segcal.metrics import METRICS
from segcal.types import UserError


def check_finished(folder: Path, info: Mapping[str, Any]) -> None:
    """A run must be finished."""
    if info["status"] != "finished":
        command = "segcal study" if is_study(folder.parent.parent) else "segcal train"
        remedy = f"the same {command} command goes on with it, or leave it out"
        raise UserError(f"{folder} is not finished; {remedy}")


def check_alike(runs: Mapping[str, Mapping[str, Any]]) -> None:
    """All runs on a data set must have the same data, protocol and network settings."""
    first: dict[tuple[str, ...], tuple[str, Any]] = {}
    for name, info in runs.items():
        for scope, value, difference in _shared(info):
            other, known = first.setdefault((info["data"]["name"], *scope), (name, value))
            if value != known:
                raise UserError(f"{name} and {other} {difference}{_values(value, known)}")


def _values(value: Any, known: Any) -> str:
    """The settings that differ, in brackets."""
    if not isinstance(value, dict):
        return ""
    keys = [key for key in value if value[key] != known.get(key)]
    return f" ({', '.join(f'{key} {value[key]} and {known.get(key)}' for key in keys)})"


def _shared(info: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """What a run must share: with which runs, the value, and the sentence if it differs."""
    data, settings = info["data"], info["settings"]
    remedy = f"different preparations or splits of {data['name']}; compare runs on one"
    yield ("data",), data["checksum"], f"were trained on {remedy}"
    protocol = "settings; compare runs of one protocol"
    if "training" in settings:  # an older version did not write every key
        training = Training().model_dump() | settings["training"]
        yield ("training",), training, f"differ in their training {protocol}"
    if "members" not in info:  # an ensemble has the settings that its members share
        network = settings["network"]
        yield ("network", network["name"]), network, f"differ in their network {protocol}"
    machine = Machine().model_dump() | settings.get("machine", {})
    used = machine["precision"], machine["devices"] * machine["nodes"]  # a batch is per process
    kind = "precision or number of processes (batch); compare runs of one kind"
    yield ("machine",), used, f"differ in {kind}"


def check_datasets(contenders: Sequence[Contender]) -> None:
    """Several data sets can be compared only if each has the same contenders."""
    keys = defaultdict(set)
    for c in contenders:
        keys[c.dataset].add(c.key)
    for dataset, there in keys.items():
        if missing := set().union(*keys.values()) - there:
            remedy = "compare one data set, or run what is missing"
            raise UserError(f"{dataset} has no run of {', '.join(sorted(missing))}; {remedy}")


def check_table(folder: str, info: Mapping[str, Any], table: pd.DataFrame) -> None:
    """The scores of a run must be its own, each there once, and finite."""
    identity = [column for column in COLUMNS if column != "value"]
    of_others = table["dataset"].ne(info["data"]["name"])
    of_others |= table["method"].ne(info["settings"]["loss"]["name"])
    faults = {
        "rows are twice": table.duplicated(identity),
        "values are infinite": table["value"].abs().eq(float("inf")),
        "they are of another run": of_others,
    }
    for fault, rows in faults.items():
        if rows.any():
            remedy = "run segcal evaluate --again on the run"
            raise UserError(f"the scores of {folder} are damaged: {fault}; {remedy}")


def check_cases(rows: pd.DataFrame, contenders: Sequence[Contender]) -> None:
    """The contenders on a data set must be scored on the same test cases."""
    cases = {key: frozenset(part["case"]) for key, part in rows.groupby(["contender", "run"])}
    folds = dict(zip(rows["run"], rows["fold"], strict=True))
    first: dict[str, tuple[Contender, set[Any]]] = {}
    for c in contenders:
        scored = {(folds[run], cases[c.key, run]) for run in c.runs}
        other, theirs = first.setdefault(c.dataset, (c, scored))
        if scored != theirs:
            both = " and ".join(f"{one.key} ({', '.join(one.runs)})" for one in (c, other))
            remedy = "run the folds that are missing, or segcal evaluate --again"
            raise UserError(f"{both} were scored on different test cases; {remedy}")


def check_values(rows: pd.DataFrame, metrics: MetricSet) -> None:
    """Every chosen run must have the metrics that lead of every test case, and some values."""
    for (_, name), part in rows.groupby(["contender", "run"]):
        n_cases = part["case"].nunique()
        for metric in metrics.lead:
            label, is_calibration = METRICS[metric].label, METRICS[metric].of == "bins"
            kind = "all" if is_calibration else "mean"
            values = part.loc[(part["metric"] == metric) & (part["class"] == kind), "value"]
            if len(values) < n_cases:
                lacking = f"{name} lacks {label} of some test cases"
                remedy = "run segcal evaluate --again on it"
                if metrics.key == "main" and not len(values) and metric != "dice":
                    lacking = f"{name} was scored by an older version, without {label}"
                    remedy += ", or compare by the paper's metrics (--metrics paper)"
                raise UserError(f"{lacking}; {remedy}")
            if metric in ("dice", *metrics.decide) and values.isna().all():
                lacking = f"{name} has no value of {label} in any test case"
                raise UserError(f"{lacking}; look at its predictions")
