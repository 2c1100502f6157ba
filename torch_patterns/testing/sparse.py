"""Sparse products in all formats, their gradients, and plans."""

from __future__ import annotations

import numpy as np
import torch

import torch_patterns
from torch_patterns.sparse import FORMATS, Plan
from torch_patterns.testing.compare import gamma
from torch_patterns.testing.sparse_formats import SECTION_ROWS, coordinates, index_arrays, matrix, plan_of
from torch_patterns.testing.spec import FLOATS, Sample, Spec, around, bad, case

DTYPES = (torch.int32, torch.int64, *FLOATS)
GIVES_NO_ROWS = ("coo", "csc")

# ---- spmv and spmm


def product_inputs(form: str):
    def inputs(c, make):
        fields, rows, columns = matrix(form, c, make)
        args = [*fields, *([SECTION_ROWS] if "section_rows" in FORMATS[form]._fields else []), make(c.shapes[2])]
        args += [*([rows] if form in GIVES_NO_ROWS else []), columns if c.kwargs.get("cols") else None]
        if c.kwargs.get("y") or c.kwargs.get("plan"):
            args.append(make((rows, *c.shapes[2][1:])) if c.kwargs.get("y") else None)
        if c.kwargs.get("plan"):
            entries = sum(x.numel() for n, x in zip(FORMATS[form]._fields, fields, strict=False) if "values" in n)
            ptrs, perm, other = plan_of(form, index_arrays(form, fields), rows, columns, entries, form == "csc")
            args += [torch.from_numpy(x).to(fields[0].dtype) for x in (ptrs, np.stack([perm, other]))]
        return Sample(tuple(args), {})

    return inputs


def taken_apart(form: str, args) -> tuple[list, torch.Tensor, int, torch.Tensor | None, tuple | None]:
    """(fields, x, rows, y, plan) of an operator's arguments."""
    n = len(FORMATS[form]._fields) - 1
    fields, x, rest = list(args[:n]), args[n], list(args[n + 1 :])
    if form in GIVES_NO_ROWS:
        rows = rest.pop(0)
    else:
        rows = fields[0].shape[0] - ("ptrs" in FORMATS[form]._fields[0])
    rest += [None] * (4 - len(rest))
    return fields, x, rows, rest[1], tuple(rest[2:4]) if rest[2] is not None else None


def wide(x: torch.Tensor) -> np.ndarray:
    return x.double().numpy().astype(np.longdouble) if x.dtype.is_floating_point else x.numpy().astype(np.int64)


def given_back(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float64 if x.dtype == np.longdouble else np.int64))


def entries_of(form: str, args, absolute: bool = False):
    fields, x, rows, y, _ = taken_apart(form, args)
    tensors = [f for f in fields if isinstance(f, torch.Tensor)]
    r, c, at = coordinates(form, index_arrays(form, tensors), rows)
    names = FORMATS[form]._fields
    values = [wide(f).ravel() for f, n in zip(tensors, names, strict=False) if "values" in n]
    change = np.abs if absolute else np.asarray
    return r, c, change(np.concatenate(values)[at]), change(wide(x)), rows, None if y is None else change(wide(y))


def multiply(r, c, v, x, rows, y) -> np.ndarray:
    out = np.zeros((rows, *x.shape[1:]), np.result_type(v, x))
    with np.errstate(all="ignore"):
        np.add.at(out, r, v.reshape(-1, *(1,) * (x.ndim - 1)) * x[c])
        return out if y is None else out + y


def product_reference(form: str):
    return lambda *args: given_back(multiply(*entries_of(form, args)))


def product_bound(form: str):
    """A row of k entries is rounded k times in its products, and k times in sums, y included."""

    def bound(u, *args):
        r, c, v, x, rows, y = entries_of(form, args, absolute=True)
        lengths = np.bincount(r, minlength=rows).reshape(-1, *(1,) * (x.ndim - 1))
        return given_back(np.asarray(gamma(lengths + 2, u) * multiply(r, c, v, x, rows, y), np.longdouble))

    return bound


def wrapper(form: str, kind: str):
    def call(*args, validate=False, algorithm="auto"):
        fields, x, rows, y, plan = taken_apart(form, args)
        given = args[len(fields) + 1 + (form in GIVES_NO_ROWS)]
        shape = (rows, x.shape[0] if given is None else given)
        if validate:
            a = getattr(torch_patterns, form)(*fields, shape)
        else:
            a = FORMATS[form](*fields, shape)
        plan = plan and Plan(*plan)
        return getattr(torch_patterns, kind)(a, x, y, plan=plan, algorithm=algorithm)

    return call


