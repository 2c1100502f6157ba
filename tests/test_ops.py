"""Every operator in every way that eager torch can call it, by the algorithm "auto"."""

import functools
import itertools
import re

import pytest
import torch
from common import defined, described, float_outputs, grad, gradients, problem, results
from torch.utils import deterministic

from torch_patterns import registry, testing
from torch_patterns.testing import assert_equal, assert_same_bits, tensors_of

REGISTERED = [name.split("::") for name in torch._C._dispatch_get_all_op_names()]
OPERATORS = {name.split(".")[0] for namespace, name in REGISTERED if namespace == "torch_patterns"}


def test_every_operator_and_pattern_has_a_spec():
    """But for those of whole networks, which test_lenet5_training.py tests."""
    specs = testing.specs()
    networks = {name for name in OPERATORS if name.startswith("lenet5")}
    assert set(specs) == OPERATORS - networks
    assert {spec.pattern for spec in specs.values()} == set(registry.patterns()) - networks


def differentiable(spec) -> None:
    if not spec.differentiable:
        pytest.skip("not differentiable")


# ---- the dispatcher


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck looks at what it must not
def test_opcheck(spec, device):
    """Schema, autograd registration, fake tensors; ahead-of-time dispatch with dynamic shapes for the samples."""
    check = functools.partial(torch.library.opcheck, spec.op, atol=0, rtol=0)
    for case in spec.samples:
        sample = spec.sample(case, spec.dtype, device, kind="float")
        sample = sample.requires_grad() if spec.differentiable else sample
        if defined(sample(spec.op)):  # opcheck holds NaN to differ from NaN
            check(sample.args, sample.kwargs)
    first = spec.sample(spec.samples[0], spec.dtype, device, kind="float")
    others = [first, first.map(lambda x: torch.stack([x, x], -1)[..., 0])]
    others += [spec.sample(spec.samples[0], d, device) for d in (torch.int32, torch.bfloat16) if d in spec.dtypes]
    others += [spec.sample(case, spec.dtype, device).requires_grad() for case in spec.empty]
    for sample in others:
        check(sample.args, sample.kwargs, test_utils=("test_schema", "test_faketensor"))


def test_meta(spec, device):
    """Shapes, dtypes and strides of meta tensors are those of real ones; an unknown algorithm is refused there too."""
    if spec.dynamic:
        pytest.skip("no size without data")
    for dtype in spec.dtypes:
        for case in spec.cases(dtype, edges=False):
            sample = spec.sample(case, dtype, device)
            for real, meta in zip(tensors_of(sample(spec.op)), tensors_of(sample.to("meta")(spec.op)), strict=True):
                got, want = ((x.shape, x.dtype, x.stride()) for x in (meta, real))
                assert got == want, described(spec, dtype, case)
    with pytest.raises(ValueError, match=rf"{spec.pattern}|{spec.name}.*'no_such'"):
        sample.to("meta")(spec.op, algorithm="no_such")


def test_wrapper(spec, device):
    """The public function is the operator."""
    if spec.wrapper is None:
        pytest.skip("no public function")
    for dtype in spec.dtypes:
        for case in spec.cases(dtype, edges=False):
            sample = spec.sample(case, dtype, device)
            assert_same_bits(sample(spec.wrapper), sample(spec.op), described(spec, dtype, case))


@pytest.mark.parametrize("called", ["op", "wrapper"])
def test_bad_input(spec, device, called):
    """Refused with the documented error, and the device remains usable."""
    function = getattr(spec, called)
    if function is None:
        pytest.skip("no public function")
    for bad in spec.bad:
        with pytest.raises(bad.error) as raised:
            bad.make(device)(function)
        assert re.search(bad.message, str(raised.value), re.DOTALL), f"{spec.name} {bad.name}: {raised.value}"
        sample = spec.sample(spec.samples[0], spec.dtype)
        assert_same_bits(sample.to(device)(spec.op), sample.to(device)(spec.op))


# ---- gradients


def test_gradient_layouts(spec, device):
    """Gradients that arrive expanded, as from sum(), or transposed, give what their contiguous copies give."""
    differentiable(spec)
    for case in spec.samples:
        sample = spec.sample(case, spec.dtype, device).requires_grad()
        for y in float_outputs(sample(spec.op)):
            integers = torch.randint(-4, 5, y.shape[::-1], device=device).to(y.dtype)
            for g in (integers.new_ones(()).expand(y.shape), integers.permute(tuple(reversed(range(y.dim()))))):
                got = grad(y, sample.floats, g, retain_graph=True)
                want = grad(y, sample.floats, g.contiguous(), retain_graph=True)
                assert_equal(got, want, described(spec, case))


