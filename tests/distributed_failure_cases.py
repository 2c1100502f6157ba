"""What every world runs last: calls that do not fit together, a rank that lags, and a rank that is killed.

Every rank must end with an error that names the rank at fault, and soon.
"""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from distributed_cases import raises
from distributed_world import World

import torch_patterns as tp
from torch_patterns import distributed
from torch_patterns.distributed import group as group_module


def assert_works(world: World) -> None:
    ones = torch.ones(2, device=world.device)
    assert distributed.reduce(ones).item() == 2 * world.size


def case_mismatches_are_named(world: World) -> None:
    last = world.size - 1
    odd = world.rank == last
    x = torch.ones(3, device=world.device)
    calls = [
        (lambda: distributed.scan(x.double() if odd else x), "float64"),
        (lambda: distributed.scan(x, op="max" if odd else "sum"), "op='max'"),
        (lambda: distributed.scan(x, reverse=odd), "reverse=True"),
        (lambda: distributed.scan(x.view(3, 1) if odd else x), "[n, 1]"),
        (lambda: distributed.scan(x.requires_grad_(odd)), "requires_grad"),
        (lambda: distributed.reduce(x) if odd else distributed.scan(x), "reduce("),
        (lambda: distributed.sort_keys(x, descending=odd), "descending=True"),
        (
            lambda: distributed.segment_scan(x, offsets(world, 0, 3, world.size * 3) if odd else whole(world)),
            "offsets=",
        ),
    ]
    for call, told in calls:
        message = raises(RuntimeError, "different arguments", call)
        assert f"rank {last}: " in message and told in message, message
        assert_works(world)


def offsets(world: World, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=world.device)


def whole(world: World) -> torch.Tensor:
    return offsets(world, 0, 3 * world.size)


def case_a_rank_that_raises_is_named(world: World) -> None:
    odd = world.rank == 1
    x = torch.ones(3, device=world.device)
    calls = [
        (lambda: distributed.scan(x, op="mean" if odd else "sum"), ValueError, "mean"),
        (lambda: distributed.scan(x.cfloat() if odd else x), TypeError, "Complex"),
        (lambda: distributed.scan(torch.empty(3, device="meta") if odd else x), RuntimeError, "is on meta"),
        (lambda: distributed.reduce(x.sum() if odd else x), ValueError, "scalar"),
        (lambda: distributed.sort_keys(x.view(1, 3) if odd else x), ValueError, "[n]"),
        (lambda: distributed.sort_pairs(x, x[:2] if odd else x), RuntimeError, "values 2"),
        (lambda: distributed.merge(x, x.int() if odd else x), TypeError, ""),
        (lambda: distributed.segment_scan(x, whole(world) + odd, validate=True), ValueError, "offsets[0] is 1"),
        (lambda: distributed.rmat(40 if odd else 3, device=world.device), ValueError, "scale"),
        (lambda: distributed.rmat(3, -1 if odd else 1, device=world.device), ValueError, "edge_factor"),
        (lambda: distributed.scan(None if odd else x), TypeError, "x must be a tensor"),
        (lambda: distributed.sort_keys([1.0] if odd else x), TypeError, "keys must be a tensor"),
        (lambda: distributed.segment_scan(x, [0, 3] if odd else whole(world)), TypeError, "offsets must be a tensor"),
        (
            lambda: distributed.linear_recurrence(x, x, initial=1.0 if odd else x.new_ones(())),
            TypeError,
            "initial must be a tensor",
        ),
        (lambda: distributed.shard(x if odd else tp.sparse.from_torch(x.diag())), TypeError, "whole must be a sparse"),
    ]
    for call, kind, told in calls:
        if odd:
            raises(kind, told, call)
        else:
            message = raises(RuntimeError, f"rank 1 raised {kind.__name__}", call)
            assert told in message, message
        assert_works(world)


def case_what_is_not_sharded_is_refused(world: World) -> None:
    A, graph = tp.sparse.from_torch(torch.eye(3, device=world.device)), tp.graph.grid(2, 2, device=world.device)
    raises(TypeError, "A must be a ShardedMatrix, got", distributed.spmv, A, torch.ones(3, device=world.device))
    raises(TypeError, "A must be a ShardedMatrix, got", distributed.conjugate_gradient, A, torch.ones(3))
    raises(TypeError, "graph must be a ShardedGraph, got", distributed.bfs, graph, 0)
    assert_works(world)


def case_offsets_of_another_length(world: World) -> None:
    x = torch.ones(3, device=world.device)
    raises(ValueError, "the last offset is 5", distributed.segment_scan, x, offsets(world, 0, 5), validate=True)
    raises(ValueError, "decrease", distributed.segment_scan, x, offsets(world, 0, 2, 1, 3 * world.size), validate=True)
    raises(TypeError, "int64", distributed.segment_reduce, x, whole(world).int())
    assert_works(world)


def case_groups(world: World) -> None:
    """Groups of some ranks, meshes, and what is no group of this process."""
    x = torch.arange(4, device=world.device) + world.rank
    rest = dist.new_group(list(range(1, world.size)))
    if world.rank == 0:
        raises(ValueError, "not in the group", distributed.scan, x, group=rest)
    else:
        total = distributed.reduce(x, group=rest)
        assert total.item() == sum(6 + 4 * rank for rank in range(1, world.size))
    mesh = dist.init_device_mesh(world.device.type, (world.size,))
    assert torch.equal(distributed.reduce(x, group=mesh), distributed.reduce(x))
    flat = dist.init_device_mesh(world.device.type, (1, world.size), mesh_dim_names=("a", "b"))
    raises(ValueError, "one dimension", distributed.reduce, x, group=flat)
    assert torch.equal(distributed.reduce(x, group=flat["b"]), distributed.reduce(x))


def case_a_rank_that_lags_is_named(world: World) -> None:
    group_module.ANSWER_WITHIN = 2.0
    last, began = world.size - 1, time.monotonic()
    # Headers go by gloo, which can wait no longer than it should; NCCL would end the process.
    backend = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
    group = dist.new_group(list(range(world.size)), timeout=timedelta(seconds=3), backend=backend)
    x = torch.ones(3, device=world.device)
    distributed.scan(x, group=group)
    if world.rank == last:
        world.store.wait([f"gave up {rank}" for rank in range(last)], timedelta(seconds=25))
    message = raises(RuntimeError, f"rank {last} of {world.size} did not take part", distributed.scan, x, group=group)
    world.store.set(f"gave up {world.rank}", "")
    assert time.monotonic() - began < 25 and "scan: " in message
    assert_works(world)


def case_a_killed_rank_is_named(world: World) -> None:
    last, began = world.size - 1, time.monotonic()
    x = torch.ones(1000, device=world.device)
    if world.rank == last:
        world.arrive("a_killed_rank_is_named")  # so that the others do not wait for it when they are done
        os.kill(os.getpid(), signal.SIGKILL)
    message = raises(RuntimeError, f"rank {last} of {world.size} did not take part", distributed.sort_keys, x)
    assert time.monotonic() - began < 40 and "sort_keys: " in message
    # The group stays closed, and says why.
    raises(RuntimeError, f"rank {last} of {world.size} did not take part", distributed.scan, x)
