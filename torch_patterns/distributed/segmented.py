"""Segmented reductions and scans over shards: a segment may begin on one rank and end on another."""

from __future__ import annotations

import zlib
from itertools import accumulate

import torch
from torch import Tensor

import torch_patterns as tp
from torch_patterns.arguments import refuse
from torch_patterns.distributed.collectives import all_gather, anchored
from torch_patterns.distributed.group import Call, Group, gather_rows, shards
from torch_patterns.distributed.scan import combined, extremum, identity, offered, widened
from torch_patterns.literals import ScanOp, SegmentOp


def segment_scan(
    values: Tensor,
    offsets: Tensor,
    *,
    op: ScanOp = "sum",
    exclusive: bool = False,
    reverse: bool = False,
    validate: bool = False,
    group: Group = None,
) -> Tensor:
    """Combines every prefix of each segment of the concatenated shards.

    Each rank scans its rows, and one all_gather brings the last value of every rank. The rows that continue a segment
    of earlier ranks are then combined with the values of those ranks. Differentiable to every order; all ranks must run
    backward.

    Args:
        values: this rank's rows [n, ...], any number, including 0; dtypes as for ``torch_patterns.segment_scan``.
        offsets: [segments + 1], int64, of the whole: 0 first, the number of all rows last, not decreasing; the same on
            every rank. The CPU always checks them.
        op: as for ``torch_patterns.segment_scan``, except argmax and argmin.
        exclusive: leave the row itself out of its prefix; the first of each segment gets the identity.
        reverse: scan each segment from its last row to its first.
        validate: check ``offsets`` on CUDA, too, which costs a synchronization.
        group: a process group or one-dimensional DeviceMesh; the world if None.

    Returns:
        This rank's part of the result, [n, ...]; int64 for sums and products of integers.

    Raises:
        ValueError: ``offsets`` decrease, do not begin with 0 or do not end with the number of all rows; ``op`` is
            unknown.
        TypeError: a dtype is not supported.
        RuntimeError: another rank raised, was called with other arguments, or did not take part; the message names it.

    Example:
        >>> distributed.segment_scan(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]))
        tensor([1, 3, 3])
    """

    def prepare() -> dict[str, Tensor]:
        checked = shards("segment_scan", values=values)
        offered("segment_scan", op)
        _check_offsets("segment_scan", offsets, validate)
        tp.segment_scan(values[:0], offsets.new_zeros(2), op=op, exclusive=exclusive, reverse=reverse)
        return checked

    flags = {"op": op, "exclusive": exclusive, "reverse": reverse}
    call = Call("segment_scan", group, prepare, **flags, offsets=lambda: _fingerprint(offsets, validate))
    values, op = extremum(values, op)
    flags["op"] = op
    lengths = call.lengths()
    begins = _begins("segment_scan", offsets, lengths, validate)
    begin, end = begins[call.rank], begins[call.rank + 1]
    wide, here = widened(values, op), (offsets - begin).clamp(0, len(values))
    y = tp.segment_scan(wide, here, **flags)
    totals = all_gather(_end_of(y, wide, here, flags), call)
    if reverse:
        carry, first, last = _carry_from_right(totals, offsets, begins, call.rank, op)
    else:
        carry, first, last = _carry_from_left(totals, offsets, begins, call.rank, op)
    rows = torch.arange(begin, end, device=values.device)
    continues = ((rows >= first) & (rows < last)).view(-1, *(1,) * (y.dim() - 1))
    nothing = tp.reduce(totals[:0].detach(), 0, op=op)
    y = torch.where(continues, combined(op, torch.where(continues, carry, nothing), y), y)
    return y.to(tp.segment_scan(values[:0], offsets.new_zeros(2), op=op).dtype)


