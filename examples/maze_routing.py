#!/usr/bin/env python3
"""Route the nets of a chip by breadth-first search, one after another (PMPP §15.2, Fig. 15.5).

    maze_routing.py                    a chip of 18 components, in seconds
    maze_routing.py --rows 300 --columns 360 --components 150 --nets 200 --device cuda

The chip is a grid of routing blocks, in two layers. A net joins two to four terminals, pins that go through all layers.
One search, of all layers at once, starts from all blocks that are joined already; the path back from the nearest
terminal that is not joined becomes a wire. Wires, components and terminals of other nets block the way. A net without a
path goes first in the next attempt. The script writes maze_routing.png, with the wavefronts of the longest search and
all wires, to --out.
"""

import argparse
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

# Read when torch loads OpenMP: threads that spin while they wait would hold up all others of a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from arguments import number
from matplotlib.colors import ListedColormap, hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from tqdm import tqdm

import torch_patterns as tp

ATTEMPTS = 20
NARROW, WIDE = 4, 12  # sides of a component
CHANNEL = 5  # blocks between two of them


@dataclass
class Net:
    terminals: list[int]
    wires: list[list[int]] = field(default_factory=list)  # blocks in order, from a terminal to one joined before
    levels: torch.Tensor | None = None  # [rows, columns]: the search for its longest wire, in the layer of that wire

    @property
    def routed(self) -> bool:
        return len(self.wires) == len(self.terminals) - 1


