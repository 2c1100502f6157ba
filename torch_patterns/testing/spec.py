"""Spec, Case, Sample and Maker: an operator, its problems, their arguments, and the maker of their tensors."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import torch_patterns

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
BITS = (torch.bool, *INTEGERS)
ALL = (*BITS, *FLOATS)


@dataclass(frozen=True)
class Case:
    """One problem: the shapes of its tensors and its other arguments; only for `dtypes`, if given."""

    shapes: tuple
    kwargs: dict[str, Any]
    dtypes: tuple[torch.dtype, ...] | None = None

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, s)) or "scalar" if isinstance(s, tuple) else str(s) for s in self.shapes)
        return ", ".join((shapes, *(f"{key}={value!r}" for key, value in self.kwargs.items())))

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def size(self) -> int:
        """Returns the number of elements of the largest tensor."""
        return max((torch.Size(s).numel() for s in self.shapes if isinstance(s, tuple)), default=0)


def case(*shapes, dtypes: tuple[torch.dtype, ...] | None = None, **kwargs) -> Case:
    return Case(shapes, kwargs, dtypes)


def around(*edges: int) -> tuple[int, ...]:
    """Returns each edge and its neighbours."""
    return tuple(sorted({n for edge in edges for n in (edge - 1, edge, edge + 1)}))


class Maker:
    """Makes a sample's tensors: the same values for the same case, dtype and kind, on every device.

    kind "exact": small integers; "float": normally distributed, or near 1 for factors.
    """

    def __init__(self, dtype: torch.dtype, device: str | torch.device, kind: str, seed: int):
        if kind not in ("exact", "float"):
            raise ValueError(f"kind must be exact or float, got {kind!r}")
        self.dtype, self.device, self.kind = dtype, device, kind
        self.random = torch.Generator().manual_seed(seed)

    def __call__(self, shape, low: int = -8, high: int = 8) -> torch.Tensor:
        """Makes integers in [low, high] (integer dtypes: a wider range if possible), or normally distributed
        numbers."""
        if self.kind == "float" and self.dtype.is_floating_point:
            return self._give(torch.randn(shape, generator=self.random, dtype=torch.float64))
        if self.dtype == torch.bool:
            return self._give(torch.randint(0, 2, shape, generator=self.random))
        if not self.dtype.is_floating_point:
            info = torch.iinfo(self.dtype)
            low, high = max(info.min, low * 1000), min(info.max, high * 1000)
        return self._give(torch.randint(low, high + 1, shape, generator=self.random))

    def factors(self, shape, zeros: float = 0.0) -> torch.Tensor:
        """Makes factors whose products are exact even for thousands: 1 and -1, a few twos, and zeros at the given
        rate."""
        count = torch.Size(shape).numel()
        if self.kind == "float" and self.dtype.is_floating_point:
            exponent = torch.randn(count, generator=self.random, dtype=torch.float64) / 8
            values = torch.exp2(exponent) * self._signs(count)
        else:
            values = self._signs(count)
            twos = torch.randint(0, max(count, 1), (min(count, 8),), generator=self.random)
            values[twos] *= 2
        values[torch.rand(count, generator=self.random) < zeros] = 0
        if self.dtype in (torch.bool, torch.uint8):
            values = values.abs()
        return self._give(values.reshape(shape))

    def indices(self, shape, high: int) -> torch.Tensor:
        """Makes int64 indices in [0, high), whatever the dtype of the sample."""
        return torch.randint(0, max(high, 1), shape, generator=self.random).to(self.device)

    def _signs(self, count: int) -> torch.Tensor:
        return torch.randint(0, 2, (count,), generator=self.random).double() * 2 - 1

    def _give(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.dtype).to(self.device)


@dataclass(frozen=True)
class Sample:
    """The arguments of one call without `algorithm`; they are the same for the operator and for its wrapper.

    An argument is a tensor, a list of tensors, or something else.
    """

    args: tuple
    kwargs: dict[str, Any]

    def __call__(self, function: Callable, **more):
        return function(*self.args, **self.kwargs, **more)

    @property
    def tensors(self) -> list[torch.Tensor]:
        values = (*self.args, *self.kwargs.values())
        return [x for v in values for x in (v if isinstance(v, list) else [v]) if isinstance(x, torch.Tensor)]

    @property
    def floats(self) -> list[torch.Tensor]:
        """Returns the tensors that can have a gradient."""
        return [x for x in self.tensors if x.is_floating_point()]

    def map(self, f: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        """Returns the sample with f applied to each of its tensors."""

        def apply(value):
            if isinstance(value, list):
                return list(map(apply, value))
            return f(value) if isinstance(value, torch.Tensor) else value

        return Sample(tuple(map(apply, self.args)), {key: apply(value) for key, value in self.kwargs.items()})

    def map_floats(self, f: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        return self.map(lambda x: f(x) if x.is_floating_point() else x)

    def replace(self, tensors) -> Sample:
        """Returns the sample with its tensors replaced, in order."""
        rest = iter(tensors)
        return self.map(lambda _: next(rest))

    def replace_floats(self, tensors) -> Sample:
        rest = iter(tensors)
        return self.map_floats(lambda _: next(rest))

    def bind(self, function: Callable, **more) -> tuple[Callable, list[torch.Tensor]]:
        """Returns `function` as a function of the sample's floating-point tensors only, and these, requiring
        gradients."""
        return (lambda *floats: self.replace_floats(floats)(function, **more)), self.requires_grad().floats

    def to(self, device) -> Sample:
        return self.map(lambda x: x.to(device))

    def requires_grad(self) -> Sample:
        """Returns a copy whose floating-point tensors are leaves that require gradients."""
        return self.map(lambda x: x.detach().clone().requires_grad_(x.is_floating_point()))


@dataclass(frozen=True)
class Bad:
    """A call that must raise before it accesses memory; the error must say which argument is wrong, and why."""

    name: str
    make: Callable[[str], Sample]  # device -> the sample; it may set `algorithm`
    error: type[Exception]
    message: str  # regular expression


def bad(name: str, make: Callable[[str], tuple], error: type[Exception], message: str, **kwargs) -> Bad:
    return Bad(name, lambda device: Sample(make(device), kwargs), error, message)


@dataclass(frozen=True)
class Large:
    """A problem of more than 2^31 elements or 4 GiB, made and checked on CUDA within `gigabytes` of memory."""

    name: str
    gigabytes: float
    make: Callable[[], Sample]
    check: Callable[[Sample, Any], None]


def plain_inputs(case: Case, make: Maker) -> Sample:
    return Sample(tuple(make(shape) for shape in case.shapes), dict(case.kwargs))


def moved_bytes(sample: Sample, out) -> int:
    """Returns the bytes for reading every input once and writing every output once."""
    outputs = out if isinstance(out, tuple) else (out,)
    return sum(x.numel() * x.element_size() for x in (*sample.tensors, *outputs))


@dataclass(frozen=True)
class Spec:
    """One operator. All callables take a sample's arguments as the operator does, without `algorithm`."""

    name: str  # of the operator: torch.ops.torch_patterns.<name>
    reference: Callable  # CPU tensors -> the exact result, in float64 or integers, not rounded to the dtype
    samples: tuple[Case, ...]  # small ones of about ten elements, with different arguments
    grown: tuple[Case, Case]  # one problem at two sizes: dimensions that differ become dynamic; all sizes must differ
    dtypes: tuple[torch.dtype, ...]
    pattern: str = ""  # the pattern whose ladder it has; by default its own name
    edges: tuple[Case, ...] = ()  # only for tests of the ladder: sizes around sections, tiles and levels
    empty: tuple[Case, ...] = ()  # without elements in some tensor
    inputs: Callable[[Case, Maker], Sample] = plain_inputs
    wrapper: Callable | bool | None = (
        None  # the public function with the same arguments, or False; None means torch_patterns.<name>
    )
    # (unit roundoff of the arithmetic, *sample) -> the greatest error of any order of the operations, before the
    # rounding to the dtype. Without it, floats must be exact as well.
    bound: Callable | None = None
    # The bound for rungs that compute with sums of neighbouring elements: those with the trait mixes_neighbours need it
    # for floats, and those with the trait norm_wise for integers as well.
    norm_bound: Callable | None = None
    checked: tuple[torch.dtype, ...] = (torch.float32, torch.int32)  # dtypes that are tested in the host's checked mode
    exact: bool = True  # samples of kind "exact" have exact results; otherwise (exp, tanh) results within the bound
    # Special floats whose result is the same in every order of the operations.
    special: tuple[float, ...] = (float("-inf"), float("inf"), float("nan"))
    differentiable: bool = True
    # The result dtype under autocast: "float32", "lower" (the autocast dtype), or None (as without); or case -> one of
    # these.
    autocast: str | None | Callable[[Case], str | None] = None
    dynamic: bool = False  # the shape of the result depends on the values
    bad: tuple[Bad, ...] = ()
    large: tuple[Large, ...] = ()
    sized: Callable[[int], Case] | None = None  # benchmark: a problem of about this many elements
    named: dict[str, Case] = field(default_factory=dict)  # benchmark: problems of note
    peers: dict[str, Callable] = field(default_factory=dict)  # what users have today, or NotImplemented
    bytes: Callable[[Sample, Any], int] = moved_bytes
    flops: Callable[[Sample, Any], int] = lambda sample, out: 0

    def __post_init__(self):
        object.__setattr__(self, "pattern", self.pattern or self.name)
        public = getattr(torch_patterns, self.name, None) if self.wrapper is None else self.wrapper
        object.__setattr__(self, "wrapper", public or None)

    @property
    def op(self) -> torch._ops.OpOverload:
        return getattr(torch.ops.torch_patterns, self.name).default

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype for tests that need only one."""
        return torch.float32 if torch.float32 in self.dtypes else self.dtypes[0]

    def sample(self, case: Case, dtype: torch.dtype, device="cpu", kind: str = "exact", variant: int = 0) -> Sample:
        """Makes the tensors of a case on the CPU: the same for every device, different ones for each variant."""
        seed = zlib.crc32(f"{self.name} {case}".encode()) + variant
        return self.inputs(case, Maker(dtype, "cpu", kind, seed)).to(device)

    def autocast_of(self, case: Case) -> str | None:
        return self.autocast(case) if callable(self.autocast) else self.autocast

    def cases(self, dtype: torch.dtype, most: int | None = None, edges: bool = True) -> list[Case]:
        """Returns the samples, edges and empty cases for this dtype, none with more elements than `most`."""
        all_cases = (*self.samples, *(self.edges if edges else ()), *self.empty)
        return [c for c in all_cases if (not c.dtypes or dtype in c.dtypes) and (most is None or c.size <= most)]

    def rungs(self, device: str) -> list[torch_patterns.registry.Rung]:
        return [rung for rung in torch_patterns.registry.ladder(self.pattern) if device in rung.devices]
