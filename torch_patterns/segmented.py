"""Segmented reduction, expansion, softmax, scan, recurrence, selection and product: many sequences of different
lengths, laid end to end. A jagged NestedTensor has its own offsets, so with one they are left out (see jagged.py)."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from torch_patterns.batching import front, loop
from torch_patterns.calls import ops
from torch_patterns.literals import ScanOp, SegmentOp
from torch_patterns.registry import documented


@documented("segment_reduce")
def segment_reduce(
    values: Tensor,
    offsets: Tensor | None = None,
    *,
    op: SegmentOp = "sum",
    validate: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Combines the rows of each segment: ``y[s] = values[offsets[s]] . ... . values[offsets[s + 1] - 1]``.

    An empty segment gives the identity of ``op``; its mean is 0, with gradient 0. NaN stays in its segment.
    Differentiable to every order, except for the operators that give bits, truth values or indices: gradients of
    products are exact even if factors are 0, and the gradients of max and min go to the first of equal values. The
    default is deterministic. (Beyond the textbook's reductions.)

    Args:
        values: rows [n, ...]; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU always checks them. They are
            left out if ``values`` is a jagged NestedTensor.
        op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"``; for floating point ``"mean"``, ``"logsumexp"``, ``"var"`` and
            ``"std"`` (unbiased; NaN for fewer than two rows, as in torch); ``"argmax"`` or ``"argmin"`` (the row in
            ``values`` of the first greatest or least value; the first NaN if there is one; -1 for an empty segment);
            ``"any"`` or ``"all"`` (whether one row, or every row, is not 0); for integers and bool ``"bitwise_and"``,
            ``"bitwise_or"`` or ``"bitwise_xor"``.
        validate: check ``offsets`` on CUDA, too. This costs a synchronization and cannot be captured in a CUDA graph.
            Without it CUDA clamps each offset to 0..n and treats a decreasing pair as an empty segment.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [segments, ...], new and contiguous, of the dtype of ``values``; int64 for sums and products of integers and
        bool, and for argmax and argmin; bool for any and all. Half types are combined in float32; under autocast the
        operators that round (sum, prod, mean, var, std and logsumexp) compute in float32 and return it.

    Raises:
        IndexError: an offset is negative or beyond n; the message names the first.
        ValueError: offsets decrease, do not begin with 0 or end with n, or are empty; ``values`` is a scalar; ``op`` or
            ``algorithm`` is unknown, or the device does not offer the algorithm.
        TypeError: a dtype is not supported.
        RuntimeError: devices differ.

    Example:
        >>> values, offsets = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 3, 3, 4])
        >>> tp.segment_reduce(values, offsets)
        tensor([6., 0., 4.])
        >>> tp.segment_reduce(values, offsets, op="argmax")
        tensor([ 2, -1,  3])
    """
    return ops.segment_reduce(values, offsets, op, validate, algorithm)


@documented("segment_reduce")
def segment_expand(x: Tensor, offsets: Tensor, n: int, *, validate: bool = False, algorithm: str = "auto") -> Tensor:
    """Gives every row the value of its segment: ``y[i] = x[s]`` for ``offsets[s] <= i < offsets[s + 1]``.

    This is the gradient of a segmented sum, and a segmented sum is the gradient of this function. Differentiable to
    every order.

    Args:
        x: one row per segment, [segments, ...]; any dtype that ``segment_reduce`` takes.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU always checks them.
        n: how many rows there are.
        validate: check ``offsets`` on CUDA, too, as in ``segment_reduce``. Without it a row that lies in no segment
            gets 0.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [n, ...], new and contiguous, of the dtype of ``x``.

    Raises:
        IndexError, TypeError, RuntimeError: as ``segment_reduce``.
        ValueError: as ``segment_reduce``, or ``x`` does not have one row per segment, or ``n`` is negative.

    Example:
        >>> tp.segment_expand(torch.tensor([7, 8, 9]), torch.tensor([0, 3, 3, 4]), 4)
        tensor([7, 7, 7, 9])
    """
    return ops.segment_expand(x, offsets, n, validate, algorithm)


