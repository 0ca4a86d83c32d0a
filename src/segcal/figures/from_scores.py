"""From the scores of finished runs to figures: each function collects values and hands them to one
that draws.

`None` means that the runs hold nothing for that figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from segcal.compare import Contender, Results
from segcal.compare.ranking import (
    MAIN,
    bootstrap_means,
    counted,
    main_values,
    mean_case_rank,
    sum_rank,
)
from segcal.corruptions import CORRUPTIONS
from segcal.figures import comparison, series
from segcal.figures.comparison import Web
from segcal.losses import LOSSES
from segcal.metrics import METRICS
from segcal.networks import NETWORKS


def _labels(contenders: Sequence[Contender]) -> dict[str, str]:
    return {c.key: c.label for c in contenders}


def _cases(
    results: Results,
    dataset: str,
    metric: str,
    contenders: Sequence[Contender],
    kind: str = "",
    **condition: str,
) -> pd.DataFrame:
    """Values per case of the contenders that have them."""
    table = results.per_case(
        dataset, metric, kind or results.overall_class(dataset, metric), **condition
    )
    return table[[c.key for c in contenders if c.key in table.columns]]


def _classes(results: Results, dataset: str, metric: str) -> list[str]:
    """The classes that a metric has a row for, as in `scores.csv`: regions where it is scored by
    them.
    """
    data = results.data(dataset)
    if data["regions"] and METRICS[metric].of != "bins":
        return [f"{name} (region)" for name in data["regions"]]
    return list(data["classes"])


# Radar and ranks
# ------------------------------------------------------------------------------


def radar(results: Results, dataset: str) -> Figure | None:
    """Axes are the data sets if there are three; else the classes if there are three; else the
    metrics.
    """
    contenders = results.main(dataset)
    if len(results.datasets) >= 3:
        webs = [_web_of_datasets(results, metric) for metric in ("dice", "ece")]
    elif len(results.data(dataset)["classes"]) >= 3:
        webs = [_web_of_classes(results, dataset, metric) for metric in ("dice", "cece")]
    else:
        families = {
            "segmentation": ("dice", "asd", "assd", "hd95"),
            "calibration": ("ece", "cece", "mce", "nll", "brier"),
        }
        webs = [
            _web_of_metrics(results, dataset, title, metrics) for title, metrics in families.items()
        ]
    return comparison.radar(webs, _labels(contenders))


def _web_of_datasets(results: Results, metric: str) -> Web:
    means = {d: _cases(results, d, metric, results.main(d)).mean() for d in results.datasets}
    return Web(
        comparison.axis_label(metric), pd.DataFrame(means), [METRICS[metric].better] * len(means)
    )


def _web_of_classes(results: Results, dataset: str, metric: str) -> Web:
    kinds = _classes(results, dataset, metric)
    means = {
        kind: _cases(results, dataset, metric, results.main(dataset), kind).mean() for kind in kinds
    }
    return Web(
        f"{comparison.axis_label(metric)} per class",
        pd.DataFrame(means),
        [METRICS[metric].better] * len(means),
    )


def _web_of_metrics(results: Results, dataset: str, title: str, metrics: Sequence[str]) -> Web:
    means = {
        comparison.axis_label(m): _cases(results, dataset, m, results.main(dataset)).mean()
        for m in metrics
    }
    return Web(title, pd.DataFrame(means), [METRICS[m].better for m in metrics])


def rank_heatmap(results: Results, dataset: str) -> Figure | None:
    """Sum-rank and mean case rank on the data set, and sum-rank over all data sets if there are
    several.
    """
    contenders = results.main(dataset)
    if len(contenders) < 2:
        return None
    here = _some(main_values(results, dataset))
    if not here:
        return None
    tables = {"sum-rank": _sum_ranks(results, (dataset,))}
    tables["mean case rank"] = mean_case_rank(here).drop(columns="rank")
    if len(results.datasets) > 1:
        tables[f"sum-rank, {len(results.datasets)} data sets"] = _sum_ranks(
            results, results.datasets
        )
    order = tables["sum-rank"]["rank"].sort_values(kind="stable").index
    columns = {metric: METRICS[metric].label for metric in MAIN} | {"rank": "overall"}
    return comparison.rank_heatmap(
        {title: t.loc[order] for title, t in tables.items()}, _labels(contenders), columns
    )


def _some(values: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Without the metrics that nobody has a value of."""
    return {metric: table for metric, table in values.items() if table.notna().any(axis=None)}


def _sum_ranks(results: Results, datasets: Sequence[str]) -> pd.DataFrame:
    """The rank per metric, of its ranks added up over data sets, and overall."""
    values = {
        (d, m): counted(t, m).mean()
        for d in datasets
        for m, t in _some(main_values(results, d)).items()
    }
    found = sum_rank(values)
    metrics = list(dict.fromkeys(metric for _, metric in values))
    sums = {m: found[[key for key in values if key[1] == m]].sum(axis=1) for m in metrics}
    return pd.DataFrame(sums).rank().assign(rank=found["rank"])


# Scores over conditions
# ------------------------------------------------------------------------------


