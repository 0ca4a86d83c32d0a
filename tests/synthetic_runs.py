"""Finished runs with made-up scores, written in a moment: what tables, ranks and figures are tested
on.
"""

import math

import numpy as np

from segcal import folders
from segcal.metrics import METRICS


def scores_of(cases, classes, *, regions=(), shift=0.0, seed=0):
    """Scores {(case, class, metric): value} as evaluation writes them; `shift` makes Dice better
    and all else lower.
    """
    found = {}
    for i, case in enumerate(cases):
        rng = np.random.default_rng([seed, i])
        names = list(classes) + [f"{name} (region)" for name in regions]
        for name in names:
            dice = rng.uniform(0.6, 0.9) + shift / 10 + rng.normal(0, 0.005)
            found |= {
                (case, name, "dice"): dice,
                (case, name, "asd"): 3 * (1 - dice),
                (case, name, "assd"): 3 * (1 - dice),
                (case, name, "missed"): 0.0,
            }
        ece = rng.uniform(0.05, 0.2) - shift / 20 + rng.normal(0, 0.002)
        found |= {(case, "all", "ece"): ece, (case, "all", "cece"): ece / 2}
        found |= {(case, name, "cece"): ece / 2 for name in ("background", *classes)}
        found |= {(case, "all", "misplaced"): ece, (case, "all", "nll"): 10 * ece}
    return found


def miss(scores, case, name):
    """The object of a class is missed in a case."""
    scores |= {
        (case, name, "dice"): 0.0,
        (case, name, "asd"): math.nan,
        (case, name, "assd"): math.nan,
        (case, name, "missed"): 1.0,
    }


def with_means(scores, classes, regions=()):
    """The rows over classes: means of what there is, and how many were missed."""
    found = dict(scores)
    for case in dict.fromkeys(key[0] for key in scores):
        for kind, names in (
            ("mean", classes),
            ("mean (region)", [f"{name} (region)" for name in regions]),
        ):
            if names:
                for metric in ("dice", "asd", "assd", "missed"):
                    values = np.array([scores.get((case, name, metric), 0.0) for name in names])
                    known = values[~np.isnan(values)]
                    total = (
                        values.sum()
                        if metric == "missed"
                        else known.mean()
                        if known.size
                        else math.nan
                    )
                    found[case, kind, metric] = float(total)
    return found


def write_run(
    root,
    name,
    loss="ce",
    *,
    settings=None,
    network="unet",
    dataset="organs",
    classes=("A", "B"),
    regions=None,
    cases=tuple(f"c{i}" for i in range(8)),
    patients=None,
    scores=None,
    conditions=({},),
    seed=0,
    fold=0,
    val_dice=0.8,
    status="finished",
    checksum="one",
    epochs=2,
    kept=None,
    members=0,
    ensemble=None,
):
    """Write a run's record and scores; the same scores under every condition unless `scores` is a
    list. `kept` is the validation Dice of each of its weights, or all their facts; with `members`
    it is an ensemble.
    """
    folder = root / name
    folder.mkdir(parents=True)
    data = {
        "name": dataset,
        "classes": list(classes),
        "regions": regions or {},
        "checksum": checksum,
    }
    if patients is not None:
        data["patients"] = patients
    chosen = {
        "data": str(root / "nowhere"),
        "fold": fold,
        "seed": seed,
        "loss": {"name": loss} | (settings or {}),
    }
    chosen |= {"network": {"name": network, "width": 4}, "training": {"epochs": epochs}}
    info = {"id": str(folder), "status": status, "settings": chosen, "data": data}
    if members:
        info |= {"kind": "ensemble", "members": [{"folder": f"../{i}"} for i in range(members)]}
        info |= {"weights": "best", "average": "probs", "calibrator": ""} | (ensemble or {})
    else:
        for w, facts in (kept or {"best": val_dice}).items():
            info[w] = facts if isinstance(facts, dict) else {"val_dice": facts}
    folders.write_run(folder, info)
    weights = info.get("weights") or ("best" if "best" in info else "last")
    rows = []
    for i, condition in enumerate(conditions):
        given = scores[i] if isinstance(scores, list) else scores
        values = with_means(
            given or scores_of(cases, classes, regions=regions or ()), classes, regions or ()
        )
        common = {"run": name, "dataset": dataset, "network": network, "method": loss}
        common |= {"setting": "", "weights": weights, "split": "test", "corruption": ""}
        common |= {"calibrator": ""} | condition
        rows += [row_of(common, key, value) for key, value in values.items()]
        rows.append(row_of(common, ("pooled", "all", "ece"), 9.0))
    if rows:
        folders.write_scores(folder, rows)
    return folder


def row_of(common, key, value):
    """A row of scores: (case, class, metric) and its value."""
    case, kind, metric = key
    voxels = [*METRICS[metric].voxels, ""][0] if metric in METRICS else ""  # the default ones
    row = {"voxels": voxels, "case": case, "class": kind, "metric": metric, "value": value}
    return row | common  # a condition may name other voxels
