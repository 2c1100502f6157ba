"""Convolution of channels-last images, and what has kernels of its own in both layouts: filters of 1 x 1, gradients of
images with three channels, and one filter per channel."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from common import EACH_DEVICE

from torch_patterns import algorithms, conv2d, conv2d_dgrad, conv2d_wgrad
from torch_patterns.testing import assert_equal
from torch_patterns.testing.spec import FLOATS

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)


def test_channels_last_is_read_as_it_lies(device):
    """Every pass gives what it gives map by map: few channels, groups, one pixel, padding, strides, dilation, and
    images that are cut between rows or within them, the last part being smaller."""
    for c, m, groups, size, kernel, stride, padding, dilation in (
        (3, 20, 1, (9, 11), 3, 1, 1, 1),
        (4, 6, 2, (8, 7), 3, 2, 1, 1),
        (5, 5, 5, (6, 20), 3, 1, 1, 1),
        (6, 4, 2, (1, 1), 1, 1, 0, 1),
        (3, 40, 1, (12, 10), 5, 2, 2, 2),
        (8, 16, 1, (5, 33), 1, 3, 0, 1),
        (1, 3, 1, (1, 9), 1, 1, 0, 1),
        (3, 20, 1, (61, 90), 3, 1, 1, 1),
        (2, 33, 1, (7, 3100), 5, 2, 2, 1),
        (32, 24, 1, (9, 700), 3, 1, 1, 1),  # Winograd's tasks on a CPU: part of a row of tiles, or ends of two
        (20, 40, 1, (5, 131), 3, 1, 2, 1),
        (48, 34, 2, (6, 7), 3, 1, 0, 1),
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


def in_both_layouts(device, dtype, *tensors):
    for layout in (torch.contiguous_format, torch.channels_last):
        yield layout, [t.to(device, dtype).clone(memory_format=layout) for t in tensors]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_images_of_three_channels(dtype, device):
    """As in the first layer of a network: maps that fill the lanes of a warp or do not, rows of whole and part strips,
    more than one block of rows, every padding."""
    random = torch.Generator().manual_seed(12)
    integers = lambda *size: torch.randint(-2, 3, size, generator=random).double()  # noqa: E731
    for maps, size, padding in (
        (32, (5, 16), 1),
        (32, (37, 36), 1),
        (16, (6, 33), 1),
        (36, (4, 12), (0, 1)),
        (20, (3, 5), (2, 2)),
        (33, (9, 20), (2, 1)),
        (64, (11, 70), (1, 0)),
        (68, (40, 4), (3, 1)),
        (24, (1, 3), (1, 0)),
    ):
        x, weight, bias = integers(2, 3, *size), integers(maps, 3, 3, 3), integers(maps)
        y = F.conv2d(x, weight, bias, padding=padding)
        grad = integers(*y.shape)
        dx = torch.nn.grad.conv2d_input(x.shape, weight, grad, padding=padding)
        dw = torch.nn.grad.conv2d_weight(x, weight.shape, grad, padding=padding)
        for layout, (image, upstream) in in_both_layouts(device, dtype, x, grad):
            filters, where = weight.to(device, dtype), f"{maps} {size} {padding} {layout}"
            assert_equal(conv2d(image, filters, bias.to(device, dtype), padding=padding), y, where)
            assert_equal(conv2d_dgrad(upstream, filters, list(x.shape), padding=padding), dx, where)
            assert_equal(conv2d_wgrad(upstream, image, 3, padding=padding), dw, where)


def test_not_finite_in_images_of_three_channels(device):
    """NaN and infinity reach the products that they are in, and no other."""
    x, weight, grad = torch.ones(1, 3, 9, 17), torch.ones(32, 3, 3, 3), torch.ones(1, 32, 9, 17)
    for value in (float("nan"), float("inf")):
        for _, (image, upstream) in in_both_layouts(device, torch.float32, x, grad):
            # The tap (0, 2) of a map gives column 0 of dx nothing, and row 8 neither.
            filters = weight.to(device, copy=True)
            filters[4, 1, 0, 2] = value
            odd = ~conv2d_dgrad(upstream, filters, list(x.shape), padding=1).isfinite()
            want = torch.zeros_like(odd)
            want[0, 1, :8, 1:] = True
            assert torch.equal(odd, want)
            # The last column of x is read through the taps of columns 1 and 2.
            image[0, 2, 4, 16] = value
            odd = ~conv2d_wgrad(upstream, image, 3, padding=1).isfinite()
            want = torch.zeros_like(odd)
            want[:, 2, :, 1:] = True
            assert torch.equal(odd, want)
            # Every tap meets this value of dy, or a zero of the padding.
            upstream[0, 7, 0, 16] = value
            odd = ~conv2d_dgrad(upstream, weight.to(device), list(x.shape), padding=1).isfinite()
            want = torch.zeros_like(odd)
            want[0, :, :2, 15:] = True
            assert torch.equal(odd, want)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_wide_filters_of_one_pixel(dtype, layout, device):
    """All passes. In half types, the channels begin at multiples of 16, 8 and 2 bytes. A NaN reaches one pixel."""
    random = torch.Generator().manual_seed(12)
    integers = lambda *size: torch.randint(-2, 3, size, generator=random).double()  # noqa: E731
    for channels, maps, size in ((64, 256, (8, 25)), (328, 40, (12, 11)), (136, 130, (5, 9)), (33, 200, (9, 8))):
        x, weight, bias = integers(3, channels, *size), integers(maps, channels, 1, 1), integers(maps)
        grad = integers(3, maps, *size)
        filters, shift = weight.to(device, dtype), bias.to(device, dtype)
        images, outputs = (t.to(device, dtype).contiguous(memory_format=layout) for t in (x, grad))
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


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_images_of_one_pixel(dtype, device):
    """All passes, between images of one pixel, from larger ones to one pixel, and to larger ones. Their channels follow
    each other in every layout, and there are enough of them for boxes of 64 maps."""
    random = torch.Generator().manual_seed(15)
    integers = lambda *size: torch.randint(-2, 3, size, generator=random).double()  # noqa: E731
    for n, channels, maps, groups, size, kernel, padding in (
        (300, 64, 72, 1, 1, 1, 0),
        (5, 128, 256, 2, 1, 1, 0),
        (3, 64, 40, 1, 5, 5, 0),
        (2, 48, 64, 1, 1, 3, 2),
        (2, 33, 36, 1, 1, 1, 0),
    ):
        x, weight, bias = (
            integers(n, channels, size, size),
            integers(maps, channels // groups, kernel, kernel),
            integers(maps),
        )
        y = F.conv2d(x, weight, bias, padding=padding, groups=groups)
        grad = integers(*y.shape)
        images, filters, shift, outputs = (t.to(device, dtype) for t in (x, weight, bias, grad))
        got = (
            conv2d(images, filters, shift, padding=padding, groups=groups),
            conv2d_dgrad(outputs, filters, list(x.shape), padding=padding, groups=groups),
            conv2d_wgrad(outputs, images, kernel, padding=padding, groups=groups),
        )
        want = (
            y,
            torch.nn.grad.conv2d_input(x.shape, weight, grad, padding=padding, groups=groups),
            torch.nn.grad.conv2d_weight(x, weight.shape, grad, padding=padding, groups=groups),
        )
        for g, w in zip(got, want, strict=True):
            assert_equal(g.cpu().double(), w.to(dtype).double(), f"{n} {channels} {maps} {size} {kernel}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_an_infinite_weight_of_many_tiles(dtype, device):
    """Every block computes several tiles of dx again, from the products that exist."""
    grad, weight = torch.ones(20, 40, 64, 64, dtype=dtype), torch.ones(40, 40, 3, 3, dtype=dtype)
    weight[3, 5, 0, 2] = float("inf")  # the tap of row i + 1 and column j - 1 of dy
    for layout in (torch.contiguous_format, torch.channels_last):
        upstream = grad.to(device).contiguous(memory_format=layout)
        dx = conv2d_dgrad(upstream, weight.to(device), [20, 40, 64, 64], padding=1).cpu()
        odd = torch.zeros(dx.shape, dtype=torch.bool)
        odd[:, 5, :63, 1:] = True
        assert torch.equal(dx.isinf(), odd)
        assert (dx[:, :, 1:-1, 1:-1][~odd[:, :, 1:-1, 1:-1]] == 360).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_filters_in_channels_last(dtype, device):
    """They give the same as contiguous ones, also where one weight is NaN or infinite."""
    random = torch.Generator().manual_seed(13)
    integers = lambda *size: torch.randint(-2, 3, size, generator=random).to(device, dtype)  # noqa: E731
    for channels, maps, groups, kernel, stride in (
        (72, 100, 1, 3, 1),
        (160, 96, 2, 3, 2),
        (36, 68, 1, (2, 3), 1),
        (33, 9, 1, 5, 1),  # few maps
        (48, 6, 3, 3, 1),
        (260, 36, 2, 1, 1),  # one tap
        (40, 300, 1, 1, 2),
    ):
        rows, cols = (kernel, kernel) if isinstance(kernel, int) else kernel
        x, weight = integers(2, channels, 13, 12), integers(maps, channels // groups, rows, cols)
        for value in (1.0, float("nan"), float("inf")):
            weight[5, 3, 0, cols - 1] = value
            last = weight.contiguous(memory_format=torch.channels_last)
            for layout in (torch.contiguous_format, torch.channels_last):
                image, where = x.clone(memory_format=layout), f"{channels} {groups} {value} {layout}"
                y, want = (conv2d(image, w, None, stride, 1, 1, groups) for w in (last, weight))
                assert torch.equal(y.nan_to_num(7.0), want.nan_to_num(7.0)), where
                grad = (torch.arange(y.numel(), device=device) % 5 - 2).view(y.shape).to(dtype)
                grad = grad.contiguous(memory_format=layout)
                dx, want = (conv2d_dgrad(grad, w, x.shape, stride, 1, 1, groups) for w in (last, weight))
                assert torch.equal(dx.nan_to_num(7.0), want.nan_to_num(7.0)), where
                assert dx.isfinite().all() == (value == 1.0), where


LINES = (  # images, filters, groups, padding
    ((1, 1, 5, 3000), (1, 1, 3, 5), 1, (1, 2)),
    ((2, 2, 70, 41), (3, 2, 5, 1), 1, (0, 3)),
    ((1, 6, 40, 33), (12, 1, 3, 3), 6, (1, 0)),
    ((3, 4, 1, 700), (9, 4, 1, 1), 1, 0),
    ((2, 3, 50, 64), (8, 3, 7, 7), 1, 3),
    ((40, 1, 28, 28), (6, 1, 5, 5), 1, 2),
)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_few_maps_and_long_rows(dtype, device):
    """All passes, in boxes that divide rows and columns; one infinite or NaN element reaches its own products only."""
    random = torch.Generator().manual_seed(14)
    integers = lambda *size: torch.randint(-2, 3, size, generator=random).double()  # noqa: E731
    for size, filters, groups, padding in LINES:
        x, weight, bias = integers(*size), integers(*filters), integers(filters[0])
        grad = integers(*F.conv2d(x, weight, None, 1, padding, 1, groups).shape)
        for odd in (None, float("inf"), float("nan")):
            for spoilt in (x, weight, grad) if odd else (x,):
                whole = spoilt.flatten()[-1].item()
                spoilt.view(-1)[-1] = odd if odd else whole
                there = [t.to(device, dtype) for t in (x, weight, bias, grad)]
                got = (
                    conv2d(*there[:3], 1, padding, 1, groups),
                    conv2d_dgrad(there[3], there[1], size, 1, padding, 1, groups),
                    conv2d_wgrad(there[3], there[0], filters[2:], 1, padding, 1, groups),
                )
                want = (
                    F.conv2d(x, weight, bias, 1, padding, 1, groups),
                    conv2d_dgrad(grad, weight, size, 1, padding, 1, groups, algorithm="sequential"),
                    conv2d_wgrad(grad, x, filters[2:], 1, padding, 1, groups, algorithm="sequential"),
                )
                for a, b in zip(got, want, strict=True):
                    finite = b.to(dtype).isfinite()
                    assert torch.equal(a.isfinite().cpu(), finite), f"{size} {odd}"
                    assert torch.equal(a.cpu()[finite], b.to(dtype)[finite]), f"{size} {odd}"
                spoilt.view(-1)[-1] = whole


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_channel_per_group_in_channels_last(dtype, device):
    """Channels that fill vectors and that do not, windows that hold only padding, and factors that are not finite."""
    random = torch.Generator().manual_seed(7)
    integers = lambda *size: torch.randint(-2, 3, size, generator=random).to(dtype)  # noqa: E731
    last = lambda t: t.to(device).contiguous(memory_format=torch.channels_last)  # noqa: E731
    for channels, size, kernel, stride, padding, dilation in (
        (5, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1)),
        (41, (12, 7), (3, 4), (2, 3), (1, 2), (1, 1)),
        (16, (20, 5), (4, 2), (1, 3), (4, 4), (3, 1)),
        (8, (3, 17), (3, 5), (3, 2), (0, 5), (1, 2)),
    ):
        window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": channels}
        for value in (None, float("nan"), float("inf")):
            x, weight, bias = integers(2, channels, *size), integers(channels, 1, *kernel), integers(channels)
            grad = integers(*F.conv2d(x.double(), weight.double(), **window).shape)
            for factor in (x, weight, grad) if value else ():
                factor[0, 0, 0, 0] = factor[-1, -1, -1, -1] = value
            where = f"{channels} {window} {value}"
            got = conv2d(last(x), weight.to(device), bias.to(device), **window)
            assert_equal(got.cpu(), conv2d(x, weight, bias, **window, algorithm="sequential"), where)
            got = conv2d_dgrad(last(grad), weight.to(device), x.shape, **window)
            assert_equal(got.cpu(), conv2d_dgrad(grad, weight, x.shape, **window, algorithm="sequential"), where)
            got = conv2d_wgrad(last(grad), last(x), kernel, **window)
            assert_equal(got.cpu(), conv2d_wgrad(grad, x, kernel, **window, algorithm="sequential"), where)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bits_do_not_depend_on_the_address_of_filters(dtype, device):
    """A BLAS chooses its kernel by the alignment of what it reads; the first shape is one for which cuBLAS did."""
    for x_shape, w_shape, stride, dilation in (
        ((1, 3, 13, 8), (2, 3, 4, 2), 2, 3),
        ((2, 8, 9, 12), (16, 8, 3, 3), 1, 1),
        ((3, 64, 7, 7), (32, 64, 1, 1), 1, 1),
    ):
        random = torch.Generator().manual_seed(sum(x_shape))
        normal = lambda shape: torch.randn(shape, generator=random).to(device, dtype)  # noqa: B023, E731
        x, weight = normal(x_shape), normal(w_shape)
        window = {"stride": stride, "dilation": dilation}
        grad = normal(conv2d(x, weight, **window).shape)
        for algorithm in ("auto", *algorithms("conv2d", device)):
            passes = (
                lambda w: conv2d(x, w, **window, algorithm=algorithm),  # noqa: B023
                lambda w: conv2d_dgrad(grad, w, x.shape, **window, algorithm=algorithm),  # noqa: B023
            )
            want = [f(weight) for f in passes]
            for offset in (1, 2, 4, 8):
                moved = weight.new_empty(weight.numel() + offset)[offset:].view(w_shape).copy_(weight)
                for f, y in zip(passes, want, strict=True):
                    assert torch.equal(f(moved), y), (algorithm, offset, x_shape)


def depthwise(size: int, channels: int, stride: int, padding: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """An image, filters and a gradient of small integers, and exact results of all three passes."""
    draw = lambda *shape: torch.randint(-1, 2, shape).double()  # noqa: E731
    x, weight = draw(3, channels, 13, 18), draw(channels, 1, size, size)
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = F.conv2d(*leaves, None, stride, padding, 1, channels)
    grad = draw(*y.shape)
    wants = y.detach(), *torch.autograd.grad(y, leaves, grad)
    return *(t.to(dtype) for t in (x, weight, grad)), *wants


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [3, 5, 7])
def test_one_filter_per_channel(size, stride, layout, device):
    """Vectors of channels that fill warps, that do not, and that are not aligned; padding wider than the filter."""
    for channels, padding, dtype in itertools.product((1, 6, 44, 128), (0, size // 2, size + 1), FLOATS):
        x, weight, grad, *wants = depthwise(size, channels, stride, padding, dtype)
        x, grad = (t.to(device).contiguous(memory_format=layout) for t in (x, grad))
        weight = weight.to(device)
        options = {"stride": stride, "padding": padding, "groups": channels}
        got = (
            conv2d(x, weight, **options),
            conv2d_dgrad(grad, weight, x.shape, **options),
            conv2d_wgrad(grad, x, size, **options),
        )
        for name, found, want in zip(("fprop", "dgrad", "wgrad"), got, wants, strict=True):
            assert_equal(found, want, f"{name} {channels} {padding} {dtype}")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_filter_per_channel_of_large_images(dtype, device):
    """Images that are computed in bands of rows, whose sources overlap or leave rows out."""
    for shape, kernel, window in (
        ((2, 24, 90, 60), (3, 5), {"padding": (1, 2)}),
        ((1, 20, 91, 90), (3, 3), {"padding": 1, "stride": 2}),
        ((1, 9, 130, 70), (3, 3), {"padding": 3, "dilation": (2, 3)}),
        ((3, 17, 64, 70), (1, 2), {"padding": (2, 0), "stride": (3, 1)}),
    ):
        window["groups"] = shape[1]
        x, weight = (torch.randint(-1, 2, size).double().requires_grad_() for size in (shape, (shape[1], 1, *kernel)))
        y = F.conv2d(x, weight, None, **window)
        grad = torch.randint(-1, 2, y.shape).double()
        dx, dw = torch.autograd.grad(y, (x, weight), grad)
        image, filters, dy = (t.detach().to(device, dtype) for t in (x, weight, grad))
        assert_equal(conv2d(image, filters, **window), y.detach(), f"fprop {shape}")
        assert_equal(conv2d_dgrad(dy, filters, shape, **window), dx, f"dgrad {shape}")
        assert_equal(conv2d_wgrad(dy, image, kernel, **window), dw, f"wgrad {shape}")


@pytest.mark.parametrize("stride", [1, 2])
def test_nan_in_one_filter_per_channel(stride, device):
    """Padding is an operand of fprop, where NaN times zero is NaN, but not of dgrad."""
    x, weight, grad, *_ = depthwise(3, 8, stride, 1, torch.float32)
    weight[5, 0, 0, 2] = float("nan")
    want = F.conv2d(F.pad(x, (1, 1, 1, 1)), weight, None, stride, 0, 1, 8).double()
    leaf = x.double().requires_grad_()
    (want_grad,) = torch.autograd.grad(F.conv2d(leaf, weight.double(), None, stride, 1, 1, 8), leaf, grad.double())
    weight = weight.to(device)
    for layout in (torch.contiguous_format, torch.channels_last):
        image, dy = (t.to(device).contiguous(memory_format=layout) for t in (x, grad))
        assert_equal(conv2d(image, weight, stride=stride, padding=1, groups=8), want, f"{layout}")
        got = conv2d_dgrad(dy, weight, x.shape, stride=stride, padding=1, groups=8)
        assert_equal(got, want_grad, f"{layout}")
