"""The figures of the library: its defaults beside torch and CUB, each problem checked and timed in one run.

    python benchmarks/figures.py --device cuda --csv benchmarks/results/h200_figures.csv
    python benchmarks/figures.py --device cpu --only "segment"

On CUDA the CUB rows need nvcc: peers.cu is compiled beside the first call. Data are integers so small that every order
of summation is exact, so results are compared bit for bit with int64 arithmetic; but for peers that promise less: sums
of half types that round on the way, and the place of a maximum that is there twice.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import torch_patterns as tp
from torch_patterns import testing
from torch_patterns.bench import Clock, environment, write
from torch_patterns.testing import assert_equal


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


# ---- data and exact results


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


def segment_sums(x: Tensor, offsets: Tensor) -> Tensor:
    totals = torch.cat([x.new_zeros(1, dtype=torch.int64), x.long().cumsum(0)])[offsets]
    return totals.diff()


def segment_scans(x: Tensor, offsets: Tensor) -> Tensor:
    sums = x.long().cumsum(0)
    before = torch.cat([sums.new_zeros(1), sums])[offsets[:-1]]
    return sums - before.repeat_interleave(offsets.diff())


def recurrences(a: Tensor, b: Tensor) -> Tensor:
    """Where a is 0 the past is forgotten, elsewhere it is 1: sums since the last 0."""
    heads = (a == 0).nonzero().flatten()
    heads = torch.cat([heads.new_zeros(1), heads[heads > 0], heads.new_tensor([len(a)])])
    return segment_scans(b, heads)


def gradient(f: Callable[..., Tensor]) -> Callable:
    """The gradients of f for its floating-point tensors, of which the last is the incoming gradient: the backward pass
    alone, over a graph that is built once."""

    @functools.lru_cache(maxsize=1)
    def graph(*tensors):
        leaves = [t.detach().requires_grad_() if t.is_floating_point() else t for t in tensors]
        return f(*leaves), [t for t in leaves if t.requires_grad]

    def backward(*tensors):
        *inputs, g = tensors
        y, leaves = graph(*inputs)
        found = torch.autograd.grad(y, leaves, g, retain_graph=True)
        return found if len(found) > 1 else found[0]

    return backward


# ---- CUB


@functools.cache
def cub_library() -> ctypes.CDLL:
    source, target = Path(__file__).with_name("peers.cu"), Path(__file__).parent.parent / "build/peers.so"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        target.parent.mkdir(exist_ok=True)
        flags = ["-std=c++17", "-O3", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
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


# ---- the problems


def scans(sizes: list[int], strided: list[tuple[int, int, int]], backward: int, halves: tuple = ()) -> list[Figure]:
    figures = [
        Figure(
            f"scan sum {n}",
            lambda n=n: (integers(n),),
            tp.scan,
            lambda x: x.long().cumsum(0),
            {"torch": lambda x: torch.cumsum(x, 0), "cub": cub("scan_sum_float32")},
        )
        for n in sizes
    ]
    figures += [
        Figure(
            f"scan sum {sizes[0]}",
            lambda dtype=dtype: (integers(sizes[0], low=-1, high=1, dtype=dtype),),
            tp.scan,
            lambda x: x.long().cumsum(0).to(x.dtype),
            {"torch": lambda x: torch.cumsum(x, 0)}
            | ({"cub": cub("scan_sum_bfloat16")} if dtype == torch.bfloat16 else {}),
            exact_peers=False,
        )
        for dtype in halves
    ]
    figures.append(
        Figure(
            f"scan max {sizes[0]}",
            lambda: (integers(sizes[0]) + torch.arange(sizes[0]) * 4096 // sizes[0],),
            lambda x: tp.scan(x, op="max"),
            lambda x: cub("scan_max_float32")(x) if x.is_cuda else x.cummax(0)[0],
            {"torch": lambda x: torch.cummax(x, 0)[0], "cub": cub("scan_max_float32")},
        )
    )
    figures += [
        Figure(
            f"scan sum {rows} x {columns} dim {dim}",
            lambda rows=rows, columns=columns: (integers(rows, columns),),
            lambda x, dim=dim: tp.scan(x, dim),
            lambda x, dim=dim: x.movedim(dim, -1).long().contiguous().cumsum(-1).movedim(-1, dim),
            {"torch": lambda x, dim=dim: torch.cumsum(x, dim)},
        )
        for rows, columns, dim in strided
    ]
    figures.append(
        Figure(
            f"scan sum backward {backward}",
            lambda: (integers(backward), integers(backward)),
            gradient(tp.scan),
            lambda x, g: g.flip(0).long().cumsum(0).flip(0),
            {"torch": gradient(lambda x: torch.cumsum(x, 0))},
            unread=1,
        )
    )
    return figures


def reductions(sizes: list[int], shapes: list[tuple[int, int, int]], ops: tuple[str, ...]) -> list[Figure]:
    figures = [
        Figure(
            f"reduce sum {n}",
            lambda n=n: (integers(n),),
            tp.reduce,
            lambda x: x.long().sum(),
            {"torch": torch.sum, "cub": cub("reduce_sum_float32", lambda x, _: x.new_empty(()))},
        )
        for n in sizes
    ]
    reducers = {"sum": torch.sum, "max": torch.amax, "argmax": torch.argmax, "logsumexp": torch.logsumexp}
    figures += [
        Figure(
            f"reduce {op} {rows} x {columns} dim {dim}",
            lambda rows=rows, columns=columns: (integers(rows, columns),),
            lambda x, op=op, dim=dim: tp.reduce(x, dim, op=op),
            lambda x, op=op, dim=dim: reducers[op](x.double(), dim),
            {"torch": lambda x, op=op, dim=dim: reducers[op](x, dim)},
            exact_peers=op != "argmax",  # of equal values, torch takes any
        )
        for op in ops
        for rows, columns, dim in shapes
    ]
    return figures


def segments(n: int, backward: int) -> list[Figure]:
    figures = []
    for kind in LENGTHS:
        data = lambda kind=kind: (integers(n), offsets(kind, n))  # noqa: E731
        figures.append(
            Figure(
                f"segment_reduce sum {n} {kind}",
                data,
                tp.segment_reduce,
                segment_sums,
                {
                    "torch": lambda x, o: torch.segment_reduce(x, "sum", offsets=o),
                    "cub": cub("segment_sum_float32", lambda x, o: x.new_empty(o.numel() - 1)),
                },
            )
        )
        figures.append(
            Figure(
                f"segment_scan sum {n} {kind}",
                data,
                tp.segment_scan,
                segment_scans,
                {"cub": lambda x, o: cub("segment_scan_sum_float32")(x, keys(o))},
            )
        )
    for kind in LENGTHS:
        figures.append(
            Figure(
                f"segment_reduce sum backward {backward} {kind}",
                lambda kind=kind: (integers(backward), o := offsets(kind, backward), integers(o.numel() - 1)),
                gradient(tp.segment_reduce),
                lambda x, o, g: g.repeat_interleave(o.diff()),
                {"torch": gradient(lambda x, o: torch.segment_reduce(x, "sum", offsets=o))},
                unread=1,
            )
        )
    return figures


@functools.lru_cache(maxsize=1)
def keys(offsets: Tensor) -> Tensor:
    """The segment of each element: what CUB asks for instead of offsets."""
    count = torch.arange(offsets.numel() - 1, device=offsets.device, dtype=torch.int32)
    return count.repeat_interleave(offsets.diff())


def linear_recurrences(n: int) -> list[Figure]:
    def data():
        return integers(n, low=0, high=1), integers(n)

    def gradients(a, b, g):
        adjoint = recurrences(torch.cat([a[1:], a.new_zeros(1)]).flip(0), g.flip(0)).flip(0)
        h = recurrences(a, b)
        return adjoint * torch.cat([h.new_zeros(1), h[:-1]]), adjoint

    return [
        Figure(
            f"linear_recurrence {n}",
            data,
            tp.linear_recurrence,
            recurrences,
            {"cub": cub("linear_recurrence_float32")},
        ),
        Figure(
            f"linear_recurrence backward {n}",
            lambda: (*data(), integers(n)),
            gradient(tp.linear_recurrence),
            gradients,
            {},
        ),
    ]


def figures(device: str) -> list[Figure]:
    if device == "cpu":
        return [
            *reductions([2**26], [(2**13, 2**13, 0), (2**13, 2**13, 1)], ("sum", "max")),
            *scans([2**26], [(4096, 16384, 1), (4096, 16384, 0), (2**20, 32, 0)], 2**26),
            *segments(2**24, 2**22),
            *linear_recurrences(2**24),
        ]
    strided = [(2**20, 32, 0), (2**16, 1024, 0), (4096, 16384, 1), (4096, 16384, 0), (2**20, 2, 0)]
    return [
        *scans([2**28, 2**24, 2**20], strided, 2**26, (torch.bfloat16, torch.float16)),
        *reductions([2**28, 2**20, 2**16], [(2**14, 2**14, 0), (2**14, 2**14, 1), (2**22, 16, 1)], ("sum", "max")),
        *segments(2**26, 2**24),
        *linear_recurrences(2**26),
    ]


# ---- the command


def measure(figure: Figure, device: str, clock: Clock) -> list[dict]:
    """A row a contestant, ours first; results are checked before they are timed."""
    tensors = figure.make()
    want = testing.tensors_of(figure.want(*tensors))
    out_bytes = sum(y.numel() * tensors[0].element_size() for y in want)
    bytes_ = sum(x.numel() * x.element_size() for x in tensors[figure.unread :]) + out_bytes
    operator, problem = figure.name.split(" ", 1)
    rows = []
    for name, call in {"torch_patterns": figure.ours, **figure.peers}.items():
        if name.startswith("cub") and device == "cpu":
            continue
        out = testing.tensors_of(call(*tensors))
        if figure.exact_peers or call is figure.ours:
            for got, exact in zip(out, want, strict=True):
                assert_equal(got, exact, f"{figure.name} {name}")
        del out
        seconds = clock(lambda call=call: call(*tensors))
        rows.append(
            {
                "operator": operator,
                "problem": problem,
                "elements": tensors[0].numel(),
                "dtype": str(tensors[0].dtype).removeprefix("torch."),
                "algorithm": name,
                "milliseconds": f"{seconds * 1e3:.4g}",
                "gigabytes_per_second": f"{bytes_ / seconds / 1e9:.4g}",
                "percent_of_copy": f"{100 * bytes_ / seconds / clock.copy_rate:.3g}",
                "gigaflops": "0",
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--csv", type=Path, help="append rows to this file")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_default_device(options.device)
    clock, fixed = Clock(options.device), environment(options.device)
    print(f"{fixed['device']}, torch {fixed['torch']}, {fixed['commit']}: copy {clock.copy_rate / 1e9:.4g} GB/s")
    for figure in figures(torch.device(options.device).type):
        if options.only not in figure.name:
            continue
        rows = measure(figure, options.device, clock)
        times = "  ".join(f"{row['algorithm']} {row['milliseconds']}" for row in rows)
        print(f"{figure.name:<44} {times}  ({rows[0]['percent_of_copy']} % of copy)", flush=True)
        if options.csv:
            write(options.csv, [fixed | row for row in rows])


if __name__ == "__main__":
    sys.exit(main())
