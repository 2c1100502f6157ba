"""The formats of sparse matrices, and the ways between them and to other libraries."""

import copy
import io
import itertools
import pickle

import numpy as np
import pytest
import scipy.sparse
import torch
from common import EACH_DEVICE, needs_cuda
from sparse_matrices import BOOK, dense, each_format, flat, random_matrix

import torch_patterns as tp
from torch_patterns import sparse
from torch_patterns.sparse import FORMATS, spmv
from torch_patterns.testing import assert_equal, assert_same_bits
from torch_patterns.testing.sparse_formats import coordinates, index_dtype, lengths_of, stored

each_device = pytest.mark.parametrize("device", EACH_DEVICE)


SHAPES = [
    (0, 0, 0),
    (0, 5, 0),
    (5, 0, 0),
    (1, 1, 1),
    (1, 400, 90),
    (400, 1, 90),
    (6, 7, 0),
    (70, 50, 400),
    (45, 90, 700),
]


# ---- the formats


def test_figures_of_the_book():
    csr, ell, jds = (BOOK.convert(form) for form in ("csr", "ell", "jds"))
    assert csr.row_ptrs.tolist() == [0, 2, 5, 7, 8]  # Fig. 14.7
    assert ell.values.tolist() == [[1, 5, 2, 6], [7, 3, 8, 0], [0, 9, 0, 0]]  # Fig. 14.10
    assert ell.col_idx.tolist() == [[0, 0, 1, 3], [1, 2, 2, -1], [-1, 3, -1, -1]]
    assert ell.row_nnz.tolist() == [2, 3, 2, 1] and ell.padding == 4 and csr.padding == 0
    assert jds.row_perm.tolist() == [1, 0, 2, 3] and jds.diag_ptrs.tolist() == [0, 4, 7, 8]  # Fig. 14.14
    assert jds.values.tolist() == [5, 1, 2, 6, 3, 7, 8, 9]
    hyb = BOOK.convert("hyb", width=2)  # Fig. 14.13
    assert (hyb.ell_row_nnz.tolist(), hyb.coo_row_idx.tolist(), hyb.coo_values.tolist()) == ([2, 2, 2, 1], [1], [9])
    sell = BOOK.convert("sell", section_rows=2)  # §14.6
    assert sell.section_ptrs.tolist() == [0, 6, 10] and sell.padding == 2
    assert sell.values.tolist() == [5, 1, 3, 7, 9, 0, 2, 6, 8, 0]
    assert BOOK.nbytes == 8 * (8 + 8 + 4) and csr.nbytes == 8 * (5 + 8) + 4 * 8


