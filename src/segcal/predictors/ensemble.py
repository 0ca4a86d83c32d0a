"""Several runs as one predictor: the mean of what they predict."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segcal import calibrators
from segcal.calibrators import Fitted
from segcal.folders import (
    WEIGHTS,
    CaseSet,
    alone,
    calibrator_path,
    is_empty_run,
    is_run,
    read_run,
    remove_run,
    require_weights,
    sweep_run,
    write_run,
)
from segcal.losses import LOSSES
from segcal.networks import NETWORKS
from segcal.predictors.cases import data_of, image_id, prediction_of
from segcal.predictors.protocol import ImagePredictor, Prediction
from segcal.predictors.run import Run, finished_run, open_run
from segcal.provenance import identity, versions
from segcal.types import AnyPath, UserError, as_paths, check_choice

KIND = "ensemble"


@dataclass(eq=False)
class Ensemble(ImagePredictor):
    """Finished runs whose predictions are averaged, each after its own calibrator if asked."""

    root: Path
    info: dict[str, Any]
    weights: str
    members: tuple[Run, ...]
    fitted: tuple[Fitted | None, ...]  # of each member
    data: Path | None = None  # where their data set is, if it has moved

    @cached_property
    def cases(self) -> CaseSet:
        """The data set of all members."""
        data = self.data or Path(self.members[0].info["settings"]["data"])
        return data_of(self.root, self.info, data)

    def ids(self, split: str) -> tuple[str, ...]:
        """The cases of a split."""
        return self.cases.split(split, self.info["settings"]["fold"])

    def image_id(self, id: str) -> str | None:
        """What is the same for cases of one image."""
        return image_id(self.cases, id)

    def case(self, id: str, *, corruption: str = "", seed: int = 0) -> Prediction:
        """The prediction for a case."""
        return prediction_of(self.cases, id, self.logits, corruption, seed)

    @torch.no_grad()
    def logits(self, image: Tensor) -> Tensor:
        """The average (D, K, H, W) for an image (D, C, H, W)."""
        parts = (self._member_logits(i, image) for i in range(len(self.members)))
        return AVERAGES[self.info["average"]](parts)

    def _member_logits(self, i: int, image: Tensor) -> Tensor:
        logits, fitted = self.members[i].logits(image), self.fitted[i]
        return logits if fitted is None else fitted(logits, image)


def mean_of_probs(parts: Iterable[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities of logits (D, K, H, W).

    >>> parts = [torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()]
    >>> mean_of_probs(parts).exp()
    tensor([[0.7000, 0.3000]])
    """
    total, n = torch.tensor(-torch.inf), 0
    for logits in parts:
        total, n = torch.logaddexp(total, logits.log_softmax(1)), n + 1
    return total - math.log(n)


def mean_of_logits(parts: Iterable[Tensor]) -> Tensor:
    """The mean of logits (D, K, H, W), as nnU-Net averages its folds."""
    total, n = torch.tensor(0.0), 0
    for logits in parts:
        total, n = total + logits, n + 1
    return total / n


AVERAGES = {"probs": mean_of_probs, "logits": mean_of_logits}
"""What can be averaged."""


def make_ensemble(
    folders: Sequence[AnyPath],
    out: AnyPath,
    *,
    average: str = "probs",
    calibrator: str = "",
    weights: str = "best",
    again: bool = False,
) -> dict[str, Any]:
    """Write the folder of an ensemble of finished runs; returns the content of its `run.json`.

    Runs must share data, classes and split. With `calibrator`, each run's own is applied first."""
    check_choice("average", average, tuple(AVERAGES))
    check_choice("weights", weights, WEIGHTS)
    folders, out = as_paths(folders), Path(out)
    if len(folders) < 2:
        raise UserError(f"an ensemble needs at least two runs; got {len(folders)}")
    if calibrator:
        check_choice("calibrator", calibrator, tuple(calibrators.CALIBRATORS))
    infos = [_member_info(folder, calibrator, weights) for folder in folders]
    _check_alike(folders, infos)
    members = []
    for folder, info in zip(folders, infos, strict=True):
        place = os.path.relpath(folder.resolve(), out.resolve())
        settings = info["settings"]
        facts = {"folder": place, "id": info["id"], "seed": settings["seed"]}
        members.append(facts | {"loss": settings["loss"], "network": settings["network"]})
    made = {"average": average, "calibrator": calibrator, "weights": weights, "members": members}
    with alone(out):
        if is_run(out) or is_empty_run(out):
            sweep_run(out)
        if is_run(out) and not again:
            known = read_run(out)
            if known.get("kind") != KIND:
                raise UserError(f"{out} is a trained run; choose another --out")
            if any(known.get(key) != value for key, value in made.items()):
                raise UserError(f"{out} is another ensemble; choose another --out, or --again")
            return known
        info = {"id": identity(), "kind": KIND, "status": "finished", "settings": _common(infos)}
        info |= made | {"data": infos[0]["data"], "versions": versions()}
        _clear(out)
        write_run(out, info)
    return read_run(out)


