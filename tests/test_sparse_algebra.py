"""Containers as matrices: operators between them, vectors and numbers; and as tensors of torch.sparse."""

import operator

import numpy as np
import pytest
import torch
from common import EACH_DEVICE
from sparse_matrices import BOOK, dense, each_format, flat, random_matrix, valid_entries
from torch.utils.data import DataLoader, default_collate

import torch_patterns as tp
from torch_patterns.sparse import FORMATS, Plan
from torch_patterns.testing import assert_equal

each_device = pytest.mark.parametrize("device", EACH_DEVICE)
sparse_warnings = pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")


@each_format
@each_device
def test_products_sums_and_multiples(form, device):
    a, b = (random_matrix(20, 30, n, seed=n, device=device) for n in (90, 40))
    A, B, x, y = a.convert(form), b.convert("coo"), torch.arange(30.0, device=device), torch.arange(20.0, device=device)
    whole, other = dense(a), dense(b)
    assert_equal(A @ x.double(), whole @ x.double().cpu())
    assert_equal(A @ torch.stack([x, -x], 1).double(), whole @ torch.stack([x, -x], 1).double().cpu())
    assert_equal(y.double() @ A, y.double().cpu() @ whole)
    assert_equal(torch.stack([y, 2 * y]).double() @ A, torch.stack([y, 2 * y]).double().cpu() @ whole)
    assert (A.dtype, A.device, A.T.shape) == (torch.float64, x.device, (30, 20))
    assert_equal(A.T.to_dense(), whole.T)
    for made, want in ((A * 2, 2 * whole), (np.float64(3) * A, 3 * whole), (A / 2, whole / 2), (-A, -whole)):
        assert type(made) is type(A)
        assert_equal(made.to_dense(), want)
    assert_equal((torch.tensor(-2.0) * A).to_dense(), -2 * whole)
    for made, want in ((A + B, whole + other), (A - B, whole - other), (A + A, 2 * whole)):
        assert type(made) is type(A)
        assert_equal(made.to_dense(), want)
    scaled = A * float("inf")
    assert (flat(scaled)[~valid_entries(scaled)] == 0).all()  # padding is 0 whatever it was multiplied by


@pytest.mark.parametrize("form", ["ell", "hyb", "sell", "jds", "blocked"])
def test_a_dense_column_from_the_left(form):
    """The transpose of rows of one entry is a row of n: as ELL, it would take n^2 entries."""
    n = 20_000
    zeros = torch.zeros(n, dtype=torch.int64)
    A = tp.coo(torch.arange(n), zeros, torch.ones(n), (n, n)).convert(form)
    assert_equal(torch.ones(n) @ A, torch.zeros(n).index_fill(0, zeros[:1], n))


@each_format
def test_products_from_the_left_are_traced(form):
    """Sizes do not depend on the data; and padding has no gradient, even where x is NaN."""
    A = random_matrix(7, 9, 20, seed=5).convert(form)
    x = torch.arange(7.0, dtype=torch.float64)
    for y in (x, torch.stack([x, -x])):
        want = y @ A
        assert want.is_contiguous() and want.untyped_storage().nbytes() == want.nbytes
        torch._dynamo.reset()
        compiled = torch.compile(operator.matmul, fullgraph=True, backend="aot_eager", dynamic=True)
        assert torch.equal(compiled(y, A), want)
        assert torch.equal(torch.jit.trace(lambda t: t @ A, y)(y), want)  # noqa: B023
    names = [name for name in A._fields if name.endswith("values")]
    values = [getattr(A, name).clone().requires_grad_() for name in names]
    A = A._replace(**dict(zip(names, values, strict=True)))
    grads = torch.autograd.grad((torch.full((7,), torch.nan).double() @ A).sum(), values)
    for grad, name in zip(grads, names, strict=True):
        index = getattr(A, name.replace("values", "col_idx" if form != "csc" else "row_idx"))
        assert_equal(grad.isnan(), index >= 0)
        assert (grad[index < 0] == 0).all()