@documented("segment_scan")
def segment_scan(
    values: Tensor,
    offsets: Tensor | None = None,
    *,
    op: ScanOp = "sum",
    exclusive: bool = False,
    reverse: bool = False,
    validate: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Combines every prefix of each segment: a ``scan`` along the rows that restarts at every offset.

    Segments do not affect each other: NaN and infinities stay in their segment, also in gradients. Differentiable to
    every order in time O(n): gradients of products are exact even if factors are 0, and the gradients of max and min go
    to the first of equal values in scan order. The default is deterministic. (§11.6: a scan over pairs of a head flag
    and a value.)

    Args:
        values: rows [n, ...]; any dtype that ``segment_reduce`` takes.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU always checks them. They are
            left out if ``values`` is a jagged NestedTensor.
        op: ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``; ``"any"`` or ``"all"``; for integers and bool
            ``"bitwise_and"``, ``"bitwise_or"`` or ``"bitwise_xor"``; or ``"argmax"`` or ``"argmin"``, the row in
            ``values`` where the running extremum was first reached (not exclusive).
        exclusive: leave the row itself out of its prefix; the first of each segment gets the identity.
        reverse: scan each segment from its last row to its first.
        validate: check ``offsets`` on CUDA, too, as in ``segment_reduce``. Without it a row that lies in no segment
            gets the identity.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor like ``values``; int64 for sums and products of integers and bool. Half types are
        combined in float32; under autocast, computes in float32 and returns it.

    Raises:
        IndexError, ValueError, TypeError, RuntimeError: as ``segment_reduce``.

    Example:
        >>> tp.segment_scan(torch.tensor([1, 2, 3, 4]), torch.tensor([0, 3, 3, 4]))
        tensor([1, 3, 6, 4])
    """
    return ops.segment_scan(values, offsets, op, exclusive, reverse, validate, algorithm)


@documented("segment_reduce")
def segment_softmax(
    values: Tensor, offsets: Tensor | None = None, *, validate: bool = False, algorithm: str = "auto"
) -> Tensor:
    """Computes each segment's softmax: ``y[i] = exp(values[i] - m) / sum of exp(values[j] - m)`` over i's segment.

    m is the greatest value of the segment, so nothing overflows. A reduction finds m and the sum in one pass, and then
    the result of each row is computed. ``merge_path``, the default on CUDA, does so while the rows are in shared
    memory, so that only rows of segments that cross tiles are read twice. If rows have several columns, each column
    has its own softmax. As in torch, all results of a segment are NaN if it contains +inf or NaN, or nothing but -inf.
    Differentiable to every order; deterministic (beyond the book; Milakov and Gimelshein's online softmax, 2018).

    Args:
        values: rows [n, ...]; float16, bfloat16, float32 or float64.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU always checks them. They are
            left out if ``values`` is a jagged NestedTensor.
        validate: check ``offsets`` on CUDA, too, as in ``segment_reduce``. Without it a row that lies in no segment
            gets 0.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor like ``values``. Half types compute in float32; under autocast, computes in float32 and
        returns it.

    Raises:
        IndexError, ValueError, TypeError, RuntimeError: as ``segment_reduce``.

    Example:
        >>> tp.segment_softmax(torch.zeros(3), torch.tensor([0, 1, 3]))
        tensor([1.0000, 0.5000, 0.5000])
    """
    return ops.segment_softmax(values, offsets, validate, algorithm)


@documented("segment_reduce")
def segment_log_softmax(
    values: Tensor, offsets: Tensor | None = None, *, validate: bool = False, algorithm: str = "auto"
) -> Tensor:
    """Computes the logarithm of :func:`segment_softmax` as ``values[i] - m - log(sum)``: never log(0).

    Args, Returns and Raises are those of :func:`segment_softmax`.

    Example:
        >>> tp.segment_log_softmax(torch.zeros(3), torch.tensor([0, 1, 3]))
        tensor([ 0.0000, -0.6931, -0.6931])
    """
    return ops.segment_log_softmax(values, offsets, validate, algorithm)


@documented("segment_scan")
def segment_recurrence(
    a: Tensor,
    b: Tensor,
    offsets: Tensor | None = None,
    *,
    initial: Tensor | None = None,
    reverse: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Solves ``h[k] = a[k] h[k-1] + b[k]`` within each segment: state-space models over packed sequences.

    At the head of a segment ``h = b`` (``a`` is not used), or ``h = a * initial[s] + b`` if ``initial`` is given. NaN
    and infinities do not pass a segment's border, nor a factor of 0. Differentiable to every order in all three in time
    O(n); deterministic. (Hwu, lecture 4.4: "solving recurrences", with the head flags of §11.6.)

    Args:
        a: factors, rows [n, ...]; float16, bfloat16, float32 or float64.
        b: of the shape and dtype of ``a``.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU always checks them. They are
            left out if ``a`` or ``b`` is a jagged NestedTensor.
        initial: the state before each segment, [segments, ...] of the dtype of ``a``.
        reverse: run each segment from its last row to its first.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor like ``b``. Half types compute in float32; under autocast, computes in float32 and
        returns it.

    Raises:
        ValueError: shapes differ, or as ``segment_reduce``.
        IndexError, TypeError, RuntimeError: as ``segment_reduce``.

    Example:
        >>> tp.segment_recurrence(torch.full((3,), 2.0), torch.ones(3), torch.tensor([0, 1, 3]))
        tensor([1., 1., 3.])
    """
    return ops.segment_recurrence(a, b, offsets, reverse, initial, algorithm)


@overload
def segment_topk(
    values: Tensor,
    offsets: Tensor | None,
    k: int,
    *,
    largest: bool = True,
    validate: bool = False,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]: ...


@overload
def segment_topk(
    values: Tensor, *, k: int, largest: bool = True, validate: bool = False, algorithm: str = "auto"
) -> tuple[Tensor, Tensor]: ...


@documented("segment_sort")
def segment_topk(
    values: Tensor,
    offsets: Tensor | None = None,
    k: int | None = None,
    *,
    largest: bool = True,
    validate: bool = False,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Finds the ``k`` greatest or least values of each segment, best first, and the rows they come from.

    The result is that of a stable sort: equal values keep the order of their rows, and NaN is the greatest value, as in
    torch. ``"auto"`` selects up to 64 values per segment on the CPU; everything else sorts the segments and takes the
    first k of each. The gradient goes to the rows that are returned. Differentiable to every order.

    Args:
        values: [n]; any dtype that ``segment_reduce`` takes.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU always checks them. They are
            left out if ``values`` is a jagged NestedTensor.
        k: how many values to take from each segment; required, ``k=`` if ``offsets`` are left out.
        largest: whether to take the greatest values; else the least.
        validate: check ``offsets`` on CUDA, too, as in ``segment_reduce``.
        algorithm: ``"auto"``, or how the segments are sorted: one of the ladder below.

    Returns:
        (values, indices): [segments, k], of the dtype of ``values``, and int64 rows in ``values``. The result of a
        segment with fewer than k rows is filled up with the identity of the maximum (or minimum), -inf (or +inf) for
        floats, and with the index -1.

    Raises:
        ValueError: ``k`` is negative, ``values`` is not one-dimensional, or as ``segment_reduce``.
        IndexError, TypeError, RuntimeError: as ``segment_reduce``.

    Example:
        >>> tp.segment_topk(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 2, 3]), 2)
        (tensor([[3., 1.],
                [2., -inf]]), tensor([[ 1,  0],
                [ 2, -1]]))
    """
    if k is None:
        raise TypeError("segment_topk: k must be an integer, and is missing")
    return ops.segment_topk(values, offsets, k, largest, validate, algorithm)


@overload
def segment_matmul(
    x: Tensor, offsets: Tensor | None, weights: Tensor, *, validate: bool = False, algorithm: str = "auto"
) -> Tensor: ...


@overload
def segment_matmul(x: Tensor, *, weights: Tensor, validate: bool = False, algorithm: str = "auto") -> Tensor: ...


@documented("segment_matmul")
def segment_matmul(
    x: Tensor,
    offsets: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    validate: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Multiplies the rows of each segment by the segment's own matrix: ``y[i] = x[i] @ weights[s]``.

    It serves layers with one matrix per expert, relation or node type. On CUDA the default computes all products in one
    launch. It reads the offsets on the device, so the host does not wait, and a CUDA graph can capture it. Half types
    use the tensor cores of Hopper if ``inner`` and ``cols`` are multiples of 8. Large products (2**31 multiplications
    and more per segment, on average, in float32; 2**27 in float64, and in half types without these tensor cores) are
    faster by the device's BLAS, which then is the default, as it is on the CPU: it is called once per segment, or once
    for adjacent segments of equal length. For that the host reads the offsets, so the call cannot be captured;
    ``algorithm="grouped_gemm"`` can always be. Differentiable to every order in ``x`` and ``weights`` (beyond the
    book).

    Args:
        x: [n, inner]; float16, bfloat16, float32 or float64.
        offsets: [segments + 1], int32 or int64: 0 first, n last, not decreasing. The CPU always checks them. They are
            left out if ``x`` is a jagged NestedTensor.
        weights: [segments, inner, cols], of the dtype of ``x``; required, ``weights=`` if ``offsets`` are left out.
        validate: check ``offsets`` on CUDA, too. Without it a row that lies in no segment gets 0.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [n, cols], new and contiguous, of the dtype of ``x``; under autocast, of autocast's dtype.

    Raises:
        ValueError: a shape does not fit, or as ``segment_reduce``.
        IndexError, TypeError, RuntimeError: as ``segment_reduce``.

    Example:
        >>> tp.segment_matmul(torch.ones(3, 1), torch.tensor([0, 1, 3]), torch.tensor([[[2.0]], [[5.0]]])).flatten()
        tensor([2., 5., 5.])
    """
    if weights is None:
        raise TypeError("segment_matmul: weights must be a tensor, and are missing")
    return ops.segment_matmul(x, offsets, weights, validate, algorithm)


# ---- vmap: a batch of values is one more dimension of each row; if offsets are batched, a loop runs over the samples


def _register_vmap(name: str, tensors: int) -> None:
    """Registers the rule of an operator: its first ``tensors`` arguments are rows, the next one is offsets."""
    op = getattr(torch.ops.torch_patterns, name)

    def rule(info, in_dims, *args, **kwargs):
        if in_dims[tensors] is not None:
            dims = (*in_dims[: tensors + 1], *(None,) * (len(args) - tensors - 1))
            return loop(lambda *sample: op(*sample, **kwargs), info, dims, *args)
        rows = [front(x, d, info.batch_size).movedim(0, 1) for x, d in zip(args[:tensors], in_dims, strict=False)]
        return op(*rows, *args[tensors:], **kwargs), 1

    torch.library.register_vmap(f"torch_patterns::{name}", rule)


def _recurrence_rule(info, in_dims, a, b, offsets, reverse=False, initial=None, algorithm="auto"):
    op = torch.ops.torch_patterns.segment_recurrence
    dims = (*in_dims[:3], None, in_dims[4] if initial is not None else None, None)
    if in_dims[2] is not None:
        return loop(op, info, dims, a, b, offsets, reverse, initial, algorithm)
    a, b = (front(x, d, info.batch_size).movedim(0, 1) for x, d in zip((a, b), dims, strict=False))
    if initial is not None:
        initial = front(initial, dims[4], info.batch_size).movedim(0, 1)
    return op(a, b, offsets, reverse, initial, algorithm), 1


def _register_loop(name: str) -> None:
    op = getattr(torch.ops.torch_patterns, name)

    def rule(info, in_dims, *args, **kwargs):
        return loop(lambda *sample: op(*sample, **kwargs), info, in_dims, *args)

    torch.library.register_vmap(f"torch_patterns::{name}", rule)


for _name in ("segment_reduce", "segment_expand", "segment_softmax", "segment_log_softmax", "segment_scan"):
    _register_vmap(_name, 1)
for _name in ("segment_topk", "segment_matmul", "segment_matmul_wgrad"):
    _register_loop(_name)
torch.library.register_vmap("torch_patterns::segment_recurrence", _recurrence_rule)
