"""Breadth-first search and what it gives: paths, reachable vertices and connected components (PMPP chapter 15)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torch_patterns.arguments import integer, typed
from torch_patterns.batching import loop
from torch_patterns.calls import ops
from torch_patterns.graph.container import Graph
from torch_patterns.registry import documented

_ops = torch.ops.torch_patterns
_FARTHEST = 2**31 - 1  # levels are int32


@typed
@documented("bfs")
def bfs(
    graph: Graph,
    sources: int | Sequence[int] | np.ndarray | Tensor,
    max_level: int | None = None,
    *,
    validate: bool = False,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Finds the distance of each vertex from the nearest source, in edges, and its parent on such a path (§15.2).

    With several sources, one search starts from all of them at once. If rows are sorted, as the constructors leave
    them, the parent is the smallest of all possible ones, so every algorithm gives the same result on every device. Not
    differentiable.

    Args:
        graph: a graph with V vertices. If its in-edges are not given, an algorithm that pulls builds them.
        sources: an int, ints, a numpy array of ints, or a 0-D or 1-D integer tensor on the graph's device (a 0-D one
            may be on the CPU).
        max_level: the greatest distance to search; without it, the search goes to the end.
        validate: check all tensors on CUDA as well, which takes one synchronization and is refused during capture of a
            CUDA graph. Without it, CUDA skips edges and sources that are out of range.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        levels: int32 [V]; 0 at sources, -1 at vertices that no source reaches.
        parents: [V], of the graph's dtype; the parent of a source is itself, and -1 stands where the level is -1.

    Raises:
        IndexError: a source, or a vertex that an edge leads to, is out of range.
        ValueError: there are no sources, ``max_level`` is negative, or ``algorithm`` is unknown or not offered by the
            device.
        TypeError: sources are not integers.
        RuntimeError: devices differ.

    Example:
        >>> g = tp.graph.from_edges([0, 1, 1, 3], [1, 2, 3, 0])
        >>> levels, parents = tp.bfs(g, 0)
        >>> levels
        tensor([0, 1, 2, 2], dtype=torch.int32)
        >>> parents
        tensor([0, 0, 1, 1])
    """
    sources, level = _sources("bfs", graph, sources), _max_level("bfs", max_level)
    return ops.bfs_csr(*graph[:2], sources, *graph[2:], level, validate, algorithm)


