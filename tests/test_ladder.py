"""Every rung of every ladder, on every device: exact results, proven bounds, and the manners of an operator."""

import functools

import pytest
import torch

from torch_patterns import registry, simt, testing
from torch_patterns.testing import assert_equal, assert_same_bits, assert_within, tensors_of, unit_roundoff

QUADRATIC_LIMIT = 2100  # elements, for rungs whose work grows with the square
FLOAT_LIMIT = 2**17  # elements: the reference in long double takes its time
CHECKED_LIMIT, CHECKED_QUADRATIC_LIMIT = 1100, 300  # where the host checks every access
CHECKED_BLOCKS = 2400  # more than the largest section of a block (2,304), so that a second block must wait or add
ORDERS = [("forward", 0), ("reverse", 0), ("shuffle", 1), ("shuffle", 2)]


@functools.lru_cache(maxsize=4096)  # the cases of one operator in all dtypes
def problem(name: str, case: testing.Case, dtype: torch.dtype, kind: str):
    """A sample on the CPU, the reference's result, and the bound on its error, or None where the result must be met
    exactly. They are made once for all rungs, none of which may change the sample."""
    spec = testing.specs()[name]
    sample = spec.sample(case, dtype, kind=kind)
    bounded = spec.bound and dtype.is_floating_point and (kind == "float" or not spec.exact)
    bound = sample(functools.partial(spec.bound, unit_roundoff(dtype))) if bounded else None
    return sample, sample(spec.reference), bound


def has_trait(spec, rung: str, trait: str) -> bool:
    return any(trait in r.traits for r in registry.ladder(spec.pattern) if r.name == rung)


def repeats(spec, rung: str) -> bool:
    """Whether every run gives the same bits on data of kind "exact", whose sums are exact in any order."""
    return spec.exact or not has_trait(spec, rung, "float_atomics")


def is_quadratic(spec, rung: str) -> bool:
    return has_trait(spec, rung, "quadratic")


def cases(spec, rung: str, dtype: torch.dtype) -> list[testing.Case]:
    return spec.cases(dtype, most=QUADRATIC_LIMIT if is_quadratic(spec, rung) else None)


def check(spec, rung: str, case: testing.Case, dtype: torch.dtype, device: str, kind: str) -> None:
    where = f"{spec.name} {rung} {dtype} ({case})"
    sample, want, bound = problem(spec.name, case, dtype, kind)
    out = sample.to(device)(spec.op, algorithm=rung)
    if has_trait(spec, rung, "norm_wise") or bound is not None and has_trait(spec, rung, "mixes_neighbours"):
        bound = sample(functools.partial(spec.norm_bound, unit_roundoff(dtype)))
    if bound is None:
        assert_equal(out, want, where)
    else:
        assert_within(out, want, bound, where)


def test_exact(spec, device, rung):
    """Integers, however they are combined, give the reference's result: tolerance 0, all dtypes and cases. Only rungs
    with the trait norm_wise have a bound instead."""
    for dtype in spec.dtypes:
        for case in cases(spec, rung, dtype):
            check(spec, rung, case, dtype, device, "exact")


def test_floats(spec, device, rung):
    """Floats stay within the bound that holds for every order of the same operations."""
    for dtype in (d for d in spec.dtypes if d.is_floating_point):
        for case in (c for c in cases(spec, rung, dtype) if c.size <= FLOAT_LIMIT):
            check(spec, rung, case, dtype, device, "float")


