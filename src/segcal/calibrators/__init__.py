"""Post-hoc calibration, fitted on validation logits and applied to any: the table `CALIBRATORS`.

>>> import torch
>>> from segcal.calibrators import fit
>>> logits, labels = torch.tensor([[4.0, 0.0]]).repeat(10, 1), torch.tensor([0] * 8 + [1] * 2)
>>> fitted = fit("ts", lambda: [(logits, labels, torch.zeros(10, 1))])
>>> fitted(logits).softmax(1)[0]
tensor([0.8000, 0.2000])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from segcal.calibrators.files import read, saved, write
from segcal.calibrators.fitting import HIGHEST, LOWEST, Batches, Fitted
from segcal.calibrators.local import lts, scale_locally
from segcal.calibrators.temperature import scale, ts
from segcal.calibrators.vector import scale_classes, vs
from segcal.types import UserError, check_choice, check_settings, settings_of

__all__ = ["CALIBRATORS", "HIGHEST", "LOWEST", "Batches", "Calibrator", "Fitted"]
__all__ += ["fit", "load", "lts", "save", "saved", "ts", "vs"]


@dataclass(frozen=True)
class Calibrator:
    """A row of `CALIBRATORS`."""

    fit: Callable[..., Fitted]
    apply: Callable[..., Tensor]  # of logits, image and the fitted parameters
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

CALIBRATORS: dict[str, Calibrator] = {
    "ts": Calibrator(ts, scale, "TS", "one temperature", _GUO, True),
    "lts": Calibrator(lts, scale_locally, "LTS", "a temperature per pixel", _DING, True),
    "vs": Calibrator(vs, scale_classes, "VS", "a scale and a bias per class", _GUO, False),
}


def fit(key: str, batches: Batches, **settings: Any) -> Fitted:
    """Fit a row of `CALIBRATORS`; its settings are checked before any data are read."""
    check_settings("calibrator", CALIBRATORS, key, settings)
    return CALIBRATORS[key].fit(batches, **settings)


def save(fitted: Fitted, stem: Path, *, identity: Mapping[str, Any] | None = None) -> None:
    """Write `<stem>.safetensors` and `<stem>.json`; `identity` names the run and data fitted on."""
    facts = fitted.facts()
    facts["identity"] = {**facts.get("identity", {}), **(identity or {})}
    write(Path(stem), fitted.parameters, facts)


def load(stem: Path, *, expect: Mapping[str, Any] | None = None) -> Fitted:
    """Read a saved calibrator; its identity must hold all that `expect` says."""
    tensors, content = read(Path(stem))
    content.pop("format")
    key = content.pop("key", None)
    check_choice("calibrator", key, tuple(CALIBRATORS))
    identity = content.get("identity", {})
    for name, wanted in (expect or {}).items():
        if identity.get(name) != wanted:
            fitted_on = f"{name} {identity.get(name)!r}, not {wanted!r}"
            raise UserError(f"{stem} was fitted on {fitted_on}; fit it there first")
    return Fitted(key, CALIBRATORS[key].apply, tensors, content)