def test_blocks_of_columns():
    """Two blocks, and a bin and the first entry of another: of one run there is none."""
    n, block = sparse.containers.BIN_ENTRIES, sparse.containers.BLOCK_COLUMNS
    col = torch.zeros(n + 1, dtype=torch.int32)
    col[[0, 1, n]] = torch.tensor([block + 1, 5, 3], dtype=torch.int32)
    ptrs = torch.tensor([0, 0, 2, n + 1], dtype=torch.int32)
    a = tp.csr(ptrs, col, torch.arange(1.0, n + 2), (3, block + 2)).convert("blocked")
    assert a.row_ptrs.tolist() == [0, 0, 2, n + 1]
    assert a.block_ptrs.tolist() == [0, n + 8, n + 16] == a.bin_ptrs.tolist()
    assert a.octet_idx.tolist() == [*range(n // 8), n // 8 + 1, n // 8]
    padding = [-1] * 7
    assert a.col_idx.tolist() == [5, *[0] * (n - 2), -1, 3, *padding, 1, *padding]
    assert a.entry_idx.tolist() == [*range(1, n), -1, 0, *padding, 0, *padding]
    assert a.values.tolist() == [*range(2, n + 1), 0, n + 1, *[0] * 7, 1, *[0] * 7]
    assert a.nnz == n + 1 and a.padding == 15
    assert a.nbytes == 4 * (4 + 3 + 3 + (n + 16) // 8) + (2 + 2 + 4) * (n + 16)
    assert BOOK.convert("blocked").col_idx.tolist() == BOOK.col_idx.tolist()


@each_format
def test_pytrees(form):
    a = BOOK.convert(form)
    assert type(pickle.loads(pickle.dumps(a))) is type(copy.deepcopy(a)) is FORMATS[form]
    leaves, spec = torch.utils._pytree.tree_flatten(a)
    assert_same_bits(
        spmv(torch.utils._pytree.tree_unflatten(leaves, spec), torch.ones(4)), torch.tensor([8.0, 17, 10, 6])
    )
    file = io.BytesIO()
    torch.save(a, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=True)) is FORMATS[form]


@each_device
@pytest.mark.parametrize("index", (torch.int32, torch.int64))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_conversions(shape, index, device):
    """From every format to every other: the same matrix, as many entries, the dtype of the indices."""
    a = random_matrix(*shape, index=index, device=device)
    want, (_, cols, n) = dense(a), shape
    x = torch.arange(cols, dtype=torch.float64, device=device) % 7 - 3
    y = (want @ x.cpu()).to(device)
    for first, second in itertools.product(FORMATS, FORMATS):
        b = a.convert(first).convert(second)
        assert type(b) is FORMATS[second] and b.shape == a.shape and b.nnz == n
        names = sparse.containers.index_fields(b)
        assert all(getattr(b, name).dtype == index_dtype(second, name, index) for name in names)
        getattr(tp, second)(*b)  # valid
        assert_equal(b.to_dense(), want, f"{first} {second}")
        assert_equal(spmv(b, x), y, f"{first} {second}")
    for form in FORMATS:
        b = a.convert(form)
        assert type(b.transpose()) is type(b.coalesce()) is FORMATS[form]
        assert_equal(b.transpose().to_dense(), want.T, form)
        once = b.coalesce()
        assert_equal(once.to_dense(), want, form)
        assert once.nnz == len({*zip(a.row_idx.tolist(), a.col_idx.tolist(), strict=True)})


@each_format
def test_conversions_are_stable(form):
    """Duplicates stay in their order, through every format; a matrix in order comes back bit for bit."""
    a = tp.coo(torch.tensor([2, 0, 2, 2, 0, 1]), torch.tensor([1, 3, 1, 0, 3, 2]), torch.arange(6.0), (3, 4))
    csr = a.convert(form).convert("csr")
    if form == "csc":  # in the order of columns
        assert csr.values.tolist() == [1, 4, 5, 3, 0, 2]
    else:
        assert csr.values.tolist() == [1, 4, 5, 0, 2, 3] and csr.col_idx.tolist() == [3, 3, 2, 1, 1, 0]
        for back, want in zip(csr.convert(form).convert("csr"), csr, strict=True):
            assert back == want if isinstance(want, tuple) else torch.equal(back, want)


@each_device
@pytest.mark.parametrize("index", (torch.int32, torch.int64))
@pytest.mark.parametrize("lengths", ("ragged", "one long", "hypersparse"))
def test_several_blocks_and_bins(lengths, index, device):
    """There, as the definition says; and back, in the order of rows, blocks, and then as it was."""
    rows, cols, n = 40_000, 50_000, 60_000
    counts, col = lengths_of(lengths, n, rows), np.random.default_rng(1).integers(0, cols, n) // 4 * 4
    fields = stored("blocked", counts, col, np.arange(1.0, n + 1), cols)
    row, column, at = coordinates("blocked", fields[:-1], rows)
    ptrs, v = np.cumsum([0, *counts]), torch.arange(1.0, n + 1, device=device, requires_grad=True)
    a = tp.csr(*(torch.from_numpy(x).to(device, index) for x in (ptrs, col)), v, (rows, cols))
    b = a.convert("blocked")
    for got, want in zip(b, fields, strict=False):
        assert_equal(got.detach(), torch.from_numpy(want).to(got.dtype))
    assert b.nnz == n and 0 < b.padding <= 7 * 4 * 4
    order = np.lexsort((at, column // 2**14, row))
    for got, want in zip(b.convert("csr"), (ptrs, column[order], fields[-1][at[order]]), strict=False):
        assert_equal(got.detach(), torch.from_numpy(want).to(got.dtype))
    got = torch.autograd.grad(b.values, v, torch.arange(float(len(b.values)), device=device))[0]
    assert_equal(got, torch.from_numpy(at[np.argsort(fields[-1][at])]).float())
    once = a.coalesce().values.detach()
    for form in FORMATS:
        if form != "ell":
            assert_equal(a.convert(form).convert("blocked").convert("csr").coalesce().values.detach(), once.cpu(), form)


def test_scattered_columns():
    """Not if entries that are near each other have near columns, in whatever order."""
    n = 2**16 + 5
    near = torch.arange(n) // 30 + torch.randint(0, 900, (n,))
    assert not sparse.convert._scattered(near)
    assert sparse.convert._scattered(torch.randint(0, 2**17, (n,)))


@needs_cuda
def test_auto_takes_blocks_of_columns():
    n = 2**24
    ptrs = torch.arange(0, n + 1, 16, dtype=torch.int32, device="cuda")
    for cols, form in ((2**20, tp.BLOCKED), (2**16, tp.ELL)):
        col = torch.randint(0, cols, (n,), dtype=torch.int32, device="cuda")
        a = tp.csr(ptrs, col, torch.ones(n, device="cuda"), (n // 16, cols))
        assert type(a.convert("auto")) is form


@each_device
def test_gradients_of_conversions(device):
    """Every value's gradient comes back to it; coalesced ones to all duplicates; explicit zeros have one."""
    a = random_matrix(9, 7, 30, device=device)
    weights = torch.arange(63.0, dtype=torch.float64, device=device).view(9, 7).sin()
    want = weights[a.row_idx, a.col_idx]
    for first, second in itertools.product(FORMATS, FORMATS):
        v = a.values.clone().requires_grad_()
        b = a._replace(values=v).convert(first).convert(second)
        got = torch.autograd.grad((b.to_dense() * weights).sum(), v)[0]
        assert_equal(got, want.cpu(), f"{first} {second}")
    for form in FORMATS:
        f = lambda v: flat(a._replace(values=v).convert(form).coalesce()).sin()  # noqa: B023, E731
        assert torch.autograd.gradcheck(f, a.values.clone().requires_grad_())
        assert torch.autograd.gradgradcheck(f, a.values.clone().requires_grad_())


def test_options_of_conversions():
    a = random_matrix(40, 30, 300)
    want = dense(a)
    for width in (0, 1, 3, 100):
        assert_equal(a.convert("hyb", width=width).to_dense(), want)
    for section_rows, window in itertools.product((1, 2, 31, 32, 33, 100), (None, 1, 8, 1000)):
        b = a.convert("sell", section_rows=section_rows, window=window)
        assert b.section_rows == section_rows
        assert_equal(b.to_dense(), want)
        assert_equal(tp.sell(*b).to_dense(), want)
    longest = int(a.row_lengths().max())
    assert a.convert("ell", width=longest + 2).values.shape == (longest + 2, 40)
    with pytest.raises(ValueError, match=f"row .* is longer than width 2.*{longest}.*hyb"):
        a.convert("ell", width=2)
    with pytest.raises(ValueError, match="unknown format 'bsr'.*coo.*sell"):
        a.convert("bsr")
    with pytest.raises(ValueError, match="csr has no option 'width'"):
        a.convert("csr", width=2)
    with pytest.raises(RuntimeError, match="BLOCKED of 3 rows.*more than max_bytes.*'csr'"):
        tp.coo(*torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (3, 2**40)).convert("blocked")
    with pytest.raises(RuntimeError, match="BLOCKED of 40 rows.*more than max_bytes 1000;"):
        a.convert("blocked", max_bytes=1000)


@each_device
def test_auto(device):
    even = tp.csr(torch.arange(0, 33, 4), torch.arange(32) % 9, torch.ones(32), (8, 9)).to(device)
    assert type(even.convert("auto")) is (tp.ELL if device == "cuda" else tp.CSR)
    assert type(random_matrix(40, 30, 300, device=device).convert("auto")) is tp.CSR


@each_device
def test_a_dense_row_is_too_wide_for_ell(device):
    n = 10**6
    rows = torch.cat([torch.zeros(n, dtype=torch.int32), torch.arange(n, dtype=torch.int32)]).to(device)
    a = tp.coo(
        rows, torch.arange(2 * n, dtype=torch.int32, device=device) % n, torch.ones(2 * n, device=device), (n, n)
    )
    with pytest.raises(
        RuntimeError, match=r"ELL of 1000000 rows, 1000001000000 slots, takes 8000012000000 bytes.*'hyb'"
    ):
        a.convert("ell")
    with pytest.raises(RuntimeError, match=r"SELL .*bytes, more than max_bytes.*'hyb'"):
        a.convert("sell", section_rows=10**5)
    x = torch.ones(n, device=device)
    want = torch.ones(n)
    want[0] += n
    for form in ("csr", "hyb", "jds", "sell", "auto"):
        assert_equal(spmv(a.convert(form), x), want, form)


# ---- other libraries


@pytest.mark.filterwarnings("ignore:Sparse C.* tensor support is in beta")
@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_writes_to_tensors_of_torch_change_nothing_of_ours(form):
    a = random_matrix(6, 6, 9).coalesce().convert(form)
    theirs = a.to_torch()
    ours = sparse.from_torch(theirs)
    (theirs._values() if form == "coo" else theirs.values()).zero_()
    assert bool(a.values.all()) and bool(ours.values.all())


@pytest.mark.filterwarnings("ignore:Sparse C.* tensor support is in beta")
@each_format
def test_the_default_device_makes_no_difference(form):
    a = random_matrix(6, 6, 9).convert(form)
    want = a.to_torch().to_dense()
    with torch.device("meta"):
        assert torch.equal(a.to_torch().to_dense(), want)


@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_scipy_changes_nothing_of_ours(form):
    """Its solvers sort entries and add up duplicates in place."""
    a = random_matrix(6, 6, 90).convert(form)
    before = copy.deepcopy(a)
    theirs = a.to_scipy()
    theirs.sum_duplicates()
    theirs.data[:] = 0
    assert all(map(torch.equal, a[:3], before[:3]))


def test_scipy():
    a = random_matrix(20, 30, 90)
    for form in ("coo", "csr", "csc"):
        theirs = a.convert(form).to_scipy()
        assert theirs.format == form
        assert_equal(torch.from_numpy(theirs.toarray()), dense(a))
        ours = sparse.from_scipy(theirs)
        assert type(ours) is FORMATS[form]
        assert_equal(ours.to_dense(), dense(a))
    assert a.convert("jds").to_scipy().format == "csr"
    assert type(tp.ELL.from_scipy(scipy.sparse.eye_array(4, format="dia"))) is tp.ELL
    assert sparse.from_scipy(theirs, dtype=torch.float32).values.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta", "ignore:Sparse invariant checks")
def test_torch_sparse():
    a = random_matrix(20, 30, 90)
    for form, layout in (("coo", torch.sparse_coo), ("csr", torch.sparse_csr), ("csc", torch.sparse_csc)):
        theirs = a.convert(form).to_torch()
        assert theirs.layout == layout
        assert_equal(theirs.to_dense(), dense(a))
        ours = sparse.from_torch(theirs)
        assert type(ours) is FORMATS[form]
        assert_equal(ours.to_dense(), dense(a))
    assert a.convert("sell").to_torch().layout == torch.sparse_csr
    assert_equal(sparse.from_torch(dense(a)).to_dense(), dense(a))
    x = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (2, 2)).coalesce().requires_grad_()
    got = torch.autograd.grad(spmv(sparse.from_torch(x), torch.tensor([1.0, 2])).sum(), x)[0]
    assert got.coalesce().values().tolist() == [2, 1]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_compilers_take_what_comes_from_torch(layout):
    """torch's own values() are a view of a sparse tensor, of which compilers take none."""
    x = torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 0.0]])
    A = sparse.from_torch(x if layout == torch.strided else x.to_sparse(layout=layout))
    compiled = torch.compile(lambda A, x: A @ x, backend="aot_eager", fullgraph=True)
    assert compiled(A, torch.tensor([1.0, 10.0, 100.0])).tolist() == [21, 30]


@each_device
@pytest.mark.parametrize("rows", [3, 2**31 - 1, 2**40], ids=str)
def test_coalesced_in_the_order_of_rows_and_columns(rows, device):
    """Of any size, and with positions out of range, which stay out of range and never meet those within."""
    i = torch.tensor([2, 0, rows - 1, 2, 0, -1, 2, 1, rows], device=device)
    j = torch.tensor([3, 1, 3, 0, 1, 3, 3, -1, 3], device=device)
    values = torch.arange(1.0, 10, device=device)
    once = sparse.COO(i, j, values, (rows, 4)).coalesce()
    want = {}
    for r, c, v in zip(i.tolist(), j.tolist(), values.tolist(), strict=True):
        want[r, c] = want.get((r, c), 0) + v
    inside = [p for p in sorted(want) if 0 <= p[0] < rows and 0 <= p[1] < 4]
    got = {(r, c): v for r, c, v in zip(*(x.tolist() for x in once[:3]), strict=True)}
    assert len(got) == len(want) and [p for p in got if p in inside] == inside
    assert all(got[p] == want[p] for p in inside)


@pytest.mark.parametrize("columns", [40_000, 65_537])
def test_slots_beyond_int32_are_refused(columns):
    """One row of 65,537 entries in a section of 65,536 rows takes 2^32 slots and more."""
    ptrs = torch.full((65_537,), columns, dtype=torch.int32)
    ptrs[0] = 0
    a = tp.csr(ptrs, torch.arange(columns, dtype=torch.int32), torch.ones(columns), (65_536, columns))
    for limit, message in ((None, "SELL of 65536 rows.*more than max_bytes"), (2**60, "too many for torch.int32")):
        with pytest.raises(RuntimeError, match=message):
            a.convert("sell", section_rows=65_536, max_bytes=limit)
    with pytest.raises(RuntimeError, match="SELL of 65536 rows.*more than max_bytes"):
        tp.csr(ptrs.long(), a.col_idx.long(), a.values, a.shape).convert("sell", section_rows=65_536)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("form", ["ell", "hyb", "sell", "blocked"])
def test_conversions_are_exported(form, strict):
    class Layer(torch.nn.Module):
        def forward(self, A, x):
            return tp.spmv(A.convert(form), x)

    a, x = tp.sparse.from_torch(torch.arange(30.0).view(6, 5) % 4).convert("coo"), torch.arange(5.0)
    program = torch.export.export(Layer(), (a, x), strict=strict)
    assert torch.equal(program.module()(a, x), tp.spmv(a, x))


def test_blocks_of_columns_count():
    none = torch.zeros(0, dtype=torch.long)
    with pytest.raises(RuntimeError, match="BLOCKED of 3 rows.*more than max_bytes"):
        tp.coo(none, none, torch.zeros(0), (3, 2**50)).convert("blocked")


@each_device
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_to_dense_in_any_order(index, device):
    """Entries in order and distinct; out of order; twice; outside the matrix."""
    rows, cols, values = [0, 0, 1, 3], [1, 4, 0, 2], [1.0, 2.0, 3.0, 4.0]
    want = torch.zeros(4, 5).index_put((torch.tensor(rows), torch.tensor(cols)), torch.tensor(values))
    coo = lambda r, c, v: tp.COO(  # noqa: E731
        torch.tensor(r, dtype=index), torch.tensor(c, dtype=index), torch.tensor(v), (4, 5)
    ).to(device)
    assert_equal(coo(rows, cols, values).to_dense(), want, "in order")
    assert_equal(coo(rows[::-1], cols[::-1], values[::-1]).to_dense(), want, "out of order")
    assert_equal(coo(rows + [0], cols + [1], values + [9.0]).to_dense(), want + 9.0 * (want == 1), "twice")
    assert_equal(coo([0, 0, 1, 3, 3], [1, 4, 0, 2, 5], [*values, 7.0]).to_dense(), want, "column 5 of 5")
    assert_equal(coo([-1, *rows], [4, *cols], [7.0, *values]).to_dense(), want, "row -1")
    x = torch.tensor(values, device=device, requires_grad=True)
    a = coo(rows, cols, values)
    dense = tp.COO(a.row_idx, a.col_idx, x, (4, 5)).to_dense()
    (grad,) = torch.autograd.grad(dense, x, torch.arange(20.0, device=device).view(4, 5))
    assert_equal(grad, torch.tensor([1.0, 4.0, 5.0, 17.0]), "gradient")
