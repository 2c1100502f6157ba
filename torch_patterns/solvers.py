"""Linear systems: the conjugate gradient method, for which chapter 14 multiplies sparse matrices by vectors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual  # the first is a private name
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_patterns import sparse
from torch_patterns.batching import loop
from torch_patterns.sparse import Matrix
from torch_patterns.sparse.containers import value_fields

Product = Callable[[Tensor], Tensor]


class Solution(NamedTuple):
    """What a solver found: ``x`` [n], after how many iterations, the norm of ``b - A x``, and if that is as asked.

    Example:
        >>> tp.solvers.conjugate_gradient(lambda x: 2 * x, torch.ones(3)).converged
        True
    """

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

    One product with ``A`` per iteration, and one wait for the device. The result is differentiable in ``b`` and in
    whatever ``A`` is differentiable in, in both modes: to every order in the values of a matrix, once in what a
    function depends on. By the implicit function theorem, a gradient or a tangent is the solution of one more system,
    solved as exactly as this one. ``torch.vmap`` solves one sample after another, and takes matrices alone.

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
        Under ``torch.vmap`` it tells the most iterations and the greatest norm, and whether all samples converged.
        ``x`` is of the dtype to which those of ``A`` and ``b`` promote, of half types float32.

    Raises:
        ValueError: shapes do not fit; ``A`` or the preconditioner turns out not to be positive definite; or NaN or
            infinity came up. The message says in which iteration.
        TypeError: ``b`` is not floating point, or ``A`` neither a matrix nor a function.

    Source: §14.1; Hestenes and Stiefel, Methods of conjugate gradients for solving linear systems (1952).

    Example:
        >>> A = tp.sparse.from_torch(torch.tensor([[4.0, 1.0], [1.0, 3.0]]))
        >>> solution = tp.solvers.conjugate_gradient(A, torch.tensor([1.0, 2.0]))
        >>> solution.x, solution.iterations
        (tensor([0.0909, 0.6364]), 2)
    """
    _product(A, "A", b)
    if preconditioner is not None:
        _product(preconditioner, "preconditioner", b)
    if x0 is not None and x0.shape != b.shape:
        raise ValueError(f"conjugate_gradient: x0 is {list(x0.shape)}, and b {list(b.shape)}")
    options = {"rtol": rtol, "atol": atol, "max_iterations": max_iterations}
    leaves, form = tree_flatten((A, preconditioner))
    run = _Run(form, options, callback)
    if isinstance(A, Matrix):
        return run.solution(_Solve.apply(run, b, x0, *leaves))
    with torch.no_grad(), _set_fwd_grad_enabled(False):
        x = run.iterate(b, x0, leaves)
    options["preconditioner"] = preconditioner
    return run.solution(x + _Inverse.apply(b - A(x), lambda right: conjugate_gradient(A, right, **options).x))


class _Run:
    """What a solution is asked for, and what becomes of it."""

    def __init__(self, form, options: dict, callback: Callable[[int, float], object] | None) -> None:
        self.form, self.options, self.callback = form, options, callback
        self.iterations, self.norm, self.converged = 0, 0.0, True

    def iterate(self, b: Tensor, x0: Tensor | None, leaves: Sequence) -> Tensor:
        A, preconditioner = tree_unflatten(leaves, self.form)
        multiply = _product(A, "A", b)
        precondition = _product(preconditioner, "preconditioner", b) if preconditioner is not None else None
        limit = self.options["max_iterations"]
        limit = 10 * len(b) if limit is None else limit
        dtype = torch.promote_types(multiply(b).dtype, torch.float32)
        x0 = torch.zeros_like(b, dtype=dtype) if x0 is None else x0.to(b.device, dtype, copy=True)
        tolerances = self.options["rtol"], self.options["atol"]
        x, iterations, norm, goal = _iterate(
            multiply, b, x0, tolerances, limit, precondition, self.callback, lambda partial: partial
        )
        self.iterations, self.norm = max(self.iterations, iterations), max(self.norm, norm)
        self.converged = self.converged and norm <= goal
        return x

    def solution(self, x: Tensor) -> Solution:
        return Solution(x, self.iterations, self.norm, self.converged)


