"""Segmented reduction and expansion, and the offsets that the other operators on segments take, too."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from torch_patterns.testing.compare import assert_equal, gamma
from torch_patterns.testing.reduction import BITWISE, LOGICAL, identity
from torch_patterns.testing.scan import OPS
from torch_patterns.testing.spec import ALL, BITS, FLOATS, Large, Sample, Spec, around, bad, case

# Warps, blocks and sections; the lanes of the host's vectors; the items of its shares.
EDGES = (1, 2, 7, 8, 9, 31, 32, 33, *around(256, 1152, 2304))
SHARE = 1 << 14

# ---- segments


def power_law(n: int, random: torch.Generator) -> torch.Tensor:
    lengths = (1 - torch.rand(n // 4 + 1, generator=random, dtype=torch.float64)).pow(-0.875).long()  # 7.5 on average
    ends = lengths.cumsum(0)
    return ends[ends < n]


# The offsets of segments, by n, the number of segments (if it can be chosen), and a generator of random numbers.
BORDERS = {
    "ragged": lambda n, segments, random: torch.randint(0, n + 1, (segments - 1,), generator=random).sort()[0],
    "of 1": lambda n, segments, random: torch.arange(1, n),
    "of 16": lambda n, segments, random: torch.arange(16, n, 16),
    "of 256": lambda n, segments, random: torch.arange(256, n, 256),
    "power law": lambda n, segments, random: power_law(n, random),
    "one half": lambda n, segments, random: torch.arange(n // 2, n, 8),
    "of 0, 1, 2, ...": lambda n, segments, random: torch.arange(segments - 1).cumsum(0),
    "all in one": lambda n, segments, random: n * (torch.arange(segments - 1) >= segments // 2),
}


def make_offsets(lengths: str, n: int, segments: int, random: torch.Generator) -> torch.Tensor:
    """int64 offsets of n rows."""
    if segments == 0:
        return torch.zeros(1, dtype=torch.int64)
    borders = BORDERS[lengths](n, segments, random).clamp(max=n)
    return torch.cat([torch.tensor([0]), borders, torch.tensor([n])])


def segments_of(case, make, n: int) -> tuple[torch.Tensor, dict]:
    """Returns the offsets of a case, whose last shape is [segments + 1], and the operator's arguments."""
    kwargs = dict(case.kwargs)
    lengths, dtype = kwargs.pop("lengths", "ragged"), kwargs.pop("index", torch.int64)
    return make_offsets(lengths, n, case.shapes[-1][0] - 1, make.random).to(dtype), kwargs


def inputs(case, make):
    shape = case.shapes[0]
    offsets, kwargs = segments_of(case, make, shape[0])
    x = make.factors(shape, zeros=0.1 / max(case.size, 1)) if kwargs.get("op") == "prod" else make(shape)
    return Sample((x, offsets), kwargs)


def wide(x: torch.Tensor) -> np.ndarray:
    """Long double for floats, int64 for integers."""
    return x.double().numpy().astype(np.longdouble) if x.dtype.is_floating_point else x.numpy().astype(np.int64)


