"""The programs on graphs, at small sizes: routes that are wires, labels that are distances, pictures that are there."""

import pytest
import torch
from common import EACH_DEVICE, example
from scipy.sparse import csgraph, csr_array

PNG = b"\x89PNG\r\n\x1a\n"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:matplotlib")


@pytest.fixture(scope="module")
def routing():
    return example("maze_routing")


@pytest.fixture(scope="module")
def cnn():
    return example("bfs_labels_cnn")


# ---- maze routing


def check_wires(chip) -> None:
    """Wires go from free block to free block, join the terminals of their net, and touch those of no other."""
    per_layer, owner = chip.free.numel(), {}
    pins = {pin: k for k, net in enumerate(chip.nets) for pin in chip.pins(net.terminals)}
    for k, net in enumerate(chip.nets):
        joined = set(chip.pins(net.terminals[:1]))
        for wire in net.wires:
            assert wire[-1] in joined and wire[0] in chip.pins(net.terminals)
            for block in wire:
                layer, row, column = chip.coordinates(block)
                assert chip.free[row, column] and block == layer * per_layer + row * chip.columns + column
                assert owner.setdefault(block, k) == k and pins.get(block, k) == k
            for here, there in zip(wire, wire[1:], strict=False):
                steps = [abs(a - b) for a, b in zip(chip.coordinates(here), chip.coordinates(there), strict=True)]
                assert steps in ([0, 0, 1], [0, 1, 0])
            joined |= {*wire, *chip.pins([wire[0] % per_layer])}
        assert net.routed == joined.issuperset(net.terminals)


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_routes(routing, device, tmp_path, capsys):
    options = ["--rows", "50", "--columns", "60", "--components", "7", "--nets", "9", "--out", str(tmp_path)]
    chip = routing.main([*options, "--device", device])
    check_wires(chip)
    assert len(chip.nets) == 9 and all(net.routed for net in chip.nets)
    assert "9 of 9 nets routed" in capsys.readouterr().out
    assert (tmp_path / "maze_routing.png").read_bytes().startswith(PNG)


def test_a_wire_is_a_shortest_one(routing):
    """The first one has nothing in its way but components and terminals."""
    chip = routing.design(50, 60, 1, 7, 9, 2)
    net = chip.nets[0]
    net.terminals = net.terminals[:2]
    free = chip.free.clone()
    free.view(-1)[[t for other in chip.nets[1:] for t in other.terminals]] = False
    numbers = {cell: i for i, cell in enumerate(map(tuple, free.nonzero().tolist()))}
    pairs = [
        (i, numbers[r + a, c + b])
        for (r, c), i in numbers.items()
        for a, b in ((0, 1), (1, 0))
        if (r + a, c + b) in numbers
    ]
    src, dst = zip(*pairs, strict=True)
    matrix = csr_array(([1] * len(src), (src, dst)), shape=(len(numbers),) * 2)
    ends = [numbers[divmod(t, chip.columns)] for t in net.terminals]
    steps = csgraph.dijkstra(matrix, directed=False, unweighted=True, indices=ends[0])[ends[1]]
    assert routing.join(net, free[None], chip, "auto") == 1
    assert len(net.wires[0]) == steps + 1


def test_nets_that_cannot_be_routed(routing, tmp_path):
    """On one layer, too many nets: what is routed is right, and the picture is drawn all the same."""
    chip = routing.design(40, 40, 1, 4, 20, 1)
    routing.route(chip, attempts=2)
    check_wires(chip)
    assert not all(net.routed for net in chip.nets)
    routing.draw(chip, tmp_path / "chip.png")
    empty = routing.design(12, 12, 2, 0, 3, 1)
    assert routing.route(empty) == 0 and not empty.nets
    routing.draw(empty, tmp_path / "empty.png")
    for name in ("chip", "empty"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)


# ---- distances by a CNN


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_labels_are_distances(cnn, device):
    mazes = cnn.make_mazes(5, 8, torch.Generator().manual_seed(3), device)
    assert mazes.inputs.shape == (5, 2, 8, 8) and (mazes.source.flatten(1).sum(1) == 1).all()
    for passable, source, distance in zip(*(x.cpu()[:, 0] for x in mazes), strict=True):
        want, frontier = torch.full((8, 8), -1), {tuple(source.nonzero()[0].tolist())}
        level = 0
        while frontier:
            for cell in frontier:
                want[cell] = level
            around = {(r + a, c + b) for r, c in frontier for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))}
            frontier = {(r, c) for r, c in around if 0 <= r < 8 and 0 <= c < 8 and passable[r, c] and want[r, c] < 0}
            level += 1
        assert torch.equal(distance.long(), want)
    empty = cnn.Mazes(torch.ones_like(mazes.passable), mazes.source, mazes.distance)
    graph = cnn.tp.graph.maze(empty.passable)
    levels, _ = cnn.tp.bfs(graph, mazes.source.view(-1).nonzero()[:, 0])
    assert torch.equal(cnn.without_walls(empty).long(), levels.view(5, 1, 8, 8).long())


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_the_network_learns(cnn, device, tmp_path, capsys):
    torch.set_num_threads(1)
    options = ["--size", "6", "--rounds", "12", "--steps", "300", "--batch", "16", "--out", str(tmp_path)]
    errors = cnn.main([*options, "--device", device])
    assert errors["network"] < 0.4 * errors["mean distance"] and errors["network"] < errors["no walls"]
    assert "of that of the mean distance" in capsys.readouterr().out.splitlines()[-1]
    assert (tmp_path / "bfs_labels_cnn.png").read_bytes().startswith(PNG)


# ---- graph attention


@pytest.fixture(scope="module")
def attention():
    return example("graph_attention")


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_attention_tells_the_club_apart(attention, device, tmp_path, capsys):
    path = tmp_path / "new" / "a.png"
    runs = attention.main(["--epochs", "60", "--device", device, "--out", str(path)])
    ours, theirs = (run.accuracies[-1] for run in runs.values())
    assert ours == theirs >= 29 / 32 and all(run.losses[-1] < 0.3 < run.losses[0] for run in runs.values())
    assert path.read_bytes().startswith(PNG)
    assert "would follow the president" in capsys.readouterr().out.splitlines()[-1]


def test_both_networks_have_the_same_derivatives(attention):
    """Of two clubs, in both modes; and a club knows nothing of the other."""
    A, sides = attention.clubs(2, "cpu")
    networks = []
    for attend in (attention.by_patterns, attention.by_torch):
        torch.manual_seed(3)
        networks.append(attention.Network(A._replace(values=A.values.double()), attend).double())
        for layer in (networks[-1].first, networks[-1].second):
            torch.nn.init.normal_(layer.questions.weight)
    for network in networks:
        network().sin().sum().backward()
    for p, q in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-10)
    moved = [attention.influence(network, attention.PRESIDENT) for network in networks]
    torch.testing.assert_close(*moved, rtol=1e-9, atol=1e-10)
    assert moved[0][: attention.MEMBERS].abs().max() > 1e-3 and not moved[0][attention.MEMBERS :].any()
    assert attention.known_members(sides).tolist() == [0, 34, 33, 67]
