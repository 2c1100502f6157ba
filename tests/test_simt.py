"""The checked mode: what breaks a rule of the simt model raises, and says which array and which phase."""

import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from test_ladder import ORDERS

from torch_patterns import registry, scan, simt
from torch_patterns.testing import assert_same_bits

ROOT = Path(__file__).parent.parent
ALGORITHMS = registry.algorithms("scan", "cpu")


@pytest.mark.parametrize("order, seed", ORDERS)
@pytest.mark.parametrize("name", simt.faults())
def test_faults(name, order, seed):
    with pytest.raises(RuntimeError) as raised:
        simt.fault(name, order, seed)
    message = str(raised.value)
    assert message.startswith(f"{name}, block ") and re.search(r"phase \d+ \(\w+\)", message), message
    if name not in ("divergent_barrier", "not_uniform"):  # these are no accesses
        assert re.search(r"'(x|s|flags)'|\b(x|s|flags)\[\d+\]", message), message


def test_a_fault_leaves_nothing_behind():
    with pytest.raises(RuntimeError, match="no fault is called 'none'"):
        simt.fault("none")
    with pytest.raises(ValueError, match="order must be"), simt.checked("sideways"):
        pass
    phases = []
    with simt.checked(observer=phases.append):
        for name in simt.faults():
            with pytest.raises(RuntimeError):
                simt.fault(name)
        phases.clear()
        scan(torch.ones(8), algorithm="kogge_stone")
        assert phases  # the outer session is in force again
        elsewhere = threading.Thread(target=scan, args=(torch.ones(8),), kwargs={"algorithm": "kogge_stone"})
        count = len(phases)
        elsewhere.start()
        elsewhere.join()
        assert len(phases) == count  # a session is its thread's own
    scan(torch.ones(8), algorithm="kogge_stone")
    assert len(phases) == count


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_floats_have_the_same_bits_in_every_order(algorithm):
    x = torch.randn(2, 600, generator=torch.Generator().manual_seed(1))
    want = scan(x, algorithm=algorithm)
    for order, seed in ORDERS:
        with simt.checked(order, seed):
            assert_same_bits(scan(x, algorithm=algorithm), want, f"{algorithm} {order} {seed}")


def phases_of(algorithm: str, x: torch.Tensor) -> list[tuple[str, list[float]]]:
    """(phase, shared array XY) one after another, of a scan in one block."""
    _, phases = simt.trace(scan, x, algorithm=algorithm)
    return [(p["name"], p["arrays"]["XY"]) for p in phases]


def sum_of(x: list[float], first: int, last: int) -> float:
    """Of the elements first to last, those before the start being 0."""
    return sum(x[max(first, 0) : last + 1])


def test_kogge_stone_is_figure_11_2():
    x = torch.randint(-9, 10, (256,)).float()
    values, stride = x.tolist(), 1
    for name, s in phases_of("kogge_stone", x):
        if name == "write":
            stride *= 2
        if name in ("load", "write"):
            assert s == [sum_of(values, i - stride + 1, i) for i in range(256)], f"stride {stride}"
    assert stride == 256


def test_blelloch_sweeps_up_and_down():
    x = torch.randint(-9, 10, (512,)).float()
    values, span = x.tolist(), 1
    for name, s in phases_of("blelloch", x):
        if name == "up":
            span *= 2
            for last in range(span - 1, 512, span):
                assert s[last] == sum_of(values, last - span + 1, last), f"up to {span}"
        elif name == "root":
            assert s[511] == 0
        elif name == "down":
            span //= 2
            for last in range(span - 1, 512, span):
                assert s[last] == sum_of(values, 0, last - span), f"down to {span}"
    assert span == 1


# ---- rungs broken on purpose, in a program of their own


def compile_cpp(target: Path, *arguments) -> Path:
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O0", "-w", "-DTP_FEW_TYPES", "-o", target, *arguments]
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def checker(tmp_path_factory) -> Path:
    sources = (ROOT / "csrc/core").glob("*.cpp")
    return compile_cpp(tmp_path_factory.mktemp("simt") / "core.o", "-Icsrc", "-r", *sources)


# A loop over the strides whose only statement is a phase becomes a phase that loops: no barrier between the strides.
LOOP = r"(for \(int stride[^\n]*\) \{)\s*(block\.phase\(\"%s\", \[&\]\(int t\) \{)(.*?)\n +\}\);\n +\}"
FUSED = r"\2 \1 [&] { \3 }(); } });"

