"""What the library's operators do with jagged NestedTensors: the functions that calls.py calls instead of them.

Each handler has the arguments of its operator. It takes the rows and the offsets of the jagged tensor, calls an
operator on them, a ``segment_*`` operator along the ragged dimension, and returns its rows as a jagged tensor again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_patterns.jagged import _along, _dim, _like, is_jagged, rows_of

_ops = torch.ops.torch_patterns


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
    """Raises a ValueError if jagged tensors have sequences of different lengths.

    It waits for the device if they do not share their offsets. In compiled code it refuses that, as torch does.
    """
    first, *others = (x for x in tensors if is_jagged(x))
    for x in others:
        if x.shape[:2] == first.shape[:2]:
            continue
        if torch.compiler.is_compiling() or not torch.equal(rows_of(x)[1], rows_of(first)[1]):
            raise ValueError(f"{name}: the jagged tensors have sequences of different lengths")


def _linear_recurrence(a, b, dim, initial, reverse, algorithm):
    name = "linear_recurrence"
    _check_alike(name, a, b)
    x = b if is_jagged(b) else a
    (_, offsets), count = rows_of(x), x.shape[0]
    dtype = torch.result_type(a, b)
    if initial is not None:
        dtype = torch.result_type(torch.empty(1, dtype=dtype, device=x.device), initial)
    a, b = torch.broadcast_tensors(*(_operand(name, x, t).to(dtype) for t in (a, b)))
    if _dim(x, dim, name) == 1:
        start = initial if initial is None else initial.to(dtype).expand(count, *b.shape[1:])
        return _like(x, _ops.segment_recurrence(a, b, offsets, reverse, start, algorithm))
    if initial is not None:
        initial = rows_of(initial)[0] if is_jagged(initial) else initial
    return _like(x, _ops.linear_recurrence(a, b, _dim(x, dim, name) - 1, initial, reverse, algorithm))


def _operand(name: str, x: Tensor, t: Tensor) -> Tensor:
    """Returns what broadcasts with the rows of jagged `x` as the operand `t` does with `x`: along the ragged dimension
    a dense operand has size 1, or it does not have the dimension."""
    missing = x.dim() - t.dim()
    if is_jagged(t) and missing == 0:
        return rows_of(t)[0]
    if not is_jagged(t) and (missing > 1 or (missing >= 0 and t.shape[1 - missing] == 1)):
        if missing > 0:
            return t
        if t.shape[0] == 1:
            return t[0]
        if t.shape[0] == x.shape[0]:
            values, offsets = rows_of(x)
            return _ops.segment_expand(t[:, 0], offsets, values.shape[0])
    raise ValueError(f"{name}: shape {list(t.shape)} does not broadcast with a jagged {list(x.shape)}")


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
        if not per_row:
            return out
        return tuple(_like(x, y) for y in out) if isinstance(out, tuple) else _like(x, out)

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
    **{name: _segments(name, given=2) for name in ("segment_recurrence", "segment_sort_pairs")},
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
