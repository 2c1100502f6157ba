"""Triangles: what their Spec does not say."""

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from test_graph_algorithms import REAL, each_device, random_graph, real_graph

import torch_patterns as tp
from torch_patterns import graph


@each_device
def test_triangles_as_networkx_counts_them(device):
    for seed, (vertices, edges) in enumerate(((1, 0), (3, 2), (30, 60), (60, 900), (200, 800))):
        g = random_graph(vertices, edges, seed, device, directed=False)  # with loops and multiple edges
        simple = networkx.Graph((u, v) for u, v in zip(*(x.tolist() for x in g.coo()), strict=True) if u != v)
        got = tp.triangle_count(g)
        assert type(got) is int and got == sum(networkx.triangles(simple).values()) // 3
    complete = graph.from_torch(torch.ones(20, 20, device=device))
    assert tp.triangle_count(complete) == 20 * 19 * 18 // 6
    assert tp.triangle_count(graph.grid(9, 9, device=device)) == 0
    with pytest.raises(ValueError, match="triangle_count: the graph must be symmetric"):
        tp.triangle_count(graph.from_edges([0], [1], 2, device=device))


@each_device
def test_triangles_of_rows_in_any_order(device):
    """And with edges that are there several times: each side of a triangle counts once."""
    g = graph.from_edges(torch.arange(30), (torch.arange(30) + 1) % 3 + torch.arange(30) // 3 * 3, directed=False)
    twice = torch.cat([*g.coo()]).view(2, -1).repeat(1, 3)
    src, dst = twice[:, torch.randperm(twice.shape[1], generator=torch.Generator().manual_seed(0))]
    order = src.argsort(stable=True)
    ptrs = torch.cat([torch.zeros(1, dtype=torch.int64), src.bincount(minlength=30).cumsum(0)])
    mixed = tp.Graph(ptrs, dst[order], symmetric=True).to(device)
    for algorithm in tp.algorithms("triangle_count", device):
        assert tp.triangle_count(g.to(device), algorithm=algorithm) == 10
        assert tp.triangle_count(mixed, algorithm=algorithm) == 10


@each_device
def test_triangles_of_real_graphs(device):
    for name in REAL:
        matrix = real_graph(name).to_scipy()
        matrix = scipy.sparse.csr_array(((matrix + matrix.T) != 0).astype(np.int64))
        matrix.setdiag(0)
        matrix.eliminate_zeros()
        g = graph.from_scipy(matrix, device=device)
        assert tp.triangle_count(g) == int((matrix @ matrix).multiply(matrix).sum()) // 6