def given_back(result: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(result.astype(np.float64 if result.dtype == np.longdouble else np.int64))


def pairs(offsets: torch.Tensor):
    """(segment, begin, end), one after another."""
    o = offsets.tolist()
    return zip(range(len(o) - 1), o[:-1], o[1:], strict=True)


# ---- calls that must be refused: `args(x, offsets)` makes the operator's arguments from rows x and offsets


def rows(args, n: int, offsets, index=torch.int64, dtype=torch.float32):
    return lambda device: args(torch.ones(n, dtype=dtype, device=device), torch.tensor(offsets, dtype=index).to(device))


def bad_tensors(name: str, args):
    for what, offsets, index, error, message in (
        ("no offsets", (), torch.int64, ValueError, r"offsets.*\[0\]"),
        ("matrix", ((0, 3),), torch.int64, ValueError, r"offsets.*\[1, 2\]"),
        ("float offsets", (0, 3), torch.float32, TypeError, "offsets.*Float"),
        ("small offsets", (0, 3), torch.int16, TypeError, "offsets.*Short"),
    ):
        yield bad(what, rows(args, 3, offsets, index), error, f"{name}: {message}")
    yield bad("dtype", rows(args, 3, (0, 3), dtype=torch.complex64), TypeError, f"{name}: .*Complex")
    yield bad(
        "scalar", lambda d: args(torch.ones((), device=d), torch.tensor([0], device=d)), ValueError, f"{name}: .*scalar"
    )
    yield bad("algorithm", rows(args, 3, (0, 3)), ValueError, f"{name}: .*'no_such'.*auto", algorithm="no_such")


def bad_offsets(name: str, args):
    """Returns invalid offsets of 7 rows, which every device must refuse under `validate`."""
    for what, offsets, error, message in (
        ("begin", (5, 7), ValueError, r"offsets\[0\] is 5"),
        ("end", (0, 5), ValueError, r"offsets\[1\].*is 5.*7"),
        ("decreasing", (0, 5, 3, 7), ValueError, r"offsets\[2\] is 3.*offsets\[1\].*5"),
        ("negative", (0, -1, 7), IndexError, r"offsets\[1\] is -1"),
        ("beyond", (0, 8, 7), IndexError, r"offsets\[1\] is 8.*7"),
        ("far beyond", (0, 2**31 - 1), IndexError, r"offsets\[1\] is 2147483647.*7"),
        ("no segment", (0,), ValueError, r"offsets\[0\].*is 0.*7"),
    ):
        for index in (torch.int32, torch.int64):
            make = rows(args, 7, offsets, index)
            yield bad(f"{what} {index}", make, error, f"{name}: {message}", validate=True)


# ---- segment_reduce


def reduce_reference(values, offsets, op="sum"):
    """Reduces each segment by numpy, in int64 or long double."""
    x = wide(values)
    result = np.zeros((len(offsets) - 1, *values.shape[1:]), np.int64 if op.startswith("arg") else x.dtype)
    with np.errstate(all="ignore"):
        for s, begin, end in pairs(offsets):
            result[s] = reduced(x[begin:end], op, values.dtype)
            if op.startswith("arg") and begin < end:
                result[s] += begin
    return given_back(result)


EMPTY = {"mean": 0, "argmax": -1, "argmin": -1, "logsumexp": -np.inf, "var": np.nan, "std": np.nan}


def reduced(x: np.ndarray, op: str, dtype: torch.dtype) -> np.ndarray:
    """The rows of one segment or group, combined by numpy."""
    if len(x) == 0:
        return EMPTY[op] if op in EMPTY else identity(op, dtype)
    if op == "logsumexp":
        most = x.max(0)
        shift = np.where(np.isfinite(most), most, 0)
        return np.log(np.exp(x - shift).sum(0)) + shift
    if op in ("var", "std"):
        return getattr(np, op)(x, axis=0, ddof=1) if len(x) > 1 else np.nan
    if op in LOGICAL:
        return getattr(x != 0, op)(0)
    return BITWISE[op].reduce(x, axis=0) if op in BITWISE else getattr(np, op)(x, axis=0)


def reduce_bound(u, values, offsets, op="sum"):
    """In a segment of k rows at most k - 1 roundings affect each row; a mean has one more."""
    if op in ("max", "min", "argmax", "argmin", *LOGICAL, *BITWISE):
        return None
    return rounding(u, values, offsets, op, reduce_reference)


def rounding(u, values, offsets, op, reduce_reference):
    """Returns None for integers, which are exact. The distance from a mean has the mean's rounding error, and is
    squared; a square root halves the relative error of a variance, but loses half the digits of a small one."""
    integers = bool((values == values.round()).all())
    if op in ("var", "std"):
        lengths = max(int(offsets.diff().max()), 2) if len(offsets) > 1 else 2
        most = values.double().abs().max().item() if values.numel() else 0.0
        variance = reduce_reference(values, offsets, "var").double()
        error = 16 * gamma(lengths + 3, u) * (variance + gamma(lengths, u) * most**2) + (gamma(lengths, u) * most) ** 2
        return error if op == "var" else torch.minimum(error.sqrt(), error / variance.sqrt()).nan_to_num(0)
    if op == "logsumexp":
        y = reduce_reference(values, offsets, op)
        lengths = offsets.diff().double().reshape(-1, *(1,) * (values.dim() - 1))
        spread = (values.double().max() - values.double().min()).item() if values.numel() else 0.0
        return (gamma(6 * lengths + spread + 8, u) + 2 * u * (y.abs() + (lengths + 1).log())).nan_to_num(0, 0, 0)
    if integers:
        return None
    size = reduce_reference(values.double().abs(), offsets, op if op in OPS else "sum")
    lengths = offsets.diff().double().reshape(-1, *(1,) * (values.dim() - 1))
    if op == "mean":
        return gamma(lengths, u) * size / lengths.clamp(min=1)
    return gamma(lengths, u) * size if op in ("sum", "prod") else torch.zeros_like(size)


_ids = WeakTensorKeyDictionary()


def ids_of(offsets):
    """Returns the segment of each row, which users of index_add have; it is made once."""
    if offsets not in _ids:
        _ids[offsets] = torch.arange(len(offsets) - 1, device=offsets.device).repeat_interleave(offsets.diff())
    return _ids[offsets]


def torch_segment_reduce(values, offsets, op="sum"):
    if not values.is_floating_point() or op.startswith("arg"):
        return NotImplemented
    return torch.segment_reduce(values, op, offsets=offsets, axis=0, unsafe=True)


def index_add(values, offsets, op="sum"):
    if not values.is_floating_point() or op != "sum":
        return NotImplemented
    return values.new_zeros(len(offsets) - 1, *values.shape[1:]).index_add(0, ids_of(offsets), values)


def bytes_in_three(n: int) -> Large:
    """Makes ones: segments of 5 up to 2^31, then one of the rest, so that the last boundary is 2^31."""

    def make():
        offsets = torch.tensor([0, 5, 2**31, n], device="cuda")
        return Sample((torch.ones(n, dtype=torch.uint8, device="cuda"), offsets), {})

    return Large(f"{n} bytes", 4, make, lambda sample, y: assert_equal(y, torch.tensor([5, 2**31 - 5, n - 2**31])))


SIZES = {  # benchmark: problems of about n rows
    f"{n} {what}": case((2**p,), (2 ** (p - 4) + 1,), lengths=lengths)
    for n, p in (("2^26", 26), ("2^24", 24))
    for what, lengths in (
        ("in segments of 16", "of 16"),
        ("of 256", "of 256"),
        ("power law", "power law"),
        ("one half", "one half"),
    )
}

REDUCE = Spec(
    "segment_reduce",
    reference=reduce_reference,
    inputs=inputs,
    bound=reduce_bound,
    exact=False,  # logsumexp, var and std; the bound says which are
    dtypes=ALL,
    samples=(
        case((7,), (4,)),
        case((9, 3), (6,), op="prod", index=torch.int32),
        case((8, 2, 2), (5,), op="max"),
        case((11,), (8,), op="min"),
        case((11, 2), (4,), op="logsumexp", dtypes=FLOATS),
    ),
    edges=(
        case((9, 2), (6,), op="mean", dtypes=FLOATS),
        case((12,), (2,), op="var", lengths="one half", dtypes=FLOATS),
        case((12, 2), (2,), op="std", lengths="one half", dtypes=FLOATS),
        *(case((n, 2), (5,), op=op, dtypes=FLOATS) for op in ("logsumexp", "var", "std") for n in (9, 300)),
        case((2304 * 2,), (2,), op="logsumexp", lengths="of 16", dtypes=FLOATS),
        case((2304 * 2,), (2,), op="logsumexp", lengths="one half", dtypes=FLOATS),
        case((3 * SHARE,), (3,), op="logsumexp", dtypes=(torch.float32,)),
        *(case((300, 2), (40,), op=op, dtypes=ALL) for op in LOGICAL),
        *(case((n,), (40,), op=op, dtypes=BITS) for op in BITWISE for n in (33, 2304)),
        *(case((300, 3), (9,), op=op, dtypes=BITS) for op in BITWISE),
        *(case((n,), (i % 5 + 2,), op=OPS[i % 4]) for i, n in enumerate(EDGES)),
        *(case((600, width), (9,), op=OPS[i % 4], index=torch.int32) for i, width in enumerate((3, 32, 33, 128))),
        # dtypes: cases without gradients are excluded where the gradients of all cases are tested
        *(case((40, 3), (7,), op=op, dtypes=ALL) for op in ("argmax", "argmin")),
        *(case((300,), (n,), op=op, dtypes=ALL) for op in ("argmax", "argmin") for n in (2, 40)),
        *(case((257 * 129,), (259,), lengths="of 0, 1, 2, ...", op=op) for op in OPS),
        *(
            case((2000,), (2,), lengths=lengths, op=op, dtypes=ALL)
            for op in ("sum", "argmax")
            for lengths in ("power law", "one half")
        ),
        case((2000, 5), (2,), lengths="one half", op="mean", dtypes=FLOATS),
        *(case((n,), (1000,), lengths="all in one", op=OPS[i % 4]) for i, n in enumerate((1, *around(SHARE - 1000)))),
        case((100, 1000), (4,), op="min"),
        case((3 * SHARE,), (3,), dtypes=(torch.float32, torch.int32)),
        case((3 * SHARE,), (3,), op="argmin", dtypes=(torch.float32, torch.int32)),
        case((2, 65_537), (3,), dtypes=(torch.float32, torch.int32)),
        case((70_000,), (65_538,), dtypes=(torch.float32,)),
    ),
    empty=(
        case((0,), (1,)),
        case((0, 3), (4,), op="max"),
        case((4, 0), (3,), op="min"),
        case((0,), (3,), op="prod"),
        case((0, 2), (1,)),
        case((0,), (3,), op="all"),
        case((0, 2), (3,), op="logsumexp", dtypes=FLOATS),
    ),
    grown=(case((8, 3), (5,), op="prod"), case((21, 7), (12,), op="prod")),
    autocast=lambda case: None if case.kwargs.get("op") in ("max", "min") else "float32",
    bad=(
        *bad_tensors("segment_reduce", lambda x, o: (x, o)),
        *bad_offsets("segment_reduce", lambda x, o: (x, o)),
        bad(
            "op",
            rows(lambda x, o: (x, o), 3, (0, 3)),
            ValueError,
            "segment_reduce: .*'median'.*sum.*argmin",
            op="median",
        ),
        bad(
            "mean",
            rows(lambda x, o: (x, o), 3, (0, 3), dtype=torch.int32),
            TypeError,
            "segment_reduce: .*mean.*Int",
            op="mean",
        ),
        bad("bits", rows(lambda x, o: (x, o), 3, (0, 3)), TypeError, "segment_reduce: .*or.*Float", op="bitwise_or"),
    ),
    large=(bytes_in_three(2**31 + 7),),
    sized=lambda n: case((n,), (n // 16 + 2,)),
    named=SIZES,
    peers={"torch": torch_segment_reduce, "index_add": index_add},
    flops=lambda sample, y: sample.args[0].numel(),
)


# ---- segment_expand


def expand_reference(x, offsets, n):
    result = np.zeros((n, *x.shape[1:]), wide(x).dtype)
    for s, begin, end in pairs(offsets):
        result[begin:end] = wide(x[s])
    return given_back(result)


def expand_inputs(case, make):
    offsets, kwargs = segments_of(case, make, case.kwargs["n"])
    shape = (len(offsets) - 1, *case.shapes[0][1:])
    return Sample((make(shape), offsets, kwargs.pop("n")), kwargs)


def repeat_interleave(x, offsets, n):
    return x.repeat_interleave(offsets.diff(), 0, output_size=n)


def expand_args(x, offsets):
    shape = (max(offsets.numel() - 1, 0),) if x.dim() else ()
    return x.new_ones(shape), offsets, x.numel()


EXPAND = Spec(
    "segment_expand",
    pattern="segment_reduce",
    reference=expand_reference,
    inputs=expand_inputs,
    dtypes=ALL,
    samples=(
        case((3,), (4,), n=7),
        case((5, 3), (6,), n=9, index=torch.int32),
        case((7, 2, 2), (8,), n=5),
    ),
    edges=(
        *(case((i % 5 + 1,), (i % 5 + 2,), n=n) for i, n in enumerate(EDGES)),
        *(case((8, width), (9,), n=600, index=torch.int32) for width in (3, 32, 33, 128)),
        case((258,), (259,), n=257 * 129, lengths="of 0, 1, 2, ..."),
        *(case((999,), (1000,), n=n, lengths="all in one") for n in (1, *around(SHARE - 1000))),
        case((2,), (3,), n=3 * SHARE, dtypes=(torch.float32, torch.int32)),
        case((2, 65_537), (3,), n=3, dtypes=(torch.float32,)),
    ),
    empty=(case((0,), (1,), n=0), case((3, 2), (4,), n=0), case((2, 0), (3,), n=4)),
    grown=(case((4, 3), (5,), n=24), case((11, 7), (12,), n=24)),
    bad=(
        *bad_tensors("segment_expand", expand_args),
        *bad_offsets("segment_expand", expand_args),
        bad(
            "rows",
            lambda d: (*(t.to(d) for t in (torch.ones(3), torch.tensor([0, 2, 4]))), 4),
            ValueError,
            "segment_expand: x has 3.*2",
        ),
        bad(
            "n",
            lambda d: (*(t.to(d) for t in (torch.ones(1), torch.tensor([0, 0]))), -1),
            ValueError,
            "segment_expand: n .*-1",
        ),
    ),
    sized=lambda n: case((n // 16 + 1,), (n // 16 + 2,), n=n),
    named={what: case(c.shapes[1], c.shapes[1], n=c.shapes[0][0], **c.kwargs) for what, c in SIZES.items()},
    peers={"torch": repeat_interleave},
)


SPECS = [REDUCE, EXPAND]
