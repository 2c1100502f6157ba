"""What is special to reductions: identities, NaN, ties, wrap-around, dimensions, long sums, gradients."""

import itertools
import math

import numpy as np
import pytest
import torch
from common import EACH_DEVICE, grad_list

from torch_patterns import reduce, registry
from torch_patterns.testing import ALL, FLOATS, assert_equal, assert_same_bits, assert_within, gamma, unit_roundoff
from torch_patterns.testing.reduction import OPS, identity, reduce_reference

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
FLOAT_ATOMICS = {r.name for r in registry.ladder("reduce") if "float_atomics" in r.traits}
INF, NAN = float("inf"), float("nan")


def algorithms(device: str) -> list[str]:
    return ["auto", *registry.algorithms("reduce", device)]


# ---- values


def test_no_elements_give_the_identity(device):
    for algorithm, op, dtype in itertools.product(algorithms(device), ("sum", "prod", "max", "min"), ALL):
        for shape, dim in (((0,), None), ((2, 0, 3), 1), ((0, 5), (0,))):
            y = reduce(torch.ones(shape, dtype=dtype, device=device), dim, op=op, algorithm=algorithm)
            assert set(y.flatten().tolist()) == {identity(op, dtype)}, (algorithm, op, dtype)
    for dtype in FLOATS:
        x = torch.ones(3, 0, dtype=dtype, device=device)
        assert reduce(x, 1, op="mean").isnan().all()
        assert reduce(x, 1, op="logsumexp").tolist() == [-INF] * 3


def test_argmax_of_no_elements_is_refused(device):
    for op in ("argmax", "argmin"):
        for shape, dim in (((0,), None), ((3, 0), 1), ((3, 0), None)):
            with pytest.raises(IndexError, match=f"{op}.*no elements"):
                reduce(torch.ones(shape, device=device), dim, op=op)
        assert reduce(torch.ones(0, 3, device=device), 1, op=op).shape == (0,)


def test_small_integers_sum_to_int64_and_large_ones_wrap(device):
    for algorithm in algorithms(device):
        take = {"algorithm": algorithm}
        assert reduce(torch.ones(300, dtype=torch.uint8, device=device), **take).item() == 300
        assert reduce(torch.ones(300, dtype=torch.bool, device=device), **take).item() == 300
        most = torch.full((2,), 2**31 - 1, dtype=torch.int32, device=device)
        assert reduce(most, **take).item() == 2**32 - 2
        assert reduce(torch.full((3,), 2**62, device=device), **take).item() == -(2**62)
        assert reduce(torch.full((41,), 3, dtype=torch.int8, device=device), op="prod", **take).item() == 3**41 - 2**65


def test_nan_propagates_and_argmax_gives_the_first(device):
    for algorithm, dtype in itertools.product(algorithms(device), FLOATS):
        x = torch.arange(1000.0, device=device).to(dtype)
        x[[300, 700]] = NAN
        x[300] = -x[300]
        for op in OPS:
            y = reduce(x, op=op, algorithm=algorithm)
            assert y.item() == 300 if "arg" in op else y.isnan(), (algorithm, op, dtype)


def test_infinities(device):
    for algorithm, dtype in itertools.product(algorithms(device), FLOATS):
        take = {"algorithm": algorithm}
        low = torch.full((600,), -INF, dtype=dtype, device=device)
        for op, want in (("max", -INF), ("argmax", 0), ("logsumexp", -INF)):
            assert reduce(low, op=op, **take).item() == want, (algorithm, op)
        for op, want in (("min", INF), ("argmin", 0), ("logsumexp", INF)):
            assert reduce(-low, op=op, **take).item() == want, (algorithm, op)
        both = torch.tensor([INF, -INF], dtype=dtype, device=device)
        assert reduce(both, **take).isnan()
        assert reduce(both, op="logsumexp", **take).item() == INF


def test_the_lowest_integers_have_a_first_index(device):
    for algorithm, dtype in itertools.product(algorithms(device), ALL[1:6]):
        info = torch.iinfo(dtype)
        for op, value in (("argmax", info.min), ("argmin", info.max)):
            x = torch.full((3, 700), value, dtype=dtype, device=device)
            assert reduce(x, 1, op=op, algorithm=algorithm).tolist() == [0] * 3