def bad_products(form: str, kind: str):
    """Calls on a matrix of 3 rows, 4 columns and 5 entries."""
    good, k = case((5,), (3,), (4,) if kind == "spmv" else (4, 2), cols=True), len(FORMATS[form]._fields) - 1
    name, fields = f"{form}: ", FORMATS[form]._fields

    def changed(i, change, dtype=torch.float32):
        def make(device):
            spec_make = torch_patterns.testing.Maker(dtype, "cpu", "exact", 0)
            args = list(product_inputs(form)(good, spec_make).to(device).args)
            args[i] = change(args[i])
            return tuple(args)

        return make

    def poke(at, value):
        def change(t):
            t = t.clone()
            t.view(-1)[at] = value
            return t

        return change

    at_values = [i for i, f in enumerate(fields) if "values" in f][0]
    at_idx = [i for i, f in enumerate(fields) if "_idx" in f][0]
    yield bad("dtype", changed(at_values, lambda t: t.to(torch.complex64)), TypeError, name + ".*Complex")
    yield bad("x", changed(k, lambda t: t[:3]), ValueError, name + ".*(3.*4|4.*3)")
    yield bad("x dims", changed(k, lambda t: t[None, None]), ValueError, name + "x must have")
    notices = "(csc|sparse_plan)" if form == "csc" else form  # on CUDA the wrapper asks for the plan of a CSC first
    short = f"{notices}: {fields[at_idx]}.*Short"
    yield bad("index dtype", changed(at_idx, lambda t: t.to(torch.int16)), TypeError, short)
    yield bad("values", changed(at_values, lambda t: t[..., :-1]), ValueError, name + f"{fields[at_values]}.*shape")
    yield bad("algorithm", changed(0, lambda t: t), ValueError, "'no_such'.*auto", algorithm="no_such")
    limit = {"row": 3, "oct": 1}.get(fields[at_idx][:3], 4)
    for value in (-2, limit, 2**31 - 1):
        message = name + rf"{fields[at_idx]}\[.*0\] is {value}, .*0 to {limit - 1}"
        yield bad(f"index {value}", changed(at_idx, poke(0, value)), IndexError, message, validate=True)
    first = fields[0]
    if "ptrs" in first:
        yield bad("first", changed(0, poke(0, 1)), ValueError, rf"{name}{first}\[0\] is 1", validate=True)
        yield bad("last", changed(0, poke(-1, 4)), ValueError, rf"{name}{first}\[.\] is 4.*5", validate=True)
        yield bad("beyond", changed(0, poke(1, 6)), IndexError, rf"{name}{first}\[1\] is 6.*5", validate=True)
    if "nnz" in first:
        yield bad("too long", changed(0, poke(1, 9)), IndexError, rf"{name}.*row_nnz\[1\] is 9", validate=True)
    if "perm" in first:
        yield bad("perm", changed(0, poke(1, 3)), IndexError, rf"{name}row_perm\[1\] is 3", validate=True)
        twice = changed(0, lambda t: torch.zeros_like(t))
        yield bad("no permutation", twice, ValueError, rf"{name}row_perm\[0\] is 0", validate=True)


def several_blocks(c):
    """Cases of more than one block of columns, or bin of entries, or both."""
    some = {"dtypes": (torch.float32, torch.int64)}
    yield c(300, 40, 50_000, 2, **some)
    yield c(40_000, 900, 2**14 + 1, 1, index=torch.int32, lengths="one long", **some)
    yield c(2**15, 5000, 40_000, 3, lengths="hypersparse", y=True, **some)


