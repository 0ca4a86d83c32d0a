"""The metrics as `torchmetrics.Metric`, for Lightning and for several processes: every state is a sum that adds up.

Each `update` takes one case. Results are means over cases, and `<key>_pooled` where all voxels are thrown together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torchmetrics
from torch import Tensor

from segcal.metrics import METRICS
from segcal.metrics.calibration import Bins, Reliability, reliability
from segcal.metrics.overlap import confusion, label_map
from segcal.metrics.surface import surfaces
from segcal.types import IGNORE, UserError, check_arrays

_BINS = ("count", "conf", "hit")


def _means(keys: Sequence[str], total: Tensor, count: Tensor) -> dict[str, Tensor]:
    return dict(zip(keys, total / count, strict=True))  # 0 / 0 is NaN: no case had a value


class _Scores(torchmetrics.Metric):
    """What both classes share: per-case values, of which NaN ones are left out of the mean."""

    full_state_update = False
    case_sum: Tensor
    case_count: Tensor

    def _add_case_states(self, *shape: int) -> None:
        self._add_sum("case_sum", shape)
        self._add_sum("case_count", shape)

    def _add_sum(self, name: str, shape: tuple[int, ...]) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def _add_case(self, values: Tensor) -> None:
        self.case_sum += values.nan_to_num(0)
        self.case_count += ~values.isnan()


class CalibrationScores(_Scores):
    """Every `bins` metric of `METRICS`, per case and pooled, from logits.

    >>> scores = CalibrationScores(n_classes=2)
    >>> scores.update(torch.tensor([[[0.0, 0.0], [9.0, 2.0]]]), torch.tensor([[1, 1]]))
    >>> print(f"{scores.compute()['ece']:.4f}")
    0.0597
    """

    higher_is_better = False
    keys = tuple(key for key, row in METRICS.items() if row.of == "bins")

    def __init__(
        self,
        n_classes: int,
        *,
        n_bins: int = 15,
        mask: str = "reference",
        ring: int = 2,
        ignore_index: int = IGNORE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.settings: dict[str, Any] = {"n_bins": n_bins, "mask": mask, "ring": ring, "ignore_index": ignore_index}
        self._add_case_states(len(self.keys))
        for name in _BINS:
            self._add_sum(f"top_{name}", (n_bins,))
            self._add_sum(f"classes_{name}", (n_classes, n_bins))
        self._add_sum("nll", ())
        self._add_sum("brier", ())

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add one case: logits (N, K, *S), labels (N, *S); N may be its slices."""
        case = reliability(logits, labels, **self.settings)
        self._add_case(torch.stack([METRICS[key].function(case) for key in self.keys]))
        total = self.bins + case
        for name in _BINS:
            setattr(self, f"top_{name}", getattr(total.top, name))
            setattr(self, f"classes_{name}", getattr(total.classes, name))
        self.nll, self.brier = total.nll, total.brier

    @property
    def bins(self) -> Reliability:
        """The pooled statistics so far (of all processes, inside `sync_context`)."""
        top, classes = (Bins(*(getattr(self, f"{part}_{name}") for name in _BINS)) for part in ("top", "classes"))
        return Reliability(top, classes, self.nll, self.brier)

    def compute(self) -> dict[str, Tensor]:
        """Each score as the mean over cases, and as `<key>_pooled`."""
        pooled = {f"{key}_pooled": METRICS[key].function(self.bins) for key in self.keys}
        return _means(self.keys, self.case_sum, self.case_count) | pooled


class OverlapScores(_Scores):
    """Dice and surface distances per foreground class (K-1,), mean over the cases that have a value; `missed` is a count.

    `dice_pooled` counts voxels over all cases.

    >>> scores = OverlapScores(n_classes=3)
    >>> scores.update(torch.tensor([[[0.0, 1.0], [9.0, 0.0], [0.0, 0.0]]]), torch.tensor([[1, 0]]), spacing=(1.0,))
    >>> scores.compute()["dice"]
    tensor([1., nan], dtype=torch.float64)
    """

    keys = tuple(key for key, row in METRICS.items() if row.of in ("confusion", "surfaces"))
    confusion: Tensor

    def __init__(self, n_classes: int, *, ignore_index: int = IGNORE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings: dict[str, Any] = {"n_classes": n_classes, "ignore_index": ignore_index}
        self._add_case_states(len(self.keys), n_classes - 1)
        self._add_sum("confusion", (n_classes, n_classes))

    def update(self, logits: Tensor, labels: Tensor, *, spacing: Sequence[float] | None) -> None:
        """Add one case: logits (1, K, *S), labels (1, *S); `spacing` per axis of S in millimetres, or `None` for voxels."""
        check_arrays(logits, labels)
        if len(logits) != 1:
            raise UserError(
                f"one case per update: logits must be (1, K, *S), got shape {tuple(logits.shape)}; "
                "slices of one volume become a case by logits.movedim(0, 1)[None], labels[None]"
            )
        pred, labels = label_map(logits.detach())[0], labels[0]
        counts = confusion(pred, labels, **self.settings)
        of = {"confusion": counts, "surfaces": surfaces(pred, labels, spacing=spacing, **self.settings)}
        values = [METRICS[key].function(of[METRICS[key].of]) for key in self.keys]
        self._add_case(torch.stack([value.double().to(self.device) for value in values]))
        self.confusion += counts

    def compute(self) -> dict[str, Tensor]:
        """Each score per foreground class (K-1,)."""
        scores = _means(self.keys, self.case_sum, self.case_count)
        scores["missed"] = self.case_sum[self.keys.index("missed")]
        return scores | {"dice_pooled": METRICS["dice"].function(self.confusion)}
