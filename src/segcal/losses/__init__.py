"""Training objectives that calibrate: pure functions, the table `LOSSES`, and one module for other
people's trainers.

Needs torch alone, so that it can live inside anyone's training code.

>>> import torch
>>> from segcal.losses import Criterion
>>> criterion = Criterion("mbls", margin=5.0)
>>> criterion(torch.zeros(2, 4, 8, 8), torch.zeros(2, 1, 8, 8))
tensor(1.3863)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from segcal.losses.dice import ce_dice, soft_dice
from segcal.losses.margin import margin_penalty, mbls, mbls_dice
from segcal.losses.pointwise import ce, ecp, focal, ls, svls
from segcal.types import UserError, check_settings, settings_of

__all__ = ["LOSSES", "Criterion", "Loss", "Validation", "ce", "ce_dice", "ecp", "focal", "ls"]
__all__ += ["margin_penalty", "mbls", "mbls_dice", "soft_dice", "svls"]

State = dict[str, Tensor]


@dataclass(frozen=True)
class Validation:
    """What an epoch's validation measured: what a loss with state learns from."""

    reliability: Any  # `segcal.metrics.Reliability`, pooled over all validation cases
    dice: Tensor  # (K-1,): per foreground class, mean over cases


@dataclass(frozen=True)
class Loss:
    """A row of `LOSSES`. `grid` holds the settings that the paper tried.

    A loss that learns values beside the network's weights has a `state`, a function of the number
    of classes that gives the first values, and an `update`, a pure function that gives the values
    of the next epoch. The loss takes them as keyword-only arguments without default.
    """

    function: Callable[..., Tensor]
    label: str
    help: str
    citation: str
    grid: tuple[Mapping[str, Any], ...] = ({},)
    terms: tuple[Callable[..., Tensor], ...] = ()  # the parts it adds up, where there are several
    state: Callable[[int], State] | None = None
    update: Callable[[State, Validation], State] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The names and defaults of the function's settings."""
        return settings_of(self.function)


def _grid(name: str, *values: float) -> tuple[Mapping[str, Any], ...]:
    return tuple({name: value} for value in values)


_MBLS = "Murugesan et al., Medical Image Analysis 87:102826, 2023, doi:10.1016/j.media.2023.102826"
_MARGINS = _grid("margin", 5.0, 8.0, 10.0)

LOSSES: dict[str, Loss] = {
    "ce": Loss(
        ce,
        "CE",
        "cross-entropy",
        "Goodfellow et al., Deep Learning, MIT Press 2016, section 6.2",
    ),
    "ce_dice": Loss(
        ce_dice,
        "CE+Dice",
        "cross-entropy plus soft Dice loss",
        "Milletari et al., 3DV 2016, doi:10.1109/3DV.2016.79",
        terms=(ce, soft_dice),
    ),
    "focal": Loss(
        focal,
        "FL",
        "focal loss: cross-entropy that counts confident voxels less",
        "Lin et al., ICCV 2017, doi:10.1109/ICCV.2017.324",
        _grid("gamma", 1.0, 2.0, 3.0),
    ),
    "ecp": Loss(
        ecp,
        "ECP",
        "explicit confidence penalty: cross-entropy less a share of the entropy",
        "Pereyra et al., ICLR workshop 2017, arXiv:1701.06548",
        _grid("weight", 0.1, 0.2, 0.3),
    ),
    "ls": Loss(
        ls,
        "LS",
        "label smoothing",
        "Szegedy et al., CVPR 2016, doi:10.1109/CVPR.2016.308",
        _grid("alpha", 0.1, 0.2, 0.3),
    ),
    "svls": Loss(
        svls,
        "SVLS",
        "spatially varying label smoothing: labels blurred in space",
        "Islam and Glocker, IPMI 2021, doi:10.1007/978-3-030-78191-0_52",
    ),
    "mbls": Loss(
        mbls,
        "MbLS",
        "margin-based label smoothing: cross-entropy plus a penalty on large logit distances",
        _MBLS,
        _MARGINS,
        (ce, margin_penalty),
    ),
    "mbls_dice": Loss(
        mbls_dice,
        "MbLS+Dice",
        "margin-based label smoothing plus soft Dice loss",
        _MBLS,
        _MARGINS,
        (ce, soft_dice, margin_penalty),
    ),
}


class Criterion(nn.Module):
    """A row of `LOSSES` as a module, for wherever MONAI, Lightning or nnU-Net expect a criterion
    `(logits, target)`.

    The target is (N, *S), or (N, 1, *S) as MONAI and nnU-Net give it, of any number type that holds
    whole numbers. Only a loss with state needs `n_classes`; its learned values are buffers, so they
    are saved with a checkpoint.

    >>> Criterion("ls", alpha=0.2)
    Criterion(ls, alpha=0.2)
    """

    def __init__(self, loss: str, *, n_classes: int | None = None, **settings: Any) -> None:
        super().__init__()
        check_settings("loss", LOSSES, loss, settings)
        self.loss, self.settings, self.row = loss, settings, LOSSES[loss]
        if self.row.state is not None:
            if n_classes is None:
                raise UserError(f"{loss} learns values per class; give Criterion n_classes too")
            for name, value in self.row.state(n_classes).items():
                self.register_buffer(name, value)
        # A bad setting fails here, not after the first epoch.
        self(torch.zeros(1, n_classes or 2, 2), torch.zeros(1, 2).long())

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of logits (N, K, *S) against a target (N, *S) or (N, 1, *S)."""
        labels = _labels(logits, target)
        return self.row.function(logits, labels, **self.settings, **dict(self.named_buffers()))

    @torch.no_grad()
    def parts(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The terms of a loss that adds up several, unweighted, for the log; else empty."""
        values, labels = {}, _labels(logits, target)
        for term in self.row.terms:
            known = signature(term).parameters
            arguments = self.settings | dict(self.named_buffers())
            arguments = {name: value for name, value in arguments.items() if name in known}
            values[term.__name__] = term(logits.detach(), labels, **arguments)
        return values

    @property
    def learns(self) -> bool:
        """Whether validation changes this loss."""
        return self.row.update is not None

    @torch.no_grad()
    def update(self, validation: Validation) -> None:
        """Replace the learned values by those of the next epoch."""
        if self.row.update is not None:
            state = self.row.update(dict(self.named_buffers()), validation)
            for name, value in state.items():
                self.get_buffer(name).copy_(value)

    def __repr__(self) -> str:
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return f"Criterion({', '.join([self.loss, *settings])})"


def _labels(logits: Tensor, target: Tensor) -> Tensor:
    if target.ndim == logits.ndim > 1 and target.shape[1] == 1:
        target = target.squeeze(1)  # (N, 1, *S) -> (N, *S)
    if not target.is_floating_point():
        return target
    labels = target.long()
    if not torch.compiler.is_compiling() and not torch.equal(labels.to(target.dtype), target):
        raise UserError("target must hold whole numbers (class labels); got fractions")
    return labels
