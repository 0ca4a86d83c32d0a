"""The metrics as `torchmetrics.Metric`, for Lightning and several processes; all states are sums.

Each `update` takes one case. `compute` gives means over cases, and `<key>_pooled` over all voxels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchmetrics
from torch import Tensor, nn

from segcal.metrics import METRICS, SETS, Reliability, reliability, reliability_of_probs
from segcal.metrics.overlap import confusion, label_map
from segcal.metrics.statistics import check_finite, detached
from segcal.metrics.surface import mean_distance, missed, surfaces
from segcal.types import IGNORE, UserError, check_arrays, check_range, settings_of
from segcal.voxels import labels_of_target


class _Scores(torchmetrics.Metric):
    """What the classes share: sums, and values per case, whose means leave out NaN."""

    full_state_update = False
    case_sum: Tensor
    case_count: Tensor

    def __init__(
        self, n_classes: int, kinds: Sequence[str], settings: dict[str, Any], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_range("n_classes", n_classes, 2)
        self.n_classes = n_classes
        self.keys = tuple(key for key, row in METRICS.items() if row.of in kinds and not row.fine)
        # A MetricCollection takes metrics for one if their states have the same names and values;
        # a state named after the settings keeps them apart.
        self._add_sum("_".join(map(str, ["settings", *settings.values()])))

    def _add_sum(self, name: str, *shape: int) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def _apply(
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ""
    ) -> nn.Module:
        """Move to the model's device, but keep float64: a sum in bfloat16 stalls after some hundred
        cases. On Apple's GPUs, which have no float64, the sums stay on the CPU.
        """

        def moved(state: Tensor) -> Tensor:
            device = fn(torch.empty(0, device=state.device)).device
            return state.to("cpu" if device.type == "mps" else device)

        return super()._apply(moved, exclude_state)

    def _labels(self, logits: Tensor, target: Tensor) -> Tensor:
        labels = labels_of_target(logits, target)
        check_arrays(logits, labels)
        shape = tuple(logits.shape)
        if shape[1] != self.n_classes:
            raise UserError(f"this metric was made for {self.n_classes} classes; got shape {shape}")
        return labels

    def _add_case(self, values: Tensor) -> None:
        self.case_sum += values.where(~values.isnan(), 0)
        self.case_count += ~values.isnan()

    @property
    def _mean(self) -> Tensor:
        return self.case_sum / self.case_count  # 0 / 0 is NaN: no case had a value


class CalibrationScores(_Scores):
    """Every `bins` metric of `METRICS` for a mask, per case and pooled, from logits.

    Set as `reliability`. Over all voxels, the default, NLL, Brier and misplaced confidence are per
    voxel of the reference's foreground. ECE is for the other masks; any but `all` and `reference`
    has the metrics of `near`. An update is one case, whose N items are its slices; with
    `items_are_cases` each item is a case.

    >>> scores = CalibrationScores(n_classes=2)
    >>> scores.update(torch.tensor([[[0.0, 0.0], [9.0, 2.0]]]), torch.tensor([[1, 1]]))
    >>> print(f"{scores.compute()['misplaced']:.4f}")
    0.0597
    """

    statistics: Callable[..., Reliability] = staticmethod(reliability)
    sums: Tensor
    nll: Tensor
    brier: Tensor
    spread: Tensor
    selection: Tensor

    def __init__(self, n_classes: int, *, items_are_cases: bool = False, **settings: Any) -> None:
        defaults = settings_of(reliability)
        self.settings = {name: settings.pop(name, value) for name, value in defaults.items()}
        self.items_are_cases = items_are_cases
        # A bad setting fails here, not after the first epoch.
        reliability(torch.zeros(1, 2), torch.zeros(1).long(), **self.settings)
        distinct = self.settings | {"items_are_cases": items_are_cases}
        super().__init__(n_classes, ("bins",), distinct, **settings)
        mask = self.settings["mask"]
        self.voxels = mask if mask in SETS else "near"
        self.keys = tuple(key for key in self.keys if self.voxels in METRICS[key].voxels)
        for name in ("case_sum", "case_count"):
            self._add_sum(name, len(self.keys))
        self._add_sum("sums", 3, 1 + n_classes, self.settings["n_bins"])
        self._add_sum("nll")
        self._add_sum("brier")
        self._add_sum("spread", n_classes)
        self._add_sum("selection", self.settings["n_bins"])

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add one case: logits (N, K, *S), target (N, *S) or (N, 1, *S), as for `Criterion`."""
        labels = self._labels(logits, target)
        size = 1 if self.items_are_cases else len(logits)
        for x, y in zip(logits.split(size), labels.split(size), strict=True):
            case = self.statistics(x, y, **self.settings)
            self._add_case(torch.stack(list(self._scores(case).values())))
            pooled = self.bins + case
            self.sums, self.nll, self.brier, self.spread, self.selection = pooled.parts

    def _scores(self, bins: Reliability) -> dict[str, Tensor]:
        return {key: METRICS[key].over(self.voxels, bins) for key in self.keys}

    @property
    def bins(self) -> Reliability:
        """The pooled statistics so far (of all processes, inside `sync_context`)."""
        return Reliability(self.sums, self.nll, self.brier, self.spread, self.selection)

    def compute(self) -> dict[str, Tensor]:
        """Each score as the mean over cases, and as `<key>_pooled`."""
        pooled = {f"{key}_pooled": value for key, value in self._scores(self.bins).items()}
        return dict(zip(self.keys, self._mean, strict=True)) | pooled


