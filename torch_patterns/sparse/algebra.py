"""Operators between matrices, vectors and numbers: products by spmv and spmm, sums and multiples by their entries."""

from __future__ import annotations

from numbers import Number

import torch
from torch import Tensor

from torch_patterns.sparse.containers import (
    COO,
    CSC,
    CSR,
    FORMATS,
    Matrix,
    format_of,
    layout_of,
    structure_of,
    value_fields,
)
from torch_patterns.sparse.convert import convert, flat_values, transpose
from torch_patterns.sparse.entrywise import combine
from torch_patterns.sparse.multiply import spgemm
from torch_patterns.sparse.product import spmm, spmv

_ops = torch.ops.torch_patterns
_CONTAINERS = tuple(FORMATS.values())


def dtype_of(a: Matrix) -> torch.dtype:
    """The dtype of the values."""
    return getattr(a, value_fields(a)[0]).dtype


def device_of(a: Matrix) -> torch.device:
    """The device of all tensors."""
    return a[0].device


def matmul(a: Matrix, x: Tensor | Matrix) -> Tensor | Matrix:
    """``A @ x``: :func:`spmv` of a vector, :func:`spmm` of a dense matrix, :func:`spgemm` of a sparse one."""
    if isinstance(x, _CONTAINERS):
        return spgemm(a, x)
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        _refuse("@", a, x)
    if x.dim() not in (1, 2):
        raise ValueError(f"A @ x: x must have one dimension or two, got shape {[*x.shape]}")
    return (spmv if x.dim() == 1 else spmm)(a, x)


def rmatmul(a: Matrix, x: Tensor) -> Tensor:
    """``x @ A`` of a vector [rows] or a matrix [k, rows]: the product of the transpose."""
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        _refuse("@", x, a)
    columns = x.T if x.dim() == 2 else x
    if not layout_of(a).padded:
        y = matmul(transpose(a if isinstance(a, COO | CSC) else convert(a, "csr")), columns)
        return y.T.contiguous() if x.dim() == 2 else y
    y = matmul(_transpose_and_padding(a), columns).narrow(0, 0, a.shape[1])
    return (y.T if x.dim() == 2 else y).clone(memory_format=torch.contiguous_format)  # no view of the longer result


def _transpose_and_padding(a: Matrix) -> CSR:
    """Returns the transpose of a padded matrix, with one row more, the last, which holds the padding.

    So no size depends on the data: the host need not wait, and compilers need no fact about a size. The transpose is
    not padded itself, because that of a narrow matrix may be too wide.
    """
    ptrs, perm, other = _ops.sparse_plan(*structure_of(a), False)  # padding comes last
    slots = perm.shape[0]
    is_padding = torch.arange(slots, device=perm.device) >= ptrs[-1]
    values = flat_values(a).index_select(0, perm).masked_fill(is_padding, 0)  # without gradient, NaN in x included
    ptrs = torch.cat([ptrs, ptrs.new_full((1,), slots)])
    return CSR(ptrs, other, values, (a.shape[1] + 1, a.shape[0]))


def multiply(a: Matrix, number: Number | Tensor | Matrix) -> Matrix:
    """``A * 2``, ``2 * A``: every entry times a number or a 0-d tensor; padding stays 0.

    ``A * B`` of two sparse matrices is their product entry by entry, of the entries that both have.
    """
    if isinstance(number, _CONTAINERS):
        _check_alike("*", a, number)
        return combine("multiply", a, number)
    if not (isinstance(number, Number) or (isinstance(number, Tensor) and number.dim() == 0)):
        _refuse("*", a, number)
    return _each_value(a, lambda values: values * number)


def divide(a: Matrix, number) -> Matrix:
    """``A / 2``."""
    if not (isinstance(number, Number) or (isinstance(number, Tensor) and number.dim() == 0)):
        _refuse("/", a, number)
    return _each_value(a, lambda values: values / number)


def negative(a: Matrix) -> Matrix:
    """``-A``."""
    return _each_value(a, torch.neg)


def add(a: Matrix, b: Matrix) -> Matrix:
    """``A + B`` in the format of A: entries at one position are added up (waits for the device).

    Values and indices get the dtype that torch promotes theirs to. Differentiable in the values of both.
    """
    if not isinstance(b, _CONTAINERS):
        _refuse("+", a, b)
    _check_alike("+", a, b)
    return combine("add", a, b)


def subtract(a: Matrix, b: Matrix) -> Matrix:
    """``A - B`` in the format of A, as ``A + B``."""
    if not isinstance(b, _CONTAINERS):
        _refuse("-", a, b)
    _check_alike("-", a, b)
    return combine("subtract", a, b)


def _check_alike(symbol: str, a: Matrix, b: Matrix) -> None:
    if tuple(a.shape) != tuple(b.shape):
        raise ValueError(f"A {symbol} B: shapes {tuple(a.shape)} and {tuple(b.shape)} differ")
    if device_of(a) != device_of(b):
        raise RuntimeError(f"A {symbol} B: A is on {device_of(a)}, B on {device_of(b)}")


def _each_value(a: Matrix, f) -> Matrix:
    changed = {name: f(getattr(a, name)) for name in value_fields(a)}
    if layout_of(a).padded:
        name = value_fields(a)[0]
        changed[name] = changed[name].masked_fill(getattr(a, name.replace("values", "col_idx")) < 0, 0)
    return a._replace(**changed)


def _refuse(symbol: str, first, second) -> None:
    def name(x) -> str:
        if isinstance(x, _CONTAINERS):
            return format_of(x).upper()
        return f"{x.layout} Tensor" if isinstance(x, Tensor) and x.layout != torch.strided else type(x).__name__

    raise TypeError(
        f"{symbol} is not defined for {name(first)} and {name(second)}; A @ x and A * c take dense tensors and "
        "numbers; A @ B, A * B, A + B, A - B matrices of these formats; to_dense() and to_torch() lead to torch's own"
    )
