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


def test_any_order_of_memory_gives_the_same_bits(device):
    """Results that do not round read dense memory in its own order, where that keeps the order of the elements."""
    choices = torch.tensor([0.0, 0.5, 1, -1, 2, -2, 3, NAN], device=device)
    numbers = choices[torch.randint(8, (2, 3, 1, 4), generator=torch.Generator().manual_seed(1)).to(device)]
    every_dim = [dims for n in range(1, 5) for dims in itertools.combinations(range(4), n)]
    for dtype in (torch.float32, torch.float16, torch.int16, torch.bool):
        x = numbers.nan_to_num(5).to(dtype) if dtype == torch.int16 else numbers.to(dtype)
        ops = (*OPS[:6], "any", "all", *(() if dtype.is_floating_point else ("bitwise_xor",)))
        for order in itertools.permutations(range(4)):
            same = x.permute(order).contiguous().permute(*(order.index(d) for d in range(4)))
            for op, dims in itertools.product(ops, every_dim):
                if op.startswith("arg") and len(dims) > 1:
                    continue
                got, want = (reduce(t, dims, op=op, keepdim=len(dims) == 2) for t in (same, x))
                assert got.is_contiguous()
                assert_same_bits(got, want, f"{op} {dtype} {order} {dims}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int8, torch.bool], ids=str)
def test_transposed_images_give_the_same_bits(dtype, device):
    """Such as channels_last: on CUDA, matrices that are not narrow are transposed by the kernel."""
    x = (torch.rand(2, 17, 18, 20, generator=torch.Generator().manual_seed(3)) * 9).to(dtype).to(device)
    every_dim = [dims for n in range(1, 5) for dims in itertools.combinations(range(4), n)]
    for order in ((0, 2, 3, 1), (1, 2, 3, 0), (3, 0, 1, 2), (2, 3, 0, 1), (0, 1, 3, 2), (0, 3, 2, 1)):
        same = x.permute(order).contiguous().permute(*(order.index(d) for d in range(4)))
        for op, dims in itertools.product(
            ("sum", "max", "argmin", *(("logsumexp",) if x.is_floating_point() else ())), every_dim
        ):
            if op != "argmin" or len(dims) == 1:
                assert_same_bits(reduce(same, dims, op=op), reduce(x, dims, op=op), f"{op} {order} {dims}")


VIEWS = {  # what is seen of a larger array: slices, every second element, one element or row for all
    "columns": lambda x: x((70, 300))[:, 7:250],
    "few columns": lambda x: x((900, 40))[:, 3:23],
    "every third column": lambda x: x((70, 300))[:, 1::3],
    "every other row": lambda x: x((70, 300))[::2],
    "long rows": lambda x: x((3, 140_001))[:, 1:70_001],
    "every other element": lambda x: x((3, 140_001))[:, ::2],
    "one row": lambda x: x((1, 300)).expand(500, 300),
    "one column": lambda x: x((500, 1)).expand(500, 300),
    "one element": lambda x: x(()).expand(30, 5000),
    "wide columns": lambda x: x((200, 2500))[:, 3:2403],
    "a block": lambda x: x((9, 20, 60))[1:8, 2:19, 5:58],
    "some channels": lambda x: x((4, 9, 30, 40))[:, 2:7],
    "some pixels": lambda x: x((4, 9, 30, 40))[:, :, 3:28, 1:39],
    "colours": lambda x: x((30, 40, 4))[..., :3],
    "one image": lambda x: x((1, 6, 30, 40)).expand(5, 6, 30, 40),
    "pixels of a larger image": lambda x: x((6, 30, 4, 40)).transpose(1, 2)[..., :33],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8], ids=str)
