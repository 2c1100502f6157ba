"""Sparse by sparse: matrix products, products entry by entry, sampled products; and parts and sums of a matrix."""

import functools
import itertools

import numpy as np
import pytest
import scipy.sparse
import torch
from common import EACH_DEVICE
from data_files import data_folder
from sparse_matrices import BOOK, dense, each_format, random_matrix, with_values

import torch_patterns as tp
from torch_patterns.testing import assert_equal

each_device = pytest.mark.parametrize("device", EACH_DEVICE)
each_index = pytest.mark.parametrize("index", [torch.int32, torch.int64])
SHAPES = [(20, 30, 25, 90, 70), (1, 1, 1, 1, 1), (7, 5, 9, 0, 20), (7, 5, 9, 20, 0), (0, 4, 3, 0, 9), (4, 0, 3, 0, 0)]
SHAPES += [(3, 4, 0, 9, 0), (300, 200, 300, 2000, 3000), (2, 1000, 2, 3000, 3000)]


def pair(rows, inner, cols, n, m, **options):
    return random_matrix(rows, inner, n, seed=n, **options), random_matrix(inner, cols, m, seed=m + 1, **options)


def sorted_and_distinct(a: tp.CSR) -> bool:
    rows = torch.arange(a.shape[0], device=a.row_ptrs.device).repeat_interleave(a.row_ptrs.diff())
    positions = rows * a.shape[1] + a.col_idx
    return bool((positions.diff() > 0).all())


def pattern(a: tp.COO) -> np.ndarray:
    """Which positions have entries, explicit zeros too."""
    return dense(a._replace(values=torch.ones_like(a.values))).numpy() != 0


# ---- matrix products


@each_format
@each_device
@each_index
def test_products_of_matrices(form, device, index):
    for shape in SHAPES:
        a, b = pair(*shape, index=index, device=device)
        product = a.convert(form) @ b.convert("csr")
        assert type(product) is type(a.convert(form)) and product.shape == (shape[0], shape[2])
        assert_equal(product.to_dense(), dense(a) @ dense(b), f"{form} {shape}")


@each_device
@each_index
def test_products_are_sorted_distinct_and_complete(device, index):
    for shape in SHAPES:
        a, b = pair(*shape, index=index, device=device)
        product = a.convert("csr") @ b
        assert sorted_and_distinct(product)
        assert product.row_ptrs.dtype == product.col_idx.dtype == index
        reached = pattern(a).astype(int) @ pattern(b).astype(int) > 0
        coo = product.convert("coo").to("cpu")
        assert np.array_equal(pattern(coo), reached)  # what cancels stays an entry


@each_device
@pytest.mark.parametrize(
    "dtypes", [("int32", "int32"), ("int64", "float32"), ("float16", "float16"), ("bfloat16", "float32")]
)
def test_dtypes_of_products(dtypes, device):
    first, second = (getattr(torch, d) for d in dtypes)
    a, b = random_matrix(9, 8, 20, first, device=device), random_matrix(8, 7, 20, second, torch.int32, device=device)
    product = a.convert("csr") @ b.convert("csr")
    assert product.dtype == torch.promote_types(first, second) and product.col_idx.dtype == torch.int64
    assert_equal(product.to_dense().double(), dense(a.to(torch.float64)) @ dense(b.to(torch.float64)))


@each_device
def test_products_on_real_matrices(device):
    """The square of each, and the product with its transpose, against scipy's."""
    folder = data_folder("matrices")
    for name in ("as20", "email-Eu-core", "lp_e226", "west0479", "bcspwr10"):
        a = tp.io.read_matrix_market(folder / f"{name}.mtx", duplicates="sum").to(torch.float64).convert("csr")
        theirs = a.to_scipy()
        ours = a.to(device)
        got = (ours @ ours.T).to("cpu")
        ones = theirs.copy()
        ones.data = np.ones_like(ones.data)
        reached = scipy.sparse.csr_array(ones @ ones.T)  # scipy drops what cancels, but here nothing does
        reached.sort_indices()
        assert np.array_equal(got.row_ptrs, reached.indptr) and np.array_equal(got.col_idx, reached.indices)
        error = abs(got.to_scipy() - theirs @ theirs.T)
        assert (error - 1e-12 * (abs(theirs) @ abs(theirs).T)).max() <= 0


@each_device
def test_products_are_deterministic(device):
    """Terms are added up in the order of the inner index, whatever else is in the matrix."""
    a, b = (m.to(torch.float32) for m in pair(300, 200, 300, 20000, 30000, device=device))
    a, b = (m._replace(values=torch.sin(torch.arange(m.values.numel(), device=device).float())) for m in (a, b))
    first, *others = [(a.convert("csr") @ b.convert("csr")).values for _ in range(3)]
    assert all(torch.equal(first, other) for other in others)


