"""Sorting: rows, keys alone, pairs, indices (argsort), several keys (lexsort), and segments (PMPP chapter 13)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_patterns.arguments import refuse
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
    """Sorts the elements along ``dim``, and returns with them the index that each came from.

    Stable, ascending and descending: equal elements keep their order. NaN of either sign is the greatest value, -0.0
    equals +0.0, and all of them keep their bits. Differentiable to every order: the gradient of an output goes to the
    input element that it came from.

    Args:
        x: any shape; bool, any integer, float16, bfloat16, float32 or float64.
        dim: the dimension to sort; negative counts from the end.
        descending: put the greatest first.
        index_dtype: the dtype of the indices, ``torch.int64`` or ``torch.int32``.
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
    """Sorts the elements along ``dim`` without computing indices, which would cost most of the time.

    ``begin_bit`` and ``end_bit`` restrict the comparison to some bits of the key, so a radix sort needs fewer passes.
    They refer to the unsigned integer that is ordered as the keys are, with bit 0 the least significant. For an
    unsigned key these are its own bits; for a signed key, its bits with the sign bit flipped; for a float, its bits
    with the sign bit set if the float is positive, and all bits complemented if it is negative (-0.0 counts as +0.0,
    and NaN as all ones); bool has one bit. ``descending`` complements them. Keys that are equal in these bits keep
    their order.

    Args:
        x: any shape; bool, any integer, float16, bfloat16, float32 or float64.
        dim: the dimension to sort; negative counts from the end.
        descending: put the greatest first.
        begin_bit: the lowest bit that is compared.
        end_bit: one more than the highest bit that is compared; by default, the number of bits of the key.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor like ``x``. It is differentiable: gradients follow the permutation.

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
    """Sorts the keys along ``dim``, and moves the values in the same way.

    Args:
        keys: any shape; bool, any integer, float16, bfloat16, float32 or float64.
        values: with the shape of ``keys``; any dtype of 1, 2, 4, 8 or 16 bytes (complex32 and float8 without
            gradients).
        dim: the dimension to sort; negative counts from the end.
        descending: put the greatest key first.
        begin_bit: the lowest bit of the key that is compared, as for :func:`sort_keys`.
        end_bit: one more than the highest bit that is compared.
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
    """Returns the indices that sort ``x`` along ``dim``; not differentiable.

    Args:
        x: any shape; bool, any integer, float16, bfloat16, float32 or float64.
        dim: the dimension to sort; negative counts from the end.
        descending: put the greatest first.
        begin_bit: the lowest bit of the key that is compared, as for :func:`sort_keys`.
        end_bit: one more than the highest bit that is compared.
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
    """Returns the indices that sort by several keys, of which the last is the primary one, as in ``numpy.lexsort``.

    Args:
        keys: tensors of one shape, with any dtypes that can be keys; or one tensor, each row of which is a key.
        dim: the dimension of a key to sort; negative counts from the end.
        descending: put the greatest first, for every key.
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
    if isinstance(keys, Tensor) and keys.dim() == 0:
        raise ValueError("lexsort: keys must be tensors, or one whose rows are keys, got a scalar")
    if not isinstance(keys, Sequence):
        refuse("lexsort", "keys", keys, "Tensor")
    if len(keys) == 0:
        raise ValueError("lexsort: keys must hold one tensor at least")
    return ops.lexsort(list(keys), dim, descending, index_dtype, algorithm)


@documented("segment_sort")
def segment_sort(
    keys: Tensor,
    offsets: Tensor | None = None,
    *,
    descending: bool = False,
    begin_bit: int = 0,
    end_bit: int | None = None,
    validate: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Sorts the keys within every segment. Segments may have any lengths and are stored end to end.

    Stable, with the order of :func:`sort_keys`. Differentiable to every order. ``offsets`` must start at 0, end at n
    and never decrease. Otherwise the CPU raises an error, and so does CUDA with ``validate``; without it, CUDA clamps
    each offset to 0 and n, and copies keys that lie in no segment.

    Args:
        keys: [n]; bool, any integer, float16, bfloat16, float32 or float64.
        offsets: [segments + 1], int32 or int64: segment s is ``keys[offsets[s] : offsets[s + 1]]``. They are left out
            if ``keys`` is a jagged NestedTensor.
        descending: put the greatest first.
        begin_bit: the lowest bit of the key that is compared, as for :func:`sort_keys`.
        end_bit: one more than the highest bit that is compared.
        validate: check the offsets on CUDA as well, which takes one synchronization.
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
    offsets: Tensor | None = None,
    *,
    descending: bool = False,
    begin_bit: int = 0,
    end_bit: int | None = None,
    validate: bool = False,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Sorts the keys within every segment, and moves the values in the same way; otherwise as :func:`segment_sort`.

    Args:
        keys: [n]; bool, any integer, float16, bfloat16, float32 or float64.
        values: [n]; any dtype of 1, 2, 4, 8 or 16 bytes (complex32 and float8 without gradients).
        offsets: [segments + 1], int32 or int64. They are left out if ``keys`` or ``values`` is a jagged NestedTensor.
        descending: put the greatest key first.
        begin_bit: the lowest bit of the key that is compared, as for :func:`sort_keys`.
        end_bit: one more than the highest bit that is compared.
        validate: check the offsets on CUDA as well, which takes one synchronization.
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


# ---- vmap: a batch of rows is sorted as one more dimension of rows; a batch of segments takes one call per sample


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
