"""Compaction, padded and not, the way back, and partition."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.testing.compare import assert_equal
from torch_patterns.testing.spec import ALL, FLOATS, Large, Sample, Spec, around, bad, case

# Words of the mask, blocks, tiles and chunks.
EDGES = (1, 2, 31, 32, 33, *around(256, 512, 8192, 2**14))
GROUPS = 8192 * 256 + 1  # tiles: one more than a group


def mask_of(shape, make, keep: float = 0.5) -> torch.Tensor:
    """Makes random masks; all masks of a shape keep the same number, so that vmap over masks has a result."""
    count = torch.Size(shape).numel()
    mask = torch.zeros(count, dtype=torch.bool)
    mask[torch.randperm(count, generator=make.random)[: round(keep * count + 0.01)]] = True
    return mask.view(shape)


def inputs(case, make):
    kwargs = dict(case.kwargs)
    keep = kwargs.pop("keep", 0.5)
    x, mask = case.shapes
    return Sample((make(x), mask_of(mask, make, keep)), kwargs)


def array(x: torch.Tensor) -> np.ndarray:
    return (x.double() if x.is_floating_point() else x).numpy()


def reference(x, mask):
    return torch.from_numpy(np.ascontiguousarray(array(x)[mask.numpy()]))


def padded_reference(x, mask, fill=0):
    kept = array(x)[mask.numpy()]
    values = np.full_like(array(x), fill).reshape(mask.numel(), *x.shape[mask.dim() :])
    values[: len(kept)] = kept
    return torch.from_numpy(values).reshape(x.shape), torch.tensor(len(kept))


def backward_reference(grad, mask):
    packed = np.zeros((mask.numel(), *grad.shape[1:]))
    rows = min(len(packed), len(grad))
    packed[:rows] = array(grad)[:rows]
    out = np.zeros((*mask.shape, *grad.shape[1:]))
    out[mask.numpy()] = packed[: int(mask.sum())]
    return torch.from_numpy(out)


def partition_reference(x, mask):
    values, keep = array(x), mask.numpy()
    return torch.from_numpy(np.concatenate([values[keep], values[~keep]])), torch.tensor(int(keep.sum()))


def refused(name: str, argument: str, shape=(3,)) -> tuple:
    """`shape` is that of the floating-point tensor."""

    def args(mask=(3,), mask_dtype=torch.bool, dtype=torch.float32):
        return lambda device: (
            torch.ones(shape, device=device).to(dtype),
            torch.ones(mask, dtype=mask_dtype, device=device),
        )

    found = (
        bad("mask's dtype", args(mask_dtype=torch.uint8), TypeError, f"{name}: mask must be bool"),
        bad("dtype", args(dtype=torch.cfloat), TypeError, f"{name}: .*Complex"),
        bad("algorithm", args(), ValueError, f"{name}: .*'no_such'.*auto", algorithm="no_such"),
    )
    if argument == "x":
        found += (
            bad("shape", args(mask=(4,)), RuntimeError, rf"{name}: mask .*shape of x.*\[4\].*\[3\]"),
            bad("rank", args(mask=(3, 1)), RuntimeError, rf"{name}: mask .*shape of x.*\[3, 1\].*\[3\]"),
        )
    return found


SAMPLES = (
    case((7,), (7,)),
    case((5, 3), (5,)),
    case((3, 5), (3, 5), keep=0.7),
    case((2, 3, 2), (2, 3), keep=1.0),
    case((9,), (9,), keep=0.0),
    case((), ()),
    case((3,), (), keep=1.0),
)
SHAPES = (
    *(case((n,), (n,)) for n in EDGES),
    *(case((n, 3), (n,), keep=0.1) for n in (33, 257, 700)),
    case((300, 16), (300,)),
    case((70_001,), (70_001,), keep=0.99),
    case((2**14 + 1,), (2**14 + 1,), keep=1.0),
    case((9000, 5), (9000,)),
    case((9000,), (9000,), keep=0.0),
    case((GROUPS,), (GROUPS,), dtypes=(torch.float32,)),
)
EMPTY = (case((0,), (0,)), case((3, 0), (3,)), case((0, 4), (0,)), case((2, 0), (2, 0)))


def bytes_kept(n: int) -> Large:
    """Makes bytes that count up; every third is kept, at 64 different positions of its group of 192."""

    def make():
        x = torch.arange(256, device="cuda").to(torch.uint8).repeat(n // 256 + 1)[:n]
        mask = (torch.arange(192, device="cuda") % 3 == 1).repeat(n // 192 + 1)[:n]
        return Sample((x, mask), {})

    def check(sample, y):
        assert y.numel() == (n + 1) // 3
        for begin in range(0, y.numel(), 2**28):
            end = min(begin + 2**28, y.numel())
            want = (3 * torch.arange(begin, end, device="cuda") + 1).remainder_(256).to(torch.uint8)
            assert_equal(y[begin:end], want, f"elements from {begin}")

    return Large(f"{n} bytes", 4 * n / 2**30 + 8, make, check)


def bytes_moved(sample, out):
    """Counts the bytes of the mask and of the kept elements, which are read, and of the result, which is written."""
    x, mask = sample.args[:2]
    values = out[0] if isinstance(out, tuple) else out
    kept = int(mask.sum()) * (x.numel() // max(mask.numel(), 1))
    return mask.numel() + (kept + values.numel()) * x.element_size()


NAMED = {
    "5 % of 2^28": case((2**28,), (2**28,), keep=0.05),
    "all of 2^28": case((2**28,), (2**28,), keep=1.0),
    "rows 2^20 x 64": case((2**20, 64), (2**20,)),
}

COMPACT = Spec(
    "compact",
    reference=reference,
    inputs=inputs,
    dtypes=ALL,
    samples=SAMPLES,
    edges=SHAPES,
    empty=EMPTY,
    grown=(case((3, 8), (3, 8)), case((5, 21), (5, 21))),
    dynamic=True,
    bad=refused("compact", "x"),
    large=(bytes_kept(2**31 + 5),),
    sized=lambda n: case((n,), (n,)),
    named=NAMED,
    peers={"torch": lambda x, mask: x[mask]},
    bytes=bytes_moved,
)

PADDED = Spec(
    "compact_padded",
    pattern="compact",
    reference=padded_reference,
    inputs=inputs,
    dtypes=ALL,
    samples=(*SAMPLES, case((8,), (8,), fill=1), case((3, 4), (3,), fill=1.0)),
    edges=(*SHAPES, case((700, 3), (700,), fill=1, keep=0.2), case((4097,), (4097,), fill=1)),
    empty=EMPTY,
    grown=(case((3, 8), (3, 8), fill=1), case((5, 21), (5, 21), fill=1)),
    bad=(
        *refused("compact_padded", "x"),
        bad(
            "fill",
            lambda d: (torch.ones(3, dtype=torch.int8, device=d), torch.ones(3, dtype=torch.bool, device=d)),
            RuntimeError,
            "cannot be converted",
            fill=1000,
        ),
    ),
    sized=lambda n: case((n,), (n,)),
    named=NAMED,
    bytes=bytes_moved,
)

BACKWARD = Spec(
    "compact_backward",
    pattern="compact",
    reference=backward_reference,
    inputs=inputs,
    dtypes=FLOATS,
    samples=(
        case((4,), (8,)),
        case((8,), (8,)),
        case((2,), (8,)),
        case((11, 2), (8,)),
        case((3, 2, 3), (2, 3)),
        case((1,), (), keep=1.0),
    ),
    edges=(
        *(case((n // 2, 3), (n,)) for n in EDGES),
        *(case((n, 2), (n,), keep=0.9) for n in EDGES),
        case((GROUPS,), (GROUPS,), dtypes=(torch.float32,)),
    ),
    empty=(case((0,), (0,)), case((0,), (3,)), case((3, 0), (5,)), case((2,), (0,)), case((0, 4), (2, 3), keep=0.0)),
    grown=(case((3, 8), (7,)), case((5, 21), (11,))),
    bad=(
        *refused("compact_backward", "grad"),
        bad(
            "integers",
            lambda d: (torch.ones(3, device=d).int(), torch.ones(3, dtype=torch.bool, device=d)),
            TypeError,
            "compact_backward: grad must be floating point, got Int",
        ),
        bad(
            "scalar",
            lambda d: (torch.ones((), device=d), torch.ones(3, dtype=torch.bool, device=d)),
            RuntimeError,
            "compact_backward: grad must have a dimension of rows",
        ),
    ),
    sized=lambda n: case((n // 2,), (n,)),
)

PARTITION = Spec(
    "partition",
    pattern="compact",
    reference=partition_reference,
    inputs=inputs,
    dtypes=ALL,
    samples=(case((7,), (7,)), case((9, 3), (9,)), case((8, 2, 2), (8,), keep=0.1), case((5,), (5,), keep=1.0)),
    edges=SHAPES,
    empty=(case((0,), (0,)), case((0, 3), (0,)), case((4, 0), (4,))),
    grown=(case((8, 3), (8,)), case((21, 7), (21,))),
    bad=(
        *refused("partition", "rows"),
        bad(
            "length",
            lambda d: (torch.ones(3, device=d), torch.ones(2, device=d) > 0),
            RuntimeError,
            "partition: mask .*3",
        ),
        bad(
            "scalar",
            lambda d: (torch.ones((), device=d), torch.ones(1, device=d) > 0),
            ValueError,
            "partition: .*one dim",
        ),
    ),
    sized=lambda n: case((n,), (n,)),
    named=NAMED,
    peers={"torch": lambda x, mask: (torch.cat([x[mask], x[~mask]]), mask.sum())},
)

SPECS = [COMPACT, PADDED, BACKWARD, PARTITION]
