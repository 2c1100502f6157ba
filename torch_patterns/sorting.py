"""Sorts: of rows, of keys alone, of pairs, of positions, by several keys, and of segments (PMPP chapter 13; 000)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_patterns.batching import behind_batch, front, loop
from torch_patterns.calls import ops
from torch_patterns.registry import documented

_ops = torch.ops.torch_patterns


@documented("sort")
def sort(
    x: Tensor,
    dim: int = -1,
    *,
    descending: bool = False,
    index_dtype: torch.dtype = torch.int64,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The elements along ``dim`` in order, and where each came from.

    Stable, ascending and descending: equal elements keep their order. NaN of either sign is the greatest value, -0.0
    equals +0.0, and all of them keep their bits. Differentiable to every order: gradients go back to where the values
    came from.

    Args:
        x: any shape; bool, any integer, float16, bfloat16, float32 or float64.
        dim: the dimension to sort; negative counts from the end.
        descending: the greatest first.
        index_dtype: of the indices, ``torch.int64`` or ``torch.int32``.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        (values, indices), new contiguous tensors of the shape of ``x``: ``values = x.gather(dim, indices)``.

    Raises:
        IndexError: ``dim`` is out of range.
        ValueError: ``algorithm`` is unknown or not offered by the device, or ``index_dtype`` too narrow.
        TypeError: the dtype, or ``index_dtype``, is not supported.

    Example:
        >>> tp.sort(torch.tensor([3, 1, 2]), descending=True)
        (tensor([3, 2, 1]), tensor([0, 2, 1]))
    """
    return ops.sort(x, dim, descending, index_dtype, algorithm)


@documented("sort")
def sort_keys(
    x: Tensor,
    dim: int = -1,
    *,
    descending: bool = False,
    begin_bit: int = 0,
    end_bit: int | None = None,
    algorithm: str = "auto",
) -> Tensor:
    """The elements along ``dim`` in order, without the indices that cost most of a sort.

    ``begin_bit`` and ``end_bit`` restrict the order to some bits of the key, and with them the passes of a radix sort:
    bits of the unsigned integer that is ordered as the keys are, bit 0 the least. That is the bits of an unsigned key;
    of a signed one with the sign flipped; of a float with the sign set if it was clear, else all complemented (-0.0
    counting as +0.0, NaN as all ones); one bit of bool. ``descending`` complements it. Keys that are equal in these
    bits keep their order.

    Args:
        x: any shape; bool, any integer, float16, bfloat16, float32 or float64.
        dim: the dimension to sort; negative counts from the end.
        descending: the greatest first.
        begin_bit: the least bit to sort by.
        end_bit: one more than the highest bit to sort by; the width of the key without it.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor like ``x``. Differentiable, by its indices.

    Raises:
        IndexError: ``dim`` is out of range.
        ValueError: not 0 <= begin_bit <= end_bit <= width of the key, or ``algorithm`` is unknown or not offered.
        TypeError: the dtype is not supported.

    Example:
        >>> tp.sort_keys(torch.tensor([3, 1, 2]))
        tensor([1, 2, 3])
        >>> tp.sort_keys(torch.tensor([5, 6, 3, 4]), begin_bit=0, end_bit=1)  # by the lowest bit: even keys first
        tensor([6, 4, 5, 3])
    """
    return ops.sort_keys(x, dim, descending, begin_bit, end_bit, algorithm)


