"""Checks of argument types, and error messages that name the argument.

A wrapper does not check the types of its arguments before it calls its operator, because torch does, and because checks
would make every call slower. But torch's errors quote the operator's schema and do not name the Python argument. So the
arguments are examined after a call has failed:

- numpy numbers are replaced by Python numbers, and the call is repeated;
- an object of another library raises a TypeError that names the argument and the function that converts the object;
- any other error is raised unchanged.

calls.py does this for every operator, by its schema. Functions that use their arguments before they call an operator
have the decorator `typed`, which does the same by their annotations.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch

from torch_patterns.tuples import kinds

F = TypeVar("F", bound=Callable[..., Any])
# An annotation with one of these words allows more than tensors, so a value that is no tensor is not refused.
_OTHERS = ("Matrix", "Graph", "Sequence", "Ids", "Callable", "Product", "Any")


def typed(function: F) -> F:
    """Decorates a function so that a call which fails because of the type of an argument names the argument."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception:
            if torch.compiler.is_compiling():
                raise
            replaced = _plain(function, args, kwargs)
            if replaced is None:
                raise
        return function(*replaced.args, **replaced.kwargs)

    return cast(F, call)


def _plain(function: Callable, args: tuple, kwargs: dict) -> inspect.BoundArguments | None:
    """Returns the arguments of a failed call with Python numbers in place of numpy's, or None if there are none.

    Raises a TypeError if an argument is an object of another library.
    """
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None
    changed = False
    for name, value in bound.arguments.items():
        annotation = str(inspect.signature(function).parameters[name].annotation)
        refuse(function.__name__, name, value, annotation)
        plain = _number(value) if "Tensor" not in annotation or "int" in annotation else value
        if plain is not value:
            bound.arguments[name] = plain
            changed = True
    return bound if changed else None


def plain_arguments(name: str, op: torch._ops.OpOverload, args: tuple) -> list | None:
    """Does the same as `_plain` for a failed call of an operator: returns new arguments, or None if none changed."""
    plain = list(args)
    for i, (value, argument) in enumerate(zip(args, op._schema.arguments, strict=False)):
        kind = str(argument.type)
        if kind == "Tensor" or (kind == "Optional[Tensor]" and value is not None):
            refuse(name, argument.name, value, "Tensor")
            if cast(torch.Tensor, value).layout not in (torch.strided, torch.jagged):
                raise TypeError(f"{name}: {argument.name} must be a dense tensor, got {type_name(value)}")
        elif kind == "List[Tensor]" and isinstance(value, (list, tuple)):
            for j, item in enumerate(value):
                refuse(name, f"{argument.name}[{j}]", item, "Tensor")
        elif "Tensor" not in kind:
            plain[i] = _number(value)
            if kind == "List[int]":
                _refuse_sizes(name, argument.name, plain[i])
    changed = any(new is not old for new, old in zip(plain, args, strict=True))
    return plain if changed else None


def _refuse_sizes(function: str, name: str, value: Any) -> None:
    """Raises a TypeError if a value is neither an integer nor a sequence of integers."""
    if not all(isinstance(v, (int, torch.SymInt)) for v in (value if isinstance(value, (list, tuple)) else [value])):
        given = type_name(value) if isinstance(value, torch.Tensor) else repr(value)
        raise TypeError(f"{function}: {name} must be an integer or a sequence of them, got {given}")


def _number(value):
    """Returns a numpy number as a Python number, also within a list or tuple; returns other values unchanged."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, (list, tuple)) and any(isinstance(v, np.generic) for v in value):
        return type(value)(map(_number, value)) if type(value) in (list, tuple) else value
    return value


def refuse(function: str, name: str, value: Any, annotation: str) -> None:
    """Raises a TypeError if an argument annotated as a tensor, a sparse matrix or a graph is something else."""
    if "Matrix" in annotation and not _is(value, "Matrix"):
        if not ("Product" in annotation and callable(value)):
            raise TypeError(f"{function}: {name} must be a sparse matrix (COO, CSR, ...), got {_matrix_hint(value)}")
    elif "Graph" in annotation and not _is(value, "Graph"):
        raise TypeError(f"{function}: {name} must be a Graph, got {_graph_hint(value)}")
    elif "Tensor" in annotation and not any(word in annotation for word in _OTHERS):
        if isinstance(value, torch.Tensor) or (value is None and "None" in annotation):
            return
        if isinstance(value, (int, float, np.number)) and any(word in annotation for word in ("int", "float")):
            return
        if isinstance(value, (list, tuple)) and annotation.startswith(("list[", "tuple[")) and value:
            for i, item in enumerate(value):
                refuse(function, f"{name}[{i}]", item, "Tensor")
            return
        raise TypeError(f"{function}: {name} must be a tensor, got {_tensor_hint(value)}")


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, tuple(kinds[kind]))


def type_name(value: Any) -> str:
    """Returns the name of a type for errors: with its module unless it is a builtin, and a sparse tensor's layout."""
    if isinstance(value, torch.Tensor):
        return f"torch.Tensor ({value.layout})" if value.layout != torch.strided else "torch.Tensor"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]}.{kind.__name__}"


