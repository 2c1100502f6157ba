"""Random samples of a graph: neighbours of vertices, and walks. The same call gives the same sample on every device.

Random numbers are functions of the seed and of the place where they are used, as in generate.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torch_patterns.arguments import integer, typed, word
from torch_patterns.graph.container import Graph
from torch_patterns.graph.generate import random_words
from torch_patterns.graph.search import check_vertex, vertex_ids
from torch_patterns.sparse.convert import _exclusive

_ops = torch.ops.torch_patterns
Vertices = Sequence[int] | np.ndarray | Tensor


def _below(words: Tensor, bound: Tensor) -> Tensor:
    """Turns random words into numbers 0 ... `bound` - 1 (`bound` is 1 to 2^31), by their 31 highest bits."""
    return (words >> 33 & (1 << 31) - 1) * bound >> 31


@typed
def sample_neighbors(graph: Graph, vertices: Vertices, fanout: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draws up to ``fanout`` edges of each vertex at random, without replacement; all sets are equally likely.

    Time and memory grow with the number of vertices and with ``fanout``, not with the degrees (Floyd's algorithm;
    Bentley and Floyd, Programming pearls: a sample of brilliance, 1987). A vertex that is given twice gets two samples.
    The host waits for the device.

    Args:
        graph: edges are drawn by source; pass ``graph.reverse()`` to draw them by destination.
        vertices: [n] ints, or an integer tensor on the graph's device.
        fanout: how many edges to draw; a vertex with no more than that keeps all.
        seed: selects the sample; it is the same on every device.

    Returns:
        row_ptrs: [n + 1], where the drawn edges of each vertex begin, of the dtype of ``graph.row_ptrs``.
        col_idx: [edges], their destinations, in the order of the graph; of its dtype.
        edge_ids: [edges], their indices in ``graph.col_idx``, of the dtype of ``graph.row_ptrs``.

    Raises:
        IndexError: a vertex is out of range.
        ValueError: ``fanout`` is negative, or ``vertices`` is not one-dimensional.
        TypeError: ``vertices``, ``fanout`` or ``seed`` are not integers.
        RuntimeError: devices differ.

    Example:
        >>> row_ptrs, col_idx, edge_ids = tp.sample_neighbors(tp.graph.grid(3, 3), [0, 4], 3, seed=1)
        >>> row_ptrs
        tensor([0, 2, 5])
    """
    ids, seed = _one_dimension("sample_neighbors", "vertices", graph, vertices), word("sample_neighbors", "seed", seed)
    fanout = integer("sample_neighbors", "fanout", fanout)
    if fanout < 0:
        raise ValueError(f"sample_neighbors: fanout must not be negative, got {fanout}")
    begins, degrees = _rows(graph, ids)
    most = int(degrees.max()) if len(ids) else 0
    fanout = min(fanout, most)  # no vertex has more edges, and each round and column costs time and memory
    kept = degrees.clamp(max=fanout)
    chosen = torch.empty(ids.shape[0], fanout, dtype=torch.int64, device=ids.device)
    for k in range(fanout):
        last = degrees - kept + k
        drawn = _below(random_words(0, ids.shape[0], seed, k, ids.device), last + 1)
        again = (chosen[:, :k] == drawn[:, None]).any(1)
        chosen[:, k] = torch.where(k < kept, torch.where(again, last, drawn), torch.iinfo(torch.int64).max)
    in_order = _ops.sort_keys(chosen, 1)
    valid = torch.arange(fanout, device=ids.device) < kept[:, None]
    edges = _ops.compact(begins[:, None] + torch.where(valid, in_order, 0), valid)
    row_ptrs = _exclusive(kept).to(graph.row_ptrs.dtype)
    return row_ptrs, graph.col_idx[edges], edges.to(graph.row_ptrs.dtype)


@typed
def random_walk(graph: Graph, starts: Vertices, length: int, seed: int) -> Tensor:
    """Walks along random edges, all edges of a vertex being equally likely; at a vertex without edges a walk stays.

    Args:
        graph: its edges by source.
        starts: [walks] ints, or an integer tensor on the graph's device.
        length: the number of steps of each walk.
        seed: selects the walks; they are the same on every device.

    Returns:
        [walks, length + 1], the vertices in order, the start first; of the graph's dtype.

    Raises:
        IndexError: a start is out of range; or, on the CPU, the destination of an edge. On CUDA the walk stays there.
        ValueError: ``length`` is negative, or ``starts`` is not one-dimensional.
        TypeError: ``starts``, ``length`` or ``seed`` are not integers.
        RuntimeError: devices differ.

    Example:
        >>> tp.random_walk(tp.graph.from_edges([0, 1, 2], [1, 2, 0]), [0, 2], 4, seed=0)
        tensor([[0, 1, 2, 0, 1],
                [2, 0, 1, 2, 0]])
    """
    at, seed = _one_dimension("random_walk", "starts", graph, starts), word("random_walk", "seed", seed)
    length = integer("random_walk", "length", length)
    if length < 0:
        raise ValueError(f"random_walk: length must not be negative, got {length}")
    last = max(graph.num_edges - 1, 0)
    walks = torch.empty(length + 1, at.shape[0], dtype=graph.dtype, device=at.device)
    walks[0] = at
    for step in range(length if graph.num_edges else 0):
        begins, degrees = _rows(graph, at)
        edge = begins + _below(random_words(0, at.shape[0], seed, step, at.device), degrees.clamp(min=1))
        ahead = graph.col_idx[edge.clamp(max=last)].long()
        bad = (degrees > 0) & ((ahead < 0) | (ahead >= graph.num_vertices))
        if not bad.is_cuda and bool(bad.any()):
            wrong = int(edge[bad][0])
            check_vertex("random_walk", f"col_idx[{wrong}]", int(graph.col_idx[wrong]), graph.num_vertices)
        at = torch.where((degrees > 0) & ~bad, ahead, at)
        walks[step + 1] = at
    if not graph.num_edges:
        walks[:] = at
    return walks.T.contiguous()


def _rows(graph: Graph, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns where the edges of vertices begin, and how many there are: within ``col_idx`` whatever the pointers
    hold, which may not have been checked."""
    begins, ends = (graph.row_ptrs[ids + k].long().clamp(0, graph.num_edges) for k in (0, 1))
    return begins, (ends - begins).clamp(min=0)


def _one_dimension(where: str, name: str, graph: Graph, vertices: Vertices) -> Tensor:
    ids = vertex_ids(where, name, graph, vertices)
    if ids.dim() != 1:
        raise ValueError(f"{where}: {name} must have one dimension, got shape {[*ids.shape]}")
    return ids
