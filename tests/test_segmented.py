"""What is special to segments: empty ones, NaN that must not leak, skew, offsets that change or lie."""

import itertools

import pytest
import torch
from common import EACH_DEVICE, grad_list, needs_cuda

from torch_patterns import (
    registry,
    segment_expand,
    segment_reduce,
    segment_scan,
    segment_softmax,
    segment_topk,
)
from torch_patterns.testing import ALL, FLOATS, assert_equal, assert_same_bits, assert_within, gamma, unit_roundoff
from torch_patterns.testing.scan import OPS, identity, scan_reference
from torch_patterns.testing.segmented import BORDERS, make_offsets, reduce_reference
from torch_patterns.testing.segmented_scan import segment_scan_reference

INF, NAN = float("inf"), float("nan")
each_device = pytest.mark.parametrize("device", EACH_DEVICE)


def reductions(device: str) -> list[str]:
    return ["auto", *registry.algorithms("segment_reduce", device)]


def scans(device: str) -> list[str]:
    return ["auto", *registry.algorithms("segment_scan", device)]


def offsets_of(*lengths: int, device="cpu") -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(device)


# ---- reduction


@each_device
def test_nan_stays_in_its_segment(device):
    x, o = torch.tensor([1.0, NAN, 3, 4, 5, 5], device=device), offsets_of(1, 2, 3, 0, device=device)
    want = {"sum": [1, NAN, 14, 0], "max": [1, NAN, 5, -INF], "min": [1, NAN, 4, INF], "prod": [1, NAN, 100, 1]}
    want |= {"mean": [1, NAN, 14 / 3, 0]}
    for algorithm, (op, values), dtype in itertools.product(reductions(device), want.items(), FLOATS):
        y = segment_reduce(x.to(dtype), o, op=op, algorithm=algorithm)
        assert_equal(y, torch.tensor(values, dtype=torch.float64), f"{algorithm} {op} {dtype}")
    for algorithm in reductions(device):
        assert segment_reduce(x, o, op="argmax", algorithm=algorithm).tolist() == [0, 1, 4, -1]
        assert segment_reduce(x, o, op="argmin", algorithm=algorithm).tolist() == [0, 1, 3, -1]


@each_device
def test_empty_segments_give_the_identity(device):
    o = torch.zeros(6, dtype=torch.int32, device=device)
    for algorithm, op, dtype in itertools.product(reductions(device), OPS, ALL):
        y = segment_reduce(torch.zeros(0, 2, dtype=dtype, device=device), o, op=op, algorithm=algorithm)
        assert y.tolist() == [[identity(op, dtype)] * 2] * 5, (algorithm, op, dtype)
    for op, index in itertools.product(("argmax", "argmin"), (0, 3)):  # all of the identity are rows like others
        lowest = torch.tensor([-INF if op == "argmax" else INF] * 4, device=device)
        for algorithm in reductions(device):
            found = segment_reduce(lowest, offsets_of(index, 4 - index, 0, device=device), op=op, algorithm=algorithm)
            assert found.tolist() == [0 if index else -1, index, -1]


@each_device
def test_a_million_empty_segments_around_one_row(device):
    o = make_offsets("all in one", 1, 10**6, torch.Generator()).to(device)
    x = torch.tensor([3.0], device=device, requires_grad=True)
    y = segment_reduce(x, o)
    assert y.sum() == 3 and y.count_nonzero() == 1
    assert grad_list(y, x) == [1] and grad_list(segment_scan(x, o), x) == [1]
    assert segment_expand(y, o, 1).tolist() == [3]


@each_device
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_means_of_empty_segments_have_no_gradient(dtype, device):
    x, o = torch.ones(4, dtype=dtype, device=device, requires_grad=True), offsets_of(0, 4, 0, device=device)
    y = segment_reduce(x, o, op="mean")
    assert y.tolist() == [0, 1, 0] and grad_list(y, x) == [0.25] * 4
    nothing = torch.ones(0, dtype=dtype, device=device, requires_grad=True)
    assert grad_list(segment_reduce(nothing, offsets_of(0, 0, device=device), op="mean"), nothing) == []