def test_gradients_of_products():
    a, b = pair(5, 4, 6, 9, 8)
    inputs = [m.values.clone().requires_grad_() for m in (a, b)]
    for form in ("csr", "csc", "ell"):

        def f(x, y, form=form):
            return (a._replace(values=x).convert(form) @ b._replace(values=y)).convert("csr").values

        assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True)


def test_products_under_torch_func():
    a, b = pair(5, 4, 6, 9, 8)
    x, y = a.values, b.values
    A, B = (torch.zeros(m.shape, dtype=torch.float64) for m in (a, b))

    def ours(x, y):
        return ((a._replace(values=x).convert("csr") @ b._replace(values=y)).values ** 3).sum()

    def by_torch(x, y):
        left = A.index_put((a.row_idx, a.col_idx), x, accumulate=True)
        return ((left @ B.index_put((b.row_idx, b.col_idx), y, accumulate=True)) ** 3).sum()

    for transform in (torch.func.grad, torch.func.jacfwd, torch.func.hessian):
        got, want = (transform(f, (0, 1))(x, y) for f in (ours, by_torch))
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@each_device
def test_products_that_are_too_large_say_so(device):
    full = tp.sparse.from_torch(torch.ones(100, 100, device=device)).convert("csr")
    assert_equal(tp.spgemm(full, full, max_bytes=3 << 19).values, torch.full((10000,), 100.0), "some rows at a time")
    with pytest.raises(RuntimeError, match=r"A @ B: of 1000000 products .* takes about \d+ bytes, .* max_bytes allows"):
        tp.spgemm(full, full, max_bytes=1 << 15)
    n = 1 << 19  # a column times a row: 2^38 products, and as many results
    ptrs, zeros = torch.arange(n + 1, device=device), torch.zeros(n, dtype=torch.int64, device=device)
    column = tp.csr(ptrs, zeros, torch.ones(n, device=device), (n, 1))
    with pytest.raises(RuntimeError, match="274877906944 products .* that are free; multiply"):
        column @ column.T


@each_device
def test_products_of_many_parts(device):
    """Rows longer than a part, empty ones, and all at once."""
    lengths = torch.tensor([0, 900, 0, 0, 3, 700, 1, 0])
    rows = torch.arange(8).repeat_interleave(lengths)
    a = tp.coo(rows, torch.arange(len(rows)) * 7 % 1000, (torch.arange(len(rows)) % 5 - 2).double(), (8, 1000)).to(
        device
    )
    b = random_matrix(1000, 50, 9000, seed=1, device=device)
    for limit in (1 << 20, 1 << 21, None):
        product = tp.spgemm(a.convert("csr"), b, max_bytes=limit)
        assert_equal(product.to_dense(), dense(a) @ dense(b))
        assert sorted_and_distinct(product)


def test_derivatives_of_products_of_many_parts():
    """In both modes, they are those of the product in one part."""
    a, b = (m.convert("csr") for m in pair(40, 30, 50, 600, 700))

    def f(x, y, max_bytes):
        return tp.spgemm(a._replace(values=x), b._replace(values=y), max_bytes=max_bytes).values

    assert int(b.row_ptrs.diff()[a.col_idx].sum()) > 8 * 1024
    x, y = (torch.sin(torch.arange(m.nnz, dtype=torch.float64)) for m in (a, b))
    tangents = torch.ones_like(x), y.cos()
    want, got = (torch.func.jvp(lambda x, y, m=m: f(x, y, m), (x, y), tangents) for m in (None, 1 << 17))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    want, got = (torch.func.grad(lambda x, y, m=m: f(x, y, m).cos().sum(), (0, 1))(x, y) for m in (None, 1 << 17))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@each_device
def test_wrong_indices_of_products_are_named(device):
    """As by the constructor, in whichever matrix they are."""
    a, b = (m.to(device).convert("csr") for m in pair(5, 4, 6, 9, 8))

    def changed(m: tp.CSR, field: str, at: int, value: int) -> tp.CSR:
        index = getattr(m, field).clone()
        index[at] = value
        return m._replace(**{field: index})

    for left, right in ((changed(a, "col_idx", 2, 9), b), (a, changed(b, "col_idx", 2, 9))):
        with pytest.raises(IndexError, match=r"^csr: col_idx\[2\] is 9, which is out of range"):
            left @ right
    with pytest.raises(ValueError, match=r"^csr: row_ptrs\[0\] is 1, must be 0"):
        changed(a, "row_ptrs", 0, 1) @ b
    with pytest.raises(IndexError, match=r"^csr: row_ptrs\[4\] is 9, which is out of range: expected 0 to 8"):
        a @ changed(b, "row_ptrs", 4, 9)


