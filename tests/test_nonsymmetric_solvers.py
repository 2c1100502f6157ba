"""BiCGSTAB and GMRES with and without preconditioners: against numpy's solutions, gradients, and ways to fail."""

import functools
import itertools
import math

import numpy as np
import pytest
import scipy.sparse
import torch
from common import EACH_DEVICE
from data_files import data_folder

import torch_patterns as tp
from torch_patterns.solvers import bicgstab, block_jacobi, conjugate_gradient, gmres, jacobi
from torch_patterns.sparse import FORMATS, coo, spmv

each_device = pytest.mark.parametrize("device", EACH_DEVICE)
each_solver = pytest.mark.parametrize("solver", [bicgstab, gmres], ids=lambda s: s.__name__)


def system(n: int, density: float = 0.1, dtype=torch.float64, device: str = "cpu", seed: int = 0):
    """(a nonsymmetric matrix with a dominant diagonal as COO, the same in numpy, a right side)."""
    draw = np.random.default_rng(seed)
    A = scipy.sparse.random_array((n, n), density=density, rng=draw)
    A = scipy.sparse.coo_array(A + scipy.sparse.diags(draw.uniform(1, 2, n) + abs(A).sum(1)))
    row, col = (torch.from_numpy(indices.astype(np.int64)).to(device) for indices in (A.row, A.col))
    b = torch.from_numpy(draw.standard_normal(n)).to(device, dtype)
    return coo(row, col, torch.from_numpy(A.data).to(device, dtype), (n, n)), A.toarray(), b


@each_solver
@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_solves(solver, form, dtype, device):
    A, dense, b = system(60, 0.1, dtype, device)
    norms = []
    solution = solver(A.convert(form), b, rtol=1e-4, callback=lambda k, norm: norms.append((k, norm)))
    residual = np.linalg.norm(b.double().cpu().numpy() - dense @ solution.x.double().cpu().numpy())
    assert solution.converged and 0 < solution.iterations <= 60
    assert residual <= 1.01e-4 * b.norm().item()
    assert solution.residual_norm == pytest.approx(residual, rel=1e-2)
    assert solution.x.dtype == dtype and solution.x.device == b.device
    assert [k for k, _ in norms] == list(range(1, solution.iterations + 1))
    assert norms[-1][1] == solution.residual_norm


@each_solver
def test_solutions_are_those_of_numpy(solver):
    A, dense, b = system(150)
    want = np.linalg.solve(dense, b)
    for options in ({}, {"x0": torch.ones(150, dtype=torch.float64)}, {"preconditioner": jacobi(A)}):
        for operator in (A, lambda x: spmv(A, x)):
            x = solver(operator, b, rtol=1e-12, **options).x
            assert np.allclose(x, want, rtol=0, atol=1e-10)


def test_gmres_minimizes_the_residual():
    """Over the Krylov space, whose best vector numpy finds; and as scipy does, with restarts."""
    _, _, b = system(40)
    # Far from normal, so that the residual falls slowly.
    dense = np.diag(np.linspace(1, 40, 40)) + np.triu(np.random.default_rng(3).standard_normal((40, 40)))
    A = tp.sparse.from_torch(torch.from_numpy(dense))
    norms = []
    gmres(A, b, restart=40, rtol=1e-12, max_iterations=12, callback=lambda k, norm: norms.append(norm))
    krylov = np.stack([np.linalg.matrix_power(dense / 40, k) @ b.numpy() for k in range(1, 13)], 1)
    for k in range(1, 13):
        best = np.linalg.lstsq(krylov[:, :k], b.numpy(), rcond=None)[0]
        assert norms[k - 1] == pytest.approx(np.linalg.norm(b.numpy() - krylov[:, :k] @ best), rel=1e-6)
    theirs, ours = [], []
    scipy.sparse.linalg.gmres(
        dense, b.numpy(), restart=5, maxiter=6, rtol=1e-14, callback=theirs.append, callback_type="pr_norm"
    )
    gmres(A, b, restart=5, rtol=1e-14, max_iterations=30, callback=lambda k, norm: ours.append(norm))
    assert np.allclose(ours, np.array(theirs) * b.norm().item(), rtol=1e-6)