@dataclass
class Chip:
    free: torch.Tensor  # bool [rows, columns]: no component, and not the edge of the chip
    layers: int
    boxes: list[tuple[int, int, int, int]]  # row, column, height, width
    nets: list[Net]

    @property
    def columns(self) -> int:
        return self.free.shape[1]

    def coordinates(self, block: int) -> tuple[int, int, int]:
        """(layer, row, column)"""
        return (block // self.free.numel(), *divmod(block % self.free.numel(), self.columns))

    def pins(self, terminals: list[int]) -> list[int]:
        """Returns the blocks of terminals in all layers; a terminal is given by its block in the first."""
        return [t + layer * self.free.numel() for t in terminals for layer in range(self.layers)]


# ---- the chip


def design(rows: int, columns: int, layers: int, components: int, nets: int, seed: int) -> Chip:
    """Places components at random, and nets between neighbours; fewer of both if there is no more room."""
    draw, boxes, free = random.Random(seed), [], torch.ones(rows, columns, dtype=torch.bool)
    free[0], free[-1], free[:, 0], free[:, -1] = False, False, False, False
    for _ in range(50 * components):
        height, width = draw.randint(NARROW, WIDE), draw.randint(NARROW, WIDE)
        i, j = (draw.randint(CHANNEL, max(n - m - CHANNEL, CHANNEL)) for n, m in ((rows, height), (columns, width)))
        around = free[i - CHANNEL + 1 : i + height + CHANNEL - 1, j - CHANNEL + 1 : j + width + CHANNEL - 1]
        inside = i + height + CHANNEL <= rows and j + width + CHANNEL <= columns
        if inside and around.all() and len(boxes) < components:
            free[i : i + height, j : j + width] = False
            boxes.append((i, j, height, width))
    sides = [side_blocks(box, columns, draw) for box in boxes]
    centres = [complex(i + height / 2, j + width / 2) for i, j, height, width in boxes]
    found = []
    for _ in range(nets):
        with_room = [k for k, side in enumerate(sides) if side]
        if len(with_room) > 1:
            first = draw.choice(with_room)
            near = sorted(with_room, key=lambda k: abs(centres[k] - centres[first]))[1:5]
            others = draw.sample(near, min(draw.choice((1, 1, 1, 2, 3)), len(near)))
            middle = sum(centres[k] for k in (first, *others)) / (1 + len(others))
            found.append(Net([take(sides[k], middle, columns) for k in (first, *others)]))
    return Chip(free, layers, boxes, found)


def side_blocks(box: tuple[int, int, int, int], columns: int, draw: random.Random) -> list[int]:
    """Returns every other block around a component, in random order."""
    i, j, height, width = box
    above = [(r, c) for r in (i - 1, i + height) for c in range(j, j + width, 2)]
    beside = [(r, c) for c in (j - 1, j + width) for r in range(i, i + height, 2)]
    blocks = [r * columns + c for r, c in above + beside]
    draw.shuffle(blocks)
    return blocks


def take(side: list[int], middle: complex, columns: int) -> int:
    """Takes, of the next few blocks of a side, the one nearest to the middle of the net."""
    best = min(side[:4], key=lambda block: abs(complex(*divmod(block, columns)) - middle))
    side.remove(best)
    return best


# ---- the router


def route(chip: Chip, device: str = "cpu", algorithm: str = "auto", attempts: int = ATTEMPTS) -> int:
    """Routes all nets, and returns the number of searches. Nets that cannot be routed lack wires for some terminals."""

    def extent(net: Net) -> int:
        _, rows, columns = zip(*map(chip.coordinates, net.terminals), strict=True)
        return max(rows) - min(rows) + max(columns) - min(columns)

    order, best, searches = sorted(chip.nets, key=extent), [], 0
    for attempt in range(attempts):
        free = chip.free.repeat(chip.layers, 1, 1).to(device)
        free.view(-1)[chip.pins([t for net in chip.nets for t in net.terminals])] = False
        for net in tqdm(order, f"attempt {attempt + 1}", unit="net", leave=False):
            net.wires, net.levels = [], None
            searches += join(net, free, chip, algorithm)
        stuck = [net for net in order if not net.routed]
        if not best or len(stuck) < sum(not net.routed for net in best):
            best = [Net(net.terminals, net.wires, net.levels) for net in chip.nets]
        if not stuck:
            break
        order = stuck + [net for net in order if net.routed]
    chip.nets = best
    return searches


def join(net: Net, free: torch.Tensor, chip: Chip, algorithm: str) -> int:
    """Wires the terminals of a net through free blocks, which are then taken; returns the number of searches."""
    joined, left = chip.pins(net.terminals[:1]), chip.pins(net.terminals[1:])
    while left:
        free.view(-1)[joined + left] = True  # a net may pass through its own blocks
        graph = tp.graph.maze(free, index_dtype=torch.int32)
        levels = tp.bfs(graph, joined, algorithm=algorithm)[0].cpu()
        free.view(-1)[joined + left] = False
        reached = [pin for pin in left if levels[pin] >= 0]
        if not reached:
            break
        nearest = min(reached, key=lambda pin: (int(levels[pin]), pin))
        wire = trace(levels.tolist(), nearest, chip.columns)
        if len(wire) > max(map(len, net.wires), default=0):
            net.levels = levels.view(free.shape)[chip.coordinates(nearest)[0]]
        net.wires.append(wire)
        pins = chip.pins([nearest % chip.free.numel()])
        joined += wire + pins
        left = [pin for pin in left if pin not in pins]
        free.view(-1)[wire] = False
    return len(net.wires) + bool(left)


def trace(levels: list[int], target: int, columns: int) -> list[int]:
    """Returns the blocks from the target back to the start of the search, going straight on whenever that is as
    short."""
    way, step = [target], 0
    while levels[way[-1]]:
        here = way[-1]
        steps = [s for s in (step, -columns, columns, -1, 1) if s and levels[here + s] == levels[here] - 1]
        step = steps[0]
        way.append(here + step)
    return way


# ---- the picture

INK, PAPER, BODY, EDGE, ROUTE = "#1f2933", "#fbfaf7", "#3e4c59", "#9aa5b1", "#e8590c"


def draw(chip: Chip, path: Path) -> None:
    rows, columns = chip.free.shape
    figure = Figure((15, 7 * rows / columns + 0.4), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), xticks=[], yticks=[], aspect="equal")
        axes.set_facecolor(PAPER)
        for spine in axes.spines.values():
            spine.set(color=INK, linewidth=2)
        for i, j, height, width in chip.boxes:
            shape = FancyBboxPatch((j - 0.3, i - 0.3), width - 0.4, height - 0.4, "round,pad=0,rounding_size=0.8")
            shape.set(facecolor=BODY, edgecolor=INK, linewidth=1, zorder=4)
            axes.add_patch(shape)
    colours = ListedColormap(hues_of(len(chip.nets)))
    searched = [net for net in chip.nets if net.levels is not None]
    if searched:
        longest = max(searched, key=lambda net: max(map(len, net.wires)))
        draw_search(figure, left, chip, longest)
    for i, net in enumerate(chip.nets):
        for wire in net.wires:
            draw_wire(right, chip, wire, colours(i))
        draw_terminals(right, chip, net.terminals, colours(i), "o" if net.routed else "X")
    routed, length = sum(net.routed for net in chip.nets), sum(len(wire) - 1 for net in chip.nets for wire in net.wires)
    right.set_title(f"{routed} of {len(chip.nets)} nets routed, {length} blocks of wire", color=INK)
    figure.savefig(path, dpi=130)


