"""Beyond breadth-first search: weighted paths, ranks and triangles of a small world and of a grid."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

import torch_patterns as tp
from problems import Figure
from torch_patterns.graph import grid, rmat


def graph_of(ptrs: Tensor, cols: Tensor) -> tp.Graph:
    return tp.Graph(ptrs, cols, None, None, True)


@functools.lru_cache(maxsize=1)
def edges(ptrs: Tensor, cols: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of each edge, int64."""
    return torch.arange(ptrs.numel() - 1, device=ptrs.device).repeat_interleave(ptrs.diff()), cols.long()


@functools.lru_cache(maxsize=1)
def scipy_matrix(ptrs: Tensor, cols: Tensor, values: Tensor | None = None):
    import scipy.sparse

    n = ptrs.numel() - 1
    values = torch.ones(cols.numel(), dtype=torch.float64, device="cpu") if values is None else values.cpu().double()
    return scipy.sparse.csr_array((values.numpy(), cols.cpu().numpy(), ptrs.cpu().numpy()), shape=(n, n))


# ---- weighted paths


def scipy_distances(ptrs: Tensor, cols: Tensor, weights: Tensor, source: Tensor) -> Tensor:
    from scipy.sparse.csgraph import dijkstra

    return torch.from_numpy(dijkstra(scipy_matrix(ptrs, cols, weights), indices=int(source)))


def with_parents(ptrs: Tensor, cols: Tensor, weights: Tensor, source: Tensor, distances: Tensor) -> tuple[Tensor, ...]:
    """And for each vertex the smallest from which the distance is reached."""
    src, dst = edges(ptrs, cols)
    tight = (distances[src] + weights == distances[dst]) & distances[dst].isfinite()
    n = len(distances)
    parents = torch.full((n,), n, device=ptrs.device).scatter_reduce(0, dst[tight], src[tight], "amin")
    parents[source] = source
    return distances, parents.masked_fill(parents == n, -1)


def exact_paths(ptrs: Tensor, cols: Tensor, weights: Tensor, source: Tensor) -> tuple[Tensor, ...]:
    distances = scipy_distances(ptrs, cols, weights, source).to(ptrs.device)
    return with_parents(ptrs, cols, weights, source, distances)


def bellman_ford(ptrs: Tensor, cols: Tensor, weights: Tensor, source: Tensor) -> tuple[Tensor, ...]:
    """By torch's operators, along all edges in each round."""
    src, dst = edges(ptrs, cols)
    distances = weights.new_full((ptrs.numel() - 1,), torch.inf).index_fill(0, source, 0)
    while True:
        nearer = distances.scatter_reduce(0, dst, distances[src] + weights, "amin")
        if torch.equal(nearer, distances):
            return with_parents(ptrs, cols, weights, source, distances)
        distances = nearer


# ---- ranks

TOLERANCE = 1e-9


def by_scipy(ptrs: Tensor, cols: Tensor) -> Tensor:
    """The power method, as networkx computes ranks."""
    matrix = scipy_matrix(ptrs, cols)
    n, out = matrix.shape[0], np.diff(matrix.indptr)
    share, ranks = np.divide(0.85, out, out=np.zeros(len(out)), where=out > 0), np.full(len(out), 1 / len(out))
    for _ in range(100):
        ahead = matrix @ (ranks * share) + (0.85 * ranks[out == 0].sum() + 0.15) / n  # symmetric: its own transpose
        change, ranks = abs(ahead - ranks).sum(), ahead
        if change < TOLERANCE:
            break
    return torch.from_numpy(ranks / ranks.sum())


@functools.lru_cache(maxsize=1)
def torch_matrix(ptrs: Tensor, cols: Tensor) -> Tensor:
    ones = torch.ones(cols.numel(), dtype=torch.float64, device=cols.device)
    return torch.sparse_csr_tensor(ptrs, cols, ones, (ptrs.numel() - 1,) * 2, check_invariants=False)


def by_torch(ptrs: Tensor, cols: Tensor) -> Tensor:
    matrix, out = torch_matrix(ptrs, cols), ptrs.diff().double()
    share, lost = torch.where(out > 0, 0.85 / out, 0), out == 0
    ranks = torch.full_like(out, 1 / len(out))
    for _ in range(100):
        ahead = matrix @ (ranks * share) + (0.85 * ranks[lost].sum() + 0.15) / len(out)
        change, ranks = (ahead - ranks).abs().sum(), ahead
        if change < TOLERANCE:
            break
    return ranks / ranks.sum()