def _is_scipy(value: Any) -> bool:
    return type(value).__module__.startswith("scipy.sparse")


def _tensor_hint(value: Any) -> str:
    if _is(value, "Matrix"):
        return f"{type(value).__name__}; its to_dense() makes one"
    if isinstance(value, np.ndarray):
        return f"{type_name(value)}; torch.from_numpy() makes one"
    if _is_scipy(value):
        return f"{type_name(value)}; torch_patterns.sparse.from_scipy() makes a sparse matrix of it"
    if isinstance(value, (list, tuple, int, float, complex, np.generic)):
        return f"{type_name(value)}; torch.tensor() makes one"
    return type_name(value)


def _matrix_hint(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{type_name(value)}; torch_patterns.sparse.from_torch() makes one"
    if _is_scipy(value):
        return f"{type_name(value)}; torch_patterns.sparse.from_scipy() makes one"
    if isinstance(value, np.ndarray):
        return f"{type_name(value)}; torch_patterns.sparse.from_torch(torch.from_numpy()) makes one"
    return type_name(value)


def _graph_hint(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{type_name(value)}; torch_patterns.graph.from_torch() makes one"
    if _is_scipy(value):
        return f"{type_name(value)}; torch_patterns.graph.from_scipy() makes one"
    if type(value).__module__.startswith("networkx"):
        return f"{type_name(value)}; torch_patterns.graph.from_networkx() makes one"
    if _is(value, "Matrix"):
        return f"{type(value).__name__}; torch_patterns.graph.from_csr() makes one of the row_ptrs and col_idx of a CSR"
    return type_name(value)


def pair(value: int | Sequence[int]) -> tuple[int, ...]:
    """Returns (rows, columns) for one number, which counts for both, or for a sequence of one or two, as torch does.

    Any other value is returned unchanged, so that the operator refuses it with the name of the argument.
    """
    if isinstance(value, torch.SymInt):
        return (cast(int, value),) * 2
    if isinstance(value, (int, np.integer)):
        return int(value), int(value)
    unlike = isinstance(value, (str, torch.Tensor)) or (isinstance(value, np.ndarray) and value.ndim == 0)
    if unlike or not isinstance(value, Iterable):
        return cast(tuple[int, ...], value)
    values = tuple(value)
    return values * 2 if len(values) == 1 else values


def integer(function: str, name: str, value: Any) -> int:
    """Converts any integer to a Python int: of numpy, or a tensor with no dimensions; a bool is a TypeError."""
    if isinstance(value, torch.SymInt) or type(value) is int:
        return cast(int, value)
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_floating_point():
        if value.dtype != torch.bool and not value.is_complex():
            return int(value)
    try:
        if isinstance(value, (bool, np.bool_, torch.Tensor)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{function}: {name} must be an integer, got {type_name(value)}") from None


def word(function: str, name: str, value: Any) -> int:
    """Converts any integer to a Python int, and raises a ValueError if it does not fit in 64 bits."""
    number = integer(function, name, value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{function}: {name} must be in -2^63 ... 2^63 - 1, got {number}")
    return number


def real(function: str, name: str, value: Any) -> float:
    """Converts any real number to a Python float; text is a TypeError."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{function}: {name} must be a number, got {type_name(value)}") from None


def integers(function: str, name: str, x: Any) -> None:
    """Raises an error if an argument is not a one-dimensional tensor of integers."""
    refuse(function, name, x, "Tensor")
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{function}: {name} must be integers, got {x.dtype}")
    if x.dim() != 1:
        raise ValueError(f"{function}: {name} must have one dimension, got shape {list(x.shape)}")