def _end_of(y: Tensor, x: Tensor, offsets: Tensor, flags: dict) -> Tensor:
    """Returns the total of this rank's rows of the last segment in scan order: the last value of an inclusive scan."""
    if len(x) == 0:
        return identity(x, flags["op"])
    last = 0 if flags["reverse"] else -1
    if not flags["exclusive"]:
        return y[last]
    if flags["op"] in ("sum", "prod"):
        return combined(flags["op"], y[last], x[last].to(y.dtype))
    # For a segment's first row y is the identity, which must not win a tie and with it the gradient.
    return tp.segment_scan(x, offsets, **{**flags, "exclusive": False})[last]


def _carry_from_left(totals: Tensor, offsets: Tensor, begins: list[int], rank: int, op: ScanOp):
    """Returns (the total that rows first ... last - 1 continue, first, last) for a segment that began on an earlier
    rank."""
    begin, ends = begins[rank], torch.tensor(begins[1:], device=offsets.device)
    at = offsets.new_tensor([begin])
    next_segment = torch.searchsorted(offsets, at, right=True)
    start = offsets[next_segment - 1]
    stop = offsets[next_segment.clamp(max=len(offsets) - 1)]
    # The rank that holds the first row of the segment is the first rank that ends after that row.
    holder = torch.searchsorted(ends, start, right=True).clamp(max=rank)
    edges = torch.cat([holder.new_zeros(1), holder, holder.new_tensor([rank, len(totals)])])
    carry = tp.segment_reduce(totals, edges, op=op)[1]
    return carry, at, torch.where(start < at, stop, at)


def _carry_from_right(totals: Tensor, offsets: Tensor, begins: list[int], rank: int, op: ScanOp):
    """Does the same as :func:`_carry_from_left` for the segment that ends on a later rank."""
    size, end, firsts = len(totals), begins[rank + 1], torch.tensor(begins[:-1], device=offsets.device)
    at = offsets.new_tensor([end])
    next_segment = torch.searchsorted(offsets, at)
    stop = offsets[next_segment.clamp(max=len(offsets) - 1)]
    start = offsets[(next_segment - 1).clamp(min=0)]
    holders = torch.searchsorted(firsts, stop).clamp(min=rank + 1)  # ranks that begin before the segment's end
    edges = torch.cat([holders.new_zeros(1), size - holders, holders.new_tensor([size - 1 - rank, size])])
    carry = tp.segment_reduce(totals.flip(0), edges, op=op)[1]  # in scan order
    return carry, torch.where(stop > at, start, at), at


def segment_reduce(
    values: Tensor, offsets: Tensor, *, op: SegmentOp = "sum", validate: bool = False, group: Group = None
) -> Tensor:
    """Combines the rows of each segment of the concatenated shards.

    Each rank reduces the segments that begin in its shard, and separately the rows that continue an earlier segment;
    one all_gather brings the latter to the ranks where their segments began. Differentiable to every order, except for
    argmax and argmin; all ranks must run backward.

    Args:
        values: this rank's rows [n, ...], any number, including 0; dtypes as for ``torch_patterns.segment_reduce``.
        offsets: [segments + 1], int64, of the whole: 0 first, the number of all rows last, not decreasing; the same on
            every rank. The CPU always checks them. The host waits for the few offsets at the borders of ranks.
        op: as for ``torch_patterns.segment_reduce``, except std and var; argmax and argmin give the row in the
            concatenation.
        validate: check ``offsets`` on CUDA, too.
        group: a process group or one-dimensional DeviceMesh; the world if None.

    Returns:
        [segments that begin in this shard, ...]: the concatenation over ranks is the result of the whole. Empty
        segments after the last row belong to the last rank.

    Raises:
        ValueError, TypeError, RuntimeError: as :func:`segment_scan`.

    Example:
        >>> distributed.segment_reduce(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]))
        tensor([3, 3])
    """

    def prepare() -> dict[str, Tensor]:
        checked = shards("segment_reduce", values=values)
        if op in ("std", "var"):
            offered("segment_reduce", op)
        _check_offsets("segment_reduce", offsets, validate)
        tp.segment_reduce(values[:0], offsets.new_zeros(2), op=op)
        return checked

    call = Call("segment_reduce", group, prepare, op=op, offsets=lambda: _fingerprint(offsets, validate))
    begins = _begins("segment_reduce", offsets, call.lengths(), validate)
    firsts = torch.searchsorted(offsets[:-1], offsets.new_tensor(begins[:-1])).tolist() + [len(offsets) - 1]
    low, high = firsts[call.rank], firsts[call.rank + 1]
    # The ranks whose first rows continue the last segment that begins here; no other segment begins in between.
    rest = [r for r in range(call.rank + 1, call.size) if firsts[r] == high] if low < high else []
    own = (offsets[low:high] - begins[call.rank]).clamp(max=len(values))
    edges = torch.cat([own.new_zeros(1), own, own.new_tensor([len(values)])])  # rows that continue, our segments
    if op in ("argmax", "argmin"):
        return _arg_reduce(values, edges, op, begins[call.rank], rest, call)
    partial_op = "sum" if op == "mean" else op
    y = tp.segment_reduce(widened(values, op), edges, op=partial_op)
    heads = all_gather(y[0], call)
    y = anchored(y[1:], heads)
    if rest:
        y = torch.cat([y[:-1], tp.reduce(torch.cat([y[-1:], heads[rest]]), 0, op=partial_op, keepdim=True)])
    if op == "mean":
        counts = offsets[low : high + 1].diff().clamp(min=1)
        y = y / counts.view(-1, *(1,) * (y.dim() - 1))
    return y.to(tp.segment_reduce(values[:0], offsets.new_zeros(2), op=op).dtype)


