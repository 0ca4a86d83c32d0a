"""What the paper has for the hippocampus, as numbers and as text."""

from __future__ import annotations

from wording import percent, points, shown

from segcal.metrics import METRICS
from segcal.published import published

DATA = "hippocampus"


def published_mean(key: str, metric: str) -> float:
    """The published mean of a method, from the paper's main tables."""
    bins = METRICS[metric].of == "bins"
    wanted = {
        "table": "calibration" if bins else "discriminative",
        "class": "all" if bins else "mean",
    }
    rows = published(DATA)
    for column, value in (wanted | {"method": key, "metric": metric}).items():
        rows = rows[rows[column] == value]
    return float(rows["value"].iloc[0])


def paper(key: str, metric: str) -> str:
    """The same as text."""
    return shown(published_mean(key, metric), metric)


def published_change(metric: str, key: str = "mbls", than: str = "ce") -> str:
    """How much a published mean differs from another, in percent of it."""
    return percent(published_mean(key, metric) / published_mean(than, metric) - 1)


def published_gain(metric: str, key: str = "mbls", than: str = "ce") -> str:
    """The same in points."""
    return points(published_mean(key, metric) - published_mean(than, metric))


def paper_penalty(metric: str, penalty: str) -> str:
    """What the paper has for a penalty."""
    rows = published(DATA)
    rows = rows[
        (rows["table"] == "penalty") & (rows["metric"] == metric) & (rows["penalty"] == penalty)
    ]
    return shown(float(rows["value"].iloc[0]), metric)