@each_device
def test_gradients_of_means_of_long_half_segments(device):
    """Longer than the greatest float16, which ends at 65504."""
    x = torch.ones(70_000, dtype=torch.float16, device=device, requires_grad=True)
    got = torch.autograd.grad(segment_reduce(x, offsets_of(70_000, device=device), op="mean"), x)[0]
    assert_equal(got, torch.full((70_000,), 1 / 70_000, dtype=torch.float64))


@each_device
@pytest.mark.parametrize("lengths", [k for k in BORDERS if k not in ("of 1", "of 0, 1, 2, ...")])
def test_every_distribution_of_lengths(lengths, device):
    n = 2**17 + 5
    o = make_offsets(lengths, n, 1000, torch.Generator().manual_seed(2))
    x = torch.randint(-8, 9, (n,), generator=torch.Generator().manual_seed(3)).float()
    sums, scanned = reduce_reference(x, o), segment_scan_reference(x, o)
    for algorithm in reductions(device):
        assert_equal(segment_reduce(x.to(device), o.to(device), algorithm=algorithm), sums, algorithm)
        back = segment_expand(sums.float().to(device), o.to(device), n, algorithm=algorithm)
        assert_equal(back, sums.repeat_interleave(o.diff()), algorithm)
    for algorithm in scans(device):
        assert_equal(segment_scan(x.to(device), o.to(device), algorithm=algorithm), scanned, algorithm)


@each_device
def test_skew(device):
    """One segment of 2^20 + 1 among a million of one row."""
    lengths = torch.ones(10**6 + 1, dtype=torch.int64)
    lengths[500_000] = 2**20 + 1
    o = offsets_of(*lengths.tolist(), device=device)
    x = torch.ones(int(lengths.sum()), device=device)
    assert_equal(segment_reduce(x, o), lengths)
    assert_equal(segment_scan(x, o)[o[1:] - 1], lengths)
    assert segment_reduce(x, o, op="argmax").tolist() == o[:-1].tolist()


@each_device
def test_gradients_of_extrema_go_once_to_the_first_of_equals(device):
    x = torch.tensor([1.0, 3, 3, 2, 2, 2, NAN, 5, NAN], device=device, requires_grad=True)
    o = offsets_of(3, 0, 3, 3, device=device)
    for algorithm in reductions(device):
        y = segment_reduce(x, o, op="max", algorithm=algorithm)
        assert grad_list(y, x, [1, 9, 2, 3]) == [0, 1, 0, 2, 0, 0, 3, 0, 0]
        y = segment_reduce(x, o, op="min", algorithm=algorithm)
        assert grad_list(y, x, [1, 9, 2, 3]) == [1, 0, 0, 2, 0, 0, 3, 0, 0]


@each_device
def test_gradients_of_products_with_zeros(device):
    x = torch.tensor([2.0, 3, 0, 5, 0, 0, 7, NAN], device=device, requires_grad=True)
    o = offsets_of(2, 2, 3, 0, 1, device=device)
    y = segment_reduce(x, o, op="prod")
    assert grad_list(y, x, [1, 1, 1, NAN, 1]) == [3, 2, 5, 0, 0, 0, 0, 1]


@each_device
def test_second_derivatives(device):
    x = torch.tensor([2.0, 3, 0, 5], dtype=torch.float64, device=device, requires_grad=True)
    o = offsets_of(3, 1, device=device)
    first = torch.autograd.grad(segment_reduce(x, o, op="prod").sum(), x, create_graph=True)[0]
    assert first.tolist() == [0, 0, 6, 1]
    assert torch.autograd.grad(first[2], x)[0].tolist() == [3, 2, 0, 0]