# ---- triangles


def lower(ptrs: Tensor, cols: Tensor):
    """Each edge once, towards the vertex of lower degree, and no loops, for products that touch few entries."""
    import scipy.sparse

    src, dst = (x.cpu().numpy() for x in edges(ptrs, cols))
    degree = ptrs.diff().cpu().numpy()
    rank = np.empty(len(degree), np.int64)
    rank[np.lexsort((np.arange(len(degree)), degree))] = np.arange(len(degree))
    kept = rank[src] > rank[dst]
    matrix = scipy.sparse.csr_array((np.ones(kept.sum()), (rank[src[kept]], rank[dst[kept]])), shape=(len(degree),) * 2)
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def triangles_by_scipy(ptrs: Tensor, cols: Tensor) -> Tensor:
    below = lower(ptrs, cols)
    return torch.tensor([int((below @ below).multiply(below).sum())])


def triangles_by_torch(ptrs: Tensor, cols: Tensor) -> Tensor:
    """cuSPARSE multiplies, and torch keeps the common positions."""
    src, dst = edges(ptrs, cols)
    n, degree = ptrs.numel() - 1, ptrs.diff()
    kept = (degree[src] > degree[dst]) | ((degree[src] == degree[dst]) & (src > dst))
    pairs = torch.stack([src[kept], dst[kept]]).unique(dim=1)
    ones = torch.ones(pairs.shape[1], device=ptrs.device)
    below = torch.sparse_coo_tensor(pairs, ones, (n, n), is_coalesced=True)
    square = (below.to_sparse_csr() @ below.to_sparse_csr()).to_sparse_coo()
    # torch 2.11 ends in a floating point exception where it multiplies square by below.
    wanted = pairs[0] * n + pairs[1]
    positions, order = (square.indices()[0] * n + square.indices()[1]).sort()  # its columns may be in any order
    if len(positions) == 0:
        return wanted.new_zeros(1)
    at = torch.searchsorted(positions, wanted).clamp_max(len(positions) - 1)
    return square.values()[order[at]].masked_fill(positions[at] != wanted, 0).long().sum().view(1)


def figures(device: str) -> list[Figure]:
    cuda = device == "cuda"
    scales = (18, 22) if cuda else (16,)
    side = 2048 if cuda else 512

    def weighted(make) -> tuple[Tensor, ...]:
        graph = make()
        weights = torch.randint(1, 256, (graph.num_edges,), device=device).float()
        source = (graph.row_ptrs.diff() > 0).nonzero()[0]
        return graph.row_ptrs, graph.col_idx, weights, source

    def small_world(scale: int) -> tp.Graph:
        return rmat(scale, 16, dedup=True, index_dtype=torch.int32, device=device)

    def mesh() -> tp.Graph:
        return grid(side, side, index_dtype=torch.int32, device=device)

    worlds = {f"rmat {scale}": functools.partial(small_world, scale) for scale in scales}
    peers = {"torch": bellman_ford} if cuda else {"scipy, 1 thread": scipy_distances}
    rows = [
        Figure(
            f"sssp {name}",
            functools.partial(weighted, make),
            lambda p, c, w, s: tp.sssp(graph_of(p, c), s, w),
            exact_paths,
            peers,
            exact_peers=cuda,
        )
        for name, make in {**worlds, f"grid {side} x {side}": mesh}.items()
    ]
    rows += [
        Figure(
            f"pagerank {name}",
            lambda make=make: make()[:2],
            lambda p, c: tp.pagerank(graph_of(p, c), tol=TOLERANCE),
            by_scipy,
            {"torch": by_torch} if cuda else {"scipy, 1 thread": by_scipy, "torch": by_torch},
            bound=2 * TOLERANCE,
        )
        for name, make in worlds.items()
    ]
    rows += [
        Figure(
            f"triangle_count {name}",
            lambda make=make: make()[:2],
            lambda p, c: torch.tensor([tp.triangle_count(graph_of(p, c))]),
            triangles_by_scipy,
            {"torch": triangles_by_torch} if cuda else {"scipy, 1 thread": triangles_by_scipy},
        )
        for name, make in {f"rmat {scales[0]}": worlds[f"rmat {scales[0]}"], f"grid {side} x {side}": mesh}.items()
    ]
    return rows
