"""Histograms."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.testing.compare import assert_equal
from torch_patterns.testing.spec import ALL, FLOATS, INTEGERS, Large, Sample, Spec, around, bad, case

# Blocks, vectors and rounds of loads; the window of the bins in shared memory, and all of it.
EDGES = (1, 2, 3, 15, 16, 17, 31, 32, 33, *around(256, 512, 4096))
BINS = (1, 2, 255, 256, 257, 3000, *around(8192, 12288), 30000)


def edges_of(bins: int, low: float, high: float) -> np.ndarray:
    """The edges as documented, each operation rounded to float64."""
    return np.float64(low) + np.arange(bins + 1, dtype=np.float64) * (np.float64(high) - np.float64(low)) / bins


def reference(x, bins, min=None, max=None):
    """Finds the bins by bisection of the list of edges."""
    uniform = x.dtype.is_floating_point or min is not None or max is not None
    values = (x.double() if x.dtype.is_floating_point else x.long()).flatten().numpy()
    if not uniform:
        return torch.from_numpy(np.bincount(values[(values >= 0) & (values < bins)], minlength=bins))
    values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    low = finite.min(initial=np.inf) if min is None else min
    high = finite.max(initial=-np.inf) if max is None else max
    if low > high:
        return torch.zeros(bins, dtype=torch.int64)
    if low == high:
        low, high = low - 1, high + 1
    edges, inside = edges_of(bins, low, high), values[(values >= low) & (values <= high)]
    found = np.searchsorted(edges[:-1], inside, side="right") - 1
    return torch.from_numpy(np.bincount(found, minlength=bins))


def inputs(case, make):
    """Integers around the bins, some beyond; floats as they come."""
    (shape,) = case.shapes
    if make.dtype in INTEGERS:
        info, bins = torch.iinfo(make.dtype), case.kwargs["bins"]
        low, high = max(info.min, -2), min(info.max, bins + 1)
        return Sample((torch.randint(low, high + 1, shape, generator=make.random).to(make.dtype),), dict(case.kwargs))
    return Sample((make(shape),), dict(case.kwargs))


def today(x, bins, min=None, max=None):
    if x.is_floating_point():
        return torch.histc(x, bins, min or 0, max or 0)
    return torch.bincount(x.flatten(), minlength=bins) if min is None and max is None else NotImplemented


def bytes_of_all_values(n: int) -> Large:
    """Makes n bytes that count up from 0 to 255 repeatedly."""

    def make():
        x = torch.arange(256, device="cuda").to(torch.uint8).repeat(n // 256 + 1)[:n]
        return Sample((x,), {"bins": 256})

    def check(sample, counts):
        want = torch.full((256,), n // 256, device="cuda")
        want[: n % 256] += 1
        assert_equal(counts, want)

    return Large(f"{n} bytes", 3 * n / 2**30, make, check)


def x_of(*values, dtype=torch.float32):
    return lambda device: (torch.tensor(values, dtype=dtype, device=device),)


NAN, INF = float("nan"), float("inf")

SPECS = [
    Spec(
        "histogram",
        reference=reference,
        inputs=inputs,
        dtypes=ALL,
        samples=(
            case((9,), bins=4, min=-8.0, max=8.0),
            case((3, 7), bins=5),
            case((40,), bins=16, min=-4, max=4),
            case((2, 3, 4), bins=3, min=0.5),
            case((33,), bins=7, max=2.25),
            case((), bins=2),
            case((6,), bins=3, min=1, max=1),
        ),
        edges=(
            *(case((n,), bins=256, min=-3.0, max=3.5) for n in EDGES),
            *(case((n,), bins=7) for n in EDGES),
            *(case((1000,), bins=b, min=-2, max=2.0) for b in BINS),
            *(case((1000,), bins=b) for b in BINS),
            case((70_001,), bins=100, min=-1, max=1),
            case((3 * 2**19 + 5,), bins=100, dtypes=(torch.uint8, torch.float32)),
        ),
        empty=(case((0,), bins=3), case((2, 0), bins=4, min=0, max=1), case((0,), bins=2, min=1)),
        grown=(case((3, 8), bins=6, min=-4, max=4), case((5, 21), bins=6, min=-4, max=4)),
        differentiable=False,
        bad=(
            bad("no bins", x_of(1.0), ValueError, "histogram: bins must be positive, got 0", bins=0),
            bad("bins", x_of(1.0), ValueError, "histogram: bins must be positive, got -3", bins=-3),
            bad("range", x_of(1.0), ValueError, "histogram: min 2 is greater than max 1", bins=3, min=2, max=1),
            bad("nan", x_of(1.0), ValueError, "histogram: min must be finite, got nan", bins=3, min=NAN, max=1.0),
            bad("inf", x_of(1.0), ValueError, "histogram: max must be finite, got inf", bins=3, max=INF),
            bad("dtype", x_of(1.0, dtype=torch.cfloat), TypeError, "histogram: .*Complex", bins=3),
            bad("algorithm", x_of(1.0), ValueError, "histogram: .*'no_such'.*auto", bins=3, algorithm="no_such"),
        ),
        large=(bytes_of_all_values(2**31 + 5), bytes_of_all_values(2**32 + 17)),
        sized=lambda n: case((n,), bins=256, min=-8, max=8),
        named={
            "256 bins 2^26": case((2**26,), bins=256, min=-8, max=8),
            "256 bins of the data's range 2^26": case((2**26,), bins=256, dtypes=FLOATS),
            "10^6 bins 2^26": case((2**26,), bins=10**6, min=-8, max=8),
            "256 numbers 2^28": case((2**28,), bins=256, dtypes=INTEGERS),
        },
        peers={"torch": today},
    )
]
