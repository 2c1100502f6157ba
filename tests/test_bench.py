"""The benchmarks: every contestant of every Spec, peers too, gives the reference's result; rows become tables."""

import time
from dataclasses import replace

import figures
import pytest
import report
import torch
from common import FakeClock
from problems import reduction, scan, segmented

from torch_patterns import bench, registry, testing


def test_every_contestant_is_checked(spec, device):
    cases = [("sized", spec.sized(100))] if spec.sized else [("sample", c) for c in spec.samples]
    for label, case in cases:
        rows = list(bench.measure(spec, label, case, spec.dtype, device, FakeClock(), None))
        measured = [row["algorithm"] for row in rows]
        assert measured[: len(rows) - len(spec.peers)] == ["auto", *registry.algorithms(spec.pattern, device)]
        assert all(row["milliseconds"] == "1" and float(row["gigabytes_per_second"]) > 0 for row in rows)


def test_a_wrong_result_is_not_timed():
    spec = replace(testing.specs()["scan"], peers={"wrong": torch.cumprod})
    with pytest.raises(AssertionError, match="scan wrong here: element"):
        list(bench.measure(spec, "here", testing.case((50,), dim=0), torch.float32, "cpu", FakeClock(), ["wrong"]))


def test_the_clock_of_the_cpu():
    clock = bench.Clock("cpu", budget=0.01)
    assert clock.copy_rate > 1e8
    short, long = clock(lambda: torch.randn(3_000).sort(), lambda: torch.randn(300_000).sort())
    assert 1e-5 < short < long < 10


def test_calls_take_turns():
    turns = []
    calls = [lambda name=name: (turns.append(name), time.sleep(0.001)) for name in "ab"]
    bench.Clock("cpu", budget=0.01)(*calls)
    assert "".join(turns).endswith("abababab")


def test_sizes_and_arguments():
    assert bench.sizes("2^4:2^9") == [16, 64, 256]
    assert bench.sizes("2^4:2^8:16") == [16, 256]
    assert bench.sizes("1000,2^20") == [1000, 2**20]
    assert bench.operator_arguments(["--op", "max", "--dim", "1"]) == {"op": "max", "dim": 1}
    with pytest.raises(SystemExit, match="expected an option"):
        bench.operator_arguments(["op", "max"])


def test_rows_become_a_table(tmp_path, monkeypatch):
    path = tmp_path / "scan.csv"
    bench.main(
        ["scan", "--device", "cpu", "--sizes", "64", "--algorithms", "auto,sequential,torch", "--csv", str(path)]
    )
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    text = report.with_fresh_tables("before\n<!-- bench:scan -->\nold\n<!-- /bench -->\nafter\n")
    assert "| algorithm | scan float32 2^6 |" in text and "| `auto` | " in text and "old" not in text
    assert report.with_fresh_tables(text) == text
    report.plot("scan", tmp_path)
    assert (tmp_path / "scan.png").stat().st_size > 1000


def test_figures():
    """Each figure at a small size: ours and the peers give what int64 arithmetic gives."""
    small = [
        *reduction.reductions([1000], [(20, 30, 0), (20, 30, 1)], ("sum", "max", "argmax")),
        *scan.scans([5000], [(40, 32, 0), (20, 30, 1)], 600, (torch.bfloat16,)),
        *segmented.segments(4096, 1024),
        *segmented.linear_recurrences(3000),
    ]
    rows = [figures.measure(figure, "cpu", FakeClock()) for figure in small]
    assert {figure.name.split(" ")[0] for figure in small} == {
        "reduce",
        "scan",
        "segment_reduce",
        "segment_scan",
        "linear_recurrence",
    }
    assert all(row[0]["algorithm"] == "torch_patterns" for row in rows) and any(len(row) > 1 for row in rows)


def test_a_wrong_figure_is_not_timed():
    (figure, *_) = reduction.reductions([100], [], ())
    with pytest.raises(AssertionError, match="reduce sum 100 torch_patterns"):
        figures.measure(replace(figure, ours=lambda x: x.sum() + 1), "cpu", FakeClock())
