"""What every predictor gives, whatever its predictions come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from segcal.types import UserError


@dataclass(frozen=True)
class Prediction:
    """What a predictor gives for one case."""

    logits: Tensor  # (K, D, H, W), logits or log-probabilities
    label: Tensor | None  # (D, H, W), with IGNORE; None where there is no reference
    image: Tensor | None  # (D, C, H, W)
    spacing: tuple[float, ...]  # of the axes (D, H, W), in mm
    seen: Tensor | None = None  # (D, H, W), False where the network did not look; None: all seen

    def __repr__(self) -> str:
        given = {key: value for key, value in vars(self).items() if isinstance(value, Tensor)}
        return f"Prediction({', '.join(f'{key} {tuple(x.shape)}' for key, x in given.items())})"

    @property
    def slices(self) -> Tensor:
        """The logits slice by slice, (D, K, H, W), as losses, metrics and calibrators take them."""
        return self.logits.movedim(0, 1)

    @property
    def reference(self) -> Tensor:
        """The label, where there must be one."""
        if self.label is None:
            raise UserError("a case without a reference label cannot be scored or fitted on")
        return self.label


class Predictor(Protocol):
    """Anything that gives predictions for cases; its scores and calibrators are in `root`."""

    root: Path
    info: dict[str, Any]  # the content of run.json
    weights: str  # the weights that predict

    def ids(self, split: str) -> tuple[str, ...]:
        """The cases of a split."""
        ...

    def case(self, id: str, *, corruption: str = "", seed: int = 0) -> Prediction:
        """The prediction for a case, with its image corrupted if asked."""
        ...

    def image_id(self, id: str) -> str | None:
        """What is the same for cases of one image, if it is known and must be in one split."""
        return None

    @property
    def classes(self) -> tuple[str, ...]:
        """The foreground classes; label 1 is the first."""
        return tuple(self.info["data"]["classes"])

    @property
    def identity(self) -> dict[str, str]:
        """What a calibrator is tied to: these weights, on these data."""
        data = self.info["data"]["checksum"]
        return {"run": self.info["id"], "weights": self.weights, "data": data}


class ImagePredictor(Predictor, Protocol):
    """A predictor that also takes new images."""

    def logits(self, image: Tensor) -> Tensor:
        """Logits or log-probabilities (D, K, H, W) of an image (D, C, H, W)."""
        ...
