"""torch.func over the operators.

``torch.func`` transforms refuse the operators' C++ autograd functions, so while a transform is active the wrappers go
through Python ones, made here from the forward operator and a gradient formula that itself uses wrappers only. That
gives ``grad``, ``vjp``, ``jacrev`` and ``vmap`` of them, to every order; forward mode has no formula and says so. Under
``torch.compile`` the operators are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)  # a private name


def transforms_active() -> bool:
    """Whether a torch.func transform surrounds this eager call."""
    if torch.compiler.is_compiling() or torch.jit.is_scripting():
        return False
    return _transforms_active()


def differentiable(op: Callable[..., Any], backward: Callable[..., tuple]) -> Callable[..., Any]:
    """``op`` as a function that torch.func can transform.

    Args:
        op: the operator, called with positional arguments only.
        backward: ``backward(inputs, outputs, *grads)`` -> a gradient or None for each input; uses wrappers and torch
            alone. Where ``op`` gives one tensor, ``outputs`` is it; a gradient is None for an output that got none.
    """

    class Function(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs):
            return op(*inputs)

        @staticmethod
        def setup_context(ctx, inputs, output):
            outputs = output if isinstance(output, tuple) else (output,)
            integers = [o for o in outputs if not o.is_floating_point()]
            if integers:
                ctx.mark_non_differentiable(*integers)
            ctx.set_materialize_grads(False)
            ctx.tensor_at = [isinstance(value, torch.Tensor) for value in inputs]
            ctx.others = [None if is_tensor else value for is_tensor, value in zip(ctx.tensor_at, inputs, strict=True)]
            ctx.single = not isinstance(output, tuple)
            ctx.save_for_backward(*[v for v in inputs if isinstance(v, torch.Tensor)], *outputs)

        @staticmethod
        def backward(ctx, *grads):
            saved = list(ctx.saved_tensors)
            inputs = [
                saved.pop(0) if is_tensor else other for is_tensor, other in zip(ctx.tensor_at, ctx.others, strict=True)
            ]
            if all(g is None for g in grads):
                return (None,) * len(inputs)
            return backward(inputs, saved[0] if ctx.single else tuple(saved), *grads)

        @staticmethod
        def jvp(ctx, *tangents):
            raise NotImplementedError(f"torch_patterns: {op} has no forward-mode derivative; use reverse mode")

    Function.__name__ = getattr(op, "__name__", "Function")

    def call(*inputs):
        return Function.apply(*inputs) if transforms_active() else op(*inputs)

    return call
