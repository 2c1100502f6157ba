"""Sharding rules: how DTensor runs the operators on shards where that needs no communication.

Importing ``torch_patterns.distributed`` registers them. A rule lists, for one dimension of the device mesh, placements
of the outputs and of the tensors that give them; DTensor picks the cheapest and redistributes what is placed otherwise.
Every operator of the library has a rule at least that replicates all of it. DTensor caches the rules' answers: all
arguments that are not tensors are part of the key (``RuntimeSchemaInfo``), as a rule may depend on any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor.experimental import register_sharding

from torch_patterns.sparse import FORMATS

Arguments = dict[str, Any]  # by name; tensors as DTensor's specs: shape, ndim, mesh
Placements = dict[str, Any]  # of tensors by name; those left out are replicated
Rule = Callable[[Arguments], Iterable[tuple[list, Placements]]]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _alike(dims: Iterable[int], inputs: Iterable[str], outputs: int = 1):
    """The same dimension of all these inputs and of all outputs."""
    for d in dims:
        yield [Shard(d)] * outputs, dict.fromkeys(inputs, Shard(d))


def _other_dims(ndim: int, dim: int) -> list[int]:
    return [d for d in range(ndim) if d != dim % ndim]


@rule("tanh", "relu", "sign", "bipolar_sigmoid")
def _elementwise(args):
    return _alike(range(args["x"].ndim), "x")


@rule("activation_backward")
def _activation_backward(args):
    return _alike(range(args["y"].ndim), ("grad", "y"))


@rule("scan", "sort_keys", "argsort")
def _along_dim(args, outputs: int = 1):
    x = args["x"]
    return _alike(_other_dims(x.ndim, args["dim"]), "x", outputs) if x.ndim else ()


RULES["scan_with_indices"] = RULES["sort"] = partial(_along_dim, outputs=2)


@rule("sort_pairs")
def _pairs(args):
    keys = args["keys"]
    return _alike(_other_dims(keys.ndim, args["dim"]), ("keys", "values"), 2) if keys.ndim else ()


@rule("linear_recurrence")
def _recurrence(args):
    a, b, initial = args["a"], args["b"], args["initial"]
    whole = initial is None or initial.ndim == b.ndim - 1
    if a.shape != b.shape or not whole:
        return  # what is broadcast has other dimensions
    for d in _other_dims(b.ndim, args["dim"]):
        start = {} if initial is None else {"initial": Shard(d - (d > args["dim"] % b.ndim))}
        if initial is None or initial.shape[start["initial"].dim] == b.shape[d]:
            yield [Shard(d)], {"a": Shard(d), "b": Shard(d), **start}


@rule("reduce")
def _reduce(args):
    x, op = args["x"], args["op"]
    reduced = sorted(d % x.ndim for d in args["dim"] or range(x.ndim)) if x.ndim else []
    if op.startswith("arg") and not args["dim"]:
        return  # the index counts through all dimensions
    for d in range(x.ndim):
        if d not in reduced:
            yield [Shard(d if args["keepdim"] else d - sum(r < d for r in reduced))], {"x": Shard(d)}
        elif op in ("sum", "max", "min"):
            yield [Partial(op)], {"x": Shard(d)}


@rule("histogram")
def _histogram(args):
    if args["x"].ndim:  # without limits, they are those of the whole
        for d in range(args["x"].ndim) if args["min"] is not None and args["max"] is not None else ():
            yield [Partial("sum")], {"x": Shard(d)}


@rule("segment_reduce", "segment_scan", "segment_softmax", "segment_log_softmax", "group_reduce")
def _segments(args):
    return _alike(range(1, args["values"].ndim), ("values",))


@rule("segment_expand", "group_expand")
def _segment_expand(args):
    return _alike(range(1, args["x"].ndim), "x")


@rule("segment_recurrence")
def _segment_recurrence(args):
    return _alike(range(1, args["b"].ndim), ("a", "b", *([] if args["initial"] is None else ["initial"])))


@rule("merge")
def _merge(args):
    return _alike(range(args["a"].ndim - 1), "ab")


@rule("merge_pairs")
def _merge_pairs(args):
    return _alike(range(args["keys_a"].ndim - 1), ("keys_a", "values_a", "keys_b", "values_b"), 2)


@rule("merge_backward")
def _merge_backward(args):
    return _alike(range(args["a"].ndim - 1), ("grad", "a", "b"), 2)


# ---- layers: batches are sharded, or channels


def _with_bias(args: Arguments, placement) -> Placements:
    return {} if args["bias"] is None else {"bias": placement}


@rule("conv2d")
def _conv2d(args):
    yield [Shard(0)], {"x": Shard(0)}
    if args["groups"] == 1:
        yield [Shard(1)], {"weight": Shard(0), **_with_bias(args, Shard(0))}


@rule("conv2d_dgrad")
def _conv2d_dgrad(args):
    yield [Shard(0)], {"grad": Shard(0)}
    if args["groups"] == 1:
        yield [Partial()], {"grad": Shard(1), "weight": Shard(0)}


@rule("conv2d_wgrad")
def _conv2d_wgrad(args):
    yield [Partial()], {"grad": Shard(0), "x": Shard(0)}
    if args["groups"] == 1:
        yield [Shard(0)], {"grad": Shard(1)}


def _images_or_channels(maps) -> list[int]:
    """Returns the dimensions of images [N, C, H, W] or [C, H, W] to shard: channels only if every rank gets some,
    because pooling takes no images without channels."""
    channels, ranks = maps.shape[-3], maps.mesh.size()
    every_rank = -(-channels // ranks) * (ranks - 1) < channels
    return [*range(maps.ndim - 3), *([maps.ndim - 3] if every_rank else [])]


@rule("avg_pool2d")
def _avg_pool2d(args):
    return _alike(_images_or_channels(args["x"]), "x")


@rule("avg_pool2d_backward")
def _avg_pool2d_backward(args):
    return _alike(_images_or_channels(args["grad"]), ("grad",))


@rule("max_pool2d")
def _max_pool2d(args):
    return _alike(_images_or_channels(args["x"]), "x", 2)


@rule("max_pool2d_backward")
def _max_pool2d_backward(args):
    return _alike(_images_or_channels(args["grad"]), ("grad", "indices"))


@rule("max_pool2d_tangent")
def _max_pool2d_tangent(args):
    return _alike(_images_or_channels(args["x"]), ("x", "indices"))


@rule("subsample2d")
def _subsample2d(args):
    for d in _images_or_channels(args["x"]):
        yield [Shard(d)], {"x": Shard(d), **({"bias": Shard(0)} if d == 1 else {})}


@rule("subsample2d_backward")
def _subsample2d_backward(args):
    for d in _images_or_channels(args["grad"]):
        yield [Shard(d), Shard(0) if d == 1 else Partial()], {"grad": Shard(d), "y": Shard(d)}


@rule("linear")
def _linear(args):
    last = args["x"].ndim - 1
    yield from _alike(range(last), "x")
    yield [Shard(last)], {"weight": Shard(0), **_with_bias(args, Shard(0))}
    if args["bias"] is None:
        yield [Partial()], {"x": Shard(last), "weight": Shard(1)}


@rule("linear_dgrad")
def _linear_dgrad(args):
    last = args["grad"].ndim - 1
    yield from _alike(range(last), ("grad",))
    yield [Partial()], {"grad": Shard(last), "weight": Shard(0)}
    yield [Shard(last)], {"weight": Shard(1)}


@rule("linear_wgrad")
def _linear_wgrad(args):
    last = args["grad"].ndim - 1
    for d in range(last):
        yield [Partial()], {"grad": Shard(d), "x": Shard(d)}
    yield [Shard(0)], {"grad": Shard(last)}
    yield [Shard(1)], {"x": Shard(last)}


@rule("rbf")
def _rbf(args):
    yield [Shard(0)], {"x": Shard(0)}
    yield [Shard(1)], {"centres": Shard(0)}


@rule("rbf_backward")
def _rbf_backward(args):
    yield [Shard(0), Partial()], {"grad": Shard(0), "x": Shard(0)}
    yield [Partial(), Shard(0)], {"grad": Shard(1), "centres": Shard(0)}


def _loss(args: Arguments, shards: Iterable[tuple[int, Placements]], of: Any):
    """A loss by rows: kept, summed, or averaged over shards of equal size."""
    for d, inputs in shards:
        if args["reduction"] == "none":
            yield [Shard(d)], inputs
        elif args["reduction"] == "sum":
            yield [Partial("sum")], inputs
        elif of.shape[d] and of.shape[d] % of.mesh.size() == 0:
            yield [Partial("avg")], inputs


@rule("squared_error", "absolute_error")
def _error(args):
    y = args["y"]
    alike = y.shape == args["t"].shape
    return _loss(args, ((d, {"y": Shard(d), "t": Shard(d)}) for d in range(y.ndim if alike else 0)), y)


@rule("cross_entropy")
def _cross_entropy(args):
    logits = args["logits"]
    return _loss(args, [(0, {"logits": Shard(0), "target": Shard(0)})], logits)


def _loss_backward(args: Arguments, dims: Iterable[int], inputs: tuple[str, str]):
    """The gradient of a mean divides by the whole size, which a shard does not know."""
    for d in dims if args["reduction"] != "mean" else ():
        grad = {"grad": Shard(d)} if args["reduction"] == "none" else {}
        yield [Shard(d)], dict.fromkeys(inputs, Shard(d)) | grad


@rule("squared_error_backward", "absolute_error_backward")
def _error_backward(args):
    alike = args["y"].shape == args["t"].shape
    return _loss_backward(args, range(args["y"].ndim if alike else 0), ("y", "t"))


@rule("cross_entropy_backward")
def _cross_entropy_backward(args):
    return _loss_backward(args, [0], ("logits", "target"))


# ---- sparse products: the columns of X


@rule(*(f"spmm_{name}" for name in FORMATS))
def _spmm(args):
    yield [Shard(1)], {"x": Shard(1), **({} if args["y"] is None else {"y": Shard(1)})}


# ---- registration


def _is_tensor(type_: Any) -> bool:
    """Tensor, Tensor? or Tensor[]."""
    while isinstance(type_, torch.OptionalType | torch.ListType):
        type_ = type_.getElementType()
    return isinstance(type_, torch.TensorType)


def _register(op: torch._ops.OpOverload, chosen: Rule) -> None:
    arguments = op._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    outputs = len(op._schema.returns)

    def placed(arg: Any, is_tensor: bool, placement: Any) -> list:
        if not is_tensor or arg is None:
            return [None]
        return [placement] * len(arg) if isinstance(arg, list | tuple) else [placement]

    def sharding(*args, **kwargs):
        named = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
        tensors = {a.name: _is_tensor(a.type) for a in arguments}
        accepted = [([Replicate()] * outputs, {}), *chosen(defaults | named)]
        return [
            (outs, [p for name, arg in named.items() for p in placed(arg, tensors[name], ins.get(name, Replicate()))])
            for outs, ins in accepted
        ]

    register_sharding(op)(sharding)
    propagator = DTensor._op_dispatcher.sharding_propagator
    plain = [i for i, a in enumerate(arguments) if not _is_tensor(a.type)]
    keys = [arguments[i].name for i in plain if arguments[i].kwarg_only]
    lists = any(isinstance(a.type, torch.ListType) and _is_tensor(a.type) for a in arguments)
    info = RuntimeSchemaInfo(min(plain, default=100), keys or None, needs_pytree=lists)
    propagator.register_op_strategy(op, propagator.op_strategy_funcs[op], info)


def register() -> None:
    """Gives DTensor the rules of all operators of the library."""
    ops = torch.ops.torch_patterns
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = name.partition("::")
        if namespace == "torch_patterns":
            packet = getattr(ops, name.partition(".")[0])
            op = getattr(packet, name.partition(".")[2] or "default")
            arguments = op._schema.arguments  # DTensor of torch 2.11 finds the mesh in the first
            if arguments and _is_tensor(arguments[0].type) and not op._schema.is_mutable:
                _register(op, RULES.get(packet.__name__, lambda args: ()))
    # The size that it is told is that of the whole; DTensor puts that of the shard in its place.
    DTensor._op_dispatcher.sharding_propagator.op_to_shape_and_stride_idx[ops.conv2d_dgrad.default] = 2


register()
