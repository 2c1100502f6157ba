"""Softmax, selection and products of segments."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.testing.compare import gamma
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
from torch_patterns.testing.spec import ALL, FLOATS, Sample, Spec, bad, case

# ---- segment_softmax and segment_log_softmax


def softmax_reference(values, offsets, logarithm=False):
    """Follows the definition, segment by segment, in long double; NaN if a value is +inf or NaN, or all are -inf."""
    x = wide(values)
    y = np.empty_like(x)
    with np.errstate(all="ignore"):
        for _, begin, end in pairs(offsets):
            if begin < end:
                away = x[begin:end] - x[begin:end].max(0)
                sums = np.exp(away).sum(0)
                y[begin:end] = away - np.log(sums) if logarithm else np.exp(away) / sums
    return given_back(y)


def softmax_bound(u, values, offsets, logarithm=False):
    """The distance from the maximum is rounded once, so the relative error of its exponential is that distance times u,
    and a few u more; the sum adds at most a rounding and a rescaling per row; then there is a division or a
    logarithm."""
    longest = int(offsets.diff().max()) if len(offsets) > 1 else 0
    spread = (values.double().max() - values.double().min()).item() if values.numel() else 0.0
    off = gamma(6 * longest + 2 * spread + 12, u)
    y = softmax_reference(values, offsets, logarithm)
    return off + 4 * u * y.abs() if logarithm else off * y


def by_scatter(values, offsets):
    """Does what users compose today, as PyG's softmax does: three reductions and gathers by an index."""
    if values.dim() > 1:
        return NotImplemented
    ids = torch.arange(len(offsets) - 1, device=offsets.device).repeat_interleave(offsets.diff())
    empty = values.new_zeros(len(offsets) - 1)
    most = empty.scatter_reduce(0, ids, values, "amax", include_self=False)
    y = (values - most[ids]).exp()
    return y / empty.scatter_add(0, ids, y)[ids]


