"""Numbers, shapes and operands of functions that are written in Python: what is refused is named."""

import re

import numpy as np
import pytest
import scipy.sparse
import torch
from sparse_matrices import BOOK

import torch_patterns as tp
from torch_patterns import graph

DENSE = torch.eye(4)
GRID = graph.grid(2, 2)
SECTIONS = BOOK.convert("sell", section_rows=2)

NUMBERS = {
    "rmat: scale": (lambda x: graph.rmat(x, 2), "integer"),
    "rmat: edge_factor": (lambda x: graph.rmat(3, x), "integer"),
    "rmat: seed": (lambda x: graph.rmat(3, 2, x), "integer"),
    "rmat: begin": (lambda x: graph.rmat_edges(3, x, 4), "integer"),
    "rmat: a": (lambda x: graph.rmat(3, 2, a=x), "number"),
    "uniform: num_vertices": (lambda x: graph.uniform(x), "integer"),
    "uniform: edge_factor": (lambda x: graph.uniform(3, x), "integer"),
    "uniform: seed": (lambda x: graph.uniform(3, 2, x), "integer"),
    "grid: rows": (lambda x: graph.grid(x, 2), "integer"),
    "grid: columns": (lambda x: graph.grid(2, x), "integer"),
    "random_words: end": (lambda x: graph.random_words(0, x, 1), "integer"),
    "random_words: seed": (lambda x: graph.random_words(0, 2, x), "integer"),
    "pagerank: damping": (lambda x: tp.pagerank(GRID, damping=x), "number"),
    "pagerank: tol": (lambda x: tp.pagerank(GRID, tol=x), "number"),
    "pagerank: max_iterations": (lambda x: tp.pagerank(GRID, max_iterations=x), "integer"),
    "rbf: sigma": (lambda x: tp.rbf(DENSE, DENSE, x), "number"),
    "sum: dim": (lambda x: BOOK.sum(x), "integer"),
    "coo: shape": (lambda x: tp.coo(*BOOK[:3], (4, x)), "integer"),
    "sell: section_rows": (lambda x: tp.sell(*SECTIONS[:5], x, (4, 4)), "integer"),
    "spgemm: max_bytes": (lambda x: tp.spgemm(BOOK, BOOK, max_bytes=x), "integer"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_is_named(name):
    call, kind = NUMBERS[name]
    for value in ("2", [1, 2], *([2.5] if kind == "integer" else [])):
        with pytest.raises(TypeError, match=rf"^{name} must be an? {kind}, got {type(value).__name__}"):
            call(value)


def test_numbers_beyond_64_bits_are_named():
    for call, name in (
        (lambda x: graph.rmat(3, 2, x), "rmat: seed"),
        (lambda x: graph.uniform(3, 2, x), "uniform: seed"),
        (lambda x: graph.random_words(0, 2, x), "random_words: seed"),
        (lambda x: tp.sample_neighbors(GRID, [0], 1, x), "sample_neighbors: seed"),
        (lambda x: tp.random_walk(GRID, [0], 1, x), "random_walk: seed"),
    ):
        with pytest.raises(ValueError, match=rf"^{name} must be in -2\^63 \.\.\. 2\^63 - 1, got {2**63}"):
            call(2**63)
    with pytest.raises(ValueError, match=r"^rmat: 8 vertices and 9223372036854775808 edges per vertex"):
        graph.rmat(3, 2**63)
    with pytest.raises(ValueError, match="^rmat: a, b, c must be chances whose sum is 1 at most, got nan"):
        graph.rmat(3, 2, a=float("nan"))


def test_shapes_are_two_plain_integers(tmp_path):
    index, values = torch.tensor([0]), torch.ones(1)
    for shape in ((np.int64(3), np.int32(2)), np.array([3, 2]), torch.tensor([3, 2]), torch.Size([3, 2]), [3, 2]):
        a = tp.coo(index, index, values, shape)
        assert a.shape == (3, 2) and all(type(n) is int for n in (*a.shape, *a.T.shape))
        torch.save(a, tmp_path / "a.pt")
        assert torch.load(tmp_path / "a.pt").shape == (3, 2)  # with weights_only, which takes no numbers of numpy's
    for shape, error, message in (
        (None, TypeError, r"\(rows, cols\), got NoneType"),
        (3, TypeError, r"\(rows, cols\), got int"),
        (b"ab", TypeError, r"\(rows, cols\), got bytes"),
        ((3,), ValueError, r"\(rows, cols\), got 1 numbers"),
    ):
        with pytest.raises(error, match=f"^csr: shape must be {message}"):
            tp.csr(torch.tensor([0, 1]), index, values, shape)
    for shape, message in (((3, -2), "not be negative"), ((3, 2**63), "fit in 64 bits")):
        with pytest.raises(ValueError, match=f"^csr: shape must {message}, got {re.escape(str(shape))}"):
            tp.csr(torch.tensor([0, 1]), index, values, shape)
    for rows in (np.int64(2), torch.tensor(2)):
        a = tp.sell(*SECTIONS[:5], rows, SECTIONS.shape)
        assert type(a.section_rows) is int and torch.equal(a.to_dense(), SECTIONS.to_dense())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_sparse_operand_is_named():
    for layout in (DENSE.to_sparse(), DENSE.to_sparse_csr()):
        for call, name in (
            (lambda x: tp.spmm(tp.sparse.from_torch(DENSE).convert("csr"), x), "spmm_csr: x"),
            (lambda x: tp.linear(DENSE, x), "linear: weight"),
            (lambda x: tp.cross_entropy(x, torch.zeros(4, dtype=torch.long)), "cross_entropy: logits"),
            (tp.reduce, "reduce: x"),
            (tp.scan, "scan: x"),
        ):
            with pytest.raises(TypeError, match=rf"^{name} must be a dense tensor, got torch\.Tensor \(torch\.sparse_"):
                call(layout)  # noqa: B023


def test_operands_of_conversions_are_named(tmp_path):
    for call, message in (
        (lambda: tp.sparse.from_torch(np.eye(2)), r"from_torch: x must be a tensor, got numpy\.ndarray"),
        (lambda: tp.sparse.from_torch(scipy.sparse.eye_array(2)), r"from_torch: x must be a tensor, .*from_scipy\(\)"),
        (lambda: tp.sparse.from_scipy(DENSE), r"from_scipy: matrix must be one of scipy\.sparse, got torch\.Tensor"),
        (lambda: tp.sparse.from_scipy(None), r"from_scipy: matrix must be one of scipy\.sparse, got NoneType"),
        (lambda: GRID.to_networkx([1.0]), r"Graph\.to_networkx: weights must be a tensor, got list"),
        (lambda: GRID.to_scipy(2.5), r"Graph\.to_scipy: weights must be a tensor, got float"),
        (lambda: GRID.to_torch("x"), r"Graph\.to_torch: weights must be a tensor, got str"),
        (
            lambda: tp.io.write_matrix_market(tmp_path / "a.mtx", DENSE),
            "write_matrix_market: A must be a sparse matrix",
        ),
        (lambda: tp.io.read_matrix_market(1), "expected str, bytes or os.PathLike object, not int"),
    ):
        with pytest.raises(TypeError, match=f"^{message}"):
            call()
    assert not (tmp_path / "a.mtx").exists()
