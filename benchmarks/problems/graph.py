"""Breadth-first search: of small-world graphs, few large levels, and of a grid, many small ones."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

import torch_patterns as tp
from problems import Figure
from torch_patterns.graph import grid, rmat


def frontier_search(ptrs: Tensor, cols: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Levels and smallest parents by torch's operators, one level at a time."""
    none = torch.iinfo(cols.dtype).max
    levels = torch.full((ptrs.numel() - 1,), -1, dtype=torch.int32, device=ptrs.device)
    parents = torch.full_like(levels, none, dtype=cols.dtype)
    levels[source], parents[source] = 0, source.to(cols.dtype)
    frontier, level = source, 0
    while frontier.numel() > 0:
        level += 1
        begins, lengths = ptrs[frontier].long(), (ptrs[frontier + 1] - ptrs[frontier]).long()
        shift = begins - (lengths.cumsum(0) - lengths)
        edges = torch.arange(int(lengths.sum()), device=ptrs.device) + shift.repeat_interleave(lengths)
        to = cols[edges].long()
        fresh = levels[to] < 0
        to, via = to[fresh], frontier.repeat_interleave(lengths)[fresh].to(cols.dtype)
        parents.scatter_reduce_(0, to, via, "amin")
        levels[to] = level
        frontier = to.unique()
    return levels, parents.masked_fill(levels < 0, -1)


def search(ptrs: Tensor, cols: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    return tp.bfs(tp.Graph(ptrs, cols, None, None, True), source)


@functools.lru_cache(maxsize=1)
def scipy_graph(ptrs: Tensor, cols: Tensor):
    import scipy.sparse

    n = ptrs.numel() - 1
    return scipy.sparse.csr_array((torch.ones(cols.numel()).numpy(), cols.numpy(), ptrs.numpy()), shape=(n, n))


def scipy_search(ptrs: Tensor, cols: Tensor, source: Tensor) -> Tensor:
    """Its parents are those found first."""
    from scipy.sparse.csgraph import breadth_first_order

    return torch.from_numpy(breadth_first_order(scipy_graph(ptrs, cols), int(source))[1])


def figures(device: str) -> list[Figure]:
    peers = {"torch frontier": frontier_search} if device == "cuda" else {"scipy, 1 thread": scipy_search}

    def small_world(scale: int, seed: int) -> tuple[Tensor, ...]:
        graph = rmat(scale, 16, index_dtype=torch.int32, device=device)
        roots = (graph.row_ptrs.diff() > 0).nonzero()[:, 0]
        return graph.row_ptrs, graph.col_idx, roots[seed * 7919 % roots.numel()][None]

    def mesh(side: int) -> tuple[Tensor, ...]:
        graph = grid(side, side, index_dtype=torch.int32, device=device)
        return graph.row_ptrs, graph.col_idx, torch.zeros(1, dtype=torch.int64, device=device)

    problems = {
        f"rmat {scale} root {seed}": functools.partial(small_world, scale, seed)
        for scale in ((20, 24) if device == "cuda" else (20,))
        for seed in (1, 2, 3)
    }
    problems["grid 2048 x 2048"] = functools.partial(mesh, 2048)
    # A search need not look at every edge.
    return [
        Figure(f"bfs {name}", make, search, frontier_search, peers, unread=2, exact_peers=device == "cuda")
        for name, make in problems.items()
    ]
