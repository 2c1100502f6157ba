"""Weighted shortest paths: what their Spec does not say."""

import collections
import heapq

import numpy as np
import pytest
import torch
from scipy.sparse import csgraph
from test_graph_algorithms import REAL, each_device, edges_of, integer_weights, random_graph, real_graph

import torch_patterns as tp
from torch_patterns import graph, simt
from torch_patterns.testing import assert_equal, assert_same_bits


def dijkstra(g: tp.Graph, sources, weights) -> list[float]:
    """By a heap."""
    ahead = collections.defaultdict(list)
    for u, v, w in edges_of(g, weights):
        ahead[u].append((v, w))
    distance, heap = [float("inf")] * g.num_vertices, [(0.0, s) for s in sources]
    for s in sources:
        distance[s] = 0.0
    while heap:
        d, u = heapq.heappop(heap)
        if d <= distance[u]:
            for v, w in ahead[u]:
                if d + w < distance[v]:
                    distance[v] = d + w
                    heapq.heappush(heap, (d + w, v))
    return distance


def check_parents(g, sources, weights, distances, parents, positive: bool) -> None:
    d, p = distances.tolist(), parents.tolist()
    reached = collections.defaultdict(list)
    for u, v, w in edges_of(g, weights):
        if d[u] + w == d[v] and d[v] < float("inf") and u != v:
            reached[v].append(u)
    for v in range(g.num_vertices):
        if v in sources:
            assert p[v] == v
        elif d[v] == float("inf"):
            assert p[v] == -1
        else:
            assert p[v] in reached[v]
            assert not positive or p[v] == min(reached[v])
            way = graph.path(parents, v).tolist()  # ends, and adds up
            assert way[0] in sources and way[-1] == v


