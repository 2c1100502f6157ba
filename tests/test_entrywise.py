"""A + B, A - B and A * B of sparse matrices: positions, values, derivatives, wrong input."""

import operator

import numpy as np
import pytest
import scipy.sparse
import torch
from common import EACH_DEVICE
from sparse_matrices import dense, each_format, random_matrix
from test_ladder import ORDERS

import torch_patterns as tp
from torch_patterns import simt
from torch_patterns.sparse.algebra import add, multiply, subtract
from torch_patterns.testing import assert_equal

each_device = pytest.mark.parametrize("device", EACH_DEVICE)
each_index = pytest.mark.parametrize("index", [torch.int32, torch.int64])
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
each_operator = pytest.mark.parametrize("symbol", OPERATORS)
SHAPES = [(20, 30, 200, 150), (5, 5, 0, 9), (5, 5, 9, 0), (4, 6, 0, 0), (1, 1, 3, 2), (0, 3, 0, 0), (3, 0, 0, 0)]
SHAPES += [(7, 1, 20, 9), (1, 500, 300, 200), (300, 200, 20000, 30000)]


def positions(a) -> set[tuple[int, int]]:
    """Where a COO matrix has entries, explicit zeros too."""
    return set(zip(a.row_idx.tolist(), a.col_idx.tolist(), strict=True))


def reference(symbol: str, a: tp.COO, b: tp.COO) -> list[tuple[int, int, float]]:
    """The sorted entries of the result, from dictionaries of those of the operands."""
    sums: list[dict] = []
    for m in (a, b):
        sums.append({})
        for row, col, value in zip(*(x.tolist() for x in m[:3]), strict=True):
            sums[-1][row, col] = sums[-1].get((row, col), 0) + value
    left, right = sums
    chosen = left.keys() & right.keys() if symbol == "*" else left.keys() | right.keys()
    return [(*at, OPERATORS[symbol](left.get(at, 0), right.get(at, 0))) for at in sorted(chosen)]


def entries(a) -> list[tuple[int, int, float]]:
    return list(zip(*(x.tolist() for x in a.convert("coo")[:3]), strict=True))


@each_operator
@each_device
@each_index
def test_every_entry(symbol, device, index):
    """Each position once, in order, whatever cancels; operands are unsorted, with duplicates and empty rows."""
    for rows, cols, n, m in SHAPES:
        a, b = (random_matrix(rows, cols, k, index=index, seed=k + 1, device=device) for k in (n, m))
        result = OPERATORS[symbol](a.convert("csr"), b.convert("csr"))
        assert isinstance(result, tp.CSR) and tuple(result.shape) == (rows, cols)
        assert result.row_ptrs.dtype == result.col_idx.dtype == index
        assert entries(result) == reference(symbol, a, b), f"{rows} x {cols}, {n} and {m} entries"


@each_operator
@each_device
@each_format
def test_every_format(symbol, device, form):
    a, b = (random_matrix(20, 30, n, seed=n, device=device) for n in (200, 150))
    for first, second in ((form, "csr"), ("csr", form), (form, form)):
        A, B = a.convert(first), b.convert(second)
        result = OPERATORS[symbol](A, B)
        assert type(result) is type(A)
        assert entries(result.convert("csr")) == reference(symbol, a, b)


def canonical(rows: int, cols: int, lengths: np.ndarray, seed: int, reach: int) -> scipy.sparse.csr_array:
    """Rows of distinct, sorted columns out of `reach` neighbours; values are positive, so that no sum is 0."""
    random = np.random.default_rng(seed)
    idx = [np.sort(random.choice(np.arange(r, r + reach) % cols, n, replace=False)) for r, n in enumerate(lengths)]
    idx = np.concatenate(idx) if len(idx) else np.zeros(0, int)
    ptrs = np.concatenate([[0], np.cumsum(lengths)])
    return scipy.sparse.csr_array((random.integers(1, 9, len(idx)).astype(np.float64), idx, ptrs), shape=(rows, cols))


