"""Graphs from edges, matrices, other libraries and files, and generated ones."""

import copy
import gzip
import pickle
import warnings
import zlib

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from common import EACH_DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_patterns as tp
from torch_patterns import graph
from torch_patterns.testing import assert_same_bits

SRC, DST = [3, 0, 0, 2, 0, 3], [1, 2, 2, 2, 1, 0]
MATRIX = np.array([[0, 1, 2, 0], [0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0]])  # how often each of these edges is there


def pairs(g: tp.Graph) -> list[tuple[int, int]]:
    return list(zip(*(x.tolist() for x in g.coo()), strict=True))


def expected(edges, directed=True, dedup=False) -> list[tuple[int, int]]:
    """By Python's own sort."""
    edges = list(edges) + ([] if directed else [(v, u) for u, v in edges if u != v])
    return sorted(set(edges)) if dedup else sorted(edges)


def check_in_edges(g: tp.Graph) -> None:
    turned = sorted((v, u) for u, v in pairs(g))
    assert (pairs(g.reverse()) == turned) and (g.symmetric == (g.in_row_ptrs is None) == (g.in_col_idx is None))
    if g.symmetric:
        assert turned == pairs(g)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 40), st.sampled_from([True, False, None]), st.booleans())
def test_from_edges(data, n, directed, dedup):
    edges = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60))
    src, dst = ([e[i] for e in edges] for i in range(2))
    g = graph.from_edges(src, dst, n, directed=directed, dedup=dedup)
    assert pairs(g) == expected(edges, directed is not False, dedup)
    assert g.num_vertices == n and g.num_edges == len(pairs(g)) and g.row_ptrs.tolist()[0] == 0
    assert g.symmetric == (directed is False or directed is None and pairs(g) == sorted((v, u) for u, v in pairs(g)))
    check_in_edges(g)


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_properties(device):
    g = graph.from_edges(SRC, DST, 5, device=device)
    assert (g.num_vertices, g.num_edges, g.dtype, g.device.type) == (5, 6, torch.int64, device)
    assert g.row_ptrs.tolist() == [0, 3, 3, 4, 6, 6] and g.col_idx.tolist() == [1, 2, 2, 2, 0, 1]
    assert g.in_row_ptrs.tolist() == [0, 1, 3, 6, 6, 6] and g.in_col_idx.tolist() == [3, 0, 3, 0, 0, 2]
    assert g.out_degrees().tolist() == [3, 0, 1, 2, 0] and g.in_degrees().tolist() == [1, 2, 3, 0, 0]
    assert repr(g) == f"Graph(num_vertices=5, num_edges=6, symmetric=False, dtype=torch.int64, device='{g.device}')"
    narrow = g.to(torch.int32)
    assert {x.dtype for x in narrow[:4]} == {torch.int32} and pairs(narrow) == pairs(g)
    assert_same_bits(narrow.to("cpu").to(device, torch.int64)[:4], g[:4])
    for copied in (copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert_same_bits(copied[:4], g[:4])
    with pytest.raises(TypeError, match=r"Graph.to: .*torch.float32"):
        g.to(torch.float32)
    with pytest.raises(ValueError, match="Graph.reverse: in_row_ptrs and in_col_idx are not given"):
        tp.Graph(*g[:2]).in_degrees()


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_kinds_of_ids(device):
    want = graph.from_edges(SRC, DST, 4)
    for make in (np.array, torch.tensor, tuple, list, lambda x: torch.tensor(x, dtype=torch.uint8)):
        g = graph.from_edges(make(SRC), make(DST), device=device)
        assert g.device.type == device and g.num_vertices == 4
        assert_same_bits([x.cpu() for x in g[:4]], want[:4])
    src, dst = np.array(SRC), np.array(DST)
    fixed = src.copy()
    fixed.flags.writeable = False
    for turned in (
        (src[::-1].copy()[::-1], dst),
        (src.astype(">i4"), dst.astype(">i8")),
        (fixed, np.repeat(dst, 2)[::2]),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same_bits([x.cpu() for x in graph.from_edges(*turned, device=device)[:4]], want[:4])
    for no in (np.False_, 0):
        assert graph.from_edges(SRC, DST, directed=no, device=device).symmetric
    narrow = [torch.tensor(x, dtype=torch.int32, device=device) for x in (SRC, DST)]
    assert graph.from_edges(*narrow).dtype == torch.int32
    assert graph.from_edges(narrow[0], narrow[1].long()).dtype == torch.int64
    assert graph.from_edges(*narrow, index_dtype=torch.int64).row_ptrs.dtype == torch.int64
    for n in (None, 0, 3):
        empty = graph.from_edges([], [], n, directed=None, device=device)
        assert empty.symmetric and empty.row_ptrs.tolist() == [0] * ((n or 0) + 1) and empty.num_edges == 0


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_bad_edges(device):
    def refused(error, message, *args, **options):
        with pytest.raises(error, match=message):
            graph.from_edges(*args, device=device, **options)

    refused(IndexError, r"src\[1\] is -1, not in 0 ... 2", [0, -1], [0, 0], 3)
    refused(IndexError, r"dst\[2\] is 3, not in 0 ... 2", [0, 1, 0, 1], [0, 2, 3, 7], 3)
    refused(IndexError, r"src\[0\] is 1099511627776", [2**40], [0], 3)
    refused(IndexError, r"src\[0\] is -5", [-5], [-7])
    refused(ValueError, r"of one length, got \[2\] and \[1\]", [0, 1], [0])
    refused(ValueError, r"one-dimensional.*\[1, 1\]", [[0]], [[0]])
    refused(ValueError, "num_vertices must be in 0 ... 2.31, got -1", [], [], -1)
    refused(ValueError, "num_vertices must be in 0 ... 2.31, got", [], [], 2**31 + 1)
    refused(ValueError, "2147483648 vertices are too many for torch.int32", [0], [0], 2**31, index_dtype=torch.int32)
    refused(
        TypeError, "index dtype must be torch.int32 or torch.int64, got torch.int16", [0], [0], index_dtype=torch.int16
    )
    for values in ([0.5], [True], np.array([1j])):
        refused(TypeError, "src must hold integers", values, [0])
    wild = graph.from_edges([2**40, -3, 1], [0, 5, -1], 3, validate=False, device=device)
    levels, _ = tp.bfs(graph.from_edges([0], [1], 3, device=device), 0)
    assert wild.num_edges == 3 and levels.tolist() == [0, 1, -1]


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_from_csr(device):
    ptrs, cols = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 2, 2, 4], [2, 1, 2, 0]))
    g = graph.from_csr(ptrs, cols)
    assert pairs(g) == [(0, 1), (0, 2), (2, 0), (2, 2)] and g.dtype == torch.int32
    check_in_edges(g)
    for pointers, error in (([0, 3, 2, 4], ValueError), ([0, 2, 5, 4], IndexError), ([1, 2, 2, 4], ValueError)):
        with pytest.raises(error, match="from_csr: row_ptrs"):
            graph.from_csr(torch.tensor(pointers, device=device), cols)
    with pytest.raises(IndexError, match=r"from_csr: col_idx\[3\] is 3"):
        graph.from_csr(ptrs, cols + cols.new_tensor([0, 0, 0, 3]))


