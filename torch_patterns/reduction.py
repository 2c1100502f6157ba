"""Reductions (PMPP chapter 10; csrc/reduction/reduction.h names further sources)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_patterns.batching import behind_batch
from torch_patterns.calls import ops
from torch_patterns.literals import SegmentOp
from torch_patterns.registry import documented


@documented("reduce")
def reduce(
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    op: SegmentOp = "sum",
    keepdim: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Combines the elements of ``x`` along ``dim`` into one value.

    Differentiable to every order in time O(n): gradients of products are exact even if factors are 0, the gradients of
    max and min go to the first of equal values, and the gradient of logsumexp is 0 if every element is -inf. argmax and
    argmin have no gradient. They give the index of the first NaN, else that of the first of equal values; all other
    operators propagate NaN. A reduction over no elements gives the identity: 0, 1, the lowest or the highest value; its
    mean is NaN. The default is deterministic, and its rounding errors do not grow with the number of elements.

    Args:
        x: any shape; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        dim: the dimension or dimensions to reduce; ``None`` or an empty list means all. Negative numbers count from the
            end. Dimensions that are not adjacent cost a copy.
        op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"``, ``"argmax"`` or ``"argmin"``; for floating point also
            ``"mean"`` and ``"logsumexp"``; ``"any"`` or ``"all"`` (whether one element, or every one, is not 0); for
            integers and bool ``"bitwise_and"``, ``"bitwise_or"`` or ``"bitwise_xor"``. argmax and argmin take one
            dimension, or none: then they give an index into the flattened ``x``. Along the ragged dimension of a jagged
            NestedTensor also ``"var"`` and ``"std"``, as of :func:`segment_reduce`.
        keepdim: keep the reduced dimensions with size 1.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor without the reduced dimensions. Its dtype is that of ``x``; int64 for argmax, argmin,
        and sums and products of integers and bool; bool for any and all. Half types are combined in float32; under
        autocast, sum, prod, mean and logsumexp compute in float32 and return it.

    Raises:
        IndexError: a dimension is out of range, or argmax or argmin of no elements.
        RuntimeError: a dimension appears twice.
        ValueError: ``op`` or ``algorithm`` is unknown, the device does not offer the algorithm, argmax or argmin over
            several dimensions, or var or std other than along a ragged dimension.
        TypeError: the dtype is not supported, or mean, logsumexp, var or std of integers.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> tp.reduce(x, dim=0)
        tensor([4., 6.])
        >>> tp.reduce(x, op="argmax")
        tensor(3)
        >>> tp.reduce(x, dim=1, op="mean", keepdim=True)
        tensor([[1.5000],
                [3.5000]])
    """
    return ops.reduce(x, [dim] if isinstance(dim, int) else dim, op, keepdim, algorithm)


# ---- vmap: the batch dimension is one more dimension that is not reduced


@torch.library.register_vmap("torch_patterns::reduce")
def _(info, in_dims, x, dim=None, op="sum", keepdim=False, algorithm="auto"):
    x = x.movedim(in_dims[0], 0)
    rank = x.dim() - 1
    dim = [behind_batch("reduce", d, rank) for d in dim or ()]
    if dim and rank:
        return ops.reduce(x, dim, op, keepdim, algorithm), 0
    y = ops.reduce(x.reshape(x.shape[0], math.prod(x.shape[1:])), [1], op, False, algorithm)
    return (y.reshape(x.shape[0], *(1,) * rank) if keepdim else y), 0
