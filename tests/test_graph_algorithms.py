"""Ways, ranks, samples, walks, batches and the ways to other libraries and back."""

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from common import EACH_DEVICE
from data_files import data_folder
from torch.utils.data import DataLoader

import torch_patterns as tp
from torch_patterns import graph
from torch_patterns.testing import assert_equal, assert_same_bits

each_device = pytest.mark.parametrize("device", EACH_DEVICE)
REAL = ("as20", "email-Eu-core", "bcspwr10", "delaunay_n15", "4elt")


def random_graph(vertices: int, edges: int, seed: int, device="cpu", **options) -> tp.Graph:
    draw = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, vertices, (2, edges), generator=draw)
    return graph.from_edges(src, dst, vertices, device=device, **options)


def integer_weights(g: tp.Graph, low: int, high: int, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (g.num_edges,), generator=draw).to(g.device, dtype)


def edges_of(g: tp.Graph, weights) -> list[tuple[int, int, float]]:
    return list(zip(*(x.tolist() for x in g.coo()), weights.tolist(), strict=True))


def real_graph(name: str, device="cpu") -> tp.Graph:
    return graph.read(data_folder("matrices") / f"{name}.mtx", device=device, index_dtype=torch.int32)


# ---- ways


def test_ways():
    g = graph.grid(5, 6)
    parents = tp.bfs(g, 0)[1]
    assert_equal(graph.path(parents, 29), tp.shortest_path(g, 0, 29))
    assert graph.path(parents, 0).tolist() == [0]
    assert graph.path(torch.tensor([0, -1, 1], dtype=torch.int32), 1).tolist() == []
    for parents, target, error, message in (
        (torch.tensor([1, 0]), 0, ValueError, "the parents lead in a circle"),
        (torch.tensor([0, 7]), 1, IndexError, r"parents\[1\] is 7"),
        (torch.tensor([0, -1, 1]), 2, IndexError, r"parents\[1\] is -1"),
        (torch.tensor([0]), 1, IndexError, "target: 1 is no vertex of a graph of 1"),
        (torch.zeros(2, 2, dtype=torch.int64), 0, ValueError, r"parents must be of shape \[V\], got \[2, 2\]"),
        (torch.zeros(2), 0, TypeError, "parents must be integers"),
    ):
        with pytest.raises(error, match=f"path: {message}"):
            graph.path(parents, target)


# ---- ranks


@each_device
def test_ranks_as_networkx_computes_them(device):
    for seed, (vertices, edges) in enumerate(((1, 0), (1, 1), (50, 0), (50, 40), (50, 300))):
        for directed in (True, False):
            g = random_graph(vertices, edges, seed, device, directed=directed)
            theirs = networkx.MultiDiGraph()
            theirs.add_nodes_from(range(vertices))
            theirs.add_edges_from(zip(*(x.tolist() for x in g.coo()), strict=True))
            for damping in (0.5, 0.85):
                ranks = tp.pagerank(g, damping=damping, tol=1e-13, max_iterations=1000)
                want = networkx.pagerank(theirs, damping, tol=1e-14, max_iter=1000)
                assert np.allclose(ranks.cpu(), [want[v] for v in range(vertices)], rtol=0, atol=1e-11)
                assert ranks.dtype == torch.float64 and ranks.sum().item() == pytest.approx(1, abs=1e-14)


@each_device
def test_ranks_of_real_graphs(device):
    for name in ("as20", "email-Eu-core"):
        g = real_graph(name, device)
        ranks = tp.pagerank(g, tol=1e-12, max_iterations=500)
        matrix = g.to_scipy()
        out = matrix.sum(1)
        follow = scipy.sparse.diags_array(np.divide(1, out, where=out > 0, out=np.zeros_like(out))) @ matrix
        r = ranks.cpu().numpy()
        ahead = 0.85 * (r @ follow + r[out == 0].sum() / len(r)) + 0.15 / len(r)
        assert abs(ahead - r).sum() < 1e-11
        assert_same_bits([ranks], [tp.pagerank(g, tol=1e-12, max_iterations=500)])
        without = g._replace(in_row_ptrs=None, in_col_idx=None)
        assert torch.allclose(tp.pagerank(without, tol=1e-12, max_iterations=500), ranks, rtol=0, atol=1e-14)


