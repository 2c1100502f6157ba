"""Subsampling, average and maximum pooling, and the operators of their gradients."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

import torch_patterns
from torch_patterns.testing.compare import gamma
from torch_patterns.testing.spec import FLOATS, INTEGERS, Sample, Spec, bad, case

ACTIVATIONS = {
    "identity": lambda k: k,
    "bipolar_sigmoid": lambda k: torch.tanh(k / 2),
    "tanh": torch.tanh,
    "relu": lambda k: k.clamp(min=0),
    "sign": lambda k: torch.where(k.isnan(), k, torch.sign(k)),
}
SLOPES = {
    "identity": torch.ones_like,
    "bipolar_sigmoid": lambda y: (1 - y * y) / 2,
    "tanh": lambda y: 1 - y * y,
    "relu": lambda y: (y > 0).to(y.dtype),
    "sign": torch.zeros_like,
}


def ones(*shapes):
    """device -> that many tensors of ones, for calls that must be refused."""
    return lambda device: tuple(torch.ones(shape, device=device) for shape in shapes)


def bad_algorithm(name: str, *shapes, **kwargs):
    return bad("algorithm", ones(*shapes), ValueError, f"{name}: .*'no_such'.*auto", algorithm="no_such", **kwargs)


def maps(n: int) -> tuple[int, int, int, int]:
    """Returns a shape of about n pixels in maps like those of LeNet-5."""
    return max(n // (6 * 28 * 28), 1), 6, 28, 28


# ---- average pooling


def avg_bound(u, x, *args, **kwargs):
    """The divided sum of a window has as many roundings as the window has pixels."""
    return gamma(pixels_of(kwargs), u) * F.avg_pool2d(x.double().abs(), *args, **kwargs)


def pixels_of(windows) -> int:
    return windows["kernel_size"][0] * windows["kernel_size"][1] + 1


AVG_SAMPLES = (
    case((2, 3, 4, 6), kernel_size=[2, 2]),
    case((1, 2, 5, 7), kernel_size=[3, 2], stride=[2, 1], padding=[1, 1]),
    case((2, 5, 5), kernel_size=[2, 2], stride=[3, 2], padding=[1, 0], ceil_mode=True),
    case((1, 1, 4, 5), kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], ceil_mode=True, count_include_pad=False),
    case((1, 2, 3, 3), kernel_size=[1, 1]),
)
AVG_EDGES = (
    case((3, 7, 17, 15), kernel_size=[2, 2]),
    case((1, 2, 16, 17), kernel_size=[3, 4], stride=[1, 2], padding=[1, 2]),
    case((1, 1, 33, 65), kernel_size=[20, 20], stride=[7, 9], padding=[10, 3], ceil_mode=True),
)

AVG = Spec(
    "avg_pool2d",
    reference=lambda x, **windows: F.avg_pool2d(x.double(), **windows),
    bound=avg_bound,
    dtypes=FLOATS,
    samples=AVG_SAMPLES,
    edges=AVG_EDGES,
    empty=(case((0, 3, 4, 4), kernel_size=[2, 2]),),
    grown=(case((2, 3, 6, 8), kernel_size=[2, 2]), case((5, 7, 10, 12), kernel_size=[2, 2])),
    bad=(
        bad(
            "dtype",
            lambda d: (torch.ones(1, 4, 4, device=d).int(),),
            TypeError,
            "avg_pool2d: x.*Int",
            kernel_size=[2, 2],
        ),
        bad("rank", ones((4, 4)), RuntimeError, r"avg_pool2d: x.*\[4, 4\]", kernel_size=[2, 2]),
        bad("no rows", ones((2, 1, 0, 4)), RuntimeError, r"avg_pool2d: .*batch.*\[2, 1, 0, 4\]", kernel_size=[2, 2]),
        bad("window", ones((1, 4, 4)), RuntimeError, "avg_pool2d: .*5 pixels.*4 pixels", kernel_size=[5, 5]),
        bad("no window", ones((1, 4, 4)), RuntimeError, "avg_pool2d: kernel_size.*0", kernel_size=[0, 2]),
        bad("stride", ones((1, 4, 4)), RuntimeError, "avg_pool2d: stride.*0", kernel_size=[2, 2], stride=[0, 1]),
        bad("padding", ones((1, 4, 4)), RuntimeError, "avg_pool2d: padding.*2", kernel_size=[2, 2], padding=[2, 0]),
        bad("three", ones((1, 4, 4)), RuntimeError, "kernel_size", kernel_size=[2, 2, 2]),
        bad_algorithm("avg_pool2d", (1, 4, 4), kernel_size=[2, 2]),
    ),
    sized=lambda n: case(maps(n), kernel_size=[2, 2]),
    peers={"torch": F.avg_pool2d},
)


def avg_backward_reference(grad, input_size, **windows):
    with torch.enable_grad():
        x = torch.zeros(*grad.shape[:-2], *input_size, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(F.avg_pool2d(x, **windows), x, grad.double())[0]


def gradient_case(forward):
    """The case of a backward operator: its gradient has the shape of the forward operator's result."""
    (shape,) = forward.shapes
    windows = {key: value for key, value in forward.kwargs.items() if key != "count_include_pad"}
    out = F.max_pool2d(torch.zeros(shape), **windows).shape
    return case(tuple(out), input_size=list(shape[-2:]), **forward.kwargs)


