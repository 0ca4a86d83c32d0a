"""How a loss hands autograd a gradient that it worked out itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def with_gradient(logits: Tensor, value: Tensor, grad: Tensor) -> Tensor:
    """`value`, whose derivative with respect to `logits` is `grad`; both were computed on detached logits.

    One saved tensor replaces the chain of copies that autograd would keep.
    """
    return _WithGradient.apply(logits, value, grad) if torch.is_grad_enabled() and logits.requires_grad else value


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(grad)
        return value.clone()

    @staticmethod
    @once_differentiable  # a second derivative through the saved gradient would silently be zero
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * outer, None, None