def test_ranks_stop():
    g = graph.grid(4, 4)
    assert_equal(tp.pagerank(g, max_iterations=0), torch.full((16,), 1 / 16, dtype=torch.float64))
    assert tp.pagerank(graph.from_edges([], [], 0)).shape == (0,)
    for options, message in (({"damping": 1.5}, "damping must be in 0 ... 1"), ({"tol": -1.0}, "must not be negative")):
        with pytest.raises(ValueError, match=f"pagerank: .*{message}"):
            tp.pagerank(g, **options)


# ---- samples and walks


@each_device
def test_samples(device):
    g = graph.rmat(8, 8, seed=2, device=device)
    vertices = torch.arange(g.num_vertices, device=device).repeat(2)
    degrees = g.out_degrees()[vertices]
    for fanout in (0, 1, 3, 30):
        ptrs, cols, edges = tp.sample_neighbors(g, vertices, fanout, seed=7)
        assert_equal(ptrs.diff(), degrees.clamp(max=fanout))
        assert_equal(cols, g.col_idx[edges])
        owners = vertices.repeat_interleave(ptrs.diff())
        assert bool(((edges >= g.row_ptrs[owners]) & (edges < g.row_ptrs[owners + 1])).all())
        keys = torch.arange(len(vertices), device=device).repeat_interleave(ptrs.diff()) * g.num_edges + edges
        assert bool((keys.diff() > 0).all())  # in order, and none twice
    again, other = (tp.sample_neighbors(g, vertices, 3, seed=s) for s in (7, 8))
    assert_same_bits(again, tp.sample_neighbors(g, vertices.tolist(), 3, 7))
    assert not torch.equal(again[2], other[2])
    here = tp.sample_neighbors(graph.rmat(8, 8, seed=2), vertices.cpu(), 3, 7)
    assert_same_bits([x.cpu() for x in again], here)


def test_all_sets_are_equally_likely():
    """Of 5 neighbours 2: ten sets, by the chi-squared statistic of 9 degrees of freedom, at a chance of 1e-6."""
    star = graph.from_edges([0] * 5, [1, 2, 3, 4, 5], 6)
    _, cols, _ = tp.sample_neighbors(star, torch.zeros(20000, dtype=torch.int64), 2, seed=3)
    counts = (cols.view(-1, 2) @ torch.tensor([10, 1])).unique(return_counts=True)[1].double()
    assert len(counts) == 10
    assert ((counts - 2000) ** 2 / 2000).sum() < 45


@each_device
def test_walks(device):
    g = graph.rmat(8, 2, seed=1, directed=True, index_dtype=torch.int32, device=device)
    starts = torch.arange(g.num_vertices, device=device)
    walks = tp.random_walk(g, starts, 9, seed=5)
    assert walks.shape == (g.num_vertices, 10) and walks.dtype == torch.int32 and walks.is_contiguous()
    there = set(zip(*(x.tolist() for x in g.coo()), strict=True))
    degrees = g.out_degrees().tolist()
    for walk in walks.tolist():
        for u, v in zip(walk, walk[1:], strict=False):
            assert (u, v) in there or (degrees[u] == 0 and u == v)
    assert_equal(walks[:, 0].long(), starts)
    assert_same_bits([walks.cpu()], [tp.random_walk(g.to("cpu"), starts.cpu(), 9, 5)])
    assert_same_bits([walks[:, :4]], [tp.random_walk(g, starts, 3, 5)])
    assert not torch.equal(walks, tp.random_walk(g, starts, 9, seed=6))
    assert tp.random_walk(graph.from_edges([], [], 3, device=device), [2, 0], 2, 0).tolist() == [[2] * 3, [0] * 3]
    assert tp.random_walk(g, [], 4, 0).shape == (0, 5)


