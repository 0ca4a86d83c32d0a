"""Finished runs read together: which are the same contender, which setting stands for it, and what each scored.

Runs that differ only in seed, fold or a setting that the paper tunes are one *contender*. Of the tuned settings the one with
the best mean validation Dice stands for it; the test split has no say. Tables, ranks and figures are functions of `Results`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from segcal.losses import LOSSES
from segcal.networks import NETWORKS
from segcal.store import read_json, read_rows, read_run
from segcal.types import UserError

IGNORED_SETTINGS = ("ignore_index",)  # decide nothing that is compared
MAIN_NETWORK = "unet"


@dataclass(frozen=True)
class Contender:
    """What is compared: a loss on a network and a data set, at the setting that validation chose."""

    key: str  # "mbls", "mbls penalty=l2", "transunet mbls"
    label: str  # "MbLS", "MbLS (penalty l2)", "MbLS, TransUNet"
    dataset: str
    network: str
    method: str
    setting: str  # the chosen one: "margin=10"; empty where nothing is tuned
    runs: tuple[str, ...]  # of the chosen setting: one per seed and fold
    tried: Mapping[str, float]  # every setting that was run, with its mean validation Dice
    runs_tried: Mapping[str, tuple[str, ...]]  # and its runs


@dataclass(frozen=True)
class Results:
    """Scores and bins of some runs, read once."""

    scores: pd.DataFrame  # scores.csv of all runs, with contender, seed, fold, patient and chosen
    contenders: tuple[Contender, ...]  # in the order of `LOSSES`, the main network first
    runs: Mapping[str, dict[str, Any]]  # run.json of each, with "folder"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets, in the order in which they come."""
        return tuple(dict.fromkeys(c.dataset for c in self.contenders))

    def on(self, dataset: str, network: str | None = None) -> tuple[Contender, ...]:
        """The contenders on a data set, and on a network if named."""
        return tuple(c for c in self.contenders if c.dataset == dataset and network in (None, c.network))

    def mean_class(self, dataset: str) -> str:
        """The class whose row is the mean over foreground classes; over regions where the data set is scored by regions."""
        info = next(r for r in self.runs.values() if r["data"]["name"] == dataset)
        return "mean (region)" if info["data"]["regions"] else "mean"

    def rows(self, *, split: str = "test", corruption: str = "", calibrator: str = "") -> pd.DataFrame:
        """The rows of the chosen runs under one condition, pooled ones left out."""
        s = self.scores
        wanted = s["chosen"] & (s["split"] == split) & (s["corruption"] == corruption) & (s["calibrator"] == calibrator)
        return s[wanted & (s["case"] != "pooled")]

    def per_case(self, dataset: str, metric: str, kind: str, **condition: str) -> pd.DataFrame:
        """Values of a metric, a row per case and a column per contender; means over seeds. NaN where there is no value."""
        rows = self.rows(**condition)
        rows = rows[(rows["dataset"] == dataset) & (rows["metric"] == metric) & (rows["class"] == kind)]
        table = rows.pivot_table(index="case", columns="contender", values="value", aggfunc="mean", dropna=False, sort=True)
        order = [c.key for c in self.on(dataset) if c.key in table.columns]
        return table[order]

    def patients(self, dataset: str) -> pd.Series[str]:
        """The patient of each test case."""
        rows = self.scores[self.scores["dataset"] == dataset]
        return rows.drop_duplicates("case").set_index("case")["patient"]

    def bins(
        self, contender: Contender, *, split: str = "test", corruption: str = "", calibrator: str = ""
    ) -> dict[str, Any]:
        """Reliability bins of a contender, its seeds and folds added up: arrays under `top` (B,) and `per_class` (K, B).

        Also `mean_logits` (true class, logit), `voxels` per true class, and the names of the `classes`.
        """
        what = {"split": split, "corruption": corruption, "calibrator": calibrator}
        total: dict[str, Any] = {}
        for run in contender.runs:
            value = read_json(Path(self.runs[run]["folder"]) / "bins.json") or {"entries": []}
            entry = next((e for e in value["entries"] if all(e[k] == v for k, v in what.items())), None)
            if entry is None:
                missing = ", ".join(f"{k} {v}" for k, v in what.items() if v)
                raise UserError(f"{run} has no bins for {missing}; run segcal evaluate or calibrate first")
            part: dict[str, Any] = {kind: {k: np.array(v) for k, v in entry[kind].items()} for kind in ("top", "per_class")}
            part |= {"voxels": np.array(entry["voxels"], dtype=float)}
            part |= {"mean_logits": np.array(entry["mean_logits"]) * part["voxels"][:, None]}
            total = _added(total, part) if total else part
            classes = value["classes"]
        return total | {"mean_logits": total["mean_logits"] / np.maximum(total["voxels"], 1)[:, None], "classes": classes}


