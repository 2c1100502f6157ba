"""Jagged NestedTensors: sequences of different lengths as one tensor, beside rows with offsets and padded tensors.

A ``torch.nested`` tensor of ``layout=torch.jagged`` holds [batch, length of each, ...] as rows laid end to end and
offsets, which is what the ``segment_*`` functions take. Therefore these functions take a jagged tensor in the place of
a tensor: ``reduce``, ``scan``, ``scan_with_indices``, ``linear_recurrence``, ``sort``, ``sort_keys`` and ``argsort``
along its ragged dimension (1) or along a later one; activations for each element, and ``linear`` for each row; and the
``segment_*`` functions with ``offsets`` left out, except ``segment_expand``, whose argument has one row per sequence. A
result with one row per element of a sequence is a jagged tensor of the same lengths; one with one row per sequence is a
dense tensor [batch, ...]. Gradients are those of the same function of each sequence. Along the ragged dimension,
``algorithm`` is one of those of the ``segment_*`` function that does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_patterns.arguments import integer, integers, refuse
from torch_patterns.batching import transforms_active

_ops = torch.ops.torch_patterns


def is_jagged(x: Any) -> bool:
    """Tells whether ``x`` is a NestedTensor of the layout ``torch.jagged``.

    Args:
        x: anything.

    Returns:
        A bool.

    Raises:
        Nothing: what is no tensor is not jagged.

    Example:
        >>> tp.jagged.is_jagged(torch.ones(3))
        False
    """
    return isinstance(x, Tensor) and x.is_nested and x.layout == torch.jagged


def rows_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows of a jagged tensor, laid end to end, and the offsets of its sequences.

    Args:
        x: a jagged tensor [batch, length of each, ...].

    Returns:
        (values, offsets): rows [n, ...], which share memory with ``x`` unless there are gaps between its sequences, and
        [batch + 1].

    Raises:
        TypeError: ``x`` is not a jagged NestedTensor.
        ValueError: its ragged dimension is not 1.

    Example:
        >>> x = tp.jagged.from_rows(torch.arange(3.0), torch.tensor([0, 2, 3]))
        >>> tp.jagged.rows_of(x)
        (tensor([0., 1., 2.]), tensor([0, 2, 3]))
    """
    if not is_jagged(x):
        raise TypeError(f"rows_of: x must be a NestedTensor of the layout torch.jagged, got {type(x).__name__}")
    jagged: Any = x  # torch's types do not know the methods of jagged tensors
    if jagged._ragged_idx != 1:
        raise ValueError(f"a jagged tensor must have its ragged dimension at 1, got one at {jagged._ragged_idx}")
    if jagged.lengths() is not None:  # sequences with gaps between them
        jagged = torch.nested.as_nested_tensor(list(x.unbind()), layout=torch.jagged)
    return jagged.values(), jagged.offsets()


def from_rows(values: Tensor, offsets: Tensor) -> Tensor:
    """Builds a jagged tensor of rows [n, ...] laid end to end: sequence s is ``values[offsets[s] : offsets[s + 1]]``.

    Args:
        values: rows [n, ...] of any dtype.
        offsets: [batch + 1], int32 or int64: 0 first, n last, not decreasing. They are not checked.

    Returns:
        A jagged tensor [batch, length of each, ...] that shares memory with ``values``; differentiable.

    Raises:
        TypeError: ``values`` or ``offsets`` is not a dense tensor, or ``offsets`` are not int32 or int64.
        ValueError: ``values`` has no dimension, or ``offsets`` is not [batch + 1].
        RuntimeError: devices differ.

    Example:
        >>> x = tp.jagged.from_rows(torch.arange(3.0), torch.tensor([0, 2, 3]))
        >>> [part.tolist() for part in x.unbind()]
        [[0.0, 1.0], [2.0]]
    """
    for name, x in (("values", values), ("offsets", offsets)):
        if not isinstance(x, Tensor) or x.is_nested:
            raise TypeError(f"from_rows: {name} must be a dense tensor, got {type(x).__name__}")
    if offsets.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"from_rows: offsets must be int32 or int64, got {offsets.dtype}")
    if values.dim() == 0:
        raise ValueError("from_rows: values must be rows [n, ...], got []")
    if offsets.dim() != 1 or offsets.shape[0] == 0:
        raise ValueError(f"from_rows: offsets must be [batch + 1], got {[*offsets.shape]}")
    if values.device != offsets.device:
        raise RuntimeError(f"from_rows: values are on {values.device}, offsets on {offsets.device}")
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def _blamed(function: str, name: str, *args: Any) -> Tensor:
    """Calls an operator that checks offsets for ``function``, which its errors name."""
    try:
        return getattr(_ops, name)(*args)
    except (IndexError, TypeError, ValueError) as error:
        raise type(error)(str(error).replace(name, function, 1)) from None


