"""Gradients of filters from many channels: how the pixels of a batch are divided into slabs, patches and slices."""

import pytest
import torch
import torch.nn.functional as F
from common import EACH_DEVICE, integers

from torch_patterns import conv2d_wgrad
from torch_patterns.testing.spec import FLOATS

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)

LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])

# Images, filters and window. The blocks of a cluster add up few slices, a second kernel many.
PROBLEMS = (
    # 3 x 3 filters: patches of groups of eight pixels in a row, which end with the image or do not.
    ((1, 64, 8, 8), (64, 64, 3, 3), {"padding": 1}),  # one slab
    ((2, 64, 16, 24), (64, 64, 3, 3), {"padding": 1}),
    ((3, 72, 17, 21), (80, 72, 3, 3), {}),
    ((5, 128, 14, 14), (64, 128, 3, 3), {"padding": 1}),
    ((9, 64, 7, 7), (136, 64, 3, 3), {"padding": 1}),  # two images per slab
    ((4, 40, 3, 2), (33, 40, 3, 3), {"padding": 2}),
    ((2, 96, 20, 33), (40, 96, 3, 3), {"padding": (0, 2)}),
    ((3, 64, 13, 12), (64, 64, 3, 3), {"padding": 2, "dilation": 2}),
    ((2, 64, 19, 15), (64, 64, 3, 3), {"padding": (3, 1), "dilation": 4}),
    ((2, 64, 12, 15), (64, 64, 3, 3), {"padding": 1, "dilation": (2, 1)}),
    ((40, 64, 3, 9), (64, 64, 3, 3), {}),  # one row of dy per image, many images
    ((40, 64, 9, 20), (64, 64, 3, 3), {"dilation": 4}),
    ((2, 144, 9, 10), (96, 72, 3, 3), {"padding": 1, "groups": 2}),
    ((3, 70, 11, 9), (50, 70, 3, 3), {"padding": 1}),  # filters that do not begin at multiples of 16 bytes
    ((2, 64, 61, 64), (64, 64, 3, 3), {"padding": 1}),  # many slices
    ((1, 320, 9, 9), (256, 320, 3, 3), {"padding": 1}),  # many tiles
    # Other filters: pixels that follow each other, tap by tap.
    ((3, 64, 15, 14), (64, 64, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 128, 11, 13), (72, 128, 5, 5), {"padding": 2}),
    ((2, 64, 10, 9), (130, 64, 2, 3), {"padding": 1}),
    ((2, 64, 10, 9), (40, 64, 3, 1), {}),
    ((3, 200, 11, 12), (136, 200, 1, 1), {}),
    ((2, 72, 12, 13), (256, 72, 1, 1), {"stride": 2}),
    ((4, 512, 7, 7), (128, 512, 1, 1), {}),
    # Few images and many channels: tiles of few channels.
    ((1, 120, 11, 10), (136, 120, 3, 3), {"padding": 1}),
    ((1, 250, 14, 14), (200, 250, 3, 3), {"padding": 1}),
    ((2, 256, 14, 14), (256, 256, 3, 3), {"padding": 1, "dilation": 2}),  # clusters of two blocks
    ((1, 120, 28, 28), (136, 120, 3, 3), {"padding": 1}),
    ((5, 504, 7, 7), (384, 504, 3, 3), {"padding": 1}),
    ((1, 256, 28, 27), (200, 256, 3, 3), {"padding": 1, "stride": 2}),
    ((3, 384, 13, 14), (512, 384, 3, 3), {"stride": 2}),
    ((1, 1000, 14, 14), (200, 1000, 1, 1), {}),
    ((4, 1024, 13, 14), (256, 1024, 1, 1), {}),  # clusters of three blocks
    ((3, 256, 28, 27), (64, 256, 1, 1), {}),
    ((16, 328, 31, 30), (56, 328, 1, 1), {}),  # few maps of many channels
    ((6, 64, 5, 12), (64, 64, 3, 3), {"padding": 1}),  # images of an odd number of rows, in pairs
    # More tiles than blocks: one after another.
    ((1, 800, 5, 5), (720, 800, 3, 3), {"padding": 1}),
    ((2, 796, 4, 5), (720, 796, 3, 3), {"padding": 1}),
    ((1, 1024, 4, 5), (1100, 512, 3, 3), {"padding": 1, "groups": 2}),
    ((2, 2048, 3, 3), (1100, 2048, 1, 1), {}),
    # 5 x 5 filters have patches, too.
    ((1, 576, 6, 7), (256, 576, 5, 5), {"padding": 2}),
    ((9, 64, 27, 27), (64, 64, 5, 5), {"padding": 2}),
    ((2, 96, 20, 33), (136, 96, 5, 5), {"padding": (0, 3)}),
    ((2, 48, 15, 14), (40, 48, 5, 5), {"padding": 4, "dilation": 2}),
)
# Those that need the large tiles and many slices.
MANY_PIXELS = (
    ((64, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    ((64, 128, 28, 28), (128, 128, 3, 3), {"padding": 1}),
    ((64, 256, 14, 14), (256, 256, 3, 3), {"padding": 1}),
    ((16, 1280, 8, 8), (1280, 1280, 3, 3), {"padding": 1}),
    ((64, 128, 56, 56), (128, 128, 3, 3), {"padding": 1, "stride": 2}),
    ((64, 512, 14, 14), (512, 512, 3, 3), {"padding": 1, "stride": 2}),
    ((64, 96, 28, 28), (192, 96, 5, 5), {"padding": 2}),
    ((4, 2560, 8, 8), (1280, 2560, 3, 3), {"padding": 1}),
    ((64, 64, 56, 56), (256, 64, 1, 1), {}),
    ((64, 256, 56, 56), (64, 256, 1, 1), {}),
    ((64, 512, 28, 28), (256, 512, 1, 1), {}),
    ((64, 1024, 14, 14), (256, 1024, 1, 1), {}),
)


@LAYOUTS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_filter_gradients(dtype, layout, device):
    for shape, filters, window in PROBLEMS + (MANY_PIXELS if device != "cpu" and dtype.itemsize == 2 else ()):
        x, weight = (integers(*s, limit=1).to(device).double() for s in (shape, filters))
        weight.requires_grad_()
        y = F.conv2d(x, weight, None, **window)
        g = integers(*y.shape, limit=1).to(device).double()
        (want,) = torch.autograd.grad(y, weight, g)
        g, x = (t.to(dtype).contiguous(memory_format=layout) for t in (g, x))
        got = conv2d_wgrad(g, x, filters[2:], **window)
        assert torch.equal(got, want.round().to(dtype)), (shape, filters, window)  # torch may have multiplied spectra


@LAYOUTS
@pytest.mark.parametrize("odd", [float("inf"), float("nan")], ids=str)
def test_odd_elements_reach_only_the_taps_that_read_them(odd, layout, device):
    """Elements at the edges of x are beside pixels of a slab that are beyond dy."""
    for shape, filters, window in (*PROBLEMS[:14], PROBLEMS[23], PROBLEMS[-1]):
        x, g = integers(*shape, limit=1), integers(*F.conv2d(torch.zeros(shape), torch.zeros(filters), **window).shape)
        for where in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
            x[-1, 3, where[0], where[1]] = odd
            want = conv2d_wgrad(g.double(), x.double(), filters[2:], **window, algorithm="sequential").half()
            there = (t.to(device, torch.half).contiguous(memory_format=layout) for t in (g, x))
            got = conv2d_wgrad(*there, filters[2:], **window).cpu()
            assert torch.equal(got.nan_to_num(9, 7, 5), want.nan_to_num(9, 7, 5)), (shape, filters, window, where)
        g[0, 5, 0, 0] = odd
        want = conv2d_wgrad(g.double(), x.double(), filters[2:], **window, algorithm="sequential").half()
        there = (t.to(device, torch.half).contiguous(memory_format=layout) for t in (g, x))
        got = conv2d_wgrad(*there, filters[2:], **window).cpu()
        assert torch.equal(got.nan_to_num(9, 7, 5), want.nan_to_num(9, 7, 5)), (shape, filters, window)


@LAYOUTS
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
def test_bits_depend_neither_on_the_run_nor_on_addresses(dtype, layout, device):
    problems = [*(PROBLEMS[i] for i in (3, 14, 20, 24)), ((3, 64, 8, 6), (32, 64, 1, 1), {})]
    for shape, filters, window in problems:
        random = torch.Generator().manual_seed(sum(shape))
        x = torch.randn(shape, generator=random)
        g = torch.randn(F.conv2d(x, torch.zeros(filters), **window).shape, generator=random)
        x, g = (t.to(device, dtype).contiguous(memory_format=layout) for t in (x, g))
        want = conv2d_wgrad(g, x, filters[2:], **window)
        for offset in (0, 1, 2, 4):
            moved = [t.new_empty(t.numel() + offset)[offset:].as_strided(t.shape, t.stride()).copy_(t) for t in (g, x)]
            assert torch.equal(conv2d_wgrad(*moved, filters[2:], **window), want), (shape, filters, window, offset)
