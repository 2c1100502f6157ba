"""What vmap rules share: moving a batch dimension to where an operator takes it, or looping where none does."""

from __future__ import annotations

import torch
from torch import Tensor


def front(x: Tensor, batch_dim: int | None, size: int) -> Tensor:
    """``x`` with its batch dimension first, of stride 0 if ``x`` has none."""
    return x.expand(size, *x.shape) if batch_dim is None else x.movedim(batch_dim, 0)


def fold(x: Tensor, batch_dim: int | None, size: int, into: int) -> Tensor:
    """``x`` with its batch dimension merged into the front of dimension ``into < 0`` of a single sample."""
    x = front(x, batch_dim, size).movedim(0, into - 1)
    return x.flatten(into - 1, into)


def loop(op, info, in_dims, *args):
    """One call of ``op`` per sample, whatever is batched, and the results stacked."""
    if info.batch_size == 0:
        return _no_samples(op, in_dims, args)
    samples = []
    for i in range(info.batch_size):
        samples.append(op(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True))))
    if isinstance(samples[0], tuple):
        return tuple(torch.stack(outputs) for outputs in zip(*samples, strict=True)), (0,) * len(samples[0])
    return torch.stack(samples), 0


def _no_samples(op, in_dims, args):
    """The results of no calls: of the sizes and dtypes that the operator's Meta kernel tells for a sample."""

    def sample(x, d):
        if not isinstance(x, Tensor):
            return x
        shape = list(x.shape)
        if d is not None:
            del shape[d]
        return x.new_empty(shape, device="meta")

    device = next(x.device for x in args if isinstance(x, Tensor))
    results = op(*map(sample, args, in_dims))
    single = not isinstance(results, tuple)
    stacked = [torch.empty(0, *y.shape, dtype=y.dtype, device=device) for y in ((results,) if single else results)]
    return (stacked[0], 0) if single else (tuple(stacked), (0,) * len(stacked))


def behind_batch(op: str, dim: int, rank: int) -> int:
    """``dim`` of a sample of ``rank`` dimensions, counted from the front, once a batch dimension stands before them.

    ``IndexError`` as the operator itself gives it, so that ``dim`` never reaches the batch.
    """
    size = max(rank, 1)
    if not -size <= dim < size:
        raise IndexError(f"{op}: dim {dim} is out of range; expected {-size} to {size - 1}")
    return dim % size + 1


def vmap_rule(name: str):
    """Registers the decorated function as the vmap rule of ``torch_patterns::name``, for all but empty batches."""
    op = getattr(torch.ops.torch_patterns, name)

    def register(rule):
        def whole(info, in_dims, *args):
            return rule(info, in_dims, *args) if info.batch_size else _no_samples(op, in_dims, args)

        torch.library.register_vmap(f"torch_patterns::{name}", whole)
        return rule

    return register
