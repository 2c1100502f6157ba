"""The set-up: what a wheel holds, C++ programs that link to it, one list of sources, what `make` says is missing."""

import json
import os
import runpy
import shutil
import subprocess
import sys
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


IN_AN_INSTALLED_PACKAGE = """
import importlib.metadata, torch, torch_patterns
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

    configure(ROOT / "tests/cpp", tmp_path / "cpp", package)
    run("cmake", "--build", tmp_path / "cpp")
    assert run(tmp_path / "cpp/main", tmp_path / "model.pt").splitlines() == [
        "scripted 0 1 5 14",
        "gradient 6 8 6 0",
        "dispatched 24 24 12 4",
        "gradient 24 24 20 16",
    ]


def test_setup_and_cmake_build_the_same_files(tmp_path, monkeypatch):
    configure(ROOT / "csrc", tmp_path)
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    of_cmake = {str(Path(command["file"]).relative_to(ROOT / "csrc")) for command in commands}

    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    monkeypatch.chdir(ROOT)
    groups = runpy.run_path(str(ROOT / "setup.py"))["sources"].values()
    # A kernel that is built as C++ has another name.
    names = {path.removeprefix("build/cpp/").replace(".cu.cpp", ".cu") for paths in groups for path in paths}
    of_setup = {name.removeprefix("csrc/") for name in names}
    assert of_setup == of_cmake


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
