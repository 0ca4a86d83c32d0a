"""Stored predictions as a predictor: the cases of an audit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk
import torch
from torch import Tensor

from segcal.data.images import read_single
from segcal.folders import read_run
from segcal.folders.audits import KIND
from segcal.predictors.files import open_source
from segcal.predictors.protocol import ImagePredictor, Prediction
from segcal.predictors.reading import CaseData, read_case
from segcal.predictors.source import Source, SourceCase
from segcal.types import UserError

LOWEST = 1.2e-38  # the smallest normal float32: a probability of 0 has a finite logarithm


@dataclass(eq=False)
class Stored(ImagePredictor):
    """An audited predictor, whose files are read again."""

    root: Path
    info: dict[str, Any]
    weights: str = "best"

    @cached_property
    def source(self) -> Source:
        """The files that were audited."""
        options: dict[str, Any] = {"kind": self.info["audit"]["kind"]}
        for name, value in self.info["audit"]["options"].items():
            options[name] = value and Path(value)
        source = open_source(Path(self.info["settings"]["data"]), keep_going=True, **options)
        if source.kind not in ("softmax", "logits"):
            raise UserError(f"{self.root} audits {source.kind} maps, which have no class per voxel")
        return source

    def ids(self, split: str) -> tuple[str, ...]:
        """The cases; all are held out, and none is for validation."""
        return tuple(self.info["data"]["patients"]) if split == "test" else ()

    def case(self, id: str, *, corruption: str = "", seed: int = 0) -> Prediction:
        """The stored prediction for a case."""
        if corruption:
            raise UserError(f"{self.root} is an audit: its images cannot be corrupted any more")
        case = next((case for case in self.source.cases if case.id == id), None)
        if case is None:
            raise UserError(f"{self.source.root} no longer has the case {id!r}")
        resample = self.info["audit"]["key"]["resample"]
        data = read_case(self.source, case, resample=resample)
        maps = torch.from_numpy(data.maps.stacked())
        logits = maps if self.source.kind == "logits" else maps.clamp_min_(LOWEST).log_()
        label = None if data.label is None else torch.from_numpy(data.label).long()
        return Prediction(logits, label, _image(case, data), data.spacing)

    def logits(self, image: Tensor) -> Tensor:
        """Not known: the network itself is elsewhere."""
        remedy = "predict with your own tool, then segcal apply calibrates what it stored"
        raise UserError(f"{self.root} is an audit and has no network; {remedy}")


def _image(case: SourceCase, data: CaseData) -> Tensor | None:
    """The image (D, 1, H, W) of a case on the grid of its maps, if there is one."""
    if case.image is None:
        return None
    array = sitk.GetArrayFromImage(read_single(case.image)).astype(np.float32)
    same = array.shape == data.maps.shape[1:]
    return torch.from_numpy(array)[:, None] if same else None


def open_stored(
    root: Path, *, weights: str | None = None, device: str | None = None, data: Path | None = None
) -> Stored:
    """Open the predictor that an audit is of."""
    info = read_run(root)
    if weights not in (None, "best"):
        raise UserError(f"{root} is an audit, which has no {weights} weights; leave --weights out")
    if data is not None:
        raise UserError(f"{root} is an audit, whose files cannot move; audit them again")
    if info.get("kind") != KIND:
        raise UserError(f"{root} is no audit")
    return Stored(root, info)
