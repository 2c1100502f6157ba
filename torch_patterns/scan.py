"""Scans, linear recurrences and scans with indices (PMPP chapter 11; seed texts 000, 002, 003)."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.batching import behind_batch, front
from torch_patterns.calls import ops
from torch_patterns.literals import ExtremumOp, ScanOp
from torch_patterns.registry import documented


@documented("scan")
def scan(
    x: Tensor,
    dim: int = -1,
    *,
    op: ScanOp = "sum",
    exclusive: bool = False,
    reverse: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Every prefix of ``x`` along ``dim``, combined.

    ``y[k] = x[0] . x[1] . ... . x[k]``, without ``x[k]`` where ``exclusive`` (then ``y[0]`` is the identity), counted
    from the far end where ``reverse``. Differentiable to every order in time O(n): products with zeros are exact, and
    the gradients of max and min go to the first of equal values in scan order. NaN propagates. The default is
    deterministic.

    Args:
        x: any shape; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        dim: the dimension to scan; negative counts from the end.
        op: ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``; ``"any"`` or ``"all"``; of integers and bool
            ``"bitwise_and"``, ``"bitwise_or"`` or ``"bitwise_xor"``; or ``"argmax"`` or ``"argmin"``, the index of the
            running extremum, as :func:`scan_with_indices` gives it (not exclusive).
        exclusive: leave out the element itself.
        reverse: scan from the last element to the first.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor like ``x``; int64 for sums and products of integers and bool, and for places; bool for
        any and all. Half types combine in float32; under autocast, scans run in and return float32.

    Raises:
        IndexError: ``dim`` is out of range.
        ValueError: ``op`` or ``algorithm`` is unknown, or the device does not offer the algorithm.
        TypeError: the dtype is not supported.

    Example:
        >>> x = torch.tensor([3, 1, 4, 1])
        >>> tp.scan(x)
        tensor([3, 4, 8, 9])
        >>> tp.scan(x, op="max", reverse=True)
        tensor([4, 4, 4, 1])
        >>> tp.scan(x, exclusive=True, algorithm="blelloch")
        tensor([0, 3, 4, 8])
    """
    return ops.scan(x, dim, op, exclusive, reverse, algorithm)