AVG_BACKWARD = Spec(
    "avg_pool2d_backward",
    pattern="avg_pool2d",
    reference=avg_backward_reference,
    bound=lambda u, grad, **sizes: gamma(pixels_of(sizes), u) * avg_backward_reference(grad.double().abs(), **sizes),
    exact=False,  # a gradient is shared out among any number of pixels
    dtypes=FLOATS,
    samples=tuple(map(gradient_case, AVG_SAMPLES)),
    edges=tuple(map(gradient_case, AVG_EDGES)),
    empty=(case((0, 3, 2, 2), input_size=[4, 4], kernel_size=[2, 2]),),
    grown=tuple(case((n, c, 3, 4), input_size=[6, 8], kernel_size=[2, 2]) for n, c in ((2, 5), (7, 9))),
    bad=(
        bad("size", ones((1, 3, 3)), RuntimeError, "grad.*2 x 2.*3, 3", input_size=[4, 4], kernel_size=[2, 2]),
        bad_algorithm("avg_pool2d_backward", (1, 2, 2), input_size=[4, 4], kernel_size=[2, 2]),
    ),
    sized=lambda n: gradient_case(case(maps(n), kernel_size=[2, 2])),
)


# ---- maximum pooling


MAX_SAMPLES = (
    case((2, 3, 4, 6), kernel_size=[2, 2]),
    case((1, 2, 5, 7), kernel_size=[3, 2], stride=[2, 1], padding=[1, 1]),
    case((2, 5, 5), kernel_size=[2, 2], stride=[3, 2], padding=[1, 0], ceil_mode=True),
    case((1, 2, 6, 7), kernel_size=[2, 3], stride=[1, 2], padding=[1, 1], dilation=[3, 2]),
)
MAX_EDGES = (
    case((3, 7, 17, 15), kernel_size=[2, 2]),
    case((1, 2, 16, 17), kernel_size=[3, 3], stride=[1, 2], padding=[1, 1], dilation=[2, 1]),
    case((1, 1, 33, 65), kernel_size=[20, 20], stride=[7, 9], padding=[10, 3], ceil_mode=True),
)

MAX = Spec(
    "max_pool2d",
    reference=lambda x, **windows: F.max_pool2d(x.double(), return_indices=True, **windows),
    wrapper=functools.partial(torch_patterns.max_pool2d, return_indices=True),
    dtypes=INTEGERS + FLOATS,
    samples=MAX_SAMPLES,
    edges=MAX_EDGES,
    empty=(case((0, 3, 4, 4), kernel_size=[2, 2]),),
    grown=(case((2, 3, 6, 8), kernel_size=[2, 2]), case((5, 7, 10, 12), kernel_size=[2, 2])),
    bad=(
        bad(
            "dtype",
            lambda d: (torch.ones(1, 4, 4, device=d).bool(),),
            TypeError,
            "max_pool2d: x.*Bool",
            kernel_size=[2, 2],
        ),
        bad("rank", ones((4, 4)), RuntimeError, r"max_pool2d: x.*\[4, 4\]", kernel_size=[2, 2]),
        bad("window", ones((1, 4, 4)), RuntimeError, "max_pool2d: .*5 pixels.*4 pixels", kernel_size=[5, 5]),
        bad("padding", ones((1, 4, 4)), RuntimeError, "max_pool2d: padding.*2", kernel_size=[2, 2], padding=[2, 0]),
        bad("far", ones((1, 4, 4)), RuntimeError, "dilation 2147483647", kernel_size=[2, 2], dilation=[2**31 - 1, 1]),
        bad("farther", ones((1, 4, 4)), RuntimeError, "dilation.*2147483648", kernel_size=[2, 2], dilation=[2**31, 1]),
        bad("nothing", ones((1, 2, 2)), RuntimeError, "no tap", kernel_size=[2, 2], padding=[1, 1], dilation=[3, 3]),
        bad_algorithm("max_pool2d", (1, 4, 4), kernel_size=[2, 2]),
    ),
    sized=lambda n: case(maps(n), kernel_size=[2, 2]),
    peers={"torch": functools.partial(F.max_pool2d, return_indices=True)},
)


