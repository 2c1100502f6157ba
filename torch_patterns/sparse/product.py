"""Products of sparse matrices with vectors and dense matrices, and their plans."""

from __future__ import annotations

import functools
import operator
import weakref
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._pytree import tree_leaves

from torch_patterns.arguments import refuse, typed
from torch_patterns.batching import front, loop
from torch_patterns.calls import ops
from torch_patterns.sparse.containers import (
    CSC,
    CSR,
    FORMATS,
    LAYOUTS,
    Matrix,
    index_fields,
    layout_of,
    structure_of,
)
from torch_patterns.sparse.stages import pay, stages

_ops = torch.ops.torch_patterns


class Plan(NamedTuple):
    """How the entries lie from the other side, by columns (for CSC, by rows): of row i of the transpose, entries
    perm[0, ptrs[i]] to perm[0, ptrs[i + 1] - 1], whose columns are beside them in perm[1]. Further rows of perm, if
    there are any, lead CUDA the same way by another route.

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> coo.plan().ptrs  # of the columns
        tensor([0, 1, 2, 3])
    """

    ptrs: Tensor
    perm: Tensor


_pytree._register_namedtuple(Plan, serialized_type_name="torch_patterns.Plan")
torch.serialization.add_safe_globals([Plan])


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

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> tp.spmv(coo.convert("csr"), torch.tensor([1.0, 10.0, 100.0]))
        tensor([201.,   0.,  30.])
        >>> values = coo.values.requires_grad_()
        >>> tp.spmv(coo, torch.tensor([1.0, 10.0, 100.0])).sum().backward()
        >>> values.grad  # one per entry
        tensor([  1., 100.,  10.])
    """
    try:
        return _multiply(_spmv, a, x, y, plan, algorithm)
    except Exception:
        _refuse("spmv", a, x, y)
        raise


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

    Example:
        >>> coo = tp.coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
        >>> tp.spmm(coo, torch.eye(3))
        tensor([[1., 0., 2.],
                [0., 0., 0.],
                [0., 3., 0.]])
    """
    try:
        return _multiply(_spmm, a, x, y, plan, algorithm)
    except Exception:
        _refuse("spmm", a, x, y)
        raise


@typed
def sampled_product(a: Matrix, x: Tensor, y: Tensor, *, plan: Plan | None = None, algorithm: str = "auto") -> Tensor:
    """The elements of X Y^T where a sparse matrix has entries (SDDMM): one dot product per entry.

    Entry (r, c) gets ``x[r] . y[c]``; the values of the matrix play no part, and its duplicates get the same number
    each. ``a._replace(values=sampled_product(a, x, y))`` is the matrix of the pattern of A. Differentiable to every
    order, in both modes, in x and y: their gradients are products with the matrix of the incoming gradient, of which
    that of y goes through a plan (see :func:`spmv`).

    Args:
        a: [rows, cols], in any format.
        x: [rows, k], floating point; of another dtype than y, both are promoted as in torch.
        y: [cols, k].
        plan: ``a.plan()``.
        algorithm: ``"auto"`` (deterministic) or one that ``torch_patterns.algorithms("sampled_product")`` lists.

    Returns:
        New, of the shape of ``a.values``, 0 for padding; of HYB flat, the tail behind the padded rows.

    Raises:
        ValueError: shapes do not fit, or the algorithm is unknown or not offered by the device.
        IndexError: on the CPU, an index is out of range; CUDA skips such an entry.
        TypeError: ``x`` or ``y`` is not floating point.
        RuntimeError: devices differ.

    Example:
        >>> A = tp.coo(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.ones(2), (2, 2))
        >>> tp.sampled_product(A, torch.tensor([[1.0], [2.0]]), torch.tensor([[10.0], [100.0]])).tolist()
        [100.0, 20.0]
    """
    for name, operand, size in (("x", x, a.shape[0]), ("y", y, a.shape[1])):
        if operand.dim() != 2 or operand.shape[0] != size:
            which = "rows" if name == "x" else "columns"
            raise ValueError(
                f"sampled_product: {name} must be [{size}, k], as the matrix has {which}, got {[*operand.shape]}"
            )
        if not operand.is_floating_point():
            raise TypeError(f"sampled_product: {name} must be floating point, got {operand.dtype}")
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"sampled_product: x has {x.shape[1]} columns, y {y.shape[1]}")
    dtype = torch.promote_types(x.dtype, y.dtype)
    if plan is None and y.requires_grad and not (torch.compiler.is_compiling() or _transforms_active()):
        plan = _kept(a, "plan", make_plan)
    form, index, *sizes = structure_of(a)
    out = ops.sampled_product(form, index, x.to(dtype), y.to(dtype), *sizes, *(plan or (None, None)), algorithm)
    values = layout_of(a).values
    return out.view_as(getattr(a, values[0])) if len(values) == 1 else out


