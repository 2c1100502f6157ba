"""Checks the rungs of an operator, then times them together with its peers. Rows are appended to a CSV file.

    python -m torch_patterns.bench scan --device cuda --dtype float32 --sizes 2^10:2^28 --op sum --csv FILE
    python -m torch_patterns.bench scan --sizes 2^16:2^24:16 --algorithms auto,kogge_stone --op max --reverse True
    python -m torch_patterns.bench scan --named

Options that are not the command's are arguments of the operator. On CUDA, the time is device time, measured by events
before and after the call. First a buffer larger than the L2 cache is read, which empties the cache, and takes long
enough for the host to launch the call meanwhile. On the CPU, the time is that of the wall clock. Every time is a median
after a warm-up. GB/s counts the bytes that every algorithm must move; the share is that of the bandwidth of a copy
which is measured in the same run.
"""

from __future__ import annotations

import argparse
import ast
import csv
import datetime
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from torch_patterns import registry, testing

QUADRATIC_LIMIT = {"cpu": 2**12, "cuda": 2**16}  # elements
# Elements. Larger results are compared with the first rung of the ladder, which the tests compare with the reference.
REFERENCE_LIMIT = 2**20
FIELDS = (
    "device torch cuda commit date operator problem elements dtype algorithm milliseconds gigabytes_per_second "
    "percent_of_copy gigaflops"
).split()


# ---- time


class Clock:
    """Measures calls on a device in seconds: the median of as many runs as fit in `budget` seconds, at least 5.

    On the CPU the calls take turns, so that other work of the machine affects all of them equally. On CUDA nothing else
    runs, so each call is measured by itself: blocks of memory that other calls have freed could make it slower.
    """

    def __init__(self, device: str, budget: float = 0.3):
        self.cuda, self.budget = torch.device(device).type == "cuda", budget
        if self.cuda:
            self.flush = torch.zeros(2**28, device=device)
            self.read_seconds = min(self._events(lambda: None)[1] for _ in range(3))
        self.copy_rate = self._copy_rate(device)

    def __call__(self, *calls: Callable[[], object]) -> list[float]:
        if self.cuda:
            return [self._device_seconds(call) for call in calls]
        counts = [self._count(call) for call in calls]
        samples: list[list[float]] = [[] for _ in calls]
        for turn in range(max(counts)):
            for i, call in enumerate(calls):
                if turn < counts[i]:
                    samples[i].append(self._wall(call))
        return [statistics.median(seconds) for seconds in samples]

    def _device_seconds(self, call) -> float:
        count = self._count(call)
        reads = 1 + math.ceil(self._launch_seconds(call) / self.read_seconds)
        return statistics.median(self._events(call, reads)[0] for _ in range(count))

    def _count(self, call) -> int:
        """Returns how often to run a call so that it fits in the budget, from two runs, which also warm it up."""
        begin = time.perf_counter()
        for _ in range(2):
            call()
            self._wait()
        return min(max(int(self.budget / (time.perf_counter() - begin)), 5), 100)

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def _wall(self, call) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def _launch_seconds(self, call) -> float:
        """Returns how long the host takes to launch a call."""
        seconds = self._wall(call)
        self._wait()
        return seconds

    def _events(self, call, reads: int = 1) -> tuple[float, float]:
        """Returns the seconds of a call, and those of the reads before it, each of which empties the L2 cache."""
        before, begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        before.record()
        for _ in range(reads):
            torch.sum(self.flush)
        begin.record()
        call()
        end.record()
        self._wait()
        return begin.elapsed_time(end) / 1e3, before.elapsed_time(begin) / 1e3

    def _copy_rate(self, device: str) -> float:
        """Returns the bandwidth of a large copy in bytes per second, read and written bytes together."""
        x = torch.zeros(2**28 if self.cuda else 2**25, device=device)
        y = torch.empty_like(x)
        return 2 * x.numel() * x.element_size() / self(lambda: y.copy_(x))[0]


