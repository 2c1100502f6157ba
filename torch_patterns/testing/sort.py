"""Sorts of rows, pairs, positions, several keys and segments."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.testing.compare import assert_equal
from torch_patterns.testing.spec import ALL, Large, Sample, Spec, around, bad, case

# Insertion, lanes, tiles of 256, 1024 and 2048 keys, the second level of merges and of networks.
EDGES = (1, 2, 3, *around(20, 32, 256), *around(1024), *around(2048), 4097)
SEVERAL_TILES = 9001
CACHED = 2**17 + 3  # beyond what one thread sorts in its cache, and its fair share
CHECKED = (torch.float16, torch.uint8)  # the fewer bits the fewer passes, which are all alike
WIDE = tuple(d for d in ALL if d != torch.bool)


def ones(*shapes):
    """device -> that many tensors of ones, for calls that must be refused."""
    return lambda device: tuple(torch.ones(shape, device=device) for shape in shapes)


# ---- the order, by numpy's stable sort


def image(x: torch.Tensor) -> tuple[np.ndarray, int]:
    """The unsigned integer that is ordered as the keys are, by arithmetic on sign and magnitude, and its bits."""
    if x.dtype == torch.bool:
        return x.numpy().astype(np.uint64), 1
    bits = 8 * x.element_size()
    half = 1 << (bits - 1)
    if x.dtype.is_floating_point:
        integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
        magnitude = x.contiguous().view(integer).numpy().astype(np.uint64) & np.uint64(half - 1)
        below, above = np.uint64(half) - magnitude - np.uint64(1), np.uint64(half) + magnitude
        ranks = np.where((x < 0).numpy(), below, above)
        return np.where(x.isnan().numpy(), np.uint64(2**bits - 1), ranks), bits
    values = x.numpy().astype(np.uint64)
    if torch.iinfo(x.dtype).min < 0:  # sums modulo 2^bits
        values = (values + np.uint64(half)) & np.uint64(2**bits - 1)
    return values, bits


def ranks(x: torch.Tensor, descending=False, begin_bit=0, end_bit=None) -> np.ndarray:
    """What orders the keys: the chosen bits of their images."""
    images, bits = image(x)
    images = np.uint64(2**bits - 1) - images if descending else images
    width = (bits if end_bit is None else end_bit) - begin_bit
    return (images >> np.uint64(min(begin_bit, 63))) & np.uint64(2**width - 1)


def stable_order(x: torch.Tensor, dim=-1, **order) -> torch.Tensor:
    if x.dim() == 0:
        return torch.zeros((), dtype=torch.int64)
    return torch.from_numpy(np.argsort(ranks(x, **order), axis=dim, kind="stable"))


def sort_reference(x, dim=-1, descending=False, index_dtype=torch.int64):
    order = stable_order(x, dim, descending=descending)
    return x.gather(dim, order), order


def keys_reference(x, dim=-1, **order):
    return x.gather(dim, stable_order(x, dim, **order))


def pairs_reference(keys, values, dim=-1, **order):
    order = stable_order(keys, dim, **order)
    return keys.gather(dim, order), values.gather(dim, order)


def argsort_reference(x, dim=-1, index_dtype=torch.int64, **order):
    return stable_order(x, dim, **order)


def lexsort_reference(keys, dim=-1, descending=False, index_dtype=torch.int64):
    ranks = [image(key)[0] for key in keys]
    if descending:
        ranks = [np.uint64(2**64 - 1) - r for r in ranks]
    return torch.from_numpy(np.lexsort(ranks, axis=dim)) if keys[0].dim() else torch.zeros((), dtype=torch.int64)


def segment_order(keys, offsets, validate=False, **order):
    segments = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets.numpy()))
    return torch.from_numpy(np.lexsort((ranks(keys, **order), segments)))


def segment_reference(keys, offsets, **order):
    return keys[segment_order(keys, offsets, **order)]


def segment_pairs_reference(keys, values, offsets, **order):
    order = segment_order(keys, offsets, **order)
    return keys[order], values[order]


# ---- problems: random, ordered, reversed, all equal, or with two values, in turn

PATTERNS = (
    lambda x: x,
    lambda x: x.sort(0)[0],
    lambda x: x.sort(0, descending=True)[0],
    lambda x: x[:1].expand(x.shape).clone(),
    lambda x: x[torch.arange(x.shape[0]) % 2],
)


def patterned(shape, make):
    """Small samples are random, larger ones of the pattern that their size says."""
    x = make(shape)
    return PATTERNS[x.numel() % len(PATTERNS)](x) if x.numel() > 100 and make.kind == "exact" else x


def sort_inputs(case, make):
    return Sample(tuple(patterned(shape, make) for shape in case.shapes), dict(case.kwargs))


def lexsort_inputs(case, make):
    return Sample(([make(shape, -1, 1) for shape in case.shapes],), dict(case.kwargs))


def segment_inputs(case, make):
    """Makes keys, values if there are two shapes of them, and the offsets of the case's number of segments."""
    *shapes, (segments,) = case.shapes
    (n,) = shapes[0]
    inner = make.indices((max(segments - 1, 0),), n + 1).sort()[0]
    ends = [torch.zeros(1, dtype=torch.int64), inner, torch.full((1,), n)] if segments else [torch.zeros(1).long()]
    return Sample((*(patterned(shape, make) for shape in shapes), torch.cat(ends)), dict(case.kwargs))


