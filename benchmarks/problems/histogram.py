"""Histograms of integers: few bins, and more than a block's shared memory holds."""

from __future__ import annotations

import numpy as np
import torch

import torch_patterns as tp
from problems import Figure, cub, one_thread


def histograms(n: int, bins: tuple[int, ...], on_cuda: bool) -> list[Figure]:
    def peers(b: int) -> dict:
        some = {"torch.bincount": lambda x: torch.bincount(x, minlength=b)}
        if not on_cuda:
            return some | one_thread(lambda x: np.bincount(x, minlength=b))
        return some | {
            "torch.histc": lambda x: torch.histc(x, b, 0, b - 1),
            "cub": cub(f"histogram_{b}_bins", lambda x, _: x.new_empty(b)),
        }

    return [
        Figure(
            f"histogram {n} in {b} bins",
            lambda b=b: (torch.randint(0, b, (n,), dtype=torch.int32),),
            lambda x, b=b: tp.histogram(x, b),
            lambda x, b=b: torch.zeros(b, dtype=torch.int64).index_add(0, x, torch.ones_like(x, dtype=torch.int64)),
            peers(b),
        )
        for b in bins
    ]


def figures(device: str) -> list[Figure]:
    return histograms(2**26 if device == "cuda" else 2**24, (256, 2**16), device == "cuda")
