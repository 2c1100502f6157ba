"""Groups by an index, distinct values, runs of equal keys."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.testing.compare import gamma
from torch_patterns.testing.reduction import BITWISE, LOGICAL
from torch_patterns.testing.segmented import given_back, reduced, rounding, wide
from torch_patterns.testing.spec import ALL, BITS, FLOATS, Sample, Spec, around, bad, case

SIZES = (1, 7, 33, 257, *around(2304))
OPS = ("sum", "prod", "max", "min", "mean", "argmax", "argmin")

# ---- group_reduce and group_expand: the last shape of a case is [groups]


def reduce_inputs(case, make):
    kwargs, shape, (groups,) = dict(case.kwargs), *case.shapes
    index = make.indices(shape[:1], groups).to(kwargs.pop("index", torch.int64))
    x = make.factors(shape, zeros=0.1 / max(case.size, 1)) if kwargs.get("op") == "prod" else make(shape)
    return Sample((x, index, groups), kwargs)


def reduce_reference(values, index, groups, op="sum"):
    """numpy over the rows of each group, in int64 or long double."""
    x, i = wide(values), index.numpy()
    result = np.zeros((groups, *values.shape[1:]), np.int64 if op.startswith("arg") else x.dtype)
    with np.errstate(all="ignore"):
        for g in range(groups):
            (own,) = np.nonzero(i == g)
            found = reduced(x[own], op, values.dtype)
            result[g] = own[found] if op.startswith("arg") and len(own) else found
    return given_back(result)


def reduce_bound(u, values, index, groups, op="sum"):
    if op in ("max", "min", "argmax", "argmin", *LOGICAL, *BITWISE):
        return None
    order = index.long().sort(stable=True)[1]
    counts = torch.bincount(index.long(), minlength=groups)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])

    def of_sorted(x, offsets, op="sum"):
        return reduce_reference(x, torch.arange(groups).repeat_interleave(offsets.diff()), groups, op)

    found = rounding(u, values[order], offsets, op, of_sorted)
    if found is not None or op not in ("sum", "prod", "mean") or bool((values == values.round()).all()):
        return found
    size = reduce_reference(values.double().abs(), index, groups, op)
    return gamma(counts.double().reshape(-1, *(1,) * (values.dim() - 1)) + 1, u) * size


def expand_inputs(case, make):
    kwargs, (n,), shape = dict(case.kwargs), *case.shapes
    return Sample((make(shape), make.indices((n,), shape[0]).to(kwargs.pop("index", torch.int64))), kwargs)


def ones(*shape) -> torch.Tensor:
    return torch.ones(shape)


def both(a: torch.Tensor, b: torch.Tensor):
    return lambda device: (a.to(device), b.to(device))


def by_index_add(values, index, groups, op="sum"):
    if op != "sum" or not values.is_floating_point():
        return NotImplemented
    return values.new_zeros(groups, *values.shape[1:]).index_add(0, index, values)


def by_scatter_reduce(values, index, groups, op="sum"):
    names = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin", "mean": "mean"}
    if op not in names or values.dim() > 1 or not values.is_floating_point():
        return NotImplemented
    return values.new_zeros(groups).scatter_reduce(0, index, values, names[op], include_self=False)


def wrong(values=lambda d: torch.ones(3, device=d), index=(0, 1, 1), dtype=torch.int64, groups=2):
    return lambda d: (values(d), torch.tensor(index, dtype=dtype, device=d), *([] if groups is None else [groups]))


def bad_index(name: str, groups) -> tuple:
    return (
        bad("float index", wrong(dtype=torch.float32, groups=groups), TypeError, f"{name}: index .*Float"),
        bad("matrix", wrong(index=((0, 1, 1),), groups=groups), ValueError, rf"{name}: index .*\[1, 3\]"),
        bad("negative", wrong(index=(0, -1, 1), groups=groups), IndexError, r"index\[1\] is -1", validate=True),
        bad("beyond", wrong(index=(0, 1, 9), groups=groups), IndexError, r"index\[2\] is 9", validate=True),
        bad("dtype", wrong(lambda d: torch.ones(3, device=d).cfloat(), groups=groups), TypeError, f"{name}: .*Complex"),
        bad(
            "algorithm", wrong(groups=groups), ValueError, f"{name}: .*'no_such'.*auto", algorithm="no_such"
        ),
    )  # fmt: skip


REDUCE = Spec(
    "group_reduce",
    pattern="segment_reduce",
    reference=reduce_reference,
    inputs=reduce_inputs,
    bound=reduce_bound,
    exact=False,  # logsumexp, var and std; the bound says which are
    dtypes=ALL,
    samples=(
        case((7,), (3,)),
        case((9, 3), (5,), op="prod", index=torch.int32),
        case((8, 2, 2), (4,), op="max"),
        case((11,), (7,), op="min"),
        case((12, 2), (3,), op="mean", dtypes=FLOATS),
        case((12,), (3,), op="logsumexp", dtypes=FLOATS),
        case((40,), (3,), op="var", dtypes=FLOATS),
        case((9, 2), (4,), op="argmax"),
    ),
    edges=(
        *(case((n,), (i * i + 1,), op=OPS[i % 4]) for i, n in enumerate(SIZES)),
        *(case((300, width), (g,), op=op) for width, g, op in ((3, 40, "sum"), (33, 2, "max"), (64, 300, "min"))),
        *(case((300,), (g,), op=op, dtypes=ALL) for op in ("argmax", "argmin") for g in (2, 40)),
        *(case((300,), (40,), op=op, dtypes=BITS) for op in BITWISE),
        *(case((300, 2), (40,), op=op, dtypes=ALL) for op in LOGICAL),
        *(case((300, 2), (4,), op=op, dtypes=FLOATS) for op in ("std", "logsumexp", "mean")),
        *(case((1000,), (g,)) for g in (1, 254, 255, 256, 257, 4000)),
        case((1000,), (70_000,), dtypes=(torch.float32,)),
        case((1000,), (6000,), op="max"),
    ),
    empty=(case((0,), (0,)), case((0, 3), (4,), op="max"), case((4, 0), (3,), op="min"), case((0,), (3,), op="prod")),
    grown=(case((8, 3), (5,), op="prod"), case((21, 7), (5,), op="prod")),
    autocast=lambda case: None if case.kwargs.get("op", "sum").endswith(("max", "min")) else "float32",
    bad=(
        *bad_index("group_reduce", 2),
        bad("scalar", wrong(lambda d: torch.ones((), device=d)), ValueError, "group_reduce: values .*scalar"),
        bad("length", wrong(lambda d: torch.ones(4, device=d)), ValueError, "group_reduce: values has 4 rows"),
        bad("groups", wrong(groups=-1), ValueError, "group_reduce: num_groups .*-1"),
        bad("op", wrong(), ValueError, "group_reduce: .*'median'.*sum.*argmin", op="median"),
        bad("bits", wrong(), TypeError, "group_reduce: .*bitwise_or.*Float", op="bitwise_or"),
    ),
    sized=lambda n: case((n,), (n // 16 + 1,)),
    named={
        f"{n} to {g} groups": case((2**p,), (2**q,))
        for n, p in (("2^26", 26), ("2^24", 24))
        for g, q in (("16", 4), ("2^10", 10), ("2^20", 20))
    },
    peers={"index_add": by_index_add, "scatter_reduce": by_scatter_reduce},
    flops=lambda sample, y: sample.args[0].numel(),
)

EXPAND = Spec(
    "group_expand",
    pattern="segment_reduce",
    reference=lambda x, index: given_back(wide(x)[index.numpy()]),
    inputs=expand_inputs,
    dtypes=ALL,
    samples=(case((7,), (3,)), case((9,), (4, 3), index=torch.int32), case((5,), (6, 2, 2))),
    edges=(*(case((n,), (i * i + 1, 2)) for i, n in enumerate(SIZES)),),
    empty=(case((0,), (0,)), case((0,), (3, 2)), case((4,), (3, 0))),
    grown=(case((8,), (4, 3)), case((21,), (11, 7))),
    bad=(
        *bad_index("group_expand", None)[:2],
        bad("beyond", both(ones(2), torch.tensor([0, 2])), IndexError, r"_expand: index\[1\] is 2", validate=True),
        bad("scalar", both(ones(), torch.tensor([0])), ValueError, "group_expand: x .*scalar"),
        bad("dtype", both(ones(3).cfloat(), torch.tensor([0])), TypeError, "group_expand: .*Complex"),
        bad("algorithm", wrong(groups=None), ValueError, "group_expand: .*'no_such'.*auto", algorithm="no_such"),
    ),
    sized=lambda n: case((n,), (n // 16 + 1,)),
    peers={"torch": lambda x, index: x[index]},
)


# ---- group_by


def by_argsort(index, groups):
    ends = torch.bincount(index, minlength=groups).cumsum(0)
    return index.argsort(stable=True), torch.cat([ends.new_zeros(1), ends])


def by_inputs(case, make):
    kwargs, (n,), (groups,) = dict(case.kwargs), *case.shapes
    return Sample((make.indices((n,), groups).to(kwargs.pop("index", torch.int64)), groups), kwargs)


def by_reference(index, groups):
    i = index.numpy()
    counts = np.bincount(i.astype(np.int64), minlength=groups) if groups else np.zeros(0, np.int64)
    return torch.from_numpy(np.argsort(i, kind="stable")), torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))


GROUP_BY = Spec(
    "group_by",
    pattern="sort",
    reference=by_reference,
    inputs=by_inputs,
    dtypes=(torch.int64,),  # of the index, which a case may make int32
    samples=(case((7,), (3,)), case((9,), (5,), index=torch.int32), case((4,), (40,))),
    edges=(
        *(case((n,), (i * i + 1,)) for i, n in enumerate(SIZES)),
        *(case((500,), (g,), index=torch.int32) for g in (1, 255, 256, 257, 32_767, 32_768, 70_000)),
    ),
    empty=(case((0,), (0,)), case((0,), (3,))),
    grown=(case((8,), (5,)), case((21,), (5,))),
    differentiable=False,
    bad=(
        *(
            bad(b.name, lambda d, make=b.make: make(d).args[1:], b.error, b.message, **b.make("cpu").kwargs)
            for b in (*bad_index("group_by", 2)[:4], bad_index("group_by", 2)[5])
        ),
        bad("groups", lambda d: (torch.tensor([0], device=d), -1), ValueError, "group_by: num_groups .*-1"),
    ),
    sized=lambda n: case((n,), (n // 16 + 1,)),
    peers={"torch": by_argsort},
)


# ---- unique, run_length_encode, reduce_by_key: as many runs in every variant of a case, given by its last shape


def few_values(make, n: int, distinct: int) -> torch.Tensor:
    """Makes n values, `distinct` of which are distinct, in a random order."""
    distinct = min(distinct, n, 2 if make.dtype == torch.bool else 100)
    values = torch.arange(n) % max(distinct, 1)
    return values[torch.randperm(n, generator=make.random)].to(make.dtype)


def unique_inputs(case, make):
    (shape, (distinct,)) = case.shapes
    return Sample((few_values(make, torch.Size(shape).numel(), distinct).reshape(shape),), dict(case.kwargs))


def unique_reference(x, return_inverse=False, return_counts=False):
    values, inverse, counts = np.unique(wide(x), return_inverse=True, return_counts=True)
    none = torch.zeros(0, dtype=torch.int64)
    return (
        given_back(values),
        torch.from_numpy(inverse).reshape(x.shape) if return_inverse else none,
        torch.from_numpy(counts) if return_counts else none,
    )


def refused_line(name: str, more=()) -> tuple:
    made = [torch.ones(2, 3), torch.ones(3).cfloat(), torch.ones(3)]
    others = [[torch.ones(len(x))] * len(more) for x in made]
    errors = ((ValueError, rf"{name}: .*\[2, 3\]|2, 3"), (TypeError, f"{name}: .*Complex"))
    return (
        *(
            bad(what, lambda d, x=x, o=o: tuple(t.to(d) for t in (x, *o)), *error)
            for what, x, o, error in zip(("matrix", "dtype"), made, others, errors, strict=False)
        ),
        bad(
            "algorithm",
            lambda d: tuple(t.to(d) for t in (made[2], *others[2])),
            ValueError,
            "'no_such'",
            algorithm="no_such",
        ),
    )


ASKED = {"return_inverse": True, "return_counts": True}
UNIQUE = Spec(
    "unique",
    pattern="sort",
    reference=unique_reference,
    inputs=unique_inputs,
    dtypes=ALL,
    samples=(case((7,), (3,), **ASKED), case((4, 5), (9,), **ASKED)),
    edges=(
        *(case((n,), (i * 3 + 1,), **ASKED) for i, n in enumerate(SIZES)),
        case((300,), (300,), **ASKED, dtypes=(torch.float32, torch.int64)),
        case((70_000,), (90,), **ASKED, dtypes=ALL),
    ),
    empty=(case((0,), (1,), **ASKED), case((3, 0), (1,), **ASKED)),
    grown=(case((8,), (3,), **ASKED), case((21,), (3,), **ASKED)),
    special=(),  # no two NaN are equal, in whatever order they come
    differentiable=False,
    dynamic=True,
    bad=refused_line("unique")[1:],
    sized=lambda n: case((n,), (100,), **ASKED),
    named={"2^26 of 100": case((2**26,), (100,), return_counts=True)},
    peers={"torch": lambda x, **asked: torch.unique(x, **asked)},
)


def in_runs(make, n: int, runs: int) -> torch.Tensor:
    """Makes n values in `runs` runs of random lengths."""
    runs = min(runs, n)
    cuts = torch.randperm(max(n - 1, 0), generator=make.random)[: max(runs - 1, 0)].sort()[0] + 1
    number = torch.zeros(n, dtype=torch.int64)
    number[cuts] = 1
    return (number.cumsum(0) % 2).to(make.dtype)


def runs_of(x) -> np.ndarray:
    """Returns where runs begin, and the end."""
    v = wide(x)
    heads = np.concatenate([[True] * min(len(v), 1), v[1:] != v[:-1]]).astype(bool)
    return np.append(np.nonzero(heads)[0], len(v))


def encode_reference(x):
    bounds = runs_of(x)
    return given_back(wide(x)[bounds[:-1]]), torch.from_numpy(np.diff(bounds))


ENCODE = Spec(
    "run_length_encode",
    pattern="compact",
    reference=encode_reference,
    inputs=lambda case, make: Sample((in_runs(make, case.shapes[0][0], case.shapes[1][0]),), {}),
    dtypes=ALL,
    samples=(case((7,), (3,)), case((12,), (12,)), case((9,), (1,))),
    edges=tuple(case((n,), (i * 5 + 1,)) for i, n in enumerate(SIZES)),
    empty=(case((0,), (1,)),),
    grown=(case((8,), (3,)), case((21,), (3,))),
    dynamic=True,
    differentiable=False,  # the neighbours of a value decide whether it counts: checked in tests/test_groups.py
    special=(),
    bad=refused_line("run_length_encode"),
    sized=lambda n: case((n,), (n // 16 + 1,)),
    peers={"torch": lambda x: torch.unique_consecutive(x, return_counts=True)},
)


def by_key_inputs(case, make):
    shape, (runs,) = case.shapes
    kwargs = dict(case.kwargs)
    values = make.factors(shape) if kwargs.get("op") == "prod" else make(shape)
    return Sample((in_runs(make, shape[0], runs).to(torch.int64), values), kwargs)


def by_key_reference(keys, values, op="sum"):
    bounds, x = runs_of(keys), wide(values)
    with np.errstate(all="ignore"):
        parts = [
            reduced(x[a:b], op, values.dtype) + (a if op.startswith("arg") else 0)
            for a, b in zip(bounds[:-1], bounds[1:], strict=True)
        ]
    combined = np.stack(parts) if parts else np.zeros((0, *values.shape[1:]), x.dtype)
    return keys[torch.from_numpy(bounds[:-1])], given_back(combined.astype(x.dtype))


def by_key_bound(u, keys, values, op="sum"):
    count = torch.full((), len(keys), dtype=torch.float64)
    size = by_key_reference(keys, values.double().abs(), op)[1]
    return torch.zeros(len(runs_of(keys)) - 1), gamma(count + 1, u) * size


BY_KEY = Spec(
    "reduce_by_key",
    pattern="segment_reduce",
    reference=by_key_reference,
    inputs=by_key_inputs,
    bound=by_key_bound,
    dtypes=ALL,
    samples=(case((7,), (3,)), case((12, 2), (4,), op="max"), case((9,), (9,), op="prod")),
    edges=tuple(case((n,), (i * 5 + 1,), op=OPS[i % 4]) for i, n in enumerate(SIZES)),
    empty=(case((0,), (1,)), case((3, 0), (2,))),
    grown=(case((8, 3), (3,)), case((21, 7), (3,))),
    dynamic=True,
    autocast=lambda case: None if case.kwargs.get("op", "sum").endswith(("max", "min")) else "float32",
    # It is, but opcheck adds results up in the dtype of the first, an integer: checked in tests/test_groups.py.
    differentiable=False,
    bad=(
        bad("matrix", both(ones(2, 3), ones(2)), ValueError, "reduce_by_key: keys"),
        bad("rows", both(ones(3), ones(2)), ValueError, "reduce_by_key: values .*3"),
        bad("dtype", both(ones(3), ones(3).cfloat()), TypeError, "Complex"),
        bad("op", both(ones(3), ones(3)), ValueError, "reduce_by_key: .*'median'.*sum", op="median"),
        bad("algorithm", both(ones(3), ones(3)), ValueError, "'no_such'", algorithm="no_such"),
    ),
    sized=lambda n: case((n,), (n // 16 + 1,)),
)

SPECS = [REDUCE, EXPAND, GROUP_BY, UNIQUE, ENCODE, BY_KEY]
