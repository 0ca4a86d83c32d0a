"""From the scores of finished runs to figures; `None` where the runs have no values for one.

The docstring of each public function is the caption of its figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from segcal.compare import Contender, Results, ranking
from segcal.compare.names import Settings, network_label
from segcal.corruptions import CORRUPTIONS
from segcal.figures import comparison, series
from segcal.figures.comparison import Web
from segcal.figures.looks import axis_label, look_of, looks_of
from segcal.metrics import METRICS


def _cases(
    results: Results,
    dataset: str,
    metric: str,
    contenders: Sequence[Contender],
    kind: str = "",
    **condition: str,
) -> pd.DataFrame:
    """Values per case of the contenders that have them; of a class, or of all."""
    kind = kind or results.overall_class(dataset, metric)
    table = results.per_case(dataset, metric, kind, **condition)
    return table[[c.key for c in contenders if c.key in table.columns]]


def _classes(results: Results, dataset: str, metric: str) -> list[str]:
    """The classes of a metric as in `scores.csv`; regions where it is scored by regions."""
    data = results.data(dataset)
    if data["regions"] and METRICS[metric].of != "bins":
        return [f"{name} (region)" for name in data["regions"]]
    return list(data["classes"])


def radar(results: Results, dataset: str) -> Figure | None:
    """A line per method; further out is better. Values are means over test cases. An axis is a data
    set, a class or a metric. It goes from the worst method (inner ring) to the best (outer ring),
    but at least over 5 % of its value; both ends are printed."""
    webs = []
    if len(results.datasets) >= 3:
        for metric in ("dice", "ece"):
            axes = [(name, name, metric, "") for name in results.datasets]
            webs.append(_web(results, axis_label(metric), axes))
    elif len(results.data(dataset)["classes"]) >= 3:
        for metric in ("dice", "cece"):
            kinds = _classes(results, dataset, metric)
            axes = [(kind, dataset, metric, kind) for kind in kinds]
            webs.append(_web(results, f"{axis_label(metric)} per class", axes))
    else:
        for title, metrics in (
            ("segmentation", ("dice", "asd", "assd", "hd95")),
            ("calibration", ("ece", "cece", "mce", "nll", "brier")),
        ):
            axes = [(axis_label(metric), dataset, metric, "") for metric in metrics]
            webs.append(_web(results, title, axes))
    return comparison.radar(webs, looks_of(results.main(dataset)))


def _web(results: Results, title: str, axes: Iterable[tuple[str, str, str, str]]) -> Web:
    """A radar of means; an axis is its name, a data set, a metric and a class."""
    means, better = {}, []
    for name, dataset, metric, kind in axes:
        means[name] = _cases(results, dataset, metric, results.main(dataset), kind).mean()
        better.append(METRICS[metric].better)
    return Web(title, pd.DataFrame(means), better)


def rank_heatmap(results: Results, dataset: str) -> Figure | None:
    """Rank of each method per metric and overall; 1 is best. Sum-rank: methods are ranked by their
    means over test cases, and the ranks are added; with several data sets, a third panel adds the
    ranks of all. Mean case rank: methods are ranked on every test case, and the ranks are averaged
    over cases."""
    values = _known(ranking.main_values(results, dataset))
    if len(results.main(dataset)) < 2 or not values:
        return None
    tables = {"sum-rank": _sum_ranks(results, (dataset,))}
    tables["mean case rank"] = ranking.mean_case_rank(values).drop(columns="rank")
    n = len(results.datasets)
    if n > 1:
        tables[f"sum-rank, {n} data sets"] = _sum_ranks(results, results.datasets)
    order = tables["sum-rank"]["rank"].sort_values(kind="stable").index
    tables = {title: table.loc[order] for title, table in tables.items()}
    columns = {metric: METRICS[metric].label for metric in ranking.MAIN} | {"rank": "overall"}
    return comparison.rank_heatmap(tables, looks_of(results.main(dataset)), columns)


def _known(values: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Without the metrics that have no value at all."""
    return {metric: table for metric, table in values.items() if table.notna().any(axis=None)}


def _sum_ranks(results: Results, datasets: Sequence[str]) -> pd.DataFrame:
    """The rank per metric, over the sum of its ranks in all data sets, and the overall rank."""
    means = {}
    for dataset in datasets:
        for metric, table in _known(ranking.main_values(results, dataset)).items():
            means[dataset, metric] = ranking.counted(table, metric).mean()
    ranks = ranking.sum_rank(means)
    sums = {}
    for metric in dict.fromkeys(metric for _, metric in means):
        sums[metric] = ranks[[key for key in means if key[1] == metric]].sum(axis=1)
    return pd.DataFrame(sums).rank().assign(rank=ranks["rank"])


