"""LeNet-5 on several ranks by fused steps."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from torch_patterns import lenet
from torch_patterns.distributed.group import Group, resolve

ALIGNED = 64  # elements: gradients of parameters begin at multiples of this


class Trainer(lenet.Trainer):
    """A :class:`torch_patterns.lenet.Trainer` in which each rank takes its part of every batch.

    Every rank has the whole data set and draws the same order and distortions. The fused step computes the gradients of
    the rank's part of a batch: with a learning rate and momentum of 0 it writes the gradients to the momenta and leaves
    the parameters unchanged. One all_reduce per step sums them, together with the loss, and every rank makes the same
    update. So the loss curve is that of one process with the same batch, except for rounding, because gradients are
    summed in another order. On CUDA an epoch is one replay of a CUDA graph, collectives included.

    Args:
        model: a LeNet5 with the same options on every rank; the parameters of rank 0 of the group are copied to the
            others.
        images, targets: the whole data set, on every rank.
        batch: images per step of all ranks together.
        group: a process group or one-dimensional DeviceMesh; the world if None.
        options: as for the local trainer; the same on every rank.

    Raises:
        ValueError, IndexError: as the local trainer.
    """

    def __init__(
        self, model: lenet.LeNet5, images: Tensor, targets: Tensor, batch: int, *, group: Group = None, **options
    ):
        super().__init__(model, images, targets, batch, **options)
        self.group = resolve(group)
        self._rank, self._size = dist.get_rank(self.group), dist.get_world_size(self.group)
        with torch.no_grad():
            for p in self.params:
                dist.broadcast(p, group=self.group, group_src=0)
        self._zero = torch.zeros_like(self._momentum)
        begins, end = [], 0
        for p in self.params:
            begins.append(end)
            end += -(-p.numel() // ALIGNED) * ALIGNED
        ranges = list(zip(begins, self.params, strict=True))

        def flat() -> tuple[Tensor, list[Tensor]]:
            """Returns a buffer for all parameters, the loss and the hits, and its views with the parameters' shapes."""
            buffer = self.params[0].new_zeros(end + 2, requires_grad=False)
            return buffer, [buffer[begin : begin + p.numel()].view(p.shape) for begin, p in ranges]

        (self._sums, self._gradients), (self._moments, self.momenta) = flat(), flat()
        (self._decay, self._values), (self._change, self._changes) = flat(), flat()

    def _run_epoch(self) -> tuple[Tensor, Tensor]:
        x, targets = torch.ops.torch_patterns.lenet5_minibatches(
            self.images, self.targets, self._seed, self._epoch, self.shuffle, self.distort
        )
        if x.is_floating_point():
            x = x.to(self.params[0].dtype)
        batches = zip(x.split(self.batch), targets.split(self.batch), self._lr, strict=True)
        totals = [self._step(*batch) for batch in batches]
        self._epoch.add_(1)
        losses, hits = torch.stack(totals).double().unbind(1)
        return (losses * self._weights).sum(), hits.sum().long()

    def _step(self, x: Tensor, targets: Tensor, rate: Tensor) -> Tensor:
        """Updates the parameters, in the same way on every rank; returns [the mean loss of the batch, its hits]."""
        count = len(targets)
        part = slice(count * self._rank // self._size, count * (self._rank + 1) // self._size)
        x, targets = x[part], targets[part]
        self._sums.zero_()
        if len(targets):
            losses, hits = torch.ops.torch_patterns.lenet5_train_epoch(
                x.contiguous(),
                targets.contiguous(),
                self.params,
                self._gradients,
                self._zero.expand(1).contiguous(),
                self._zero,
                self._zero,
                len(targets),
                *self._words,
                self.algorithm,
            )
            self._sums[-2] = losses[0]
            self._sums.mul_(len(targets) / count)  # turns means over the part into terms of the batch's mean
            self._sums[-1] = hits[0]
        dist.all_reduce(self._sums, group=self.group)
        torch._foreach_copy_(self._values, self.params)
        self._moments.mul_(self._momentum).add_(self._sums).addcmul_(self._decay, self._weight_decay)
        torch.mul(self._moments, rate, out=self._change)
        torch._foreach_sub_(self.params, self._changes)
        return self._sums[-2:].clone()
