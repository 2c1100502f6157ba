"""What is special to scans and recurrences: identities, NaN, zeros, ties, wrap-around, long chains, many rows."""

import itertools
import math

import numpy as np
import pytest
import torch
from common import EACH_DEVICE, grad_list

from torch_patterns import linear_recurrence, registry, scan, scan_with_indices
from torch_patterns.testing import ALL, FLOATS, assert_equal, assert_same_bits, assert_within, gamma, unit_roundoff
from torch_patterns.testing.scan import OPS, identity, scan_reference

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
INF, NAN = float("inf"), float("nan")


def algorithms(device: str) -> list[str]:
    return ["auto", *registry.algorithms("scan", device)]


def test_the_exclusive_scan_of_one_element_is_the_identity(device):
    for algorithm, op, dtype in itertools.product(algorithms(device), OPS, ALL):
        y = scan(torch.ones(1, dtype=dtype, device=device), op=op, exclusive=True, algorithm=algorithm)
        assert y.tolist() == [identity(op, dtype)], (algorithm, op, dtype)


def test_small_integers_sum_to_int64_and_large_ones_wrap(device):
    for algorithm in algorithms(device):
        ones = torch.ones(300, dtype=torch.uint8, device=device)
        assert scan(ones, algorithm=algorithm)[-1].item() == 300
        x = torch.full((5,), 2**62, device=device)
        assert scan(x, algorithm=algorithm).tolist() == [2**62, -(2**63), -(2**62), 0, 2**62]


def test_nan_and_infinities_spread_to_the_end(device):
    x = torch.tensor([1.0, 2.0, NAN, 3.0, 5.0], device=device)
    mixed = torch.tensor([1.0, INF, 2.0, -INF, 3.0], device=device)
    for algorithm, op, dtype in itertools.product(algorithms(device), OPS, FLOATS):
        y = scan(x.to(dtype), op=op, algorithm=algorithm)
        assert y.isnan().tolist() == [False, False, True, True, True], (algorithm, op, dtype)
        y = scan(x.to(dtype), op=op, reverse=True, exclusive=True, algorithm=algorithm)
        assert y.isnan().tolist() == [True, True, False, False, False], (algorithm, op, dtype)
    for algorithm in algorithms(device):
        assert_equal(scan(mixed, algorithm=algorithm), torch.tensor([1.0, INF, INF, NAN, NAN]), algorithm)


def test_subnormals_are_kept(device):
    x = torch.tensor([1e-40, 0.0], device=device)
    for algorithm, op in itertools.product(algorithms(device), ("sum", "max")):
        assert_same_bits(scan(x, op=op, algorithm=algorithm), x[:1].expand(2).clone(), algorithm)


def test_the_first_of_equal_zeros_gives_the_sign(device):
    x = torch.tensor([-0.0, 0.0, -0.0], device=device)
    for algorithm, op in itertools.product(algorithms(device), ("max", "min")):
        assert_same_bits(scan(x, op=op, algorithm=algorithm), torch.full_like(x, -0.0), algorithm)
        assert_same_bits(scan(-x, op=op, algorithm=algorithm), torch.zeros_like(x), algorithm)


def test_gradients_of_extrema_go_to_the_first_of_equals(device):
    x = torch.tensor([1.0, 3.0, 3.0, 2.0, 4.0, 4.0], device=device, requires_grad=True)
    for algorithm in algorithms(device):
        take = {"algorithm": algorithm, "op": "max"}
        assert grad_list(scan(x, **take), x) == [1, 3, 0, 0, 2, 0]
        assert grad_list(scan(x, reverse=True, **take), x) == [0, 0, 0, 0, 0, 6]
        assert grad_list(scan(x, exclusive=True, **take), x) == [1, 3, 0, 0, 1, 0]
        assert grad_list(scan(-x, op="min", algorithm=algorithm), x) == [-1, -3, 0, 0, -2, 0]
    with_nan = torch.tensor([1.0, NAN, 2.0, NAN], device=device, requires_grad=True)
    assert grad_list(scan(with_nan, op="max"), with_nan) == [1, 3, 0, 0]


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_gradients_of_products_with_zeros(zeros, device):
    """Against the product rule, term by term."""
    x = torch.tensor([2.0, 3.0, 5.0, -1.0, 4.0], dtype=torch.float64, device=device)
    x[torch.arange(1, 1 + 2 * zeros, 2)] = 0
    for exclusive, reverse in itertools.product((False, True), repeat=2):
        leaf = x.clone().requires_grad_()
        got = grad_list(scan(leaf, op="prod", exclusive=exclusive, reverse=reverse), leaf, [1, 10, 100, 1000, 10000])
        order = list(range(5))[:: -1 if reverse else 1]
        want = [0.0] * 5
        for step, k in enumerate(order):
            factors = order[: step + (not exclusive)]
            for j in factors:
                others = [x[i].item() for i in factors if i != j]
                want[j] += 10.0**k * torch.tensor(others, dtype=torch.float64).prod().item()
        assert got == want, (exclusive, reverse)


