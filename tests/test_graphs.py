"""Every operator in a graph: compiled, exported, scripted."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from common import EACH_DEVICE, Call, assert_nearly, described, float_outputs, grad, loss

import torch_patterns
from torch_patterns import testing
from torch_patterns.testing import assert_same_bits, tensors_of


def leaves_of(spec, case, device) -> list[torch.Tensor]:
    sample = spec.sample(case, spec.dtype, device, kind="float")
    return sample.requires_grad().tensors if spec.differentiable else sample.tensors


def same_results(got, want, tensors, where: str, same_gradients=assert_same_bits) -> None:
    """The same bits, and the same gradients of the tensors."""
    assert_same_bits(got, want, where)
    leaves = [x for x in tensors if x.requires_grad]
    if leaves:
        got, want = (grad(loss(out), leaves) for out in (got, want))
        same_gradients(got, want, f"{where}: gradient")


def test_compile(spec, device):
    """One graph without a break, forward and backward; the bits of eager mode; other sizes are not compiled again."""
    torch._dynamo.reset()
    compiled = torch.compile(Call(spec, spec.grown[0]), backend="aot_eager", fullgraph=True, dynamic=True)
    for case, first in zip(spec.grown, (True, False), strict=True):
        tensors = leaves_of(spec, case, device)
        with torch._dynamo.config.patch(error_on_recompile=not first):
            out = compiled(*tensors)
        same_results(out, Call(spec, case)(*tensors), tensors, described(spec, case))


class Every(torch.nn.Module):
    """All operators in one graph, for compilers that take their time with each."""

    def __init__(self):
        super().__init__()
        self.specs = list(testing.specs().values())
        self.calls = [Call(spec, spec.grown[0]) for spec in self.specs]

    def inputs(self, device) -> list[list[torch.Tensor]]:
        return [leaves_of(spec, spec.grown[0], device) for spec in self.specs]

    def forward(self, inputs):
        return tuple(y for call, x in zip(self.calls, inputs, strict=True) for y in tensors_of(call(*x)))


@pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor")  # advice on speed
@pytest.mark.filterwarnings("ignore:\\nOnline softmax:UserWarning")
@pytest.mark.parametrize("device", EACH_DEVICE)
def test_inductor(device):
    torch._dynamo.reset()
    every = Every()
    inputs = every.inputs(device)
    got, want = torch.compile(every, fullgraph=True, dynamic=True)(inputs), every(inputs)
    # Around the backward operators the compiler fuses arithmetic of its own.
    same_results(got, want, [x for tensors in inputs for x in tensors], "inductor", assert_nearly)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.skipif(torch.__version__ < "2.12", reason="AOTInductor packages of torch 2.11 crash, with any model")
def test_aot_inductor(tmp_path):
    """A package that holds all operators, loaded again."""
    every = Every()
    inputs = [[x.detach() for x in tensors] for tensors in every.inputs("cpu")]
    program = torch.export.export(every, (inputs,))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "every.pt2"))
    assert_same_bits(torch._inductor.aoti_load_package(package)(inputs), every(inputs), "AOTInductor")


def dynamic_dimensions(small, big) -> tuple[dict[int, object], ...]:
    return tuple(
        {i: torch.export.Dim.DYNAMIC for i, (n, m) in enumerate(zip(x.shape, y.shape, strict=True)) if n != m}
        for x, y in zip(small.tensors, big.tensors, strict=True)
    )


def test_export(spec, device):
    """The operator stays one node of the exported program, which takes any size of its dynamic dimensions."""
    small, big = (spec.sample(case, spec.dtype, device, kind="float") for case in spec.grown)
    dimensions = (dynamic_dimensions(small, big),)
    program = torch.export.export(Call(spec, spec.grown[0]), tuple(small.tensors), dynamic_shapes=dimensions)
    assert spec.op in [node.target for node in program.graph.nodes]
    module = program.module()
    for sample in (small, big):
        assert_same_bits(module(*sample.tensors), sample(spec.op), spec.name)


def script_of(name: str, spec, sample) -> str:
    """The source of a method that calls the operator with the sample's tensors as parameters."""
    names = (f"x{i}" for i in range(len(sample.tensors)))

    def literal(value) -> str:
        if isinstance(value, torch.Tensor):
            return next(names)
        if isinstance(value, list):
            return f"[{', '.join(map(literal, value))}]"
        return repr(list(value) if isinstance(value, tuple) else value)

    args = [literal(v) for v in sample.args] + [f"{key}={literal(v)}" for key, v in sample.kwargs.items()]
    parameters = ", ".join(f"x{i}: Tensor" for i in range(len(sample.tensors)))
    return f"def {name}(self, {parameters}):\n    return torch.ops.torch_patterns.{spec.name}({', '.join(args)})\n"


CHILD = """
import sys, torch
library, folder = sys.argv[1:]
torch.ops.load_library(library)
module = torch.jit.load(folder + "/module.pt")
for name, (inputs, outputs, grads) in torch.load(folder + "/data.pt").items():
    inputs = [x.requires_grad_(x.is_floating_point() and bool(grads)) for x in inputs]
    got = getattr(module, name)(*inputs)
    got = got if isinstance(got, tuple) else (got,)
    assert all(map(torch.equal, got, outputs)), name
    if grads:
        total = sum(y.sum() for y in got if y.is_floating_point())
        leaves = [x for x in inputs if x.requires_grad]
        got = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        assert all(map(torch.equal, got, grads)), name
assert "torch_patterns" not in sys.modules
"""


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_script_in_a_new_process(device, tmp_path):
    """Scripted, saved, and loaded by a process that knows the shared library alone: values and gradients."""
    module, data = torch.jit.ScriptModule(), {}
    for spec in testing.specs().values():
        for i, case in enumerate(spec.samples):
            name, sample = f"{spec.name}_{i}", spec.sample(case, spec.dtype, device)
            module.define(script_of(name, spec, sample))
            leaves = sample.requires_grad()
            outputs, grads = leaves(spec.op), ()
            if spec.differentiable and leaves.floats and float_outputs(outputs):
                grads = grad(sum(y.sum() for y in float_outputs(outputs)), leaves.floats)
            data[name] = (sample.tensors, [y.detach() for y in tensors_of(outputs)], grads)
    module.save(str(tmp_path / "module.pt"))
    torch.save(data, tmp_path / "data.pt")
    library = Path(torch_patterns.__file__).with_name("libtorch_patterns.so")
    command = [sys.executable, "-c", CHILD, library, tmp_path]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
