"""Linear systems with sharded matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor

from torch_patterns import solvers as local
from torch_patterns.arguments import refuse
from torch_patterns.distributed.collectives import over_ranks
from torch_patterns.distributed.graph import check_sharded
from torch_patterns.distributed.group import Call
from torch_patterns.distributed.matrix import ShardedMatrix, spmv


def conjugate_gradient(
    A: ShardedMatrix,
    b: Tensor,
    *,
    x0: Tensor | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    max_iterations: int | None = None,
    preconditioner: Callable[[Tensor], Tensor] | None = None,
    callback: Callable[[int, float], object] | None = None,
) -> local.Solution:
    """Solves ``A x = b`` for a symmetric positive definite sharded matrix.

    This is the iteration of ``torch_patterns.solvers.conjugate_gradient``, with dot products summed over the ranks:
    each iteration takes one product with A and three all_reduces of one number; the call begins with one or two more.
    Differentiable once in ``b`` and the values of ``A``.

    Args:
        A: [n, n], with rows and columns sharded in the same way.
        b: this rank's part [A.row_lengths[rank]], floating point.
        x0: this rank's part of the initial guess; 0 if it is not given.
        rtol, atol, max_iterations, callback: as for the local solver; the same on every rank.
        preconditioner: a function that maps this rank's part of a vector to its part of the result, and may
            communicate.

    Returns:
        ``Solution``: x is this rank's part; all other fields are the same on every rank.

    Raises:
        ValueError: shapes do not fit, or ``A`` turns out not to be positive definite, on every rank.
        TypeError: ``b`` is not floating point.
        RuntimeError: another rank raised, was called with other arguments, or did not take part; the message names it.

    Example:
        >>> A = distributed.shard(tp.sparse.from_torch(torch.tensor([[4.0, 1.0], [1.0, 3.0]])))
        >>> distributed.conjugate_gradient(A, torch.tensor([1.0, 2.0])).iterations
        2
    """

    check_sharded("conjugate_gradient", "A", A, ShardedMatrix)

    def prepare() -> dict[str, Tensor]:
        refuse("conjugate_gradient", "b", b, "Tensor")
        refuse("conjugate_gradient", "x0", x0, "Tensor | None")
        if A.shape[0] != A.shape[1]:
            raise ValueError(f"conjugate_gradient: A is {A.shape[0]} x {A.shape[1]}, which is not square")
        if not b.is_floating_point():
            raise TypeError(f"conjugate_gradient: b is {b.dtype}, which is not floating point")
        for name, x in (("b", b), ("x0", x0)):
            if x is not None and list(x.shape) != [len_here]:
                raise ValueError(f"conjugate_gradient: {name} must be of shape [{len_here}], it is {list(x.shape)}")
        return {"b": b}

    len_here = A.row_lengths[dist.get_rank(A.group)]
    options = {"rtol": rtol, "atol": atol, "max_iterations": max_iterations}
    Call("conjugate_gradient", A.group, prepare, **options, starts=x0 is not None).numbers()
    limit = 10 * A.shape[0] if max_iterations is None else max_iterations
    return local.solve(
        lambda x: spmv(A, x),
        b,
        x0,
        (rtol, atol),
        limit,
        preconditioner,
        callback,
        lambda partial: over_ranks(partial, A.group),
        lambda partial: over_ranks(partial, A.group, dist.ReduceOp.MAX),
    )
