"""What is special to convolution: every geometry, padding as an operand, NaN, one rounding, problems in parts."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from common import EACH_DEVICE, integers
from torch.utils._python_dispatch import TorchDispatchMode

from torch_patterns import conv2d, conv2d_dgrad, conv2d_wgrad, registry
from torch_patterns.testing import assert_equal
from torch_patterns.testing.spec import FLOATS

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
NAN = float("nan")
LARGEST = 2**31 - 1  # of stride, padding and dilation


def algorithms(device: str, without: str = "") -> list[str]:
    """All of them, or those without a trait."""
    traits = {r.name: r.traits for r in registry.ladder("conv2d")}
    return [a for a in registry.algorithms("conv2d", device) if without not in traits.get(a, ())]


def within_norms(got, want, x, weight, grad) -> bool:
    """Far less than the norms of two factors, which is all that a transform of the whole image can promise."""
    scales = weight.norm() * x.norm(), weight.norm() * grad.norm(), grad.norm() * x.norm()
    return all((g.cpu() - w).abs().max() <= 1e-5 * s for g, w, s in zip(got, want, scales, strict=True))


def check(x, weight, window, device, only=None) -> None:
    """All passes of all algorithms are exact, or within_norms. The reference is torch in float64."""
    leaves = [t.double().requires_grad_() for t in (x, weight)]
    y = F.conv2d(*leaves, **window)
    grad = integers(*y.shape)
    want = y.detach(), *torch.autograd.grad(y, leaves, grad.double())
    x, weight, grad = (t.to(device) for t in (x, weight, grad))
    for algorithm in only or algorithms(device):
        got = (
            conv2d(x, weight, **window, algorithm=algorithm),
            conv2d_dgrad(grad, weight, x.shape, **window, algorithm=algorithm),
            conv2d_wgrad(grad, x, weight.shape[2:], **window, algorithm=algorithm),
        )
        where = f"{algorithm} {tuple(x.shape)} {tuple(weight.shape)} {window}"
        if algorithm == "fft":
            assert within_norms(got, want, *(t.double().cpu() for t in (x, weight, grad))), where
        else:
            assert_equal(got, want, where)


# ---- geometry

KERNELS = ((1, 1), (2, 2), (3, 3), (5, 5), (7, 7), (1, 7), (7, 1), (9, 10))  # the last: all of the image
STRIDES = (1, 2, 3, (2, 1), 8)
DILATIONS = (1, 2, 3)
# Input channels and maps, for one group, two, and as many as channels.
CHANNELS = {
    "1": ((1, 16, 1), (3, 17, 1), (2, 33, 1)),
    "2": ((2, 30, 2), (4, 6, 2), (2, 62, 2)),
    "c": ((3, 3, 3), (4, 8, 4), (1, 15, 1)),
}


def paddings(kernel):
    return ((0, 0), (1, 1), tuple(k - 1 for k in kernel), kernel, (0, 2))


@pytest.mark.parametrize("groups", CHANNELS)
def test_every_geometry(groups, device):
    """More than 4,000 of them, each in all algorithms and passes."""
    torch.set_num_threads(1)  # all are small
    for kernel, stride, dilation in itertools.product(KERNELS, STRIDES, DILATIONS):
        for padding in paddings(kernel):
            if any(i + 2 * p <= dilation * (k - 1) for i, p, k in zip((9, 10), padding, kernel, strict=True)):
                continue
            window = {"stride": stride, "padding": padding, "dilation": dilation}
            for c, m, g in CHANNELS[groups]:
                check(integers(1, c, 9, 10), integers(m, c // g, *kernel), {**window, "groups": g}, device)


def test_a_pixel_leaves_the_flipped_filter(device):
    """x is 1 at one pixel: y holds, at every output that reads it, the tap by which it does, and nothing else."""
    height, width, weight = 6, 7, torch.arange(1.0, 13.0).view(1, 1, 3, 4)
    x = torch.eye(height * width).view(-1, 1, height, width)
    for stride, pad, dilation in itertools.product((1, 2, 3), (0, 2), (1, 2)):
        want = torch.zeros_like(F.conv2d(x, weight, None, stride, pad, dilation))
        for i, j, p, q in itertools.product(range(height), range(width), range(3), range(4)):
            h, w = i + pad - p * dilation, j + pad - q * dilation
            if h % stride == w % stride == 0 and 0 <= h // stride < want.shape[2] and 0 <= w // stride < want.shape[3]:
                want[i * width + j, 0, h // stride, w // stride] = weight[0, 0, p, q]
        for algorithm in algorithms(device):
            got = conv2d(x.to(device), weight.to(device), None, stride, pad, dilation, algorithm=algorithm)
            if algorithm == "fft":
                assert (got.cpu() - want).abs().max() < 1e-4, f"{stride} {pad} {dilation}"
            else:
                assert_equal(got, want, f"{algorithm} {stride} {pad} {dilation}")


def test_the_passes_are_each_others_transposes(device):
    """<conv(x, w), g> = <x, dgrad(g, w)> = <w, wgrad(g, x)>, exactly, on integers."""
    window = {"stride": (2, 3), "padding": (3, 1), "dilation": (1, 2), "groups": 2}
    x, weight = integers(3, 4, 11, 12).to(device), integers(6, 2, 4, 3).to(device)
    for algorithm in algorithms(device, without="norm_wise"):
        y = conv2d(x, weight, **window, algorithm=algorithm)
        grad = integers(*y.shape).to(device)
        want = (y * grad).sum()
        assert (x * conv2d_dgrad(grad, weight, x.shape, **window, algorithm=algorithm)).sum() == want, algorithm
        assert (weight * conv2d_wgrad(grad, x, (4, 3), **window, algorithm=algorithm)).sum() == want, algorithm


@pytest.mark.parametrize(
    "window",
    [
        {"stride": 2**30, "padding": 2**30},
        {"dilation": 2**30, "padding": 2**30},
        {"stride": LARGEST, "padding": 1},
        {"stride": (1, LARGEST), "padding": (1, LARGEST), "dilation": (1, LARGEST)},
    ],
    ids=str,
)
def test_far_apart(window, device):
    """No algorithm makes room for the padding between what is read, however far that reaches."""
    x, weight = integers(2, 3, 3, 3), integers(5, 3, 3, 3)
    stride, padding, dilation = (
        value if isinstance(value, tuple) else (value, value)
        for value in (window.get("stride", 1), window.get("padding", 0), window.get("dilation", 1))
    )
    outputs = [(3 + 2 * p - 2 * d - 1) // s + 1 for s, p, d in zip(stride, padding, dilation, strict=True)]
    grad = integers(2, 5, *outputs)
    y, dx, dw = torch.zeros(grad.shape), torch.zeros(x.shape), torch.zeros(weight.shape)
    for h, w, p, q in itertools.product(*map(range, outputs), range(3), range(3)):
        i = h * stride[0] - padding[0] + p * dilation[0]
        j = w * stride[1] - padding[1] + q * dilation[1]
        if 0 <= i < 3 and 0 <= j < 3:
            y[:, :, h, w] += x[:, :, i, j] @ weight[:, :, p, q].T
            dx[:, :, i, j] += grad[:, :, h, w] @ weight[:, :, p, q]
            dw[:, :, p, q] += grad[:, :, h, w].T @ x[:, :, i, j]
    x, weight, grad = x.to(device), weight.to(device), grad.to(device)
    for algorithm in algorithms(device):
        got = (
            conv2d(x, weight, **window, algorithm=algorithm),
            conv2d_dgrad(grad, weight, x.shape, **window, algorithm=algorithm),
            conv2d_wgrad(grad, x, (3, 3), **window, algorithm=algorithm),
        )
        if algorithm == "fft":
            assert within_norms(got, (y, dx, dw), *(t.cpu() for t in (x, weight, grad))), algorithm
        else:
            assert_equal(got, (y, dx, dw), algorithm)


# More channels and maps than a tile of a matrix product has, and no multiple of it.
WIDE = (
    ((2, 40, 9, 11), (70, 40, 3, 3), {"padding": 1}),
    ((1, 33, 12, 12), (130, 33, 1, 1), {}),
    ((2, 72, 8, 9), (80, 36, 3, 2), {"groups": 2, "stride": 2, "padding": 1}),
    ((3, 140, 7, 10), (66, 70, 3, 3), {"groups": 2, "padding": (2, 0)}),
    ((1, 36, 11, 10), (35, 36, 3, 3), {"dilation": 2, "stride": (1, 2)}),
    ((2, 256, 8, 7), (192, 128, 2, 3), {"groups": 2, "stride": (2, 1), "padding": (1, 2)}),
)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_wide_layers(dtype, layout, device):
    """All passes of all exact algorithms, from either layout of images and of filters."""
    for shape, filters, window in WIDE:
        x, weight = leaves = [integers(*size, limit=2).double().requires_grad_() for size in (shape, filters)]
        y = F.conv2d(*leaves, **window)
        g = integers(*y.shape, limit=2).double()
        want = [y.detach(), *torch.autograd.grad(y, leaves, g)]
        images, maps = (t.detach().to(device, dtype).to(memory_format=layout) for t in (x, g))
        weight = weight.detach().to(device, dtype).to(memory_format=layout)
        for algorithm in ["auto", *algorithms(device, without="norm_wise")]:
            got = (
                conv2d(images, weight, **window, algorithm=algorithm),
                conv2d_dgrad(maps, weight, shape, **window, algorithm=algorithm),
                conv2d_wgrad(maps, images, filters[2:], **window, algorithm=algorithm),
            )
            assert_equal(got, want, f"{algorithm} {shape} {filters} {window}")
            assert got[0].is_contiguous(memory_format=layout) and got[1].is_contiguous(memory_format=layout), algorithm


# ---- large in one direction

MANY = {
    "images": ((70_001, 1, 1, 2), (2, 1, 1, 2), {}),
    "maps": ((1, 1, 2, 2), (70_001, 1, 2, 2), {}),
    "tiles": ((1, 1, 1, 16 * 65_537), (1, 1, 1, 1), {}),
    "rows": ((1, 1, 70_001, 1), (2, 1, 3, 1), {"padding": (1, 0)}),
}


@pytest.mark.parametrize("what", MANY)
def test_more_than_a_grid_holds(what, device):
    x, weight, window = MANY[what]
    check(integers(*x), integers(*weight), window, device)


def test_more_groups_than_a_grid_holds(device):
    """Each with one pixel, so that the passes are products."""
    x, weight, grad = (integers(70_001, *size).to(device) for size in ((2,), (2,), (1,)))
    image, filters, maps = x.view(1, -1, 2, 1), weight.view(-1, 1, 2, 1), grad.view(1, -1, 1, 1)
    for algorithm in algorithms(device, without="norm_wise"):
        window = {"groups": len(x), "algorithm": algorithm}
        assert torch.equal(conv2d(image, filters, **window).flatten(), (x * weight).sum(1)), algorithm
        assert torch.equal(conv2d_dgrad(maps, filters, image.shape, **window).view(-1, 2), grad * weight), algorithm
        assert torch.equal(conv2d_wgrad(maps, image, (2, 1), **window).view(-1, 2), grad * x), algorithm


# Unrolled, these take more than the workspace of im2col_gemm: rows apart, a row in parts, and samples apart.
PARTS = {
    "rows": ((1, 32, 305, 304), (2, 32, 5, 5), {}),
    "columns": ((1, 1600, 5, 2000), (1, 1600, 5, 5), {}),
    "images": ((40, 60, 40, 40), (3, 60, 5, 5), {"padding": 2}),
}


@pytest.mark.parametrize("what", PARTS)
def test_products_in_parts(what, device):
    x, weight, window = PARTS[what]
    check(integers(*x, limit=2), integers(*weight, limit=2), window, device, only=["auto", "im2col_gemm"])


# ---- NaN


def spread(result: torch.Tensor) -> set:
    return {tuple(at) for at in result.isnan().nonzero().tolist()}


def test_nan_in_the_input(device):
    """It reaches the outputs whose window holds it, and no other."""
    x, weight = torch.ones(2, 3, 7, 7, device=device), torch.ones(2, 3, 3, 3, device=device)
    x[1, 2, 3, 4] = NAN
    for algorithm in ["auto", *algorithms(device, without="mixes_neighbours")]:
        y = conv2d(x, weight, stride=2, padding=1, algorithm=algorithm)
        assert spread(y) == {(1, m, h, 2) for m in (0, 1) for h in (1, 2)}, algorithm


def test_nan_in_a_weight_meets_padding(device):
    """Padding is an operand, zero, and zero times NaN is NaN: all outputs of the map, as in the unrolled matrix."""
    weight = torch.ones(3, 2, 3, 3, device=device)
    weight[1, 0, 0, 0] = NAN
    for algorithm in algorithms(device, without="norm_wise"):
        y = conv2d(torch.ones(1, 2, 4, 4, device=device), weight, padding=1, algorithm=algorithm)
        assert y[:, 1].isnan().all() and y[:, 0::2].isfinite().all(), algorithm


def test_nan_in_a_weight_reaches_only_the_pixels_it_read(device):
    """dgrad has no padding to meet. Windows of 2 x 2, 4 apart: tap (0, 0) read the pixels at multiples of 4 alone."""
    weight, grad = torch.ones(1, 1, 2, 2, device=device), torch.ones(1, 1, 2, 2, device=device)
    weight[0, 0, 0, 0] = NAN
    for algorithm in ["auto", *algorithms(device, without="mixes_neighbours")]:
        dx = conv2d_dgrad(grad, weight, (1, 1, 7, 7), stride=4, algorithm=algorithm)
        assert spread(dx) == {(0, 0, i, j) for i in (0, 4) for j in (0, 4)}, algorithm
        unread = torch.ones(7, 7, dtype=torch.bool)
        for i, j in itertools.product((0, 1, 4, 5), repeat=2):
            unread[i, j] = False
        assert not dx[0, 0][unread.to(device)].any(), algorithm


def test_nan_in_a_gradient(device):
    """In dx it reaches what its output read; in dw all taps of its map, for where it met padding it met a zero."""
    grad = torch.ones(1, 2, 4, 4, device=device)
    grad[0, 1, 0, 0] = NAN
    for algorithm in ["auto", *algorithms(device, without="mixes_neighbours")]:
        weight, x = torch.ones(2, 1, 3, 3, device=device), torch.ones(1, 1, 4, 4, device=device)
        dx = conv2d_dgrad(grad, weight, x.shape, padding=1, algorithm=algorithm)
        assert spread(dx) == {(0, 0, i, j) for i in (0, 1) for j in (0, 1)}, algorithm
        dw = conv2d_wgrad(grad, x, 3, padding=1, algorithm=algorithm)
        assert dw[1].isnan().all() and dw[0].isfinite().all(), algorithm


# ---- precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_rounded_once(dtype, device):
    """Partial sums that the dtype cannot hold cancel: 2^12 + 1 - 2^12 is 1, in every pass, and with the bias too."""
    big = 2.0**12
    cancelling = torch.tensor([big, 1, -big], dtype=dtype, device=device)
    ones = torch.ones(3, dtype=dtype, device=device)
    channels, column = cancelling.view(1, 3, 1, 1), cancelling.view(1, 1, 3, 1)
    for algorithm in algorithms(device, without="norm_wise"):
        y = conv2d(channels, ones.view(1, 3, 1, 1), algorithm=algorithm)
        with_bias = conv2d(channels[:, :2], ones[:2].view(1, 2, 1, 1), cancelling[2:], algorithm=algorithm)
        # One pixel that three outputs read, through three taps; and through one tap, in three maps.
        taps = conv2d_dgrad(ones.view(1, 1, 3, 1), column, (1, 1, 1, 1), padding=(2, 0), algorithm=algorithm)
        maps = conv2d_dgrad(channels, ones.view(3, 1, 1, 1), (1, 1, 1, 1), algorithm=algorithm)
        dw = conv2d_wgrad(column, ones.view(1, 1, 3, 1), 1, algorithm=algorithm)
        for result in (y, with_bias, taps, maps, dw):
            assert result.flatten().tolist() == [1], algorithm


def test_half_sums_go_beyond_half_precision(device):
    """4608 ones: a sum kept in half stops at 2048."""
    for dtype, algorithm in itertools.product((torch.float16, torch.bfloat16), algorithms(device)):
        x, weight = (torch.ones(s, dtype=dtype, device=device) for s in ((1, 512, 3, 3), (1, 512, 3, 3)))
        assert conv2d(x, weight, algorithm=algorithm).item() == 4608, (dtype, algorithm)


def test_float32_is_never_tf32(device):
    """1 + 2^-12 survives a multiplication by one, whatever torch is allowed to do."""
    x = torch.full((4, 64, 8, 8), 1 + 2.0**-12, device=device)
    weight = torch.eye(64, device=device)[:, :, None, None]
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        for algorithm in ["auto", *algorithms(device, without="norm_wise")]:
            assert torch.equal(conv2d(x, weight, algorithm=algorithm), x), algorithm
            assert torch.equal(conv2d_dgrad(x, weight, x.shape, algorithm=algorithm), x), algorithm
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


# ---- the operators


class Calls(TorchDispatchMode):
    """Which of our operators run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "torch_patterns":
            self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


