"""From the folders of runs to `Results`; what cannot be compared is refused with a sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from segcal.compare.choice import as_text, best, by_fold, mean_dice, with_all_seeds
from segcal.compare.records import MAIN_NETWORK, Contender, Results
from segcal.config import Machine, Training
from segcal.data.catalog import DATASETS
from segcal.folders import open_cases, read_json, read_rows, read_run
from segcal.losses import LOSSES
from segcal.metrics import METRICS
from segcal.networks import NETWORKS
from segcal.types import UserError

NEEDED = {"dice": ("mean",), "asd": ("mean",), "ece": ("all",), "cece": ("all",)}  # of every case
IGNORED_SETTINGS = ("ignore_index",)  # decide nothing that is compared
COLUMNS = (
    "run",
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
)


def read_results(folders: Sequence[Path], *, scored: bool = True) -> Results:
    """Read runs, or folders of runs such as a study's; refuse what cannot be compared. `scored`
    asks for test scores.
    """
    failed = _failed(folders)
    runs = _runs(folders, failed)
    _check_data(runs)
    _check_protocol(runs)
    unfinished = {
        name: why
        for name, why in failed.items()
        if name not in {info["folder"] for info in runs.values()}
    }
    contenders = tuple(_contenders(runs, complete=not unfinished))
    scores = pd.concat([_scores(name, info) for name, info in runs.items()], ignore_index=True)
    unscored = (
        _unscored(scores, {run: runs[run] for c in contenders for run in c.runs}, failed)
        if scored
        else {}
    )
    contenders = tuple(c for c in contenders if not unscored.keys() & set(c.runs))
    if not contenders:
        raise UserError(f"no run has test scores; scoring failed of {', '.join(unscored)}")
    _check_networks(contenders)
    of = {run: c.key for c in contenders for tried in c.runs_tried.values() for run in tried}
    chosen = {run for c in contenders for run in c.runs}
    scores["contender"], scores["chosen"] = scores["run"].map(of), scores["run"].isin(chosen)
    if scored:
        _check_scores(scores, contenders)
        _check_values(scores[scores["chosen"]])
    left_out = {Path(folder).name: why for folder, why in unfinished.items()}
    return Results(scores, contenders, runs, left_out | unscored)


def _failed(folders: Sequence[Path]) -> dict[str, str]:
    """The folders of the runs that failed in the studies among these folders, with the reason."""
    found = {}
    for folder in folders:
        cells = read_json(folder / "cells.json")
        known = cells.get("cells") if isinstance(cells, dict) else None
        for name, about in known.items() if isinstance(known, dict) else ():
            if isinstance(about, dict) and about.get("status") == "failed":
                found[str(folder / "runs" / name)] = str(
                    about.get("error", "for an unknown reason")
                )
    return found


def _unscored(
    scores: pd.DataFrame, chosen: Mapping[str, dict[str, Any]], failed: Mapping[str, str]
) -> dict[str, str]:
    """The chosen runs without test scores, for scoring them failed: no other setting may stand in
    for such a one.
    """
    known = set(_clean(scores)["run"])
    return {
        name: failed[info["folder"]]
        for name, info in chosen.items()
        if info["folder"] in failed and name not in known
    }


def _runs(folders: Sequence[Path], failed: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for folder in _expanded(folders):
        if (
            str(folder) in failed
            and (read_json(folder / "run.json") or {}).get("status") != "finished"
        ):
            # its training failed; one that failed later, as it was scored, is as good as any in the
            # choice
            continue
        info = read_run(folder)
        if info.get("status") != "finished":
            of_study = (folder.parent.parent / "cells.json").is_file()
            how = "segcal study" if of_study else "segcal train"
            raise UserError(
                f"{folder} is not finished; the same {how} command goes on with it, or leave it out"
            )
        _check_run(folder, info)
        name = folder.name if folder.name not in found else str(folder)
        if name in found or any(info["id"] == other["id"] for other in found.values()):
            raise UserError(
                f"{folder} is given twice, or is a copy of another run; name each run once"
            )
        found[name] = info | {"folder": str(folder), "patients": _patients(info)}
    if not found:
        raise UserError("there is no run to read; name the folders of finished runs, or of a study")
    return found


def _expanded(folders: Sequence[Path]) -> Iterator[Path]:
    """A run stands for itself; another folder for the runs in it and in its `runs` folder."""
    for folder in folders:
        inside = sorted(
            p.parent for pattern in ("*/run.json", "runs/*/run.json") for p in folder.glob(pattern)
        )
        if (folder / "run.json").is_file() or not inside:
            yield folder  # read_run says what is wrong with a folder that is no run
        else:
            yield from inside


def _check_run(folder: Path, info: Mapping[str, Any]) -> None:
    try:
        known = (
            info["settings"]["loss"]["name"] in LOSSES
            and info["settings"]["network"]["name"] in NETWORKS
        )
        whole = (
            known
            and isinstance(info["best"]["val_dice"], (int, float))
            and {"name", "checksum", "classes"} <= set(info["data"])
        )
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise UserError(
            f"{folder / 'run.json'} is damaged, or of another version; train the run again, or"
            " leave it out"
        )


def _check_data(runs: Mapping[str, dict[str, Any]]) -> None:
    first: dict[str, str] = {}
    for name, info in runs.items():
        data = info["data"]
        other = first.setdefault(data["name"], name)
        if runs[other]["data"]["checksum"] != data["checksum"]:
            raise UserError(
                f"{name} and {other} were trained on different preparations or splits of"
                f" {data['name']}; compare runs on one"
            )


def _check_protocol(runs: Mapping[str, dict[str, Any]]) -> None:
    """All runs on a data set must be trained alike, and those of a network have the same settings
    of it.
    """
    first: dict[tuple[str, str], str] = {}
    for name, info in runs.items():
        chosen, data = info["settings"], info["data"]["name"]
        for part, key in (
            ("training", (data, "training")),
            ("network", (data, chosen["network"]["name"])),
        ):
            other = first.setdefault(key, name)
            if _with_defaults(runs[other], part) != _with_defaults(info, part):
                raise UserError(
                    f"{name} and {other} differ in their {part} settings; compare runs of one"
                    " protocol"
                )
        other = first.setdefault((data, "machine"), name)
        if _effective(runs[other]) != _effective(info):
            raise UserError(
                f"{name} and {other} differ in precision or number of processes (batch); compare"
                " runs of one kind"
            )


def _effective(info: Mapping[str, Any]) -> tuple[str, int]:
    """What of the machine decides about results; the batch is per process."""
    machine = Machine().model_dump() | info["settings"].get("machine", {})
    return machine["precision"], machine["devices"] * machine["nodes"]


def _with_defaults(info: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Settings with the defaults of keys that an older segcal did not know."""
    known = Training().model_dump() if part == "training" else {}
    return known | info["settings"][part]


