"""Rows by an index instead of offsets: groups and their reduction, distinct values, runs of equal keys."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.batching import front, loop, zeros_sample
from torch_patterns.calls import ops
from torch_patterns.literals import SegmentOp
from torch_patterns.registry import algorithms, documented

_ops = torch.ops.torch_patterns


@documented("segment_reduce")
def group_reduce(
    values: Tensor,
    index: Tensor,
    num_groups: int,
    *,
    op: SegmentOp = "sum",
    validate: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Combines the rows of the same index: ``y[g]`` is the reduction of all ``values[i]`` with ``index[i] == g``.

    This is what ``torch.scatter_reduce`` and torch_scatter's ``scatter`` do, but with every operator of
    :func:`segment_reduce`, and with the same bits in every run. If an algorithm is named, it is a stable radix sort by
    the bits that ``num_groups`` needs, then a segmented reduction. The default does so on CUDA if the order of the rows
    matters. Otherwise, and on the CPU, it needs no sort. Sums of float32, float16 and bfloat16 on CUDA do not depend on
    the order, because they are computed exactly and rounded once, unless groups are so many that a sort takes less
    memory or time. A group without rows gives what an empty segment does. Differentiable to every order, as
    ``segment_reduce`` is (beyond the book).

    Args:
        values: rows [n, ...]; any dtype that ``segment_reduce`` takes.
        index: [n], int32 or int64, in any order, each 0 to ``num_groups - 1``. The CPU always checks them.
        num_groups: how many groups there are.
        op: as in ``segment_reduce``; ``"argmax"`` and ``"argmin"`` give rows of ``values``.
        validate: check ``index`` on CUDA, too. This costs a synchronization and cannot be captured in a CUDA graph.
            Without it CUDA leaves out rows whose index is out of range.
        algorithm: ``"auto"``, or how the sorted groups are reduced: one of the ladder below.

    Returns:
        [num_groups, ...], new and contiguous, of the dtype that ``segment_reduce`` gives.

    Raises:
        IndexError: an index is out of range; the message names the first.
        ValueError: ``index`` is not one-dimensional or not as long as ``values``; ``values`` is a scalar;
            ``num_groups`` is negative; ``op`` or ``algorithm`` is unknown.
        TypeError: a dtype is not supported.
        RuntimeError: devices differ.

    Example:
        >>> tp.group_reduce(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 2]), 3)
        tensor([2., 0., 5.])
    """
    return ops.group_reduce(values, index, num_groups, op, validate, algorithm)


@documented("segment_reduce")
def group_expand(x: Tensor, index: Tensor, *, validate: bool = False, algorithm: str = "auto") -> Tensor:
    """Gives every row the value of its group: ``y[i] = x[index[i]]``. Its gradient is the same in every run.

    This is the gradient of a sum over groups, and such a sum is the gradient of this function. Differentiable to every
    order.

    Args:
        x: one row per group, [groups, ...]; any dtype that ``segment_reduce`` takes.
        index: [n], int32 or int64, each 0 to ``groups - 1``. The CPU always checks them.
        validate: check ``index`` on CUDA, too. Without it an index out of range gives 0.
        algorithm: ``"auto"``, or how the gradient is reduced: one of the ladder below.

    Returns:
        [n, ...], new and contiguous, of the dtype of ``x``.

    Raises:
        IndexError, ValueError, TypeError, RuntimeError: as :func:`group_reduce`.

    Example:
        >>> tp.group_expand(torch.tensor([10.0, 20.0]), torch.tensor([1, 1, 0]))
        tensor([20., 20., 10.])
    """
    return ops.group_expand(x, index, validate, algorithm)