def softmax_spec(name: str, logarithm: bool) -> Spec:
    def reference(values, offsets):
        return softmax_reference(values, offsets, logarithm)

    return Spec(
        name,
        pattern="segment_reduce",
        reference=reference,
        inputs=inputs,
        bound=lambda u, values, offsets: softmax_bound(u, values, offsets, logarithm),
        exact=False,
        dtypes=FLOATS,
        samples=(case((7,), (4,)), case((9, 3), (6,), index=torch.int32), case((8, 2, 2), (3,))),
        edges=(
            *(case((n,), (i % 5 + 2,)) for i, n in enumerate(EDGES)),
            *(case((600, width), (9,), index=torch.int32) for width in (3, 32, 33, 128)),
            case((257 * 65,), (259,), lengths="of 0, 1, 2, ..."),
            *(case((2000,), (2,), lengths=lengths) for lengths in ("power law", "one half", "of 16")),
            case((3 * SHARE,), (3,), dtypes=(torch.float32,)),
        ),
        empty=(case((0,), (1,)), case((0, 3), (4,)), case((4, 0), (3,))),
        grown=(case((8, 3), (5,)), case((21, 7), (12,))),
        autocast="float32",
        bad=(
            *bad_tensors(name, lambda x, o: (x, o)),
            *bad_offsets(name, lambda x, o: (x, o)),
            bad("integers", rows(lambda x, o: (x, o), 3, (0, 3), dtype=torch.int32), TypeError, f"{name}: values.*Int"),
        ),
        sized=lambda n: case((n,), (n // 16 + 2,)),
        named=SIZES,
        peers={} if logarithm else {"scatter": by_scatter},
        bytes=lambda sample, y: 2 * sample.args[0].nbytes + sample.args[1].nbytes + y.nbytes,
    )


# ---- segment_topk


def topk_reference(values, offsets, k, largest=True):
    """Sorts each segment stably by numpy, with NaN as the greatest value."""
    x = wide(values)
    floats = x.dtype == np.longdouble
    if floats:
        least = -np.inf if largest else np.inf
    elif values.dtype == torch.bool:
        least = not largest
    else:
        info = torch.iinfo(values.dtype)
        least = info.min if largest else info.max
    found = np.full((len(offsets) - 1, k), least, x.dtype)
    index = np.full((len(offsets) - 1, k), -1, np.int64)
    for s, begin, end in pairs(offsets):
        part = x[begin:end]
        nan = np.isnan(part) if floats else np.zeros(len(part), bool)
        key = np.where(nan, 0, part)
        order = np.lexsort((-key, ~nan) if largest else (key, nan))[:k]
        found[s, : len(order)], index[s, : len(order)] = part[order], begin + order
    return given_back(found), torch.from_numpy(index)


def topk_inputs(case, make):
    sample = inputs(case, make)
    kwargs = dict(sample.kwargs)
    return Sample((*sample.args, kwargs.pop("k")), kwargs)


TOPK = Spec(
    "segment_topk",
    pattern="segment_sort",
    reference=topk_reference,
    inputs=topk_inputs,
    dtypes=ALL,
    samples=(
        case((7,), (4,), k=2),
        case((12,), (3,), k=4, largest=False, index=torch.int32),
        case((9,), (8,), k=3),
    ),
    edges=(
        *(case((n,), (i % 5 + 2,), k=i % 7, largest=bool(i % 2)) for i, n in enumerate(EDGES)),
        case((2000,), (2,), lengths="power law", k=8),
        case((40,), (9,), k=50),
    ),
    empty=(case((0,), (1,), k=2), case((0,), (4,), k=2), case((5,), (3,), k=0)),
    grown=(case((8,), (5,), k=3), case((21,), (12,), k=3)),
    bad=(
        *(b for b in bad_tensors("segment_topk", lambda x, o: (x, o, 2)) if b.name != "scalar"),
        *bad_offsets("segment_topk", lambda x, o: (x, o, 2)),
        bad("k", rows(lambda x, o: (x, o, -1), 3, (0, 3)), ValueError, "segment_topk: k .*-1"),
        bad(
            "rows",
            lambda d: (torch.ones(3, 2, device=d), torch.tensor([0, 3], device=d), 1),
            ValueError,
            "segment_topk: values .*3, 2",
        ),
    ),
    sized=lambda n: case((n,), (n // 256 + 2,), k=8),
)


# ---- segment_matmul and segment_matmul_wgrad


def matmul_reference(x, offsets, weights):
    result = np.zeros((len(x), weights.shape[2]), np.longdouble)
    with np.errstate(all="ignore"):
        for s, begin, end in pairs(offsets):
            result[begin:end] = wide(x[begin:end]) @ wide(weights[s])
    return given_back(result)


def matmul_bound(u, x, offsets, weights):
    return gamma(x.shape[1] + 1, u) * matmul_reference(x.abs(), offsets, weights.abs())


def matmul_inputs(case, make):
    n, inner, cols = case.shapes[0]
    offsets, kwargs = segments_of(case, make, n)
    return Sample((make((n, inner)), offsets, make((len(offsets) - 1, inner, cols))), kwargs)


def wgrad_reference(x, offsets, grad):
    with np.errstate(all="ignore"):
        parts = [wide(x[begin:end]).T @ wide(grad[begin:end]) for _, begin, end in pairs(offsets)]
    empty = np.zeros((0, x.shape[1], grad.shape[1]), np.longdouble)
    return given_back(np.stack(parts) if parts else empty)


def wgrad_bound(u, x, offsets, grad):
    longest = int(offsets.diff().max()) if len(offsets) > 1 else 0
    return gamma(longest + 1, u) * wgrad_reference(x.abs(), offsets, grad.abs())


def wgrad_inputs(case, make):
    n, inner, cols = case.shapes[0]
    offsets, kwargs = segments_of(case, make, n)
    return Sample((make((n, inner)), offsets, make((n, cols))), kwargs)


def product_spec(name: str, **more) -> Spec:
    third = (lambda x: x.new_ones(1, 1, 2)) if name == "segment_matmul" else (lambda x: x.new_ones(x.shape[0], 2))

    def ones(d):
        return torch.ones(3, 1, device=d)

    def ints(d):
        return ones(d).int()

    def segments(d, end):
        return torch.tensor([0, end], device=d)

    def made(d, end):
        return ones(d), segments(d, end), third(ones(d))

    return Spec(
        name,
        pattern="segment_matmul",
        dtypes=FLOATS,
        samples=(case((7, 3, 2), (4,)), case((9, 2, 5), (6,), index=torch.int32), case((5, 4, 3), (8,))),
        edges=(
            *(case((n, 17, 9), (i + 2,)) for i, n in enumerate((1, 8, 33, 257))),
            case((300, 64, 40), (5,), lengths="power law"),
            case((90, 5, 7), (100,), lengths="all in one"),
            # Segments of equal length, and rows of whole vectors, which have products of their own.
            *(case((n, 5, 7), (9,), lengths="of 16") for n in (64, 70)),
            *(
                case((257, 24, 8), (i,), lengths=lengths)
                for i, lengths in ((9, "ragged"), (9, "of 256"), (99, "all in one"))
            ),
        ),
        empty=(case((0, 3, 2), (1,)), case((0, 3, 2), (3,)), case((4, 0, 2), (3,)), case((4, 3, 0), (3,))),
        grown=(case((8, 3, 2), (5,)), case((21, 7, 4), (12,))),
        autocast="lower",
        bad=(
            bad("dtype", lambda d: (ints(d), segments(d, 3), third(ints(d))), TypeError, f"{name}: x .*Int"),
            bad("shape", lambda d: (ones(d)[0], segments(d, 3), third(ones(d))), ValueError, f"{name}: x "),
            bad("algorithm", lambda d: made(d, 3), ValueError, f"{name}: .*'no_such'.*auto", algorithm="no_such"),
            bad("offsets", lambda d: made(d, 5), IndexError, rf"{name}: offsets\[1\] is 5", validate=True),
            *more.pop("bad", ()),
        ),
        sized=lambda n: case((max(n // 64, 1), 64, 64), (9,)),
        flops=lambda sample, y: 2 * sample.args[0].numel() * (y.shape[-1] if y.dim() else 1),
        **more,
    )


MATMUL = product_spec(
    "segment_matmul",
    reference=matmul_reference,
    inputs=matmul_inputs,
    bound=matmul_bound,
    bad=(
        bad(
            "weights",
            lambda d: (torch.ones(3, 2, device=d), torch.tensor([0, 3], device=d), torch.ones(2, 2, 2, device=d)),
            ValueError,
            "segment_matmul: weights must have one matrix per segment",
        ),
        bad(
            "columns",
            lambda d: (torch.ones(3, 2, device=d), torch.tensor([0, 3], device=d), torch.ones(1, 3, 2, device=d)),
            ValueError,
            "segment_matmul: x has 2 columns",
        ),
    ),
)
WGRAD = product_spec("segment_matmul_wgrad", reference=wgrad_reference, inputs=wgrad_inputs, bound=wgrad_bound)

SPECS = [
    softmax_spec("segment_softmax", False),
    softmax_spec("segment_log_softmax", True),
    TOPK,
    MATMUL,
    WGRAD,
]
