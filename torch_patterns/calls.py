"""The operators as the wrappers call them: straight to the dispatcher, all arguments by position.

``torch.ops.torch_patterns.scan(x)`` parses its arguments by the schema, which for a small tensor takes longer than the
scan. ``ops.scan(x, -1, "sum", False, False, "auto")`` does not. While ``torch.compile`` or a strict export reads the
code it sees the operator of ``torch.ops``. No operator takes a jagged NestedTensor: a call with one fails, and what
jagged.py has for it is called instead, so that other calls need not ask.
"""

from types import SimpleNamespace

import torch

from torch_patterns import _C, jagged
from torch_patterns.arguments import plain_arguments


def _call(name: str):
    op = getattr(torch.ops.torch_patterns, name).default
    direct, is_traced = _C.operator_call(name, op), torch.compiler.is_dynamo_compiling

    def call(*args):
        if is_traced():
            handler = jagged.handler(name, args)
            return op(*args) if handler is None else handler(*args)
        try:
            return direct(*args)
        except Exception:
            if (plain := jagged.handler(name, args)) is None and (plain := plain_arguments(name, op, args)) is None:
                raise
        return plain(*args) if callable(plain) else direct(*plain)

    call.__name__ = call.__qualname__ = name
    return call


def _names() -> list[str]:
    every = torch._C._dispatch_get_all_op_names()
    return sorted(name.split("::")[1] for name in every if name.startswith("torch_patterns::"))


ops = SimpleNamespace(**{name: _call(name) for name in _names()})
