"""The house rules: who includes whom, one list of rungs, every file with its essay, fresh tables."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

from torch_patterns import registry
from torch_patterns.__main__ import MARKED, with_fresh_tables
from torch_patterns.sparse.containers import FORMATS, LAYOUTS

ROOT = Path(__file__).parent.parent
CSRC = ROOT / "csrc"
SOURCES = sorted(p for p in CSRC.rglob("*") if p.suffix in (".h", ".cuh", ".inc", ".cpp", ".cu"))
FOLDERS = sorted({p.parent for p in CSRC.rglob("rungs*.def")})  # one per ladder, or a few that share rungs
# What a pattern may use of others, through their <pattern>.h only.
USES = {
    "compact": {"scan"},
    "sort": {"reduction", "scan", "histogram", "compact", "merge"},
    "segmented": {"reduction", "scan", "histogram", "compact", "merge"},
    "sparse": {"reduction", "scan", "histogram", "compact", "merge", "sort", "segmented"},
    "graph": {"reduction", "scan", "histogram", "compact", "merge", "sort", "segmented", "sparse"},
    "lenet": {"conv", "pooling", "layers"},
}
TRAITS = {"batched", "commutative", "float_atomics", "host_sync", "mixes_neighbours", "norm_wise", "quadratic"}
LINE = re.compile(r'^(RUNG|RUNG_CPU|RUNG_CUDA)\((\w+), "(.+?)", "(.+?)", "(.+?)", "(.+?)", "(.*?)", "(.+)"\)$')
NAMED = r"[A-Z][a-z]+( and [A-Z][a-z]+)? \d{4}|ECE 408|Hwu lecture 4\.\d"  # papers, and the courses of core/ladder.h
SOURCE = re.compile(rf"(§[\d.]+(-[\d.]+)?( text)?|Fig\. [\d.]+(-[\d.]+)?|exercises? [\d.]+(-[\d.]+)?|{NAMED}|beyond)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def rungs(folder: Path) -> list[tuple[str, ...]]:
    """(macro, name, source, figures, work, steps, traits, summary) of every line of the folder's lists."""
    lines = [line for path in sorted(folder.glob("rungs*.def")) for line in path.read_text().splitlines()]
    matches = {line: LINE.match(line) for line in lines if line and not line.startswith("//")}
    assert all(matches.values()), [line for line, match in matches.items() if not match]
    return [match.groups() for match in matches.values()]


def included(path: Path, opening: str, closing: str) -> list[str]:
    return re.findall(rf"#\s*include {opening}(.+?){closing}", path.read_text())


def wrong_include(folder: str, target: str) -> str | None:
    """What is wrong with a file of `folder` that includes the file `target` of csrc."""
    other = target.split("/")[0]
    if not (CSRC / target).exists():
        return "is not a path from csrc"
    if folder == "torch" or other in ("core", folder) or (other == "block" and folder != "core"):
        return None
    if other not in USES.get(folder, ()):
        return f"{folder} may not use {other}"
    return None if target == f"{other}/{other}.h" else f"use {other} through {other}/{other}.h"


def wrong_library(path: Path, folder: str, target: str) -> str | None:
    if target.startswith(("pybind11/", "Python.h", "torch/csrc/autograd/python")):
        return None if path.name.startswith("python") else "only python*.cpp know Python"
    if target.startswith(("ATen/", "c10/", "torch/")):
        return None if folder == "torch" else "only csrc/torch knows torch"
    return "kernels are our own" if target.startswith(("cub/", "thrust/")) else None


def test_includes_run_one_way():
    problems = []
    for path in SOURCES:
        folder = path.relative_to(CSRC).parts[0]
        found = [(t, wrong_include(folder, t)) for t in included(path, '"', '"')]
        found += [(t, wrong_library(path, folder, t)) for t in included(path, "<", ">")]
        problems += [f"{name(path)} includes {target}: {problem}" for target, problem in found if problem]
    assert not problems


