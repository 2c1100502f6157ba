"""What vmap rules share: they move the batch dimension to where the operator takes one, or call it once per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.utils._pytree import tree_leaves

# Whether a transform of torch.func is under way (a private name).
transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def runs_at_once() -> bool:
    """Tells whether a call computes what it returns: not while code is compiled, by a torch.func transform or under a
    dispatch mode, as that of fake tensors."""
    return not (torch.compiler.is_compiling() or transforms_active() or torch._C._len_torch_dispatch_stack())


def front(x: Tensor, batch_dim: int | None, size: int) -> Tensor:
    """Returns ``x`` with its batch dimension first. If ``x`` has none, it is expanded, with stride 0."""
    return x.expand(size, *x.shape) if batch_dim is None else x.movedim(batch_dim, 0)


def fold(x: Tensor, batch_dim: int | None, size: int, into: int) -> Tensor:
    """Returns ``x`` with its batch dimension merged before dimension ``into`` of a sample; ``into`` is negative."""
    x = front(x, batch_dim, size).movedim(0, into - 1)
    return x.flatten(into - 1, into)


def loop(op, info, in_dims, *args, **kwargs):
    """Calls ``op`` once per sample, and stacks the results. Any argument may be batched, also within a list of tensors.

    If there are no samples, the Meta kernel gives the shape and dtype that the result of one would have.
    """
    dims = (*in_dims, *(None,) * (len(args) - len(in_dims)))

    def sample(pick, a, dim):
        if isinstance(a, list | tuple) and isinstance(dim, list | tuple):
            return [sample(pick, *pair) for pair in zip(a, dim, strict=True)]
        return pick(a, dim)

    def call(pick):
        outputs = op(*(sample(pick, a, dim) for a, dim in zip(args, dims, strict=True)), **kwargs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    if info.batch_size:
        turns = [call(lambda a, dim: a if dim is None else a.select(dim, i)) for i in range(info.batch_size)]  # noqa: B023
        outputs: tuple[Tensor, ...] = tuple(torch.stack(turn) for turn in zip(*turns, strict=True))
    else:
        device = next(x for x in tree_leaves(args) if isinstance(x, Tensor)).device

        def on_meta(a, dim):
            if not isinstance(a, Tensor):
                return a
            shape = list(a.shape)
            if dim is not None:
                del shape[dim]
            return a.new_empty(shape, device="meta")

        outputs = tuple(torch.empty(0, *y.shape, dtype=y.dtype, device=device) for y in call(on_meta))
    return (outputs, (0,) * len(outputs)) if len(outputs) > 1 else (next(iter(outputs)), 0)


def per_sample(f: Callable[..., tuple], *args: Any) -> tuple:
    """Returns ``f(*args)``, computed for one sample after another if an argument is a legacy batched tensor.

    torch.autograd.grad(is_grads_batched=True) and jacobian(vectorize=True) make such tensors. They use an older
    mechanism than torch.func, which does not call the vmap rule of a torch.autograd.Function.
    """
    batched = [a is not None and _functorch.is_legacy_batchedtensor(a) for a in args]
    if not any(batched):
        return f(*args)
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    plain = [torch._remove_batch_dim(a, level, 1, 0) if b else a for a, b in zip(args, batched, strict=True)]
    size = next(a.shape[0] for a, b in zip(plain, batched, strict=True) if b)  # torch itself refuses no samples
    turns = [f(*(a[i] if b else a for a, b in zip(plain, batched, strict=True))) for i in range(size)]
    outputs = [None if turn[0] is None else torch.stack(turn) for turn in zip(*turns, strict=True)]
    return tuple(None if y is None else torch._add_batch_dim(y, 0, level) for y in outputs)


def zeros_sample(in_dims, args) -> list:
    """Returns the arguments with a sample of zeros in place of each batch: a batch of no samples has its sizes."""
    dims = (*in_dims, *(None,) * (len(args) - len(in_dims)))
    return [a if d is None else a.new_zeros((*a.shape[:d], *a.shape[d + 1 :])) for a, d in zip(args, dims, strict=True)]


def loop_by_structure(op, info, in_dims, *args, first: int, **kwargs):
    """The rule of an operator that returns the values, pointers and indices of a sparse matrix.

    ``args[first:]`` are the pointers, indices and values of two matrices. If only values are batched, all samples have
    the same structure, and so have the results: their pointers and indices are not batched.
    """
    dims, values = tuple(in_dims), (first + 2, first + 5)
    shared = all(d is None for i, d in enumerate(dims) if i not in values)
    if info.batch_size == 0 and shared:
        out, ptrs, idx = op(*zeros_sample(dims, args), **kwargs)
        return (out.new_empty(0, *out.shape), ptrs, idx), (0, None, None)
    if info.batch_size == 0:  # without a result, the number of entries is not known
        ptrs, idx, out = args[first : first + 3]
        size = ptrs.shape[0 if dims[first] is None else 1 - dims[first]]
        return (out.new_empty(0, 0), ptrs.new_empty(0, size), idx.new_empty(0, 0)), (0, 0, 0)
    (out, ptrs, idx), of_loop = loop(op, info, dims, *args, **kwargs)
    return ((out, ptrs[0], idx[0]), (0, None, None)) if shared else ((out, ptrs, idx), of_loop)


def behind_batch(op: str, dim: int, rank: int) -> int:
    """Converts ``dim`` of a sample with ``rank`` dimensions to that of a batch, which has the samples along dimension
    0.

    Raises the IndexError of the operator if ``dim`` is out of range, so that it never means the batch dimension.
    """
    size = max(rank, 1)
    if not -size <= dim < size:
        raise IndexError(f"{op}: dim {dim} is out of range; expected {-size} to {size - 1}")
    return dim % size + 1


def vmap_rule(name: str):
    """Returns a decorator that registers a function as the vmap rule of ``torch_patterns::name``.

    The function is not called for an empty batch, which `loop` handles.
    """
    op = getattr(torch.ops.torch_patterns, name)

    def register(rule):
        def whole(info, in_dims, *args):
            return rule(info, in_dims, *args) if info.batch_size else loop(op, info, in_dims, *args)

        torch.library.register_vmap(f"torch_patterns::{name}", whole)
        return rule

    return register
