"""Scans along any dim, and their backward pass."""

from __future__ import annotations

import math

import torch

import torch_patterns as tp
from problems import Figure, compiled, cub, gradient, integers


def scans(sizes: list[int], strided: list[tuple[int, int, int]], backward: int, halves: tuple = ()) -> list[Figure]:
    figures = [
        Figure(
            f"scan sum {n}",
            lambda n=n: (integers(n),),
            tp.scan,
            lambda x: x.long().cumsum(0),
            {"torch": lambda x: torch.cumsum(x, 0), "cub": cub("scan_sum_float32")},
        )
        for n in sizes
    ]
    figures += [
        Figure(
            f"scan sum {sizes[0]}",
            lambda dtype=dtype: (integers(sizes[0], low=-1, high=1, dtype=dtype),),
            tp.scan,
            lambda x: x.long().cumsum(0).to(x.dtype),
            {"torch": lambda x: torch.cumsum(x, 0)}
            | ({"cub": cub("scan_sum_bfloat16")} if dtype == torch.bfloat16 else {}),
            exact_peers=False,
        )
        for dtype in halves
    ]
    figures.append(
        Figure(
            f"scan max {sizes[0]}",
            lambda: (integers(sizes[0]) + torch.arange(sizes[0]) * 4096 // sizes[0],),
            lambda x: tp.scan(x, op="max"),
            lambda x: cub("scan_max_float32")(x) if x.is_cuda else x.cummax(0)[0],
            {"torch, with indices": lambda x: torch.cummax(x, 0)[0], "cub": cub("scan_max_float32")},
        )
    )
    figures += [
        Figure(
            f"scan sum {rows} x {columns} dim {dim}",
            lambda rows=rows, columns=columns: (integers(rows, columns),),
            lambda x, dim=dim: tp.scan(x, dim),
            lambda x, dim=dim: x.movedim(dim, -1).long().contiguous().cumsum(-1).movedim(-1, dim),
            {
                "torch": lambda x, dim=dim: torch.cumsum(x, dim),
                "torch.compile": compiled(lambda x, dim=dim: torch.cumsum(x, dim)),
            }
            | (
                {"torch, transposed and back": lambda x: x.mT.contiguous().cumsum(1).mT.contiguous()}
                if dim == 0
                else {}
            ),
        )
        for rows, columns, dim in strided
    ]
    figures.append(
        Figure(
            f"scan sum backward {backward}",
            lambda: (integers(backward), integers(backward)),
            gradient(tp.scan),
            lambda x, g: g.flip(0).long().cumsum(0).flip(0),
            {"torch": gradient(lambda x: torch.cumsum(x, 0))},
            unread=1,
        )
    )
    return figures


def extrema(shapes: list[tuple[tuple[int, ...], int]]) -> list[Figure]:
    """Of distinct values, because of equal ones ours gives the first, and torch the last."""
    return [
        Figure(
            f"scan_with_indices max {' x '.join(map(str, shape))}{f' dim {dim}' if len(shape) > 1 else ''}",
            lambda shape=shape: (torch.randperm(math.prod(shape)).float().view(shape),),
            lambda x, dim=dim: tp.scan_with_indices(x, dim),
            lambda x, dim=dim: x.cpu().cummax(dim),
            {"torch": lambda x, dim=dim: torch.cummax(x, dim)},
        )
        for shape, dim in shapes
    ]


def figures(device: str) -> list[Figure]:
    if device == "cpu":
        lines = [((2**22,), 0), ((2048, 2048), 1), ((2048, 2048), 0)]
        return scans([2**26], [(4096, 16384, 1), (4096, 16384, 0), (2**20, 32, 0)], 2**26) + extrema(lines)
    strided = [(2**20, 32, 0), (2**16, 1024, 0), (4096, 16384, 1), (4096, 16384, 0), (2**20, 2, 0)]
    lines = [((2**24,), 0), ((4096, 4096), 1), ((4096, 4096), 0)]
    return scans([2**28, 2**24, 2**20], strided, 2**26, (torch.bfloat16, torch.float16)) + extrema(lines)
