"""Products of sparse matrices with vectors and dense matrices, their plans, and their gradients for torch.func."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from torch_patterns.arguments import typed
from torch_patterns.batching import front
from torch_patterns.functional import differentiable, transforms_active
from torch_patterns.sparse.containers import FORMATS, HYB, SELL, Matrix, format_of, index_fields
from torch_patterns.sparse.stages import pay, stages

_ops = torch.ops.torch_patterns
_GIVES_NO_ROWS, _HAS_COORDINATES = ("coo", "csc"), ("coo", "hyb")  # the formats


class Plan(NamedTuple):
    """How the entries lie from the other side, by columns (for CSC, by rows): of row i of the transpose, entries
    perm[0, ptrs[i]] to perm[0, ptrs[i + 1] - 1], whose columns are beside them in perm[1]. Further rows of perm, if
    there are any, lead CUDA the same way by another route."""

    ptrs: Tensor
    perm: Tensor


_pytree._register_namedtuple(Plan, serialized_type_name="torch_patterns.Plan")
torch.serialization.add_safe_globals([Plan])


@typed
def spmv(a: Matrix, x: Tensor, y: Tensor | None = None, *, plan: Plan | None = None, algorithm: str = "auto") -> Tensor:
    """The product A x, or A x + y, of a sparse matrix in any format and a vector (chapter 14, Fig. 14.2).

    Differentiable to every order, in the values, x and y: the gradient of the values has one element an entry (0 for
    padding), that of x is the transposed product, which goes through a plan. Padding is never read as data: x may be
    NaN where no entry points.

    While gradients of x are wanted, the plan is made at the first call and kept as long as the index tensors live and
    their versions stay; writes that torch does not track (``.data``, numpy, DLPack) go unnoticed. Inference tensors,
    compiled code, torch.func and the capture of a CUDA graph keep none: give ``a.plan()`` where time matters. Of
    coordinates (COO, HYB) on CUDA it is kept whether their rows are sorted: the first call waits for the device, as
    ``a.plan()`` may.

    Args:
        a: [rows, cols], in any format.
        x: [cols]; of another dtype than the values, both are promoted as in torch.
        y: [rows].
        plan: ``a.plan()``.
        algorithm: ``"auto"`` (deterministic) or one that ``torch_patterns.algorithms("spmv_<format>")`` lists.

    Returns:
        [rows], new. Half types add in float32; under autocast sums run in and return float32.

    Raises:
        ValueError: shapes do not fit, or the algorithm is unknown or not offered by the device.
        IndexError: on the CPU, an index is out of range; CUDA skips such an entry.
        TypeError: a dtype is not supported.
        RuntimeError: devices differ.
    """
    return _multiply("spmv", a, x, y, plan, algorithm)


@typed
def spmm(a: Matrix, x: Tensor, y: Tensor | None = None, *, plan: Plan | None = None, algorithm: str = "auto") -> Tensor:
    """The product A X, or A X + Y, of a sparse matrix and a dense one: :func:`spmv` of k columns at once.

    Args:
        a: [rows, cols], in any format.
        x: [cols, k].
        y: [rows, k].
        plan, algorithm: as for :func:`spmv`.

    Returns:
        [rows, k], new and contiguous.

    Raises:
        ValueError, IndexError, TypeError, RuntimeError: as :func:`spmv`.
    """
    return _multiply("spmm", a, x, y, plan, algorithm)


def make_plan(a: Matrix) -> Plan:
    """The plan of the transposed product of a matrix, and so of the gradient of x; of CSC, that of its rows.

    It is a stable sort of the entries by column, and holds for every matrix with the same index tensors. On CUDA, from
    2^24 entries on, the host waits for the device, unless code is compiled or a graph captured, and the plan may take
    20 bytes an entry with int32 indices, 32 with int64.
    """
    sections = a.section_rows if isinstance(a, SELL) else 0
    by_rows = format_of(a) == "csc"
    structure = [getattr(a, name) for name in index_fields(a)]
    ptrs, perm, other = _ops.sparse_plan(format_of(a), structure, *a.shape, sections, by_rows)
    both = torch.stack([perm, other])
    return Plan(ptrs, torch.cat([both, stages(perm, other)]) if pay(perm) else both)


def arguments(
    a: Matrix,
    x: Tensor,
    y: Tensor | None = None,
    plan: Plan | None = None,
    *,
    validate: bool = False,
    row_sorted: bool = False,
    algorithm: str = "auto",
) -> list:
    """The arguments of torch.ops.torch_patterns.spmv_<format> and spmm_<format>."""
    is_sorted = [row_sorted] if format_of(a) in _HAS_COORDINATES else []
    return [*_first_arguments(a, x), y, *(plan or (None, None)), validate, *is_sorted, algorithm]


def _first_arguments(a: Matrix, x: Tensor) -> tuple:
    """Those without a default."""
    *fields, shape = a
    return (*fields, x, *(shape if format_of(a) in _GIVES_NO_ROWS else shape[1:]))


def _multiply(kind: str, a: Matrix, x: Tensor, y: Tensor | None, plan: Plan | None, algorithm: str) -> Tensor:
    name = f"{kind}_{format_of(a)}"
    transformed = transforms_active()
    if y is plan is None and algorithm == "auto" and not (x.is_cuda or x.requires_grad or transformed):
        return _operators[name](*_first_arguments(a, x))  # each argument more takes a tenth of a microsecond
    keeps = not (transformed or torch.compiler.is_compiling())
    if plan is None and keeps and _wants_plan(a, x):
        plan = _kept(a, "plan", make_plan)
    is_sorted = keeps and x.is_cuda and format_of(a) in _HAS_COORDINATES and _kept(a, "sorted", _rows_sorted)
    args = arguments(a, x, y, plan, row_sorted=bool(is_sorted), algorithm=algorithm)
    return _products[name](*_promoted(a, args)) if transformed else _operators[name](*args)


def _wants_plan(a: Matrix, x: Tensor) -> bool:
    if format_of(a) == "csc":
        return x.is_cuda
    return torch.is_grad_enabled() and x.requires_grad


# ---- what is kept of a matrix, by its index tensors

_memory = WeakTensorKeyDictionary()


def _rows_sorted(a: Matrix) -> bool:
    rows = a.coo_row_idx if isinstance(a, HYB) else a.row_idx
    return bool((rows[1:] >= rows[:-1]).all())


def _kept(a: Matrix, what: str, make):
    """make(a), or what it gave for these index tensors; None where nothing can be kept."""
    index = [getattr(a, name) for name in index_fields(a)]
    if any(t.is_inference() for t in index) or (index[0].is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    versions = (format_of(a), tuple(a.shape), tuple(t._version for t in index))
    known = _memory.setdefault(index[0], {})
    found = known.get(what)
    if found and found[0] == versions and all(ref() is t for ref, t in zip(found[1], index[1:], strict=True)):
        return found[2]
    with torch.no_grad():
        value = make(a)
    known[what] = (versions, [TensorWeakRef(t) for t in index[1:]], value)
    return value


# ---- gradient formulas for torch.func; csrc/torch/sparse_gradients.cpp explains them

_N = 8  # arguments of the bilinear functions before the structure


def _bilinear(op):
    """An operator on a structure with its tensors as arguments of their own."""
    return lambda first, second, form, rows, cols, sections, ptrs, perm, *structure: op(
        form, list(structure), first, second, rows, cols, sections, ptrs, perm
    )


def _product(values, x, form, rows, cols, sections, ptrs, perm, *structure):
    """The product by flat values."""
    cls, rest, fields = FORMATS[form], list(structure), []
    start = 0
    for name in cls._fields[:-1]:
        if name == "section_rows":
            fields.append(sections)
        elif "values" in name:
            like = fields[-1]
            fields.append(values.narrow(0, start, like.numel()).view(like.shape))
            start += like.numel()
        else:
            fields.append(rest.pop(0))
    plan = None if ptrs is None or form == "csc" else (ptrs, perm)
    return _products[f"spmm_{form}"](*arguments(cls(*fields, (rows, cols)), x, None, plan))


def _transposed_backward(inputs, _, h):
    values, g, *rest = inputs
    return _sampled(g, h, *rest), _product(values, h, *rest), *(None,) * len(rest)


def _sampled_backward(inputs, _, h):
    g, x, *rest = inputs
    return _product(h, x, *rest), _transposed(h, g, *rest), *(None,) * len(rest)


def _product_backward(kind: str, form: str):
    cls = FORMATS[form]
    n = len(cls._fields) - 1
    at_values = [i for i, name in enumerate(cls._fields) if "values" in name]

    def backward(inputs, _, g):
        x = inputs[n]
        values = [inputs[i] for i in at_values]
        structure = [t for i, t in enumerate(inputs[:n]) if i not in at_values and isinstance(t, Tensor)]
        rows = g.shape[0]
        sections = inputs[n - 1] if form == "sell" else 0
        after = n + 2 + (form in _GIVES_NO_ROWS)
        ptrs, perm = (None, None) if form == "csc" else inputs[after + 1 : after + 3]
        rest = (form, rows, x.shape[0], sections, ptrs, perm, *structure)
        g2, x2 = (t.unsqueeze(-1) if kind == "spmv" else t for t in (g, x))
        grads: list = [None] * len(inputs)
        sampled = _sampled(g2, x2, *rest).split([v.numel() for v in values])
        for i, v, s in zip(at_values, values, sampled, strict=True):
            grads[i] = s.view(v.shape)
        gx = _transposed(torch.cat([v.reshape(-1) for v in values]), g2, *rest)
        grads[n] = gx.squeeze(-1) if kind == "spmv" else gx
        grads[after] = g if inputs[after] is not None else None
        return tuple(grads)

    return backward


def _promoted(a: Matrix, args: list) -> list:
    """The arguments with all floats of one dtype."""
    floats = [t for t in args if isinstance(t, Tensor) and t.is_floating_point()]
    dtype = floats[0].dtype
    for t in floats[1:]:
        dtype = torch.promote_types(dtype, t.dtype)
    return [t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t for t in args]


_transposed = differentiable(_bilinear(_ops.spmm_transposed), _transposed_backward)
_sampled = differentiable(_bilinear(_ops.sampled_product), _sampled_backward)
_operators = {f"{kind}_{form}": getattr(_ops, f"{kind}_{form}") for form in FORMATS for kind in ("spmv", "spmm")}
_products = {name: differentiable(op, _product_backward(*name.split("_"))) for name, op in _operators.items()}


# ---- vmap: a batch of vectors is a matrix of more columns; batched matrices take turns


def _take_turns(op, info, in_dims, args):
    def sample(a, d, i):
        if isinstance(a, list | tuple):
            return [sample(b, e, i) for b, e in zip(a, d or [None] * len(a), strict=True)]
        return a if d is None else a.select(d, i)

    outs = [op(*(sample(a, d, i) for a, d in zip(args, in_dims, strict=True))) for i in range(info.batch_size)]
    if isinstance(outs[0], tuple):
        return tuple(torch.stack(o) for o in zip(*outs, strict=True)), (0,) * len(outs[0])
    return torch.stack(outs), 0


def _wider(x: Tensor, d: int | None, size: int) -> Tensor:
    """A batch of [n] or [n, k] as [n, batch * k]."""
    return front(x, d, size).movedim(0, 1).flatten(1)


def _register_vmap(kind: str, form: str) -> None:
    op, matrix_op = getattr(_ops, f"{kind}_{form}"), getattr(_ops, f"spmm_{form}")
    n = len(FORMATS[form]._fields) - 1
    at_y = n + 2 + (form in _GIVES_NO_ROWS)

    def rule(info, in_dims, *args, **kwargs):
        dims, values = list(in_dims), list(args)
        dims += [None] * (len(values) - len(dims))
        if any(d is not None for i, d in enumerate(dims) if i not in (n, at_y)):
            return _take_turns(lambda *sample: op(*sample, **kwargs), info, dims, values)
        k = 1 if kind == "spmv" else front(values[n], dims[n], info.batch_size).shape[-1]
        for i in (n, at_y):
            if i < len(values) and values[i] is not None:
                values[i] = _wider(values[i], dims[i], info.batch_size)
        out = matrix_op(*values, **kwargs)
        return (out, 1) if kind == "spmv" else (out.unflatten(1, (info.batch_size, k)), 1)

    torch.library.register_vmap(f"torch_patterns::{kind}_{form}", rule)


for _form in FORMATS:
    _register_vmap("spmv", _form)
    _register_vmap("spmm", _form)


@torch.library.register_vmap("torch_patterns::spmm_transposed")
def _(info, in_dims, form, structure, values, g, *rest, **kwargs):
    only_g = in_dims[2] is None and all(d is None for d in (*(in_dims[1] or ()), *in_dims[4:]))
    if not only_g:
        args = (form, structure, values, g, *rest)
        dims = (*in_dims, *(None,) * (len(args) - len(in_dims)))
        return _take_turns(lambda *sample: _ops.spmm_transposed(*sample, **kwargs), info, dims, args)
    k = front(g, in_dims[3], info.batch_size).shape[-1]
    wide = _wider(g, in_dims[3], info.batch_size)
    out = _ops.spmm_transposed(form, structure, values, wide, *rest, **kwargs)
    return out.unflatten(1, (info.batch_size, k)), 1


def _register_turns(name: str) -> None:
    op = getattr(_ops, name)

    def rule(info, in_dims, *args, **kwargs):
        dims = (*in_dims, *(None,) * (len(args) - len(in_dims)))
        return _take_turns(lambda *sample: op(*sample, **kwargs), info, dims, args)

    torch.library.register_vmap(f"torch_patterns::{name}", rule)


_register_turns("sampled_product")
_register_turns("sparse_plan")