def lengths_to_offsets(lengths: Tensor) -> Tensor:
    """Turns lengths [batch] into offsets [batch + 1]: 0, then the running sum.

    Args:
        lengths: [batch], integers, the length of each sequence.

    Returns:
        [batch + 1]; int32 for lengths of int32, int64 for all others.

    Raises:
        TypeError: ``lengths`` is no tensor of integers.
        ValueError: it has not one dimension; or, on the CPU, the sum of int32 is 2^31 or more.

    Example:
        >>> tp.jagged.lengths_to_offsets(torch.tensor([2, 0, 3]))
        tensor([0, 2, 2, 5])
    """
    integers("lengths_to_offsets", "lengths", lengths)
    ends = _ops.scan(lengths, 0)
    if lengths.dtype == torch.int32:
        if ends.is_cpu and len(ends) and not torch.compiler.is_compiling() and not transforms_active():
            if (total := int(ends[-1])) >= 2**31:
                raise ValueError(f"lengths_to_offsets: lengths are int32, but their sum is {total}; use int64")
        ends = ends.to(torch.int32)
    return torch.cat([ends.new_zeros(1), ends])


def offsets_to_lengths(offsets: Tensor) -> Tensor:
    """Turns offsets [batch + 1] into the lengths of the sequences, [batch].

    Args:
        offsets: [batch + 1], integers.

    Returns:
        [batch], of the dtype of ``offsets``.

    Raises:
        TypeError: ``offsets`` is no tensor of integers.
        ValueError: it has not one dimension.

    Example:
        >>> tp.jagged.offsets_to_lengths(torch.tensor([0, 2, 2, 5]))
        tensor([2, 0, 3])
    """
    integers("offsets_to_lengths", "offsets", offsets)
    return offsets.diff()


def jagged_to_dense(values: Tensor, offsets: Tensor, length: int, fill: float = 0.0) -> Tensor:
    """Copies sequences into a padded tensor [batch, length, ...], with ``fill`` after each; longer ones are cut off.

    Differentiable to every order in ``values``, and deterministic.

    Args:
        values: rows [n, ...] of all sequences, laid end to end.
        offsets: [batch + 1], int32 or int64: 0 first, n last, not decreasing. The CPU always checks them.
        length: the length of the padded sequences.
        fill: the value after the end of a sequence. Where ``values`` are integers it must be whole.

    Returns:
        [batch, length, ...], new, of the dtype of ``values``.

    Raises:
        IndexError: an offset is negative or beyond n.
        ValueError: ``length`` is negative, or ``fill`` not whole; offsets decrease, do not begin with 0 or end with n.
        TypeError: ``offsets`` are not integers, or an argument is no tensor.

    Example:
        >>> tp.jagged.jagged_to_dense(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 3]), 2)
        tensor([[1., 2.],
                [3., 0.]])
    """
    refuse("jagged_to_dense", "values", values, "Tensor")
    if values.dim() == 0:
        raise ValueError("jagged_to_dense: values must be rows, got a scalar")
    integers("jagged_to_dense", "offsets", offsets)
    length = integer("jagged_to_dense", "length", length)
    if length < 0:
        raise ValueError(f"jagged_to_dense: length must not be negative, got {length}")
    whole = not (values.is_floating_point() or values.is_complex())
    if whole and isinstance(fill, float) and not fill.is_integer():
        raise ValueError(f"jagged_to_dense: fill must be whole for {values.dtype}, got {fill}")
    n, batch = values.shape[0], offsets.shape[0] - 1
    steps = torch.arange(length, device=values.device)
    # On the CPU the sum of a one per row checks the offsets. CUDA takes a decreasing pair as an empty sequence.
    ones = None if values.is_cuda else values.new_ones(n, dtype=torch.int8)
    lengths = offsets.diff() if ones is None else _blamed("jagged_to_dense", "segment_reduce", ones, offsets)
    index = torch.where(steps < lengths[:, None], offsets[:-1, None].long() + steps, n).flatten()
    padded = torch.cat([values, values.new_full((1, *values.shape[1:]), fill)])
    return _ops.group_expand(padded, index).view(batch, length, *values.shape[1:])


