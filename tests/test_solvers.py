"""Conjugate gradients: against numpy's solution in every format, gradients, and every way to fail."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from common import EACH_DEVICE

from torch_patterns.solvers import conjugate_gradient
from torch_patterns.sparse import FORMATS, coo, spmv


def definite(n: int, density: float, dtype=torch.float64, device: str = "cpu", seed: int = 0):
    """(a symmetric positive definite matrix as COO, and dense in numpy)."""
    draw = np.random.default_rng(seed)
    B = scipy.sparse.random(n, n, density, random_state=draw)
    A = scipy.sparse.coo_array(B @ B.T + scipy.sparse.diags(draw.uniform(1, 2, n)))
    row, col = (torch.from_numpy(indices.astype(np.int64)).to(device) for indices in (A.row, A.col))
    return coo(row, col, torch.from_numpy(A.data).to(device, dtype), (n, n)), A.toarray()


def right_side(n: int, dtype=torch.float64, device: str = "cpu", seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(n)).to(device, dtype)


@pytest.mark.parametrize("device", EACH_DEVICE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_solves(name, dtype, device):
    A, dense = definite(60, 0.05, dtype, device)
    b = right_side(60, dtype, device)
    solution = conjugate_gradient(A.convert(name), b, rtol=1e-5)
    x = solution.x.double().cpu().numpy()
    residual = np.linalg.norm(b.double().cpu().numpy() - dense @ x)
    assert solution.converged and 0 < solution.iterations <= 60
    assert residual <= 1.01e-5 * b.norm().item()
    assert solution.residual_norm == pytest.approx(residual, rel=1e-2)
    assert solution.x.dtype == dtype and solution.x.device == b.device


def test_iterates_as_scipy_does():
    A, dense = definite(200, 0.02)
    b = right_side(200)
    ours, theirs = [], []
    x0 = right_side(200, seed=5)
    solution = conjugate_gradient(A, b, x0=x0, rtol=1e-9, callback=lambda k, norm: ours.append((k, norm)))

    def follow(x):
        theirs.append(np.linalg.norm(b.numpy() - dense @ x))

    x, _ = scipy.sparse.linalg.cg(dense, b.numpy(), x0.numpy(), rtol=1e-9, callback=follow)
    assert [k for k, _ in ours] == list(range(1, solution.iterations + 1))
    assert abs(len(ours) - len(theirs)) <= 1
    for (_, norm), other in zip(ours[:20], theirs, strict=False):
        assert norm == pytest.approx(other, rel=1e-6)
    assert np.allclose(solution.x, x, rtol=0, atol=1e-7)
    assert np.allclose(solution.x, np.linalg.solve(dense, b.numpy()), rtol=0, atol=1e-7)


def test_functions_multiply_and_precondition():
    A, dense = definite(100, 0.05)
    scale = 10.0 ** torch.linspace(0, 4, 100, dtype=torch.float64)  # an ill-conditioned diagonal on both sides
    matrix = scale[:, None] * torch.from_numpy(dense) * scale
    b = right_side(100)
    plain = conjugate_gradient(lambda x: matrix @ x, b, rtol=1e-8, max_iterations=100)
    jacobi = conjugate_gradient(lambda x: matrix @ x, b, rtol=1e-8, preconditioner=lambda r: r / matrix.diagonal())
    every = torch.arange(100)
    inverse = coo(every, every, 1 / matrix.diagonal(), (100, 100))
    assert not plain.converged and plain.iterations == 100
    assert jacobi.converged
    by_matrix = conjugate_gradient(lambda x: matrix @ x, b, rtol=1e-8, preconditioner=inverse)
    assert by_matrix.converged and abs(by_matrix.iterations - jacobi.iterations) <= 1


def test_starting_at_the_solution_takes_no_step():
    A, dense = definite(30, 0.1)
    x = right_side(30)
    b = torch.from_numpy(dense) @ x
    kept = x.clone()
    solution = conjugate_gradient(A, b, x0=x)
    assert solution.iterations == 0 and solution.converged
    assert torch.equal(solution.x, kept) and torch.equal(x, kept) and solution.x is not x
    assert conjugate_gradient(A, torch.zeros(30, dtype=torch.float64))[1:] == (0, 0.0, True)
    empty = coo(*torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (0, 0))
    assert conjugate_gradient(empty, torch.zeros(0))[1:] == (0, 0.0, True)


def test_tolerances():
    A, _ = definite(50, 0.1)
    b = right_side(50)
    assert conjugate_gradient(A, b, rtol=0, atol=1e-3).residual_norm <= 1e-3
    # What is under test is rtol itself: the solver stops sooner where less is asked for.
    assert conjugate_gradient(A, b, rtol=0.5).iterations < conjugate_gradient(A, b, rtol=1e-3).iterations
    hard = conjugate_gradient(A.to(torch.float32), b.float(), rtol=1e-12, max_iterations=300)
    assert not hard.converged and hard.iterations == 300 and hard.residual_norm < 1e-4


def test_dtypes_promote():
    A, _ = definite(20, 0.1)
    assert conjugate_gradient(A, right_side(20, torch.float32)).x.dtype == torch.float64
    assert conjugate_gradient(A.to(torch.float32), right_side(20)).x.dtype == torch.float64
    half = conjugate_gradient(A.to(torch.float16), right_side(20, torch.float16))
    assert half.x.dtype == torch.float32 and half.converged


# ---- gradients


@pytest.mark.parametrize("name", FORMATS)
def test_gradients(name):
    A, _ = definite(12, 0.1)

    def solve(values, b):
        values = (values + values[mirror]) / 2  # gradcheck moves one entry at a time, and A must stay symmetric
        matrix = A._replace(values=values).convert(name)
        return conjugate_gradient(matrix, b, rtol=1e-13).x

    entry = {p: k for k, p in enumerate(zip(A.row_idx.tolist(), A.col_idx.tolist(), strict=True))}
    mirror = torch.tensor([entry[c, r] for r, c in entry])
    inputs = A.values.clone().requires_grad_(), right_side(12).requires_grad_()
    assert torch.autograd.gradcheck(solve, inputs, atol=1e-6, check_forward_ad=True)


def symmetric_system(how: str):
    """(the solution as a function of the values and the right side, the same by torch, values, right side)."""
    A, _ = definite(6, 0.2)
    entry = {p: k for k, p in enumerate(zip(A.row_idx.tolist(), A.col_idx.tolist(), strict=True))}
    mirror = torch.tensor([entry[c, r] for r, c in entry])

    def solve(values, b):
        matrix = A._replace(values=(values + values[mirror]) / 2).convert("csr")
        return conjugate_gradient(matrix if how == "matrix" else lambda x: spmv(matrix, x), b, rtol=1e-13).x

    def by_torch(values, b):
        dense = torch.zeros(6, 6, dtype=torch.float64).index_put((A.row_idx, A.col_idx), (values + values[mirror]) / 2)
        return torch.linalg.solve(dense, b)

    return solve, by_torch, A.values, right_side(6)


def assert_close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("how", ["matrix", "function"])
def test_transforms(how):
    solve, by_torch, *inputs = symmetric_system(how)
    tangents = [torch.cos(x) for x in inputs]
    scalar, wanted = (lambda *x, f=f: f(*x).sin().sum() for f in (solve, by_torch))
    assert_close(torch.func.grad(scalar, (0, 1))(*inputs), torch.func.grad(wanted, (0, 1))(*inputs))
    assert_close(*(torch.func.jvp(f, tuple(inputs), tuple(tangents)) for f in (solve, by_torch)))
    assert_close(*(torch.func.vjp(f, *inputs)[1](inputs[1]) for f in (solve, by_torch)))


@pytest.mark.parametrize("how", ["matrix", "function"])
def test_batches_of_gradients(how):
    """autograd.grad(is_grads_batched=True) and jacobian(vectorize=True), which batch by other means than torch.func."""
    solve, by_torch, *inputs = symmetric_system(how)
    want = torch.autograd.functional.jacobian(by_torch, tuple(inputs))
    for strategy in ("reverse-mode", "forward-mode"):
        got = torch.autograd.functional.jacobian(solve, tuple(inputs), vectorize=True, strategy=strategy)
        assert_close(got, want)
    leaves = [x.clone().requires_grad_() for x in inputs]
    outcome, samples = solve(*leaves), torch.eye(6, dtype=torch.float64)
    rows = torch.autograd.grad(outcome, leaves, samples, is_grads_batched=True, create_graph=how == "matrix")
    assert_close(rows, want)
    if how == "matrix":  # to second order
        squares = lambda rows: sum((g * g).sum() for g in rows)  # noqa: E731
        second = torch.autograd.functional.jacobian(by_torch, tuple(leaves), create_graph=True)
        assert_close(*(torch.autograd.grad(squares(g), leaves) for g in (rows, second)))


def test_transforms_of_matrices():
    """To second order in every order of the modes, and under vmap, for no samples too."""
    solve, by_torch, *inputs = symmetric_system("matrix")
    scalar, wanted = (lambda *x, f=f: f(*x).sin().sum() for f in (solve, by_torch))
    want = torch.func.hessian(wanted, (0, 1))(*inputs)
    for outer, inner in itertools.product((torch.func.jacfwd, torch.func.jacrev), repeat=2):
        assert_close(outer(inner(scalar, (0, 1)), (0, 1))(*inputs), want)
    for jacobian in (torch.func.jacfwd, torch.func.jacrev):
        assert_close(jacobian(solve, (0, 1))(*inputs), jacobian(by_torch, (0, 1))(*inputs))
    batch = [torch.stack([x, 2 * x, 3 * x]) for x in inputs]
    assert_close(torch.vmap(solve)(*batch), torch.vmap(by_torch)(*batch))
    grads = (torch.vmap(torch.func.grad(f, (0, 1)))(*batch) for f in (scalar, wanted))
    assert_close(*grads)
    assert torch.vmap(solve)(*(x[:0] for x in batch)).shape == (0, 6)


def test_functions_are_differentiated_once():
    solve, _, *inputs = symmetric_system("function")
    leaves = [x.clone().requires_grad_() for x in inputs]
    first = torch.autograd.grad(solve(*leaves).sum(), leaves, create_graph=True)
    along = lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1]  # noqa: E731
    for again in (
        lambda: torch.autograd.grad(first[0].sum(), leaves[0]),
        lambda: along(torch.func.grad(lambda v: solve(v, inputs[1]).sum()))(inputs[0]),
        lambda: along(along(lambda v: solve(v, inputs[1])))(inputs[0]),
        lambda: torch.func.grad(lambda v: along(lambda w: solve(w, inputs[1]))(v).sum())(inputs[0]),
    ):
        with pytest.raises(RuntimeError, match="can be differentiated once only|escaped"):  # of an inner transform
            again()


def test_the_gradient_of_b_is_a_solution():
    A, dense = definite(40, 0.1)
    b = right_side(40).requires_grad_()
    weights = right_side(40, seed=3)
    (grad,) = torch.autograd.grad(conjugate_gradient(A, b, rtol=1e-12).x, b, weights)
    assert np.allclose(grad, np.linalg.solve(dense, weights), rtol=0, atol=1e-9)
    with torch.no_grad():
        assert not conjugate_gradient(A, b).x.requires_grad


# ---- failing


def test_what_is_not_positive_definite_is_an_error():
    b = torch.ones(3)
    for diagonal in torch.tensor([[-1.0, -1, -1], [1, 1, -5], [0, 0, 0]]):
        with pytest.raises(ValueError, match=r"A is not positive definite: p\.Ap = .* in iteration=1"):
            conjugate_gradient(diagonal.mul, b)
    with pytest.raises(ValueError, match="the preconditioner is not positive definite: r.Mr = -3 in iteration=1"):
        conjugate_gradient(lambda x: x, b, preconditioner=lambda r: -r)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_errors(bad):
    A, _ = definite(10, 0.2)
    b = right_side(10)
    with pytest.raises(ValueError, match="iteration 0 came upon"):
        conjugate_gradient(A, b.index_fill(0, torch.tensor(3), bad))
    with pytest.raises(ValueError, match="iteration [01] came upon"):
        conjugate_gradient(A._replace(values=A.values * bad), b)
    with pytest.raises(ValueError, match="iteration 0 came upon"):
        conjugate_gradient(A, b, x0=torch.full_like(b, bad))


def test_arguments_are_checked():
    A, _ = definite(10, 0.2)
    with pytest.raises(ValueError, match=r"A is 10 x 10, and b \[9\]"):
        conjugate_gradient(A, right_side(9))
    with pytest.raises(ValueError, match=r"b must be of shape \[n\], it is \[10, 1\]"):
        conjugate_gradient(A, right_side(10)[:, None])
    with pytest.raises(ValueError, match=r"x0 is \[9\], and b \[10\]"):
        conjugate_gradient(A, right_side(10), x0=right_side(9))
    with pytest.raises(ValueError, match=r"preconditioner is 10 x 10, and b \[9\]"):
        conjugate_gradient(lambda x: x, right_side(9), preconditioner=A)
    with pytest.raises(TypeError, match="b is torch.int64"):
        conjugate_gradient(A, torch.ones(10, dtype=torch.int64))
    with pytest.raises(TypeError, match="A is neither a sparse matrix nor a function: Tensor"):
        conjugate_gradient(torch.eye(10), right_side(10).float())
    with pytest.raises(ValueError, match=r"A must return a tensor of the shape of its argument, \[10\], got \[3\]"):
        conjugate_gradient(lambda x: x[:3], right_side(10))
    with pytest.raises(TypeError, match="callback must be a function, got list"):
        conjugate_gradient(A, right_side(10), callback=[])