@documented("sort")
def sort_pairs(
    keys: Tensor,
    values: Tensor,
    dim: int = -1,
    *,
    descending: bool = False,
    begin_bit: int = 0,
    end_bit: int | None = None,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The keys along ``dim`` in order, and the values that go with them in the same order.

    Args:
        keys: any shape; bool, any integer, float16, bfloat16, float32 or float64.
        values: of the shape of ``keys``; any dtype of 1, 2, 4, 8 or 16 bytes (complex32 and float8 without gradients).
        dim: the dimension to sort; negative counts from the end.
        descending: the greatest key first.
        begin_bit: the least bit of the key to sort by, as for :func:`sort_keys`.
        end_bit: one more than the highest.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        (keys, values), new contiguous tensors. Differentiable in both.

    Raises:
        IndexError: ``dim`` is out of range.
        ValueError: the bits are out of range, or ``algorithm`` is unknown or not offered by the device.
        TypeError: a dtype is not supported.
        RuntimeError: shapes or devices differ.

    Example:
        >>> tp.sort_pairs(torch.tensor([3, 1, 2]), torch.tensor([30.0, 10.0, 20.0]))
        (tensor([1, 2, 3]), tensor([10., 20., 30.]))
    """
    return ops.sort_pairs(keys, values, dim, descending, begin_bit, end_bit, algorithm)


@documented("sort")
def argsort(
    x: Tensor,
    dim: int = -1,
    *,
    descending: bool = False,
    begin_bit: int = 0,
    end_bit: int | None = None,
    index_dtype: torch.dtype = torch.int64,
    algorithm: str = "auto",
) -> Tensor:
    """The indices that put ``x`` in order along ``dim``; not differentiable.

    Args:
        x: any shape; bool, any integer, float16, bfloat16, float32 or float64.
        dim: the dimension to sort; negative counts from the end.
        descending: the greatest first.
        begin_bit: the least bit of the key to sort by, as for :func:`sort_keys`.
        end_bit: one more than the highest.
        index_dtype: ``torch.int64`` or ``torch.int32``.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor of indices, of the shape of ``x``.

    Raises:
        IndexError: ``dim`` is out of range.
        ValueError: the bits are out of range, ``algorithm`` is unknown or not offered, or ``index_dtype`` too narrow.
        TypeError: the dtype, or ``index_dtype``, is not supported.

    Example:
        >>> tp.argsort(torch.tensor([3, 1, 2]), index_dtype=torch.int32)
        tensor([1, 2, 0], dtype=torch.int32)
    """
    return ops.argsort(x, dim, descending, begin_bit, end_bit, index_dtype, algorithm)


@documented("sort")
def lexsort(
    keys: Sequence[Tensor] | Tensor,
    dim: int = -1,
    *,
    descending: bool = False,
    index_dtype: torch.dtype = torch.int64,
    algorithm: str = "auto",
) -> Tensor:
    """The indices that order by several keys, the last of them the primary one, as ``numpy.lexsort``.

    Args:
        keys: tensors of one shape and any dtypes of keys, or one tensor whose rows they are.
        dim: the dimension of a key to sort; negative counts from the end.
        descending: the greatest first, by every key.
        index_dtype: ``torch.int64`` or ``torch.int32``.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor of indices, of the shape of a key; stable; not differentiable.

    Raises:
        IndexError: ``dim`` is out of range.
        ValueError: there is no key, or ``algorithm`` is unknown or not offered, or ``index_dtype`` too narrow.
        TypeError: a dtype is not supported.
        RuntimeError: shapes or devices differ.

    Example:
        >>> tp.lexsort([torch.tensor([9, 8, 7]), torch.tensor([1, 0, 1])])  # by the second key, then by the first
        tensor([1, 2, 0])
    """
    if len(keys) == 0:
        raise ValueError("lexsort: keys must hold one tensor at least")
    return ops.lexsort(list(keys), dim, descending, index_dtype, algorithm)


@documented("segment_sort")
def segment_sort(
    keys: Tensor,
    offsets: Tensor,
    *,
    descending: bool = False,
    begin_bit: int = 0,
    end_bit: int | None = None,
    validate: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """The keys of every segment in order; segments of any lengths, laid end to end.

    Stable, with the order of :func:`sort_keys`. Differentiable to every order. ``offsets`` that do not start at 0, end
    at n and never decrease are an error on the CPU, and on CUDA with ``validate``; without it, each counts as clamped
    to 0 and n, and what lies in no segment is copied.

    Args:
        keys: [n]; bool, any integer, float16, bfloat16, float32 or float64.
        offsets: [segments + 1], int32 or int64: segment s is ``keys[offsets[s] : offsets[s + 1]]``.
        descending: the greatest first.
        begin_bit: the least bit of the key to sort by, as for :func:`sort_keys`.
        end_bit: one more than the highest.
        validate: check the offsets on CUDA as well, at the price of one synchronisation.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new tensor like ``keys``.

    Raises:
        IndexError: an offset is out of range.
        ValueError: offsets decrease, or do not span the keys; the bits are out of range; ``keys`` or ``offsets`` is
            not one-dimensional; ``algorithm`` is unknown or not offered by the device.
        TypeError: a dtype is not supported.

    Example:
        >>> tp.segment_sort(torch.tensor([3, 1, 2, 9, 8]), torch.tensor([0, 3, 5]))
        tensor([1, 2, 3, 8, 9])
    """
    return ops.segment_sort(keys, offsets, descending, begin_bit, end_bit, validate, algorithm)


@documented("segment_sort")
def segment_sort_pairs(
    keys: Tensor,
    values: Tensor,
    offsets: Tensor,
    *,
    descending: bool = False,
    begin_bit: int = 0,
    end_bit: int | None = None,
    validate: bool = False,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The keys of every segment in order, and the values that go with them; otherwise as :func:`segment_sort`.

    Args:
        keys: [n]; bool, any integer, float16, bfloat16, float32 or float64.
        values: [n]; any dtype of 1, 2, 4, 8 or 16 bytes (complex32 and float8 without gradients).
        offsets: [segments + 1], int32 or int64.
        descending: the greatest key first.
        begin_bit: the least bit of the key to sort by, as for :func:`sort_keys`.
        end_bit: one more than the highest.
        validate: check the offsets on CUDA as well, at the price of one synchronisation.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        (keys, values), new tensors. Differentiable in both.

    Raises:
        IndexError, ValueError, TypeError: as :func:`segment_sort`.
        RuntimeError: the shapes or devices of keys and values differ.

    Example:
        >>> tp.segment_sort_pairs(torch.tensor([3, 1, 9, 8]), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 2, 4]))
        (tensor([1, 3, 8, 9]), tensor([1, 0, 3, 2]))
    """
    return ops.segment_sort_pairs(keys, values, offsets, descending, begin_bit, end_bit, validate, algorithm)


# ---- vmap: a batch dimension is one more dimension of rows, and one more call for segments


def _batched(op, tensors, dim, *rest):
    """op on tensors whose first dimension is the batch; of scalars, on rows of one."""
    scalars = tensors[0].dim() == 1
    dim = behind_batch(op.__name__, dim, tensors[0].dim() - 1)
    out = op(*(x.unsqueeze(1) for x in tensors) if scalars else tensors, dim, *rest)
    if isinstance(out, tuple):
        return tuple(y.squeeze(1) for y in out) if scalars else out, (0,) * len(out)
    return out.squeeze(1) if scalars else out, 0


@torch.library.register_vmap("torch_patterns::sort")
def _(info, in_dims, x, dim=-1, *rest):
    return _batched(_ops.sort, [x.movedim(in_dims[0], 0)], dim, *rest)


@torch.library.register_vmap("torch_patterns::sort_keys")
def _(info, in_dims, x, dim=-1, *rest):
    return _batched(_ops.sort_keys, [x.movedim(in_dims[0], 0)], dim, *rest)


@torch.library.register_vmap("torch_patterns::argsort")
def _(info, in_dims, x, dim=-1, *rest):
    return _batched(_ops.argsort, [x.movedim(in_dims[0], 0)], dim, *rest)


@torch.library.register_vmap("torch_patterns::sort_pairs")
def _(info, in_dims, keys, values, dim=-1, *rest):
    both = [front(x, d, info.batch_size) for x, d in zip((keys, values), in_dims, strict=False)]
    outputs, dims = _batched(_ops.sort_pairs, both, dim, *rest)
    if in_dims[0] is None:  # then so are the sorted keys, on which sizes may depend
        return (_ops.sort_keys(keys, dim, *rest), outputs[1]), (None, 0)
    return outputs, dims


@torch.library.register_vmap("torch_patterns::lexsort")
def _(info, in_dims, keys, dim=-1, *rest):
    every = [front(x, d, info.batch_size) for x, d in zip(keys, in_dims[0], strict=True)]
    scalars = every[0].dim() == 1
    dim = behind_batch("lexsort", dim, every[0].dim() - 1)
    order = _ops.lexsort([x.unsqueeze(1) for x in every] if scalars else every, dim, *rest)
    return order.squeeze(1) if scalars else order, 0


@torch.library.register_vmap("torch_patterns::segment_sort")
def _(info, in_dims, *args):
    return loop(_ops.segment_sort, info, in_dims, *args)


@torch.library.register_vmap("torch_patterns::segment_sort_pairs")
def _(info, in_dims, *args):
    return loop(_ops.segment_sort_pairs, info, in_dims, *args)
