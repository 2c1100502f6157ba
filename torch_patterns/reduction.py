"""Reductions (PMPP chapter 10; seed texts 001, 003)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_patterns.functional import differentiable
from torch_patterns.registry import documented
from torch_patterns.scan import scan

_ops = torch.ops.torch_patterns


@documented("reduce")
def reduce(
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    op: str = "sum",
    keepdim: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """``x`` along ``dim``, combined into one value.

    Differentiable to every order in time O(n): products with zeros are exact, the gradients of max and min go to the
    first of equal values, that of logsumexp over nothing but -inf is 0; argmax and argmin have none. NaN propagates,
    and argmax and argmin give the first one; of equal values they give the first. A reduction over no elements gives
    the identity: 0, 1, the lowest or the highest value; its mean is NaN. The default is deterministic, and its rounding
    errors do not grow with the number of elements.

    Args:
        x: any shape; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        dim: what to reduce: one dimension, several, or ``None`` (or an empty list) for all; negative counts from the
            end. Dimensions that are not neighbours cost a copy.
        op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"``, ``"argmax"`` or ``"argmin"``; for floating point also
            ``"mean"`` and ``"logsumexp"``. argmax and argmin take one dimension or none; over all they index ``x``
            flattened.
        keepdim: keep the reduced dimensions with size 1.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor without the reduced dimensions, like ``x``; int64 for argmax, argmin, and sums and
        products of integers and bool. Half types combine in float32; under autocast, sum, prod, mean and logsumexp run
        in and return float32.

    Raises:
        IndexError: a dimension is out of range, or argmax or argmin of no elements.
        RuntimeError: a dimension appears twice.
        ValueError: ``op`` or ``algorithm`` is unknown, the device does not offer the algorithm, or argmax or argmin
            over several dimensions.
        TypeError: the dtype is not supported, or mean or logsumexp of integers.
    """
    return _reduce(x, [dim] if isinstance(dim, int) else dim, op, keepdim, algorithm)


# ---- gradient formulas for torch.func; csrc/torch/reduce.cpp explains them and has the same in C++


def _reduced(dim: Sequence[int] | None, rank: int) -> list[int]:
    """The dimensions that are reduced, in order."""
    return sorted(d % rank for d in dim) if dim and rank else list(range(rank))


def _as_lines(x: Tensor, reduced: list[int]) -> Tensor:
    """[kept..., n]: the reduced dimensions as one, the last."""
    kept = [d for d in range(x.dim()) if d not in reduced]
    n = math.prod(x.shape[d] for d in reduced)
    return x.permute(kept + reduced).reshape([x.shape[d] for d in kept] + [n])


def _from_lines(y: Tensor, shape: torch.Size, reduced: list[int]) -> Tensor:
    order = [d for d in range(len(shape)) if d not in reduced] + reduced
    return y.reshape([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])


def _reduce_backward(inputs, y, g):
    x, dim, op, keepdim, algorithm = inputs
    rest = (None,) * 4
    if x.numel() == 0:
        return torch.zeros_like(x), *rest
    reduced = _reduced(dim, x.dim())

    def kept(t):
        for d in () if keepdim else reduced:
            t = t.unsqueeze(d)
        return t

    g = kept(g)
    if op in ("sum", "mean"):
        return (g if op == "sum" else g / math.prod(x.shape[d] for d in reduced)).expand(x.shape), *rest
    if op in ("max", "min"):
        lines = _as_lines(x, reduced)
        first = _reduce(lines.detach(), [-1], f"arg{op}", True, algorithm)
        ones = torch.zeros_like(lines).scatter(-1, first, g.reshape(first.shape))
        return _from_lines(ones, x.shape, reduced), *rest
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if op == "prod":
        lines = _as_lines(wide, reduced)
        before, after = (scan(lines, op="prod", exclusive=True, reverse=r) for r in (False, True))
        return (_from_lines(before * after, x.shape, reduced) * g).to(x.dtype), *rest
    most = kept(y).to(wide.dtype)
    return (g.to(wide.dtype) * (wide - most.masked_fill(most == -math.inf, 0)).exp()).to(x.dtype), *rest


_reduce = differentiable(_ops.reduce, _reduce_backward)


# ---- vmap: a batch dimension is one more that is kept


@torch.library.register_vmap("torch_patterns::reduce")
def _(info, in_dims, x, dim=None, op="sum", keepdim=False, algorithm="auto"):
    x = x.movedim(in_dims[0], 0)
    rank = x.dim() - 1
    size = max(rank, 1)
    for d in dim or ():
        if not -size <= d < size:
            raise IndexError(f"reduce: dim {d} is out of range; expected {-size} to {size - 1}")
    if dim and rank:
        return _ops.reduce(x, [d % rank + 1 for d in dim], op, keepdim, algorithm), 0
    y = _ops.reduce(x.reshape(x.shape[0], math.prod(x.shape[1:])), [1], op, False, algorithm)
    return (y.reshape(-1, *(1,) * rank) if keepdim else y), 0