def dense_to_jagged(x: Tensor, offsets: Tensor, total: int | None = None) -> Tensor:
    """Packs the rows of padded sequences [batch, length, ...]: the first ones of each, as many as ``offsets`` say.

    Differentiable to every order, and deterministic.

    Args:
        x: [batch, length, ...].
        offsets: [batch + 1], int32 or int64: 0 first, not decreasing. The CPU always checks them.
        total: n, the last offset; without it, the host reads it, and on CUDA waits for the device. With it, CUDA gives
            0 for rows beyond ``length``.

    Returns:
        Rows [n, ...], new, of the dtype of ``x``.

    Raises:
        IndexError: an offset is negative or beyond n.
        ValueError: ``offsets`` do not describe ``batch`` sequences, decrease, or do not begin with 0 or end with n; or
            one sequence is longer than ``length``; or ``x`` has less than two dimensions.
        TypeError: ``offsets`` are not integers, or an argument is no tensor.

    Example:
        >>> tp.jagged.dense_to_jagged(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 2, 3]))
        tensor([1., 2., 3.])
    """
    refuse("dense_to_jagged", "x", x, "Tensor")
    integers("dense_to_jagged", "offsets", offsets)
    if x.dim() < 2:
        raise ValueError(f"dense_to_jagged: x must be [batch, length, ...], got shape {list(x.shape)}")
    batch, length = x.shape[:2]
    if offsets.shape[0] != batch + 1:
        raise ValueError(f"dense_to_jagged: x has {batch} sequences, offsets are of {offsets.shape[0] - 1}")
    if total is None:
        total = int(offsets[-1])
        longest = int(offsets.diff().max()) if batch else 0
        if longest > length:
            raise ValueError(f"dense_to_jagged: a sequence of {longest} does not fit the length {length} of x")
    begins = torch.stack([torch.arange(batch, device=x.device) * length, offsets[:-1].long()], 1)
    row, begin = _blamed("dense_to_jagged", "segment_expand", begins, offsets, total).unbind(1)
    step = torch.arange(total, device=x.device) - begin
    try:
        return _ops.group_expand(x.flatten(0, 1), torch.where(step < length, row + step, -1))
    except IndexError:
        raise ValueError(f"dense_to_jagged: a sequence is longer than {length}, the length of x") from None


def to_dense(x: Tensor, fill: float = 0.0, length: int | None = None) -> Tensor:
    """Turns a jagged tensor into a padded one, [batch, length, ...]; by default as long as the longest sequence.

    Differentiable to every order.

    Args:
        x: a jagged tensor [batch, length of each, ...].
        fill: the value after the end of a sequence, as for :func:`jagged_to_dense`.
        length: the length of the padded sequences; longer ones are cut off. By default it is that of the longest
            sequence, for which the host waits for the device.

    Returns:
        [batch, length, ...], new, of the dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a jagged NestedTensor, or ``length`` is not an integer.
        ValueError: the ragged dimension is not 1, ``length`` is negative, or ``fill`` is not whole for integers.

    Example:
        >>> x = tp.jagged.from_rows(torch.arange(3.0), torch.tensor([0, 2, 3]))
        >>> tp.jagged.to_dense(x, fill=-1)
        tensor([[ 0.,  1.],
                [ 2., -1.]])
    """
    values, offsets = rows_of(x)
    if length is None:
        length = int(offsets.diff().max()) if offsets.shape[0] > 1 else 0
    return jagged_to_dense(values, offsets, length, fill)


