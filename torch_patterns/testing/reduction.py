"""Reduction."""

from __future__ import annotations

import math

import numpy as np
import torch

from torch_patterns.testing.compare import assert_equal, gamma
from torch_patterns.testing.spec import ALL, BITS, FLOATS, Large, Sample, Spec, around, bad, case

OPS = ("sum", "prod", "max", "min", "argmax", "argmin", "mean", "logsumexp")
MONOIDS = OPS[:6]
FLOAT_OPS = OPS[6:]
LOGICAL = ("any", "all")
BITWISE = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}
# Sections of the block algorithms and the coarsened one, the warp, the CPU's panels and chunks.
EDGES = (1, 2, 8, 9, 31, 32, 33, *around(64, 128, 256, 512, 1024, 4096))
TWO_LEVELS = 512 * 512 + 1  # three levels of 256, two of 512
CHUNK = 2**15

NUMPY = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}


# ---- references and bounds


def identity(op: str, dtype: torch.dtype) -> float | int:
    """Returns the result of a reduction over no elements."""
    if op in ("sum", "prod"):
        return int(op == "prod")
    if op in LOGICAL:
        return int(op == "all")
    if op in BITWISE:
        ones = 1 if dtype == torch.bool else torch.iinfo(dtype).max if dtype == torch.uint8 else -1
        return ones if op == "bitwise_and" else 0
    if op == "mean":
        return math.nan
    if dtype.is_floating_point:
        return math.inf if op == "min" else -math.inf
    if dtype == torch.bool:
        return op == "min"
    info = torch.iinfo(dtype)
    return info.min if op == "max" else info.max


def reduced_dims(x: torch.Tensor, dim) -> tuple[int, ...]:
    dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    return tuple(sorted(d % max(x.dim(), 1) for d in dims if x.dim()))


def reduce_reference(x, dim=None, op="sum", keepdim=False):
    """numpy over the last axis, to which the reduced ones are moved: int64 for integers, long double for floats."""
    dims = reduced_dims(x, dim)
    kept = [d for d in range(x.dim()) if d not in dims]
    floating = x.dtype.is_floating_point
    values = (x.double() if floating else x).numpy()
    n = math.prod(x.shape[d] for d in dims)
    values = values.transpose(*kept, *dims).reshape(*(x.shape[d] for d in kept), n)
    values = values.astype(np.longdouble if floating else np.int64)
    shape = [1 if d in dims else x.shape[d] for d in range(x.dim()) if keepdim or d not in dims]
    with np.errstate(all="ignore"):
        if n == 0:
            result = np.full(values.shape[:-1], identity(op, x.dtype))
        elif op == "mean":
            half = x.dtype in (torch.float16, torch.bfloat16)  # whose mean is rounded to float32 first
            result = values.sum(-1)
            result = result.astype(np.float32) / np.float32(n) if half else result / n
        elif op == "logsumexp":
            most = values.max(-1)
            shift = np.where(np.isfinite(most), most, 0)
            result = np.log(np.exp(values - shift[..., None]).sum(-1)) + shift
        elif op in LOGICAL:
            result = getattr(values != 0, op)(-1)
        elif op in BITWISE:
            result = BITWISE[op].reduce(values, axis=-1)
        else:
            result = NUMPY[op](values, axis=-1)
    result = np.ascontiguousarray(result).astype(np.float64 if floating and "arg" not in op else np.int64)
    return torch.from_numpy(result).reshape(shape)


def reduce_bound(u, x, dim=None, op="sum", keepdim=False):
    """Returns None if every order of the operations gives the same: for integers, and for operators that only compare.

    Otherwise at most n - 1 roundings affect each operand, and one the division. An exponential whose argument is
    rounded has a relative error of its distance from the maximum times u, and 4 u more; it is rescaled at most once per
    rounding.
    """
    if op in ("max", "min", "argmax", "argmin", *LOGICAL) or not x.dtype.is_floating_point:
        return None
    integers = bool((x == x.round()).all())
    if op != "logsumexp" and integers:
        return None
    n = math.prod(x.shape[d] for d in reduced_dims(x, dim))
    if op == "logsumexp":
        y = reduce_reference(x, dim, op, keepdim)
        spread = (x.double().max() - x.double().min()).item() if x.numel() else 0.0
        return gamma(6 * n + spread + 8, u) + 2 * u * (y.abs() + math.log(n + 1))
    size = reduce_reference(x.double().abs(), dim, op, keepdim)
    return gamma(n + 1, u) * size


