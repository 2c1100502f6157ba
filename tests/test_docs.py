"""Every public function and class shows an example, and each does what it shows; README's blocks run, too."""

import doctest
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist

import torch_patterns as tp
from torch_patterns import registry

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs/site"))
drawings, make = importlib.import_module("drawings"), importlib.import_module("make")
MODULES = ("", "data", "distributed", "graph", "io", "jagged", "lenet", "nn", "registry", "simt", "solvers", "sparse")
INTERNAL = {"registry.documented", "solvers.solve"}  # which other modules of the package use


def public_objects() -> dict[str, object]:
    """By name: the functions and classes that __all__ lists, or else those that a module defines, and methods."""
    found, known = {}, set()
    for name in MODULES:
        module = importlib.import_module(f"torch_patterns.{name}".rstrip("."))
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        for key in getattr(module, "__all__", [key for key in own if not key.startswith("_")]):
            value = getattr(module, key)
            if (inspect.isfunction(value) or inspect.isclass(value)) and id(value) not in known:
                known.add(id(value))
                found[f"{name}.{key}".lstrip(".")] = value
    for name, value in [item for item in found.items() if inspect.isclass(item[1])]:
        for key, method in inspect.getmembers(value, inspect.isfunction):
            ours = method.__module__.startswith("torch_patterns")
            if ours and ">>>" in (method.__doc__ or "") and id(method) not in known:  # containers share theirs
                known.add(id(method))
                found[f"{name}.{key}"] = method
    return {name: value for name, value in found.items() if name not in INTERNAL}


PUBLIC = public_objects()


@pytest.fixture(scope="module")
def one_rank():
    """For torch_patterns.distributed: a world of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", PUBLIC)
def test_example(name, one_rank, capsys):
    names = {"torch": torch, "tp": tp, "distributed": importlib.import_module("torch_patterns.distributed")}
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(PUBLIC[name]), names, name, None, 0)
    assert example.examples, f"{name} shows no example"
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    shown = capsys.readouterr().out
    assert not shown, shown


# ---- what Markdown shows: README.md and docs/*.md

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_readme_runs(tmp_path, monkeypatch):
    """Its Python, from the first block to the last as one program."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    assert len(blocks(ROOT / "README.md", "python")) >= 2
    for block in blocks(ROOT / "README.md", "python"):
        exec(compile(block, "README.md", "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")][1:], ids=lambda page: page.stem)
def test_page_runs(page, one_rank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dist, "init_process_group", lambda: None)  # which one_rank has done
    names = {"torch": torch, "tp": tp}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)


def commands() -> dict[str, Path]:
    """Every command line that a page shows, in a block or between backticks."""
    found = {}
    for page in PAGES:
        text = page.read_text()
        shown = [line for block in blocks(page, "(?:bash|sh|console)?") for line in block.splitlines()]
        shown += re.findall(r"`([^`\n]+)`", text)
        for line in shown:
            line = line.strip().removeprefix("$ ").split("  ")[0].split(" #")[0]
            if re.match(r"(make|python|torchrun) [\w./-]", line):
                found[line] = page
    return found


COMMANDS = commands()


@pytest.mark.parametrize("line", sorted(COMMANDS))
def test_command_exists(line):
    """The target, the module or the file that a command names is there."""
    words = shlex.split(line)
    if words[0] == "make":
        targets = {word for word in words[1:] if "=" not in word}
        known = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
        assert targets <= set(known)
    elif "-m" in words:
        module = words[words.index("-m") + 1]
        assert importlib.util.find_spec(module.split(".")[0])
    else:
        files = [word for word in words[1:] if word.endswith(".py")]
        assert files and all((ROOT / file.split("::")[0]).exists() for file in files), COMMANDS[line]


@pytest.mark.parametrize(
    "line", [line for line in sorted(COMMANDS) if re.match(r"python -m torch_patterns (figure|race) \w", line)]
)
def test_command_prints_what_the_page_shows(line, monkeypatch, capsys):
    text = " ".join(COMMANDS[line].read_text().split())
    monkeypatch.setattr("sys.argv", ["torch_patterns", *line.split()[3:]])
    importlib.import_module("torch_patterns.__main__").main()
    printed = " ".join(capsys.readouterr().out.split())
    if f"$ {line}" in text:
        assert printed in text


# ---- the site


def traces() -> dict[str, list[dict[str, str]]]:
    return drawings.traces((ROOT / "docs/architecture.md").read_text())


@pytest.mark.parametrize("name", ["scan", "spmv", "sort_keys", "bfs", "conv2d"])
def test_a_call_is_followed_from_python_to_the_kernel(name):
    """In eight files at most, each of which still holds what the page says of it."""
    steps = traces()[name]
    files = [step["path"] for step in steps]
    assert len(set(files)) == len(files) <= 8
    assert files[0].endswith(".py") and files[-1].endswith((".cu", ".cuh"))
    for step in steps:
        text = (ROOT / step["path"]).read_text()
        assert re.search(rf"(?<![\w]){re.escape(step['name'])}", text), f"{step['path']} has no {step['name']}"
    for earlier, later in zip(files[5:], files[6:], strict=False):  # patterns are the files' own: one names the next
        stem = Path(later).stem
        assert stem in (ROOT / earlier).read_text() or stem in steps[files.index(earlier)]["text"], (earlier, later)


def test_every_pattern_has_its_page(monkeypatch):
    """Its essay, its ladders with their files, and its figures; Sphinx reads them in `make docs`."""
    monkeypatch.setattr(drawings, "plot", lambda *_: True)
    shown = {ladder for page in make.PAGES.values() for ladder in page.ladders.split()}
    assert shown == set(registry.patterns()) - {other for other in registry.patterns() if other in make_shared()}
    listed = {name for page in make.PAGES.values() for name in f"{page.functions} {page.classes}".split()}
    own = {name for name in PUBLIC if not name.startswith(tuple(f"{module}." for module in make.REFERENCE))}
    own = {name for name in own if name.rpartition(".")[0] not in PUBLIC}  # methods are on their class's page
    assert own - listed == {"algorithms"}, "public, and on no page"
    for name, page in make.PAGES.items():
        text = make.pattern_page(name, page)
        assert text.count("```") % 2 == 0
        for ladder in page.ladders.split():
            assert all(f"`{rung.name}`" in text for rung in registry.ladder(ladder))


def make_shared() -> set[str]:
    """Ladders that are another's under one more name."""
    tables = {}
    for name in registry.patterns():
        tables.setdefault(registry.table(name), []).append(name)
    shown = {ladder for page in make.PAGES.values() for ladder in page.ladders.split()}
    return {name for names in tables.values() for name in names if set(names) & shown} - shown


def test_the_flow_of_a_call_is_drawn(tmp_path):
    drawings.flow((ROOT / "docs/architecture.md").read_text(), tmp_path / "flow.svg")
    shown = (ROOT / "docs/images/flow.svg").read_text()
    assert (tmp_path / "flow.svg").read_text() == shown, "run: python docs/site/drawings.py"
    drawing = ElementTree.parse(tmp_path / "flow.svg").getroot()
    words = " ".join(drawing.itertext())
    assert all(Path(step["path"]).name in words for step in traces()["scan"])


def test_papers_speak_of_this_version():
    assert f"\nversion: {tp.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == tp.__version__
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").iterdir())
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert set(re.findall(r"run: make (\w+)", workflows)) <= set(targets)
