"""Parts and sums of a matrix: selected rows and columns, the diagonal, sums over rows or columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_patterns.arguments import integer, type_name
from torch_patterns.reduction import reduce
from torch_patterns.segmented import segment_expand, segment_reduce
from torch_patterns.sparse.containers import CSC, CSR, Matrix, value_fields
from torch_patterns.sparse.convert import _again, _arange, _coordinates, _exclusive, _lengths, _size, _to_csc, _to_csr
from torch_patterns.sparse.product import spmv

Index = slice | Tensor | Sequence[int]


def take(x: Tensor, index: Tensor) -> Tensor:
    """Returns ``x[index]`` of a vector, with a gradient whose sums have the same order in every run.

    On CUDA torch sorts for the gradient of ``x[index]``, but uses atomics for that of ``index_select``; on the CPU only
    the latter's is added up by one thread.
    """
    return x[index] if x.is_cuda else x.index_select(0, index)


def select_rows(a: Matrix, index: Index) -> Matrix:
    """Returns the rows that ``index`` names, in its order and in the same format; a row may be named more than once.

    Entries keep their order. Differentiable in the values, to every order and in both modes. The host waits for the
    device, which knows how many entries there are.

    Args:
        a: [rows, cols], in any format; called as a method, ``A.select_rows(index)``.
        index: a slice, or int32 or int64 row numbers [m], a tensor on the device of the matrix or a sequence; negative
            ones count from the end.

    Returns:
        [m, cols].

    Raises:
        IndexError: a number is out of range; the message names the first.
        TypeError: ``index`` holds no integers.
        ValueError: ``index`` has not one dimension.
        RuntimeError: devices differ.

    Example:
        >>> A = tp.coo(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([5.0, 7.0]), (3, 2))
        >>> A.select_rows(torch.tensor([1, 1, -1])).to_dense().tolist()
        [[7.0, 0.0], [7.0, 0.0], [0.0, 0.0]]
    """
    rows = _numbers("select_rows", index, a.shape[0], a[0])
    return _again(_rows(_to_csr(a), rows), a)


def select_columns(a: Matrix, index: Index) -> Matrix:
    """Returns the columns that ``index`` names, in its order and in the same format.

    A column may be named more than once. The entries of each row of the result are sorted by column. All formats but
    CSC need two sorts of the entries. Differentiable in the values, to every order and in both modes. The host waits
    for the device.

    Args:
        a: [rows, cols], in any format; called as a method, ``A.select_columns(index)``.
        index: a slice or column numbers [m], as the row numbers of :func:`select_rows`.

    Returns:
        [rows, m].

    Raises:
        IndexError, TypeError, ValueError, RuntimeError: as :func:`select_rows`.

    Example:
        >>> A = tp.coo(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([5.0, 7.0]), (2, 3))
        >>> A.select_columns([1, 1, 2]).to_dense().tolist()
        [[5.0, 5.0, 0.0], [0.0, 0.0, 0.0]]
    """
    columns = _numbers("select_columns", index, a.shape[1], a[0])
    turned = _rows(CSR(*_csc(a)[:3], a.shape[::-1]), columns)
    chosen = CSC(*turned[:3], turned.shape[::-1])
    return chosen if isinstance(a, CSC) else _again(_to_csr(chosen), a)


def diagonal(a: Matrix) -> Tensor:
    """Returns the diagonal as a vector: 0 where the matrix has no entry, and the sum of duplicates.

    Differentiable in the values; the same bits in every run.

    Args:
        a: [rows, cols], in any format; called as a method, ``A.diagonal()``.

    Returns:
        [min(rows, cols)], of the dtype of the values.

    Raises:
        TypeError: the values are complex.

    Example:
        >>> tp.sparse.from_torch(torch.tensor([[1.0, 2.0], [0.0, 3.0]])).diagonal().tolist()
        [1.0, 3.0]
    """
    csr = _to_csr(a)
    here = torch.where(_coordinates(csr)[0] == csr.col_idx, csr.values, 0)
    return segment_reduce(here, csr.row_ptrs).to(here.dtype).narrow(0, 0, min(a.shape)).clone()


def sum_of(a: Matrix, dim: int | None = None) -> Tensor:
    """Returns the sum of all entries, of each column (``dim=0``), or of each row (``dim=1``), as of the dense matrix.

    Differentiable in the values; the same bits in every run. The sums of columns transpose the matrix.

    Returns:
        A scalar, [cols] or [rows]: int64 of integers, else of the dtype of the values.

    Raises:
        IndexError: ``dim`` is not in -2 ... 1.
        TypeError: ``dim`` is not an integer, or the values are complex.
    """
    dim = None if dim is None else integer("sum", "dim", dim)
    if dim not in (None, -2, -1, 0, 1):
        raise IndexError(f"sum: dim {dim} is out of range; expected -2 to 1")
    fields = {name: getattr(a, name) for name in value_fields(a)}
    given = next(iter(fields.values())).dtype
    wide = given if given.is_floating_point or given.is_complex else torch.int64  # as torch adds up integers
    if dim is None:
        wide = torch.promote_types(wide, torch.float32) if wide.is_floating_point else wide  # the sums of rows, too
    if wide != given:
        a = a._replace(**{name: values.to(wide) for name, values in fields.items()})
    if dim in (0, -2):
        csc = _csc(a)
        a = CSR(*csc[:3], a.shape[::-1])
    ones = torch.ones(a.shape[1], dtype=getattr(a, value_fields(a)[0]).dtype, device=a[0].device)
    sums = spmv(a, ones)
    if dim is not None:
        return sums
    total = reduce(sums)
    narrow = given.is_floating_point and not torch.is_autocast_enabled(total.device.type)
    return total.to(given) if narrow else total


def _csc(a: Matrix) -> CSC:
    return a if isinstance(a, CSC) else _to_csc(a)


def _numbers(where: str, index: Index, size: int, like: Tensor) -> Tensor:
    """Converts an index to row or column numbers, of the dtype of the matrix's indices."""
    if isinstance(index, slice):
        chosen = range(size)[index]
        numbers = _arange(like, len(chosen)) * chosen.step + chosen.start
        return numbers.to(like.dtype)
    if not isinstance(index, Tensor):
        if isinstance(index, str | bytes) or not isinstance(index, Sequence):
            raise TypeError(
                f"{where}: index must be a slice, a tensor or a sequence of integers, got {type_name(index)}"
            )
        index = torch.tensor(index, device=like.device) if len(index) else like.new_empty(0)
    if index.dtype not in (torch.int32, torch.int64):
        hint = "; mask.nonzero()[:, 0] makes one of a mask" if index.dtype == torch.bool else ""
        raise TypeError(f"{where}: index must be int32 or int64, got {index.dtype}{hint}")
    if index.dim() != 1:
        raise ValueError(f"{where}: index must have one dimension, got shape {[*index.shape]}")
    if index.device != like.device:
        raise RuntimeError(f"{where}: the matrix is on {like.device}, index on {index.device}")
    numbers = torch.where(index < 0, index + size, index)
    outside = (numbers < 0) | (numbers >= size)
    if torch.compiler.is_compiling():
        torch._assert_async(~outside.any(), f"{where}: index is out of range")
    elif bool(outside.any()):
        first = int(outside.nonzero()[0])
        raise IndexError(f"{where}: index[{first}] is {int(index[first])}, not in {-size} ... {size - 1}")
    return numbers


def _rows(a: CSR, rows: Tensor) -> CSR:
    """Returns the rows with these numbers, which are in range."""
    last = a.col_idx.shape[0]
    starts = a.row_ptrs.narrow(0, 0, a.shape[0]).clamp(0, last).index_select(0, rows)
    ptrs = _exclusive(_lengths(a).index_select(0, rows).long())
    total = _size(ptrs[-1])
    shift = segment_expand(starts.long() - ptrs.narrow(0, 0, rows.shape[0]), ptrs, total)
    entries = torch.arange(total, device=rows.device) + shift
    dtype = a.row_ptrs.dtype
    if not torch.compiler.is_compiling() and total > torch.iinfo(dtype).max:
        dtype = torch.int64
    return CSR(
        ptrs.to(dtype),
        a.col_idx.index_select(0, entries).to(dtype),
        take(a.values, entries),
        (rows.shape[0], a.shape[1]),
    )