def hues_of(count: int) -> np.ndarray:
    """Returns hues a golden section apart, with two lightnesses."""
    hues = np.arange(max(count, 1)) * 0.618034 % 1
    return hsv_to_rgb(np.stack([hues, np.full_like(hues, 0.8), np.where(np.arange(len(hues)) % 2, 0.62, 0.85)], 1))


def draw_search(figure: Figure, axes, chip: Chip, net: Net) -> None:
    """Draws the levels of a search, the wires before it, and the wire that it found."""
    levels, wire = np.ma.masked_less(net.levels.numpy(), 0), max(net.wires, key=len)
    layer = chip.coordinates(wire[0])[0]
    image = axes.imshow(levels, cmap="YlGnBu_r", interpolation="nearest", zorder=1)
    axes.contour(levels, np.arange(10, int(levels.max()) + 1, 10), colors="white", linewidths=0.5, alpha=0.8, zorder=2)
    for other in chip.nets:
        for found in other.wires:
            layers, rows, columns = zip(*map(chip.coordinates, found), strict=True)
            if layers[0] == layer and levels.mask[rows, columns].all():
                axes.plot(columns, rows, color=EDGE, linewidth=0.8, zorder=3)
    draw_wire(axes, chip, wire, ROUTE)
    draw_terminals(axes, chip, [wire[0], wire[-1]], ROUTE)
    axes.set_title(f"the longest search, layer {layer + 1}: {len(wire) - 1} steps, a contour every 10", color=INK)
    figure.colorbar(image, ax=axes, label="level", fraction=0.03, pad=0.02)


def draw_wire(axes, chip: Chip, wire: list[int], colour) -> None:
    """Draws a wire; upper layers cover lower ones."""
    layers, rows, columns = zip(*map(chip.coordinates, wire), strict=True)
    depth = 3 - layers[0] / 10
    axes.plot(columns, rows, color=PAPER, linewidth=5, solid_capstyle="butt", zorder=depth - 0.01)
    axes.plot(columns, rows, color=colour, linewidth=2, solid_capstyle="round", zorder=depth)


def draw_terminals(axes, chip: Chip, terminals: list[int], colour, marker: str = "o") -> None:
    _, rows, columns = zip(*map(chip.coordinates, terminals), strict=True)
    axes.scatter(columns, rows, 22, color=colour, edgecolors=INK, linewidths=0.6, marker=marker, zorder=5)


# ---- the program


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=number(int, 1), default=72, help="of the chip (default: 72)")
    parser.add_argument("--columns", type=number(int, 1), default=84, help="of the chip (default: 84)")
    parser.add_argument("--layers", type=number(int, 1), default=2, help="of wires (default: 2)")
    parser.add_argument("--components", type=number(int, 0), default=18, help="at most (default: 18)")
    parser.add_argument("--nets", type=number(int, 0), default=28, help="at most (default: 28)")
    parser.add_argument("--seed", type=int, default=5, help="which chip (default: 5)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--algorithm", default="auto", help=f"one of {', '.join(tp.algorithms('bfs'))} (default: auto)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the picture goes (default: out)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> Chip:
    options = parse(arguments)
    chip = design(options.rows, options.columns, options.layers, options.components, options.nets, options.seed)
    searches = route(chip, options.device, options.algorithm)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "maze_routing.png"
    draw(chip, path)
    for i, net in enumerate(chip.nets):
        length = sum(len(wire) - 1 for wire in net.wires)
        print(f"net {i:3}: {len(net.terminals)} terminals, {length} blocks{'' if net.routed else ', NOT ROUTED'}")
    routed = sum(net.routed for net in chip.nets)
    print(f"{routed} of {len(chip.nets)} nets routed by {searches} searches; picture: {path}")
    return chip


if __name__ == "__main__":
    main()