def indices_of(shape, make, windows):
    x = torch.rand(shape, generator=make.random, dtype=torch.float64)
    return F.max_pool2d(x, return_indices=True, **windows)[1]


def max_backward_inputs(case, make):
    windows = {key: value for key, value in case.kwargs.items() if key != "input_size"}
    (shape,) = case.shapes
    indices = indices_of((*shape[:-2], *case.kwargs["input_size"]), make, windows)
    return Sample((make(shape), indices), dict(case.kwargs))


def max_backward_reference(grad, indices, input_size, **windows):
    zeros = torch.zeros(*grad.shape[:-2], input_size[0] * input_size[1], dtype=torch.float64)
    return zeros.scatter_add(-1, indices.flatten(-2), grad.double().flatten(-2)).unflatten(-1, input_size)


def gradient_and_indices(shape):
    return lambda device: (torch.ones(shape, device=device), torch.zeros(shape, dtype=torch.int64, device=device))


MAX_BACKWARD = Spec(
    "max_pool2d_backward",
    pattern="max_pool2d",
    reference=max_backward_reference,
    inputs=max_backward_inputs,
    bound=lambda u, grad, *rest, **sizes: (
        gamma(pixels_of(sizes), u) * max_backward_reference(grad.double().abs(), *rest, **sizes)
    ),
    dtypes=FLOATS,
    samples=tuple(map(gradient_case, MAX_SAMPLES)),
    edges=tuple(map(gradient_case, MAX_EDGES)),
    empty=(case((0, 3, 2, 2), input_size=[4, 4], kernel_size=[2, 2]),),
    grown=tuple(case((n, c, 3, 4), input_size=[6, 8], kernel_size=[2, 2]) for n, c in ((2, 5), (7, 9))),
    bad=(
        bad(
            "size",
            gradient_and_indices((1, 3, 3)),
            RuntimeError,
            "grad.*2 x 2.*3, 3",
            input_size=[4, 4],
            kernel_size=[2, 2],
        ),
        bad("indices", ones((1, 2, 2), (1, 2, 2)), TypeError, "indices.*Float", input_size=[4, 4], kernel_size=[2, 2]),
        bad("shape", ones((1, 2, 2), (2, 2)), RuntimeError, "indices.*2, 2", input_size=[4, 4], kernel_size=[2, 2]),
    ),
    sized=lambda n: gradient_case(case(maps(n), kernel_size=[2, 2])),
)


def max_tangent_inputs(case, make):
    return Sample((make(case.shapes[0]), indices_of(case.shapes[0], make, case.kwargs)), dict(case.kwargs))


def max_tangent_reference(x, indices, **windows):
    return x.double().flatten(-2).gather(-1, indices.flatten(-2)).view(indices.shape)


MAX_TANGENT = Spec(
    "max_pool2d_tangent",
    pattern="max_pool2d",
    reference=max_tangent_reference,
    inputs=max_tangent_inputs,
    dtypes=FLOATS,
    samples=MAX_SAMPLES,
    edges=MAX_EDGES,
    empty=(case((0, 3, 4, 4), kernel_size=[2, 2]),),
    grown=(case((7, 2, 6, 8), kernel_size=[2, 2]), case((11, 13, 10, 12), kernel_size=[2, 2])),
    bad=(
        bad("indices", ones((1, 4, 4), (1, 2, 2)), TypeError, "indices.*Float", kernel_size=[2, 2]),
        bad("shape", ones((1, 4, 4), (1, 3, 3)), RuntimeError, "indices.*2 x 2.*3, 3", kernel_size=[2, 2]),
    ),
    sized=lambda n: case(maps(n), kernel_size=[2, 2]),
)


# ---- subsampling


def subsample_reference(x, bias, size=(2, 2), activation="bipolar_sigmoid"):
    return ACTIVATIONS[activation](F.avg_pool2d(x.double(), size) + bias.double()[:, None, None])


def subsample_bound(u, x, bias, size=(2, 2), activation="bipolar_sigmoid"):
    """The mean and the bias; no activation is steeper than 1, but sign has a step. tanh errs by some roundings."""
    argument = gamma(size[0] * size[1] + 2, u) * subsample_reference(
        x.double().abs(), bias.double().abs(), size, "identity"
    )
    exact = subsample_reference(x, bias, size, "identity")
    if activation == "sign":
        return 2.0 * (exact.abs() <= argument)
    return argument + 8 * u * ACTIVATIONS[activation](exact).abs()


