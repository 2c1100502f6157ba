"""Graphs: the container, its constructors, generators, and breadth-first search (PMPP chapter 15)."""

from torch_patterns.graph.build import from_csr, from_edges, from_networkx, from_scipy, from_torch, read
from torch_patterns.graph.container import Graph
from torch_patterns.graph.generate import grid, maze, random_words, rmat, rmat_edges, uniform
from torch_patterns.graph.search import bfs, bfs_batched, connected_components, reachable, shortest_path

__all__ = [
    "Graph",
    "bfs",
    "bfs_batched",
    "connected_components",
    "from_csr",
    "from_edges",
    "from_networkx",
    "from_scipy",
    "from_torch",
    "grid",
    "maze",
    "random_words",
    "reachable",
    "read",
    "rmat",
    "rmat_edges",
    "shortest_path",
    "uniform",
]