def test_half_gradients(spec, device):
    """The gradients of half types are those of float32, but for the rounding of inputs and results."""
    differentiable(spec)
    for dtype, case in itertools.product((torch.float16, torch.bfloat16), spec.samples):
        if dtype not in spec.dtypes:
            continue
        sample = spec.sample(case, dtype, device)
        got, want = gradients(spec.op, sample), gradients(spec.op, sample.map_floats(torch.Tensor.double))
        for g, w in zip(got, want, strict=True):
            assert g.dtype == dtype
            error = (g.double() - w).abs().max().item() if g.numel() else 0.0
            scale = max(1.0, w.abs().max().item() if w.numel() else 0.0)
            assert error <= 64 * torch.finfo(dtype).eps * scale, described(spec, dtype, case)


# ---- modes


def choices_of_batched(count):
    """Which of so many tensors are batched: all choices; of more than four tensors each alone, all but one, and all."""
    for chosen in itertools.product((True, False), repeat=count):
        if any(chosen) and (count <= 4 or sum(chosen) in (1, count - 1, count)):
            yield chosen


@pytest.mark.parametrize("called", ["op", "wrapper"])
def test_vmap(spec, device, called):
    """vmap is a loop, whichever tensors are batched and along whichever dimension, and needs no fallback."""
    function = getattr(spec, called)
    if function is None:
        pytest.skip("no public function")
    for case in (*spec.samples, *spec.empty):
        samples = [spec.sample(case, spec.dtype, device, variant=v) for v in range(3)]
        for chosen in choices_of_batched(len(samples[0].tensors)):
            rows = [
                [s.tensors[i] if batched else samples[0].tensors[i] for i, batched in enumerate(chosen)]
                for s in samples
            ]
            columns = list(zip(chosen, zip(*rows, strict=True), strict=True))
            loop = [tensors_of(samples[0].replace(row)(function)) for row in rows]
            want = [torch.stack(outputs) for outputs in zip(*loop, strict=True)]
            for end in (0, -1):
                in_dims = tuple(end if batched else None for batched in chosen)
                batch = [torch.stack(column, end) if batched else column[0] for batched, column in columns]
                got = torch.vmap(lambda *x: samples[0].replace(x)(function), in_dims)(*batch)  # noqa: B023
                assert_same_bits(got, want, described(spec, case, in_dims))


def test_autocast(spec, device):
    """The documented dtype under autocast, the same values as by casts, and gradients in the dtype of the inputs."""
    for target in (torch.bfloat16, torch.float16):
        for dtype, case in itertools.product((torch.float32, target), spec.samples):
            runs_in = {"float32": torch.float32, "lower": target, None: None}[spec.autocast_of(case)]
            sample, where = spec.sample(case, dtype, device), described(spec, target, dtype, case)
            want = sample.map_floats(lambda x: x.to(runs_in or x.dtype))(spec.op)  # noqa: B023
            with torch.autocast(device, target):
                assert_same_bits(sample(spec.op), want, where)
                if spec.differentiable:
                    assert [g.dtype for g in gradients(spec.op, sample)] == [x.dtype for x in sample.floats], where


def test_inference_and_no_grad(spec, device):
    for mode in (torch.inference_mode, torch.no_grad):
        sample = spec.sample(spec.samples[0], spec.dtype, device)
        want = sample(spec.op)
        with mode():
            out = sample.map(torch.clone).requires_grad()(spec.op)
        assert not any(y.requires_grad for y in tensors_of(out))
        assert_same_bits(out, want, described(spec, mode.__name__))


# ---- determinism


def test_deterministic(spec, device):
    """The same bits in every run, forward and backward."""
    sample = problem(spec, 2**16, spec.dtype, device)
    want = results(spec, sample)
    for _ in range(20):
        assert_same_bits(results(spec, sample), want, spec.name)


@pytest.mark.devices("cpu")
def test_threads(spec, device):
    """The same bits whatever the number of threads."""
    for dtype in {spec.dtype, torch.bfloat16} & set(spec.dtypes):
        sample, found = problem(spec, 2**17, dtype, device), []
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            found.append(results(spec, sample))
        for other in found[1:]:
            assert_same_bits(other, found[0], described(spec, dtype))


def test_poison(spec, device):
    """Memory that was never written is never read: with NaN in all of it, the bits are the same."""
    assert deterministic.fill_uninitialized_memory
    for case in (*spec.samples, *spec.empty, *(c for c in spec.edges if 500 < c.size < 5000 and not c.dtypes)):
        sample = spec.sample(case, spec.dtype, device, kind="float")
        want = results(spec, sample)
        torch.use_deterministic_algorithms(True)
        got = results(spec, sample)
        torch.use_deterministic_algorithms(False)
        assert_same_bits(got, want, described(spec, case))
