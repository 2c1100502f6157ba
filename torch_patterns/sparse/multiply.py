"""The product of two sparse matrices (SpGEMM)."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns import _C
from torch_patterns.arguments import integer, typed
from torch_patterns.batching import loop, loop_by_structure
from torch_patterns.calls import ops
from torch_patterns.registry import documented
from torch_patterns.sparse.build import checked
from torch_patterns.sparse.containers import CSR, Matrix
from torch_patterns.sparse.convert import _again, _exclusive, _lengths, _to_csr

_ops, _parts = torch.ops.torch_patterns, torch.ops.torch_patterns_parts


@documented("spgemm")
@typed
def spgemm(a: Matrix, b: Matrix, *, max_bytes: int | None = None, algorithm: str = "auto") -> Matrix:
    """Multiplies two sparse matrices; the product has the format of A: ``A @ B`` (beyond chapter 14's products).

    Each position at most once, the columns of each row sorted; an entry whose products cancel stays, as an explicit
    zero. Differentiable to every order in the values of both, in both modes. Deterministic. The matrices' indices are
    checked, and the host waits for the device, which knows the sizes. The CPU goes by rows (Gustavson, 1978), CUDA
    by hash tables of rows (Nagasaka, Nukada and Matsuoka, 2017); it sorts rows of B that are not in order first. Code
    for ``torch.compile`` calls this function, as that does not know ``@`` between objects that are not tensors.

    Args:
        a: [rows, inner], in any format, entries in any order; duplicates add.
        b: [inner, cols], in any format.
        max_bytes: refuse to take more memory than that (default: what is free on the device). The rows are multiplied
            some at a time if need be, so that little is needed beside the result.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [rows, cols], of the promoted dtypes of the values and of the indices.

    Raises:
        ValueError: shapes do not fit, pointers are wrong, or the algorithm is unknown or not offered by the device.
        IndexError: an index is out of range.
        RuntimeError: more memory than ``max_bytes`` is needed (the message says how much); or devices differ.
        TypeError: ``a`` or ``b`` is not a sparse matrix, or ``max_bytes`` not an integer.

    Example:
        >>> A = tp.sparse.from_torch(torch.tensor([[1.0, 2.0], [0.0, 3.0]])).convert("csr")
        >>> (A @ A).to_dense().tolist()
        [[1.0, 8.0], [0.0, 9.0]]
    """
    max_bytes = None if max_bytes is None else integer("spgemm", "max_bytes", max_bytes)
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"A @ B: A is {a.shape[0]} x {a.shape[1]}, B {b.shape[0]} x {b.shape[1]}")
    if a[0].device != b[0].device:
        raise RuntimeError(f"A @ B: A is on {a[0].device}, B on {b[0].device}")
    x = _checked_csr(a)
    y = x if b is a else _checked_csr(b)
    return _again(_product(x, y, max_bytes, algorithm), a)


def _checked_csr(a: Matrix) -> CSR:
    """Checks a matrix and converts it to CSR. The product itself checks the indices of a CSR."""
    by_product = isinstance(a, CSR) and not torch.compiler.is_compiling()
    return _to_csr(checked(a, not by_product))


_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 28}  # products of a part; the CPU divides only if memory is short
_FEW = 1 << 18  # entries on the CPU, whose products may be so few that there is room for them in any case


def _product(a: CSR, b: CSR, max_bytes: int | None, algorithm: str) -> CSR:
    """Multiplies all rows at once if memory allows it, and always under torch.compile; else in parts."""
    a, b = _promoted(a, b, torch.promote_types(a.col_idx.dtype, b.col_idx.dtype))
    cols = b.shape[1]
    if torch.compiler.is_compiling():
        values, ptrs, idx = ops.spgemm(*a[:3], *b[:3], cols, algorithm)
        return CSR(ptrs, idx, values, (a.shape[0], cols))
    # The operator asks the allocator of CUDA for free memory itself, once it knows the number of products.
    cuda, each = a.values.is_cuda, 2 * _bytes_per_product(a)
    most, limit = _AT_ONCE["cuda"] if cuda else 2**31 - 1, max_bytes
    if limit is None and not cuda:
        if a.values.shape[0] + b.values.shape[0] <= _FEW:
            values, ptrs, idx = _parts.spgemm_at_once(*a[:3], *b[:3], cols, _AT_ONCE["cpu"], 0, algorithm)
            if ptrs.shape[0] > 0:
                return CSR(ptrs, idx, values, (a.shape[0], cols))
        limit = free_memory(a.values.device)  # reading it takes as long as thousands of products
    if limit is not None:
        most = min(most, max(limit // each, -1))
    asked = each if cuda and limit is None else 0
    values, ptrs, idx = _parts.spgemm_at_once(*a[:3], *b[:3], cols, most, asked, algorithm)
    if ptrs.shape[0] == 0:  # there are too many products
        values, ptrs, idx = _in_parts(a, b, max_bytes, algorithm)
    return CSR(ptrs, idx, values, (a.shape[0], cols))


def _promoted(a: CSR, b: CSR, index: torch.dtype) -> tuple[CSR, CSR]:
    """Returns both matrices with indices of one dtype and values of one."""
    dtype = torch.promote_types(a.values.dtype, b.values.dtype)
    x, y = (CSR(m.row_ptrs.to(index), m.col_idx.to(index), m.values.to(dtype), m.shape) for m in (a, b))
    return x, y


def _bytes_per_product(a: CSR) -> int:
    if a.values.is_cuda:  # what expand_sort_compress and the gradients take, which write out all products
        return 8 * a.col_idx.itemsize + 16 + 3 * max(a.values.itemsize, 4)
    return a.col_idx.itemsize + a.values.itemsize  # an entry of the result at most


def _in_parts(a: CSR, b: CSR, max_bytes: int | None, algorithm: str) -> tuple[Tensor, Tensor, Tensor]:
    """Multiplies some rows of A at a time. The indices are valid."""
    # Where the products of each row begin.
    rows = _exclusive(_lengths(b).index_select(0, a.col_idx).long()).index_select(0, a.row_ptrs)
    total = int(rows[-1])
    if total >= 2**31:
        a, b = _promoted(a, b, torch.int64)
    parts = _multiply_parts(a, b, rows, total, max_bytes, algorithm)
    if len(parts) == 1:
        return parts[0]
    values, idx = (torch.cat([part[i] for part in parts]) for i in (0, 2))
    return values, _exclusive(torch.cat([ptrs.diff() for _, ptrs, _ in parts])), idx


def _multiply_parts(
    a: CSR, b: CSR, rows: Tensor, total: int, max_bytes: int | None, algorithm: str
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Multiplies as many rows of A at a time as memory allows; `rows` tells where the products of each row begin, of
    `total` products."""
    device, each = a.values.device, _bytes_per_product(a)
    limit = free_memory(device) if max_bytes is None else max_bytes
    step = max(total if limit is None else limit // (2 * each), 1024)
    if step < total or device.type == "cuda":
        step = min(step, _AT_ONCE[device.type])
    if step >= total:
        _refuse(total, total * each, limit, max_bytes is not None)
        return [ops.spgemm(*a[:3], *b[:3], b.shape[1], algorithm)]
    # The first row of each part. A part has about `step` products, or one row.
    cuts = torch.searchsorted(rows, torch.arange(step, max(total, step), step, device=device))
    cuts = torch.cat(
        [cuts.new_zeros(1), cuts.clamp(max=a.shape[0]).unique_consecutive(), cuts.new_full((1,), a.shape[0])]
    )
    table = torch.stack([cuts, a.row_ptrs.index_select(0, cuts).long(), rows.index_select(0, cuts)], 1).cpu()
    marks = [[int(number) for number in mark] for mark in table]  # tolist() fails under torch.func.functionalize
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    stored = 0
    for (row, entry, begin), (last, end_entry, end) in zip(marks, marks[1:], strict=False):
        if parts and row == last:
            continue
        # The results so far predict the size of all; they count twice, because they are concatenated in the end.
        expected = 2 * stored * total // begin if begin else 0
        _refuse(total, (end - begin) * each + expected, limit, max_bytes is not None)
        part = a.row_ptrs[row : last + 1] - entry, a.col_idx[entry:end_entry], a.values[entry:end_entry]
        parts.append(ops.spgemm(*part, *b[:3], b.shape[1], algorithm))
        stored += sum(x.nbytes for x in parts[-1])
    return parts


def _refuse(products: int, needed: int, limit: int | None, given: bool) -> None:
    """Raises if a product needs more memory than there is."""
    if limit is not None and needed > limit:
        raise RuntimeError(
            f"A @ B: of {products} products of entries, it takes about {needed} bytes, more than the {limit} that "
            f"{'max_bytes allows' if given else 'are free'}; multiply A.select_rows(slice) by B, some rows at a time"
        )


def free_memory(device: torch.device) -> int | None:
    """Returns the bytes that are free on a device, or None if it does not tell."""
    if device.type == "cuda":
        return _C.free_memory(device.index)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return None


# ---- the number of entries depends on the data: fake implementations for compilers; and vmap


@torch.library.register_fake("torch_patterns::spgemm")
def _(a_row_ptrs, a_col_idx, a_values, b_row_ptrs, b_col_idx, b_values, cols, algorithm="auto"):
    index = a_row_ptrs, a_col_idx, b_row_ptrs, b_col_idx
    of_none = a_row_ptrs, a_col_idx.new_empty(0)
    _ops.spgemm_values("c", *index, *of_none, a_values, b_values, cols, algorithm)  # the same checks
    entries = torch.library.get_ctx().new_dynamic_size()
    return a_values.new_empty(entries), torch.empty_like(a_row_ptrs), a_col_idx.new_empty(entries)


@torch.library.register_vmap("torch_patterns::spgemm")
def _(info, in_dims, *args, **kwargs):
    return loop_by_structure(_ops.spgemm, info, in_dims, *args, first=0, **kwargs)


@torch.library.register_vmap("torch_patterns_parts::spgemm_at_once")
def _(info, in_dims, *args):
    return loop_by_structure(_parts.spgemm_at_once, info, in_dims, *args, first=0)


@torch.library.register_vmap("torch_patterns::spgemm_values")
def _(info, in_dims, *args, **kwargs):
    return loop(_ops.spgemm_values, info, in_dims, *args, **kwargs)