def from_dense(x: Tensor, lengths: Tensor) -> Tensor:
    """Builds the jagged tensor of the first ``lengths[s]`` rows of each sequence of a padded [batch, length, ...].

    Differentiable to every order. The host waits for the device.

    Args:
        x: [batch, length, ...].
        lengths: [batch], integers from 0 to ``length``.

    Returns:
        A new jagged tensor [batch, length of each, ...] of the dtype of ``x``.

    Raises:
        ValueError: ``x`` has less than two dimensions, or ``lengths`` do not fit it, or one is negative.
        TypeError: ``lengths`` are not integers, or an argument is no tensor.

    Example:
        >>> x = tp.jagged.from_dense(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([2, 1]))
        >>> x.values()
        tensor([1., 2., 3.])
    """
    refuse("from_dense", "x", x, "Tensor")
    if x.dim() < 2:
        raise ValueError(f"from_dense: x must be [batch, length, ...], got shape {list(x.shape)}")
    offsets = lengths_to_offsets(lengths)
    batch, length = x.shape[:2]
    if lengths.shape != (batch,):
        raise ValueError(f"from_dense: x has {batch} sequences, lengths are of shape {list(lengths.shape)}")
    if batch and not torch.compiler.is_compiling():
        least, most = (int(end) for end in torch.stack(lengths.aminmax()))
        if least < 0 or most > length:
            raise ValueError(f"from_dense: lengths must be in 0 to {length}, the length of x, got {least} to {most}")
    return from_rows(dense_to_jagged(x, offsets), offsets)


def softmax(x: Tensor, dim: int = 1) -> Tensor:
    """Computes the softmax of a jagged tensor along its ragged dimension, or along a later one.

    Differentiable to every order.

    Args:
        x: a jagged tensor [batch, length of each, ...] of a floating-point dtype.
        dim: the ragged dimension, 1, or a later one; negative counts from the end.

    Returns:
        A new jagged tensor with the lengths and the dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a jagged NestedTensor, or its dtype is not supported.
        ValueError: ``dim`` is 0, the batch, or the ragged dimension is not 1.
        IndexError: ``dim`` is out of range.

    Example:
        >>> x = tp.jagged.from_rows(torch.zeros(3), torch.tensor([0, 2, 3]))
        >>> tp.jagged.softmax(x).values()
        tensor([0.5000, 0.5000, 1.0000])
    """
    return _along(x, dim, "softmax", lambda v, o: _ops.segment_softmax(v, o), lambda v, d: v.softmax(d))


def log_softmax(x: Tensor, dim: int = 1) -> Tensor:
    """Computes the logarithm of :func:`softmax`, without computing log(0).

    Args, Returns and Raises are those of :func:`softmax`.

    Example:
        >>> x = tp.jagged.from_rows(torch.zeros(3), torch.tensor([0, 2, 3]))
        >>> tp.jagged.log_softmax(x).values()
        tensor([-0.6931, -0.6931,  0.0000])
    """
    return _along(x, dim, "log_softmax", lambda v, o: _ops.segment_log_softmax(v, o), lambda v, d: v.log_softmax(d))


# ---- what functions of jagged tensors share


def _like(x: Tensor, values: Tensor) -> Tensor:
    """Returns rows as a jagged tensor with the lengths of ``x``, so that the two can be combined."""
    _, offsets = rows_of(x)
    return from_rows(values, offsets)


def _dim(x: Tensor, dim: int, name: str) -> int:
    dim = integer(name, "dim", dim)
    if not -x.dim() <= dim < x.dim():
        raise IndexError(f"{name}: dim {dim} is out of range; expected {-x.dim()} to {x.dim() - 1}")
    dim %= x.dim()
    if dim == 0:
        raise ValueError(f"{name}: a jagged tensor has no elements side by side along dim 0, its batch")
    return dim


def _along(x: Tensor, dim: int, name: str, ragged: Callable, plain: Callable) -> Any:
    """Calls ``ragged(values, offsets)`` along the ragged dimension, ``plain(values, dim)`` along a later one."""
    values, offsets = rows_of(x)
    dim = _dim(x, dim, name)
    out = ragged(values, offsets) if dim == 1 else plain(values, dim - 1)
    return tuple(_like(x, y) for y in out) if isinstance(out, tuple) else _like(x, out)