MUTANTS = {  # what is broken: file, what stands there, what takes its place, rung, what the message must say
    "nothing": ("scan/kogge_stone.cu", "", "", "kogge_stone", "right"),
    "kogge_stone without the barrier between read and write": (
        "scan/kogge_stone.cu",
        r"\}\);\s*block\.phase\(\"write\", \[&\]\(int t\) \{",
        "",
        "kogge_stone",
        r"kogge_stone, block \d+, phase \d+ \(read\): race on shared array 'XY'",
    ),
    "blelloch without barriers upwards": (
        "scan/blelloch.cu",
        LOOP % "up",
        FUSED,
        "blelloch",
        r"\(up\): race on .* 'XY'",
    ),
    "blelloch without barriers downwards": (
        "scan/blelloch.cu",
        LOOP % "down",
        FUSED,
        "blelloch",
        r"\(down\): race on .* 'XY'",
    ),
    "a ticket drawn by a plain add": (
        "core/simt_host.h",
        r"mine\[0\] = counter\.template atomic<Sum<int64_t>>\(0, 1\);",
        "{ const int64_t drawn = counter[0]; mine[0] = drawn; counter[0] = drawn + 1; }",
        "single_pass",
        r"single_pass, block \d+, phase 0 \(ticket\): race on global array 'counter'",
    ),
    "a domino that does not wait": (
        "scan/single_pass.cu",
        r"block\.wait\(flag, bid\);",
        "",
        "single_pass",
        r"\(domino\): race on global array 'scan_value'",
    ),
    "a domino that does not signal": (
        "scan/single_pass.cu",
        r"block\.signal\(flag, bid \+ 1\);",
        "",
        "single_pass",
        r"\(domino\): waits for flags\[1\], which no block has set: deadlock",
    ),
    "a guard off by one": (
        "scan/brent_kung.cu",
        r"index \+ stride < section",
        "index + stride <= section",
        "brent_kung",
        r"\(distribute\): index 512 is outside shared array 'XY' of 512 elements",
    ),
    "pads left unwritten": (
        "scan/kogge_stone.cu",
        r"\{ XY\[t\] = x\.load\(id, t\); \}",
        "{ if (x.begin(id) + t < x.n) XY[t] = x.load(id, t); }",
        "kogge_stone",
        r"\(read\): lane \d+ reads shared array 'XY' at \[\d+\], which nothing has written",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found(mutant, checker, tmp_path):
    """Without a barrier, an atomic, a flag or a guard, the message names the array and the phase, in every order."""
    file, pattern, replacement, algorithm, message = MUTANTS[mutant]
    text = (ROOT / "csrc" / file).read_text()
    broken = re.sub(pattern, replacement, text, count=1, flags=re.DOTALL) if pattern else text
    assert (broken != text) == bool(pattern), f"{pattern} is not in {file}"
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(broken)
    rung = next(f for f in (tmp_path / f"scan/{algorithm}.cu", ROOT / f"csrc/scan/{algorithm}.cu") if f.exists())
    sources = ["tests/cpp/checked_scan.cpp", checker, "-x", "c++", rung, "csrc/scan/sections.cu"]
    program = compile_cpp(tmp_path / "program", f"-DALGORITHM={algorithm}", f"-I{tmp_path}", "-Icsrc", *sources)
    output = subprocess.run([program], capture_output=True, text=True).stdout
    assert len(re.findall(message, output)) == 3, output


def test_limits_of_cuda_hold_on_the_host(checker, tmp_path):
    program = compile_cpp(tmp_path / "program", "-Icsrc", "tests/cpp/simt_limits.cpp", checker)
    lines = subprocess.run([program], capture_output=True, text=True).stdout.splitlines()
    patterns = [
        "accepted",
        "kernel: 1025 threads per block; CUDA takes 1 to 1024",
        "kernel: 49153 bytes of shared memory per block; 49152 at most",
        "kernel: a grid of 1 x 65536 x 1 blocks",
        "kernel: a grid of 1 x 1 x 65536 blocks",
        "kernel: a grid of 2147483648 x 1 x 1 blocks",
        "accepted",
        "kernel: shared arrays up to 's' take 4096 bytes, the launch asked for 100",
    ]
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert line.startswith(pattern), line
