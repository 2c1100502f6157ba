#!/usr/bin/env python3
"""Train a small CNN to predict the distance of every cell of a maze from a source; breadth-first search labels it.

    bfs_labels_cnn.py                  mazes of 12 x 12 cells, a minute
    bfs_labels_cnn.py --size 20 --rounds 60 --steps 2000 --device cuda

Every batch is new: random mazes, one source in each, and one search that labels all of them. The network repeats one
convolution, as a search repeats one level, so with more rounds it can read larger mazes than it was trained on. Its
mean error, in steps, is compared with those of two guesses: the mean distance for every cell, and the distance without
walls. The script writes bfs_labels_cnn.png, with mazes that the network has not seen, to --out.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# OpenMP reads this when torch loads it: threads that spin while they wait would slow all others on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy
import torch
from arguments import number
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

import torch_patterns as tp
from torch_patterns import nn

PASSABLE = 0.72  # share of the cells
TEST_MAZES = 256


class Mazes(NamedTuple):
    """A batch, [N, 1, size, size]: passable bool, source bool, distance int32 (-1 at cells that the source does not
    reach)."""

    passable: Tensor
    source: Tensor
    distance: Tensor

    @property
    def inputs(self) -> Tensor:
        return torch.cat([self.passable, self.source], 1).float()


def make_mazes(count: int, size: int, generator: torch.Generator, device: str) -> Mazes:
    """Makes random mazes, the same on every device, and labels them by one search from all their sources."""
    shape = (count, 1, size, size)
    passable = torch.rand(shape, generator=generator) < PASSABLE
    sources = torch.randint(size * size, (count, 1), generator=generator)
    source = torch.zeros(count, size * size, dtype=torch.bool).scatter_(1, sources, True).view(shape)
    passable, source = (passable | source).to(device), source.to(device)
    graph = tp.graph.maze(passable, index_dtype=torch.int32)
    levels, _ = tp.bfs(graph, source.view(-1).nonzero()[:, 0])
    return Mazes(passable, source, levels.view(shape))


class DistanceNet(torch.nn.Module):
    """Maps [N, 2, H, W] (passable, source) -> distances [N, 1, H, W], by `rounds` of one convolution.

    Each round adds the degree to which a cell is not yet reached, so the sum is the number of rounds until it is.
    Nothing passes through walls.
    """

    def __init__(self, rounds: int, width: int = 8):
        super().__init__()
        self.rounds = rounds
        self.look = nn.Conv2d(2, width, 3, padding=1)
        self.spread = nn.Conv2d(width, width, 3, padding=1)
        self.tell = nn.Conv2d(width, 1, 1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        passable = x[:, :1]
        state, distance = self.relu(self.look(x)) * passable, torch.zeros_like(passable)
        for _ in range(self.rounds):
            distance = distance + torch.sigmoid(self.tell(state))
            state = self.relu(self.spread(state)) * passable
        return distance


def mean_error(guess: Tensor, mazes: Mazes) -> Tensor:
    """Returns the mean error, in steps, over the cells that the sources reach."""
    reached = mazes.distance >= 0
    return tp.absolute_error(guess[reached], mazes.distance[reached].float())


def train(options: argparse.Namespace) -> DistanceNet:
    torch.manual_seed(options.seed)
    network, generator = DistanceNet(options.rounds).to(options.device), torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.Adam(network.parameters(), options.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=options.steps)
    progress = tqdm(range(options.steps), "training", unit="batch")
    for step in progress:
        mazes = make_mazes(options.batch, options.size, generator, options.device)
        error = mean_error(network(mazes.inputs), mazes)
        optimizer.zero_grad()
        error.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            progress.set_postfix(error=f"{error.item():.2f}")
    return network


def without_walls(mazes: Mazes) -> Tensor:
    """Returns the distances on a grid without walls."""
    size = mazes.source.shape[-1]
    source = mazes.source.flatten(1).byte().argmax(1).view(-1, 1, 1, 1)
    index = torch.arange(size, device=source.device)
    return (index.view(-1, 1) - source // size).abs().float() + (index - source % size).abs()


def evaluate(network: DistanceNet, rounds: int, mazes: Mazes) -> tuple[Tensor, dict[str, float]]:
    """Returns the network's distances after `rounds` rounds, and the errors of the network and of the two guesses."""
    trained, network.rounds = network.rounds, rounds
    with torch.inference_mode():
        told = network(mazes.inputs)
    network.rounds = trained
    mean = mazes.distance[mazes.distance >= 0].float().mean().expand_as(told)
    guesses = {"network": told, "mean distance": mean, "no walls": without_walls(mazes)}
    return told, {name: mean_error(guess, mazes).item() for name, guess in guesses.items()}


