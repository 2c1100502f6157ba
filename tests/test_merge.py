"""What is special to merges: ties, NaN, signed zeros, extremes, skew, input that is not sorted, widths of values."""

import functools
import itertools

import numpy as np
import pytest
import torch
from common import EACH_DEVICE

from torch_patterns import co_rank, merge, merge_pairs, registry
from torch_patterns.testing import ALL, FLOATS, assert_same_bits
from torch_patterns.testing.merge import merge_reference, pairs_reference

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
INF, NAN = float("inf"), float("nan")


def algorithms(device: str, pattern: str = "merge") -> list[str]:
    return ["auto", *registry.algorithms(pattern, device)]


def indices(*sizes: int, device: str) -> list[torch.Tensor]:
    """0, 1, 2, ... laid out over several tensors."""
    return list(torch.arange(sum(sizes), device=device).split(list(sizes)))


def source(a: torch.Tensor, b: torch.Tensor, algorithm: str, **options) -> list[int]:
    """Where in [a, b] each merged element comes from."""
    va, vb = indices(len(a), len(b), device=a.device)
    return merge_pairs(a, va, b, vb, algorithm=algorithm, **options)[1].tolist()


def test_equals_of_a_come_first(device):
    for algorithm, descending, n in itertools.product(algorithms(device), (False, True), (3, 3000)):
        equal = torch.full((n,), 7, device=device)
        assert source(equal, equal[: n // 3], algorithm, descending=descending) == list(range(n + n // 3))


def test_runs_of_equals_across_every_edge(device):
    """Two keys in runs of 1000: ties lie on every multiple of every tile."""
    a = torch.arange(2).repeat_interleave(torch.tensor([5000, 3000]))
    b = torch.arange(2).repeat_interleave(torch.tensor([2000, 7000]))
    want = pairs_reference(a, *indices(8000, 9000, device="cpu")[:1], b, *indices(8000, 9000, device="cpu")[1:])[1]
    for algorithm, dtype in itertools.product(algorithms(device), (torch.bool, torch.float16, torch.int64)):
        assert source(a.to(dtype).to(device), b.to(dtype).to(device), algorithm) == want.tolist(), (algorithm, dtype)


@pytest.mark.parametrize("sizes", [(4000, 6000), (1, 9000), (9000, 1), (0, 300), (300, 0)], ids=str)
def test_one_side_before_the_other(sizes, device):
    low, high = (torch.arange(n, device=device) for n in sizes)
    for algorithm, dtype in itertools.product(algorithms(device), (torch.int32, torch.float64)):
        a, b = low.to(dtype), (high + sizes[0]).to(dtype)
        both = torch.cat([a, b])
        assert_same_bits(merge(a, b, algorithm=algorithm), both, algorithm)
        assert_same_bits(merge(b, a, algorithm=algorithm), both, algorithm)
        assert_same_bits(merge(a.flip(0), b.flip(0), descending=True, algorithm=algorithm), both.flip(0), algorithm)


def test_nan_of_either_sign_is_the_greatest(device):
    for algorithm, dtype in itertools.product(algorithms(device), FLOATS):
        a = torch.tensor([-INF, -1.0, 2.0, INF, NAN, -NAN], device=device).to(dtype)
        b = torch.tensor([-INF, 3.0, -NAN, NAN, NAN], device=device).to(dtype)
        assert source(a, b, algorithm) == [0, 6, 1, 2, 7, 3, 4, 5, 8, 9, 10], (algorithm, dtype)
        down = [x.flip(0) for x in (a, b)]
        assert source(*down, algorithm, descending=True) == [0, 1, 6, 7, 8, 2, 9, 3, 4, 5, 10], (algorithm, dtype)
        assert_same_bits(merge(a, b, algorithm=algorithm)[6:8], a[4:], algorithm)


def test_zeros_of_either_sign_are_equal_and_keep_it(device):
    for algorithm, dtype in itertools.product(algorithms(device), FLOATS):
        a, b = (torch.tensor(x, device=device, dtype=dtype) for x in ([-1.0, 0.0, -0.0], [-0.0, 0.0, 1.0]))
        assert source(a, b, algorithm) == [0, 1, 2, 3, 4, 5]
        assert merge(a, b, algorithm=algorithm).signbit().tolist() == [True, False, True, True, False, False]
        assert source(a.flip(0), b.flip(0), algorithm, descending=True) == [3, 0, 1, 4, 5, 2]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
def test_extremes_of_integers(dtype, device):
    info = torch.iinfo(getattr(torch, dtype))
    a = np.array([info.min, 0, info.max // 2, info.max], dtype)
    b = np.array([info.min, 1, info.max // 2 + 1, info.max - 1, info.max], dtype)
    want = np.sort(np.concatenate([a, b]))
    for algorithm in algorithms(device):
        x, y = (torch.from_numpy(v).to(device) for v in (a, b))
        assert (merge(x, y, validate=True, algorithm=algorithm).cpu().numpy() == want).all()
        down = (torch.from_numpy(v[::-1].copy()).to(device) for v in (a, b))
        assert (merge(*down, descending=True, validate=True, algorithm=algorithm).cpu().numpy() == want[::-1]).all()


def test_random_problems(device):
    """Of every dtype and both directions, against a stable sort: the same bits."""
    random = torch.Generator().manual_seed(4)
    for i in range(300):
        dtype, descending = ALL[i % len(ALL)], bool(i // len(ALL) % 2)
        m, n = torch.randint(0, 10 ** (1 + i % 4), (2,), generator=random).tolist()
        x = torch.randint(-3, 100, (m + n,), generator=random).to(dtype)
        a, b = (v.sort(descending=descending, stable=True)[0] for v in x.split([m, n]))
        want = merge_reference(a, b, descending).to(dtype)
        for algorithm in algorithms(device):
            got = merge(a.to(device), b.to(device), descending=descending, validate=True, algorithm=algorithm)
            assert_same_bits(got.cpu(), want, f"{algorithm} {dtype} {m} {n} {descending}")


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "complex64", "float64", "complex128"])
def test_values_of_every_width(dtype, device):
    values = torch.arange(5000, device=device).to(getattr(torch, dtype))
    a, b = torch.arange(0, 6000, 3, device=device), torch.arange(0, 6000, 2, device=device)
    for algorithm in algorithms(device):
        order = torch.tensor(source(a, b, algorithm), device=device)
        got = merge_pairs(a, values[:2000], b, values[2000:], algorithm=algorithm)[1]
        assert_same_bits(got, values[order], algorithm)


def test_input_that_is_not_sorted_stays_within_its_bounds(device):
    """Every output is an element of the input, whatever the input; gradients are the same in every run."""
    random = torch.Generator().manual_seed(6)
    for m, n in ((5, 4), (3000, 5000), (20_000, 20_000), (1, 9000)):
        a, b = (torch.randint(0, 1000, (size,), generator=random).float().to(device) for size in (m, n))
        inputs = set(a.tolist()) | set(b.tolist())
        for algorithm in algorithms(device):
            out = merge(a, b, algorithm=algorithm)
            assert set(out.tolist()) <= inputs, algorithm
            assert_same_bits(merge(a, b, algorithm=algorithm), out, algorithm)
            keys, values = merge_pairs(a, 2 * a, b, 2 * b, algorithm=algorithm)
            assert torch.equal(values, 2 * keys), algorithm
        for algorithm in algorithms(device, "co_rank"):
            got = torch.ops.torch_patterns.merge_backward(out, a, b, algorithm=algorithm)
            assert set(torch.cat(got).tolist()) <= inputs, algorithm
            assert_same_bits(torch.ops.torch_patterns.merge_backward(out, a, b, algorithm=algorithm), got)
            k = torch.arange(m + n + 1, device=device)
            ranks = co_rank(k, a, b, algorithm=algorithm)
            assert ((0 <= ranks) & (ranks <= m) & (ranks <= k) & (k - ranks <= n)).all(), algorithm


def test_validate_names_the_first_bad_element(device):
    a = torch.arange(10_000, device=device)
    a[7777], a[8888] = 3, 2
    with pytest.raises(ValueError, match=r"merge: b is not sorted ascending: b\[7777\] is 3, after 7776"):
        merge(a[:7777], a, validate=True)
    x = torch.tensor([NAN, 0.5, NAN], device=device)
    with pytest.raises(
        ValueError, match=r"merge_pairs: keys_a is not sorted descending: keys_a\[2\] is nan, after 0.5"
    ):
        merge_pairs(x, x, x[:1], x[:1], validate=True, descending=True)
    rows = torch.tensor([[3, 4], [1, 2]], device=device)  # ascending in every row
    assert merge(rows, rows, validate=True).tolist() == [[3, 3, 4, 4], [1, 1, 2, 2]]


def test_one_storage_twice(device):
    x = torch.arange(3000, device=device)
    for algorithm in algorithms(device):
        assert_same_bits(merge(x, x, algorithm=algorithm), x.repeat_interleave(2), algorithm)
        assert_same_bits(merge(x[:2000], x[1000:], algorithm=algorithm), torch.cat([x[:2000], x[1000:]]).sort()[0])


def test_co_ranks_of_the_book(device):
    """Figs. 12.3 to 12.8; and what a merge takes from a, at every rank."""
    a, b = (torch.tensor(x, device=device) for x in ([1, 7, 8, 9, 10], [7, 10, 10, 12]))
    assert [co_rank(k, a, b).item() for k in range(10)] == [0, 1, 2, 2, 3, 4, 5, 5, 5, 5]
    assert co_rank(3, a, b).dtype == torch.int64 and co_rank(3, a, b).shape == ()
    k = torch.tensor([[3, 6], [9, 0]], dtype=torch.int32, device=device)
    assert co_rank(k, a, b).tolist() == [[2, 5], [5, 0]]
    assert co_rank(4, a.expand(2, 5), b.expand(2, 4)).tolist() == [3, 3]
    assert co_rank(k, a.expand(2, 5), b.expand(2, 4)).tolist() == [[2, 5], [5, 0]]
    assert co_rank(2, b.flip(0), a.flip(0), descending=True).item() == 2


def test_many_ranks_in_any_order(device):
    """More ranks than a block takes at once, of keys that are sorted and of keys that are not."""
    torch.manual_seed(4)
    for m, n in ((70_000, 3), (5000, 90_000), (900, 900)):
        a, b = (torch.randint(0, 5000, (size,), device=device).sort()[0] for size in (m, n))
        k = torch.randint(0, m + n + 1, (2**17 + 4321,), device=device)
        for x, y in ((a, b), (a.flip(0), b)):
            each = co_rank(
                torch.arange(m + n + 1, device=device), x, y, algorithm="sequential" if device == "cpu" else "auto"
            )
            for ranks in (k, k.sort()[0], k[:99].sort()[0]):
                assert torch.equal(co_rank(ranks, x, y), each[ranks])
    rows_a, rows_b = (torch.randint(0, 50, (3, size), device=device).sort(1)[0] for size in (4000, 3000))
    k = torch.randint(0, 7001, (3, 5000), device=device)
    want = torch.stack([co_rank(*row) for row in zip(k, rows_a, rows_b, strict=True)])
    assert torch.equal(co_rank(k, rows_a, rows_b), want)


def test_ranks_out_of_range(device):
    a, b = torch.arange(5, device=device), torch.arange(4, device=device)
    for k in (-1, 10):
        with pytest.raises(IndexError, match=rf"co_rank: k is {k}, expected 0 to 9"):
            co_rank(k, a, b)
    for wrong in (1.0, None, True, np.array([1, 2])):
        with pytest.raises(TypeError, match="co_rank: k must be an integer"):
            co_rank(wrong, a, b)
    with pytest.raises(TypeError, match="co_rank: b must be a tensor, got list"):
        co_rank(1, a, [2, 3])
    k = torch.tensor([3, -2, 12], device=device)
    if device == "cpu":
        with pytest.raises(IndexError, match=r"co_rank: k\[1\] is -2, expected 0 to 9"):
            co_rank(k, a, b)
    else:
        assert co_rank(k, a, b).tolist() == [2, 0, 5]


def test_gradients_follow_the_permutation(device):
    a = torch.tensor([1.0, 3.0, 3.0], device=device, requires_grad=True)
    b = torch.tensor([2.0, 3.0], device=device, requires_grad=True)
    weights = torch.tensor([1.0, 10.0, 100.0, 1000.0, 10000.0], device=device)
    for algorithm in algorithms(device):
        grads = torch.autograd.grad(merge(a, b, algorithm=algorithm), (a, b), weights)
        assert [g.tolist() for g in grads] == [[1, 100, 1000], [10, 10000]]
        va, vb = a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
        keys, values = merge_pairs(a.detach(), va, b.detach(), vb, algorithm=algorithm)
        assert not keys.requires_grad
        grads = torch.autograd.grad(values, (va, vb), weights)
        assert [g.tolist() for g in grads] == [[1, 100, 1000], [10, 10000]]
    complex_values = torch.ones(3, dtype=torch.complex64, device=device, requires_grad=True)
    merge_pairs(a, complex_values, b, complex_values[:2])[1].abs().sum().backward()
    assert complex_values.grad.real.tolist() == [2, 2, 1]


def test_tangents_follow_the_permutation(device):
    a, b = torch.tensor([1.0, 3.0, 3.0], device=device), torch.tensor([2.0, 3.0], device=device)
    ta, tb = torch.tensor([1.0, 2.0, 3.0], device=device), torch.tensor([4.0, 5.0], device=device)
    za, zb = torch.complex(ta, -ta), torch.complex(tb, tb)
    for algorithm in algorithms(device):
        f = functools.partial(merge, algorithm=algorithm)
        assert torch.func.jvp(f, (a, b), (ta, tb))[1].tolist() == [1, 4, 2, 3, 5]
        assert torch.func.jvp(lambda a: f(a, b), (a,), (ta,))[1].tolist() == [1, 0, 2, 3, 0]  # noqa: B023
        values = lambda x, y: merge_pairs(a, x, b, y, algorithm=algorithm)[1]  # noqa: B023, E731
        assert_same_bits(
            torch.func.jvp(values, (za, zb), (zb[:1].expand(3), za[:2]))[1], values(zb[:1].expand(3), za[:2])
        )
        got = torch.func.grad(lambda z: (values(z, zb).real * torch.arange(5, device=device)).sum())(za)  # noqa: B023
        assert got.tolist() == [0, 2, 3]
