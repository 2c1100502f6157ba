"""The set-up: what a wheel holds, C++ programs that link to it, one list of sources, what `make` says is missing."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent


def run(*command, cwd=ROOT, env=None) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, text=True, capture_output=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def configure(source: Path, build: Path, *prefixes: Path):
    if not shutil.which("cmake"):
        pytest.skip("no cmake here")
    path = ";".join(map(str, [torch.utils.cmake_prefix_path, *prefixes]))
    run("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={path}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.scan(x * x, -1, "sum", True)


def commands_in_cpp() -> list[str]:
    """What docs/cpp.md has its readers type, and README where it says so, too: built where $BUILD is."""
    shown = {}
    for page in ("docs/cpp.md", "README.md"):
        blocks = re.findall(r"^```(?:bash)?\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        shown[page] = [line for block in blocks for line in block.splitlines() if line.startswith("cmake ")]
    assert shown["docs/cpp.md"] and shown["README.md"] in ([], shown["docs/cpp.md"])
    return [line.replace("build/program", "$BUILD/program") for line in shown["docs/cpp.md"]]


IN_AN_INSTALLED_PACKAGE = """
import importlib.metadata, sys, torch, torch_patterns
lazy = {f"torch_patterns.{name}" for name in ("bench", "data", "lenet", "nn", "testing")} | {"matplotlib", "scipy"}
assert not lazy & sys.modules.keys()
from torch_patterns.version import __version__
print(torch_patterns.__file__)
assert importlib.metadata.version("torch_patterns") == __version__
assert torch.ops.torch_patterns.scan(torch.ones(3)).tolist() == [1, 2, 3]
torch.jit.load("model.pt")
"""


@pytest.mark.slow
def test_a_wheel_serves_python_and_cpp(tmp_path):
    """One installed library: Python imports it with no compiler at hand, a C++ program gets values and gradients."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index"]
    run(*pip, "--target", site, ".")
    package = site / "torch_patterns"
    headers = {str(path.relative_to(package / "include")) for path in package.glob("include/**/*.*")}
    assert {"core/op.h", "core/ladder.inc", "scan/rungs.def"} <= headers
    assert not [name for name in headers if name.endswith((".cpp", ".cu"))]

    import torch_patterns  # noqa: F401  (loads the ops that the model calls)

    torch.jit.script(Model()).save(tmp_path / "model.pt")
    bare = {**os.environ, "PATH": "", "PYTHONPATH": str(site)}
    assert str(package) in run(sys.executable, "-W", "ignore", "-c", IN_AN_INSTALLED_PACKAGE, cwd=tmp_path, env=bare)

    if not shutil.which("cmake"):
        pytest.skip("no cmake here")
    for line in commands_in_cpp():
        at_site = {**os.environ, "PYTHONPATH": str(site), "BUILD": str(tmp_path), "PYTHON": sys.executable}
        run("bash", "-ec", f"python() {{ (cd $BUILD && $PYTHON -W ignore $@) }}; {line}", env=at_site)
    assert run(tmp_path / "program/main", tmp_path / "model.pt").splitlines() == [
        "scripted 0 1 5 14",
        "gradient 6 8 6 0",
        "dispatched 24 24 12 4",
        "gradient 24 24 20 16",
    ]


def test_setup_and_cmake_build_the_same_files(tmp_path, monkeypatch):
    configure(ROOT / "csrc", tmp_path)
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    of_cmake = {re.sub(f"^({ROOT / 'csrc'}|{tmp_path})/", "", command["file"]) for command in commands}

    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    monkeypatch.chdir(ROOT)
    groups = runpy.run_path(str(ROOT / "setup.py"))["sources"].values()
    # A kernel that is built as C++ has another name, and a part of a kernel is a file that the build writes.
    names = {re.sub("^(csrc|build/cpp|build/cu)/", "", path) for paths in groups for path in paths}
    assert {name.replace(".cu.cpp", ".cu") for name in names} == of_cmake


@pytest.mark.parametrize(
    "variable, missing, packages",
    [
        ("PYTHON=no-python", "no no-python here", "python3 python3-venv python3-dev g++"),
        ("PYTHON=false", "false is older than 3.10", "python3.12 python3.12-venv python3.12-dev"),
        ("CXX=no-compiler", "no-compiler is no C++20 compiler", "g++"),
    ],
)
def test_make_names_what_a_machine_lacks(variable, missing, packages):
    done = subprocess.run(["make", "machine", variable], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode != 0
    assert done.stderr.startswith(f"make: {missing}: sudo apt install {packages}")


def test_a_source_distribution_holds_all_that_git_does(tmp_path):
    """So it builds, tests, and makes the site; what was built is not in it."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("no checkout")
    tracked = set(run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines())
    command = ["setup.py", "-q", "egg_info", "--egg-base", tmp_path, "sdist", "--formats", "tar", "-d", tmp_path]
    run(sys.executable, "-W", "ignore", *command)
    (archive,) = tmp_path.glob("*.tar")
    with tarfile.open(archive) as file:
        held = {name.split("/", 1)[1] for name in file.getnames() if "/" in name}
    assert {path for path in tracked if (ROOT / path).exists()} <= held
    assert not [path for path in held if path.endswith(".so") or path.startswith(("build/", ".venv/"))]


def test_another_torch_than_was_built_with_is_an_import_error():
    code = "import torch; torch.__version__ = '9.8.7'; import torch_patterns"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, text=True, capture_output=True)
    built = ".".join(torch.__version__.split(".")[:2])
    assert done.returncode == 1
    assert re.search(rf"ImportError: .* was built with torch {built}\.\S+, this is 9.8.7: build it", done.stderr)


@pytest.mark.parametrize(
    "wanted, fits", [("", True), ("0.1", True), ("0.1.0", True), ("0.0", False), ("0.2", False), ("1", False)]
)
def test_the_cmake_package_has_a_version(wanted, fits, tmp_path):
    if not shutil.which("cmake"):
        pytest.skip("no cmake here")
    version = ROOT / "torch_patterns/share/cmake/TorchPatterns/TorchPatternsConfigVersion.cmake"
    show = "message(STATUS ${PACKAGE_VERSION}=${PACKAGE_VERSION_COMPATIBLE})"
    script = tmp_path / "find.cmake"
    script.write_text(f'set(PACKAGE_FIND_VERSION "{wanted}")\ninclude({version})\n{show}\n')
    assert run("cmake", "-P", script).split()[-1] == f"0.1.0={str(fits).upper()}"