def ours(m: scipy.sparse.csr_array, index=torch.int32, dtype=torch.float32) -> tp.CSR:
    ptrs, idx = (torch.from_numpy(x).to(index) for x in (m.indptr, m.indices))
    return tp.csr(ptrs, idx, torch.from_numpy(m.data).to(dtype), m.shape)


def lengths_of(kind: str, rows: int, most: int) -> np.ndarray:
    random = np.random.default_rng(rows + most)
    if kind == "equal":
        return np.full(rows, min(27, most))
    if kind == "any":  # every remainder by blocks of eight
        return random.integers(0, 35, rows)
    long = np.zeros(rows, int)
    long[rows // 2] = most
    return long + np.where(np.arange(rows) % 3 == 0, random.integers(0, 4, rows), 0)


@each_operator
@each_index
@pytest.mark.parametrize("kinds", [("equal", "equal"), ("any", "any"), ("long", "any"), ("equal", "long")], ids=str)
def test_sorted_rows_beside_scipy(symbol, index, kinds):
    """Many shares of rows; columns that are near each other, so that most are common, or far."""
    rows, cols = 3000, 4000
    for reach in (40, 3000):
        lengths = (np.minimum(lengths_of(kind, rows, 2500), reach) for kind in kinds)
        a, b = (canonical(rows, cols, n, seed, reach) for seed, n in enumerate(lengths))
        b = scipy.sparse.csr_array((b.data + 20, b.indices, b.indptr), shape=b.shape)  # so that no difference is 0
        result = OPERATORS[symbol](ours(a, index), ours(b, index))
        want = scipy.sparse.csr_array(a.multiply(b) if symbol == "*" else OPERATORS[symbol](a, b))
        want.sort_indices()
        assert np.array_equal(result.row_ptrs, want.indptr) and np.array_equal(result.col_idx, want.indices)
        assert_equal(result.values, torch.from_numpy(want.data).float())


@each_operator
def test_same_structure(symbol):
    """Rows of both have the same columns: everywhere, or but for one entry of one row."""
    a = canonical(3000, 4000, lengths_of("equal", 3000, 40), 0, 40)
    b = scipy.sparse.csr_array((a.data[::-1] + 20, a.indices, a.indptr), shape=a.shape)
    A, B = ours(a), ours(b)
    result = OPERATORS[symbol](A, B)
    assert_equal(result.row_ptrs, A.row_ptrs)
    assert_equal(result.col_idx, A.col_idx)
    assert_equal(result.values, OPERATORS[symbol](A.values, B.values))
    far = B.col_idx.clone()
    far[27 * 2000 + 26] = 3999  # the last column of a row
    changed = OPERATORS[symbol](A, B._replace(col_idx=far))
    assert changed.col_idx.shape[0] == A.col_idx.shape[0] + (-1 if symbol == "*" else 1)
    assert entries(changed) == reference(symbol, A.convert("coo"), B._replace(col_idx=far).convert("coo"))


@each_operator
def test_some_rows_out_of_order(symbol):
    """Duplicates and unsorted columns in a few rows of a large matrix, of either operand or of both."""
    a, b = (ours(canonical(3000, 4000, lengths_of("any", 3000, 40), seed, 60), dtype=torch.float64) for seed in (1, 2))
    rough = []
    for m in (a, b):
        idx = m.col_idx.clone()
        for row in (0, 1500, 2999):
            at = slice(int(m.row_ptrs[row]), int(m.row_ptrs[row + 1]))
            idx[at] = idx[at].flip(0) // 2 * 2
        rough.append(m._replace(col_idx=idx))
    for x, y in ((rough[0], b), (a, rough[1]), rough, (rough[0], rough[0])):
        assert entries(OPERATORS[symbol](x, y)) == reference(symbol, x.convert("coo"), y.convert("coo"))


@each_operator
def test_any_number_of_threads(symbol):
    a, b = (ours(canonical(3000, 4000, lengths_of("any", 3000, 40), seed, 60), dtype=torch.float64) for seed in (1, 2))
    b = b._replace(col_idx=b.col_idx // 2)  # duplicates
    a, b = (m._replace(values=torch.sin(m.values + torch.arange(m.values.numel()))) for m in (a, b))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(OPERATORS[symbol](a, b))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(map(torch.equal, result[:3], results[0][:3]))


@each_operator
@each_device
@pytest.mark.parametrize("dtypes", ["int32 int32", "int64 float32", "half half", "bfloat16 double", "int32 half"])
def test_dtypes(symbol, device, dtypes):
    first, second = (getattr(torch, name) for name in dtypes.split())
    a = random_matrix(9, 8, 40, first, torch.int32, seed=1, device=device)
    b = random_matrix(9, 8, 40, second, torch.int64, seed=2, device=device)
    result = OPERATORS[symbol](a.convert("csr"), b.convert("csr"))
    assert result.dtype == torch.promote_types(first, second) and result.col_idx.dtype == torch.int64
    want = OPERATORS[symbol](dense(a.to(torch.float64)), dense(b.to(torch.float64)))
    assert_equal(result.to(torch.float64).to_dense(), want)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16], ids=str)