def environment(device: str) -> dict[str, str]:
    """Returns the columns that tell on which device, and of which versions, a row was measured."""
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{cpu_name()}, {torch.get_num_threads()} threads"
    command = ["git", "describe", "--always", "--dirty"]
    git = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return {
        "device": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "commit": git.stdout.strip() or os.environ.get("COMMIT", "unknown"),
        "date": datetime.date.today().isoformat(),
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


# ---- what is measured


def contestants(spec: testing.Spec, sample: testing.Sample, names: list[str] | None) -> Iterator[tuple[str, Callable]]:
    """Yields (name, call) of "auto", the rungs and the peers that take the sample, or of those in `names` only."""
    device = sample.tensors[0].device.type
    large = max(x.numel() for x in sample.tensors) > QUADRATIC_LIMIT[device]
    rungs = [r.name for r in spec.rungs(device) if not (large and "quadratic" in r.traits)]
    for name in ("auto", *rungs):
        if names is None or name in names:
            yield name, lambda name=name: sample(spec.op, algorithm=name)
    for name, peer in spec.peers.items():
        if sample(peer) is not NotImplemented and (names is None or name in names):
            yield name, lambda peer=peer: sample(peer)


def expected(spec: testing.Spec, sample: testing.Sample, size: int):
    """Returns what every contestant must return, within the bound of `bound_of`."""
    if size <= REFERENCE_LIMIT:
        return sample(spec.reference)
    return sample(spec.op, algorithm=registry.ladder(spec.pattern)[0].name)


def bound_of(spec: testing.Spec, sample: testing.Sample, dtype: torch.dtype, name: str):
    """Returns the bound on a contestant's error, or None if its results must be exact.

    A rung that transforms the whole input has a bound by norms.
    """
    traits = next((r.traits for r in registry.ladder(spec.pattern) if r.name == name), ())
    bound = spec.norm_bound if "norm_wise" in traits else None if spec.exact else spec.bound
    return bound and sample(lambda *a, **k: bound(testing.unit_roundoff(dtype), *a, **k))


def check(out, want, bound, where: str) -> None:
    if bound is None:
        testing.assert_equal(out, want, where)
    else:
        testing.assert_within(out, want, bound, where)


def measure(spec, label: str, case, dtype, device: str, clock: Clock, names: list[str] | None) -> Iterator[dict]:
    """Yields one row per contestant. All results are checked before any call is timed."""
    on_cpu = spec.sample(case, dtype)
    want = expected(spec, on_cpu, case.size)
    sample = on_cpu.to(device)
    calls = dict(contestants(spec, sample, names))
    work = []
    for name, call in calls.items():
        out = call()
        check(out, want, bound_of(spec, on_cpu, dtype, name), f"{spec.name} {name} {label}")
        work.append((spec.bytes(sample, out), spec.flops(sample, out)))
        del out
    for name, (bytes_, flops), seconds in zip(calls, work, clock(*calls.values()), strict=True):
        yield {
            "operator": spec.name,
            "problem": label,
            "elements": case.size,
            "dtype": str(dtype).removeprefix("torch."),
            "algorithm": name,
            "milliseconds": f"{seconds * 1e3:.4g}",
            "gigabytes_per_second": f"{bytes_ / seconds / 1e9:.4g}",
            "percent_of_copy": f"{100 * bytes_ / seconds / clock.copy_rate:.3g}",
            "gigaflops": f"{flops / seconds / 1e9:.4g}",
        }


# ---- the command


def number(text: str) -> int:
    base, _, exponent = text.partition("^")
    return int(base) ** int(exponent or 1)


def sizes(text: str) -> list[int]:
    """Parses sizes: "1000,2^20" is a list, "2^10:2^28" goes up by factors of 4, "2^10:2^28:16" by factors of 16."""
    if ":" not in text:
        return [number(n) for n in text.split(",")]
    first, last, *rest = map(number, text.split(":"))
    step = rest[0] if rest else 4
    if first < 1 or step < 2:
        raise SystemExit(f"expected sizes from 1 on in steps of a factor of at least 2, got {text!r}")
    found = [first]
    while found[-1] * step <= last:
        found.append(found[-1] * step)
    return found


def operator_arguments(words: list[str]) -> dict[str, object]:
    """Parses arguments of the operator: --op max --dim 1 gives {"op": "max", "dim": 1}."""
    found = {}
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if len(words) % 2:
        raise SystemExit(f"expected a value after {words[-1]!r}")
    for key, value in zip(words[::2], words[1::2], strict=True):
        if not key.startswith("--"):
            raise SystemExit(f"expected an option, got {key!r}")
        try:
            found[key[2:]] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key[2:]] = value
    return found


def problems(spec: testing.Spec, options, more: dict[str, object]) -> Iterator[tuple[str, testing.Case]]:
    if options.named or not spec.sized:
        chosen = spec.named.items()
    else:
        chosen = ((str(n), spec.sized(n)) for n in sizes(options.sizes))
    for label, case in chosen:
        yield (
            " ".join((label, *(f"{k}={v}" for k, v in more.items()))),
            testing.case(*case.shapes, **case.kwargs, **more),
        )


def main(arguments: list[str] | None = None) -> None:
    specs = testing.specs()
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --size may be the operator's
    )
    parser.add_argument("operator", choices=sorted(specs))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sizes", default="2^10:2^22")
    parser.add_argument("--named", action="store_true", help="the Spec's problems of note")
    parser.add_argument("--algorithms", help="of these only, peers too; default: all")
    parser.add_argument("--csv", type=Path, help="append rows to this file")
    options, rest = parser.parse_known_args(arguments)
    spec, names = specs[options.operator], options.algorithms and options.algorithms.split(",")
    clock, fixed = Clock(options.device), environment(options.device)
    print(
        f"{fixed['device']}, torch {fixed['torch']}, {fixed['commit']}: a copy runs at {clock.copy_rate / 1e9:.4g} GB/s"
    )
    rows = []
    for label, case in problems(spec, options, operator_arguments(rest)):
        for row in measure(spec, label, case, getattr(torch, options.dtype), options.device, clock, names):
            rows.append(fixed | row)
            keys = ("problem", "algorithm", "milliseconds", "gigabytes_per_second", "percent_of_copy")
            print("{:>24} {:<20} {:>9} ms {:>7} GB/s {:>5} %".format(*(row[key] for key in keys)), flush=True)
    if options.csv:
        write(options.csv, rows)


def write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
