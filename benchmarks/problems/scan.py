"""Scans along any dim, and their backward pass."""

from __future__ import annotations

import torch

import torch_patterns as tp
from problems import Figure, cub, gradient, integers


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
            {"torch": lambda x: torch.cummax(x, 0)[0], "cub": cub("scan_max_float32")},
        )
    )
    figures += [
        Figure(
            f"scan sum {rows} x {columns} dim {dim}",
            lambda rows=rows, columns=columns: (integers(rows, columns),),
            lambda x, dim=dim: tp.scan(x, dim),
            lambda x, dim=dim: x.movedim(dim, -1).long().contiguous().cumsum(-1).movedim(-1, dim),
            {"torch": lambda x, dim=dim: torch.cumsum(x, dim)},
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


def figures(device: str) -> list[Figure]:
    if device == "cpu":
        return scans([2**26], [(4096, 16384, 1), (4096, 16384, 0), (2**20, 32, 0)], 2**26)
    strided = [(2**20, 32, 0), (2**16, 1024, 0), (4096, 16384, 1), (4096, 16384, 0), (2**20, 2, 0)]
    return scans([2**28, 2**24, 2**20], strided, 2**26, (torch.bfloat16, torch.float16))
