"""Products of sparse matrices with vectors and dense matrices, and their plans."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._pytree import tree_leaves
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from torch_patterns.arguments import typed
from torch_patterns.batching import front, loop
from torch_patterns.calls import ops
from torch_patterns.sparse.containers import CSC, FORMATS, HYB, SELL, Matrix, format_of, index_fields
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

    Differentiable to every order, in both modes, in the values, x and y: the gradient of the values has one element per
    entry (0 for padding), that of x is the transposed product, which goes through a plan. Padding is never read as
    data: x may be NaN where no entry points.

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
    return _multiply(_spmv, a, x, y, plan, algorithm)


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
    return _multiply(_spmm, a, x, y, plan, algorithm)


def make_plan(a: Matrix) -> Plan:
    """The plan of the transposed product of a matrix, and so of the gradient of x; of CSC, that of its rows.

    It is a stable sort of the entries by column, and holds for every matrix with the same index tensors. On CUDA, from
    2^24 entries on, the host waits for the device, unless code is compiled or a graph captured, and the plan may take
    20 bytes per entry with int32 indices, 32 with int64.
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
) -> tuple:
    """The arguments of torch.ops.torch_patterns.spmv_<format> and spmm_<format>."""
    _, first, coordinates = _spmv[type(a)]
    is_sorted = (row_sorted,) if coordinates else ()
    return *a[:-1], x, *a[-1][first:], y, *(plan or (None, None)), validate, *is_sorted, algorithm


# By the type of the container: the operator, the first number of the shape that it takes, and if it has coordinates.
_spmv, _spmm = (
    {
        cls: (getattr(ops, f"{kind}_{form}"), int(form not in _GIVES_NO_ROWS), form in _HAS_COORDINATES)
        for form, cls in FORMATS.items()
    }
    for kind in ("spmv", "spmm")
)


def _multiply(operators: dict, a: Matrix, x: Tensor, y: Tensor | None, plan: Plan | None, algorithm: str) -> Tensor:
    row_sorted = False
    if x.is_cuda or (plan is None and x.requires_grad):  # else nothing is kept
        keeps = not (torch.compiler.is_compiling() or _transforms_active())
        if plan is None and keeps and _wants_plan(a, x):
            plan = _kept(a, "plan", make_plan)
        if keeps and x.is_cuda and format_of(a) in _HAS_COORDINATES:
            row_sorted = bool(_kept(a, "sorted", _rows_sorted))
    return operators[type(a)][0](*arguments(a, x, y, plan, row_sorted=row_sorted, algorithm=algorithm))


def _wants_plan(a: Matrix, x: Tensor) -> bool:
    return x.is_cuda if type(a) is CSC else x.requires_grad and torch.is_grad_enabled()


# ---- what is kept of a matrix, by its index tensors

_memory = WeakTensorKeyDictionary()
# What is made inside a torch.func transform belongs to it and must not outlive it (the name is private).
_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


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


# ---- vmap: a batch of vectors is a matrix of more columns; batched matrices take turns


def _wider(x: Tensor, d: int | None, size: int) -> Tensor:
    """A batch of [n] or [n, k] as [n, batch * k]."""
    return front(x, d, size).movedim(0, 1).flatten(1)


def _register_product(kind: str, form: str) -> None:
    op, matrix_op = getattr(_ops, f"{kind}_{form}"), getattr(_ops, f"spmm_{form}")
    n = len(FORMATS[form]._fields) - 1
    at_y = n + 2 + (form in _GIVES_NO_ROWS)

    def rule(info, in_dims, *args, **kwargs):
        dims, values = list(in_dims), list(args)
        dims += [None] * (len(values) - len(dims))
        if any(d is not None for i, d in enumerate(dims) if i not in (n, at_y)):
            return loop(op, info, dims, *values, **kwargs)
        k = 1 if kind == "spmv" else front(values[n], dims[n], info.batch_size).shape[-1]
        for i in (n, at_y):
            if i < len(values) and values[i] is not None:
                values[i] = _wider(values[i], dims[i], info.batch_size)
        out = matrix_op(*values, **kwargs)
        return (out, 1) if kind == "spmv" else (out.unflatten(1, (info.batch_size, k)), 1)

    torch.library.register_vmap(f"torch_patterns::{kind}_{form}", rule)


for _form in FORMATS:
    _register_product("spmv", _form)
    _register_product("spmm", _form)


@torch.library.register_vmap("torch_patterns::spmm_transposed")
def _(info, in_dims, form, structure, values, g, *rest, **kwargs):
    if in_dims[2] is not None or any(d is not None for d in tree_leaves((in_dims[1], in_dims[4:]))):
        return loop(_ops.spmm_transposed, info, in_dims, form, structure, values, g, *rest, **kwargs)
    k = front(g, in_dims[3], info.batch_size).shape[-1]
    wide = _wider(g, in_dims[3], info.batch_size)
    out = _ops.spmm_transposed(form, structure, values, wide, *rest, **kwargs)
    return out.unflatten(1, (info.batch_size, k)), 1


def _register_loop(name: str) -> None:
    torch.library.register_vmap(f"torch_patterns::{name}", functools.partial(loop, getattr(_ops, name)))


_register_loop("sampled_product")
_register_loop("sparse_plan")
