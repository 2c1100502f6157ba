"""The types that the package ships: the stub of the containers says what they hold, and nothing public is untyped."""

import ast
import inspect
import typing
from pathlib import Path

import pytest

import torch_patterns as tp
from torch_patterns.sparse import _METHODS, containers

STUB = ast.parse(Path(containers.__file__).with_suffix(".pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = [name for name in tp.__all__ if inspect.isfunction(getattr(tp, name))]


def test_the_stub_knows_every_method():
    methods = {node.name for node in CLASSES["_Methods"].body if isinstance(node, ast.FunctionDef)}
    assert methods == set(_METHODS) - {"__radd__"}  # nothing but a matrix may stand on the left of +
    public = {name for name, f in vars(containers).items() if inspect.isfunction(f)}
    assert public - {"NamedTuple"} == {node.name for node in STUB.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", sorted(containers.FORMATS))
def test_the_stub_knows_every_field(name):
    body = CLASSES[f"_{name.upper()}"].body
    cls = containers.FORMATS[name]
    annotations = {field: kind.__forward_arg__ for field, kind in cls.__annotations__.items()}
    assert {node.target.id: ast.unparse(node.annotation) for node in body} == annotations


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_annotated(name):
    signature = inspect.signature(getattr(tp, name))
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


def test_words_that_types_list_are_those_that_operators_take():
    """An operator names its words when it is given another one."""
    import torch

    from torch_patterns import literals

    x, offsets = torch.ones(2), torch.tensor([0, 2])
    calls = {
        literals.ScanOp: lambda: tp.scan(x, op="?"),
        literals.ExtremumOp: lambda: tp.scan_with_indices(x, op="?"),
        literals.ReduceOp: lambda: tp.reduce(x, op="?"),
        literals.SegmentOp: lambda: tp.segment_reduce(x, offsets, op="?"),
        literals.Reduction: lambda: tp.squared_error(x, x, "?"),
    }
    for words, call in calls.items():
        with pytest.raises(ValueError) as error:
            call()
        listed = set(str(error.value).replace(";", " ").replace(",", " ").replace(":", " ").split())
        assert set(typing.get_args(words)) <= {word.strip("'\"`") for word in listed}, error.value
