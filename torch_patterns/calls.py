"""The operators as the wrappers call them: straight to the dispatcher, all arguments by position.

``torch.ops.torch_patterns.scan(x)`` parses its arguments by the schema, which for a small tensor takes longer than the
scan. ``ops.scan(x, -1, "sum", False, False, "auto")`` calls the dispatcher directly. While ``torch.compile`` or a
strict export traces the code, it calls the operator of ``torch.ops`` instead.

No operator takes a jagged NestedTensor. So that other calls need not look for one, it is looked for only after a call
has failed: then the function of _jagged_handlers.py for this operator is called.
"""

from types import SimpleNamespace

import torch

from torch_patterns import _C
from torch_patterns._jagged_handlers import handler
from torch_patterns.arguments import plain_arguments


def _call(name: str):
    op = getattr(torch.ops.torch_patterns, name).default
    direct, is_traced = _C.operator_call(name, op), torch.compiler.is_dynamo_compiling

    def call(*args):
        if is_traced():
            for_jagged = handler(name, args)
            return op(*args) if for_jagged is None else for_jagged(*args)
        try:
            return direct(*args)
        except Exception:
            if (plain := handler(name, args)) is None and (plain := plain_arguments(name, op, args)) is None:
                raise
        return plain(*args) if callable(plain) else direct(*plain)

    call.__name__ = call.__qualname__ = name
    return call


def _names() -> list[str]:
    every = torch._C._dispatch_get_all_op_names()
    return sorted(name.split("::")[1] for name in every if name.startswith("torch_patterns::"))


ops = SimpleNamespace(**{name: _call(name) for name in _names()})