@each_format
def test_gradients_go_through_sums_and_multiples(form):
    values = torch.tensor([1.0, 2, 3], dtype=torch.float64, requires_grad=True)
    A = tp.coo(torch.tensor([0, 1, 1]), torch.tensor([1, 0, 0]), values, (2, 2)).convert(form)
    y = (A * 3 + A - A / 2) @ torch.tensor([1.0, 10], dtype=torch.float64)
    assert torch.autograd.grad(y.sum(), values)[0].tolist() == [35, 3.5, 3.5]


def test_sums_promote():
    a = tp.coo(torch.tensor([0], dtype=torch.int32), torch.tensor([1], dtype=torch.int32), torch.ones(1), (2, 2))
    b = tp.coo(torch.tensor([0]), torch.tensor([1]), torch.ones(1, dtype=torch.float64), (2, 2))
    total = a + b
    assert (total.values.tolist(), total.values.dtype, total.row_idx.dtype) == ([2.0], torch.float64, torch.int64)


@each_format
@each_device
def test_a_container_is_no_sequence(form, device):
    """What a tuple would answer by concatenation, repetition or stacking is an error that names the operands."""
    A = BOOK.convert(form).to(device)
    for symbol, function, other in (
        ("+", operator.add, (1, 2)),
        ("+", operator.add, torch.ones(4, 4, device=device)),
        ("+", operator.add, 1),
        ("*", operator.mul, torch.ones(4, device=device)),
        ("*", operator.mul, np.ones(4)),
        ("@", operator.matmul, [1.0, 2, 3, 4]),
        ("-", operator.sub, 1),
        ("/", operator.truediv, A),
    ):
        with pytest.raises(TypeError, match=rf"^\{symbol} is not defined for {form.upper()} and "):
            function(A, other)
    for function in (operator.add, operator.mul):
        with pytest.raises(TypeError):
            function((1, 2), A)
    with pytest.raises(ValueError, match=r"A \+ B: shapes \(4, 4\) and \(2, 4\) differ"):
        A + tp.coo(*BOOK[:2], BOOK.values, (2, 4), validate=False).to(device)
    with pytest.raises(ValueError, match="A @ x: x must have one dimension or two"):
        A @ torch.ones(4, 2, 2, device=device)
    with pytest.raises(TypeError, match=f"default_collate: {form.upper()} cannot be stacked"):
        default_collate([A, A])
    assert len(next(iter(DataLoader([A, A], batch_size=2, collate_fn=list)))) == 2
    first, *rest = A  # a NamedTuple's own ways stay
    assert first is A[0] and len(A) == len(rest) + 1


def test_graphs_and_plans_are_no_sequences():
    g = tp.graph.grid(2, 2)
    plan = BOOK.convert("csr").plan()
    for x, name in ((g, "Graph"), (plan, "Plan")):
        for function, other in ((operator.add, x), (operator.mul, 2), (operator.add, (1,))):
            with pytest.raises(TypeError, match=rf"is not defined for {name} and"):
                function(x, other)
        with pytest.raises(TypeError, match=rf"is not defined for {name} and int"):
            2 * x
        with pytest.raises(TypeError, match=f"default_collate: {name} cannot be stacked"):
            default_collate([x, x])
    with pytest.raises(TypeError, match="Graph .*collate_fn=torch_patterns.graph.collate"):
        default_collate([g, g])


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="torch.compile of older torch does not trace A @ x")
def test_compiled_operators():
    @torch.compile(fullgraph=True, backend="eager")
    def f(A, x):
        return (A * 2) @ x + A.T @ x

    for form in ("coo", "csr", "ell"):
        A, x = BOOK.convert(form), torch.arange(4.0)
        assert_equal(f(A, x), 2 * dense(BOOK) @ x + dense(BOOK).T @ x)


# ---- torch.sparse


