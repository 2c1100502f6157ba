"""The benchmarks: every contestant of every Spec, peers too, gives the reference's result; rows become tables."""

import csv
import functools
import time
from dataclasses import replace
from pathlib import Path

import figures
import problems
import pytest
import report
import torch
from common import FakeClock
from problems import compact, histogram, lenet, reduction, scan, segmented, sort, sparse

import torch_patterns as tp
from torch_patterns import bench, registry, testing

ROOT = Path(__file__).parent.parent


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
    assert bench.operator_arguments(["--op=max", "--size", "(2, 3)"]) == {"op": "max", "size": (2, 3)}
    with pytest.raises(SystemExit, match="expected an option"):
        bench.operator_arguments(["op", "max"])
    with pytest.raises(SystemExit, match="expected a value after '--dim'"):
        bench.operator_arguments(["--dim"])
    with pytest.raises(SystemExit, match="in steps of a factor of at least 2"):
        bench.sizes("1:10:1")


def test_rows_become_a_table(tmp_path, monkeypatch):
    path = tmp_path / "scan.csv"
    bench.main(
        ["scan", "--device", "cpu", "--sizes", "64", "--algorithms", "auto,sequential,torch", "--csv", str(path)]
    )
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    (tmp_path / "behind.csv").write_text("results,operator,problem,dtype,reason\n")
    text = report.with_fresh_tables("before\n<!-- bench:scan -->\nold\n<!-- /bench -->\nafter\n")
    assert "| algorithm | scan float32 2^6 |" in text and "| `auto` | " in text and "old" not in text
    assert report.with_fresh_tables(text) == text
    report.plot("scan", tmp_path)
    assert (tmp_path / "scan.png").stat().st_size > 1000


def test_tables_say_why_a_peer_is_faster(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    row = "{},random,1000,float32,{},{},1,1,0"
    times = [
        ("spmv", "torch_patterns", 1.5),
        ("spmv", "torch", 1.0),
        ("spmm", "torch_patterns", 2.0),
        ("spmm", "torch", 3.0),
    ]
    head = "device,torch,cuda,commit,date,operator,problem,elements,dtype,algorithm,milliseconds,"
    lines = [head + "gigabytes_per_second,percent_of_copy,gigaflops", *("d,t,c,c,d," + row.format(*t) for t in times)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "behind.csv").write_text(
        "results,operator,problem,dtype,reason\na,spmv,random,float32,checks columns\n"
    )
    assert report.behind(report.read("a")) == {("spmv", "random", "float32"): 1.5}
    text = report.with_fresh_tables("<!-- bench:a spmv spmm -->\n<!-- /bench -->\n")
    assert "| peers, ms | why a peer is faster |\n| --- |" in text
    assert "| spmv float32 random | 1.5 ms, 1 % | **torch 1.0** | checks columns |" in text
    assert "| spmm float32 random | **2.0 ms, 1 %** | torch 3.0 |  |" in text
    one = report.with_fresh_tables("<!-- bench:a spmm -->\n<!-- /bench -->\n")
    assert "spmm float32" in one and "spmv" not in one


def test_each_operator_has_one_table():
    """Where the tables of docs/figures.md divide the rows of a file."""
    shown: dict[str, list[str]] = {}
    for match in report.MARKED.finditer((ROOT / "docs/figures.md").read_text()):
        shown.setdefault(match[2], []).extend(
            match[3].split() or sorted({r["operator"] for r in report.read(match[2])})
        )
    for name, operators in shown.items():
        assert sorted(operators) == sorted({row["operator"] for row in report.read(name)}), name


def test_each_table_is_of_one_run():
    for match in report.MARKED.finditer((ROOT / "docs/figures.md").read_text()):
        assert len({(row["device"], row["torch"], row["commit"]) for row in report.read(match[2])}) == 1, match[2]


def test_each_row_behind_a_peer_says_why():
    """In the tables of docs/figures.md; and no other row does."""
    names = {match[2] for match in report.MARKED.finditer((ROOT / "docs/figures.md").read_text())}
    with (report.RESULTS / "behind.csv").open(newline="") as file:
        assert {row["results"] for row in csv.DictReader(file)} <= names
    for name in names:
        ahead, why = report.behind(report.read(name)), report.reasons(name)
        missing = {of: ratio for of, ratio in ahead.items() if ratio > 1 + report.MARGIN and of not in why}
        assert not missing, name
        assert why.keys() <= ahead.keys(), name
        assert all(len(reason) > 20 for reason in why.values())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_figures():
    """Each figure at a small size: ours and the peers give what int64 arithmetic gives."""
    small = [
        *reduction.reductions([1000], [(20, 30, 0), (20, 30, 1)], ("sum", "max", "argmax")),
        *scan.scans([5000], [(40, 32, 0), (20, 30, 1)], 600, (torch.bfloat16,)),
        *scan.extrema([((1000,), 0), ((20, 30), 0)]),
        *segmented.segments(4096, 1024),
        *segmented.linear_recurrences(3000),
        *histogram.histograms(1000, (16,), on_cuda=False),
        *compact.compactions(1000, on_cuda=False),
        *sparse.columns(64, (3,)),
        *sparse.conversions(2048),
        *sparse.files(500),
        sort.co_ranks(1000),
        lenet.outputs(8),
        lenet.epochs(24, 8),
    ]
    compiled = [figure for figure in small if "torch.compile" in figure.peers]
    for figure in compiled[1:]:  # one shows that it works, and each takes seconds
        del figure.peers["torch.compile"]
    rows = [figures.measure(figure, "cpu", FakeClock()) for figure in small]
    assert all(row[0]["algorithm"] == "torch_patterns" for row in rows) and any(len(row) > 2 for row in rows)


def test_gradients_of_figures():
    x, t = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0])
    loss = functools.partial(tp.squared_error, reduction="sum")
    assert problems.gradient(loss, constants=1)(x, t, torch.tensor(2.0)).tolist() == [2, 4]
    assert [g.tolist() for g in problems.gradient(loss)(x, t, torch.tensor(1.0))] == [[1, 2], [-1, -2]]
    value, gradient = problems.value_and_gradient(loss, constants=1)(x, t, torch.tensor(1.0))
    assert value == 2.5 and gradient.tolist() == [1, 2]


def test_figures_of_the_cpu_are_timed_without_a_mode(monkeypatch, capsys):
    seen = []

    def measured(figure, device, clock):
        seen.append((figure.name, torch._C._len_torch_function_stack()))
        return [{"algorithm": "torch_patterns", "milliseconds": "1", "percent_of_copy": "1"}]

    monkeypatch.setattr(figures, "Clock", lambda device: FakeClock())
    monkeypatch.setattr(figures, "measure", measured)
    figures.main(["--device", "cpu", "--only", "convert coo"])
    assert len(seen) == 1 and seen[0][1] == 0
    assert seen[0][0] in capsys.readouterr().out


def test_a_wrong_figure_is_not_timed():
    (figure, *_) = reduction.reductions([100], [], ())
    with pytest.raises(AssertionError, match="reduce sum 100 torch_patterns"):
        figures.measure(replace(figure, ours=lambda x: x.sum() + 1), "cpu", FakeClock())
