"""The constructors, which make a checked container from tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from torch_patterns.arguments import integer, type_name, typed
from torch_patterns.sparse.containers import (
    BLOCKED,
    COO,
    CSC,
    CSR,
    ELL,
    HYB,
    JDS,
    SELL,
    Matrix,
    format_of,
    value_fields,
)
from torch_patterns.sparse.product import arguments

# The containers of all formats and their constructors, which torch_patterns exports as well.
__all__ = [
    "BLOCKED",
    "COO",
    "CSC",
    "CSR",
    "ELL",
    "HYB",
    "JDS",
    "SELL",
    "blocked",
    "coo",
    "csc",
    "csr",
    "ell",
    "hyb",
    "jds",
    "sell",
]

_ops = torch.ops.torch_patterns
F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Matrix)

_CHECKS = """

    Args:
        {args}
        shape: (rows, cols).
        validate: check what the index tensors hold, too, for which the host waits; not in a CUDA graph. Without
            it a wrong index is an error on the CPU, where it is used, and skipped on CUDA.

    Raises:
        IndexError: an index or offset is out of range; the message names argument, first bad position and value.
        ValueError: shapes or offsets do not fit together.
        TypeError: values are not int32, int64, float16, bfloat16, float32 or float64, or indices neither int32 nor
            int64.
        RuntimeError: devices differ.
    """


def constructor(args: str) -> Callable[[F], F]:
    """Returns a decorator that adds the arguments and errors to the docstring, and checks the result."""

    def append(function: F) -> F:
        function.__doc__ = f"{function.__doc__}{_CHECKS.format(args=args)}"
        return typed(function)

    return append


def checked(a: M, validate: bool) -> M:
    """Checks a matrix, and returns it or raises an error that says what is wrong.

    The operator does the checking: it multiplies the matrix by another one that has no columns.
    """
    form, (rows, cols), name = format_of(a), a.shape, value_fields(a)[0]
    values = getattr(a, name)
    try:
        y = getattr(_ops, f"spmm_{form}")(*arguments(a, values.new_empty(cols, 0), validate=validate))
    except (IndexError, ValueError, TypeError, RuntimeError) as error:
        raise type(error)(str(error).replace("spmm_", "", 1)) from None
    if y.shape[0] != rows:
        raise ValueError(f"{form}: {a._fields[0]} is of {y.shape[0]} rows, shape is {tuple(a.shape)}")
    if validate and torch.compiler.is_compiling():  # compilers drop unused products, so this one is used
        zeros = a._replace(**{f: torch.zeros_like(getattr(a, f)) for f in value_fields(a)})
        y = getattr(_ops, f"spmv_{form}")(*arguments(zeros, values.new_zeros(cols), validate=True))
        a = a._replace(**{name: values + y.sum()})
    return a


def _shape(where: str, shape: Any) -> tuple[int, int]:
    """Converts a shape of any integers to two Python ints, so that a container holds nothing else."""
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
        raise TypeError(f"{where}: shape must be (rows, cols), got {type_name(shape)}")
    sizes = [integer(where, "shape", size) for size in shape]
    if len(sizes) != 2:
        raise ValueError(f"{where}: shape must be (rows, cols), got {len(sizes)} numbers")
    if not torch.compiler.is_compiling() and min(sizes) < 0:
        raise ValueError(f"{where}: shape must not be negative, got {tuple(sizes)}")
    if not torch.compiler.is_compiling() and max(sizes) >= 2**63:
        raise ValueError(f"{where}: shape must fit in 64 bits, got {tuple(sizes)}")
    return sizes[0], sizes[1]


@constructor("row_idx, col_idx, values: [nnz].")
def coo(row_idx: Tensor, col_idx: Tensor, values: Tensor, shape: tuple[int, int], *, validate: bool = True) -> COO:
    """Makes a matrix of a list of coordinates (§14.2): any order, duplicates add.

    Example:
        >>> A = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 0, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 2))
        >>> A.to_dense()  # duplicates add
        tensor([[3., 0.],
                [0., 0.],
                [0., 3.]])
    """
    return checked(COO(row_idx, col_idx, values, _shape("coo", shape)), validate)


@constructor("row_ptrs: [rows + 1], 0 first, nnz last, not decreasing.\n        col_idx, values: [nnz].")
def csr(row_ptrs: Tensor, col_idx: Tensor, values: Tensor, shape: tuple[int, int], *, validate: bool = True) -> CSR:
    """Makes a matrix of compressed rows (§14.3): any order inside a row, duplicates add.

    Example:
        >>> A = tp.csr(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (2, 3))
        >>> A.to_dense()
        tensor([[1., 0., 2.],
                [0., 3., 0.]])
        >>> tp.csr(torch.tensor([0, 2]), torch.tensor([0, 7]), torch.tensor([1.0, 2.0]), (1, 3))
        Traceback (most recent call last):
            ...
        IndexError: csr: col_idx[1] is 7, which is out of range: expected 0 to 2
    """
    return checked(CSR(row_ptrs, col_idx, values, _shape("csr", shape)), validate)


@constructor("col_ptrs: [cols + 1], 0 first, nnz last, not decreasing.\n        row_idx, values: [nnz].")
def csc(col_ptrs: Tensor, row_idx: Tensor, values: Tensor, shape: tuple[int, int], *, validate: bool = True) -> CSC:
    """Makes a matrix of compressed columns (beyond the chapter's formats): any order inside a column, duplicates add.

    Example:
        >>> A = tp.csc(torch.tensor([0, 1, 3]), torch.tensor([1, 0, 1]), torch.tensor([1.0, 2.0, 3.0]), (2, 2))
        >>> A.to_dense()
        tensor([[0., 2.],
                [1., 3.]])
    """
    return checked(CSC(col_ptrs, row_idx, values, _shape("csc", shape)), validate)


@constructor(
    "row_nnz: [rows], how many entries each row has.\n"
    "        col_idx, values: [width, rows], entry k of row r at [k, r]; behind the entries col_idx is -1, values 0."
)
def ell(row_nnz: Tensor, col_idx: Tensor, values: Tensor, shape: tuple[int, int], *, validate: bool = True) -> ELL:
    """Makes a matrix of padded rows, stored column by column (§14.4).

    Example:
        >>> col_idx, values = torch.tensor([[0, 1], [2, -1]]), torch.tensor([[1.0, 3.0], [2.0, 0.0]])
        >>> A = tp.ell(torch.tensor([2, 1]), col_idx, values, (2, 3))
        >>> A.to_dense()
        tensor([[1., 0., 2.],
                [0., 3., 0.]])
    """
    return checked(ELL(row_nnz, col_idx, values, _shape("ell", shape)), validate)


@constructor(
    "ell_row_nnz: [rows].\n        ell_col_idx, ell_values: [width, rows], as for :func:`ell`.\n"
    "        coo_row_idx, coo_col_idx, coo_values: [tail], as for :func:`coo`."
)
def hyb(
    ell_row_nnz: Tensor,
    ell_col_idx: Tensor,
    ell_values: Tensor,
    coo_row_idx: Tensor,
    coo_col_idx: Tensor,
    coo_values: Tensor,
    shape: tuple[int, int],
    *,
    validate: bool = True,
) -> HYB:
    """Makes a matrix of padded rows, with the rest of longer rows as coordinates (§14.5).

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = tp.hyb(*coo.convert("hyb", width=1))
        >>> A.to_dense()
        tensor([[1., 0., 2.],
                [0., 0., 0.],
                [0., 3., 0.]])
    """
    fields = (ell_row_nnz, ell_col_idx, ell_values, coo_row_idx, coo_col_idx, coo_values)
    return checked(HYB(*fields, _shape("hyb", shape)), validate)


@constructor(
    "row_perm: [rows], the row at each position: a permutation, the longest row first.\n"
    "        diag_ptrs: [longest row + 1], 0 first, nnz last; no diagonal is longer than the one before.\n"
    "        col_idx, values: [nnz], entry k of the row at position i at diag_ptrs[k] + i."
)
def jds(
    row_perm: Tensor,
    diag_ptrs: Tensor,
    col_idx: Tensor,
    values: Tensor,
    shape: tuple[int, int],
    *,
    validate: bool = True,
) -> JDS:
    """Makes a matrix of jagged diagonals (§14.6).

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = tp.jds(*coo.convert("jds"))
        >>> A.to_dense()
        tensor([[1., 0., 2.],
                [0., 0., 0.],
                [0., 3., 0.]])
    """
    return checked(JDS(row_perm, diag_ptrs, col_idx, values, _shape("jds", shape)), validate)


@constructor(
    "row_perm: [rows], the row at each position: a permutation.\n"
    "        row_nnz: [rows], how many entries the row at each position has.\n"
    "        section_ptrs: [sections + 1], 0 first, not decreasing; a section of h rows and width w has h * w slots.\n"
    "        col_idx, values: [section_ptrs[-1]]; padding: col_idx -1, values 0.\n"
    "        section_rows: rows of each section but the last."
)
def sell(
    row_perm: Tensor,
    row_nnz: Tensor,
    section_ptrs: Tensor,
    col_idx: Tensor,
    values: Tensor,
    section_rows: int,
    shape: tuple[int, int],
    *,
    validate: bool = True,
) -> SELL:
    """Makes a matrix of sections of rows, each padded to its own width (§14.6).

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = tp.sell(*coo.convert("sell", section_rows=2))
        >>> A.to_dense()
        tensor([[1., 0., 2.],
                [0., 0., 0.],
                [0., 3., 0.]])
    """
    section_rows = integer("sell", "section_rows", section_rows)
    fields = (row_perm, row_nnz, section_ptrs, col_idx, values)
    return checked(SELL(*fields, section_rows, _shape("sell", shape)), validate)


@constructor(
    "row_ptrs: [rows + 1], 0 first, nnz last, not decreasing.\n"
    "        block_ptrs: [blocks + 1], the first slot of each block of 2^14 columns, when slots are ordered by block.\n"
    "            0 first, the number of slots last, not decreasing, all multiples of 8.\n"
    "        bin_ptrs: [bins + 1], the first slot of each bin of 2^14 entries in row order, when slots are ordered by\n"
    "            bin; with the same conditions.\n"
    "        octet_idx: [slots / 8], a permutation: the position, ordered by bin, of each octet ordered by block.\n"
    "        col_idx: [slots], int16, ordered by block: the column, counted from its block's first; -1 if padding.\n"
    "        entry_idx: [slots], int16, ordered by bin: which entry of its bin is in the slot; -1 if padding.\n"
    "        values: [slots], ordered by block; 0 for padding."
)
def blocked(
    row_ptrs: Tensor,
    block_ptrs: Tensor,
    bin_ptrs: Tensor,
    octet_idx: Tensor,
    col_idx: Tensor,
    entry_idx: Tensor,
    values: Tensor,
    shape: tuple[int, int],
    *,
    validate: bool = True,
) -> BLOCKED:
    """Makes a matrix of compressed rows whose entries are stored by blocks of columns (beyond the chapter's formats).

    The entries of one block of columns and one bin of entries form a run, which is padded to whole octets of slots. The
    runs are stored in two orders, by block and by bin; :class:`BLOCKED` describes both.

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = tp.blocked(*coo.convert("blocked"))
        >>> A.to_dense()
        tensor([[1., 0., 2.],
                [0., 0., 0.],
                [0., 3., 0.]])
    """
    fields = (row_ptrs, block_ptrs, bin_ptrs, octet_idx, col_idx, entry_idx, values)
    return checked(BLOCKED(*fields, _shape("blocked", shape)), validate)
