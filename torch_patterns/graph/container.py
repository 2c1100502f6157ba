"""The container of a graph: its edges by source and, unless it is symmetric, by destination."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree

from torch_patterns.arguments import refuse
from torch_patterns.tuples import kinds, not_a_sequence

INDEX_DTYPES = (torch.int32, torch.int64)


class Graph(NamedTuple):
    """A graph of V vertices and E edges as tensors (Fig. 15.3): its adjacency matrix by rows (CSR) and columns (CSC).

    Vertices are 0 ... V - 1. The edges from u lead to ``col_idx[row_ptrs[u] : row_ptrs[u + 1]]``; those to v come from
    ``in_col_idx[in_row_ptrs[v] : in_row_ptrs[v + 1]]``. Build one by :func:`from_edges` or its relatives: they check
    their input, sort every row and build the edges in both directions. It is a pytree: compiled and exported programs
    take it as an argument.

    Fields:
        row_ptrs: [V + 1], int32 or int64: 0 first, E last, not decreasing.
        col_idx: [E], of the same dtype; but int32 with int64 pointers if there are more than 2^31 - 1 edges.
        in_row_ptrs, in_col_idx: the same of the reversed edges; None if ``symmetric``, or if they were not built.
        symmetric: every edge has its reverse, so the edges by source are also those by destination.

    Example:
        >>> g = tp.graph.from_edges([0, 1, 1, 3], [1, 2, 3, 0])
        >>> g
        Graph(num_vertices=4, num_edges=4, symmetric=False, dtype=torch.int64, device='cpu')
        >>> g.out_degrees()
        tensor([1, 2, 0, 1])
        >>> g.reverse().col_idx
        tensor([3, 0, 1, 1])
    """

    row_ptrs: Tensor
    col_idx: Tensor
    in_row_ptrs: Tensor | None = None
    in_col_idx: Tensor | None = None
    symmetric: bool = False

    @property
    def num_vertices(self) -> int:
        return self.row_ptrs.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """The number of stored, directed edges: an undirected edge counts twice, a self loop once."""
        return self.col_idx.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the vertex ids."""
        return self.col_idx.dtype

    @property
    def device(self) -> torch.device:
        return self.col_idx.device

    def coo(self) -> tuple[Tensor, Tensor]:
        """Returns (src, dst) of every edge, [E] each, ordered by src, then by dst (Fig. 15.3)."""
        vertices = torch.arange(self.num_vertices, dtype=self.dtype, device=self.device)
        src = torch.ops.torch_patterns.segment_expand(vertices, self.row_ptrs, self.num_edges)
        return src, self.col_idx.clone()

    def edge_index(self) -> Tensor:
        """Returns the edges as PyG stores them: [2, E], sources above destinations, ordered as ``coo()``."""
        return torch.stack(self.coo())

    def to_networkx(self, weights: Tensor | None = None) -> Any:
        """Returns a networkx graph of the vertices 0 ... V - 1, on the host: a ``Graph`` if symmetric, else a
        ``DiGraph``; if there are multiple edges, a ``MultiGraph`` or ``MultiDiGraph``.

        Args:
            weights: [E], the attribute ``weight`` of each edge of ``col_idx``.
        """
        import networkx

        weights = self._edge_values("to_networkx", weights)
        src, dst = (ids.tolist() for ids in self.coo())
        each = zip(src, dst, [None] * len(src) if weights is None else weights.tolist(), strict=True)
        edges = [(u, v, w) for u, v, w in each if not self.symmetric or u <= v]
        several = len({(u, v) for u, v, _ in edges}) < len(edges)
        kinds = {
            (False, False): networkx.DiGraph,
            (False, True): networkx.MultiDiGraph,
            (True, False): networkx.Graph,
            (True, True): networkx.MultiGraph,
        }
        graph = kinds[self.symmetric, several]()
        graph.add_nodes_from(range(self.num_vertices))
        graph.add_edges_from((u, v, {} if w is None else {"weight": w}) for u, v, w in edges)
        return graph

    def to_scipy(self, weights: Tensor | None = None) -> Any:
        """Returns the adjacency matrix as a ``scipy.sparse.csr_array`` on the host, [V, V].

        Args:
            weights: [E], the value of each edge of ``col_idx``; 1 (float64) if not given. Multiple edges remain
                separate entries.
        """
        return self._matrix("to_scipy", weights, torch.float64).to_scipy()

    def to_torch(self, weights: Tensor | None = None) -> Tensor:
        """Returns the adjacency matrix as a ``torch.sparse_csr`` tensor on the graph's device, [V, V]; differentiable.

        The host waits for the device.

        Args:
            weights: [E], the value of each edge of ``col_idx``; 1 (float32) if not given. Values of multiple edges are
                added up.
        """
        return self._matrix("to_torch", weights, torch.float32).to_torch()

    def _edge_values(self, where: str, weights: Tensor | None) -> Tensor | None:
        refuse(f"Graph.{where}", "weights", weights, "Tensor | None")
        if weights is not None and weights.shape != (self.num_edges,):
            raise ValueError(f"Graph.{where}: weights must be [{self.num_edges}], one per edge, got {[*weights.shape]}")
        return weights

    def _matrix(self, where: str, weights: Tensor | None, dtype: torch.dtype):
        from torch_patterns.sparse import CSR

        weights = self._edge_values(where, weights)
        values = torch.ones_like(self.col_idx, dtype=dtype) if weights is None else weights
        return CSR(self.row_ptrs, self.col_idx.to(self.row_ptrs.dtype), values, (self.num_vertices,) * 2)

    def out_degrees(self) -> Tensor:
        """Returns how many edges leave each vertex, [V]."""
        return self.row_ptrs.diff()

    def in_degrees(self) -> Tensor:
        """Returns how many edges enter each vertex, [V]. ValueError if the graph was built without its in-edges."""
        return self.reverse().row_ptrs.diff()

    def reverse(self) -> Graph:
        """Returns the graph with every edge reversed; it shares this graph's tensors.

        ValueError if the graph was made without its in-edges.
        """
        if self.symmetric:
            return self
        if self.in_row_ptrs is None or self.in_col_idx is None:
            raise ValueError("Graph.reverse: in_row_ptrs and in_col_idx are not given; graph.from_csr builds them")
        return Graph(self.in_row_ptrs, self.in_col_idx, self.row_ptrs, self.col_idx, False)

    def to(self, *args, **kwargs) -> Graph:
        """Returns the graph on another device, or with another index dtype; the arguments are those of ``Tensor.to``.

        TypeError if the dtype is neither int32 nor int64, ValueError if it cannot count the vertices.
        """
        dtype = self.col_idx[:0].to(*args, **kwargs).dtype
        check_index_dtype("Graph.to", dtype, self.num_vertices)
        pointers = pointer_dtype(dtype, self.num_edges)

        def moved(ptrs: Tensor | None, idx: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
            if ptrs is None or idx is None:
                return None, None
            idx = idx.to(*args, **kwargs)
            return ptrs.to(idx.device, pointers), idx

        return Graph(*moved(*self[:2]), *moved(*self[2:4]), self.symmetric)

    def __repr__(self) -> str:
        counts = f"num_vertices={self.num_vertices}, num_edges={self.num_edges}"
        return f"Graph({counts}, symmetric={self.symmetric}, dtype={self.dtype}, device={str(self.device)!r})"


def check_index_dtype(where: str, dtype: torch.dtype, num_vertices: int) -> None:
    if dtype not in INDEX_DTYPES:
        raise TypeError(f"{where}: the index dtype must be torch.int32 or torch.int64, got {dtype}")
    if num_vertices > torch.iinfo(dtype).max:
        raise ValueError(f"{where}: {num_vertices} vertices are too many for {dtype}: use torch.int64")


def pointer_dtype(index_dtype: torch.dtype, num_edges: int) -> torch.dtype:
    return index_dtype if num_edges <= torch.iinfo(index_dtype).max else torch.int64


# Without these torch.export cannot save a program that takes a graph, and torch.load refuses a graph.
_pytree._register_namedtuple(Graph, serialized_type_name="torch_patterns.graph.Graph")
torch.serialization.add_safe_globals([Graph])
kinds["Graph"].append(Graph)
not_a_sequence(Graph, "torch_patterns.graph.collate")