def test_views_give_the_same_bits(dtype, view, device):
    """On the CPU, most of them are read where they are."""
    random = torch.Generator().manual_seed(4)
    x = VIEWS[view](lambda shape: (torch.rand(shape, generator=random) * 9 + 0.5).to(dtype).to(device))
    copied = x.contiguous()
    assert not x.is_contiguous()
    ops = ("sum", "prod", "max", "argmin", "logsumexp") if x.is_floating_point() else ("sum", "min", "argmax", "all")
    dims = [d for n in range(1, x.dim() + 1) for d in itertools.combinations(range(x.dim()), n)]
    for op, dim in itertools.product(ops, dims):
        if op.startswith("arg") and len(dim) > 1:
            continue
        for threads in (1, 2) if device == "cpu" else (1,):
            torch.set_num_threads(threads)
            assert_same_bits(reduce(x, dim, op=op), reduce(copied, dim, op=op), f"{op} {dim} {threads}")


def check_bits_of_copy(x: torch.Tensor, dims: tuple[int, ...], op: str):
    torch.set_num_threads(1)
    want = reduce(x.contiguous(), dims, op=op)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        got = reduce(x, dims, op=op)
        assert got.is_contiguous()
        assert_same_bits(got, want, f"{op} {x.dtype} {tuple(x.shape)} {x.stride()} {dims} {threads} threads")


