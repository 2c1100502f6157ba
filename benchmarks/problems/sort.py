"""Sorts of keys, of pairs, of rows and of segments, and merges."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

import torch_patterns as tp
from problems import LENGTHS, Figure, cub, of_bytes, offsets, one_thread
from problems.segmented import keys as segment_keys


def words(*shape: int, dtype=torch.int32) -> Tensor:
    """Random bits, all of them; of a float, random numbers of [0, 1)."""
    if dtype.is_floating_point:
        return torch.rand(shape, dtype=dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=dtype)


def torch_keys(x: Tensor) -> Tensor:
    return torch.sort(x, stable=True)[0]


def torch_pairs(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    keys, order = torch.sort(keys, stable=True)
    return keys, values.gather(-1, order)


# CUB's results of two tensors lie side by side in one.
CUB_PAIRS = cub("sort_pairs_int32", lambda k, v: k.new_empty(8 * k.numel(), dtype=torch.uint8))
CUB_SORT = cub("sort_float32", lambda x, positions: x.new_empty(12 * x.numel(), dtype=torch.uint8))
CUB_MERGE = cub("merge_int32", lambda a, b: a.new_empty(a.numel() + b.numel()))
CUB_SEGMENTS = cub("segment_sort_int32", lambda _, x: torch.empty_like(x))


def cub_pairs(keys: Tensor, values: Tensor) -> list[Tensor]:
    n = keys.numel()
    return of_bytes(CUB_PAIRS(keys, values), (n, keys.dtype), (n, values.dtype))


@functools.lru_cache(maxsize=1)
def positions(n: int) -> Tensor:
    return torch.arange(n)


def cub_sort(x: Tensor) -> list[Tensor]:
    n = x.numel()
    return of_bytes(CUB_SORT(x, positions(n)), (n, torch.int64), (n, x.dtype))[::-1]


def torch_segments(x: Tensor, offsets: Tensor) -> Tensor:
    """By key, then by segment, as one does with torch alone."""
    keys, order = torch.sort(x, stable=True)
    return keys[torch.sort(segment_keys(offsets)[order], stable=True)[1]]


def halves(n: int) -> tuple[Tensor, Tensor]:
    return words(n // 2).sort()[0], words(n // 2).sort()[0]


def torch_merge(a: Tensor, b: Tensor) -> Tensor:
    return torch_keys(torch.cat([a, b]))


def numpy_merge(a, b):
    return np.sort(np.concatenate([a, b]), kind="stable")


def keys(sizes: list[int], cpu: bool, dtype=torch.int32) -> list[Figure]:
    name = str(dtype).removeprefix("torch.")
    peers = {"torch": torch_keys} | (one_thread(np.sort) if cpu else {"cub": cub(f"sort_keys_{name}")})
    data = lambda n: lambda: (words(n, dtype=dtype),)  # noqa: E731
    return [Figure(f"sort_keys {n}", data(n), tp.sort_keys, torch_keys, peers) for n in sizes]


def keys_of_rows(rows: int, n: int, cpu: bool) -> Figure:
    peers = {"torch": torch_keys} | (one_thread(np.sort) if cpu else {})
    return Figure(f"sort_keys {rows} x {n}", lambda: (words(rows, n),), tp.sort_keys, torch_keys, peers)


def rows(shapes: list[tuple[int, int]]) -> list[Figure]:
    sort = lambda x: torch.sort(x, stable=True)  # noqa: E731
    data = lambda shape: lambda: (words(*shape, dtype=torch.float32),)  # noqa: E731
    return [Figure(f"sort {r} x {n}", data((r, n)), tp.sort, sort, {"torch": sort}) for r, n in shapes]


def co_ranks(n: int) -> Figure:
    """How many of the k least keys are a's, for random k. torch has no such function, but could search for the key that
    has rank k, if it were known: this reads one sequence instead of two."""

    def searched(a: Tensor, b: Tensor, ranks: Tensor) -> Tensor:
        return torch.searchsorted(a, merged(a, b)[ranks])

    @functools.lru_cache(maxsize=1)
    def merged(a: Tensor, b: Tensor) -> Tensor:
        return torch_merge(a, b)

    def want(a: Tensor, b: Tensor, ranks: Tensor) -> Tensor:
        order = torch.sort(torch.cat([a, b]), stable=True)[1]  # of equal keys, a's are first
        before = (order < a.numel()).cumsum(0)
        return torch.cat([before.new_zeros(1), before])[ranks]

    return Figure(
        f"co_rank of 2^20 ranks in {n}",
        lambda: (*halves(n), torch.randint(0, n, (2**20,))),
        lambda a, b, ranks: tp.co_rank(ranks, a, b),
        want,
        {"torch.searchsorted of known keys": searched},
        exact_peers=False,  # of equal keys
    )


def figures(device: str) -> list[Figure]:
    cpu = device == "cpu"
    n = 2**24 if cpu else 2**28
    sort = lambda x: torch.sort(x, stable=True)  # noqa: E731
    peers = {"torch": torch_merge} | (one_thread(numpy_merge) if cpu else {"cub": CUB_MERGE})
    problems = [
        *keys([2**24] if cpu else [2**28, 2**24, 2**20, 2**16], cpu),
        *keys([2**22 if cpu else 2**24], cpu, torch.int64),
        keys_of_rows(2**14, 256, cpu),
        Figure(
            f"sort_pairs {n}",
            lambda: (words(n), words(n)),
            tp.sort_pairs,
            torch_pairs,
            {"torch": torch_pairs, "cub": cub_pairs},
        ),
        Figure(
            f"sort {n}",
            lambda: (words(n, dtype=torch.float32),),
            tp.sort,
            sort,
            {"torch": sort, "cub": cub_sort},
        ),
        *rows([(2**16, 64), (64, 2**16)] if cpu else [(2**20, 64), (65536, 1024), (1024, 65536), (64, 2**20)]),
        *(
            Figure(f"merge {size}", lambda size=size: halves(size), tp.merge, torch_merge, peers)
            for size in ([n] if cpu else [2**28, 2**24, 2**20])
        ),
    ]
    problems.append(co_ranks(2**20 if cpu else 2**24))
    segmented = 2**22 if cpu else 2**26
    problems += [
        Figure(
            f"segment_sort {segmented} {kind}",
            lambda kind=kind: (words(segmented), offsets(kind, segmented)),
            tp.segment_sort,
            torch_segments,
            {"torch": torch_segments, "cub": lambda x, o: CUB_SEGMENTS(o, x)},
        )
        for kind in LENGTHS
    ]
    return problems
