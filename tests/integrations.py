"""The table of operators and integrations: `make test ARGS="--integrations=docs/integrations.md"` writes it.

A cell is a test that ran: "yes" if it passed, "no" if it failed, "-" where the operator has no such thing: it is not
differentiable, or its size depends on the data.
"""

from __future__ import annotations

import re
from pathlib import Path

# Column -> the generated test that stands for it.
COLUMNS = {
    "opcheck": "test_ops.py::test_opcheck",
    "reverse, forward": "test_transforms.py::test_gradcheck",
    "second order": "test_transforms.py::test_gradgradcheck",
    "torch.func": "test_transforms.py::test_func",
    "vmap": "test_ops.py::test_vmap",
    "vmap of grad, jvp": "test_transforms.py::test_vmap_of_derivatives",
    "functionalize": "test_transforms.py::test_functionalize",
    "checkpoint": "test_transforms.py::test_checkpoint",
    "autocast": "test_ops.py::test_autocast",
    "compile": "test_graphs.py::test_compile",
    "export": "test_graphs.py::test_export",
    "same bits": "test_ops.py::test_deterministic",
}
NODE = re.compile(r"(?:tests/)?(\S+?)\[(\w+)-(cpu|cuda)[^\]]*\]$")
WORDS = {"passed": "yes", "skipped": "-", "failed": "no"}


def cells(stats: dict, device: str) -> dict[tuple[str, str], str]:
    """(operator, test) -> word; a failed call outweighs one that passed."""
    found: dict[tuple[str, str], str] = {}
    for outcome in ("skipped", "passed", "failed"):
        for report in stats.get(outcome, []):
            match = NODE.match(getattr(report, "nodeid", ""))
            if match and match[3] == device:
                found[match[2], match[1]] = WORDS[outcome]
    return found


def table(stats: dict, device: str) -> str:
    found = cells(stats, device)
    names = sorted({operator for operator, test in found if test in COLUMNS.values()})
    lines = [["operator", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    lines += [[f"`{name}`", *(found.get((name, test), "") for test in COLUMNS.values())] for name in names]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(path: Path, stats: dict) -> None:
    import torch

    text = f"# Operators and integrations\n\n{__doc__.splitlines()[2]}\n{__doc__.splitlines()[3]}\n"
    for device in ("cpu", "cuda"):
        if any(word == "yes" for word in cells(stats, device).values()):
            text += f"\n## {device}, torch {torch.__version__}\n\n{table(stats, device)}\n"
    path.write_text(text)
