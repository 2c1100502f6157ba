"""Shortest paths over weighted edges from a set of sources (beyond chapter 15, whose edges are all of length 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torch_patterns.arguments import typed
from torch_patterns.calls import ops
from torch_patterns.graph.container import Graph
from torch_patterns.graph.search import integer_ids, register_vmap
from torch_patterns.registry import documented


@typed
@documented("sssp")
def sssp(
    graph: Graph,
    sources: int | Sequence[int] | np.ndarray | Tensor,
    weights: Tensor,
    *,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Finds the distance of each vertex from the nearest source over weighted edges, and its parent on that path.

    On the CPU, vertices relax their edges in the order of their distances, which a radix heap keeps (Ahuja, Mehlhorn,
    Orlin and Tarjan, Faster algorithms for the shortest path problem, 1990). On CUDA, all vertices of the nearest
    bucket do so at once (delta-stepping in the form of Davidson et al., Work-efficient parallel GPU methods for
    single-source shortest paths, 2014), and the host waits for the device after every eight steps and whenever the
    bucket changes. Distances are minima, so their bits are the same in every run and on every device; the parent is the
    smallest vertex from which the distance is reached. If edges of length 0 join vertices at one distance, vertices
    with fewer edges to a source come first, so parents never form a cycle.

    Differentiable in ``weights``, in forward and reverse mode: a distance is the sum of the weights along the path of
    parents.

    Args:
        graph: with V vertices and E edges.
        sources: an int, ints, a numpy array of ints, or a 0-D or 1-D integer tensor on the graph's device.
        weights: [E], the length of each edge of ``graph.col_idx``, which is ordered by source and then by destination:
            not negative and not NaN; infinity means that there is no edge. Floating point or integer.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        distances: [V]; 0 at sources, infinity at vertices that no source reaches; of the dtype of ``weights``, but
        float32 for half types and float64 for integers.
        parents: [V], of the graph's dtype; the parent of a source is itself, and that of an unreached vertex is -1.

    Raises:
        ValueError: a weight is negative or NaN, ``weights`` is not of shape [E], there are no sources, or ``algorithm``
            is unknown or not offered by the device.
        IndexError: a source, or the destination of an edge, is out of range.
        TypeError: sources are not integers, or weights are not real numbers.
        RuntimeError: devices differ.

    Example:
        >>> g = tp.graph.from_edges([0, 0, 1], [1, 2, 2], 4)
        >>> tp.sssp(g, 0, torch.tensor([1.0, 5.0, 2.0]))
        (tensor([0., 1., 3., inf]), tensor([ 0,  0,  1, -1]))
    """
    starts = integer_ids("sssp", "sources", graph, sources)
    if weights.dtype == torch.bool or weights.is_complex():
        raise TypeError(f"sssp: weights must be real numbers, got {weights.dtype}")
    return ops.sssp(graph.row_ptrs, graph.col_idx, weights, starts, algorithm)


register_vmap(torch.ops.torch_patterns.sssp)