SUBSAMPLE = Spec(
    "subsample2d",
    reference=subsample_reference,
    bound=subsample_bound,
    exact=False,
    dtypes=FLOATS,
    samples=(
        case((2, 3, 4, 6), (3,), size=[2, 2]),
        case((1, 2, 3, 4), (2,), size=[3, 1], activation="tanh"),
        case((2, 4, 4), (2,), size=[2, 2], activation="relu"),
        case((1, 2, 4, 2), (2,), size=[4, 2], activation="identity"),
        case((1, 2, 2, 4), (2,), size=[1, 2], activation="sign"),
    ),
    edges=(
        case((3, 5, 16, 18), (5,), size=[2, 2], activation="tanh"),
        case((1, 1, 40, 40), (1,), size=[20, 20]),
    ),
    empty=(case((0, 3, 4, 4), (3,), size=[2, 2]),),
    grown=(case((2, 3, 6, 8), (3,), size=[2, 2]), case((5, 7, 10, 12), (7,), size=[2, 2])),
    bad=(
        bad("rows", ones((1, 5, 4), (1,)), RuntimeError, "subsample2d: H x W = 5 x 4 .*size 2 x 2", size=[2, 2]),
        bad("bias", ones((3, 4, 4), (2,)), RuntimeError, r"subsample2d: bias.*\[3\].*\[2\]", size=[2, 2]),
        bad("activation", ones((3, 4, 4), (3,)), ValueError, "'elu'.*tanh", size=[2, 2], activation="elu"),
        bad("dtype", lambda d: tuple(x.int() for x in ones((3, 4, 4), 3)(d)), TypeError, "x.*Int", size=[2, 2]),
        bad("size", ones((3, 4, 4), (3,)), RuntimeError, "size.*positive.*0", size=[0, 2]),
        bad_algorithm("subsample2d", (3, 4, 4), (3,), size=[2, 2]),
    ),
    sized=lambda n: case(maps(n), (6,), size=[2, 2]),
)


def subsample_backward_reference(grad, y, size=(2, 2), activation="bipolar_sigmoid"):
    inner = grad.double() * SLOPES[activation](y.double())
    spread = inner.repeat_interleave(size[0], -2).repeat_interleave(size[1], -1) / (size[0] * size[1])
    return spread, inner.reshape(-1, grad.shape[-3], grad.shape[-2] * grad.shape[-1]).sum((0, 2))


def subsample_backward_bound(u, grad, y, size=(2, 2), activation="bipolar_sigmoid"):
    """The slope and its product, then a division, or a sum over the maps."""
    steep = grad.double().abs() * (1 + y.double() ** 2)
    spread, total = subsample_backward_reference(steep, torch.zeros_like(steep), size, "identity")
    return gamma(6, u) * spread, gamma(grad.numel() // max(grad.shape[-3], 1) + 5, u) * total


SUBSAMPLE_BACKWARD = Spec(
    "subsample2d_backward",
    pattern="subsample2d",
    reference=subsample_backward_reference,
    bound=subsample_backward_bound,
    exact=False,
    dtypes=FLOATS,
    samples=(
        case((2, 3, 2, 3), (2, 3, 2, 3), size=[2, 2]),
        case((1, 2, 1, 4), (1, 2, 1, 4), size=[3, 1], activation="tanh"),
        case((2, 2, 2), (2, 2, 2), size=[2, 2], activation="relu"),
        case((1, 2, 1, 2), (1, 2, 1, 2), size=[4, 2], activation="identity"),
        case((1, 2, 2, 2), (1, 2, 2, 2), size=[1, 2], activation="sign"),
    ),
    edges=(
        case((3, 5, 8, 9), (3, 5, 8, 9), size=[2, 2], activation="tanh"),
        case((2, 3, 17, 31), (2, 3, 17, 31), size=[1, 1], activation="relu"),
        case((300, 2, 1, 1), (300, 2, 1, 1), size=[1, 2]),
    ),
    empty=(case((0, 3, 2, 2), (0, 3, 2, 2), size=[2, 2]),),
    grown=(case((2, 3, 4, 5), (2, 3, 4, 5), size=[2, 2]), case((6, 7, 8, 9), (6, 7, 8, 9), size=[2, 2])),
    bad=(
        bad("shapes", ones((1, 2, 2), (1, 2, 3)), RuntimeError, r"\[1, 2, 2\].*\[1, 2, 3\]", size=[2, 2]),
        bad("overflow", ones((1, 1, 4), (1, 1, 4)), RuntimeError, "size.*2147483647.*got 4611", size=[3, 2**62]),
        bad_algorithm("subsample2d_backward", (1, 2, 2), (1, 2, 2), size=[2, 2]),
    ),
    sized=lambda n: case(maps(n), maps(n), size=[2, 2]),
)

SPECS = [SUBSAMPLE, SUBSAMPLE_BACKWARD, AVG, AVG_BACKWARD, MAX, MAX_BACKWARD, MAX_TANGENT]
