"""Groups, distinct values and runs: what their Specs do not say. And operators of one's own in C++."""

import ctypes
import math
import os
import random
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from common import EACH_DEVICE, needs_cuda

import torch_patterns as tp
from torch_patterns.testing import ALL, FLOATS

ROOT = Path(__file__).parent.parent
each_device = pytest.mark.parametrize("device", EACH_DEVICE)


@each_device
def test_unique_gives_what_is_asked_for(device):
    x = torch.tensor([[3.0, 1.0], [3.0, -2.0]], device=device)
    for inverse in (False, True):
        for counts in (False, True):
            got = tp.unique(x, return_inverse=inverse, return_counts=counts)
            want = torch.unique(x, return_inverse=inverse, return_counts=counts)
            assert isinstance(got, torch.Tensor) == isinstance(want, torch.Tensor)
            pairs = [(got, want)] if isinstance(want, torch.Tensor) else zip(got, want, strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


@each_device
def test_no_two_nan_are_equal(device):
    x = torch.tensor([torch.nan, 1.0, torch.nan, 1.0], device=device)
    values, counts = tp.unique(x, return_counts=True)
    assert values[0] == 1 and values[1:].isnan().all() and counts.tolist() == [2, 1, 1]
    values, counts = tp.run_length_encode(x[::2].contiguous())
    assert values.isnan().all() and counts.tolist() == [1, 1]


def lines(n: int, dtype: torch.dtype):
    """Lines of n elements: no two neighbours equal, all equal, runs of a few, runs of hundreds."""
    i = torch.arange(n)
    for numbers in (i % 2, 0 * i, (torch.rand(n) < 0.4).cumsum(0) % 5, (torch.rand(n) < 0.003).cumsum(0) % 2):
        yield numbers.to(dtype)


@each_device
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, *FLOATS], ids=str)
def test_runs_across_every_edge(dtype, device):
    """Whatever a thread or a vector takes at once, a run may begin and end anywhere, and a line may begin anywhere."""
    torch.manual_seed(1)
    for n in (0, 1, 2, 63, 64, 65, 130, 2**14 - 1, 2**14, 2**14 + 1, 3 * 2**14 + 77):
        for line in lines(n + 1, dtype):
            runs = torch.unique_consecutive(line[1:], return_inverse=True, return_counts=True)
            x, (values, inverse, counts) = line.to(device)[1:], [found.to(device) for found in runs]
            for algorithm in ("auto", *(["sequential"] if device == "cpu" else ["single_pass", "scan_scatter"])):
                got = tp.run_length_encode(x, algorithm=algorithm)
                assert torch.equal(got[0], values) and torch.equal(got[1], counts), (n, algorithm)
            keys, sums = tp.reduce_by_key(x, inverse)
            assert torch.equal(keys, values) and torch.equal(sums, counts * torch.arange(len(values), device=device))
            got = tp.unique(x, return_inverse=True, return_counts=True)
            want = torch.unique(line[1:], return_inverse=True, return_counts=True)
            assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True)), n


@each_device
def test_runs_compare_and_keep_as_torch_does(device):
    """-0.0 equals 0.0, NaN keeps its bits, any byte but 0 is true, strided lines are lines."""
    zeros = torch.tensor([0.0, -0.0, -0.0, 1.0, -0.0, 0.0], device=device)
    values, counts = tp.run_length_encode(zeros)
    assert counts.tolist() == [3, 1, 2] and values.signbit().tolist() == [False, False, True]
    odd = torch.tensor([0x7E01, -0x1FF, 0x3C00, 0x3C00], dtype=torch.int16, device=device).view(torch.float16)
    assert tp.run_length_encode(odd)[0].view(torch.int16).tolist() == [0x7E01, -0x1FF, 0x3C00]
    true = torch.tensor([2, 1, 255, 0, 0, 4], dtype=torch.uint8, device=device).view(torch.bool)
    values, counts = tp.run_length_encode(true)
    assert values.view(torch.uint8).tolist() == [1, 0, 1] and counts.tolist() == [3, 2, 1]
    fours = torch.arange(12, device=device) // 4
    assert tp.run_length_encode(fours)[1].tolist() == [4, 4, 4]
    assert tp.run_length_encode(fours[::2])[1].tolist() == [2, 2, 2]