def test_special_values(spec, device, rung):
    """NaN and infinities come out as from the ladder's first rung, which test_exact holds to be right; not from rungs
    with the trait mixes_neighbours, which compute with sums of what lies side by side."""
    if has_trait(spec, rung, "mixes_neighbours"):
        return
    oracle = registry.ladder(spec.pattern)[0].name
    for dtype in (d for d in spec.dtypes if d.is_floating_point and spec.special):
        for case in spec.samples:
            sample = spec.sample(case, dtype)
            for x in sample.floats:
                if x.numel() > len(spec.special):
                    for i, value in enumerate(spec.special, 1):
                        x.view(-1)[i * x.numel() // (len(spec.special) + 1)] = value
            out, want = sample.to(device)(spec.op, algorithm=rung), sample(spec.op, algorithm=oracle)
            if not spec.exact:
                out, want = ([y.masked_fill(y.isfinite(), 0) for y in tensors_of(ys)] for ys in (out, want))
            assert_equal(out, want, f"{spec.name} {rung} {dtype} ({case})")


def test_manners(spec, device, rung):
    """Inputs and their versions stay as they are; outputs are fresh, contiguous, and alias nothing."""
    for dtype in spec.dtypes:
        for case in spec.cases(dtype, edges=False):
            sample, where = spec.sample(case, dtype, device), f"{spec.name} {rung} {dtype} ({case})"
            before, versions = sample.map(torch.clone), [x._version for x in sample.tensors]
            outputs = testing.tensors_of(sample(spec.op, algorithm=rung))
            assert_same_bits(sample.tensors, before.tensors, f"{where}: input changed")
            assert versions == [x._version for x in sample.tensors], f"{where}: an input's version changed"
            storages = [x.untyped_storage().data_ptr() for x in (*sample.tensors, *outputs) if x.numel()]
            assert len(set(storages)) == len(storages), f"{where}: an output shares memory"
            assert all(y._base is None and y.is_contiguous() for y in outputs), f"{where}: an output is a view"


def misaligned(x: torch.Tensor, offset: int) -> torch.Tensor:
    buffer = torch.zeros(x.numel() + offset, dtype=x.dtype, device=x.device)
    return buffer[offset:].view(x.shape).copy_(x)


def with_true_as(x: torch.Tensor, byte: int) -> torch.Tensor:
    """Any byte but 0 is true, as views of other types can make it."""
    return (x.to(torch.uint8) * byte).view(torch.bool) if x.dtype == torch.bool else x


VIEWS = {
    "transposed": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() > 1 else x,
    "step 2": lambda x: torch.stack([x, torch.zeros_like(x)], -1)[..., 0],
    **{f"offset {k}": functools.partial(misaligned, offset=k) for k in (1, 2, 3, 5, 7)},
    **{f"true as {byte}": functools.partial(with_true_as, byte=byte) for byte in (2, 255)},
}


def test_views(spec, device, rung):
    """The layout of an input in memory does not matter: the bits are those of its contiguous copy, or within the bound
    where an operator combines elements in the order of memory."""
    if not repeats(spec, rung):
        return
    least, most = (100, CHECKED_QUADRATIC_LIMIT) if is_quadratic(spec, rung) else (1000, 5000)
    large = next((c for c in spec.edges if least < c.size <= most), spec.samples[0])
    for dtype in spec.dtypes:
        for case in (c for c in (*spec.samples, *spec.empty, large) if not c.dtypes or dtype in c.dtypes):
            sample = spec.sample(case, dtype, device)
            want = sample(spec.op, algorithm=rung)
            for name, view in VIEWS.items():
                out, where = sample.map(view)(spec.op, algorithm=rung), f"{spec.name} {rung} {dtype} ({case}) {name}"
                _, exact, bound = problem(spec.name, case, dtype, "exact")
                if bound is not None and name == "transposed" and spec.name == "reduce":
                    assert_within(out, exact, bound, where)
                else:
                    assert_same_bits(out, want, where)
            constant = sample.map_floats(lambda x: x[:1].expand(x.shape) if x.numel() and x.dim() else x)
            out, want = (s(spec.op, algorithm=rung) for s in (constant, constant.map(torch.clone)))
            assert_same_bits(out, want, f"{spec.name} {rung} {dtype} ({case}) expanded")


def finite(out) -> list[torch.Tensor]:
    """The floating-point outputs, without the infinities of an identity: their differences are NaN."""
    return [y.masked_fill(~y.isfinite(), 0) for y in tensors_of(out) if y.is_floating_point()]


def test_gradients(spec, device, rung):
    """Every rung can be trained through."""
    if not spec.differentiable:
        return
    for case in spec.samples:
        sample = spec.sample(case, torch.float64, device, kind="float")
        if sample.floats:
            f, inputs = sample.bind(spec.op, algorithm=rung)
            assert torch.autograd.gradcheck(lambda *x: finite(f(*x)), inputs), f"{spec.name} {rung} ({case})"  # noqa: B023


@pytest.mark.devices("cpu")
def test_orders(spec, device, rung):
    """In the checked mode, whatever the order of lanes and blocks: no race, no bad access, the same result.

    The small samples of the pattern itself run in all orders, the edges in one each, and in one dtype after the other.
    One case of the pattern itself is long enough for two blocks of every rung.
    """
    most = CHECKED_QUADRATIC_LIMIT if is_quadratic(spec, rung) else CHECKED_LIMIT
    dtypes = [d for d in spec.checked if d in spec.dtypes]
    for turn, dtype in enumerate(dtypes):
        for i, case in enumerate(spec.cases(dtype, most=most)):
            edge = case not in spec.samples
            if edge and i % len(dtypes) != turn:
                continue
            orders = [ORDERS[(turn + i + i // 4) % 4]] if edge or spec.name != spec.pattern else ORDERS
            for order, seed in orders:
                with simt.checked(order, seed):
                    check(spec, rung, case, dtype, device, "exact")
    long = [c for c in spec.cases(spec.dtype, most=CHECKED_BLOCKS) if c.size > CHECKED_LIMIT]
    if long and spec.name == spec.pattern and not is_quadratic(spec, rung):
        longest = max(long, key=lambda c: max(map(max, filter(None, c.shapes))))
        with simt.checked("shuffle", 1):
            check(spec, rung, longest, spec.dtype, device, "exact")
