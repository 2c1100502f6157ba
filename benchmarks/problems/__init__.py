"""The problems of figures.py, one module per pattern: `figures(device)` returns its list. Shared parts are here."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

BENCHMARKS = Path(__file__).parent.parent


@dataclass(frozen=True)
class Figure:
    """`make` gives the tensors; everything else takes them."""

    name: str  # the operator's, then the problem's
    make: Callable[[], tuple[Tensor, ...]]
    ours: Callable[..., Tensor | tuple[Tensor, ...]]
    want: Callable[..., Tensor | tuple[Tensor, ...]]  # exact
    peers: dict[str, Callable]
    unread: int = 0  # how many tensors, the first ones, the work does not need
    exact_peers: bool = True  # else they are timed unchecked
    bound: float = 0.0  # how far results may be from exact ones


# ---- data


def integers(*shape: int, low: int = -8, high: int = 8, dtype=torch.float32) -> Tensor:
    return torch.randint(low, high + 1, shape, dtype=torch.int8).to(dtype)


LENGTHS = {
    "of 16": lambda n: torch.full((n // 16,), 16),
    "of 256": lambda n: torch.full((n // 256,), 256),
    "power law": lambda n: (1 - torch.rand(n // 4, dtype=torch.float64)).pow(-0.875).long(),  # 7.5 on average
    "one half, rest of 8": lambda n: torch.cat([torch.tensor([n // 2]), torch.full((n // 16,), 8)]),
}


def offsets(kind: str, n: int) -> Tensor:
    ends = LENGTHS[kind](n).cumsum(0)
    ends = ends[: int((ends < n).sum())]
    return torch.cat([torch.tensor([0]), ends, torch.tensor([n])])


@functools.lru_cache(maxsize=1)
def segment_of(offsets: Tensor) -> Tensor:
    """The segment of each row; it is made once, as a peer that needs it instead of offsets may have it at hand."""
    return torch.arange(offsets.numel() - 1, device=offsets.device).repeat_interleave(offsets.diff())


def graph_of(f: Callable[..., Tensor], tensors: tuple[Tensor, ...], constants: int) -> tuple[Tensor, list[Tensor]]:
    """The result of f, and its floating-point tensors that are differentiated: all but the last `constants`."""
    inputs = [
        t.detach().requires_grad_(t.is_floating_point() and i < len(tensors) - constants) for i, t in enumerate(tensors)
    ]
    return f(*inputs), [t for t in inputs if t.requires_grad]


def gradient(f: Callable[..., Tensor], constants: int = 0) -> Callable:
    """The gradients of f; the last tensor is the incoming gradient. This is the backward pass alone, over a graph that
    is built once."""
    graph = functools.lru_cache(maxsize=1)(lambda *tensors: graph_of(f, tensors, constants))

    def backward(*tensors):
        *inputs, g = tensors
        y, leaves = graph(*inputs)
        found = torch.autograd.grad(y, leaves, g, retain_graph=True)
        return found if len(found) > 1 else found[0]

    return backward


def value_and_gradient(f: Callable[..., Tensor], constants: int = 0) -> Callable:
    """Both passes: what the forward pass keeps for the other one is part of the work."""

    def both(*tensors):
        *inputs, g = tensors
        y, leaves = graph_of(f, tuple(inputs), constants)
        return y.detach(), *torch.autograd.grad(y, leaves, g)

    return both


def compiled(f: Callable) -> Callable:
    """f by torch.compile, for the shapes of one figure."""

    @functools.cache
    def compile_once() -> Callable:
        torch._dynamo.reset()  # lambdas of one line of code share a limit on how often it is compiled
        return torch.compile(f, dynamic=False)

    return lambda *tensors: compile_once()(*tensors)


def one_thread(f: Callable) -> dict[str, Callable]:
    """A function of numpy's of tensors of the CPU as a peer."""
    return {"numpy, 1 thread": lambda *tensors: torch.from_numpy(f(*(x.numpy() for x in tensors)))}


# ---- CUB


@functools.cache
def cub_library() -> ctypes.CDLL:
    source, target = BENCHMARKS / "peers.cu", BENCHMARKS.parent / "build/peers.so"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        target.parent.mkdir(exist_ok=True)
        flags = ["-std=c++17", "-O3", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
        if "CCCL" in os.environ:  # a checkout of github.com/NVIDIA/cccl, otherwise the one of the CUDA Toolkit
            flags += [f"-I{os.environ['CCCL']}/{part}" for part in ("cub", "thrust", "libcudacxx/include")]
        subprocess.run(["nvcc", *flags, "-o", str(target), str(source)], check=True)
    return ctypes.CDLL(str(target))


def cub(name: str, out: Callable[..., Tensor] = lambda *tensors: torch.empty_like(tensors[0])) -> Callable:
    """A function of peers.cu as one of the tensors a and b; its temporary memory is allocated once."""
    workspaces: dict[int, Tensor] = {}

    def call(a, b=None):
        y = out(a, b)
        size, stream = ctypes.c_size_t(0), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        pointers = [ctypes.c_void_p(t.data_ptr() if t is not None else None) for t in (a, b, y)]
        counts = [ctypes.c_int64(a.numel()), ctypes.c_int64(y.numel())]
        function = getattr(cub_library(), name)
        if a.numel() not in workspaces:
            function(None, ctypes.byref(size), *pointers, *counts, stream)
            workspaces[a.numel()] = torch.empty(max(size.value, 1), dtype=torch.uint8, device=a.device)
        temp = workspaces[a.numel()]
        size.value = temp.numel()
        status = function(ctypes.c_void_p(temp.data_ptr()), ctypes.byref(size), *pointers, *counts, stream)
        if status:
            raise RuntimeError(f"{name}: CUDA error {status}")
        return y

    return call


def of_bytes(y: Tensor, *parts: tuple[int, torch.dtype]) -> list[Tensor]:
    """Bytes that lie side by side, as tensors of so many elements."""
    sizes = [n * dtype.itemsize for n, dtype in parts]
    return [part.view(dtype) for part, (_, dtype) in zip(y.split(sizes), parts, strict=True)]


# ---- packages


def installed(module: str, name: str) -> Callable | None:
    """A function of a package that is not required, or None. What it is a peer of is timed without it."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return None