def dice_vs_ece(results: Results, dataset: str) -> Figure | None:
    """Better is right and down. Left: a point per test case (per patient, if they have several),
    and an ellipse that contains half of them if they are normally distributed. Right, enlarged: the
    means, and ellipses that contain the true mean with 95 % confidence. Ellipses ignore that all
    methods have the same cases: for differences see the paired tests."""
    contenders, patients = results.main(dataset), results.patients(dataset)
    dice, ece = (_cases(results, dataset, metric, contenders) for metric in ("dice", "ece"))
    looks = looks_of(contenders)
    if not patients[dice.index].duplicated().any():
        return comparison.dice_vs_ece(dice, ece, looks)
    # Cases of a patient are similar: counted one by one, they make the ellipse of the mean too
    # small.
    dice, ece = (table.groupby(patients[table.index]).mean() for table in (dice, ece))
    return comparison.dice_vs_ece(dice, ece, looks, unit="patient")


def robustness(results: Results, dataset: str) -> Figure | None:
    """DSC against ECE for corrupted test images: markers shrink as the corruption grows. The
    largest is the clean image. Means over test cases. Nothing was trained or fitted again."""
    contenders, scores = results.main(dataset), results.scores
    scores = scores[(scores["dataset"] == dataset) & (scores["split"] == "test")]
    names = [name for name in scores["corruption"].unique() if name and "@" not in name]
    rows: list[dict[str, Any]] = []
    for kind, row in CORRUPTIONS.items():
        levels = {}
        for name in names:
            if name.startswith(f"{kind}:"):
                levels[float(name.partition(":")[2])] = _means(results, dataset, name)
        corrupted = {key for means in levels.values() for key in means.index}
        levels[float(row.neutral)] = _means(results, dataset, "")
        for severity, means in sorted(levels.items(), key=lambda level: level[0]):
            for key in [c.key for c in contenders if c.key in corrupted & set(means.index)]:
                scored = {"dice": means.loc[key, "dice"], "ece": means.loc[key, "ece"]}
                labels = {"kind": row.label, "severity": severity, "contender": key}
                rows.append(labels | scored)
    return series.robustness(pd.DataFrame(rows), looks_of(contenders)) if rows else None


def _means(results: Results, dataset: str, corruption: str) -> pd.DataFrame:
    """Mean Dice and ECE over cases, of the contenders that were scored under a corruption."""
    means = {}
    for metric in ("dice", "ece"):
        table = _cases(results, dataset, metric, results.main(dataset), corruption=corruption)
        means[metric] = table.mean()
    return pd.concat(means, axis=1, join="inner")


def sensitivity(results: Results, dataset: str) -> Figure | None:
    """DSC and ECE on the validation split for each setting that was tried. A ring marks the setting
    with the best DSC (in a fold), which is used everywhere else. Lines are means over seeds and
    folds, small dots single runs."""
    tuned = [c for c in results.main(dataset) if len(c.tried) > 1]
    rows = []
    for c in tuned:
        for setting in sorted(c.tried, key=_order):
            for run in c.runs_tried[setting]:
                kept = results.runs[run][c.weights]
                scores = {"dice": kept["val_dice"], "ece": kept["val_ece"]}
                row = {"contender": c.key, "setting": setting, "chosen": run in c.runs}
                rows.append(row | scores)
    return series.sensitivity(pd.DataFrame(rows), looks_of(tuned)) if rows else None


def _order(settings: Settings) -> list[tuple[bool, Any]]:
    """Numbers in their order, before texts."""
    return [(isinstance(value, str), value) for _, value in settings]


def backbones(results: Results, dataset: str) -> Figure | None:
    """The same methods on different networks. Points are means over test cases, bars their 95 %
    intervals from 2,000 bootstrap samples of patients."""
    default = [c for c in results.on(dataset) if not c.variant]
    methods = [c.method for c in default]
    repeated = [c for c in default if methods.count(c.method) > 1]
    if not repeated:
        return None
    values = {}
    for metric in ("dice", "ece"):
        table = _cases(results, dataset, metric, repeated)
        means = ranking.bootstrap_means(table, results.patients(dataset))
        rows = {}
        for c in repeated:
            if c.key in means.index:
                rows[network_label(c.network), c.method] = means.loc[c.key]
        values[metric] = pd.DataFrame(rows).T
    return comparison.backbones(values, {c.method: look_of(c.method) for c in repeated})


def objectives(results: Results, dataset: str) -> Figure | None:
    """The share of each objective in the sum of all; numbers are means over test cases. A larger
    share of DSC is better, a smaller one of a calibration error. A bar is a data set, or a class if
    there is one data set."""
    chosen, values = [], {}
    for c in results.main(dataset):
        if c.method in ("ce", "ce_dice", "mbls", "mbls_dice") and not c.variant:
            chosen.append(c)
    if len(chosen) < 2 or not any(c.method.endswith("_dice") for c in chosen):
        return None
    several = len(results.datasets) > 1
    for metric in ("dice", "ece" if several else "cece"):
        bars = {name: (name, "") for name in results.datasets}
        if not several:
            bars = {kind: (dataset, kind) for kind in _classes(results, dataset, metric)}
            bars["mean"] = (dataset, "")
        means = {}
        for name, (where, kind) in bars.items():
            means[name] = _cases(results, where, metric, chosen, kind).mean()
        values[metric] = pd.DataFrame(means).T
    return comparison.objectives(values, looks_of(chosen))