def test_all_edges_are_equally_likely():
    star = graph.from_edges([0] * 7, [1, 2, 3, 4, 5, 6, 7], 8)
    ends = tp.random_walk(star, torch.zeros(14000, dtype=torch.int64), 1, seed=2)[:, 1]
    counts = ends.bincount(minlength=8)[1:].double()
    assert ((counts - 2000) ** 2 / 2000).sum() < 40  # of 6 degrees of freedom, at a chance of 1e-6


def test_bad_samples_and_walks():
    g = graph.grid(2, 2)
    for call, error, message in (
        (lambda: tp.sample_neighbors(g, [4], 1, 0), IndexError, r"sample_neighbors: vertices\[0\]: 4 is no vertex"),
        (lambda: tp.sample_neighbors(g, [0], -1, 0), ValueError, "fanout must not be negative, got -1"),
        (lambda: tp.sample_neighbors(g, 0, 1, 0), ValueError, "vertices must have one dimension"),
        (lambda: tp.sample_neighbors(g, [0], 1.5, 0), TypeError, "fanout must be an integer, got float"),
        (lambda: tp.random_walk(g, torch.tensor([-1]), 1, 0), IndexError, r"random_walk: starts\[0\]: -1 is no"),
        (lambda: tp.random_walk(g, [0], -1, 0), ValueError, "length must not be negative, got -1"),
        (lambda: tp.random_walk(g, [0], 1, "x"), TypeError, "seed must be an integer, got str"),
    ):
        with pytest.raises(error, match=message):
            call()


# ---- batches


@each_device
def test_batches(device):
    graphs = [graph.grid(2, 3, device=device), random_graph(5, 9, 1, device)]
    graphs.append(graph.from_edges([], [], 0, device=device))
    g, offsets = graph.batch(graphs)
    assert offsets.tolist() == [0, 6, 11, 11] and not g.symmetric
    whole = scipy.sparse.block_diag([x.to_scipy() for x in graphs], format="csr")
    assert (g.to_scipy() != whole).nnz == 0
    assert (g.reverse().to_scipy() != whole.T).nnz == 0
    assert graph.batch(graphs[:1])[0].symmetric
    levels = tp.bfs(g, offsets[:2])[0]
    assert_equal(levels[:6], tp.bfs(graphs[0], 0)[0])
    mixed, _ = graph.batch([graph.grid(2, 2, device=device).to(torch.int32), graph.grid(2, 2, device=device)])
    assert mixed.dtype == mixed.row_ptrs.dtype == torch.int64
    without = graphs[1]._replace(in_row_ptrs=None, in_col_idx=None)
    assert graph.batch([without, graphs[0]])[0].in_row_ptrs is None


def test_batches_refuse():
    g = graph.grid(2, 2)
    for graphs, error, message in (
        ([], ValueError, "there are no graphs"),
        ([g, 3], TypeError, r"graphs\[1\] must be a Graph, got int"),
        (g, TypeError, "graphs must be a sequence of Graph, got Graph"),
    ):
        with pytest.raises(error, match=f"batch: {message}"):
            graph.batch(graphs)


def test_data_loaders_take_graphs():
    samples = [{"graph": graph.grid(1, n), "x": torch.full((2,), float(n)), "label": n} for n in (2, 3, 4)]
    batches = list(DataLoader(samples, 2, collate_fn=graph.collate))
    (g, offsets), x, labels = (batches[0][key] for key in ("graph", "x", "label"))
    assert offsets.tolist() == [0, 2, 5] and g.num_vertices == 5
    assert x.tolist() == [[2, 2], [3, 3]] and labels.tolist() == [2, 3]
    assert batches[1]["graph"][1].tolist() == [0, 4]
    g, offsets = next(iter(DataLoader([graph.grid(2, 2)] * 3, 3, collate_fn=graph.collate)))
    assert g.num_vertices == 12 and len(offsets) == 4


# ---- other libraries