def make_plan(a: Matrix) -> Plan:
    """The plan of the transposed product of a matrix, and so of the gradient of x; of CSC, that of its rows.

    It is a stable sort of the entries by column, and holds for every matrix with the same index tensors. On CUDA, from
    2^24 entries on, the host waits for the device, unless code is compiled or a graph captured, and the plan may take
    20 bytes per entry with int32 indices, 32 with int64.
    """
    ptrs, perm, other = _ops.sparse_plan(*structure_of(a), isinstance(a, CSC))
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
        cls: (getattr(ops, f"{kind}_{form}"), int(LAYOUTS[form].gives_rows), LAYOUTS[form].has_coordinates)
        for form, cls in FORMATS.items()
    }
    for kind in ("spmv", "spmm")
)


def _refuse(function: str, a, x, y) -> None:
    """What ``typed`` does, whose wrapper would take a tenth of a small product's time."""
    if not torch.compiler.is_compiling():
        refuse(function, "a", a, "Matrix")
        refuse(function, "x", x, "Tensor")
        refuse(function, "y", y, "Tensor | None")


def _multiply(operators: dict, a: Matrix, x: Tensor, y: Tensor | None, plan: Plan | None, algorithm: str) -> Tensor:
    row_sorted, is_csr = False, type(a) is CSR
    if (plan is None and x.requires_grad) or (not is_csr and x.is_cuda):  # else nothing is kept
        keeps = not (torch.compiler.is_compiling() or _transforms_active())
        if plan is None and keeps and _wants_plan(a, x):
            plan = _kept(a, "plan", make_plan)
        if keeps and x.is_cuda and layout_of(a).has_coordinates:
            row_sorted = bool(_kept(a, "sorted", _rows_sorted))
    if is_csr:  # the same in a third of the time, which a small product takes notice of
        row_ptrs, col_idx, values, shape = a
        ptrs, perm = plan or (None, None)
        return operators[CSR][0](row_ptrs, col_idx, values, x, shape[1], y, ptrs, perm, False, algorithm)
    return operators[type(a)][0](*arguments(a, x, y, plan, row_sorted=row_sorted, algorithm=algorithm))


def _wants_plan(a: Matrix, x: Tensor) -> bool:
    return x.is_cuda if type(a) is CSC else x.requires_grad and torch.is_grad_enabled()


# ---- what is kept of a matrix, by its index tensors

# (what, type, ids of the index tensors) -> (shape and versions, value, weak references that forget this when one dies)
_memory: dict[tuple, tuple] = {}
# What is made inside a torch.func transform belongs to it and must not outlive it (the name is private).
_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_index_of = {cls: operator.attrgetter(*LAYOUTS[form].index) for form, cls in FORMATS.items()}


def _rows_sorted(a: Matrix) -> bool:
    rows = getattr(a, index_fields(a)[-2])
    return bool((rows[1:] >= rows[:-1]).all())


def _kept(a: Matrix, what: str, make):
    """make(a), or what it gave for these index tensors; None where nothing can be kept."""
    index = _index_of[type(a)](a)
    if index[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    try:
        state = (a.shape, *[t._version for t in index])
    except RuntimeError:  # inference tensors have no version
        return None
    key = (what, type(a), *map(id, index))
    found = _memory.get(key)
    if found and found[0] == state:
        return found[1]
    with torch.no_grad():
        value = make(a)
    _memory[key] = (state, value, [weakref.ref(t, lambda _: _memory.pop(key, None)) for t in index])
    return value


# ---- vmap: a batch of vectors is a matrix of more columns; batched matrices take turns


def _wider(x: Tensor, d: int | None, size: int) -> Tensor:
    """A batch of [n] or [n, k] as [n, batch * k]."""
    return front(x, d, size).movedim(0, 1).flatten(1)


def _register_product(kind: str, form: str) -> None:
    op, matrix_op = getattr(_ops, f"{kind}_{form}"), getattr(_ops, f"spmm_{form}")
    n = len(FORMATS[form]._fields) - 1
    at_y = n + 2 + (not LAYOUTS[form].gives_rows)

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
