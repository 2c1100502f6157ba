"""Breadth-first search held to its definition: every edge, parent and level, on hard, random and real graphs."""

import functools
import json

import numpy as np
import pytest
import torch
from common import DEVICES, EACH_DEVICE, needs_cuda
from data_files import data_folder
from scipy.io import mmread
from scipy.sparse import csgraph, csr_array

import torch_patterns as tp
from torch_patterns import graph, registry
from torch_patterns.testing import assert_same_bits

LADDER = registry.ladder("bfs")
EVERY_RUNG = [
    pytest.param(device, rung.name, marks=[needs_cuda] if device == "cuda" else [], id=f"{device}-{rung.name}")
    for device in DEVICES
    for rung in LADDER
    if device in rung.written_for
]
PRODUCTION = ("auto", "sequential", "threaded")  # on the CPU; the others run lane by lane there
ROOTS = 64


def is_dense(rung: str) -> bool:
    """Whether every level visits everything, so that long paths take their time."""
    return any("levels" in r.work for r in LADDER if r.name == rung)


def edges_of(g: tp.Graph) -> tuple[np.ndarray, np.ndarray]:
    """(src, dst), computed without the library."""
    ptrs = g.row_ptrs.cpu().numpy()
    return np.repeat(np.arange(len(ptrs) - 1), np.diff(ptrs)), g.col_idx.cpu().numpy()


def scipy_levels(g: tp.Graph, sources: list[int]) -> np.ndarray:
    src, dst = edges_of(g)
    matrix = csr_array((np.ones(len(src)), (src, dst)), shape=(g.num_vertices, g.num_vertices))
    found = csgraph.dijkstra(matrix, unweighted=True, indices=sources, min_only=True)
    return np.where(np.isinf(found), -1, found).astype(np.int64)


def smallest_parents(g: tp.Graph, levels: np.ndarray) -> np.ndarray:
    src, dst = edges_of(g)
    down = (levels[src] >= 0) & (levels[dst] == levels[src] + 1)
    parents = np.full(g.num_vertices, g.num_vertices)
    np.minimum.at(parents, dst[down], src[down])
    return np.where(levels == 0, np.arange(g.num_vertices), np.where(levels < 0, -1, parents))


def check(g: tp.Graph, sources: list[int], out, want: np.ndarray | None = None) -> None:
    """The rules of Graph500 and GAPBS, and levels and parents to the bit. `want`: levels, from elsewhere than scipy."""
    assert out[0].dtype == torch.int32 and out[1].dtype == g.dtype
    levels, parents = (x.cpu().numpy() for x in out)
    src, dst = edges_of(g)
    reached, vertices = levels >= 0, np.arange(g.num_vertices)
    roots = np.isin(vertices, sources)
    assert (parents[roots] == vertices[roots]).all() and (levels[roots] == 0).all()
    assert ((levels == 0) == roots).all() and ((parents >= 0) == reached).all()
    assert (levels[~reached] == -1).all() and (parents[~reached] == -1).all()
    below = vertices[reached & ~roots]
    tree = parents[below].astype(np.int64) * g.num_vertices + below
    assert np.isin(tree, src.astype(np.int64) * g.num_vertices + dst).all(), "a tree edge is no edge"
    assert (levels[below] == levels[parents[below]] + 1).all(), "a tree edge spans not one level"
    assert (reached[dst] | ~reached[src]).all(), "an edge leads out of what is reached"
    assert (levels[dst] <= levels[src] + 1)[reached[src]].all(), "an edge skips a level"
    if g.symmetric:
        assert (abs(levels[dst] - levels[src]) <= 1).all()
    assert (levels == (scipy_levels(g, sources) if want is None else want)).all()
    assert (parents == smallest_parents(g, levels)).all(), "not the smallest parent"


def random_roots(g: tp.Graph, count: int = ROOTS) -> list[int]:
    leaving = g.out_degrees().nonzero()[:, 0]
    return leaving[torch.randint(len(leaving), (count,))].tolist()


# ---- every rung


GENERATED = {
    "rmat": lambda **o: graph.rmat(9, 8, 1, **o),
    "rmat directed": lambda **o: graph.rmat(9, 4, 2, directed=True, index_dtype=torch.int32, **o),
    "uniform": lambda **o: graph.uniform(700, 3, 3, **o),
    "uniform directed": lambda **o: graph.uniform(700, 2, 4, directed=True, **o),
    "grid": lambda **o: graph.grid(17, 23, index_dtype=torch.int32, **o),
}