def test_small_integers_wrap_and_truth_values_combine(dtype):
    """As in torch. The constructors refuse them; what is made without one is computed all the same."""
    x, y = torch.tensor([0, 1, 200, 100]).to(dtype), torch.tensor([1, 1, 100, 3]).to(dtype)
    ptrs, idx = torch.tensor([0, 1, 4]), torch.tensor([1, 0, 1, 2])
    a, b = (tp.CSR(ptrs, idx, values, (2, 3)) for values in (x, y))
    for symbol in ("+", "*") if dtype == torch.bool else OPERATORS:
        assert_equal(OPERATORS[symbol](a, b).values, OPERATORS[symbol](x, y))
    if dtype == torch.bool:
        with pytest.raises(RuntimeError, match="A - B: truth values have no difference"):
            a - b


@each_device
def test_special_values(device):
    """A product reads only common positions; a sum takes what only one has as it is."""
    inf, nan = float("inf"), float("nan")
    a, b = (
        tp.csr(*(torch.tensor(x, device=device) for x in ([0, 3], *row)), (1, 5))
        for row in (([0, 1, 3], [nan, 2.0, inf]), ([1, 2, 3], [3.0, inf, inf]))
    )
    product, total, difference = a * b, a + b, a - b
    assert product.col_idx.tolist() == [1, 3] and product.values.tolist() == [6, inf]
    assert total.col_idx.tolist() == [0, 1, 2, 3] and torch.isnan(total.values[0])
    assert total.values[1:].tolist() == [5, inf, inf]
    assert difference.values[1:3].tolist() == [-1, -inf] and torch.isnan(difference.values[[0, 3]]).all()


@each_operator
@each_device
def test_very_wide_matrices(symbol, device):
    far = 1 << 40
    a = tp.csr(*(torch.tensor(x, device=device) for x in ([0, 2, 2], [7, far], [1.0, 2.0])), (2, far + 1))
    b = tp.csr(*(torch.tensor(x, device=device) for x in ([0, 1, 3], [far, 7, far], [5.0, 6.0, 7.0])), (2, far + 1))
    assert entries(OPERATORS[symbol](a, b)) == reference(symbol, a.convert("coo"), b.convert("coo"))


# ---- the kernels for CUDA, on the CPU


@each_operator
@each_index
@pytest.mark.parametrize("order, seed", ORDERS)
def test_checked(symbol, index, order, seed):
    """No race, no bad access; operands in order, one of them, or none; gradients as the CPU's kernels compute them."""

    def result_and_gradients(A, B):
        leaves = [x.values.clone().requires_grad_() for x in (A, B)]
        result = OPERATORS[symbol](*(x._replace(values=v).convert("csr") for x, v in zip((A, B), leaves, strict=True)))
        weights = torch.arange(result.values.numel(), dtype=torch.float64) % 7
        return result, torch.autograd.grad((result.values * weights).sum(), leaves)

    for rows, cols, n, m in SHAPES[:-1]:
        a, b = (random_matrix(rows, cols, k, index=index, seed=k + 1) for k in (n, m))
        for A, B in ((a, b), (a.coalesce(), b), (a.coalesce(), b.coalesce())):
            with simt.checked(order, seed):
                result, got = result_and_gradients(A, B)
            assert entries(result) == reference(symbol, a, b), f"{rows} x {cols}, {n} and {m} entries"
            assert_equal(got, result_and_gradients(A, B)[1])


