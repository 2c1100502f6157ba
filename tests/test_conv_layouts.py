"""Convolution of channels-last images, and of both layouts by filters of 1 x 1, which have kernels of their own."""

import pytest
import torch
import torch.nn.functional as F
from common import EACH_DEVICE

from torch_patterns import conv2d, conv2d_dgrad, conv2d_wgrad
from torch_patterns.testing import assert_equal
from torch_patterns.testing.spec import FLOATS

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)


def test_channels_last_is_read_as_it_lies(device):
    """Every pass gives what it gives map by map: few channels, groups, one pixel, padding, strides, dilation."""
    for c, m, groups, size, kernel, stride, padding, dilation in (
        (3, 20, 1, (9, 11), 3, 1, 1, 1),
        (4, 6, 2, (8, 7), 3, 2, 1, 1),
        (5, 5, 5, (6, 20), 3, 1, 1, 1),
        (6, 4, 2, (1, 1), 1, 1, 0, 1),
        (3, 40, 1, (12, 10), 5, 2, 2, 2),
        (8, 16, 1, (5, 33), 1, 3, 0, 1),
        (1, 3, 1, (1, 9), 1, 1, 0, 1),
    ):
        x = torch.randint(-5, 6, (2, c, *size)).to(device, torch.float32)
        w = torch.randint(-5, 6, (m, c // groups, kernel, kernel)).to(device, torch.float32)
        found = []
        for layout in (torch.contiguous_format, torch.channels_last):
            leaves = x.clone(memory_format=layout).requires_grad_(), w.clone().requires_grad_()
            y = conv2d(*leaves, None, stride, padding, dilation, groups)
            grad = (torch.arange(y.numel(), device=device) % 7 - 3).view(y.shape).to(y.dtype)
            found.append((y, *torch.autograd.grad(y, leaves, grad.contiguous(memory_format=layout))))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), (c, m, groups, size)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_filters_of_one_pixel(dtype, device):
    """Of maps that fill vectors and of maps that do not, through more channels than a panel holds."""
    random = torch.Generator().manual_seed(11)
    integers = lambda *size: torch.randint(-2, 3, size, generator=random).double()  # noqa: E731
    for channels, maps, groups in ((3, 5, 1), (40, 34, 2), (300, 16, 1)):
        for height, width in ((1, 1), (4, 4), (7, 17), (15, 15), (7, 7), (16, 33)):
            x, weight, bias = (
                integers(2, channels, height, width),
                integers(maps, channels // groups, 1, 1),
                integers(maps),
            )
            grad = integers(2, maps, height, width)
            y = F.conv2d(x, weight, bias, groups=groups)
            dx = torch.nn.grad.conv2d_input(x.shape, weight, grad, groups=groups)
            for layout in (torch.contiguous_format, torch.channels_last):
                to = lambda t: t.to(device, dtype).contiguous(memory_format=layout)  # noqa: B023, E731
                got = conv2d(to(x), weight.to(device, dtype), bias.to(device, dtype), groups=groups)
                assert_equal(got.cpu().double(), y.to(dtype).double(), f"{channels} {height} {layout}")
                got = conv2d_dgrad(to(grad), weight.to(device, dtype), list(x.shape), groups=groups)
                assert_equal(got.cpu().double(), dx.to(dtype).double(), f"{channels} {height} {layout}")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_wide_filters_of_one_pixel(dtype, device):
    """All passes. In half types, the channels begin at multiples of 16, 8 and 2 bytes. A NaN reaches one pixel."""
    random = torch.Generator().manual_seed(12)
    integers = lambda *size: torch.randint(-2, 3, size, generator=random).double()  # noqa: E731
    for channels, maps, size in ((64, 256, (8, 25)), (328, 40, (12, 11)), (136, 130, (5, 9)), (33, 200, (9, 8))):
        x, weight, bias = integers(3, channels, *size), integers(maps, channels, 1, 1), integers(maps)
        grad = integers(3, maps, *size)
        images, filters, shift, outputs = (t.to(device, dtype) for t in (x, weight, bias, grad))
        got = (
            conv2d(images, filters, shift),
            conv2d_dgrad(outputs, filters, list(x.shape)),
            conv2d_wgrad(outputs, images, (1, 1)),
        )
        want = (
            F.conv2d(x, weight, bias),
            torch.nn.grad.conv2d_input(x.shape, weight, grad),
            torch.nn.grad.conv2d_weight(x, weight.shape, grad),
        )
        for g, w in zip(got, want, strict=True):
            assert_equal(g.cpu().double(), w.to(dtype).double(), f"{channels} {maps} {size}")
        images[1, 5, 3, 2] = outputs[1, 7, 3, 2] = float("nan")
        one = torch.zeros(3, 1, *size, dtype=torch.bool)
        one[1, 0, 3, 2] = True
        for g, w in ((conv2d(images, filters, shift), got[0]), (conv2d_dgrad(outputs, filters, list(x.shape)), got[1])):
            assert torch.equal(g.isnan().cpu(), one.expand(g.shape)), f"{channels} {maps} {size}"
            assert_equal(g.nan_to_num(0.0).cpu(), w.cpu().masked_fill(one, 0.0), f"{channels} {maps} {size}")
