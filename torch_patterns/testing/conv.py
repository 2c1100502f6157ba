"""Convolution and its two transposes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from torch_patterns.testing.compare import assert_equal, gamma
from torch_patterns.testing.spec import FLOATS, Large, Sample, Spec, bad, case

# ---- references: the unrolled matrix of Fig. 16.16 in float64, padding being an operand


def pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


class Unrolled:
    """x [n, c, h, w] as [n, groups, taps of a group, pixels], and back."""

    def __init__(self, image, kernel, stride=1, padding=0, dilation=1, groups=1):
        self.kernel, self.groups = pair(kernel), groups
        self.window = {"stride": pair(stride), "padding": pair(padding), "dilation": pair(dilation)}
        self.image = tuple(image)
        axes = zip(self.image, self.kernel, *self.window.values(), strict=True)
        self.out = tuple((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in axes)

    def of(self, x):
        columns = F.unfold(x.double(), self.kernel, **self.window)
        return columns.unflatten(1, (self.groups, columns.shape[1] // self.groups))

    def back(self, columns):
        return F.fold(columns.flatten(1, 2), self.image, self.kernel, **self.window)

    def maps(self, y):
        """[n, m, h, w] as [n, groups, maps of a group, pixels]."""
        return y.double().flatten(2).unflatten(1, (self.groups, y.shape[1] // self.groups))

    def filters(self, weight):
        """[m, c / groups, p, q] as [groups, maps of a group, taps]."""
        return weight.double().flatten(1).unflatten(0, (self.groups, weight.shape[0] // self.groups))


def fprop(x, weight, bias=None, **window):
    u = Unrolled(x.shape[2:], weight.shape[2:], **window)
    y = torch.einsum("gmt,ngtp->ngmp", u.filters(weight), u.of(x)).flatten(1, 2).unflatten(2, u.out)
    return y if bias is None else y + bias.double()[:, None, None]


def dgrad(grad, weight, input_size, **window):
    u = Unrolled(input_size[2:], weight.shape[2:], **window)
    return u.back(torch.einsum("gmt,ngmp->ngtp", u.filters(weight), u.maps(grad)))


def wgrad(grad, x, kernel_size, **window):
    u = Unrolled(x.shape[2:], kernel_size, **window)
    dw = torch.einsum("ngmp,ngtp->gmt", u.maps(grad), u.of(x)).flatten(0, 1)
    return dw.unflatten(1, (x.shape[1] // u.groups, *u.kernel))


def bounded(reference):
    """A sum of k products, in any order: gamma(k + 1) times the sum of their sizes."""

    def bound(u, *args, **kwargs):
        sizes = [a.double().abs() if isinstance(a, torch.Tensor) else a for a in args]
        ones = [torch.ones_like(a) if isinstance(a, torch.Tensor) else a for a in sizes]
        return gamma(reference(*ones, **kwargs) + 1, u) * reference(*sizes, **kwargs)

    return bound


# ---- the error bound for transforms of the whole image, by Euclidean norms: those of an image's channels and of the
# filters between one channel and one map. A transform of n elements has an error of at most 6 u log2(n) times the norm
# (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 24.1); three of them follow each other, and
# the sum over channels, maps or images comes on top. Winograd's transforms of 4 x 4 stay below that.


def transform_error(u, image, kernel, terms):
    # Boxes of up to 64 outputs and their taps, padded to a power of two.
    elements = 1.0
    for i, k in zip(image, pair(kernel), strict=True):
        elements *= 2 * (min(i + 2 * k, 64) + k)
    return u * (3 * 6 * math.log2(elements) + terms + 4)


def norms(images):
    """[n, c, h, w] -> [n, c]"""
    return images.double().flatten(2).norm(dim=2)


def filters_by_group(weight, groups):
    """The norms of filters, [groups, maps of a group, channels of a group]."""
    n = norms(weight)
    return n.view(groups, n.shape[0] // groups, n.shape[1])


def fprop_norms(u, x, weight, bias=None, groups=1, **window):
    w = filters_by_group(weight, groups)
    sums = torch.einsum("ngc,gmc->ngm", norms(x).unflatten(1, (groups, -1)), w).flatten(1)
    error = transform_error(u, x.shape[2:], weight.shape[2:], w.shape[2])
    y = fprop(x.abs(), weight.abs(), bias if bias is None else bias.abs(), groups=groups, **window)
    return error * sums[:, :, None, None] + 4 * u * y


def dgrad_norms(u, grad, weight, input_size, groups=1, **window):
    w = filters_by_group(weight, groups)
    sums = torch.einsum("ngm,gmc->ngc", norms(grad).unflatten(1, (groups, -1)), w).flatten(1)
    error = transform_error(u, input_size[2:], weight.shape[2:], w.shape[1])
    return (error * sums[:, :, None, None]).expand(tuple(input_size))


def wgrad_norms(u, grad, x, kernel_size, groups=1, **window):
    # Boxes and images are added one after another.
    terms = x.shape[0] * (1 + grad.shape[2] // 64) * (1 + grad.shape[3] // 64)
    g, c = norms(grad).unflatten(1, (groups, -1)), norms(x).unflatten(1, (groups, -1))
    sums = torch.einsum("ngm,ngc->gmc", g, c).flatten(0, 1)
    error = transform_error(u, x.shape[2:], kernel_size, terms)
    return (error * sums[:, :, None, None]).expand(*sums.shape, *pair(kernel_size))


# ---- the three operators over one list of problems: x, weight, and whether there is a bias


def problem(x, weight, bias=False, **window):
    window = {key: value if key == "groups" else pair(value) for key, value in window.items()}
    return case(x, weight, *([(weight[0],)] if bias else []), **window)


SAMPLES = (
    problem((2, 1, 5, 6), (3, 1, 2, 3), bias=True),
    problem((1, 4, 5, 4), (6, 2, 3, 3), padding=1, groups=2),
    problem((2, 2, 7, 6), (2, 2, 3, 2), bias=True, stride=(2, 3), padding=(0, 2), dilation=(2, 1)),
    problem((1, 3, 4, 4), (6, 1, 2, 2), stride=2, groups=3),
)
EDGES = (
    problem((2, 1, 32, 32), (6, 1, 5, 5), bias=True),  # C1, C3 and C5 of LeNet-5
    problem((2, 6, 14, 14), (16, 6, 5, 5), bias=True),
    problem((2, 16, 5, 5), (120, 16, 5, 5), bias=True),
    problem((1, 3, 17, 33), (17, 3, 1, 1)),  # tiles of 16 and one more
    problem((1, 2, 16, 47), (3, 2, 7, 1), padding=(3, 0)),
    problem((1, 15, 9, 9), (33, 15, 3, 3), bias=True, padding=2),
    problem((2, 4, 12, 11), (8, 2, 3, 3), stride=3, padding=1, groups=2),  # rows and columns that nothing reads
    problem((1, 5, 10, 10), (5, 1, 3, 3), padding=1, groups=5),
    problem((1, 2, 9, 9), (4, 2, 2, 2), stride=4),  # gaps between the windows
    problem((2, 2, 13, 13), (2, 2, 3, 3), dilation=4, padding=3),
    problem((70, 1, 4, 4), (2, 1, 4, 4)),
)
EMPTY = (problem((0, 2, 5, 5), (3, 2, 3, 3), bias=True),)
GROWN = (problem((15, 2, 10, 9), (4, 2, 3, 5), padding=1), problem((17, 2, 13, 12), (4, 2, 3, 5), padding=1))
# Of dgrad, input_size fixes all sizes but the number of maps.
MORE_MAPS = (problem((3, 2, 10, 9), (4, 2, 3, 5), padding=1), problem((3, 2, 10, 9), (6, 2, 3, 5), padding=1))


def sizes_of(case):
    x, weight = case.shapes[:2]
    return x, weight, (x[0], weight[0], *Unrolled(x[2:], weight[2:], **case.kwargs).out)


def fprop_inputs(case, make):
    return Sample(tuple(make(shape) for shape in case.shapes), dict(case.kwargs))


def dgrad_inputs(case, make):
    x, weight, y = sizes_of(case)
    return Sample((make(y), make(weight), x), dict(case.kwargs))


def wgrad_inputs(case, make):
    x, weight, y = sizes_of(case)
    return Sample((make(y), make(x), weight[2:]), dict(case.kwargs))


def tensors(*shapes):
    return lambda device: tuple(torch.ones(s, device=device) if isinstance(s, tuple) else s for s in shapes)


X, W = (2, 4, 6, 6), (6, 4, 3, 3)
BAD = (
    bad("rank", tensors(X[1:], W), RuntimeError, "conv2d: .*4 dimensions.*3"),
    bad("channels", tensors(X, (6, 3, 3, 3)), RuntimeError, "conv2d: .*3 input channels.*4"),
    bad("kernel", tensors(X, (6, 4, 7, 3)), RuntimeError, "conv2d: .*7 rows.*6"),
    bad("bias", tensors(X, W, (5,)), RuntimeError, "conv2d: bias has 5 .*6"),
    bad("stride", tensors(X, W), RuntimeError, "conv2d: stride.*at least 1.*0", stride=(0, 1)),
    bad("padding", tensors(X, W), RuntimeError, "conv2d: padding.*at least 0.*-1", padding=(1, -1)),
    bad("dilation", tensors(X, W), RuntimeError, "conv2d: dilation.*at least 1.*0", dilation=(0, 1)),
    bad("huge dilation", tensors(X, W), RuntimeError, "conv2d: dilation.*at most", dilation=(2**62, 1)),
    bad("huge stride", tensors(X, W), RuntimeError, "conv2d: stride.*at most", stride=(2**63 - 2, 1)),
    bad("groups of c", tensors(X, (6, 1, 3, 3)), RuntimeError, "conv2d: 4 input channels.*3 groups", groups=3),
    bad("groups of m", tensors(X, (5, 2, 3, 3)), RuntimeError, "conv2d: 5 filters.*2 groups", groups=2),
    bad("dtype", lambda d: tuple(t.int() for t in tensors(X, W)(d)), TypeError, "conv2d: .*int32"),
    bad(
        "dtypes",
        lambda d: (torch.ones(X, device=d), torch.ones(W, device=d).double()),
        RuntimeError,
        "conv2d: .*Double",
    ),
    bad("algorithm", tensors(X, W), ValueError, "conv2d: .*'no_such'.*auto", algorithm="no_such"),
)
common = {
    "pattern": "conv2d",
    "dtypes": FLOATS,
    "samples": SAMPLES,
    "edges": EDGES,
    "empty": EMPTY,
    "special": (float("nan"),),
    "autocast": "lower",
}


def ones_of_half(channels: int, side: int) -> Large:
    """Makes more than 2^31 input pixels and 2^34 unrolled elements; 9 * channels is rounded to float16 once."""

    def make():
        shapes = (1, channels, side, side), (1, channels, 3, 3)
        x, weight = (torch.ones(shape, dtype=torch.float16, device="cuda") for shape in shapes)
        return Sample((x, weight), {"padding": (1, 1)})

    def check(sample, y):
        inside, edge, corner = (torch.tensor(taps * channels, dtype=torch.float16) for taps in (9, 6, 4))
        want = torch.full((side, side), inside.item(), dtype=torch.float16)
        want[[0, -1]] = want[:, [0, -1]] = edge
        want[0, 0] = want[0, -1] = want[-1, 0] = want[-1, -1] = corner
        assert_equal(y[0, 0], want, "ones")

    return Large(f"{channels} x {side} x {side} ones", channels * side**2 * 2 / 2**30 + 2, make, check)


def peer(x, weight, bias=None, **window):
    return F.conv2d(x, weight, bias, **window)


SPECS = [
    Spec(
        "conv2d",
        reference=fprop,
        inputs=fprop_inputs,
        grown=GROWN,
        bound=bounded(fprop),
        norm_bound=fprop_norms,
        bad=BAD,
        large=(ones_of_half(514, 2048),),
        sized=lambda n: problem((max(1, n // 784 // 6), 1, 32, 32), (6, 1, 5, 5)),
        named={
            "C1 b128": problem((128, 1, 32, 32), (6, 1, 5, 5), bias=True),
            "C3 b128": problem((128, 6, 14, 14), (16, 6, 5, 5), bias=True),
            "C5 b128": problem((128, 16, 5, 5), (120, 16, 5, 5), bias=True),
        },
        peers={"torch": peer},
        flops=lambda sample, y: 2 * y.numel() * sample.args[1][0].numel(),
        **common,
    ),
    Spec(
        "conv2d_dgrad",
        reference=dgrad,
        inputs=dgrad_inputs,
        grown=MORE_MAPS,
        bound=bounded(dgrad),
        norm_bound=dgrad_norms,
        bad=(
            bad("sizes", tensors((2, 6, 4, 5), W, list(X)), RuntimeError, "conv2d_dgrad: grad must have.*4, 4.*4, 5"),
            bad("rank", tensors((2, 6, 4, 4), W, list(X[1:])), RuntimeError, "conv2d_dgrad: .*4 dimensions"),
        ),
        flops=lambda sample, dx: 2 * sample.args[0].numel() * sample.args[1][0].numel(),
        **common,
    ),
    Spec(
        "conv2d_wgrad",
        reference=wgrad,
        inputs=wgrad_inputs,
        grown=GROWN,
        bound=bounded(wgrad),
        norm_bound=wgrad_norms,
        bad=(
            bad("sizes", tensors((2, 6, 4, 5), X, [3, 3]), RuntimeError, "conv2d_wgrad: grad must have.*4, 4.*4, 5"),
            bad("kernel", tensors((2, 6, 4, 4), X, [0, 3]), RuntimeError, "conv2d_wgrad: kernel size.*at least 1.*0"),
        ),
        flops=lambda sample, dw: 2 * sample.args[0].numel() * dw[0].numel(),
        **common,
    ),
]
