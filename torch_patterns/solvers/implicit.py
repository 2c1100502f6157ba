"""Derivatives of the solution of a linear system, by the implicit function theorem, for any method that finds it.

From A x = b follows A' x + A x' = b'. So forward mode solves A x' = b' - A' x. In reverse mode the gradient r of b
solves the transposed system, A^T r = g, and the gradient of A is that of the product A x for the gradient -r.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual  # _set_fwd_grad_enabled is private
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_patterns import sparse
from torch_patterns.arguments import integer, real, refuse
from torch_patterns.batching import loop, per_sample
from torch_patterns.sparse import Matrix
from torch_patterns.sparse.containers import value_fields
from torch_patterns.sparse.convert import transpose

Product = Callable[[Tensor], Tensor]
Callback = Callable[[int, float], object]


class Solution(NamedTuple):
    """A solver's result: ``x`` [n], the number of iterations, the norm of ``b - A x``, and whether it is small enough.

    Example:
        >>> tp.solvers.conjugate_gradient(lambda x: 2 * x, torch.ones(3)).converged
        True
    """

    x: Tensor
    iterations: int
    residual_norm: float
    converged: bool


class Method(NamedTuple):
    """An iteration and its tolerances.

    ``iterate(multiply, b, x, tolerances, limit, precondition, callback)`` may change x. It returns the last x, the
    number of iterations, the norm of the residual, and the norm that it should have at most.
    """

    name: str
    symmetric: bool
    iterate: Callable
    rtol: float
    atol: float
    max_iterations: int | None


def run(
    method: Method,
    A: Matrix | Product,
    b: Tensor,
    x0: Tensor | None,
    preconditioner: Matrix | Product | None,
    callback: Callback | None = None,
) -> Solution:
    """Solves a system by a method, with derivatives."""
    method = _checked(method)
    product_of(method.name, A, "A", b)
    if preconditioner is not None:
        product_of(method.name, preconditioner, "preconditioner", b)
    refuse(method.name, "x0", x0, "Tensor | None")
    if callback is not None and not callable(callback):
        raise TypeError(f"{method.name}: callback must be a function, got {type(callback).__name__}")
    if x0 is not None and x0.shape != b.shape:
        raise ValueError(f"{method.name}: x0 is {list(x0.shape)}, and b {list(b.shape)}")
    leaves, form = tree_flatten((A, preconditioner))
    this = _Run(method, form, callback)
    if isinstance(A, Matrix):
        return this.solution(_solved(this, b, x0, *leaves))
    with torch.no_grad(), _set_fwd_grad_enabled(False):
        x = this.iterate(b, x0, leaves)
    inverses = (functools.partial(_inverse, method, A, preconditioner, adjoint) for adjoint in (False, True))
    return this.solution(x + Inverse.apply(b - A(x), *inverses, method.name))


def _checked(method: Method) -> Method:
    """The method with its tolerances as Python numbers."""
    name, most = method.name, method.max_iterations
    tolerances = {key: real(name, key, getattr(method, key)) for key in ("rtol", "atol")}
    for key, value in tolerances.items():
        if not value >= 0:
            raise ValueError(f"{name}: {key} must not be negative, got {value:g}")
    most = None if most is None else integer(name, "max_iterations", most)
    if most is not None and most < 0:
        raise ValueError(f"{name}: max_iterations must not be negative, got {most}")
    return method._replace(max_iterations=most, **tolerances)


def _solved(run: _Run, *args) -> Tensor:
    """Applies _Solve. ``torch.func.functionalize`` has no rule for functions in Python, so the call steps over it: a
    solution has no views and no writes that it would have to replace.
    """
    top = _functorch.peek_interpreter_stack()
    if top is None or top.key() != _functorch.TransformType.Functionalize:
        return _Solve.apply(run, *args)
    from torch._functorch.eager_transforms import _unwrap_all_tensors_from_functional
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    transform: Any = retrieve_current_functorch_interpreter()
    plain = _unwrap_all_tensors_from_functional(args, reapply_views=transform.functionalize_add_back_views())
    with transform.lower():
        x = _solved(run, *plain)
    return _functorch._wrap_functional_tensor(x, transform.level())


def _inverse(method: Method, A, preconditioner, adjoint: bool, b: Tensor) -> Tensor:
    """Solves a system with A or, for the adjoint, with its transpose."""
    if adjoint and not method.symmetric:
        A, preconditioner = (None if f is None else _transposed(f, b) for f in (A, preconditioner))
    return run(method, A, b, None, preconditioner).x


def _transposed(A: Matrix | Product, like: Tensor) -> Matrix | Product:
    """Returns the transpose; for a function, which is linear, its vector-Jacobian product is the transpose."""
    if isinstance(A, Matrix):
        return transpose(A)
    y, pull = torch.func.vjp(A, torch.zeros_like(like))
    return lambda g: pull(g.to(y.dtype))[0]


class _Run:
    """The arguments of a solution, and its outcome."""

    def __init__(self, method: Method, form, callback: Callback | None) -> None:
        self.method, self.form, self.callback = method, form, callback
        self.iterations, self.norm, self.converged = 0, 0.0, True

    def iterate(self, b: Tensor, x0: Tensor | None, leaves: Sequence) -> Tensor:
        A, preconditioner = tree_unflatten(leaves, self.form)
        method = self.method
        multiply = product_of(method.name, A, "A", b)
        precondition = None
        if preconditioner is not None:
            precondition = product_of(method.name, preconditioner, "preconditioner", b)
        limit = 10 * len(b) if method.max_iterations is None else method.max_iterations
        tolerances = method.rtol, method.atol
        x, iterations, norm, converged = scaled(
            method.iterate, multiply, b, x0, tolerances, limit, precondition, self.callback
        )
        self.iterations, self.norm = max(self.iterations, iterations), max(self.norm, norm)
        self.converged = self.converged and converged
        return x

    def solution(self, x: Tensor) -> Solution:
        return Solution(x, self.iterations, self.norm, self.converged)


def scaled(
    iterate: Callable,
    multiply: Product,
    b: Tensor,
    x0: Tensor | None,
    tolerances: tuple[float, float],
    limit: int,
    precondition: Product | None,
    callback: Callback | None,
    greatest: Product = lambda partial: partial,
) -> tuple[Tensor, int, float, bool]:
    """Runs an iteration on a system that is multiplied so that the squares of its vectors neither vanish nor overflow:
    (x, number of steps, norm of the residual, whether it is small enough). ``greatest`` is the maximum of the maxima of
    parts of vectors."""
    dtype = torch.promote_types(multiply(b).dtype, torch.float32)
    scale, report = _scale(dtype, greatest, b), callback
    if x0 is None:
        x0 = torch.zeros_like(b, dtype=dtype)
    else:
        x0 = x0.to(b.device, dtype, copy=True)
        scale = scale if scale == 1 else _scale(dtype, greatest, b, b - multiply(x0))  # the residual may be greater
    if scale != 1:
        b, x0 = b.to(dtype) * scale, x0 * scale
    if callback is not None and scale != 1:
        report = lambda iteration, norm: callback(iteration, norm / scale)  # noqa: E731
    rtol, atol = tolerances
    x, iterations, norm, goal = iterate(multiply, b, x0, (rtol, atol * scale), limit, precondition, report)
    return x if scale == 1 else x * (1 / scale), iterations, norm / scale, norm <= goal


def _scale(dtype: torch.dtype, greatest: Product, *vectors: Tensor) -> float:
    """Returns 1, if the elements are far from the ends of the dtype, or a power of two, which rounds nothing."""
    here = torch.stack([v.abs().max().to(dtype) if len(v) else v.new_zeros((), dtype=dtype) for v in vectors])
    most = greatest(here.max()).item()
    if not 0 < most < math.inf or 2**-20 <= most <= 2**20:
        return 1.0
    limit = math.frexp(torch.finfo(dtype).max)[1] - 28
    return 2.0 ** -max(-limit, min(math.frexp(most)[1], limit))


class _Solve(torch.autograd.Function):
    """Solves A x = b for a matrix, whose tensors are among the leaves."""

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
        names = value_fields(A)

        def gradients(grad: Tensor) -> tuple:
            adjoint, values = solve(True, grad), (getattr(A, name) for name in names)
            _, pull = torch.func.vjp(lambda *v: sparse.spmv(_with_values(A, v), x), *values)
            return adjoint, *pull(-adjoint)

        adjoint, *of_values = per_sample(gradients, grad)
        by_name = dict(zip(names, of_values, strict=True))
        return None, adjoint, None, *(by_name.get(name) for name in A._fields[:-1]), *others

    @staticmethod
    def jvp(ctx, _, right: Tensor | None, __, *tangents) -> Tensor:
        with _set_fwd_grad_enabled(True):  # otherwise the tangents of outer transforms are lost
            x, A, solve, _ = _saved(ctx, _primal)
            given = dict(zip(A._fields[:-1], tangents, strict=False))

            def tangent(right: Tensor | None, *values: Tensor | None) -> tuple[Tensor]:
                if any(v is not None for v in values):
                    zeros = (torch.zeros_like(getattr(A, name)) for name in value_fields(A))
                    full = [z if v is None else v for v, z in zip(values, zeros, strict=True)]
                    product = sparse.spmv(_with_values(A, full), x)
                    right = -product if right is None else right - product
                return (solve(False, right),)

            return per_sample(tangent, right, *(given[name] for name in value_fields(A)))[0]

    @staticmethod
    def vmap(info, in_dims: tuple, run: _Run, b: Tensor, *rest) -> tuple[Tensor, int]:
        if info.batch_size == 0:
            floats = [t.dtype for t in (b, *rest) if isinstance(t, Tensor) and t.is_floating_point()]
            n = b.numel() if in_dims[1] is None else b.shape[1 - in_dims[1]]
            return b.new_zeros(0, n, dtype=functools.reduce(torch.promote_types, floats, torch.float32)), 0
        return loop(lambda *sample: _Solve.apply(run, *sample), info, in_dims[1:], b, *rest)


def _saved(ctx, get: Callable[[Tensor], Tensor]) -> tuple[Tensor, Matrix, Callable, tuple]:
    """Returns x, A, a solver of systems with A or its transpose, and a None for each leaf after A's tensors."""
    x, *leaves = (get(t) for t in ctx.saved_tensors)
    for i, leaf in ctx.others:
        leaves.insert(i, leaf)
    A, preconditioner = tree_unflatten(leaves, ctx.run.form)
    others = (None,) * (len(leaves) - len(A._fields) + 1)
    return x, A, functools.partial(_inverse, ctx.run.method, A, preconditioner), others


