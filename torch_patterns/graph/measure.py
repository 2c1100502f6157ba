"""Measures of a graph: the rank of each vertex, and the number of triangles."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.arguments import integer, real, typed
from torch_patterns.calls import ops
from torch_patterns.graph.container import Graph
from torch_patterns.graph.search import register_vmap
from torch_patterns.registry import documented
from torch_patterns.sparse.containers import CSR
from torch_patterns.sparse.convert import transpose
from torch_patterns.sparse.product import spmv


@typed
def pagerank(graph: Graph, *, damping: float = 0.85, tol: float = 1e-6, max_iterations: int = 100) -> Tensor:
    """Computes PageRank: how often a reader visits each vertex who follows random edges and sometimes jumps anywhere.

    At a vertex without edges, too, the reader jumps to any vertex. The power method computes the ranks, by one sparse
    product per iteration; the host waits for the device after each. Multiple edges count separately. Every run gives
    the same bits. (Brin and Page, The anatomy of a large-scale hypertextual web search engine, 1998.)

    Args:
        graph: with V vertices; in-edges are built if they are not given.
        damping: the probability that the reader follows an edge, 0 to 1.
        tol: stop when the absolute changes of all ranks sum to less than this.
        max_iterations: stop after this many iterations, and return the ranks reached.

    Returns:
        float64 [V], which sums to 1.

    Raises:
        ValueError: ``damping`` is not in 0 ... 1, or ``tol`` or ``max_iterations`` is negative.
        TypeError: one of them is not a number, or ``max_iterations`` not an integer.

    Example:
        >>> tp.pagerank(tp.graph.from_edges([0, 1], [2, 2], 3)).round(decimals=3)
        tensor([0.2130, 0.2130, 0.5740], dtype=torch.float64)
    """
    damping, tol = real("pagerank", "damping", damping), real("pagerank", "tol", tol)
    max_iterations = integer("pagerank", "max_iterations", max_iterations)
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
    """Returns the matrix with a 1 in row v and column u for each edge from u to v."""
    inward = graph.symmetric or graph.in_row_ptrs is not None
    ptrs, cols = (graph.reverse() if inward else graph)[:2]
    ones, shape = torch.ones_like(cols, dtype=torch.float64), (graph.num_vertices,) * 2
    matrix = CSR(ptrs, cols.to(ptrs.dtype), ones, shape)
    return matrix if inward else transpose(matrix)


@typed
@documented("triangle_count")
def triangle_count(graph: Graph, *, algorithm: str = "auto") -> int:
    """Counts the triangles of a symmetric graph: sets of three vertices, each pair of which is joined by an edge.

    Every edge is directed towards its vertex of higher degree, so no vertex keeps many edges; then, for each edge, the
    neighbours that its two vertices share are counted (Schank and Wagner, Finding, counting and listing all triangles
    in large graphs, 2005). Self loops and multiple edges do not matter. The host waits for the device.

    Args:
        graph: symmetric.
        algorithm: ``"auto"`` or one of the ladder below.

    Raises:
        ValueError: the graph is not symmetric: ``from_edges(..., directed=False)`` makes one that is; or ``algorithm``
            is unknown or not offered by the device.
        IndexError: on the CPU, the destination of an edge is out of range.

    Example:
        >>> tp.triangle_count(tp.graph.from_edges([0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3], directed=False))
        4
    """
    if not graph.symmetric:
        raise ValueError("triangle_count: the graph must be symmetric; from_edges(..., directed=False) makes one")
    return int(ops.triangle_count(graph.row_ptrs, graph.col_idx, algorithm))


register_vmap(torch.ops.torch_patterns.triangle_count)
