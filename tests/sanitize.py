"""compute-sanitizer over every rung of every operator, and "auto": one command, on a machine with a GPU.

    python tests/sanitize.py                    all four tools, summary on the screen
    python tests/sanitize.py --tools initcheck --out findings
    python tests/sanitize.py --only scan        operators and rungs whose names hold this: "scan", "bfs_csr auto"
    python tests/sanitize.py --jobs 8 --gpus 2  8 processes per tool, which share the rungs and two GPUs

Each tool runs this file again with --calls: small calls of every operator by every rung, in dtypes and arguments that
its Spec has, results compared with the sequential rung on the host. Under memcheck, racecheck and synccheck each
call is differentiated, too. Under initcheck it is not: some rungs write by bulk copies (cp.async.bulk), which the tool
does not follow, so that whatever kernel reads their results is reported. There every result goes to the host at once,
which is no kernel, and the operators of the backward passes, which have Specs of their own, get inputs from the host.
For the same reason what torch's own kernels and copies read does not count, nor what READERS read: whether results are
complete is seen by comparing them. What is then reported is a read of memory that was never written. torch's cache of
memory is off, or reads beyond the end of one tensor would find another.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial as bind
from pathlib import Path
from typing import NamedTuple

TOOLS = {
    "memcheck": ("--padding", "512", "--check-device-heap", "yes", "--track-stream-ordered-races", "all"),
    "racecheck": ("--racecheck-report", "all"),
    "initcheck": ("--check-api-memory-access", "no", "--print-limit", "0", "--show-backtrace", "no"),
    "synccheck": (),
}
MOST, MOST_SLOW = 3100, 300  # elements of a problem; for rungs of quadratic work and for searches of many launches
# Problems of the first dtype, but one for slow rungs; and other dtypes, with one problem each. Other ones for the next
# rung.
PROBLEMS, OTHERS = 4, 2
SUMMARY = re.compile(r"=+ (?:ERROR|RACECHECK) SUMMARY: .*")
CLEAN = re.compile(r"=+ (?:ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)")
KERNEL = re.compile(r"=+ +(?:at|in) (?:void )?(?!at::|at_cuda_detail::)([\w:]+)[<(]")
# Kernels of expand_sort_compress, which read the owners of products that segment_expand, called by the same operator,
# has written by bulk copies; and those that add up the slices of wgrad, which its products have written so.
READERS = re.compile(
    r"=+ +at void tp::(?:simt::kernel_entry<tp::<unnamed>::(?:Keys|Terms)<|conv::add_units<|"
    r"block::add_slices<.*tp::conv::IndexInRow).*"
)


def calls(differentiate: bool, only: str, claims: Path) -> None:
    """Every rung on CUDA that no other process has claimed; prints how many calls there were."""
    import torch
    from common import described

    from torch_patterns import testing
    from torch_patterns.testing import assert_equal, assert_within, tensors_of, unit_roundoff

    made = 0
    specs = testing.specs().values()
    rungs = [(spec, rung.name, {*rung.traits}) for spec in specs for rung in spec.rungs("cuda")]
    for turn, (spec, algorithm, traits) in enumerate(rungs + [(spec, "auto", set()) for spec in specs]):
        if only not in f"{spec.name} {algorithm}":
            continue
        try:
            (claims / str(turn)).mkdir()
        except FileExistsError:
            continue
        print(f"rung: {spec.name} {algorithm}", flush=True)
        start = time.monotonic()
        slow = {"quadratic", "norm_wise"} & traits or spec.name.startswith(("bfs", "sssp"))
        # racecheck takes 1.5 seconds for each level of a search by `persistent`, of which a batch is one after another.
        few = spec.name == "bfs_batched" and algorithm in ("auto", "persistent")
        others = [d for d in spec.dtypes if d != spec.dtype]
        first = turn % max(len(others), 1)
        for dtype in (spec.dtype, *(others + others)[first : first + min(OTHERS, len(others))]):
            ordered = sorted(spec.cases(dtype, most=MOST_SLOW if slow else MOST), key=lambda c: c.size)
            ordered = [c for c in ordered if not few or c.shapes[-1][0] < 6]
            distinct = list({str(c.kwargs): c for c in ordered}.values())
            count = PROBLEMS if dtype == spec.dtype and not slow else 1
            for chosen in range(min(count, len(distinct))):
                case = distinct[(turn + chosen * max(len(distinct) // count, 1)) % len(distinct)]
                sample = spec.sample(case, dtype)
                inputs = sample.to("cuda")
                inputs = inputs.requires_grad() if differentiate and spec.differentiable else inputs
                outputs = tensors_of(inputs(spec.op, algorithm=algorithm))
                if spec.exact:
                    where, got = described(spec, algorithm, case), [y.detach().cpu() for y in outputs]
                    if "norm_wise" in traits and dtype.is_floating_point:
                        bound = sample(bind(spec.norm_bound, unit_roundoff(dtype)))
                        assert_within(got, sample(spec.reference), bound, where)
                    else:
                        assert_equal(got, tensors_of(sample(spec.op, algorithm="sequential")), where)
                floats = [y for y in outputs if y.requires_grad]
                if floats:
                    ones = [torch.ones(y.shape, dtype=y.dtype).to("cuda") for y in floats]
                    torch.autograd.grad(floats, inputs.floats, ones, allow_unused=True)
                made += 1
        torch.cuda.synchronize()
        print(f"calls: {made} (this rung: {time.monotonic() - start:.1f} s)", flush=True)
    print("ended")


class Run(NamedTuple):
    """What one process under one tool said."""

    tool: str
    clean: bool
    calls: int
    unfinished: str  # the rung at which it was ended, or nothing
    said: str


def run(tool: str, share: int, claims: Path, arguments: argparse.Namespace) -> Run:
    command = ["compute-sanitizer", "--tool", tool, *TOOLS[tool], "--error-exitcode", "9", sys.executable, __file__]
    command += ["--calls", "--only", arguments.only, *(["--forward"] if tool == "initcheck" else [])]
    command += ["--claims", str(claims)]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(arguments.gpus)))).split(",")
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_VISIBLE_DEVICES": gpus[share % len(gpus)]}
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        try:
            process.wait(arguments.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the tool and the process that it watches
            process.wait()
        file.seek(0)
        text = file.read()
    made, summary = re.findall(r"calls: (\d+)", text), SUMMARY.findall(text)
    ended = "\nended" in text and process.returncode != -signal.SIGKILL  # the tool, too, has said all that it found
    rungs = re.findall(r"rung: (.*)", text)
    kernels = sorted(set(KERNEL.findall(READERS.sub("", text) if tool == "initcheck" else text)))
    clean = not kernels if tool == "initcheck" or not ended else CLEAN.search(text) is not None
    said = [] if clean else [f"    {kernel}" for kernel in kernels] + summary[-1:]
    if not (said or ended) and process.returncode > 0:
        said = text.splitlines()[-20:]
    unfinished = "" if ended else rungs[-1] if rungs else "its start"
    if arguments.out:
        (arguments.out / f"{tool}-{share}.txt").write_text(text)
    return Run(tool, clean, int(made[-1]) if made else 0, unfinished, "\n".join(said))


def summary(tool: str, runs: list[Run]) -> str:
    unclean = sum(not r.clean for r in runs)
    lines = [f"{tool}: {sum(r.calls for r in runs)} calls; {unclean} of {len(runs)} processes with findings"]
    lines += [f"    not ended at {r.unfinished}" for r in runs if r.unfinished]
    return "\n".join([*lines, *(r.said for r in runs if r.said)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--only", default="", help="operators and rungs whose names hold this")
    parser.add_argument("--out", type=Path, help="a folder for the summary, and for all that was printed")
    parser.add_argument("--jobs", type=int, default=1, help="processes per tool")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs that the processes share")
    parser.add_argument("--limit", type=float, help="seconds after which a process is ended, and named")
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--forward", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calls:
        calls(not arguments.forward, arguments.only, arguments.claims)
        return 0
    if arguments.out:
        arguments.out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs * len(arguments.tools)) as pool:
        started = []
        for tool in arguments.tools:
            claims = Path(folder) / tool
            claims.mkdir()
            started.append((tool, [pool.submit(run, tool, i, claims, arguments) for i in range(arguments.jobs)]))
        results = [(tool, [future.result() for future in futures]) for tool, futures in started]
    text = "\n".join(summary(tool, runs) for tool, runs in results) + "\n"
    print(text, end="")
    if arguments.out:
        (arguments.out / "summary.txt").write_text(text)
    return 0 if all(r.clean and not r.unfinished for _, runs in results for r in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
