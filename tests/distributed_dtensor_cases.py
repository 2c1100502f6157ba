"""DTensor over the operators: every rule, twice with different flags, and no gathering where a placement fits."""

import torch
from distributed_world import World
from torch.distributed import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication

import torch_patterns as tp
from torch_patterns import distributed  # noqa: F401 - registers the rules
from torch_patterns.distributed import dtensor
from torch_patterns.testing import assert_within

_ops = torch.ops.torch_patterns


def integers(*shape, low=-4, high=5) -> torch.Tensor:
    return torch.randint(low, high, shape).float()


def calls(size: int) -> list[tuple]:
    """(operator, arguments with tensors as (tensor, placement), expected placements); neighbours differ in a flag."""
    n, s0, s1, rep = 4 * size, Shard(0), Shard(1), Replicate()
    x, y = integers(n, 8, high=3), integers(n, 8, high=3)
    images, filters, bias = integers(n, 2, 6, 6), integers(4 * size, 2, 3, 3), integers(4 * size)
    maps = integers(n, 2, 3, 3)
    pooled = _ops.max_pool2d(images, [2, 2])
    rows, offsets = integers(9, n), torch.tensor([0, 2, 2, 9])
    a, b = (integers(n, k).sort(1).values for k in (5, 6))
    digits = torch.randint(0, 8, (n,))
    sparse = tp.coo(torch.randint(0, 5, (12,)), torch.randint(0, 9, (12,)), integers(12), (5, 9)).convert("csr")
    weight = integers(4 * size, 8)
    none, total = ("none",), ("sum",)
    found = [
        ("scan", ((x, s0), 1, "sum"), [s0]),
        ("scan", ((x, s0), 1, "max", True, True), [s0]),
        ("scan", ((x.T.contiguous(), s1), 0, "sum"), [s1]),
        ("scan_with_indices", ((x, s0), 1, "max"), [s0, s0]),
        ("scan_with_indices", ((x, s0), -1, "min", True), [s0, s0]),
        ("linear_recurrence", ((x, s0), (y, s0), 1), [s0]),
        ("linear_recurrence", ((x, s0), (y, s0), 1, (integers(n), s0), True), [s0]),
        ("linear_recurrence", ((x.T.contiguous(), s1), (y.T.contiguous(), s1), 0, (integers(n), s0)), [s1]),
        ("reduce", ((x, s0), [1], "sum"), [s0]),
        ("reduce", ((x, s0), [0], "sum"), [Partial("sum")]),
        ("reduce", ((x, s0), [0], "max"), [Partial("max")]),
        ("reduce", ((x, s0), [0], "min", True), [Partial("min")]),
        ("reduce", ((x, s0), [0], "prod"), [rep]),
        ("reduce", ((x, s0), None, "argmax"), [rep]),
        ("reduce", ((x, s0), [1], "argmin", True), [s0]),
        ("histogram", ((x, s0), 5, -2, 2), [Partial("sum")]),
        ("histogram", ((x, s0), 7), [rep]),
        ("segment_reduce", ((rows, s1), (offsets, rep), "sum"), [s1]),
        ("segment_reduce", ((rows, s1), (offsets, rep), "argmax"), [s1]),
        ("group_reduce", ((rows, s1), (offsets.repeat(3)[:9] % 3, rep), 3, "sum"), [s1]),
        ("group_reduce", ((rows, s1), (offsets.repeat(3)[:9] % 3, rep), 3, "argmax"), [s1]),
        ("group_expand", ((rows[:3], s1), (offsets % 3, rep)), [s1]),
        ("segment_scan", ((rows, s1), (offsets, rep), "sum"), [s1]),
        ("segment_scan", ((rows, s1), (offsets, rep), "min", True, True), [s1]),
        ("segment_expand", ((rows[:3], s1), (offsets, rep), 9), [s1]),
        ("segment_expand", ((rows[:3], s1), (offsets, rep), 9, True), [s1]),
        ("segment_recurrence", ((rows, s1), (rows, s1), (offsets, rep)), [s1]),
        ("segment_recurrence", ((rows, s1), (rows, s1), (offsets, rep), True), [s1]),
        ("sort", ((x, s0), 1), [s0, s0]),
        ("sort", ((x, s0), 1, True), [s0, s0]),
        ("sort", ((x, s0), 0), [rep, rep]),
        ("sort_keys", ((x, s0), 1), [s0]),
        ("sort_keys", ((x, s0), 1, True, 20), [s0]),
        ("sort_pairs", ((x, s0), (y, s0), 1), [s0, s0]),
        ("sort_pairs", ((x, s0), (y, s0), 1, True), [s0, s0]),
        ("argsort", ((x, s0), 1), [s0]),
        ("argsort", ((x, s0), 1, True), [s0]),
        ("merge", ((a, s0), (b, s0)), [s0]),
        ("merge", ((a.flip(1), s0), (b.flip(1), s0), True), [s0]),
        ("merge_pairs", ((a, s0), (a, s0), (b, s0), (b, s0)), [s0, s0]),
        ("merge_pairs", ((a.flip(1), s0), (a, s0), (b.flip(1), s0), (b, s0), True), [s0, s0]),
        ("merge_backward", ((integers(n, 11), s0), (a, s0), (b, s0)), [s0, s0]),
        ("merge_backward", ((integers(n, 11), s0), (a.flip(1), s0), (b.flip(1), s0), True), [s0, s0]),
        ("conv2d", ((images, s0), (filters, rep), (bias, rep)), [s0]),
        ("conv2d", ((images, s0), (filters, rep), None, [2, 2], [1, 1]), [s0]),
        ("conv2d", ((images, rep), (filters, s0), (bias, s0)), [s1]),
        ("conv2d_dgrad", ((integers(n, 4 * size, 4, 4), s0), (filters, rep), [n, 2, 6, 6]), [s0]),
        ("conv2d_dgrad", ((integers(n, 4 * size, 6, 6), s0), (filters, rep), [n, 2, 6, 6], [1, 1], [1, 1]), [s0]),
        ("conv2d_wgrad", ((integers(n, 3, 4, 4), s0), (images, s0), [3, 3]), [Partial("sum")]),
        ("conv2d_wgrad", ((integers(n, 3, 6, 6), s0), (images, s0), [3, 3], [1, 1], [1, 1]), [Partial("sum")]),
        ("avg_pool2d", ((images, s0), [2, 2]), [s0]),
        ("avg_pool2d", ((images, s0), [3, 3], [3, 3]), [s0]),
        ("avg_pool2d_backward", ((maps, s0), [6, 6], [2, 2]), [s0]),
        ("avg_pool2d_backward", ((integers(n, 2, 2, 2), s0), [6, 6], [3, 3]), [s0]),
        ("max_pool2d", ((images, s0), [2, 2]), [s0, s0]),
        ("max_pool2d", ((images, s0), [3, 3], [1, 1]), [s0, s0]),
        ("max_pool2d_backward", ((maps, s0), (pooled[1], s0), [6, 6], [2, 2]), [s0]),
        ("max_pool2d_tangent", ((images, s0), (pooled[1], s0), [2, 2]), [s0]),
        ("subsample2d", ((images, s0), (bias[:2], rep), [2, 2], "relu"), [s0]),
        ("subsample2d", ((images, s0), (bias[:2], rep), [3, 3], "relu"), [s0]),
        ("subsample2d_backward", ((maps, s0), (maps, s0), [2, 2], "relu"), [s0, Partial("sum")]),
        ("subsample2d_backward", ((maps, s0), (maps, s0), [1, 1], "relu"), [s0, Partial("sum")]),
        ("linear", ((x, s0), (weight, rep), (bias, rep)), [s0]),
        ("linear", ((x, rep), (weight, s0), (bias, s0)), [s1]),
        ("linear_dgrad", ((integers(n, 4 * size), s0), (weight, rep)), [s0]),
        ("linear_wgrad", ((integers(n, 4), s0), (x, s0)), [Partial("sum")]),
        ("relu", ((x, s0),), [s0]),
        ("sign", ((x, s0),), [s0]),
        ("activation_backward", ((x, s0), (y, s0), "relu"), [s0]),
        ("squared_error", ((x, s0), (y, s0), *none), [s0]),
        ("squared_error", ((x, s0), (y, s0), *total), [Partial("sum")]),
        ("squared_error", ((x, s0), (y, s0), "mean"), [Partial("avg")]),
        ("absolute_error", ((x, s0), (y, s0), *total), [Partial("sum")]),
        ("absolute_error", ((x, s0), (y, s0), *none), [s0]),
        ("squared_error_backward", ((torch.tensor(3.0), rep), (x, s0), (y, s0), *total), [s0]),
        ("squared_error_backward", ((torch.tensor(3.0), rep), (x, s0), (y, s0), "mean"), [rep]),
        ("absolute_error_backward", ((x, s0), (x, s0), (y, s0), *none), [s0]),
        ("spmm_csr", (*((t, rep) for t in sparse[:3]), (integers(9, n), s1), 9), [s1]),
        ("spmm_csr", (*((t, rep) for t in sparse[:3]), (integers(9, n), s1), 9, (integers(5, n), s1)), [s1]),
    ]
    near = [
        ("cross_entropy", ((x, s0), (digits, s0), *none), [s0]),
        ("cross_entropy", ((x, s0), (digits, s0), *total), [Partial("sum")]),
        ("cross_entropy_backward", ((torch.tensor(3.0), rep), (x, s0), (digits, s0), *total), [s0]),
        ("cross_entropy_backward", ((integers(n), s0), (x, s0), (digits, s0), *none), [s0]),
        ("segment_softmax", ((rows, s1), (offsets, rep)), [s1]),
        ("segment_log_softmax", ((rows, s1), (offsets, rep)), [s1]),
        ("tanh", ((x, s0),), [s0]),
        ("bipolar_sigmoid", ((x, s0),), [s0]),
        ("rbf", ((x, s0), (weight, rep), 2.0), [s0]),
        ("rbf", ((x, rep), (weight, s0), 3.0), [s1]),
        ("rbf_backward", ((integers(n, 4 * size), s0), (x, s0), (weight, rep), 2.0), [s0, Partial("sum")]),
    ]
    # The last: how many roundings, of numbers as large as the largest result.
    return [(*c, 0) for c in found] + [(*c, 100) for c in near]