@each_operator
def test_checked_tiles(symbol):
    """Several tiles of 2048 items: long, short and empty rows, common positions at their edges, rows out of order."""
    with simt.checked():
        for more in range(4):
            lengths = lengths_of("long", 40, 3000 + more), lengths_of("any", 40, 40)
            a, b = (ours(canonical(40, 6000, n, seed, 3500)) for seed, n in enumerate(lengths))
            same = a._replace(values=a.values + 1)
            rough = a._replace(col_idx=a.col_idx.flip(0))
            for x, y in ((a, b), (b, a), (a, same), (rough, b), (a, rough)):
                assert entries(OPERATORS[symbol](x, y)) == reference(symbol, x.convert("coo"), y.convert("coo"))


@each_operator
def test_checked_tiles_of_pairs(symbol):
    """The same positions but for one, at the edges of tiles and elsewhere; rows out of order in both matrices."""
    a = ours(canonical(200, 300, lengths_of("equal", 200, 27), 1, 300))
    whole = a._replace(values=a.values + 1)
    with simt.checked():
        for at in (0, 1010, 1011, 2030, a.nnz - 1):
            keep = torch.arange(a.nnz) != at
            ptrs = a.row_ptrs - (a.row_ptrs > at).to(a.row_ptrs.dtype)
            fewer = a._replace(row_ptrs=ptrs, col_idx=a.col_idx[keep], values=a.values[keep])
            swapped = a.col_idx.clone()
            swapped[at : at + 2] = swapped[at : at + 2].flip(0)
            rough = a._replace(col_idx=swapped)
            for x, y in ((a, whole), (a, fewer), (fewer, a), (rough, rough), (a, rough)):
                assert entries(OPERATORS[symbol](x, y)) == reference(symbol, x.convert("coo"), y.convert("coo"))


@each_operator
def test_checked_wrong_indices(symbol):
    good = tp.csr(*(torch.tensor(x) for x in ([0, 2, 3], [0, 1, 1], [1.0, 2.0, 3.0])), (2, 2))
    wrong = [
        (good._replace(col_idx=torch.tensor([0, far, 1])), IndexError, rf"col_idx\[1\] is {far}") for far in (-1, 2)
    ]
    for ptrs in ([0, 4, 3], [1, 2, 3], [0, 3, 2], [0, 2, 2]):
        error = IndexError if max(ptrs) > 3 else ValueError
        wrong.append((good._replace(row_ptrs=torch.tensor(ptrs)), error, r"row_ptrs\["))
    with simt.checked():
        for bad, error, message in wrong:
            for operands, name in (((bad, good), "A"), ((good, bad), "B")):
                with pytest.raises(error, match=rf"^A \{symbol} B: {name}: {message}"):
                    OPERATORS[symbol](*operands)
                with pytest.raises(error, match=rf"^values_at: {name}: {message}"):
                    torch.ops.torch_patterns_parts.values_at(*operands[0][:3], *operands[1][:2], 2, 2)


# ---- derivatives

STRUCTURES = {"any order": (15, 12), "no entry": (0, 6), "no common position": (1, 1)}


def operands(structure: str) -> tuple[tp.CSR, tp.CSR]:
    return tuple(random_matrix(4, 5, n, seed=n).convert("csr") for n in STRUCTURES[structure])


@each_operator
@pytest.mark.parametrize("structure", STRUCTURES)
def test_derivatives(symbol, structure):
    """To the second order, in both modes; and once both operands are in order."""
    a, b = operands(structure)
    for x, y in ((a, b), (a.coalesce(), b.coalesce())):
        inputs = [m.values.clone().requires_grad_() for m in (x, y)]

        def f(v, w, x=x, y=y):
            return OPERATORS[symbol](x._replace(values=v), y._replace(values=w)).values

        if f(*inputs).numel() == 0:
            continue
        assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True)