def _member_info(folder: Path, calibrator: str, weights: str) -> dict[str, Any]:
    info = finished_run(folder)
    if info.get("kind") == KIND:
        raise UserError(f"{folder} is an ensemble; name its members instead")
    require_weights(folder, info, weights)
    if calibrator:
        _fit_of(folder, info, calibrator, weights)  # raises if there is none
    return info


def _check_alike(folders: Sequence[Path], infos: Sequence[dict[str, Any]]) -> None:
    """Raise unless all runs have the same data, classes and split, and none is there twice."""
    parts = {"name": "data set", "classes": "classes", "checksum": "split or preparation"}
    for folder, info in zip(folders, infos, strict=True):
        for key, part in parts.items():
            if info["data"][key] != infos[0]["data"][key]:
                raise UserError(
                    f"{folder} and {folders[0]} differ in their {part}; members must share data,"
                    " classes and split"
                )
        if info["settings"]["fold"] != infos[0]["settings"]["fold"]:
            raise UserError(f"{folder} and {folders[0]} were trained on different folds")
        if sum(other["id"] == info["id"] for other in infos) > 1:
            raise UserError(f"{folder} is given twice; name each run once")


def _common(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The settings that the members share, and the lowest seed.

    Several losses or networks have the name of all: "CE+MbLS"."""
    first = infos[0]["settings"]
    common = {key: value for key, value in first.items() if key in ("data", "fold")}
    for part, rows in (("loss", LOSSES), ("network", NETWORKS)):
        tables = [info["settings"][part] for info in infos]
        shared = {k: v for k, v in tables[0].items() if all(t.get(k) == v for t in tables)}
        if "name" not in shared:
            names = {table["name"] for table in tables}
            shared["name"] = "+".join(row.label for key, row in rows.items() if key in names)
        common[part] = shared
    if all(info["settings"]["training"] == first["training"] for info in infos):
        common["training"] = first["training"]
    common["seed"] = min(info["settings"]["seed"] for info in infos)
    return common


def _clear(out: Path) -> None:
    """Make the folder ready; files of the ensemble that was there go away."""
    if is_run(out):
        if read_run(out).get("kind") != KIND:
            raise UserError(f"{out} is a trained run; choose another --out")
        remove_run(out)
    if not is_empty_run(out):
        raise UserError(f"{out} exists and is not an ensemble; choose another --out")
    out.mkdir(parents=True, exist_ok=True)


def _fit_of(folder: Path, info: dict[str, Any], calibrator: str, weights: str) -> Fitted:
    path = calibrator_path(folder, calibrator, weights)
    return calibrators.load(path, expect={"run": info["id"], "weights": weights})


def open_ensemble(
    root: AnyPath,
    *,
    weights: str | None = None,
    device: str | None = None,
    data: AnyPath | None = None,
) -> Ensemble:
    """Open an ensemble and all of its members."""
    root, data = Path(root), None if data is None else Path(data)
    info = finished_run(root)
    if weights not in (None, info["weights"]):
        raise UserError(
            f"{root} is an ensemble of {info['weights']} weights; make another from the"
            f" {weights} weights with segcal ensemble --weights {weights}"
        )
    members, fitted = [], []
    for member in info["members"]:
        folder = (root / member["folder"]).resolve()
        if not is_run(folder):
            raise UserError(
                f"{root} has lost its member {folder}; move it back, or make {root} again"
            )
        run = open_run(folder, weights=info["weights"], device=device, data=data)
        if run.info["id"] != member["id"]:
            raise UserError(f"{folder} was trained again; make {root} again with --again")
        members.append(run)
        name = info["calibrator"]
        fitted.append(_fit_of(folder, run.info, name, info["weights"]) if name else None)
    return Ensemble(root, info, info["weights"], tuple(members), tuple(fitted), data)
