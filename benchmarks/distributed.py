"""The distributed patterns on the GPUs of a host, each compared with one GPU in the same run.

    torchrun --nproc-per-node 4 benchmarks/distributed.py --csv benchmarks/results/h200_x4_distributed.csv
    torchrun --nproc-per-node 2 benchmarks/distributed.py --shrink 10        # on CPUs, to see that it runs

A time is the greatest over the ranks, from a common start, and the median of several calls; results are checked first.
A row that could not be measured says why. `one_gpu` is the same work per GPU on one GPU, without communication, or,
where the problem says "in all", all the work on one GPU.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import torch_patterns as tp
from torch_patterns import distributed
from torch_patterns.bench import environment
from torch_patterns.distributed import lenet as distributed_lenet
from torch_patterns.distributed import sorting
from torch_patterns.distributed.collectives import all_to_all_pieces
from torch_patterns.distributed.group import Call, all_gather_single, gather_rows
from torch_patterns.distributed.selection import balanced_targets, co_ranks
from torch_patterns.lenet import LeNet5, Trainer

FIELDS = "device devices link nccl torch cuda commit date work problem milliseconds one_gpu ratio note".split()
REPEATS = 7


class Bench:
    def __init__(self, options: argparse.Namespace):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        limit = timedelta(seconds=60)
        dist.init_process_group("nccl" if self.cuda else "gloo", timeout=limit)
        self.shrink = options.shrink
        self.generator = torch.Generator(self.device).manual_seed(self.rank)
        self.rows: list[dict] = []
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if self.cuda else ""
        where = {"devices": self.size, "link": link() if self.cuda else "loopback", "nccl": nccl}
        self.where = {**environment(str(self.device)), **where}
        self.csv = options.csv

    def log2(self, n: int) -> int:
        return max(n - self.shrink, 6)

    def row(self, work: str, problem: str, seconds: float | None, one: float | None = None, note: str = "") -> None:
        """Adds a row and writes all rows, so that a later failure loses no measurement."""
        numbers = {
            "milliseconds": f"{seconds * 1e3:.4g}" if seconds else "",
            "one_gpu": f"{one * 1e3:.4g}" if one else "",
            "ratio": f"{seconds / one:.3f}" if seconds and one else "",
        }
        self.rows.append({**self.where, "work": work, "problem": problem, **numbers, "note": note})
        if self.rank == 0:
            print(f"{work}, {problem}: {numbers['milliseconds']} ms, one {numbers['one_gpu']} ms {note}", flush=True)
            if self.csv:
                self.csv.parent.mkdir(parents=True, exist_ok=True)
                with open(self.csv, "w", newline="") as file:
                    writer = csv.DictWriter(file, FIELDS)
                    writer.writeheader()
                    writer.writerows(self.rows)

    def clock(self, call: Callable[[], object], repeats: int = REPEATS) -> float:
        """Returns the seconds of a call that all ranks make."""
        call()
        call()
        seconds = torch.zeros(repeats, dtype=torch.float64, device=self.device)
        for i in range(repeats):
            self.barrier()
            begin = time.perf_counter()
            call()
            self.wait()
            seconds[i] = time.perf_counter() - begin
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.median().item()

    def alone(self, call: Callable[[], object], repeats: int = REPEATS) -> float | None:
        """Returns the seconds of a call on rank 0 while the others are idle; None if it failed."""
        found = torch.zeros(1, dtype=torch.float64, device=self.device)
        if self.rank == 0:
            try:
                call()
                times = []
                for _ in range(repeats):
                    self.wait()
                    begin = time.perf_counter()
                    call()
                    self.wait()
                    times.append(time.perf_counter() - begin)
                found[0] = statistics.median(times)
            except Exception as error:
                print(f"one GPU: {error}", flush=True)
        dist.broadcast(found, 0)
        self.free()
        return found.item() or None

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def barrier(self) -> None:
        dist.all_reduce(torch.zeros(1, device=self.device))
        self.wait()

    def free(self) -> None:
        if self.cuda:
            torch.cuda.empty_cache()

    def random_keys(self, n: int) -> torch.Tensor:
        bits = torch.randint(-(2**31), 2**31, (n,), generator=self.generator, device=self.device, dtype=torch.int32)
        return bits.view(torch.uint32)


def link() -> str:
    """Returns how the first two GPUs are connected, according to nvidia-smi: NV18 means 18 NVLinks."""
    try:
        text = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [line.split() for line in text.splitlines() if line.startswith("GPU0")]
    return rows[0][2] if rows and len(rows[0]) > 2 else "unknown"


# ---- the measured work


def collectives(bench: Bench) -> None:
    """Measures the links: the rates and latencies with which to compare the other measurements."""
    n = 1 << bench.log2(28)
    x = torch.zeros(n, dtype=torch.int32, device=bench.device)
    y = torch.empty_like(x)
    seconds = bench.clock(lambda: dist.all_to_all_single(y, x))
    sent = 4 * n * (bench.size - 1) / bench.size
    bench.row("all_to_all", f"{4 * n >> 20} MiB per GPU", seconds, note=f"{sent / seconds / 1e9:.0f} GB/s per GPU")
    word, words = torch.zeros(1, device=bench.device), torch.zeros(bench.size, device=bench.device)
    bench.row("all_gather", "1 word", bench.clock(lambda: all_gather_single(words, word)))
    bench.row("header", "of every call", bench.clock(lambda: Call("header", None, lambda: {"x": word}).numbers()))


def sort(bench: Bench) -> None:
    log2 = bench.log2(28)
    n = 1 << log2
    keys = bench.random_keys(n)
    result = distributed.sort_keys(keys)
    check_sorted(keys, result)
    result = None  # frees its memory
    local = bench.alone(lambda: tp.sort_keys(keys))
    seconds = bench.clock(lambda: distributed.sort_keys(keys))
    bench.row("sort_keys", f"u32, 2^{log2} per GPU", seconds, local)
    sort_phases(bench, keys, log2)
    keys = None
    bench.free()
    whole = bench.random_keys(n * bench.size if bench.rank == 0 else 0)
    one = bench.alone(lambda: tp.sort_keys(whole), 5)
    bench.row("sort_keys", f"u32, {bench.size} x 2^{log2} in all", seconds, one)


def sort_phases(bench: Bench, keys: torch.Tensor, log2: int) -> None:
    """Measures the phases of sort_keys."""
    run, problem = tp.sort_keys(keys), f"u32, 2^{log2} per GPU"
    call = Call("sort", None, lambda: {"keys": keys})
    lengths = [call.lengths()]
    targets = balanced_targets(sum(lengths[0]), call.size)

    def cut():
        return co_ranks([run], lengths, targets, descending=False, group=call.group)

    cuts = [[0] * call.size, *(at[0] for at in cut()), lengths[0]]
    received = all_to_all_pieces(run, cuts, call.group)
    local = bench.clock(lambda: tp.sort_keys(keys))
    bench.row("sort_keys: local sort", problem, local)
    after = bench.clock(lambda: (tp.sort_keys(keys), cut())) - local
    bench.row(
        "sort_keys: cuts",
        problem,
        after,
        note=f"after a sort that hides their launches; {1e3 * bench.clock(cut):.3f} alone",
    )
    bench.row("sort_keys: exchange", problem, bench.clock(lambda: all_to_all_pieces(run, cuts, call.group)))
    bench.row("sort_keys: merges", problem, bench.clock(lambda: sorting._merged((received,), False)))


def check_sorted(keys: torch.Tensor, result: torch.Tensor) -> None:
    """Checks that the result is sorted within and across ranks, balanced, and a permutation of the keys."""

    def wide(x):
        return x.view(torch.int32).long() & 0xFFFFFFFF

    assert all((wide(part)[1:] >= wide(part)[:-1]).all() for part in result.split(1 << 26))
    ends = torch.stack([wide(result[:1])[0], wide(result[-1:])[0]])
    every = gather_rows(ends, dist.group.WORLD)
    assert (every.flatten().diff() >= 0).all(), "ranks are out of order"
    for mix in (lambda x: x, lambda x: x * x % 1000003):
        sums = torch.stack([sum(mix(wide(part)).sum() for part in x.split(1 << 26)) for x in (keys, result)])
        dist.all_reduce(sums)
        assert sums[0] == sums[1], "keys were lost"


def scan(bench: Bench) -> None:
    log2 = bench.log2(28)
    x = torch.randint(-3, 4, (1 << log2,), generator=bench.generator, device=bench.device).float()
    y = distributed.scan(x)
    last = torch.stack([x.double().sum(), y[-1].double()])
    every = gather_rows(last, dist.group.WORLD)
    assert torch.equal(every[:, 0].cumsum(0), every[:, 1]), "scan is wrong"
    local = bench.alone(lambda: tp.scan(x))
    seconds = bench.clock(lambda: distributed.scan(x))
    bench.row("scan", f"float32, 2^{log2} per GPU", seconds, local)
    total = bench.alone(lambda: tp.reduce(x))
    bench.row("scan: the total by itself", f"float32, 2^{log2} per GPU", total)
    bench.row("reduce", f"float32, 2^{log2} per GPU", bench.clock(lambda: distributed.reduce(x)), total)


def band(bench: Bench, begin: int, rows: int, columns: int, width: int = 27) -> tp.CSR:
    """Makes rows begin ... of a matrix of adjacent diagonals, which wrap around at the border."""
    row, near = (
        torch.arange(*ends, device=bench.device, dtype=torch.int32) for ends in ((begin, begin + rows), (width,))
    )
    col = (row[:, None] + near - width // 2) % columns
    ptrs = torch.arange(rows + 1, device=bench.device, dtype=torch.int32) * width
    values = torch.randint(-3, 4, (rows * width,), generator=bench.generator, device=bench.device).float()
    return tp.CSR(ptrs, col.flatten(), values, (rows, columns))


def spmv(bench: Bench) -> None:
    rows = 1 << bench.log2(21)
    x = torch.randint(-3, 4, (rows,), generator=bench.generator, device=bench.device).float()
    whole = gather_rows(x, dist.group.WORLD).flatten()
    mine = band(bench, bench.rank * rows, rows, rows * bench.size)
    for form in ("csr", "ell", "sell"):
        A = distributed.from_local(mine, format=form)
        assert torch.equal(A @ x, tp.spmv(mine, whole)), "spmv is wrong"
        alone, problem = band(bench, 0, rows, rows).convert(form), f"banded 27, {form}, 2^{bench.log2(21)} rows per GPU"
        local = bench.alone(lambda alone=alone: tp.spmv(alone, x), 50)
        bench.row("spmv", problem, bench.clock(lambda A=A: A @ x, 50), local)
        bench.row("spmv: own columns", problem, bench.clock(lambda A=A: tp.spmv(A.own, x), 50), local)


def spmv_graph(bench: Bench) -> None:
    """Measures the same product in a CUDA graph, which excludes the host's launch times."""
    if not bench.cuda:
        return
    rows = 1 << bench.log2(21)
    x = torch.randint(-3, 4, (rows,), generator=bench.generator, device=bench.device).float()
    A = distributed.from_local(band(bench, bench.rank * rows, rows, rows * bench.size), format="ell")
    alone = band(bench, 0, rows, rows).convert("ell")
    local = bench.alone(captured(lambda: tp.spmv(alone, x)), 50)
    seconds = bench.clock(captured(lambda: A @ x), 50)
    bench.row("spmv in a CUDA graph", f"banded 27, ell, 2^{bench.log2(21)} rows per GPU", seconds, local)


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """Captures a call as a CUDA graph; all ranks capture at the same time, or one alone without collectives."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph.replay


def bfs(bench: Bench) -> None:
    scale = bench.log2(26)
    began = time.perf_counter()
    graph = distributed.rmat(scale, 16, 1, index_dtype=torch.int32, device=bench.device)
    bench.wait()
    bench.row("rmat", f"scale {scale}", time.perf_counter() - began, note="made and assembled, once")
    bench.free()
    degrees = graph.local.in_degrees()[graph.begin : graph.end]
    found = degrees.nonzero()[:3, 0] + graph.begin  # of rank 0
    roots = torch.zeros(3, dtype=torch.int64, device=bench.device)
    roots[: len(found)] = found
    dist.broadcast(roots, 0)
    whole = whole_graph(bench, scale)
    for root in roots.tolist():
        levels, parents = distributed.bfs(graph, root)
        note = check_search(bench, whole, root, levels, parents)
        one = bench.alone(lambda root=root: tp.bfs(whole, root), 5)
        seconds = bench.clock(lambda root=root: distributed.bfs(graph, root), 5)
        bench.row("bfs", f"rmat scale {scale} from {root}", seconds, one, note)


def whole_graph(bench: Bench, scale: int) -> tp.Graph | None:
    """Returns the whole graph on rank 0."""
    if bench.rank:
        return None
    try:
        return tp.graph.rmat(scale, 16, 1, index_dtype=torch.int32, device=bench.device)
    except RuntimeError as error:
        print(f"one GPU: {error}", flush=True)
        return None
    finally:
        bench.free()


def check_search(bench: Bench, whole: tp.Graph | None, root: int, levels: torch.Tensor, parents: torch.Tensor) -> str:
    """Checks that levels and parents of all ranks are those of one GPU; returns a text with the number of levels."""
    block = torch.tensor([len(levels)], device=bench.device)
    dist.broadcast(block, 0)
    both = torch.full((2, block.item()), -1, dtype=torch.int32, device=bench.device)
    both[:, : len(levels)] = torch.stack([levels, parents])
    every = gather_rows(both, dist.group.WORLD)
    deepest = every[:, 0].amax().item()
    note = f"{deepest} levels"
    if whole is not None:
        n = whole.num_vertices
        for got, want in zip(every.unbind(1), tp.bfs(whole, root), strict=True):
            note += "" if torch.equal(got.reshape(-1)[:n], want) else ", DIFFERS FROM ONE GPU"
    return note


def lenet(bench: Bench) -> None:
    """Measures epochs of 61,440 images in batches of 1,024 per GPU, by DistributedDataParallel and SGD."""
    batch, count = 1024 >> min(bench.shrink, 5), 61440 >> min(bench.shrink, 8)
    images = torch.randn(count, 1, 32, 32, generator=bench.generator, device=bench.device)
    labels = torch.randint(0, 10, (count,), generator=bench.generator, device=bench.device)

    def epoch(ranks: int, rank: int, wrap: Callable) -> Callable[[], None]:
        model = LeNet5().to(bench.device)
        network = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
        parts = list(zip(images.split(batch), labels.split(batch), strict=True))[rank::ranks]

        def run() -> None:
            for x, target in parts:
                optimizer.zero_grad()
                model.loss(network(x), target).backward()
                optimizer.step()

        return run

    parallel = epoch(bench.size, bench.rank, lambda model: torch.nn.parallel.DistributedDataParallel(model))
    seconds = bench.clock(parallel, 5)
    one = bench.alone(epoch(1, 0, lambda model: model), 3)
    bench.row("lenet5 epoch", f"{count} images, batch {batch} per GPU", seconds, one)


def lenet_fused(bench: Bench) -> None:
    """Measures the same epochs by the fused trainer, with a CUDA graph per epoch."""
    batch, count = 1024 >> min(bench.shrink, 5), 61440 >> min(bench.shrink, 8)
    images = torch.randint(0, 256, (count, 1, 32, 32), dtype=torch.uint8).to(bench.device)
    labels = torch.randint(0, 10, (count,)).to(bench.device)
    for distort in (False, True):
        alone = Trainer(LeNet5().to(bench.device), images, labels, batch, distort=distort)
        one = bench.alone(alone.epoch, 5)
        together = distributed_lenet.Trainer(
            LeNet5().to(bench.device), images, labels, batch * bench.size, distort=distort
        )
        how = "distorted" if distort else "as they are"
        problem = f"{count} images {how}, batch {batch} per GPU"
        bench.row("lenet5 epoch, fused", problem, bench.clock(together.epoch, 5), one)


WORKS = {f.__name__: f for f in (collectives, sort, scan, spmv, lenet, bfs, lenet_fused, spmv_graph)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--csv", type=Path, help="where rows go")
    parser.add_argument("--shrink", type=int, default=0, help="halve all sizes so many times")
    parser.add_argument("--only", default=",".join(WORKS), help="works, between commas (default: %(default)s)")
    options = parser.parse_args()
    bench = Bench(options)
    for name in options.only.split(","):
        began = time.perf_counter()
        try:
            WORKS[name](bench)
        except Exception as error:
            bench.row(name, "", None, note=f"{type(error).__name__}: {error}"[:300])
        bench.free()
        if bench.rank == 0:
            print(f"# {name}: {time.perf_counter() - began:.1f} s", flush=True)
    os._exit(0)  # after a failure the group cannot be left together


if __name__ == "__main__":
    main()
