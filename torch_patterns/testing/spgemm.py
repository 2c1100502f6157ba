"""Products of two sparse matrices, and the values of each of the three matrices that they tie together."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.testing.compare import gamma
from torch_patterns.testing.sparse import DTYPES, given_back, wide
from torch_patterns.testing.sparse_formats import lengths_of
from torch_patterns.testing.spec import Sample, Spec, around, bad, case

# ---- matrices: their structure is the same for every sample of a case, so that samples can be stacked


def structure_of(n: int, rows: int, columns: int, seed: int, lengths: str, band: bool) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptrs, col_idx) of n entries, where there can be any."""
    random = np.random.default_rng((n, rows, columns, seed))
    ptrs = np.concatenate([[0], lengths_of(lengths, n if columns else 0, rows).cumsum()])
    row = np.repeat(np.arange(rows), np.diff(ptrs))
    if band:  # one column after another
        cols = (row * columns // max(rows, 1) + np.arange(len(row)) - ptrs[row]) % max(columns, 1)
    else:  # in any order, some of them more than once
        cols = random.integers(0, max(columns, 1), len(row))
    return ptrs, cols


def expanded(a_ptrs, a_idx, b_ptrs, b_idx) -> tuple[np.ndarray, ...]:
    """Of each product: its row, its column, and its entries of A and of B."""
    counts = np.diff(b_ptrs)[a_idx]
    of_a = np.repeat(np.arange(len(a_idx)), counts)
    of_b = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts) + b_ptrs[:-1][a_idx[of_a]]
    row = np.repeat(np.arange(len(a_ptrs) - 1), np.diff(a_ptrs))
    return row[of_a], b_idx[of_b], of_a, of_b