@each_device
def test_offsets_that_change_after_the_forward_pass_are_noticed(device):
    x = torch.ones(6, device=device, requires_grad=True)
    for operator in (segment_reduce, segment_scan):
        for op in OPS:
            o = offsets_of(2, 4, device=device)
            y = operator(x, o, op=op)
            o[1] = 100
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_the_cpu_looks_at_offsets_always(index):
    x = torch.ones(7)
    for bad, error in (((0, 5, 3, 7), ValueError), ((1, 7), ValueError), ((0, 6), ValueError), ((0, 8), IndexError)):
        o = torch.tensor(bad, dtype=index)
        for call in (segment_reduce, segment_scan, lambda x, o: segment_expand(x[: len(o) - 1], o, 7)):
            with pytest.raises(error, match=r"offsets\["):
                call(x, o)


@needs_cuda
def test_cuda_bounds_what_offsets_hold():
    """Without `validate`: clamped; rows in no segment get zero or the identity; anything else is memory safe."""
    x = torch.arange(1.0, 8.0, device="cuda")
    for bad, sums, expanded, scanned in (
        ((2, 5), [12], [0, 0, 9, 9, 9, 0, 0], [0, 0, 3, 7, 12, 0, 0]),
        ((-3, 2, 90), [3, 25], [9, 9, 9, 9, 9, 9, 9], [1, 3, 3, 7, 12, 18, 25]),
        ((0,), [], [0] * 7, [0] * 7),
    ):
        for index in (torch.int32, torch.int64):
            o = torch.tensor(bad, dtype=index, device="cuda")
            nines = torch.full((len(bad) - 1,), 9.0, device="cuda")
            for algorithm in reductions("cuda"):
                assert segment_reduce(x, o, algorithm=algorithm).tolist() == sums, (algorithm, bad)
                assert segment_expand(nines, o, 7, algorithm=algorithm).tolist() == expanded, (algorithm, bad)
            for algorithm in scans("cuda"):
                assert segment_scan(x, o, algorithm=algorithm).tolist() == scanned, (algorithm, bad)
    wild = torch.randint(-(2**40), 2**40, (1000,), device="cuda")
    many = torch.ones(50_000, device="cuda")
    for algorithm in reductions("cuda"):
        segment_reduce(many, wild, algorithm=algorithm)
        segment_expand(many[:999], wild, 50_000, algorithm=algorithm)
    for algorithm in scans("cuda"):
        segment_scan(many, wild, algorithm=algorithm)
    torch.cuda.synchronize()


@needs_cuda
@pytest.mark.parametrize("width", [1, 2])
def test_a_softmax_on_cuda_writes_its_rows_alone_whatever_offsets_hold(width):
    """Rows in no segment get 0. Each result lies between NaNs, in memory just given back, and no NaN changes."""
    x = torch.randn(128, width, device="cuda")
    expected = {
        (0,): x * 0,
        (2, 5): torch.cat([x[:2] * 0, x[2:5].softmax(0), x[5:] * 0]),
        (-3, 2, 190): torch.cat([x[:2].softmax(0), x[2:].softmax(0)]),
    }
    for bad in (*expected, (129, 0), (0, 190, 128), (-300, -300, -1, 0)):  # the last ones decrease, or end before 0
        o = torch.tensor(bad, device="cuda")
        for algorithm in reductions("cuda"):
            blocks = [torch.full_like(x, NAN) for _ in range(65)]
            between, guards = {block.data_ptr() for block in blocks[1::2]}, blocks[::2]
            del blocks
            results = []
            while not results or results[-1].data_ptr() not in between:  # other free memory is used up first
                results.append(segment_softmax(x, o, algorithm=algorithm))
                assert len(results) < 1000, "no result lies between the NaNs"
            assert torch.stack(guards).isnan().all(), (algorithm, bad)
            if bad in expected:
                torch.testing.assert_close(results[-1], expected[bad], msg=f"{algorithm} {bad}")


