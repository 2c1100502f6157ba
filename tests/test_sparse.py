"""What is special to sparse matrices: products, errors of structure, real matrices."""

import io
import itertools
import json

import numpy as np
import pytest
import torch
from common import EACH_DEVICE
from data_files import data_folder
from sparse_matrices import BOOK, dense, each_format, flat, random_matrix, valid_entries, with_indices, with_values

import torch_patterns as tp
from torch_patterns import sparse
from torch_patterns.io import read_matrix_market
from torch_patterns.sparse import FORMATS, spmm, spmv
from torch_patterns.testing import assert_equal, assert_same_bits, assert_within, gamma, unit_roundoff

NAN = float("nan")
each_device = pytest.mark.parametrize("device", EACH_DEVICE)


# ---- products


@each_format
@each_device
def test_padding_is_never_read(form, device):
    """x may hold NaN where no entry points; 0 times NaN is NaN where one does, be it an explicit zero."""
    a = tp.coo(*(torch.tensor(t) for t in ([0, 0, 2, 3], [1, 3, 1, 4], [1.0, 2, 3, 0])), (5, 6)).to(device)
    x = torch.tensor([NAN, 1, NAN, 2, 5, NAN], device=device)
    holes = a.convert(form)
    poisoned = with_values(holes, torch.where(valid_entries(holes), flat(holes), NAN))
    for b, algorithm in itertools.product((holes, poisoned), ["auto", *tp.algorithms(f"spmv_{form}", device)]):
        assert spmv(b, x, algorithm=algorithm).tolist() == [5, 0, 3, 0, 0], algorithm
        x4 = torch.where(torch.arange(6, device=device) == 4, NAN, x)
        assert_equal(spmv(b, x4, algorithm=algorithm), torch.tensor([5, 0, 3, NAN, 0]), algorithm)


@each_format
@each_device
def test_gradients(form, device):
    """Of a matrix with duplicates, empty rows and explicit zeros: by finite differences, and as long as the values."""
    a = random_matrix(8, 6, 25, device=device).convert(form)
    v, valid = flat(a), valid_entries(a)
    x = torch.randn(6, 3, dtype=torch.float64, device=device, generator=torch.Generator(device).manual_seed(1))
    inputs = [t.clone().requires_grad_() for t in (v, x, torch.ones(8, 3, dtype=torch.float64, device=device))]
    for f in (lambda v, x, y: spmm(with_values(a, v), x, y), lambda v, x, y: spmv(with_values(a, v), x[:, 0], y[:, 0])):
        assert torch.autograd.gradcheck(f, inputs) and torch.autograd.gradgradcheck(f, inputs)
    got = torch.autograd.grad(spmm(with_values(a, inputs[0]), x).sum(), inputs[0])[0]
    assert got.shape == v.shape and not got[~valid].any()
    scalar = lambda v, x: spmm(with_values(a, v), x).sin().sum()  # noqa: E731
    want = torch.autograd.grad(scalar(*inputs[:2]), inputs[:2])
    for g, w in zip(torch.func.grad(scalar, (0, 1))(v, x), want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-12)
    hessian = torch.func.jacrev(torch.func.jacrev(scalar))(v, x)
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(lambda v: scalar(v, x), v))


def test_dtypes_promote():
    a = BOOK.convert("csr")
    x = torch.ones(4, dtype=torch.float64, requires_grad=True)
    half = a.to(torch.float16)._replace(values=a.values.half().requires_grad_())
    y = spmv(half, x)
    assert y.dtype == torch.float64
    grads = torch.autograd.grad(y.sum(), (half.values, x))
    assert [g.dtype for g in grads] == [torch.float16, torch.float64]
    with pytest.raises(TypeError, match="spmv_csr: .*Complex"):
        spmv(a, x.detach().to(torch.complex64))
    with torch.autocast("cpu", torch.bfloat16):
        assert spmv(a.to(torch.bfloat16), torch.ones(4, dtype=torch.bfloat16)).dtype == torch.float32
    for moved in (a.to("cpu", torch.float64), a.to(device="cpu", dtype=torch.float64)):
        assert (moved.dtype, moved.col_idx.dtype) == (torch.float64, a.col_idx.dtype)


