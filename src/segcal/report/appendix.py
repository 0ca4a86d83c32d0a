"""The end of the page: settings of the runs, data, versions, and what to cite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segcal.calibrators import CALIBRATORS
from segcal.compare import Results
from segcal.data.catalog import DATASETS
from segcal.losses import LOSSES
from segcal.networks import NETWORKS

Facts = list[tuple[str, str]]
RECORDS = {
    "members": "members",
    "average": "average",
    "calibrator": "calibrator of members",
    "weights": "weights",
    "best": "best epoch (from 0)",
    "last": "last epoch (from 0)",
    "nll": "epoch of the lowest NLL at about the best Dice (from 0)",
    "seconds": "seconds of training",
    "peak_memory_mb": "peak memory (MB)",
    "folder": "folder",
    "id": "identity",
}


def run_facts(info: Mapping[str, Any]) -> Facts:
    """The settings, cost and identity of a run; an ensemble was not trained."""
    facts = [("data set", info["data"]["name"]), *info["settings"].items()]
    for key, label in RECORDS.items():
        if info.get(key):
            facts.append((label, info[key]))
    return [(label, _text(value)) for label, value in facts]


def _text(value: Any) -> str:
    """A setting, or settings in a row; those without a value are left out.

    >>> _text({"name": "mbls", "margin": 10.0, "augment": False, "window": None})
    'mbls, margin 10, augment no'
    """
    if isinstance(value, Mapping):
        known = {key: _text(part) for key, part in value.items() if part not in (None, [], ())}
        texts = [text if key == "name" else f"{key} {text}" for key, text in known.items()]
        return ", ".join(texts)
    if isinstance(value, (list, tuple)):
        return "; ".join(_text(part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def data_facts(results: Results, dataset: str) -> Facts:
    """What the runs recorded about a data set."""
    data, regions = results.data(dataset), []
    for name, members in data["regions"].items():
        regions.append(f"{name} ({' + '.join(data['classes'][k - 1] for k in members)})")
    folds = {}  # the sizes of the splits in each fold
    for info in results.runs.values():
        if info["data"]["name"] == dataset and "splits" in info["data"]:
            sizes = [f"{n} {name}" for name, n in info["data"]["splits"].items()]
            folds[info["settings"].get("fold", 0)] = ", ".join(sizes)
    source = DATASETS.get(dataset)
    facts = {
        "classes": ", ".join(data["classes"]),
        "regions": ", ".join(regions),
        "channels": ", ".join(data["channels"]),
        "splits": "; ".join(f"fold {fold}: {sizes}" for fold, sizes in sorted(folds.items())),
        "preparation": _text(data["recipe"]) or "none",
        "orientation": data.get("orientation"),
        "licence": source.licence if source else "",
        "source": source.homepage if source else "",
        "checksum": data["checksum"],
    }
    return [(key, value) for key, value in facts.items() if value]


def version_facts(results: Results) -> dict[str, Facts]:
    """The versions that runs were made with; runs with the same versions are one entry."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, info in results.runs.items():
        versions = [(key, str(value) or "none") for key, value in info.get("versions", {}).items()]
        groups.setdefault(tuple(versions), []).append(name)
    return {", ".join(names): list(versions) for versions, names in groups.items()}


def references(results: Results) -> Facts:
    """What to cite for the losses, networks, calibrators and data sets that were compared."""
    used: list[tuple[Mapping[str, Any], set[str]]] = [
        (LOSSES, {c.method for c in results.contenders} | _of_members(results, "loss")),
        (NETWORKS, {c.network for c in results.contenders} | _of_members(results, "network")),
        (CALIBRATORS, set(results.scores.loc[results.scores["chosen"], "calibrator"])),
    ]
    citations = []
    for rows, keys in used:
        citations += [(row.label, row.citation) for key, row in rows.items() if key in keys]
    citations += [(key, DATASETS[key].citation) for key in results.datasets if key in DATASETS]
    return citations


def _of_members(results: Results, part: str) -> set[str]:
    """The losses or networks of the members of ensembles."""
    members = [member for info in results.runs.values() for member in info.get("members", ())]
    return {member[part]["name"] for member in members}
