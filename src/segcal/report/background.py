"""What stands behind the numbers: settings that were tried and chosen, data, versions, and whom to
cite.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from segcal import __version__
from segcal.calibrators import CALIBRATORS
from segcal.compare import Results
from segcal.data.catalog import DATASETS
from segcal.folders import open_cases, read_rows
from segcal.losses import LOSSES
from segcal.metrics import METRICS
from segcal.networks import NETWORKS
from segcal.types import UserError

PAPER = """@article{murugesan2023calibrating,
  title   = {Calibrating segmentation networks with margin-based label smoothing},
  author  = {Murugesan, Balamurali and Liu, Bingyuan and Galdran, Adrian
             and Ben Ayed, Ismail and Dolz, Jose},
  journal = {Medical Image Analysis},
  volume  = {87},
  pages   = {102826},
  year    = {2023},
  doi     = {10.1016/j.media.2023.102826}
}"""

SOFTWARE = """@software{segcal,
  title   = {segcal: calibrated medical image segmentation},
  author  = {{The segcal developers}},
  version = {%s}
}"""

Facts = list[tuple[str, str]]


def run_facts(results: Results) -> list[dict[str, Any]]:
    """Each run's settings, as they stand in its `run.json`."""
    return [
        {"name": name, "facts": list(_settings(name, info))} for name, info in results.runs.items()
    ]


def _settings(name: str, info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    chosen = info["settings"]
    loss, network = chosen["loss"]["name"], chosen["network"]["name"]
    yield "data set", f"{info['data']['name']}, fold {chosen['fold']}"
    yield "loss", _joined(LOSSES[loss].label, LOSSES[loss].settings | _own(chosen["loss"]))
    yield (
        "network",
        _joined(NETWORKS[network].label, NETWORKS[network].settings | _own(chosen["network"])),
    )
    yield "training", _joined("", chosen["training"])
    yield "seed", str(chosen["seed"])
    yield "machine", _joined("", chosen["machine"])
    best = info["best"]
    yield (
        "kept epoch",
        (
            f"{best['epoch']} of {chosen['training']['epochs']} (from 0): validation"
            f" {METRICS['dice'].label} {best['val_dice']:.4f}, {METRICS['ece'].label}"
            f" {best['val_ece']:.4f}"
        ),
    )
    epochs = len(read_rows(Path(info["folder"]) / "log.csv"))
    yield (
        "cost",
        f"{info['seconds']:.0f} s for {epochs} epochs, {info['peak_memory_mb']} MB at most",
    )
    yield "folder", str(info["folder"])
    yield "identity", info["id"]


def _own(chosen: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in chosen.items() if key != "name"}


def _joined(label: str, values: dict[str, Any]) -> str:
    text = ", ".join(
        f"{key} {_plain(value)}" for key, value in values.items() if value not in (None, [], ())
    )
    return f"{label} ({text})" if label and text else label or text


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def data_facts(results: Results, dataset: str) -> Facts:
    """What is known of a data set: classes, sizes of its splits, preparation, checksum."""
    data = results.data(dataset)
    facts: Facts = [("classes", ", ".join(data["classes"]))]
    if data["regions"]:
        named = (
            f"{name} ({' + '.join(data['classes'][k - 1] for k in parts)})"
            for name, parts in data["regions"].items()
        )
        facts.append(("regions", ", ".join(named)))
    facts += [("channels", ", ".join(data["channels"])), ("splits", _splits(results, dataset))]
    facts.append(("preparation", _joined("", data["recipe"]) or "as it came"))
    if data.get("orientation"):
        facts.append(("orientation", data["orientation"]))
    if dataset in DATASETS:
        facts += [("licence", DATASETS[dataset].licence), ("source", DATASETS[dataset].homepage)]
    return [*((key, value) for key, value in facts if value), ("checksum", data["checksum"])]


def _splits(results: Results, dataset: str) -> str:
    rows = results.rows()
    tested = rows.loc[rows["dataset"] == dataset, "case"].nunique()
    info = next(r for r in results.runs.values() if r["data"]["name"] == dataset)
    try:
        cases = open_cases(Path(info["settings"]["data"]))
    except UserError:
        return (
            f"{tested} test cases scored; the prepared data are no longer there, so the other"
            " splits are not known"
        )
    if cases.info["checksum"] != info["data"]["checksum"]:
        return (
            f"{tested} test cases scored; the prepared data have changed since, so the other splits"
            " are not known"
        )
    folds = sorted(
        {r["settings"]["fold"] for r in results.runs.values() if r["data"]["name"] == dataset}
    )
    sizes = [
        ", ".join(f"{len(cases.split(name, fold))} {name}" for name in ("train", "val", "test"))
        for fold in folds
    ]
    return (
        sizes[0]
        if len(folds) == 1
        else "; ".join(f"fold {f}: {s}" for f, s in zip(folds, sizes, strict=True))
    )


def version_facts(results: Results) -> list[dict[str, Any]]:
    """The versions that runs were made with; runs that agree stand together."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, info in results.runs.items():
        facts = tuple((key, str(value) or "none") for key, value in info["versions"].items())
        groups.setdefault(facts, []).append(name)
    return [{"runs": ", ".join(names), "facts": list(facts)} for facts, names in groups.items()]


def bibtex() -> str:
    """The paper and the software."""
    return f"{PAPER}\n\n{SOFTWARE % __version__}"


def references(results: Results) -> list[tuple[str, str]]:
    """Whom to cite for what was compared: losses, networks, calibrators, data sets; each once."""
    used = set(results.scores.loc[results.scores["chosen"], "calibrator"])
    found = [
        (LOSSES[key].label, LOSSES[key].citation)
        for key in LOSSES
        if key in _used(results, "method")
    ]
    found += [
        (NETWORKS[key].label, NETWORKS[key].citation)
        for key in NETWORKS
        if key in _used(results, "network")
    ]
    found += [(row.label, row.citation) for key, row in CALIBRATORS.items() if key in used]
    found += [(key, DATASETS[key].citation) for key in results.datasets if key in DATASETS]
    return found


def _used(results: Results, what: str) -> set[str]:
    return {getattr(c, what) for c in results.contenders}