@each_solver
def test_preconditioners_help(solver):
    A, dense, b = system(100)
    scale = 10.0 ** torch.linspace(0, 5, 100, dtype=torch.float64)
    matrix = torch.from_numpy(dense) * scale[:, None] * scale.flip(0)
    B = tp.sparse.from_torch(matrix)
    limit = {"rtol": 1e-6, "max_iterations": 100}
    plain = solver(B, b, **limit)
    for inverse in (jacobi(B), block_jacobi(B, 7), lambda r: r / matrix.diagonal()):
        better = solver(B, b, preconditioner=inverse, **limit)
        assert better.converged and better.iterations < plain.iterations
        assert np.linalg.norm(b.numpy() - matrix.numpy() @ better.x.numpy()) <= 1.01e-6 * b.norm().item()
    assert solver(B, b, preconditioner=block_jacobi(B, 100)).iterations <= 2  # it is the inverse


@each_device
def test_on_real_matrices(device):
    """Made regular by the sum of each row on the diagonal, as nearly singular ones take other preconditioners."""
    folder = data_folder("matrices")
    for name in ("cryg2500", "rajat01", "west0479"):
        A = tp.io.read_matrix_market(folder / f"{name}.mtx", duplicates="sum").to(torch.float64).to(device)
        every = torch.arange(A.shape[0], device=device)
        A = (A + coo(every, every, A._replace(values=A.values.abs()).sum(1) + 1e-3, A.shape)).convert("csr")
        ones = torch.ones(A.shape[1], dtype=torch.float64, device=device)
        for solver in (bicgstab, gmres):
            for inverse in (jacobi(A), block_jacobi(A, 50)):
                solution = solver(A, A @ ones, preconditioner=inverse, rtol=1e-10)
                assert solution.converged and torch.allclose(solution.x, ones, rtol=0, atol=1e-4)


def test_preconditioners_are_inverses_of_what_they_say():
    A, dense, _ = system(10, 0.5)
    for form in FORMATS:
        got = jacobi(A.convert(form)).to_dense()
        assert np.allclose(got, np.diag(1 / dense.diagonal()))
        for size in (1, 3, 10, 99):
            want = np.zeros((10, 10))
            for k in range(0, 10, size):
                want[k : k + size, k : k + size] = np.linalg.inv(dense[k : k + size, k : k + size])
            assert np.allclose(block_jacobi(A.convert(form), size).to_dense(), want)
    S = A.to(torch.float32)
    torch.set_default_dtype(torch.float64)
    try:
        assert jacobi(S).dtype == block_jacobi(S, 3).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    B = coo(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([3.0, 2.0]), (2, 2))
    assert jacobi(B).to_dense().tolist() == [[1, 0], [0, 0.5]]
    with pytest.raises(ValueError, match="block_jacobi: the block of rows 0 to 1 is singular"):
        block_jacobi(B, 2)
    with pytest.raises(ValueError, match="block_jacobi: block_size must be positive, got 0"):
        block_jacobi(B, 0)
    for function in (jacobi, functools.partial(block_jacobi, block_size=2)):
        with pytest.raises(ValueError, match="the matrix must be square, got 2 x 3"):
            function(B._replace(shape=(2, 3)))
        empty = function(coo(*torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (0, 0)))
        assert empty.shape == (0, 0) and empty.values.numel() == 0


# ---- derivatives


@each_solver
@pytest.mark.parametrize("form", ["coo", "csr", "csc", "hyb", "sell"])
def test_gradients(solver, form):
    A, _, b = system(8, 0.3)
    inputs = A.values.clone().requires_grad_(), b.clone().requires_grad_()

    def solve(values, b):
        matrix = A._replace(values=values).convert(form)
        return solver(matrix, b, rtol=1e-13, preconditioner=jacobi(matrix)).x

    assert torch.autograd.gradcheck(solve, inputs, atol=1e-6, check_forward_ad=True, check_batched_grad=True)


def both_ways(solver, how: str):
    A, _, b = system(6, 0.4)

    def solve(values, b):
        matrix = A._replace(values=values).convert("csr")
        operator = matrix if how == "matrix" else lambda x: spmv(matrix, x)
        preconditioner = {"matrix": jacobi(A), "function": lambda r: r / A.diagonal()}[how]
        return solver(operator, b, rtol=1e-13, preconditioner=preconditioner).x

    def by_torch(values, b):
        dense = torch.zeros(6, 6, dtype=torch.float64).index_put((A.row_idx, A.col_idx), values, accumulate=True)
        return torch.linalg.solve(dense, b)

    return solve, by_torch, A.values, b


def assert_close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


