"""The metrics as `torchmetrics.Metric`, for Lightning and for several processes: every state is a
sum that adds up.

Each `update` takes one case. Results are means over cases, and `<key>_pooled` where all voxels are
thrown together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchmetrics
from torch import Tensor, nn

from segcal.metrics import METRICS
from segcal.metrics.calibration import (
    Bins,
    Reliability,
    check_finite,
    plain,
    reliability,
    reliability_of_probs,
)
from segcal.metrics.masks import MASKS
from segcal.metrics.overlap import confusion, label_map
from segcal.metrics.surface import mean_distance, missed, surfaces
from segcal.types import IGNORE, UserError, check_arrays, check_choice, check_range

_BINS = ("count", "conf", "hit")


class _Scores(torchmetrics.Metric):
    """What the classes share: sums, and per-case values of which NaN ones are left out of
    the mean.
    """

    full_state_update = False
    case_sum: Tensor
    case_count: Tensor

    def __init__(
        self, n_classes: int, settings: dict[str, Any], *more: object, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_range("n_classes", n_classes, 2)
        self.n_classes, self.settings = n_classes, settings
        # A MetricCollection takes metrics whose states have the same names and values for one;
        # settings tell them apart.
        self._add_sum(
            "_".join(["settings", *map(str, [*settings.values(), *more])]).replace(".", "_"), ()
        )

    def _add_sum(self, name: str, shape: tuple[int, ...]) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def _apply(
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ""
    ) -> nn.Module:
        """Go where the model goes, but never into its type: a sum of bfloat16 stands still after
        some hundred cases.

        On Apple's GPUs, which have no float64, the sums stay on the CPU, as the statistics do that
        are added to them."""

        def kept(state: Tensor) -> Tensor:
            device = fn(torch.empty(0, device=state.device)).device
            return state.to("cpu" if device.type == "mps" else device)

        return super()._apply(kept, exclude_state)

    def _check(self, scores: Tensor, labels: Tensor) -> None:
        check_arrays(scores, labels)
        if scores.shape[1] != self.n_classes:
            raise UserError(
                f"this metric was made for {self.n_classes} classes; got shape"
                f" {tuple(scores.shape)}"
            )

    def _add_case(self, values: Tensor) -> None:
        self.case_sum += values.where(~values.isnan(), 0)
        self.case_count += ~values.isnan()

    @property
    def _mean(self) -> Tensor:
        return self.case_sum / self.case_count  # 0 / 0 is NaN: no case had a value


class CalibrationScores(_Scores):
    """Every `bins` metric of `METRICS`, per case and pooled, from logits.

    An update is one case, whose N items are its slices; with `items_are_cases` each item is a case
    of its own.

    >>> scores = CalibrationScores(n_classes=2)
    >>> scores.update(torch.tensor([[[0.0, 0.0], [9.0, 2.0]]]), torch.tensor([[1, 1]]))
    >>> print(f"{scores.compute()['ece']:.4f}")
    0.0597
    """

    higher_is_better = False
    keys = tuple(key for key, row in METRICS.items() if row.of == "bins")
    statistics: Callable[..., Reliability] = staticmethod(reliability)

    def __init__(
        self,
        n_classes: int,
        *,
        n_bins: int = 15,
        mask: str = "reference",
        ring: int = 2,
        ignore_index: int = IGNORE,
        items_are_cases: bool = False,
        **kwargs: Any,
    ) -> None:
        check_choice("mask", mask, MASKS)
        check_range("n_bins", n_bins, 1)
        check_range("ring", ring, 1)
        settings = {"n_bins": n_bins, "mask": mask, "ring": ring, "ignore_index": ignore_index}
        super().__init__(n_classes, settings, items_are_cases, **kwargs)
        self.items_are_cases = items_are_cases
        self._add_sum("case_sum", (len(self.keys),))
        self._add_sum("case_count", (len(self.keys),))
        for name in _BINS:
            self._add_sum(f"top_{name}", (n_bins,))
            self._add_sum(f"classes_{name}", (n_classes, n_bins))
        self._add_sum("nll", ())
        self._add_sum("brier", ())

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add one case: logits (N, K, *S), labels (N, *S)."""
        self._check(logits, labels)
        size = 1 if self.items_are_cases else len(logits)
        for x, y in zip(logits.split(size), labels.split(size), strict=True):
            case = self.statistics(x, y, **self.settings)
            self._add_case(torch.stack([METRICS[key].function(case) for key in self.keys]))
            self._add_bins(case)

    def _add_bins(self, case: Reliability) -> None:
        total = self.bins + case
        for name in _BINS:
            setattr(self, f"top_{name}", getattr(total.top, name))
            setattr(self, f"classes_{name}", getattr(total.classes, name))
        self.nll, self.brier = total.nll, total.brier

    @property
    def bins(self) -> Reliability:
        """The pooled statistics so far (of all processes, inside `sync_context`)."""
        top, classes = (
            Bins(*(getattr(self, f"{part}_{name}") for name in _BINS))
            for part in ("top", "classes")
        )
        return Reliability(top, classes, self.nll, self.brier)

    def compute(self) -> dict[str, Tensor]:
        """Each score as the mean over cases, and as `<key>_pooled`."""
        pooled = {f"{key}_pooled": METRICS[key].function(self.bins) for key in self.keys}
        return dict(zip(self.keys, self._mean, strict=True)) | pooled