# ---- the picture

WALL, INK = "#323f4b", "#1f2933"


def draw(shown: list[tuple[Mazes, Tensor]], path: Path) -> None:
    """Draws one row per maze: the maze, the labels, the network's distances, and the difference."""
    figure = Figure((12.5, 2.95 * len(shown)), layout="constrained", facecolor="white")
    titles = ("maze and source", "distance by BFS", "distance by the CNN", "CNN - BFS")
    for i, (mazes, told) in enumerate(shown):
        distance, wall = mazes.distance[0, 0].cpu(), ~mazes.passable[0, 0].cpu()
        row, column = divmod(int(mazes.source[0].flatten().byte().argmax()), distance.shape[1])
        told, hidden, far = told[0, 0].cpu(), distance < 0, float(distance.max())
        fields = (torch.zeros(distance.shape), distance.float(), told, told - distance)
        scales = (("Greys", 0, 1), ("viridis", 0, far), ("viridis", 0, far), ("RdBu_r", -3, 3))
        for j, (values, (colours, low, high)) in enumerate(zip(fields, scales, strict=True)):
            axes = figure.add_subplot(len(shown), 4, 4 * i + j + 1, xticks=[], yticks=[])
            axes.set_facecolor("#e4e7eb")  # cells that the source does not reach
            masked = values.numpy() if j == 0 else _masked(values, hidden)
            image = axes.imshow(masked, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
            axes.imshow(_masked(wall.float(), ~wall), cmap=_only(WALL), interpolation="nearest")
            axes.plot(column, row, "o", color="#e8590c", markeredgecolor="white", markersize=7 if len(wall) < 16 else 5)
            if i == 0:
                axes.set_title(titles[j], color=INK)
            if j:
                figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    figure.savefig(path, dpi=110)


def _masked(values: Tensor, hidden: Tensor):
    return numpy.ma.masked_array(values.numpy(), hidden.numpy())


def _only(colour: str) -> ListedColormap:
    return ListedColormap([colour])


# ---- the program


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])

    def add(name: str, default, what: str, kind: Callable) -> None:
        parser.add_argument(name, type=kind, default=default, help=f"{what} (default: {default})")

    add("--size", 12, "rows and columns of the mazes", number(int, 2))
    add("--rounds", 32, "of the network: how far it sees", number(int, 1))
    add("--steps", 600, "batches to train on", number(int, 1))
    add("--batch", 32, "mazes in each", number(int, 1))
    add("--lr", 0.01, "greatest learning rate", number(float))
    add("--seed", 0, "which mazes and weights", int)
    add("--device", "cpu", "cpu or cuda", str)
    add("--out", Path("out"), "where the picture goes", Path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    options = parse(arguments)
    network = train(options)
    unseen = torch.Generator().manual_seed(options.seed + 1)
    shown, results = [], []
    for size, rounds, rows in ((options.size, options.rounds, 3), (2 * options.size, 2 * options.rounds, 1)):
        mazes = make_mazes(TEST_MAZES, size, unseen, options.device)
        told, errors = evaluate(network, rounds, mazes)
        shown += [(Mazes(*(x[i : i + 1] for x in mazes)), told[i : i + 1]) for i in range(rows)]
        results.append(errors)
        said = ", ".join(f"{name} {error:.2f}" for name, error in errors.items())
        print(f"mean error in steps on {TEST_MAZES} unseen mazes of {size} x {size}, by {rounds} rounds: {said}")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(shown, options.out / "bfs_labels_cnn.png")
    share = results[0]["network"] / results[0]["mean distance"]
    print(f"picture: {options.out / 'bfs_labels_cnn.png'}")
    print(f"the network's error is {100 * share:.1f} % of that of the mean distance")
    return results[0]


if __name__ == "__main__":
    main()