@pytest.mark.parametrize("index", (torch.int32, torch.int64))
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
@pytest.mark.parametrize("mean", (0.5, 3, 9, 11, 40, 700, 2000, 5000))
def test_lengths_of_rows(mean, dtype, index):
    """Of any lengths, near each other and far apart; a NaN stays in the row that it belongs to."""
    random = torch.Generator().manual_seed(1)
    for spread in (0, 0.3, 2):
        lengths = (mean * (spread * torch.randn(max(5, min(3000, int(30_000 / mean))), generator=random)).exp()).int()
        rows, n = len(lengths), int(lengths.sum())
        row, col = torch.arange(rows).repeat_interleave(lengths), torch.randint(0, 500, (n,), generator=random)
        values, x, y = (torch.randint(-3, 4, (k,), generator=random).to(dtype) for k in (n, 500, rows))
        a = sparse.COO(row.to(index), col.to(index), values, (rows, 500)).convert("csr")
        want = dense(a.convert("coo").to(torch.float64)) @ x.double()
        assert_equal(spmv(a, x), want.to(dtype), f"{spread}")
        assert_equal(spmv(a, x, y), (want + y).to(dtype), f"{spread}, and y")
        x[col[n // 2] if n else 0] = NAN
        struck = torch.zeros(rows, dtype=torch.bool).index_put_((row[x[col].isnan()],), torch.tensor(True))
        assert torch.equal(spmv(a, x).isnan(), struck)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32))
def test_numbers_of_columns(dtype):
    """Vectors on a CPU take columns by 8, 4, 2 and 1, and what is left over with what they took before."""
    row, col, values, _ = random_matrix(60, 40, 900)
    long = torch.randint(0, 40, (1300,), generator=torch.Generator().manual_seed(1))  # a row of more than two chunks
    row, col = torch.cat([row, torch.full_like(long, 7)]), torch.cat([col, long])
    values = torch.cat([values.clamp(-1, 1), (long % 3 - 1).double()])
    a = sparse.COO(row, col, values.to(dtype), (60, 40))  # in no order
    full = dense(a.to(torch.float64))
    for form, k in itertools.product(("coo", "csr", "csc", "ell"), (*range(1, 36), 40, 63, 64, 65, 72, 127, 130)):
        b = a if form == "coo" else a.convert(form)
        x, y, g = (((torch.arange(n * k) * 7 % 11) % 3 - 1).view(n, k).double() for n in (40, 60, 60))
        assert_equal(spmm(b, x.to(dtype)), (full @ x).to(dtype), f"{form} {k}")
        assert_equal(spmm(b, x.to(dtype), y.to(dtype)), (full @ x + y).to(dtype), f"{form} {k}, and y")
        if dtype.is_floating_point:
            leaves = [t.to(dtype).requires_grad_() for t in (flat(b), x)]
            of_values, of_x = torch.autograd.grad(spmm(with_values(b, leaves[0]), leaves[1]), leaves, g.to(dtype))
            assert_equal(of_x, (full.T @ g).to(dtype), f"{form} {k}, gradient of x")
            if form in ("coo", "csr"):
                rows, cols = (t.long() for t in b.convert("coo")[:2])
                assert_equal(of_values, (g[rows] * x[cols]).sum(1).to(dtype), f"{form} {k}, gradient of the values")


@each_device
@pytest.mark.parametrize("index", (torch.int32, torch.int64))
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32, torch.float64))
def test_arrays_at_odd_addresses(dtype, index, device):
    """Products of several columns and their gradients, where no array begins as vectors of it do."""

    def moved(x):
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)

    a = random_matrix(300, 200, 5000, dtype, index, device=device).convert("csr")
    full, rows, cols = dense(a.convert("coo").to(torch.float64)), *(x.long().cpu() for x in a.convert("coo")[:2])
    b = a._replace(row_ptrs=moved(a.row_ptrs), col_idx=moved(a.col_idx), values=moved(a.values))
    for k in (2, 8, 33, 64):
        x, g = ((torch.arange(n * k) * 7 % 11 % 3 - 1).view(n, k).double() for n in (200, 300))
        leaves = [b.values.detach().requires_grad_(), moved(x.to(device, dtype)).requires_grad_()]
        y = spmm(b._replace(values=leaves[0]), leaves[1])
        of_values, of_x = torch.autograd.grad(y, leaves, moved(g.to(device, dtype)))
        assert_equal(y, (full @ x).to(dtype), f"{k}")
        assert_equal(of_x, (full.T @ g).to(dtype), f"{k}, gradient of x")
        assert_equal(of_values, (g[rows] * x[cols]).sum(1).to(dtype), f"{k}, gradient of the values")


