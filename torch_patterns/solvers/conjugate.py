"""The conjugate gradient method, for which chapter 14 multiplies sparse matrices by vectors."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from torch_patterns.solvers.implicit import Callback, Inverse, Method, Product, Solution, check_finite, run, scaled
from torch_patterns.sparse import Matrix

_NAME = "conjugate_gradient"


def conjugate_gradient(
    A: Matrix | Product,
    b: Tensor,
    *,
    x0: Tensor | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    max_iterations: int | None = None,
    preconditioner: Matrix | Product | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Solves ``A x = b`` for a symmetric positive definite ``A`` until ``norm(b - A x) <= max(rtol * norm(b), atol)``.

    One product with ``A`` per iteration, and one wait for the device. The result is differentiable in ``b`` and in
    ``A``, in forward and reverse mode: to every order in the values of a matrix, but only once in the parameters of a
    function. By the implicit function theorem, a gradient or a tangent is the solution of one more system, which is
    solved to the same tolerance. ``torch.vmap`` solves one sample after another, and supports only matrices.

    Args:
        A: [n, n], a sparse matrix in any format, or a function that multiplies it by a vector [n].
        b: [n], floating point.
        x0: [n], the initial guess; 0 if it is not given. It gets no gradient.
        rtol, atol: the tolerances of the residual.
        max_iterations: the greatest number of iterations; 10 n if it is not given.
        preconditioner: an approximation of the inverse of ``A``, symmetric positive definite: a matrix or a function.
        callback: called as ``callback(iteration, residual_norm)`` after each iteration, from 1.

    Returns:
        :class:`Solution`; ``residual_norm`` is computed from ``x``, not by recurrence. Failure to converge is not an
        error. Under ``torch.vmap`` the solution has the greatest number of iterations and the greatest norm of all
        samples, and tells whether all converged. ``x`` has the promoted dtype of ``A`` and ``b``; float32 for half
        types.

    Raises:
        ValueError: shapes do not fit, or a tolerance or ``max_iterations`` is negative; ``A`` or the preconditioner
            turns out not to be positive definite; or NaN or infinity appears. The message says in which iteration.
        TypeError: ``b`` is not floating point, ``A`` is neither a matrix nor a function, or a tolerance not a number.

    Source: §14.1; Hestenes and Stiefel, Methods of conjugate gradients for solving linear systems (1952).

    Example:
        >>> A = tp.sparse.from_torch(torch.tensor([[4.0, 1.0], [1.0, 3.0]]))
        >>> solution = tp.solvers.conjugate_gradient(A, torch.tensor([1.0, 2.0]))
        >>> solution.x, solution.iterations
        (tensor([0.0909, 0.6364]), 2)
    """
    return run(Method(_NAME, True, _iterate, rtol, atol, max_iterations), A, b, x0, preconditioner, callback)


def solve(
    multiply: Product,
    b: Tensor,
    x0: Tensor | None,
    tolerances: tuple[float, float],
    limit: int,
    precondition: Product | None,
    callback: Callback | None,
    total: Product,
    greatest: Product,
) -> Solution:
    """Does :func:`conjugate_gradient` on checked arguments, of which vectors are parts: ``total`` sums their dot
    products, and ``greatest`` is the maximum of their maxima."""
    with torch.no_grad():
        iterate = functools.partial(_iterate, total=total)
        x, iterations, norm, converged = scaled(
            iterate, multiply, b.detach(), x0, tolerances, limit, precondition, callback, greatest
        )
    if torch.is_grad_enabled():
        residual = b - multiply(x)
        if residual.requires_grad:
            rest = (None, tolerances, limit, precondition, None, total, greatest)
            inverse = lambda grad: solve(multiply, grad, *rest).x  # noqa: E731
            x = x + Inverse.apply(residual, inverse, inverse, _NAME)
    return Solution(x, iterations, norm, converged)


def _iterate(
    multiply: Product,
    b: Tensor,
    x: Tensor,
    tolerances: tuple[float, float],
    limit: int,
    precondition: Product | None,
    callback: Callback | None,
    total: Product = lambda partial: partial,
) -> tuple[Tensor, int, float, float]:
    """Updates `x` in place: (x, number of steps, norm of the residual, the norm that it should have at most)."""
    b = b.to(x.dtype)
    residual = b - multiply(x)
    norm_b, norm = total(torch.stack((b.dot(b), residual.dot(residual)))).sqrt().tolist()
    goal = max(tolerances[0] * norm_b, tolerances[1])
    check_finite(_NAME, norm_b + norm, 0)
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
        check_finite(_NAME, energy_ + curvature, iteration)
        _positive("the preconditioner is", "r.Mr", energy_, iteration)
        _positive("A is", "p.Ap", curvature, iteration)
        check_finite(_NAME, square, iteration)
        norm = math.sqrt(square)
        if norm <= goal or iteration == limit:  # the recurrence drifts: continue from the true residual
            residual, direction = b - multiply(x), None
            norm = total(residual.dot(residual)).sqrt().item()
        if callback is not None:
            callback(iteration, norm)
    return x, iteration, norm, goal


def _positive(what: str, name: str, value: float, iteration: int) -> None:
    if value <= 0:
        raise ValueError(f"conjugate_gradient: {what} not positive definite: {name} = {value:g} in {iteration=}")
