"""The examples of docstrings say what the functions give."""

import doctest
import inspect
import pkgutil

import pytest
import torch

import torch_patterns as tp

PACKAGES = (tp.graph, tp.solvers, tp.sparse)


def functions() -> dict[str, object]:
    found = {}
    for package in PACKAGES:
        for info in pkgutil.iter_modules(package.__path__):
            module = __import__(f"{package.__name__}.{info.name}", fromlist=["_"])
            for name, value in inspect.getmembers(module, inspect.isfunction):
                if value.__module__ == module.__name__ and ">>>" in (value.__doc__ or ""):
                    found[f"{module.__name__}.{name}"] = value
    return found


@pytest.mark.parametrize("name", functions())
def test_examples(name):
    example = doctest.DocTestParser().get_doctest(
        functions()[name].__doc__, {"torch": torch, "tp": tp}, name, None, None
    )
    said = []
    failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=said.append)
    assert not failed.failed, "".join(said)
