"""The storage formats of chapter 14 and two others, and plans of transposed products: NamedTuples of tensors, which are
pytrees for compile and export."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree

from torch_patterns import _C
from torch_patterns.tuples import kinds


class COO(NamedTuple):
    """Coordinate list (§14.2, Fig. 14.3): any order, duplicates add.

    Fields: row_idx, col_idx, values, each [nnz]; shape (rows, cols). Index tensors of all formats are int32 or int64,
    values int32, int64, float16, bfloat16, float32 or float64.

    Example:
        >>> A = tp.coo(torch.tensor([0, 1]), torch.tensor([2, 0]), torch.tensor([5.0, 7.0]), (2, 3))
        >>> A.to_dense()
        tensor([[0., 0., 5.],
                [7., 0., 0.]])
        >>> A @ torch.tensor([1.0, 2.0, 3.0])
        tensor([15.,  7.])
    """

    row_idx: Tensor
    col_idx: Tensor
    values: Tensor
    shape: tuple[int, int]


class CSR(NamedTuple):
    """Compressed sparse rows (§14.3, Fig. 14.7): any order inside a row, duplicates add.

    Fields: row_ptrs [rows + 1]; col_idx, values [nnz]; shape (rows, cols). Row r holds the entries row_ptrs[r] to
    row_ptrs[r + 1] - 1.

    Example:
        >>> A = tp.csr(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (2, 3))
        >>> A.to_dense()
        tensor([[1., 0., 2.],
                [0., 3., 0.]])
        >>> A.T.shape, A.nnz, A.nbytes
        ((3, 2), 3, 60)
    """

    row_ptrs: Tensor
    col_idx: Tensor
    values: Tensor
    shape: tuple[int, int]


class CSC(NamedTuple):
    """The CSR of the transpose (beyond the chapter): any order inside a column, duplicates add.

    Fields: col_ptrs [cols + 1]; row_idx, values [nnz]; shape (rows, cols).

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = coo.convert("csc")
        >>> A.col_ptrs, A.row_idx
        (tensor([0, 1, 2, 3]), tensor([0, 2, 0]))
    """

    col_ptrs: Tensor
    row_idx: Tensor
    values: Tensor
    shape: tuple[int, int]


class ELL(NamedTuple):
    """Rows padded to one width, stored column by column (§14.4, Fig. 14.10).

    Fields: row_nnz [rows]; col_idx, values [width, rows], contiguous: entry k of row r at [k, r]; shape (rows, cols).
    After its row_nnz[r] entries, each row is padding: col_idx -1, value 0, never read.

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = coo.convert("ell")
        >>> A.row_nnz, A.col_idx
        (tensor([2, 0, 1]), tensor([[ 0, -1,  1],
                [ 2, -1, -1]]))
        >>> A.padding
        3
    """

    row_nnz: Tensor
    col_idx: Tensor
    values: Tensor
    shape: tuple[int, int]


class HYB(NamedTuple):
    """ELL for the first entries of each row, COO for the rest of the long rows (§14.5, Fig. 14.13).

    Fields: ell_row_nnz [rows]; ell_col_idx, ell_values [width, rows]; coo_row_idx, coo_col_idx, coo_values [tail];
    shape (rows, cols).

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = coo.convert("hyb", width=1)
        >>> A.ell_values, A.coo_values
        (tensor([[1., 0., 3.]]), tensor([2.]))
    """

    ell_row_nnz: Tensor
    ell_col_idx: Tensor
    ell_values: Tensor
    coo_row_idx: Tensor
    coo_col_idx: Tensor
    coo_values: Tensor
    shape: tuple[int, int]


class JDS(NamedTuple):
    """Jagged diagonals: rows sorted by length, descending and stable, stored column by column (§14.6, Fig. 14.14).

    Fields: row_perm [rows], the row at each position of the sorted order; diag_ptrs [longest row + 1]; col_idx, values
    [nnz]: entry k of the row at position i is stored at diag_ptrs[k] + i; shape (rows, cols).

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = coo.convert("jds")
        >>> A.row_perm, A.diag_ptrs
        (tensor([0, 2, 1]), tensor([0, 2, 3]))
    """

    row_perm: Tensor
    diag_ptrs: Tensor
    col_idx: Tensor
    values: Tensor
    shape: tuple[int, int]


class SELL(NamedTuple):
    """The sectioned JDS of §14.6: sections of rows sorted by length, each an ELL of its own width.

    Fields: row_perm [rows], the row at each position of the sorted order; row_nnz [rows], the length of that row;
    section_ptrs [sections + 1]; col_idx, values [section_ptrs[-1]]; section_rows; shape (rows, cols). Section s holds h
    positions from s * section_rows on. It is section_ptrs[s + 1] - section_ptrs[s] = h * width entries long, and entry
    k of its row i is stored at section_ptrs[s] + k * h + i. Padding: col_idx -1, value 0, never read.

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = coo.convert("sell", section_rows=2)
        >>> A.section_ptrs, A.padding
        (tensor([0, 4, 4]), 1)
    """

    row_perm: Tensor
    row_nnz: Tensor
    section_ptrs: Tensor
    col_idx: Tensor
    values: Tensor
    section_rows: int
    shape: tuple[int, int]


# The constants of BLOCKED, which must equal those in csrc/sparse/sparse.h.
BIN_ENTRIES = 1 << 14  # entries of a bin,
BLOCK_COLUMNS = 1 << 14  # columns of a block,
OCTET = 8  # every run is padded to a multiple of this many slots


class BLOCKED(NamedTuple):
    """A CSR stored by blocks of columns, for products with a vector larger than the caches (beyond the chapter).

    The entries, in the row order of a CSR, are divided into bins of 2^14, and the columns into blocks of 2^14. The
    entries of one block and one bin form a run, in row order, which is padded to whole octets of slots. Runs are
    stored in two orders. In the order by blocks (and by bins within a block) a product reads x one block at a time; in
    the order by bins (and by blocks within a bin) it sums the rows of a bin.

    Fields: row_ptrs [rows + 1], into the entries in the order of rows; block_ptrs [blocks + 1], bin_ptrs [bins + 1],
    the slots of each block in the order by blocks, and of each bin in the order by bins; octet_idx [slots / 8], the
    position in the second order of each octet of the first; shape (rows, cols). By blocks: col_idx (int16), values
    [slots], the column, counted from the first of its block. By bins: entry_idx (int16) [slots], which entry of its
    bin it is. Padding: col_idx -1, entry_idx -1, value 0, never read.

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> A = coo.convert("blocked")
        >>> A.row_ptrs, A.nnz, A.padding
        (tensor([0, 2, 2, 3]), 3, 5)
    """

    row_ptrs: Tensor
    block_ptrs: Tensor
    bin_ptrs: Tensor
    octet_idx: Tensor
    col_idx: Tensor
    entry_idx: Tensor
    values: Tensor
    shape: tuple[int, int]


class Plan(NamedTuple):
    """The entries of a matrix, listed by column (for CSC, by row), which is what the transposed product needs. Row i of
    the transpose consists of entries perm[0, ptrs[i]] to perm[0, ptrs[i + 1] - 1]; their columns stand at the same
    positions of perm[1]. If perm has further rows, CUDA uses them to read the entries with less random access.

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> coo.plan().ptrs  # of the columns
        tensor([0, 1, 2, 3])
    """

    ptrs: Tensor
    perm: Tensor


Matrix = COO | CSR | CSC | ELL | HYB | JDS | SELL | BLOCKED
FORMATS = {cls.__name__.lower(): cls for cls in (COO, CSR, CSC, ELL, HYB, JDS, SELL, BLOCKED)}
_NAMES = {cls: name for name, cls in FORMATS.items()}
kinds["Matrix"] += FORMATS.values()

for _name, _cls in FORMATS.items():
    _pytree._register_namedtuple(_cls, serialized_type_name=f"torch_patterns.{_name.upper()}")
_pytree._register_namedtuple(Plan, serialized_type_name="torch_patterns.Plan")
# Loading tuples of tensors and numbers runs no code.
torch.serialization.add_safe_globals([*FORMATS.values(), Plan])


class Layout(NamedTuple):
    """The description of a format in csrc/sparse/formats.def."""

    index: list[str]  # the fields that say where the entries are
    values: list[str]
    gives_rows: bool  # the fields determine the number of rows
    has_coordinates: bool  # the last two index fields are the rows and columns of entries, in any order
    padded: bool
    in_sections: bool  # it has a field section_rows


LAYOUTS = {name: Layout(**row) for name, row in _C.sparse_formats().items()}
_LAYOUT_OF = {cls: LAYOUTS[name] for name, cls in FORMATS.items()}


def format_of(a: Matrix) -> str:
    """Returns the name of a container's format."""
    return _NAMES[type(a)]