def dice_vs_ece(results: Results, dataset: str) -> Figure | None:
    """Per case, or per patient where patients have several."""
    contenders, patients = results.main(dataset), results.patients(dataset)
    tables = [_cases(results, dataset, metric, contenders) for metric in ("dice", "ece")]
    repeated = patients[tables[0].index].duplicated().any()
    # cases of a patient are alike: to count each as news would make the ellipse of the mean too
    # small
    if repeated:
        tables = [table.groupby(patients[table.index]).mean() for table in tables]
    return comparison.dice_vs_ece(
        tables[0], tables[1], _labels(contenders), unit="patient" if repeated else "case"
    )


def robustness(results: Results, dataset: str) -> Figure | None:
    """Every kind of corruption that some contender was scored under, from the clean image on."""
    contenders = results.main(dataset)
    mine = results.scores[
        (results.scores["dataset"] == dataset) & (results.scores["split"] == "test")
    ]
    found = [name for name in mine["corruption"].unique() if name and "@" not in name]
    kinds = [kind for kind in CORRUPTIONS if any(name.startswith(f"{kind}:") for name in found)]
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        levels = sorted(
            (float(name.partition(":")[2]), name) for name in found if name.startswith(f"{kind}:")
        )
        series_rows = [
            {
                "kind": CORRUPTIONS[kind].label,
                "severity": severity,
                "contender": key,
                "dice": means[0],
                "ece": means[1],
            }
            for severity, name in [(float(CORRUPTIONS[kind].neutral), ""), *levels]
            for key, means in _means(results, dataset, contenders, name).items()
        ]
        corrupted = {
            row["contender"] for row in series_rows if row["severity"] != CORRUPTIONS[kind].neutral
        }
        rows += [row for row in series_rows if row["contender"] in corrupted]
    return series.robustness(pd.DataFrame(rows), _labels(contenders)) if rows else None


def _means(
    results: Results, dataset: str, contenders: Sequence[Contender], corruption: str
) -> dict[str, tuple[float, float]]:
    """Mean Dice and ECE over cases of the contenders that were scored under a corruption."""
    dice, ece = (
        _cases(results, dataset, m, contenders, corruption=corruption).mean()
        for m in ("dice", "ece")
    )
    return {str(key): (float(dice[key]), float(ece[key])) for key in dice.index if key in ece.index}


def sensitivity(results: Results, dataset: str) -> Figure | None:
    """Validation scores of every setting tried, of the contenders with more than one."""
    tuned = [c for c in results.main(dataset) if len(c.tried) > 1]
    rows = [
        {
            "contender": c.key,
            "setting": setting,
            "dice": results.runs[run]["best"]["val_dice"],
            "ece": results.runs[run]["best"]["val_ece"],
            "chosen": run in c.runs,
        }
        for c in tuned
        for setting in sorted(c.tried, key=_numbers)
        for run in c.runs_tried[setting]
    ]
    return series.sensitivity(pd.DataFrame(rows), _labels(tuned)) if rows else None


def _numbers(setting: str) -> list[Any]:
    """What settings are ordered by: their numbers as numbers."""
    values = [part.partition("=")[2] for part in setting.split()]
    return [
        (0, float(v), "") if v.replace(".", "", 1).lstrip("-").isdigit() else (1, 0.0, v)
        for v in values
    ]


def backbones(results: Results, dataset: str) -> Figure | None:
    """The plain methods that ran on more than one network."""
    plain = [c for c in results.on(dataset) if not c.variant]
    often = {m for m in LOSSES if sum(c.method == m for c in plain) > 1}
    chosen = [c for c in plain if c.method in often]
    if not chosen:
        return None
    values = {}
    for metric in ("dice", "ece"):
        means = bootstrap_means(_cases(results, dataset, metric, chosen), results.patients(dataset))
        cells = {
            (NETWORKS[c.network].label, c.method): means.loc[c.key]
            for c in chosen
            if c.key in means.index
        }
        values[metric] = pd.DataFrame(cells).T
    return comparison.backbones(values, {m: LOSSES[m].label for m in often})


def objectives(results: Results, dataset: str) -> Figure | None:
    """CE and MbLS with and without Dice: a bar per data set, or per class where there is
    but one.
    """
    methods = ("ce", "ce_dice", "mbls", "mbls_dice")
    chosen = [c for c in results.main(dataset) if c.method in methods and not c.variant]
    if len(chosen) < 2 or not any(c.method.endswith("_dice") for c in chosen):
        return None
    values = {}
    if len(results.datasets) > 1:
        for metric in ("dice", "ece"):
            values[metric] = pd.DataFrame(
                {d: _cases(results, d, metric, chosen).mean() for d in results.datasets}
            ).T
    else:
        for metric in ("dice", "cece"):
            named = {kind: kind for kind in _classes(results, dataset, metric)}
            named |= {"mean": results.overall_class(dataset, metric)}
            rows = {
                name: _cases(results, dataset, metric, chosen, kind).mean()
                for name, kind in named.items()
            }
            values[metric] = pd.DataFrame(rows).T
    return comparison.objectives(values, _labels(chosen))
