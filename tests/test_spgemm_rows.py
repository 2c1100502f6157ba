"""A @ B row by row: rows of all lengths, by hash tables in the simulation of the device, and on threads."""

import re
import warnings

import numpy as np
import pytest
import torch
from common import needs_cuda
from sparse_matrices import dense
from test_ladder import ORDERS
from test_sparse_products import each_device, each_index, sorted_and_distinct

import torch_patterns as tp
from torch_patterns import simt
from torch_patterns.testing import assert_equal, assert_same_bits


def in_order(lengths: list[int], cols: int, seed: int, index: torch.dtype) -> tuple[torch.Tensor, ...]:
    """(row_ptrs, col_idx, values) with sorted, distinct columns, most of them among the first ones."""
    random = np.random.default_rng(seed)
    reach = [cols if i % 3 == 0 else min(cols, 2 * n) for i, n in enumerate(lengths)]
    idx = np.concatenate([np.sort(random.choice(r, n, replace=False)) for r, n in zip(reach, lengths, strict=True)])
    ptrs = np.concatenate([[0], np.cumsum(lengths)])
    values = torch.from_numpy(random.standard_normal(len(idx)).astype(np.float32))
    return *(torch.from_numpy(x).to(index) for x in (ptrs, idx)), values


@each_index
@pytest.mark.parametrize("order, seed", ORDERS)
@pytest.mark.parametrize("of_b", [[8], [1, 20, 64], [65], [300, 1]], ids=str)
def test_hash_tables_of_rows(index, order, seed, of_b):
    """Around the sizes of the groups of rows; rows of B longer than a block; the bits of the sequential rung."""
    inner, cols = 300, 2500
    b = in_order([of_b[i % len(of_b)] for i in range(inner)], cols, 2, index)
    lengths = [-(-n // max(of_b)) for n in (0, 1, 63, 64, 72, 256, 264, 1024, 1032, 1700)] + [0, 5]
    a = in_order(lengths, inner, 1, index)
    want = torch.ops.torch_patterns.spgemm(*a, *b, cols, "sequential")
    with simt.checked(order, seed):
        assert_same_bits(torch.ops.torch_patterns.spgemm(*a, *b, cols, "hash_per_row"), want)


@each_index
@pytest.mark.parametrize("order, seed", ORDERS)
def test_short_rows(index, order, seed):
    """Short rows between longer ones, with few and with many distinct columns, and entries without products."""
    of_b, cols = [0, 1, 3, 0, 17, 64, 2, 1], 90
    b = in_order([of_b[i % len(of_b)] for i in range(400)], cols, 2, index)
    a = in_order([0, 1, 2, 5, 9, 70, 1, 3, 300, 4, 7, 6, 2, 400, 1] * 20, 400, 1, index)
    lengths = b[0].diff()[a[1]].cumsum(0)[a[0][1:] - 1].diff()
    assert {0, 1} <= set(lengths.tolist()) and (lengths > 96).any() and ((lengths > 0) & (lengths < 96)).sum() > 100
    want = torch.ops.torch_patterns.spgemm(*a, *b, cols, "sequential")
    with simt.checked(order, seed):
        assert_same_bits(torch.ops.torch_patterns.spgemm(*a, *b, cols, "hash_per_row"), want)


@each_device
def test_a_block_looks_at_several_of_many_rows(device):
    """Of 2^18 rows most are empty or short, and every 997th has up to 3,000 products."""
    b = in_order([3] * 1100, 1500, 2, torch.int32)
    lengths = torch.arange((1 << 18) + 5) % 3
    lengths[::997] = torch.arange(len(lengths[::997])) * 4
    ptrs = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    entries = torch.arange(int(ptrs[-1])) - ptrs[:-1].repeat_interleave(lengths)
    a = (
        ptrs.int(),
        entries.int(),
        torch.randint(-3, 4, entries.shape, generator=torch.Generator().manual_seed(3)).float(),
    )
    b = *b[:2], (3 * b[2]).round()
    want = torch.ops.torch_patterns.spgemm(*a, *b, 1500, "threaded")
    got = torch.ops.torch_patterns.spgemm(*(x.to(device) for x in (*a, *b)), 1500, "hash_per_row")
    assert_equal([x.cpu() for x in got], want)


@each_device
def test_rows_of_many_entries_and_few_products(device):
    """Most rows of B are empty, so a row of A with hundreds of entries has few products, or none."""
    rows = torch.arange(3).repeat_interleave(300)
    columns = torch.arange(300).repeat(3)
    a = tp.coo(rows, columns, torch.ones(900), (3, 400)).convert("csr").to(device)
    for filled in ([], [7], [7, 299], [5, 6, 7, 350]):
        b = torch.zeros(400, 5)
        b[filled, 1::2] = 2.0
        product = a @ tp.coo(*b.nonzero().T, b[b != 0], b.shape).convert("csr").to(device)
        assert_equal(product.to_dense(), a.to_dense() @ b.to(device))
        assert product.row_ptrs.tolist() == [0, *(min(len(filled), 1) * 2 * i for i in (1, 2, 3))]


# (lengths of rows of A, of rows of B, columns): rows with more products than a hash table has room for.
LONG = {
    "one piece in parts": ([257, 3, 0, 300], [20], 5000),
    "pieces": ([300, 0, 290], [60, 1, 2, 30], 9000),
    "all rows of one column": ([2049, 2048], [1], 1),
    "wider than the bits of a block": ([90, 0, 5], [30], 300_000),
    "rows of B longer than a block": ([12, 3], [700, 1], 3000),
    "most columns of the matrix": ([300, 30], [200], 210),
}


@each_index
@pytest.mark.parametrize("order, seed", ORDERS)
@pytest.mark.parametrize("kind", LONG)
def test_long_rows(index, order, seed, kind):
    """Rows that are divided into windows of columns: the bits of the sequential rung."""
    of_a, of_b, cols = LONG[kind]
    inner = max(of_a)
    a = in_order(of_a, inner, 1, index)
    b = in_order([of_b[i % len(of_b)] for i in range(inner)], cols, 2, index)
    want = torch.ops.torch_patterns.spgemm(*a, *b, cols, "sequential")
    with simt.checked(order, seed):
        assert_same_bits(torch.ops.torch_patterns.spgemm(*a, *b, cols, "hash_per_row"), want)


@each_device
def test_products_of_a_power_law(device):
    """Rows of all lengths, and columns of which few are frequent."""
    random, n = np.random.default_rng(1), 3000
    lengths = np.minimum((4 * (1 - random.random(n)) ** -0.7).astype(int), n // 2)
    rows = np.repeat(np.arange(n), lengths)
    idx = (n * random.random(len(rows)) ** 3).astype(int)
    positions = np.unique(rows * n + idx)
    values = torch.from_numpy(random.integers(-3, 4, len(positions)) * 1.0)
    coo = tp.coo(*(torch.from_numpy(x) for x in (positions // n, positions % n)), values, (n, n)).to(device)
    a = coo.convert("csr")
    assert int((a.to_dense().ne(0).double() @ a.row_ptrs.diff().double()).max()) > 2048
    product = a @ a
    assert_equal(product.to_dense(), dense(coo) @ dense(coo))
    assert sorted_and_distinct(product)


@pytest.mark.parametrize("reason", ["no", "B not in order", "B has duplicates"])
def test_b_is_in_any_order(reason):
    """Rows that are not in order are sorted; equal columns may follow each other."""
    a = in_order([3, 256, 0], 300, 1, torch.int64)
    b = in_order([8] * 300, 2500, 2, torch.int64)
    rows_of_b = b[1].view(300, 8)
    if reason == "B not in order":
        rows_of_b[:, :2] = rows_of_b[:, :2].flip(1)
    if reason == "B has duplicates":
        rows_of_b[:, 1] = rows_of_b[:, 0]
        rows_of_b[::2, 2] = rows_of_b[::2, 0]
    a, b = ((*m[:2], (10 * m[2]).round()) for m in (a, b))
    want = torch.ops.torch_patterns.spgemm(*a, *b, 2500, "sequential")
    got, phases = simt.trace(torch.ops.torch_patterns.spgemm, *a, *b, 2500, "hash_per_row")
    assert_equal(got, want)
    assert any(p["name"] == "enter" for p in phases)
    assert not any(p["kernel"] == "expand_sort_compress" for p in phases)


# (field, position, value)
WRONG = [(0, at, value) for at, value in ((0, 1), (0, -9), (1, 10**6), (2, -1), (3, 0), (-1, 7), (-1, -7))]
WRONG += [(1, at, value) for at, value in ((0, -1), (3, 300), (-1, 2**31 - 1), (5, -(2**31)))]


@each_index
@pytest.mark.parametrize("algorithm", ["hash_per_row", "expand_sort_compress"])
@pytest.mark.parametrize("matrix", ["A", "B"])
def test_wrong_operands_are_found_by_the_kernels(index, algorithm, matrix):
    """The kernels read nothing out of bounds, whatever pointers and columns hold, and the error names what is wrong."""
    for field, at, value in WRONG:
        operands = {"A": in_order([3, 0, 256, 1], 300, 1, index), "B": in_order([8, 0] * 150, 300, 2, index)}
        changed = operands[matrix][field]
        changed[at] = value
        with simt.checked(), pytest.raises((IndexError, ValueError)) as raised:
            torch.ops.torch_patterns.spgemm(*operands["A"], *operands["B"], 300, algorithm)
        name, at = ("row_ptrs", "col_idx")[field], at % len(changed)
        assert re.match(rf"spgemm: {matrix}: {name}\[({at}|{at + 1})\] is ", str(raised.value))


@pytest.mark.parametrize("algorithm", tp.algorithms("spgemm", "cpu"))
def test_products_that_are_not_admitted(algorithm):
    """If there are too many products, they are counted and nothing else."""
    a, b = in_order([3, 0, 256], 300, 1, torch.int32), in_order([8, 0] * 150, 400, 2, torch.int32)
    products = int(b[0].diff()[a[1]].sum())
    at_once = torch.ops.torch_patterns_parts.spgemm_at_once
    whole = torch.ops.torch_patterns.spgemm(*a, *b, 400, algorithm)
    assert_same_bits(at_once(*a, *b, 400, products, 0, algorithm), whole)
    for got, want in zip(at_once(*a, *b, 400, products - 1, 0, algorithm), whole, strict=True):
        assert got.shape == (0,) and got.dtype == want.dtype


@needs_cuda
def test_a_product_waits_twice():
    """For the number of products, with which it learns whether the operands are valid, and for that of entries."""
    a = tp.csr(*in_order([8] * 300, 300, 1, torch.int32), (300, 300)).to("cuda")
    a @ a
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # warns itself that it is a prototype
        try:
            a @ a
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in caught if "called a synchronizing" in str(w.message)]) <= 2


@each_index
def test_short_rows_of_many_columns(index):
    """Rows of 0 to 40 products with equal columns, in every order, have the bits of the sequential rung."""
    random = torch.Generator().manual_seed(9)
    rows, inner, cols = 600, 500, 20_000
    b_lengths, a_lengths = (torch.randint(0, most, (n,), generator=random) for most, n in ((9, inner), (9, rows)))
    b_idx = torch.randint(0, 40, (int(b_lengths.sum()),), generator=random) * 499
    a_idx = torch.randint(0, inner, (int(a_lengths.sum()),), generator=random)
    ptrs = [torch.cat([torch.zeros(1, dtype=torch.int64), x.cumsum(0)]).to(index) for x in (a_lengths, b_lengths)]
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        x, y = (torch.randn(len(i), generator=random).mul(4).to(dtype) for i in (a_idx, b_idx))
        args = (ptrs[0], a_idx.to(index), x, ptrs[1], b_idx.to(index), y, cols)
        got = torch.ops.torch_patterns.spgemm(*args, "threaded")
        assert_same_bits(got, torch.ops.torch_patterns.spgemm(*args, "sequential"))
