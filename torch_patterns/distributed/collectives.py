"""The collectives of this package as differentiable functions of tensors: each one's gradient is its transpose.

The loss that is differentiated is the sum of the losses of all ranks. So every rank must run backward, and all in the
same order. Data is sent as bytes, so every dtype works, even if the backend does not know it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from torch_patterns.distributed.group import Call, as_bytes, finish, gather_rows


def _rows_as_bytes(x: Tensor) -> Tensor:
    """Returns [n, bytes of a row], which shares the memory of contiguous ``x`` [n, ...]."""
    return as_bytes(x).view(len(x), x.element_size() * x.shape[1:].numel())


def over_ranks(x: Tensor, group: dist.ProcessGroup, op=dist.ReduceOp.SUM) -> Tensor:
    """Returns the sum (or another reduction) of ``x`` over the ranks, on every rank; not differentiable."""
    total = x.detach().clone(memory_format=torch.contiguous_format)
    finish(dist.all_reduce(total, op, group=group, async_op=True), total, "all_reduce", group)
    return total


class _Collective(torch.autograd.Function):
    """The base class. It makes a collective part of a derivative on every rank or on none.

    Autograd skips a node whose gradient is a constant, and whether it is may differ from rank to rank: for example, the
    loss may be linear in one shard. So the node has an empty second output, through which every incoming gradient is
    put into the graph.
    """

    @staticmethod
    def with_token(ctx, out: Tensor) -> tuple[Tensor, Tensor]:
        token = out.new_empty(0)
        ctx.save_for_backward(token)
        return out, token

    @staticmethod
    def in_graph(ctx, grad: Tensor) -> Tensor:
        return _Anchored.apply(grad, *ctx.saved_tensors) if torch.is_grad_enabled() else grad


class _AllGather(_Collective):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup, gather: Callable[[Tensor], Tensor] | None):
        ctx.group = group
        return _Collective.with_token(ctx, gather_rows(x, group) if gather is None else gather(x))

    @staticmethod
    def backward(ctx, grad: Tensor, _):
        return _ReduceScatter.apply(_Collective.in_graph(ctx, grad), ctx.group)[0], None, None


class _ReduceScatter(_Collective):
    """Row r of the sum over ranks, on rank r. There are only a few numbers per rank, so every rank may get all of
    them."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup):
        ctx.group = group
        return _Collective.with_token(ctx, over_ranks(x, group)[dist.get_rank(group)])

    @staticmethod
    def backward(ctx, grad: Tensor, _):
        return _AllGather.apply(_Collective.in_graph(ctx, grad), ctx.group, None)[0], None


class _Replicate(_Collective):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup):
        ctx.group = group
        return _Collective.with_token(ctx, x.view_as(x))

    @staticmethod
    def backward(ctx, grad: Tensor, _):
        return _SumOverRanks.apply(_Collective.in_graph(ctx, grad), ctx.group)[0], None


class _SumOverRanks(_Collective):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup):
        ctx.group = group
        return _Collective.with_token(ctx, over_ranks(x, group))

    @staticmethod
    def backward(ctx, grad: Tensor, _):
        return _SumOverRanks.apply(_Collective.in_graph(ctx, grad), ctx.group)[0], None


class Exchange:
    """An all-to-all of rows: ``send[r]`` rows go to rank r, and ``receive[r]`` rows come from rank r."""

    def __init__(self, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup):
        self.send, self.receive, self.group = list(send), list(receive), group
        self._under_way: tuple[dist.Work, Tensor] | None = None

    def start(self, x: Tensor) -> Tensor:
        """Starts the exchange and returns the rows to receive, which may be read after :meth:`wait`."""
        out = x.new_empty(sum(self.receive), *x.shape[1:])
        if x.shape[1:].numel():
            sent, received = _rows_as_bytes(x.detach().contiguous()), _rows_as_bytes(out)
            counts = (self.receive, self.send)
            self._under_way = dist.all_to_all_single(received, sent, *counts, group=self.group, async_op=True), out
        return out

    def wait(self) -> None:
        if self._under_way is not None:
            finish(*self._under_way, "all_to_all", self.group)
            self._under_way = None


