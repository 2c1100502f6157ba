"""The distributed co-rank: where to divide the sorted runs of all ranks so that a given number of elements comes first.

``co_rank`` of chapter 12 (Fig. 12.5) bisects two sequences. Here each round compares many samples of all runs at once:
a sample that certainly has at least t elements before it lies right of the cut at t, and one that certainly has fewer
than t lies left of it. The range between shrinks by a factor of some hundreds per round, until every element in it is a
sample. Elements are ordered by key, then by run, rank and position, so equal keys have an order, too, and the cut is
exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

import torch_patterns as tp
from torch_patterns.distributed.group import gather_rows, on_device

SAMPLES = 1 << 17  # samples that a round sorts, for all cuts together
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}  # which torch can index


def balanced_targets(total: int, size: int) -> list[int]:
    """Returns the cuts of ``total`` elements into shards whose lengths differ by at most one."""
    return [total * r // size for r in range(1, size)]


def co_ranks(
    runs: Sequence[Tensor],
    lengths: Sequence[Sequence[int]],
    targets: Sequence[int],
    *,
    descending: bool,
    group: dist.ProcessGroup,
) -> list[list[list[int]]]:
    """Finds how many of the first ``targets[j]`` elements of all runs merged come from each run of each rank.

    Args:
        runs: this rank's runs, each [n] and sorted, of one dtype.
        lengths: [k][r], the length of run k on rank r.
        targets: not decreasing, from 0 to the sum of all lengths.
        descending: all runs are in descending order.
        group: the ranks.

    Returns:
        [targets][runs][ranks], the same on every rank. It takes about three rounds, each with one all_gather of few
        keys. The host waits once, at the end, so the rounds can be launched while the runs are still being sorted. For
        unsorted runs the cuts are arbitrary but do not decrease.
    """
    device, size, rank = runs[0].device, dist.get_world_size(group), dist.get_rank(group)
    ends = on_device(lengths, device)
    low = torch.zeros(len(targets), len(runs), size, 1, dtype=torch.int64, device=device)
    high = ends.unsqueeze(-1).expand_as(low)
    target = on_device(targets, device).view(-1, 1, 1, 1)
    for samples in _rounds(max(map(max, lengths)), len(runs) * size, len(targets)):
        positions = (high - low) * torch.arange(samples, device=device) // samples + low
        mine = torch.stack([_take(run, positions[:, k, rank]) for k, run in enumerate(runs)], 1)
        every = gather_rows(mine, group).permute(1, 2, 0, 3)  # [targets, runs, ranks, samples]
        order = tp.argsort(every.reshape(len(targets), -1).view(runs[0].dtype), 1, descending=descending)
        low, high = _narrowed(order, low, high, positions, target)
    return torch.minimum(low.squeeze(-1), ends).cummax(0).values.tolist()


def _rounds(width: int, runs: int, targets: int) -> Iterator[int]:
    """Yields the number of samples per run for each round. Of ``width`` undecided elements, (runs + 2) strides
    remain."""
    most = max(SAMPLES // (runs * targets), 4 * (runs + 2))
    while width > most:
        yield most
        width = (runs + 2) * (width // most + 2)
    if width:
        yield width


def _narrowed(order: Tensor, low: Tensor, high: Tensor, positions: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Narrows the bounds of the cut in every run by the samples that certainly lie left or right of it.

    A sample at position p has p elements of its own run before it. Of another run it has at least those up to that
    run's last sample before it (or to ``low``), and at most those up to that run's next sample (or to ``high``). From
    one sample to the next in sorted order, the sums of both over the runs change only by the contribution of that
    sample's own run, which is 0 if ``low`` equals ``high``.
    """
    behind = torch.minimum(positions + 1, high)
    previous = torch.cat([low, behind[..., :-1]], -1)
    following = torch.cat([positions[..., 1:], high], -1)
    gains = torch.stack([behind - previous, following - positions]).flatten(2)
    order = order.expand_as(gains)
    sums = tp.scan(gains.gather(2, order), 2, exclusive=True)
    at_least, at_most = torch.empty_like(sums).scatter_(2, order, sums).view(2, *positions.shape)
    more = target - low.sum((1, 2), keepdim=True)
    left, right = at_most < more, at_least + (positions - previous) >= more
    return torch.where(left, behind, low).amax(-1, keepdim=True), torch.where(right, positions, high).amin(
        -1, keepdim=True
    )


def _take(run: Tensor, positions: Tensor) -> Tensor:
    """Returns the bits of the keys at these positions: 0 if the run is empty, and any key past its end."""
    bits = run.detach().view(SIGNED.get(run.dtype, run.dtype))
    return bits[positions.clamp(max=len(run) - 1)] if len(run) else bits.new_zeros(positions.shape)
