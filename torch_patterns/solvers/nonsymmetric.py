"""Krylov methods for nonsymmetric systems: BiCGSTAB, with short recurrences, and GMRES, with a growing basis.

Both are preconditioned from the right, A M (M^-1 x) = b, so the residual that they monitor is that of the system
itself.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from torch_patterns.arguments import integer
from torch_patterns.solvers.implicit import Callback, Method, Product, Solution, check_finite, run
from torch_patterns.sparse import Matrix

_SHARED = """

    The result is differentiable in ``b`` and in ``A``, in forward and reverse mode: to every order in the values of a
    matrix, but only once in the parameters of a function. By the implicit function theorem, a tangent is the solution
    of one more system, and a gradient is that of a system with the transpose, both solved to the same tolerance. The
    product with the transpose of a function is its derivative (``torch.func.vjp``). ``torch.vmap`` solves one sample
    after another, and supports only matrices.

    Args:
        A: [n, n], a sparse matrix in any format, or a linear function that multiplies it by a vector [n].
        b: [n], floating point.
        x0: [n], the initial guess; 0 if it is not given. It gets no gradient.{restart}
        rtol, atol: the tolerances: the norm of the residual must be at most ``max(rtol * norm(b), atol)``.
        max_iterations: the greatest number of iterations; 10 n if it is not given.
        preconditioner: an approximation of the inverse of ``A``, a matrix, as :func:`jacobi` and :func:`block_jacobi`
            make, or a linear function.
        callback: called as ``callback(iteration, residual_norm)`` after each iteration, from 1.

    Returns:
        :class:`Solution`; ``residual_norm`` is computed from ``x``, not by recurrence. Failure to converge is not an
        error. Under ``torch.vmap`` the solution has the greatest number of iterations and the greatest norm of all
        samples, and tells whether all converged. ``x`` has the promoted dtype of ``A`` and ``b``; float32 for half
        types.

    Raises:
        ValueError: shapes do not fit, a tolerance or ``max_iterations`` is negative, or NaN or infinity appears; the
            message says in which iteration.
        TypeError: ``b`` is not floating point, ``A`` is neither a matrix nor a function, or a tolerance not a number.

    Example:
        >>> A = tp.sparse.from_torch(torch.tensor([[4.0, 1.0], [-1.0, 3.0]]))
        >>> tp.solvers.{name}(A, torch.tensor([9.0, 1.0])).x.round(decimals=4)
        tensor([2., 1.])

    Source: {source}
    """


def _documented(source: str, restart: str = ""):
    def append(function):
        function.__doc__ += _SHARED.format(name=function.__name__, source=source, restart=restart)
        return function

    return append


@_documented("van der Vorst, Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG (1992).")
def bicgstab(
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
    """Solves ``A x = b`` for any regular ``A`` by the stabilized biconjugate gradient method.

    Two products with ``A`` per iteration, eight vectors of memory, and one wait for the device. If the recurrence
    breaks down, it restarts from the last ``x``; if that does not help, it stops without having converged."""
    method = Method("bicgstab", False, _bicgstab, rtol, atol, max_iterations)
    return run(method, A, b, x0, preconditioner, callback)


@_documented(
    "Saad and Schultz, GMRES: a generalized minimal residual algorithm for solving nonsymmetric linear systems (1986).",
    "\n        restart: vectors of the basis; fewer than n save memory and time, and may keep it from converging.",
)
def gmres(
    A: Matrix | Product,
    b: Tensor,
    *,
    x0: Tensor | None = None,
    restart: int = 30,
    rtol: float = 1e-5,
    atol: float = 0.0,
    max_iterations: int | None = None,
    preconditioner: Matrix | Product | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Solves ``A x = b`` for any regular ``A`` by the generalized minimal residual method.

    It restarts every ``restart`` iterations.

    One product with ``A`` per iteration, ``restart + 1`` vectors of memory, and one wait for the device. The basis is
    made orthogonal by the classical Gram-Schmidt process, twice. In exact arithmetic the residual never grows."""
    restart = integer("gmres", "restart", restart)
    if restart < 1:
        raise ValueError(f"gmres: restart must be positive, got {restart}")
    method = Method("gmres", False, functools.partial(_gmres, restart), rtol, atol, max_iterations)
    return run(method, A, b, x0, preconditioner, callback)


def _start(name: str, multiply: Product, b: Tensor, x: Tensor, tolerances: tuple[float, float]):
    """Returns (the residual, its norm, the norm that it should have at most)."""
    residual = b - multiply(x)
    norm_b, norm = torch.stack((b.dot(b), residual.dot(residual))).sqrt().tolist()
    check_finite(name, norm_b + norm, 0)
    return residual, norm, max(tolerances[0] * norm_b, tolerances[1])


