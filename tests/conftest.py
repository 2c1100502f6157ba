"""Parametrises the generated tests: `spec` and `device` over the Specs and the devices, `rung` over the ladder.

Where there is no GPU, the tests on CUDA are skipped, and the summary names them.
"""

import collections
import os
import secrets
import subprocess
from pathlib import Path

import integrations
import pytest
import torch
from common import DEVICES, NO_GPU, needs_cuda

from torch_patterns import registry, testing


def fuzz_seed() -> int:
    """New in every run; in CI the commit's own, so that a commit passes or fails there every time alike."""
    commit = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    if os.environ.get("CI"):
        return int(subprocess.run(commit, capture_output=True, text=True).stdout[:8] or "0", 16)
    return secrets.randbelow(2**32)


SPECS = testing.specs()
os.environ.setdefault("FUZZ_SEED", str(fuzz_seed()))  # of tests/test_fuzz.py and tests/bad_input.py, for all workers
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch's deterministic mode refuses cuBLAS


def pytest_addoption(parser):
    parser.addoption("--integrations", metavar="FILE", help="write which operator works with what of torch")


def pytest_configure(config):
    config.addinivalue_line("markers", "sanitizer: every kernel at small sizes, for compute-sanitizer")
    config.addinivalue_line("markers", "large: more than 2^31 elements, on CUDA")
    config.addinivalue_line("markers", "devices(*names): the devices that a generated test is for; default: all")


def pytest_report_header(config):
    return f"FUZZ_SEED={os.environ['FUZZ_SEED']}"


def params(spec, device: str, by_rung: bool) -> list:
    rungs = [(r.name,) for r in registry.ladder(spec.pattern) if device in r.written_for] if by_rung else [()]
    marks = [needs_cuda] if device == "cuda" else []
    return [pytest.param(spec, device, *rung, id="-".join((spec.name, device, *rung)), marks=marks) for rung in rungs]


def pytest_generate_tests(metafunc):
    names = [name for name in ("spec", "device", "rung") if name in metafunc.fixturenames]
    if "spec" not in names:
        return
    marker = metafunc.definition.get_closest_marker("devices")
    devices = marker.args if marker else DEVICES
    chosen = [p for spec in SPECS.values() for d in devices for p in params(spec, d, "rung" in names)]
    metafunc.parametrize("spec, device" + (", rung" if "rung" in names else ""), chosen)


@pytest.fixture(autouse=True)
def torch_state():
    """Every test starts from, and is given back, the same threads, generators and modes."""
    threads = 1 if "PYTEST_XDIST_WORKER" in os.environ else torch.get_num_threads()  # the workers share the cores
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    if torch.cuda.is_initialized() and torch.cuda.get_sync_debug_mode():
        torch.cuda.set_sync_debug_mode("default")


def pytest_report_teststatus(report, config):
    if report.skipped and NO_GPU in str(report.longrepr):
        return NO_GPU, "s", NO_GPU.upper()
    return None


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--integrations"):
        integrations.write(Path(config.getoption("--integrations")), terminalreporter.stats)
    skipped = terminalreporter.stats.get(NO_GPU, [])
    if not skipped:
        return
    counts = collections.Counter(r.nodeid.split("[")[0].removeprefix("tests/") for r in skipped)
    terminalreporter.section(f"{len(skipped)} tests skipped: each {NO_GPU}")
    for file, names in sorted(by_file(counts).items()):
        terminalreporter.write_line(f"{file}: {', '.join(names)}")


def by_file(counts: dict[str, int]) -> dict[str, list[str]]:
    files = collections.defaultdict(list)
    for test, count in sorted(counts.items()):
        file, name = test.split("::", 1)
        files[file].append(f"{name.removeprefix('test_')} {count}")
    return files
