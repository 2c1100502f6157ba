"""The random problems of test_fuzz.py: for every operator a function that makes of a `Random` a case of its Spec."""

import math
from functools import partial as bind

import torch

from torch_patterns import testing
from torch_patterns.testing import case

MOST = 3000  # elements
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 513, 1025)
FLOAT_OPS = ("mean", "logsumexp")
FLOATS, BITS = testing.FLOATS, testing.BITS


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
    n = size(r, 900)
    return case((n, *shape(r, (0, 1), 12, 1)), (n,), **some(r, keep=round(r.random(), 2)))


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
    return case((size(r, 200),), (size(r, 200),), **sizes, **some(r, index=torch.int32, band=True), **of)


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
    "sssp": lambda r: case((size(r, 60, 1) + 1,), (size(r, 300),), (r.randint(1, 4),), **some(r, most=1, cut=True)),
    "triangle_count": lambda r: case((size(r, 60, 1) + 1,), (size(r, 600) // 2 * 2,), **some(r, unsorted=True)),
    **{
        f"{kind}_{form}": bind(product, form=form, kind=kind)
        for form in ("coo", "csr", "csc", "ell", "hyb", "jds", "sell", "blocked")
        for kind in ("spmv", "spmm")
    },
    **dict.fromkeys(("spmm_transposed", "sampled_product"), structured),
    "sparse_plan": bind(structured, kind="plan"),
    "spgemm": sparse_product,
    "spgemm_values": lambda r: sparse_product(r, of=r.choice("abc")),
}