def _arg_reduce(values: Tensor, edges: Tensor, op: SegmentOp, begin: int, rest: list[int], call: Call) -> Tensor:
    values = values.detach()
    best = tp.segment_reduce(values, edges, op=op.removeprefix("arg"))
    rows = tp.segment_reduce(values, edges, op=op)
    rows = torch.where(rows >= 0, rows + begin, rows)
    best_heads, row_heads = gather_rows(best[0], call.group), gather_rows(rows[0], call.group)
    if rest:  # our part comes first and has at least one row, so no identity wins a tie
        candidates = torch.cat([best[-1:], best_heads[rest]])
        winner = tp.reduce(candidates, 0, op=op, keepdim=True)
        rows[-1] = torch.cat([rows[-1:], row_heads[rest]]).gather(0, winner)[0]
    return rows[1:].clone()


def _check_offsets(name: str, offsets: Tensor, validate: bool) -> None:
    refuse(name, "offsets", offsets, "Tensor")
    if offsets.dim() != 1 or len(offsets) == 0:
        raise ValueError(f"{name}: offsets must be of shape [segments + 1], got {list(offsets.shape)}")
    if offsets.dtype != torch.int64:
        raise TypeError(f"{name}: offsets must be int64, got {offsets.dtype}")
    if offsets.is_cuda and not validate:
        return
    if offsets[0] != 0:
        raise ValueError(f"{name}: offsets[0] is {int(offsets[0])}, not 0")
    decreasing = (offsets.diff() < 0).nonzero()
    if len(decreasing):
        i = int(decreasing[0]) + 1
        raise ValueError(f"{name}: offsets decrease at [{i}]: {int(offsets[i - 1])}, then {int(offsets[i])}")


def _fingerprint(offsets: Tensor, validate: bool) -> str:
    """Returns a digest by which ranks compare their offsets."""
    known = f"{offsets.dtype}{list(offsets.shape)}"
    if offsets.is_cuda and not validate:
        return known
    return f"{known} crc32 {zlib.crc32(offsets.numpy(force=True).tobytes()):08x}"


def _begins(name: str, offsets: Tensor, lengths: list[int], validate: bool) -> list[int]:
    """Returns the first row of every rank, then the number of all rows."""
    begins = [0, *accumulate(lengths)]
    if (not offsets.is_cuda or validate) and offsets[-1] != begins[-1]:
        raise ValueError(f"{name}: the last offset is {int(offsets[-1])}, and all shards have {begins[-1]} rows")
    return begins