def _contenders(runs: Mapping[str, dict[str, Any]], *, complete: bool) -> Iterator[Contender]:
    """Runs as contenders; unless the study was `complete`, settings that lack a seed are left out
    of their fold.
    """
    groups: dict[tuple[str, str, str, str], dict[str, list[str]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for name, info in runs.items():
        chosen = info["settings"]
        method, network = chosen["loss"]["name"], chosen["network"]["name"]
        tuned, fixed = _split_settings(
            method, {k: v for k, v in chosen["loss"].items() if k != "name"}
        )
        groups[info["data"]["name"], network, method, fixed][tuned].append(name)
    order = {key: i for i, key in enumerate([*NETWORKS, *LOSSES])}
    datasets = list(dict.fromkeys(key[0] for key in groups))
    for key in sorted(groups, key=lambda k: (datasets.index(k[0]), order[k[1]], order[k[2]], k[3])):
        dataset, network, method, fixed = key
        folds = by_fold(groups[key], runs)
        if not complete:
            folds = {fold: with_all_seeds(tried) for fold, tried in folds.items()}
        for tried in folds.values():
            _check_repeats(method, tried, runs)
        choice = {fold: best(mean_dice(tried, runs)) for fold, tried in folds.items()}
        stand = {run for fold, text in choice.items() for run in folds[fold][text]}
        kept = {run for tried in folds.values() for names in tried.values() for run in names}
        all_runs = {
            text: tuple(n for n in names if n in kept)
            for text, names in groups[key].items()
            if kept & set(names)
        }
        label, name = LOSSES[method].label, method
        if fixed:
            label, name = f"{label} ({fixed.replace('=', ' ')})", f"{method} {fixed}"
        if network != MAIN_NETWORK:
            label, name = f"{label}, {NETWORKS[network].label}", f"{network} {name}"
        means, own = mean_dice(all_runs, runs), tuple(run for run in runs if run in stand)
        yield Contender(
            name, label, dataset, network, method, as_text(choice), own, means, all_runs
        )


def _split_settings(method: str, settings: Mapping[str, Any]) -> tuple[str, str]:
    """The settings that the paper tunes, and those others that differ from their defaults,
    as text.
    """
    defaults = LOSSES[method].settings
    tunable = {key for row in LOSSES[method].grid for key in row}
    full = defaults | dict(settings)
    tuned = {k: v for k, v in full.items() if k in tunable}
    fixed = {
        k: v
        for k, v in full.items()
        if k not in tunable and k not in IGNORED_SETTINGS and v != defaults.get(k)
    }
    return tuple(
        " ".join(f"{k}={_text(v)}" for k, v in sorted(part.items())) for part in (tuned, fixed)
    )  # type: ignore[return-value]


def _text(value: Any) -> str:
    return (
        f"{value:g}"
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else str(value)
    )


def _check_repeats(
    method: str, tried: Mapping[str, list[str]], runs: Mapping[str, dict[str, Any]]
) -> None:
    """Repeats of a setting in a fold must differ in their seed, and all settings must have the same
    seeds.
    """
    repeats = set()
    for text, names in tried.items():
        seeds = [runs[n]["settings"]["seed"] for n in names]
        if len(set(seeds)) < len(seeds):
            what = f"{method} {text}".strip()
            raise UserError(
                f"{', '.join(names)} are the same: {what} with one seed; name one of them"
            )
        repeats.add(tuple(sorted(seeds)))
    if len(repeats) > 1:
        raise UserError(
            f"the settings of {method} were run with different seeds or folds; run each with the"
            " same ones"
        )


def _check_networks(contenders: Sequence[Contender]) -> None:
    """Several data sets can be compared only where each has the same contenders."""
    keys = defaultdict(set)
    for c in contenders:
        keys[c.dataset].add(c.key)
    if len({frozenset(k) for k in keys.values()}) > 1:
        every = set().union(*keys.values())
        dataset, missing = next((d, sorted(every - k)) for d, k in keys.items() if every - k)
        raise UserError(
            f"{dataset} has no run of {', '.join(missing)}; compare one data set, or run what is"
            " missing"
        )


def _scores(name: str, info: dict[str, Any]) -> pd.DataFrame:
    path = Path(info["folder"]) / "scores.csv"
    table = pd.DataFrame(read_rows(path), columns=[*COLUMNS, "value"]).assign(run=name)
    if table.isna().any(axis=None) or table.duplicated(list(COLUMNS)).any():
        raise UserError(
            f"{path} is damaged: rows are there twice or in part; run segcal evaluate --again on"
            " the run"
        )
    try:
        table["value"] = np.array(
            [float(value) for value in table["value"]]
        )  # NaN is written "nan", which pandas refuses
    except ValueError:
        raise UserError(
            f"{path} holds values that are no numbers; run segcal evaluate --again on the run"
        ) from None
    if np.isinf(table["value"]).any():
        raise UserError(f"{path} holds infinite values; run segcal evaluate --again on the run")
    own = {"dataset": info["data"]["name"], "method": info["settings"]["loss"]["name"]}
    if any((table[column] != value).any() for column, value in own.items()):
        raise UserError(
            f"{path} is of another run, as its data set or method says; run segcal evaluate --again"
            " on this one"
        )
    patients = info["patients"] or {}
    table["patient"] = table["case"].map(lambda case: patients.get(case, case))
    return table.assign(seed=info["settings"]["seed"], fold=info["settings"]["fold"])


def _patients(info: Mapping[str, Any]) -> dict[str, str] | None:
    """The patient of each case, where that is not the case itself: as the run remembers, else as
    its data set says.

    `None` if nobody knows: its files do not say, or the data set is not there any more, or no
    longer the same."""
    known = info["data"].get("patients", {})
    row = DATASETS.get(info["data"]["name"])
    if known is None or (
        not known and row is not None and not row.patients_named
    ):  # an older run says {} where nobody knows
        return None
    if "patients" in info["data"]:
        return dict(known)
    try:
        cases = open_cases(Path(info["settings"]["data"])).info
    except UserError:
        return None
    same = cases["checksum"] == info["data"]["checksum"]
    return {id: record["patient"] for id, record in cases["cases"].items()} if same else None


def _clean(scores: pd.DataFrame) -> pd.DataFrame:
    return scores[
        (scores["split"] == "test") & (scores["corruption"] == "") & (scores["calibrator"] == "")
    ]


def _check_scores(scores: pd.DataFrame, contenders: Sequence[Contender]) -> None:
    """The contenders on a data set must all be scored, on the same test cases."""
    clean = _clean(scores)
    cases = {run: frozenset(rows["case"]) for run, rows in clean.groupby("run")}
    folds = dict(zip(scores["run"], scores["fold"], strict=True))
    first: dict[str, tuple[Contender, set[tuple[int, frozenset[str]]]]] = {}
    for c in contenders:
        for run in c.runs:
            if run not in cases:
                raise UserError(f"{run} has no test scores; run segcal evaluate on it first")
        own = {(folds[run], cases[run]) for run in c.runs}
        other, theirs = first.setdefault(c.dataset, (c, own))
        if own != theirs:
            raise UserError(
                f"{c.key} ({', '.join(c.runs)}) and {other.key} ({', '.join(other.runs)}) were"
                " scored on different test cases; run the folds that are missing, or segcal"
                " evaluate --again"
            )


def _check_values(scores: pd.DataFrame) -> None:
    """Every chosen run must have the main metrics of every test case, and not all without a
    value.
    """
    clean = _clean(scores)
    for name, rows in clean[clean["case"] != "pooled"].groupby("run"):
        n_cases = rows["case"].nunique()
        for metric, kinds in NEEDED.items():
            values = rows.loc[(rows["metric"] == metric) & rows["class"].isin(kinds), "value"]
            if len(values) < n_cases:
                raise UserError(
                    f"{name} lacks {METRICS[metric].label} of some test cases; run segcal evaluate"
                    " --again on it"
                )
            if metric in ("dice", "ece") and values.isna().all():
                raise UserError(
                    f"{name} has no value of {METRICS[metric].label} in any test case; look at its"
                    " predictions"
                )