@documented("linear_recurrence")
def linear_recurrence(
    a: Tensor,
    b: Tensor,
    dim: int = -1,
    *,
    initial: Tensor | None = None,
    reverse: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Solves ``h[t] = a[t] h[t-1] + b[t]`` along ``dim`` (003, "solving recurrences").

    It is the scan of the maps ``h -> a h + b`` under composition, so it takes any scan algorithm. Differentiable to
    every order in ``a``, ``b`` and ``initial``.

    Composing maps multiplies factors of distant steps with each other, and such a product may overflow where no state
    does. A state of exactly 0 stays what the definition says, and so does all that follows from it; a NaN among the
    factors makes every later state NaN. But where a product of consecutive factors overflows (float32 and half types:
    beyond 3.4e38; underflow to 0 is the same) and the state before them is not 0, or where a factor is itself infinite,
    the result may be infinite or NaN although the definition is finite; only ``"sequential"`` and ``"naive"`` follow
    the definition there step by step. Factors of magnitude 1 at most, as in stable recurrences, never overflow.
    The gradient of ``a[t]`` is ``h[t-1]`` times what reaches ``h[t]`` from later steps: where that overflows and the
    state is 0, the gradient is NaN, as a loop over the definition gives.

    Args:
        a: multipliers, broadcast with ``b``.
        b: terms. ``a``, ``b`` and ``initial`` may have different dtypes, which are promoted as in torch, to float16,
            bfloat16, float32 or float64.
        dim: the dimension to run along, of the broadcast shape.
        initial: ``h`` before the first element, broadcast to the shape without ``dim``: ``h[0] = a[0] initial + b[0]``.
            Without it ``h[0] = b[0]``, and ``a[0]`` is not used (its gradient is 0).
        reverse: run from the last element to the first.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor of the broadcast shape and promoted dtype; half types combine in float32.

    Raises:
        IndexError: ``dim`` is out of range.
        ValueError: ``algorithm`` is unknown or not offered by the device.
        TypeError: the promoted dtype is not floating point.
        RuntimeError: shapes do not broadcast, or devices differ.

    Example:
        >>> a, b = torch.tensor([2.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 1.0])
        >>> tp.linear_recurrence(a, b)
        tensor([1., 3., 7.])
        >>> tp.linear_recurrence(a, b, initial=torch.tensor(10.0))
        tensor([21., 43., 87.])
    """
    return ops.linear_recurrence(a, b, dim, initial, reverse, algorithm)


@documented("scan")
def scan_with_indices(
    x: Tensor, dim: int = -1, *, op: ExtremumOp = "max", reverse: bool = False, algorithm: str = "auto"
) -> tuple[Tensor, Tensor]:
    """The running maximum or minimum of ``x`` along ``dim``, and where it was first reached (chapter 11).

    Of equal values, and of NaNs, the first in scan order counts: from the far end where ``reverse``.
    ``torch.cummax`` takes the last. NaN is beyond every number, in either direction. Differentiable to every order: the
    gradient of an element is the sum over the run that it leads, in which NaN stays. Deterministic.

    Args:
        x: any shape; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        dim: the dimension to scan; negative counts from the end.
        op: ``"max"`` or ``"min"``.
        reverse: scan from the last element to the first.
        algorithm: ``"auto"`` or one of the ladder below, for the scans that it takes.

    Returns:
        (values, indices): values like ``x`` (float32 under autocast), as :func:`scan` gives them; indices of the same
        shape, int64, along ``dim``.

    Raises:
        IndexError: ``dim`` is out of range.
        ValueError: ``op`` or ``algorithm`` is unknown, or the device does not offer the algorithm.
        TypeError: the dtype is not supported.

    Example:
        >>> values, indices = tp.scan_with_indices(torch.tensor([1, 3, 2, 3]))
        >>> values, indices
        (tensor([1, 3, 3, 3]), tensor([0, 1, 1, 1]))
    """
    return ops.scan_with_indices(x, dim, op, reverse, algorithm)


# ---- vmap: a batch dimension is one more dimension of the array


@torch.library.register_vmap("torch_patterns::scan")
def _(info, in_dims, x, dim=-1, op="sum", exclusive=False, reverse=False, algorithm="auto"):
    x = x.movedim(in_dims[0], 0)
    dim = behind_batch("scan", dim, x.dim() - 1)
    if x.dim() == 1:
        return ops.scan(x.unsqueeze(1), 1, op, exclusive, reverse, algorithm).squeeze(1), 0
    return ops.scan(x, dim, op, exclusive, reverse, algorithm), 0


@torch.library.register_vmap("torch_patterns::linear_recurrence")
def _(info, in_dims, a, b, dim=-1, initial=None, reverse=False, algorithm="auto"):
    a, b = (front(t, d, info.batch_size) for t, d in zip((a, b), in_dims, strict=False))
    rank = max(a.dim(), b.dim()) - 1
    dim = behind_batch("linear_recurrence", dim, rank)
    if rank == 0:
        raise RuntimeError("linear_recurrence: a and b need a dimension to run along, got scalars")
    a, b = (t.reshape(t.shape[0], *(1,) * (rank + 1 - t.dim()), *t.shape[1:]) for t in (a, b))
    if initial is not None:
        initial = front(initial, in_dims[3], info.batch_size)
        initial = initial.reshape(initial.shape[0], *(1,) * (rank - initial.dim()), *initial.shape[1:])
    return ops.linear_recurrence(a, b, dim, initial, reverse, algorithm), 0


@torch.library.register_vmap("torch_patterns::scan_with_indices")
def _(info, in_dims, x, dim=-1, op="max", reverse=False, algorithm="auto"):
    x = x.movedim(in_dims[0], 0)
    dim = behind_batch("scan_with_indices", dim, x.dim() - 1)
    if x.dim() == 1:
        values, indices = ops.scan_with_indices(x.unsqueeze(1), 1, op, reverse, algorithm)
        return (values.squeeze(1), indices.squeeze(1)), (0, 0)
    return ops.scan_with_indices(x, dim, op, reverse, algorithm), (0, 0)