def _bicgstab(
    multiply: Product,
    b: Tensor,
    x: Tensor,
    tolerances: tuple[float, float],
    limit: int,
    precondition: Product | None,
    callback: Callback | None,
) -> tuple[Tensor, int, float, float]:
    b = b.to(x.dtype)
    residual, norm, goal = _start("bicgstab", multiply, b, x, tolerances)
    iteration, shadow, fresh = 0, None, True
    while norm > goal and iteration < limit:
        if shadow is None:
            shadow, direction, fresh = residual, residual, True
            rho, shadow_norm = residual.dot(residual), norm
        iteration += 1
        along = direction if precondition is None else precondition(direction).to(x.dtype)
        image = multiply(along)
        sigma = shadow.dot(image)
        alpha = rho / sigma
        half = residual - alpha * image
        across = half if precondition is None else precondition(half).to(x.dtype)
        stabilizer = multiply(across)
        square = stabilizer.dot(stabilizer)
        omega = torch.where(square > 0, stabilizer.dot(half) / square, 0)
        ahead = half - omega * stabilizer
        rho_ahead = shadow.dot(ahead)
        found = torch.stack((ahead.dot(ahead), rho_ahead, sigma, omega)).tolist()
        check_finite("bicgstab", found[2], iteration)
        if found[2] == 0 or not math.isfinite(sum(found)):  # the recurrence broke down
            if fresh:
                if callback is not None:
                    callback(iteration, norm)
                break
            residual, shadow = b - multiply(x), None
            norm = residual.norm().item()
        else:
            x = x + alpha * along + omega * across
            norm = math.sqrt(found[0])
            if norm <= goal or iteration == limit:  # the recurrence drifts: continue from the true residual
                residual, shadow = b - multiply(x), None
                norm = residual.norm().item()
            elif _is_lost(found, shadow_norm, norm, x.dtype):
                residual, shadow = ahead, None
            else:
                direction = ahead + (rho_ahead / rho) * (alpha / omega) * (direction - omega * image)
                residual, rho, fresh = ahead, rho_ahead, False
        if callback is not None:
            callback(iteration, norm)
    return x, iteration, norm, goal


def _is_lost(found: list[float], shadow_norm: float, norm: float, dtype: torch.dtype) -> bool:
    """Tells whether the next direction would be rounding error: omega is 0, or the residual is orthogonal to its
    shadow."""
    return found[3] == 0 or abs(found[1]) <= torch.finfo(dtype).eps * shadow_norm * norm


def _gmres(
    restart: int,
    multiply: Product,
    b: Tensor,
    x: Tensor,
    tolerances: tuple[float, float],
    limit: int,
    precondition: Product | None,
    callback: Callback | None,
) -> tuple[Tensor, int, float, float]:
    b = b.to(x.dtype)
    residual, norm, goal = _start("gmres", multiply, b, x, tolerances)
    size, iteration = min(restart, max(len(b), 1)), 0
    basis = residual.new_empty(size + 1, len(b))
    while norm > goal and iteration < limit:
        before, basis[0] = norm, residual / norm
        problem = _LeastSquares(norm)
        for k in range(size):
            iteration += 1
            along = basis[k] if precondition is None else precondition(basis[k]).to(x.dtype)
            column, last = _orthogonal(multiply(along), basis[: k + 1], basis[k + 1])
            check_finite("gmres", sum(column) + last, iteration)
            invariant = last <= torch.finfo(x.dtype).eps * math.hypot(*column)  # the basis contains the solution
            problem.add(column, 0.0 if invariant else last)
            if invariant or problem.norm <= goal or k + 1 == size or iteration == limit:
                break
            if callback is not None:
                callback(iteration, problem.norm)
        weights = torch.tensor(problem.solution(), dtype=x.dtype, device=x.device)
        step = weights @ basis[: len(weights)]
        x = x + (step if precondition is None else precondition(step).to(x.dtype))
        residual = b - multiply(x)
        norm = residual.norm().item()
        if callback is not None:
            callback(iteration, norm)
        if invariant and norm > 0.5 * before:  # A is singular: a restart would do the same again
            break
    return x, iteration, norm, goal


def _orthogonal(image: Tensor, basis: Tensor, out: Tensor) -> tuple[list[float], float]:
    """Returns (the coordinates of `image` in the basis, the norm of the rest); `out` gets the rest, normalized."""
    first = basis @ image
    image = image - first @ basis
    second = basis @ image
    image = image - second @ basis
    length = torch.linalg.vector_norm(image, dtype=torch.float64)  # squares of float32 may be beyond float32
    out.copy_(image / length)
    *column, last = torch.cat([(first + second).double(), length[None]]).tolist()
    return column, last


class _LeastSquares:
    """min |norm e1 - H y| for a Hessenberg matrix H that grows by columns, kept triangular by Givens rotations."""

    def __init__(self, norm: float) -> None:
        self.columns: list[list[float]] = []
        self.rotations: list[tuple[float, float]] = []
        self.right = [norm]

    @property
    def norm(self) -> float:
        """The norm of the residual of the least-squares problem."""
        return abs(self.right[-1])

    def add(self, column: list[float], last: float) -> None:
        column = [*column, last]
        for i, (c, s) in enumerate(self.rotations):
            column[i], column[i + 1] = c * column[i] + s * column[i + 1], c * column[i + 1] - s * column[i]
        length = math.hypot(*column[-2:])
        c, s = (column[-2] / length, column[-1] / length) if length else (1.0, 0.0)
        self.rotations.append((c, s))
        self.columns.append([*column[:-2], length])
        self.right[-1:] = [c * self.right[-1], -s * self.right[-1]]

    def solution(self) -> list[float]:
        y = self.right[:-1]
        for k in reversed(range(len(y))):
            pivot = self.columns[k][k]
            y[k] = y[k] / pivot if pivot else 0.0
            for i in range(k):
                y[i] -= self.columns[k][i] * y[k]
        return y