class CalibrationScoresOfProbs(CalibrationScores):
    """The same as `CalibrationScores` for probabilities, as ensembles and test-time augmentation
    give them.
    """

    statistics = staticmethod(reliability_of_probs)


class OverlapScores(_Scores):
    """Dice and surface distances per foreground class (K-1,), mean over the cases that have a
    value; `missed` is a count.

    `<key>_mean` is a scalar: per case the mean over its classes, then the mean over cases.
    `dice_pooled` counts voxels over all cases. `distances=False` leaves out what takes longest.

    >>> scores = OverlapScores(n_classes=3)
    >>> logits = torch.tensor([[[0.0, 1.0], [9.0, 0.0], [0.0, 0.0]]])
    >>> scores.update(logits, torch.tensor([[1, 0]]), spacing=(1.0,))
    Traceback (most recent call last):
    segcal.types.UserError: surfaces takes the label maps of one case in 2D or 3D; got shape (2,)
    >>> logits = torch.tensor([[[[0.0, 1.0]], [[9.0, 0.0]], [[0.0, 0.0]]]])
    >>> scores.update(logits, torch.tensor([[[1, 0]]]), spacing=(1.0, 1.0))
    >>> scores.compute()["dice"], scores.compute()["dice_mean"]
    (tensor([1., nan], dtype=torch.float64), tensor(1., dtype=torch.float64))
    """

    keys = tuple(key for key, row in METRICS.items() if row.of in ("confusion", "surfaces"))
    confusion: Tensor

    def __init__(
        self, n_classes: int, *, ignore_index: int = IGNORE, distances: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(n_classes, {"ignore_index": ignore_index}, **kwargs)
        if not distances:
            self.keys = tuple(key for key in self.keys if METRICS[key].of == "confusion")
        self._add_sum("case_sum", (len(self.keys), n_classes))  # K-1 classes, then their mean
        self._add_sum("case_count", (len(self.keys), n_classes))
        self._add_sum("confusion", (n_classes, n_classes))

    def update(self, logits: Tensor, labels: Tensor, *, spacing: Sequence[float] | None) -> None:
        """Add one case: logits (1, K, *S), labels (1, *S); `spacing` per axis of S in millimetres,
        or `None` for voxels.
        """
        self._check(logits, labels)
        if len(logits) != 1:
            raise UserError(
                f"one case per update: logits must be (1, K, *S), got shape {tuple(logits.shape)}; "
                "slices of one volume become a case by logits.movedim(0, 1)[None], labels[None]"
            )
        check_finite(logits)
        pred, truth = (plain(x)[0] for x in (label_map(logits), labels))
        counts = confusion(pred, truth, n_classes=self.n_classes, **self.settings)
        of: dict[str, Any] = {"confusion": counts}
        if any(METRICS[key].of == "surfaces" for key in self.keys):
            of["surfaces"] = surfaces(
                pred, truth, n_classes=self.n_classes, spacing=spacing, **self.settings
            )
        values = torch.stack(
            [
                METRICS[key].function(of[METRICS[key].of]).double().to(self.device)
                for key in self.keys
            ]
        )
        means = values.nanmean(1)
        if "surfaces" in of:
            distances = torch.tensor(
                [METRICS[key].of == "surfaces" for key in self.keys], device=values.device
            )
            gone = missed(of["surfaces"]).to(values.device)
            means = torch.where(distances, mean_distance(values, gone), means)
        self._add_case(torch.cat([values, means[:, None]], 1))
        self.confusion += counts

    def compute(self) -> dict[str, Tensor]:
        """Each score per foreground class (K-1,) and, as `<key>_mean`, over them."""
        per_class = dict(zip(self.keys, self._mean[:, :-1], strict=True))
        if "missed" in self.keys:
            per_class["missed"] = self.case_sum[self.keys.index("missed"), :-1]
        means = {
            f"{key}_mean": value
            for key, value in zip(self.keys, self._mean[:, -1], strict=True)
            if key != "missed"
        }
        return per_class | means | {"dice_pooled": METRICS["dice"].function(self.confusion)}