@each_device
def test_products_of_very_wide_matrices(device):
    """Memory is in proportion to the entries, not to the columns."""
    far = 1 << 40
    ptrs, idx = (torch.tensor(x, device=device) for x in ([0, 2, 3, 4], [far, 7, far, 2]))
    b = tp.csr(ptrs, idx, torch.tensor([1.0, 2.0, 3.0, 4.0], device=device), (3, far + 1))
    a = tp.sparse.from_torch(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 5.0]], device=device)).convert("csr")
    values = b.values.clone().requires_grad_()
    product = a @ b._replace(values=values)
    assert product.row_ptrs.tolist() == [0, 2, 3] and product.col_idx.tolist() == [7, far, 2]
    assert product.values.tolist() == [2, 4, 20]
    (product.values * torch.tensor([1.0, 10.0, 100.0], device=device)).sum().backward()
    assert values.grad.tolist() == [10, 1, 10, 500]


@pytest.mark.parametrize("algorithm", tp.algorithms("spgemm", "cpu"))
def test_algorithms_of_products(algorithm):
    a, b = pair(*SHAPES[-2])
    assert_equal(tp.spgemm(a, b, algorithm=algorithm).to_dense(), dense(a) @ dense(b))
    with pytest.raises(ValueError, match="spgemm: unknown algorithm 'heap'"):
        tp.spgemm(a, b, algorithm="heap")


@each_device
def test_products_refuse_what_does_not_fit(device):
    a, b = pair(5, 4, 6, 9, 8, device=device)
    with pytest.raises(ValueError, match="A is 5 x 4, B 5 x 4"):
        a @ a
    with pytest.raises(IndexError, match=r"coo: col_idx\[2\] is 9"):
        a._replace(col_idx=a.col_idx.index_fill(0, torch.tensor(2, device=device), 9)) @ b
    with pytest.raises(TypeError, match="spgemm: b must be a sparse matrix"):
        tp.spgemm(a, torch.ones(4, 4))
    with pytest.raises(ValueError, match=r"A \* B: shapes \(5, 4\) and \(4, 6\) differ"):
        a * b


def test_compiled_products():
    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def f(a, b):
        return tp.spgemm(a, b).values, a.select_rows(slice(1, 3)).values, a.diagonal(), a.sum(0)

    for n in (20, 33):
        a, b = (m.convert("csr") for m in pair(n, n, n, 90, 80))
        got, want = f(a, b), ((a @ b).values, a.select_rows(slice(1, 3)).values, a.diagonal(), a.sum(0))
        for g, w in zip(got, want, strict=True):
            assert_equal(g, w)


