"""The cost of calls that compute almost nothing: microseconds of host time, compared with torch's nearest operator.

    python benchmarks/calls.py --device cpu --csv benchmarks/results/cpu_calls.csv

On CUDA it adds the time on an idle GPU: call, kernel and synchronization, and what each of these takes by itself. Our
call and torch's are timed alternately, and the fastest round counts.
"""

import argparse
import csv
import time
from pathlib import Path

import torch

import torch_patterns as tp
from torch_patterns.bench import environment

ROUNDS, CALLS, ELEMENTS = 15, 400, 8
FIELDS = ["device", "torch", "commit", "date", "call", "gradient", "ours_us", "torch_us"]


def small_calls(device: str, gradient: bool) -> dict:
    """Returns (our call, torch's nearest) for 8 elements, by name."""
    x = torch.randn(ELEMENTS, device=device, requires_grad=gradient)
    offsets = torch.tensor([0, 3, ELEMENTS], device=device)
    eye = torch.eye(ELEMENTS, device=device).to_sparse_csr()
    A = tp.csr(eye.crow_indices(), eye.col_indices(), eye.values(), (ELEMENTS, ELEMENTS))
    return {
        "scan": (lambda: tp.scan(x), lambda: torch.cumsum(x, -1)),
        "reduce": (lambda: tp.reduce(x), lambda: torch.sum(x)),
        "segment_reduce": (
            lambda: tp.segment_reduce(x, offsets),
            lambda: torch.segment_reduce(x, "sum", offsets=offsets),
        ),
        "relu": (lambda: tp.relu(x), lambda: torch.relu(x)),
        "sort_keys": (lambda: tp.sort_keys(x), lambda: torch.sort(x)),
        "spmv csr": (lambda: tp.spmv(A, x), lambda: eye @ x),
    }


def calls_of_one_kernel() -> dict:
    """Returns (our call, torch's nearest), by name: calls so short that launching them matters."""
    x, y = (torch.randn(n, device="cuda") for n in (2**16, 2**20))
    a, b = (torch.randint(0, 2**30, (2**19,), device="cuda").sort().values for _ in range(2))
    return {
        "sum 2^16": (lambda: tp.reduce(x), lambda: torch.sum(x)),
        "sum 2^20": (lambda: tp.reduce(y), lambda: torch.sum(y)),
        "scan 2^20": (lambda: tp.scan(y), lambda: torch.cumsum(y, 0)),
        "merge 2^20": (lambda: tp.merge(a, b), lambda: torch.cat([a, b]).sort().values),
    }


def on_the_gpu(call, calls: int) -> float:
    """Microseconds of a call in a CUDA graph of many, without the host."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()

    def one() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls * 1e3

    return min(one() for _ in range(ROUNDS))


def parts() -> list[tuple]:
    """Rows of what a call from an idle GPU consists of."""
    wait = torch.cuda.synchronize
    launch = lambda: (torch.cuda._sleep(0), wait())  # noqa: E731
    rows = [("wait for an idle GPU", False, *in_turns(wait, wait, CALLS, wait))]
    rows.append(("launch of an empty kernel, and wait", False, *in_turns(launch, launch, CALLS // 10, wait)))
    for name, pair in calls_of_one_kernel().items():
        waited = [lambda call=call: (call(), wait()) for call in pair]
        rows.append((f"{name}, from an idle GPU", False, *in_turns(*waited, CALLS // 10, wait)))
        rows.append((f"{name}, on the host", False, *in_turns(*pair, CALLS // 10, wait)))
        rows.append((f"{name}, on the GPU", False, *(on_the_gpu(call, CALLS // 10) for call in pair)))
    return rows


def microseconds(call, calls: int, wait) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    end = time.perf_counter()
    wait()
    return (end - start) / calls * 1e6


def in_turns(ours, theirs, calls: int, wait) -> tuple[float, float]:
    rounds = [(microseconds(ours, calls, wait), microseconds(theirs, calls, wait)) for _ in range(ROUNDS)]
    return min(r[0] for r in rounds), min(r[1] for r in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    fixed = {name: value for name, value in environment(options.device).items() if name in FIELDS}
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    rows = []
    for gradient in (False, True):
        for name, (ours, theirs) in small_calls(options.device, gradient).items():
            rows.append((name, gradient, *in_turns(ours, theirs, CALLS, wait)))
    rows += parts() if options.device == "cuda" else []
    rows = [fixed | dict(zip(FIELDS[4:], (*row[:2], *(f"{us:.2f}" for us in row[2:])), strict=True)) for row in rows]
    for row in rows:
        print(*(row[name] for name in FIELDS[4:]))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
