"""What is special to pooling: edges, ties, NaN, infinities, layouts, windows that hold nothing, sizes beyond a grid."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from common import EACH_DEVICE

from torch_patterns import avg_pool2d, max_pool2d, registry, subsample2d
from torch_patterns.testing import FLOATS, INTEGERS, assert_equal, assert_same_bits

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
INF, NAN = float("inf"), float("nan")


def algorithms(device: str) -> list[str]:
    return ["auto", *registry.algorithms("max_pool2d", device)]


def image(rows, device, dtype=torch.float32, **kwargs) -> torch.Tensor:
    return torch.tensor([rows], dtype=dtype, device=device, **kwargs)


def integers(*shape, device="cpu", dtype=torch.float32) -> torch.Tensor:
    return torch.randint(-9, 10, shape).to(device, dtype)


def windows():
    """Every combination of small windows that makes sense."""
    for kernel, stride, padding, dilation, ceil_mode in itertools.product(
        (1, 2, 3), (1, 2, 3), (0, 1), (1, 2), (False, True)
    ):
        if 2 * padding <= kernel:
            yield {
                "kernel_size": kernel,
                "stride": stride,
                "padding": padding,
                "dilation": dilation,
                "ceil_mode": ceil_mode,
            }


# ---- as torch has it

# Shape, and whether channels are last: 3 of them are taken one by one, 4 may be a vector.
LAYOUTS = [((2, 3, 7, 8), False), ((2, 3, 7, 8), True), ((2, 4, 5, 6), True)]


def test_every_window_is_as_in_torch(device):
    """Values, indices, gradients and strides, contiguous and channels_last; the first of equal values is taken."""
    for algorithm, how, (shape, last) in itertools.product(algorithms(device), windows(), LAYOUTS):
        x = integers(*shape, device=device)
        x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
        want, want_indices = F.max_pool2d(x, return_indices=True, **how)
        got, indices = max_pool2d(x, return_indices=True, algorithm=algorithm, **how)
        g = integers(*got.shape, device=device)
        assert_same_bits((got, indices), (want, want_indices), f"{algorithm} {how}")
        assert got.stride() == want.stride() and indices.stride() == want.stride()
        expected = torch.autograd.grad(want, x, g)
        assert_equal(torch.autograd.grad(got, x, g), expected, f"{algorithm} {how}")
        short = max_pool2d(x, algorithm=algorithm, **how)  # which keeps int32 indices
        assert_same_bits(short, want, f"{algorithm} {how}")
        assert_equal(torch.autograd.grad(short, x, g), expected, f"{algorithm} {how}")


def test_indices_for_derivatives_alone(device):
    """They are int32, and serve both modes; derivatives take any indices of int64 or int32."""
    ops, how = torch.ops.torch_patterns, ([3, 2], [2, 1], [1, 0], [1, 2], True)
    for algorithm in algorithms(device):
        x, tangent = integers(2, 3, 9, 8, device=device), integers(2, 3, 9, 8, device=device)
        want, index = ops.max_pool2d(x, *how, algorithm)
        values, indices = ops.max_pool2d(x, *how, algorithm, False)
        assert index.dtype == torch.int64 and indices.dtype == torch.int32
        assert_same_bits((values, indices), (want, index.int()), algorithm)
        _, along = torch.func.jvp(lambda x, a=algorithm: ops.max_pool2d(x, *how, a, False)[0], (x,), (tangent,))
        assert_same_bits(along, tangent.flatten(-2).gather(-1, index.flatten(-2)).view_as(want), algorithm)
        torch.library.opcheck(ops.max_pool2d, (x.double().requires_grad_(), *how, algorithm, False))
        for bad in (-1, 72, -(2**31), 2**31 - 1):  # of no pixel
            wrong = torch.full_like(indices, bad)
            assert not ops.max_pool2d_tangent(x, wrong, *how, algorithm).any()
            assert not ops.max_pool2d_backward(want, wrong, [9, 8], *how, algorithm).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_of_wide_rows(device, dtype):
    """Rows beyond a vector, and up to as many windows over a pixel as a loop takes, and more."""
    for (kernel, stride), (shape, last) in itertools.product(
        ((2, 2), (3, 2), (3, 1), (4, 1), (5, 1), (5, 2), (8, 2), (9, 2), (7, 3), (4, 4), (5, 5)),
        (((3, 2, 21, 37), False), ((2, 3, 18, 33), True), ((1, 8, 9, 40), False)),
    ):
        x = torch.randint(-9, 10, shape).to(device, dtype)
        x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
        for padding in {0, kernel // 2}:
            want = F.max_pool2d(x, kernel, stride, padding)
            g = torch.randint(-2, 3, want.shape).to(device, dtype)
            (expected,) = torch.autograd.grad(want, x, g)
            (grad,) = torch.autograd.grad(max_pool2d(x, kernel, stride, padding), x, g)
            assert_same_bits(grad + 0, expected + 0, f"{kernel} {stride} {padding} {shape}")


@pytest.mark.parametrize("count_include_pad", [False, True])
def test_every_average_is_as_in_torch(count_include_pad, device):
    for algorithm, how, (shape, last) in itertools.product(algorithms(device), windows(), LAYOUTS):
        if how["dilation"] == 2:
            continue
        how = {key: value for key, value in how.items() if key != "dilation"}
        x = integers(*shape, device=device, dtype=torch.float64)
        x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
        # torch's CPU: on CUDA torch 2.11 gives wrong gradients for overlapping windows of channels_last images.
        there = x.detach().cpu().requires_grad_()
        want = F.avg_pool2d(there, count_include_pad=count_include_pad, **how)
        got = avg_pool2d(x, count_include_pad=count_include_pad, algorithm=algorithm, **how)
        g = integers(*got.shape, device=device, dtype=torch.float64)
        assert_same_bits(got.cpu(), want, f"{algorithm} {how}")
        assert got.stride() == want.stride()
        (ours,), (theirs,) = torch.autograd.grad(got, x, g), torch.autograd.grad(want, there, g.cpu())
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-14, atol=1e-14)


def test_the_last_window_begins_inside_or_in_the_padding_before(device):
    x = -torch.ones(1, 6, 7, device=device)
    for algorithm in algorithms(device):
        y = max_pool2d(x, 1, 2, ceil_mode=True, algorithm=algorithm)
        assert y.shape == (1, 3, 4) and y.eq(-1).all()
        mean = avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False, algorithm=algorithm)
        assert mean.eq(-1).all(), "a divisor that counts what is not there"


# ---- maxima


def test_padding_is_never_the_greatest(device):
    for algorithm, dtype in itertools.product(algorithms(device), INTEGERS + FLOATS):
        lowest = -INF if dtype.is_floating_point else torch.iinfo(dtype).min
        y, indices = max_pool2d(
            image([[lowest] * 3] * 3, device, dtype), 3, 2, 1, return_indices=True, algorithm=algorithm
        )
        assert y.tolist() == [[[lowest] * 2] * 2], (algorithm, dtype)
        assert indices.tolist() == [[[0, 1], [3, 4]]], "the first pixel of the window"


def test_nan_is_greatest_and_the_first_is_taken(device):
    for algorithm, dtype in itertools.product(algorithms(device), FLOATS):
        x = image([[1, NAN, 7, 2], [3, NAN, INF, 9]], device, dtype, requires_grad=True)
        y, indices = max_pool2d(x, (2, 3), 1, return_indices=True, algorithm=algorithm)
        assert y.isnan().all() and indices.tolist() == [[[1, 1]]]
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[[0, 2, 0, 0], [0, 0, 0, 0]]]


def test_gradients_of_windows_that_overlap_add_up(device):
    for algorithm in algorithms(device):
        x = image([[0, 0, 0], [0, 5, 0], [0, 0, 0]], device, requires_grad=True)
        y = max_pool2d(x, 2, 1, algorithm=algorithm)
        grads = torch.autograd.grad(y, x, image([[1, 10], [100, 1000]], device))[0]
        assert grads.tolist() == [[[0, 0, 0], [0, 1111, 0], [0, 0, 0]]]


def test_dilation_with_padding_before(device):
    for algorithm in algorithms(device):
        y, indices = max_pool2d(
            image([[1.0, 9, 2, 8, 3, 7, 4, 6, 5]], device),
            (1, 2),
            1,
            (0, 1),
            (1, 2),
            return_indices=True,
            algorithm=algorithm,
        )
        assert y.tolist() == [[[9, 2, 9, 3, 8, 4, 7, 5, 6]]]
        assert indices.tolist() == [[[1, 2, 1, 4, 3, 6, 5, 8, 7]]]


def test_the_indices_undo_the_pooling(device):
    for last in (False, True):
        x = torch.randn(2, 3, 6, 8, device=device)
        x = x.to(memory_format=torch.channels_last) if last else x
        y, indices = max_pool2d(x, 2, return_indices=True)
        back = F.max_unpool2d(y, indices, 2)
        assert_same_bits(max_pool2d(back.abs(), 2), y.abs())
        assert_same_bits(back[back != 0], x[back != 0])


def test_an_index_outside_its_window_passes_nothing_on(device):
    """Whatever the indices hold, nothing outside the tensors is touched; forward and backward agree on what counts."""
    bad = torch.tensor([[[-1, 16], [2**62, 15]]], device=device)
    ops, x = torch.ops.torch_patterns, torch.arange(1.0, 17, device=device).reshape(1, 4, 4)
    for algorithm in algorithms(device):
        y = ops.max_pool2d_tangent(x, bad, [2, 2], algorithm=algorithm)
        assert y.tolist() == [[[0, 0], [0, 16]]]
        back = ops.max_pool2d_backward(torch.ones_like(y), bad, [4, 4], [2, 2], algorithm=algorithm)
        assert back.sum() == 1 and back[0, 3, 3] == 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_indices_anywhere_in_many_maps(layout, device):
    """Pixels of other windows, other rows and beyond the map: what counts is the same for all algorithms."""
    torch.manual_seed(5)
    extremes = torch.tensor([-1, -(2**63), 2**63 - 1, 2**31, -(2**31)])
    for windows in (([3, 3], [2, 2], [1, 1]), ([2, 2], [2, 2]), ([3, 2], [1, 1], [1, 0], [2, 1]), ([2, 3], [3, 4])):
        y = max_pool2d(torch.zeros(6, 3, 9, 11), *windows)
        indices = torch.randint(0, 99, y.shape)
        indices.view(-1)[::17] = extremes.repeat(indices.numel())[: len(indices.view(-1)[::17])]
        grad = integers(*y.shape).contiguous(memory_format=layout)
        for index in (indices, indices.int()):
            index = index.contiguous(memory_format=layout)
            back = torch.ops.torch_patterns.max_pool2d_backward
            want = back(grad, index, [9, 11], *windows, algorithm="sequential")
            assert want.count_nonzero() > 0
            for algorithm in algorithms(device):
                got = back(grad.to(device), index.to(device), [9, 11], *windows, algorithm=algorithm)
                assert_equal(got, want)


# ---- means


def test_half_types_are_summed_in_float32(device):
    x = torch.full((1, 4, 4), 60000.0, dtype=torch.float16, device=device)
    for algorithm in algorithms(device):
        assert avg_pool2d(x, 4, algorithm=algorithm).item() == 60000.0
        zero = torch.zeros(1, dtype=torch.float16, device=device)
        assert subsample2d(x, zero, 4, "relu", algorithm=algorithm).item() == 60000.0
    ones = torch.ones(1, 64, 64, dtype=torch.bfloat16, device=device)
    assert avg_pool2d(ones, 64).item() == 1.0


def test_subsampling_is_exact_on_integers(device):
    """Mean, bias and a piecewise linear activation, and the gradients of the same: no rounding at all."""
    for algorithm, (name, f), last in itertools.product(
        algorithms(device), {"identity": lambda k: k, "relu": torch.relu, "sign": torch.sign}.items(), (False, True)
    ):
        x = 4 * integers(3, 5, 6, 8, device=device)
        x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
        bias = integers(5, device=device).requires_grad_()
        got = subsample2d(x, bias, 2, name, algorithm=algorithm)
        want = f(F.avg_pool2d(x, 2) + bias[:, None, None])
        g = 4 * integers(*got.shape, device=device)
        assert_equal(got, want)
        assert got.stride() == want.stride()
        assert_equal(
            torch.autograd.grad(got, (x, bias), g), torch.autograd.grad(want, (x, bias), g), f"{algorithm} {name}"
        )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_of_subsampling_by_windows_of_any_size(layout, device):
    """Small windows and ones of a whole map; many maps, and more elements of one than a block takes."""
    for (n, maps, h, w), (kh, kw) in itertools.product(
        [(3, 6, 4, 5), (2, 70, 1, 3), (300, 2, 3, 3)], [(1, 1), (2, 2), (3, 2), (4, 4), (5, 7), (33, 16)]
    ):
        x = integers(n, maps, h * kh, w * kw, device=device).to(memory_format=layout).requires_grad_()
        bias = integers(maps, device=device).requires_grad_()
        y = subsample2d(x, bias, (kh, kw), "relu")
        g = integers(*y.shape, device=device)
        got, got_bias = torch.autograd.grad(y, (x, bias), g)
        want = g.double() * (y > 0)
        assert_equal(got_bias, want.sum((0, 2, 3)), f"{n} {maps} {kh} {kw}")
        spread = want.repeat_interleave(kh, 2).repeat_interleave(kw, 3) / (kh * kw)
        torch.testing.assert_close(got.double(), spread, rtol=2e-7, atol=0)


def test_subsampling_of_the_book(device):
    """Fig. 16.7, loop by loop, in float64."""
    x, bias = torch.randn(6, 8, 8, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    want = torch.empty(6, 4, 4, dtype=torch.float64)
    for m, h, w in itertools.product(range(6), range(4), range(4)):
        k = (
            sum(x[m, 2 * h + p, 2 * w + q].item() / 4 for p, q in itertools.product(range(2), repeat=2))
            + bias[m].item()
        )
        want[m, h, w] = (1 - math.exp(-k)) / (1 + math.exp(-k))
    got = subsample2d(x.to(device), bias.to(device))
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-15)


def test_bias_gradient_does_not_lose_small_terms(device):
    """2^24 + 2^16 ones: one running float32 sum would stop at 2^24."""
    n = 2**16
    grad = torch.ones(n + 1, 1, 1, 1, device=device)
    grad[0] = 2.0**24
    for algorithm in ("auto", *registry.algorithms("subsample2d", device)):
        _, bias = torch.ops.torch_patterns.subsample2d_backward(grad, grad, [1, 1], "identity", algorithm)
        assert abs(bias.item() - (2**24 + n)) <= 256, algorithm  # only its own chunk is added to the large sum


# ---- sizes


def test_more_maps_than_a_grid_has_rows(device):
    x = integers(65_537, 1, 2, 2, device=device)
    assert_equal(max_pool2d(x, 2).flatten(), x.amax((1, 2, 3)))
    assert_equal(avg_pool2d(x, 2).flatten(), x.mean((1, 2, 3)))


def test_a_window_larger_than_the_map_hangs_over_in_ceil_mode_only(device):
    x = integers(1, 3, 3, device=device)
    assert_equal(max_pool2d(x, 4, 2, ceil_mode=True).flatten(), x.amax((1, 2)))
    with pytest.raises(RuntimeError, match="4 pixels.*does not fit into 3"):
        max_pool2d(x, 4, 2)
