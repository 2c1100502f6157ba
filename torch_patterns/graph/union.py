"""The disjoint union of graphs: a batch of graphs as one graph, as graph networks take it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from torch_patterns.arguments import refuse
from torch_patterns.graph.container import Graph, check_index_dtype, pointer_dtype


def batch(graphs: Sequence[Graph]) -> tuple[Graph, Tensor]:
    """Joins graphs into one graph without edges between them, and tells where the vertices of each begin.

    Vertex v of graph i becomes ``offsets[i] + v``; edges keep their order. Vertex features are to be concatenated in
    the same order, and ``segment_reduce(x, offsets)`` then gives a row per graph. The host does not wait for the
    device.

    Args:
        graphs: one or more on one device.

    Returns:
        graph: symmetric if all graphs are; with in-edges if all have theirs; of the widest of their index dtypes.
        offsets: int64 [graphs + 1], 0 first and the number of vertices last, on the device of the graphs.

    Raises:
        ValueError: there are no graphs, or the index dtype cannot count all vertices.
        TypeError: an element is not a graph.
        RuntimeError: devices differ.

    Example:
        >>> g, offsets = tp.graph.batch([tp.graph.grid(1, 2), tp.graph.grid(1, 3)])
        >>> g.edge_index(), offsets
        (tensor([[0, 1, 2, 3, 3, 4],
                [1, 0, 3, 2, 4, 3]]), tensor([0, 2, 5]))
    """
    if not isinstance(graphs, Sequence) or isinstance(graphs, Graph):
        raise TypeError(f"batch: graphs must be a sequence of Graph, got {type(graphs).__name__}")
    if not graphs:
        raise ValueError("batch: there are no graphs")
    for i, graph in enumerate(graphs):
        refuse("batch", f"graphs[{i}]", graph, "Graph")
        if graph.device != graphs[0].device:
            raise RuntimeError(f"batch: graphs[0] is on {graphs[0].device}, graphs[{i}] on {graph.device}")
    sizes = [g.num_vertices for g in graphs]
    dtype = functools.reduce(torch.promote_types, (g.dtype for g in graphs))
    check_index_dtype("batch", dtype, sum(sizes))
    edges = functools.reduce(torch.promote_types, (g.row_ptrs.dtype for g in graphs), dtype)
    edges = torch.promote_types(edges, pointer_dtype(dtype, sum(g.num_edges for g in graphs)))
    symmetric = all(g.symmetric for g in graphs)
    fields = _joined(graphs, sizes, dtype, edges)
    inward = (None, None)
    if not symmetric and all(g.symmetric or g.in_row_ptrs is not None for g in graphs):
        inward = _joined([g.reverse() for g in graphs], sizes, dtype, edges)
    offsets = torch.tensor([0, *sizes], device="cpu").cumsum(0).to(graphs[0].device)
    return Graph(*fields, *inward, symmetric), offsets


def _joined(graphs: Sequence[Graph], sizes: list[int], dtype: torch.dtype, edges: torch.dtype) -> tuple[Tensor, Tensor]:
    ptrs, cols, vertex, edge = [graphs[0].row_ptrs[:1].to(edges)], [], 0, 0
    for graph, size in zip(graphs, sizes, strict=True):
        ptrs.append(graph.row_ptrs[1:].to(edges) + edge)
        cols.append(graph.col_idx.to(dtype) + vertex)
        vertex, edge = vertex + size, edge + graph.num_edges
    return torch.cat(ptrs), torch.cat(cols)


def collate(samples: Sequence) -> Any:
    """Collates samples as ``torch.utils.data.default_collate`` does, and graphs by ``batch``: ``collate_fn=collate``.

    Samples may be graphs, or tuples, lists and dicts that contain graphs: the graphs of one field become
    ``batch(graphs)``, and tensors and numbers are stacked.

    Example:
        >>> samples = [(tp.graph.grid(2, n), n) for n in (2, 3)]
        >>> (g, offsets), labels = next(iter(torch.utils.data.DataLoader(samples, 2, collate_fn=tp.graph.collate)))
        >>> g.num_vertices, offsets.tolist(), labels.tolist()
        (10, [0, 4, 10], [2, 3])
    """
    return torch_collate(samples, collate_fn_map={**default_collate_fn_map, Graph: _collate_graphs})


def _collate_graphs(graphs: Sequence[Graph], *, collate_fn_map: dict | None = None) -> tuple[Graph, Tensor]:
    return batch(graphs)
