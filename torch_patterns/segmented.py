"""Segmented reduction, expansion and scan: many sequences of different lengths, laid end to end."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.batching import front, loop
from torch_patterns.calls import ops
from torch_patterns.registry import documented


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
    return ops.segment_reduce(values, offsets, op, validate, algorithm)


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
    return ops.segment_expand(x, offsets, n, validate, algorithm)


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
    return ops.segment_scan(values, offsets, op, exclusive, reverse, validate, algorithm)


# ---- vmap: a batch of values is one more dimension of each row; batched offsets take turns


def _register_vmap(name: str, tensors: int) -> None:
    """The rule for an operator whose first ``tensors`` arguments are rows, the next offsets, and the others plain."""
    op = getattr(torch.ops.torch_patterns, name)

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
