"""Segmented scan and recurrence."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.testing.compare import assert_equal, gamma
from torch_patterns.testing.reduction import BITWISE, LOGICAL
from torch_patterns.testing.scan import OPS, scan_bound, scan_reference
from torch_patterns.testing.segmented import (
    EDGES,
    SHARE,
    SIZES,
    bad_offsets,
    bad_tensors,
    given_back,
    inputs,
    pairs,
    rows,
    segments_of,
    wide,
)
from torch_patterns.testing.spec import ALL, BITS, FLOATS, Large, Sample, Spec, around, bad, case

# ---- segment_scan


def scan_segments(scan, x, offsets, **kwargs):
    """Scans each segment on its own; those of one length are the rows of one call."""
    begins, lengths = offsets[:-1].long(), offsets.long().diff()
    result = scan(x[:0], 0, **kwargs).new_zeros(x.shape)
    for length in lengths[lengths > 0].unique().tolist():
        index = begins[lengths == length, None] + torch.arange(length)
        result[index] = scan(x[index], 1, **kwargs)
    return result


def segment_scan_reference(values, offsets, **kwargs):
    found = scan_segments(scan_reference, values, offsets, **kwargs)
    if kwargs.get("op", "").startswith("arg"):  # rows of all segments
        found += offsets[:-1].long().repeat_interleave(offsets.long().diff()).view(-1, *[1] * (values.dim() - 1))
    return found


def segment_scan_bound(u, values, offsets, **kwargs):
    return scan_segments(lambda x, dim, **more: scan_bound(u, x, dim=dim, **more), values, offsets, **kwargs)


def cumsums(values, offsets, op="sum", exclusive=False, reverse=False):
    """Does what users compose today; it is exact only for integers, because it subtracts the sums of earlier
    segments."""
    if op != "sum" or reverse or not values.is_floating_point():
        return NotImplemented
    sums = values.cumsum(0)
    before = torch.cat([sums.new_zeros(1, *sums.shape[1:]), sums])[offsets[:-1]]
    return (sums - values if exclusive else sums) - before.repeat_interleave(offsets.diff(), 0, output_size=len(values))


def flags(i: int) -> dict:
    return {"op": OPS[i % 4], "exclusive": bool(i // 4 % 2), "reverse": bool(i // 8 % 2)}


def head_at(head: int, n: int) -> Large:
    """Makes ones in two segments, one up to `head` and one from there on."""

    def make():
        offsets = torch.tensor([0, head, n], device="cuda")
        return Sample((torch.ones(n, dtype=torch.uint8, device="cuda"), offsets), {})

    def check(sample, y):
        for begin in (*range(0, head, 2**28), head):
            end = min(begin + 2**28, head) if begin < head else n
            first = 1 + begin % head
            assert_equal(y[begin:end], torch.arange(first, first + end - begin, device="cuda"), f"from {begin}")

    return Large(f"{n} bytes, a head at {head}", n * 9.5 / 2**30 + 5, make, check)


SCAN = Spec(
    "segment_scan",
    reference=segment_scan_reference,
    inputs=inputs,
    bound=segment_scan_bound,
    dtypes=ALL,
    samples=(
        case((7,), (4,)),
        case((9, 3), (6,), op="prod", index=torch.int32),
        case((8, 2, 2), (5,), op="max", reverse=True),
        case((11,), (8,), op="min", exclusive=True),
        case((12,), (4,), op="prod", exclusive=True, reverse=True),
    ),
    edges=(
        *(case((n,), (i % 5 + 2,), **flags(3 * i)) for i, n in enumerate(EDGES)),
        *(case((300, 3), (9,), index=torch.int32, **flags(i)) for i in range(16)),
        *(case((257 * 129,), (259,), lengths="of 0, 1, 2, ...", **flags(i)) for i in (0, 7, 9, 14)),
        *(case((40,), (41,), lengths="of 1", **flags(i)) for i in (4, 8, 12)),
        *(case((n,), (9,), op=op, exclusive=n % 2 == 0, dtypes=BITS) for op in BITWISE for n in (33, 300, 2304)),
        *(case((300, 3), (9,), op=op, reverse=True, dtypes=BITS) for op in BITWISE),
        *(case((77, 2), (9,), op=op, reverse=True, dtypes=ALL) for op in LOGICAL),
        *(case((41, 2), (7,), op=op, reverse=r, dtypes=ALL) for op in ("argmax", "argmin") for r in (False, True)),
        *(case((2304 * 3,), (2,), lengths="of 256", **flags(i)) for i in (0, 6, 8, 15)),
        *(case((2304 * 3,), (2,), lengths="one half", **flags(i)) for i in (8, 5, 2, 11)),
        *(case((n,), (1000,), lengths="all in one", **flags(i)) for i, n in enumerate((1, *around(SHARE - 1000)))),
        *(case((3 * SHARE,), (3,), dtypes=(torch.float32, torch.int32), **flags(i)) for i in (0, 13)),
        case((2, 65_537), (3,), dtypes=(torch.float32,)),
        case((70_000,), (65_538,), dtypes=(torch.float32,)),
        case((2304 * 2304 + 1,), (4,), reverse=True, dtypes=(torch.float32,)),
    ),
    empty=(
        case((0,), (1,)),
        case((0, 3), (4,), op="max"),
        case((4, 0), (3,), op="min", exclusive=True),
        case((0,), (3,), op="prod", reverse=True),
    ),
    grown=(case((8, 3), (5,), op="prod"), case((21, 7), (12,), op="prod")),
    autocast="float32",
    bad=(
        *bad_tensors("segment_scan", lambda x, o: (x, o)),
        *bad_offsets("segment_scan", lambda x, o: (x, o)),
        bad("op", rows(lambda x, o: (x, o), 3, (0, 3)), ValueError, "segment_scan: .*'mean'.*sum.*min", op="mean"),
        bad("bits", rows(lambda x, o: (x, o), 3, (0, 3)), TypeError, "segment_scan: .*or.*Float", op="bitwise_or"),
    ),
    large=(head_at(2**31, 2**31 + 7),),
    sized=lambda n: case((n,), (n // 16 + 2,)),
    named=SIZES,
    peers={"torch": cumsums},
    flops=lambda sample, y: y.numel(),
)


# ---- segment_recurrence


def recurrence_reference(a, b, offsets, reverse=False, initial=None):
    """Computes step by step in long double: h = b if a is 0 and at the head without `initial`, else h = a h + b."""
    a, b = wide(a), wide(b)
    start = None if initial is None else wide(initial)
    h = np.empty_like(b)
    with np.errstate(all="ignore"):
        for s, begin, end in pairs(offsets):
            order = range(begin, end)
            before = np.zeros_like(b[:1])[0] if len(b) else None
            before = before if start is None else start[s]
            for i, k in enumerate(reversed(order) if reverse else order):
                restarts = (a[k] == 0) | ((i == 0) & (start is None))
                h[k] = before = np.where(restarts, b[k], a[k] * before + b[k])
    return given_back(h)


def recurrence_inputs(case, make):
    shape = case.shapes[0]
    offsets, kwargs = segments_of(case, make, shape[0])
    if kwargs.pop("start", False):
        kwargs["initial"] = make((len(offsets) - 1, *shape[1:]))
    return Sample((make.factors(shape, zeros=0.02), make(shape), offsets), kwargs)


def recurrence_bound(u, a, b, offsets, reverse=False, initial=None):
    """Composing maps rounds each term once for every factor, every sum, and every level of a tree."""
    count = segment_scan_reference(torch.ones_like(b, dtype=torch.float64), offsets, reverse=reverse)
    start = None if initial is None else initial.abs()
    return gamma(3 * count + 5, u) * recurrence_reference(a.abs(), b.abs(), offsets, reverse, start)


RECURRENCE = Spec(
    "segment_recurrence",
    pattern="segment_scan",
    reference=recurrence_reference,
    inputs=recurrence_inputs,
    bound=recurrence_bound,
    dtypes=FLOATS,
    samples=(
        case((7,), (4,)),
        case((9, 3), (6,), reverse=True, index=torch.int32),
        case((8, 2, 2), (5,)),
        case((9, 2), (5,), start=True),
        case((10,), (8,), start=True, reverse=True, index=torch.int32),
    ),
    edges=(
        *(case((n,), (i % 5 + 2,), reverse=bool(i % 2)) for i, n in enumerate(EDGES)),
        *(case((n,), (i % 5 + 2,), reverse=bool(i % 2), start=True) for i, n in enumerate(EDGES)),
        *(case((300, 3), (9,), reverse=reverse) for reverse in (False, True)),
        case((3 * SHARE,), (3,), dtypes=(torch.float32,)),
    ),
    empty=(case((0,), (1,)), case((0, 3), (4,)), case((4, 0), (3,), reverse=True), case((0, 2), (3,), start=True)),
    grown=(case((8, 3), (5,), start=True), case((21, 7), (12,), start=True)),
    special=(float("nan"),),  # composed maps may multiply an infinity by a 0 that the steps do not
    autocast="float32",
    bad=(
        *bad_tensors("segment_recurrence", lambda x, o: (x, x.clone(), o)),
        bad(
            "shapes",
            lambda d: (torch.ones(3, device=d), torch.ones(3, 1, device=d), torch.tensor([0, 3], device=d)),
            ValueError,
            "segment_recurrence: a .*3.*b .*1",
        ),
    ),
    sized=lambda n: case((n,), (n // 16 + 2,)),
    flops=lambda sample, h: 2 * h.numel(),
)

SPECS = [SCAN, RECURRENCE]
