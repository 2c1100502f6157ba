"""Graphs: the container, its constructors, generators, breadth-first search (PMPP chapter 15), and what is beyond."""

from torch_patterns.graph.build import (
    from_csr,
    from_edge_index,
    from_edges,
    from_networkx,
    from_scipy,
    from_torch,
    read,
)
from torch_patterns.graph.container import Graph
from torch_patterns.graph.generate import grid, maze, random_words, rmat, rmat_edges, uniform
from torch_patterns.graph.measure import pagerank, triangle_count
from torch_patterns.graph.paths import sssp
from torch_patterns.graph.sample import random_walk, sample_neighbors
from torch_patterns.graph.search import bfs, bfs_batched, connected_components, path, reachable, shortest_path
from torch_patterns.graph.union import batch, collate

__all__ = [
    "Graph",
    "batch",
    "bfs",
    "bfs_batched",
    "collate",
    "connected_components",
    "from_csr",
    "from_edge_index",
    "from_edges",
    "from_networkx",
    "from_scipy",
    "from_torch",
    "grid",
    "maze",
    "pagerank",
    "path",
    "random_walk",
    "random_words",
    "reachable",
    "read",
    "rmat",
    "rmat_edges",
    "sample_neighbors",
    "shortest_path",
    "sssp",
    "triangle_count",
    "uniform",
]