def test_gradients_of_sums_are_sums_from_the_other_end(device):
    x = torch.randn(2, 300, device=device, requires_grad=True)
    g = torch.randint(-9, 10, (2, 300), device=device).float()
    for exclusive, reverse in itertools.product((False, True), repeat=2):
        got = torch.autograd.grad(scan(x, exclusive=exclusive, reverse=reverse), x, g)[0]
        assert_equal(got, scan_reference(g.cpu(), exclusive=exclusive, reverse=not reverse))


def test_gradients_of_a_recurrence(device):
    """h = b0, then a1 b0 + b1: a0 is not used without `initial`."""
    a = torch.tensor([7.0, 2.0], device=device, requires_grad=True)
    b = torch.tensor([3.0, 5.0], device=device, requires_grad=True)
    start = torch.tensor(4.0, device=device, requires_grad=True)
    h = linear_recurrence(a, b)
    assert h.tolist() == [3, 11]
    assert [g.tolist() for g in torch.autograd.grad(h.sum(), (a, b))] == [[0, 3], [3, 1]]
    h = linear_recurrence(a, b, initial=start)
    assert h.tolist() == [31, 67]
    da, db, ds = torch.autograd.grad(h.sum(), (a, b, start))
    assert (da.tolist(), db.tolist(), ds.item()) == ([12, 31], [3, 1], 21)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_a_recurrence_by_their_definition(reverse, dtype, device):
    """Rows of every length, at every address: the gradient of a is that of b times the state before, bit for bit."""
    for shape, start in (
        ((70001,), 0),
        ((64, 4096 * 2), 0),
        ((70, 9001), 1),
        ((900, 37), 3),
        ((80, 1), 0),
        ((2, 9000), 2),
    ):
        size = math.prod(shape)
        a, b, g = (torch.randn(size + 8, device=device).to(dtype)[start : start + size].view(shape) for _ in range(3))
        a, b = a.mul_(0.5).requires_grad_(), b.requires_grad_()
        for initial in (None, torch.randn(shape[:-1], device=device).to(dtype)):
            h = linear_recurrence(a, b, initial=initial, reverse=reverse)
            grad_a, grad_b = torch.autograd.grad(h, (a, b), g)
            (only_b,) = torch.autograd.grad(linear_recurrence(a.detach(), b, initial=initial, reverse=reverse), b, g)
            assert_same_bits(grad_b, only_b, f"{shape} {initial is None}")
            first = torch.zeros_like(h[..., :1]) if initial is None else initial.unsqueeze(-1)
            before = torch.cat([h[..., 1:], first], -1) if reverse else torch.cat([first, h[..., :-1]], -1)
            assert_equal(grad_a, grad_b * before.detach(), f"{shape} {initial is None}")


def test_a_recurrence_promotes_and_broadcasts(device):
    a = torch.full((3, 1), 2.0, dtype=torch.float16, device=device)
    b = torch.ones(4, dtype=torch.float64, device=device)
    h = linear_recurrence(a, b, initial=torch.ones((), device=device))
    assert h.dtype == torch.float64
    assert h.tolist() == [[3, 7, 15, 31]] * 3
    h = linear_recurrence(
        a, a, 0, initial=torch.tensor(10.0, device=device)
    )  # 0-d tensors do not promote others of their kind
    assert h.dtype == torch.float16 and h.flatten().tolist() == [22, 46, 94]
    assert linear_recurrence(a, a, 0, initial=torch.ones(1, device=device)).dtype == torch.float32