def _primal(x: Tensor) -> Tensor:
    return unpack_dual(x).primal if x.is_floating_point() else x


def _with_values(A: Matrix, values: Iterable[Tensor]) -> Matrix:
    return A._replace(**dict(zip(value_fields(A), values, strict=True)))


class Inverse(torch.autograd.Function):
    """Returns 0 for a residual that is nearly 0, with the inverse of A as its derivative.

    So x + Inverse(b - A x) has, for a constant x, the first derivatives of the solution, whatever A depends on.
    """

    @staticmethod
    def forward(residual: Tensor, solve: Product, solve_adjoint: Product, name: str) -> Tensor:
        return torch.zeros_like(residual)

    @staticmethod
    def setup_context(ctx, inputs: tuple, _: Tensor) -> None:
        residual, ctx.solve, ctx.solve_adjoint, ctx.name = inputs
        ctx.save_for_backward(residual)
        ctx.save_for_forward(residual)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        (adjoint,) = per_sample(lambda g: (ctx.solve_adjoint(g).detach(),), grad)
        return _Once.apply(adjoint, *ctx.saved_tensors, ctx.name), None, None, None

    @staticmethod
    def jvp(ctx, tangent: Tensor, *_) -> Tensor:
        (along,) = per_sample(lambda t: (ctx.solve(t).detach(),), tangent)
        return _Once.apply(along, *ctx.saved_tensors, ctx.name)


