"""Scans and linear recurrences over shards: the hierarchical scan of Fig. 11.9, one level up."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import torch_patterns as tp
from torch_patterns.arguments import refuse
from torch_patterns.distributed.collectives import all_gather, anchored, replicate
from torch_patterns.distributed.group import Call, Group, shards
from torch_patterns.literals import ScanOp

_ops = torch.ops.torch_patterns_parts
_HALF = (torch.float16, torch.bfloat16)


def widened(x: Tensor, op: str = "sum") -> Tensor:
    """Converts half types to float32 if partial results are rounded, so that the result is rounded once, as locally."""
    return x.float() if x.dtype in _HALF and op in ("sum", "prod", "mean", "logsumexp") else x


_PLAIN = {
    "sum": torch.add,
    "prod": torch.mul,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
}


def offered(name: str, op: str) -> None:
    """Refuses the operators whose partial results cannot be combined."""
    if op in ("argmax", "argmin", "std", "var"):
        choices = ", ".join((*_PLAIN, "max", "min", "any", "all"))
        raise ValueError(f"{name}: op {op!r} is not offered over shards; choose from: {choices}")


def extremum(x: Tensor, op: str) -> tuple[Tensor, str]:
    """Turns any and all into the maximum and the minimum of truth values; other operators stay."""
    return (x != 0, "max" if op == "any" else "min") if op in ("any", "all") else (x, op)


def combined(op: str, earlier: Tensor, later: Tensor) -> Tensor:
    """Returns ``earlier . later``; of equal values the earlier one gets the gradient, and NaN propagates."""
    if op in _PLAIN:
        return _PLAIN[op](earlier, later)
    wins = earlier >= later if op == "max" else earlier <= later
    return torch.where(wins | (earlier != earlier), earlier, later)


def combine_into(op: str, earlier: Tensor, later: Tensor) -> Tensor:
    """Does :func:`combined`, in the memory of ``later`` unless a gradient is needed."""
    if torch.is_grad_enabled() and (earlier.requires_grad or later.requires_grad):
        return combined(op, earlier, later)
    if op in _PLAIN:
        return _PLAIN[op](earlier, later, out=later)
    return (torch.maximum if op == "max" else torch.minimum)(later, earlier, out=later)


def ranks_before(lengths: Sequence[int], rank: int, reverse: bool) -> list[int]:
    """Returns the ranks that hold elements and come before ``rank`` in scan order, in that order."""
    order = range(len(lengths) - 1, rank, -1) if reverse else range(rank)
    return [r for r in order if lengths[r]]


def identity(x: Tensor, op: ScanOp) -> Tensor:
    """Returns the identity of ``op``; ``x``, which has no rows, stays in the graph."""
    return anchored(tp.reduce(x[:0].detach(), 0, op=op), x)


def _end_of(y: Tensor, x: Tensor, op: ScanOp, exclusive: bool, reverse: bool) -> Tensor:
    """Returns the total of ``x``, given its scan ``y``: the last value, or the identity if there are no elements."""
    if len(x) == 0:
        return identity(x, op)
    last = 0 if reverse else -1
    if len(x) == 1:
        return x[last].to(y.dtype)
    return combined(op, y[last], x[last].to(y.dtype)) if exclusive else y[last]


def scan(
    x: Tensor, *, op: ScanOp = "sum", exclusive: bool = False, reverse: bool = False, group: Group = None
) -> Tensor:
    """Combines every prefix of the concatenated shards along dimension 0 (§11.6, one level up).

    Each rank scans its shard; one all_gather, which also carries the header, brings the totals of all ranks; each rank
    then combines the totals of the ranks before it into its part. On CUDA, for vectors of float32, float64 and int64
    without gradients, a reduction finds the total instead, and the scan then starts from the totals before it. The
    result for integers is exactly that of ``torch_patterns.scan`` for the whole; sums and products of half types are
    computed in float32 and rounded once. Differentiable to every order; all ranks must run backward.

    Args:
        x: this rank's shard [n, ...], of any length, including 0; dtypes as for ``torch_patterns.scan``. Its other
            properties must be the same on every rank.
        op: as for ``torch_patterns.scan``, except argmax and argmin.
        exclusive: leave the element itself out of its prefix.
        reverse: scan from the last element of the last rank to the first.
        group: a process group or one-dimensional DeviceMesh; the world if None.

    Returns:
        This rank's part of the result, [n, ...]; int64 for sums and products of integers.

    Raises:
        ValueError, TypeError: as ``torch_patterns.scan``, on the rank that passed the argument.
        RuntimeError: another rank raised, was called with other arguments, or did not take part; the message names it.

    Example:
        >>> counts = torch.tensor([3, 1, 4])
        >>> distributed.scan(counts, exclusive=True)  # where this rank's items go in the whole
        tensor([0, 3, 4])
    """

    started: list[tuple[Tensor, str, Tensor]] = []

    def prepare() -> dict[str, Tensor]:
        checked = shards("scan", x=x)
        offered("scan", op)
        if _goes_on(x, op):
            started.append((x, op, tp.reduce(x, 0, op=op)))
        else:
            values, plain = extremum(x, op)
            wide = widened(values, plain)
            started.append((wide, plain, tp.scan(wide, 0, op=plain, exclusive=exclusive, reverse=reverse)))
        return checked

    call = Call("scan", group, prepare, gathers=True, op=op, exclusive=exclusive, reverse=reverse)
    wide, plain, y = started[0]
    if _goes_on(x, op):
        before = _before(call.gather(y), call, reverse)
        if len(before):
            y = _ops.scan_from(x, tp.reduce(before, 0, op=op), op, exclusive, reverse)
        else:
            y = tp.scan(x, 0, op=op, exclusive=exclusive, reverse=reverse)
    else:
        totals = all_gather(_end_of(y, wide, plain, exclusive, reverse), call)
        before = _before(totals, call, reverse)
        y = combine_into(plain, tp.reduce(before, 0, op=plain), y) if len(before) else anchored(y, totals)
        y = y.to(tp.scan(x[:0], 0, op=op).dtype)
    call.numbers()  # after all has been launched
    return y


def _goes_on(x: Tensor, op: str) -> bool:
    """Tells whether a scan can start from the totals before it: a reduction for the total, and one pass instead of two.

    The answer is the same on every rank. The result of such a scan has the dtype of ``x``.
    """
    if not x.is_cuda or x.dim() != 1 or (x.requires_grad and torch.is_grad_enabled()):
        return False
    return x.dtype in (torch.float32, torch.float64, torch.int64) and (op in _PLAIN or op in ("max", "min"))


def _before(totals: Tensor, call: Call, reverse: bool) -> Tensor:
    """Returns the totals of the ranks before this one, in scan order.

    The totals of ranks without elements are identities. They do not change the result, but an identity that won a tie
    would also get the gradient. If that matters they are left out, and the host waits for the lengths.
    """
    if totals.requires_grad:
        return totals[ranks_before(call.lengths(), call.rank, reverse)]
    return totals[call.rank + 1 :].flip(0) if reverse else totals[: call.rank]


def linear_recurrence(
    a: Tensor, b: Tensor, *, initial: Tensor | None = None, reverse: bool = False, group: Group = None
) -> Tensor:
    """Solves ``h[t] = a[t] h[t-1] + b[t]`` along dimension 0 of the concatenated shards.

    Each rank composes the maps ``h -> a h + b`` of its shard to one map; one all_gather brings the maps of all ranks;
    each rank applies those before it, in order, and runs its recurrence from the resulting state. Composition does not
    commute, so nothing is reordered. Differentiable to every order in ``a``, ``b`` and ``initial``; all ranks must run
    backward.

    Args:
        a, b: this rank's shards, broadcast with each other to [n, ...]; floating point.
        initial: ``h`` before the first element, broadcast to the shape without dimension 0; the same on every rank, as
            is its gradient. Without it ``h[0] = b[0]``.
        reverse: run from the last element of the last rank to the first.
        group: a process group or one-dimensional DeviceMesh; the world if None.

    Returns:
        This rank's part of the result, [n, ...].

    Raises:
        ValueError, TypeError: as ``torch_patterns.linear_recurrence``, on the rank that passed the argument.
        RuntimeError: shapes do not broadcast; or another rank raised, was called with other arguments, or did not take
            part; the message names it.

    Example:
        >>> distributed.linear_recurrence(torch.full((3,), 2.0), torch.ones(3))
        tensor([1., 3., 7.])
    """

    def prepare() -> dict[str, Tensor]:
        for name, x, kind in (("a", a, "Tensor"), ("b", b, "Tensor"), ("initial", initial, "Tensor | None")):
            refuse("linear_recurrence", name, x, kind)
        both = shards("linear_recurrence", **dict(zip("ab", torch.broadcast_tensors(a, b), strict=True)))
        tp.linear_recurrence(both["a"][:0], both["b"][:0], 0, initial=initial, reverse=reverse)
        return both

    def start() -> str:
        return "None" if initial is None else f"{initial.dtype}{list(initial.shape)} {initial.requires_grad}"

    call = Call("linear_recurrence", group, prepare, initial=start, reverse=reverse)
    a, b = call.shards.values()
    dtype = torch.promote_types(a.dtype, b.dtype)
    if initial is not None:
        dtype = torch.promote_types(dtype, initial.dtype)
        initial = replicate(widened(initial), call.group)
    a, b = widened(a.to(dtype)), widened(b.to(dtype))
    before = ranks_before(call.lengths(), call.rank, reverse)
    first = not before and initial is None  # the very first element, whose multiplier is not used
    h, pair = _composed(a, b, first, reverse)
    pairs = all_gather(pair, call)
    if before:
        seed = tp.linear_recurrence(pairs[before, 0], pairs[before, 1], 0, initial=initial)[-1]
    else:
        seed, h = initial, anchored(h, pairs)
    if seed is not None:
        h = anchored(tp.linear_recurrence(a, b, 0, initial=seed.to(a.dtype), reverse=reverse), pairs)
    return h.to(dtype)


def _composed(a: Tensor, b: Tensor, first: bool, reverse: bool) -> tuple[Tensor, Tensor]:
    """Returns (h for an initial state of 0, the map of the whole shard as [2, ...]: h -> pair[0] h + pair[1])."""
    if len(b) == 0:
        h = a * b
        return h, torch.stack([identity(h, "prod"), identity(h, "sum")])
    start = None if first else b.new_zeros(())
    h = tp.linear_recurrence(a, b, 0, initial=start, reverse=reverse)
    end = h[0 if reverse else -1]
    factor = torch.ones_like(end) if first else tp.reduce(a, 0, op="prod")
    return h, torch.stack([factor, end])
