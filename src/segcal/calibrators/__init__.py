"""Post-hoc calibration, fitted on validation logits and applied to any: the table `CALIBRATORS`.

>>> import torch
>>> from segcal.calibrators import fit
>>> logits = torch.tensor([4.0, 0.0]).reshape(1, 2, 1, 1).repeat(1, 1, 2, 5)
>>> labels = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 0, 1]])[None]
>>> fitted = fit("ts", lambda: [(logits, labels, logits)], voxels="all")
>>> fitted(logits).softmax(1)[0, :, 0, 0]
tensor([0.8000, 0.2000])
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from segcal.calibrators.fitting import (
    HIGHEST,
    LOWEST,
    VOXELS,
    Batches,
    Fitted,
    NoForegroundError,
    OutdatedError,
)
from segcal.calibrators.local import lts, scale_locally
from segcal.calibrators.regions import scale_regions, ts2
from segcal.calibrators.temperature import scale, ts
from segcal.calibrators.vector import scale_classes, vs
from segcal.types import AnyPath, UserError, check_settings, settings_of

__all__ = ["CALIBRATORS", "HIGHEST", "LOWEST", "VOXELS", "Batches", "Calibrator", "Fitted"]
__all__ += ["NoForegroundError", "OutdatedError", "fit", "load", "lts", "save", "saved"]
__all__ += ["ts", "ts2", "vs"]

FORMAT = 2  # the version of the JSON; raised when older files can no longer be read
SAME = ("ts",)  # what means the same in format 1, whose calibrators were functions of raw logits


@dataclass(frozen=True)
class Calibrator:
    """A row of `CALIBRATORS`."""

    fit: Callable[..., Fitted]
    apply: Callable[..., Tensor]  # of log-probabilities, image and the fitted parameters
    label: str
    help: str
    citation: str
    keeps_labels: bool  # it cannot change the predicted label map

    @property
    def settings(self) -> dict[str, Any]:
        """The names and defaults of the fit's settings."""
        return settings_of(self.fit)


_GUO = "Guo et al., ICML 2017, arXiv:1706.04599"
_DING = "Ding et al., ICCV 2021, arXiv:2008.05105"

_TWO = "two temperatures: near predicted foreground and far"

CALIBRATORS: dict[str, Calibrator] = {
    "ts": Calibrator(ts, scale, "TS", "one temperature", _GUO, True),
    "ts2": Calibrator(ts2, scale_regions, "TS2", _TWO, f"this software, after {_GUO}", True),
    "lts": Calibrator(lts, scale_locally, "LTS", "a temperature per pixel", _DING, True),
    "vs": Calibrator(vs, scale_classes, "VS", "a scale and a bias per class", _GUO, False),
}


def fit(key: str, batches: Batches, **settings: Any) -> Fitted:
    """Fit a row of `CALIBRATORS`; its settings are checked before any data are read."""
    check_settings("calibrator", CALIBRATORS, key, settings)
    return CALIBRATORS[key].fit(batches, **settings)


def save(fitted: Fitted, stem: AnyPath, *, identity: Mapping[str, Any] | None = None) -> None:
    """Write `<stem>.safetensors`, the parameters, and `<stem>.json`, the facts.

    `identity` names the run and data fitted on. No pickle, so that reading a file runs no code. The
    JSON holds the SHA-256 of both together, so that a changed or exchanged file is noticed.
    """
    facts = {"format": FORMAT, **fitted.facts()}
    facts["identity"] = {**facts.get("identity", {}), **(identity or {})}
    tensors = {name: value.cpu().contiguous() for name, value in fitted.parameters.items()}
    data = safetensors.torch.save(tensors)
    facts["sha256"] = _digest(data, facts)
    text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    for path, payload in zip(_paths(stem), (data, text.encode()), strict=True):
        partial = path.with_name(f".{path.name}.partial")  # each whole or not at all
        partial.write_bytes(payload)
        partial.replace(path)


def saved(stem: AnyPath) -> bool:
    """Whether both files are there."""
    return all(path.is_file() for path in _paths(stem))


def load(stem: AnyPath, *, expect: Mapping[str, Any] | None = None) -> Fitted:
    """Read a saved calibrator; its identity must hold all that `expect` says."""
    again = "fit the calibrator again"
    for path in _paths(stem):
        if not path.is_file():
            lacks = f"there is no fitted calibrator {stem} ({path} is missing)"
            raise UserError(f"{lacks}; fit it first, with segcal calibrate")
    data, text = (path.read_bytes() for path in _paths(stem))
    try:
        facts = json.loads(text)
        version, digest = facts["format"], facts.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{stem}.json is damaged; {again}") from None
    key = facts.get("key")
    if version == 1 and key not in SAME:
        raise OutdatedError(Path(stem))
    if version not in (1, FORMAT):
        raise UserError(f"{stem}.json has format {version}, this segcal reads {FORMAT}; {again}")
    if digest != _digest(data, facts):
        both = f"{stem}.json or {stem}.safetensors"
        raise UserError(f"{both} was changed after it was written; {again}")
    if key not in CALIBRATORS or not isinstance(facts.get("identity"), dict):
        raise UserError(f"{stem}.json names no calibrator that segcal has; {again}")
    identity = {"weights": "best", **facts["identity"]}  # older fits were of a run's only weights
    for name, wanted in (expect or {}).items():
        if identity.get(name) != wanted:
            fitted_on = f"{name} {identity.get(name)!r}, not {wanted!r}"
            raise UserError(f"{stem} was fitted on {fitted_on}; segcal calibrate --again fits it")
    del facts["format"], facts["key"]
    row = CALIBRATORS[key]
    try:
        tensors = safetensors.torch.load(data)
        fits = all(value.isfinite().all() for value in tensors.values())
        signature(row.apply).bind(None, None, **tensors)
    except (SafetensorError, TypeError):
        fits = False
    if not fits or not isinstance(facts.get("n_classes"), int):
        raise UserError(f"{stem}.safetensors is not of {key}; {again}")
    facts = {"voxels": "all", **facts}  # older fits were over all voxels
    return Fitted(key, row.apply, tensors, facts, row.keeps_labels)


def _paths(stem: AnyPath) -> tuple[Path, Path]:
    stem = Path(stem)  # not with_suffix: a stem may have dots
    return stem.with_name(f"{stem.name}.safetensors"), stem.with_name(f"{stem.name}.json")


def _digest(data: bytes, facts: dict[str, Any]) -> str:
    return hashlib.sha256(data + json.dumps(facts, sort_keys=True).encode()).hexdigest()
