"""Operands of other kinds: numbers of numpy's are taken, and what is foreign is named, with what converts it."""

import functools
import subprocess
import sys

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from common import EACH_DEVICE, needs_cuda
from sparse_matrices import BOOK

import torch_patterns as tp
from torch_patterns import graph, nn

each_device = pytest.mark.parametrize("device", EACH_DEVICE)
X = torch.arange(4.0)
DENSE = torch.eye(4)
GRID = graph.grid(2, 2)

FOREIGN = {
    "a list": ([1.0, 2.0], r"got list; torch\.tensor\(\) makes one"),
    "an array": (np.ones(4), r"got numpy\.ndarray; torch\.from_numpy\(\) makes one"),
    "a float": (2.5, r"got float; torch\.tensor\(\) makes one"),
    "scipy": (scipy.sparse.eye_array(4).tocsr(), r"got scipy\..*from_scipy\(\)"),
    "a container": (BOOK, r"got COO; its to_dense\(\) makes one"),
    "text": ("x", "got str"),
    "None": (None, "got NoneType"),
}
FUNCTIONS = {
    "scan": tp.scan,
    "reduce": tp.reduce,
    "sort": tp.sort,
    "argsort": tp.argsort,
    "sort_keys": tp.sort_keys,
    "compact": lambda x: tp.compact(x, torch.ones(4) > 0),
    "histogram": lambda x: tp.histogram(x, 4, min=0, max=4),
    "merge": lambda x: tp.merge(x, X),
    "segment_reduce": lambda x: tp.segment_reduce(x, torch.tensor([0, 4])),
    "segment_scan": lambda x: tp.segment_scan(x, torch.tensor([0, 4])),
    "segment_expand": lambda x: tp.segment_expand(x, torch.tensor([0, 1, 2, 3, 4]), 4),
    "linear_recurrence": lambda x: tp.linear_recurrence(X, x),
    "conv2d": lambda x: tp.conv2d(x, torch.ones(1, 1, 1, 1)),
    "max_pool2d": lambda x: tp.max_pool2d(x, 1),
    "linear": lambda x: tp.linear(x, DENSE),
    "relu": tp.relu,
    "cross_entropy": lambda x: tp.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
    "csr": lambda x: tp.csr(x, X, X, (1, 1)),
    "spmv": lambda x: tp.spmv(BOOK, x),
    "spmm": lambda x: tp.spmm(BOOK, x),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_tensor_is_named(name, kind):
    value, message = FOREIGN[kind]
    with pytest.raises(TypeError, match=rf"^{name}: \w+ must be a tensor, {message}") as raised:
        FUNCTIONS[name](value)
    assert len(str(raised.value)) < 200


def test_what_is_no_tensor_in_a_list_is_named():
    with pytest.raises(TypeError, match=r"^lexsort: keys\[1\] must be a tensor, got list; torch.tensor\(\) makes one"):
        tp.lexsort([X, [1.0]])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("function", [tp.spmv, tp.spmm])
def test_what_is_no_matrix_is_named(function):
    call = functools.partial(function, x=X)
    for matrix, message in (
        (DENSE.to_sparse_csr(), r"torch\.Tensor \(torch\.sparse_csr\); torch_patterns\.sparse\.from_torch\(\)"),
        (DENSE, r"torch\.Tensor; torch_patterns\.sparse\.from_torch\(\)"),
        (scipy.sparse.eye_array(4).tocsr(), r"scipy\.csr_array; torch_patterns\.sparse\.from_scipy\(\)"),
        (np.eye(4), r"numpy\.ndarray; torch_patterns\.sparse\.from_torch\(torch\.from_numpy\(\)\)"),
        ([[1.0]], "list"),
        (GRID, "torch_patterns.Graph"),
    ):
        with pytest.raises(TypeError, match=rf"^{function.__name__}: a must be a sparse matrix .*, got {message}"):
            call(matrix)


@pytest.mark.parametrize("function", [tp.bfs, tp.bfs_batched, tp.reachable, tp.shortest_path, tp.connected_components])
def test_what_is_no_graph_is_named(function):
    rest = {"shortest_path": (0, 1), "connected_components": (), "bfs_batched": ([0],)}.get(function.__name__, (0,))
    for other, message in (
        (networkx.path_graph(3), r"networkx\.Graph; torch_patterns\.graph\.from_networkx\(\)"),
        (DENSE, r"torch\.Tensor; torch_patterns\.graph\.from_torch\(\)"),
        (scipy.sparse.eye_array(4).tocsr(), r"scipy\.csr_array; torch_patterns\.graph\.from_scipy\(\)"),
        (BOOK.convert("csr"), r"CSR; torch_patterns\.graph\.from_csr\(\)"),
        ([[0, 1]], "list"),
    ):
        with pytest.raises(TypeError, match=rf"^{function.__name__}: graph must be a Graph, got {message}"):
            function(other, *rest)


def test_errors_about_tensors_stay_what_they_are():
    with pytest.raises(ValueError, match="unknown algorithm 'no_such'"):
        tp.scan(X, algorithm="no_such")
    with pytest.raises(TypeError, match="unexpected keyword argument 'axis'"):
        tp.scan(X, axis=0)


# ---- numbers


def test_numbers_of_numpy_are_taken():
    x, image = torch.arange(12.0).view(3, 4), torch.randn(1, 1, 6, 6)
    one, two = np.int64(1), np.int32(2)
    assert torch.equal(tp.reduce(x, one), x.sum(1))
    assert torch.equal(tp.reduce(x, [np.int64(0), one]), x.sum())
    assert torch.equal(tp.scan(x, one, exclusive=np.bool_(False)), x.cumsum(1))
    assert torch.equal(tp.sort(x, one)[0], x)
    assert torch.equal(tp.histogram(x, np.int64(3), min=np.float64(0), max=np.float32(12)), torch.tensor([4, 4, 4]))
    assert torch.equal(tp.segment_expand(x[0], torch.tensor([0, 1, 2, 3, 4]), np.int64(4)), x[0])
    assert torch.equal(tp.max_pool2d(image, two, two), torch.max_pool2d(image, 2, 2))
    assert torch.equal(tp.max_pool2d(image, (2,), (2,), (1,)), torch.max_pool2d(image, 2, 2, 1))
    assert torch.equal(tp.avg_pool2d(image, (two, two), stride=(2,)), torch.nn.functional.avg_pool2d(image, 2, 2))
    assert tp.conv2d(image, torch.ones(1, 1, 3, 3), None, two, (1,)).shape == (1, 1, 3, 3)
    assert BOOK.convert("ell", width=np.int64(5)).values.shape == (5, 4)
    assert nn.Conv2d(one, two, np.int64(3), stride=(2,))(image).shape == (1, 2, 2, 2)
    assert nn.MaxPool2d(two, stride=(2,))(image).shape == nn.AvgPool2d((2,))(image).shape == (1, 1, 3, 3)
    assert nn.Linear(np.int64(4), two)(x).shape == (3, 2)


def test_flags_are_true_or_false():
    x = torch.ones(3)
    calls = {
        "scan: exclusive": lambda flag: tp.scan(x, exclusive=flag),
        "reduce: keepdim": lambda flag: tp.reduce(x, 0, keepdim=flag),
        "sort_keys: descending": lambda flag: tp.sort_keys(x, descending=flag),
        "segment_reduce: validate": lambda flag: tp.segment_reduce(x, torch.tensor([0, 3]), validate=flag),
        "max_pool2d: ceil_mode": lambda flag: tp.max_pool2d(x.view(1, 1, 3), 1, ceil_mode=flag),
    }
    for name, call in calls.items():
        for wrong in (0.5, 1.0, float("nan"), None, np.float64(0)):
            with pytest.raises(TypeError, match=f"^{name} must be a bool, got (float|NoneType)"):
                call(wrong)
        for flag in (1, np.True_, torch.tensor(True)):
            assert torch.equal(call(flag), call(True))


# ---- vertices


@each_device
def test_sources_are_integers(device):
    g = GRID.to(device)
    want = tp.bfs(g, [0, 3])[0].tolist()
    for sources in ((0, 3), range(0, 4, 3), np.array([0, 3], np.uint8), [np.int64(0), torch.tensor(3)]):
        assert tp.bfs(g, sources)[0].tolist() == want
        assert tp.bfs_batched(g, sources)[0].shape == (2, 4)
    for source in (3, np.int32(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)):
        assert tp.bfs(g, source)[0].tolist() == [2, 1, 1, 0]
    assert tp.shortest_path(g, torch.tensor(0), np.int64(3)).tolist() == [0, 1, 3]
    for function in (tp.bfs, tp.bfs_batched, tp.reachable):
        for sources, message in (
            (0.5, "sources must be an integer, got float"),
            (True, "sources must be an integer, got bool"),
            ([0, 2.9], r"sources\[1\] must be an integer, got float"),
            ([True, False, False, True], r"sources\[0\] must be an integer, got bool"),
            ([[0], [3]], r"sources\[0\] must be an integer, got list"),
            (np.array([True, False]), "sources must be integers, got a numpy array of bool"),
            (np.array([0.0]), "sources must be integers, got a numpy array of float64"),
            (None, "sources must be an integer, got NoneType"),
            ("0", "sources must be an integer, got str"),
            (1 + 0j, "sources must be an integer, got complex"),
            (torch.tensor([True, False], device=device), "sources must be integers, got Bool"),
            (torch.tensor([0.0], device=device), "sources must be integers, got Float"),
        ):
            with pytest.raises(TypeError, match=message):
                function(g, sources)
        for sources, message in (([0, 7], r"sources\[1\]: 7 is no vertex"), (np.array([9]), r"sources\[0\]: 9 is no")):
            with pytest.raises(IndexError, match=message):
                function(g, sources)
    for source, target, message in (
        (0, 2.9, "shortest_path: target must be an integer, got float"),
        (0, None, "shortest_path: target must be an integer, got NoneType"),
        (0.0, 2, "sources must be an integer, got float"),
    ):
        with pytest.raises(TypeError, match=message):
            tp.shortest_path(g, source, target)
    with pytest.raises(TypeError, match="bfs: max_level must be an integer, got float"):
        tp.bfs(g, 0, 1.5)


@each_device
@pytest.mark.parametrize("most", [2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**33 + 3, 2**63 - 1], ids=str)
def test_max_level_beyond_32_bits(device, most):
    """No vertex is farther away, whatever the bits of the number: vertices that are not reached lead nowhere."""
    src, dst = [0, 1, 2, 0, 5, 6, 6, 3], [1, 2, 3, 3, 1, 0, 2, 0]
    g = graph.from_edges(src, dst, 9, device=device)
    for rung in tp.algorithms("bfs", device):
        source = torch.tensor(0, device=device)
        levels, parents = torch.ops.torch_patterns.bfs_csr(*g[:2], source, *g[2:], most, False, rung)
        assert levels.tolist() == [0, 1, 2, 1, -1, -1, -1, -1, -1], rung
        assert parents.tolist() == [0, 0, 1, 0, -1, -1, -1, -1, -1], rung
    assert tp.bfs(g, 0, most)[0].tolist() == levels.tolist()


# ---- devices


def other_default(device: str):
    """A default device that is not the input's; on meta nothing can be computed."""
    return torch.device("meta" if device == "cpu" else "cpu")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@each_device
def test_graphs_are_built_where_their_input_is(device):
    src, dst = torch.tensor([0, 1, 2], device=device), torch.tensor([1, 2, 0], device=device)
    csr = torch.tensor([0, 1, 2, 3], device=device)
    dense = torch.eye(3, device=device)
    plain = graph.from_edges(src, dst)
    with other_default(device):
        made = [
            graph.from_edges(src, dst),
            graph.from_csr(csr, dst),
            graph.from_torch(dense),
            graph.from_torch(dense.to_sparse_csr()),
            graph.from_scipy(scipy.sparse.eye_array(3).tocsr(), device=device),
            graph.from_networkx(networkx.path_graph(3), device=device),
            graph.from_edges([0, 1], [1, 0], device=device),
            graph.grid(3, 3, device=device),
            graph.rmat(5, 4, device=device),
            graph.uniform(50, 4, device=device),
            graph.maze(torch.ones(3, 3, dtype=torch.bool, device=device)),
        ]
    assert {g.device.type for g in made} == {device}
    assert all(torch.equal(x, y) for x, y in zip(made[0][:2], plain[:2], strict=True))
    with other_default(device):
        assert graph.from_scipy(scipy.sparse.eye_array(3).tocsr()).device.type == "cpu"
    assert torch.equal(graph.rmat(5, 4, device=device).col_idx, made[8].col_idx)


def test_constructors_blame_themselves():
    wrong, n = torch.tensor([0, 7]), torch.tensor([0, 1, 2])
    for call, error, message in (
        (lambda: graph.from_csr(n, wrong), IndexError, r"^from_csr: col_idx\[1\] is 7"),
        (lambda: graph.from_csr(n.flip(0), wrong), ValueError, r"^from_csr: row_ptrs\[0\] is 2"),
        (lambda: graph.from_csr(n.float(), wrong), TypeError, "^from_csr: row_ptrs must be int32 or int64"),
        (lambda: graph.from_csr(n[:0], wrong), ValueError, "^from_csr: row_ptrs"),
        (lambda: graph.from_csr(n, wrong.float()), TypeError, "^from_csr: col_idx must be"),
        (lambda: graph.from_csr([0, 1], wrong), TypeError, r"^from_csr: row_ptrs must be a tensor, got list"),
        (lambda: graph.from_torch(np.eye(3)), TypeError, r"^from_torch: matrix must be a tensor, got numpy.ndarray"),
        (lambda: graph.from_scipy(DENSE), TypeError, "^from_scipy: matrix must be a scipy"),
        (lambda: graph.from_networkx(DENSE), TypeError, "^from_networkx: graph must be a networkx"),
        (
            lambda: graph.from_scipy(scipy.sparse.eye_array(3), index_dtype=torch.int8),
            TypeError,
            "^from_scipy: the",
        ),
        (lambda: graph.from_edges(None, wrong), TypeError, "^from_edges: src must be a tensor, a numpy array or a seq"),
        (lambda: graph.from_edges("ab", wrong), TypeError, "^from_edges: src must be"),
        (lambda: graph.from_edges([0, "a"], wrong), TypeError, "^from_edges: src must hold integers"),
        (lambda: graph.from_edges([0.5], [1]), TypeError, "^from_edges: src must hold integers, got torch.float32"),
        (lambda: graph.from_edges([0], [1], 2.5), TypeError, "^from_edges: num_vertices must be an integer"),
    ):
        with pytest.raises(error, match=message):
            call()


@needs_cuda
def test_a_number_on_the_cpu_is_a_source_of_any_graph():
    assert tp.bfs(GRID.to("cuda"), torch.tensor(3))[0].tolist() == [2, 1, 1, 0]


def test_options_of_conversions_do_not_reach_the_allocator():
    for form, options, error, message in (
        ("hyb", {"width": -1}, ValueError, r"convert: width must be in 0 \.\.\. 2\^63 - 1, got -1"),
        ("hyb", {"width": 10**13}, RuntimeError, "convert: HYB of 4 rows, .* bytes, more than max_bytes"),
        ("hyb", {"width": 2**70}, ValueError, "convert: width must be in"),
        ("hyb", {"width": 2.0}, TypeError, "convert: width must be an integer, got float"),
        ("hyb", {"max_bytes": 10}, RuntimeError, "convert: HYB .* more than max_bytes 10; use 'jds' or 'csr'"),
        ("ell", {"width": 10**13}, RuntimeError, "convert: ELL .* more than max_bytes"),
        ("ell", {"width": -1}, ValueError, "convert: width must be in"),
        ("sell", {"section_rows": 0}, ValueError, "convert: section_rows must be in 1"),
        ("sell", {"window": 0}, ValueError, "convert: window must be in 1"),
        ("sell", {"max_bytes": "1"}, TypeError, "convert: max_bytes must be an integer, got str"),
    ):
        with pytest.raises(error, match=message):
            BOOK.convert(form, **options)
    for section_rows, window in ((2**31, None), (2**62, 2**62)):
        a = BOOK.convert("csr")._replace(row_ptrs=BOOK.convert("csr").row_ptrs)
        b = a.convert("sell", section_rows=section_rows, window=window)
        assert b.section_rows == section_rows and torch.equal(b.to_dense(), BOOK.to_dense())
        x = torch.ones(b.shape[1], 2, dtype=b.values.dtype)
        for algorithm in tp.algorithms("spmm_sell"):  # in the time of the rows that there are
            assert torch.equal(tp.spmm(b, x, algorithm=algorithm), b.to_dense() @ x)


# ---- names of algorithms, and the command line


def test_shapes_that_do_not_fit_are_errors_of_values():
    """As the documentation of these functions says."""
    offsets, weights = torch.tensor([0, 2, 5]), torch.ones(2, 3, 4)
    for x, w in ((torch.ones(5, 2), weights), (torch.ones(5, 3), weights[:1])):
        with pytest.raises(ValueError, match="^segment_matmul: .*weights"):
            tp.segment_matmul(x, offsets, w)
    with pytest.raises(ValueError, match="^group_reduce: values has 5 rows, index 4 elements"):
        tp.group_reduce(torch.ones(5), torch.zeros(4, dtype=torch.int64), 3)


def test_unknown_and_unavailable_algorithms_are_told_apart():
    with pytest.raises(ValueError, match="scan: unknown algorithm 'kogge'; choose on cpu from: auto, sequential"):
        tp.scan(X, algorithm="kogge")
    with pytest.raises(ValueError, match="scan: algorithm 'decoupled_lookback' is not available on cpu; choose from"):
        tp.scan(X, algorithm="decoupled_lookback")


def test_algorithms_by_the_name_of_a_function():
    assert tp.algorithms("sort_keys") == tp.algorithms("argsort") == tp.algorithms("sort")
    assert tp.algorithms("linear_recurrence") == tp.algorithms("scan")
    assert tp.algorithms("segment_sort_pairs", "cpu") == tp.algorithms("segment_sort", "cpu")
    for name in ("spmv", "spmm"):
        offered = tp.algorithms(name)
        assert {"thread_per_row", "merge_path", "ell_plus_coo"} <= set(offered) and len(offered) == len(set(offered))
    assert tp.algorithms("spmm_csr") == tp.algorithms("spmv_csr")
    assert tp.algorithms("shortest_path") == tp.algorithms("reachable") == tp.algorithms("bfs")
    for wrong in ("no_such", None, 3):
        with pytest.raises(ValueError, match=f"unknown pattern {wrong!r}; choose from: .*scan"):
            tp.algorithms(wrong)


def command(*arguments: str, **options) -> subprocess.CompletedProcess:
    run = [sys.executable, "-m", "torch_patterns", *arguments]
    return subprocess.run(run, capture_output=True, text=True, check=False, **options)


def test_the_command_line_shows_no_tracebacks(tmp_path):
    for arguments, message in (
        (("figure", "no_such"), "unknown algorithm 'no_such'"),
        (("ladders", "no_such"), "unknown pattern 'no_such'"),
        (("race", "no_such"), "no_such"),
        (("readme", str(tmp_path / "none.md")), "none.md"),
    ):
        done = command(*arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    shell = f"{sys.executable} -m torch_patterns ladders | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_modules_are_imported_when_they_are_asked_for():
    code = "import sys, torch_patterns as tp; assert 'torch_patterns.nn' not in sys.modules; tp.nn.Linear; "
    code += "tp.lenet.LeNet5; tp.distributed"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'lenet' in dir(tp)"], check=True)
    with pytest.raises(AttributeError, match="module 'torch_patterns' has no attribute 'no_such'"):
        tp.no_such  # noqa: B018


@pytest.mark.parametrize("size", [1.5, None, "same", (1.0, 1), torch.tensor(1), np.array(1)])
def test_sizes_of_windows_that_are_no_integers_are_named(size):
    x, weight = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    for name in ("stride", "padding", "dilation"):
        with pytest.raises(TypeError, match=f"^conv2d: {name} must be an integer or a sequence of them, got"):
            tp.conv2d(x, weight, **{name: size})
    with pytest.raises(TypeError, match="^max_pool2d: kernel_size must be an integer or a sequence of them, got"):
        tp.max_pool2d(x, size)


def test_sizes_of_windows_may_be_symbolic():
    class Model(torch.nn.Module):
        def forward(self, x):
            return tp.avg_pool2d(x, (x.shape[-2], x.shape[-1])), tp.max_pool2d(x, x.shape[-1])

    side = torch.export.Dim("side", min=2, max=64)
    shapes = {"x": {2: side, 3: side}}
    program = torch.export.export(Model(), (torch.randn(2, 3, 6, 6),), dynamic_shapes=shapes, strict=False).module()
    x = torch.randn(2, 3, 9, 9)
    assert all(map(torch.equal, program(x), Model()(x)))