def layout_of(a: Matrix) -> Layout:
    return _LAYOUT_OF[type(a)]


def index_fields(a: Matrix) -> list[str]:
    """Returns the names of the tensors that say where the entries are."""
    return layout_of(a).index


def value_fields(a: Matrix) -> list[str]:
    return layout_of(a).values


def structure_of(a: Matrix) -> tuple[str, list[Tensor], int, int, int]:
    """Returns the format, its index tensors, rows, columns and section_rows, as operators take them."""
    sections = getattr(a, "section_rows", 0)
    return format_of(a), [getattr(a, name) for name in index_fields(a)], *a.shape, sections


def tensors_of(a: Matrix) -> list[Tensor]:
    return [x for x in a if isinstance(x, torch.Tensor)]


def to(a: Matrix, target: torch.device | str | int | torch.dtype | None = None, dtype=None, *, device=None) -> Matrix:
    """Returns the matrix on another device, or with values of another dtype, or both; differentiable in the values.

    Args:
        target: a device or a dtype.
        dtype: the dtype of the values, if ``target`` is a device or is not given.
    """
    if isinstance(target, torch.dtype):
        dtype = target
    elif target is not None:
        device = target
    moved = {name: getattr(a, name).to(device=device) for name in index_fields(a)}
    moved |= {name: getattr(a, name).to(device=device, dtype=dtype) for name in value_fields(a)}
    return a._replace(**moved)