@pytest.mark.parametrize("device", EACH_DEVICE)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_from_torch(device):
    want = graph.from_edges(SRC, DST, 4, dedup=True)
    dense = torch.from_numpy(MATRIX.astype(np.float32)).to(device)
    for matrix in (
        dense,
        dense.to_sparse(),
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        dense.bool(),
        dense.cfloat(),
    ):
        g = graph.from_torch(matrix)
        assert g.device.type == device
        assert_same_bits([x.cpu() for x in g[:4]], want[:4])
    coo = torch.sparse_coo_tensor(torch.tensor([SRC, DST]), torch.zeros(6), (4, 4), check_invariants=False).to(device)
    assert pairs(graph.from_torch(coo)) == sorted(zip(SRC, DST, strict=True))  # zeros and duplicates are edges
    assert graph.from_torch(dense + dense.T).symmetric and not graph.from_torch(dense).symmetric
    assert pairs(graph.from_torch(dense, directed=False, dedup=True)) == pairs(graph.from_torch(dense + dense.T))
    blocks = dense.to_sparse_bsr((2, 2))
    assert set(pairs(graph.from_torch(blocks))) >= set(pairs(want))
    for wrong in (torch.ones(2, 3), torch.ones(2), torch.ones(2, 2, 2).to_sparse()):
        with pytest.raises(ValueError, match="from_torch: the matrix must be square"):
            graph.from_torch(wrong.to(device))


