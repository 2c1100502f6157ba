#!/usr/bin/env python3
"""Compute the temperatures of a plate by conjugate gradients, with the matrix in every format of chapter 14.

    laplace_cg.py                             a plate of 200 x 200 points, drawn in runs/laplace.png
    laplace_cg.py --size 1000 --device cuda

In equilibrium, every point that is neither heated nor cooled has the mean temperature of its four neighbours (Laplace's
equation). So there is one unknown per point, and a row of the matrix has at most five entries.
"""

import argparse
import os
import time
from pathlib import Path

# Read when torch loads OpenMP: threads that spin while they wait would hold up all others of a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from arguments import number
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

import torch_patterns as tp
from torch_patterns.solvers import Solution, conjugate_gradient
from torch_patterns.sparse import FORMATS


def plate(size: int, device: str = "cpu") -> Tensor:
    """Returns the fixed temperatures [size, size] (an icy border, a warm bar, a hot disc and a cold one), and NaN where
    the temperature is unknown."""
    y, x = torch.meshgrid(*[torch.linspace(0, 1, size, dtype=torch.float64, device=device)] * 2, indexing="ij")
    held = torch.full_like(x, torch.nan)
    held[(y - 0.2).abs() + ((x - 0.5).abs() - 0.25).clamp(min=0) < 0.02] = 60
    held[(x - 0.3) ** 2 + (y - 0.6) ** 2 < 0.1**2] = 100
    held[(x - 0.72) ** 2 + (y - 0.68) ** 2 < 0.07**2] = -40
    held[[0, -1]] = held[:, [0, -1]] = 0
    return held


def laplace(held: Tensor) -> tuple[tp.COO, Tensor]:
    """Returns (A, b) of the system 4 t = sum of the neighbours' t, for the points that are not fixed, row after row."""
    free = held.isnan()
    number = tp.scan(free.flatten(), exclusive=True).view_as(free)  # the number of the unknown at each point
    here = number[free]
    b = torch.zeros_like(held[free])
    rows, cols, values = [here], [here], [torch.full_like(b, 4)]
    for shift, dim in ((1, 0), (-1, 0), (1, 1), (-1, 1)):  # the border is fixed, so nothing wraps around
        unknown = free.roll(shift, dim)[free]
        b += held.roll(shift, dim)[free].where(~unknown, 0)
        rows.append(here[unknown])
        cols.append(number.roll(shift, dim)[free][unknown])
        values.append(torch.full_like(b[unknown], -1))
    return tp.coo(torch.cat(rows), torch.cat(cols), torch.cat(values), (len(b), len(b))), b


def solve(A, b: Tensor, name: str) -> tuple[Solution, list[float], float]:
    """Returns (solution, norm of the residual after each iteration, seconds)."""
    norms = []
    with tqdm(desc=name, unit=" iterations", leave=False) as progress:

        def show(iteration: int, norm: float) -> None:
            norms.append(norm)
            if iteration % 20 == 0:
                progress.set_postfix(residual=f"{norm:.1e}", refresh=False)
                progress.update(20)

        begin = time.perf_counter()
        solution = conjugate_gradient(A, b, rtol=1e-8, callback=show)
        return solution, norms, time.perf_counter() - begin


def draw(temperatures: np.ndarray, norms: list[float], path: Path) -> None:
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    image = left.imshow(temperatures, cmap="inferno", origin="lower", extent=(0, 1, 0, 1), interpolation="bilinear")
    left.contour(temperatures, levels=range(-30, 100, 10), colors="white", linewidths=0.5, extent=(0, 1, 0, 1))
    left.set(title=f"{len(temperatures)} x {len(temperatures)} points", xticks=(0, 1), yticks=(0, 1))
    figure.colorbar(image, ax=left, label="temperature")
    right.plot(range(1, len(norms) + 1), norms)
    right.set(title="conjugate gradients", xlabel="iteration", ylabel="norm of the residual", yscale="log")
    right.margins(x=0)
    right.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> Tensor:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--size", type=number(int, 3), default=200, help="points on a side of the plate (default: 200)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/laplace.png"), help="picture (default: runs/laplace.png)"
    )
    options = parser.parse_args(arguments)

    held = plate(options.size, options.device)
    coordinates, b = laplace(held)
    print(f"{len(b):,} unknowns, {coordinates.nnz:,} entries on {options.device}")
    print("format       MiB    padding  iterations  seconds")
    first = None
    for name in FORMATS:
        A = coordinates.convert(name)
        solution, norms, seconds = solve(A, b, name)
        first = first or solution
        if not solution.converged or (solution.x - first.x).abs().max() > 1e-4:
            raise SystemExit(f"{name}: {solution} is not the solution {first} of the first format")
        padding = A.padding / (A.nnz + A.padding)
        print(f"{name:8}{A.nbytes / 2**20:8.2f} {padding:10.2%} {solution.iterations:11} {seconds:8.3f}", flush=True)

    temperatures = held.masked_scatter(held.isnan(), first.x)
    draw(temperatures.numpy(force=True), norms, options.out)
    middle = temperatures[options.size // 2, options.size // 2]
    print(f"drawn in {options.out}; all {len(FORMATS)} formats agree: it is {middle:.2f} degrees in the middle")
    return temperatures


if __name__ == "__main__":
    main()
