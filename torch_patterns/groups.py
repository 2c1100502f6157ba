"""Rows by an index instead of offsets: groups and their reduction, distinct values, runs of equal keys, partition."""

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

    What ``torch.scatter_reduce`` and torch_scatter's ``scatter`` do, with every operator of :func:`segment_reduce`, and
    the same bits in every run: rows combine in their order. On CUDA, and by a named algorithm, it is a stable sort by
    the bits that ``num_groups`` has and a segmented reduction; on the CPU the default needs no sort. A group without
    rows gives what an empty segment does. Differentiable to every order, as ``segment_reduce`` is (beyond the book).

    Args:
        values: rows [n, ...]; any dtype that ``segment_reduce`` takes.
        index: [n], int32 or int64, in any order, each 0 to ``num_groups - 1``. The CPU checks that always.
        num_groups: how many groups there are.
        op: as in ``segment_reduce``; ``"argmax"`` and ``"argmin"`` give rows of ``values``.
        validate: check ``index`` on CUDA, too, at the price of one synchronisation; not in a CUDA graph. Without it
            CUDA leaves out the rows of an index that is out of range.
        algorithm: ``"auto"``, or how the sorted groups are reduced: one of the ladder below.

    Returns:
        [num_groups, ...], new and contiguous, of the dtype that ``segment_reduce`` gives.

    Raises:
        IndexError: an index is out of range; the message tells the first.
        ValueError: ``index`` has more than one dimension or another length than ``values``; ``values`` is a scalar;
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
    """Gives every row that of its group: ``y[i] = x[index[i]]``, with a gradient that is the same in every run.

    It is the gradient of a sum of groups, and that sum is its gradient; differentiable to every order.

    Args:
        x: one row per group, [groups, ...]; any dtype that ``segment_reduce`` takes.
        index: [n], int32 or int64, each 0 to ``groups - 1``. The CPU checks that always.
        validate: check ``index`` on CUDA, too. Without it an index out of range gives 0.
        algorithm: ``"auto"``, or how its gradient reduces: one of the ladder below.

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
    """The order that puts rows of the same index next to each other, and where each group then begins.

    ``values[perm]`` and ``offsets`` are what every ``segment_*`` function takes. The sort is stable: within a group
    rows keep their order (a radix sort by the bits that ``num_groups`` has; chapter 13).

    Args:
        index: [n], int32 or int64, each 0 to ``num_groups - 1``. The CPU checks that always.
        num_groups: how many groups there are.
        validate: check ``index`` on CUDA, too. Without it rows of an index that is out of range come last, in no group.
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
    """The distinct values of ``x``, sorted, as ``torch.unique`` gives them: a sort and a compaction of the runs' heads.

    How many there are only the device knows: on CUDA the host waits for it, and a call cannot be captured in a CUDA
    graph. No two NaN are equal, and of -0.0 and 0.0 the first of ``x`` is kept. Not differentiable, as torch's.

    Args:
        x: any shape; any dtype that ``segment_reduce`` takes.
        return_inverse: also give the place of each element's value.
        return_counts: also give how often each value occurs.
        algorithm: ``"auto"``, or how ``x`` is sorted: one of the ladder below.

    Returns:
        values [distinct], and, where asked for, inverse (int64, of the shape of ``x``) and counts (int64, [distinct]).

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
    """The value and the length of each run of equal elements: ``values.repeat_interleave(counts)`` is ``x``.

    How many runs there are only the device knows, as in :func:`unique`. No two NaN are equal. The gradient of a value
    goes to the first element of its run; differentiable to every order (CUB's ``DeviceRunLengthEncode``).

    Args:
        x: [n]; any dtype that ``segment_reduce`` takes.
        algorithm: ``"auto"``, or how the heads of the runs are packed: one of the ladder below.

    Returns:
        (values, counts): [runs], of the dtype of ``x``, and int64.

    Raises:
        ValueError: ``x`` has not one dimension, or ``algorithm`` is unknown or not offered by the device.
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

    How many runs there are only the device knows, as in :func:`unique`. Differentiable to every order in ``values``;
    the gradient of a key goes to the first of its run.

    Args:
        keys: [n]; any dtype that ``segment_reduce`` takes.
        values: rows [n, ...].
        op: as in :func:`segment_reduce`.
        algorithm: ``"auto"``, or how the runs are reduced: one of the ladder below.

    Returns:
        (keys, values): [runs], the key of each run, and [runs, ...], of the dtype that ``segment_reduce`` gives.

    Raises:
        ValueError: ``keys`` has not one dimension, ``values`` has not a row per key; ``op`` or ``algorithm`` is
            unknown.
        TypeError: a dtype is not supported.
        RuntimeError: devices differ.

    Example:
        >>> tp.reduce_by_key(torch.tensor([7, 7, 5]), torch.tensor([1.0, 2.0, 4.0]))
        (tensor([7, 5]), tensor([3., 4.]))
    """
    return ops.reduce_by_key(keys, values, op, algorithm)


@documented("sort")
def partition(x: Tensor, mask: Tensor, *, algorithm: str = "auto") -> tuple[Tensor, Tensor]:
    """The rows that ``mask`` selects, then the others, each in their order, and how many are selected.

    A stable sort by one bit. Its size is known, so it can be captured in a CUDA graph; differentiable to every order
    (CUB's ``DevicePartition``, which turns the others round).

    Args:
        x: rows [n, ...]; any dtype that ``segment_reduce`` takes.
        mask: [n], bool.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        (values, count): like ``x``, and a scalar int64 tensor.

    Raises:
        TypeError: the dtype is not supported, or ``mask`` is not bool.
        ValueError: ``mask`` has not one dimension, ``x`` is a scalar, or ``algorithm`` is unknown.
        RuntimeError: ``mask`` has another length than ``x``, or devices differ.

    Example:
        >>> tp.partition(torch.tensor([1, 2, 3]), torch.tensor([False, True, True]))
        (tensor([2, 3, 1]), tensor(2))
    """
    return ops.partition(x, mask, algorithm)


# ---- sizes that nobody knows, for compilers


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
    # What the reduction of one segment is, on a device that computes nothing.
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


# ---- vmap: where the index is the same for all samples, a batch of rows is one more dimension of each


def _rows_rule(name: str) -> None:
    op = getattr(_ops, name)

    def rule(info, in_dims, rows, index, *args, **kwargs):
        if in_dims[1] is not None:
            return loop(lambda *x: op(*x, **kwargs), info, (*in_dims[:2], *(None,) * len(args)), rows, index, *args)
        return op(front(rows, in_dims[0], info.batch_size).movedim(0, 1), index, *args, **kwargs), 1

    torch.library.register_vmap(f"torch_patterns::{name}", rule)


def _partition_rule(info, in_dims, x, mask, algorithm="auto"):
    if in_dims[1] is not None:
        return loop(_ops.partition, info, (*in_dims[:2], None), x, mask, algorithm)
    values, count = _ops.partition(front(x, in_dims[0], info.batch_size).movedim(0, 1), mask, algorithm)
    return (values, count), (1, None)


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
torch.library.register_vmap("torch_patterns::partition", _partition_rule)
