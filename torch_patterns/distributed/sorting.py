"""Sorts and merges over shards: local sort, exact cuts, one all_to_all, local merges (§12.3, §13.7, §13.8)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

import torch_patterns as tp
from torch_patterns.arguments import refuse
from torch_patterns.distributed.collectives import all_to_all_pieces, anchored
from torch_patterns.distributed.group import Call, Group
from torch_patterns.distributed.selection import balanced_targets, co_ranks

MERGED = (
    8  # runs that are merged pair by pair, in three passes; more of them are sorted again, in the passes of one sort
)


def sort_keys(keys: Tensor, *, descending: bool = False, balanced: bool = True, group: Group = None) -> Tensor:
    """Sorts the elements of all shards, so that each rank holds a contiguous part of the result.

    Each rank sorts its shard, the ranks agree on exact cuts of the whole (:mod:`.selection`), one all_to_all moves
    every element at most once, and each rank merges the runs that it received. Stable, with the order of
    ``torch_patterns.sort_keys``; ties are cut by rank and position, so an array of equal keys is not a special case.
    Differentiable to every order; all ranks must run backward.

    Args:
        keys: this rank's shard [n], of any length, including 0; dtypes as for ``torch_patterns.sort_keys``.
        descending: put the greatest first.
        balanced: return shards that differ by at most one element; without it, shards as long as those given.
        group: a process group or one-dimensional DeviceMesh; the world if None.

    Returns:
        This rank's part of the result, a new tensor.

    Raises:
        ValueError: ``keys`` is not one-dimensional.
        TypeError: the dtype is not supported.
        RuntimeError: another rank raised, was called with other arguments, or did not take part; the message names it.

    Example:
        >>> keys = torch.tensor([3, 1, 2])
        >>> distributed.sort_keys(keys)  # the parts of rank 0, 1, ... are sorted as a whole
        tensor([1, 2, 3])
    """

    def prepare() -> dict[str, Tensor]:
        _check_vector("sort_keys", keys=keys)
        tp.sort_keys(keys[:0], 0, descending=descending)
        return {"keys": keys}

    call = Call("sort_keys", group, prepare, descending=descending, balanced=balanced)
    run = tp.sort_keys(keys, 0, descending=descending)
    if call.size == 1:
        call.numbers()
        return run
    cuts = _cuts([run], [call.lengths()], call, descending, balanced)
    return _merged((_moved(run, cuts, 0, call),), descending)[0]


def sort_pairs(
    keys: Tensor, values: Tensor, *, descending: bool = False, balanced: bool = True, group: Group = None
) -> tuple[Tensor, Tensor]:
    """Sorts the keys of all shards as :func:`sort_keys` does, and moves the values with them.

    Args:
        keys: this rank's shard [n].
        values: [n]; dtypes as for ``torch_patterns.sort_pairs``.
        descending, balanced, group: as for :func:`sort_keys`.

    Returns:
        (keys, values): this rank's part of both. Differentiable in both.

    Raises:
        ValueError, TypeError, RuntimeError: as :func:`sort_keys`; also if keys and values differ in length.

    Example:
        >>> distributed.sort_pairs(torch.tensor([3, 1, 2]), torch.tensor([30, 10, 20]))
        (tensor([1, 2, 3]), tensor([10, 20, 30]))
    """
    return _sort_pairs("sort_pairs", keys, values, descending, balanced, group)


def sort(x: Tensor, *, descending: bool = False, balanced: bool = True, group: Group = None) -> tuple[Tensor, Tensor]:
    """Sorts the elements of all shards stably, and returns the index of each in the concatenation.

    Args:
        x: this rank's shard [n].
        descending, balanced, group: as for :func:`sort_keys`.

    Returns:
        (values, indices): this rank's part of both; indices int64.

    Raises:
        ValueError, TypeError, RuntimeError: as :func:`sort_keys`.

    Example:
        >>> distributed.sort(torch.tensor([3, 1, 2]))
        (tensor([1, 2, 3]), tensor([1, 2, 0]))
    """
    return _sort_pairs("sort", x, None, descending, balanced, group)


def _sort_pairs(name: str, keys: Tensor, values: Tensor | None, descending: bool, balanced: bool, group):
    def prepare() -> dict[str, Tensor]:
        if values is None:
            _check_vector(name, x=keys)
            tp.sort(keys[:0], 0, descending=descending)
            return {"x": keys}
        _check_vector(name, keys=keys, values=values)
        if len(keys) != len(values):
            raise RuntimeError(f"{name}: keys are {len(keys)}, values {len(values)}")
        tp.sort_pairs(keys[:0], values[:0], 0, descending=descending)
        return {"keys": keys, "values": values}

    call = Call(name, group, prepare, descending=descending, balanced=balanced)
    lengths = call.lengths()
    if values is None:
        begin = sum(lengths[: call.rank])
        values = torch.arange(begin, begin + len(keys), device=keys.device)
    run, values = tp.sort_pairs(keys, values, 0, descending=descending)
    if call.size == 1:
        return run, values
    cuts = _cuts([run], [lengths], call, descending, balanced)
    if run.requires_grad and values.requires_grad:  # a gradient of either runs both exchanges backward, on every rank
        arrivals = _arrivals(cuts, 0, call)
        joined = [torch.cat(list(_moved(x, cuts, 0, call))) for x in (run, values)]
        joined = [anchored(joined[0], joined[1]), anchored(joined[1], joined[0])]
        return _merged([x.split(arrivals) for x in joined], descending)
    return _merged((_moved(run, cuts, 0, call), _moved(values, cuts, 0, call)), descending)


def merge(a: Tensor, b: Tensor, *, descending: bool = False, balanced: bool = True, group: Group = None) -> Tensor:
    """Merges two sorted and sharded sequences: the distributed §12.3.

    The ranks agree where to cut both sequences (:mod:`.selection`), one all_to_all per sequence moves the parts, and
    each rank merges two parts. Stable: among equal elements those of ``a`` come first. Differentiable to every order;
    all ranks must run backward.

    Args:
        a, b: this rank's shards [m] and [n] of the two sequences, of any lengths, including 0. The concatenation of
            each over the ranks must be sorted; if it is not, the result is some of the elements in some order.
        descending: both inputs and the result are in descending order.
        balanced: return shards that differ by at most one element; without it, shards of m + n elements.
        group: a process group or one-dimensional DeviceMesh; the world if None.

    Returns:
        This rank's part of the result, a new tensor.

    Raises:
        ValueError: ``a`` or ``b`` is not one-dimensional.
        TypeError: the dtypes differ, or are not supported.
        RuntimeError: another rank raised, was called with other arguments, or did not take part; the message names it.

    Example:
        >>> distributed.merge(torch.tensor([1, 3]), torch.tensor([2]))
        tensor([1, 2, 3])
    """

    def prepare() -> dict[str, Tensor]:
        _check_vector("merge", a=a, b=b)
        tp.merge(a[:0], b[:0], descending=descending)
        return {"a": a, "b": b}

    call = Call("merge", group, prepare, descending=descending, balanced=balanced)
    if call.size == 1:
        call.numbers()
        return tp.merge(a, b, descending=descending)
    cuts = _cuts([a.contiguous(), b.contiguous()], [call.lengths(0), call.lengths(1)], call, descending, balanced)
    parts = (torch.cat(list(_moved(x, cuts, run, call))) for run, x in enumerate((a, b)))
    return tp.merge(*parts, descending=descending)


def _check_vector(name: str, **tensors: Tensor) -> None:
    for what, x in tensors.items():
        refuse(name, what, x, "Tensor")
        if x.dim() != 1:
            raise ValueError(f"{name}: {what} must be of shape [n], got {list(x.shape)}")


def _cuts(runs: list[Tensor], lengths: list[list[int]], call: Call, descending: bool, balanced: bool):
    """Returns [ranks + 1][runs][ranks]: where the part of each rank begins in every run, and the ends of the runs."""
    held = [sum(of_rank) for of_rank in zip(*lengths, strict=True)]
    targets = balanced_targets(sum(held), call.size) if balanced else list(accumulate(held))[:-1]
    inner = co_ranks(runs, lengths, targets, descending=descending, group=call.group)
    return [[[0] * call.size for _ in runs], *inner, lengths]


def _moved(x: Tensor, cuts, run: int, call: Call) -> Sequence[Tensor]:
    """Moves the parts of a run: returns this rank's parts, one from each rank."""
    return all_to_all_pieces(x, [cut[run] for cut in cuts], call.group)


