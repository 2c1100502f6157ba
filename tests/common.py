"""What several test files use."""

import importlib.util
from pathlib import Path

import pytest
import torch

from torch_patterns.testing import Case, Sample, Spec, tensors_of

NO_GPU = "needs a CUDA device"
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)
DEVICES = ("cpu", "cuda")
EACH_DEVICE = ["cpu", pytest.param("cuda", marks=needs_cuda)]


def example(name: str):
    """The program of that name in examples/, as a new module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(spec: Spec, *more) -> str:
    return " ".join(map(str, (spec.name, *more)))


def integers(*shape: int, limit: int = 4) -> torch.Tensor:
    return torch.randint(-limit, limit + 1, shape).float()


class FakeClock:
    """Instead of bench.Clock: makes every call once and says that it took a millisecond."""

    copy_rate = 1e12

    def __call__(self, *calls) -> list[float]:
        for call in calls:
            call()
        return [1e-3] * len(calls)


def float_outputs(out) -> tuple[torch.Tensor, ...]:
    return tuple(y for y in tensors_of(out) if y.is_floating_point())


def loss(out) -> torch.Tensor:
    """A scalar in which every element of every floating-point output has a weight of its own."""

    def weighed(y: torch.Tensor) -> torch.Tensor:
        return (y.double() * torch.arange(1, y.numel() + 1, device=y.device).view_as(y).cos()).sum()

    return sum(map(weighed, float_outputs(out)), torch.zeros((), dtype=torch.float64))


def grad(y: torch.Tensor, inputs, weights: torch.Tensor | None = None, **options) -> list[torch.Tensor]:
    """torch.autograd.grad; zeros by an input that plays no part."""
    if not y.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    options |= {"allow_unused": True, "materialize_grads": True}
    return list(torch.autograd.grad(y, inputs, weights, **options))


def grad_list(y: torch.Tensor, x: torch.Tensor, weights=None) -> list[float]:
    """The gradient of the sum of y, weighed if weights are given, by x."""
    weights = torch.ones_like(y) if weights is None else torch.as_tensor(weights).to(y)
    return torch.autograd.grad(y, x, weights)[0].tolist()


def defined(out) -> bool:
    """No NaN: unlike the mean of no elements, say."""
    return not any(y.isnan().any() for y in float_outputs(out))


def gradients(function, sample: Sample) -> list[torch.Tensor]:
    """Of the loss, by the sample's floating-point tensors."""
    leaves = sample.requires_grad()
    return grad(loss(leaves(function)), leaves.floats)


def results(spec: Spec, sample: Sample) -> list[torch.Tensor]:
    """Outputs and gradients."""
    return [*tensors_of(sample(spec.op)), *(gradients(spec.op, sample) if spec.differentiable else [])]


def problem(spec: Spec, n: int, dtype: torch.dtype, device: str, kind: str = "float") -> Sample:
    """About n elements, enough for several threads or blocks."""
    case = spec.sized(n) if spec.sized else max(spec.edges or spec.samples, key=lambda c: c.size * (c.size <= n))
    return spec.sample(case, dtype, device, kind=kind)


def assert_nearly(got, want, where: str) -> None:
    """The same formula compiled or written twice: the same but for a few roundings."""
    for g, w in zip(got, want, strict=True):
        limit = 16 * torch.finfo(w.dtype).eps * max(1.0, w.abs().max().item() if w.numel() else 1.0)
        torch.testing.assert_close(g, w, rtol=0, atol=limit, msg=lambda m: f"{where}: {m}")


class Call(torch.nn.Module):
    """The operator as a module over the tensors of a case."""

    def __init__(self, spec: Spec, case: Case):
        super().__init__()
        sample = spec.sample(case, spec.dtype)
        values = [*sample.args, *sample.kwargs.values()]
        self.op, self.positional, self.names = spec.op, len(sample.args), list(sample.kwargs)
        self.is_tensor = [isinstance(value, torch.Tensor) for value in values]
        # Of a list of tensors; no other holds any.
        self.lengths = [
            len(v) if isinstance(v, list) and v and isinstance(v[0], torch.Tensor) else None for v in values
        ]
        self.values = [None if t or n else v for t, n, v in zip(self.is_tensor, self.lengths, values, strict=True)]

    def forward(self, *tensors):
        rest, values = list(tensors), []
        for is_tensor, value, length in zip(self.is_tensor, self.values, self.lengths, strict=True):
            if length is not None:
                value = [rest.pop(0) for _ in range(length)]
            values.append(rest.pop(0) if is_tensor else value)
        return self.op(*values[: self.positional], **dict(zip(self.names, values[self.positional :], strict=True)))
