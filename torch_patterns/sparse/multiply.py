"""Products of two sparse matrices: the matrix product (SpGEMM), and the product place by place.

The matrix product expands, sorts and compresses (Bell, Dalton and Olson, Exposing fine-grained parallelism in algebraic
multigrid methods, 2012): every entry (i, k) of A meets the entries (k, j) of row k of B. These products lie in the
order of the rows of A, so that only the columns of each row have to be sorted, stably; then neighbours of one column
are added up, in the order of k. So the result is the same in every run, and gradients of both matrices' values come
back through the same steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.arguments import typed
from torch_patterns.segmented import segment_expand, segment_reduce
from torch_patterns.sorting import segment_sort_pairs
from torch_patterns.sparse.build import checked
from torch_patterns.sparse.containers import COO, CSR, Matrix
from torch_patterns.sparse.convert import _again, _arange, _exclusive, _lengths, _size, _to_csr, by_place, convert
from torch_patterns.sparse.select import take

_ops = torch.ops.torch_patterns


@typed
def spgemm(a: Matrix, b: Matrix, *, max_bytes: int | None = None) -> Matrix:
    """The product A B of two sparse matrices, in the format of A: ``A @ B`` (beyond chapter 14's products).

    Each place at most once, the columns of each row sorted; an entry whose products cancel stays, as an explicit zero.
    Differentiable to every order in the values of both, in both modes. Deterministic. The matrices' indices are
    checked, and the host waits for the device, which knows the sizes.

    Args:
        a: [rows, inner], in any format, entries in any order; duplicates add.
        b: [inner, cols], in any format.
        max_bytes: refuse to take more memory than that (default: what is free on the device). The rows are multiplied
            some at a time, so that little is needed beside the result; while gradients are wanted, 16 bytes or more
            stay for each product of an entry of A and one of B.

    Returns:
        [rows, cols], of the dtypes to which those of the values and of the indices promote.

    Raises:
        ValueError: shapes do not fit, or pointers are wrong.
        IndexError: an index is out of range.
        RuntimeError: more memory than ``max_bytes`` is needed, and the message says how much; or devices differ.
        TypeError: ``a`` or ``b`` is no sparse matrix.

    Example:
        >>> A = tp.sparse.from_torch(torch.tensor([[1.0, 2.0], [0.0, 3.0]])).convert("csr")
        >>> (A @ A).to_dense().tolist()
        [[1.0, 8.0], [0.0, 9.0]]
    """
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"A @ B: A is {a.shape[0]} x {a.shape[1]}, B {b.shape[0]} x {b.shape[1]}")
    if a[0].device != b[0].device:
        raise RuntimeError(f"A @ B: A is on {a[0].device}, B on {b[0].device}")
    x, y = (_to_csr(checked(m, True)) for m in (a, b))
    return _again(_product(x, y, max_bytes), a)


_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 27}  # products that caches hold, or that keep a device busy


def _product(a: CSR, b: CSR, max_bytes: int | None) -> CSR:
    """Some rows at a time, as many as memory allows; all at once in compiled code."""
    index = torch.promote_types(a.col_idx.dtype, b.col_idx.dtype)
    values = torch.promote_types(a.values.dtype, b.values.dtype)
    a, b = (m._replace(values=m.values.to(values)) for m in (a, b))
    # Where the products of each entry of A begin, and those of each row.
    ptrs = _exclusive(_lengths(b).index_select(0, a.col_idx).long())
    rows = ptrs.index_select(0, a.row_ptrs)
    if torch.compiler.is_compiling():
        parts = [_expand_sort_compress(a.col_idx, a.values, b, ptrs, rows, _size(ptrs[-1]), index, torch.int64)]
    else:
        parts = _in_parts(a, b, ptrs, rows, index, max_bytes)
    counts, columns, sums = (torch.cat(fields) for fields in zip(*parts, strict=True))
    return CSR(_exclusive(counts).to(columns.dtype), columns, sums, (a.shape[0], b.shape[1]))


def _in_parts(a: CSR, b: CSR, ptrs: Tensor, rows: Tensor, index: torch.dtype, max_bytes: int | None) -> list[tuple]:
    total, device = int(ptrs[-1]), a.values.device
    index = index if total < 2**31 else torch.int64
    word = torch.int32 if max(total, b.col_idx.shape[0]) < 2**31 else torch.int64
    value = max(a.values.itemsize, 4)
    each = 5 * word.itemsize + 2 * index.itemsize + 3 * value
    stay = (
        2 * (word.itemsize + value)
        if torch.is_grad_enabled() and (a.values.requires_grad or b.values.requires_grad)
        else 0
    )
    limit = free_memory(device) if max_bytes is None else max_bytes
    step = _AT_ONCE["cuda" if device.type == "cuda" else "cpu"]
    step = step if limit is None else max(min(step, limit // (2 * each)), 1024)
    # The first row of each part, of about `step` products or one row.
    cuts = torch.searchsorted(rows, torch.arange(step, max(total, step), step, device=device))
    cuts = torch.cat(
        [cuts.new_zeros(1), cuts.clamp(max=a.shape[0]).unique_consecutive(), cuts.new_full((1,), a.shape[0])]
    )
    marks = torch.stack([cuts, a.row_ptrs.index_select(0, cuts).long(), rows.index_select(0, cuts)], 1).tolist()
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    stored = 0
    for (row, entry, begin), (last, end_entry, end) in zip(marks, marks[1:], strict=False):
        if parts and row == last:
            continue
        # The results so far, twice as they are joined in the end, tell what all will take.
        expected = 2 * stored * total // begin if begin else 0
        _refuse(total, (end - begin) * each + stay * total + expected, limit, max_bytes is not None)
        entries = slice(entry, end_entry)
        inside, ends = ptrs[entry : end_entry + 1] - begin, rows[row : last + 1] - begin
        part = _expand_sort_compress(a.col_idx[entries], a.values[entries], b, inside, ends, end - begin, index, word)
        parts.append(part)
        stored += sum(x.nbytes for x in part)
    return parts


def _expand_sort_compress(
    cols: Tensor, values: Tensor, b: CSR, ptrs: Tensor, rows: Tensor, total: int, index: torch.dtype, word: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """(entries of each row, columns, values) of the product of some rows of A, of these entries, and B.

    ptrs tell where the products of each entry begin, rows where those of each row do; there are `total` of them.
    """
    wide = torch.promote_types(values.dtype, torch.float32) if values.is_floating_point() else values.dtype
    # Of each product: the entry of B, and its column.
    starts = b.row_ptrs.narrow(0, 0, b.shape[0]).index_select(0, cols)
    shift = (starts - ptrs.narrow(0, 0, cols.shape[0])).to(word)
    entry = torch.arange(total, dtype=word, device=ptrs.device) + segment_expand(shift, ptrs, total)
    bits = max(b.shape[1] - 1, 1).bit_length() if isinstance(b.shape[1], int) else None
    column = b.col_idx.index_select(0, entry).to(index)
    column, order = segment_sort_pairs(column, _arange(entry, total), rows, end_bit=bits)
    first = torch.ones(total, dtype=torch.bool, device=rows.device)
    first[1:] = column[1:] != column[:-1]
    first = torch.nn.functional.pad(first, (0, 1)).index_fill(0, rows, True).narrow(0, 0, total)
    places = _ops.compact(_arange(entry, total), first)
    ends = torch.cat([places, rows.narrow(0, rows.shape[0] - 1, 1).to(word)])
    products = segment_expand(values.to(wide), ptrs, total) * take(b.values.to(wide), entry)
    sums = segment_reduce(products.index_select(0, order), ends).to(values.dtype)
    return torch.searchsorted(places, rows.to(word)).diff(), column.index_select(0, places), sums


def _refuse(products: int, needed: int, limit: int | None, given: bool) -> None:
    """Raises if a product needs more memory than there is."""
    if limit is not None and needed > limit:
        raise RuntimeError(
            f"A @ B: of {products} products of entries, it takes about {needed} bytes, more than the {limit} that "
            f"{'max_bytes allows' if given else 'are free'}; multiply A.select_rows(slice) by B, some rows at a time"
        )


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be had on a device, if it says so."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return None


def multiply_places(a: Matrix, b: Matrix) -> Matrix:
    """The entries that both matrices have, each the product of theirs, in the format of A: ``A * B``.

    Duplicates are added up first. Each place at most once, in the order of rows and then columns. Differentiable to
    every order in the values of both, in both modes; deterministic; waits for the device.

    Raises:
        ValueError: shapes differ.
        RuntimeError: devices differ.

    Example:
        >>> A, B = (tp.sparse.from_torch(torch.tensor(x)) for x in ([[1.0, 2.0], [0.0, 3.0]], [[5.0, 0.0], [6.0, 7.0]]))
        >>> (A * B).to_dense().tolist()
        [[5.0, 0.0], [0.0, 21.0]]
    """
    x, y = (convert(m, "coo") for m in (a, b))
    n = x.values.shape[0]
    joined = COO(*(torch.cat(pair) for pair in zip(x[:3], y[:3], strict=True)), a.shape)
    rows, cols, order, ends = by_place(joined, _arange(joined.row_idx, joined.values.shape[0]))
    ours = order < n
    entries = joined.values.index_select(0, order)

    def summed(mine: Tensor) -> tuple[Tensor, Tensor]:
        """By place: the sum of the entries of one matrix, and whether it has any."""
        sums = segment_reduce(torch.where(mine, entries, 0), ends).to(entries.dtype)
        return sums, segment_reduce(mine, ends, op="max")

    (left, has_left), (right, has_right) = summed(ours), summed(~ours)
    kept = _ops.compact(_arange(rows, rows.shape[0]), has_left & has_right)
    result = COO(*(x.index_select(0, kept) for x in (rows, cols, left * right)), a.shape)
    return result if isinstance(a, COO) else _again(_to_csr(result), a)
