"""Scan, linear recurrence, and scan with indices."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.testing.compare import assert_equal, gamma
from torch_patterns.testing.reduction import BITWISE, LOGICAL, identity
from torch_patterns.testing.spec import ALL, BITS, FLOATS, Large, Sample, Spec, around, bad, case

OPS = ("sum", "prod", "max", "min")
# Sections of the block algorithms, their second level, and the warp.
EDGES = (1, 2, 31, 32, 33, *around(256, 512, 1024, 2304))
TWO_LEVELS = 256 * 256 + 1  # three levels of 256, two of all others but
LARGE_SECTIONS = 2304 * 2304 + 1  # of these


def ones(*shapes):
    """device -> that many tensors of ones, for calls that must be refused."""
    return lambda device: tuple(torch.ones(shape, device=device) for shape in shapes)


# ---- scan

ACCUMULATE = {
    "sum": np.cumsum,
    "prod": np.cumprod,
    "max": np.maximum.accumulate,
    "min": np.minimum.accumulate,
    "any": lambda x, axis: np.logical_or.accumulate(x != 0, axis),
    "all": lambda x, axis: np.logical_and.accumulate(x != 0, axis),
    **{op: ufunc.accumulate for op, ufunc in BITWISE.items()},
}


def leaders(x: np.ndarray, op: str) -> np.ndarray:
    """Returns the first index along axis 0 of the running extremum; NaN is the most extreme value."""
    before = (np.maximum if op == "argmax" else np.minimum).accumulate(x)[:-1]
    after = x[1:]
    beats = after > before if op == "argmax" else after < before
    leads = beats | (np.isnan(after) & ~np.isnan(before))
    found = np.zeros(x.shape, np.int64)
    found[1:] = np.where(leads, np.arange(1, len(x)).reshape(-1, *[1] * (x.ndim - 1)), 0) if len(x) else 0
    return np.maximum.accumulate(found)


def scan_reference(x, dim=-1, op="sum", exclusive=False, reverse=False):
    """numpy's accumulate: int64 for integers, long double for floats."""
    wide = np.longdouble if x.dtype.is_floating_point else np.int64
    values = x.double().numpy() if x.dtype.is_floating_point else x.numpy()
    if values.ndim == 0:
        values, dim = values.reshape(1), 0
    values = np.moveaxis(values.astype(wide), dim, 0)
    values = values[::-1] if reverse else values
    with np.errstate(all="ignore"):
        result = leaders(values, op) if op.startswith("arg") else ACCUMULATE[op](values, axis=0)
    if op.startswith("arg") and reverse:
        result = len(values) - 1 - result
    if exclusive and len(result):
        first = np.full_like(result[:1], identity(op, x.dtype))
        result = np.concatenate([first, result[:-1]])
    result = result[::-1] if reverse else result
    result = np.moveaxis(result, 0, dim).astype(np.float64 if wide is np.longdouble else np.int64)
    return torch.from_numpy(np.ascontiguousarray(result)).reshape(x.shape)


def scan_inputs(case, make):
    (shape,) = case.shapes
    x = make.factors(shape, zeros=0.1 / max(case.size, 1)) if case.kwargs.get("op") == "prod" else make(shape)
    return Sample((x,), dict(case.kwargs))


def scan_bound(u, x, op="sum", **kwargs):
    """Element k combines k operands in some order, so at most k - 1 roundings affect each of them."""
    count = scan_reference(torch.ones_like(x, dtype=torch.float64), op="sum", **kwargs)
    size = scan_reference(x.double().abs(), op=op if op == "prod" else "sum", **kwargs)
    return gamma(count, u) * size if op in ("sum", "prod") else torch.zeros_like(size)