class _Once(torch.autograd.Function):
    """A first derivative with respect to a function's parameters; it cannot be differentiated in them again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(derivative: Tensor, residual: Tensor, name: str) -> Tensor:
        return derivative.clone()

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.name = inputs[2]

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(f"{ctx.name}: if A is a function, the solution can be differentiated once only")

    jvp = backward


# ---- shared by the methods


def product_of(where: str, A: Matrix | Product, name: str, b: Tensor) -> Product:
    """Returns the function that multiplies by `A`; checks that its shape fits `b`."""
    if not isinstance(b, Tensor):
        raise TypeError(f"{where}: b must be a tensor, got {type(b).__name__}")
    if not b.is_floating_point():
        raise TypeError(f"{where}: b is {b.dtype}, which is not floating point")
    if b.dim() != 1:
        raise ValueError(f"{where}: b must be of shape [n], it is {list(b.shape)}")
    if isinstance(A, Matrix):
        if tuple(A.shape) != (len(b), len(b)):
            raise ValueError(f"{where}: {name} is {A.shape[0]} x {A.shape[1]}, and b [{len(b)}]")
        return lambda x: sparse.spmv(A, x)
    if not callable(A):
        raise TypeError(f"{where}: {name} is neither a sparse matrix nor a function: {type(A).__name__}")

    def product(x: Tensor) -> Tensor:
        y = A(x)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            got = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(
                f"{where}: {name} must return a tensor of the shape of its argument, {list(x.shape)}, got {got}"
            )
        return y

    return product


def check_finite(where: str, value: float, iteration: int) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{where}: iteration {iteration} came upon {value}: is there NaN in A, b or x0?")
