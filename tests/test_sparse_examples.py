"""The examples of sparse matrices, as a learner runs them: what they find is right by another way to find it."""

import re
from pathlib import Path

import formats
import networkx as nx
import numpy as np
import pytest
import torch
from common import EACH_DEVICE, FakeClock, example

import torch_patterns as tp

ROOT = Path(__file__).parents[1]


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_heat_settles_at_the_mean_of_the_neighbours(tmp_path, capsys, device):
    laplace_cg = example("laplace_cg")
    t = laplace_cg.main(["--size", "40", "--device", device, "--out", str(tmp_path / "new" / "a.png")]).cpu()
    held = laplace_cg.plate(40)
    free = held.isnan()
    mean = (t.roll(1, 0) + t.roll(-1, 0) + t.roll(1, 1) + t.roll(-1, 1)) / 4
    assert torch.equal(t[~free], held[~free])
    assert (t - mean)[free].abs().max() < 1e-4
    assert is_picture(tmp_path / "new" / "a.png")
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[2:-1]]
    assert names == list(tp.sparse.FORMATS)
    assert lines[-1].endswith(f"all 8 formats agree: it is {t[20, 20]:.2f} degrees in the middle")


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_the_karate_club_is_told_apart(tmp_path, capsys, device):
    accuracy = example("graph_convolution").main(
        ["--device", device, "--epochs", "60", "--out", str(tmp_path / "a.png")]
    )
    assert accuracy >= 30 / 32
    assert is_picture(tmp_path / "a.png")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"the side of {accuracy:.1%} of the other members is predicted right")


def test_attention_is_learned():
    program = example("graph_convolution")
    torch.manual_seed(0)
    _, A, sides = program.club()
    network = program.Network(A)
    before = network.first.attention().detach()
    assert torch.allclose(before, 1 / A.row_ptrs.diff().float().repeat_interleave(A.row_ptrs.diff()))
    history = program.train(network, torch.tensor([0, 33]), sides, 30)
    after = network.first.attention()
    assert history[-1][0] < history[0][0]
    assert (after - before).abs().max() > 0.01
    assert torch.allclose(tp.segment_reduce(after, A.row_ptrs), torch.ones(34))


@pytest.mark.parametrize("device", EACH_DEVICE)
@pytest.mark.parametrize("edges", [0, 40, 300])
def test_pagerank_as_networkx_computes_it(device, edges):
    draw = np.random.default_rng(edges)
    links = {(int(u), int(v)): float(draw.integers(1, 5)) for u, v in draw.integers(0, 50, (edges, 2))}
    source, target = torch.tensor(list(links), dtype=torch.int64, device=device).view(-1, 2).T
    values = torch.tensor(list(links.values()), dtype=torch.float64, device=device)
    ranks, steps = example("pagerank").pagerank(tp.coo(source, target, values, (50, 50)))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(50))
    graph.add_weighted_edges_from((*link, weight) for link, weight in links.items())
    want = nx.pagerank(graph, tol=1e-12, max_iter=1000)
    assert np.allclose(ranks.cpu(), [want[k] for k in range(50)], rtol=0, atol=1e-11)
    assert steps < 200


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_modules_of_the_standard_library_have_ranks(capsys, device):
    ranks = example("pagerank").main(["--device", device])
    assert ranks[0][0] == "sys" and {"os", "re", "warnings", "functools"} <= {name for name, _ in ranks}
    assert [rank for _, rank in ranks] == sorted((rank for _, rank in ranks), reverse=True)
    assert re.fullmatch(r" 1 +sys +\d\.\d\d% +\N{FULL BLOCK}{50}", capsys.readouterr().out.splitlines()[1][1:])


def test_pages_of_a_file_have_ranks(tmp_path, capsys):
    path = tmp_path / "star.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern general\n4 4 3\n1 3\n2 3\n4 3\n")
    ranks = example("pagerank").main(["--file", str(path)])
    assert [name for name, _ in ranks] == ["3", "1", "2", "4"]
    assert sum(rank for _, rank in ranks) == pytest.approx(1)
    path.write_text("%%MatrixMarket matrix coordinate pattern general\n4 3 0\n")
    with pytest.raises(SystemExit, match="4 x 3"):
        example("pagerank").main(["--file", str(path)])


# ---- the comparison of formats


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("device", EACH_DEVICE)
def test_formats_are_checked_and_compared(device):
    rows = [row for name, A in formats.generated(3000) for row in formats.measure(name, A.to(device), FakeClock())]
    names = [row["matrix"] for row in rows if row["format"] == "ell"]
    assert len(names) == 3 and "one full row" not in "".join(names)  # it would be too large
    assert all(row["milliseconds"] == "1" and row["bytes"] >= 8 * row["entries"] for row in rows)
    rows = [dict.fromkeys(formats.FIELDS, "") | {k: str(v) for k, v in row.items()} for row in rows]
    lines = formats.table(rows).splitlines()
    assert lines[0].startswith("| matrix | entries | coo | csr | csc | ell | hyb | jds | sell | blocked | torch |")
    assert lines[5].startswith("| one full row, others 4 | 14,996 | **1 ms**, 12 B | **1 ms**, 8.8 B | ")


def test_a_wrong_product_is_refused():
    A = next(formats.generated(100))[1]
    x = torch.ones(100)
    y = tp.spmv(A, x)
    formats.check(y, A, x, "here")
    with pytest.raises(SystemExit, match="here: row 3 is off by 1, the bound is"):
        formats.check(y + torch.eye(100)[3], A, x, "here")


def test_tables_of_formats_are_fresh():
    text = (ROOT / "docs/sparse_formats.md").read_text()
    assert formats.with_fresh_tables(text) == text, "run: python benchmarks/formats.py --readme docs/sparse_formats.md"