@each_solver
@pytest.mark.parametrize("how", ["matrix", "function"])
def test_transforms(solver, how):
    solve, by_torch, *inputs = both_ways(solver, how)
    tangents = tuple(torch.cos(x) for x in inputs)
    scalar, wanted = (lambda *x, f=f: f(*x).sin().sum() for f in (solve, by_torch))
    assert_close(torch.func.grad(scalar, (0, 1))(*inputs), torch.func.grad(wanted, (0, 1))(*inputs))
    assert_close(*(torch.func.jvp(f, tuple(inputs), tangents) for f in (solve, by_torch)))
    leaves = [[x.clone().requires_grad_() for x in inputs] for _ in range(2)]
    assert_close(*(torch.autograd.grad(f(*x).sin().sum(), x) for f, x in zip((solve, by_torch), leaves, strict=True)))


@each_solver
def test_transforms_of_matrices(solver):
    """To second order in every order of the modes, and under vmap."""
    solve, by_torch, *inputs = both_ways(solver, "matrix")
    scalar, wanted = (lambda *x, f=f: f(*x).sin().sum() for f in (solve, by_torch))
    want = torch.func.hessian(wanted, (0, 1))(*inputs)
    for outer, inner in itertools.product((torch.func.jacfwd, torch.func.jacrev), repeat=2):
        assert_close(outer(inner(scalar, (0, 1)), (0, 1))(*inputs), want)
    batch = [torch.stack([x, 2 * x, 3 * x]) for x in inputs]
    assert_close(torch.vmap(solve)(*batch), torch.vmap(by_torch)(*batch))
    assert torch.vmap(solve)(*(x[:0] for x in batch)).shape == (0, 6)


@each_solver
def test_functions_are_differentiated_once(solver):
    solve, _, *inputs = both_ways(solver, "function")
    leaves = [x.clone().requires_grad_() for x in inputs]
    first = torch.autograd.grad(solve(*leaves).sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match=f"{solver.__name__}: if A is a function, .* differentiated once only"):
        torch.autograd.grad(first[0].sum(), leaves[0])


# ---- what is special


@each_solver
def test_starting_at_the_solution_takes_no_step(solver):
    A, dense, x = system(30)
    solution = solver(A, torch.from_numpy(dense) @ x, x0=x, rtol=1e-12)
    assert solution.iterations == 0 and solution.converged and solution.x is not x
    assert solver(A, torch.zeros(30, dtype=torch.float64))[1:] == (0, 0.0, True)
    empty = coo(*torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (0, 0))
    assert solver(empty, torch.zeros(0))[1:] == (0, 0.0, True)


@each_solver
def test_not_to_converge_is_no_error(solver):
    A, _, b = system(50)
    short = solver(A, b, rtol=1e-12, max_iterations=2)
    assert short.iterations == 2 and not short.converged
    singular = coo(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([1.0, 0.0]), (2, 2))
    solution = solver(singular, torch.tensor([1.0, 1.0]))
    assert not solution.converged and solution.x.isfinite().all()
    nothing = solver(lambda x: 0 * x, torch.ones(3))
    assert not nothing.converged and nothing.residual_norm == pytest.approx(math.sqrt(3))


def test_a_rotation():
    """BiCGSTAB breaks down at once where r and A r are orthogonal, and says so; GMRES takes n steps."""
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    b = torch.tensor([1.0, 2.0])
    assert not bicgstab(turn.mv, b).converged
    solution = gmres(turn.mv, b)
    assert solution.converged and solution.iterations == 2
    assert torch.allclose(solution.x, torch.tensor([-2.0, 1.0]))


@each_solver
def test_dtypes_promote(solver):
    A, _, b = system(20)
    assert solver(A, b.float()).x.dtype == torch.float64
    half = solver(A.to(torch.float16), b.half())
    assert half.x.dtype == torch.float32 and half.converged


@pytest.mark.parametrize("solver", [bicgstab, gmres, conjugate_gradient], ids=lambda s: s.__name__)
def test_bad_numbers(solver):
    A, b = tp.sparse.from_torch(torch.eye(3)), torch.ones(3)
    for options, error, message in (
        ({"x0": [0.0] * 3}, TypeError, "x0 must be a tensor, got list"),
        ({"rtol": math.nan}, ValueError, "rtol must not be negative, got nan"),
        ({"rtol": -1}, ValueError, "rtol must not be negative, got -1"),
        ({"atol": None}, TypeError, "atol must be a number, got NoneType"),
        ({"max_iterations": 2.5}, TypeError, "max_iterations must be an integer, got float"),
        ({"max_iterations": -1}, ValueError, "max_iterations must not be negative, got -1"),
    ):
        with pytest.raises(error, match=f"^{solver.__name__}: {message}"):
            solver(A, b, **options)
    assert solver(A, b, rtol=np.float32(1e-5), max_iterations=np.int64(5)).converged


