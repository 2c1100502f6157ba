"""The description of each operator for tests and benchmarks: one Spec per operator.

To put an operator under test, add its Spec to the list SPECS of a module of this package. There is one module per
pattern, and all are loaded. tests/test_ladder.py then runs every rung of its pattern, test_ops.py and test_graphs.py
call it in every way that torch offers, test_cuda.py calls it on streams and in captured graphs, and
benchmarks/ladder.py times it. A small one:

    SPECS = [
        Spec(
            "relu",
            pattern="activation",
            dtypes=FLOATS,
            reference=lambda x: x.double().clamp(min=0),       # exact arithmetic, CPU, no code of ours, not rounded
            samples=(case((3, 4)), case((2, 3, 4))),            # small: go through everything
            edges=tuple(case((n,)) for n in around(256)),       # sizes where rungs could go wrong
            empty=(case((0,)), case((3, 0))),
            grown=(case((3, 4)), case((5, 7))),                 # one problem at two sizes: what differs is dynamic
            bad=(bad("dtype", lambda device: (torch.ones(3, device=device).int(),), TypeError, "relu: .*Int"),),
        )
    ]

A Maker makes every tensor of a sample in one of two kinds. "exact" tensors hold integers so small that no order of
summation rounds, so every rung must give the reference bit for bit; for "float" tensors results must keep the Spec's
bound.
"""

import functools
import importlib
import pkgutil

from torch_patterns.testing.compare import (
    assert_equal,
    assert_same_bits,
    assert_within,
    bits,
    gamma,
    round_to,
    tensors_of,
    unit_roundoff,
)
from torch_patterns.testing.spec import (
    ALL,
    BITS,
    FLOATS,
    INTEGERS,
    Bad,
    Case,
    Large,
    Maker,
    Sample,
    Spec,
    around,
    bad,
    case,
)

__all__ = [
    "ALL",
    "BITS",
    "FLOATS",
    "INTEGERS",
    "Bad",
    "Case",
    "Large",
    "Maker",
    "Sample",
    "Spec",
    "around",
    "assert_equal",
    "assert_same_bits",
    "assert_within",
    "bad",
    "bits",
    "case",
    "gamma",
    "round_to",
    "specs",
    "tensors_of",
    "unit_roundoff",
]


@functools.cache
def specs() -> dict[str, Spec]:
    """Every Spec of this package's modules, by the operator's name."""
    found: dict[str, Spec] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        for spec in getattr(importlib.import_module(f"{__name__}.{module}"), "SPECS", ()):
            if spec.name in found:
                raise ValueError(f"two Specs are named {spec.name}")
            found[spec.name] = spec
    return found
