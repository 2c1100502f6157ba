"""Products of segments: tiles that end with a segment or not, weights that fit in shared memory or not, long segments
in several chunks, rows outside of all segments, and values that must not reach another segment."""

import pytest
import torch
from common import EACH_DEVICE, needs_cuda

from torch_patterns import registry, segment_matmul
from torch_patterns.testing import assert_equal
from torch_patterns.testing.spec import FLOATS

each_device = pytest.mark.parametrize("device", EACH_DEVICE)
NAN = float("nan")
# rows, inner and cols of a matrix, segments. On Hopper, weights of up to four slabs of 64 stay in shared memory if
# segments have 128 rows on average; up to 64 segments are numbered within the kernel. Chunks have 512 rows or more.
SHAPES = (
    (1, 8, 8, 1),
    (700, 72, 264, 5),
    (257, 17, 9, 4),
    (3000, 40, 129, 3),
    (900, 8, 16, 300),
    (90, 640, 1032, 2),
    (2000, 328, 136, 3),
    (2500, 448, 128, 9),
    (2600, 256, 256, 2),
    (1000, 31, 127, 7),
    (300, 64, 40, 100),
)
LENGTHS = ("random", "gaps", "all in one", "not valid")


def offsets_of(lengths: str, n: int, segments: int) -> torch.Tensor:
    """Of that many segments of n rows."""
    offsets = torch.randint(0, n + 1, (segments + 1,))
    if lengths == "not valid":
        offsets[0], offsets[segments // 2] = -5, n + 100
        return offsets
    offsets = offsets.sort()[0]
    if lengths != "gaps":
        offsets[0], offsets[-1] = 0, n
    if lengths == "all in one":
        offsets[1:-1] = n
    return offsets


def valid(offsets: torch.Tensor, n: int) -> list[int]:
    """What CUDA makes of offsets: in 0..n, and not decreasing."""
    return offsets.clamp(0, n).cummax(0)[0].tolist()


def expected(x, offsets, weights, grad):
    """The product and the gradient of the weights, in float64."""
    ends = valid(offsets, len(x))
    y = torch.zeros(len(x), weights.shape[2], dtype=torch.float64)
    of_weights = torch.zeros(weights.shape, dtype=torch.float64)
    for s, (begin, end) in enumerate(zip(ends, ends[1:], strict=False)):
        y[begin:end] = x[begin:end].double() @ weights[s].double()
        of_weights[s] = x[begin:end].double().t() @ grad[begin:end].double()
    return y, of_weights


def computed(x, offsets, weights, grad, algorithm):
    y = segment_matmul(x, offsets, weights, algorithm=algorithm)
    return y, torch.ops.torch_patterns.segment_matmul_wgrad(x, offsets, grad, False, algorithm)


@each_device
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, dtype, device):
    """Integers, so that every order of additions gives the same bits."""
    n, inner, cols, segments = shape
    torch.manual_seed(n)
    integers = lambda *size: torch.randint(-2, 3, size).to(dtype)  # noqa: E731
    algorithms = ["auto"] if device == "cpu" else ["auto", *registry.algorithms("segment_matmul", device)]
    for lengths in LENGTHS if device == "cuda" else LENGTHS[::2]:  # the CPU refuses offsets that are not valid
        offsets = offsets_of(lengths, n, segments)
        arguments = integers(n, inner), offsets, integers(segments, inner, cols), integers(n, cols)
        want = [y.to(dtype) for y in expected(*arguments)]
        for algorithm in algorithms:
            got = computed(*(t.to(device) for t in arguments), algorithm)
            for y, z in zip(got, want, strict=True):
                assert_equal(y, z, f"{algorithm} {shape} {lengths}")