def _added(a: Any, b: Any) -> Any:
    return {key: _added(a[key], b[key]) for key in a} if isinstance(a, dict) else a + b


def read_results(folders: Sequence[Path], *, scored: bool = True) -> Results:
    """Read runs, or folders of runs such as a study's; refuse what cannot be compared. `scored` asks for test scores."""
    runs = _runs(folders)
    _check_data(runs)
    _check_protocol(runs)
    contenders = tuple(_contenders(runs))
    _check_networks(contenders)
    scores = pd.concat([_scores(name, info) for name, info in runs.items()], ignore_index=True)
    of = {run: c.key for c in contenders for tried in c.runs_tried.values() for run in tried}
    chosen = {run for c in contenders for run in c.runs}
    scores["contender"], scores["chosen"] = scores["run"].map(of), scores["run"].isin(chosen)
    if scored:
        _check_scores(scores, chosen, runs)
    return Results(scores, contenders, runs)


def _runs(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for folder in _expanded(folders):
        info = read_run(folder)
        if info.get("status") != "finished":
            raise UserError(f"{folder} is not finished; the same segcal train command goes on with it, or leave it out")
        name = folder.name if folder.name not in found else str(folder)
        if name in found or any(info["id"] == other["id"] for other in found.values()):
            raise UserError(f"{folder} is given twice, or is a copy of another run; name each run once")
        found[name] = info | {"folder": str(folder)}
    if not found:
        raise UserError("there is no run to read; name the folders of finished runs, or of a study")
    return found


def _expanded(folders: Sequence[Path]) -> Iterator[Path]:
    """A run stands for itself; another folder for the runs in it and in its `runs` folder."""
    for folder in folders:
        inside = sorted(p.parent for pattern in ("*/run.json", "runs/*/run.json") for p in folder.glob(pattern))
        if (folder / "run.json").is_file() or not inside:
            yield folder  # read_run says what is wrong with a folder that is no run
        else:
            yield from inside


def _check_data(runs: Mapping[str, dict[str, Any]]) -> None:
    first: dict[str, str] = {}
    for name, info in runs.items():
        data = info["data"]
        other = first.setdefault(data["name"], name)
        if runs[other]["data"]["checksum"] != data["checksum"]:
            raise UserError(
                f"{name} and {other} were trained on different preparations or splits of {data['name']}; compare runs on one"
            )


def _check_protocol(runs: Mapping[str, dict[str, Any]]) -> None:
    """All runs on a data set must be trained alike, and those of a network have the same settings of it."""
    first: dict[tuple[str, str], str] = {}
    for name, info in runs.items():
        chosen, data = info["settings"], info["data"]["name"]
        for part, key in (("training", (data, "training")), ("network", (data, chosen["network"]["name"]))):
            other = first.setdefault(key, name)
            if runs[other]["settings"][part] != chosen[part]:
                raise UserError(f"{name} and {other} differ in their {part} settings; compare runs of one protocol")


def _contenders(runs: Mapping[str, dict[str, Any]]) -> Iterator[Contender]:
    groups: dict[tuple[str, str, str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, info in runs.items():
        chosen = info["settings"]
        method, network = chosen["loss"]["name"], chosen["network"]["name"]
        tuned, fixed = _split_settings(method, {k: v for k, v in chosen["loss"].items() if k != "name"})
        groups[info["data"]["name"], network, method, fixed][tuned].append(name)
    order = {key: i for i, key in enumerate([*NETWORKS, *LOSSES])}
    datasets = list(dict.fromkeys(key[0] for key in groups))
    for key in sorted(groups, key=lambda k: (datasets.index(k[0]), order[k[1]], order[k[2]], k[3])):
        dataset, network, method, fixed = key
        tried = groups[key]
        _check_repeats(method, tried, runs)
        means = {text: float(np.mean([runs[r]["best"]["val_dice"] for r in names])) for text, names in tried.items()}
        best = max(means, key=lambda text: -1.0 if math.isnan(means[text]) else means[text])
        label, name = LOSSES[method].label, method
        if fixed:
            label, name = f"{label} ({fixed.replace('=', ' ')})", f"{method} {fixed}"
        if network != MAIN_NETWORK:
            label, name = f"{label}, {NETWORKS[network].label}", f"{network} {name}"
        all_runs = {text: tuple(names) for text, names in tried.items()}
        yield Contender(name, label, dataset, network, method, best, all_runs[best], means, all_runs)


def _split_settings(method: str, settings: Mapping[str, Any]) -> tuple[str, str]:
    """The settings that the paper tunes, and those others that differ from their defaults, as text."""
    defaults = LOSSES[method].settings
    tunable = {key for row in LOSSES[method].grid for key in row}
    full = defaults | dict(settings)
    tuned = {k: v for k, v in full.items() if k in tunable}
    fixed = {k: v for k, v in full.items() if k not in tunable and k not in IGNORED_SETTINGS and v != defaults.get(k)}
    return tuple(" ".join(f"{k}={_text(v)}" for k, v in sorted(part.items())) for part in (tuned, fixed))  # type: ignore[return-value]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _check_repeats(method: str, tried: Mapping[str, list[str]], runs: Mapping[str, dict[str, Any]]) -> None:
    """Repeats of a setting must differ in seed or fold, and all settings must have the same repeats."""
    repeats = {}
    for text, names in tried.items():
        seeds = [(runs[n]["settings"]["seed"], runs[n]["settings"]["fold"]) for n in names]
        if len(set(seeds)) < len(seeds):
            raise UserError(f"{', '.join(names)} are the same: {method} {text} with one seed; name one of them")
        repeats[text] = sorted(seeds)
    if len({str(value) for value in repeats.values()}) > 1:
        raise UserError(f"the settings of {method} were run with different seeds or folds; run each with the same ones")


def _check_networks(contenders: Sequence[Contender]) -> None:
    """Several data sets can be compared only where each has the same contenders."""
    keys = defaultdict(set)
    for c in contenders:
        keys[c.dataset].add(c.key)
    if len({frozenset(k) for k in keys.values()}) > 1:
        every = set().union(*keys.values())
        dataset, missing = next((d, sorted(every - k)) for d, k in keys.items() if every - k)
        raise UserError(f"{dataset} has no run of {', '.join(missing)}; compare one data set, or run what is missing")


def _scores(name: str, info: dict[str, Any]) -> pd.DataFrame:
    rows = read_rows(Path(info["folder"]) / "scores.csv")
    columns = [
        "dataset",
        "network",
        "method",
        "setting",
        "split",
        "corruption",
        "calibrator",
        "case",
        "class",
        "metric",
        "value",
    ]
    table = pd.DataFrame(rows, columns=["run", *columns]).assign(run=name)
    table["value"] = pd.to_numeric(table["value"], errors="coerce")
    patients = info["data"].get("patients", {})
    table["patient"] = table["case"].map(lambda case: patients.get(case, case))
    return table.assign(seed=info["settings"]["seed"], fold=info["settings"]["fold"])


def _check_scores(scores: pd.DataFrame, chosen: set[str], runs: Mapping[str, dict[str, Any]]) -> None:
    clean = scores[(scores["split"] == "test") & (scores["corruption"] == "") & (scores["calibrator"] == "")]
    cases: dict[tuple[str, int], tuple[str, frozenset[str]]] = {}
    for name in runs:
        if name not in chosen:
            continue
        own = frozenset(clean.loc[clean["run"] == name, "case"])
        if not own:
            raise UserError(f"{name} has no test scores; run segcal evaluate on it first")
        key = (runs[name]["data"]["name"], runs[name]["settings"]["fold"])
        other, theirs = cases.setdefault(key, (name, own))
        if theirs != own:
            raise UserError(f"{name} and {other} were scored on different test cases; run segcal evaluate --again on both")