ROUNDING = ("sum", "prod", "mean", "logsumexp")
# Rows that are short, have a rest, or several chunks; one column, a few, and more than a strip has.
TRANSPOSED = [(1, 5), (3, 7), (129, 16), (130, 12), (37, 20), (5, 33), (2100, 17), (1030, 300), (1100, 37), (70, 1037)]
TRANSPOSED += [(260, 4099), (65, 9000), (1, 70003), (2, 70003), (9, 70001), (70003, 2), (70003, 7)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_transposed_arrays_have_the_bits_of_a_copy(dtype, device):
    for columns, n in TRANSPOSED:
        values = torch.randn(n, columns, generator=torch.Generator().manual_seed(1)).to(device)
        for op, dim in itertools.product(ROUNDING, (0, 1)):
            factors = 1 + values / 2 / n**0.5 if op == "prod" else values
            check_bits_of_copy(factors.to(dtype).t(), (dim,), op)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_permuted_arrays_have_the_bits_of_a_copy(dtype, device):
    every_dim = [dims for n in range(1, 4) for dims in itertools.combinations(range(3), n)]
    for shape in ((3, 50, 70), (20, 3, 1500), (1030, 2, 33), (2, 3, 30001)):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
        for op, order, dims in itertools.product(ROUNDING, itertools.permutations(range(3)), every_dim):
            factors = 1 + values / 100 if op == "prod" else values
            check_bits_of_copy(factors.to(dtype).permute(order), dims, op)


def test_short_rows_do_not_depend_on_their_number(device):
    """Rows that are reduced side by side have the same bits if one is left alone."""
    for n in (8, 12, 16, 31, 48):
        x = torch.randn(1025, n, generator=torch.Generator().manual_seed(n)).to(device)
        sums = reduce(x, 1)
        for row in (0, 127, 128, 1024):
            assert_same_bits(sums[row], reduce(x[row : row + 1], 1)[0], f"{n} {row}")


@pytest.mark.parametrize("op", ["sum", "prod", "logsumexp"])
def test_bits_do_not_depend_on_the_address(op, device):
    """Nor on whether vectors of neighbouring columns can be loaded: float64 shows the order in which sums are added."""
    for shape, dim, dtype in itertools.product(((700, 20), (3, 900, 8), (40, 33), (5, 1000)), (0, 1), FLOATS):
        x = (torch.rand(shape, dtype=torch.float64) + 0.5).to(device, dtype)
        memory = torch.empty(x.numel() + 1, dtype=dtype, device=device)[1:]
        assert_same_bits(reduce(memory.view(shape).copy_(x), dim, op=op), reduce(x, dim, op=op), (shape, dim, dtype))


# ---- addresses and layouts


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "logsumexp", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_bits_of_rows_do_not_depend_on_their_address(dtype, op, device):
    for shape in ((17,), (256,), (2043,), (2655,), (8193,), (100_001,), (16, 32), (3, 1000), (70, 5000), (1100, 771)):
        x = (torch.rand(shape, generator=torch.Generator().manual_seed(6)) + 0.5).to(device, dtype)
        want = reduce(x, -1, op=op)
        for offset in (1, 2, 3, 4, 7):
            moved = x.new_zeros(x.numel() + offset)[offset:].view(shape).copy_(x)
            assert_same_bits(reduce(moved, -1, op=op), want, f"{op} {dtype} {shape} {offset}")


PARTS = (  # shapes, and the dims that are reduced: kept ones lie between them
    ((5, 7, 33), (0, 2)),
    ((3, 4, 7, 9), (0, 2, 3)),
    ((64, 3, 56, 56), (0, 2, 3)),
    ((2, 2000, 40), (0, 2)),
    ((2, 1, 3, 1, 70_000), (0, 4)),
    ((300, 2, 129), (0, 2)),
    ((40, 8, 8), (0, 2)),  # short parts
    ((300, 3, 20), (0, 2)),
    ((200, 7, 70), (0, 2)),
    ((90, 5, 501), (0, 2)),
    ((400, 3, 7), (0, 2)),
    ((4, 5, 6, 50), (0, 2)),  # a kept dim after them
    ((3, 5, 6, 50), (1, 3)),
    ((4, 100, 40, 20), (0, 2)),
    ((2, 3, 5000, 4), (0, 2)),
    ((3, 64, 11, 37, 12), (1, 3)),
    ((2, 3, 4, 7, 6), (1, 3)),
    ((5, 129, 7, 11), (0, 2, 3)),  # with channels last, several tiles of a transposed copy
    ((3, 40, 9, 30), (1, 3)),
)


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "max", "min", "logsumexp"])
def test_reduced_dims_apart(op, device):
    """Exact integers first; then floats, whose bits are the same in every layout of memory."""
    for shape, dim in PARTS:
        random = torch.Generator().manual_seed(7)
        if op in ("sum", "max", "min"):
            for dtype in (torch.int64, torch.float32, torch.bfloat16, torch.int8, torch.bool):
                x = torch.randint(-2, 3, shape, generator=random).to(dtype)
                want = reduce_reference(x, dim, op, False)
                for layout in (x, x.movedim(1, -1).contiguous().movedim(-1, 1)):
                    assert_equal(reduce(layout.to(device), dim, op=op), want, f"{op} {shape} {dtype}")
        x = torch.rand(shape, generator=random).add(0.5).to(device)
        want = reduce(x, dim, op=op)
        kept = [d for d in range(len(shape)) if d not in dim]
        lines = x.cpu().permute(*kept, *dim).flatten(len(kept)).double()
        near = {"sum": lines.sum(-1), "mean": lines.mean(-1), "max": lines.amax(-1), "min": lines.amin(-1)}
        near |= {"prod": lines.prod(-1), "logsumexp": lines.logsumexp(-1)}
        bound = 1e-2 if op == "prod" else 1e-5
        assert torch.allclose(want.cpu().double(), near[op], rtol=bound, atol=1e-30), f"{op} {shape}"
        for first in range(1, len(shape)):
            moved = x.movedim(first, 0).contiguous().movedim(0, first)
            assert_same_bits(reduce(moved, dim, op=op), want, f"{op} {shape} {first}")


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_of_reduced_dims_apart(op, device):
    """On CUDA, which of several NaNs a maximum returns does not depend on the layout of memory."""
    assert_same = assert_same_bits if device == "cuda" else assert_equal
    for shape, dim in PARTS:
        random = torch.Generator().manual_seed(8)
        bits = torch.randint(0x7FC00000, 0x7FC0FFFF, shape, generator=random, dtype=torch.int32)
        x = bits.view(torch.float32).where(bits % 7 == 0, torch.tensor(1.0)).to(device)
        want = reduce(x, dim, op=op)
        for first in range(1, len(shape)):
            moved = x.movedim(first, 0).contiguous().movedim(0, first)
            assert_same(reduce(moved, dim, op=op), want, f"{op} {shape} {first}")