def reduce_inputs(case, make):
    (shape,) = case.shapes
    x = make.factors(shape, zeros=0.1 / max(case.size, 1)) if case.kwargs.get("op") == "prod" else make(shape)
    return Sample((x,), dict(case.kwargs))


# ---- peers: the functions that users have today


def torch_reduce(x, dim=None, op="sum", keepdim=False):
    dims = list(reduced_dims(x, dim))
    if op in ("argmax", "argmin"):
        return getattr(torch, op)(x, None if dim is None else dims[0], keepdim)
    if op == "prod":
        return torch.prod(x) if dim is None else torch.prod(x, dims[0], keepdim) if len(dims) == 1 else NotImplemented
    call = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp}[
        op
    ]
    return call(x, dims, keepdim)


# ---- problems


def ones(*shape):
    return lambda device: (torch.ones(shape, device=device),)


def ints(*shape):
    return lambda device: (torch.ones(shape, device=device).int(),)


def opposites(n: int, op: str) -> Large:
    """Makes n ones, then n minus ones, of a dtype that cannot count to n."""

    def make():
        x = torch.ones(2 * n, dtype=torch.float16, device="cuda")
        x[n:].neg_()
        return Sample((x,), {"op": op})

    return Large(
        f"{op} of {n} ones and their opposites", n * 4 / 2**30 + 2, make, lambda _, y: assert_equal(y, torch.tensor(0))
    )


def last_of(n: int, **kwargs) -> Large:
    """Makes a single 1 at the last of n positions."""

    def make():
        x = torch.zeros(n, dtype=torch.int8, device="cuda")
        x[-1] = 1
        return Sample((x,), {"op": "argmax", **kwargs})

    return Large(f"the last of {n}", n / 2**30 + 2, make, lambda _, y: assert_equal(y, torch.tensor(n - 1)))


def many_rows(shape: tuple[int, ...], dim: int) -> Large:
    """Makes ones, so that every sum is known."""

    def check(sample, y):
        assert bool((y == shape[dim]).all())

    def make():
        return Sample((torch.ones(shape, dtype=torch.float16, device="cuda"),), {"dim": dim})

    return Large(f"{shape} along {dim}", 2 * math.prod(shape) / 2**30 + 4, make, check)


def turn(i: int) -> dict:
    return {"op": MONOIDS[i % 6]}