@sparse_warnings
@each_format
@each_device
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_to_torch_keeps_the_invariants_of_torch(form, device, index):
    """Unsorted, with duplicates, from every format: torch validates it, and multiplies it rightly."""
    for n in (0, 1, 90):
        a = random_matrix(20, 30, n, index=index, seed=n, device=device)
        values = a.values.clone().requires_grad_()
        made = a._replace(values=values).convert(form).to_torch()
        with torch.sparse.check_sparse_tensor_invariants():
            if made.layout == torch.sparse_coo:
                torch.sparse_coo_tensor(made._indices(), made._values(), made.shape)
            elif made.layout == torch.sparse_csr:
                torch.sparse_csr_tensor(made.crow_indices(), made.col_indices(), made.values(), made.shape)
            else:
                torch.sparse_csc_tensor(made.ccol_indices(), made.row_indices(), made.values(), made.shape)
        x = torch.arange(30, dtype=torch.float64, device=device)
        assert_equal((made.detach() @ x[:, None])[:, 0], dense(a) @ x.cpu())
        weights = torch.arange(20 * 30, dtype=torch.float64, device=device).view(20, 30)
        got = torch.autograd.grad((made.to_dense() * weights).sum(), values)[0]
        assert_equal(got, weights[a.row_idx.long(), a.col_idx.long()])


@sparse_warnings
def test_to_torch_leaves_what_is_in_order():
    a = BOOK.convert("csr")
    made = a.to_torch()
    assert made.col_indices().data_ptr() == a.col_idx.data_ptr()


@each_device
def test_to_torch_refuses_wrong_indices(device):
    zero, far = torch.tensor([0], device=device), torch.tensor([7], device=device)
    ones = torch.ones(1, device=device)
    with pytest.raises(IndexError, match=r"coo: col_idx\[0\] is 7"):
        tp.COO(zero, far, ones, (2, 2)).to_torch()
    with pytest.raises(IndexError, match=r"csr: col_idx\[0\] is 7"):
        tp.CSR(torch.tensor([0, 1, 1], device=device), far, ones, (2, 2)).to_torch()


# ---- plans


def test_plans_are_saved_and_exported(tmp_path):
    A = BOOK.convert("csr")
    plan = A.plan()
    torch.save({"plan": plan}, tmp_path / "plan.pt")
    loaded = torch.load(tmp_path / "plan.pt")["plan"]
    assert type(loaded) is Plan and all(map(torch.equal, loaded, plan))

    class Module(torch.nn.Module):
        def forward(self, A, x, plan):
            return tp.spmv(A, x, plan=plan)

    x = torch.arange(4.0)
    program = torch.export.export(Module(), (A, x, plan))
    torch.export.save(program, tmp_path / "program.pt2")
    assert_equal(torch.export.load(tmp_path / "program.pt2").module()(A, x, plan), tp.spmv(A, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_sum_of_all_entries_is_rounded_once(dtype):
    """The sums of rows are no results, and may be beyond what the dtype holds."""
    values = torch.tensor([4e4, 4e4, -4e4, -4e4, 1.0]).to(dtype).requires_grad_()
    for form in FORMATS:
        a = tp.coo(torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 1]), values, (3, 2)).convert(form)
        total = a.sum()
        assert total.dtype == dtype and total.item() == 1, form
        assert torch.autograd.grad(total, values)[0].tolist() == [1] * 5
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert a.sum().dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("own", [torch.float16, torch.bfloat16])
def test_half_types_that_are_not_autocasts_own(dtype, own):
    """On the CPU, torch.cat refuses them under autocast, and a HYB has two arrays of values."""
    values = torch.arange(5.0).to(dtype)
    for form in FORMATS:
        with torch.autocast("cpu", dtype=own):
            a = tp.coo(torch.tensor([0, 0, 1, 1, 1]), torch.arange(5), values, (2, 5)).convert(form)
            assert a.to_dense().sum(0).tolist() == values.tolist() and a.to_dense().dtype == dtype
            assert (a + a).to_dense().sum(0).tolist() == (2 * values).tolist()