@each_solver
def test_bad_arguments(solver):
    A, _, b = system(10)
    name = solver.__name__
    for args, options, error, message in (
        ((A, b[:9]), {}, ValueError, r"A is 10 x 10, and b \[9\]"),
        ((A, b[:, None]), {}, ValueError, r"b must be of shape \[n\], it is \[10, 1\]"),
        ((A, b), {"x0": b[:9]}, ValueError, r"x0 is \[9\], and b \[10\]"),
        ((A, b.long()), {}, TypeError, "b is torch.int64"),
        ((torch.eye(10), b), {}, TypeError, "A is neither a sparse matrix nor a function: Tensor"),
        ((A, b), {"preconditioner": 2}, TypeError, "preconditioner is neither a sparse matrix nor a function: int"),
        ((A, b), {"callback": 3}, TypeError, "callback must be a function, got int"),
        (
            (lambda x: x[:2], b),
            {},
            ValueError,
            r"A must return a tensor of the shape of its argument, \[10\], got \[2\]",
        ),
        ((lambda x: 3, b), {}, ValueError, "A must return a tensor .*, got int"),
        ((A, b), {"preconditioner": lambda r: r[:2]}, ValueError, r"preconditioner must return .*, got \[2\]"),
        ((A, b.index_fill(0, torch.tensor(3), math.nan)), {}, ValueError, "iteration 0 came upon nan"),
        ((A * math.inf, b), {}, ValueError, "iteration [01] came upon"),
    ):
        with pytest.raises(error, match=f"{name}: {message}"):
            solver(*args, **options)
    with pytest.raises(ValueError, match="gmres: restart must be positive, got 0"):
        gmres(A, b, restart=0)
    with pytest.raises(TypeError, match="gmres: restart must be an integer, got float"):
        gmres(A, b, restart=2.5)


def test_preconditioners_of_conjugate_gradients():
    A, _, b = system(60, 0.05)
    S = A @ A.T
    for inverse in (jacobi(S), block_jacobi(S, 8)):
        assert conjugate_gradient(S, b, rtol=1e-8, preconditioner=inverse).converged


@pytest.mark.parametrize("exponent", [-140, -100, -40, 100, 125])
@pytest.mark.parametrize("solver", [bicgstab, gmres, conjugate_gradient], ids=lambda s: s.__name__)
def test_squares_of_norms_neither_vanish_nor_overflow(solver, exponent):
    """A power of two changes no bit of a solution, however small or large, but those that float32 cannot hold."""
    n, power, seen = 20, torch.tensor(exponent), []
    row, col = torch.cat([torch.stack([torch.arange(n - k), torch.arange(k, n)]) for k in (0, 1)], 1)
    half = coo(row, col, torch.where(row == col, 2.0, -1.0), (n, n))
    A = half + half.T
    b, start = torch.randn(2, n, generator=torch.Generator().manual_seed(3)).mul(8).round().div(8)
    want = solver(A, b, x0=start, rtol=1e-5)
    report = lambda iteration, norm: seen.append(norm)  # noqa: E731
    found = solver(A, b.ldexp(power), x0=start.ldexp(power), rtol=1e-5, callback=report)
    assert found.converged and found.iterations == want.iterations == len(seen)
    assert torch.equal(found.x, want.x.ldexp(power))
    assert found.residual_norm == seen[-1] == pytest.approx(want.residual_norm * 2.0**exponent)
    # Without the relative tolerance, the absolute one decides, which must be scaled, too.
    absolute = solver(A, b.ldexp(power), rtol=0.0, atol=2.0 ** (exponent - 10))
    assert absolute.converged and absolute.iterations > 1 and absolute.residual_norm > 0
    # A start that is far greater than the solution is no error.
    assert solver(A, b.ldexp(power), x0=torch.ones(n), atol=1.0).converged


def test_large_matrices():
    """Squares of the elements of A x are beyond float32."""
    torch.manual_seed(0)
    dense = 4 * torch.eye(50) + torch.randn(50, 50) / 10
    b = torch.randn(50)
    small, large = (gmres(tp.sparse.from_torch(dense * factor), b) for factor in (1.0, 2.0**100))
    assert large.converged and large.iterations == small.iterations
    assert torch.allclose(large.x * 2.0**100, small.x, rtol=1e-4)
