"""The ladders: the algorithms that each pattern offers, in textbook order, as the compiled library lists them."""

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

    ``section`` is a section (§) or figure of *Programming Massively Parallel Processors*, a paper, one of the courses
    that docs/ladders.md lists, or ``"beyond"``; ``work`` and ``steps`` are functions of the size n; ``traits`` are
    facts such as ``"quadratic"`` or ``"float_atomics"``; ``written_for`` lists the devices it is written for,
    ``devices`` those on which this build offers it.

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
    """Returns the names of all patterns.

    Example:
        >>> "scan" in tp.registry.patterns()
        True
    """
    return sorted(_ladders)


_pattern_of: dict[str, str] = {}  # of each documented function


def ladder(pattern: str) -> list[Rung]:
    """Returns the rungs of a pattern, or of the pattern of a function such as ``"sort_keys"``, in textbook order.

    If there is no such pattern, it raises a ``ValueError`` that lists the patterns.

    Example:
        >>> [rung.name for rung in tp.registry.ladder("merge")][:2]
        ['sequential', 'threaded']
    """
    name = str(_pattern_of.get(pattern, pattern))
    name = name.replace("spmm_", "spmv_", 1) if name.startswith("spmm_") else name
    if name not in _ladders:
        raise ValueError(f"unknown pattern {pattern!r}; choose from: {', '.join(patterns())}")
    return list(_ladders[name])


def algorithms(pattern: str, device: str | torch.device | None = None) -> list[str]:
    """Lists the values of ``algorithm=`` besides ``"auto"`` for a pattern or function on a device (default: on any).

    For ``"spmv"`` and ``"spmm"`` these are the algorithms of all formats together; ``"spmv_csr"`` and so on list those
    of one format.

    Args:
        pattern: the name of a pattern or of a function, such as ``"scan"`` or ``"sort_keys"``.
        device: a device or its type; by default, the algorithms of all devices are listed.

    Returns:
        Names in textbook order, of the algorithms that this build offers.

    Raises:
        ValueError: the pattern is unknown; the message lists all.
        RuntimeError: ``device`` is not the name of a device.

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
    """Returns the ladder of a pattern as a Markdown table, the same in every build.

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
    """Returns a decorator that appends the pattern's algorithms to the docstring."""

    def append(function: F) -> F:
        names = ", ".join(f'``"{rung.name}"``' for rung in ladder(pattern))
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Algorithms: {names}.\n"
        _pattern_of[function.__name__] = pattern
        return function

    return append