class Layer(torch.nn.Module):
    """Attention along the entries, and the square of its matrix."""

    def forward(self, A: tp.CSR, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = A._replace(values=tp.sampled_product(A, x, x))
        chosen = weights.select_columns(slice(0, 3))
        return tp.spmm(weights, x), tp.spgemm(weights, weights).values, chosen.values, weights.sum(), weights.sum(1)


def test_a_layer_compiles_and_is_exported(tmp_path):
    """Forward and backward in one graph, and a program that is saved, for matrices of other sizes too."""
    compiled = torch.compile(Layer(), fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (20, 33):
        A = random_matrix(n, n, 90, seed=n).convert("csr")
        x = torch.arange(n * 2.0, dtype=torch.float64).view(n, 2) % 5 - 2
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        outputs = [f(A, leaf) for f, leaf in zip((compiled, Layer()), leaves, strict=True)]
        for got, want in zip(*outputs, strict=True):
            assert_equal(got, want)
        for out in outputs:
            sum((y * y).sum() for y in out).backward()
        torch.testing.assert_close(*(leaf.grad for leaf in leaves), rtol=1e-14, atol=0)
    program = torch.export.export(Layer(), (A, x))
    torch.export.save(program, tmp_path / "layer.pt2")
    for got, want in zip(torch.export.load(tmp_path / "layer.pt2").module()(A, x), Layer()(A, x), strict=True):
        assert_equal(got, want)


# ---- entry by entry


@each_format
@each_device
@each_index
def test_products_by_entry(form, device, index):
    for rows, cols, n, m in ((20, 30, 200, 150), (5, 5, 0, 9), (5, 5, 9, 0), (1, 1, 3, 2), (0, 3, 0, 0)):
        a, b = (random_matrix(rows, cols, k, index=index, seed=k, device=device) for k in (n, m))
        product = a.convert(form) * b.convert("csc")
        assert type(product) is type(a.convert(form))
        assert_equal(product.to_dense(), dense(a) * dense(b))
        coo = product.convert("coo").to("cpu")
        assert np.array_equal(pattern(coo), pattern(a) & pattern(b)) and coo.nnz == (pattern(a) & pattern(b)).sum()


def test_a_product_by_entry_reads_only_common_entries():
    a = tp.coo(torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([torch.nan, 2.0]), (1, 3))
    b = tp.coo(torch.tensor([0, 0]), torch.tensor([1, 2]), torch.tensor([3.0, torch.inf]), (1, 3))
    product = a * b
    assert product.col_idx.tolist() == [1] and product.values.tolist() == [6]


def test_gradients_of_products_by_entry():
    a, b = random_matrix(4, 5, 15, seed=1), random_matrix(4, 5, 12, seed=2)
    inputs = [m.values.clone().requires_grad_() for m in (a, b)]

    def f(x, y):
        return (a._replace(values=x).convert("csr") * b._replace(values=y)).values

    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, inputs)


# ---- parts and sums

INDICES = [[3, 0, 3, 3, -1], [], [19], list(range(20)), slice(None), slice(3, 11), slice(None, None, -2), slice(9, 2)]


@each_format
@each_device
@pytest.mark.parametrize("which", INDICES, ids=str)
def test_rows_and_columns(form, device, which):
    a = random_matrix(20, 20, 90, seed=4, device=device)
    A, index = a.convert(form), which if isinstance(which, slice) else torch.tensor(which, dtype=torch.int64).to(device)
    at = np.arange(20)[which].copy() if isinstance(which, slice) else np.array(which, int)
    for got, want in ((A.select_rows(index), dense(a)[at]), (A.select_columns(index), dense(a)[:, at])):
        assert type(got) is type(A) and got.shape == tuple(want.shape)
        assert_equal(got.to_dense(), want)


@each_device
def test_rows_keep_their_entries(device):
    a = random_matrix(20, 30, 90, seed=4, index=torch.int32, device=device).convert("csr")
    rows = a.select_rows(torch.tensor([4, 4, 2], device=device, dtype=torch.int32))
    assert rows.col_idx.dtype == rows.row_ptrs.dtype == torch.int32
    for i, r in enumerate((4, 4, 2)):
        ours, theirs = (x.row_ptrs[k : k + 2].tolist() for x, k in ((rows, i), (a, r)))
        assert_equal(rows.col_idx[slice(*ours)], a.col_idx[slice(*theirs)])
        assert_equal(rows.values[slice(*ours)], a.values[slice(*theirs)])


@each_device
def test_wrong_rows_are_named(device):
    A = BOOK.to(device).convert("csr")
    for bad, error, message in (
        (torch.tensor([0, 4]), IndexError, r"select_rows: index\[1\] is 4, not in -4 ... 3"),
        (torch.tensor([-5]), IndexError, r"select_rows: index\[0\] is -5"),
        (torch.tensor([1.0]), TypeError, "select_rows: index must be int32 or int64, got torch.float32"),
        (torch.tensor([True] * 4), TypeError, r"got torch.bool; mask.nonzero\(\)\[:, 0\]"),
        (torch.zeros(2, 2, dtype=torch.int64), ValueError, r"one dimension, got shape \[2, 2\]"),
        (2, TypeError, "must be a slice, a tensor or a sequence of integers, got int"),
    ):
        with pytest.raises(error, match=message):
            A.select_rows(bad.to(device) if isinstance(bad, torch.Tensor) else bad)
    with pytest.raises(IndexError, match=r"select_columns: index\[0\] is 7"):
        A.select_columns([7])


@each_format
@each_device
def test_diagonals_and_sums(form, device):
    for rows, cols, n in ((20, 30, 200), (30, 20, 300), (5, 5, 0), (0, 3, 0), (3, 0, 0)):
        a = random_matrix(rows, cols, n, seed=n, device=device)
        A, whole = a.convert(form), dense(a)
        assert_equal(A.diagonal(), whole.diagonal())
        for dim in (None, 0, 1, -1, -2):
            assert_equal(A.sum(dim), whole.sum() if dim is None else whole.sum(dim))
        counted = A.to(torch.int32)
        assert counted.sum().dtype == counted.sum(0).dtype == torch.int64 and counted.diagonal().dtype == torch.int32
        for dim in (None, 0, 1):  # rather than lose the imaginary parts
            with pytest.raises(TypeError, match="values of ComplexDouble .* not supported"):
                (A * 2j).sum(dim)
    with pytest.raises(IndexError, match="sum: dim 2 is out of range"):
        A.sum(2)


@pytest.mark.parametrize("form", ["coo", "csc", "hyb", "sell"])
def test_gradients_of_parts_and_sums(form):
    a = random_matrix(4, 5, 12, seed=3)
    values = a.values.clone().requires_grad_()

    def f(x):
        A = a._replace(values=x).convert(form)
        parts = A.select_rows([2, 0, 2, 2]), A.select_columns([4, 4, 1])
        return A.diagonal(), A.sum(), A.sum(0), A.sum(1), *(p.to_dense() for p in parts)

    assert torch.autograd.gradcheck(f, [values], check_forward_ad=True)


# ---- sampled products


@each_format
@each_device
def test_sampled_products(form, device):
    a = random_matrix(20, 30, 90, seed=5, device=device)
    x, y = (torch.arange(n * 3.0, dtype=torch.float64, device=device).view(n, 3) % 7 - 3 for n in (20, 30))
    A = a.convert(form)
    got = tp.sampled_product(A, x, y)
    made = with_values(A, got.reshape(-1))
    want = np.zeros((20, 30))
    np.add.at(want, (a.row_idx.cpu().numpy(), a.col_idx.cpu().numpy()), 1)
    assert_equal(made.to_dense(), torch.from_numpy(want) * (x @ y.T).cpu())
    if form != "hyb":
        assert got.shape == A.values.shape
    assert tp.sampled_product(A, x.float(), y).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_sampled_entry_has_the_same_bits_beside_others(dtype):
    """Rows of 0 to 9 entries, whose columns repeat, against one entry after another of the same positions."""
    rows = torch.arange(30).repeat_interleave(torch.arange(10).repeat(3))
    A = tp.COO(rows, torch.arange(len(rows)) % 7, torch.ones(len(rows), dtype=dtype), (30, 7))
    for k in (1, 2, 3, 5, 8, 13, 16, 31, 40, 67):
        x, y = (torch.randn(n, k).to(dtype) for n in (30, 7))
        alone, together = (tp.sampled_product(m, x, y) for m in (A, A.convert("csr")))
        assert torch.equal(alone, together), k
        torch.testing.assert_close(alone.double(), (x[rows].double() * y[A.col_idx]).sum(1), rtol=2**-7, atol=k * 2**-8)


def test_gradients_of_sampled_products():
    a = random_matrix(4, 5, 12, seed=3)
    inputs = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (4, 5)]
    for form, plan in itertools.product(("coo", "csr", "csc", "ell"), (False, True)):
        A = a.convert(form)
        product = functools.partial(tp.sampled_product, A, plan=A.plan() if plan else None)
        assert torch.autograd.gradcheck(product, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(product, inputs)


def test_sampled_products_refuse_what_does_not_fit():
    x = torch.ones(4, 2)
    for args, error, message in (
        ((x[:3], x), ValueError, r"x must be \[4, k\], as the matrix has rows, got \[3, 2\]"),
        ((x, x[0]), ValueError, r"y must be \[4, k\], as the matrix has columns, got \[2\]"),
        ((x, x[:, :1]), ValueError, "x has 2 columns, y 1"),
        ((x.long(), x), TypeError, "x must be floating point, got torch.int64"),
    ):
        with pytest.raises(error, match=f"sampled_product: {message}"):
            tp.sampled_product(BOOK, *args)
    with pytest.raises(TypeError, match="sampled_product: a must be a sparse matrix"):
        tp.sampled_product(x, x, x)


@each_device
@pytest.mark.parametrize("form", ["ell", "hyb", "sell"])
def test_an_index_of_minus_one_is_no_entry(form, device):
    """Padding may lie within a row, too; what x has elsewhere does not matter."""
    matrix = tp.coo(*(torch.tensor(t) for t in ([0, 0, 0, 1, 1], [0, 1, 2, 0, 2], [1.0, 2, 3, 4, 5])), (2, 3))
    a = matrix.to(device).convert(form)
    name = "ell_col_idx" if form == "hyb" else "col_idx"
    columns = getattr(a, name)
    holes = a._replace(**{name: torch.where(columns == 1, -1, columns)})
    x = torch.tensor([1.0, float("nan"), 100], device=device)
    for algorithm in ["auto", *tp.algorithms(f"spmv_{form}", device)]:
        assert tp.spmv(holes, x, algorithm=algorithm).tolist() == [301, 504], algorithm
        many = tp.spmm(holes, x[:, None].repeat(1, 5), algorithm=algorithm)
        assert many.tolist() == [[301] * 5, [504] * 5], algorithm
