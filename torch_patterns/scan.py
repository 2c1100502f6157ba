"""Scans, linear recurrences and scans with indices (PMPP chapter 11; csrc/scan/scan.h names further sources)."""

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
    """Combines every prefix of ``x`` along ``dim``.

    ``y[k] = x[0] . x[1] . ... . x[k]``. If ``exclusive``, ``x[k]`` is left out (and ``y[0]`` is the identity); if
    ``reverse``, positions count from the last element. Differentiable to every order in time O(n): gradients of
    products are exact even if factors are 0, and the gradients of max and min go to the first of equal values in scan
    order. NaN propagates. The default is deterministic.

    Args:
        x: any shape; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        dim: the dimension to scan; negative counts from the end.
        op: ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``; ``"any"`` or ``"all"``; for integers and bool
            ``"bitwise_and"``, ``"bitwise_or"`` or ``"bitwise_xor"``; or ``"argmax"`` or ``"argmin"``, the index of the
            running extremum, as :func:`scan_with_indices` gives it (not exclusive).
        exclusive: leave the element itself out of its prefix.
        reverse: scan from the last element to the first.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor of the shape and dtype of ``x``; int64 for sums and products of integers and bool, and
        for argmax and argmin; bool for any and all. Half types are combined in float32; under autocast, scans compute
        in float32 and return it.

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
    """Solves ``h[t] = a[t] h[t-1] + b[t]`` along ``dim`` (Hwu, lecture 4.4: "solving recurrences").

    The recurrence is a scan of the maps ``h -> a h + b`` under composition, so every scan algorithm can compute it.
    Differentiable to every order in ``a``, ``b`` and ``initial``.

    Composing maps multiplies the factors of distant steps, and such a product may overflow although no state does. If a
    product of consecutive factors overflows or underflows (float32 and half types: beyond 3.4e38) and the state before
    them is not 0, or if a factor is itself infinite, then the result may be infinite or NaN although the recurrence is
    finite. Only ``"sequential"`` and ``"naive"`` then give the result of the step-by-step definition. A state of
    exactly 0, and every state that follows from it, is as the definition says; a NaN among the factors makes every
    later state NaN. Factors of magnitude at most 1, as in stable recurrences, never overflow. The gradient of ``a[t]``
    is ``h[t-1]`` times what reaches ``h[t]`` from later steps: if that overflows and the state is 0, the gradient is
    NaN, as it is in a loop over the definition.

    Args:
        a: multipliers, broadcast with ``b``.
        b: terms. ``a``, ``b`` and ``initial`` may have different dtypes, which are promoted as in torch, to float16,
            bfloat16, float32 or float64.
        dim: the dimension of the broadcast shape along which the recurrence runs.
        initial: ``h`` before the first element, broadcast to the shape without ``dim``: ``h[0] = a[0] initial + b[0]``.
            Without it ``h[0] = b[0]``, and ``a[0]`` is not used (its gradient is 0).
        reverse: run from the last element to the first.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor of the broadcast shape and promoted dtype; half types are combined in float32.

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
    """Computes the running maximum or minimum of ``x`` along ``dim``, and where it was first reached (chapter 11).

    Of equal values, and of NaNs, the index is that of the first in scan order, which runs from the last element if
    ``reverse``; ``torch.cummax`` gives the last. NaN counts as greater than every number for the maximum, and as less
    for the minimum. Differentiable to every order: the gradient of an element is the sum of the gradients over the run
    in which it is the extremum, and a NaN among them stays in that run. Deterministic.

    Args:
        x: any shape; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        dim: the dimension to scan; negative counts from the end.
        op: ``"max"`` or ``"min"``.
        reverse: scan from the last element to the first.
        algorithm: ``"auto"`` or one of the ladder below, which computes the scans that this function is made of.

    Returns:
        (values, indices): values like ``x`` (float32 under autocast), as :func:`scan` gives them; indices along
        ``dim``, int64, of the same shape.

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


# ---- vmap: the batch dimension is one more dimension that is not scanned


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