# Under "auto" no operand goes through more roundings than this, however long the input: chains and trees of fixed size.
AUTO_DEPTH = 256


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_errors_of_auto_do_not_grow_with_n(dtype, device):
    """A serial sum of equal terms in the dtype drifts by many times this bound, for all of its roundings go one way."""
    n, u = 2**20, unit_roundoff(dtype)
    x = torch.full((n,), 1 / 3).to(dtype).mul_(2**-5 if dtype == torch.float16 else 1)  # half types end at 65504
    exact = x[0].double() * torch.arange(1, n + 1, dtype=torch.float64)
    bound = gamma(AUTO_DEPTH, u) * exact
    assert_within(scan(x.to(device)), exact, bound, "scan")
    assert_within(linear_recurrence(torch.ones_like(x).to(device), x.to(device)), exact, bound, "recurrence")
    noise = torch.randn(500_000, generator=torch.Generator().manual_seed(5)).to(dtype)
    bound = gamma(AUTO_DEPTH, u) * scan_reference(noise.double().abs())
    assert_within(scan(noise.to(device)), scan_reference(noise), bound, "noise")


@pytest.mark.parametrize("shape", [(70_000, 3), (3, 70_000), (2, 65_537, 3), (65_537, 2, 2)], ids=str)
def test_many_rows(shape, device):
    """More rows or columns than a grid's y and z hold; every dimension, from either end."""
    x = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(3)).float()
    for dim in range(-len(shape), len(shape)):
        assert_equal(scan(x.to(device), dim), scan_reference(x, dim), f"{shape} {dim}")


@pytest.mark.parametrize("inner, start", [(2080, 0), (2083, 1)])
def test_many_columns(inner, start, device):
    """So many columns of some hundred elements that CUDA divides none of them; aligned and not, exactly."""
    random, n = torch.Generator().manual_seed(8), 515
    for i, (op, dtype) in enumerate(itertools.product(OPS, ALL)):
        low, high = (0, 2) if op == "prod" or dtype == torch.bool else (-1 if dtype.is_signed else 0, 2)
        x = torch.randint(low, high, (2 * n * inner + start,), generator=random)
        x = (2 * x - 1 if op == "prod" and dtype.is_signed else x).to(dtype)[start:].view(2, n, inner)
        how = {"op": op, "exclusive": i % 2 == 1, "reverse": i // 2 % 2 == 1}
        got = scan(x.to(device), 1, **how)
        assert_equal(got, scan_reference(x, 1, **how), f"{dtype} {how}")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("inner, start", [(2080, 0), (2083, 1)])
def test_recurrences_of_many_columns(inner, start, dtype, device):
    """Like test_many_columns; factors of 0 keep the states small, and gradients are exact by their definition."""
    random, n = torch.Generator().manual_seed(9), 300
    shape, size = (2, n, inner), 2 * n * inner

    def some(low, high, count=size):
        return torch.randint(low, high, (count + start,), generator=random).to(dtype).to(device)[start:]

    for reverse, with_initial in itertools.product((False, True), repeat=2):
        a, b, g = (some(low, high).view(shape) for low, high in ((-1, 2), (-2, 3), (-2, 3)))
        initial = some(-2, 3, 2 * inner).view(2, inner) if with_initial else None
        a, b = a.requires_grad_(), b.requires_grad_()
        h = linear_recurrence(a, b, 1, initial=initial, reverse=reverse)
        grad_a, grad_b = torch.autograd.grad(h, (a, b), g)
        first = torch.zeros(2, inner, dtype=torch.float64) if initial is None else initial.double().cpu()
        lines = range(n)[:: -1 if reverse else 1]
        factors, terms, grads = (x.detach().double().cpu() for x in (a, b, g))
        want, before, want_b = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
        state = first
        for k in lines:
            before[:, k] = state
            state = want[:, k] = factors[:, k] * state + terms[:, k]
        state, factor = torch.zeros_like(first), torch.zeros_like(first)
        for k in reversed(lines):
            state = want_b[:, k] = factor * state + grads[:, k]
            factor = factors[:, k]
        label = f"reverse {reverse}, initial {with_initial}"
        assert_equal(h, want, label)
        assert_equal(grad_b, want_b, label)
        assert_equal(grad_a, want_b * before, label)


@pytest.mark.parametrize(
    "shape, dim",
    [((100_001,), 0), ((3, 40_000), 1), ((40_000, 3), 0), ((5_000, 17), 0), ((300, 700), 0), ((700, 5, 3), 1)],
    ids=str,
)
def test_results_do_not_depend_on_the_threads(shape, dim, device):
    """Chunks of one row, of a few rows and of many; short rows; more threads than there are cores."""
    x = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(4))
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    a, b = noise.to(device), x.to(device).float()
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append([scan(a, dim), linear_recurrence(a, b, dim)])
            for op, exclusive, reverse in itertools.product(("sum", "max"), (False, True), (False, True)):
                how = {"op": op, "exclusive": exclusive, "reverse": reverse}
                for values in (x, x.double(), x.to(torch.int8)):
                    got = scan(values.to(device), dim, **how)
                    assert_equal(got, scan_reference(values, dim, **how), f"{count} threads {how}")
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for first, again in zip(results[0], other, strict=True):
            assert_same_bits(first, again, f"{shape}")


