"""Linear systems: the conjugate gradient method, for which chapter 14 multiplies sparse matrices by vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torch_patterns import sparse
from torch_patterns.sparse import Matrix

Product = Callable[[Tensor], Tensor]


class Solution(NamedTuple):
    """What a solver found: ``x`` [n], after how many iterations, the norm of ``b - A x``, and if that is as asked."""

    x: Tensor
    iterations: int
    residual_norm: float
    converged: bool


def conjugate_gradient(
    A: Matrix | Product,
    b: Tensor,
    *,
    x0: Tensor | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    max_iterations: int | None = None,
    preconditioner: Matrix | Product | None = None,
    callback: Callable[[int, float], object] | None = None,
) -> Solution:
    """Solves ``A x = b`` for a symmetric positive definite ``A`` until ``norm(b - A x) <= max(rtol * norm(b), atol)``.

    One product with ``A`` an iteration, and one wait for the device. The result is differentiable, once, in ``b`` and
    in whatever ``A`` is differentiable in, its values say: by the implicit function theorem, the gradient is the
    solution of one more system, solved as exactly as this one.

    Args:
        A: [n, n], a sparse matrix in any format, or a function that multiplies it by a vector [n].
        b: [n], floating point.
        x0: [n], where to start; 0 if it is not given. No gradient reaches it.
        rtol, atol: how small the residual shall become.
        max_iterations: when to give up, 10 n if it is not given.
        preconditioner: an approximation of the inverse of ``A``, symmetric positive definite: a matrix or a function.
        callback: called as ``callback(iteration, residual_norm)`` after each iteration, from 1.

    Returns:
        :class:`Solution`; ``residual_norm`` is computed from ``x``, not by recurrence. It is no error not to converge.
        ``x`` is of the dtype to which those of ``A`` and ``b`` promote, of half types float32.

    Raises:
        ValueError: shapes do not fit; ``A`` or the preconditioner turns out not to be positive definite; or NaN or
            infinity came up. The message says in which iteration.
        TypeError: ``b`` is not floating point, or ``A`` neither a matrix nor a function.

    Source: §14.1; Hestenes and Stiefel, Methods of conjugate gradients for solving linear systems (1952).
    """
    multiply = _product(A, "A", b)
    precondition = _product(preconditioner, "preconditioner", b) if preconditioner is not None else None
    if x0 is not None and x0.shape != b.shape:
        raise ValueError(f"conjugate_gradient: x0 is {list(x0.shape)}, and b {list(b.shape)}")
    limit = 10 * len(b) if max_iterations is None else max_iterations
    return solve(multiply, b, x0, (rtol, atol), limit, precondition, callback, lambda partial: partial)


def solve(
    multiply: Product,
    b: Tensor,
    x0: Tensor | None,
    tolerances: tuple[float, float],
    limit: int,
    precondition: Product | None,
    callback: Callable[[int, float], object] | None,
    total: Product,
) -> Solution:
    """:func:`conjugate_gradient` on checked arguments. ``total`` makes dot products of parts those of whole vectors."""
    with torch.no_grad():
        dtype = torch.promote_types(multiply(b.detach()).dtype, torch.float32)
        x = torch.zeros_like(b, dtype=dtype) if x0 is None else x0.detach().to(b.device, dtype, copy=True)
        x, iterations, norm, goal = _iterate(multiply, b, x, tolerances, limit, precondition, callback, total)
    if torch.is_grad_enabled():
        residual = b - multiply(x)
        if residual.requires_grad:
            rest = (None, tolerances, limit, precondition, None, total)
            x = x + _Inverse.apply(residual, lambda grad: solve(multiply, grad, *rest).x)
    return Solution(x, iterations, norm, norm <= goal)


class _Inverse(torch.autograd.Function):
    """0 for a residual that is nearly 0; its derivative is the inverse of A, which is symmetric."""

    @staticmethod
    def forward(ctx, residual: Tensor, solve: Product) -> Tensor:
        ctx.solve = solve
        return torch.zeros_like(residual)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # the graph does not hold how the solution in A x depends on A
            raise RuntimeError("conjugate_gradient can be differentiated once only: create_graph=True is not supported")
        return ctx.solve(grad), None


def _product(A: Matrix | Product, name: str, b: Tensor) -> Product:
    """The function that multiplies by `A`, whose shape fits `b`."""
    if not b.is_floating_point():
        raise TypeError(f"conjugate_gradient: b is {b.dtype}, which is not floating point")
    if b.dim() != 1:
        raise ValueError(f"conjugate_gradient: b must be of shape [n], it is {list(b.shape)}")
    if isinstance(A, Matrix):
        if tuple(A.shape) != (len(b), len(b)):
            raise ValueError(f"conjugate_gradient: {name} is {A.shape[0]} x {A.shape[1]}, and b [{len(b)}]")
        return lambda x: sparse.spmv(A, x)
    if not callable(A):
        raise TypeError(f"conjugate_gradient: {name} is neither a sparse matrix nor a function: {type(A).__name__}")
    return A


def _iterate(
    multiply: Product,
    b: Tensor,
    x: Tensor,
    tolerances: tuple[float, float],
    limit: int,
    precondition: Product | None,
    callback: Callable[[int, float], object] | None,
    total: Product,
) -> tuple[Tensor, int, float, float]:
    """(`x` after all steps in place, how many, the norm of its residual, what that should be at most)."""
    b = b.to(x.dtype)
    residual = b - multiply(x)
    norm_b, norm = total(torch.stack((b.dot(b), residual.dot(residual)))).sqrt().tolist()
    goal = max(tolerances[0] * norm_b, tolerances[1])
    _finite(norm_b + norm, 0)
    iteration, direction, before = 0, None, None
    while norm > goal and iteration < limit:
        iteration += 1
        z = residual if precondition is None else precondition(residual).to(x.dtype)
        energy = total(residual.dot(z))
        direction = z.clone() if direction is None else direction.mul_(energy / before).add_(z)
        image = multiply(direction)
        curvature = total(direction.dot(image))
        step, before = energy / curvature, energy
        x.addcmul_(direction, step)
        residual.addcmul_(image, step, value=-1)
        square, energy_, curvature = torch.stack((total(residual.dot(residual)), energy, curvature)).tolist()
        _finite(energy_ + curvature, iteration)
        _positive("the preconditioner is", "r.Mr", energy_, iteration)
        _positive("A is", "p.Ap", curvature, iteration)
        _finite(square, iteration)
        norm = math.sqrt(square)
        if norm <= goal or iteration == limit:  # the recurrence drifts: see what x gives, and go on from there
            residual, direction = b - multiply(x), None
            norm = total(residual.dot(residual)).sqrt().item()
        if callback is not None:
            callback(iteration, norm)
    return x, iteration, norm, goal


def _finite(value: float, iteration: int) -> None:
    if not math.isfinite(value):
        raise ValueError(f"conjugate_gradient: iteration {iteration} came upon {value}: is there NaN in A, b or x0?")


def _positive(what: str, name: str, value: float, iteration: int) -> None:
    if value <= 0:
        raise ValueError(f"conjugate_gradient: {what} not positive definite: {name} = {value:g} in {iteration=}")