def test_only_requested_gradients_are_computed(device):
    passes = {"x": ["conv2d_dgrad"], "weight": ["conv2d_wgrad"], "bias": ["reduce", "reduce"]}
    for wanted in itertools.product((False, True), repeat=3):
        if not any(wanted):
            continue
        inputs = [integers(2, 3, 5, 5), integers(4, 3, 3, 3), integers(4)]
        inputs = [t.to(device).requires_grad_(w) for t, w in zip(inputs, wanted, strict=True)]
        y = conv2d(*inputs)
        with Calls() as calls:
            y.backward(torch.ones_like(y))
        names = [name for key, w in zip(passes, wanted, strict=True) if w for name in passes[key]]
        assert calls.names == names, wanted
        if wanted[2]:
            assert inputs[2].grad.tolist() == [2 * 3 * 3] * 4


@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (2, 1, 5, 6), (2, 3, 1, 1), (1, 3, 5, 1)], ids=str)
def test_channels_last_stays(shape, device):
    """Images come back as they went in, contiguous if that is how they went in too; meta tensors know."""
    x, weight = integers(*shape).to(device), integers(4, shape[1], 1, 1).to(device)
    last = x.to(memory_format=torch.channels_last)
    kept = torch.contiguous_format if last.is_contiguous() else torch.channels_last
    for algorithm in algorithms(device):
        want = conv2d(x, weight, algorithm=algorithm)
        y = conv2d(last, weight.to(memory_format=torch.channels_last), algorithm=algorithm)
        assert_equal(y, want.cpu(), algorithm)
        assert y.is_contiguous(memory_format=kept), algorithm
        assert conv2d(last.to("meta"), weight.to("meta"), algorithm=algorithm).stride() == y.stride(), algorithm
        grad = want.to(memory_format=torch.channels_last)
        dx = conv2d_dgrad(grad, weight, shape, algorithm=algorithm)
        assert_equal(dx, conv2d_dgrad(want, weight, shape, algorithm=algorithm).cpu(), algorithm)
        assert conv2d_dgrad(grad.to("meta"), weight.to("meta"), shape, algorithm=algorithm).stride() == dx.stride()
        dw = conv2d_wgrad(grad, last, 1, algorithm=algorithm)
        assert dw.is_contiguous()
        assert_equal(dw, conv2d_wgrad(want, x, 1, algorithm=algorithm).cpu(), algorithm)


