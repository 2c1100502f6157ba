#!/usr/bin/env python3
"""Whom do members of a club listen to? A graph attention network learns it, from the side that two of them took.

    graph_attention.py                        trains two networks in seconds, and draws runs/graph_attention.png
    graph_attention.py --clubs 200            200 clubs at once, to see what an epoch takes
    graph_attention.py --device cuda

Zachary's karate club split up after a quarrel between its instructor (member 0) and its president (33). The network is
given who met whom outside the club, and these two labels. Each member has a query, a key and a value, and attends to
the members it met by how well their keys match its query: a sampled product, a softmax of each row, and a sparse
product. For comparison, plain torch trains the same network on lists of edges.

Reverse mode trains the network. Then forward mode computes, in one pass, how much each member's opinion would change
with the president's vector.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# Read when torch loads OpenMP: threads that spin while they wait would hold up all others of a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import networkx as nx
import torch
from arguments import number
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import trange

import torch_patterns as tp

SIDES = ("Mr. Hi", "Officer")
MEMBERS, INSTRUCTOR, PRESIDENT = 34, 0, 33
Attend = Callable[[tp.CSR, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def clubs(count: int, device: str) -> tuple[tp.CSR, Tensor]:
    """Returns (who met whom in `count` clubs, with a loop at every member; the side that each took), from networkx."""
    club = nx.karate_club_graph()
    sides = torch.tensor([SIDES.index(club.nodes[v]["club"]) for v in club], device=device)
    met = tp.graph.from_networkx(club, device=device).edge_index()
    loops = torch.arange(MEMBERS, device=device).expand(2, MEMBERS)
    one = tp.graph.from_edge_index(torch.cat([met, loops], 1), directed=None)
    all_, _ = tp.graph.batch([one] * count)
    ones = torch.ones(all_.num_edges, device=device)
    return tp.csr(all_.row_ptrs, all_.col_idx, ones, (count * MEMBERS,) * 2), sides.repeat(count)


# ---- attention, in two ways: the weight of each edge, [edges], and the weighted sums, [members, width]


def by_patterns(A: tp.CSR, questions: Tensor, keys: Tensor, contents: Tensor) -> tuple[Tensor, Tensor]:
    attention = tp.segment_softmax(tp.sampled_product(A, questions, keys), A.row_ptrs)
    return attention, tp.spmm(A._replace(values=attention), contents)


def by_torch(A: tp.CSR, questions: Tensor, keys: Tensor, contents: Tensor) -> tuple[Tensor, Tensor]:
    row = torch.arange(A.shape[0], device=A.device).repeat_interleave(A.row_ptrs.diff())
    scores = (questions[row] * keys[A.col_idx]).sum(1)
    highest = scores.new_zeros(A.shape[0]).scatter_reduce(0, row, scores, "amax", include_self=False)
    weights = (scores - highest[row]).exp()
    attention = weights / weights.new_zeros(A.shape[0]).index_add(0, row, weights)[row]
    return attention, torch.zeros_like(contents).index_add(0, row, attention[:, None] * contents[A.col_idx])


class Attention(nn.Module):
    """Several parallel heads of dot-product attention along the edges."""

    def __init__(self, inputs: int, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.questions, self.keys, self.contents = (nn.Linear(inputs, width * heads) for _ in range(3))
        nn.init.zeros_(self.questions.weight)  # initially all weights of a member are equal
        nn.init.zeros_(self.questions.bias)

    def forward(self, A: tp.CSR, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        scale = (self.questions.out_features / self.heads) ** -0.5
        parts = (self.questions(x) * scale, self.keys(x), self.contents(x))
        heads = [attend(A, *head) for head in zip(*(part.chunk(self.heads, 1) for part in parts), strict=True)]
        attention, heard = zip(*heads, strict=True)
        return torch.stack(attention).mean(0), torch.cat(heard, 1)


class Network(nn.Module):
    """Two layers; each member has its own learned vector."""

    def __init__(self, A: tp.CSR, attend: Attend, width: int = 8, heads: int = 2):
        super().__init__()
        self.A, self.attend = A, attend
        self.members = nn.Parameter(torch.randn(A.shape[0], width))
        self.first, self.second = Attention(width, width, heads), Attention(width * heads, len(SIDES), 1)

    def forward(self, members: Tensor | None = None) -> Tensor:
        return self.explained(self.members if members is None else members)[1]

    def explained(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (the attention weights of the first layer, logits of the sides)."""
        attention, heard = self.first(self.A, members, self.attend)
        return attention, self.second(self.A, heard.tanh(), self.attend)[1]


@dataclass
class Run:
    """A training: per epoch the loss of the known members and the accuracy on the others; and the seconds of an
    epoch."""

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0


def known_members(sides: Tensor) -> Tensor:
    first = torch.arange(0, len(sides), MEMBERS, device=sides.device)
    return torch.cat([first + INSTRUCTOR, first + PRESIDENT])