@each_device
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_not_finite_values_stay_in_their_segment(dtype, device):
    torch.manual_seed(1)
    integers = lambda *size: torch.randint(-2, 3, size).to(dtype)  # noqa: E731
    for inner, cols in ((64, 264), (17, 9)):
        x, weights, grad = integers(5000, inner), integers(5, inner, cols), integers(5000, cols)
        offsets = torch.tensor([0, 130, 130, 1700, 1701, 5000])
        x[1700], grad[1700], weights[1] = NAN, float("inf"), NAN
        want = [y.to(dtype) for y in expected(x, offsets, weights, grad)]
        for algorithm in registry.algorithms("segment_matmul", device):
            got = computed(*(t.to(device) for t in (x, offsets, weights, grad)), algorithm)
            for y, z in zip(got, want, strict=True):
                assert_equal(y, z, f"{algorithm} {inner} {cols}")
                assert y.isfinite().any()


@needs_cuda
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bits_do_not_depend_on_addresses(dtype):
    def elsewhere(x):
        return x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)

    x, weights, grad = (torch.randn(size, device="cuda").to(dtype) for size in ((999, 72), (3, 72, 136), (999, 136)))
    offsets = torch.tensor([0, 200, 900, 999], device="cuda")
    want = computed(x, offsets, weights, grad, "grouped_gemm")
    for y, z in zip(computed(*map(elsewhere, (x, offsets, weights, grad)), "grouped_gemm"), want, strict=True):
        assert torch.equal(y, z)


@each_device
def test_no_segments(device):
    for dtype in FLOATS:
        x, weights = torch.ones(50, 8, dtype=dtype, device=device), torch.ones(0, 8, 16, dtype=dtype, device=device)
        offsets = torch.zeros(1, dtype=torch.long, device=device)
        for algorithm in registry.algorithms("segment_matmul", device):
            if device == "cuda":
                y = segment_matmul(x, offsets, weights, algorithm=algorithm)
                assert_equal(y, torch.zeros(50, 16, dtype=dtype), algorithm)
            empty = segment_matmul(x[:0], offsets, weights, algorithm=algorithm)
            assert empty.shape == (0, 16)


@needs_cuda
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_offsets_change_within_a_graph(dtype):
    """The host does not read the offsets, so a captured product and its gradients follow them."""
    x, weights = (torch.randint(-2, 3, size, device="cuda").to(dtype) for size in ((600, 16), (3, 16, 24)))
    offsets = torch.tensor([0, 100, 250, 600], device="cuda")

    def step():
        leaves = x.detach().requires_grad_(), weights.detach().requires_grad_()
        y = segment_matmul(leaves[0], offsets, leaves[1], algorithm="grouped_gemm")
        return y, *torch.autograd.grad(y.sum(), leaves)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for ends in ([0, 0, 600, 600], [0, 599, 599, 600]):
        offsets.copy_(torch.tensor(ends))
        graph.replay()
        for got, want in zip(captured, step(), strict=True):
            assert torch.equal(got, want), ends


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_product_of_one_row_with_any_strides(dtype, device):
    """A dimension of size 1 may have any stride, in arguments and in gradients."""
    offsets, weights = torch.tensor([0, 1], device=device), torch.arange(64 * 8, device=device).view(1, 64, 8) % 5
    wide = (torch.arange(100, device=device).view(1, 100) % 3).to(dtype)
    tall = (torch.arange(64, device=device).view(64, 1) % 3).to(dtype)
    for row in (wide[:, :64], tall.t()):
        x, w = row.detach().requires_grad_(), weights.to(dtype).requires_grad_()
        y = segment_matmul(x, offsets, w)
        g = (torch.arange(8, device=device).view(8, 1) % 4).to(dtype)
        of_x, of_w = torch.autograd.grad(y.t(), (x, w), g)  # a gradient of strides (1, 1)
        assert_equal(y, row.float() @ w[0].detach().float())
        assert_equal(of_x, g.t().float() @ w[0].detach().float().t())
        assert_equal(of_w[0], row.float().t() @ g.t().float())
