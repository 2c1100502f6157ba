"""What is special to histograms: edges to the bit, ranges from the data, integers, many bins, full bins."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from common import EACH_DEVICE

from torch_patterns import histogram, registry
from torch_patterns.testing import ALL, FLOATS, INTEGERS, assert_equal
from torch_patterns.testing.histogram import edges_of, reference

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
INF, NAN = float("inf"), float("nan")


def algorithms(device: str) -> list[str]:
    return ["auto", *registry.algorithms("histogram", device)]


def check(x: torch.Tensor, device: str, **kwargs) -> None:
    want = reference(x, **kwargs)
    for algorithm in algorithms(device):
        assert_equal(histogram(x.to(device), algorithm=algorithm, **kwargs), want, f"{algorithm} {kwargs}")


def neighbours(x: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Each value as near as the dtype has it, and the next ones on either side."""
    near = torch.from_numpy(x).to(dtype)
    up, down = (torch.nextafter(near, torch.full_like(near, end)) for end in (INF, -INF))
    return torch.cat([down, near, up])


RANGES = [
    (10, 0.0, 1.0),
    (7, -3.25, 11.0),
    (1000, 1e-3, 1e3),
    (49, 0.0, 49.0),
    (256, 1e6, 1e6 + 1),  # edges nearer to each other than floats are
    (5, -1e-40, 1e-40),
    (3, -3e38, 3e38),
    (100_000, 0.0, 1e-3),
]


