"""Elementwise sums, differences and products of two sparse matrices: ``A + B``, ``A - B``, ``A * B``."""

from __future__ import annotations

import torch

from torch_patterns.batching import loop, loop_by_structure
from torch_patterns.sparse.build import checked
from torch_patterns.sparse.containers import CSR, Matrix, value_fields
from torch_patterns.sparse.convert import _again, _to_csr

_parts = torch.ops.torch_patterns_parts


def combine(op: str, a: Matrix, b: Matrix) -> Matrix:
    """Computes ``A + B``, ``A - B`` or ``A * B``, in the format of A; shapes and devices must be the same.

    ``"add"`` and ``"subtract"`` give an entry where either matrix has one, ``"multiply"`` where both have one.
    Duplicates are added up first, so the result has at most one entry at each position, in the order of rows and then
    columns. Values and indices have the dtypes to which those of A and B promote. Differentiable to every order in the
    values of both, in forward and reverse mode; deterministic. The host waits for the device.

    Raises:
        IndexError: an index or pointer is out of range.
        ValueError: pointers decrease, or lengths do not fit.

    Example:
        >>> A, B = (tp.sparse.from_torch(torch.tensor(x)) for x in ([[1.0, 2.0], [0.0, 3.0]], [[5.0, 0.0], [6.0, 7.0]]))
        >>> (A * B).to_dense().tolist()
        [[5.0, 0.0], [0.0, 21.0]]
    """
    x, y = _checked_csr(a), _checked_csr(b)
    index = torch.promote_types(x.col_idx.dtype, y.col_idx.dtype)
    if not torch.compiler.is_compiling() and x.col_idx.shape[0] + y.col_idx.shape[0] >= 2**31:
        index = torch.int64
    narrow = torch.promote_types(_dtype(a), _dtype(b))
    dtype = torch.promote_types(x.values.dtype, y.values.dtype)
    if op == "subtract" and narrow == torch.bool:
        raise RuntimeError("A - B: truth values have no difference")
    fields = (t for m in (x, y) for t in (m.row_ptrs.to(index), m.col_idx.to(index), m.values.to(dtype)))
    values, ptrs, idx = _parts.entrywise(op, *fields, *a.shape)
    return _again(CSR(ptrs, idx, values.to(narrow), a.shape), a)


def _dtype(a: Matrix) -> torch.dtype:
    return getattr(a, value_fields(a)[0]).dtype


def _checked_csr(a: Matrix) -> CSR:
    """Converts to CSR with values of at least 32 bits. The operator itself checks the indices of a CSR."""
    a = a.to(torch.promote_types(_dtype(a), torch.int32))
    return a if isinstance(a, CSR) else _to_csr(checked(a, True))


# The Meta kernel, whose size depends on the data, and vmap.


@torch.library.register_fake("torch_patterns_parts::entrywise")
def _(op, a_row_ptrs, a_col_idx, a_values, b_row_ptrs, b_col_idx, b_values, rows, cols):
    entries = torch.library.get_ctx().new_dynamic_size()
    torch._check(entries <= a_col_idx.shape[0] + b_col_idx.shape[0])
    return a_values.new_empty(entries), torch.empty_like(a_row_ptrs), a_col_idx.new_empty(entries)


@torch.library.register_vmap("torch_patterns_parts::entrywise")
def _(info, in_dims, *args):
    return loop_by_structure(_parts.entrywise, info, in_dims, *args, first=1)


@torch.library.register_vmap("torch_patterns_parts::values_at")
def _(info, in_dims, *args):
    return loop(_parts.values_at, info, in_dims, *args)
