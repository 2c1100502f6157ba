"""Merge, merge_pairs, its transpose, and co_rank."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.testing.spec import ALL, Large, Sample, Spec, around, bad, case

# (m, n): around the items of a thread, a block of lanes, a tile, a block's section, a thread's chunk; skewed and empty.
SIZES = (
    *((total // 3, total - total // 3) for total in around(8, 32, 128, 256, 1024, 2048, 2816, 4096, 5888)),
    *((total - total // 3, total // 3) for total in around(1024, 3840, 11776)),
    *((1, 5000), (5000, 1), (0, 777), (777, 0), (1023, 1), (1, 1024), (3, 40), (600, 600)),
)
LONG = ((20_000, 12_769), (30_000, 36_000), (1, 40_000))  # several chunks of a thread, blocks and sections
VALUES_OF = {torch.bool: torch.complex128, torch.uint8: torch.float64, torch.int32: torch.bool}  # else the keys' dtype


def ranks(x: np.ndarray, descending: bool) -> np.ndarray:
    """Maps keys to numbers in the same order: equal keys to equal numbers, NaN to the greatest."""
    order = np.unique(x.ravel(), return_inverse=True)[1].reshape(x.shape)
    return -order if descending else order


def permutation(a: torch.Tensor, b: torch.Tensor, descending: bool) -> np.ndarray:
    """Returns the index in [a, b] from which each merged element comes."""
    keys = (x.double() if x.dtype.is_floating_point else x for x in (a, b))
    both = np.concatenate([x.numpy() for x in keys], axis=-1)
    return np.argsort(ranks(both, descending), axis=-1, kind="stable")


def taken(a: torch.Tensor, b: torch.Tensor, order: np.ndarray) -> torch.Tensor:
    both = np.concatenate([(x.double() if x.dtype.is_floating_point else x).numpy() for x in (a, b)], axis=-1)
    return torch.from_numpy(np.take_along_axis(both, order, -1))


def merge_reference(a, b, descending=False, validate=False):
    return taken(a, b, permutation(a, b, descending))


def pairs_reference(keys_a, values_a, keys_b, values_b, descending=False, validate=False):
    order = permutation(keys_a, keys_b, descending)
    return taken(keys_a, keys_b, order), taken(values_a, values_b, order)


def backward_reference(grad, a, b, descending=False):
    g, order = grad.double().numpy() if grad.is_floating_point() else grad.numpy(), permutation(a, b, descending)
    back = np.empty_like(g)
    np.put_along_axis(back, order, g, -1)
    m = a.shape[-1]
    return torch.from_numpy(back[..., :m].copy()), torch.from_numpy(back[..., m:].copy())


def rank_reference(k, a, b, descending=False):
    from_a = (permutation(a, b, descending) < a.shape[-1]).astype(np.int64)
    counts = np.concatenate([np.zeros((*from_a.shape[:-1], 1), np.int64), from_a.cumsum(-1)], -1)
    if counts.ndim == 1:
        return torch.as_tensor(counts[k.numpy()])
    several = k.dim() == a.dim()
    positions = np.broadcast_to(k.numpy(), counts.shape[:-1] + ((k.shape[-1],) if several else ()))
    found = np.take_along_axis(counts, positions if several else positions[..., None], -1)
    return torch.from_numpy(found if several else found[..., 0])


def sorted_keys(make, shape, kwargs):
    return make(shape).sort(dim=-1, descending=kwargs.get("descending", False), stable=True)[0]


def merge_inputs(case, make):
    return Sample(tuple(sorted_keys(make, shape, case.kwargs) for shape in case.shapes), dict(case.kwargs))


def some_values(make, shape, first=0):
    """Makes values of every width; "exact" values are numbered, which shows whether the merge is stable."""
    dtype = VALUES_OF.get(make.dtype, make.dtype)
    if dtype.is_floating_point and make.kind == "float":
        return torch.randn(shape, generator=make.random, dtype=torch.float64).to(dtype)
    return (torch.arange(first, first + torch.Size(shape).numel()).reshape(shape) % 97).to(dtype)


def pairs_inputs(case, make):
    a, b = (sorted_keys(make, shape, case.kwargs) for shape in case.shapes)
    return Sample((a, some_values(make, a.shape), b, some_values(make, b.shape, 31)), dict(case.kwargs))


def backward_inputs(case, make):
    a, b = (sorted_keys(make, shape, case.kwargs) for shape in case.shapes)
    return Sample((some_values(make, (*a.shape[:-1], a.shape[-1] + b.shape[-1])), a, b), dict(case.kwargs))


def rank_inputs(case, make):
    k, *keys = case.shapes
    a, b = (sorted_keys(make, shape, case.kwargs) for shape in keys)
    return Sample((make.indices(k, a.shape[-1] + b.shape[-1] + 1), a, b), dict(case.kwargs))


def sort_of_both(a, b, descending=False, validate=False):
    return torch.sort(torch.cat([a, b], -1), stable=True, descending=descending)[0]


def sort_and_gather(keys_a, values_a, keys_b, values_b, descending=False, validate=False):
    keys, order = torch.sort(torch.cat([keys_a, keys_b], -1), stable=True, descending=descending)
    return keys, torch.cat([values_a, values_b], -1).gather(-1, order)


def bytes_of_keys(n: int, pairs: bool) -> Large:
    """Makes runs of known lengths of each of the 256 keys; the values are 0 for a and 1 for b."""
    device, keys = "cuda", torch.arange(256).byte()

    def lengths():
        a = torch.arange(256) * (n // 2 // 40_000)
        a[7] += n // 2 - a.sum()
        b = a.flip(0)
        b[200] += n - a.sum() - b.sum()
        return a, b

    def make():
        a, b = (keys.repeat_interleave(x).to(device) for x in lengths())
        if not pairs:
            return Sample((a, b), {})
        return Sample((a, torch.zeros_like(a), b, torch.ones_like(b)), {})

    def check(sample, out):
        first = 0
        for key, (from_a, from_b) in enumerate(zip(*(x.tolist() for x in lengths()), strict=True)):
            run = slice(first, first + from_a + from_b)
            assert (out[0] if pairs else out)[run].eq(key).all(), f"key {key}"
            if pairs:
                middle = first + from_a
                assert out[1][first:middle].eq(0).all() and out[1][middle : run.stop].eq(1).all(), f"values of {key}"
            first = run.stop
        assert first == n

    return Large(f"{n} bytes{' of pairs' if pairs else ''}", n * (5 if pairs else 3) / 2**30 + 3, make, check)


def floats(*shapes):
    return lambda device: tuple(torch.zeros(shape, device=device) for shape in shapes)


def pairs_of(make):
    return lambda device: tuple(x for key in make(device) for x in (key, key))


def bad_keys(name: str, wrap=lambda make: make) -> tuple:
    mixed = lambda device: (torch.zeros(3, device=device), torch.zeros(3, dtype=torch.int32, device=device))  # noqa: E731
    turned = lambda device: tuple(x.cfloat() for x in floats(3, 3)(device))  # noqa: E731
    return (
        bad("dtypes differ", wrap(mixed), TypeError, f"{name}: .*a is Float, .*b is Int"),
        bad("dtype", wrap(turned), TypeError, f"{name}: .*Complex"),
        bad("rows differ", wrap(floats((2, 3), (3, 3))), RuntimeError, rf"{name}: .*\[2, 3\].*\[3, 3\]"),
        bad("dimensions differ", wrap(floats((1, 3), (3,))), RuntimeError, rf"{name}: .*\[1, 3\].*\[3\]"),
        bad("scalars", wrap(floats((), ())), RuntimeError, f"{name}: .*scalars"),
        bad("algorithm", wrap(floats(3, 3)), ValueError, f"{name}: .*'no_such'.*auto", algorithm="no_such"),
    )


def not_sorted(name: str, argument: str, wrap=lambda make: make) -> tuple:
    def keys(device):
        return torch.tensor([[1.0, 2.0], [4.0, 3.0]], device=device), torch.zeros(2, 3, device=device)

    message = rf"{name}: {argument}a is not sorted %s: {argument}a\[%s\] is %s, after %s"
    return (
        bad("unsorted", wrap(keys), ValueError, message % ("ascending", "1, 1", 3, 4), validate=True),
        bad(
            "unsorted, descending",
            wrap(keys),
            ValueError,
            message % ("descending", "0, 1", 2, 1),
            validate=True,
            descending=True,
        ),
    )


COMMON = {
    "dtypes": ALL,
    "special": (),  # anywhere in the input, they would leave it unsorted
    "samples": (
        case((5,), (4,)),
        case((3, 6), (3, 2), descending=True),
        case((2, 1, 7), (2, 1, 9)),
        case((33,), (31,), descending=True),
    ),
    "edges": (
        *(case((m,), (n,), descending=bool(i % 2)) for i, (m, n) in enumerate(SIZES)),
        *(case((3, m), (3, n), descending=bool(i % 2)) for i, (m, n) in enumerate(SIZES[::4])),
        *(case((m,), (n,), dtypes=(torch.int32, torch.float32, torch.float16)) for m, n in LONG),
        case((700, 3), (700, 2)),
        case((2, 700, 1), (2, 700, 0), descending=True),
    ),
    "empty": (case((0,), (0,)), case((3, 0), (3, 0)), case((0, 4), (0, 5)), case((0,), (3,)), case((2, 3), (2, 0))),
    "grown": (case((3, 8), (3, 5)), case((11, 21), (11, 13))),
    "sized": lambda n: case((n // 2,), (n - n // 2,)),
}
NAMED = {
    "2^27 + 2^27": case((2**27,), (2**27,)),
    "2^24 + 2^10": case((2**24,), (2**10,)),
    "65536 x (64 + 64)": case((65536, 64), (65536, 64)),
    "4096 x (2048 + 2048)": case((4096, 2048), (4096, 2048)),
    "descending 2^23 + 2^23": case((2**23,), (2**23,), descending=True),
}

SPECS = [
    Spec(
        "merge",
        reference=merge_reference,
        inputs=merge_inputs,
        bad=(*bad_keys("merge"), *not_sorted("merge", "")),
        large=(bytes_of_keys(2**31 + 3, False), bytes_of_keys(2**32 + 5, False)),
        named=NAMED,
        peers={"torch": sort_of_both},
        **COMMON,
    ),
    Spec(
        "merge_pairs",
        pattern="merge",
        reference=pairs_reference,
        inputs=pairs_inputs,
        bad=(
            *bad_keys("merge_pairs", pairs_of),
            *not_sorted("merge_pairs", "keys_", pairs_of),
            bad("shapes of values", floats(3, 4, 3, 3), RuntimeError, r"merge_pairs: keys_a .*\[3\], values_a .*\[4\]"),
            bad(
                "dtypes of values",
                lambda device: (*floats(2, 2, 2)(device), torch.zeros(2, dtype=torch.int32, device=device)),
                TypeError,
                "merge_pairs: values_a is Float, values_b is Int",
            ),
        ),
        large=(bytes_of_keys(2**31 + 3, True),),
        named=NAMED,
        peers={"torch": sort_and_gather},
        **COMMON,
    ),
    Spec(
        "merge_backward",
        pattern="co_rank",
        reference=backward_reference,
        inputs=backward_inputs,
        bad=(
            bad("shape", floats(6, 3, 4), RuntimeError, r"merge_backward: .*\[7\].*\[6\]"),
            bad("dtypes differ", lambda d: (*floats(6, 3)(d), torch.zeros(3, device=d).int()), TypeError, "a is Float"),
            bad("algorithm", floats(6, 3, 3), ValueError, "merge_backward: .*'no_such'", algorithm="no_such"),
        ),
        **COMMON,
    ),
    Spec(
        "co_rank",
        reference=rank_reference,
        inputs=rank_inputs,
        **COMMON
        | {
            "samples": (
                case((6,), (5,), (4,)),
                case((), (3,), (9,), descending=True),
                case((2, 3), (7,), (1,)),
                case((3, 5), (3, 6), (3, 2)),
                case((2, 1, 4), (2, 3, 6), (2, 3, 5), descending=True),
                case((3,), (2, 3, 6), (2, 3, 5)),
                case((), (2, 6), (2, 5)),
            ),
            "edges": tuple(case((50,), (m,), (n,), descending=bool(i % 2)) for i, (m, n) in enumerate(SIZES)),
            "empty": (
                case((0,), (3,), (4,)),
                case((3, 0), (3, 2), (3, 1)),
                case((0,), (0, 4), (0, 5)),
                case((2,), (0,), (0,)),
            ),
            "grown": (case((3, 4), (3, 8), (3, 5)), case((11, 6), (11, 21), (11, 13))),
            "sized": lambda n: case((n // 2,), (n,), (n,)),
        },
        differentiable=False,
        bad=(
            bad("k", floats(2, 3, 3), TypeError, "co_rank: k must be an integer, got Float"),
            bad(
                "shape of k",
                lambda device: (torch.zeros(2, device=device, dtype=torch.int64), *floats((3, 2), (3, 1))(device)),
                RuntimeError,
                r"co_rank: k of shape \[2\].*\[3, 2\]",
            ),
            bad(
                "algorithm",
                lambda device: (torch.zeros(2, device=device).long(), *floats(3, 3)(device)),
                ValueError,
                "co_rank: .*'no_such'.*auto",
                algorithm="no_such",
            ),
        ),
    ),
]
