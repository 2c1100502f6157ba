"""Outputs and workspaces filled with NaN and -1, and fenced by pages without access: results are the same, and nothing
is read or written beyond them (tests/cpp/guard.c), but for the first 512 bytes of workspaces, which are on the stack.
On CUDA tests/sanitize.py looks for the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the C library of Linux")


@pytest.fixture(scope="module")
def guard(tmp_path_factory) -> Path:
    library = tmp_path_factory.mktemp("guard") / "guard.so"
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    source = HERE / "cpp" / "guard.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-lpthread"], check=True)
    return library


def preloaded(guard: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "LD_PRELOAD": str(guard), "PYTHONPATH": str(HERE)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=1800)


def test_every_rung_between_guard_pages(guard):
    done = preloaded(guard, str(HERE / "guarded.py"))
    lines = done.stdout.strip().split("\n")
    assert done.returncode == 0 and lines[-1] == "all", (
        f"exit {done.returncode} in {lines[-1]!r}: {done.stderr[-3000:]}"
    )


@pytest.mark.parametrize(
    "access, sign",
    [
        ("address + 4 * 32", "exit -11"),  # beyond the last line of 64 bytes
        ("address - 4200", "exit -11"),
        ("address + 4 * 31", "behind a block of 124 bytes"),
        ("address - 1", "before a block of 124 bytes"),
    ],
)
def test_the_guard_finds_what_it_is_for(guard, access, sign):
    code = "import ctypes, torch; x = torch.empty(31); address = x.data_ptr(); assert x.isnan().all(); "
    code += f"ctypes.memset({access}, 1, 1); del x"
    done = preloaded(guard, "-c", code)
    assert done.returncode != 0 and sign in f"exit {done.returncode} {done.stderr}"