def product_structure(a_ptrs, a_idx, b_ptrs, b_idx, cols) -> tuple[np.ndarray, ...]:
    """(row_ptrs, col_idx) of C, and of each product: its entries of A, B and C."""
    row, col, of_a, of_b = expanded(a_ptrs, a_idx, b_ptrs, b_idx)
    positions, of_c = np.unique(row * max(cols, 1) + col, return_inverse=True)
    ends = np.bincount(positions // max(cols, 1), minlength=len(a_ptrs) - 1).cumsum()
    return np.concatenate([[0], ends]), positions % max(cols, 1), of_a, of_b, of_c.ravel()


def arrays(*tensors: torch.Tensor) -> list[np.ndarray]:
    return [t.numpy().astype(np.int64) for t in tensors]


def matrices(c) -> tuple[list[np.ndarray], int]:
    """(row_ptrs, col_idx) of A and of B, and the number of columns."""
    (n,), (m,) = c.shapes
    rows, inner, cols = c.kwargs["rows"], c.kwargs["inner"], c.kwargs["cols"]
    kinds = c.kwargs.get("lengths", "ragged"), c.kwargs.get("band", False)
    return [*structure_of(n, rows, inner, 1, *kinds), *structure_of(m, inner, cols, 2, *kinds)], cols


def inputs(c, make):
    index, cols = matrices(c)
    a, b = index[:2], index[2:]
    dtype = c.kwargs.get("index", torch.int64)
    a, b = ([*(torch.from_numpy(x).to(dtype) for x in m), make((len(m[1]),))] for m in (a, b))
    return Sample((*a, *b, cols), {})


def values_inputs(c, make):
    index, cols = matrices(c)
    of, dtype = c.kwargs["of"], c.kwargs.get("index", torch.int64)
    index += product_structure(*index, cols)[:2]
    values = [make((len(x),)) for name, x in zip("abc", index[1::2], strict=True) if name != of]
    return Sample((of, *(torch.from_numpy(x).to(dtype) for x in index), *values, cols), {})


# ---- references


def summed(to: np.ndarray, terms: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, terms.dtype)
    with np.errstate(all="ignore"):
        np.add.at(out, to, terms)
    return out


def product_reference(a_ptrs, a_idx, a, b_ptrs, b_idx, b, cols, bound=None):
    ptrs, idx, of_a, of_b, of_c = product_structure(*arrays(a_ptrs, a_idx, b_ptrs, b_idx), cols)
    change = np.asarray if bound is None else np.abs
    with np.errstate(all="ignore"):
        values = summed(of_c, change(wide(a))[of_a] * change(wide(b))[of_b], len(idx))
    if bound is None:
        return given_back(values), torch.from_numpy(ptrs), torch.from_numpy(idx)
    error = gamma(np.bincount(of_c, minlength=len(idx)) + 1, bound) * values
    return given_back(np.asarray(error, np.longdouble)), torch.zeros(len(ptrs)), torch.zeros(len(idx))


def values_reference(of, a_ptrs, a_idx, b_ptrs, b_idx, c_ptrs, c_idx, x, y, cols, bound=None):
    index = arrays(a_ptrs, a_idx, b_ptrs, b_idx)
    *_, of_a, of_b, of_c = product_structure(*index, cols)
    entries = {"a": of_a, "b": of_b, "c": of_c}
    to, size = entries.pop(of), {"a": a_idx, "b": b_idx, "c": c_idx}[of].numel()
    change = np.asarray if bound is None else np.abs
    with np.errstate(all="ignore"):
        terms = change(wide(x))[next(iter(entries.values()))] * change(wide(y))[list(entries.values())[1]]
    values = summed(to, terms, size)
    if bound is not None:
        values = np.asarray(gamma(np.bincount(to, minlength=size) + 1, bound) * values, np.longdouble)
    return given_back(values)


# ---- bad input


def arguments(op: str):
    """device -> the product of [[1, 1, 0], [0, 1, 0]] and three rows of two, with some of it replaced."""

    def make(
        a_idx=(0, 1, 1), a_ptrs=(0, 2, 3), b_idx=(0, 1, 1), a_values=3, b_dtype=torch.float32, b_index=torch.int64
    ):
        def call(device):
            index = [torch.tensor(x, device=device) for x in (a_ptrs, a_idx)]
            index += [torch.tensor(x, device=device, dtype=b_index) for x in ((0, 1, 2, 3), b_idx)]
            a, b = torch.ones(a_values, device=device), torch.ones(3, device=device, dtype=b_dtype)
            if op == "spgemm":
                return *index[:2], a, *index[2:], b, 2
            c = [torch.tensor(x, device=device) for x in ((0, 2, 3), (0, 1, 1))]
            return "c", *index, *c, a, b, 2

        return call

    return make


def bad_calls(op: str):
    call = arguments(op)
    yield bad("pointers", call(a_ptrs=(0, 3, 2)), ValueError, f"{op}.*row_ptrs.*2")
    yield bad("column of A", call(a_idx=(0, 3, 1)), IndexError, r"col_idx\[1\] is 3.*0 to 2")
    yield bad("column of B", call(b_idx=(0, 1, -1)), IndexError, r"col_idx\[2\] is -1.*0 to 1")
    yield bad("shapes", call(a_values=4), ValueError, rf"{op}: .* has shape \[4\].*\[3\]")
    yield bad("dtypes", call(b_dtype=torch.float64), TypeError, f"{op}: values of Float and of Double")
    yield bad("indices", call(b_index=torch.int32), TypeError, f"{op}: B: indices are Int.*Long")
    yield bad("algorithm", call(), ValueError, "'no_such'.*auto", algorithm="no_such")


# ---- Specs


def problem(n: int, m: int, rows: int, inner: int, cols: int, **kwargs):
    return case((n,), (m,), rows=rows, inner=inner, cols=cols, **kwargs)


def flops(sample, out) -> int:
    a_ptrs, a_idx, b_ptrs = [x for x in sample.tensors if not x.is_floating_point()][:3]
    return 2 * int(b_ptrs.diff()[a_idx.long()].sum())


LONG, BAND = {"lengths": "one long"}, {"band": True}
SAMPLES = (
    problem(9, 8, 4, 3, 5),
    problem(12, 10, 5, 4, 6, index=torch.int32, **LONG, **BAND),
    problem(5, 6, 3, 9, 1),
)
EDGES = (
    *(problem(n, n // 2, n // 7 + 1, n // 9 + 2, n // 3) for n in around(64, 256)),
    problem(40, 60, 1, 9, 8),
    problem(40, 60, 900, 9, 8, lengths="hypersparse", index=torch.int32),
    problem(300, 200, 40, 50, 70, **LONG),
    problem(300, 200, 20, 15, 4000, **BAND, index=torch.int32),
    problem(60, 90, 20, 15, 600_000, index=torch.int32),  # several words at the top of the tree of columns
    problem(60, 90, 20, 15, 1 << 40),  # much wider than there are entries
    problem(2000, 2300, 150, 200, 500, **LONG),
    problem(30_000, 30_000, 1500, 1500, 3000, dtypes=(torch.float32, torch.int64)),
    problem(30_000, 30_000, 1500, 1500, 3000, dtypes=(torch.float32,), **LONG, **BAND, index=torch.int32),
)
EMPTY = (problem(0, 0, 0, 0, 0), problem(0, 7, 3, 4, 5), problem(6, 0, 3, 4, 5), problem(0, 0, 4, 0, 3))
COMMON = {"pattern": "spgemm", "wrapper": False, "dtypes": DTYPES}  # the wrapper takes matrices


def of_each(cases):
    """Each case for one of the matrices in turn."""
    return tuple(problem_of(c, "abc"[i % 3]) for i, c in enumerate(cases))


def problem_of(c, of: str):
    return case(*c.shapes, dtypes=c.dtypes, **c.kwargs, of=of)


PRODUCT = Spec(
    "spgemm",
    reference=product_reference,
    bound=lambda u, *args: product_reference(*args, bound=u),
    inputs=inputs,
    samples=SAMPLES,
    edges=EDGES,
    empty=EMPTY,
    grown=(problem(7, 11, 4, 3, 6), problem(29, 41, 13, 17, 6)),
    dynamic=True,
    bad=tuple(bad_calls("spgemm")),
    sized=lambda n: problem(n, n, n // 16 + 1, n // 16 + 1, n // 8 + 1),
    **COMMON,
)

VALUES = Spec(
    "spgemm_values",
    reference=values_reference,
    bound=lambda u, *args: values_reference(*args, bound=u),
    inputs=values_inputs,
    samples=tuple(problem_of(c, of) for c in SAMPLES[:2] for of in "abc"),
    edges=(*of_each(EDGES), *of_each(EDGES[1:]), *of_each(EDGES[2:])),
    empty=of_each((*EMPTY, *EMPTY[1:])),
    grown=(problem(7, 11, 4, 3, 6, of="c"), problem(29, 41, 13, 17, 6, of="c")),
    bad=tuple(bad_calls("spgemm_values")),
    sized=lambda n: problem(n, n, n // 16 + 1, n // 16 + 1, n // 8 + 1, of="b"),
    **COMMON,
)

SPECS = [PRODUCT, VALUES]