class _Solve(torch.autograd.Function):
    """The solution x of A x = b for a matrix, whose tensors are among the leaves.

    From A' x + A x' = b': forward mode solves A x' = b' - A' x. In reverse mode, as A is symmetric, the gradient of b
    solves A r = g, and that of A is what reaches A from the product A x by -r.
    """

    @staticmethod
    def forward(run: _Run, b: Tensor, x0: Tensor | None, *leaves) -> Tensor:
        return run.iterate(b, x0, leaves)

    @staticmethod
    def setup_context(ctx, inputs: tuple, x: Tensor) -> None:
        ctx.run, _, _, *leaves = inputs
        ctx.others = [(i, leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)]
        saved = (x, *(leaf for leaf in leaves if isinstance(leaf, Tensor)))
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        x, A, solve, others = _saved(ctx, lambda t: t)
        adjoint, names = solve(grad), value_fields(A)
        _, pull = torch.func.vjp(lambda *v: sparse.spmv(_with_values(A, v), x), *(getattr(A, name) for name in names))
        of_values = dict(zip(names, pull(-adjoint), strict=True))
        return None, adjoint, None, *(of_values.get(name) for name in A._fields[:-1]), *others

    @staticmethod
    def jvp(ctx, _, right: Tensor | None, __, *tangents) -> Tensor:
        with _set_fwd_grad_enabled(True):  # or the tangents of outer transforms are lost
            x, A, solve, _ = _saved(ctx, _primal)
            given = dict(zip(A._fields[:-1], tangents, strict=False))
            values = [given[name] for name in value_fields(A)]
            if any(v is not None for v in values):
                zeros = (torch.zeros_like(getattr(A, name)) for name in value_fields(A))
                full = [z if v is None else v for v, z in zip(values, zeros, strict=True)]
                product = sparse.spmv(_with_values(A, full), x)
                right = -product if right is None else right - product
            return solve(right)

    @staticmethod
    def vmap(info, in_dims: tuple, run: _Run, b: Tensor, *rest) -> tuple[Tensor, int]:
        if info.batch_size == 0:
            floats = [t.dtype for t in (b, *rest) if isinstance(t, Tensor) and t.is_floating_point()]
            n = b.numel() if in_dims[1] is None else b.shape[1 - in_dims[1]]
            return b.new_zeros(0, n, dtype=functools.reduce(torch.promote_types, floats, torch.float32)), 0
        return loop(lambda *sample: _Solve.apply(run, *sample), info, in_dims[1:], b, *rest)


def _saved(ctx, get: Callable[[Tensor], Tensor]) -> tuple[Tensor, Matrix, Product, tuple]:
    """x, A, how to solve a system of A, and a None for each leaf behind the fields of A but for its shape."""
    x, *leaves = (get(t) for t in ctx.saved_tensors)
    for i, leaf in ctx.others:
        leaves.insert(i, leaf)
    A, preconditioner = tree_unflatten(leaves, ctx.run.form)
    options = {"preconditioner": preconditioner, **ctx.run.options}
    others = (None,) * (len(leaves) - len(A._fields) + 1)
    return x, A, lambda b: conjugate_gradient(A, b, **options).x, others


def _primal(x: Tensor) -> Tensor:
    return unpack_dual(x).primal if x.is_floating_point() else x


def _with_values(A: Matrix, values: Iterable[Tensor]) -> Matrix:
    return A._replace(**dict(zip(value_fields(A), values, strict=True)))


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
    """0 for a residual that is nearly 0; its derivative is the inverse of A, which is symmetric.

    So x + _Inverse(b - A x) has, for a constant x, the first derivatives of the solution, whatever A depends on.
    """

    @staticmethod
    def forward(residual: Tensor, solve: Product) -> Tensor:
        return torch.zeros_like(residual)

    @staticmethod
    def setup_context(ctx, inputs: tuple, _: Tensor) -> None:
        residual, ctx.solve = inputs
        ctx.save_for_backward(residual)
        ctx.save_for_forward(residual)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _Once.apply(ctx.solve(grad).detach(), *ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx, tangent: Tensor, _: None) -> Tensor:
        return _Once.apply(ctx.solve(tangent).detach(), *ctx.saved_tensors)


class _Once(torch.autograd.Function):
    """A first derivative, which does not hold how the solution depends on what a function A depends on."""

    generate_vmap_rule = True

    @staticmethod
    def forward(derivative: Tensor, residual: Tensor) -> Tensor:
        return derivative.clone()

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError("conjugate_gradient: if A is a function, the solution can be differentiated once only")

    jvp = backward


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
