"""Reductions of everything, of rows and of columns."""

from __future__ import annotations

import torch

import torch_patterns as tp
from problems import Figure, cub, integers


def reductions(sizes: list[int], shapes: list[tuple[int, int, int]], ops: tuple[str, ...]) -> list[Figure]:
    figures = [
        Figure(
            f"reduce sum {n}",
            lambda n=n: (integers(n),),
            tp.reduce,
            lambda x: x.long().sum(),
            {"torch": torch.sum, "cub": cub("reduce_sum_float32", lambda x, _: x.new_empty(()))},
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
            {"torch": lambda x, op=op, dim=dim: reducers[op](x, dim)},
            exact_peers=op != "argmax",  # of equal values, torch takes any
        )
        for op in ops
        for rows, columns, dim in shapes
    ]
    return figures


def figures(device: str) -> list[Figure]:
    if device == "cpu":
        return reductions([2**26], [(2**13, 2**13, 0), (2**13, 2**13, 1)], ("sum", "max"))
    shapes = [(2**14, 2**14, 0), (2**14, 2**14, 1), (2**22, 16, 1)]
    return reductions([2**28, 2**20, 2**16], shapes, ("sum", "max"))