REDUCE = Spec(
    "reduce",
    reference=reduce_reference,
    inputs=reduce_inputs,
    bound=reduce_bound,
    exact=False,  # logsumexp; the bound says which are
    dtypes=ALL,
    samples=(
        case((5,)),
        case((3, 7, 2), dim=(1,), op="prod"),
        case((4, 6), dim=(0,), op="max", keepdim=True),
        case((2, 9), op="min"),
        case((2, 3, 4), dim=(-1, 0)),
        case((2, 3, 4), dim=(0, 1), op="prod", keepdim=True),
        case((3, 1, 4), dim=(2, 0), op="max"),
        case((3, 5), dim=(1,), op="mean", dtypes=FLOATS),
        case((4, 3), dim=(0,), op="logsumexp", dtypes=FLOATS),
        case((3, 4), op="argmax"),
        case((3, 4), dim=(1,), op="any"),
        case((3, 4), dim=(-1,), op="argmin", keepdim=True),
        case((), dim=(0,)),
    ),
    edges=(
        *(case((n,), **turn(i + j)) for j, n in enumerate(EDGES) for i in range(6)),
        *(case((n,), op=FLOAT_OPS[j % 2], dtypes=FLOATS) for j, n in enumerate(EDGES)),
        *(case((n,), op=tuple(BITWISE)[j % 3], dtypes=BITS) for j, n in enumerate(EDGES)),
        *(case((3, 515, 2), dim=(1,), op=op, dtypes=BITS) for op in BITWISE),
        *(case((700, 3), dim=(0,), op=op, dtypes=BITS) for op in BITWISE),
        *(case((5, n), dim=(1,), op=op, dtypes=ALL) for op in LOGICAL for n in (1, 2, 300)),
        case((2, TWO_LEVELS), dim=(1,), op="bitwise_xor", dtypes=(torch.int32,)),
        *(case((2, 0), dim=(1,), op=op, dtypes=BITS) for op in BITWISE),
        *(case((3, 515, 2), dim=(1,), **turn(i)) for i in range(6)),
        *(case((700, 3), dim=(0,), **turn(i)) for i in range(6)),
        *(case((5, n), dim=(1,), **turn(i)) for i, n in enumerate((2, 3, 4, 7, 16, 100, 257))),
        *(case((33, n), dim=(0,), **turn(i)) for i, n in enumerate((2, 5, 64, 65, 70, 128, 513))),
        *(case((n, 515), dim=(0,), op=op, dtypes=FLOATS) for n, op in ((9, "mean"), (17, "logsumexp"))),
        case((2, 3, 65, 5), dim=(0, 2), op="sum"),
        *(case((2, TWO_LEVELS), dim=(1,), **turn(i), dtypes=(torch.float32, torch.int32)) for i in (0, 2, 4)),
        *(case((n, 2), dim=(0,), dtypes=(torch.float32,)) for n in around(CHUNK)),
        case((4 * CHUNK + 70,), op="argmin", dtypes=(torch.float32, torch.int8)),
    ),
    empty=(
        case((0,)),
        case((3, 0), dim=(1,), op="max"),
        case((0, 4), dim=(0,), op="min"),
        case((2, 0, 3), dim=(1,), op="prod"),
        case((0, 4), dim=(1,), op="argmax"),
        case((0, 2), dim=(0,), op="mean", dtypes=FLOATS),
        case((2, 0), op="logsumexp", dtypes=FLOATS),
        case((2, 0), dim=(1,), op="all"),
    ),
    grown=(case((3, 8), dim=(1,), op="prod"), case((5, 21), dim=(1,), op="prod")),
    autocast=lambda case: None if case.kwargs.get("op", "sum").endswith(("max", "min", "any")) else "float32",
    bad=(
        bad("op", ones(3), ValueError, "reduce: unknown op 'median'.*sum, prod, max, min", op="median"),
        bad("dim", ones(3), IndexError, "reduce: .*dim 1", dim=(1,)),
        bad("twice", ones(3, 4), RuntimeError, "reduce: dim 1 appears more than once", dim=(1, -1)),
        bad("mean", ints(3), TypeError, "reduce: .*'mean'.*floating.*Int", op="mean"),
        bad("logsumexp", ints(3), TypeError, "reduce: .*'logsumexp'.*floating.*Int", op="logsumexp"),
        bad("bits", ones(3), TypeError, "reduce: .*'bitwise_or'.*integers.*Float", op="bitwise_or"),
        bad("dims", ones(3, 4), ValueError, "reduce: .*'argmax'.*one dim", dim=(0, 1), op="argmax"),
        bad("argmax", ones(0), IndexError, "reduce: .*'argmax'.*dim 0.*no elements", op="argmax"),
        bad("argmin", ones(3, 0), IndexError, "reduce: .*'argmin'.*dim 1.*no elements", dim=(1,), op="argmin"),
        bad("dtype", lambda device: (torch.ones(3, device=device).cfloat(),), TypeError, "reduce: .*Complex"),
        bad("algorithm", ones(3), ValueError, "reduce: .*'no_such'.*auto", algorithm="no_such"),
    ),
    large=(
        opposites(2**30, "sum"),
        opposites(2**31, "mean"),
        last_of(2**31 + 1),
        last_of(2**32 + 17),
        many_rows((40_000, 400, 200), 2),
        many_rows((64, 2**25 + 1), 0),
        many_rows((2**20 + 1, 2049), 1),
    ),
    sized=lambda n: case((n,)),
    named={
        "rows 4096 x 16384": case((4096, 16384), dim=(1,)),
        "columns 4096 x 16384": case((4096, 16384), dim=(0,)),
        "rows 2^20 x 32": case((2**20, 32), dim=(1,)),
        "columns 2^20 x 32": case((2**20, 32), dim=(0,)),
        "rows 2^22 x 3": case((2**22, 3), dim=(1,)),
        "columns 2^22 x 2": case((2**22, 2), dim=(0,)),
        "middle 64 x 1024 x 1024": case((64, 1024, 1024), dim=(1,)),
        "max 2^26": case((2**26,), op="max"),
        "mean 2^26": case((2**26,), op="mean"),
        "argmax 2^26": case((2**26,), op="argmax"),
        "logsumexp 2^24": case((2**24,), op="logsumexp"),
    },
    peers={"torch": torch_reduce},
    flops=lambda sample, y: sample.tensors[0].numel(),
)

SPECS = [REDUCE]