EXTREMES = [-(2**63), 2**63 - 1]


@each_device
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_unique_integers_of_every_range(dtype, device):
    """Small ranges are counted, larger ones are sorted by small keys, and the largest have a span beyond int64."""
    torch.manual_seed(4)
    n, most = 70_001, 2 if dtype == torch.bool else torch.iinfo(dtype).max
    numbers = torch.randint(0, min(1000, most), (n,))
    lines = [numbers, 0 * numbers + 1]
    if dtype.is_signed:
        lines += [numbers - 128, -numbers.clamp_max(128)]
    if dtype in (torch.int32, torch.int64):
        lines += [numbers * 300 - 5, numbers * 1_000_000 - 999]
    if dtype == torch.int64:
        lines += [numbers * 300 + 2**60, numbers * 2**33, torch.tensor(EXTREMES).repeat(n)[:n]]
    for line in lines:
        x = line.to(dtype)[1:].view(700, 100)
        got = tp.unique(x.to(device), return_inverse=True, return_counts=True)
        want = torch.unique(x, return_inverse=True, return_counts=True)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))
        alone = tp.unique(x.to(device))
        assert torch.equal(alone.cpu(), want[0]) and alone.dtype == dtype


@pytest.mark.parametrize("width", [(), (1,), (3,), (2, 20)], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_many_rows_by_group(index_dtype, width):
    """Enough rows for several tables of partial results, and groups that no row has."""
    torch.manual_seed(2)
    for n, groups in ((1, 1), (3000, 7), (2**15 + 3, 300), (5000, 4999)):
        index = torch.randint(0, max(groups - 1, 1), (n,), dtype=index_dtype)
        values = torch.randint(-50, 50, (n, *width))
        spread = index.long().view(-1, *[1] * len(width)).expand(values.shape)
        empty = torch.zeros(groups, *width, dtype=torch.int64)
        for dtype in (torch.int64, torch.float32, torch.float64):
            x = values.to(dtype)
            for op, name in (("sum", "sum"), ("max", "amax"), ("min", "amin")):
                want = empty.to(dtype).scatter_reduce(0, spread, x, name, include_self=False)
                got = tp.group_reduce(x, index, groups, op=op)
                some = torch.bincount(index, minlength=groups) > 0
                assert torch.equal(got[some], want[some]), (op, dtype)
        counts = torch.bincount(index, minlength=groups).clamp_min(1).view(-1, *[1] * len(width))
        want = empty.scatter_add(0, spread, values).double() / counts
        assert torch.equal(tp.group_reduce(values.double(), index, groups, op="mean"), want)
        first = torch.full((groups, *width), n).scatter_reduce(
            0, spread, torch.arange(n).view(-1, *[1] * len(width)).expand(values.shape), "amin"
        )
        got = tp.group_reduce(torch.zeros(n, *width), index, groups, op="argmax")
        assert torch.equal(got, first.where(first < n, -1))


@each_device
@pytest.mark.parametrize("width", [(), (5,)], ids=str)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "argmin", "prod", "logsumexp", "var"])
def test_few_rows_of_many_groups(op, width, device):
    """As if only the groups that have rows were there; the others are as groups of no rows are."""
    for rows, groups in ((0, 50), (1, 40), (30, 1000), (70, 100_000)):
        random = torch.Generator().manual_seed(rows)
        index = torch.randint(0, groups, (rows,), generator=random)
        index[rows // 2 :] = index[: rows - rows // 2]
        values = torch.randn(rows, *width, generator=random).double()
        got = tp.group_reduce(values.to(device), index.to(device), groups, op=op).cpu()
        with_rows, numbers = index.unique(return_inverse=True)
        few = tp.group_reduce(values, numbers, max(len(with_rows), 1), op=op)
        none = tp.group_reduce(values[:0], index[:0], 1, op=op)
        want = none.expand(groups, *width).clone()
        want[with_rows] = few[: len(with_rows)]
        assert torch.allclose(got, want, rtol=1e-12, equal_nan=True), f"{op} {rows} {groups}"
        if device == "cpu" and rows > 0:
            index[rows // 2] = groups
            with pytest.raises(IndexError, match=rf"group_reduce: index\[{rows // 2}\] is {groups}"):
                tp.group_reduce(values, index, groups, op=op)


@pytest.mark.parametrize("bad", [-1, 300, 2**31 - 1])
def test_the_first_index_that_is_no_group(bad):
    index = torch.randint(0, 300, (40_000,), dtype=torch.int32)
    index[[23_456, 30_001]] = bad
    for width in ((), (2,)):
        with pytest.raises(IndexError, match=rf"index\[23456\] is {bad}"):
            tp.group_reduce(torch.ones(40_000, *width), index, 300)


@each_device
def test_gradients_through_runs(device):
    """The value of a run is its first element, so the gradient goes there; in both modes, and twice."""
    x = torch.tensor([2.0, 2.0, 5.0, 2.0, 2.0, 2.0], dtype=torch.float64, device=device, requires_grad=True)
    weights = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64, device=device)
    values, counts = tp.run_length_encode(x)
    assert counts.tolist() == [2, 1, 3] and not counts.requires_grad
    (grad,) = torch.autograd.grad((values * weights).sum(), x)
    assert grad.tolist() == [10.0, 0.0, 20.0, 30.0, 0.0, 0.0]
    tangent = torch.arange(6, dtype=torch.float64, device=device)
    pushed = torch.func.jvp(lambda x: tp.run_length_encode(x)[0], (x.detach(),), (tangent,))[1]
    assert pushed.tolist() == [0.0, 2.0, 3.0]
    keys, sums = tp.reduce_by_key(x, x * x)
    (first,) = torch.autograd.grad((sums * weights).sum() + keys.sum(), x, create_graph=True)
    assert first.tolist() == [41.0, 40.0, 201.0, 121.0, 120.0, 120.0]
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [20.0, 20.0, 40.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize("op", ["var", "std"])
def test_gradients_of_moments(op):
    offsets = torch.tensor([0, 4, 9])
    values = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    f = lambda v: tp.segment_reduce(v, offsets, op=op)  # noqa: E731
    assert torch.autograd.gradcheck(f, values, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, values, check_fwd_over_rev=True)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "prod", "logsumexp", "var"])