def test_from_scipy():
    want = graph.from_edges(SRC, DST, 4, dedup=True)
    for kind in ("coo", "csr", "csc", "lil", "dok", "bsr", "dia"):
        matrix = scipy.sparse.coo_array(MATRIX).asformat(kind)
        if kind not in ("bsr", "dia"):  # these store zeros, too
            assert_same_bits(graph.from_scipy(matrix)[:4], want[:4])
        assert set(pairs(graph.from_scipy(matrix))) >= set(pairs(want))
    zeros = scipy.sparse.coo_matrix((np.zeros(6), (SRC, DST)), (4, 4))
    assert pairs(graph.from_scipy(zeros, index_dtype=torch.int32)) == sorted(zip(SRC, DST, strict=True))
    assert graph.from_scipy(scipy.sparse.eye_array(3)).symmetric
    with pytest.raises(ValueError, match=r"from_scipy: .*\[2, 3\]"):
        graph.from_scipy(scipy.sparse.coo_array(np.ones((2, 3))))


def test_from_networkx():
    edges = [("c", "a"), ("a", "b"), ("b", "b"), ("a", "b")]
    ids = {"c": 0, "a": 1, "b": 2, "d": 3}
    numbered = [(ids[u], ids[v]) for u, v in edges]
    for kind in (networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph):
        other = kind()
        other.add_edges_from(edges)
        other.add_node("d")
        g = graph.from_networkx(other)
        directed, multi = other.is_directed(), other.is_multigraph()
        assert pairs(g) == expected(numbered if multi else set(numbered), directed)
        assert g.num_vertices == 4 and g.symmetric != directed
    assert graph.from_networkx(networkx.DiGraph([(0, 1)]), directed=False).num_edges == 2
    karate = networkx.karate_club_graph()
    levels = tp.bfs(graph.from_networkx(karate), 5)[0].tolist()
    assert dict(enumerate(levels)) == networkx.single_source_shortest_path_length(karate, 5)


# ---- files


def test_read_edges(tmp_path):
    text = "# a comment\n% another\n\n3 1\n0\t2 0.5\n 0,2,1\n2 2\n0 1\n3 0"
    (tmp_path / "a.el").write_text(text)
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write(text)
    want = graph.from_edges(SRC, DST, 4)
    for name in ("a.el", "a.txt.gz"):
        g = graph.read(tmp_path / name)
        assert_same_bits(g[:4], want[:4])
    assert graph.read(str(tmp_path / "a.el"), 9, index_dtype=torch.int32).num_vertices == 9
    assert graph.read(tmp_path / "a.el", directed=False).symmetric
    (tmp_path / "one.el").write_text("1 2\n2 1\n")
    g = graph.read(tmp_path / "one.el", base=1)
    assert g.symmetric and pairs(g) == [(0, 1), (1, 0)]
    (tmp_path / "none.el").write_text("# nothing\n")
    assert graph.read(tmp_path / "none.el", 3).num_edges == 0


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_what_stands_beside_the_ids_may_have_any_encoding(tmp_path, encoding):
    (tmp_path / "a.el").write_text("# é\n0 1 é\n", encoding=encoding)
    assert pairs(graph.read(tmp_path / "a.el")) == [(0, 1)]


