"""Segmented reduction, expansion and scan: many sequences of different lengths, laid end to end."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.batching import front, loop
from torch_patterns.functional import differentiable
from torch_patterns.registry import documented

_ops = torch.ops.torch_patterns
_HALF = (torch.float16, torch.bfloat16)


@documented("segment_reduce")
def segment_reduce(
    values: Tensor, offsets: Tensor, *, op: str = "sum", validate: bool = False, algorithm: str = "auto"
) -> Tensor:
    """Combines the rows of each segment: ``y[s] = values[offsets[s]] . ... . values[offsets[s + 1] - 1]``.

    An empty segment gives the identity of ``op``; its mean is 0, with gradient 0. NaN stays in its segment.
    Differentiable to every order but for argmax and argmin: products with zeros are exact, and the gradients of max
    and min go to the first of equal values. The default is deterministic. (Beyond the textbook's reductions.)

    Args:
        values: rows [n, ...]; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU checks that always.
        op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"``, ``"mean"`` (of floating point), ``"argmax"`` or ``"argmin"``
            (the row in ``values`` of the first of the greatest or least, NaN before all; -1 for an empty segment).
        validate: check what ``offsets`` hold on CUDA, too, at the price of one synchronisation; not in a CUDA graph.
            Without it CUDA clamps each offset to 0..n and takes a decreasing pair for an empty segment.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [segments, ...], new and contiguous, of the dtype of ``values``; int64 for sums and products of integers and
        bool, and for argmax and argmin. Half types combine in float32; under autocast sum, prod and mean run in and
        return float32.

    Raises:
        IndexError: an offset is negative or beyond n; the message tells the first.
        ValueError: offsets decrease, begin or end wrong, or are none; ``values`` is a scalar; ``op`` or ``algorithm``
            is unknown, or the device does not offer the algorithm.
        TypeError: a dtype is not supported.
        RuntimeError: devices differ.
    """
    return _reduce(values, offsets, op, validate, algorithm)


@documented("segment_reduce")
def segment_expand(x: Tensor, offsets: Tensor, n: int, *, validate: bool = False, algorithm: str = "auto") -> Tensor:
    """Gives every row the value of its segment: ``y[i] = x[s]`` for ``offsets[s] <= i < offsets[s + 1]``.

    It is the gradient of a segmented sum, and that sum is its gradient; differentiable to every order.

    Args:
        x: one row a segment, [segments, ...]; any dtype that ``segment_reduce`` takes.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU checks that always.
        n: how many rows there are.
        validate: check what ``offsets`` hold on CUDA, too, as in ``segment_reduce``. Without it a row that lies in no
            segment gets 0.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [n, ...], new and contiguous, of the dtype of ``x``.

    Raises:
        IndexError, TypeError, RuntimeError: as ``segment_reduce``.
        ValueError: as ``segment_reduce``, or ``x`` has not one row a segment, or ``n`` is negative.
    """
    return _expand(x, offsets, n, validate, algorithm)


@documented("segment_scan")
def segment_scan(
    values: Tensor,
    offsets: Tensor,
    *,
    op: str = "sum",
    exclusive: bool = False,
    reverse: bool = False,
    validate: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Every prefix of each segment, combined: a ``scan`` along the rows that starts anew at every offset.

    A segment knows nothing of its neighbours: NaN and infinities stay in theirs, in gradients too. Differentiable to
    every order in time O(n): products with zeros are exact, and the gradients of max and min go to the first of equal
    values in scan order. The default is deterministic. (§11.6's scan over pairs of a head flag and a value.)

    Args:
        values: rows [n, ...]; any dtype that ``segment_reduce`` takes.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU checks that always.
        op: ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``.
        exclusive: leave out the row itself; the first of each segment gets the identity.
        reverse: scan each segment from its last row to its first.
        validate: check what ``offsets`` hold on CUDA, too, as in ``segment_reduce``. Without it a row that lies in no
            segment gets the identity.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor like ``values``; int64 for sums and products of integers and bool. Half types combine
        in float32; under autocast, runs in and returns float32.

    Raises:
        IndexError, ValueError, TypeError, RuntimeError: as ``segment_reduce``.
    """
    return _scan(values, offsets, op, exclusive, reverse, validate, algorithm)


# ---- gradient formulas for torch.func; csrc/torch/segment_reduce.cpp and segment_scan.cpp explain them


def _beside(numbers: Tensor, x: Tensor) -> Tensor:
    """One number a row, shaped to go with rows x."""
    return numbers.reshape(-1, *(1,) * (x.dim() - 1))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in _HALF else x.dtype


def _reduce_backward(inputs, y, g):
    values, offsets, op, _, algorithm = inputs
    n, rest = values.shape[0], (None,) * 4
    if op == "sum":
        return _expand(g, offsets, n, False, algorithm), *rest
    wide = _wide(values)
    if op == "mean":
        lengths = offsets.clamp(0, n).diff().clamp(min=1).to(wide)
        return _expand((g.to(wide) / _beside(lengths, g)).to(g.dtype), offsets, n, False, algorithm), *rest
    if op == "prod":
        factors = values.to(wide)
        before, after = (_scan(factors, offsets, "prod", True, reverse, False, "auto") for reverse in (False, True))
        others = before * after
        return (_expand(g.to(wide), offsets, n, False, algorithm) * others).to(values.dtype), *rest
    found = _reduce(values, offsets, f"arg{op}", False, algorithm)
    zeros = torch.zeros(n + 1, *values.shape[1:], dtype=g.dtype, device=g.device)
    return zeros.scatter(0, found.masked_fill(found < 0, n), g).narrow(0, 0, n), *rest


def _expand_backward(inputs, y, g):
    return _reduce(g, inputs[1], "sum", False, inputs[4]), *(None,) * 4


def _next(x: Tensor, reverse: bool) -> Tensor:
    """x[k + 1] in scan order; what comes round from elsewhere is not used."""
    return x.roll(1 if reverse else -1, 0)


def _heads(offsets: Tensor, x: Tensor, reverse: bool) -> Tensor:
    """Where, in scan order, a segment begins, beside rows x."""
    n = x.shape[0]
    borders = torch.zeros(n + 1, dtype=torch.bool, device=x.device)
    return _beside(borders.index_fill(0, offsets.long().clamp(0, n), 1).narrow(0, int(reverse), n), x)


def _scan_backward(inputs, y, g):
    x, offsets, op, exclusive, reverse, _, algorithm = inputs
    rest = (None,) * 6
    if op == "sum":
        return _scan(g, offsets, "sum", exclusive, not reverse, False, algorithm), *rest
    wide = _wide(x)
    start = g.to(wide)
    if exclusive:
        start = _next(start, reverse).masked_fill(_heads(offsets, g, not reverse), 0)
    if op == "prod":
        factors = x.to(wide)
        after = segment_recurrence(_next(factors, reverse), start, offsets, not reverse, algorithm)
        before = _scan(factors, offsets, "prod", True, reverse, False, algorithm)
        return (before * after).to(x.dtype), *rest
    held = y if exclusive else _next(y, not reverse)
    keeps = ((held >= x if op == "max" else held <= x) | held.isnan()) & ~_heads(offsets, x, reverse)
    led = segment_recurrence(_next(keeps, reverse).to(wide), start, offsets, not reverse, algorithm)
    return led.masked_fill(keeps, 0).to(x.dtype), *rest


def _recurrence_backward(inputs, h, g):
    a, _, offsets, reverse, algorithm = inputs
    adjoint = segment_recurrence(_next(a, reverse), g, offsets, not reverse, algorithm)
    grad_a = (adjoint * _next(h, not reverse)).masked_fill(_heads(offsets, h, reverse), 0)
    return grad_a, adjoint, None, None, None


_reduce = differentiable(_ops.segment_reduce, _reduce_backward)
_expand = differentiable(_ops.segment_expand, _expand_backward)
_scan = differentiable(_ops.segment_scan, _scan_backward)
segment_recurrence = differentiable(_ops.segment_recurrence, _recurrence_backward)


# ---- vmap: a batch of values is one more dimension of each row; batched offsets take turns


def _register_vmap(name: str, tensors: int) -> None:
    """The rule for an operator whose first ``tensors`` arguments are rows, the next offsets, and the others plain."""
    op = getattr(_ops, name)

    def rule(info, in_dims, *args, **kwargs):
        if in_dims[tensors] is not None:
            dims = (*in_dims[: tensors + 1], *(None,) * (len(args) - tensors - 1))
            return loop(lambda *sample: op(*sample, **kwargs), info, dims, *args)
        rows = [front(x, d, info.batch_size).movedim(0, 1) for x, d in zip(args[:tensors], in_dims, strict=False)]
        return op(*rows, *args[tensors:], **kwargs), 1

    torch.library.register_vmap(f"torch_patterns::{name}", rule)


_register_vmap("segment_reduce", 1)
_register_vmap("segment_expand", 1)
_register_vmap("segment_scan", 1)
_register_vmap("segment_recurrence", 2)
