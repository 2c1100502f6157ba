"""python -m torch_patterns: what this build offers, and the checked mode at work.

ladders [PATTERN ...]   the algorithms of the patterns
race [FAULT ...]        run kernels that break a rule, and show what the checked mode says of each
figure [ALGORITHM]      what each phase changes in an 8-element scan, as in the book's figures
readme [FILE]           rewrite the generated tables of docs/ladders.md
cmake                   the CMAKE_PREFIX_PATH with which C++ programs find torch and this library
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

import torch

from torch_patterns import _C, registry, scan, simt

MARKED = re.compile(r"(<!-- ladder:(\w+) -->\n).*?(<!-- /ladder -->)", re.DOTALL)


def with_fresh_tables(text: str) -> str:
    """``text`` with a fresh table between each pair of markers ``<!-- ladder:PATTERN -->`` and ``<!-- /ladder -->``."""
    return MARKED.sub(lambda m: m[1] + registry.table(m[2]) + m[3], text)


def show_ladders(names: list[str]) -> None:
    for key, value in _C.build_info().items():
        print(f"{key}: {value}")
    for name in names or registry.patterns():
        print(f"\n{name}\n{registry.table(name)}", end="")


def show_races(names: list[str]) -> None:
    for name in names or simt.faults():
        if name not in simt.faults():
            raise ValueError(f"unknown fault {name!r}; choose from: {', '.join(simt.faults())}")
        try:
            simt.fault(name)
            print(f"{name}: nothing found")
        except RuntimeError as error:
            print(error)


def show_figure(algorithm: str) -> None:
    x = torch.arange(1, 9, dtype=torch.float32)
    y, phases = simt.trace(scan, x, algorithm=algorithm)
    print(f"{algorithm} of {x.int().tolist()}")
    shown: dict[str, str] = {}
    for phase in phases:
        for array, values in phase["arrays"].items():
            row = " ".join("   ." if v is None else f"{v:4.0f}" for v in values[: x.numel()])
            if row.strip(" .") and row != shown.get(array):
                print(f"{phase['name']:>12} {array:<10} {row}")
                shown[array] = row
    print(f"result {y.int().tolist()}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m torch_patterns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "command", nargs="?", default="ladders", choices=["ladders", "race", "figure", "readme", "cmake"]
    )
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    try:
        run(arguments.command, arguments.names)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has stopped reading, so Python must not flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        parser.error(str(error))


def run(command: str, names: list[str]) -> None:
    if command == "ladders":
        show_ladders(names)
    elif command == "race":
        show_races(names)
    elif command == "figure":
        for algorithm in names or ["kogge_stone"]:
            show_figure(algorithm)
    elif command == "cmake":
        print(torch.utils.cmake_prefix_path, Path(__file__).parent, sep=";")
    else:
        for path in map(Path, names or ["docs/ladders.md"]):
            path.write_text(with_fresh_tables(path.read_text()))


if __name__ == "__main__":
    main()