@pytest.mark.parametrize("line", ["1", "1 two", "0 1.5", "0 99999999999999999999", "0 \N{DIGIT ONE}é"])
def test_read_names_the_line_that_is_no_edge(tmp_path, line):
    path = tmp_path / "bad.el"
    path.write_text(f"# text\n\n0 1\n{line}\n1 0\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"read: .*bad\.el: line 4: two vertex ids make an edge, and not '{line[:3]}"):
        graph.read(path)


def test_the_base_of_a_list_is_an_integer(tmp_path):
    (tmp_path / "a.el").write_text("1 2\n")
    for base in (True, 1.0, "1"):
        with pytest.raises(TypeError, match="read: base must be an integer"):
            graph.read(tmp_path / "a.el", base=base)


def test_read_refuses_other_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        graph.read(tmp_path / "missing.el")
    (tmp_path / "damaged.el.gz").write_bytes(gzip.compress(b"0 1\n" * 100)[:-12])
    (tmp_path / "text.el.gz").write_text("0 1\n")
    for name in ("damaged", "text"):
        with pytest.raises(ValueError, match=rf"read: .*{name}\.el\.gz"):
            graph.read(tmp_path / f"{name}.el.gz")
    with pytest.raises(IndexError, match=r"dst\[0\] is 7, not in 0 ... 2"):
        (tmp_path / "far.el").write_text("0 7\n")
        graph.read(tmp_path / "far.el", 3)


def test_read_matrix_market(tmp_path):
    head = "%%MatrixMarket matrix coordinate"
    (tmp_path / "a.mtx").write_text(f"{head} pattern general\n% text\n4 4 5\n4 2\n1 3\n3 3\n1 2\n4 1\n")
    assert_same_bits(graph.read(tmp_path / "a.mtx")[:4], graph.from_edges(SRC, DST, 4, dedup=True)[:4])
    text = f"{head} real symmetric\n3 3 3\n2 1 0.0\n3 2 -1e3\n3 3 7\n"
    (tmp_path / "s.mtx").write_text(text)
    (tmp_path / "s.mtx.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("s.mtx", "s.mtx.gz"):
        g = graph.read(tmp_path / name)
        assert g.symmetric and pairs(g) == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 2)]
    (tmp_path / "wide.mtx").write_text(f"{head} pattern general\n2 3 1\n1 3\n")
    with pytest.raises(ValueError, match="2 x 3"):
        graph.read(tmp_path / "wide.mtx")


# ---- generators


def splitmix64(counter: int, key: int) -> int:
    """In Python's integers."""
    x = (counter * 0x9E3779B97F4A7C15 + key) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_random_words(device):
    assert splitmix64(1, 0) == 0xE220A8397B1DCDAF  # as published
    for seed in (0, 1, -1, 2**63 - 1):
        for stream in (0, 5):
            key = splitmix64(0, splitmix64(0, seed) + stream)
            words = graph.random_words(3, 40, seed, stream, device).tolist()
            assert [w % 2**64 for w in words] == [splitmix64(i, key) for i in range(3, 40)]


# Of row_ptrs and col_idx as int64: a change of the graph of a seed changes these.
CHECKSUMS = {
    "rmat": (lambda **o: graph.rmat(10, 8, 1, **o), 0x13BA9A2),
    "rmat 9 directed": (lambda **o: graph.rmat(9, 5, 2, directed=True, **o), 0xF2AC64BA),
    "rmat 18": (lambda **o: graph.rmat(18, 2, 3, **o), 0x55FB26A8),
    "rmat 0": (lambda **o: graph.rmat(0, 4, 3, **o), 0x2209F04A),
    "uniform": (lambda **o: graph.uniform(1000, 8, 1, **o), 0x9B69DC2B),
    "uniform directed": (lambda **o: graph.uniform(99_999, 3, 1, directed=True, dedup=True, **o), 0xB0F33992),
    "grid": (lambda **o: graph.grid(20, 31, **o), 0xD3F4B32E),
}


@pytest.mark.parametrize("name", CHECKSUMS)
@pytest.mark.parametrize("device", EACH_DEVICE)
def test_the_same_graph_everywhere(device, name):
    make, want = CHECKSUMS[name]
    for dtype in (torch.int64, torch.int32):
        g = make(index_dtype=dtype, device=device)
        assert g.dtype == dtype and g.device.type == device
        found = 0
        for x in g[:2]:
            found = zlib.crc32(x.cpu().long().numpy().tobytes(), found)
        assert found == want, hex(found)


