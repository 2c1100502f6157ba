"""Reductions of everything, of rows and of columns."""

from __future__ import annotations

import torch

import torch_patterns as tp
from problems import Figure, compiled, cub, integers


def reductions(sizes: list[int], shapes: list[tuple[int, int, int]], ops: tuple[str, ...]) -> list[Figure]:
    figures = [
        Figure(
            f"reduce sum {n}",
            lambda n=n: (integers(n),),
            tp.reduce,
            lambda x: x.long().sum(),
            {
                "torch": torch.sum,
                "torch.compile": compiled(torch.sum),
                "cub": cub("reduce_sum_float32", lambda x, _: x.new_empty(())),
            },
        )
        for n in sizes
    ]
    reducers = {"sum": torch.sum, "max": torch.amax, "argmax": torch.argmax, "logsumexp": torch.logsumexp}
    figures += [
        Figure(
            f"reduce {op} {rows} x {columns} dim {dim}",
            lambda rows=rows, columns=columns: (integers(rows, columns),),
            lambda x, op=op, dim=dim: tp.reduce(x, dim, op=op),
            lambda x, op=op, dim=dim: reducers[op](x.double(), dim),
            {
                "torch": lambda x, op=op, dim=dim: reducers[op](x, dim),
                "torch.compile": compiled(lambda x, op=op, dim=dim: reducers[op](x, dim)),
            },
            exact_peers=op != "argmax",  # of equal values, torch takes any
        )
        for op in ops
        for rows, columns, dim in shapes
    ]
    return figures


def images(n: int, channels: int, side: int) -> list[Figure]:
    """Sums over dims that are apart: of all pixels of a channel, and of the pixels of a column in all channels."""
    shape = (n, channels, side, side)
    layouts = {"": torch.contiguous_format, " channels_last": torch.channels_last}
    return [
        Figure(
            f"reduce sum {' x '.join(map(str, shape))}{layout} dims {' '.join(map(str, dims))}",
            lambda memory_format=memory_format: (integers(*shape).contiguous(memory_format=memory_format),),
            lambda x, dims=dims: tp.reduce(x, dims),
            lambda x, dims=dims: x.double().sum(dims),
            {"torch": lambda x, dims=dims: x.sum(dims), "torch.compile": compiled(lambda x, dims=dims: x.sum(dims))},
        )
        for layout, memory_format in layouts.items()
        for dims in ((0, 2, 3), (1, 2))
    ]


def figures(device: str) -> list[Figure]:
    if device == "cpu":
        return reductions([2**26], [(2**13, 2**13, 0), (2**13, 2**13, 1)], ("sum", "max"))
    shapes = [(2**14, 2**14, 0), (2**14, 2**14, 1), (2**22, 16, 1)]
    return reductions([2**28, 2**20, 2**16], shapes, ("sum", "max")) + images(64, 256, 56)
