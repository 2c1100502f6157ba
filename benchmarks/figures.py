"""The figures of the library: its defaults compared with their peers; each problem is checked and timed in one run.

    python benchmarks/figures.py --device cuda --csv benchmarks/results/h200_figures.csv
    python benchmarks/figures.py --device cpu --only "segment"

On CUDA the CUB rows need nvcc, which compiles peers.cu at the first call. Data are integers so small that every order
of summation is exact, so results are compared bit for bit with int64 arithmetic. Excepted are peers that promise less:
sums of half types with intermediate rounding, and the index of a maximum that occurs twice.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from problems import (
    Figure,
    compact,
    graph,
    groups,
    histogram,
    layers,
    lenet,
    network,
    ragged,
    reduction,
    scan,
    segmented,
    sort,
    sparse,
)

from torch_patterns import testing
from torch_patterns.bench import Clock, environment, write
from torch_patterns.testing import assert_equal, assert_within

PROBLEMS = (
    scan,
    reduction,
    segmented,
    groups,
    ragged,
    histogram,
    compact,
    sort,
    sparse,
    graph,
    network,
    layers,
    lenet,
)


def measure(figure: Figure, device: str, clock: Clock) -> list[dict]:
    """Returns one row per contestant, ours first; all results are checked before any call is timed."""
    torch.manual_seed(0)  # a problem has the same data in every run, whichever others are chosen
    tensors = figure.make()
    want = testing.tensors_of(figure.want(*tensors))
    out_bytes = sum(y.numel() * tensors[0].element_size() for y in want)
    bytes_ = sum(x.numel() * x.element_size() for x in tensors[figure.unread :]) + out_bytes
    operator, problem = figure.name.split(" ", 1)
    contestants = {"torch_patterns": figure.ours, **figure.peers}
    if device == "cpu":
        contestants = {name: call for name, call in contestants.items() if not name.startswith("cub")}
    for name, call in contestants.items():
        out = testing.tensors_of(call(*tensors))
        if figure.exact_peers or call is figure.ours:
            for got, exact in zip(out, want, strict=True):
                if figure.bound:
                    bound = torch.tensor(figure.bound, device="cpu")
                    assert_within(got, exact.cpu(), bound, f"{figure.name} {name}")
                else:
                    assert_equal(got, exact, f"{figure.name} {name}")
        del out
    times = clock(*(lambda call=call: call(*tensors) for call in contestants.values()))
    return [
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
        for name, seconds in zip(contestants, times, strict=True)
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="+", default=[""], help="problems whose name contains one of these")
    parser.add_argument("--csv", type=Path, help="append rows to this file")
    options = parser.parse_args(arguments)
    device = torch.device(options.device).type
    if device != "cpu":
        # The problems make their tensors on the default device. It is a mode, which costs time in every call of a torch
        # function from Python, so on the CPU, whose small calls would notice, the default is left alone.
        torch.set_default_device(options.device)
    clock, fixed = Clock(options.device), environment(options.device)
    print(f"{fixed['device']}, torch {fixed['torch']}, {fixed['commit']}: copy {clock.copy_rate / 1e9:.4g} GB/s")
    chosen = [f for problems in PROBLEMS for f in problems.figures(device) if any(x in f.name for x in options.only)]
    for figure in chosen:
        rows = measure(figure, options.device, clock)
        times = "  ".join(f"{row['algorithm']} {row['milliseconds']}" for row in rows)
        print(f"{figure.name:<44} {times}  ({rows[0]['percent_of_copy']} % of copy)", flush=True)
        if options.csv:
            write(options.csv, [fixed | row for row in rows])


if __name__ == "__main__":
    sys.exit(main())
