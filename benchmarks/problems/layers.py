"""The layers of chapter 16: convolutions, pooling, linear layers, losses, each forward and backward.

torch runs in the precision of ours (no TF32), and cuDNN picks the fastest of its algorithms. "nhwc" rows are
channels_last on both sides: compare with the best row of the peer. Gradients are of all inputs, over a graph that is
built once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_patterns as tp
from problems import Figure, compiled, gradient, integers, value_and_gradient


def exact(f: Callable) -> Callable:
    """f in float64, rounded once to the dtype of the tensors."""

    def call(*tensors: Tensor):
        with torch.backends.cudnn.flags(benchmark=False, allow_tf32=False):
            out = f(*(t.double() if t.is_floating_point() else t for t in tensors))
        dtype = tensors[0].dtype
        return tuple(y.to(dtype) for y in out) if isinstance(out, tuple) else out.to(dtype)

    return call


def both_ways(
    name: str,
    make: Callable,
    ours: Callable,
    peer: Callable,
    shape: tuple[int, ...],
    *,
    want: Callable | None = None,
    bounds: tuple[float, float] = (0.0, 0.0),
    constants: int = 0,
    fuses: bool = False,
) -> list[Figure]:
    """A layer, whose result has this shape, and its gradients. `want` is the peer if it computes the same. If the peer
    launches several kernels, torch.compile, which `fuses` them, is a peer too, and both passes are timed together: the
    compiler may let the first do work of the second."""
    want = want or peer

    def with_gradient() -> tuple[Tensor, ...]:
        tensors = make()
        last = tensors[0].dim() == 4 and not tensors[0].is_contiguous()
        return *tensors, maps(*shape, last=last, dtype=tensors[0].dtype)

    operator, problem = name.split(" ", 1)
    forward = {"torch": peer} | ({"torch.compile": compiled(peer)} if fuses else {})
    figures = [
        Figure(name, make, ours, exact(want), forward, exact_peers=False, bound=bounds[0]),
        Figure(
            f"{operator} backward {problem}",
            with_gradient,
            gradient(ours, constants),
            exact(gradient(want, constants)),
            {"torch": gradient(peer, constants)},
            exact_peers=False,
            bound=bounds[1],
        ),
    ]
    if fuses:
        both = functools.partial(value_and_gradient, constants=constants)
        figures.append(
            Figure(
                f"{operator} with gradient {problem}",
                with_gradient,
                both(ours),
                exact(both(want)),
                {"torch": both(peer), "torch.compile": both(compiled(peer))},
                exact_peers=False,
                bound=max(bounds),
            )
        )
    return figures


def maps(*shape: int, last: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    x = integers(*shape, low=-2, high=2, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last) if last else x


# name: (channels, rows and columns, filters, their size, padding)
CONVOLUTIONS = {
    "C1": (1, 32, 6, 5, 0),
    "C3": (6, 14, 16, 5, 0),
    "64->64 3x3 of 56x56": (64, 56, 64, 3, 1),
    "128->128 3x3 of 28x28": (128, 28, 128, 3, 1),
    "256->256 3x3 of 14x14": (256, 14, 256, 3, 1),
    "64->256 1x1 of 56x56": (64, 56, 256, 1, 0),
    "3->32 3x3 of 224x224": (3, 224, 32, 3, 1),
}


def convolution(kind: str, batch: int, dtype: torch.dtype, last: bool) -> list[Figure]:
    c, size, k, r, padding = CONVOLUTIONS[kind]
    out = size + 2 * padding - r + 1
    return both_ways(
        f"conv2d {kind}, batch {batch}, {str(dtype).removeprefix('torch.')}{' nhwc' if last else ''}",
        lambda: (maps(batch, c, size, size, last=last, dtype=dtype), maps(k, c, r, r, last=last, dtype=dtype)),
        functools.partial(tp.conv2d, padding=padding),
        functools.partial(F.conv2d, padding=padding),
        (batch, k, out, out),
    )


def pools(shape: tuple[int, int, int, int], small: tuple[int, int, int, int], last: bool = False) -> list[Figure]:
    n, c, h, w = shape
    rows = []
    for op, kernel in (("max_pool2d", 3), ("max_pool2d", 2), ("avg_pool2d", 2)):
        size = ((h - kernel) // 2 + 1, (w - kernel) // 2 + 1)
        rows += both_ways(
            f"{op} {kernel}x{kernel} stride 2 of {'x'.join(map(str, shape))}{' nhwc' if last else ''}",
            lambda: (maps(*shape, last=last),),
            functools.partial(getattr(tp, op), kernel_size=kernel, stride=2),
            functools.partial(getattr(F, op), kernel_size=kernel, stride=2),
            (n, c, *size),
        )
    n, c, h, w = small
    rows += both_ways(
        f"subsample2d 2x2 of {'x'.join(map(str, small))}",
        lambda: (maps(*small), integers(c)),
        lambda x, b: tp.subsample2d(x, b, 2, "relu"),
        lambda x, b: torch.relu(F.avg_pool2d(x, 2) + b[:, None, None]),
        (n, c, h // 2, w // 2),
        fuses=True,
    )
    return rows


def linears(shapes: list[tuple[int, int, int]]) -> list[Figure]:
    return [
        figure
        for batch, before, after in shapes
        for figure in both_ways(
            f"linear {before}->{after}, batch {batch}",
            lambda batch=batch, before=before, after=after: (
                integers(batch, before, low=-2, high=2),
                integers(after, before, low=-2, high=2),
                integers(after),
            ),
            tp.linear,
            F.linear,
            (batch, after),
        )
    ]


def losses(rows: int, classes: int, n: int) -> list[Figure]:
    figures = both_ways(
        f"cross_entropy {rows} x {classes}",
        lambda: (integers(rows, classes), torch.randint(classes, (rows,))),
        tp.cross_entropy,
        F.cross_entropy,
        (),
        bounds=(1e-4, 1e-5 / rows),
        fuses=True,
    )
    for name, peer, want in (
        ("squared_error", F.mse_loss, lambda y, t: F.mse_loss(y, t, reduction="sum") / 2),  # the book's has a half
        ("absolute_error", F.l1_loss, None),
    ):
        figures += both_ways(
            f"{name} sum {n}",
            lambda: (integers(n), integers(n)),
            functools.partial(getattr(tp, name), reduction="sum"),
            functools.partial(peer, reduction="sum"),
            (),
            want=want,
            bounds=(n * 1e-4, 0.0),
            constants=1,
            fuses=True,
        )
    return figures


def figures(device: str) -> list[Figure]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    single, half = torch.float32, torch.bfloat16
    if device == "cpu":
        batches = {"C1": 256, "C3": 256, "64->64 3x3 of 56x56": 4, "64->256 1x1 of 56x56": 4, "3->32 3x3 of 224x224": 4}
        rows = [f for kind, batch in batches.items() for f in convolution(kind, batch, single, False)]
        rows += convolution("64->64 3x3 of 56x56", 4, single, True) + convolution(
            "3->32 3x3 of 224x224", 4, single, True
        )
        rows += pools((4, 64, 112, 112), (256, 6, 28, 28))
        return rows + linears([(128, 120, 84), (4096, 400, 120), (1024, 1024, 1024)]) + losses(4096, 1000, 2**24)
    rows = []
    for kind, batch in (("C1", 4096), ("C3", 4096), ("C1", 128), ("C3", 128)):
        rows += convolution(kind, batch, single, False)
    for kind in list(CONVOLUTIONS)[2:]:
        for last in (False, True):
            rows += convolution(kind, 64, single, last) + convolution(kind, 64, half, last)
    rows += pools((64, 64, 112, 112), (4096, 6, 28, 28)) + pools((64, 64, 112, 112), (4096, 6, 28, 28), True)
    rows += linears([(128, 120, 84), (4096, 120, 84), (4096, 400, 120), (512, 512, 512)])
    return rows + losses(2**16, 1000, 2**26)
