"""Reductions over shards."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

import torch_patterns as tp
from torch_patterns.distributed.collectives import all_gather
from torch_patterns.distributed.group import Call, Group, as_bytes, on_device, shards
from torch_patterns.distributed.scan import identity, widened
from torch_patterns.literals import ReduceOp


def reduce(x: Tensor, *, op: ReduceOp = "sum", group: Group = None) -> Tensor:
    """Combines the concatenated shards along dimension 0.

    Each rank reduces its shard, and one all_gather, which also carries the header, brings all partial results to every
    rank. Every rank combines them in the order of ranks, so the result is the same, bit for bit, on every rank.
    Differentiable to every order if ``torch_patterns.reduce`` is; all ranks must run backward.

    Args:
        x: this rank's shard [n, ...], of any length, including 0. Its other properties must be the same on every rank.
        op: as for ``torch_patterns.reduce``; argmax and argmin give the row in the concatenation.
        group: a process group or one-dimensional DeviceMesh; the world if None.

    Returns:
        [...], the same on every rank; int64 for argmax, argmin, and sums and products of integers.

    Raises:
        IndexError: argmax or argmin of no elements at all.
        ValueError, TypeError: as ``torch_patterns.reduce``, on the rank that passed the argument.
        RuntimeError: another rank raised, was called with other arguments, or did not take part; the message names it.

    Example:
        >>> distributed.reduce(torch.tensor([1, 2, 3]), op="max")
        tensor(3)
    """

    started: list[Tensor] = []
    partial_op = "sum" if op == "mean" else op

    def prepare() -> dict[str, Tensor]:
        checked = shards("reduce", x=x)
        if op in ("argmax", "argmin", "mean"):  # these raise errors that sums and extrema do not
            probe = x[:1] if len(x) else torch.zeros(1, *x.shape[1:], dtype=x.dtype, device=x.device)
            tp.reduce(probe, 0, op=op)
        if op not in ("argmax", "argmin"):
            wide = widened(x, op)
            started.append(tp.reduce(wide, 0, op=partial_op) if len(x) else identity(wide, partial_op))
        return checked

    call = Call("reduce", group, prepare, gathers=True, op=op)
    if not started:
        return _arg_reduce(x, op, call)
    totals = all_gather(started[0], call)
    if totals.requires_grad:
        totals = _held(totals, call.lengths())
    y = tp.reduce(totals, 0, op=partial_op)
    lengths = call.lengths()  # after all has been launched
    if op == "mean":
        y = y / sum(lengths)
    return y.to(tp.reduce(x[:0], 0, op=op).dtype)


def _held(totals: Tensor, lengths: list[int]) -> Tensor:
    """Returns the rows of ranks that hold elements: an identity must not win a tie, and with it the index or
    gradient."""
    ranks = [r for r, n in enumerate(lengths) if n]
    return totals[ranks] if len(ranks) < len(lengths) and ranks else totals


def _arg_reduce(x: Tensor, op: ReduceOp, call: Call) -> Tensor:
    best = tp.reduce(x.detach(), 0, op=op.removeprefix("arg"))
    index = torch.zeros(best.shape, dtype=torch.int64, device=x.device)
    if len(x):
        index = tp.reduce(x.detach(), 0, op=op)
    both = [as_bytes(t.contiguous()) for t in (best, index)]
    sizes = [len(t) for t in both]
    bests, indices = call.gather(torch.cat(both)).split(sizes, 1)
    lengths = call.lengths()
    if sum(lengths) == 0:
        raise IndexError(f"reduce: {op} of no elements, on any rank")
    bests = bests.contiguous().view(best.dtype).view(call.size, *best.shape)
    begins = on_device([0, *accumulate(lengths)][:-1], x.device).view(-1, *(1,) * index.dim())
    indices = indices.contiguous().view(torch.int64).view(call.size, *index.shape) + begins
    winner = tp.reduce(_held(bests, lengths), 0, op=op, keepdim=True)
    return _held(indices, lengths).gather(0, winner).squeeze(0)