def nbytes(a: Matrix) -> int:
    """Returns the bytes of all tensors, padding included."""
    return sum(x.numel() * x.element_size() for x in tensors_of(a))


def stored(a: Matrix) -> int:
    """Returns the number of slots for entries, padding included."""
    return sum(getattr(a, name).numel() for name in value_fields(a))


def nnz(a: Matrix) -> int:
    """Returns the number of entries: duplicates and explicit zeros count, padding does not (waits for the device)."""
    if isinstance(a, ELL | SELL):
        return int(a.row_nnz.sum())
    if isinstance(a, HYB):
        return int(a.ell_row_nnz.sum()) + a.coo_values.numel()
    if isinstance(a, BLOCKED):
        return int(a.row_ptrs[-1])
    return a.values.numel()


def padding(a: Matrix) -> int:
    """Returns the number of slots without an entry (waits for the device if the format has padding)."""
    return stored(a) - nnz(a)


def ordered_positions(coo: COO) -> Tensor | None:
    """Returns the positions of entries in a dense matrix, if they are in order, distinct and inside (waits for the
    device; while a CUDA graph is being captured it cannot, and returns None)."""
    rows, cols = coo.shape
    if coo.values.shape[0] == 0 or (coo.values.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    at = coo.row_idx.long() * cols + coo.col_idx
    least, most = coo.col_idx.aminmax()
    fits = (at.diff() > 0).all() & (least >= 0) & (most < cols) & (at[0] >= 0) & (at[-1] < rows * cols)
    return at if bool(fits) else None