def _arrivals(cuts, run: int, call: Call) -> list[int]:
    """Returns how many elements of a run come from each rank."""
    begin, end = cuts[call.rank][run], cuts[call.rank + 1][run]
    return [e - b for b, e in zip(begin, end, strict=True)]


def _merged(received: Sequence[Sequence[Tensor]], descending: bool) -> tuple[Tensor, ...]:
    """Merges sorted runs: neighbours first, so that equal keys keep the order of the ranks.

    ``received``: the runs of keys and, if there are any, those of values.
    """
    runs = list(zip(*received, strict=True))
    runs = [run for run in runs if len(run[0])] or runs[:1]
    if len(runs) > MERGED:
        whole = [torch.cat(pieces) for pieces in zip(*runs, strict=True)]
        if len(whole) == 1:
            return (tp.sort_keys(whole[0], 0, descending=descending),)
        return tp.sort_pairs(*whole, 0, descending=descending)
    while len(runs) > 1:
        pairs = zip(runs[::2], runs[1::2], strict=False)
        joined = [_merge_two(*pair, descending) for pair in pairs]
        runs = joined + runs[len(runs) // 2 * 2 :]
    return runs[0]


def _merge_two(first: tuple[Tensor, ...], second: tuple[Tensor, ...], descending: bool) -> tuple[Tensor, ...]:
    if len(first) == 1:
        return (tp.merge(first[0], second[0], descending=descending),)
    return tp.merge_pairs(*first, *second, descending=descending)
