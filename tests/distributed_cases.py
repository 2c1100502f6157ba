"""What every world runs: the operators' own Specs, sharded in several ways, against the operator on the whole."""

import itertools

import torch
from distributed_world import World

import torch_patterns as tp
from torch_patterns import distributed, testing
from torch_patterns.distributed import selection
from torch_patterns.testing import assert_within, gamma
from torch_patterns.testing.compare import UNIT_ROUNDOFF

SPECS = testing.specs()
MOST = 600  # elements of a case
COUNT = 60  # about so many problems of a Spec, spread over all that it has
DTYPES = (torch.float32, torch.int32, torch.float16, torch.bool)


def problems(name: str, dtypes=DTYPES):
    """(case, sample, number) of small problems of a Spec, in the dtypes that it has."""
    spec = SPECS[name]
    found = [(case, dtype) for dtype in dtypes if dtype in spec.dtypes for case in spec.cases(dtype, MOST)]
    step = max(len(found) // COUNT, 1) | 1  # odd: all layouts and flags take part
    for number, (case, dtype) in enumerate(found[::step]):
        yield case, spec.sample(case, dtype), number


def first(x: torch.Tensor, dim: int) -> torch.Tensor | None:
    """With dimension `dim` first; None for a scalar."""
    return x.movedim(dim, 0).contiguous() if x.dim() else None


def gradients(y: torch.Tensor, leaves, weights: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad((y.double() * weights).sum(), leaves, allow_unused=True, materialize_grads=True))


def check_gradients(world: World, call, local, wholes, lengths, where: str, result_lengths=None) -> None:
    """The gradient of a weighed sum over all ranks is that of the whole: exactly, on small integers."""
    leaves = [world.part(x, lengths).requires_grad_() for x in wholes]
    whole_leaves = [x.clone().requires_grad_() for x in wholes]
    y, whole = call(*leaves), local(*whole_leaves)
    weights = torch.arange(whole.numel()).view(whole.shape) % 5 - 2.0
    got = gradients(y, leaves, world.part(weights, result_lengths or lengths))
    expected = gradients(whole, whole_leaves, weights)
    for g, e, leaf in zip(got, expected, wholes, strict=True):
        world.assert_part(g, e.to(leaf.dtype), lengths, f"gradient of {where}")


def check_scan(world: World, x, lengths, where: str, differentiated: bool, **kwargs) -> None:
    def call(part):
        return distributed.scan(part, **kwargs)

    def local(whole):
        return tp.scan(whole, 0, **kwargs)

    world.assert_part(call(world.part(x, lengths)), local(x), lengths, where)
    if differentiated:
        check_gradients(world, call, local, [x], lengths, where)


def case_scan(world: World) -> None:
    for case, sample, number in problems("scan"):
        kwargs = dict(sample.kwargs)
        x = first(sample.args[0], kwargs.pop("dim", -1))
        if x is None:
            continue
        if kwargs.get("op") in ("argmax", "argmin"):
            raises(ValueError, "not offered over shards", distributed.scan, x, **kwargs)
            continue
        lengths = world.layout(len(x), number)
        check_scan(world, x, lengths, f"scan {case}", x.dtype == torch.float32 and number % 3 == 0, **kwargs)


def case_scan_of_special_values(world: World) -> None:
    inf, nan = float("inf"), float("nan")
    for op in ("sum", "prod", "max", "min"):
        for exclusive in (False, True):
            for reverse in (False, True):
                kwargs = {"op": op, "exclusive": exclusive, "reverse": reverse}
                for values in ([-inf] * 6, [1, nan, 2, -inf, 5, 3], [inf, 0, 0, 1, 0, 2], [3, 3, 3, 1, 3, 3]):
                    x = torch.tensor(values, dtype=torch.float32)
                    for lengths in world.layouts(6)[exclusive::2]:
                        defined = op in ("max", "min") and nan not in values
                        check_scan(world, x, lengths, f"scan {kwargs} {values}", defined, **kwargs)


def case_scan_goes_on_from_the_ranks_before(world: World) -> None:
    """Vectors of several tiles, of the dtypes whose scans start from what comes before them on CUDA."""
    bitwise = ("bitwise_and", "bitwise_or", "bitwise_xor")
    problems = [(dtype, op) for dtype in (torch.float32, torch.float64, torch.int64) for op in ("sum", "max", "min")]
    problems += [(torch.float32, "prod"), (torch.int64, "prod"), *((torch.int64, op) for op in bitwise)]
    for number, (dtype, op) in enumerate(problems):
        n = (70_001, 7, 200_000)[number % 3]
        x = torch.randint(-9, 10, (n,)).sign().to(dtype) if op == "prod" else torch.randint(-9, 10, (n,)).to(dtype)
        for exclusive, reverse in itertools.product((False, True), repeat=2):
            kwargs = {"op": op, "exclusive": exclusive, "reverse": reverse}
            lengths = world.layout(n, number + 2 * exclusive + reverse)
            check_scan(world, x, lengths, f"scan {dtype} {n} {kwargs}", False, **kwargs)


def case_floats_keep_the_bound(world: World) -> None:
    """Of any order of the operations: the ranks are one more level of the tree."""
    for name, tensors in (("scan", 1), ("linear_recurrence", 2)):
        spec, call = SPECS[name], getattr(distributed, name)
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for number, n in enumerate((1, 33, 515)):
                made = testing.case(*((n,),) * tensors, reverse=bool(number % 2))
                sample = spec.sample(made, dtype, kind="float")
                lengths = world.layout(n, number)
                y = call(*(world.part(x, lengths) for x in sample.args), **sample.kwargs)
                bound = spec.bound(testing.unit_roundoff(dtype), *sample.args, **sample.kwargs)
                begin = sum(lengths[: world.rank])
                here = slice(begin, begin + lengths[world.rank])
                assert_within(y, sample(spec.reference)[here], bound[here], f"{name} {dtype} {n} {lengths}")


def case_linear_recurrence(world: World) -> None:
    for case, sample, number in problems("linear_recurrence", (torch.float32, torch.float64, torch.float16)):
        kwargs = dict(sample.kwargs)
        dim, initial = kwargs.pop("dim", -1), kwargs.pop("initial", None)
        a, b = (first(x, dim) for x in torch.broadcast_tensors(*sample.args))
        start = None if initial is None else initial.to(world.device)
        lengths = world.layout(len(b), number)
        h = distributed.linear_recurrence(world.part(a, lengths), world.part(b, lengths), initial=start, **kwargs)
        whole = tp.linear_recurrence(a, b, 0, initial=initial, **kwargs)
        world.assert_part(h, whole, lengths, f"linear_recurrence {case}")
        if b.dtype == torch.float64:
            check_gradients(
                world,
                lambda a, b, start=start, kwargs=kwargs: distributed.linear_recurrence(a, b, initial=start, **kwargs),
                lambda a, b, initial=initial, kwargs=kwargs: tp.linear_recurrence(a, b, 0, initial=initial, **kwargs),
                [a, b],
                lengths,
                f"linear_recurrence {case}",
            )


def case_gradient_of_initial(world: World) -> None:
    a, b = torch.tensor([2.0, -1, 1, 2, 1, -2, 1]), torch.arange(7.0)
    for reverse in (False, True):
        for lengths in world.layouts(7):
            start = torch.tensor(3.0, device=world.device, requires_grad=True)
            parts = world.part(a, lengths), world.part(b, lengths)
            h = distributed.linear_recurrence(*parts, initial=start, reverse=reverse)
            (got,) = torch.autograd.grad(h.sum(), start)
            whole_start = torch.tensor(3.0, requires_grad=True)
            whole = tp.linear_recurrence(a, b, initial=whole_start, reverse=reverse)
            (expected,) = torch.autograd.grad(whole.sum(), whole_start)
            assert got.item() == expected.item(), f"{reverse} {lengths}: {got} is not {expected}"


def case_unused_first_multiplier(world: World) -> None:
    a, b = torch.tensor([float("nan"), 2, 3, 0.5]), torch.tensor([1.0, 2, 3, 4])
    for lengths in world.layouts(4):
        h = distributed.linear_recurrence(world.part(a, lengths), world.part(b, lengths))
        world.assert_part(h, tp.linear_recurrence(a, b), lengths, "the whole")


def case_reduce(world: World) -> None:
    for case, sample, number in problems("reduce"):
        kwargs = dict(sample.kwargs)
        dims = kwargs.pop("dim", None)
        kwargs.pop("keepdim", None)
        x = sample.args[0].flatten() if dims is None or len(dims) != 1 else first(sample.args[0], dims[0])
        if x is None:
            continue
        lengths = world.layout(len(x), number)
        try:
            whole = tp.reduce(x, 0, **kwargs)
        except IndexError:
            raises(IndexError, "of no elements", distributed.reduce, world.part(x, lengths), **kwargs)
            continue
        y = distributed.reduce(world.part(x, lengths), **kwargs)
        if kwargs.get("op") == "logsumexp":
            # Two of them: sums of n terms of at most 1, a logarithm each, and the local result's own rounding.
            size = whole.double().abs() + 1
            limit = (gamma(2 * len(x) + 64, 2.0**-24) + UNIT_ROUNDOFF[whole.dtype]) * size
            assert_within(y, whole, limit.masked_fill(~limit.isfinite(), 0), f"reduce {case} {lengths}")
        else:
            every = y.expand(1, *y.shape)
            world.assert_part(every, whole.expand(world.size, *whole.shape), [1] * world.size, f"reduce {case}")
        differentiable = kwargs.get("op", "sum") not in ("argmax", "argmin", "any", "all")
        if x.dtype == torch.float32 and differentiable and len(x) < 100:
            check_reduce_gradient(world, x, lengths, kwargs, f"reduce {case}")


def check_reduce_gradient(world: World, x: torch.Tensor, lengths, kwargs, where: str) -> None:
    leaf, whole_leaf = world.part(x, lengths).requires_grad_(), x.clone().requires_grad_()
    # Each rank has a loss of its own: the gradient is that of their sum.
    (got,) = torch.autograd.grad(distributed.reduce(leaf, **kwargs).sum() * (world.rank + 1), leaf)
    weight = world.size * (world.size + 1) // 2
    (expected,) = torch.autograd.grad(tp.reduce(whole_leaf, 0, **kwargs).sum() * weight, whole_leaf)
    # exp and the division by a sum: a few roundings, of arguments of at most 16 at most 16 times the roundoff each.
    rounds = 0 if kwargs.get("op", "sum") in ("sum", "prod", "max", "min") else 64
    expected = world.part(expected, lengths).cpu()
    assert_within(got, expected, gamma(rounds, 2.0**-24) * expected.double().abs(), where)


def raises(kind: type[Exception], message: str, call, *args, **kwargs) -> str:
    try:
        call(*args, **kwargs)
    except kind as error:
        assert message in str(error), f"{message!r} is not in {str(error)!r}"
        return str(error)
    raise AssertionError(f"no {kind.__name__} with {message!r}")


def case_segments(world: World) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = [(0, 0), (0, 3), (1, 1), (5, 1), (13, 4), (40, 7), (64, 200), (7, 30)]
    for number, (n, segments) in enumerate(shapes):
        for dtype in (torch.int32, torch.float32):
            cuts = torch.randint(0, n + 1, (max(segments - 1, 0),), generator=generator).sort().values
            ends = [torch.tensor([0]), cuts, torch.tensor([n])] if segments else [torch.tensor([0])]
            offsets = torch.cat(ends)
            values = torch.randint(-3, 4, (n, 2) if number % 2 else (n,), generator=generator).to(dtype)
            lengths = world.layout(n, number // 2)
            check_segments(world, values, offsets, lengths, number)


def segments_of_ranks(offsets: list[int], lengths: list[int]) -> list[int]:
    """How many segments begin on each rank; the last rank has those behind all rows."""
    begins = [0, *itertools.accumulate(lengths)]
    firsts = [sum(o < begin for o in offsets[:-1]) for begin in begins[:-1]] + [len(offsets) - 1]
    return [b - a for a, b in itertools.pairwise(firsts)]


def check_segments(world: World, values: torch.Tensor, offsets: torch.Tensor, lengths: list[int], number: int) -> None:
    part, where = world.part(values, lengths), f"{values.dtype}{[*values.shape]} {offsets.tolist()}"
    here = offsets.to(world.device)
    logical = ("any", "all") if values.is_floating_point() else ("any", "all", *BITWISE)
    for i, op in enumerate(("sum", "prod", "max", "min", *logical)):
        kwargs = {"op": op, "exclusive": (number + i) % 3 == 0, "reverse": (number + i) % 2 == 0}
        whole = tp.segment_scan(values, offsets, **kwargs)
        y = distributed.segment_scan(part, here, **kwargs)
        world.assert_part(y, whole, lengths, f"segment_scan {kwargs} {where}")
        if values.dtype == torch.float32 and op not in logical:
            check_gradients(
                world,
                lambda x, kwargs=kwargs: distributed.segment_scan(x, here, **kwargs),
                lambda x, kwargs=kwargs: tp.segment_scan(x, offsets, **kwargs),
                [values],
                lengths,
                f"segment_scan {kwargs} {where}",
            )
    starts = segments_of_ranks(offsets.tolist(), lengths)
    ops = ("sum", "prod", "max", "min", "argmax", "argmin", *logical)
    ops += ("mean",) if values.is_floating_point() else ()
    raises(ValueError, "not offered over shards", distributed.segment_reduce, part.float(), here, op="std")
    for op in ops:
        whole = tp.segment_reduce(values, offsets, op=op)
        y = distributed.segment_reduce(part, here, op=op)
        world.assert_part(y, whole, starts, f"segment_reduce {op} {where}")
        if values.dtype == torch.float32 and op in ("sum", "prod", "max", "min"):
            check_gradients(
                world,
                lambda x, op=op: distributed.segment_reduce(x, here, op=op),
                lambda x, op=op: tp.segment_reduce(x, offsets, op=op),
                [values],
                lengths,
                f"segment_reduce {op} {where}",
                starts,
            )


BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def sort_problems(name: str):
    for case, sample, number in problems(name, (*DTYPES, torch.int64, torch.uint8)):
        kwargs = {"descending": sample.kwargs.get("descending", False)}
        yield case, [x.flatten() for x in sample.args], kwargs, number


def balanced(world: World, n: int) -> list[int]:
    return [n * (r + 1) // world.size - n * r // world.size for r in range(world.size)]


def case_sort_keys(world: World) -> None:
    for case, (x, *_), kwargs, number in sort_problems("sort_keys"):
        lengths = world.layout(len(x), number)
        y = distributed.sort_keys(world.part(x, lengths), **kwargs)
        world.assert_part(y, tp.sort_keys(x, **kwargs), balanced(world, len(x)), f"sort_keys {case}")


def case_sort_keeps_lengths(world: World) -> None:
    x = torch.randint(-9, 9, (103,))
    for lengths in world.layouts(103):
        y = distributed.sort_keys(world.part(x, lengths), balanced=False)
        world.assert_part(y, tp.sort_keys(x), lengths, "the whole")


def case_sort_keys_of_unsigned_and_special(world: World) -> None:
    keys = [torch.randint(0, 2**16, (301,)).to(dtype) for dtype in UNSIGNED]
    keys.append(torch.randint(-(2**62), 2**62, (301,)).view(torch.uint64))
    special = torch.tensor([float("nan"), -0.0, 0.0, float("inf"), -float("inf"), 1.5, -2.0])
    keys.append(special[torch.randint(0, 7, (301,))])
    for x in keys:
        for descending in (False, True):
            lengths = world.layout(301, 1 + descending)
            y = distributed.sort_keys(world.part(x, lengths), descending=descending)
            whole = tp.sort_keys(x, descending=descending)
            world.assert_part(y, whole, balanced(world, 301), f"{x.dtype} {descending}")
            if x.dtype == torch.float32:  # to the bit: the order of equal keys that differ
                world.assert_part(
                    y.view(torch.int32), whole.view(torch.int32), balanced(world, 301), f"bits, {descending}"
                )


def case_equal_keys_stay_balanced(world: World) -> None:
    for lengths in world.layouts(1000):
        x = torch.full((1000,), 7, dtype=torch.int32)
        keys, indices = distributed.sort(world.part(x, lengths))
        world.assert_part(keys, x, balanced(world, 1000), "equal keys")
        world.assert_part(indices, torch.arange(1000), balanced(world, 1000), "equal keys keep their order")


def case_sort_in_many_rounds(world: World) -> None:
    """Few samples per round, so that cuts take several rounds."""
    before, selection.SAMPLES = selection.SAMPLES, 1
    try:
        for high in (3, 1000, 2**30):
            x = torch.randint(0, high, (5000 * world.size,), dtype=torch.int32)
            assert len(list(selection._rounds(len(x) // world.size, world.size, world.size - 1))) >= 2
            for lengths in world.layouts(len(x))[:3]:
                values, indices = distributed.sort(world.part(x, lengths), descending=high == 1000)
                whole = tp.sort(x, descending=high == 1000)
                world.assert_part(values, whole[0], balanced(world, len(x)), f"{high}")
                world.assert_part(indices, whole[1], balanced(world, len(x)), f"{high}")
    finally:
        selection.SAMPLES = before


def case_sort_pairs(world: World) -> None:
    for case, (keys, values), kwargs, number in sort_problems("sort_pairs"):
        lengths = world.layout(len(keys), number)
        got = distributed.sort_pairs(world.part(keys, lengths), world.part(values, lengths), **kwargs)
        whole = tp.sort_pairs(keys, values, **kwargs)
        for y, expected in zip(got, whole, strict=True):
            world.assert_part(y, expected, balanced(world, len(keys)), f"sort_pairs {case}")


def case_sort_gradients(world: World) -> None:
    keys, values = torch.randint(0, 9, (57,)).float(), torch.arange(57.0)
    for lengths in world.layouts(57):
        for which in (0, 1):
            check_gradients(
                world,
                lambda k, v, which=which: distributed.sort_pairs(k, v)[which],
                lambda k, v, which=which: tp.sort_pairs(k, v)[which],
                [keys, values],
                lengths,
                f"sort_pairs {which}",
                balanced(world, 57),
            )
        check_gradients(world, distributed.sort_keys, tp.sort_keys, [keys], lengths, "sort_keys", balanced(world, 57))


def case_merge(world: World) -> None:
    for case, sample, number in problems("merge", (*DTYPES, torch.int64)):
        a, b = sample.args
        if a.dim() != 1:
            continue
        lengths_a, lengths_b = world.layout(len(a), number), world.layout(len(b), number // 2)
        y = distributed.merge(world.part(a, lengths_a), world.part(b, lengths_b), **sample.kwargs)
        whole = tp.merge(a, b, **sample.kwargs)
        world.assert_part(y, whole, balanced(world, len(whole)), f"merge {case} {lengths_a} {lengths_b}")


def case_merge_gradients(world: World) -> None:
    a, b = torch.randint(0, 9, (40,)).sort().values.double(), torch.randint(0, 9, (40,)).sort().values.double()
    for lengths in world.layouts(40):
        check_gradients(world, distributed.merge, tp.merge, [a, b], lengths, "merge", balanced(world, 80))


def case_second_derivative(world: World) -> None:
    x = torch.tensor([1.0, 2, 0, -1, 3, 2, 1])
    for lengths in world.layouts(7):
        a, b = (world.part(x, lengths).double().requires_grad_() for _ in range(2))
        (g,) = torch.autograd.grad(distributed.linear_recurrence(a, b).square().sum(), a, create_graph=True)
        (got,) = torch.autograd.grad((g * world.part(x, lengths)).sum(), b)
        a, b = (x.double().requires_grad_() for _ in range(2))
        (g,) = torch.autograd.grad(tp.linear_recurrence(a, b).square().sum(), a, create_graph=True)
        (expected,) = torch.autograd.grad((g * x).sum(), b)
        world.assert_part(got, expected, lengths, "linear_recurrence")
        leaf, whole = world.part(x, lengths).double().requires_grad_(), x.double().requires_grad_()
        (g,) = torch.autograd.grad(distributed.scan(leaf, op="prod").square().sum(), leaf, create_graph=True)
        (got,) = torch.autograd.grad((g * leaf.detach()).sum(), leaf)
        (g,) = torch.autograd.grad(tp.scan(whole, op="prod").square().sum(), whole, create_graph=True)
        (expected,) = torch.autograd.grad((g * whole.detach()).sum(), whole)
        world.assert_part(got, expected, lengths, "the whole")


def case_second_derivative_of_unlike_losses(world: World) -> None:
    """The loss is linear on rank 0, where its gradient is a constant, and shards may be empty."""
    x, offsets = torch.tensor([1.0, 2, 3]).double(), torch.tensor([0, 2, 3])
    calls = {
        "linear_recurrence": lambda m, v: m.linear_recurrence(v, v),
        "scan": lambda m, v: m.scan(v, op="prod"),
        "reduce": lambda m, v: m.reduce(v, op="prod"),
        "segment_scan": lambda m, v: m.segment_scan(v, offsets.to(v.device), op="prod"),
        "sort_keys": lambda m, v: m.sort_keys(-v),
        "sort_pairs": lambda m, v: m.sort_pairs(-v, v)[1],
        "merge": lambda m, v: m.merge(v, v),
    }
    for lengths in world.layouts(3):
        for name, call in calls.items():
            leaf, whole = world.part(x, lengths).requires_grad_(), x.clone().requires_grad_()
            y = call(distributed, leaf)
            (g,) = torch.autograd.grad((y if world.rank == 0 else y * y).sum(), leaf, create_graph=True)
            (got,) = torch.autograd.grad(g.square().sum(), leaf)
            y = call(tp, whole)
            squares = (world.size - 1) * y * y
            if y.dim():
                of_rank_0 = lengths[0] if len(y) == 3 and not name.startswith("sort") else balanced(world, len(y))[0]
                squares = torch.cat([y[:of_rank_0], (y * y)[of_rank_0:]])
            loss = squares.sum() if y.dim() else squares + y
            (g,) = torch.autograd.grad(loss, whole, create_graph=True)
            (expected,) = torch.autograd.grad(g.square().sum(), whole)
            world.assert_part(got, expected, lengths, name)
