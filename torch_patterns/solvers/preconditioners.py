"""Preconditioners: sparse matrices that approximate the inverse of another, for ``preconditioner=`` of the solvers."""

from __future__ import annotations

import torch

from torch_patterns.arguments import integer, typed
from torch_patterns.sparse.containers import CSR, Matrix
from torch_patterns.sparse.convert import _scatter, coalesce, convert
from torch_patterns.sparse.select import diagonal


@typed
def jacobi(a: Matrix) -> CSR:
    """Returns the inverse of the diagonal of a matrix, as a matrix: it compensates for rows of different scales.

    A row whose diagonal entry is 0 or missing is not scaled. The result is symmetric positive definite if ``a`` is. It
    is a constant without gradient, because the solution does not depend on the preconditioner.

    Args:
        a: [n, n], in any format.

    Returns:
        [n, n] with n entries, of the dtype of the values; float32 for integers and half types.

    Raises:
        ValueError: the matrix is not square.

    Example:
        >>> A = tp.sparse.from_torch(torch.tensor([[4.0, 1.0], [-1.0, 2.0]]))
        >>> tp.solvers.jacobi(A).to_dense().tolist()
        [[0.25, 0.0], [0.0, 0.5]]
    """
    n = _square("jacobi", a)
    d = diagonal(a).detach()
    d = d.to(_dtype(d))
    ptrs = torch.arange(n + 1, dtype=a[0].dtype, device=d.device)
    return CSR(ptrs, ptrs.narrow(0, 0, n).clone(), torch.where(d == 0, 1, 1 / d), (n, n))


@typed
def block_jacobi(a: Matrix, block_size: int) -> CSR:
    """Returns the inverses of the blocks on the diagonal of a matrix, as a block diagonal matrix.

    Rows k * block_size to (k + 1) * block_size - 1 are a block; the last block may have fewer rows. This suits matrices
    whose unknowns come in such groups. The result is symmetric positive definite if ``a`` is, and a constant, as for
    :func:`jacobi`. Waits for the device.

    Args:
        a: [n, n], in any format.
        block_size: rows per block; 1 is :func:`jacobi`, except that a diagonal entry of 0 is an error.

    Returns:
        [n, n] with a dense block each, of the dtype of the values; float32 for integers and half types.

    Raises:
        ValueError: the matrix is not square, ``block_size`` is not positive, or a block is singular (the message says
            which).
        TypeError: ``block_size`` is not an integer.

    Example:
        >>> A = tp.sparse.from_torch(torch.tensor([[0.0, 1.0, 5.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]))
        >>> M = tp.solvers.block_jacobi(A, 2)
        >>> (M @ A).to_dense().tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 5.0], [0.0, 0.0, 1.0]]
    """
    n, size = _square("block_jacobi", a), integer("block_jacobi", "block_size", block_size)
    if size < 1:
        raise ValueError(f"block_jacobi: block_size must be positive, got {size}")
    size = min(size, max(n, 1))
    once = coalesce(convert(a, "coo"))
    row, col, blocks = once.row_idx.long(), once.col_idx.long(), -(-n // size)
    values = once.values.detach().to(_dtype(once.values))
    near = row.div(size, rounding_mode="floor") == col.div(size, rounding_mode="floor")
    dense = _scatter(values, row * size + col % size, blocks * size * size, 0, near)
    padding = torch.arange(blocks * size, device=values.device)
    ones = (padding >= n).to(values.dtype)  # the identity fills up the last block
    identity = torch.eye(size, dtype=values.dtype, device=values.device)
    dense = dense.view(-1, size) + ones[:, None] * identity.repeat(blocks, 1)
    inverses, info = torch.linalg.inv_ex(dense.view(blocks, size, size))
    bad = (info != 0) | ~inverses.isfinite().all(2).all(1)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"block_jacobi: the block of rows {first * size} to {min((first + 1) * size, n) - 1} is singular"
        )
    columns = padding.view(blocks, 1, size).expand(blocks, size, size).reshape(-1, size)[:n]
    kept = columns < n
    lengths = kept.sum(1)
    ptrs = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(a[0].dtype)
    return CSR(ptrs, columns[kept].to(a[0].dtype), inverses.reshape(-1, size)[:n][kept], (n, n))


def _square(where: str, a: Matrix) -> int:
    if a.shape[0] != a.shape[1]:
        raise ValueError(f"{where}: the matrix must be square, got {a.shape[0]} x {a.shape[1]}")
    return a.shape[0]


def _dtype(values: torch.Tensor) -> torch.dtype:
    return values.dtype if values.dtype in (torch.float32, torch.float64) else torch.float32