def test_ties_go_to_the_first(device):
    for algorithm, n in itertools.product(algorithms(device), (16, 700, 5000)):
        for first in (0, 5, n // 2, n - 16):
            x = torch.zeros(n, device=device)
            x[first : first + 16] = 1
            assert reduce(x, op="argmax", algorithm=algorithm).item() == first
            assert reduce(-x, op="argmin", algorithm=algorithm).item() == first
        columns = x[:, None].expand(n, 3).contiguous()
        assert reduce(columns, 0, op="argmax", algorithm=algorithm).tolist() == [n - 16] * 3


def test_signed_zeros_and_subnormals(device):
    for algorithm in algorithms(device):
        assert math.copysign(1, reduce(torch.tensor([-0.0], device=device), op="max", algorithm=algorithm).item()) < 0
        x = torch.tensor([1e-40, 0.0], device=device)
        for op in ("sum", "max"):
            if op == "sum" and device == "cuda" and algorithm in FLOAT_ATOMICS:
                continue  # the GPU's atomic addition of float32 in global memory takes subnormals for zeros
            assert_same_bits(reduce(x, op=op, algorithm=algorithm), x[0].clone(), algorithm)


def test_logsumexp_neither_overflows_nor_underflows(device):
    for algorithm in algorithms(device):
        for shift in (1000.0, -1000.0):
            x = torch.full((2,), shift, dtype=torch.float64, device=device)
            y = reduce(x, op="logsumexp", algorithm=algorithm).item()
            assert abs(y - (shift + math.log(2))) < 1e-12


def test_logsumexp_of_infinities_beside_great_numbers(device):
    """At every index of short rows, of lanes side by side and of rows in chunks."""
    for n, columns in ((3, 1), (20, 1), (70_000, 1), (50, 5), (40, 70)):
        for value in (INF, -INF, NAN):
            for algorithm in ("auto", "sequential") if device == "cpu" else ("auto",):
                for at in (0, n // 2, n - 1):
                    x = torch.full((n, columns), 1000.0, device=device)
                    x[at, 0] = value
                    want = x.double().logsumexp(0).float()
                    got = reduce(x, 0, op="logsumexp", algorithm=algorithm)
                    torch.testing.assert_close(got, want, rtol=1e-6, atol=0, equal_nan=True)


def test_what_is_not_zero_is_true(device):
    """NaN and the least subnormal number are, and zeros of either sign are not."""
    for dtype, least in ((torch.float16, 6e-8), (torch.float32, 1e-45), (torch.float64, 5e-324)):
        for n in (1, 8, 33):
            for value in (0.0, -0.0, NAN, -INF, least, -least, 0.5):
                x = torch.full((n,), value, dtype=dtype, device=device)
                assert reduce(x, op="any").item() == reduce(x, op="all").item() == (value != 0), (dtype, n, value)


def test_half_sums_leave_the_range_at_the_end_only(device):
    ones = torch.ones(70_000, dtype=torch.float16, device=device)
    there_and_back = torch.cat([ones, -ones])
    for algorithm in algorithms(device):
        assert reduce(ones, algorithm=algorithm).item() == INF
        assert reduce(there_and_back, algorithm=algorithm).item() == 0
        assert reduce(ones, op="mean", algorithm=algorithm).item() == 1
    with torch.autocast(device, torch.float16):
        assert reduce(ones).item() == 70_000


# ---- rounding


# No operand goes through more roundings than this under "auto", however long the input.
AUTO_DEPTH = 64


def sums() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    return {
        "thirds": torch.full((2**22 + 123,), 1 / 3),
        "small after large": torch.cat([torch.tensor([2.0**24]), torch.ones(1000)]),
        "cancellation": torch.tensor([1e8, 1.0, -1e8]).repeat(1000),
        "noise": torch.randn(500_000, generator=random),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_errors_of_auto_do_not_grow_with_n(dtype, device):
    for name, x in sums().items():
        x = x.clamp(max=60_000, min=-60_000).to(dtype) / (2**8 if dtype == torch.float16 else 1)
        exact, size = (torch.tensor(math.fsum(v.double().tolist()), dtype=torch.float64) for v in (x, x.abs()))
        bound = gamma(AUTO_DEPTH, unit_roundoff(dtype)) * size
        assert_within(reduce(x.to(device)), exact, bound, name)
        columns = x[:, None].expand(-1, 3).contiguous().to(device)
        assert_within(reduce(columns, 0), exact.expand(3), bound.expand(3), f"{name}, columns")


def test_every_rung_keeps_the_bound_on_cancellation(device):
    x = sums()["cancellation"]
    bound = gamma(x.numel(), unit_roundoff(x.dtype)) * x.double().abs().sum()
    for algorithm in algorithms(device):
        assert_within(reduce(x.to(device), algorithm=algorithm), reduce_reference(x), bound, algorithm)


# ---- dimensions


def test_every_set_of_dimensions(device):
    """Also with sizes of 1 among them, which change nothing."""
    for shape in ((3, 4, 5, 2), (3, 1, 5, 2), (1, 4, 1, 1)):
        x = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(1)).float()
        dims = [d for n in range(5) for d in itertools.combinations(range(4), n)]
        for dim, keepdim in itertools.product(dims, (False, True)):
            got = reduce(x.to(device), dim or None, keepdim=keepdim)
            assert_equal(got, x.double().sum(dim or None, keepdim), f"{shape} {dim}")
            negative = tuple(d - 4 for d in reversed(dim))
            assert_same_bits(reduce(x.to(device), negative or None, keepdim=keepdim), got)
    assert reduce(x.to(device), []).shape == ()


def test_what_dim_may_be(device):
    x = torch.arange(6.0, device=device).reshape(2, 3)
    assert reduce(x, 1).tolist() == reduce(x, -1).tolist() == reduce(x, [1]).tolist() == [3, 12]
    assert torch.ops.torch_patterns.reduce(x, [0]).tolist() == [3, 5, 7]
    assert reduce(x, op="argmax").item() == 5
    assert reduce(x.t(), op="argmax").item() == 5
    assert reduce(x, 0, op="argmax", keepdim=True).tolist() == [[1, 1, 1]]
    for dim in ((0, 0), (1, -1)):
        with pytest.raises(RuntimeError, match="more than once"):
            reduce(x, dim)
    for dim in (2, -3, (0, 2)):
        with pytest.raises(IndexError, match="out of range"):
            reduce(x, dim)
    with pytest.raises(ValueError, match="one dim"):
        reduce(x, (0, 1), op="argmax")
    scalar = torch.tensor(3.0, device=device)
    assert reduce(scalar).item() == reduce(scalar, 0).item() == reduce(scalar, -1, keepdim=True).item() == 3


@pytest.mark.parametrize("shape", [(70_000, 3), (3, 70_000), (2, 65_537, 3), (65_537, 2, 2), (1, 1_048_577)], ids=str)
def test_many_rows(shape, device):
    """More rows or columns than a grid's y and z hold; along every dimension."""
    x = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(3)).float()
    for dim in range(-len(shape), len(shape)):
        for op in ("sum", "argmin"):
            assert_equal(reduce(x.to(device), dim, op=op), reduce_reference(x, dim, op), f"{shape} {dim} {op}")


def test_long_and_ragged(device):
    """Every layout that auto distinguishes, at sizes that fit nothing."""
    random = np.random.default_rng(7)
    for _ in range(60):
        shape = tuple(int(2 ** random.uniform(0, 11)) for _ in range(random.integers(1, 4)))
        if math.prod(shape) > 2**18:
            continue
        dtype = (torch.float32, torch.float16, torch.int8, torch.float64)[random.integers(4)]
        x = torch.from_numpy(random.integers(-8, 9, shape)).to(dtype)
        for dim, op in itertools.product(range(len(shape)), ("sum", "max", "argmin")):
            assert_equal(reduce(x.to(device), dim, op=op), reduce_reference(x, dim, op), f"{shape} {dtype} {dim} {op}")


# ---- gradients


def test_gradients_of_extrema_go_to_the_first_of_equals(device):
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 3.0, 0.0]], device=device, requires_grad=True)
    for algorithm in algorithms(device):
        take = {"algorithm": algorithm, "op": "max"}
        assert grad_list(reduce(x, **take), x) == [[0, 1, 0], [0, 0, 0]]
        assert grad_list(reduce(x, 1, **take), x, [2, 5]) == [[0, 2, 0], [0, 5, 0]]
        assert grad_list(reduce(x, 0, keepdim=True, **take), x) == [[0, 1, 1], [1, 0, 0]]
        assert grad_list(reduce(-x, (0, 1), op="min", algorithm=algorithm), x) == [[0, -1, 0], [0, 0, 0]]
    with_nan = torch.tensor([1.0, NAN, 2.0, NAN], device=device, requires_grad=True)
    assert grad_list(reduce(with_nan, op="max"), with_nan) == [0, 1, 0, 0]