def test_indices_are_those_of_the_first_of_equals(device):
    x = torch.tensor([2.0, 1.0, 2.0, 3.0, 3.0, NAN, 1.0, NAN], device=device)
    for algorithm, dtype in itertools.product(algorithms(device), FLOATS):
        y = x.to(dtype)
        values, indices = scan_with_indices(y, algorithm=algorithm)
        assert indices.tolist() == [0, 0, 0, 3, 3, 5, 5, 5]
        assert_same_bits(values, scan(y, op="max", algorithm=algorithm))
        assert scan_with_indices(y, op="min", algorithm=algorithm)[1].tolist() == [0, 1, 1, 1, 1, 5, 5, 5]
        assert scan_with_indices(y[:5], reverse=True, algorithm=algorithm)[1].tolist() == [4, 4, 4, 4, 4]
        assert scan_with_indices(y[:3], op="min", reverse=True, algorithm=algorithm)[1].tolist() == [1, 1, 2]
    lowest = torch.full((3,), -INF, device=device)
    assert scan_with_indices(lowest)[1].tolist() == [0, 0, 0]


def test_gradients_stay_in_their_runs(device):
    """What is not finite in one run leaves the others alone."""
    x = torch.tensor([[1.0, 0.0, 4.0, 2.0, 9.0], [5.0, 5.0, 6.0, 6.0, 7.0]], device=device, requires_grad=True)
    weights = [[1.0, 2.0, INF, -INF, 3.0], [NAN, 1.0, 2.0, 3.0, 4.0]]
    got = torch.tensor(grad_list(scan_with_indices(x)[0], x, weights))
    assert_equal(got, torch.tensor([[3, 0, NAN, 0, 3], [NAN, 0, 5, 0, 4]]))
    got = torch.tensor(grad_list(scan_with_indices(x, 0, op="min", reverse=True)[0], x, weights))
    assert_equal(got, torch.tensor([[1, 2, INF, -INF, 0], [NAN, 1, 2, 3, 7]]))


@pytest.mark.parametrize("op, exclusive, reverse", [*itertools.product(("max", "min"), (False, True), (False, True))])
def test_gradients_of_extrema_stay_in_their_run(device, op, exclusive, reverse):
    """A gradient that is NaN or infinite reaches the leader of its run, and no other element."""
    x = torch.randint(-9, 9, (3, 40, 2), device=device).double().requires_grad_()
    _, index = scan_with_indices(x.detach(), 1, op=op, reverse=reverse)
    for value, at in itertools.product((NAN, INF), (5, 20, 33)):
        g = torch.zeros_like(x)
        g[1, at, 1] = value
        (found,) = torch.autograd.grad(scan(x, 1, op=op, exclusive=exclusive, reverse=reverse), x, g)
        before = at + (1 if reverse else -1) if exclusive else at
        want = torch.zeros_like(x)
        want[1, index[1, before, 1], 1] = value
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)


