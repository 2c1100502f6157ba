"""Random problems: a few new ones for every operator in every run, held to references and properties.

The seed is new in every run (in CI, in every commit), and shown at its head and in every failure; FUZZ_SEED=n repeats a
run, FUZZ_CASES=n makes n problems for each operator.
"""

import os
import random
import zlib
from functools import partial as bind

import torch
from common import described
from fuzz_problems import PROBLEMS
from test_ladder import has_trait

from torch_patterns import testing
from torch_patterns.testing import assert_equal, assert_same_bits, assert_within, tensors_of, unit_roundoff

SEED, COUNT = int(os.environ["FUZZ_SEED"]), int(os.environ.get("FUZZ_CASES", "300"))  # the seed is made in conftest.py


# ---- properties, beside the reference: spec, sample, rung -> what does not hold


def doubled(spec, sample, rung, at: int, kind: str) -> None:
    """A linear operator gives twice the result, to the bit, for twice the argument (where nothing overflows).

    A rung that is exact only to a norm leaves subnormal numbers where zeros belong, and those are not rounded alike.
    """
    if kind == "exact" and sample.args[at].is_floating_point():
        args = list(sample.args)
        args[at] = args[at] * 2
        out = tensors_of(spec.op(*args, **sample.kwargs, algorithm=rung))
        want = [y * 2 for y in tensors_of(sample(spec.op, algorithm=rung))]
        if has_trait(spec, rung, "norm_wise"):
            normal = [y.abs() >= 2 * torch.finfo(y.dtype).tiny for y in want]
            out, want = ([y.where(keep, 0) for y, keep in zip(ys, normal, strict=True)] for ys in (out, want))
        assert_same_bits(out, want)


def linear_scans(spec, sample, rung, kind: str) -> None:
    if sample.kwargs.get("op", "sum") == "sum":
        doubled(spec, sample, rung, 0, kind)


def turned_round(spec, sample, rung, kind: str) -> None:
    """A scan from the other end is the scan of the elements turned round."""
    linear_scans(spec, sample, rung, kind)
    x, kwargs = sample.args[0], sample.kwargs
    other = {**kwargs, "reverse": not kwargs.get("reverse", False)}
    out, want = (spec.op(t, **k, algorithm=rung) for t, k in ((x.flip(kwargs["dim"]), other), (x, kwargs)))
    assert_same_bits(out.flip(kwargs["dim"]), want) if kind == "exact" else None


def sorted_already(spec, sample, rung, kind: str) -> None:
    """What is sorted stays as it is."""
    once = tensors_of(sample(spec.op, algorithm=rung))[0]
    again = tensors_of(spec.op(once, *sample.args[1:], **sample.kwargs, algorithm=rung))[0]
    assert_same_bits(again, once)


def a_sort_of_both(spec, sample, rung, kind: str) -> None:
    a, b = sample.args
    want = torch.cat([a, b], -1).sort(dim=-1, descending=sample.kwargs.get("descending", False), stable=True)[0]
    assert_same_bits(sample(spec.op, algorithm=rung), want)


def one_level_down(spec, sample, rung, kind: str) -> None:
    """Every edge from a vertex that is reached leads one level down at most."""
    row_ptrs, col_idx = sample.args[:2]
    levels = spec.op(*sample.args[:6], algorithm=rung)[0].long()
    src = torch.repeat_interleave(torch.arange(len(row_ptrs) - 1, device=row_ptrs.device), row_ptrs.long().diff())
    for level in levels.view(-1, levels.shape[-1]):
        here, there = level[src], level[col_idx.long()]
        assert bool(((here < 0) | ((there >= 0) & (there <= here + 1))).all())


PROPERTIES = {
    **{name: bind(doubled, at=0) for name in ("conv2d_dgrad", "linear_dgrad", "segment_expand", "compact_backward")},
    "conv2d_wgrad": bind(doubled, at=1),
    "linear_wgrad": bind(doubled, at=1),
    "segment_reduce": linear_scans,
    "segment_scan": linear_scans,
    "scan": turned_round,
    "reduce": linear_scans,
    **dict.fromkeys(("sort", "sort_keys", "segment_sort"), sorted_already),
    "merge": a_sort_of_both,
    "bfs_csr": one_level_down,
}


# ---- the test


def scattered(x: torch.Tensor, r) -> torch.Tensor:
    """The same elements elsewhere in memory: at an offset, every other one, or with the dimensions turned."""
    way = r.randrange(3)
    if way == 0:
        buffer = x.new_zeros(x.numel() + 7)
        return buffer[(k := r.randrange(1, 8)) : k + x.numel()].view(x.shape).copy_(x)
    if way == 1:
        return torch.stack([x, x], -1)[..., 1]
    return x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() > 1 else x


def test_fuzz(spec, device):
    """Results are the reference's, whatever the rung and the layout; inputs stay as they are; properties hold."""
    for number in range(COUNT):
        r = random.Random(zlib.crc32(f"{SEED} {spec.name} {number}".encode()))
        problem = PROBLEMS[spec.name](r)
        dtype = r.choice([d for d in spec.dtypes if not problem.dtypes or d in problem.dtypes])
        kind, rung = r.choice(("exact", "float")), r.choice([x.name for x in spec.rungs(device)])
        if "quadratic" in next(x.traits for x in spec.rungs(device) if x.name == rung) and problem.size > 200:
            rung = "auto"
        where = described(spec, rung, dtype, kind, problem, f"FUZZ_SEED={SEED}")
        try:
            sample = spec.sample(problem, dtype, device, kind, variant=r.randrange(10**6))
            before = sample.map(torch.clone)
            out = sample(spec.op, algorithm=rung)
            cpu = sample.to("cpu")
            want = cpu(spec.reference)
            bounded = spec.bound and dtype.is_floating_point and (kind == "float" or not spec.exact)
            rough = has_trait(spec, rung, "norm_wise") or (bounded and has_trait(spec, rung, "mixes_neighbours"))
            limit = spec.norm_bound if rough else spec.bound
            bound = cpu(bind(limit, unit_roundoff(dtype))) if bounded or rough else None
            assert_equal(out, want, where) if bound is None else assert_within(out, want, bound, where)
            elsewhere = sample.map(lambda x: scattered(x, r))  # noqa: B023
            again = elsewhere(spec.op, algorithm=rung)
            by_blas = rung in ("auto", "gemm") and spec.pattern in (
                "linear",
                "segment_matmul",
            )  # sums depend on where operands lie
            strides = [x.stride() for x in elsewhere.tensors]
            is_turned = spec.name == "reduce" and any(list(s) != sorted(s, reverse=True) for s in strides)
            if bound is not None and (by_blas or is_turned or has_trait(spec, rung, "float_atomics")):
                assert_within(again, want, bound, where)
            else:
                assert_same_bits(again, out, where)
            assert_same_bits(sample.tensors, before.tensors, where)
            if spec.name in PROPERTIES:
                PROPERTIES[spec.name](spec, sample, rung, kind=kind)
        except Exception as failed:
            failed.add_note(where) if hasattr(failed, "add_note") else None
            raise


def test_every_operator_has_problems():
    assert set(PROBLEMS) == set(testing.specs())
    assert set(PROPERTIES) <= set(PROBLEMS)
