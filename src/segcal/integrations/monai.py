"""For MONAI: a handler that scores an epoch, and transforms that apply a saved calibrator.

The handler needs Ignite, as MONAI's engines do: `pip install pytorch-ignite`.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from monai.config import KeysCollection
from monai.data import MetaTensor, decollate_batch
from monai.transforms import MapTransform, Transform
from torch import Tensor

from segcal.calibrators import Fitted, load
from segcal.metrics import CalibrationScores, CalibrationScoresOfProbs, OverlapScores
from segcal.types import UserError, check_choice

OF = ("logits", "probs")


class ScoresHandler:
    """Calibration and overlap of an epoch's cases, into `engine.state.metrics`.

    A handler of an evaluator (`val_handlers=[ScoresHandler(3)]`), or one of its metrics, under the
    name of one of its scores: `key_val_metric={"nll": ScoresHandler(3)}`, with
    `metric_cmp_fn=lambda new, best: new < best`. Each item of a batch is a case. The scores are
    those of `CalibrationScores` and `OverlapScores`, means over cases; `dice_1` is that of the
    first foreground class.

    It reads logits before the engine's `postprocessing`, or with `postprocessed=True` what
    `postprocessing` made, such as `of="probs"`. Several processes give what one gives, if each has
    its own cases: `partition_dataset(..., even_divisible=False)`, because a sampler that makes
    parts even repeats cases. Distances between surfaces take time; they use the spacing of
    MetaTensors.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        of: str = "logits",
        postprocessed: bool = False,
        distances: bool = False,
        prefix: str = "",
        keys: Sequence[str] = ("pred", "label"),
        **settings: Any,
    ) -> None:
        check_choice("of", of, OF)
        kind = CalibrationScores if of == "logits" else CalibrationScoresOfProbs
        self.calibration = kind(n_classes, items_are_cases=True, **settings)
        ignore = {name: settings[name] for name in ("ignore_index",) if name in settings}
        self.overlap = OverlapScores(n_classes, distances=distances, **ignore)
        self.distances, self.postprocessed, self.prefix = distances, postprocessed, prefix
        self.keys = tuple(keys)

    def attach(self, engine: Any, name: str | None = None) -> None:
        """Score this engine's epochs; a name, given for a key metric, must be that of a score."""
        try:
            from ignite.engine import Events
            from monai.engines import IterationEvents
        except ImportError:
            raise UserError("ScoresHandler needs Ignite; pip install pytorch-ignite") from None
        if name is not None and name.removeprefix(self.prefix) not in self._names():
            known = ", ".join(self._names())
            raise UserError(f"a metric is named after one of its scores; got {name!r}, of {known}")
        # MONAI fires this event between the network and the engine's postprocessing.
        before = IterationEvents.FORWARD_COMPLETED
        engine.add_event_handler(Events.EPOCH_STARTED, self._reset)
        engine.add_event_handler(
            Events.ITERATION_COMPLETED if self.postprocessed else before, self._update
        )
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._compute)

    def _names(self) -> list[str]:
        """The names of the scores, without any case."""
        calibration = [f"{key}{end}" for key in self.calibration.keys for end in ("", "_pooled")]
        overlap = [f"{key}_mean" for key in self.overlap.keys if key != "missed"]
        return calibration + overlap

    def _reset(self, _: Any) -> None:
        self.calibration.reset()
        self.overlap.reset()

    def _update(self, engine: Any) -> None:
        output = engine.state.output
        items = output if isinstance(output, list) else decollate_batch(output)
        for item in items:
            scores, target = (torch.as_tensor(item[key])[None] for key in self.keys)
            self.calibration.to(scores.device).update(scores, target)
            spacing = _spacing(item[self.keys[1]]) if self.distances else None
            self.overlap.to(scores.device).update(scores, target, spacing=spacing)

    def _compute(self, engine: Any) -> None:
        scores = self.calibration.compute() | self.overlap.compute()
        for key, value in scores.items():
            if value.ndim == 0:
                engine.state.metrics[self.prefix + key] = value.item()
                continue
            for k, of_class in enumerate(value.tolist(), start=1):
                engine.state.metrics[f"{self.prefix}{key}_{k}"] = of_class


def _spacing(label: Any) -> tuple[float, ...]:
    if not isinstance(label, MetaTensor):
        raise UserError("distances need the spacing of a MetaTensor; load labels with LoadImaged")
    return tuple(float(size) for size in label.pixdim)


class Calibrate(Transform):
    """Apply a fitted calibrator to one case (K, *S), 2D or 3D; what came as MetaTensor stays one.

    `calibrator` is what `segcal.calibrators.fit` or `segcal.audit` gave, or where it was saved.
    From logits it makes logits, from `of="probs"` probabilities. It is refused for another number
    of classes. It warns where `identity`, such as `{"network": "mine"}`, is not what it was saved
    with.
    """

    def __init__(
        self,
        calibrator: Fitted | Path | str,
        *,
        of: str = "logits",
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        check_choice("of", of, OF)
        self.fitted = calibrator if isinstance(calibrator, Fitted) else load(Path(calibrator))
        if self.fitted.key == "lts":
            raise UserError("lts needs slices and their image; in MONAI apply ts, ts2 or vs")
        self.of = of
        fitted_on = self.fitted.record.get("identity", {})
        for name, wanted in (identity or {}).items():
            if fitted_on.get(name) != wanted:
                got = f"was fitted on {name} {fitted_on.get(name)!r}, not {wanted!r}"
                warnings.warn(f"this {self.fitted.key} {got}", stacklevel=2)

    def __call__(self, scores: Tensor) -> Tensor:
        """Calibrated logits or probabilities (K, *S)."""
        plain = torch.as_tensor(scores).as_subclass(Tensor)
        given = plain.log() if self.of == "probs" else plain
        n_axes = given.ndim - 1
        if n_axes not in (2, 3):
            raise UserError(f"Calibrate takes one case (K, *S); got shape {tuple(given.shape)}")
        volume = given[None] if n_axes == 3 else given[None, :, None]  # (1, K, D, H, W)
        out = self.fitted(volume).reshape(given.shape)
        if self.of == "probs":
            out = out.softmax(0)
        if not isinstance(scores, MetaTensor):
            return out
        return MetaTensor(out).copy_meta_from(scores)


class Calibrated(MapTransform):
    """`Calibrate` for some keys of a dictionary, in a `Compose` of postprocessing.

    `Compose([Calibrated("pred", "calibrators/ts2"), Activationsd("pred", softmax=True)])`
    """

    def __init__(
        self,
        keys: KeysCollection,
        calibrator: Fitted | Path | str,
        *,
        of: str = "logits",
        identity: Mapping[str, Any] | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.calibrate = Calibrate(calibrator, of=of, identity=identity)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """The same dictionary with calibrated values."""
        done = dict(data)
        for key in self.key_iterator(done):
            done[key] = self.calibrate(done[key])
        return done