def test_nothing_to_sum(device):
    """Without samples, without maps, without pixels but for padding."""
    for algorithm in algorithms(device):
        x, weight = torch.empty(0, 2, 4, 4, device=device), torch.ones(3, 2, 2, 2, device=device)
        y = conv2d(x, weight, algorithm=algorithm)
        assert y.shape == (0, 3, 3, 3)
        assert conv2d_dgrad(y, weight, x.shape, algorithm=algorithm).shape == x.shape
        dw = conv2d_wgrad(y, x, 2, algorithm=algorithm)
        assert dw.shape == weight.shape and not dw.any()
        x, weight = torch.ones(2, 2, 4, 4, device=device), torch.empty(0, 2, 2, 2, device=device)
        y = conv2d(x, weight, algorithm=algorithm)
        assert y.shape == (2, 0, 3, 3)
        dx = conv2d_dgrad(y, weight, x.shape, algorithm=algorithm)
        assert dx.shape == x.shape and not dx.any()
        assert conv2d_wgrad(y, x, 2, algorithm=algorithm).shape == weight.shape
        bias = torch.tensor([3.0, 4.0], device=device)
        y = conv2d(torch.empty(1, 1, 0, 1, device=device), torch.ones(2, 1, 2, 1, device=device), bias, 1, (1, 0))
        assert y.flatten().tolist() == [3, 4]