@typed
@documented("bfs")
def bfs_batched(
    graph: Graph,
    sources: Sequence[int] | np.ndarray | Tensor,
    max_level: int | None = None,
    *,
    validate: bool = False,
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Searches from each source separately: row i equals ``bfs(graph, sources[i])`` bit for bit.

    ``"bit_parallel"`` runs 64 searches at once, each of which is one bit of a word, and waits for the device once per
    level. ``"auto"`` means ``"bit_parallel"`` on CUDA for 16 searches or more of a graph with in-edges, except during
    capture of a CUDA graph, where no call may wait. All other algorithms run one search after another.

    Args:
        graph: with V vertices.
        sources: [batch] ints, or an integer tensor on the graph's device; an empty one gives results without rows.
        max_level, validate, algorithm: as :func:`bfs`.

    Returns:
        levels: int32 [batch, V].
        parents: [batch, V], of the graph's dtype.

    Raises:
        IndexError, ValueError, TypeError, RuntimeError: as :func:`bfs`, or ``sources`` is not one-dimensional.

    Example:
        >>> g = tp.graph.from_edges([0, 1, 1, 3], [1, 2, 3, 0])
        >>> levels, _ = tp.bfs_batched(g, [0, 2])
        >>> levels
        tensor([[ 0,  1,  2,  2],
                [-1, -1,  0, -1]], dtype=torch.int32)
    """
    sources, level = _sources("bfs_batched", graph, sources), _max_level("bfs_batched", max_level)
    return ops.bfs_batched(*graph[:2], sources, *graph[2:], level, validate, algorithm)


def _sources(
    where: str, graph: Graph, sources: int | Sequence[int] | np.ndarray | Tensor, name: str = "sources"
) -> Tensor:
    if isinstance(sources, Tensor):
        # As in torch, a 0-D tensor on the CPU may be used with tensors on any device.
        return sources.to(graph.device) if sources.dim() == 0 and sources.is_cpu else sources
    if isinstance(sources, np.ndarray):
        if sources.dtype.kind not in "iu":
            raise TypeError(f"{where}: {name} must be integers, got a numpy array of {sources.dtype}")
        ids = sources.astype(np.int64).ravel()
        for i in ((ids < 0) | (ids >= graph.num_vertices)).nonzero()[0][:1]:
            check_vertex(where, f"{name}[{i}]" if sources.ndim else name, int(ids[i]), graph.num_vertices)
        return torch.from_numpy(sources.astype(np.int64)).to(graph.device)
    if isinstance(sources, Sequence) and not isinstance(sources, (str, bytes)):
        ids = [integer(where, f"{name}[{i}]", source) for i, source in enumerate(sources)]
        for i, source in enumerate(ids):
            check_vertex(where, f"{name}[{i}]", source, graph.num_vertices)
        return torch.tensor(ids, dtype=torch.int64, device=graph.device)
    source = integer(where, name, sources)
    check_vertex(where, name, source, graph.num_vertices)
    return torch.full((), source, dtype=torch.int64, device=graph.device)


def check_vertex(where: str, name: str, vertex: int, vertices: int) -> None:
    if not 0 <= vertex < vertices:
        raise IndexError(f"{where}: {name}: {vertex} is no vertex of a graph of {vertices}")


def integer_ids(where: str, name: str, graph: Graph, vertices: int | Sequence[int] | np.ndarray | Tensor) -> Tensor:
    """Returns vertices as an int64 tensor on the graph's device. Those that came in a tensor may be out of range."""
    ids = _sources(where, graph, vertices, name)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{where}: {name} must be integers, got {ids.dtype}")
    if ids.device != graph.device:
        raise RuntimeError(f"{where}: the graph is on {graph.device}, {name} on {ids.device}")
    return ids.long()


def vertex_ids(where: str, name: str, graph: Graph, vertices: int | Sequence[int] | np.ndarray | Tensor) -> Tensor:
    """Returns vertices as an int64 tensor on the graph's device. All are in range; the check of a tensor waits for the
    device."""
    ids = integer_ids(where, name, graph, vertices)
    outside = ((ids < 0) | (ids >= graph.num_vertices)).reshape(-1)
    if isinstance(vertices, Tensor) and bool(outside.any()):
        first = int(outside.nonzero()[0])
        check_vertex(where, f"{name}[{first}]", int(ids.reshape(-1)[first]), graph.num_vertices)
    return ids


def _max_level(where: str, max_level: int | None) -> int:
    if max_level is None:
        return -1
    level = integer(where, "max_level", max_level)
    if level < 0:
        raise ValueError(f"{where}: max_level must not be negative, got {level}")
    return min(level, _FARTHEST)


@typed
@documented("bfs")
def shortest_path(
    graph: Graph, source: int | Sequence[int] | np.ndarray | Tensor, target: int, *, algorithm: str = "auto"
) -> Tensor:
    """Finds a path with the fewest edges from ``source`` to ``target``, by the parents of a search (§15.2).

    Waits for the device, because the length of the result depends on the data.

    Args:
        graph: the graph.
        source: the vertex where the path begins; of several vertices, the nearest one.
        target: the vertex where the path ends.
        algorithm: as for :func:`bfs`.

    Returns:
        The vertices on the path, source and target included, of the graph's dtype; empty if there is no path.

    Raises:
        IndexError: ``target`` is out of range; or as :func:`bfs`.
        TypeError: ``source`` or ``target`` is not an integer.

    Example:
        >>> g = tp.graph.from_edges([0, 1, 1, 3], [1, 2, 3, 0])
        >>> tp.shortest_path(g, 3, 2)
        tensor([3, 0, 1, 2])
    """
    target = integer("shortest_path", "target", target)
    check_vertex("shortest_path", "target", target, graph.num_vertices)
    return path(bfs(graph, source, algorithm=algorithm)[1], target)


@typed
def path(parents: Tensor, target: int) -> Tensor:
    """Returns the vertices from a source to ``target``, both included, by the parents that a search found.

    Waits for the device, because it copies the parents to the host.

    Args:
        parents: [V], of :func:`bfs`, :func:`sssp` or a row of :func:`bfs_batched`.
        target: the vertex where the path ends.

    Returns:
        The vertices, of the dtype of ``parents``; empty if the search did not reach ``target``.

    Raises:
        IndexError: ``target``, or a parent, is out of range.
        ValueError: the parents lead in a circle, or are not of shape [V].
        TypeError: ``target`` is not an integer.

    Example:
        >>> levels, parents = tp.bfs(tp.graph.grid(2, 3), 0)
        >>> tp.graph.path(parents, 5)
        tensor([0, 1, 2, 5])
    """
    if parents.dim() != 1:
        raise ValueError(f"path: parents must be of shape [V], got {[*parents.shape]}")
    if parents.is_floating_point() or parents.is_complex() or parents.dtype == torch.bool:
        raise TypeError(f"path: parents must be integers, got {parents.dtype}")
    target = integer("path", "target", target)
    check_vertex("path", "target", target, parents.shape[0])
    up = parents.cpu().numpy()
    way = [target] if up[target] >= 0 else []
    while way and (parent := int(up[way[-1]])) != way[-1]:
        if not 0 <= parent < len(up):
            raise IndexError(f"path: parents[{way[-1]}] is {parent}, not in 0 ... {len(up) - 1}")
        if len(way) == len(up):
            raise ValueError("path: the parents lead in a circle")
        way.append(parent)
    return torch.tensor(way[::-1], dtype=parents.dtype, device=parents.device)


@typed
@documented("bfs")
def reachable(
    graph: Graph,
    sources: int | Sequence[int] | np.ndarray | Tensor,
    max_level: int | None = None,
    *,
    validate: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """Tells which vertices can be reached from any source by at most ``max_level`` edges: bool [V], true at the
    sources.

    Arguments and errors are those of :func:`bfs`.

    Example:
        >>> g = tp.graph.from_edges([0, 1, 1, 3], [1, 2, 3, 0])
        >>> tp.reachable(g, 0, max_level=1)
        tensor([ True,  True, False, False])
    """
    return bfs(graph, sources, max_level, validate=validate, algorithm=algorithm)[0] >= 0


@typed
def connected_components(graph: Graph) -> Tensor:
    """Numbers the components of a graph; the direction of an edge does not matter (weak components).

    The algorithm is FastSV (Zhang, Azad and Buluç 2020), which takes about ten rounds, whatever the diameter. Every
    vertex points at a vertex of its component, at first at itself. In each round, it finds the smallest vertex that its
    neighbours point at, and passes it on to the vertex that it points at itself; then all vertices point where their
    target does. Each round waits for the device.

    Returns:
        [V], of the graph's dtype: the number of each vertex's component. Components are numbered from 0 in the order of
        their smallest vertices.

    Example:
        >>> g = tp.graph.from_edges([0, 3], [2, 4])
        >>> tp.connected_components(g)
        tensor([0, 1, 0, 2, 2])
    """
    vertices = torch.arange(graph.num_vertices, dtype=graph.dtype, device=graph.device)
    # A column index that was not validated must not lead out of bounds.
    dst, root = graph.col_idx.clamp(0, max(graph.num_vertices - 1, 0)).long(), vertices
    while True:
        ahead = root[root]
        best = torch.minimum(root, _ops.segment_reduce(ahead[dst], graph.row_ptrs, "min"))
        if not graph.symmetric:
            best = best.scatter_reduce(0, dst, _ops.segment_expand(ahead, graph.row_ptrs, graph.num_edges), "amin")
        joined = torch.minimum(root.scatter_reduce(0, root.long(), best, "amin"), best)
        joined = torch.minimum(joined, joined[joined])
        if torch.equal(joined, root):
            return (_ops.scan(root == vertices, 0).to(graph.dtype) - 1)[root]
        root = joined


# ---- vmap: searches run one after another, because the graphs of a batch may differ


def register_vmap(op) -> None:
    def rule(info, in_dims, *args, **kwargs):
        return loop(lambda *sample: op(*sample, **kwargs), info, in_dims, *args)

    torch.library.register_vmap(f"torch_patterns::{op.__name__}", rule)


register_vmap(_ops.bfs_csr)
register_vmap(_ops.bfs_batched)
