"""Every operator in every way that eager torch can call it, by the algorithm "auto"."""

import contextlib
import functools
import itertools
import re

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from common import assert_nearly, defined, described, float_outputs, grad, gradients, loss, problem, results
from torch.utils import deterministic

from torch_patterns import registry, testing
from torch_patterns.testing import assert_equal, assert_same_bits, tensors_of

REGISTERED = [name.split("::") for name in torch._C._dispatch_get_all_op_names()]
OPERATORS = {name.split(".")[0] for namespace, name in REGISTERED if namespace == "torch_patterns"}


def test_every_operator_and_pattern_has_a_spec():
    specs = testing.specs()
    assert set(specs) == OPERATORS
    assert {spec.pattern for spec in specs.values()} == set(registry.patterns())


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
    """Refused with the documented error, and the device is none the worse for it."""
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


def test_gradgradcheck(spec, device):
    differentiable(spec)
    for case in (*spec.samples, *spec.empty):
        f, inputs = spec.sample(case, torch.float64, device, kind="float").bind(spec.op)
        if float_outputs(f(*inputs)) and defined(f(*inputs)):
            assert torch.autograd.gradgradcheck(lambda *x: float_outputs(f(*x)), inputs), described(spec, case)  # noqa: B023


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


def test_forward_mode(spec, device):
    """Tangents are right, or refused aloud; never lost."""
    differentiable(spec)
    sample = spec.sample(spec.samples[0], torch.float64, device, kind="float")
    for function in filter(None, (spec.op, spec.wrapper)):
        f, inputs = sample.bind(function)
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x.detach(), torch.ones_like(x)) for x in inputs]
            try:
                outputs = float_outputs(f(*duals))
            except RuntimeError as refused:
                assert re.search("forward mode|forward AD|jvp", str(refused)), str(refused)
                continue
            tangents = [forward_ad.unpack_dual(y).tangent for y in outputs]
        assert None not in tangents, f"{spec.name} loses tangents"
        jacobians = torch.autograd.functional.jacobian(lambda *x: float_outputs(f(*x)), tuple(inputs))  # noqa: B023
        for tangent, rows in zip(tangents, jacobians, strict=True):
            want = sum(j.unsqueeze(-1).flatten(tangent.dim()).sum(-1) for j in rows)
            torch.testing.assert_close(tangent, want, rtol=1e-12, atol=1e-12)


def test_func(spec, device):
    """torch.func's grad, vjp, jacrev and vmap(grad) of the public function; the bare operator refuses, or is right."""
    differentiable(spec)
    if spec.wrapper is None:
        pytest.skip("no public function")
    for case in spec.samples:
        sample, where = spec.sample(case, spec.dtype, device, kind="float"), described(spec, case)
        f, inputs = sample.bind(spec.wrapper)
        inputs, every = [x.detach() for x in inputs], tuple(range(len(inputs)))
        scalar = lambda *x: loss(f(*x))  # noqa: B023, E731
        want = gradients(spec.op, sample)
        assert_nearly(torch.func.grad(scalar, every)(*inputs), want, where)
        value, pull = torch.func.vjp(scalar, *inputs)
        assert_nearly(pull(torch.ones_like(value)), want, where)
        batch = [torch.stack([x, x / 2]) for x in inputs]
        halves = gradients(spec.op, sample.map_floats(lambda x: x / 2))
        got = torch.vmap(torch.func.grad(scalar, every))(*batch)
        assert_nearly(got, [torch.stack(pair) for pair in zip(want, halves, strict=True)], where)
        bare, _ = sample.bind(spec.op)
        with contextlib.suppress(RuntimeError):
            assert_nearly(torch.func.grad(lambda *x: loss(bare(*x)), every)(*inputs), want, where)  # noqa: B023
    small = spec.sample(spec.samples[0], torch.float64, device, kind="float")
    f, inputs = small.bind(spec.wrapper)
    outputs = lambda *x: float_outputs(f(*x))  # noqa: E731
    got = torch.func.jacrev(outputs, tuple(range(len(inputs))))(*(x.detach() for x in inputs))
    want = torch.autograd.functional.jacobian(outputs, tuple(inputs))
    for rows, wanted in zip(got, want, strict=True):
        assert_nearly(rows, wanted, spec.name)


# ---- modes


@pytest.mark.parametrize("called", ["op", "wrapper"])
def test_vmap(spec, device, called):
    """vmap is a loop, whichever tensors are batched and along whichever dimension, and needs no fallback."""
    function = getattr(spec, called)
    if function is None:
        pytest.skip("no public function")
    for case in (*spec.samples, *spec.empty):
        samples = [spec.sample(case, spec.dtype, device, variant=v) for v in range(3)]
        for chosen in itertools.product((True, False), repeat=len(samples[0].tensors)):
            if not any(chosen):
                continue
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