class _AllToAll(_Collective):
    @staticmethod
    def forward(ctx, x: Tensor, exchange: Exchange):
        ctx.back = (exchange.receive, exchange.send, exchange.group)
        return _Collective.with_token(ctx, exchange.start(x))

    @staticmethod
    def backward(ctx, grad: Tensor, _):
        return all_to_all(_Collective.in_graph(ctx, grad), *ctx.back), None


class _Anchored(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, anchor: Tensor) -> Tensor:
        ctx.save_for_backward(anchor)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (anchor,) = ctx.saved_tensors
        return grad, _Anchored.apply(torch.zeros_like(anchor), grad)  # also in the graph of a second derivative


def all_gather(x: Tensor, call: Call) -> Tensor:
    """Returns [ranks, *x.shape]: the ``x`` of every rank, all of one shape, by ``call.gather``.

    Gradient: each rank gets the sum of all ranks' gradients for its row.
    """
    return _AllGather.apply(x, call.group, call.gather)[0]


def all_to_all(x: Tensor, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Sends the first ``send[0]`` rows to rank 0, and so on; receives ``receive[r]`` rows from rank r, in rank order.

    Gradient: every row goes back to the rank it came from.
    """
    exchange = Exchange(send, receive, group)
    out = start_all_to_all(x, exchange)
    exchange.wait()
    return out


ALIGNMENT = 16  # bytes: NCCL copies other addresses at less than half the rate


def all_to_all_pieces(x: Tensor, cuts: Sequence[Sequence[int]], group: dist.ProcessGroup) -> Sequence[Tensor]:
    """Returns the parts of every rank's ``x`` that belong to this rank, one per rank; its own part is not copied.

    ``cuts[p][r]``: where part p begins in the ``x`` of rank r; the last row has the lengths of all. Gradient: every row
    goes back to the rank it came from.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    # Every rank must choose the same, so the choice must not depend on the length of a rank's shard.
    if (x.requires_grad and torch.is_grad_enabled()) or not x.is_cuda:
        send = [cuts[r + 1][rank] - cuts[r][rank] for r in range(size)]
        receive = [end - begin for begin, end in zip(cuts[rank], cuts[rank + 1], strict=True)]
        return all_to_all(x, send, receive, group).split(receive)
    x = x.detach().contiguous()
    row = x.element_size() * x.shape[1:].numel()
    unit = ALIGNMENT // math.gcd(ALIGNMENT, row)
    if x.data_ptr() % ALIGNMENT:
        x = x.clone()

    def widened(part: int, holder: int) -> tuple[int, int]:
        """Returns the rows of a part on a rank, with the few rows around them that make the copy aligned."""
        return cuts[part][holder] // unit * unit, min(-(-cuts[part + 1][holder] // unit) * unit, cuts[-1][holder])

    ranges = [widened(rank, r) if r != rank else (0, 0) for r in range(size)]
    room = list(accumulate((-(-(end - begin) // unit) * unit for begin, end in ranges), initial=0))
    buffer = x.new_empty(room[-1], *x.shape[1:])
    received = [buffer[at : at + end - begin] for at, (begin, end) in zip(room, ranges, strict=False)]
    sent = [x[slice(*widened(r, rank))] if r != rank else x[:0] for r in range(size)]
    work = dist.all_to_all(
        [_rows_as_bytes(t) for t in received], [_rows_as_bytes(t) for t in sent], group=group, async_op=True
    )
    finish(work, buffer, "all_to_all", group)
    parts = zip(received, ranges, cuts[rank], cuts[rank + 1], strict=True)
    pieces = [piece[b - begin : e - begin] for piece, (begin, _), b, e in parts]
    pieces[rank] = x[cuts[rank][rank] : cuts[rank + 1][rank]]
    return pieces


def start_all_to_all(x: Tensor, exchange: Exchange) -> Tensor:
    """Starts :func:`all_to_all` without waiting; the caller calls ``exchange.wait()`` before it uses the result."""
    differentiable = x.requires_grad and torch.is_grad_enabled()
    return _AllToAll.apply(x, exchange)[0] if differentiable else exchange.start(x)


def replicate(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Returns ``x``, the same on every rank. Gradient: the sum over the ranks, which is also the same on every rank."""
    return _Replicate.apply(x, group)[0]


def anchored(x: Tensor, anchor: Tensor) -> Tensor:
    """Returns ``x`` with ``anchor`` in its graph, by a gradient of 0.

    A collective must run backward on every rank, including ranks that do not use its result.
    """
    return _Anchored.apply(x, anchor)