def padded_recurrence(shape, dim, device, dtype=torch.float32):
    """Terms that are 0 but for the last ones, factors whose product overflows, among them a 0, and their solution."""
    random = torch.Generator().manual_seed(6)
    a = torch.where(torch.rand(shape, generator=random) < 0.5, 2.0, -2.0).double()
    b, n = torch.zeros(shape, dtype=torch.float64), shape[dim]
    b.narrow(dim, n - 9, 9).copy_(torch.randint(-3, 4, b.narrow(dim, n - 9, 9).shape, generator=random))
    a.narrow(dim, n // 2, 1).zero_()
    h = torch.zeros_like(b)
    for k in range(n - 9, n):
        h.select(dim, k).copy_(a.select(dim, k) * h.select(dim, k - 1) + b.select(dim, k))
    return a.to(device, dtype), b.to(device, dtype), h


def linear(device: str) -> list[str]:
    """The algorithms that can take thousands of elements."""
    quadratic = {rung.name for rung in registry.ladder("scan") if "quadratic" in rung.traits}
    return [name for name in algorithms(device) if name not in quadratic]


@pytest.mark.parametrize("shape, dim", [((9_001,), 0), ((2, 3_000), 1), ((3_000, 3), 0), ((2, 700, 17), 1)], ids=str)
def test_a_state_of_zero_outlives_products_that_overflow(shape, dim, device):
    """Composed maps multiply factors that no state is ever multiplied by: 0 stays 0, whatever comes of them."""
    initial = torch.zeros([n for d, n in enumerate(shape) if d != dim], device=device)
    for dtype in (torch.float32, torch.float64, torch.float16):
        a, b, want = padded_recurrence(shape, dim, device, dtype)
        for i, algorithm in enumerate(linear(device)):
            start = initial.to(dtype) if i % 2 else None
            h = linear_recurrence(a, b, dim, initial=start, algorithm=algorithm)
            assert_equal(h, want, f"{algorithm} {dtype}")
            h = linear_recurrence(a.flip(dim), b.flip(dim), dim, initial=start, reverse=True, algorithm=algorithm)
            assert_equal(h.flip(dim), want, f"{algorithm} {dtype} reverse")


def test_gradients_outlive_products_that_overflow(device):
    n = 5_000
    a = torch.full((n,), 2.0, dtype=torch.float64, device=device, requires_grad=True)
    b = torch.zeros(n, dtype=torch.float64, device=device)
    b[-1] = 1
    b.requires_grad_()
    for algorithm in linear(device):
        h = linear_recurrence(a, b, algorithm=algorithm)
        assert h[-1].item() == 1
        weights = torch.zeros_like(h)
        weights[5] = 1  # only the first few steps count
        da, db = torch.autograd.grad(h, (a, b), weights)
        assert db[:7].tolist() == [32, 16, 8, 4, 2, 1, 0] and not db[6:].any() and not da.any(), algorithm


def test_a_factor_of_nan_or_infinity_is_no_overflow(device):
    """A NaN among the factors makes every later state NaN, also where the state before it is 0."""
    for algorithm, at in itertools.product(algorithms(device), (1, 2, 700)):
        a, b = torch.full((2, 1_500), 2.0, device=device), torch.zeros(2, 1_500, device=device)
        a[1, at] = NAN
        h = linear_recurrence(a, b, algorithm=algorithm)
        assert not h[0].any() and not h[1, :at].any() and h[1, at:].isnan().all(), (algorithm, at)


@pytest.mark.parametrize(
    "shape", [(70_001,), (3, 40_000), (40_000, 3), (700, 300), (5, 33, 300), (2, 9, 17_000), (2, 1, 4), (0, 3)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bfloat16], ids=str)
def test_indices_of_lines_that_are_cut(shape, dtype, device):
    """Ties, NaN and ramps, in lines long and short, against a loop of numpy's; no result depends on the threads."""
    x = torch.randint(-100, 100, shape, dtype=torch.float32)
    if x.numel():
        x.flatten()[: x.numel() // 2].copy_(torch.arange(x.numel() // 2) // 600)
    x = (x % 120).to(dtype)
    if dtype.is_floating_point and x.numel():
        x.flatten()[2 * x.numel() // 3] = float("nan")
    for dim, op, reverse in itertools.product(range(x.dim()), ("max", "min"), (False, True)):
        lines = x.movedim(dim, -1).flip(-1) if reverse else x.movedim(dim, -1)
        best = lines.float().numpy()
        best = (np.maximum if op == "max" else np.minimum).accumulate(best, axis=-1)  # which carry NaN on
        before = np.concatenate((np.full_like(best[..., :1], -np.inf if op == "max" else np.inf), best[..., :-1]), -1)
        first = (best != before) & ~(np.isnan(best) & np.isnan(before))
        want = np.maximum.accumulate(np.where(first, np.arange(best.shape[-1]), 0), axis=-1)
        want = torch.from_numpy(best.shape[-1] - 1 - want[..., ::-1] if reverse else want.copy())
        values = torch.from_numpy((best[..., ::-1] if reverse else best).copy())
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            got = [y.cpu() for y in scan_with_indices(x.to(device), dim, op=op, reverse=reverse)]
            assert torch.equal(got[1].movedim(dim, -1), want), (dim, op, reverse, threads)
            assert torch.equal(got[0].movedim(dim, -1).float().nan_to_num(999), values.nan_to_num(999))