def test_transposed_product_is_the_product_of_the_transpose():
    for form in FORMATS:
        a = random_matrix(60, 40, 500).convert(form)
        x, g = torch.arange(40.0).double() % 5, torch.arange(60.0).double() % 3
        x.requires_grad_()
        got = torch.autograd.grad(spmv(a, x), x, g)[0]
        assert_equal(got, spmv(a.transpose(), g), form)
        assert (spmv(a, x) @ g).item() == (x @ got).item()


# ---- errors of structure, and memory safety without validation


def test_constructors_tell_what_is_wrong():
    """That indices are wrong is told by the Specs' cases; here, what only shapes of containers can be."""
    csr = BOOK.convert("csr")
    for fields, error, message in (
        ((csr.row_ptrs, csr.col_idx, csr.values, (5, 4)), ValueError, r"csr: .*4 rows.*\(5, 4\)"),
        ((csr.row_ptrs, csr.col_idx, csr.values[:-1], (4, 4)), ValueError, "csr: values has shape .*7.*8"),
        ((csr.row_ptrs.flip(0), csr.col_idx, csr.values, (4, 4)), ValueError, r"csr: row_ptrs\[0\] is 8, must be 0"),
        ((csr.row_ptrs[:0], csr.col_idx, csr.values, (0, 4)), ValueError, "csr: row_ptrs"),
        ((torch.tensor([0]), csr.col_idx[:3], csr.values[:3], (0, 4)), ValueError, r"row_ptrs\[0\] is 0, .*must be 3"),
        ((csr.row_ptrs.int(), csr.col_idx, csr.values, (4, 4)), TypeError, "csr: row_ptrs is Int, col_idx is Long"),
    ):
        with pytest.raises(error, match=message):
            tp.csr(*fields)
    with pytest.raises(ValueError, match="int32.*4294967296"):
        tp.coo(BOOK.row_idx.int(), BOOK.col_idx.int(), BOOK.values, (4, 2**32))
    with pytest.raises(ValueError, match=r"csr: row_ptrs\[2\] is 1, less than the one before"):
        tp.csr(torch.tensor([0, 2, 1, 7, 8]), csr.col_idx, csr.values, (4, 4))
    ell, jds, sell = BOOK.convert("ell"), BOOK.convert("jds"), BOOK.convert("sell", section_rows=2)
    filled = ell.col_idx.clone()
    filled[2, 0] = 1
    with pytest.raises(ValueError, match=r"ell: col_idx\[2, 0\] is 1, must be -1 where there is padding"):
        tp.ell(*ell._replace(col_idx=filled))
    with pytest.raises(ValueError, match=r"jds: diag_ptrs\[2\] is 8, .*longer"):
        tp.jds(*jds._replace(diag_ptrs=torch.tensor([0, 3, 8, 8])))
    with pytest.raises(ValueError, match=r"sell: section_ptrs\[1\] is 5, .*rectangle"):
        tp.sell(*sell._replace(section_ptrs=torch.tensor([0, 5, 10])))
    with pytest.raises(ValueError, match="sell: section_rows must be positive"):
        tp.sell(*sell._replace(section_rows=0))


def test_constructor_of_blocks_tells_what_is_wrong():
    row, col = torch.tensor([0, 0, 1, 1]), torch.tensor([2**14 + 1, 0, 5, 2**14])
    a = tp.coo(row, col, torch.ones(4), (2, 2**14 + 2)).convert("blocked")
    assert tp.blocked(*a)[:-1] == a[:-1]

    def poked(name, at, value):
        t = getattr(a, name).clone()
        t[at] = value
        return {name: t}

    for fields, error, message in (
        ({"col_idx": a.col_idx.int()}, TypeError, "col_idx must be int16, got Int"),
        ({"entry_idx": a.entry_idx.long()}, TypeError, "entry_idx must be int16, got Long"),
        ({"octet_idx": a.octet_idx.int()}, TypeError, "row_ptrs is Long, octet_idx is Int"),
        ({"octet_idx": a.octet_idx[:1]}, ValueError, "col_idx has 16 elements, expected 8, 8 times as many as octet"),
        ({"entry_idx": a.entry_idx[:8]}, ValueError, "entry_idx has 8 elements, expected 16, as col_idx"),
        ({"block_ptrs": a.block_ptrs[1:]}, ValueError, "block_ptrs has 2 elements, expected 3, .*blocks of columns"),
        (poked("octet_idx", 1, 0), ValueError, r"octet_idx\[0\] is 0, and so is another; it must be a permutation"),
        (poked("entry_idx", 3, 20_000), IndexError, r"entry_idx\[3\] is 20000, .*: expected -1 to 16383"),
        (poked("col_idx", 1, -2), IndexError, r"col_idx\[1\] is -2, .*: expected -1 to 16383"),
        (poked("col_idx", 8, 2), IndexError, r"col_idx\[8\] is 2, .*16386 columns"),
        (poked("block_ptrs", 1, 4), ValueError, r"block_ptrs\[1\] is 4, not a multiple of 8"),
        (poked("bin_ptrs", 1, 12), ValueError, r"bin_ptrs\[1\] is 12, "),
        (poked("entry_idx", 2, 3), ValueError, r"entry_idx\[2\] is 3, must be -1 where there is padding"),
        (poked("entry_idx", 1, -1), ValueError, r"entry_idx\[1\] is -1, "),
        (poked("entry_idx", 1, 4), IndexError, r"entry_idx\[1\] is 4, .*out of range"),
        (poked("entry_idx", 1, 1), ValueError, r"entry_idx\[0\] is 1, and so is another of its bin"),
        (poked("col_idx", 3, 5), ValueError, r"row_ptrs\[2\] is 4, the last, must be 5"),
    ):
        with pytest.raises(error, match=f"blocked: {message}"):
            tp.blocked(*a._replace(**fields))