def imports(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of the package that a module of it imports, also within functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members & set(modules) or {node.module}
    return found & set(modules)


def test_python_imports_run_one_way():
    package = ROOT / "torch_patterns"
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in package.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    del modules["torch_patterns"]  # which every module has imported
    order = list(graphlib.TopologicalSorter({m: imports(p, modules) - {m} for m, p in modules.items()}).static_order())
    assert (
        order.index("torch_patterns.arguments")
        < order.index("torch_patterns.calls")
        < order.index("torch_patterns.scan")
    )


def test_headers_open_with_what_they_are():
    texts = {name(path): path.read_text() for path in SOURCES if path.suffix in (".h", ".cuh", ".inc")}
    assert not [path for path, text in texts.items() if not text.startswith("// ")]
    assert not [path for path, text in texts.items() if "#pragma once\n" not in text and not path.endswith(".inc")]


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_every_rung_has_its_file_and_every_file_its_line(folder):
    names = {rung[1] for rung in rungs(folder)}
    files = {path.stem: path for path in folder.iterdir() if path.suffix in (".cu", ".cpp") and path.stem != "choose"}
    shared = {stem for stem in files.keys() - names if (folder / f"{stem}.h").exists()}
    assert files.keys() - shared == names
    pattern = CSRC / folder.relative_to(CSRC).parts[0]
    assert (pattern / "choose.cpp").exists() and (pattern / f"{pattern.name}.h").exists()
    for macro, rung, *_ in rungs(folder):
        text = files[rung].read_text()
        assert re.search(rf"\b{rung}\(", text), f"{name(files[rung])} defines no {rung}"
        essay = ("// ", f'#include "{pattern.name}/')
        assert text.startswith(essay), f"{name(files[rung])} opens with its essay, or with the header that has it"
        if macro == "RUNG":
            cuda = re.findall(r"threadIdx|blockIdx|__sync\w+|__shfl\w+|__shared__|__global__", text)
            assert not cuda, f"{name(files[rung])} is for both devices and names {cuda}"


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_every_rung_says_where_it_comes_from(folder):
    for macro, rung, source, figures, work, steps, traits, summary in rungs(folder):
        assert all(SOURCE.fullmatch(part) for part in source.split(", ")), f"{rung}: {source!r}"
        assert re.fullmatch(r"-|\d+\.\d+(-\d+\.\d+)?(, \d+\.\d+(-\d+\.\d+)?)*", figures), f"{rung}: {figures!r}"
        assert work and steps and set(traits.split()) <= TRAITS, f"{rung}: {traits!r}"
        assert not summary.endswith("."), f"{rung}: a phrase, not a sentence"
        assert macro == "RUNG_CPU" or rung not in ("sequential", "threaded")


def test_a_ladder_starts_with_its_oracle():
    for pattern in registry.patterns():
        ladder = registry.ladder(pattern)
        oracle = "layers" if pattern == "lenet5" else "sequential"  # a network is composed of layers that have theirs
        assert ladder[0].name == oracle and "cpu" in ladder[0].devices
        assert len({rung.name for rung in ladder}) == len(ladder)


def parts(path: str) -> set[str]:
    """What the build compiles a .cu for, one at a time (setup.py and CMakeLists.txt)."""
    return set(re.search("^// TP_PARTS: (.*)$", (CSRC / path).read_text(), re.M)[1].split())


def test_the_parts_of_a_file_are_those_that_are_called():
    called = set(re.findall(r"lookback::scan<OpId::(\w+)>", (CSRC / "scan/decoupled_lookback.cu").read_text()))
    assert parts("scan/lookback/scan.cu") == called
    words = set(re.findall(r"f\(Type<(uint\d+_t)>\{\}\)", (CSRC / "core/key.h").read_text()))
    assert parts("sort/onesweep/short.cu") == words
    assert parts("sort/onesweep/passes.cu") == words | {"half", "float", "double"}  # of every size but one byte


def test_rungs_are_listed_nowhere_else():
    """Three names of one ladder in a file are a second list that would have to be maintained; csrc/torch has none."""
    ladders = [{r.name for r in registry.ladder(p) if len(r.name) >= 6} for p in registry.patterns()]
    for folder in ("torch_patterns", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            quoted = set(re.findall(r"""["'](\w+)["']""", path.read_text()))
            assert all(len(quoted & names) < 3 for names in ladders), name(path)
    for path in (CSRC / "torch").iterdir():
        quoted = set(re.findall(r'"(\w+)"', path.read_text()))
        assert not any(quoted & names for names in ladders), name(path)


def test_tables_of_ladders_are_fresh():
    text = (ROOT / "docs/ladders.md").read_text()
    assert with_fresh_tables(text) == text, "run: python -m torch_patterns readme"
    shown = {registry.table(match[2]) for match in MARKED.finditer(text)}
    missing = [pattern for pattern in registry.patterns() if registry.table(pattern) not in shown]
    assert not missing, f"docs/ladders.md shows no ladder of {missing}"


def test_a_sparse_format_takes_the_files_that_the_docs_list():
    """Generic code asks the table of formats and names none, whose words are no words of other things."""
    steps = (ROOT / "docs/extend.md").read_text().split("\n## A sparse format\n")[1].split("\n2. ")[1]
    listed = set(re.findall(r"`((?:csrc|torch_patterns|docs)/[\w/]+\.\w+)`", steps))
    assert len(listed) <= 10
    suffixes = (".h", ".cuh", ".def", ".cpp", ".cu", ".py", ".pyi")
    paths = [p for folder in ("csrc", "torch_patterns") for p in (ROOT / folder).rglob("*") if p.suffix in suffixes]
    for form in ("jds", "sell"):
        named = re.compile(rf"(?i)(?<![a-z])(spm[vm]_)?{form}(?![a-z])")
        generic = [p for p in paths if not (p.parent.parent == CSRC / "sparse" and p.parent.name in FORMATS)]
        assert {name(p) for p in generic if named.search(p.read_text())} == listed - {"docs/ladders.md"}


def test_the_table_of_formats_has_the_fields_of_the_containers():
    for form, cls in FORMATS.items():
        layout = LAYOUTS[form]
        stored = [f for f in cls._fields if f not in ("shape", "section_rows")]
        assert stored == sorted(layout.index + layout.values, key=stored.index) and cls._fields[-1] == "shape"
        assert layout.in_sections == ("section_rows" in cls._fields)


def test_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150, "what is beyond belongs in docs/"


def test_files_stay_short():
    folders = (ROOT / folder for folder in ("csrc", "torch_patterns", "tests", "benchmarks", "examples"))
    paths = [p for folder in folders for p in folder.rglob("*") if p.suffix in (".py", ".h", ".cuh", ".cpp", ".cu")]
    lengths = {name(p): len(p.read_text().splitlines()) for p in [*paths, ROOT / "setup.py"]}
    assert not {path: n for path, n in lengths.items() if n > 450}