def moved(arg, device, mesh=None):
    """An argument with its tensors on the device, or distributed over the mesh."""
    if isinstance(arg, list):
        return [moved((x, Replicate()), device, mesh) if isinstance(x, torch.Tensor) else x for x in arg]
    if not isinstance(arg, tuple):
        return arg
    x = arg[0].to(device)
    return x if mesh is None else distribute_tensor(x, mesh, [arg[1]])


def case_rules(world: World) -> None:
    mesh = init_device_mesh(world.device.type, (world.size,))
    tested = set()
    for name, args, expected, rounds in calls(world.size):
        tested.add(name)
        op, where = getattr(_ops, name), f"{name} {[a for a in args if not isinstance(a, tuple | list)]}"
        whole = op(*(moved(arg, world.device) for arg in args))
        inputs = [moved(arg, world.device, mesh) for arg in args]
        with CommDebugMode() as communication:
            got = op(*inputs)
        got, whole = (y if isinstance(y, tuple) else (y,) for y in (got, whole))
        assert all(isinstance(y, DTensor) for y in got), where
        placements = [y.placements[0] for y in got]
        assert placements == expected, f"{where}: {placements}, not {expected}"
        if expected[0] != Replicate():
            assert communication.get_total_counts() == 0, f"{where}: {communication.get_comm_counts()}"
        for y, w in zip(got, whole, strict=True):
            limit = (rounds * 2.0**-24) * w.cpu().double().abs().amax().expand(w.shape)
            assert_within(y.full_tensor(), w.cpu(), limit, where)
    untested = dtensor.RULES.keys() - tested
    assert not {name for name in untested if not name.startswith("spmm_")}, untested
    assert all(hasattr(_ops, name) for name in dtensor.RULES), "a rule names no operator"