@each_device
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_edge_index(dtype, device):
    edges = torch.tensor([[3, 0, 0, 2], [1, 2, 1, 2]], dtype=dtype, device=device)
    g = graph.from_edge_index(edges, 5)
    assert g.edge_index().tolist() == [[0, 0, 2, 3], [1, 2, 2, 1]] and g.edge_index().dtype == dtype
    assert g.num_vertices == 5 and g.edge_index().device == edges.device
    assert graph.from_edge_index(edges).num_vertices == 4
    order = tp.lexsort([edges[1], edges[0]])
    assert_equal(g.edge_index(), edges[:, order])
    both = torch.cat([edges, edges.flip(0)], 1)
    assert graph.from_edge_index(both, directed=None, dedup=True).symmetric
    assert graph.from_edge_index(edges, directed=False).symmetric
    with pytest.raises(ValueError, match=r"from_edge_index: edge_index must be \[2, E\], got \[4, 2\]"):
        graph.from_edge_index(edges.T)
    with pytest.raises(IndexError, match=r"from_edge_index: edge_index\[0\]\[0\] is 3, not in 0 ... 2"):
        graph.from_edge_index(edges, 3)
    with pytest.raises(TypeError, match="from_edge_index: edge_index must be a tensor, got list"):
        graph.from_edge_index([[0], [1]])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@each_device
def test_to_other_libraries_and_back(device):
    for directed, dedup in ((True, True), (False, True), (True, False), (False, False)):
        g = random_graph(12, 40, 3, device, directed=directed, dedup=dedup)
        weights = torch.arange(g.num_edges, device=device, dtype=torch.float64)
        theirs = g.to_networkx()
        assert theirs.is_directed() == directed and theirs.is_multigraph() == (not dedup)
        assert list(theirs) == list(range(12))
        for back in (graph.from_networkx(theirs, device=device), graph.from_scipy(g.to_scipy(), device=device)):
            assert_same_bits(back[:2], g[:2])
        matrix = np.zeros((12, 12))
        for u, v, w in edges_of(g, weights):
            matrix[u, v] += w
        assert np.array_equal(g.to_scipy(weights).toarray(), matrix)
        assert np.array_equal(g.to_torch(weights).to_dense().cpu(), matrix)
        assert g.to_torch().layout == torch.sparse_csr and g.to_torch().device == g.device
    triangle = graph.from_edges([0, 1, 2], [1, 2, 0], directed=False)
    weight_of = {(u, v): w for u, v, w in edges_of(triangle, torch.tensor([1, 2, 1, 3, 2, 3]))}
    for u, v, w in triangle.to_networkx(torch.tensor([1, 2, 1, 3, 2, 3])).edges(data="weight"):
        assert w == weight_of[u, v]
    with pytest.raises(ValueError, match=r"Graph.to_scipy: weights must be \[6\], one per edge, got \[5\]"):
        triangle.to_scipy(torch.ones(5))


@each_device
def test_samples_of_graphs_that_were_not_checked(device):
    """Pointers and destinations are bounded where they are used; a wrong destination is an error on the CPU."""
    ptrs, cols = (torch.tensor(x, device=device) for x in ([-7, 2, 99, 1, 4], [1, 9, -1, 2]))
    wild = tp.Graph(ptrs, cols)
    for fanout in (1, 9):
        _, found, edges = tp.sample_neighbors(wild, [0, 1, 2, 3], fanout, seed=1)
        assert_equal(found, cols[edges])
    if device == "cuda":
        walks = tp.random_walk(wild, [0, 1, 2, 3] * 8, 9, seed=1)
        assert bool(((walks >= 0) & (walks < 4)).all())
    else:
        with pytest.raises(IndexError, match=r"random_walk: col_idx\[[12]\]: (9|-1) is no vertex of a graph of 4"):
            tp.random_walk(wild, [0, 1, 2, 3] * 8, 9, seed=1)


def test_a_fanout_beyond_all_degrees_draws_every_edge():
    grid = tp.graph.grid(2, 2)
    every = tp.sample_neighbors(grid, [0, 3], 4, seed=1)
    for fanout in (10**15, 2**63, 2**70):
        assert all(map(torch.equal, tp.sample_neighbors(grid, [0, 3], fanout, seed=1), every))
    large = tp.graph.grid(200, 200)  # one column per edge of the graph would take 50 GB
    _, cols, _ = tp.sample_neighbors(large, torch.arange(large.num_vertices), 2**63 - 1, seed=1)
    assert torch.equal(cols, large.col_idx)