def windows(*shapes):
    """Windows of the bits of a key: none, low, middle, high ones, and across bytes."""
    small = [(1, 1), (0, 3), (2, 7), (5, 8), (0, 8)]
    cases = [case(*shapes, begin_bit=b, end_bit=e, descending=bool(b % 2), dtypes=WIDE) for b, e in small]
    large = [(7, 9), (12, 27), (31, 32), (3, 32)]
    for b, e in large:
        cases.append(case(*shapes, begin_bit=b, end_bit=e, dtypes=(torch.float32, torch.int64)))
    cases.append(case(*shapes, begin_bit=30, end_bit=64, descending=True, dtypes=(torch.int64, torch.float64)))
    cases.append(case(*shapes, end_bit=1, descending=True, dtypes=(torch.bool,)))
    return cases


def unsorted_bytes(n: int) -> Large:
    """Keys i mod 251 at each index; the result is counted, not compared."""

    def make():
        return Sample((torch.arange(n, device="cuda", dtype=torch.int64).remainder_(251).to(torch.uint8),), {})

    def check(sample, y):
        begin = 0
        for value in range(251):
            count = n // 251 + (value < n % 251)
            part = y[begin : begin + count]
            assert int(part.amin()) == value == int(part.amax()), f"{n} bytes: {value}"
            begin += count
        assert begin == n

    return Large(f"{n} bytes", n * 20 / 2**30 + 4, make, check)


def narrow_rows(rows: int, n: int) -> Large:
    def make():
        return Sample((torch.arange(n - 1, -1, -1, device="cuda").to(torch.uint8).expand(rows, n).contiguous(),), {})

    def check(sample, y):
        want = torch.arange(n, device="cuda").to(torch.uint8).sort()[0]
        for begin in range(0, rows, 2**16):
            assert_equal(y[begin : begin + 2**16], want.expand(y[begin : begin + 2**16].shape), f"rows from {begin}")

    return Large(f"{rows} rows of {n}", rows * n * 20 / 2**30 + 4, make, check)


COMMON_BAD = (
    bad("dim", ones(3), IndexError, ": .*dim.*1", dim=1),
    bad("dtype", lambda device: (torch.ones(3, device=device).cfloat(),), TypeError, ": .*Complex"),
    bad("algorithm", ones(3), ValueError, "'no_such'.*auto", algorithm="no_such"),
)
INDEX_BAD = bad("index dtype", ones(3), TypeError, ": index_dtype.*int32 or int64.*Float", index_dtype=torch.float32)
BITS_BAD = (
    bad("negative bit", ones(3), ValueError, "begin_bit -1.*32", begin_bit=-1),
    bad("bits reversed", ones(3), ValueError, "begin_bit 4 and end_bit 3", begin_bit=4, end_bit=3),
    bad("bits beyond", ones(3), ValueError, "end_bit 33.*32", end_bit=33),
    bad("bits of bool", lambda d: (torch.ones(3, device=d).bool(),), ValueError, "end_bit 2.*1", end_bit=2),
)
SAMPLES = (
    case((5,)),
    case((3, 7, 2), dim=1, descending=True),
    case((4, 6), dim=0),
    case((2, 33), descending=True),
    case((), dim=0),
)
EMPTY = (case((0,)), case((3, 0), dim=1), case((0, 4), dim=1), case((2, 0, 3), dim=0, descending=True))
GROWN = (case((3, 8), dim=1, descending=True), case((5, 21), dim=1, descending=True))
ROWS = {
    "rows 2^20 x 64": case((2**20, 64)),
    "rows 65536 x 1024": case((65536, 1024)),
    "rows 1024 x 65536": case((1024, 65536)),
    "rows 64 x 2^20": case((64, 2**20)),
}


