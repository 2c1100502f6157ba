"""Rows by an index: order and reductions of groups, distinct values, runs; and the softmax of segments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import torch_patterns as tp
from problems import LENGTHS, Figure, compiled, cub, integers, of_bytes, offsets, segment_of


def sums(x: Tensor, index: Tensor, groups: int) -> Tensor:
    return torch.zeros(groups, dtype=torch.int64).index_add(0, index, x.long())


def index_add(groups: int):
    return lambda x, index: x.new_zeros(groups).index_add(0, index, x)


def scatter_reduce(groups: int, op: str):
    return lambda x, index: x.new_zeros(groups).scatter_reduce(0, index, x, op, include_self=False)


def group_reductions(n: int) -> list[Figure]:
    figures = []
    for groups in sorted({16, 2**10, 2**16, 2**20, n // 16}):
        data = lambda g=groups: (integers(n), torch.randint(0, g, (n,)))  # noqa: E731
        figures += [
            Figure(
                f"group_reduce sum {n} to {groups} groups",
                data,
                lambda x, index, g=groups: tp.group_reduce(x, index, g),
                lambda x, index, g=groups: sums(x, index, g),
                {"index_add": index_add(groups), "scatter_reduce": scatter_reduce(groups, "sum")},
            ),
            Figure(
                f"group_reduce max {n} to {groups} groups",
                data,
                lambda x, index, g=groups: tp.group_reduce(x, index, g, op="max"),
                # Of a group without rows ours is -inf, torch's 0: where groups are few there is none.
                lambda x, index, g=groups: torch.full((g,), -torch.inf).scatter_reduce(0, index, x, "amax"),
                {"scatter_reduce": scatter_reduce(groups, "amax")},
                exact_peers=False,
            ),
        ]
    rows = n // 64
    figures.append(
        Figure(
            f"group_reduce sum {rows} x 64 to {rows // 16} groups",
            lambda: (integers(rows, 64), torch.randint(0, rows // 16, (rows,))),
            lambda x, index: tp.group_reduce(x, index, rows // 16),
            lambda x, index: torch.zeros(rows // 16, 64, dtype=torch.int64).index_add(0, index, x.long()),
            {"index_add": lambda x, index: x.new_zeros(rows // 16, 64).index_add(0, index, x)},
        )
    )
    return figures


def orders(n: int) -> list[Figure]:
    def by_sort(index: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        ends = index.bincount(minlength=groups).cumsum(0)
        return index.sort(stable=True)[1], torch.cat([ends.new_zeros(1), ends])

    return [
        Figure(
            f"group_by {n} to {groups} groups",
            lambda g=groups: (torch.randint(0, g, (n,)),),
            lambda index, g=groups: tp.group_by(index, g),
            lambda index, g=groups: by_sort(index, g),
            {"torch": lambda index, g=groups: by_sort(index, g)},
        )
        for groups in (2**10, 2**20)
    ]


CUB_RUNS = cub("run_length_encode_int64", lambda keys, _: keys.new_empty(16 * keys.numel() + 8, dtype=torch.uint8))
CUB_BY_KEY = cub("reduce_by_key_int64", lambda keys, _: keys.new_empty(12 * keys.numel() + 8, dtype=torch.uint8))
CUB_PARTITION = cub("partition_float32", lambda x, _: x.new_empty(4 * x.numel() + 8, dtype=torch.uint8))


def cub_runs(call, dtype: torch.dtype):
    """CUB's keys of runs and their numbers of this dtype, as many as there are: what it returns has room for more."""

    def runs(keys: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        n = keys.numel()
        count, found, numbers = of_bytes(call(keys, values), (1, torch.int64), (n, keys.dtype), (n, dtype))
        runs = int(count)
        return found[:runs], numbers[:runs]

    return runs


def torch_by_key(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    found, inverse = torch.unique_consecutive(keys, return_inverse=True)
    return found, values.new_zeros(found.numel()).index_add(0, inverse, values)


def distinct(n: int) -> list[Figure]:
    data = lambda: (torch.randint(0, 1000, (n,)),)  # noqa: E731
    sorted_keys = lambda: (torch.randint(0, n // 16, (n,)).sort()[0],)  # noqa: E731
    return [
        Figure(
            f"unique {n} of 1000 values",
            data,
            tp.unique,
            lambda x: torch.bincount(x).nonzero().flatten(),
            {"torch": torch.unique},
        ),
        Figure(
            f"unique {n} with inverse and counts",
            data,
            lambda x: tp.unique(x, return_inverse=True, return_counts=True),
            lambda x: torch.unique(x, return_inverse=True, return_counts=True),
            {"torch": lambda x: torch.unique(x, return_inverse=True, return_counts=True)},
        ),
        Figure(
            f"run_length_encode {n}",
            sorted_keys,
            tp.run_length_encode,
            lambda x: torch.unique_consecutive(x, return_counts=True),
            {
                "torch": lambda x: torch.unique_consecutive(x, return_counts=True),
                "cub": cub_runs(CUB_RUNS, torch.int64),
            },
        ),
        Figure(
            f"reduce_by_key sum {n}",
            lambda: (*sorted_keys(), integers(n)),
            tp.reduce_by_key,
            lambda keys, values: torch_by_key(keys, values.long()),
            {"torch": torch_by_key, "cub": cub_runs(CUB_BY_KEY, torch.float32)},
        ),
        Figure(
            f"partition {n}",
            lambda: (integers(n), torch.rand(n) < 0.5),
            lambda x, mask: tp.partition(x, mask)[0],
            lambda x, mask: torch.cat([x[mask], x[~mask]]),
            {"torch": lambda x, mask: torch.cat([x[mask], x[~mask]]), "cub": CUB_PARTITION},
            exact_peers=False,  # CUB reverses the elements that are not selected
        ),
    ]


def halves(x: Tensor, o: Tensor) -> Tensor:
    """The softmax of equal values is one over the length, a power of two where lengths are: exact."""
    lengths = o.diff()
    return (1 / lengths.double()).float().repeat_interleave(lengths).double()


def by_index(x: Tensor, index: Tensor, count: int) -> Tensor:
    """PyG's softmax."""
    most = x.new_zeros(count).scatter_reduce(0, index, x, "amax", include_self=False)
    y = (x - most[index]).exp()
    return y / x.new_zeros(count).scatter_add(0, index, y)[index]


def softmaxes(n: int) -> list[Figure]:
    """Values are read twice, at least where a segment is longer than a tile, and written once. A copy moves two thirds
    of that, so what `percent_of_copy` says of one pass is 1.5 times as much of three."""

    def peer(f: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, o: f(x, segment_of(o), o.numel() - 1)

    return [
        Figure(
            f"segment_softmax {n} {kind}",
            lambda kind=kind: (torch.zeros(n), offsets(kind, n)),
            tp.segment_softmax,
            halves,
            {"scatter": peer(by_index), "torch.compile of scatter": peer(compiled(by_index))},
            exact_peers=False,
        )
        for kind in LENGTHS
    ]


def figures(device: str) -> list[Figure]:
    n = 2**26 if device == "cuda" else 2**24
    return [*group_reductions(n), *orders(n), *distinct(n), *softmaxes(n)]
