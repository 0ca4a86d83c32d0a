"""Training objectives that calibrate: pure functions, the table `LOSSES`, and `Criterion`, a module
for any trainer. Needs torch alone.

>>> import torch
>>> from segcal.losses import Criterion
>>> criterion = Criterion("mbls", margin=5.0)
>>> criterion(torch.zeros(2, 4, 8, 8), torch.zeros(2, 1, 8, 8))
tensor(1.3863)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segcal.losses.pointwise import ce, ecp, focal, ls, svls
from segcal.losses.regions import check_one_label, region_margin_penalty
from segcal.losses.summed import ce_dice, margin_penalty, mbls, mbls_dice, soft_dice
from segcal.types import UserError, check_settings, settings_of
from segcal.voxels import labels_of_target

__all__ = ["LOSSES", "Criterion", "Loss", "Validation", "ce", "ce_dice", "ecp", "focal", "ls"]
__all__ += ["margin_penalty", "mbls", "mbls_dice", "region_margin_penalty", "soft_dice", "svls"]

State = dict[str, Tensor]


@dataclass(frozen=True)
class Validation:
    """What an epoch's validation measured: what a loss with state learns from."""

    reliability: Any  # `segcal.metrics.Reliability` over reference voxels, of all cases
    dice: Tensor  # (K-1,): per foreground class, mean over cases


@dataclass(frozen=True)
class Loss:
    """A row of `LOSSES`.

    A loss that learns values besides the network's weights has a `state`, which gives the first
    values for a number of classes, and an `update`, a pure function that gives those of the next
    epoch. The loss takes them as keyword-only arguments without default.
    """

    function: Callable[..., Tensor]
    label: str
    help: str
    citation: str
    grid: tuple[Mapping[str, Any], ...] = ({},)  # the settings that the paper tried
    terms: tuple[Callable[..., Tensor], ...] = ()  # the parts it adds up, where there are several
    state: Callable[[int], State] | None = None
    update: Callable[[State, Validation], State] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The names and defaults of the function's settings."""
        return settings_of(self.function)


def _grid(name: str, *values: float) -> tuple[Mapping[str, Any], ...]:
    return tuple({name: value} for value in values)


_GOODFELLOW = "Goodfellow et al., Deep Learning, MIT Press 2016, section 6.2"
_ISLAM = "Islam and Glocker, IPMI 2021, doi:10.1007/978-3-030-78191-0_52"
_LIN = "Lin et al., ICCV 2017, doi:10.1109/ICCV.2017.324"
_VNET = "Milletari et al., 3DV 2016, doi:10.1109/3DV.2016.79"
_PEREYRA = "Pereyra et al., ICLR workshop 2017, arXiv:1701.06548"
_SZEGEDY = "Szegedy et al., CVPR 2016, doi:10.1109/CVPR.2016.308"
_MBLS = "Murugesan et al., Medical Image Analysis 87:102826, 2023, doi:10.1016/j.media.2023.102826"

_ALPHAS, _WEIGHTS = _grid("alpha", 0.1, 0.2, 0.3), _grid("weight", 0.1, 0.2, 0.3)
_GAMMAS, _MARGINS = _grid("gamma", 1.0, 2.0, 3.0), _grid("margin", 5.0, 8.0, 10.0)
_DICE, _MARGIN, _ALL = (ce, soft_dice), (ce, margin_penalty), (ce, soft_dice, margin_penalty)

LOSSES: dict[str, Loss] = {
    "ce": Loss(ce, "CE", "cross-entropy", _GOODFELLOW),
    "ce_dice": Loss(ce_dice, "CE+Dice", "cross-entropy plus soft Dice loss", _VNET, terms=_DICE),
    "focal": Loss(focal, "FL", "cross-entropy with less weight where confident", _LIN, _GAMMAS),
    "ecp": Loss(ecp, "ECP", "cross-entropy less a share of the entropy", _PEREYRA, _WEIGHTS),
    "ls": Loss(ls, "LS", "cross-entropy with smoothed labels", _SZEGEDY, _ALPHAS),
    "svls": Loss(svls, "SVLS", "cross-entropy with labels blurred in space", _ISLAM),
    "mbls": Loss(mbls, "MbLS", "cross-entropy plus a margin penalty", _MBLS, _MARGINS, _MARGIN),
    "mbls_dice": Loss(mbls_dice, "MbLS+Dice", "mbls plus soft Dice loss", _MBLS, _MARGINS, _ALL),
}


class Criterion(nn.Module):
    """A row of `LOSSES` as a module `(logits, target)`, as MONAI, Lightning and nnU-Net expect it.

    The target is (N, *S) or (N, 1, *S), whole numbers of any type. Only a loss with state needs
    `n_classes`; its learned values are buffers, so that a checkpoint keeps them.

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
            known = settings_of(term)
            settings = {name: value for name, value in self.settings.items() if name in known}
            values[term.__name__] = term(logits.detach(), labels, **settings)
        return values

    @torch.no_grad()
    def update(self, validation: Validation) -> None:
        """Replace the learned values by those of the next epoch."""
        if self.row.update is not None:
            values = self.row.update(dict(self.named_buffers()), validation)
            for name, value in values.items():
                self.get_buffer(name).copy_(value)

    def __repr__(self) -> str:
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return f"Criterion({', '.join([self.loss, *settings])})"


def _labels(logits: Tensor, target: Tensor) -> Tensor:
    labels = labels_of_target(logits, target)
    check_one_label(logits, target)
    return labels
