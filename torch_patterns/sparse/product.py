"""Products of sparse matrices with vectors and dense matrices, and their plans."""

from __future__ import annotations

import functools
import operator
import weakref

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torch_patterns.arguments import refuse, typed
from torch_patterns.batching import front, loop, runs_at_once
from torch_patterns.calls import ops
from torch_patterns.sparse.containers import (
    CSC,
    CSR,
    FORMATS,
    LAYOUTS,
    Matrix,
    Plan,
    index_fields,
    layout_of,
    structure_of,
)
from torch_patterns.sparse.stages import stages, stages_are_faster

_ops = torch.ops.torch_patterns


def spmv(a: Matrix, x: Tensor, y: Tensor | None = None, *, plan: Plan | None = None, algorithm: str = "auto") -> Tensor:
    """Computes A x, or A x + y, for a sparse matrix in any format and a vector (chapter 14, Fig. 14.2).

    Differentiable to every order, in both modes, in the values, x and y. The gradient of the values has one element per
    entry (0 for padding); the gradient of x is the transposed product, which uses a plan. Padding is never read as
    data: x may be NaN where no entry points.

    If a gradient of x is needed, the plan is made at the first call. It is kept for as long as the index tensors live
    and their versions stay the same; writes that torch does not track (``.data``, numpy, DLPack) go unnoticed. Nothing
    is kept for inference tensors, in compiled code, inside torch.func or during the capture of a CUDA graph: pass
    ``plan=a.plan()`` there if time matters. For COO and HYB on CUDA, the first call also finds out whether the rows are
    sorted, and keeps the answer; it waits for the device, as ``a.plan()`` may.

    Args:
        a: [rows, cols], in any format.
        x: [cols]. If its dtype is not that of the values, both are promoted as in torch.
        y: [rows].
        plan: ``a.plan()``.
        algorithm: ``"auto"`` (deterministic) or one of ``torch_patterns.algorithms("spmv_<format>")``.

    Returns:
        A new tensor [rows]. Half types are added in float32; under autocast, sums run in and return float32.

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
    """Computes A X, or A X + Y, for a sparse and a dense matrix: :func:`spmv` for k columns at once.

    Args:
        a: [rows, cols], in any format.
        x: [cols, k].
        y: [rows, k].
        plan, algorithm: as for :func:`spmv`.

    Returns:
        A new contiguous tensor [rows, k].

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
    """Computes the elements of X Y^T at the entries of a sparse matrix (SDDMM): one dot product per entry.

    Entry (r, c) gets ``x[r] . y[c]``. The values of the matrix are not used, and duplicate entries each get the same
    number. ``a._replace(values=sampled_product(a, x, y))`` is a matrix with the pattern of A. Differentiable to every
    order, in both modes, in x and y: their gradients are products with the matrix of the incoming gradient; the one for
    y uses a plan (see :func:`spmv`).

    Args:
        a: [rows, cols], in any format.
        x: [rows, k], floating point. If its dtype is not that of y, both are promoted as in torch.
        y: [cols, k].
        plan: ``a.plan()``.
        algorithm: ``"auto"`` (deterministic) or one of ``torch_patterns.algorithms("sampled_product")``.

    Returns:
        A new tensor with the shape of ``a.values`` and 0 for padding. For HYB it is flat, with the tail after the
        padded rows.

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
    if isinstance(a, CSC):
        plan = None  # it lists its entries by column, and its plan is that of its rows
    elif plan is None and y.requires_grad and torch.is_grad_enabled() and runs_at_once():
        plan = _kept(a, "plan", make_plan)
    form, index, *sizes = structure_of(a)
    out = ops.sampled_product(form, index, x.to(dtype), y.to(dtype), *sizes, *(plan or (None, None)), algorithm)
    values = layout_of(a).values
    return out.view_as(getattr(a, values[0])) if len(values) == 1 else out


def make_plan(a: Matrix) -> Plan:
    """Makes the plan of the transposed product of a matrix, which the gradient of x needs. For CSC it is the plan of
    its rows.

    The plan is a stable sort of the entries by column, and is valid for every matrix with the same index tensors. On
    CUDA, from 2^24 entries on, the host waits for the device, unless code is being compiled or a graph captured, and
    the plan may take 20 bytes per entry with int32 indices and 32 with int64.
    """
    ptrs, perm, other = _ops.sparse_plan(*structure_of(a), isinstance(a, CSC))
    both = torch.stack([perm, other])
    return Plan(ptrs, torch.cat([both, stages(perm, other)]) if stages_are_faster(perm) else both)


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


# By the type of the container: the operator, the index of the first number of the shape that it takes, and whether the
# format has coordinates.
_spmv, _spmm = (
    {
        cls: (getattr(ops, f"{kind}_{form}"), int(LAYOUTS[form].gives_rows), LAYOUTS[form].has_coordinates)
        for form, cls in FORMATS.items()
    }
    for kind in ("spmv", "spmm")
)


def _refuse(function: str, a, x, y) -> None:
    """Checks the types of the arguments as ``typed`` does, whose wrapper would take a tenth of a small product's
    time."""
    if not torch.compiler.is_compiling():
        refuse(function, "a", a, "Matrix")
        refuse(function, "x", x, "Tensor")
        refuse(function, "y", y, "Tensor | None")


def _multiply(operators: dict, a: Matrix, x: Tensor, y: Tensor | None, plan: Plan | None, algorithm: str) -> Tensor:
    row_sorted, is_csr = False, type(a) is CSR
    if (plan is None and x.requires_grad) or (not is_csr and x.is_cuda):  # nothing is kept otherwise
        keeps = runs_at_once()
        if plan is None and keeps and _wants_plan(a, x):
            plan = _kept(a, "plan", make_plan)
        if keeps and x.is_cuda and layout_of(a).has_coordinates:
            row_sorted = bool(_kept(a, "sorted", _rows_sorted))
    if is_csr:  # the general way takes three times as long, which a small product would notice
        row_ptrs, col_idx, values, shape = a
        ptrs, perm = plan or (None, None)
        return operators[CSR][0](row_ptrs, col_idx, values, x, shape[1], y, ptrs, perm, False, algorithm)
    return operators[type(a)][0](*arguments(a, x, y, plan, row_sorted=row_sorted, algorithm=algorithm))


def _wants_plan(a: Matrix, x: Tensor) -> bool:
    return x.is_cuda if type(a) is CSC else x.requires_grad and torch.is_grad_enabled()


# ---- what is kept per matrix; the key is its index tensors

# (what, type, ids of the index tensors) -> (shape and versions, value, weak references). The references delete the item
# when one of the index tensors dies. A value that is made while code is compiled, or the like (runs_at_once), belongs
# to that and must not outlive it.
_memory: dict[tuple, tuple] = {}
_index_of = {cls: operator.attrgetter(*LAYOUTS[form].index) for form, cls in FORMATS.items()}


def _rows_sorted(a: Matrix) -> bool:
    rows = getattr(a, index_fields(a)[-2])
    return bool((rows[1:] >= rows[:-1]).all())


def _kept(a: Matrix, what: str, make):
    """Returns make(a), or the value that was kept for these index tensors; None if nothing can be kept."""
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
    with torch.inference_mode(False), torch.no_grad():  # autograd could not save an inference tensor later
        value = make(a)
    _memory[key] = (state, value, [weakref.ref(t, lambda _: _memory.pop(key, None)) for t in index])
    return value


# ---- vmap: a batch of vectors becomes a matrix with more columns; a batch of matrices becomes a loop


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