def case_gradients_through_dtensor(world: World) -> None:
    mesh = init_device_mesh(world.device.type, (world.size,))
    x = integers(4 * world.size, 6).double().to(world.device)
    for op in ("sum", "prod", "max"):
        whole, part = x.clone().requires_grad_(), distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
        weights = torch.arange(x.numel(), device=world.device).view(x.shape).double() % 5 - 2
        (tp.scan(whole, 1, op=op) * weights).sum().backward()
        y = tp.scan(part, 1, op=op)
        assert y.placements[0] == Shard(0)
        with implicit_replication():  # of what formulas make beside their arguments
            (y * distribute_tensor(weights, mesh, [Shard(0)])).sum().backward()
        assert part.grad.placements[0] == Shard(0), op
        assert torch.equal(part.grad.full_tensor(), whole.grad), op


def case_channels_that_do_not_suffice(world: World) -> None:
    """With one channel more than ranks, the last of three ranks or more gets none: pooling gathers."""
    mesh = init_device_mesh(world.device.type, (world.size,))
    channels = world.size + 1
    maps, bias = integers(2, channels, 6, 6), integers(channels)
    calls = [
        lambda x, b: tp.max_pool2d(x, 2),
        lambda x, b: tp.avg_pool2d(x, 2),
        lambda x, b: tp.subsample2d(x, b, 2, "relu"),
    ]
    for number, call in enumerate(calls):
        for d, images in ((1, maps), (0, maps[0])):
            if images.ndim == 3 and number == 2:
                continue
            want = call(images, bias)
            x = distribute_tensor(images.to(world.device), mesh, [Shard(d)])
            got = call(x, distribute_tensor(bias.to(world.device), mesh, [Shard(0)])).full_tensor()
            assert torch.equal(got.cpu(), want), (number, d)