def edges(*more):
    return (
        *(case((n,), **kwargs) for j, n in enumerate(EDGES) for kwargs in ({"descending": bool(j % 2)},)),
        case((3, 515), descending=True),
        case((515, 3), dim=0),
        case((2, SEVERAL_TILES), dtypes=(torch.float32, torch.uint8)),
        case((CACHED,), dtypes=(torch.float32, torch.int64)),
        *more,
    )


def torch_sort(x, dim=-1, descending=False, index_dtype=torch.int64):
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def torch_keys(x, dim=-1, descending=False, begin_bit=0, end_bit=None):
    whole = begin_bit == 0 and end_bit is None
    return torch.sort(x, dim=dim, descending=descending, stable=True)[0] if whole else NotImplemented


def torch_pairs(keys, values, dim=-1, descending=False, begin_bit=0, end_bit=None):
    if begin_bit or end_bit is not None:
        return NotImplemented
    keys, order = torch.sort(keys, dim=dim, descending=descending, stable=True)
    return keys, values.gather(dim, order)


def torch_argsort(x, dim=-1, descending=False, begin_bit=0, end_bit=None, index_dtype=torch.int64):
    whole = begin_bit == 0 and end_bit is None
    return torch.argsort(x, dim=dim, descending=descending, stable=True) if whole else NotImplemented


SORT = Spec(
    "sort",
    checked=CHECKED,
    reference=sort_reference,
    inputs=sort_inputs,
    dtypes=ALL,
    samples=(*SAMPLES, case((9,), index_dtype=torch.int32)),
    edges=edges(),
    empty=EMPTY,
    grown=GROWN,
    bad=(*COMMON_BAD, INDEX_BAD),
    sized=lambda n: case((n,)),
    named=ROWS,
    peers={"torch": torch_sort},
)

KEYS = Spec(
    "sort_keys",
    pattern="sort",
    checked=CHECKED,
    reference=keys_reference,
    inputs=sort_inputs,
    dtypes=ALL,
    samples=(*SAMPLES, case((9,), end_bit=0)),
    edges=edges(*windows((300,)), *windows((2, 1025))),
    empty=EMPTY,
    grown=GROWN,
    bad=(*COMMON_BAD, *BITS_BAD),
    large=(
        unsorted_bytes(2**31 - 1),
        unsorted_bytes(2**31 + 3),
        unsorted_bytes(2**32 - 43),
        narrow_rows(2**18 + 1, 8192),
    ),
    sized=lambda n: case((n,)),
    named={**ROWS, "2^28, 12 bits": case((2**28,), begin_bit=8, end_bit=20)},
    peers={"torch": torch_keys},
)

PAIRS = Spec(
    "sort_pairs",
    pattern="sort",
    checked=CHECKED,
    reference=pairs_reference,
    inputs=sort_inputs,
    dtypes=ALL,
    samples=(
        case((5,), (5,)),
        case((3, 7, 2), (3, 7, 2), dim=1, descending=True),
        case((4, 6), (4, 6), dim=0),
        case((9,), (9,), end_bit=0),
        case((), (), dim=0),
    ),
    edges=(
        *(case((n,), (n,), descending=bool(j % 2)) for j, n in enumerate(EDGES)),
        *windows((300,), (300,)),
        case((CACHED,), (CACHED,), dtypes=(torch.float32, torch.int64, torch.float16)),
    ),
    empty=tuple(case(*c.shapes, *c.shapes, **c.kwargs) for c in EMPTY),
    grown=tuple(case(*c.shapes, *c.shapes, **c.kwargs) for c in GROWN),
    bad=(
        bad("dim", ones(3, 3), IndexError, ": .*dim.*1", dim=1),
        bad("shapes", ones(3, 4), RuntimeError, "sort_pairs: keys .*3.*values .*4"),
        bad("bits", ones(3, 3), ValueError, "sort_pairs: .*end_bit 40.*32", end_bit=40),
        bad("algorithm", ones(3, 3), ValueError, "'no_such'.*auto", algorithm="no_such"),
    ),
    sized=lambda n: case((n,), (n,)),
    peers={"torch": torch_pairs},
)

ARGSORT = Spec(
    "argsort",
    pattern="sort",
    checked=CHECKED,
    reference=argsort_reference,
    inputs=sort_inputs,
    dtypes=ALL,
    samples=(*SAMPLES, case((9,), index_dtype=torch.int32, end_bit=1)),
    edges=edges(*windows((300,))),
    empty=EMPTY,
    grown=GROWN,
    differentiable=False,
    bad=(*COMMON_BAD, *BITS_BAD, INDEX_BAD),
    sized=lambda n: case((n,)),
    peers={"torch": torch_argsort},
)