def test_gradients_by_key(op):
    keys = torch.tensor([4, 4, 4, 1, 1, 4, 4])
    values = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)
    f = lambda v: tp.reduce_by_key(keys, v, op=op)[1]  # noqa: E731
    assert torch.autograd.gradcheck(f, values, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, values, check_fwd_over_rev=True)


def test_runs_under_vmap():
    """Runs of the same keys are the same for all samples, and results of no samples have the sizes that there are."""
    keys = torch.tensor([1, 1, 2, 3, 3, 3])
    values = torch.arange(24.0).view(4, 6)
    of_runs = lambda v: tp.reduce_by_key(keys, v)  # noqa: E731
    got = torch.vmap(lambda v: of_runs(v)[1])(values)
    assert torch.equal(got, torch.stack([of_runs(v)[1] for v in values]))
    assert torch.vmap(lambda v: of_runs(v)[1])(values[:0]).shape == (0, 3)
    for f in (tp.unique, lambda k: tp.run_length_encode(k)[1], lambda k: tp.reduce_by_key(k, k)[0]):
        assert torch.vmap(f)(keys.expand(2, 6)).tolist() == [f(keys).tolist()] * 2
        assert torch.vmap(f)(keys.expand(0, 6)).shape[0] == 0


@pytest.mark.parametrize("op", ["sum", "mean", "max", "prod", "logsumexp", "std"])
def test_groups_are_segments_of_sorted_rows(op):
    torch.manual_seed(3)
    values, index = torch.randn(200, 3, dtype=torch.float64), torch.randint(0, 9, (200,))
    perm, offsets = tp.group_by(index, 11)
    assert torch.equal(index[perm], index.sort(stable=True)[0])
    by_sort = tp.segment_reduce(values[perm], offsets, op=op)
    for algorithm in ("auto", *tp.algorithms("group_reduce", "cpu")):
        got = tp.group_reduce(values, index, 11, op=op, algorithm=algorithm)
        torch.testing.assert_close(got, by_sort, rtol=1e-12, atol=1e-12, equal_nan=True)


