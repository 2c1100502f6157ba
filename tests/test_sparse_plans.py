"""Plans of the transposed products of sparse matrices: what they hold, how long they are kept, wrong ones."""

import contextlib

import pytest
import torch
from common import EACH_DEVICE, needs_cuda
from sparse_matrices import BOOK, dense, each_format, random_matrix
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_patterns as tp
from torch_patterns import sparse
from torch_patterns.sparse import spmm, spmv, stages
from torch_patterns.sparse.containers import BIN_ENTRIES
from torch_patterns.testing import assert_equal, assert_same_bits

each_device = pytest.mark.parametrize("device", EACH_DEVICE)


@each_format
@each_device
def test_plans(form, device, monkeypatch):
    a = random_matrix(50, 30, 300, device=device).convert(form)
    x = (torch.arange(30.0, device=device).double() % 4).requires_grad_()
    plan = a.plan()
    want = torch.autograd.grad(spmv(a, x).sum(), x)[0]
    for given in (plan, sparse.Plan(plan.ptrs, plan.perm[0].contiguous())):
        assert_same_bits(torch.autograd.grad(spmv(a, x, plan=given).sum(), x)[0], want, form)
    outer = getattr(a, sparse.containers.index_fields(a)[0])
    made = []
    monkeypatch.setattr(sparse.product, "make_plan", lambda a: made.append(a) or plan)
    fresh = a._replace(**{name: getattr(a, name).clone() for name in sparse.containers.index_fields(a)})
    for _ in range(3):
        spmv(fresh, x)
        spmm(fresh._replace(**{n: getattr(a, n) * 2 for n in sparse.containers.value_fields(a)}), x[:, None])
    assert len(made) == (form != "csc" or device == "cuda")  # one for all, whatever the values
    if made:
        getattr(fresh, sparse.containers.index_fields(a)[-1]).add_(0)  # written to
        spmv(fresh, x)
        assert len(made) == 2
    with torch.inference_mode():
        spmv(fresh._replace(**{sparse.containers.index_fields(a)[0]: outer.clone()}), x)
    with torch.no_grad():
        spmv(a, x.detach())
    assert len(made) <= 2


@pytest.mark.parametrize("index", (torch.int32, torch.int64))
def test_stages(index):
    """The two stages lead from storage order to the order of the plan; rungs without stages use the plan itself."""
    n = 3 * BIN_ENTRIES + 5
    coo = random_matrix(700, 300, n, index=index)
    a = coo.convert("csr")
    ptrs, perm = a.plan()
    more = stages.stages(*perm)
    words = more[:-1].contiguous().view(torch.uint8).flatten()
    local, source = words[: 4 * n].view(torch.int16).view(2, n)
    slot = words[4 * n :].view(torch.int32)
    each = torch.arange(n)
    by_tile, by_bin = (each // BIN_ENTRIES * BIN_ENTRIES + x for x in (source, local))
    assert_equal(by_tile[slot].to(index), perm[0][by_bin], "the order")
    assert_equal(more[-1][perm[0].long()], perm[1], "the columns")
    g = torch.ones(700, 1, dtype=torch.float64)
    for rows in (perm, torch.cat([perm, more])):
        args = ("csr", list(a[:2]), a.values, g, *a.shape, 0, ptrs, rows)
        assert_equal(torch.ops.torch_patterns.spmm_transposed(*args)[:, 0], dense(coo).sum(0), f"{len(rows)} rows")


@needs_cuda
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32, torch.float64))
@pytest.mark.parametrize("index", (torch.int32, torch.int64))
@each_format
def test_products_in_stages(form, index, dtype, monkeypatch):
    """Many columns, few long ones and empty ones, with padding; one operand and several; the same bits in every run."""
    monkeypatch.setattr(sparse.product, "stages_are_faster", lambda perm: True)
    for rows, cols, n in ((900, 4000, 70_000), (4000, 3, 2 * BIN_ENTRIES), (900, 100_000, 50_000)):
        coo = random_matrix(rows, cols, n, dtype, index, device="cuda")
        a = (coo.transpose() if form == "csc" else coo).convert(form)
        plan = a.plan()
        assert plan.perm.shape[0] > 2
        for product, k in ((spmv, ()), (spmm, (3,)), (spmm, (8,))):
            g = (torch.arange(rows * sum(k, start=not k), device="cuda") % 3 - 1).to(dtype).view(rows, *k)
            want = dense(coo.to(torch.float64)).T @ g.double().cpu()
            for _ in range(2):
                if form == "csc":
                    got = product(a, g, plan=plan)
                else:
                    x = torch.zeros(cols, *k, dtype=dtype, device="cuda", requires_grad=True)
                    got = torch.autograd.grad(product(a, x, plan=plan), x, g)[0]
                assert_equal(got.cpu(), want.to(dtype), f"{form} {cols} {k}")


