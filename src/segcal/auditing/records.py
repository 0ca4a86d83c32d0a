"""What is kept of each case while an audit is made, so that an interrupted one goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from segcal.auditing.scored import Facts, Scored
from segcal.calibrators.curves import Curves
from segcal.folders import replacing
from segcal.metrics import SETS, Bands, Reliability
from segcal.scoring.cases import Statistics

FOLDER = "cases"
_VOXELS = "voxels"
_PARTS = ("sums", "nll", "brier", "spread", "selection")


def record_path(folder: Path, number: int, condition: str) -> Path:
    """The file of a case, by its place in the source, before or after calibrators."""
    return folder / FOLDER / f"{number:06d}.{condition}.safetensors"


def write_scored(path: Path, scored: dict[str, Scored], facts: Facts | None = None) -> None:
    """Write what is kept of a case, by calibrator ("" for none)."""
    tensors: dict[str, Tensor] = {}
    rows = {name: each.rows for name, each in scored.items()}
    for name, each in scored.items():
        for key, value in _parts_of(each.statistics):
            tensors[f"{name}/{key}"] = value
    about: dict[str, Any] = {"rows": rows}
    if facts is not None:
        for i, curves in enumerate(facts.curves):
            tensors[f"curves/{i}/n_voxels"] = torch.from_numpy(curves.n_voxels)
            tensors[f"curves/{i}/sums"] = torch.from_numpy(curves.sums)
        about["facts"] = [facts.label_sha256, facts.differs, facts.unseen, facts.sampled]
        about["n_classes"] = [curves.n_classes for curves in facts.curves]
        for i, pair in enumerate(facts.voxels):
            tensors |= {f"{_VOXELS}/{i}/{k}": part for k, part in enumerate(pair)}
    path.parent.mkdir(parents=True, exist_ok=True)
    content = save(
        {key: value.clone() for key, value in tensors.items()}, {"about": json.dumps(about)}
    )
    with replacing(path) as partial:
        partial.write_bytes(content)


def read_scored(path: Path) -> tuple[dict[str, Scored], Facts | None] | None:
    """What was kept of a case; `None` if there is no such file, or a damaged one."""
    try:
        with safe_open(str(path), "pt") as file:
            about = json.loads(file.metadata()["about"])
            keys = [key for key in file.keys() if not key.startswith(_VOXELS)]  # noqa: SIM118
            tensors = {key: file.get_tensor(key) for key in keys}
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    scored = {}
    for name, rows in about["rows"].items():
        scored[name] = Scored(rows, _statistics(tensors, name))
    if "facts" not in about:
        return scored, None
    curves = []
    for i, n_classes in enumerate(about["n_classes"]):
        arrays = [tensors[f"curves/{i}/{key}"].numpy() for key in ("n_voxels", "sums")]
        curves.append(Curves(n_classes, *arrays))
    digest, *shares = about["facts"]
    differs, unseen, sampled = (math.nan if x is None else float(x) for x in shares)
    return scored, Facts(tuple(curves), digest, differs, unseen, sampled)


def read_voxels(path: Path, problem: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities (K, m) and labels (m,) that were kept of a case."""
    with safe_open(str(path), "pt") as file:
        x, y = (file.get_tensor(f"{_VOXELS}/{problem}/{k}") for k in (0, 1))
    return x, y


def _parts_of(statistics: Statistics) -> Iterator[tuple[str, Tensor]]:
    for voxels, bins in statistics.sets.items():
        for part, value in zip(_PARTS, bins.parts, strict=True):
            yield f"sets/{voxels}/{part}", value
    for part, value in vars(statistics.bands).items():
        yield f"bands/{part}", value
    yield "logits", statistics.logits


def _statistics(tensors: dict[str, Tensor], name: str) -> Statistics:
    sets = {}
    for voxels in SETS:
        sets[voxels] = Reliability(*(tensors[f"{name}/sets/{voxels}/{part}"] for part in _PARTS))
    fields = Bands.zero(1).__dict__
    bands = Bands(*(tensors[f"{name}/bands/{field}"] for field in fields))
    return Statistics(sets, bands, tensors[f"{name}/logits"])
