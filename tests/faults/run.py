"""Seeds one fault after another into a copy of the repository, builds it, and records which test noticed.

    python tests/faults/run.py --tree ../copy                 all that this machine can show
    python tests/faults/run.py --tree ../copy kogge-stone-barrier bfs-level --out caught.csv

The copy must be a clone that is built already (`make build`): only what a fault touches is built again, by ninja. Each
edit is taken back before the next; the results are appended to --out as they come, so that a run can be interrupted.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import subprocess
import sys
from pathlib import Path

from faults import FAULTS, Fault


def seed(tree: Path, fault: Fault) -> str:
    """Applies a fault; returns the text as it was."""
    file = tree / "csrc" / fault.file
    text = file.read_text()
    if text.count(fault.before) < 1:
        raise ValueError(f"{fault.name}: {fault.file} does not hold {fault.before!r}")
    file.write_text(text.replace(fault.before, fault.after, 1))
    return text


def try_one(tree: Path, fault: Fault, python: str) -> str:
    """What noticed the fault: a test, "the build", or nothing."""
    file = tree / "csrc" / fault.file
    text = seed(tree, fault)
    try:
        built = subprocess.run(["make", "build"], cwd=tree, capture_output=True, text=True, check=False)
        if built.returncode:
            return "the build"
        command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(fault.tests)]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=3600)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        failed = [line.split(" ", 1)[1].split(" - ")[0] for line in lines]
        if done.returncode not in (0, 1):  # by a signal, if it is negative
            return f"pytest, which ended with {done.returncode}"
        return failed[0] if failed else "nothing"
    finally:
        file.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="faults; all of the device without")
    parser.add_argument("--tree", type=Path, required=True, help="a built clone, which is changed and changed back")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, help="a CSV file to append to")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    missed = 0
    for fault in FAULTS:
        if fault.name not in arguments.names if arguments.names else fault.device != arguments.device:
            continue
        caught = try_one(arguments.tree, fault, arguments.python)
        missed += caught == "nothing"
        print(f"{fault.name}: {caught}", flush=True)
        if arguments.out:
            with arguments.out.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow((fault.name, fault.file, fault.device, caught))
    print(f"missed: {missed}")
    return 0 if missed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
