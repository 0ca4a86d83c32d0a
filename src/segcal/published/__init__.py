"""The numbers that the paper printed (Murugesan et al. 2023), under our keys.

What differs: its surface distances are in voxels, ours in mm; BraTS is scored by regions but
calibrated on raw classes. Its "PROMISE" is our `prostate`, whose number of cases fits; its two
classes have other names, so that only the means can be compared."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pandas as pd

COLUMNS = ("table", "class", "method", "penalty", "calibrator", "metric", "value")


def published(dataset: str) -> pd.DataFrame:
    """What the paper printed for a data set; no rows if it did not use the data set.

    >>> rows = published("hippocampus")
    >>> rows = rows[(rows["table"] == "calibration") & (rows["method"] == "mbls")]
    >>> rows[["metric", "value"]].values.tolist()
    [['ece', 0.033], ['cece', 0.088]]
    >>> len(published("my-organs"))
    0
    """
    rows = _everything()
    return rows[rows["dataset"] == dataset][list(COLUMNS)].reset_index(drop=True)


def published_datasets() -> tuple[str, ...]:
    """The data sets that the paper has numbers for."""
    return tuple(_everything()["dataset"].unique())


def published_means() -> dict[tuple[str, str], pd.Series[float]]:
    """The means that the paper ranks its methods by, per data set and metric."""
    rows = _everything()
    rows = rows[rows["table"].isin(("discriminative", "calibration"))]
    rows = rows[rows["class"].isin(("mean", "mean (region)", "all"))]
    groups = rows.groupby(["dataset", "metric"], sort=False)
    return {(str(key[0]), str(key[1])): group.set_index("method")["value"] for key, group in groups}


@cache
def _everything() -> pd.DataFrame:
    with files(__name__).joinpath("paper.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False)