@each_operator
def test_derivatives_of_many_rows(symbol):
    """Exact, of integers: rows with the same columns, with others, and out of order."""
    a = ours(canonical(3000, 4000, lengths_of("any", 3000, 40), 1, 60), dtype=torch.float64)
    b = ours(canonical(3000, 4000, lengths_of("equal", 3000, 40), 2, 60), dtype=torch.float64)
    rough = b._replace(col_idx=b.col_idx.flip(0) // 3, row_ptrs=b.row_ptrs)
    for x, y in ((a, b), (a, a._replace(values=a.values + 1)), (a, rough), (rough, b)):
        leaves = [m.values.clone().requires_grad_() for m in (x, y)]
        result = OPERATORS[symbol](x._replace(values=leaves[0]), y._replace(values=leaves[1])).convert("coo")
        weights = (result.row_idx * 3 + result.col_idx * 5) % 11 - 5.0
        grads = torch.autograd.grad((result.values * weights).sum(), leaves)
        u, v = (m.convert("coo") for m in (x, y))
        full = [dense(m) for m in (u, v)]
        for i, (m, grad) in enumerate(zip((u, v), grads, strict=True)):
            want = (m.row_idx * 3 + m.col_idx * 5) % 11 - 5.0
            if symbol == "*":  # times what the other matrix has there
                want = want * full[1 - i][m.row_idx.long(), m.col_idx.long()]
            assert_equal(grad, -want if symbol == "-" and i == 1 else want)


@each_operator
def test_torch_func(symbol):
    a, b = operands("any order")
    u, v = (m.convert("coo") for m in (a, b))
    zeros = torch.zeros(4, 5, dtype=torch.float64)

    def by_us(x, y):
        return (OPERATORS[symbol](a._replace(values=x), b._replace(values=y)).values ** 3).sum()

    def by_torch(x, y):
        left, right = (zeros.index_put((m.row_idx, m.col_idx), z, accumulate=True) for m, z in ((u, x), (v, y)))
        return (OPERATORS[symbol](left, right) ** 3).sum()

    for transform in (torch.func.grad, torch.func.jacfwd, torch.func.jacrev, torch.func.hessian):
        got, want = (transform(f, (0, 1))(a.values, b.values) for f in (by_us, by_torch))
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@each_operator
def test_vmap_over_values(symbol):
    a, b = operands("any order")
    batch = torch.stack([a.values, 2 * a.values - 1, -a.values])

    def f(x, y=b.values):
        return OPERATORS[symbol](a._replace(values=x), b._replace(values=y)).values

    assert_equal(torch.vmap(f)(batch), torch.stack([f(x) for x in batch]))
    assert_equal(torch.vmap(f, out_dims=1)(batch), torch.stack([f(x) for x in batch], 1))
    assert torch.vmap(f)(batch[:0]).shape[0] == 0
    weigh = torch.func.grad(lambda x, y: (f(x, y) ** 2).sum(), (0, 1))
    got = torch.vmap(weigh, (0, None))(batch, b.values)
    assert_equal(got, tuple(map(torch.stack, zip(*(weigh(x, b.values) for x in batch), strict=True))))


def test_compiled():
    """The functions behind the operators; torch.compile knows no operators between named tuples."""

    def f(a, b):
        return [function(a, b).values for function in (add, subtract, multiply)]

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (20, 33):
        a, b = (random_matrix(n, n, k, seed=k).convert("csr") for k in (90, 80))
        leaves = [m.values.clone().requires_grad_() for m in (a, b)]
        outputs = [g(a._replace(values=leaves[0]), b._replace(values=leaves[1])) for g in (compiled, f)]
        for got, want in zip(*outputs, strict=True):
            assert_equal(got, want)
        grads = [torch.autograd.grad(sum((y * y).sum() for y in out), leaves) for out in outputs]
        assert_equal(grads[0], grads[1])


# ---- wrong input


@each_operator
def test_wrong_indices_name_the_operand(symbol):
    good = tp.csr(*(torch.tensor(x) for x in ([0, 2, 3], [0, 1, 1], [1.0, 2.0, 3.0])), (2, 2))

    def both(bad, error, message):
        for operands, name in (((bad, good), "A"), ((good, bad), "B")):
            with pytest.raises(error, match=rf"^A \{symbol} B: {name}{message}"):
                OPERATORS[symbol](*operands)

    for far in (7, -1, 2):
        for at in (1, 2):
            wrong = good._replace(col_idx=good.col_idx.index_fill(0, torch.tensor(at), far))
            both(wrong, IndexError, rf"'s col_idx\[{at}\] is {far}, .* expected 0 to 1")
    for ptrs, error, message in (
        ([0, 4, 3], IndexError, r"'s row_ptrs\[1\] is 4, .* expected 0 to 3"),
        ([1, 2, 3], ValueError, r"'s row_ptrs\[0\] is 1, must be 0"),
        ([0, 3, 2], ValueError, r"'s row_ptrs\[2\] is 2, less than the one before"),
        ([0, 2, 2], ValueError, r"'s row_ptrs\[2\] is 2, the last, must be 3"),
        ([0, 2, 3, 3], ValueError, ": row_ptrs has 4 elements, expected 3"),
    ):
        both(good._replace(row_ptrs=torch.tensor(ptrs)), error, message)
    both(good._replace(values=torch.ones(4)), ValueError, r": values have shape \[4\], col_idx \[3\]")
    with pytest.raises(TypeError, match=rf"A \{symbol} B: A: dtype ComplexFloat is not supported"):
        OPERATORS[symbol](good, good._replace(values=torch.ones(3, dtype=torch.complex64)))  # to which A's promote
    with pytest.raises(IndexError, match=r"coo: row_idx\[1\] is 5"):
        OPERATORS[symbol](good, tp.COO(torch.tensor([0, 5]), torch.tensor([0, 1]), torch.ones(2), (2, 2)))
    with pytest.raises(ValueError, match=rf"A \{symbol} B: shapes \(2, 2\) and \(3, 2\) differ"):
        OPERATORS[symbol](good, tp.coo(torch.tensor([0]), torch.tensor([0]), torch.ones(1), (3, 2)))


def test_wrong_columns_in_a_large_matrix():
    """Found in any share of the rows, by the vectorized check, and named."""
    a = ours(canonical(3000, 4000, lengths_of("equal", 3000, 40), 0, 40))
    for at in (0, 26, 27 * 1234 + 5, a.col_idx.numel() - 1):
        for far in (-1, 4000):
            wrong = a._replace(col_idx=a.col_idx.index_fill(0, torch.tensor(at), far))
            with pytest.raises(IndexError, match=rf"A \+ B: B's col_idx\[{at}\] is {far}, .* expected 0 to 3999"):
                a + wrong


def test_wrong_calls_of_the_operator():
    parts = torch.ops.torch_patterns_parts
    a = tp.csr(*(torch.tensor(x) for x in ([0, 2, 3], [0, 1, 1], [1.0, 2.0, 3.0])), (2, 2))
    with pytest.raises(ValueError, match="entrywise: unknown op 'divide'; choose from: add, subtract, multiply"):
        parts.entrywise("divide", *a[:3], *a[:3], 2, 2)
    with pytest.raises(TypeError, match=r"A \+ B: B: indices are Int, those of A Long"):
        parts.entrywise("add", *a[:3], a.row_ptrs.int(), a.col_idx.int(), a.values, 2, 2)
    with pytest.raises(TypeError, match=r"A \+ B: B: values are Double, those of A Float"):
        parts.entrywise("add", *a[:3], *a[:2], a.values.double(), 2, 2)
    with pytest.raises(IndexError, match=r"values_at: B's col_idx\[2\] is 9"):
        parts.values_at(*a[:3], a.row_ptrs, torch.tensor([0, 1, 9]), 2, 2)
    with pytest.raises(IndexError, match=r"values_at: A's col_idx\[0\] is -4"):
        parts.values_at(a.row_ptrs, torch.tensor([-4, 1, 1]), a.values, *a[:2], 2, 2)