def test_gradients_of_products_with_zeros(device):
    for values, want in (([2.0, 0.0, 5.0], [0, 10, 0]), ([2.0, 0.0, 0.0], [0, 0, 0]), ([2.0, 3.0, 5.0], [15, 10, 6])):
        x = torch.tensor(values, device=device, requires_grad=True)
        assert grad_list(reduce(x, op="prod"), x) == want
        rows = torch.tensor([values, values], device=device, requires_grad=True)
        assert grad_list(reduce(rows, 1, op="prod"), rows, [1, 2]) == [want, [2 * w for w in want]]
        apart = torch.tensor([[[v, 1.0]] for v in values], device=device, requires_grad=True)
        assert grad_list(reduce(apart, (0, 2), op="prod"), apart)[0][0][0] == want[0]


def test_gradient_of_logsumexp_is_softmax_and_never_nan(device):
    x = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF]], device=device, requires_grad=True)
    got = torch.tensor(grad_list(reduce(x, 1, op="logsumexp"), x))
    assert_within(got[0], torch.softmax(x[0].double().cpu(), 0), torch.full((3,), 4e-7))
    assert got[1].tolist() == [0, 0, 0]


def test_what_has_no_gradient_says_so(device):
    x = torch.randn(5, device=device, requires_grad=True)
    for op in ("argmax", "argmin"):
        assert not reduce(x, op=op).requires_grad
    assert all(reduce(x, op=op).requires_grad for op in OPS if "arg" not in op)


def test_gradients_of_no_elements(device):
    for op, dim in itertools.product((op for op in OPS if "arg" not in op), (None, 0, 1, (0, 1))):
        x = torch.ones(2, 0, 3, device=device, requires_grad=True)
        assert torch.autograd.grad(reduce(x, dim, op=op).sum(), x)[0].shape == x.shape
