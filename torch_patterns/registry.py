"""The ladders: which algorithms each pattern offers, in textbook order, as the library tells it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torch_patterns import _C

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Rung:
    """One algorithm of a pattern.

    ``section`` is a section (§) or figure of *Programming Massively Parallel Processors*, the number of another source
    text, or ``"beyond"``; ``work`` and ``steps`` are functions of the size n; ``traits`` are facts such as
    ``"quadratic"`` or ``"float_atomics"``; ``written_for`` says for which devices it is written, ``devices`` on which
    of them this build offers it.

    Example:
        >>> rung = tp.registry.ladder("scan")[0]
        >>> rung.name, rung.section, rung.devices
        ('sequential', 'Fig. 11.1', ('cpu',))
    """

    name: str
    section: str
    figures: str
    work: str
    steps: str
    traits: tuple[str, ...]
    devices: tuple[str, ...]
    summary: str
    written_for: tuple[str, ...]


def _rung(row: dict[str, Any]) -> Rung:
    devices = tuple(device for device in ("cpu", "cuda") if row[device])
    return Rung(
        row["name"],
        row["source"],
        row["figures"],
        row["work"],
        row["steps"],
        tuple(row["traits"]),
        devices,
        row["summary"],
        tuple(row["written_for"].split()),
    )


_ladders = {pattern: [_rung(row) for row in rows] for pattern, rows in _C.ladders().items()}


def patterns() -> list[str]:
    """The names of all patterns.

    Example:
        >>> "scan" in tp.registry.patterns()
        True
    """
    return sorted(_ladders)


_pattern_of: dict[str, str] = {}  # each documented function


def ladder(pattern: str) -> list[Rung]:
    """The rungs of a pattern, or of the one behind a function such as ``"sort_keys"``, in textbook order.

    ``ValueError`` names the patterns if there is none of this name.

    Example:
        >>> [rung.name for rung in tp.registry.ladder("merge")][:2]
        ['sequential', 'threaded']
    """
    name = _pattern_of.get(pattern, pattern)
    name = name.replace("spmm_", "spmv_", 1) if name.startswith("spmm_") else name
    if name not in _ladders:
        raise ValueError(f"unknown pattern {pattern!r}; choose from: {', '.join(patterns())}")
    return list(_ladders[name])


def algorithms(pattern: str, device: str | torch.device | None = None) -> list[str]:
    """What ``algorithm=`` may name for a pattern, or a function, on a device (default: on any), besides ``"auto"``.

    Of ``"spmv"`` and ``"spmm"``, what any format offers; ``"spmv_csr"`` and so on tell it for one.

    Example:
        >>> "threaded" in tp.algorithms("scan", "cpu"), "threaded" in tp.algorithms("scan", "cuda")
        (True, False)
    """
    kind = torch.device(device).type if device is not None else None
    of_formats = [name for name in _ladders if name.startswith("spmv_")]
    names = of_formats if pattern in ("spmv", "spmm") else [pattern]
    rungs = [rung for name in names for rung in ladder(name) if kind is None or kind in rung.devices]
    return list(dict.fromkeys(rung.name for rung in rungs))


def table(pattern: str) -> str:
    """The ladder of a pattern as a Markdown table, the same in every build.

    Example:
        >>> print(tp.registry.table("rbf").splitlines()[0])
        | algorithm | source | figures | work | steps | devices | what |
    """
    lines = ["| algorithm | source | figures | work | steps | devices | what |", "|---|---|---|---|---|---|---|"]
    for r in ladder(pattern):
        devices = ", ".join(r.written_for)
        lines.append(f"| `{r.name}` | {r.section} | {r.figures} | {r.work} | {r.steps} | {devices} | {r.summary} |")
    return "\n".join(lines) + "\n"


def documented(pattern: str) -> Callable[[F], F]:
    """Decorator: appends the pattern's algorithms to the docstring."""

    def append(function: F) -> F:
        names = ", ".join(f'``"{rung.name}"``' for rung in ladder(pattern))
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Algorithms: {names}.\n"
        _pattern_of[function.__name__] = pattern
        return function

    return append