@functools.cache
def generated(name: str) -> tuple[tp.Graph, list[int], list[np.ndarray]]:
    """A graph, random roots, and the levels that scipy finds from each."""
    torch.manual_seed(1)
    g = GENERATED[name]()
    roots = random_roots(g)
    return g, roots, [scipy_levels(g, [root]) for root in roots]


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_random_roots(device, rung, name):
    g, roots, wanted = generated(name)
    moved = g.to(device)
    for root, want in zip(roots, wanted, strict=True):
        check(g, [root], tp.bfs(moved, root, algorithm=rung), want)
    levels, parents = tp.bfs_batched(moved, roots[:9], algorithm=rung)
    for i in range(9):
        check(g, roots[i : i + 1], (levels[i], parents[i]), wanted[i])


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_batches(device, rung):
    """Row i is what a search from source i finds by itself, whatever the other rows hold, even the same source."""
    for name in ("rmat", "rmat directed", "grid"):
        g, roots, wanted = generated(name)
        chosen = torch.randint(len(roots), (150 if rung in (*PRODUCTION, "bit_parallel") else 9,)).tolist()
        sources = torch.tensor([roots[i] for i in chosen], device=device)
        for given in (g, tp.Graph(*g[:2])):  # without in-edges, too
            levels, parents = tp.bfs_batched(given.to(device), sources, algorithm=rung)
            for row, i in enumerate(chosen):
                check(g, [roots[i]], (levels[row], parents[row]), wanted[i])


