"""Shortest paths over weighted edges from a set of sources (beyond chapter 15, whose edges are all of length 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from torch_patterns.arguments import typed
from torch_patterns.graph.container import Graph
from torch_patterns.graph.search import bfs, vertex_ids
from torch_patterns.segmented import segment_expand
from torch_patterns.sparse.convert import _exclusive
from torch_patterns.sparse.select import take

_ops = torch.ops.torch_patterns
_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_WARP = 32  # of the width of a bucket, as Davidson, Baxter, Garland and Owens chose it


@typed
def sssp(graph: Graph, sources: int | Sequence[int] | np.ndarray | Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """How far each vertex is from the nearest source, by edges of given lengths, and the last vertex on such a way.

    Vertices that have come nearer hand their distance on, those of the nearest bucket first (delta-stepping in the form
    of Davidson et al., Work-efficient parallel GPU methods for single-source shortest paths, 2014). Distances are
    minima, so that they are the same bits in every run and on every device; the parent is the smallest vertex from
    which the distance is reached. Where edges of length 0 join vertices at one distance, those with fewer edges to a
    source come first, so that parents never form a circle. The host waits for the device at every step.

    Differentiable in ``weights``, in both modes: a distance is the sum of the weights along the way of the parents.

    Args:
        graph: with V vertices and E edges.
        sources: an int, ints, a numpy array of ints, or a 0-D or 1-D integer tensor on the graph's device.
        weights: [E], the length of each edge of ``graph.col_idx``, which is ordered by source and then by destination:
            not negative and not NaN; infinity is no edge. Floating point or integer.

    Returns:
        distances: [V], 0 at sources, infinity where none of them leads; of the dtype of ``weights``, but float32 of
        half types and float64 of integers.
        parents: [V] of the graph's dtype: a source's is itself, -1 where the distance is infinite.

    Raises:
        ValueError: a weight is negative or NaN, ``weights`` is not of shape [E], or there are no sources.
        IndexError: a source, or a vertex that an edge leads to, is out of range.
        TypeError: sources are no integers, or weights no real numbers.
        RuntimeError: devices differ.

    Example:
        >>> g = tp.graph.from_edges([0, 0, 1], [1, 2, 2], 4)
        >>> tp.sssp(g, 0, torch.tensor([1.0, 5.0, 2.0]))
        (tensor([0., 1., 3., inf]), tensor([ 0,  0,  1, -1]))
    """
    starts = vertex_ids("sssp", "sources", graph, sources).reshape(-1)
    if starts.numel() == 0:
        raise ValueError("sssp: there are no sources")
    costs = _costs(graph, weights)
    distances = _distances(graph, starts, costs)
    src, dst = (ids.long() for ids in graph.coo())
    parents, tight = _parents(graph, starts, costs, distances, src, dst)
    if weights.is_floating_point() and (
        weights.requires_grad or _transforms_active() or unpack_dual(weights).tangent is not None
    ):
        on_the_way = tight & (src == parents[dst])
        distances = _with_derivative(distances, weights, parents, dst, on_the_way)
    return distances, parents.to(graph.dtype)


def _costs(graph: Graph, weights: Tensor) -> Tensor:
    """The weights, checked, as constants of the dtype of distances."""
    if weights.dtype == torch.bool or weights.is_complex():
        raise TypeError(f"sssp: weights must be real numbers, got {weights.dtype}")
    if weights.device != graph.device:
        raise RuntimeError(f"sssp: the graph is on {graph.device}, weights on {weights.device}")
    if weights.shape != (graph.num_edges,):
        raise ValueError(f"sssp: weights must be [{graph.num_edges}], one per edge, got {[*weights.shape]}")
    costs = weights.detach()
    costs = costs.to(torch.promote_types(costs.dtype, torch.float32) if costs.is_floating_point() else torch.float64)
    bad = ~(costs >= 0)
    far = (graph.col_idx < 0) | (graph.col_idx >= graph.num_vertices)
    any_bad, any_far = torch.stack([bad.any(), far.any()]).tolist()
    if any_bad:
        first = int(bad.nonzero()[0])
        raise ValueError(f"sssp: weights[{first}] is {weights[first].item()}; weights must not be negative")
    if any_far:
        first = int(far.nonzero()[0])
        raise IndexError(
            f"sssp: col_idx[{first}] is {int(graph.col_idx[first])}, not in 0 ... {graph.num_vertices - 1}"
        )
    return costs


class _Unique:
    """Lists of vertices without repetition: one of several equal ones leaves its place in a table, whichever it is."""

    def __init__(self, vertices: int, device: torch.device) -> None:
        self.place = torch.empty(vertices, dtype=torch.int64, device=device)

    def __call__(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[0], device=ids.device)
        self.place.scatter_(0, ids, places)
        return _ops.compact(ids, self.place.index_select(0, ids) == places)


def _distances(graph: Graph, starts: Tensor, costs: Tensor) -> Tensor:
    ptrs, cols, unique = graph.row_ptrs.long(), graph.col_idx, _Unique(graph.num_vertices, graph.device)
    distances = costs.new_full((graph.num_vertices,), torch.inf)
    distances[starts] = 0
    finite = torch.where(costs.isinf(), 0, costs)
    width = finite.sum() * _WARP * graph.num_vertices / max(graph.num_edges, 1) ** 2  # mean weight by mean degree
    limit, near, far = width, unique(starts), []
    while True:
        while near.numel():
            nearer = unique(_relax(ptrs, cols, costs, distances, near))
            now = distances.index_select(0, nearer) < limit
            far.append(_ops.compact(nearer, ~now))
            near = _ops.compact(nearer, now)
        pile = torch.cat(far)
        # The others had their turn when they came nearer.
        pile = unique(_ops.compact(pile, distances.index_select(0, pile) >= limit))
        if pile.numel() == 0:
            return distances
        there = distances.index_select(0, pile)
        least = there.amin()
        limit = torch.maximum(least + width, least.nextafter(least.new_full((), torch.inf)))
        now = there < limit
        near, far = _ops.compact(pile, now), [_ops.compact(pile, ~now)]


def _relax(ptrs: Tensor, cols: Tensor, costs: Tensor, distances: Tensor, frontier: Tensor) -> Tensor:
    """Hands distances of the frontier on along its edges, and tells whom that brought nearer, maybe repeatedly."""
    begins = ptrs.index_select(0, frontier)
    ends = _exclusive(ptrs.index_select(0, frontier + 1) - begins)
    count = int(ends[-1])
    edges = torch.arange(count, device=ptrs.device) + segment_expand(begins - ends[:-1], ends, count)
    to = cols.index_select(0, edges)
    offer = segment_expand(distances.index_select(0, frontier), ends, count) + costs.index_select(0, edges)
    better = offer < distances.index_select(0, to)
    to, offer = _ops.compact(to, better).long(), _ops.compact(offer, better)
    distances.scatter_reduce_(0, to, offer, "amin")
    return to


def _parents(
    graph: Graph, starts: Tensor, costs: Tensor, distances: Tensor, src: Tensor, dst: Tensor
) -> tuple[Tensor, Tensor]:
    """The parents, int64, and which edges could lead from a parent."""
    before = segment_expand(distances, graph.row_ptrs, graph.num_edges)
    after = distances.index_select(0, dst)
    tight = (before + costs == after) & after.isfinite() & (src != dst)
    if bool((tight & (before == after)).any()):
        ptrs = _exclusive(tight.long())[graph.row_ptrs.long()]
        steps = bfs(Graph(ptrs, dst[tight]), starts)[0]
        tight = tight & ((before < after) | (steps[src] < steps[dst]))
    none = graph.num_vertices
    parents = torch.full_like(graph.row_ptrs, none, dtype=torch.int64)[:none]
    parents = parents.scatter_reduce(0, _ops.compact(dst, tight), _ops.compact(src, tight), "amin")
    return torch.where(parents == none, -1, parents).scatter(0, starts, starts), tight


def _with_derivative(distances: Tensor, weights: Tensor, parents: Tensor, dst: Tensor, on_the_way: Tensor) -> Tensor:
    """The distances as sums of weights along the parents, which doubles the steps in each round."""
    vertices = torch.arange(parents.shape[0], device=parents.device)
    edges = torch.arange(dst.shape[0], device=dst.device)
    none = dst.shape[0]
    edge = torch.full_like(parents, none).scatter_reduce(0, dst[on_the_way], edges[on_the_way], "amin")
    inner = (edge < none) & (parents != vertices)
    total = vertices.new_zeros((), dtype=distances.dtype)
    if none:
        total = torch.where(inner, take(weights, edge.clamp(max=none - 1)).to(distances.dtype), 0)
    total, jump = total.expand(parents.shape), torch.where(inner, parents, vertices)
    while not torch.equal(ahead := jump[jump], jump):
        total, jump = total + take(total, jump), ahead
    # What is added is 0, and NaN nowhere: a way of infinite weight is none.
    return distances + (total - total.detach())