def product_spec(form: str, kind: str) -> Spec:
    def c(n, rows, columns, k=None, **kwargs):
        return case((n,), (rows,), (columns,) if kind == "spmv" else (columns, k or 3), **kwargs)

    long = {"lengths": "one long"}
    return Spec(
        f"{kind}_{form}",
        pattern=f"spmv_{form}",
        wrapper=wrapper(form, kind),
        reference=product_reference(form),
        bound=product_bound(form),
        inputs=product_inputs(form),
        dtypes=DTYPES,
        samples=(
            c(11, 6, 5, cols=True),
            c(9, 5, 7, y=form != "hyb", index=torch.int32, **long),
            *((c(8, 4, 5, plan=True),) if form not in ("hyb", "blocked") else ()),
        ),
        edges=(
            *(c(n, n // 7 + 1, n // 5 + 2, 1 + i % 4) for i, n in enumerate(around(32, 256, 1024))),
            c(40, 1, 9, 8),
            c(40, 900, 9, index=torch.int32, lengths="hypersparse"),
            c(700, 300, 41, 33, lengths="one long", y=True),
            c(900, 45, 70, 65, index=torch.int32),
            c(3000, 700, 500, 2, lengths="one long"),
            c(70_000, 5000, 3000, 1, dtypes=(torch.float32, torch.int64)),
            c(40_000, 3, 3000, 2, dtypes=(torch.float32, torch.int64)),
            *(several_blocks(c) if form == "blocked" else ()),
            *((c(30, 5, 6, k) for k in (1, 2, 7, 8, 31, 32, 128)) if kind == "spmm" else ()),
        ),
        empty=(c(0, 0, 0), c(0, 0, 5), c(0, 5, 0, y=True), c(0, 3, 4), *((c(4, 3, 2, 0),) if kind == "spmm" else ())),
        grown=(
            (c(13, 5, 7, 2), c(41, 5, 19, 3))
            if form in GIVES_NO_ROWS
            else (c(17, 7, 11, 4, y=True), c(211, 31, 47, 5, y=True))
        ),
        autocast="float32",
        bad=tuple(bad_products(form, kind)),
        sized=lambda n: c(n, n // 16 + 1, n // 16 + 1, 4),
        flops=lambda sample, y: 2 * y.numel() * sample.tensors[1].numel() // max(y.shape[0], 1),
    )


# ---- the two other products, and plans: of matrices in every format


def structure_inputs(operands):
    """operands(case, make, entries, rows, columns) -> the dense arguments."""

    def inputs(c, make):
        form = c.kwargs["form"]
        fields, rows, columns = matrix(form, c, make)
        structure = [x for n, x in zip(FORMATS[form]._fields, fields, strict=False) if "values" not in n]
        entries = sum(x.numel() for n, x in zip(FORMATS[form]._fields, fields, strict=False) if "values" in n)
        dense = operands(c, make, entries, rows, columns)
        sections = (SECTION_ROWS,) if "section_rows" in FORMATS[form]._fields else (0,)
        args = (form, structure, *dense, rows, columns, *sections)
        if c.kwargs.get("plan"):
            ptrs, perm, other = plan_of(form, index_arrays_of(structure), rows, columns, entries)
            args += tuple(torch.from_numpy(x).to(structure[0].dtype) for x in (ptrs, np.stack([perm, other])))
        return Sample(args, {"by_rows": True} if c.kwargs.get("by_rows") else {})

    return inputs


def index_arrays_of(structure) -> list[np.ndarray]:
    return [x.cpu().numpy().astype(np.int64) for x in structure]


def transposed_entries(form, structure, values, g, rows, columns, absolute=False):
    r, c, at = coordinates(form, index_arrays_of(structure), rows)
    change = np.abs if absolute else np.asarray
    return c, r, change(wide(values)[at]), change(wide(g)), columns, None


def transposed_reference(form, structure, values, g, rows, columns, *_):
    return given_back(multiply(*transposed_entries(form, structure, values, g, rows, columns)))


def transposed_bound(u, form, structure, values, g, rows, columns, *_):
    c, r, v, g, columns, _ = transposed_entries(form, structure, values, g, rows, columns, absolute=True)
    lengths = np.bincount(c, minlength=columns)[:, None]
    return given_back(np.asarray(gamma(lengths + 2, u) * multiply(c, r, v, g, columns, None), np.longdouble))


def sampled_reference(form, structure, g, x, rows, columns, *_, absolute=False):
    r, c, at = coordinates(form, index_arrays_of(structure), rows)
    entries = sum(t.numel() for t, n in zip(structure, index_names(form), strict=True) if n in ("col_idx", "tail"))
    change = np.abs if absolute else np.asarray
    out = np.zeros(entries, np.result_type(wide(g), wide(x)))
    with np.errstate(all="ignore"):
        out[at] = (change(wide(g))[r] * change(wide(x))[c]).sum(1)
    return given_back(out)


def index_names(form: str) -> list[str]:
    """Which of the index tensors are as long as values."""
    names = [n for n in FORMATS[form]._fields if n not in ("section_rows", "shape") and "values" not in n]
    if form == "csc":
        return ["ptrs", "col_idx"]
    return ["tail" if n == "coo_col_idx" else "col_idx" if n in ("col_idx", "ell_col_idx") else n for n in names]


def sampled_bound(u, form, structure, g, x, *rest):
    return gamma(x.shape[1] + 1, u) * sampled_reference(form, structure, g, x, *rest, absolute=True)


def plan_reference(form, structure, rows, columns, sections=0, by_rows=False):
    names = index_names(form)
    entries = sum(t.numel() for t, n in zip(structure, names, strict=True) if n in ("col_idx", "tail"))
    return tuple(map(torch.from_numpy, plan_of(form, index_arrays_of(structure), rows, columns, entries, by_rows)))


def bad_structures(name: str, args):
    def call(form="csr", ptrs=(0, 2, 3), idx=(0, 1, 1), n=3, index=torch.int64):
        def make(device):
            structure = [torch.tensor(t, dtype=index, device=device) for t in (ptrs, idx)]
            return (form, structure, *args(torch.ones(n, device=device), device), 2, 2)

        return make

    yield bad("format", call("bsr"), ValueError, f"{name}: .*'bsr'.*{', '.join(FORMATS)}")
    yield bad("pointers", call(ptrs=(0, 3)), ValueError, f"{name}: row_ptrs has 2.*3")
    yield bad("index dtype", call(index=torch.int16), TypeError, f"{name}: row_ptrs.*Short")
    yield bad("algorithm", call(), ValueError, "'no_such'.*auto", algorithm="no_such")


def structure_cases(*shape, forms=tuple(FORMATS), **kwargs):
    """One case per format."""
    return tuple(
        case(*shape, form=f, index=torch.int32 if i % 2 else torch.int64, **kwargs) for i, f in enumerate(forms)
    )


LONG = {"lengths": "one long"}
STRUCTURES = {
    "edges": (
        *structure_cases((300,), (40,), (50, 33), **LONG),
        *structure_cases((1030,), (90,), (120, 4)),
        *structure_cases((40,), (900,), (9, 3), lengths="hypersparse"),
        case((40_000,), (300,), (200, 3), form="csr", dtypes=(torch.float32,)),
    ),
    "empty": (
        *structure_cases((0,), (3,), (4, 2)),
        *structure_cases((0,), (0,), (0, 2)),
        *structure_cases((5,), (3,), (4, 0)),
    ),
    "grown": tuple(case((n,), (5,), (7, k), form="csr") for n, k in ((13, 2), (41, 3))),
    "sized": lambda n: case((n,), (n // 16 + 1,), (n // 16 + 1, 4), form="csr"),
}

TRANSPOSED = Spec(
    "spmm_transposed",
    pattern="spmv_csr",
    reference=transposed_reference,
    bound=transposed_bound,
    inputs=structure_inputs(lambda c, make, n, rows, columns: (make((n,)), make((rows, *c.shapes[2][1:])))),
    dtypes=FLOATS,
    samples=(
        *structure_cases((11,), (6,), (5, 2), **LONG),
        *structure_cases((9,), (5,), (4, 3), plan=True, forms=("csr", "ell")),
    ),
    bad=tuple(bad_structures("spmm_transposed", lambda v, d: (v, torch.ones(2, 2, device=d)))),
    **STRUCTURES,
)

SAMPLED = Spec(
    "sampled_product",
    wrapper=False,  # which takes a matrix
    reference=sampled_reference,
    bound=sampled_bound,
    inputs=structure_inputs(lambda c, make, n, rows, columns: (make((rows, *c.shapes[2][1:])), make(c.shapes[2]))),
    dtypes=FLOATS,
    samples=structure_cases((11,), (6,), (5, 2), **LONG),
    bad=tuple(bad_structures("sampled_product", lambda v, d: (torch.ones(2, 2, device=d),) * 2)),
    **STRUCTURES,
)

PLAN = Spec(
    "sparse_plan",
    pattern="sort",
    reference=plan_reference,
    inputs=structure_inputs(lambda *_: ()),
    dtypes=(torch.float32,),
    checked=(torch.float32,),
    special=(),
    differentiable=False,
    samples=(
        *structure_cases((11,), (6,), (5,), **LONG),
        *structure_cases((11,), (6,), (5,), by_rows=True),
    ),
    bad=tuple(bad_structures("sparse_plan", lambda v, d: ())),
    **{
        **STRUCTURES,
        "grown": tuple(case((n,), (5,), (7,), form="coo") for n in (13, 41)),
        "sized": lambda n: case((n,), (n // 16 + 1,), (n // 16 + 1,), form="coo"),
    },
)

SPECS = [*(product_spec(form, kind) for form in FORMATS for kind in ("spmv", "spmm")), TRANSPOSED, SAMPLED, PLAN]