LEXSORT = Spec(
    "lexsort",
    pattern="sort",
    checked=CHECKED,
    reference=lexsort_reference,
    inputs=lexsort_inputs,
    dtypes=ALL,
    samples=(
        case((9,), (9,)),
        case((3, 5), (3, 5), (3, 5), dim=0, descending=True),
        case((6,), index_dtype=torch.int32),
        case((), (), dim=0),
    ),
    edges=(case((300,), (300,)), case((1025,), (1025,), (1025,), descending=True)),
    empty=(case((0,), (0,)), case((3, 0), (3, 0), dim=1)),
    grown=(case((3, 8), (3, 8), dim=1), case((5, 21), (5, 21), dim=1)),
    differentiable=False,
    bad=(
        bad("dim", lambda d: ([torch.ones(3, device=d)],), IndexError, "lexsort: .*dim.*1", dim=1),
        bad("shapes", lambda d: ([*ones(3, 4)(d)],), RuntimeError, "lexsort: .*3.*4"),
        bad("dtype", lambda d: ([torch.ones(3, device=d).cfloat()],), TypeError, "lexsort: .*Complex"),
        bad("algorithm", lambda d: ([*ones(3)(d)],), ValueError, "'no_such'.*auto", algorithm="no_such"),
    ),
    sized=lambda n: case((n // 2,), (n // 2,)),
)


def offsets_of(*values):
    """device -> keys of five ones, and these offsets."""
    return lambda device: (torch.ones(5, device=device), torch.tensor(values, device=device))


SEGMENT_BAD = (
    bad("bits", offsets_of(0, 5), ValueError, "segment_sort.*end_bit 33.*32", end_bit=33),
    bad("decreasing", offsets_of(0, 4, 3, 5), ValueError, r"offsets\[2\] is 3", validate=True),
    bad("beyond", offsets_of(0, 6, 5), IndexError, r"offsets\[1\] is 6", validate=True),
    bad("first", offsets_of(1, 5), ValueError, r"offsets\[0\] is 1", validate=True),
    bad("last", offsets_of(0, 4), ValueError, "4.*5", validate=True),
    bad("offsets' dtype", offsets_of(0.0, 5.0), TypeError, "offsets must be int32 or int64"),
    bad("keys' shape", lambda d: (torch.ones(5, 1, device=d), torch.tensor([0, 5], device=d)), ValueError, "keys must"),
    bad("algorithm", offsets_of(0, 5), ValueError, "'no_such'.*auto", algorithm="no_such"),
)
SEGMENTS = (
    ((12,), (5,), {}),
    ((12,), (5,), {"descending": True, "end_bit": 0}),
    ((7,), (1,), {"descending": True, "validate": True}),
    ((9,), (20,), {}),
)


def segment_edges(copies: int):
    shapes = [(n, s) for n in (1, 33, 300, 1025, 5000) for s in (1, 3, 40)] + [(70000, 7), (70000, 30000)]
    return (
        *(case(*((n,),) * copies, (s,), descending=bool(s % 2)) for n, s in shapes),
        *windows(*((400,),) * copies, (11,)),
        case(*((CACHED,),) * copies, (3,), dtypes=(torch.float32, torch.int64)),
    )


def segment_spec(name: str, reference, copies: int, **more) -> Spec:
    """copies: of the shape of keys, 2 where values go with them."""
    return Spec(
        name,
        pattern="segment_sort",
        checked=CHECKED,
        reference=reference,
        inputs=segment_inputs,
        dtypes=ALL,
        samples=tuple(case(*(shape,) * copies, segments, **kwargs) for shape, segments, kwargs in SEGMENTS),
        edges=segment_edges(copies),
        empty=(case(*((0,),) * copies, (3,)), case(*((0,),) * copies, (0,))),
        grown=(case(*((8,),) * copies, (4,)), case(*((21,),) * copies, (6,))),
        sized=lambda n: case(*((n,),) * copies, (max(n // 256, 1),)),
        **more,
    )


SEGMENT = segment_spec("segment_sort", segment_reference, 1, bad=SEGMENT_BAD)
SEGMENT_PAIRS = segment_spec(
    "segment_sort_pairs",
    segment_pairs_reference,
    2,
    bad=(
        bad(
            "shapes",
            lambda d: (*ones(5, 4)(d), torch.tensor([0, 5], device=d)),
            RuntimeError,
            "segment_sort_pairs: keys .*5.*values .*4",
        ),
    ),
)

SPECS = [SORT, KEYS, PAIRS, ARGSORT, LEXSORT, SEGMENT, SEGMENT_PAIRS]