class CalibrationScoresOfProbs(CalibrationScores):
    """The same as `CalibrationScores` for probabilities, such as those of ensembles."""

    statistics = staticmethod(reliability_of_probs)


class OverlapScores(_Scores):
    """Dice and surface distances per foreground class (K-1,), means over cases; `missed` is a sum.

    `<key>_mean` is a scalar: per case the mean over its classes, then the mean over cases.
    `dice_pooled` counts voxels over all cases. `distances=False` leaves out what takes longest.

    >>> scores = OverlapScores(n_classes=3)
    >>> logits = torch.tensor([[[[0.0, 1.0]], [[9.0, 0.0]], [[0.0, 0.0]]]])
    >>> scores.update(logits, torch.tensor([[[1, 0]]]), spacing=(1.0, 1.0))
    >>> scores.compute()["dice"], scores.compute()["dice_mean"]
    (tensor([1., nan], dtype=torch.float64), tensor(1., dtype=torch.float64))
    """

    confusion: Tensor

    def __init__(
        self, n_classes: int, *, ignore_index: int = IGNORE, distances: bool = True, **kwargs: Any
    ) -> None:
        self.settings = {"n_classes": n_classes, "ignore_index": ignore_index}
        kinds = ("confusion", "surfaces") if distances else ("confusion",)
        super().__init__(n_classes, kinds, self.settings, **kwargs)
        for name in ("case_sum", "case_count"):
            self._add_sum(name, len(self.keys), n_classes)  # K-1 classes, then their mean
        self._add_sum("confusion", n_classes, n_classes)

    def update(self, logits: Tensor, target: Tensor, *, spacing: Sequence[float] | None) -> None:
        """Add one case: logits (1, K, *S), target (1, *S) or (1, 1, *S); `spacing` per axis of S in
        millimetres, or `None` for voxels.
        """
        labels = self._labels(logits, target)
        if len(logits) != 1:
            got = f"one case per update: logits must be (1, K, *S), got shape {tuple(logits.shape)}"
            remedy = (
                "slices of one volume become a case by logits.movedim(0, 1)[None], labels[None]"
            )
            raise UserError(f"{got}; {remedy}")
        check_finite(logits)
        pred, truth = detached(label_map(logits))[0], detached(labels)[0]
        given: dict[str, Any] = {"confusion": confusion(pred, truth, **self.settings)}
        if "asd" in self.keys:
            given["surfaces"] = surfaces(pred, truth, spacing=spacing, **self.settings)
        rows = []
        for row in (METRICS[key] for key in self.keys):
            values = row.function(given[row.of]).double()
            mean = values.nanmean()
            if row.of == "surfaces":
                mean = mean_distance(values, missed(given["surfaces"]).to(values.device))
            rows.append(torch.cat([values, mean[None]]).to(self.device))
        self._add_case(torch.stack(rows))
        self.confusion += given["confusion"]

    def compute(self) -> dict[str, Tensor]:
        """Each score per foreground class (K-1,) and, as `<key>_mean`, over them."""
        scores = dict(zip(self.keys, self._mean[:, :-1], strict=True))
        scores |= {f"{key}_mean": self._mean[i, -1] for i, key in enumerate(self.keys)}
        if scores.pop("missed_mean", None) is not None:
            scores["missed"] = self.case_sum[self.keys.index("missed"), :-1]
        return scores | {"dice_pooled": METRICS["dice"].function(self.confusion)}
