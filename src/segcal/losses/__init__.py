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
from segcal.types import UserError, check_choice

__all__ = [
    "LOSSES",
    "Criterion",
    "Loss",
    "ce",
    "ce_dice",
    "ecp",
    "focal",
    "ls",
    "margin_penalty",
    "mbls",
    "mbls_dice",
]
__all__ += ["soft_dice", "svls"]


@dataclass(frozen=True)
class Loss:
    """A row of `LOSSES`: a function, how it is printed, whom to cite, and the settings that the
    paper tried.
    """

    function: Callable[..., Tensor]
    label: str
    citation: str
    grid: tuple[Mapping[str, Any], ...] = ({},)
    terms: tuple[Callable[..., Tensor], ...] = ()  # the parts it adds up, where there are several

    @property
    def settings(self) -> dict[str, Any]:
        """The names and defaults of the function's settings."""
        parameters = signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _grid(name: str, *values: float) -> tuple[Mapping[str, Any], ...]:
    return tuple({name: value} for value in values)


_MBLS = "Murugesan et al., Medical Image Analysis 87:102826, 2023, doi:10.1016/j.media.2023.102826"
_DICE = "Milletari et al., 3DV 2016, doi:10.1109/3DV.2016.79"

LOSSES: dict[str, Loss] = {
    "ce": Loss(ce, "CE", "Goodfellow et al., Deep Learning, MIT Press 2016, section 6.2"),
    "ce_dice": Loss(ce_dice, "CE+Dice", _DICE, terms=(ce, soft_dice)),
    "focal": Loss(
        focal,
        "FL",
        "Lin et al., ICCV 2017, doi:10.1109/ICCV.2017.324",
        _grid("gamma", 1.0, 2.0, 3.0),
    ),
    "ecp": Loss(
        ecp,
        "ECP",
        "Pereyra et al., ICLR workshop 2017, arXiv:1701.06548",
        _grid("weight", 0.1, 0.2, 0.3),
    ),
    "ls": Loss(
        ls,
        "LS",
        "Szegedy et al., CVPR 2016, doi:10.1109/CVPR.2016.308",
        _grid("alpha", 0.1, 0.2, 0.3),
    ),
    "svls": Loss(svls, "SVLS", "Islam and Glocker, IPMI 2021, doi:10.1007/978-3-030-78191-0_52"),
    "mbls": Loss(mbls, "MbLS", _MBLS, _grid("margin", 5.0, 8.0, 10.0), (ce, margin_penalty)),
    "mbls_dice": Loss(
        mbls_dice,
        "MbLS+Dice",
        _MBLS,
        _grid("margin", 5.0, 8.0, 10.0),
        (ce, soft_dice, margin_penalty),
    ),
}


class Criterion(nn.Module):
    """A row of `LOSSES` as a module, for wherever MONAI, Lightning or nnU-Net expect a criterion
    `(logits, target)`.

    The target is (N, *S), or (N, 1, *S) as MONAI and nnU-Net give it, of any number type that holds
    whole numbers.

    >>> Criterion("ls", alpha=0.2)
    Criterion(ls, alpha=0.2)
    """

    def __init__(self, loss: str, **settings: Any) -> None:
        super().__init__()
        check_choice("loss", loss, tuple(LOSSES))
        for name in settings:
            check_choice(f"setting of {loss}", name, tuple(LOSSES[loss].settings))
        self.loss, self.settings = loss, settings
        self(
            torch.zeros(1, 2, 2), torch.zeros(1, 2).long()
        )  # a bad setting fails here, not after the first epoch

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of logits (N, K, *S) against a target (N, *S) or (N, 1, *S)."""
        return LOSSES[self.loss].function(logits, _labels(logits, target), **self.settings)

    @torch.no_grad()
    def parts(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The terms of a loss that adds up several, unweighted, for the log; empty for the others.
        Targets as for a call.
        """
        found, labels = {}, _labels(logits, target)
        for term in LOSSES[self.loss].terms:
            known = signature(term).parameters
            found[term.__name__] = term(
                logits.detach(), labels, **{k: v for k, v in self.settings.items() if k in known}
            )
        return found

    def __repr__(self) -> str:
        return (
            f"Criterion({', '.join([self.loss, *(f'{k}={v}' for k, v in self.settings.items())])})"
        )


def _labels(logits: Tensor, target: Tensor) -> Tensor:
    if target.ndim == logits.ndim > 1 and target.shape[1] == 1:
        target = target.squeeze(1)  # (N, 1, *S) -> (N, *S)
    if not target.is_floating_point():
        return target
    labels = target.long()
    if not torch.compiler.is_compiling() and not torch.equal(labels.to(target.dtype), target):
        raise UserError(
            "target must hold whole numbers (class labels); got fractions, as in soft labels"
        )
    return labels
