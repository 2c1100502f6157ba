"""Random problems: a few new ones for every operator in every run, held to references and properties.

The seed is new in every run, and shown at its head and in every failure; FUZZ_SEED=n repeats a run, FUZZ_CASES=n makes
n problems for each operator.
"""

import math
import os
import random
import zlib
from functools import partial as bind

import torch
from common import described
from test_ladder import has_trait

from torch_patterns import testing
from torch_patterns.testing import assert_equal, assert_same_bits, assert_within, case, tensors_of, unit_roundoff

SEED, COUNT = int(os.environ["FUZZ_SEED"]), int(os.environ.get("FUZZ_CASES", "5"))  # the seed is made in conftest.py
MOST = 3000  # elements
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 513, 1025)
FLOAT_OPS = ("mean", "logsumexp")
FLOATS, BITS = testing.FLOATS, testing.BITS


# ---- problems: Random -> the case of an operator's Spec


def size(r, most: int = MOST, least: int = 0) -> int:
    fitting = [n for n in SIZES if least <= n <= most]
    return r.choice(fitting) if r.random() < 0.7 else r.randint(least, max(most, least))


def shape(r, ranks=(1, 2, 3), most: int = MOST, least: int = 0) -> tuple[int, ...]:
    sizes: list[int] = []
    for _ in range(r.choice(ranks)):
        sizes.append(size(r, max(least, most // max(math.prod(sizes), 1)), least))
    r.shuffle(sizes)
    return tuple(sizes)


def flag(r) -> bool:
    return r.random() < 0.5


def some(r, **options) -> dict:
    """Each option, or its default."""
    return {key: value for key, value in options.items() if flag(r)}


def along(r, s: tuple[int, ...]) -> int:
    return r.randrange(-len(s), len(s))


def elementwise(r):
    return case(shape(r, (0, 1, 2, 3)))


def activation_backward(r):
    s = shape(r)
    return case(s, s, activation=r.choice(("identity", "bipolar_sigmoid", "tanh", "relu", "sign")))


def rbf(r, backward: bool = False):
    n, c, f = (size(r, 40, 1) for _ in range(3))
    return case(*([(n, c)] if backward else []), (n, f), (c, f), sigma=r.choice((0.5, 2.0, 8.0)))


def classified(r, backward: bool = False):
    n, reduction = size(r, 60, 1), r.choice(("mean", "sum", "none"))
    grad = [(n,) if reduction == "none" else ()] if backward else []
    return case(*grad, (n, size(r, 40, 1)), reduction=reduction)


def error(r, backward: bool = False):
    s, reduction = shape(r, (0, 1, 2), least=1), r.choice(("mean", "sum", "none"))
    return case(*([s if reduction == "none" else ()] if backward else []), s, s, reduction=reduction)


def linear(r, kind: str = ""):
    lead, k, m = shape(r, (0, 1, 2), 40), size(r, 40, 1), size(r, 40, 1)
    if kind == "dgrad":
        return case((*lead, m), (m, k))
    if kind == "wgrad":
        return case((*lead, m), (*lead, k))
    return case((*lead, k), (m, k), *([(m,)] if flag(r) else []))


def window(r, pads: bool = True, dilates: bool = True) -> tuple[int, int, int, int, int]:
    """(input, kernel, stride, padding, dilation) along one dimension, such that one window fits."""
    kernel, stride = r.randint(1, 4), r.randint(1, 4)
    padding = r.randint(0, kernel // 2) if pads else 0
    dilation = r.randint(1, 3) if dilates and not padding else 1  # else a window may lie in the padding alone
    least = max(1, dilation * (kernel - 1) + 1 - 2 * padding)
    return r.randint(least, least + 6), kernel, stride, padding, dilation


def conv(r, bias: bool = True):
    rows, cols = window(r), window(r)
    groups, c, m = r.choice((1, 1, 2, 3)), r.randint(1, 3), r.randint(1, 4)
    options = {k: (rows[i], cols[i]) for i, k in ((2, "stride"), (3, "padding"), (4, "dilation"))}
    x, w = (r.randint(1, 3), c * groups, rows[0], cols[0]), (m * groups, c, rows[1], cols[1])
    return case(x, w, *([(m * groups,)] if bias and flag(r) else []), **options, groups=groups)


def pool(r, kind: str, what: str = ""):
    rows, cols = (window(r, dilates=kind == "max") for _ in range(2))
    lead = (*([r.randint(1, 3)] if flag(r) else []), r.randint(1, 4))
    keys = ((1, "kernel_size"), (2, "stride"), (3, "padding"), *([(4, "dilation")] if kind == "max" else []))
    options = {k: [rows[i], cols[i]] for i, k in keys}
    if what == "backward":
        out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in (rows, cols)]
        return case((*lead, *out), input_size=[rows[0], cols[0]], **options)
    return case((*lead, rows[0], cols[0]), **options)


def subsample(r, backward: bool = False):
    n, c, h, w, a, b = (r.randint(1, 4) for _ in range(6))
    options = {"size": [a, b], "activation": r.choice(("bipolar_sigmoid", "tanh", "relu", "identity", "sign"))}
    lead = (n, c) if flag(r) else (c,)
    return case((*lead, h, w), (*lead, h, w), **options) if backward else case((*lead, h * a, w * b), (c,), **options)


def reduce(r):
    op = r.choice(("sum", "prod", "max", "min", "argmax", "argmin", "any", "all", *FLOAT_OPS, *BITWISE))
    s = shape(r, least=int(op in FLOAT_OPS or op.startswith("arg")))
    dims = r.sample(range(len(s)), 1 if op.startswith("arg") else r.randint(1, len(s)))
    dtypes = FLOATS if op in FLOAT_OPS else dtypes_of(op)
    return case(s, **some(r, dim=tuple(dims), keepdim=True), op=op, dtypes=dtypes)


def scan(r, ops=("sum", "prod", "max", "min"), **options):
    s, op = shape(r, most=1500), r.choice(ops)
    return case(s, dim=along(r, s), op=op, **some(r, reverse=True, **options), dtypes=dtypes_of(op))


def recurrence(r):
    dim = along(r, s := shape(r))
    initial = [tuple(n for d, n in enumerate(s) if d != dim % len(s))] if flag(r) else []
    return case(s, s, *initial, dim=dim, **some(r, reverse=True))


def segments(r, ops=("sum", "prod", "max", "min"), **options):
    rows, count = (size(r, 700), size(r, 60, 1))
    x = (rows, *shape(r, (0, 1, 2), 12, 1))
    op = {"op": r.choice(ops)} if ops else {}
    return case(x, (count + 1,), **op, **some(r, index=torch.int32, **options), dtypes=dtypes_of(op.get("op")))


def dtypes_of(op: str | None):
    """Those that an operator is for, if not all."""
    if op in FLOAT_ROWS:
        return FLOATS
    return BITS if op and op.startswith("bitwise") else None


def groups(r, ops):
    n, op = size(r, 700), r.choice(ops)
    x = (n, *shape(r, (0, 1, 2), 12, 1))
    return case(x, (size(r, 300, 1),), op=op, **some(r, index=torch.int32), dtypes=dtypes_of(op))


def group_expansion(r):
    return case((size(r, 700),), (size(r, 60, 1), *shape(r, (0, 1), 12, 1)), **some(r, index=torch.int32))


def grouping(r):
    return case((size(r, 900),), (size(r, 500, 1),), **some(r, index=torch.int32))


def topk(r):
    return case((size(r, 700),), (size(r, 60, 2),), k=r.randint(0, 9), **some(r, largest=False, index=torch.int32))


def segment_product(r):
    n, inner, cols = size(r, 60), size(r, 20, 1), size(r, 20, 1)
    return case((n, inner, cols), (size(r, 12, 2),), **some(r, index=torch.int32))


def distinct(r):
    return case(shape(r), (r.randint(1, 90),), return_inverse=flag(r), return_counts=flag(r))


def runs(r):
    return case((size(r, 700),), (size(r, 700, 1),))


def by_key(r):
    n = size(r, 700)
    return case((n, *shape(r, (0, 1), 12, 1)), (size(r, max(n, 2), 1),), op=r.choice(("sum", "max", "min", "argmax")))


def split(r):
    return case((size(r, 900), *shape(r, (0, 1), 12, 1)), **some(r, keep=round(r.random(), 2)))


def expansion(r):
    count = size(r, 60, 1)
    return case((count, *shape(r, (0, 1), 12, 1)), (count + 1,), n=size(r, 700), **some(r, index=torch.int32))


def sort(r, tensors: int = 1):
    """Few rows: on the CPU a block of lanes runs for each."""
    s = [*shape(r, (0, 1, 2), 12)]
    s.insert(r.randint(0, len(s)), size(r, 1100))
    return case(*[tuple(s)] * tensors, dim=s.index(max(s)) - r.choice((0, len(s))), **some(r, descending=True))


def segment_sort(r, tensors: int = 1):
    n = size(r, 1500)
    return case(*[(n,)] * tensors, (size(r, 60, 1),), **some(r, descending=True))


def merge(r):
    lead = shape(r, (0, 1), 4, 1)
    return case((*lead, size(r, 600)), (*lead, size(r, 600)), **some(r, descending=True))


def co_rank(r):
    return case((size(r, 50),), (size(r, 600),), (size(r, 600),), **some(r, descending=True))


def compact(r):
    s = shape(r)
    return case(s, s[: r.randint(0, len(s))], **some(r, keep=round(r.random(), 2)))


def unpacking(r):
    return case((size(r, 40), *shape(r, (0, 1), 12, 1)), shape(r, (1, 2), 60), **some(r, keep=round(r.random(), 2)))


def histogram(r):
    bounds = {"min": -4.0, "max": 6.5} if flag(r) else {}
    return case(shape(r), bins=r.randint(1, 300), **bounds, dtypes=FLOATS if bounds else testing.INTEGERS)


def search(r, batched: bool = False):
    vertices = size(r, 60, 1)
    sources = (r.randint(1, 4),) if batched or flag(r) else ()
    given = r.choice(({}, {"given": "in-edges"}, {"given": "symmetric"}))
    return case((vertices + 1,), (size(r, 300) // 2 * 2,), sources, **given, **some(r, max_level=r.randint(0, 4)))


def entries(r) -> tuple[tuple[int], tuple[int], int]:
    return (size(r, 400),), (size(r, 60, 3),), size(r, 60, 1)


def product(r, form: str, kind: str):
    n, rows, cols = entries(r)
    x = (cols,) if kind == "spmv" else (cols, size(r, 20, 1))
    plan = {} if form in ("hyb", "blocked") else {"plan": True}
    return case(n, rows, x, **some(r, cols=True, y=True, index=torch.int32, lengths="one long", **plan))


def structured(r, kind: str = "spmm"):
    n, rows, cols = entries(r)
    form = r.choice(("coo", "csr", "csc", "ell", "hyb", "jds", "sell", "blocked"))
    x = (cols,) if kind == "plan" else (cols, size(r, 12, 1))
    return case(
        n, rows, x, form=form, index=r.choice((torch.int32, torch.int64)), lengths=r.choice(("ragged", "one long"))
    )


def sparse_product(r, **of):
    sizes = {name: size(r, 60, 3) for name in ("rows", "inner", "cols")}
    return case((size(r, 200),), (size(r, 200),), **sizes, **some(r, index=torch.int32, places="band"), **of)


BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")
FLOAT_ROWS = ("mean", "logsumexp", "var", "std")
ROW_OPS = ("sum", "prod", "max", "min", "argmax", "argmin", "any", "all", *FLOAT_ROWS, *BITWISE)
SCAN_OPS = ("sum", "prod", "max", "min", "any", "all", *BITWISE)
PROBLEMS = {
    **dict.fromkeys(("bipolar_sigmoid", "tanh", "relu", "sign"), elementwise),
    "activation_backward": activation_backward,
    "rbf": rbf,
    "rbf_backward": bind(rbf, backward=True),
    "cross_entropy": classified,
    "cross_entropy_backward": bind(classified, backward=True),
    **dict.fromkeys(("squared_error", "absolute_error"), error),
    **dict.fromkeys(("squared_error_backward", "absolute_error_backward"), bind(error, backward=True)),
    "linear": linear,
    "linear_dgrad": bind(linear, kind="dgrad"),
    "linear_wgrad": bind(linear, kind="wgrad"),
    "conv2d": conv,
    **dict.fromkeys(("conv2d_dgrad", "conv2d_wgrad"), bind(conv, bias=False)),
    "avg_pool2d": bind(pool, kind="avg"),
    "avg_pool2d_backward": bind(pool, kind="avg", what="backward"),
    "max_pool2d": bind(pool, kind="max"),
    "max_pool2d_backward": bind(pool, kind="max", what="backward"),
    "max_pool2d_tangent": bind(pool, kind="max"),
    "subsample2d": subsample,
    "subsample2d_backward": bind(subsample, backward=True),
    "reduce": reduce,
    "scan": bind(scan, ops=SCAN_OPS, exclusive=True),
    "scan_with_indices": bind(scan, ops=("max", "min")),
    "linear_recurrence": recurrence,
    "segment_reduce": bind(segments, ops=ROW_OPS),
    **dict.fromkeys(("segment_softmax", "segment_log_softmax"), bind(segments, ops=())),
    "group_reduce": bind(groups, ops=ROW_OPS),
    "group_expand": group_expansion,
    "group_by": grouping,
    "unique": distinct,
    "run_length_encode": runs,
    "reduce_by_key": by_key,
    "partition": split,
    "segment_topk": topk,
    **dict.fromkeys(("segment_matmul", "segment_matmul_wgrad"), segment_product),
    "segment_expand": expansion,
    "segment_scan": bind(segments, ops=SCAN_OPS, reverse=True, exclusive=True),
    "segment_recurrence": bind(segments, ops=(), reverse=True, start=True),
    **dict.fromkeys(("sort", "sort_keys", "argsort"), sort),
    "sort_pairs": bind(sort, tensors=2),
    "lexsort": bind(sort, tensors=3),
    "segment_sort": segment_sort,
    "segment_sort_pairs": bind(segment_sort, tensors=2),
    **dict.fromkeys(("merge", "merge_pairs", "merge_backward"), merge),
    "co_rank": co_rank,
    **dict.fromkeys(("compact", "compact_padded"), compact),
    "compact_backward": unpacking,
    "histogram": histogram,
    "bfs_csr": search,
    "bfs_batched": bind(search, batched=True),
    **{
        f"{kind}_{form}": bind(product, form=form, kind=kind)
        for form in ("coo", "csr", "csc", "ell", "hyb", "jds", "sell", "blocked")
        for kind in ("spmv", "spmm")
    },
    **dict.fromkeys(("spmm_transposed", "sampled_product"), structured),
    "sparse_plan": bind(structured, kind="plan"),
    **{"spgemm": sparse_product, "spgemm_values": lambda r: sparse_product(r, of=r.choice("abc"))},
}


# ---- properties, beside the reference: spec, sample, rung -> what does not hold


def doubled(spec, sample, rung, at: int, kind: str) -> None:
    """A linear operator gives twice the result, to the bit, for twice the argument (where nothing overflows)."""
    if kind == "exact" and sample.args[at].is_floating_point():
        args = list(sample.args)
        args[at] = args[at] * 2
        out, want = spec.op(*args, **sample.kwargs, algorithm=rung), sample(spec.op, algorithm=rung)
        assert_same_bits(out, [y * 2 for y in tensors_of(want)])


def linear_scans(spec, sample, rung, kind: str) -> None:
    if sample.kwargs.get("op", "sum") == "sum":
        doubled(spec, sample, rung, 0, kind)


def turned_round(spec, sample, rung, kind: str) -> None:
    """A scan from the other end is the scan of the elements turned round."""
    linear_scans(spec, sample, rung, kind)
    x, kwargs = sample.args[0], sample.kwargs
    other = {**kwargs, "reverse": not kwargs.get("reverse", False)}
    out, want = (spec.op(t, **k, algorithm=rung) for t, k in ((x.flip(kwargs["dim"]), other), (x, kwargs)))
    assert_same_bits(out.flip(kwargs["dim"]), want) if kind == "exact" else None


def sorted_already(spec, sample, rung, kind: str) -> None:
    """What is sorted stays as it is."""
    once = tensors_of(sample(spec.op, algorithm=rung))[0]
    again = tensors_of(spec.op(once, *sample.args[1:], **sample.kwargs, algorithm=rung))[0]
    assert_same_bits(again, once)


def a_sort_of_both(spec, sample, rung, kind: str) -> None:
    a, b = sample.args
    want = torch.cat([a, b], -1).sort(dim=-1, descending=sample.kwargs.get("descending", False), stable=True)[0]
    assert_same_bits(sample(spec.op, algorithm=rung), want)


def one_level_down(spec, sample, rung, kind: str) -> None:
    """Every edge from a vertex that is reached leads one level down at most."""
    row_ptrs, col_idx = sample.args[:2]
    levels = spec.op(*sample.args[:6], algorithm=rung)[0].long()
    src = torch.repeat_interleave(torch.arange(len(row_ptrs) - 1, device=row_ptrs.device), row_ptrs.long().diff())
    for level in levels.view(-1, levels.shape[-1]):
        here, there = level[src], level[col_idx.long()]
        assert bool(((here < 0) | ((there >= 0) & (there <= here + 1))).all())


PROPERTIES = {
    **{name: bind(doubled, at=0) for name in ("conv2d_dgrad", "linear_dgrad", "segment_expand", "compact_backward")},
    "conv2d_wgrad": bind(doubled, at=1),
    "linear_wgrad": bind(doubled, at=1),
    "segment_reduce": linear_scans,
    "segment_scan": linear_scans,
    "scan": turned_round,
    "reduce": linear_scans,
    **dict.fromkeys(("sort", "sort_keys", "segment_sort"), sorted_already),
    "merge": a_sort_of_both,
    "bfs_csr": one_level_down,
}


# ---- the test


def scattered(x: torch.Tensor, r) -> torch.Tensor:
    """The same elements elsewhere in memory: at an offset, every other one, or with the dimensions turned."""
    way = r.randrange(3)
    if way == 0:
        buffer = x.new_zeros(x.numel() + 7)
        return buffer[(k := r.randrange(1, 8)) : k + x.numel()].view(x.shape).copy_(x)
    if way == 1:
        return torch.stack([x, x], -1)[..., 1]
    return x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() > 1 else x


def test_fuzz(spec, device):
    """Results are the reference's, whatever the rung and the layout; inputs stay as they are; properties hold."""
    for number in range(COUNT):
        r = random.Random(zlib.crc32(f"{SEED} {spec.name} {number}".encode()))
        problem = PROBLEMS[spec.name](r)
        dtype = r.choice([d for d in spec.dtypes if not problem.dtypes or d in problem.dtypes])
        kind, rung = r.choice(("exact", "float")), r.choice([x.name for x in spec.rungs(device)])
        if "quadratic" in next(x.traits for x in spec.rungs(device) if x.name == rung) and problem.size > 200:
            rung = "auto"
        where = described(spec, rung, dtype, kind, problem, f"FUZZ_SEED={SEED}")
        try:
            sample = spec.sample(problem, dtype, device, kind, variant=r.randrange(10**6))
            before = sample.map(torch.clone)
            out = sample(spec.op, algorithm=rung)
            cpu = sample.to("cpu")
            want = cpu(spec.reference)
            bounded = spec.bound and dtype.is_floating_point and (kind == "float" or not spec.exact)
            rough = has_trait(spec, rung, "norm_wise") or (bounded and has_trait(spec, rung, "mixes_neighbours"))
            limit = spec.norm_bound if rough else spec.bound
            bound = cpu(bind(limit, unit_roundoff(dtype))) if bounded or rough else None
            assert_equal(out, want, where) if bound is None else assert_within(out, want, bound, where)
            again = sample.map(lambda x: scattered(x, r))(spec.op, algorithm=rung)  # noqa: B023
            by_blas = rung in ("auto", "gemm") and spec.pattern == "linear"  # whose sums depend on where operands lie
            if bound is not None and (by_blas or has_trait(spec, rung, "float_atomics")):
                assert_within(again, want, bound, where)
            else:
                assert_same_bits(again, out, where)
            assert_same_bits(sample.tensors, before.tensors, where)
            if spec.name in PROPERTIES:
                PROPERTIES[spec.name](spec, sample, rung, kind=kind)
        except Exception as failed:
            failed.add_note(where) if hasattr(failed, "add_note") else None
            raise


def test_every_operator_has_problems():
    assert set(PROBLEMS) == set(testing.specs())
    assert set(PROPERTIES) <= set(PROBLEMS)
