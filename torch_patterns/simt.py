"""The checked mode of the textbook kernels, which finds races and draws figures on a machine without a GPU.

On the CPU the textbook algorithms run lane by lane through the same source that CUDA compiles. Inside :func:`checked`
each of their accesses to shared and global memory is checked: two lanes that touch one element with no barrier between
them, two blocks with no flag between them, a read of unwritten shared memory, an index out of bounds or a barrier in
divergent code raise a ``RuntimeError`` that names the array, the element, the lanes and the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_patterns import _C
from torch_patterns.literals import LaneOrder


@contextmanager
def checked(
    order: LaneOrder = "forward", seed: int = 0, observer: Callable[[dict], None] | None = None
) -> Iterator[None]:
    """Checks the textbook kernels that this thread runs on CPU tensors.

    Args:
        order: in which order lanes and blocks run: ``"forward"``, ``"reverse"`` or ``"shuffle"``.
        seed: determines the order of ``"shuffle"``.
        observer: called after each phase of each block with a dict: kernel, name, block, number, and arrays, which maps
            each shared array to its values (``None`` where nothing was written, pairs for affine maps).

    Example:
        >>> with tp.simt.checked(order="shuffle", seed=1):
        ...     tp.scan(torch.ones(4), algorithm="brent_kung")
        tensor([1., 2., 3., 4.])
    """
    session = _C.Checked(order, seed, observer)
    session.enter()
    try:
        yield
    finally:
        session.exit()


def trace(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, list[dict]]:
    """Runs a function in checked mode, and records what each phase of its textbook kernels leaves in shared memory.

    Args:
        function: a function that calls operators on CPU tensors.
        args, kwargs: its arguments.

    Returns:
        (result, phases): the result of ``function``, and one dict per phase, as the observer of :func:`checked` gets
        it.

    Raises:
        RuntimeError: a kernel breaks a rule of :func:`checked`. Errors of ``function`` are raised unchanged.

    Example:
        >>> y, phases = tp.simt.trace(tp.scan, torch.ones(4), algorithm="kogge_stone")
        >>> phases[0]["kernel"], phases[0]["name"]
        ('kogge_stone', 'load')
    """
    phases: list[dict] = []
    with checked(observer=phases.append):
        result = function(*args, **kwargs)
    return result, phases


def faults() -> list[str]:
    """Lists small kernels, each of which breaks one rule: see :func:`fault`.

    Returns:
        Their names.

    Example:
        >>> tp.simt.faults()[0]
        'missing_barrier'
    """
    return _C.faults()


def fault(name: str, order: LaneOrder = "forward", seed: int = 0) -> None:
    """Runs a kernel that breaks a rule in checked mode, which shows the error that it raises.

    Args:
        name: one of :func:`faults`.
        order: the order in which lanes and blocks run, as for :func:`checked`.
        seed: determines the order of ``"shuffle"``.

    Raises:
        RuntimeError: always: the message names the array, the lanes and the phase of the fault, or says that no fault
        is
            called ``name``.
        ValueError: ``order`` is unknown.

    Example:
        >>> tp.simt.fault("missing_barrier")
        Traceback (most recent call last):
            ...
        torch_patterns._C.SimtError: missing_barrier, ... race on shared array 's' at [1]: lane 2 reads what ...
    """
    with checked(order, seed):
        _C.run_fault(name)