@needs_cuda
def test_a_batch_in_a_cuda_graph():
    """The default waits for the device where it may, and takes one search after another where it may not."""
    g, sources = generated("rmat")[0].to("cuda"), torch.arange(40, device="cuda")
    tp.bfs(g, 0)
    want, cuda_graph = tp.bfs_batched(g, sources), torch.cuda.CUDAGraph()
    with torch.cuda.graph(cuda_graph):
        out = tp.bfs_batched(g, sources)
    cuda_graph.replay()
    assert all(map(torch.equal, out, want))


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_sets_of_sources(device, rung):
    g = generated("rmat directed")[0]
    for count in (2, 2, 40, 400):
        sources = torch.randint(g.num_vertices, (count,))  # some twice
        check(g, sources.tolist(), tp.bfs(g.to(device), sources.to(device), algorithm=rung))


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_max_level(device, rung):
    for name in ("rmat directed", "grid"):
        g, (root, *_), (want, *_) = generated(name)
        for most in (0, 1, 2, 3, 7, 1000):
            cut = np.where(want > most, -1, want)
            levels, parents = (x.cpu().numpy() for x in tp.bfs(g.to(device), root, most, algorithm=rung))
            assert (levels == cut).all() and (parents == smallest_parents(g, cut)).all()


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_long_paths(device, rung):
    """As many levels as vertices, more than 16 bits count, as far as the rung goes in reasonable time."""
    n = 5000 if is_dense(rung) else 70_000
    ids = torch.arange(n)
    g = graph.from_edges(ids[:-1], ids[1:], n, device=device)
    levels, parents = tp.bfs(g, 0, algorithm=rung)
    assert torch.equal(levels.cpu(), ids.int()) and torch.equal(parents.cpu(), (ids - 1).clamp(min=0))
    levels, parents = tp.bfs(g, n - 1, algorithm=rung)
    assert (levels >= 0).sum() == 1 and (parents >= 0).sum() == 1 and parents[-1] == n - 1


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_wide_levels(device, rung):
    """A star from its hub and from a leaf; the frontier is everything."""
    n = 20_000 if device == "cpu" and rung not in PRODUCTION else 1_000_001
    leaves = torch.arange(1, n)
    g = graph.from_edges(torch.zeros_like(leaves), leaves, n, directed=False, device=device)
    levels, parents = tp.bfs(g, 0, algorithm=rung)
    assert levels[0] == 0 and (levels[1:] == 1).all() and (parents == 0).all()
    levels, parents = tp.bfs(g, n - 1, algorithm=rung)
    assert levels[-1] == 0 and levels[0] == 1 and (levels[1:-1] == 2).all()
    assert parents[-1] == n - 1 and parents[0] == n - 1 and (parents[1:-1] == 0).all()


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_known_graphs(device, rung):
    def levels_of(pairs, n, source):
        g = graph.from_edges(*zip(*pairs, strict=True), n, device=device)
        out = tp.bfs(g, source, algorithm=rung)
        check(g, [source], out)
        return out[0].tolist()

    book = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 7), (3, 4), (3, 8), (4, 5), (4, 8), (5, 6), (6, 8)]
    book += [(7, 0), (7, 6)]
    assert levels_of(book, 9, 0) == [0, 1, 1, 2, 2, 2, 2, 2, 3]  # Fig. 15.4(A)
    assert levels_of(book, 9, 2) == [2, 3, 0, 4, 4, 1, 1, 1, 2]  # Fig. 15.4(B)
    assert levels_of([(0, 4), (4, 1), (1, 3), (3, 2)], 5, 0) == [0, 2, 4, 3, 1]
    assert levels_of([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)], 5, 3) == [-1, -1, -1, 0, 1]  # a cycle and its tail
    assert levels_of([(0, 0)], 1, 0) == [0]
    assert levels_of([(0, 1)] * 1000 + [(1, 1)] * 70, 3, 0) == [0, 1, -1]


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_full_and_bare_graphs(device, rung):
    n = 300 if device == "cpu" and rung not in PRODUCTION else 2000
    levels, parents = tp.bfs(graph.from_torch(torch.ones(n, n, device=device)), 7, algorithm=rung)
    assert levels.sum() == n - 1 and levels[7] == 0 and (parents == 7).all()
    child = torch.arange(1, 2**14 - 1 if device == "cpu" and rung not in PRODUCTION else 2**20 - 1)
    levels, parents = tp.bfs(graph.from_edges((child - 1) // 2, child, device=device), 0, algorithm=rung)
    assert torch.equal(levels[1:].cpu(), (child + 1).double().log2().int()) and levels[0] == 0
    assert torch.equal(parents[1:].cpu(), (child - 1) // 2) and parents[0] == 0
    levels, parents = tp.bfs(graph.from_edges([], [], 100_000, device=device), 99_999, algorithm=rung)
    assert levels.sum() == 1 - 100_000 and levels[-1] == 0 and parents[-1] == 99_999 and parents.sum() == 0


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_garbage(device, rung):
    """Edges to no vertex: an error on the CPU, skipped on CUDA, and no access outside the tensors on either."""
    ptrs, columns = torch.tensor([0, 3, 4, 4], device=device), torch.tensor([1, 2**40, -3, 2], device=device)
    wild = torch.tensor([0, 2**40, -5, 4], device=device)
    if device == "cpu":
        with pytest.raises(IndexError, match=r"col_idx|-3|1099511627776"):
            tp.bfs(tp.Graph(ptrs, columns), 0, algorithm=rung)
        with pytest.raises((IndexError, ValueError), match="row_ptrs"):
            tp.bfs(tp.Graph(wild, columns), 0, algorithm=rung)
    else:
        assert tp.bfs(tp.Graph(ptrs, columns), 0, algorithm=rung)[0].tolist() == [0, 1, 2]
        tp.bfs(tp.Graph(wild, columns), 0, algorithm=rung)
    good = graph.from_edges([0, 1], [1, 2], 3, device=device)
    assert tp.bfs(good, 0, algorithm=rung)[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_unsorted_rows_give_a_valid_tree(device, rung):
    """And the same one in every run."""
    g = generated("rmat directed")[0]
    reversed_rows = torch.cat([row.flip(0) for row in g.col_idx.split(g.out_degrees().tolist())])
    shuffled = tp.Graph(g.row_ptrs, reversed_rows).to(device)
    root = generated("rmat directed")[1][0]
    levels, parents = tp.bfs(shuffled, root, algorithm=rung)
    levels, parents = levels.cpu().numpy(), parents.cpu().numpy()
    check(g, [root], (torch.from_numpy(levels), torch.from_numpy(smallest_parents(g, levels)).to(g.dtype)))
    src, dst = edges_of(g)
    below = np.flatnonzero(levels > 0)
    assert np.isin(parents[below] * 10_000 + below, src * 10_000 + dst).all()
    assert (levels[parents[below]] == levels[below] - 1).all()
    assert_same_bits(tp.bfs(shuffled, root, algorithm=rung)[1].cpu(), torch.from_numpy(parents))


# ---- real graphs


@functools.cache
def golden() -> dict:
    return json.loads((data_folder("matrices").parent / "GOLDEN.json").read_text())


def searches_of(device: str):
    """(name, graph, facts of its searches) of every square matrix."""
    for name, facts in golden().items():
        if "bfs" in facts:
            yield name, graph.read(data_folder("matrices").parent / name, device=device), facts["bfs"]


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_golden_levels(device, rung):
    count = 0
    for name, g, searches in searches_of(device):
        for want in searches:
            levels, parents = tp.bfs(g, want["src"], algorithm=rung)
            reached = levels[levels >= 0]
            got = {"reached": len(reached), "max_level": int(reached.max()), "sum_levels": int(reached.sum())}
            assert got == {key: want[key] for key in got}, name
            assert (smallest_parents(g, levels.cpu().numpy()) == parents.cpu().numpy()).all(), name
            count += 1
    assert count > 10


@pytest.mark.slow
@pytest.mark.parametrize("device", EACH_DEVICE)
def test_random_roots_of_real_graphs(device):
    """Read twice, searched from 64 roots; by rungs that emulate the GPU on the CPU from two."""
    for name, g, _ in searches_of("cpu"):
        matrix, (src, dst), n = mmread(data_folder("matrices").parent / name).tocoo(), edges_of(g), g.num_vertices
        assert np.array_equal(src * n + dst, np.sort(matrix.row.astype(np.int64) * n + matrix.col)), name
        moved, roots = g.to(device), random_roots(g)
        for i, root in enumerate(roots):
            levels = scipy_levels(g, [root])
            parents = smallest_parents(g, levels)
            for rung in ["auto", *tp.algorithms("bfs", device)]:
                if i < 2 or device == "cuda" or rung in PRODUCTION:
                    out = tp.bfs(moved, root, algorithm=rung)
                    assert (out[0].cpu().numpy() == levels).all(), f"{name} {rung}: levels from {root}"
                    assert (out[1].cpu().numpy() == parents).all(), f"{name} {rung}: parents from {root}"


def test_quirks():
    folder = data_folder("quirks")
    karate = graph.read(folder / "karate.mtx")
    assert karate.symmetric and karate.num_vertices == 34 and karate.num_edges == 2 * 78
    loops, multi = graph.read(folder / "karate_s_loop.csv"), graph.read(folder / "karate_multi_edge.csv")
    for g in (karate, loops, multi):
        check(g, [0], tp.bfs(g, 0))
    assert torch.equal(tp.bfs(loops, 0)[0], tp.bfs(karate, 0)[0])
    disjoint = graph.read(folder / "karate-disjoint.csv", directed=False)
    assert (tp.bfs(disjoint, 0)[0] < 0).any()
    with pytest.raises(IndexError, match=r"src\[0\] is -1"):
        graph.read(folder / "negative-vertex-id.csv")
    by_list, by_matrix = graph.read(folder / "gapbs_4.el"), graph.read(folder / "gapbs_4.mtx")
    assert_same_bits(by_list[:4], by_matrix[:4])


# ---- compositions


def components_of(g: tp.Graph) -> np.ndarray:
    src, dst = edges_of(g)
    matrix = csr_array((np.ones(len(src)), (src, dst)), shape=(g.num_vertices, g.num_vertices))
    return csgraph.connected_components(matrix, directed=True, connection="weak")[1]


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_components(device):
    graphs = [generated(name)[0] for name in GENERATED]
    graphs += [graph.rmat(12, 1, 5, directed=True), graph.uniform(3000, 1, 6), graph.from_edges([], [], 5)]
    path = torch.randperm(5000)
    graphs += [graph.from_edges(path[:-1], path[1:], 5003)]
    for g in graphs:
        labels = tp.connected_components(g.to(device))
        assert labels.dtype == g.dtype and (labels.cpu().numpy() == components_of(g)).all()
        bare = tp.Graph(*g[:2]).to(device)  # neither in-edges nor a promise of symmetry
        assert torch.equal(tp.connected_components(bare), labels)
    assert tp.connected_components(graph.from_edges([], [], 0)).shape == (0,)


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_shortest_paths(device):
    for name in GENERATED:
        g, roots, wanted = generated(name)
        edges, moved = set(zip(*(x.tolist() for x in g.coo()), strict=True)), g.to(device)
        for source, target, levels in zip(roots[:10], reversed(roots), wanted, strict=False):
            way = tp.shortest_path(moved, source, target)
            assert way.device.type == device and way.dtype == g.dtype
            way = way.tolist()
            assert len(way) == levels[target] + 1
            if way:
                assert (way[0], way[-1]) == (source, target) and edges.issuperset(zip(way, way[1:], strict=False))
    lonely = graph.from_edges([0, 1], [1, 0], 3, device=device)
    assert tp.shortest_path(lonely, 0, 2).tolist() == [] and tp.shortest_path(lonely, 2, 2).tolist() == [2]
    assert tp.shortest_path(lonely, [0, 2], 1).tolist() == [0, 1]
    for source, target in ((0, 3), (0, -1), (3, 0)):
        with pytest.raises(IndexError, match="shortest_path: target: |bfs: sources: "):
            tp.shortest_path(lonely, source, target)


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_reachable(device):
    g, roots, wanted = generated("uniform directed")
    for root, want in zip(roots[:5], wanted, strict=False):
        assert (tp.reachable(g.to(device), root).cpu().numpy() == (want >= 0)).all()
        near = tp.reachable(g.to(device), root, 3).cpu().numpy()
        assert (near == ((want >= 0) & (want <= 3))).all()


# ---- how it is called


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_sources_and_levels(device):
    g = generated("rmat")[0].to(device)
    want = tp.bfs(g, 5)
    for sources in (
        [5],
        (5,),
        np.int64(5),
        np.array([5]),
        torch.tensor(5),
        torch.tensor([5, 5]),
        torch.tensor([5], dtype=torch.uint8),
    ):
        sources = sources.to(device) if isinstance(sources, torch.Tensor) else sources
        assert_same_bits(tp.bfs(g, sources), want)
    assert_same_bits(tp.bfs(g, 5, None), want)
    many = torch.tensor([5, 9, 3], device=device)
    for got in (tp.bfs_batched(g, many), torch.vmap(lambda source: tp.bfs(g, source))(many)):
        assert_same_bits(got, [torch.stack(pair) for pair in zip(*(tp.bfs(g, s) for s in many), strict=True)])
    assert_same_bits(tp.bfs(g, 5, max_level=g.num_vertices), want)
    assert_same_bits(tp.bfs(g, torch.tensor(5, device=device), validate=True), want)
    for bad in (-1, g.num_vertices, 2**40, [0, -1]):
        with pytest.raises(IndexError, match=r"bfs: sources(\[\d\])?:? .*is no vertex"):
            tp.bfs(g, bad)
    with pytest.raises(ValueError, match="bfs: max_level must not be negative, got -1"):
        tp.bfs(g, 0, -1)
    with pytest.raises(ValueError, match="sources is empty"):
        tp.bfs(g, [])
    with pytest.raises(IndexError, match="no vertex of a graph of 0"):
        tp.bfs(graph.from_edges([], [], 0, device=device), 0)
    assert tp.bfs_batched(g, [])[0].shape == (0, g.num_vertices)


class Distances(torch.nn.Module):
    def forward(self, g: tp.Graph, sources: torch.Tensor) -> torch.Tensor:
        return tp.bfs(g, sources)[0].clamp(min=0).sum() + tp.bfs_batched(g, sources, 2)[1].sum()


@pytest.mark.parametrize("name", ["rmat", "rmat directed"])
@pytest.mark.parametrize("device", EACH_DEVICE)
def test_graphs_are_arguments_of_programs(device, name, tmp_path):
    """Compiled, exported, and stored, by themselves and with a program."""
    g, model = generated(name)[0].to(device), Distances()
    first, second = torch.tensor([3], device=device), torch.tensor([70, 8], device=device)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    by_number = torch.compile(lambda i: tp.bfs(g, i)[0], backend="aot_eager", fullgraph=True, dynamic=True)
    assert all(torch.equal(by_number(i), tp.bfs(g, i)[0]) for i in (3, 70, 9))
    program = torch.export.export(model, (g, first), dynamic_shapes=None)
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    assert torch.equal(compiled(g, first), model(g, first)) and torch.equal(compiled(g, second), model(g, second))
    torch.save(g, tmp_path / "graph.pt")
    stored = torch.load(tmp_path / "graph.pt")
    assert isinstance(stored, tp.Graph) and torch.equal(model(stored, first), model(g, first))
    other = torch.tensor([9], device=device)
    assert torch.equal(loaded(g, first), model(g, first)) and torch.equal(loaded(g, other), model(g, other))


@pytest.mark.parametrize("device, rung", EVERY_RUNG)
def test_levels_beyond_any_graph(device, rung):
    g = graph.from_edges([0, 1, 2], [1, 2, 3], 4, device=device)
    for max_level in (2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1):
        levels, parents = tp.bfs(g, 0, max_level, algorithm=rung)
        assert levels.tolist() == [0, 1, 2, 3] and parents.tolist() == [0, 0, 1, 2]


# ---- again and again


@pytest.mark.parametrize(
    "scale, repeats, device",
    [(14, 100, "cpu"), pytest.param(20, 1000, "cuda", marks=[needs_cuda, pytest.mark.slow])],
)
def test_repeats(scale, repeats, device):
    """Threads append to the queues in any order; the result does not depend on it."""
    g = graph.rmat(scale, 16, 7, index_dtype=torch.int32, device=device)
    torch.set_num_threads(2)
    root = random_roots(g, 1)[0]
    want = tp.bfs(g, root)
    check(g, [root], want)
    for _ in range(repeats):
        assert all(map(torch.equal, tp.bfs(g, root), want))
