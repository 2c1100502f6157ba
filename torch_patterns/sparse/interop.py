"""To and from torch.sparse and scipy.sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_patterns.arguments import type_name, typed
from torch_patterns.sparse.build import checked
from torch_patterns.sparse.containers import COO, CSC, CSR, Matrix, to, value_fields
from torch_patterns.sparse.convert import coalesce, convert


@typed
def from_torch(x: Tensor) -> Matrix:
    """A ``torch.sparse`` matrix: COO, CSR or CSC as they are, others, and dense ones, as COO.

    Uncoalesced COO keeps its duplicates; gradients come back to a coalesced one.

    Raises:
        ValueError: the tensor has not two dimensions, or dense ones.

    Example:
        >>> A = tp.sparse.from_torch(torch.eye(2))
        >>> type(A).__name__, A.nnz
        ('COO', 2)
    """
    if x.dim() != 2 or (x.layout == torch.sparse_coo and x.dense_dim() != 0):
        raise ValueError(f"from_torch: expected a matrix of numbers, got shape {tuple(x.shape)}")
    shape = tuple(x.shape)
    # The values are copied because torch's are a view of the sparse tensor, and compilers take no view of one.
    if x.layout == torch.sparse_csr:
        return CSR(x.crow_indices(), x.col_indices(), x.values().clone(), shape)
    if x.layout == torch.sparse_csc:
        return CSC(x.ccol_indices(), x.row_indices(), x.values().clone(), shape)
    if x.layout != torch.sparse_coo:
        x = x.to_sparse()
    indices, values = (x.indices(), x.values()) if x.is_coalesced() else (x._indices(), x._values())
    return COO(indices[0].contiguous(), indices[1].contiguous(), values.clone(), shape)


def to_torch(a: Matrix) -> Tensor:
    """As a ``torch.sparse`` tensor: COO, CSR and CSC in their layout, the other formats as CSR; differentiable.

    The values are copied. The result keeps torch's invariants. COO stays as it is, uncoalesced. torch's CSR and CSC
    hold every position once, in order: where ours does not, entries are sorted, and duplicates added up. What the index
    tensors hold is checked first, for which the host waits.

    Raises:
        IndexError, ValueError: an index or offset is out of range, as from the constructors.
    """
    a = checked(a, True)
    # Writes to a tensor that shared the values would not be seen by autograd, which may have saved them.
    a = a._replace(**{name: getattr(a, name).clone() for name in value_fields(a)})
    options: dict[str, Any] = {"device": a[0].device, "check_invariants": False}  # the default device may be another
    if isinstance(a, COO):
        indices = torch.stack([a.row_idx, a.col_idx]).long()
        return torch.sparse_coo_tensor(indices, a.values, a.shape, **options)
    if isinstance(a, CSC):
        turned = _sorted_once(CSR(*a[:3], a.shape[::-1]))
        return torch.sparse_csc_tensor(*turned[:3], a.shape, **options)
    csr = _sorted_once(convert(a, "csr"))
    return torch.sparse_csr_tensor(*csr[:3], csr.shape, **options)


def _sorted_once(a: CSR) -> CSR:
    """The matrix with the columns of each row in order, each once."""
    n = a.col_idx.shape[0]
    if n < 2:
        return a
    heads = torch.zeros(n + 1, dtype=torch.bool, device=a.col_idx.device).index_fill(0, a.row_ptrs.long(), True)
    in_order = (a.col_idx.diff() > 0) | heads[1:n]
    return a if bool(in_order.all()) else coalesce(a)


def from_scipy(matrix, *, device=None, dtype: torch.dtype | None = None) -> Matrix:
    """A copy of a ``scipy.sparse`` matrix or array: COO, CSR and CSC as they are, others as COO.

    Args:
        device: where the tensors are to be.
        dtype: of the values, where it shall not be that of ``matrix``.

    Raises:
        TypeError: ``matrix`` is not of ``scipy.sparse``.
        ValueError: it has not two dimensions.

    Example:
        >>> import scipy.sparse
        >>> A = tp.sparse.from_scipy(scipy.sparse.eye_array(2, format="csc"))
        >>> type(A).__name__, A.dtype
        ('CSC', torch.float64)
    """
    if not type(matrix).__module__.startswith("scipy.sparse"):
        raise TypeError(f"from_scipy: matrix must be one of scipy.sparse, got {type_name(matrix)}")
    if matrix.ndim != 2:
        raise ValueError(f"from_scipy: expected a matrix, got shape {matrix.shape}")
    form = matrix.format if matrix.format in ("coo", "csr", "csc") else "coo"
    matrix = matrix.asformat(form)
    arrays = (matrix.row, matrix.col) if form == "coo" else (matrix.indptr, matrix.indices)
    tensors = [torch.from_numpy(np.array(x)) for x in (*arrays, matrix.data)]
    cls = {"coo": COO, "csr": CSR, "csc": CSC}[form]
    return to(cls(*tensors, tuple(map(int, matrix.shape))), device=device, dtype=dtype)


def to_scipy(a: Matrix):
    """A copy as a ``scipy.sparse`` array on the CPU: COO, CSR and CSC as they are, the other formats as CSR."""
    import scipy.sparse

    a = a if isinstance(a, COO | CSR | CSC) else convert(a, "csr")
    # Copied, because scipy sorts entries and adds up duplicates in place, even to solve a system.
    first, second, values = (x.detach().to("cpu", copy=True).numpy() for x in a[:3])
    if isinstance(a, COO):
        return scipy.sparse.coo_array((values, (first, second)), shape=a.shape)
    cls = scipy.sparse.csr_array if isinstance(a, CSR) else scipy.sparse.csc_array
    return cls((values, second, first), shape=a.shape)
