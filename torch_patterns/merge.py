"""Merging sorted sequences (PMPP chapter 12)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_patterns.arguments import integer, refuse
from torch_patterns.batching import front
from torch_patterns.calls import ops
from torch_patterns.registry import documented

_ops = torch.ops.torch_patterns


@documented("merge")
def merge(a: Tensor, b: Tensor, *, descending: bool = False, validate: bool = False, algorithm: str = "auto") -> Tensor:
    """Merges two sorted sequences into one (§12.1).

    Stable: among equal elements those of ``a`` come first, and both sequences keep their order. NaN of either sign is
    the greatest value, last ascending and first descending, and -0.0 equals +0.0, as in ``torch.sort``. Differentiable
    to every order: gradients go back through the permutation. Deterministic.

    Args:
        a: [..., m], sorted along its last dimension; bool, any integer, float16, bfloat16, float32 or float64.
        b: [..., n], sorted too, with equal leading dimensions, of the same dtype.
        descending: both inputs and the result are in descending order.
        validate: check that both are sorted, which costs a synchronization on CUDA. Without it, the result for unsorted
            input is some of its elements in some order.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor [..., m + n] of the same dtype.

    Raises:
        ValueError: with ``validate``, an input is not sorted (the message names the first element out of order); or the
            algorithm is unknown, or not offered by the device.
        TypeError: the dtypes differ, or are not supported.
        RuntimeError: leading dimensions or devices differ, or an argument is a scalar.

    Example:
        >>> tp.merge(torch.tensor([1, 3, 5]), torch.tensor([2, 3]))
        tensor([1, 2, 3, 3, 5])
    """
    return ops.merge(a, b, descending, validate, algorithm)


@documented("merge")
def merge_pairs(
    keys_a: Tensor,
    values_a: Tensor,
    keys_b: Tensor,
    values_b: Tensor,
    *,
    descending: bool = False,
    validate: bool = False,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Merges sorted keys as :func:`merge` does, and moves the value of each key with it.

    Args:
        keys_a: [..., m], sorted, of a dtype that :func:`merge` takes.
        values_a: [..., m], of any dtype of 1, 2, 4, 8 or 16 bytes; complex32 and float8 types have no gradients.
        keys_b: [..., n], sorted, of the dtype of ``keys_a``, with equal leading dimensions.
        values_b: [..., n], of the dtype of ``values_a``.
        descending: both inputs and the result are in descending order.
        validate: check that the keys are sorted.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        Keys and values, new contiguous tensors [..., m + n]. Both are differentiable, as in :func:`merge`.

    Raises:
        ValueError, TypeError, RuntimeError: as :func:`merge`; also if values differ in shape from their keys.

    Example:
        >>> a, b = torch.tensor([1, 3]), torch.tensor([2, 3])
        >>> tp.merge_pairs(a, torch.tensor([10, 11]), b, torch.tensor([20, 21]))
        (tensor([1, 2, 3, 3]), tensor([10, 20, 11, 21]))
    """
    return ops.merge_pairs(keys_a, values_a, keys_b, values_b, descending, validate, algorithm)


@documented("co_rank")
def co_rank(k: int | Tensor, a: Tensor, b: Tensor, *, descending: bool = False, algorithm: str = "auto") -> Tensor:
    """Counts how many of the first ``k`` elements of ``merge(a, b)`` come from ``a`` (§12.3, Fig. 12.5).

    The others, ``k - co_rank(k, a, b)``, come from ``b``. The part of the result between two ranks can therefore be
    merged independently of the rest.

    Args:
        k: from 0 to m + n; a number, or a tensor of integers. If ``a`` and ``b`` have leading dimensions, a number or a
            tensor that broadcasts with these gives one rank per row; with one more dimension at the end it gives
            several per row.
        a: [..., m], sorted, of a dtype that :func:`merge` takes.
        b: [..., n], sorted, with equal leading dimensions, of the same dtype.
        descending: both are in descending order.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        int64, of the shape of ``k``; if there are leading dimensions, these, then the last dimension of ``k`` if it has
        one more.

    Raises:
        IndexError: a rank is out of range. On CUDA, ranks in a tensor are not checked but clamped to 0..m + n.
        ValueError: the algorithm is unknown, or not offered by the device.
        TypeError: ``k`` is not an integer, or the dtypes differ or are not supported.
        RuntimeError: shapes or devices do not fit, or ``a`` or ``b`` is a scalar.

    Example:
        >>> a, b = torch.tensor([1, 3, 5]), torch.tensor([2, 3])
        >>> tp.co_rank(3, a, b)  # 1, 2, 3: two of the first three come from a
        tensor(2)
    """
    if not isinstance(k, Tensor):
        k = integer("co_rank", "k", k)
        refuse("co_rank", "a", a, "Tensor")
        refuse("co_rank", "b", b, "Tensor")
        total = a.shape[-1] + b.shape[-1] if a.dim() and b.dim() else k
        if not 0 <= k <= total:
            raise IndexError(f"co_rank: k is {k}, expected 0 to {total}")
        k = torch.full((), k, dtype=torch.int64, device=a.device)
    return ops.co_rank(k, a, b, descending, algorithm)


# ---- vmap: the batch dimension is one more leading dimension


def _register_vmap(name: str, tensors: int) -> None:
    op = getattr(_ops, name)

    def rule(info, in_dims, *args, **kwargs):
        rows = [front(x, d, info.batch_size) for x, d in zip(args[:tensors], in_dims, strict=False)]
        out = op(*rows, *args[tensors:], **kwargs)
        return out, (0,) * len(out) if isinstance(out, tuple) else 0

    torch.library.register_vmap(f"torch_patterns::{name}", rule)


_register_vmap("merge", 2)
_register_vmap("merge_pairs", 4)
_register_vmap("merge_backward", 3)


@torch.library.register_vmap("torch_patterns::co_rank")
def _(info, in_dims, k, a, b, *rest, **kwargs):
    k, a, b = (front(x, d, info.batch_size) for x, d in zip((k, a, b), in_dims, strict=False))
    shape = k.shape
    if a.dim() == 2:  # ``a`` and ``b`` are single sequences, so ``k`` has any shape
        queries = k.reshape(info.batch_size, math.prod(shape[1:]))
        return _ops.co_rank(queries, a, b, *rest, **kwargs).reshape(shape), 0
    missing = max(a.dim() - 1 - k.dim(), 0)
    return _ops.co_rank(k.reshape(shape[0], *(1,) * missing, *shape[1:]), a, b, *rest, **kwargs), 0
