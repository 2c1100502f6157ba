"""Numbers that tell about a graph: the rank of each vertex, and how many triangles there are."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.arguments import typed
from torch_patterns.graph.container import Graph
from torch_patterns.segmented import segment_expand
from torch_patterns.sparse.containers import CSR
from torch_patterns.sparse.convert import _exclusive, transpose
from torch_patterns.sparse.product import spmv

_ops = torch.ops.torch_patterns


@typed
def pagerank(graph: Graph, *, damping: float = 0.85, tol: float = 1e-6, max_iterations: int = 100) -> Tensor:
    """How often a reader is at each vertex who follows a random edge, or now and then goes to any vertex at all.

    From a vertex without edges the reader goes to any, too. The ranks are those of the power method, one sparse product
    per iteration, after each of which the host waits for the device. Multiple edges count as often as they are there.
    The same bits in every run. (Brin and Page, The anatomy of a large-scale hypertextual web search engine, 1998.)

    Args:
        graph: with V vertices; in-edges are built if they are not given.
        damping: how likely the reader is to follow an edge, 0 to 1.
        tol: stop when the sum of the changes of all ranks is less.
        max_iterations: stop after so many; the last ranks are returned.

    Returns:
        float64 [V], which sums to 1.

    Raises:
        ValueError: ``damping`` is not in 0 ... 1, or ``tol`` or ``max_iterations`` is negative.

    Example:
        >>> tp.pagerank(tp.graph.from_edges([0, 1], [2, 2], 3)).round(decimals=3)
        tensor([0.2130, 0.2130, 0.5740], dtype=torch.float64)
    """
    if not 0 <= damping <= 1:
        raise ValueError(f"pagerank: damping must be in 0 ... 1, got {damping}")
    if not tol >= 0 or max_iterations < 0:
        raise ValueError(f"pagerank: tol and max_iterations must not be negative, got {tol} and {max_iterations}")
    n = graph.num_vertices
    if n == 0:
        return torch.zeros(0, dtype=torch.float64, device=graph.device)
    into, degrees = _into(graph), graph.out_degrees().double()
    share = torch.where(degrees > 0, damping / degrees, 0)
    dangling = (degrees == 0).double() * (damping / n)
    ranks = torch.full_like(degrees, 1 / n)
    for _ in range(max_iterations):
        ahead = spmv(into, ranks * share) + ((1 - damping) / n + dangling.dot(ranks))
        change = (ahead - ranks).abs().sum().item()
        ranks = ahead
        if change < tol:
            break
    return ranks / ranks.sum()


def _into(graph: Graph) -> CSR:
    """The matrix with a 1 in row v and column u for an edge from u to v."""
    inward = graph.symmetric or graph.in_row_ptrs is not None
    ptrs, cols = (graph.reverse() if inward else graph)[:2]
    ones, shape = torch.ones_like(cols, dtype=torch.float64), (graph.num_vertices,) * 2
    matrix = CSR(ptrs, cols.to(ptrs.dtype), ones, shape)
    return matrix if inward else transpose(matrix)


@typed
def triangle_count(graph: Graph) -> int:
    """How many sets of three vertices of a symmetric graph are joined each to each.

    Every edge is turned towards the vertex of higher degree, so that no vertex keeps many; then, for each edge, the
    shorter of the two lists of neighbours is looked up in the longer one (Schank and Wagner, Finding, counting and
    listing all triangles in large graphs, 2005). Self loops and multiple edges count for nothing. Waits for the device.

    Raises:
        ValueError: the graph is not symmetric: ``from_edges(..., directed=False)`` makes one that is.

    Example:
        >>> tp.triangle_count(tp.graph.from_edges([0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3], directed=False))
        4
    """
    if not graph.symmetric:
        raise ValueError("triangle_count: the graph must be symmetric; from_edges(..., directed=False) makes one")
    ptrs, src, dst = _upward(graph)
    n, m, device = graph.num_vertices, dst.shape[0], graph.device
    edges = src * n + dst  # sorted
    lengths = ptrs.diff()
    shorter = torch.where(lengths[src] <= lengths[dst], src, dst)
    ends = _exclusive(lengths[shorter])
    longer = src + dst - shorter
    count, step = 0, 1 << (20 if device.type == "cpu" else 26)
    marks = torch.searchsorted(ends, torch.arange(0, int(ends[-1]) + step, step, device=device)).tolist() if m else []
    for begin, end in zip(marks, marks[1:], strict=False):  # about `step` neighbours at a time
        offsets = ends[begin : end + 1] - ends[begin]
        size = int(offsets[-1])
        if size:
            shift = ptrs[shorter[begin:end]] - offsets[:-1]
            third = dst[torch.arange(size, device=device) + segment_expand(shift, offsets, size)]
            wanted = segment_expand(longer[begin:end] * n, offsets, size) + third
            found = torch.searchsorted(edges, wanted).clamp(max=m - 1)
            count += int((edges[found] == wanted).sum())
    return count


def _upward(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """Row pointers, and src and dst of each edge towards the higher degree or, of equal ones, the higher id; int64."""
    src, dst = (ids.long() for ids in graph.coo())
    degrees = graph.out_degrees()
    up = (degrees[src] < degrees[dst]) | ((degrees[src] == degrees[dst]) & (src < dst))
    up[1:] &= (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    ptrs = _exclusive(up.long())[graph.row_ptrs.long()]
    return ptrs, _ops.compact(src, up), _ops.compact(dst, up)