@pytest.mark.parametrize("bins, low, high", RANGES)
def test_edges(bins, low, high, device):
    """An element on an edge falls in the bin above it, and its neighbours where they belong."""
    edges = edges_of(bins, low, high)[:: max(bins // 500, 1)]
    for dtype in (torch.float32, torch.float64):
        check(neighbours(edges, dtype), device, bins=bins, min=low, max=high)


DOUBLES = [
    (10, -1.7e308, 1.7e308),
    (4, 5e-324, 4e-323),
    (3, 1.0, 1.0 + 2**-50),
    (2, 0.0, 1e-323),
    (10**6, 1e15, 1e15 + 1),
]


@pytest.mark.parametrize("bins, low, high", DOUBLES)
def test_extreme_ranges(bins, low, high, device):
    """Where products overflow, or edges fall together: each element is counted once."""
    exact = [Fraction(low) + (Fraction(high) - Fraction(low)) * i / bins for i in range(min(bins, 100) + 1)]
    x = torch.tensor([low, high, *map(float, exact[1:-1]), low / 2 + high / 2], dtype=torch.float64)
    inside = x[(x >= low) & (x <= high)]
    for algorithm in algorithms(device):
        counts = histogram(x.to(device), bins, min=low, max=high, algorithm=algorithm)
        assert counts.sum() == len(inside), algorithm
        assert counts[-1] >= 1, algorithm
    if high - low < 1e300:  # else the reference overflows
        check(inside, device, bins=bins, min=low, max=high)


def test_agrees_with_exact_arithmetic(device):
    """For ranges whose edges float64 holds, the bin is floor((x - min) * bins / (max - min)), exactly."""
    x = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    for bins, low, high in ((64, -4, 4), (96, -3, 3), (1, -1, 1)):
        bin_of = [(Fraction(v) - low) * bins / (high - low) for v in x.tolist() if low <= v <= high]
        want = torch.bincount(torch.tensor([min(int(p), bins - 1) for p in bin_of]), minlength=bins)
        for algorithm, dtype in itertools.product(algorithms(device), (torch.float32, torch.float64)):
            assert_equal(histogram(x.to(device, dtype), bins, min=low, max=high, algorithm=algorithm), want, algorithm)


def test_what_is_not_counted(device):
    x = torch.tensor([NAN, -NAN, INF, -INF, -0.1, 0.0, -0.0, 1.0, 1.1, 0.5], device=device)
    for algorithm, dtype in itertools.product(algorithms(device), FLOATS):
        assert histogram(x.to(dtype), 2, min=0, max=1, algorithm=algorithm).tolist() == [2, 2]


def test_the_range_of_the_data(device):
    """Of its finite elements; both ends, or the one that is not given."""
    x = torch.tensor([NAN, INF, 1.0, 2.0, 5.0, -INF, 3.0], device=device)
    empty = torch.tensor([NAN, INF], device=device)
    for algorithm, dtype in itertools.product(algorithms(device), FLOATS):
        count = lambda x, *args, **kwargs: histogram(  # noqa: E731
            x.to(dtype),  # noqa: B023
            *args,
            algorithm=algorithm,  # noqa: B023
            **kwargs,
        ).tolist()
        assert count(x, 4) == [1, 1, 1, 1]
        assert count(x, 2, min=2) == [2, 1]
        assert count(x, 2, max=3) == [1, 2]
        assert count(x, 3, min=6) == [0, 0, 0]
        assert count(empty, 3) == [0, 0, 0]
        assert count(x[2:3], 4) == [0, 0, 1, 0]  # [0, 2]
    noise = torch.randn(100_000, generator=torch.Generator().manual_seed(2))
    check(noise, device, bins=77)


def test_integers(device):
    """By their own numbers; with a range, as np.histogram has it."""
    for dtype in INTEGERS:
        x = torch.tensor([0, 1, 1, 3, 100, 127], dtype=dtype)
        check(x, device, bins=4)
        check(x, device, bins=128)
        check(x, device, bins=10, min=0, max=100)
        check(x, device, bins=5, min=1)
    x = torch.tensor([-1, 0, 2**31, 2**40, -(2**63), 2**63 - 1, 1])
    check(x, device, bins=2)
    check(torch.tensor([True, False, True]), device, bins=2)
    assert histogram(torch.tensor([True, False, True], device=device), 1).tolist() == [1]


def test_matches_torch(device):
    x = torch.randint(-50, 50, (10_000,), generator=torch.Generator().manual_seed(3)).float() / 4
    for bins in (10, 100):
        assert_equal(histogram(x.to(device), bins, min=-10, max=10), torch.histc(x, bins, -10, 10).long())
        assert_equal(histogram(x.to(device), bins), torch.histc(x, bins).long())
        assert_equal(histogram(torch.ones(5, device=device), bins), torch.histc(torch.ones(5), bins).long())
    y = torch.randint(0, 300, (10_000,), generator=torch.Generator().manual_seed(4))
    assert_equal(histogram(y.to(device), 300), torch.bincount(y, minlength=300))


def test_full_bins(device):
    """One bin that takes all, or nearly all; few bins and many."""
    x = torch.full((300_007,), 3, dtype=torch.uint8)
    x[::1001] = 200
    for bins in (201, 70_000):
        check(x, device, bins=bins)
        check(x.float(), device, bins=bins, min=0, max=bins)


def test_every_dtype_gives_int64(device):
    for dtype in ALL:
        counts = histogram(torch.ones(2, 3, dtype=dtype, device=device), 3)
        assert counts.dtype == torch.int64 and counts.shape == (3,) and not counts.requires_grad
    x = torch.ones(3, device=device, requires_grad=True)
    assert not histogram(x, 3).requires_grad


@pytest.mark.parametrize("bins", [20_001, 70_000, 240_000], ids=str)
def test_many_elements_in_many_bins(bins, device):
    """A device counts them in shared memory, by counters that one full bin overflows again and again."""
    n = 70 * bins
    x = torch.randint(-5, bins + 5, (n,), dtype=torch.int32)
    x[: n // 2] = bins - 1
    for part in (x, x[3:]):
        want = torch.bincount(part[(part >= 0) & (part < bins)], minlength=bins)
        assert_equal(histogram(part.to(device), bins), want, str(bins))
        uniform = histogram(part.to(device).float(), bins, min=0, max=bins).cpu()
        assert_equal(uniform[:-1], want[:-1], f"uniform {bins}")  # the last one includes max