def test_plans_die_with_their_matrix():
    before = len(sparse.product._memory)
    a = random_matrix(5, 5, 9).convert("csr")
    spmv(a, torch.ones(5, dtype=torch.float64, requires_grad=True))
    assert len(sparse.product._memory) == before + 1
    del a
    assert len(sparse.product._memory) == before


@each_device
@each_format
def test_a_plan_that_inference_made_serves_training(form, device):
    a = random_matrix(5, 4, 9, device=device).convert(form)
    x, left, right = (
        torch.ones(shape, dtype=torch.float64, device=device, requires_grad=True) for shape in (4, (5, 2), (4, 2))
    )
    for mode in (torch.inference_mode(), contextlib.nullcontext()):
        with mode:
            total = spmv(a, x).sum() + tp.sampled_product(a, left, right).sum()
    total.backward()
    assert_equal(x.grad.cpu(), dense(a.convert("coo")).sum(0))
    assert right.grad.sum() == 2 * a.nnz


@each_format
def test_no_plan_of_a_fake_tensor_is_kept(form):
    a = random_matrix(5, 4, 9).convert(form)
    x = torch.ones(4, dtype=torch.float64)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert spmv(a, mode.from_tensor(x).requires_grad_()).shape == (5,)
    x.requires_grad_()
    spmv(a, x).sum().backward()
    assert type(x.grad) is torch.Tensor
    assert_equal(x.grad, dense(a.convert("coo")).sum(0))


def test_bad_plans():
    a, x = BOOK.convert("csr"), torch.ones(4, requires_grad=True)
    ptrs, perm = a.plan()
    for plan, error, message in (
        ((ptrs[:-1], perm), ValueError, "plan_ptrs has shape"),
        ((ptrs, perm[:, :-1]), ValueError, "plan_perm has shape"),
        ((ptrs, torch.cat([perm, perm[:1]])), ValueError, r"plan_perm has shape \[3, 8\].*\[2, 8\].*\[4, 8\]"),
        ((ptrs, perm.int()), TypeError, "plan_perm Int"),
    ):
        with pytest.raises(error, match=message):
            spmv(a, x, plan=plan)
    with pytest.raises(IndexError, match="plan_perm"):
        torch.autograd.grad(spmv(a, x, plan=(ptrs, perm + 100)).sum(), x)


def test_wrong_plans_are_an_error_on_the_cpu():
    a, x = BOOK.convert("csr"), torch.ones(4, requires_grad=True)
    plan = a.plan()
    for ptrs, error, message in (
        (plan.ptrs + 3, ValueError, r"plan_ptrs\[0\] is 3, must be 0"),
        (plan.ptrs * 2, IndexError, r"plan_ptrs\[3\] is 12, which is out of range: expected 0 to 8"),
    ):
        with pytest.raises(error, match=message):
            spmv(a, x, plan=plan._replace(ptrs=ptrs)).sum().backward()