WRONG_POINTERS = (  # format, field, {position: value}, error, message
    ("csr", "row_ptrs", {1: 2**62}, IndexError, r"row_ptrs\[1\] is 4611686018427387904, .*: expected 0 to 8"),
    ("csr", "row_ptrs", {2: -1}, IndexError, r"row_ptrs\[2\] is -1, which is out of range: expected 0 to 8"),
    ("csr", "row_ptrs", {0: 1}, ValueError, r"row_ptrs\[0\] is 1, must be 0"),
    ("csr", "row_ptrs", {2: 1}, ValueError, r"row_ptrs\[2\] is 1, less than the one before"),
    ("csr", "row_ptrs", {4: 7}, ValueError, r"row_ptrs\[4\] is 7, the last, must be 8"),
    ("csc", "col_ptrs", {1: 9}, IndexError, r"col_ptrs\[1\] is 9, which is out of range: expected 0 to 8"),
    ("csc", "col_ptrs", {4: 6}, ValueError, r"col_ptrs\[4\] is 6, the last, must be 8"),
    ("jds", "diag_ptrs", {1: 99}, IndexError, r"diag_ptrs\[1\] is 99, which is out of range"),
    ("jds", "diag_ptrs", {1: 3}, ValueError, r"diag_ptrs\[2\] is 7, which makes this diagonal longer"),
    ("sell", "section_ptrs", {1: 11}, IndexError, r"section_ptrs\[1\] is 11, which is out of range"),
    ("sell", "section_ptrs", {1: 5}, ValueError, r"section_ptrs\[1\] is 5, which leaves no rectangle"),
    ("blocked", "block_ptrs", {0: 8}, ValueError, r"block_ptrs\[0\] is 8, must be 0"),
    ("blocked", "bin_ptrs", {1: 5}, ValueError, r"bin_ptrs\[1\] is 5, the last, must be 8"),
    ("blocked", "row_ptrs", {1: -5}, IndexError, r"row_ptrs\[1\] is -5, which is out of range"),
)


