"""compute-sanitizer over every rung of every operator: one command, on a machine with a GPU.

    python tests/sanitize.py                    all four tools, summary on the screen
    python tests/sanitize.py --tools initcheck --out summary.md
    python tests/sanitize.py --only scan        operators whose name holds this

Each tool runs this file again with --calls: small calls of every operator by every rung, in the dtypes and arguments
that its Spec has, results compared with the sequential rung on the host. Under memcheck, racecheck and synccheck each
call is differentiated, too. Under initcheck it is not: some rungs write by bulk copies (cp.async.bulk), which the tool
does not follow, so that whatever kernel reads their results is reported. There every result goes to the host at once,
which is no kernel, and the operators of the backward passes, which have Specs of their own, get inputs from the host.
What is then reported is a read of memory that was never written. torch's cache of memory is off, or reads beyond the
end of one tensor would find another.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

TOOLS = {
    "memcheck": ("--padding", "512", "--check-device-heap", "yes", "--track-stream-ordered-races", "all"),
    "racecheck": ("--racecheck-report", "all"),
    "initcheck": (),
    "synccheck": (),
}
MOST = 3100  # elements of a problem
SUMMARY = re.compile(r"=+ (?:ERROR|RACECHECK) SUMMARY: .*")
KERNEL = re.compile(r"=+ +(?:at|in) (?:void )?([\w:]+)[<(]")


def calls(differentiate: bool, only: str) -> None:
    """Every rung on CUDA; prints how many calls there were."""
    import torch
    from common import described

    from torch_patterns import testing
    from torch_patterns.testing import assert_equal, tensors_of

    made = 0
    for spec in (s for s in testing.specs().values() if only in s.name):
        for rung in spec.rungs("cuda"):
            for number, dtype in enumerate(spec.dtypes):
                ordered = sorted(spec.cases(dtype, most=MOST), key=lambda c: c.size)
                distinct = list({str(c.kwargs): c for c in ordered}.values())
                for case in distinct if dtype == spec.dtype else distinct[number % len(distinct) :: 5]:
                    sample = spec.sample(case, dtype)
                    inputs = sample.to("cuda")
                    inputs = inputs.requires_grad() if differentiate and spec.differentiable else inputs
                    outputs = tensors_of(inputs(spec.op, algorithm=rung.name))
                    if spec.exact:
                        want = tensors_of(sample(spec.op, algorithm="sequential"))
                        assert_equal([y.detach().cpu() for y in outputs], want, described(spec, rung.name, case))
                    floats = [y for y in outputs if y.requires_grad]
                    if floats:
                        ones = [torch.ones(y.shape, dtype=y.dtype).to("cuda") for y in floats]
                        torch.autograd.grad(floats, inputs.floats, ones, allow_unused=True)
                    made += 1
    torch.cuda.synchronize()
    print(f"calls: {made}")


def run(tool: str, only: str) -> tuple[bool, str]:
    """(whether it was clean, what to say of it)."""
    command = ["compute-sanitizer", "--tool", tool, *TOOLS[tool], "--error-exitcode", "9", sys.executable, __file__]
    command += ["--calls", "--only", only, *(["--forward"] if tool == "initcheck" else [])]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    text = done.stdout + done.stderr
    summaries, made = SUMMARY.findall(text), re.search(r"calls: \d+", text)
    kernels = sorted(set(KERNEL.findall(text)))
    said = [f"{tool}: {made[0] if made else 'did not end'}; {summaries[-1].strip('= ') if summaries else 'no summary'}"]
    if done.returncode:
        said += [f"    {kernel}" for kernel in kernels] or text.splitlines()[-20:]
    return done.returncode == 0 and made is not None, "\n".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--only", default="", help="operators whose name holds this")
    parser.add_argument("--out", type=Path, help="a file for the summary")
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--forward", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calls:
        calls(not arguments.forward, arguments.only)
        return 0
    results = [run(tool, arguments.only) for tool in arguments.tools]
    text = "\n".join(said for _, said in results) + "\n"
    print(text, end="")
    if arguments.out:
        arguments.out.write_text(text)
    return 0 if all(clean for clean, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