@needs_cuda
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_validation_refuses_capture():
    x, o = torch.ones(7, device="cuda"), torch.tensor([0, 7], device="cuda")
    for call in (segment_reduce, segment_scan, lambda x, o, validate: segment_expand(x[:1], o, 7, validate=validate)):
        with (
            pytest.raises(RuntimeError, match="validate=True.*cannot be captured"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            call(x, o, validate=True)
    torch.cuda.synchronize()


@each_device
@pytest.mark.parametrize("width", [1, 3, 32, 33, 128, 1000])
def test_widths_and_strides(width, device):
    x = torch.randint(-8, 9, (2 * width, 300), generator=torch.Generator().manual_seed(4)).float().t()[:, ::2]
    o = make_offsets("ragged", 300, 7, torch.Generator().manual_seed(5))
    for algorithm in reductions(device):
        assert_equal(segment_reduce(x.to(device), o.to(device), algorithm=algorithm), reduce_reference(x, o), algorithm)
    for algorithm in scans(device):
        got = segment_scan(x.to(device), o.to(device), reverse=True, algorithm=algorithm)
        assert_equal(got, segment_scan_reference(x, o, reverse=True), algorithm)


AUTO_DEPTH = 256  # no operand goes through more roundings than this under "auto", however long its segment


@each_device
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_errors_of_auto_do_not_grow_with_the_length(dtype, device):
    n, u = 2**20, unit_roundoff(dtype)
    x = torch.full((n,), 1 / 3).to(dtype).mul_(2**-5 if dtype == torch.float16 else 1)  # half types end at 65504
    o = offsets_of(7, n - 10, 3, device=device)
    exact = x[0].double() * o.diff().cpu()
    assert_within(segment_reduce(x.to(device), o), exact, gamma(AUTO_DEPTH, u) * exact)
    scanned = segment_scan_reference(x, o.cpu())
    assert_within(segment_scan(x.to(device), o), scanned, gamma(AUTO_DEPTH, u) * scanned)


# ---- scan


@each_device
def test_segments_of_one_row(device):
    x, o = torch.tensor([1.0, NAN, INF, 4], device=device), torch.arange(5, device=device)
    for algorithm, op in itertools.product(scans(device), OPS):
        assert_equal(segment_scan(x, o, op=op, algorithm=algorithm), x.cpu().double(), algorithm)
        start = torch.full((4,), identity(op, torch.float32), dtype=torch.float64)
        assert_equal(segment_scan(x, o, op=op, exclusive=True, algorithm=algorithm), start, algorithm)


@each_device
def test_nan_and_infinities_stay_in_their_segment(device):
    x, o = torch.ones(40, device=device), offsets_of(10, 0, 10, 10, 10, device=device)
    x[5], x[12], x[35] = NAN, INF, -INF
    for algorithm, op, exclusive, reverse in itertools.product(scans(device), OPS, (False, True), (False, True)):
        y = segment_scan(x, o, op=op, exclusive=exclusive, reverse=reverse, algorithm=algorithm)
        assert_equal(y, segment_scan_reference(x.cpu(), o.cpu(), op=op, exclusive=exclusive, reverse=reverse))
        assert not y.isnan()[10:].any() and (y[20:30].isfinite().all() or exclusive)


@each_device
def test_gradients_do_not_leak(device):
    """A NaN or infinite gradient reaches the rows of its own segment and, for max and min, of its own run alone."""
    x = torch.tensor([1.0, 3, 2, 5, 4, 2, 8, 9, 1], device=device, requires_grad=True)
    o = offsets_of(3, 3, 3, device=device)
    for algorithm, op, bad in itertools.product(scans(device), OPS, (NAN, INF)):
        for exclusive, reverse in itertools.product((False, True), (False, True)):
            weights = torch.ones(9)
            weights[4] = bad
            y = segment_scan(x, o, op=op, exclusive=exclusive, reverse=reverse, algorithm=algorithm)
            got = torch.tensor(grad_list(y, x, weights))
            assert got[[0, 1, 2, 6, 7, 8]].isfinite().all(), (algorithm, op, exclusive, reverse)
    rising = torch.tensor([1.0, 2, 3, 4], device=device, requires_grad=True)
    for algorithm in scans(device):
        y = segment_scan(rising, offsets_of(4, device=device), op="max", algorithm=algorithm)
        got = grad_list(y, rising, [1, 1, NAN, 1])
        assert got[:2] == [1, 1] and got[2] != got[2] and got[3] == 1, algorithm


@each_device
def test_gradients_of_scanned_extrema(device):
    x = torch.tensor([1.0, 3, 3, 2, 4, 4, 9, 1, 1], device=device, requires_grad=True)
    o = offsets_of(6, 0, 3, device=device)
    for algorithm in scans(device):
        take = {"algorithm": algorithm, "op": "max"}
        assert grad_list(segment_scan(x, o, **take), x) == [1, 3, 0, 0, 2, 0, 3, 0, 0]
        assert grad_list(segment_scan(x, o, reverse=True, **take), x) == [0, 0, 0, 0, 0, 6, 1, 0, 2]
        assert grad_list(segment_scan(x, o, exclusive=True, **take), x) == [1, 3, 0, 0, 1, 0, 2, 0, 0]
        assert grad_list(segment_scan(-x, o, op="min", algorithm=algorithm), x) == [-1, -3, 0, 0, -2, 0, -3, 0, 0]


@each_device
def test_gradients_of_sums_are_sums_from_the_other_end(device):
    x = torch.randn(300, 2, device=device, requires_grad=True)
    g = torch.randint(-9, 10, (300, 2), device=device).float()
    o = make_offsets("ragged", 300, 9, torch.Generator().manual_seed(6))
    for exclusive, reverse in itertools.product((False, True), repeat=2):
        got = torch.autograd.grad(segment_scan(x, o.to(device), exclusive=exclusive, reverse=reverse), x, g)[0]
        assert_equal(got, segment_scan_reference(g.cpu(), o, exclusive=exclusive, reverse=not reverse))


def test_the_order_of_segments_does_not_matter():
    """Permuted segments give permuted results, bit for bit: a segment knows nothing of what stands before it."""
    lengths = [5, 0, 64, 33, 1, 100, 7]
    parts = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(7)).split(lengths)
    order = [3, 6, 0, 5, 1, 4, 2]
    for algorithm in ("sequential", "threaded"):
        straight = segment_scan(torch.cat(parts), offsets_of(*lengths), algorithm=algorithm).split(lengths)
        moved = torch.cat([parts[i] for i in order])
        got = segment_scan(moved, offsets_of(*(lengths[i] for i in order)), algorithm=algorithm)
        assert_same_bits(got, torch.cat([straight[i] for i in order]), algorithm)


@each_device
def test_one_segment_is_a_scan(device):
    x = torch.randint(-8, 9, (3000,), generator=torch.Generator().manual_seed(8)).float()
    for algorithm, reverse in itertools.product(scans(device), (False, True)):
        y = segment_scan(x.to(device), offsets_of(3000, device=device), reverse=reverse, algorithm=algorithm)
        assert_equal(y, scan_reference(x, reverse=reverse), algorithm)


@each_device
def test_a_recurrence_over_segments_outlives_products_that_overflow(device):
    """A state of 0 stays 0, whatever comes of the factors; a NaN among them does not."""
    n, offsets = 5_000, offsets_of(10, 2_490, 0, 2_500, device=device)
    for width in (1, 3):
        a, b = torch.full((n, width), 2.0), torch.zeros(n, width)
        a[600, 0] = NAN
        a[1_000, 0] = 0  # a restart forgets the NaN
        b[9] = b[2_499] = b[-1] = 1  # the last rows of the segments
        want = b.clone()
        want[600:1_000, 0] = NAN
        for reverse in (False, True):
            x, y, ends = (a.flip(0), b.flip(0), n - offsets.flip(0)) if reverse else (a, b, offsets)
            for algorithm in scans(device):
                call = torch.ops.torch_patterns.segment_recurrence
                got = call(x.to(device), y.to(device), ends, reverse, None, algorithm)
                assert_equal(got.flip(0) if reverse else got, want, f"{algorithm} {width} {reverse}")


@needs_cuda
def test_overlapping_segments():
    """Offsets that decrease make a pair an empty segment and the others overlap: every rung reduces each by itself."""
    values = torch.arange(7.0, device="cuda")
    for algorithm, op in itertools.product(reductions("cuda"), ("sum", "max", "mean", "argmax", "prod")):
        for offsets in ([0, 5, 3, 7], [0, 7, 2, 7, 1, 7], [-4, 9, 2, 99], [7, 0]):
            got = segment_reduce(values, torch.tensor(offsets, device="cuda"), op=op, algorithm=algorithm)
            ends = [min(max(o, 0), 7) for o in offsets]
            parts = [values[begin : max(begin, end)].cpu() for begin, end in itertools.pairwise(ends)]
            for i, (part, begin) in enumerate(zip(parts, ends, strict=False)):
                want = reduce_reference(part, torch.tensor([0, len(part)]), op=op)[0].item()
                want = want + begin if op == "argmax" and len(part) else want
                assert got[i].item() == want, (algorithm, op, offsets, i)


@pytest.mark.parametrize("device", EACH_DEVICE)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_the_first_of_a_segment_are_those_of_its_sort(dtype, device):
    """Few are selected, more are sorted: both keep the order of equal keys, of zeros and of NaN."""
    g = torch.Generator().manual_seed(3)
    lengths = torch.tensor([0, 1, 15, 16, 17, 63, 64, 65, 0, 300, 33])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    x = torch.randint(0, 2 if dtype == torch.bool else 7, (int(offsets[-1]),), generator=g).to(dtype)
    if dtype.is_floating_point:
        x = (x - 3) * torch.where(torch.rand(len(x), generator=g) < 0.1, NAN, 1.0).to(dtype)  # with -0.0 * 1 and NaN
        x[torch.rand(len(x), generator=g) < 0.1] = -0.0
    for k, largest, index in itertools.product((1, 2, 16, 63, 64, 65, 100), (False, True), (torch.int32, torch.int64)):
        values, rows = segment_topk(x.to(device), offsets.to(device, index), k, largest=largest)
        for s, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
            keys = x[begin:end].float() if x.is_floating_point() else x[begin:end].long()
            order = keys.sort(descending=largest, stable=True)[1][:k]  # torch, too, has NaN as the greatest
            assert_equal(rows[s, : len(order)], begin + order, f"{k} {largest} {s}")
            assert (rows[s, len(order) :] == -1).all()
            assert_same_bits(values[s, : len(order)].cpu(), x[begin:end][order])


@pytest.mark.parametrize("device", EACH_DEVICE)
@pytest.mark.parametrize("width", [1, 3])
def test_a_softmax_of_long_segments_with_infinities(width, device):
    offsets = offsets_of(3, 40_000, 0, 5, 20_000, 9, device="cpu")
    x = torch.randn(int(offsets[-1]), width, generator=torch.Generator().manual_seed(5)) * 4
    x[30_000, 0] = float("inf")  # NaN throughout its segment
    x[40_003:40_008] = -float("inf")  # as in torch, NaN
    x[50_000:55_000] = -float("inf")  # 0
    got = segment_softmax(x.to(device), offsets.to(device)).cpu()
    for begin, end in itertools.pairwise(offsets.tolist()):
        want = torch.softmax(x[begin:end].double(), 0)
        torch.testing.assert_close(got[begin:end].double(), want, rtol=1e-5, atol=1e-37, equal_nan=True)