@documented("sort")
def group_by(
    index: Tensor, num_groups: int, *, validate: bool = False, algorithm: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Finds the order that puts rows of the same index next to each other, and where each group then begins.

    Every ``segment_*`` function takes ``values[perm]`` and ``offsets``. It is a stable radix sort by the bits that
    ``num_groups`` needs (chapter 13), so rows keep their order within a group.

    Args:
        index: [n], int32 or int64, each 0 to ``num_groups - 1``. The CPU always checks them.
        num_groups: how many groups there are.
        validate: check ``index`` on CUDA, too. Without it rows whose index is out of range come last and belong to no
            group.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        (perm, offsets): int64, [n] and [num_groups + 1].

    Raises:
        IndexError, ValueError, TypeError: as :func:`group_reduce`.

    Example:
        >>> tp.group_by(torch.tensor([2, 0, 2]), 3)
        (tensor([1, 0, 2]), tensor([0, 1, 1, 3]))
    """
    return ops.group_by(index, num_groups, validate, algorithm)


@documented("sort")
def unique(
    x: Tensor, *, return_inverse: bool = False, return_counts: bool = False, algorithm: str = "auto"
) -> Tensor | tuple[Tensor, ...]:
    """Finds the distinct values of ``x``, sorted, as ``torch.unique`` does.

    It sorts ``x`` and compacts the heads of its runs. The number of distinct values is computed on the device: on CUDA
    the host waits for it, and the call cannot be captured in a CUDA graph. No two NaN are equal, and of -0.0 and 0.0
    the one that comes first in ``x`` is kept. Not differentiable, as in torch.

    Args:
        x: any shape; any dtype that ``segment_reduce`` takes.
        return_inverse: also return, for each element, the index of its value in ``values``.
        return_counts: also return how often each value occurs.
        algorithm: ``"auto"``, or how ``x`` is sorted: one of the ladder below.

    Returns:
        values [distinct] and, if requested, inverse (int64, of the shape of ``x``) and counts (int64, [distinct]).

    Raises:
        TypeError: the dtype is not supported.
        ValueError: ``algorithm`` is unknown or not offered by the device.

    Example:
        >>> tp.unique(torch.tensor([3, 1, 3]), return_counts=True)
        (tensor([1, 3]), tensor([1, 2]))
    """
    values, inverse, counts = ops.unique(x, return_inverse, return_counts, algorithm)
    asked = (values, *([inverse] if return_inverse else []), *([counts] if return_counts else []))
    return asked if len(asked) > 1 else values


@documented("compact")
def run_length_encode(x: Tensor, *, algorithm: str = "auto") -> tuple[Tensor, Tensor]:
    """Finds the value and the length of each run of equal elements: ``values.repeat_interleave(counts)`` is ``x``.

    The host waits for the number of runs, as in :func:`unique`. No two NaN are equal. The gradient of a value goes to
    the first element of its run; differentiable to every order (CUB's ``DeviceRunLengthEncode``).

    Args:
        x: [n]; any dtype that ``segment_reduce`` takes.
        algorithm: ``"auto"``, or how the heads of the runs are packed: one of the ladder below.

    Returns:
        (values, counts): both [runs]; values of the dtype of ``x``, counts int64.

    Raises:
        ValueError: ``x`` is not one-dimensional, or ``algorithm`` is unknown or not offered by the device.
        TypeError: the dtype is not supported.

    Example:
        >>> tp.run_length_encode(torch.tensor([7, 7, 5]))
        (tensor([7, 5]), tensor([2, 1]))
    """
    return ops.run_length_encode(x, algorithm)


@documented("segment_reduce")
def reduce_by_key(
    keys: Tensor, values: Tensor, *, op: SegmentOp = "sum", algorithm: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Combines the values of each run of equal keys: sorted keys give one run per key (CUB's ``ReduceByKey``).

    The host waits for the number of runs, as in :func:`unique`. Differentiable to every order in ``values``; the
    gradient of a key goes to the first of its run.

    Args:
        keys: [n]; any dtype that ``segment_reduce`` takes.
        values: rows [n, ...].
        op: as in :func:`segment_reduce`.
        algorithm: ``"auto"``, or how the runs are reduced: one of the ladder below.

    Returns:
        (keys, values): the key of each run, [runs], and the reduced values, [runs, ...], of the dtype that
            ``segment_reduce`` gives.

    Raises:
        ValueError: ``keys`` is not one-dimensional, ``values`` does not have one row per key; ``op`` or ``algorithm``
            is unknown.
        TypeError: a dtype is not supported.
        RuntimeError: devices differ.

    Example:
        >>> tp.reduce_by_key(torch.tensor([7, 7, 5]), torch.tensor([1.0, 2.0, 4.0]))
        (tensor([7, 5]), tensor([3., 4.]))
    """
    return ops.reduce_by_key(keys, values, op, algorithm)


# ---- the operators whose result sizes depend on the data: fake implementations for compilers


def _runs(op: str, x: Tensor, most, pattern: str, algorithm: str):
    if algorithm != "auto" and algorithm not in algorithms(pattern):
        raise ValueError(f"{op}: unknown algorithm {algorithm!r}")
    size = torch.library.get_ctx().new_dynamic_size()
    torch._check(size <= most)
    return size


@torch.library.register_fake("torch_patterns::run_length_encode")
def _(x, algorithm="auto"):
    if x.dim() != 1:
        raise ValueError(f"run_length_encode: x must have one dimension, got shape {tuple(x.shape)}")
    runs = _runs("run_length_encode", x, x.shape[0], "compact", algorithm)
    return x.new_empty(runs), x.new_empty(runs, dtype=torch.int64)


@torch.library.register_fake("torch_patterns::reduce_by_key")
def _(keys, values, op="sum", algorithm="auto"):
    if keys.dim() != 1:
        raise ValueError(f"reduce_by_key: keys must have one dimension, got shape {tuple(keys.shape)}")
    # The meta device gives the shape and dtype of a reduction without computing it.
    one = _ops.segment_reduce(
        values.new_empty(0, *values.shape[1:], device="meta"),
        torch.empty(1, dtype=torch.int64, device="meta"),
        op,
        False,
        algorithm,
    )
    runs = _runs("reduce_by_key", keys, keys.shape[0], "segment_reduce", algorithm)
    return keys.new_empty(runs), values.new_empty(runs, *values.shape[1:], dtype=one.dtype)


@torch.library.register_fake("torch_patterns::unique")
def _(x, return_inverse=False, return_counts=False, algorithm="auto"):
    distinct = _runs("unique", x, x.numel(), "sort", algorithm)
    counts = x.new_empty(distinct if return_counts else 0, dtype=torch.int64)
    inverse = x.new_empty(x.shape if return_inverse else (0,), dtype=torch.int64)
    return x.new_empty(distinct), inverse, counts


# ---- vmap: if all samples share the index, a batch of rows is one more dimension of each row


def _rows_rule(name: str) -> None:
    op = getattr(_ops, name)

    def rule(info, in_dims, rows, index, *args, **kwargs):
        if in_dims[1] is not None:
            return loop(lambda *x: op(*x, **kwargs), info, (*in_dims[:2], *(None,) * len(args)), rows, index, *args)
        return op(front(rows, in_dims[0], info.batch_size).movedim(0, 1), index, *args, **kwargs), 1

    torch.library.register_vmap(f"torch_patterns::{name}", rule)


def _loop_rule(name: str):
    op = getattr(_ops, name)

    def rule(info, in_dims, *args, **kwargs):
        if info.batch_size == 0:
            outputs = op(*zeros_sample(in_dims, args), **kwargs)
            return tuple(y.new_empty(0, *y.shape) for y in outputs), (0,) * len(outputs)
        return loop(lambda *x: op(*x, **kwargs), info, in_dims, *args)

    return rule


_looped_by_key = _loop_rule("reduce_by_key")


@torch.library.register_vmap("torch_patterns::reduce_by_key")
def _(info, in_dims, keys, values, *args, **kwargs):
    if in_dims[0] is not None:
        return _looped_by_key(info, in_dims, keys, values, *args, **kwargs)
    rows = front(values, in_dims[1], info.batch_size).movedim(0, 1)
    return _ops.reduce_by_key(keys, rows, *args, **kwargs), (None, 1)


for _name in ("group_reduce", "group_expand"):
    _rows_rule(_name)
for _name in ("group_by", "unique", "run_length_encode"):
    torch.library.register_vmap(f"torch_patterns::{_name}", _loop_rule(_name))