def flags(i: int) -> dict:
    """One of the sixteen combinations of arguments."""
    return {"op": OPS[i % 4], "exclusive": bool(i // 4 % 2), "reverse": bool(i // 8 % 2)}


def cumsum(x, dim=-1, op="sum", exclusive=False, reverse=False):
    """Calls what users have today. On CUDA, cummax and cummin also return indices and are far slower."""
    if exclusive or reverse:
        return NotImplemented
    call = {"sum": torch.cumsum, "prod": torch.cumprod, "max": torch.cummax, "min": torch.cummin}[op]
    return call(x, dim)[0] if op in ("max", "min") else call(x, dim)


def bytes_of_ones(n: int) -> Large:
    """Makes one row of n bytes: only the last result shows whether every element was counted."""

    def check(sample, y):
        for begin in range(0, n, 2**28):
            end = min(begin + 2**28, n)
            assert_equal(y[begin:end], torch.arange(begin + 1, end + 1, device=y.device), f"elements from {begin}")

    def make():
        return Sample((torch.ones(n, dtype=torch.int8, device="cuda"),), {})

    return Large(f"{n} bytes", n * 9.5 / 2**30 + 5, make, check)


def many_rows(rows: int, n: int, dim: int) -> Large:
    """Makes rows whose elements are all r mod 7, so all sums are known and exact."""

    def make():
        column = torch.arange(rows, device="cuda").remainder_(7).float()
        return Sample((column[:, None].expand(rows, n).contiguous(),), {"dim": dim})

    def check(sample, y):
        values = torch.arange(rows, device="cuda").remainder_(7)
        steps = torch.arange(1, n + 1, device="cuda")
        for begin in range(0, rows, 2**16):
            part = slice(begin, begin + 2**16)
            want = values[part, None] * steps if dim == 1 else values.cumsum(0)[part, None].expand(-1, n)
            assert_equal(y[part], want, f"rows from {begin}")

    return Large(f"{rows} rows of {n} along {dim}", rows * n * 8 / 2**30 + 8, make, check)


SCAN = Spec(
    "scan",
    reference=scan_reference,
    inputs=scan_inputs,
    bound=scan_bound,
    dtypes=ALL,
    samples=(
        case((5,)),
        case((3, 7, 2), dim=1, op="prod"),
        case((4, 6), dim=0, op="max", reverse=True),
        case((2, 9), op="min", exclusive=True),
        case((33,), op="prod", exclusive=True, reverse=True),
        case((), dim=0),
    ),
    edges=(
        *(case((n,), **flags(4 * j + i + j // 4)) for j, n in enumerate(EDGES) for i in range(4)),
        *(case((3, 515, 2), dim=1, **flags(i)) for i in range(16)),
        *(case((700, 3), dim=0, **flags(5 * i)) for i in range(4)),
        *(case((n,), op=op, exclusive=n % 2 == 0, dtypes=BITS) for op in BITWISE for n in (5, 32, 257, 2305)),
        *(case((3, 515, 2), dim=1, op=op, reverse=True, dtypes=BITS) for op in BITWISE),
        *(case((2, 77), op=op, reverse=reverse, dtypes=ALL) for op in LOGICAL for reverse in (False, True)),
        *(
            case((3, 41), op=op, reverse=reverse, dtypes=ALL)
            for op in ("argmax", "argmin")
            for reverse in (False, True)
        ),
        *(case((2, TWO_LEVELS), **flags(i), dtypes=(torch.float32, torch.int32)) for i in (0, 10)),
        case((LARGE_SECTIONS,), op="sum", exclusive=True, dtypes=(torch.float32,)),
    ),
    empty=(case((0,)), case((3, 0), dim=1, op="max"), case((0, 4), dim=1, op="min"), case((2, 0, 3), dim=0, op="prod")),
    grown=(case((3, 8), dim=1, op="prod"), case((5, 21), dim=1, op="prod")),
    autocast="float32",
    bad=(
        bad("op", ones(3), ValueError, "scan: unknown op 'median'.*sum, prod, max, min", op="median"),
        bad("dim", ones(3), IndexError, "scan: .*dim.*1", dim=1),
        bad("bits", ones(3), TypeError, "scan: .*'bitwise_xor'.*integers.*Float", op="bitwise_xor"),
        bad("no index", ones(3), ValueError, "scan: .*'argmax'.*exclusive", op="argmax", exclusive=True),
        bad("dtype", lambda device: (torch.ones(3, device=device).cfloat(),), TypeError, "scan: .*Complex"),
        bad("algorithm", ones(3), ValueError, "scan: .*'no_such'.*auto", algorithm="no_such"),
    ),
    large=(
        bytes_of_ones(2**31 - 1),
        bytes_of_ones(2**31 + 5),
        bytes_of_ones(2**32 + 17),
        many_rows(2**20 + 1, 4096, 1),
        many_rows(2**20 + 1, 4096, 0),
    ),
    sized=lambda n: case((n,)),
    named={
        "rows 4096 x 16384": case((4096, 16384), dim=1),
        "columns 4096 x 16384": case((4096, 16384), dim=0),
        "columns 2^20 x 32": case((2**20, 32), dim=0),
        "columns 2^16 x 1024": case((2**16, 1024), dim=0),
        "max 2^28": case((2**28,), op="max"),
        "exclusive 2^28": case((2**28,), exclusive=True),
        "reverse 2^28": case((2**28,), reverse=True),
    },
    peers={"torch": cumsum},
    flops=lambda sample, y: y.numel(),
)


# ---- linear recurrence


def recurrence_reference(a, b, dim=-1, initial=None, reverse=False):
    """h[t] = a[t] h[t-1] + b[t], step by step in long double."""
    a, b = np.broadcast_arrays(a.double().numpy().astype(np.longdouble), b.double().numpy().astype(np.longdouble))
    a, b = np.moveaxis(a, dim, 0), np.moveaxis(b, dim, 0)
    h = np.empty_like(b)
    start = None if initial is None else np.broadcast_to(initial.double().numpy().astype(np.longdouble), b.shape[1:])
    order = range(len(b))
    with np.errstate(all="ignore"):
        for t in reversed(order) if reverse else order:
            h[t] = b[t] if start is None else a[t] * start + b[t]
            start = h[t]
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(h, 0, dim)).astype(np.float64))


def recurrence_inputs(case, make):
    a, b, *initial = case.shapes
    kwargs = dict(case.kwargs)
    if initial:
        kwargs["initial"] = make(initial[0])
    return Sample((make.factors(a, zeros=0.02), make(b)), kwargs)


def recurrence_bound(u, a, b, initial=None, dim=-1, reverse=False):
    """A term b[j] a[j+1] ... a[t] takes t - j products and at most t sums, in any tree of compositions."""
    sizes = [None if x is None else x.double().abs() for x in (a, b, initial)]
    h = recurrence_reference(sizes[0], sizes[1], dim, sizes[2], reverse)
    count = scan_reference(torch.ones_like(h), dim=dim, reverse=reverse)
    return gamma(2 * count + 2, u) * h


RECURRENCE = Spec(
    "linear_recurrence",
    reference=recurrence_reference,
    inputs=recurrence_inputs,
    bound=recurrence_bound,
    dtypes=FLOATS,
    samples=(
        case((6,), (6,)),
        case((3, 7, 2), (3, 7, 2), (3, 2), dim=1),
        case((5, 4), (5, 4), (4,), dim=0, reverse=True),
        case((1, 8), (3, 8)),
        case((2, 1), (2, 5), (2,), reverse=True),
    ),
    edges=(
        *(case((n,), (n,), reverse=bool(j % 2)) for j, n in enumerate(EDGES)),
        *(case((2, n), (2, n), (2,), dim=1, reverse=bool(j % 2)) for j, n in enumerate(EDGES)),
        case((3, 515, 2), (3, 515, 2), (3, 2), dim=1),
        case((TWO_LEVELS,), (TWO_LEVELS,), dtypes=(torch.float32,)),
    ),
    empty=(case((0,), (0,)), case((3, 0), (3, 0), (3,)), case((0, 4), (0, 4), (0,), dim=1)),
    grown=(case((3, 8), (3, 8), (3,), dim=1), case((5, 21), (5, 21), (5,), dim=1)),
    special=(float("nan"),),  # composed maps may multiply an infinity by a 0 that the steps do not
    autocast="float32",
    bad=(
        bad("dtype", lambda d: tuple(x.int() for x in ones(3, 3)(d)), TypeError, "linear_recurrence: .*Int"),
        bad("scalars", ones((), ()), RuntimeError, "linear_recurrence: .*scalar"),
        bad("dim", ones(3, 3), IndexError, "linear_recurrence: .*dim.*2", dim=2),
        bad("shapes", ones(3, 4), RuntimeError, "linear_recurrence: .*3.*4"),
        bad("algorithm", ones(3, 3), ValueError, "linear_recurrence: .*'no_such'.*auto", algorithm="no_such"),
    ),
    sized=lambda n: case((n,), (n,)),
    flops=lambda sample, h: 2 * h.numel(),
)

# ---- scan with indices


def indices_reference(x, dim=-1, op="max", reverse=False):
    """The running extremum, and the first index that holds it."""
    values, indices = (scan_reference(x, dim, name, reverse=reverse) for name in (op, f"arg{op}"))
    return values, indices.long()


def cummax(x, dim=-1, op="max", reverse=False):
    return NotImplemented if reverse else {"max": torch.cummax, "min": torch.cummin}[op](x, dim)


WITH_INDICES = Spec(
    "scan_with_indices",
    pattern="scan",
    reference=indices_reference,
    dtypes=ALL,
    samples=(
        case((9,)),
        case((3, 7, 2), dim=1, op="min"),
        case((4, 6), dim=0, reverse=True),
        case((2, 9), op="min", reverse=True),
        case((), dim=0),
    ),
    edges=(
        *(case((n,), op=OPS[2 + n % 2], reverse=bool(n // 2 % 2)) for n in EDGES),
        *(case((3, 515, 2), dim=1, op=op, reverse=reverse) for op in ("max", "min") for reverse in (False, True)),
        case((70, 33), dim=0),
    ),
    empty=(case((0,)), case((3, 0), dim=1), case((0, 4), dim=1, op="min", reverse=True)),
    grown=(case((3, 8), dim=1), case((5, 21), dim=1)),
    autocast="float32",
    bad=(
        bad("op", ones(3), ValueError, "scan_with_indices: unknown op 'sum'.*max, min", op="sum"),
        bad("dim", ones(3), IndexError, "scan_with_indices: .*dim.*1", dim=1),
        bad(
            "dtype", lambda device: (torch.ones(3, device=device).cfloat(),), TypeError, "scan_with_indices: .*Complex"
        ),
        bad("algorithm", ones(3), ValueError, "scan.*'no_such'.*auto", algorithm="no_such"),
    ),
    sized=lambda n: case((n,)),
)

SPECS = [SCAN, RECURRENCE, WITH_INDICES]
