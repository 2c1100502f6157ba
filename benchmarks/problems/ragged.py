"""What else is done with segments: the k greatest, recurrences, products with a matrix each, logsumexp and deviation.

torch has most of it for rows of equal length only; where segments are so, it is timed as a peer ("torch rows").
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

import torch_patterns as tp
from problems import LENGTHS, Figure, cub, integers, offsets, segment_of
from problems.segmented import recurrences

CUB_RECURRENCE = cub("linear_recurrence_float32")


def by_rows(f: Callable[[Tensor], Tensor | tuple[Tensor, ...]], kind: str) -> dict[str, Callable]:
    """torch's function of a matrix as a peer, if the segments of this kind are the rows of one."""
    if not kind.startswith("of "):
        return {}
    length = int(kind.removeprefix("of "))
    return {"torch rows": lambda x, o: f(x.view(-1, length))}


# ---- the k greatest


def sorted_rows(x: Tensor, o: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """By two stable sorts, as one does with torch alone: of the values, then of their segments."""
    order = x.sort(descending=True, stable=True)[1]
    order = order[segment_of(o)[order].sort(stable=True)[1]]
    at = o[:-1, None] + torch.arange(k, device=x.device)
    exists = at < o[1:, None]
    index = order[at.clamp(max=x.numel() - 1)]
    return torch.where(exists, x[index], -torch.inf), torch.where(exists, index, -1)


def greatest(n: int, k: int) -> list[Figure]:
    return [
        Figure(
            f"segment_topk {k} of {n} {kind}",
            lambda kind=kind: (torch.rand(n), offsets(kind, n)),
            lambda x, o: tp.segment_topk(x, o, k),
            lambda x, o: sorted_rows(x, o, k),
            {"torch": lambda x, o: sorted_rows(x, o, k)} | by_rows(lambda x: x.topk(k), kind),
            exact_peers=False,  # rows of torch.topk are numbered by themselves, and equal values are in any order
        )
        for kind in LENGTHS
    ]


# ---- recurrences


def without_past(a: Tensor, o: Tensor) -> Tensor:
    return a.index_fill(0, o[:-1], 0)


def recurrences_of_segments(n: int) -> list[Figure]:
    return [
        Figure(
            f"segment_recurrence {n} {kind}",
            lambda kind=kind: (integers(n, low=0, high=1), integers(n), offsets(kind, n)),
            tp.segment_recurrence,
            lambda a, b, o: recurrences(without_past(a, o), b),
            {"cub": lambda a, b, o: CUB_RECURRENCE(without_past(a, o), b)},
        )
        for kind in LENGTHS
    ]


# ---- products


def products(n: int, inner: int, segments: int) -> list[Figure]:
    """Rows of mixed experts: segments of random lengths, of which torch has a product in bfloat16 on CUDA; and of equal
    ones."""

    def data(equal: bool, dtype: torch.dtype) -> tuple[Tensor, ...]:
        ends = torch.arange(1, segments) * (n // segments) if equal else torch.randint(0, n, (segments - 1,)).sort()[0]
        o = torch.cat([torch.tensor([0]), ends, torch.tensor([n])])
        x, weights = integers(n, inner, low=-2, high=2), integers(segments, inner, inner, low=-2, high=2)
        return x.to(dtype), o, weights.to(dtype)

    def one_by_one(x: Tensor, o: Tensor, weights: Tensor) -> Tensor:
        return torch.cat([rows @ w for rows, w in zip(x.tensor_split(o[1:-1].cpu()), weights, strict=True)])

    def want(x: Tensor, o: Tensor, weights: Tensor) -> Tensor:
        return one_by_one(x.double(), o, weights.double()).to(x.dtype)

    def at_once(x: Tensor, o: Tensor, weights: Tensor) -> Tensor:
        return torch.bmm(x.view(segments, -1, inner), weights).view(n, inner)

    def grouped(x: Tensor, o: Tensor, weights: Tensor) -> Tensor:
        return torch._grouped_mm(x, weights, offs=o[1:].int())

    on_cuda = torch.get_default_device().type == "cuda"
    return [
        Figure(
            f"segment_matmul {n} x {inner}, {segments} {'equal' if equal else 'random'} segments",
            functools.partial(data, equal, dtype),
            tp.segment_matmul,
            want,
            {"torch": one_by_one}
            | ({"torch bmm": at_once} if equal else {})
            | ({"torch grouped_mm": grouped} if dtype == torch.bfloat16 and on_cuda else {}),
        )
        for dtype in (torch.float32, torch.bfloat16)
        for equal in (False, True)
    ]


# ---- reductions that torch has no scatter for


def logsumexp(x: Tensor, o: Tensor) -> Tensor:
    count, index = o.numel() - 1, segment_of(o)
    most = x.new_full((count,), -torch.inf).scatter_reduce(0, index, x, "amax")
    return most + x.new_zeros(count).index_add(0, index, (x - most[index]).exp()).log()


def deviation(x: Tensor, o: Tensor) -> Tensor:
    count, index, lengths = o.numel() - 1, segment_of(o), o.diff()
    mean = x.new_zeros(count).index_add(0, index, x) / lengths
    squares = x.new_zeros(count).index_add(0, index, (x - mean[index]).square())
    return (squares / (lengths - 1)).sqrt()


def reductions(n: int) -> list[Figure]:
    peers = {"logsumexp": (logsumexp, lambda x: x.logsumexp(1)), "std": (deviation, lambda x: x.std(1))}
    return [
        Figure(
            f"segment_reduce {op} {n} {kind}",
            lambda kind=kind: (integers(n), offsets(kind, n)),
            lambda x, o, op=op: tp.segment_reduce(x, o, op=op),
            lambda x, o, ragged=ragged: ragged(x.double(), o),
            {"scatter": ragged} | by_rows(of_rows, kind),
            exact_peers=False,
            bound=1e-5,
        )
        for op, (ragged, of_rows) in peers.items()
        for kind in LENGTHS
    ]


def figures(device: str) -> list[Figure]:
    n = 2**26 if device == "cuda" else 2**22
    rows = 2**18 if device == "cuda" else 2**13
    return [
        *greatest(n, 8),
        *recurrences_of_segments(n),
        *products(rows, 256 if device == "cuda" else 128, 64),
        *reductions(n),
    ]
