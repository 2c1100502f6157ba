"""Convolutions of many channels, and their gradients of images: how the pixels are divided into tiles, and long sums
among blocks."""

import pytest
import torch
import torch.nn.functional as F
from common import EACH_DEVICE, integers

from torch_patterns import conv2d, conv2d_dgrad
from torch_patterns.testing.spec import FLOATS

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)

LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])

# Images, filters and window.
PROBLEMS = (
    # Few pixels and long sums, which blocks of a cluster divide: of channels in fprop, or of maps in dgrad.
    ((1, 512, 7, 7), (72, 512, 3, 3), {"padding": 1}),
    ((1, 72, 7, 7), (512, 72, 3, 3), {"padding": 1}),
    ((2, 256, 6, 5), (200, 256, 3, 3), {"padding": (1, 0)}),
    ((1, 576, 4, 4), (40, 576, 1, 1), {}),
    ((1, 200, 9, 8), (130, 200, 5, 5), {"padding": 2}),
    ((1, 512, 6, 6), (256, 256, 3, 3), {"padding": 1, "groups": 2}),
    ((1, 192, 8, 9), (192, 192, 2, 3), {"padding": 1, "dilation": (3, 2)}),
    ((2, 320, 3, 1), (320, 320, 3, 3), {"padding": 2}),
    # Runs of pixels that cross rows and images; with a stride, fprop has no other tiles.
    ((5, 320, 5, 9), (96, 320, 3, 3), {"padding": 1, "stride": 2}),
    ((9, 64, 8, 8), (136, 64, 3, 3), {"padding": 1}),
    ((7, 96, 11, 4), (64, 96, 1, 1), {"stride": (1, 3)}),
    ((6, 64, 5, 5), (64, 64, 3, 3), {"padding": 3, "dilation": 2}),
    ((3, 100, 13, 15), (70, 100, 3, 3), {"padding": 1}),  # filters and pixels not at multiples of 16 bytes
    ((33, 40, 2, 2), (33, 40, 3, 3), {"padding": 1}),
    ((5, 64, 1, 6), (64, 64, 3, 3), {"padding": 1, "stride": 2}),  # one row, so dgrad has one phase of rows
    ((9, 64, 1, 1), (64, 64, 3, 3), {"padding": 1, "stride": (2, 3)}),
)
# Those that need the large tiles.
MANY_PIXELS = (
    ((64, 128, 28, 28), (128, 128, 3, 3), {"padding": 1}),
    ((16, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    ((64, 256, 16, 16), (256, 256, 3, 3), {"padding": 1}),
    ((64, 256, 14, 14), (256, 256, 3, 3), {"padding": 1}),
    ((16, 192, 24, 24), (192, 192, 3, 3), {"padding": 1}),
    ((16, 1280, 8, 8), (1280, 1280, 3, 3), {"padding": 1}),
    ((16, 72, 61, 58), (136, 72, 3, 3), {"padding": (0, 1)}),
    ((32, 256, 27, 28), (128, 256, 3, 3), {"padding": 1, "stride": 2}),
    ((8, 128, 100, 90), (200, 128, 1, 1), {"stride": 2}),
    ((16, 192, 61, 57), (96, 192, 1, 1), {}),  # filters that stay in shared memory from tile to tile
    ((32, 72, 55, 56), (40, 72, 1, 1), {}),
    ((4, 640, 32, 32), (640, 320, 3, 3), {"padding": 1, "groups": 2}),
)


def double_results(x, weight, bias, window):
    """The results of fprop and dgrad in float64, by torch, and the gradient that dgrad reads. All are integers."""
    images, filters = x.double().requires_grad_(), weight.double()
    y = F.conv2d(images, filters, bias.double(), **window)
    g = integers(*y.shape, limit=1).to(x.device).double()
    return y.detach(), g, torch.autograd.grad(y, images, g)[0]


@LAYOUTS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_convolutions_and_gradients_of_images(dtype, layout, device):
    for shape, filters, window in PROBLEMS + (MANY_PIXELS if device != "cpu" and dtype.itemsize == 2 else ()):
        x, weight, bias = (integers(*s, limit=1).to(device) for s in (shape, filters, filters[:1]))
        y, g, dx = double_results(x, weight, bias, window)
        x, weight, g = (t.to(dtype).contiguous(memory_format=layout) for t in (x, weight, g))
        got = conv2d(x, weight, bias.to(dtype), **window)
        assert torch.equal(got, y.to(dtype)), (shape, filters, window)
        got = conv2d_dgrad(g, weight, shape, **window)
        assert torch.equal(got, dx.to(dtype)), (shape, filters, window)


@LAYOUTS
@pytest.mark.parametrize("odd", [float("inf"), float("nan")], ids=str)
def test_odd_elements_reach_only_what_reads_them(odd, layout, device):
    for shape, filters, window in PROBLEMS:
        x, weight = integers(*shape, limit=1), integers(*filters, limit=1)
        g = integers(*F.conv2d(x, weight, **window).shape, limit=1)
        odd_ones = ((x, (-1, 3, 0, -1)), (g, (0, 5, -1, 0)), (weight, (7, 2, 0, 0)), (weight, (1, -1, -1, -1)))
        for array, place in odd_ones:
            before = array[place].clone()
            array[place] = odd
            want = conv2d(x.double(), weight.double(), **window, algorithm="sequential").half()
            want_dx = conv2d_dgrad(g.double(), weight.double(), shape, **window, algorithm="sequential").half()
            there = [t.to(device, torch.half).contiguous(memory_format=layout) for t in (x, weight, g)]
            got, got_dx = conv2d(*there[:2], **window), conv2d_dgrad(there[2], there[1], shape, **window)
            array[place] = before
            for a, b in ((got, want), (got_dx, want_dx)):
                assert torch.equal(a.cpu().nan_to_num(9, 7, 5), b.nan_to_num(9, 7, 5)), (shape, filters, window, place)


@LAYOUTS
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
def test_bits_do_not_depend_on_the_run(dtype, layout, device):
    for shape, filters, window in PROBLEMS[:4] + PROBLEMS[8:10]:
        random = torch.Generator().manual_seed(sum(shape))
        x, weight = torch.randn(shape, generator=random), torch.randn(filters, generator=random)
        g = torch.randn(F.conv2d(x, weight, **window).shape, generator=random)
        x, weight, g = (t.to(device, dtype).contiguous(memory_format=layout) for t in (x, weight, g))
        want, want_dx = conv2d(x, weight, **window), conv2d_dgrad(g, weight, shape, **window)
        for _ in range(3):
            assert torch.equal(conv2d(x, weight, **window), want), (shape, filters, window)
            assert torch.equal(conv2d_dgrad(g, weight, shape, **window), want_dx), (shape, filters, window)
