"""Convolutions by Winograd's algorithm, whose transforms mix neighbouring pixels: wide layers, what is not finite."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from common import EACH_DEVICE, integers

from torch_patterns import conv2d, conv2d_dgrad, conv2d_wgrad, registry
from torch_patterns.testing import assert_equal
from torch_patterns.testing.spec import FLOATS

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
NAN, INFINITY = float("nan"), float("inf")


def rungs(device: str) -> list[str]:
    return ["auto", *(a for a in ("threaded", "winograd") if a in registry.algorithms("conv2d", device))]


@pytest.mark.parametrize("channels, maps", [(32, 48), (130, 129)])
def test_not_finite_in_a_wide_layer(channels, maps, device):
    """Transforms of tiles may not spread it, nor touch the bits of any other output."""
    x, weight = torch.randn(2, channels, 9, 11), torch.randn(maps, channels, 3, 3)
    x, weight, grad = (t.to(device) for t in (x, weight, torch.randn(2, maps, 9, 11)))
    for value, algorithm in itertools.product((NAN, INFINITY, -3e38), rungs(device)):
        for forward in (True, False):
            bad = (x if forward else grad).clone()
            want = torch.zeros(bad.shape[0], 1, 9, 11, dtype=torch.bool)
            bad[1, 5, 4, 6] = value
            want[1, 0, 3:6, 5:8] = True
            if forward:
                run = lambda t: conv2d(t, weight, padding=1, algorithm=algorithm)  # noqa: E731, B023
            else:
                run = lambda t: conv2d_dgrad(t, weight, x.shape, padding=1, algorithm=algorithm)  # noqa: E731, B023
            got, finite = run(bad).cpu(), run(x if forward else grad).cpu()
            inside = want.expand(got.shape)
            assert_equal(got[~inside], finite[~inside], f"{value} {algorithm} {forward}")
            if abs(value) == 3e38:  # the products that fit in float32 are not lost
                image = x if forward else grad
                image = image.cpu().double()
                image[1, 5, 4, 6] = value
                w = weight.cpu().double()
                exact = F.conv2d(image, w, padding=1) if forward else F.conv_transpose2d(image, w, padding=1)
                fits = exact.abs() < 3e38
                assert got[fits].isfinite().all()
            else:
                assert not got[inside].isfinite().any()


# Images, channels, maps, rows, columns, padding, groups. The large ones are "winograd" for "auto" on CUDA, and those of
# more than 100 channels and maps are stored as transformed images.
LAYERS = [
    (1, 33, 65, 3, 3, 0, 1),
    (2, 40, 37, 5, 8, 1, 1),
    (3, 66, 128, 7, 4, 2, 2),
    (2, 34, 34, 1, 6, (1, 3), 1),
    (17, 35, 70, 2, 2, 1, 1),
    (1, 8, 9, 6, 7, 1, 1),
]
LARGE_LAYERS = [
    (4, 64, 64, 33, 35, 1, 1),
    (8, 130, 64, 13, 26, 0, 2),
    (33, 128, 192, 13, 15, 1, 1),
    (64, 256, 384, 9, 6, 0, 2),
    (8, 511, 130, 7, 12, (2, 0), 1),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_filters(layer, device):
    check_filters(layer, device, rungs(device))


@pytest.mark.parametrize("layer", LARGE_LAYERS, ids=str)
def test_filters_of_large_layers(layer, device):
    check_filters(layer, device, rungs(device) if device == "cuda" else ["auto"])


def check_filters(layer: tuple, device: str, algorithms: list[str]) -> None:
    """Gradients of filters are exact in both layouts, at any address."""
    n, c, m, h, w, padding, groups = layer
    weight = torch.zeros(m, c // groups, 3, 3, dtype=torch.float64, requires_grad=True)
    x = integers(n, c, h, w)
    y = F.conv2d(x.double(), weight, padding=padding, groups=groups)
    grad = integers(*y.shape)
    (want,) = torch.autograd.grad(y, weight, grad.double())
    for algorithm, last, offset in itertools.product(algorithms, (False, True), (0, 1)):
        there = [at_offset(t.to(device), last, offset) for t in (grad, x)]
        got = conv2d_wgrad(*there, 3, padding=padding, groups=groups, algorithm=algorithm)
        assert_equal(got, want, f"{algorithm} {last} {offset}")


def at_offset(x: torch.Tensor, last: bool, offset: int) -> torch.Tensor:
    """A copy in NCHW or channels_last that begins `offset` elements after an aligned address."""
    order = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    back = (0, 3, 1, 2) if last else (0, 1, 2, 3)
    lines = x.permute(order).contiguous()
    memory = torch.empty(lines.numel() + offset, device=x.device)[offset:]
    return memory.copy_(lines.flatten()).view(lines.shape).permute(back)


@pytest.mark.parametrize("value", [NAN, INFINITY, -3e38], ids=str)
@pytest.mark.parametrize("which", ["grad", "x"])
@pytest.mark.parametrize("shape, maps", [((2, 34, 9, 11), 40), ((32, 130, 9, 11), 250)], ids=str)
def test_filters_of_what_is_not_finite(shape, maps, which, value, device):
    """As by the definition, in which padding is an operand: infinities do not become NaN, nor spread."""
    x, grad = integers(*shape), integers(shape[0], maps, 9, 11)
    (x if which == "x" else grad)[1, 5, 0, 6] = value
    columns = F.unfold(F.pad(x, (1, 1, 1, 1)), 3).double()
    want = torch.einsum("nmp,nkp->mk", grad.double().flatten(2), columns).view(maps, shape[1], 3, 3)
    for algorithm in rungs(device):
        got = conv2d_wgrad(grad.to(device), x.to(device), 3, padding=1, algorithm=algorithm).cpu().double()
        if abs(value) == 3e38:  # only sums that float32 cannot hold are infinite
            held = want.abs() < 3.4e38
            assert got[held].isfinite().all(), algorithm
        else:
            assert_equal(got, want, algorithm)


# Images of at least 64 tiles, which is when "auto" uses it on the CPU: channels, maps, padding and groups.
MANY_TILES = [
    ((3, 34, 15, 13), 40, 1, 1),
    ((2, 36, 17, 22), 66, (0, 2), 2),
    ((5, 16, 9, 33), 17, 1, 1),
    ((33, 70, 4, 5), 33, 1, 1),
    ((1, 130, 40, 37), 100, 0, 1),
]


@pytest.mark.parametrize("filters", [torch.contiguous_format, torch.channels_last], ids=["filters", "nhwc_filters"])
@pytest.mark.parametrize("images", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_pass_of_every_layout_is_exact(dtype, images, filters, device):
    for shape, maps, padding, groups in MANY_TILES:
        x, weight = integers(*shape, limit=1).double(), integers(maps, shape[1] // groups, 3, 3, limit=1).double()
        x.requires_grad_(), weight.requires_grad_()
        y = F.conv2d(x, weight, padding=padding, groups=groups)
        g = integers(*y.shape, limit=1).double()
        dx, dw = torch.autograd.grad(y, (x, weight), g)
        there = [t.detach().to(device, dtype) for t in (x, weight, g)]
        x, weight, g = (t.contiguous(memory_format=f) for t, f in zip(there, (images, filters, images), strict=True))
        window = {"padding": padding, "groups": groups}
        assert_equal(conv2d(x, weight, **window).cpu(), y.detach().to(dtype), f"{shape} y")
        assert_equal(conv2d_dgrad(g, weight, x.shape, **window).cpu(), dx.to(dtype), f"{shape} dx")
        assert_equal(conv2d_wgrad(g, x, 3, **window).cpu(), dw.to(dtype), f"{shape} dw")
