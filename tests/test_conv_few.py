"""Convolution from few channels and to few maps: first layers with a stride, last layers that make an image; and of few
and small images."""

import pytest
import torch
import torch.nn.functional as F
from common import EACH_DEVICE, integers

from torch_patterns import conv2d, conv2d_dgrad, conv2d_wgrad
from torch_patterns.testing import assert_equal
from torch_patterns.testing.spec import FLOATS

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)

# Images, filters, stride, padding, groups.
LAYERS = (
    ((2, 3, 37, 45), (64, 3, 7, 7), 2, 3, 1),
    ((3, 3, 31, 34), (32, 3, 3, 3), 2, 1, 1),
    ((1, 3, 57, 61), (24, 3, 11, 11), 4, 2, 1),
    ((2, 40, 21, 33), (3, 40, 7, 7), 1, 3, 1),
    ((2, 24, 19, 18), (4, 24, 9, 5), 1, 4, 1),
    ((2, 1, 40, 33), (20, 1, 5, 5), 3, 2, 1),
    ((2, 8, 23, 29), (66, 4, 3, 3), 2, 0, 2),
    ((2, 12, 16, 16), (6, 2, 2, 2), 2, 1, 6),
    ((5, 9, 30, 14), (100, 9, 3, 2), 2, 1, 1),
    ((2, 16, 12, 12), (17, 16, 3, 3), 1, 1, 1),
    ((1, 2, 9, 9), (130, 2, 1, 1), 2, 0, 1),
    ((2, 3, 8, 8), (40, 3, 3, 3), 8, 1, 1),  # most pixels of the image gradient have no tap
    ((2, 3, 1, 1), (20, 3, 1, 1), 4, 0, 1),  # images and maps of one pixel
    ((5, 6, 3, 2), (200, 3, 1, 1), 4, 0, 2),
    ((2, 9, 6, 4), (33, 9, 3, 3), 4, 0, 1),
    ((5, 2, 21, 36), (33, 2, 3, 3), 1, 1, 1),  # a window of just less than 48 KB
)
RUNGS = ("auto", "register_tiled", "implicit_gemm")


def rungs(device: str) -> tuple[str, ...]:
    return RUNGS if device == "cuda" else ("auto",)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_all_passes(dtype, layout, device):
    random = torch.Generator().manual_seed(3)
    integers = lambda *size: torch.randint(-2, 3, size, generator=random).double()  # noqa: E731
    for size, filters, stride, padding, groups in LAYERS:
        x, weight, bias = integers(*size).requires_grad_(), integers(*filters).requires_grad_(), integers(filters[0])
        y = F.conv2d(x, weight, bias, stride, padding, 1, groups)
        grad = integers(*y.shape)
        want = y.detach(), *torch.autograd.grad(y, (x, weight), grad)
        there = [t.detach().to(device, dtype) for t in (x, weight, bias, grad)]
        there[0], there[3] = (t.contiguous(memory_format=layout) for t in (there[0], there[3]))
        for rung in rungs(device):
            got = (
                conv2d(*there[:3], stride, padding, 1, groups, algorithm=rung),
                conv2d_dgrad(there[3], there[1], size, stride, padding, 1, groups, algorithm=rung),
                conv2d_wgrad(there[3], there[0], filters[2:], stride, padding, 1, groups, algorithm=rung),
            )
            for name, a, b in zip(("fprop", "dgrad", "wgrad"), got, want, strict=True):
                assert torch.equal(a.cpu(), b.to(dtype)), f"{name} {rung} {size} {filters}"


@pytest.mark.parametrize("odd", [float("inf"), float("nan")], ids=str)
def test_an_odd_weight_reaches_only_the_pixels_it_read(odd, device):
    """The image gradient with a stride, to three channels: products that do not exist are not added."""
    random = torch.Generator().manual_seed(4)
    size, stride, padding = (2, 3, 33, 29), 2, 1
    weight = torch.randint(-2, 3, (40, 3, 5, 5), generator=random).double()
    weight[7, 1, 2, 2] = odd
    grad = torch.randint(1, 3, F.conv2d(torch.zeros(size).double(), weight, None, stride, padding).shape).double()
    want = conv2d_dgrad(grad, weight, size, stride, padding, algorithm="sequential")
    assert 0 < want.isfinite().sum() < want.numel()
    for rung in rungs(device):
        got = conv2d_dgrad(grad.to(device), weight.to(device), size, stride, padding, algorithm=rung).cpu()
        assert torch.equal(got.isfinite(), want.isfinite()), rung
        assert torch.equal(got[got.isfinite()], want[want.isfinite()]), rung
        got = conv2d_dgrad(grad.float().to(device), weight.float().to(device), size, stride, padding, algorithm=rung)
        assert torch.equal(got.cpu().isfinite(), want.isfinite()), rung


# Few or small images and many channels, for which Hopper has tiles of 64 pixels: all of an image, some rows of one, the
# pixels of several ones under one tap, and with strides; half or all of a block of 128 maps.
SMALL = (
    ((1, 256, 7, 7), (200, 256, 3, 3), {"padding": 1}),
    ((3, 128, 14, 9), (136, 128, 3, 3), {"padding": 1}),
    ((2, 512, 5, 6), (72, 512, 1, 1), {}),
    ((1, 192, 15, 14), (64, 192, 3, 3), {"stride": 2, "padding": 1}),
    ((2, 128, 10, 10), (128, 64, 5, 5), {"groups": 2, "padding": 2}),
    ((2, 72, 12, 13), (256, 72, 1, 1), {"stride": 2}),
)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_small_batches(dtype, layout, device):
    """All passes of the default, with a bias; then with an infinite weight, as the textbook's algorithm."""
    for shape, filters, window in SMALL:
        x, weight, bias = leaves = [
            integers(*size, limit=1).double().requires_grad_() for size in (shape, filters, filters[:1])
        ]
        y = F.conv2d(*leaves, **window)
        g = integers(*y.shape, limit=1).double()
        want = [y.detach(), *torch.autograd.grad(y, leaves[:2], g)]
        images, maps = (t.detach().to(device, dtype).to(memory_format=layout) for t in (x, g))
        weight, bias = weight.detach().to(device, dtype).to(memory_format=layout), bias.detach().to(device, dtype)
        got = (
            conv2d(images, weight, bias, **window),
            conv2d_dgrad(maps, weight, shape, **window),
            conv2d_wgrad(maps, images, filters[2:], **window),
        )
        assert_equal(got, want, f"{shape} {filters} {window}")
        weight[3, 1] = float("inf")
        odd = (conv2d_dgrad(maps, weight, shape, **window, algorithm=a) for a in ("auto", "direct"))
        assert_equal(*odd, f"{shape} {filters} {window}")
