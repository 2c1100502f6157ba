"""Compaction: the elements that a mask keeps, packed in order; and partition, where the others follow."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.batching import front, loop
from torch_patterns.calls import ops
from torch_patterns.registry import algorithms, documented

_ops = torch.ops.torch_patterns


@documented("compact")
def compact(x: Tensor, mask: Tensor, *, algorithm: str = "auto") -> Tensor:
    """Packs the elements of ``x`` that ``mask`` keeps, in order: ``x[mask]`` (a scan and a scatter; beyond the book).

    The number of kept elements is computed on the device: on CUDA the host waits for it, and the call cannot be
    captured in a CUDA graph (see :func:`compact_padded`). Differentiable to every order; deterministic.

    Args:
        x: any shape; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        mask: bool; of the shape of ``x``, or of its leading dimensions: then it selects rows.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [kept, ...], where ... are the dimensions of ``x`` behind those of ``mask``; a new contiguous tensor. ``vmap``
        over ``mask`` requires masks that keep equally many elements.

    Raises:
        RuntimeError: the shape of ``mask`` does not fit, devices differ, or the call is being captured.
        ValueError: ``algorithm`` is unknown or not offered by the device.
        TypeError: the dtype is not supported, or ``mask`` is not bool.

    Example:
        >>> x = torch.tensor([5, 0, 7, 0])
        >>> tp.compact(x, x > 0)
        tensor([5, 7])
    """
    return ops.compact(x, mask, algorithm)


@documented("compact")
def compact_padded(x: Tensor, mask: Tensor, fill: float = 0, *, algorithm: str = "auto") -> tuple[Tensor, Tensor]:
    """Packs the elements of ``x`` that ``mask`` keeps, then ``fill``, to the size of ``x``: the host does not wait.

    ``values.flatten(0, mask.dim() - 1)[:count]`` is ``x[mask]``. The call can be captured in a CUDA graph.
    Differentiable to every order; deterministic (beyond the book).

    Args:
        x: any shape; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        mask: bool; of the shape of ``x``, or of its leading dimensions: then it selects rows.
        fill: the value of all elements after the kept ones. The dtype of ``x`` must be able to hold it: it must be
            whole for integers, is rounded for floats, and gives its truth value for bool.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        (values, count): values has the shape and dtype of ``x``, with the kept elements or rows first, in row-major
        order of the mask's dimensions; count is their number, a scalar int64 tensor.

    Raises:
        RuntimeError: the shape of ``mask`` does not fit, devices differ, or the dtype cannot hold ``fill``.
        ValueError: ``algorithm`` is unknown or not offered by the device.
        TypeError: the dtype is not supported, or ``mask`` is not bool.

    Example:
        >>> x = torch.tensor([5, 0, 7, 0])
        >>> tp.compact_padded(x, x > 0, fill=-1)
        (tensor([ 5,  7, -1, -1]), tensor(2))
    """
    return ops.compact_padded(x, mask, fill, algorithm)


@documented("compact")
def partition(x: Tensor, mask: Tensor, *, algorithm: str = "auto") -> tuple[Tensor, Tensor]:
    """Moves the rows that ``mask`` selects to the front, both sides in their order, and counts them.

    The result has the size of ``x``, so the call can be captured in a CUDA graph. Differentiable to every order;
    deterministic (beyond the book). CUB's ``DevicePartition`` does the same, but reverses the rows that are not
    selected.

    Args:
        x: rows [n, ...]; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        mask: [n], bool.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        (values, count): like ``x``, and a scalar int64 tensor.

    Raises:
        TypeError: the dtype is not supported, or ``mask`` is not bool.
        ValueError: ``mask`` is not one-dimensional, ``x`` is a scalar, or ``algorithm`` is unknown.
        RuntimeError: ``mask`` is not as long as ``x``, or devices differ.

    Example:
        >>> tp.partition(torch.tensor([1, 2, 3]), torch.tensor([False, True, True]))
        (tensor([2, 3, 1]), tensor(2))
    """
    return ops.partition(x, mask, algorithm)


# ---- the result size depends on the data: fake implementations for compilers


@torch.library.register_fake("torch_patterns::compact")
def _(x, mask, algorithm="auto"):
    if mask.dtype != torch.bool:
        raise TypeError(f"compact: mask must be bool, got {mask.dtype}")
    if x.device != mask.device:
        raise RuntimeError(f"compact: x is on {x.device}, mask on {mask.device}")
    if mask.dim() > x.dim() or tuple(mask.shape) != tuple(x.shape[: mask.dim()]):
        raise RuntimeError(f"compact: mask must have the shape of x or of its leading dimensions, got {mask.shape}")
    if algorithm != "auto" and algorithm not in algorithms("compact"):
        raise ValueError(f"compact: unknown algorithm {algorithm!r}")
    kept = torch.library.get_ctx().new_dynamic_size()
    torch._check(kept <= mask.numel())
    return x.new_empty(kept, *x.shape[mask.dim() :])


# ---- vmap: if all samples share the mask, the batch dimension is one more dimension of a row


@torch.library.register_vmap("torch_patterns::compact")
def _(info, in_dims, x, mask, algorithm="auto"):
    if in_dims[1] is None:
        return _ops.compact(x.movedim(in_dims[0], mask.dim()), mask, algorithm), 1
    if info.batch_size == 0:  # without a mask, the number of kept elements is not known
        rows = front(x, in_dims[0], 0)
        return rows.new_empty(0, 0, *rows.shape[mask.dim() :]), 0
    try:
        return loop(_ops.compact, info, (*in_dims[:2], None), x, mask, algorithm)
    except RuntimeError as error:
        if "stack expects" not in str(error):
            raise
        raise RuntimeError("compact: under vmap every mask must keep equally many; see compact_padded") from None


@torch.library.register_vmap("torch_patterns::compact_padded")
def _(info, in_dims, x, mask, fill=0, algorithm="auto"):
    if in_dims[1] is None:
        outputs = _ops.compact_padded(x.movedim(in_dims[0], mask.dim()), mask, fill, algorithm)
        return outputs, (mask.dim(), None)
    return loop(_ops.compact_padded, info, (*in_dims[:2], None, None), x, mask, fill, algorithm)


@torch.library.register_vmap("torch_patterns::compact_backward")
def _(info, in_dims, grad, mask, algorithm="auto"):
    if in_dims[1] is None:
        return _ops.compact_backward(grad.movedim(in_dims[0], 1), mask, algorithm), mask.dim()
    return loop(_ops.compact_backward, info, (*in_dims[:2], None), grad, mask, algorithm)


@torch.library.register_vmap("torch_patterns::partition")
def _(info, in_dims, x, mask, algorithm="auto"):
    if in_dims[1] is not None:
        return loop(_ops.partition, info, (*in_dims[:2], None), x, mask, algorithm)
    values, count = _ops.partition(front(x, in_dims[0], info.batch_size).movedim(0, 1), mask, algorithm)
    return (values, count), (1, None)
