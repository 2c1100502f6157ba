"""Segmented reductions and scans whatever the lengths of the segments, and linear recurrences."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

import torch_patterns as tp
from problems import LENGTHS, Figure, cub, gradient, installed, integers, offsets, segment_of


def segment_sums(x: Tensor, offsets: Tensor) -> Tensor:
    totals = torch.cat([x.new_zeros(1, dtype=torch.int64), x.long().cumsum(0)])[offsets]
    return totals.diff()


def segment_scans(x: Tensor, offsets: Tensor) -> Tensor:
    sums = x.long().cumsum(0)
    before = torch.cat([sums.new_zeros(1), sums])[offsets[:-1]]
    return sums - before.repeat_interleave(offsets.diff())


def recurrences(a: Tensor, b: Tensor) -> Tensor:
    """Where a is 0 the past is forgotten, elsewhere it is 1: sums since the last 0."""
    heads = (a == 0).nonzero().flatten()
    heads = torch.cat([heads.new_zeros(1), heads[heads > 0], heads.new_tensor([len(a)])])
    return segment_scans(b, heads)


@functools.lru_cache(maxsize=1)
def keys(offsets: Tensor) -> Tensor:
    """The segment of each element: what CUB asks for instead of offsets."""
    return segment_of(offsets).int()


def index_add(x: Tensor, offsets: Tensor) -> Tensor:
    return x.new_zeros(offsets.numel() - 1).index_add(0, segment_of(offsets), x)


def segments(n: int, backward: int) -> list[Figure]:
    figures = []
    for kind in LENGTHS:
        data = lambda kind=kind: (integers(n), offsets(kind, n))  # noqa: E731
        figures.append(
            Figure(
                f"segment_reduce sum {n} {kind}",
                data,
                tp.segment_reduce,
                segment_sums,
                {
                    "torch": lambda x, o: torch.segment_reduce(x, "sum", offsets=o),
                    "index_add": index_add,
                    "cub": cub("segment_sum_float32", lambda x, o: x.new_empty(o.numel() - 1)),
                },
            )
        )
        figures.append(
            Figure(
                f"segment_scan sum {n} {kind}",
                data,
                tp.segment_scan,
                segment_scans,
                {"cub": lambda x, o: cub("segment_scan_sum_float32")(x, keys(o))},
            )
        )
    for kind in LENGTHS:
        figures.append(
            Figure(
                f"segment_reduce sum backward {backward} {kind}",
                lambda kind=kind: (integers(backward), o := offsets(kind, backward), integers(o.numel() - 1)),
                gradient(tp.segment_reduce),
                lambda x, o, g: g.repeat_interleave(o.diff()),
                {
                    "torch": gradient(lambda x, o: torch.segment_reduce(x, "sum", offsets=o)),
                    "gather": lambda x, o, g: g[segment_of(o)],
                },
                unread=1,
            )
        )
    return figures


def linear_recurrences(n: int) -> list[Figure]:
    def data():
        return integers(n, low=0, high=1), integers(n)

    def gradients(a, b, g):
        adjoint = recurrences(torch.cat([a[1:], a.new_zeros(1)]).flip(0), g.flip(0)).flip(0)
        h = recurrences(a, b)
        return adjoint * torch.cat([h.new_zeros(1), h[:-1]]), adjoint

    return [
        Figure(
            f"linear_recurrence {n}",
            data,
            tp.linear_recurrence,
            recurrences,
            {"cub": cub("linear_recurrence_float32")},
        ),
        Figure(
            f"linear_recurrence backward {n}",
            lambda: (*data(), integers(n)),
            gradient(tp.linear_recurrence),
            gradients,
            {},
        ),
    ]


def recurrences_of_rows(*shape: int) -> list[Figure]:
    """Beside kernels of state-space models, where they are installed (accelerated-scan, mamba_ssm)."""

    def data():
        a = integers(*shape, low=0, high=1)
        a[..., 0] = 0  # so that the rows can be solved as one
        return a, integers(*shape)

    def want(a, b):
        return recurrences(a.flatten(), b.flatten()).view(shape)

    def gradients(a, b, g):
        after = torch.cat([a[..., 1:], torch.zeros_like(a[..., :1])], -1).flip(-1)
        adjoint = want(after, g.flip(-1)).flip(-1)
        h = want(a, b)
        return adjoint * torch.cat([torch.zeros_like(h[..., :1]), h[..., :-1]], -1), adjoint

    peers, peers_backward = {}, {}
    if warp := installed("accelerated_scan.warp", "scan"):
        peers["accelerated-scan"], peers_backward["accelerated-scan"] = warp, gradient(warp)
    if selective := installed("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn"):
        # exp(-a) takes the place of a, and a b that of b: as many bytes, and an exponential more
        ones = functools.cache(lambda: torch.ones(shape[1], 1))
        peers["mamba selective_scan"] = lambda a, b: selective(b, a, -ones(), ones(), ones())
    name = " x ".join(map(str, shape))
    return [
        Figure(f"linear_recurrence {name}", data, tp.linear_recurrence, want, peers, exact_peers=False),
        Figure(
            f"linear_recurrence backward {name}",
            lambda: (*data(), integers(*shape)),
            gradient(tp.linear_recurrence),
            gradients,
            peers_backward,
        ),
    ]


@functools.cache
def associative_scan() -> Callable[[Tensor, Tensor], Tensor]:
    """torch.compile of torch's associative_scan along dim 1."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(x, y):
        return x[0] * y[0], y[0] * x[1] + y[1]

    return torch.compile(lambda a, b: associative_scan(combine, (a, b), 1)[1])


def recurrences_of_columns(*shape: int) -> list[Figure]:
    def data():
        a = integers(*shape, low=0, high=1)
        a[:, 0] = 0  # so that the columns can be solved as one
        return a, integers(*shape)

    def want(a, b):
        a, b = a.mT.contiguous(), b.mT.contiguous()
        return recurrences(a.flatten(), b.flatten()).view(a.shape).mT

    return [
        Figure(
            f"linear_recurrence {' x '.join(map(str, shape))} dim 1",
            data,
            lambda a, b: tp.linear_recurrence(a, b, 1),
            want,
            {"torch": lambda a, b: associative_scan()(a, b)},
        )
    ]


def figures(device: str) -> list[Figure]:
    if device == "cpu":
        return [*segments(2**24, 2**22), *linear_recurrences(2**24)]
    return [
        *segments(2**26, 2**24),
        *linear_recurrences(2**26),
        *recurrences_of_rows(8, 1536, 4096),
        *recurrences_of_columns(8, 2048, 1024),
    ]
