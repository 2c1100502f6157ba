"""Conversions between sparse matrices and those of torch.sparse and scipy.sparse."""

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
    """Converts a ``torch.sparse`` or dense matrix: COO, CSR and CSC keep their format, all others become COO.

    The values are copied; the indices may share memory with ``x``. COO that is not coalesced keeps its duplicates.
    Differentiable in ``x``, except in COO that is not coalesced.

    Args:
        x: [rows, cols], dense or of any layout of ``torch.sparse``.

    Returns:
        A COO, CSR or CSC with the shape, dtype and device of ``x``.

    Raises:
        ValueError: ``x`` does not have two dimensions, or its entries are tensors.
        TypeError: ``x`` is not a tensor.

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
    """Converts a matrix to a ``torch.sparse`` tensor: COO, CSR and CSC keep their format, all others become CSR.

    The result satisfies torch's invariants. COO keeps its entries as they are, and is not coalesced. In torch's CSR and
    CSC, the entries of each row or column are sorted and distinct. If those of ``a`` are not, they are sorted and
    duplicates are added. The values of the index tensors are checked first, for which the host waits. The values are
    copied. Differentiable.

    Args:
        a: a matrix in any format; called as a method, ``A.to_torch()``.

    Returns:
        A tensor of the layout ``torch.sparse_coo``, ``torch.sparse_csr`` or ``torch.sparse_csc``.

    Raises:
        IndexError, ValueError: an index or offset is out of range, as from the constructors.

    Example:
        >>> A = tp.coo(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([5.0, 7.0]), (2, 2))
        >>> A.to_torch().to_dense()
        tensor([[0., 5.],
                [7., 0.]])
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
    """Returns the matrix with sorted and distinct columns in each row."""
    n = a.col_idx.shape[0]
    if n < 2:
        return a
    heads = torch.zeros(n + 1, dtype=torch.bool, device=a.col_idx.device).index_fill(0, a.row_ptrs.long(), True)
    in_order = (a.col_idx.diff() > 0) | heads[1:n]
    return a if bool(in_order.all()) else coalesce(a)


def from_scipy(matrix, *, device=None, dtype: torch.dtype | None = None) -> Matrix:
    """Copies a ``scipy.sparse`` matrix or array: COO, CSR and CSC keep their format, all others become COO.

    Args:
        matrix: a ``scipy.sparse`` matrix or array with two dimensions.
        device: the device of the result; by default the CPU.
        dtype: the dtype of the values; by default that of ``matrix``.

    Returns:
        A COO, CSR or CSC.

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
    """Copies a matrix to a ``scipy.sparse`` array on the CPU: COO, CSR and CSC keep their format, all others become
    CSR.

    Args:
        a: a matrix in any format; called as a method, ``A.to_scipy()``.

    Returns:
        A ``coo_array``, ``csr_array`` or ``csc_array``, without gradient.

    Raises:
        TypeError: numpy does not have the dtype of the values (bfloat16).

    Example:
        >>> A = tp.coo(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([5.0, 7.0]), (2, 2))
        >>> A.to_scipy().toarray().tolist()
        [[0.0, 5.0], [7.0, 0.0]]
    """
    import scipy.sparse

    a = a if isinstance(a, COO | CSR | CSC) else convert(a, "csr")
    # Copied, because scipy sorts entries and adds up duplicates in place, even to solve a system.
    first, second, values = (x.detach().to("cpu", copy=True).numpy() for x in a[:3])
    if isinstance(a, COO):
        return scipy.sparse.coo_array((values, (first, second)), shape=a.shape)
    cls = scipy.sparse.csr_array if isinstance(a, CSR) else scipy.sparse.csc_array
    return cls((values, second, first), shape=a.shape)