def test_seeds_make_different_graphs():
    found = [graph.rmat(8, 4, seed).col_idx[:500].tolist() for seed in (0, 1, 2, -1)]
    assert all(a != b for i, a in enumerate(found) for b in found[:i])


def test_rmat_degrees():
    """By the chance 0.76 of an upper half at every level: one vertex, ten, and 45 of which zero, one, two are lower."""
    g = graph.rmat(10, 64, 5, directed=True)
    edges = 1024 * 64
    for degrees in (g.out_degrees(), g.in_degrees()):
        top = degrees.sort(descending=True)[0].double()
        for begin, count, lower in ((0, 1, 0), (1, 10, 1), (11, 45, 2)):
            mean = count * edges * 0.76 ** (10 - lower) * 0.24**lower
            assert abs(top[begin : begin + count].sum() - mean) < 5 * mean**0.5
    both = graph.rmat(10, 64, 5)
    loops = int((torch.stack(g.coo())[0] == g.col_idx).sum())
    assert both.symmetric and both.num_edges == 2 * edges - loops


def test_rmat_chances():
    for chances in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)):
        g = graph.rmat(6, 3, 1, a=chances[0], b=chances[1], c=chances[2], directed=True)
        assert len(set(pairs(g))) == 1 and g.num_edges == 3 * 64
    even = graph.rmat(8, 64, 1, a=0.25, b=0.25, c=0.25, directed=True).out_degrees()
    assert abs(even.double().var() - 64) < 5 * 64 * (2 / 256) ** 0.5  # Poisson's
    for wrong in ({"a": -0.1}, {"a": 0.9}, {"b": float("nan")}, {"scale": -1}, {"scale": 32}, {"edge_factor": -1}):
        with pytest.raises(ValueError, match="rmat: .* must be chances|rmat: .*scale|rmat: .* out of range"):
            graph.rmat(**({"scale": 3} | wrong))
    with pytest.raises(TypeError, match="index dtype"):
        graph.rmat(3, index_dtype=torch.float32)


def test_uniform_degrees():
    for n in (1000, 1024):
        g = graph.uniform(n, 50, 3, directed=True)
        for degrees in (g.out_degrees(), g.in_degrees()):
            assert degrees.sum() == 50 * n and abs(degrees.double().var() - 50) < 5 * 50 * (2 / n) ** 0.5
    assert graph.uniform(0, 3).num_edges == 0 and pairs(graph.uniform(1, 3)) == [(0, 0)] * 3
    with pytest.raises(ValueError, match="uniform: "):
        graph.uniform(-1)


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_grids_and_mazes(device):
    for rows, columns in ((1, 1), (1, 5), (4, 1), (3, 4), (0, 3), (3, 0)):
        other = networkx.convert_node_labels_to_integers(networkx.grid_2d_graph(rows, columns), ordering="sorted")
        g = graph.grid(rows, columns, device=device)
        assert g.symmetric and g.num_vertices == rows * columns
        assert pairs(g) == sorted((u, v) for a, b in other.edges for u, v in ((a, b), (b, a)))
    passable = torch.rand(3, 6, 7) < 0.7
    g = graph.maze(passable.to(device), index_dtype=torch.int32)
    want = []
    for b, i, j in np.ndindex(3, 6, 7):
        for k, m in ((i, j + 1), (i + 1, j)):
            if k < 6 and m < 7 and passable[b, i, j] and passable[b, k, m]:
                u, v = (int(np.ravel_multi_index((b, *at), (3, 6, 7))) for at in ((i, j), (k, m)))
                want += [(u, v), (v, u)]
    assert pairs(g) == sorted(want) and g.dtype == torch.int32
    with pytest.raises(TypeError, match="maze: passable must be bool"):
        graph.maze(torch.ones(3, 3))
    with pytest.raises(ValueError, match=r"maze: .*\[3\]"):
        graph.maze(torch.ones(3).bool())
    with pytest.raises(ValueError, match="grid: "):
        graph.grid(-1, 3)