def test_tensors_of_two_devices(device):
    x, weight = torch.ones(1, 2, 4, 4, device=device), torch.ones(3, 2, 2, 2, device="meta")
    with pytest.raises(RuntimeError, match=f"conv2d: x is on {device}.*, weight on meta"):
        conv2d(x, weight)
    with pytest.raises(RuntimeError, match=f"conv2d_wgrad: grad is on meta, x on {device}"):
        conv2d_wgrad(torch.ones(1, 3, 3, 3, device="meta"), x, 2)


def test_sizes_that_overflow(device):
    x, weight = torch.ones(1, 1, 3, 3, device=device), torch.ones(1, 1, 1, 1, device=device)
    for argument in ("stride", "padding", "dilation"):
        for value in (LARGEST + 1, 2**63 - 2):
            with pytest.raises(RuntimeError, match=f"conv2d: {argument} must be at most {LARGEST}, got {value}"):
                conv2d(x, weight, **{argument: value})
    pytest.raises(RuntimeError, conv2d, x, weight, padding=2**30)  # 2^62 pixels
    assert conv2d(x, weight).sum() == 9


def test_bias_gradient_does_not_depend_on_the_threads(device):
    g = torch.randn(4, 1, 120, 150, generator=torch.Generator().manual_seed(3))
    x, weight, found = torch.zeros(4, 1, 120, 150, device=device), torch.zeros(1, 1, 1, 1, device=device), []
    bias = torch.zeros(1, requires_grad=True, device=device)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found += torch.autograd.grad(conv2d(x, weight, bias), bias, g.to(device))
    assert found[0].tolist() == found[1].tolist() == found[2].tolist()
    assert abs(found[0].item() - g.double().sum().item()) <= 64 * 2.0**-24 * g.abs().double().sum().item()  # a tree
