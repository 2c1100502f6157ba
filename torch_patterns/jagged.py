"""Jagged NestedTensors: sequences of different lengths as one tensor, beside rows with offsets and padded tensors.

A ``torch.nested`` tensor of ``layout=torch.jagged`` holds [batch, length of each, ...] as rows laid end to end and
offsets, which is what the ``segment_*`` functions take. Therefore these functions take a jagged tensor in the place of
a tensor: ``reduce``, ``scan``, ``scan_with_indices``, ``linear_recurrence``, ``sort``, ``sort_keys`` and ``argsort``
along its ragged dimension (1) or along those behind it, activations and ``linear`` element by element and row by row,
and the ``segment_*`` functions with ``offsets`` left out, as ``None``. A result with a row per element of a sequence is
a jagged tensor of the same lengths; one with a row per sequence is a dense tensor [batch, ...]. All are differentiable.
Along the ragged dimension, ``algorithm`` is one of those of the ``segment_*`` function that does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_patterns.arguments import integer, integers, refuse
from torch_patterns.batching import transforms_active

_ops = torch.ops.torch_patterns


def is_jagged(x: Any) -> bool:
    """Tells whether ``x`` is a NestedTensor of the layout ``torch.jagged``.

    Example:
        >>> tp.jagged.is_jagged(torch.ones(3))
        False
    """
    return isinstance(x, Tensor) and x.is_nested and x.layout == torch.jagged


def rows_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows of a jagged tensor, laid end to end, and the offsets of its sequences.

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

    Example:
        >>> x = tp.jagged.from_rows(torch.arange(3.0), torch.tensor([0, 2, 3]))
        >>> [part.tolist() for part in x.unbind()]
        [[0.0, 1.0], [2.0]]
    """
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def _blamed(function: str, name: str, *args: Any) -> Tensor:
    """Calls an operator that checks offsets for ``function``, which its errors name."""
    try:
        return getattr(_ops, name)(*args)
    except (IndexError, TypeError, ValueError) as error:
        raise type(error)(str(error).replace(name, function, 1)) from None


def lengths_to_offsets(lengths: Tensor) -> Tensor:
    """Turns lengths [batch] into offsets [batch + 1]: 0, then the running sum; int32 of int32, else int64.

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

    Example:
        >>> x = tp.jagged.from_rows(torch.zeros(3), torch.tensor([0, 2, 3]))
        >>> tp.jagged.softmax(x).values()
        tensor([0.5000, 0.5000, 1.0000])
    """
    return _along(x, dim, "softmax", lambda v, o: _ops.segment_softmax(v, o), lambda v, d: v.softmax(d))


def log_softmax(x: Tensor, dim: int = 1) -> Tensor:
    """Computes the logarithm of :func:`softmax`.

    Example:
        >>> x = tp.jagged.from_rows(torch.zeros(3), torch.tensor([0, 2, 3]))
        >>> tp.jagged.log_softmax(x).values()
        tensor([-0.6931, -0.6931,  0.0000])
    """
    return _along(x, dim, "log_softmax", lambda v, o: _ops.segment_log_softmax(v, o), lambda v, d: v.log_softmax(d))


# ---- the operators of the library, with a jagged tensor as their first argument


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


def _scan(x, dim, op, exclusive, reverse, algorithm):
    def ragged(values, offsets):
        y = _ops.segment_scan(values, offsets, op, exclusive, reverse, False, algorithm)
        return _within(y, offsets) if op.startswith("arg") else y

    return _along(x, dim, "scan", ragged, lambda v, d: _ops.scan(v, d, op, exclusive, reverse, algorithm))


def _scan_with_indices(x, dim, op, reverse, algorithm):
    def ragged(values, offsets):
        y = _ops.segment_scan(values, offsets, op, False, reverse, False, algorithm)
        rows = _ops.segment_scan(values, offsets, f"arg{op}", False, reverse, False, algorithm)
        return y, _within(rows, offsets)

    return _along(
        x, dim, "scan_with_indices", ragged, lambda v, d: _ops.scan_with_indices(v, d, op, reverse, algorithm)
    )


def _within(rows: Tensor, offsets: Tensor) -> Tensor:
    """Turns row numbers among all sequences into positions within their own sequence."""
    begins = _ops.segment_expand(offsets[:-1].long(), offsets, rows.shape[0])
    return rows - begins.view(-1, *(1,) * (rows.dim() - 1))


def _reduce(x, dim, op, keepdim, algorithm):
    values, offsets = rows_of(x)
    if dim is None or len(dim) == 0:
        y = _ops.reduce(values, None, op, False, algorithm)
        return y.reshape((1,) * x.dim()) if keepdim else y
    dims = [_dim(x, d, "reduce") for d in dim]
    if 1 not in dims:
        return _like(x, _ops.reduce(values, [d - 1 for d in dims], op, keepdim, algorithm))
    if len(dims) > 1:
        raise ValueError(f"reduce: a jagged tensor is reduced along its ragged dim alone, or others, got {list(dim)}")
    y = _ops.segment_reduce(values, offsets, op, False, algorithm)
    if op.startswith("arg"):
        y = torch.where(y < 0, -1, y - offsets[:-1].long().view(-1, *(1,) * (y.dim() - 1)))
    return y.unsqueeze(1) if keepdim else y


def _check_alike(name: str, *tensors: Any) -> None:
    """ValueError if jagged tensors have sequences of different lengths (waits for the device if they do not share
    their offsets, and refuses that in compiled code, as torch does).
    """
    first, *others = (x for x in tensors if is_jagged(x))
    for x in others:
        if x.shape[:2] == first.shape[:2]:
            continue
        if torch.compiler.is_compiling() or not torch.equal(rows_of(x)[1], rows_of(first)[1]):
            raise ValueError(f"{name}: the jagged tensors have sequences of different lengths")


