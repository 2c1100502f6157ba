"""The collectives of this package as differentiable functions of tensors: each one's gradient is its transpose.

The loss that is differentiated is the sum of the losses of all ranks. Every rank must therefore run backward, and all
of them in the same order. Data travels as bytes, so that every dtype does, whatever the backend knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from torch_patterns.distributed.group import all_gather_single, finish


def _as_bytes(x: Tensor) -> Tensor:
    """[n, bytes of a row], sharing memory with contiguous ``x`` [n, ...]."""
    return x.view(len(x), x.shape[1:].numel()).view(torch.uint8)


def gather_rows(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[ranks, *x.shape]: ``x`` of every rank, of one shape; not differentiable."""
    flat = x.detach().reshape(1, -1).contiguous()
    every = flat.new_empty(dist.get_world_size(group), flat.shape[1])
    if flat.numel():
        sent, received = flat.view(torch.uint8).view(-1), every.view(torch.uint8).view(-1)
        finish(all_gather_single(received, sent, group=group, async_op=True), received, "all_gather", group)
    return every.view(len(every), *x.shape)


def sum_over_ranks(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of ``x`` over the ranks, on every rank; not differentiable."""
    total = x.detach().clone(memory_format=torch.contiguous_format)
    finish(dist.all_reduce(total, group=group, async_op=True), total, "all_reduce", group)
    return total


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return gather_rows(x, group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _ReduceScatter.apply(grad, ctx.group), None


class _ReduceScatter(torch.autograd.Function):
    """Row r of the sum over ranks, on rank r. What is summed are a few numbers per rank, so that all may get all."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return sum_over_ranks(x, group)[dist.get_rank(group)]

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _AllGather.apply(grad, ctx.group), None


class _Replicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _SumOverRanks.apply(grad, ctx.group), None


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return sum_over_ranks(x, group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _SumOverRanks.apply(grad, ctx.group), None


class Exchange:
    """An all-to-all of rows: ``send[r]`` of them go to rank r, ``receive[r]`` come from there."""

    def __init__(self, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup):
        self.send, self.receive, self.group = list(send), list(receive), group
        self._under_way: tuple[dist.Work, Tensor] | None = None

    def start(self, x: Tensor) -> Tensor:
        """The rows to come, which may be read after :meth:`wait`."""
        out = x.new_empty(sum(self.receive), *x.shape[1:])
        if x.shape[1:].numel():
            sent, received = _as_bytes(x.detach().contiguous()), _as_bytes(out)
            counts = (self.receive, self.send)
            self._under_way = dist.all_to_all_single(received, sent, *counts, group=self.group, async_op=True), out
        return out

    def wait(self) -> None:
        if self._under_way is not None:
            finish(*self._under_way, "all_to_all", self.group)
            self._under_way = None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.back = (exchange.receive, exchange.send, exchange.group)
        return exchange.start(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return all_to_all(grad, *ctx.back), None


class _Anchored(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, anchor: Tensor) -> Tensor:
        ctx.save_for_backward(anchor)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (anchor,) = ctx.saved_tensors
        return grad, _Anchored.apply(torch.zeros_like(anchor), grad)  # in the graph of a second derivative, too


def all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[ranks, *x.shape]: ``x`` of every rank, all of one shape. Gradient: each rank gets the sum of what all have."""
    return _AllGather.apply(x, group)


def all_to_all(x: Tensor, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """The first ``send[0]`` rows to rank 0, and so on; ``receive[r]`` rows come from rank r, in the order of ranks.

    Gradient: every row goes back to where it came from.
    """
    exchange = Exchange(send, receive, group)
    out = start_all_to_all(x, exchange)
    exchange.wait()
    return out


ALIGNMENT = 16  # bytes: NCCL copies what lies otherwise at less than half the rate


def all_to_all_pieces(
    x: Tensor, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup
) -> Sequence[Tensor]:
    """What :func:`all_to_all` gives, in pieces: one from each rank."""
    row = x.element_size() * x.shape[1:].numel()
    in_graph = x.requires_grad and torch.is_grad_enabled()
    # The same choice on every rank: it must not depend on how long a rank's shard is.
    if in_graph or not x.is_cuda or row not in (1, 2, 4, 8):
        return all_to_all(x, send, receive, group).split(list(receive))
    unit = ALIGNMENT // row
    padded_send, padded_receive = ([-(-n // unit) * unit for n in counts] for counts in (send, receive))
    aligned = x.new_empty(sum(padded_send), *x.shape[1:])
    for piece, place in zip(x.detach().split(list(send)), aligned.split(padded_send), strict=True):
        place[: len(piece)].copy_(piece)
    pieces = all_to_all(aligned, padded_send, padded_receive, group).split(padded_receive)
    return [piece[:n] for piece, n in zip(pieces, receive, strict=True)]


def start_all_to_all(x: Tensor, exchange: Exchange) -> Tensor:
    """As :func:`all_to_all`, but the caller goes on and calls ``exchange.wait()`` before it uses the result."""
    differentiable = x.requires_grad and torch.is_grad_enabled()
    return _AllToAll.apply(x, exchange) if differentiable else exchange.start(x)


def replicate(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """``x``, which is the same on every rank. Gradient: the sum over the ranks, again the same on every rank."""
    return _Replicate.apply(x, group)


def anchored(x: Tensor, anchor: Tensor) -> Tensor:
    """``x``, with ``anchor`` in its graph by a gradient of 0.

    A collective must run backward on every rank, on those as well that make no use of what it gave them.
    """
    return _Anchored.apply(x, anchor)
