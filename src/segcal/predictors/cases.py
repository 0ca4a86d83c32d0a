"""The prepared cases of a predictor that starts from images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from segcal.corruptions import case_seed, corrupt
from segcal.data.leaks import image_of
from segcal.data.slices import volume
from segcal.folders import CaseSet, open_cases
from segcal.predictors.protocol import Prediction
from segcal.types import UserError


def data_of(root: Path, info: dict[str, Any], data: Path | None = None) -> CaseSet:
    """The data set of a run, or the one in `data`; refused unless it is unchanged."""
    cases = open_cases(data or Path(info["settings"]["data"]))
    cases.check_content()
    if cases.info["checksum"] != info["data"]["checksum"]:
        raise UserError(
            f"{cases.root} has changed since {root} was trained; prepare it as it was, or train"
            " again"
        )
    return cases


def image_id(cases: CaseSet, id: str) -> str | None:
    """What is the same for cases of one image; `None` if the data set may have it twice."""
    if cases.info["settings"].get("duplicates") == "allow":
        return None
    return image_of(cases.case(id))


def prediction_of(
    cases: CaseSet, id: str, logits: Callable[[Tensor], Tensor], corruption: str, seed: int
) -> Prediction:
    """The prediction of a prepared case by a function from images to logits."""
    image, label = volume(cases, id)
    if corruption:
        image = corrupt(image, corruption, seed=case_seed(seed, id))
    spacing = tuple(cases.case(id)["spacing"])
    return Prediction(logits(image).movedim(1, 0), label, image, spacing)