def odd_values(n: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Few distinct values, among them equal ones with different bits: zeros and NaN of either sign."""
    x = torch.randint(0, 4, (n, width)) - torch.randint(0, 3, (n, width))
    if not dtype.is_floating_point:
        return x.to(dtype)
    x = x.to(dtype)
    x = torch.where((x == 0) & (torch.rand(n, width) < 0.5), -x, x)
    return torch.where(torch.rand(n, width) < 0.001, torch.tensor(torch.nan).copysign(x.float() - 1).to(dtype), x)


@needs_cuda
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_cuda_groups_without_a_sort_as_with_it(dtype):
    """The same bits, in shared memory or not, whichever of equal values comes first, and with rows in no group."""
    torch.manual_seed(5)
    shapes = (1, 1, 1), (70_000, 5, 1), (70_000, 3000, 1), (9000, 8000, 1), (70_000, 40_000, 1), (3000, 700, 9)
    integers = [] if dtype.is_floating_point else ["sum", "prod", "bitwise_and", "bitwise_or", "bitwise_xor"]
    for n, groups, width in shapes:
        x = odd_values(n, width, dtype).cuda()
        index = torch.randint(-1, groups + 1, (n,), dtype=torch.int32 if width == 9 else torch.int64, device="cuda")
        for op in ("max", "min", "any", "all", *integers):
            got, want = (tp.group_reduce(x, index, groups, op=op, algorithm=a) for a in ("auto", "merge_path"))
            bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
            assert torch.equal(got.view(bits), want.view(bits)), (op, n, groups, width)


# (digits, exponent of the least positive value, exponent of the least power of two that overflows), in the order of
# tests/cpp/exact_sum.cpp
FORMATS = {torch.float32: (24, -149, 128), torch.float16: (11, -24, 16), torch.bfloat16: (8, -133, 128)}


def rounded(x: Fraction, digits: int, least: int, overflow: int) -> float:
    """Returns the value nearest to x that a format has, of two the even one."""
    length = abs(x.numerator).bit_length() - x.denominator.bit_length()
    length += abs(x) >= Fraction(2) ** length  # 2^(length - 1) <= |x| < 2^length
    unit = Fraction(2) ** max(length - digits, least)
    found = round(x / unit) * unit  # Python rounds to the even one
    return math.copysign(math.inf, found) if abs(found) >= Fraction(2) ** overflow else float(found)


def any_floats(rng: random.Random, dtype: torch.dtype) -> list[float]:
    """Makes values of very different sizes, or nearly the same; some cancel, some overflow, some are subnormal."""
    _, least, overflow = FORMATS[dtype]
    low = rng.randrange(least, overflow)
    high = rng.choice([low + 1, min(low + 12, overflow), overflow])
    values = [math.ldexp(rng.uniform(-1, 1), rng.randrange(low, high)) for _ in range(rng.choice([1, 2, 5, 60]))]
    if rng.random() < 0.4:
        values += [-v for v in values[rng.randrange(len(values)) :]] + [math.ldexp(rng.choice([1, -3]), least)]
    if rng.random() < 0.3:
        values = [math.copysign(math.ldexp(1, rng.randrange(low, high)), v) for v in values]
    if rng.random() < 0.1:
        values += rng.choices([math.inf, -math.inf, math.nan], k=2)
    return torch.tensor(values, dtype=torch.float64).to(dtype).tolist()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_exact_sums_are_rounded_once(dtype, tmp_path):
    """Against fractions, in any order, with room for few or many rows."""
    library = tmp_path / "exact_sum.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-shared", "-fPIC", "-Icsrc", "-o", library]
    subprocess.run([*command, "tests/cpp/exact_sum.cpp"], cwd=ROOT, check=True)
    exact_sum = ctypes.CDLL(str(library)).exact_sum
    exact_sum.restype = ctypes.c_float
    rng = random.Random(2)
    for _ in range(3000):
        x = any_floats(rng, dtype)
        rng.shuffle(x)
        if all(map(math.isfinite, x)):
            want = rounded(sum(map(Fraction, x), Fraction(0)), *FORMATS[dtype])
        else:
            want = sum(v for v in x if not math.isfinite(v))
        rows = rng.choice([len(x), 2**10, 2**26, 2**32 - 1])
        values = (ctypes.c_float * len(x))(*x)
        got = exact_sum(values, ctypes.c_int64(len(x)), ctypes.c_int64(rows), list(FORMATS).index(dtype))
        assert got == want or (math.isnan(got) and math.isnan(want)), (x, rows, got, want)


@needs_cuda
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_cuda_sums_of_floats_are_exact(dtype):
    """No value is nearer to the sum, and rows in another order give the same bits: in shared memory, in both kinds of
    blocks, or not in it, with rows in no group."""
    torch.manual_seed(7)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    for n, groups, width in ((1, 1, 1), (70_000, 5, 1), (70_000, 10_000, 1), (30_000, 10_000, 1), (1300, 700, 9)):
        x = (torch.randint(-200, 201, (n, width)) * 2.0 ** torch.randint(-8, 4, (n, width))).to(dtype).cuda()
        index = torch.randint(-1, groups + 1, (n,), dtype=torch.int32 if width == 9 else torch.int64, device="cuda")
        some = (index >= 0) & (index < groups)
        want = torch.zeros(groups, width, dtype=torch.float64, device="cuda")
        want.index_add_(0, index[some].long(), x[some].double())  # exact: of less than 53 bits
        got = tp.group_reduce(x, index, groups)
        error = (got.double() - want).abs()
        for step in (-1, 1):
            neighbour = (got.view(bits) + step).view(dtype).double()
            assert not ((neighbour - want).abs() < error).any(), (n, groups, width)
        order = torch.randperm(n, device="cuda")
        assert torch.equal(tp.group_reduce(x[order], index[order], groups).view(bits), got.view(bits))


@needs_cuda
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_cuda_sums_of_infinities_and_nan(dtype):
    most, inf, nan = torch.finfo(dtype).max, torch.inf, torch.nan
    rows = [[1, inf, 2], [-inf, 1], [inf, -inf, 0], [nan, 1], [most, most], [most, most, -most], [], [-0.0, -0.0]]
    values = torch.tensor([v for row in rows for v in row], dtype=dtype, device="cuda")
    index = torch.tensor([i for i, row in enumerate(rows) for _ in row], device="cuda")
    got = tp.group_reduce(values, index, len(rows)).tolist()
    assert str(got) == str([inf, -inf, nan, nan, inf, most, 0.0, 0.0])


@needs_cuda
def test_cuda_leaves_out_what_is_no_group():
    values = torch.tensor([1.0, 2.0, 4.0, 8.0], device="cuda")
    index = torch.tensor([1, -5, 7, 1], device="cuda")
    for groups in (2, 5):
        for rung in ("auto", *tp.algorithms("group_reduce", "cuda")):
            assert tp.group_reduce(values, index, groups, algorithm=rung).tolist() == [0.0, 9.0, 0.0, 0.0, 0.0][:groups]
    assert tp.group_expand(values, torch.tensor([3, -1, 4, 2**40], device="cuda")).tolist() == [8.0, 0.0, 0.0, 0.0]
    perm, offsets = tp.group_by(torch.tensor([1, -5, 9, 0], device="cuda"), 2)
    assert perm[:2].tolist() == [3, 0] and offsets.tolist() == [0, 1, 2]


def test_compiled_sizes_that_only_the_data_knows():
    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def f(keys, values):
        found, inverse = tp.unique(keys, return_inverse=True)
        runs, sums = tp.reduce_by_key(keys.sort()[0], values)
        return found, tp.group_reduce(values, inverse, found.shape[0]), runs, sums

    values = torch.arange(8.0, requires_grad=True)
    for keys in (torch.tensor([3, 1, 3, 3, 2, 1, 1, 1]), torch.tensor([5, 5, 5, 5, 5, 5, 5, 6])):
        found, sums, runs, in_order = f(keys, values)
        assert torch.equal(found, keys.unique()) and torch.equal(runs, found)
        assert torch.equal(sums, torch.stack([values[keys == k].sum() for k in found]))
        assert in_order.sum() == 28
        (grad,) = torch.autograd.grad((sums * torch.arange(len(found))).sum(), values)
        assert torch.equal(grad, torch.unique(keys, return_inverse=True)[1].float())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int64])
def test_bits(dtype):
    """Empty reductions give the identity, whatever byte stands for true."""
    x = torch.tensor([1, 3, 2], dtype=dtype)
    for op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        fold = getattr(torch, op)
        want = fold(fold(x[0], x[1]), x[2])
        assert torch.equal(tp.reduce(x, op=op), want) and torch.equal(tp.scan(x, op=op)[-1], want)
        empty = tp.reduce(x[:0], op=op)
        assert empty.dtype == dtype and torch.equal(fold(empty, x[1]), x[1])
    odd = torch.tensor([2, 0, 255], dtype=torch.uint8).view(torch.bool)
    assert tp.reduce(odd, op="bitwise_xor").item() is False and tp.scan(odd, op="any").tolist() == [True] * 3


def test_softmax_of_large_values_and_infinities():
    inf = torch.inf
    x = torch.tensor([1e4, 1e4 + 1, -inf, 3.0, -inf, -inf, inf, 0.0, torch.nan, 1.0, 5.0])
    bounds = [0, 2, 4, 6, 8, 10, 10, 11]
    offsets = torch.tensor(bounds)
    for ours, theirs in ((tp.segment_softmax, torch.softmax), (tp.segment_log_softmax, torch.log_softmax)):
        want = torch.cat([theirs(x[a:b], 0) for a, b in zip(bounds, bounds[1:], strict=False)])
        torch.testing.assert_close(ours(x, offsets), want, rtol=1e-6, atol=1e-7, equal_nan=True)
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(ours(leaf, offsets)[[0, 10]].sum(), leaf)
        assert grad[[0, 1, 2, 3, 10]].isfinite().all()


COMPILERS = {"g++": ["g++"], "nvcc": ["nvcc", "-x", "cu", "--expt-relaxed-constexpr", "-DTP_WITH_CUDA", "-arch=native"]}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_operator_of_ones_own(compiler, tmp_path):
    """The example compiles against the headers alone, and its results are those of a loop."""
    if compiler == "nvcc" and not (shutil.which("nvcc") and torch.cuda.is_available()):
        pytest.skip("needs nvcc and a CUDA device")
    program = tmp_path / "own_operator"
    command = [*COMPILERS[compiler], "-std=c++17", "-O1", "-Icsrc", "examples/cpp/own_operator.cpp"]
    command = [os.environ.get("CXX", "g++"), *command[1:]] if compiler == "g++" else command
    subprocess.run([*command, *(ROOT / "csrc/core").glob("*.cpp"), "-o", program], cwd=ROOT, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("greatest sum of 5000 elements: ")
