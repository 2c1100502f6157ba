"""Compaction: the elements that a mask keeps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import torch_patterns as tp
from problems import Figure, cub, integers, of_bytes, one_thread

CUB_SELECT = cub("select_float32", lambda x, _: x.new_empty(4 * x.numel() + 8, dtype=torch.uint8))


def cub_select(x: Tensor, mask: Tensor) -> Tensor:
    """CUB leaves room for all elements, and says how many there are."""
    count, kept = of_bytes(CUB_SELECT(x, mask), (1, torch.int64), (x.numel(), x.dtype))
    return kept[: int(count)]


def compactions(n: int, on_cuda: bool) -> list[Figure]:
    peers = {"torch": lambda x, mask: x[mask]}
    peers |= {"cub": cub_select} if on_cuda else one_thread(lambda x, mask: np.compress(mask, x))
    return [
        Figure(
            f"compact {n}, {share} % kept",
            lambda share=share: (integers(n), torch.rand(n) < share / 100),
            tp.compact,
            lambda x, mask: x.gather(0, mask.nonzero()[:, 0]),
            peers,
        )
        for share in (5, 50, 95)
    ]


def figures(device: str) -> list[Figure]:
    return compactions(2**26 if device == "cuda" else 2**24, device == "cuda")