def train(network: Network, sides: Tensor, epochs: int, name: str) -> Run:
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02, weight_decay=5e-3)
    known = known_members(sides)
    others = torch.ones_like(sides, dtype=torch.bool).index_fill(0, known, False)
    run, times = Run(), []
    for _ in (progress := trange(epochs, desc=name, unit=" epochs")):
        begin = time.perf_counter()
        optimizer.zero_grad()
        logits = network()
        loss = nn.functional.cross_entropy(logits[known], sides[known], reduction="sum")
        loss.backward()
        optimizer.step()
        run.losses.append(loss.item() / len(known))  # waits for the device
        times.append(time.perf_counter() - begin)
        run.accuracies.append((logits.argmax(1) == sides)[others].float().mean().item())
        progress.set_postfix(loss=f"{run.losses[-1]:.4f}", accuracy=f"{run.accuracies[-1]:.1%}", refresh=False)
    run.seconds = sorted(times)[len(times) // 2]
    return run


def influence(network: Network, member: int) -> Tensor:
    """Returns [members]: the derivative of each member's probability of the Officer's side along a member's vector."""
    direction = torch.zeros_like(network.members)
    direction[member] = network.members.detach()[member]
    officer = lambda members: network(members).softmax(1)[:, 1]  # noqa: E731
    return torch.func.jvp(officer, (network.members.detach(),), (direction,))[1].detach()


def draw(network: Network, sides: Tensor, runs: dict[str, Run], moved: Tensor, path: Path) -> None:
    """Draws the first club, the progress of both trainings, and the president's influence."""
    figure = Figure(figsize=(16, 4.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.4, 1, 1.4))
    club = nx.karate_club_graph()
    layout = nx.spring_layout(club, seed=4, iterations=200, weight=None)
    attention, logits = (x.detach().cpu() for x in network.explained(network.members))
    officer = logits.softmax(1)[:, 1]
    row, col = (ids.cpu() for ids in network.A.convert("coo")[:2])
    heard = {(u, v): w for u, v, w in zip(row.tolist(), col.tolist(), attention.tolist(), strict=True) if u < MEMBERS}
    widths = [6 * max(heard[u, v], heard[v, u]) for u, v in club.edges]
    for axes, colors, limits, label in (
        (left, officer, (0, 1), "probability of Officer"),
        (right, moved.cpu(), (-moved[:MEMBERS].abs().max().item(), moved[:MEMBERS].abs().max().item()), "influence"),
    ):
        nx.draw_networkx_edges(club, layout, width=widths, edge_color="0.75", ax=axes)
        for side, shape in enumerate("os"):
            members = [v for v in club if sides[v] == side]
            points = nx.draw_networkx_nodes(
                club,
                layout,
                members,
                node_shape=shape,
                node_color=colors[members],
                cmap="coolwarm",
                vmin=limits[0],
                vmax=limits[1],
                ax=axes,
            )
            points.set_edgecolor("black")
        nx.draw_networkx_labels(club, layout, font_size=8, ax=axes)
        axes.axis("off")
        figure.colorbar(points, ax=axes, label=label)
    left.set_title("sides taken (circle: Mr. Hi, square: Officer), and predicted")
    right.set_title("whose mind the president would change")
    for (name, run), style in zip(runs.items(), ("-", "--"), strict=True):
        middle.plot(run.losses, style, color="C0", label=f"loss of the known, {name}")
        middle.plot(run.accuracies, style, color="C1", label=f"accuracy on the others, {name}")
    middle.set(xlabel="epoch", ylim=(0, 1.05))
    middle.margins(x=0)
    middle.grid(alpha=0.3)
    middle.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> dict[str, Run]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--clubs", type=number(int, 1), default=1, help="copies of the club in one batch (default: 1)")
    parser.add_argument("--epochs", type=number(int, 1), default=200, help="steps of training (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")
    default = Path("runs/graph_attention.png")
    parser.add_argument("--out", type=Path, default=default, help=f"picture (default: {default})")
    options = parser.parse_args(arguments)

    A, sides = clubs(options.clubs, options.device)
    print(f"{A.shape[0]:,} members, {A.nnz:,} edges with one from each to itself, on {options.device}")
    networks, runs = {}, {}
    for name, attend in {"torch_patterns": by_patterns, "torch": by_torch}.items():
        torch.manual_seed(options.seed)
        networks[name] = Network(A, attend).to(options.device)
        runs[name] = train(networks[name], sides, options.epochs, name)
        run = runs[name]
        print(f"{name:16} accuracy {run.accuracies[-1]:.1%}, {run.seconds * 1e3:.2f} ms per epoch")
    # The same parameters give the same results, in both modes of derivative.
    ours, theirs = networks.values()
    theirs.load_state_dict(ours.state_dict())
    moved = influence(ours, PRESIDENT)
    for what, got, want in (("logits", ours(), theirs()), ("influence", moved, influence(theirs, PRESIDENT))):
        if not torch.allclose(got, want, rtol=1e-3, atol=1e-5):
            raise SystemExit(f"{what} of the two networks differ by {(got - want).abs().max():g}")
    draw(ours, sides.cpu(), runs, moved, options.out)
    print(f"drawn in {options.out}; {int((moved[:MEMBERS] > 0).sum())} of {MEMBERS} members would follow the president")
    return runs


if __name__ == "__main__":
    main()