def _linear_recurrence(a, b, dim, initial, reverse, algorithm):
    _check_alike("linear_recurrence", a, b)
    x = b if is_jagged(b) else a
    (_, offsets), rows = rows_of(x), x.shape[0]
    a, b = (rows_of(t)[0] if is_jagged(t) else t for t in (a, b))
    if a.dim() == 0 or b.dim() == 0:
        a, b = (t.expand(rows_of(x)[0].shape) for t in (a, b))
    a, b = torch.broadcast_tensors(a, b)
    if _dim(x, dim, "linear_recurrence") == 1:
        start = initial if initial is None else initial.expand(rows, *b.shape[1:])
        return _like(x, _ops.segment_recurrence(a, b, offsets, reverse, start, algorithm))
    if initial is not None:
        initial = rows_of(initial)[0] if is_jagged(initial) else initial
    dim = _dim(x, dim, "linear_recurrence") - 1
    return _like(x, _ops.linear_recurrence(a, b, dim, initial, reverse, algorithm))


def _columns(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Callable]:
    """Returns rows as one line, column after column, the offsets of its segments, and the function that undoes it."""
    n, width = values.shape[0], values[:1].numel() if values.shape[0] else 0
    line = values.reshape(n, width).t().reshape(-1)
    starts = torch.arange(width, device=values.device) * n
    bounds = (starts[:, None] + offsets[:-1]).flatten()
    bounds = torch.cat([bounds, bounds.new_full((1,), n * width)])
    return line, bounds, lambda y: y.reshape(width, n).t().reshape(values.shape).contiguous()


def _sorts(name: str, plain: Callable, wanted: Sequence[int]):
    def sort(x, dim, descending, begin_bit, end_bit, index_dtype, algorithm, rest):
        if index_dtype not in (None, torch.int64, torch.int32):
            raise TypeError(f"{name}: index_dtype must be torch.int64 or torch.int32, got {index_dtype}")

        def ragged(values, offsets):
            line, bounds, back = _columns(values, offsets) if values.dim() > 1 else (values, offsets, lambda y: y)
            rows = torch.arange(line.shape[0], device=line.device)
            keys, order = _ops.segment_sort_pairs(line, rows, bounds, descending, begin_bit, end_bit, False, algorithm)
            begins = _ops.segment_expand(bounds[:-1].long(), bounds, line.shape[0])
            found = (back(keys), back(order - begins).to(index_dtype or torch.int64))
            return tuple(found[i] for i in wanted) if len(wanted) > 1 else found[wanted[0]]

        return _along(x, dim, name, ragged, lambda v, d: plain(v, d, *rest))

    return sort


def _sort(x, dim, descending, index_dtype, algorithm):
    rest = (descending, index_dtype, algorithm)
    return _sorts("sort", _ops.sort, (0, 1))(x, dim, descending, 0, None, index_dtype, algorithm, rest)


def _sort_keys(x, dim, descending, begin_bit, end_bit, algorithm):
    rest = (descending, begin_bit, end_bit, algorithm)
    return _sorts("sort_keys", _ops.sort_keys, (0,))(x, dim, descending, begin_bit, end_bit, None, algorithm, rest)


def _argsort(x, dim, descending, begin_bit, end_bit, index_dtype, algorithm):
    rest = (descending, begin_bit, end_bit, index_dtype, algorithm)
    by = _sorts("argsort", _ops.argsort, (1,))
    return by(x, dim, descending, begin_bit, end_bit, index_dtype, algorithm, rest)


def _elementwise(name: str):
    op = getattr(_ops, name)
    return lambda x, *rest: _like(x, op(rows_of(x)[0], *rest))


def _segments(name: str, given: int = 1, per_row: bool = True):
    """Handles an operator on segments: ``given`` arguments of rows, then offsets, which the caller must leave out."""
    op = getattr(_ops, name)

    def call(*args):
        _check_alike(name, *args[:given])
        x = next(a for a in args[:given] if is_jagged(a))
        offsets = rows_of(x)[1]
        if args[given] is not None:
            raise TypeError(f"{name}: a jagged tensor has offsets of its own: leave out the argument")
        out = op(*(rows_of(a)[0] if is_jagged(a) else a for a in args[:given]), offsets, *args[given + 1 :])
        return _like(x, out) if per_row else out

    return call


_HANDLERS: dict[str, Callable] = {
    "scan": _scan,
    "scan_with_indices": _scan_with_indices,
    "reduce": _reduce,
    "linear_recurrence": _linear_recurrence,
    "sort": _sort,
    "sort_keys": _sort_keys,
    "argsort": _argsort,
    **{name: _elementwise(name) for name in ("bipolar_sigmoid", "tanh", "relu", "sign", "linear")},
    **{
        name: _segments(name)
        for name in ("segment_softmax", "segment_log_softmax", "segment_scan", "segment_sort", "segment_matmul")
    },
    "segment_recurrence": _segments("segment_recurrence", given=2),
    "segment_reduce": _segments("segment_reduce", per_row=False),
    "segment_topk": _segments("segment_topk", per_row=False),
}


def handler(name: str, args: tuple) -> Callable | None:
    """Returns the function to call instead of an operator if an argument is a jagged tensor.

    Raises:
        TypeError: the operator does not take jagged tensors.
    """
    if not any(is_jagged(x) for x in args):
        return None
    if name not in _HANDLERS:
        raise TypeError(f"{name} takes no jagged tensor; jagged.rows_of() gives its rows and offsets")
    return _HANDLERS[name]