@each_device
@pytest.mark.parametrize("low", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_distances_and_parents(low, dtype, device):
    for seed, (vertices, edges) in enumerate(((1, 0), (1, 3), (30, 40), (60, 400), (200, 500), (100, 90))):
        g = random_graph(vertices, edges, seed, device, index_dtype=torch.int32 if seed % 2 else torch.int64)
        weights = integer_weights(g, low, 10 if seed % 2 else 2, seed, dtype)
        for sources in ([0], [0, vertices - 1, vertices // 2]):
            distances, parents = tp.sssp(g, sources, weights)
            wide = {torch.float16: torch.float32, torch.int64: torch.float64}.get(dtype, dtype)
            assert distances.dtype == wide and parents.dtype == g.dtype
            assert distances.tolist() == dijkstra(g, sources, weights)
            check_parents(g, sources, weights, distances, parents, positive=low > 0)


@each_device
def test_one_step_per_edge_is_breadth_first_search(device):
    for g in (graph.grid(30, 40, device=device), graph.rmat(9, 4, device=device), random_graph(99, 200, 5, device)):
        levels, parents = tp.bfs(g, 3)
        distances, others = tp.sssp(g, 3, torch.ones(g.num_edges, device=device))
        assert_equal(distances.masked_fill(distances.isinf(), -1).int(), levels)
        assert_equal(others, parents)


@each_device
@pytest.mark.parametrize("low", [0, 1])
def test_vertices_of_many_edges(low, device):
    """All rungs find the paths of the first, and near_far keeps the rules of the model where it gives hubs blocks."""
    n, hubs = 1500, 2  # a hub has more than 1024 edges
    src = torch.cat([torch.arange(hubs).repeat_interleave(n), torch.arange(2000) * 7919 % n])
    dst = torch.cat([torch.arange(n).repeat(hubs), torch.arange(2000) * 104729 % n])
    g = graph.from_edges(src, dst, num_vertices=n, directed=False).to(device)
    weights = integer_weights(g, low, 9, 3, torch.float32)
    host = g.to("cpu")
    want = tp.sssp(host, [n - 1, 8], weights.cpu(), algorithm="sequential")
    assert_equal(tp.sssp(g, [n - 1, 8], weights), want)
    with simt.checked():
        assert_equal(tp.sssp(g, [n - 1, 8], weights, algorithm="near_far"), want)


@each_device
def test_distances_as_scipy_finds_them(device):
    for name in REAL:
        g = real_graph(name, device)
        weights = integer_weights(g, 1, 1000, dtype=torch.float64)
        matrix = g.to_scipy(weights)
        source = int(g.out_degrees().argmax())
        distances, parents = tp.sssp(g, source, weights)
        assert np.array_equal(distances.cpu(), csgraph.dijkstra(matrix, indices=source))
        assert int((parents >= 0).sum()) == int(distances.isfinite().sum())


@each_device
def test_distances_of_real_numbers(device):
    """Both are rounded sums of one way; of the same one where the second best is farther by more than rounding."""
    g = real_graph("delaunay_n15", device)
    weights = 0.1 + torch.sin(torch.arange(g.num_edges, device=device).double()) ** 2
    first, second = (tp.sssp(g, 7, weights) for _ in range(2))
    assert_same_bits(first, second)
    want = csgraph.dijkstra(g.to_scipy(weights), indices=7)
    assert np.allclose(first[0].cpu(), want, rtol=1e-13, atol=0)
    way = graph.path(first[1], 1000).tolist()
    weight_of = {(u, v): w for u, v, w in edges_of(g, weights)}
    assert sum(weight_of[e] for e in zip(way, way[1:], strict=False)) == pytest.approx(first[0][1000].item(), rel=1e-13)


def test_infinite_weights_are_no_edges():
    g = graph.from_edges([0, 1, 0], [1, 2, 2], 3)
    distances, parents = tp.sssp(g, 0, torch.tensor([torch.inf, 3.0, 1.0]))
    assert distances.tolist() == [0, float("inf"), 3] and parents.tolist() == [0, -1, 0]


def test_derivatives_of_distances():
    g = random_graph(20, 60, 3)
    weights = 1 + torch.rand(g.num_edges, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights.requires_grad_()

    def f(w):
        distances = tp.sssp(g, [0, 5], w)[0]
        return torch.where(distances.isinf(), 0, distances)

    assert torch.autograd.gradcheck(f, [weights], check_forward_ad=True)
    jacobian = torch.func.jacrev(f)(weights.detach())
    assert_equal(jacobian, torch.func.jacfwd(f)(weights.detach()))
    assert set(jacobian.unique().tolist()) == {0.0, 1.0}
    with torch.autograd.forward_ad.dual_level():  # integers have no derivative
        assert tp.sssp(g, 0, torch.ones(g.num_edges, dtype=torch.int32))[0].dtype == torch.float64
    # A distance is the sum of the weights on its way.
    torch.testing.assert_close(jacobian @ weights.detach(), f(weights.detach()), rtol=1e-14, atol=0)


def test_shortest_paths_in_every_way_of_torch():
    """Batches of weights, and one graph without a break, forward and backward."""
    g = random_graph(12, 40, 1)
    weights = 1 + torch.rand(3, g.num_edges, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def total(w):
        distances = tp.sssp(g, [0, 3], w)[0]
        return torch.where(distances.isinf(), 0, distances).square().sum()

    want = torch.stack([torch.func.grad(total)(w) for w in weights])
    assert_equal(torch.vmap(torch.func.grad(total))(weights), want)
    leaf = weights[0].clone().requires_grad_()
    torch.compile(total, backend="aot_eager", fullgraph=True)(leaf).backward()
    assert_equal(leaf.grad, want[0])


@each_device
def test_paths_of_free_edges(device):
    """Where nothing costs anything the steps decide, as in a breadth-first search, and parents lead to a source."""
    for g in (graph.grid(30, 40, device=device), random_graph(200, 900, 2, device)):
        for weights in (torch.zeros(g.num_edges, device=device), integer_weights(g, 0, 2)):
            for algorithm in tp.algorithms("sssp", device):
                distances, parents = tp.sssp(g, [7, 9], weights, algorithm=algorithm)
                assert distances.tolist() == dijkstra(g, [7, 9], weights)
                check_parents(g, [7, 9], weights, distances, parents, positive=False)
                if not weights.any():
                    assert_equal(parents, tp.bfs(g, [7, 9])[1])


@each_device
def test_bad_weights_and_sources(device):
    g = graph.from_edges([0, 1, 2], [1, 2, 0], 3, device=device)
    good = torch.ones(3, device=device)
    for source, weights, error, message in (
        (
            0,
            torch.tensor([1.0, -1, 2], device=device),
            ValueError,
            r"weights\[1\] is -1.0; weights must not be negative",
        ),
        (0, torch.tensor([1.0, 1, torch.nan], device=device), ValueError, r"weights\[2\] is nan"),
        (0, good[:2], ValueError, r"weights must be \[3\], one per edge, got \[2\]"),
        (0, good > 0, TypeError, "weights must be real numbers, got torch.bool"),
        (3, good, IndexError, "sources: 3 is no vertex of a graph of 3"),
        (torch.tensor([0, -1], device=device), good, IndexError, r"sources\[1\]: -1 is no vertex"),
        ([], good, ValueError, "there are no sources"),
        (0.5, good, TypeError, "sources must be an integer, got float"),
        (good, good, TypeError, "sources must be integers, got torch.float32"),
    ):
        with pytest.raises(error, match=f"sssp: {message}"):
            tp.sssp(g, source, weights)
    with pytest.raises(IndexError, match=r"sssp: col_idx\[1\] is 9"):
        tp.sssp(g._replace(col_idx=torch.tensor([1, 9, 0], device=device)), 0, good)
