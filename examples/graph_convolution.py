#!/usr/bin/env python3
"""Who follows whom? A graph convolutional network learns it from two of the 34 members of Zachary's karate club.

    graph_convolution.py                      trains in a second, and draws runs/karate.png
    graph_convolution.py --device cuda

The club split up after a quarrel between its instructor (member 0) and its president (33). The network is given who met
whom outside the club, and these two labels. Both layers mix the features of neighbours by one sparse product; the
weight of each neighbour is learned, too, through the gradient of the matrix's values.
"""

import argparse
import os
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


def club() -> tuple[nx.Graph, tp.CSR, Tensor]:
    """Returns (the graph, its adjacency with a loop at every member, the side that each took), from networkx."""
    graph = nx.karate_club_graph()
    met = torch.from_numpy(nx.to_numpy_array(graph, weight=None)) + torch.eye(len(graph), dtype=torch.float64)
    row, col = met.nonzero().T
    A = tp.coo(row, col, torch.ones(len(row)), tuple(met.shape)).convert("csr")
    return graph, A, torch.tensor([SIDES.index(graph.nodes[v]["club"]) for v in graph])


def softmax_of_rows(scores: Tensor, row_ptrs: Tensor) -> Tensor:
    """Returns positive weights that add up to 1 in each row."""
    highest = tp.segment_reduce(scores, row_ptrs, op="max")
    weights = (scores - tp.segment_expand(highest, row_ptrs, len(scores))).exp()
    return weights / tp.segment_expand(tp.segment_reduce(weights, row_ptrs), row_ptrs, len(scores))


class GraphConvolution(nn.Module):
    """y = A x W + b, where the values of A are the softmax of a learned score per edge."""

    def __init__(self, A: tp.CSR, inputs: int, outputs: int):
        super().__init__()
        self.A = A
        self.linear = nn.Linear(inputs, outputs)
        self.scores = nn.Parameter(torch.zeros_like(A.values))

    def attention(self) -> Tensor:
        return softmax_of_rows(self.scores, self.A.row_ptrs)

    def forward(self, x: Tensor) -> Tensor:
        return tp.spmm(self.A._replace(values=self.attention()), self.linear(x))


class Network(nn.Module):
    """Two layers; a member is told from others by a vector of its own."""

    def __init__(self, A: tp.CSR, hidden: int = 16):
        super().__init__()
        self.members = nn.Parameter(torch.randn(A.shape[0], hidden, device=A.values.device))
        self.first = GraphConvolution(A, hidden, hidden)
        self.second = GraphConvolution(A, hidden, len(SIDES))

    def forward(self) -> Tensor:
        return self.second(self.first(self.members).tanh())


def train(network: Network, known: Tensor, sides: Tensor, epochs: int) -> list[tuple[float, float]]:
    """Returns (loss of the known members, accuracy on the others) after each epoch."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02, weight_decay=5e-3)
    others = torch.ones_like(sides, dtype=torch.bool).index_fill(0, known, False)
    history = []
    for _ in (progress := trange(epochs, unit=" epochs")):
        optimizer.zero_grad()
        logits = network()
        loss = tp.cross_entropy(logits[known], sides[known])
        loss.backward()
        optimizer.step()
        accuracy = (logits.argmax(1) == sides)[others].float().mean()
        history.append((loss.item(), accuracy.item()))
        progress.set_postfix(loss=f"{history[-1][0]:.4f}", accuracy=f"{history[-1][1]:.1%}", refresh=False)
    return history


def draw(graph: nx.Graph, network: Network, sides: Tensor, history: list[tuple[float, float]], path: Path) -> None:
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    officer = network().softmax(1)[:, 1].detach().cpu()
    A = network.first.A
    row, col = A.convert("coo")[:2]
    heard = dict(zip(zip(row.tolist(), col.tolist(), strict=True), network.first.attention().tolist(), strict=True))
    heard = {(u, v): max(w, heard[v, u]) for (u, v), w in heard.items() if u < v}
    layout = nx.spring_layout(graph, seed=4, iterations=200)
    nx.draw_networkx_edges(
        graph, layout, list(heard), width=[8 * weight for weight in heard.values()], edge_color="0.75", ax=left
    )
    for side, shape in enumerate("os"):
        members = (sides == side).nonzero()[:, 0].tolist()
        points = nx.draw_networkx_nodes(
            graph,
            layout,
            members,
            node_shape=shape,
            node_color=officer[members],
            cmap="coolwarm",
            vmin=0,
            vmax=1,
            ax=left,
        )
        points.set_edgecolor("black")
    nx.draw_networkx_labels(graph, layout, font_size=8, ax=left)
    left.set_title("sides taken (circle: Mr. Hi, square: Officer), and predicted")
    left.axis("off")
    figure.colorbar(points, ax=left, label="probability of Officer")
    loss, accuracy = zip(*history, strict=True)
    right.plot(loss, label="loss of the two known members")
    right.plot(accuracy, label="accuracy on the other 32")
    right.set(xlabel="epoch", ylim=(0, 1.05))
    right.margins(x=0)
    right.grid(alpha=0.3)
    right.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--epochs", type=number(int, 1), default=200, help="steps of training (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("runs/karate.png"), help="picture (default: runs/karate.png)")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)

    graph, A, sides = club()
    A, sides = A.to(options.device), sides.to(options.device)
    network = Network(A).to(options.device)
    known = torch.tensor([0, 33], device=options.device)
    history = train(network, known, sides, options.epochs)
    draw(graph, network, sides.cpu(), history, options.out)
    accuracy = history[-1][1]
    print(f"drawn in {options.out}; the side of {accuracy:.1%} of the other members is predicted right")
    return accuracy


if __name__ == "__main__":
    main()