@pytest.mark.parametrize("form, field, changes, error, message", WRONG_POINTERS, ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_wrong_pointers_are_an_error_on_the_cpu(form, field, changes, error, message, index):
    """Of every rung, by the operator's own name and argument, without validation."""
    options = {"section_rows": 2} if form == "sell" else {}
    good = with_indices(BOOK.convert(form, **options), index)
    pointers = getattr(good, field).clone()
    for position, value in changes.items():
        if value > torch.iinfo(index).max:
            pytest.skip("no int32")
        pointers[position] = value
    wrong, x = good._replace(**{field: pointers}), torch.ones(4)
    for rung in ("auto", *tp.algorithms(f"spmv_{form}", "cpu")):
        for product, operand in ((spmv, x), (spmm, x[:, None].expand(4, 3))):
            with pytest.raises(error, match=f"^{product.__name__}_{form}: {message}"):
                product(wrong, operand, algorithm=rung)
            product(good, operand, algorithm=rung)


@each_format
@each_device
def test_garbage_is_safe(form, device):
    """Whatever index tensors hold: no crash, and on the CPU an error or a result, never a write elsewhere."""
    good = random_matrix(30, 20, 120, device=device).convert(form)
    x = torch.ones(20, dtype=torch.float64, device=device)
    names = sparse.containers.index_fields(good)
    random = torch.Generator().manual_seed(3)
    for _, index, name in itertools.product(range(3), (torch.int32, torch.int64), names):
        a = with_indices(good, index)
        t = getattr(a, name).clone().cpu()
        top = torch.iinfo(t.dtype).max
        junk = torch.tensor([-top - 1, -1, 0, 3, 25, 119, min(10**6, top), top])
        for at in torch.randint(0, t.numel(), (3,), generator=random).tolist():
            t.view(-1)[at] = junk[torch.randint(0, len(junk), (), generator=random)].to(t.dtype)
        a = a._replace(**{name: t.to(device)})
        calls = [lambda r=rung: spmv(a, x, algorithm=r) for rung in tp.algorithms(f"spmv_{form}", device)]  # noqa: B023
        calls += [lambda f=f: a.convert(f) for f in FORMATS if f != "ell"] + [a.transpose]  # noqa: B023
        v = x.clone().requires_grad_()
        calls += [lambda: spmv(a, v).sum().backward()]  # noqa: B023
        for call in calls:
            try:
                call()
            except (IndexError, ValueError, RuntimeError) as error:
                assert "CUDA error" not in str(error), error
        assert torch.isfinite(spmv(good, x)).all()


# ---- graphs


class Converted(torch.nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, a, x):
        return spmv(a if self.form is None else a.convert(self.form), x)


@each_format
@each_device
def test_containers_in_graphs(form, device):
    """A container is an input of compiled and exported code, and an exported program is saved and loaded."""
    a, x = random_matrix(9, 7, 30, device=device).convert(form), torch.arange(7.0, device=device).double()
    torch._dynamo.reset()
    module = Converted(None)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    leaf = x.clone().requires_grad_()
    assert_same_bits(compiled(a, x), spmv(a, x))
    got, want = (torch.autograd.grad(f(a, leaf).sum(), leaf)[0] for f in (compiled, spmv))
    assert_same_bits(got, want)
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (a, x)), file)
    file.seek(0)
    assert_same_bits(torch.export.load(file).module()(a, x), spmv(a, x))


@pytest.mark.parametrize("form", [f for f in FORMATS if f != "coo"])
def test_conversions_in_graphs(form):
    a, x = random_matrix(9, 7, 30), torch.arange(7.0).double()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(Converted(form), backend="aot_eager", fullgraph=True)
        assert_equal(compiled(a, x), spmv(a, x), form)


def test_constructors_check_in_compiled_code():
    a, x = random_matrix(9, 7, 30).convert("csr"), torch.ones(7, dtype=torch.float64)
    compiled = torch.compile(lambda p, c, v: spmv(tp.csr(p, c, v, (9, 7)), x), backend="aot_eager", fullgraph=True)
    assert_equal(compiled(*a[:3]), spmv(a, x))
    with pytest.raises(IndexError, match=r"csr: col_idx\[0\] is 70"):
        compiled(a.row_ptrs, torch.full_like(a.col_idx, 70), a.values)


# ---- real matrices


@pytest.mark.parametrize("form", ["auto", *FORMATS])
@each_device
def test_golden(form, device):
    """Sums of y = A x that an independent program found by exact arithmetic, within the bound of any order."""
    folder = data_folder("matrices")
    golden = json.loads((folder.parent / "GOLDEN.json").read_text())
    for path in sorted(folder.glob("*.mtx")):
        want = golden[f"matrices/{path.name}"]
        a = read_matrix_market(path, dtype=torch.float64, device=device)
        x = ((7 * torch.arange(a.shape[1], device=device)) % 13 - 6).double()
        try:
            b = a.convert(form)
        except RuntimeError as refused:
            assert form == "ell" and "max_bytes" in str(refused)
            continue
        assert (b.nnz, b.shape) == (want["nnz"], (want["rows"], want["cols"])), path.name
        y, u = spmv(b, x), unit_roundoff(torch.float64)
        scale = torch.tensor(want["sum_abs_a_x"], dtype=torch.float64)
        bound = gamma(want["max_row"] + want["rows"] + 1, u) * scale
        exact = np.float64(bound).item() < 0.5 and float(want["sum_y"]).is_integer()
        assert_within(y.sum(), torch.tensor(want["sum_y"], dtype=torch.float64), bound, path.name)
        assert_within(y.abs().sum(), torch.tensor(want["sum_abs_y"], dtype=torch.float64), bound, path.name)
        if exact:
            assert y.sum().item() == want["sum_y"] and y.abs().sum().item() == want["sum_abs_y"], path.name
