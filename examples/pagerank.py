#!/usr/bin/env python3
"""PageRank of Python's standard library: which modules matter to those that matter?

    pagerank.py                               the modules of this Python, by their import statements
    pagerank.py --file GRAPH.mtx              a Matrix Market file: entry (u, v) is a link from u to v
    pagerank.py --device cuda

A reader follows a random link of the page at hand or, one time in seven, opens any page at all. The rank of a page is
how often it is open: the vector to which repeated sparse products converge.
"""

import argparse
import ast
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

import torch_patterns as tp


def pagerank(links: tp.COO, damping: float = 0.85, tolerance: float = 1e-12) -> tuple[Tensor, int]:
    """Returns (ranks float64 [pages], which add up to 1; steps taken); each entry (from, to) of the matrix is a link.

    From a page without links the reader opens any page.
    """
    pages = links.shape[0]
    ones = torch.ones(pages, dtype=torch.float64, device=links.values.device)
    out = tp.spmv(links, ones)
    follow = tp.coo(links.col_idx, links.row_idx, links.values / out[links.row_idx], links.shape).convert("csr")
    ranks, steps, change = ones / pages, 0, 1.0
    while change > tolerance:
        lost = ranks[out == 0].sum()
        new = damping * (tp.spmv(follow, ranks) + lost / pages) + (1 - damping) / pages
        ranks, steps, change = new, steps + 1, (new - ranks).abs().sum().item()
    return ranks, steps


def imported(source: bytes) -> Iterator[str]:
    """Yields the top-level modules that a module imports, once per import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example about invalid escapes
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def standard_library() -> tuple[list[str], tp.COO]:
    """Returns (names of the modules, a link for each module that a module imports)."""
    names = sorted(name for name in sys.stdlib_module_names - {"this", "antigravity"} if name[0] != "_")
    number = {name: k for k, name in enumerate(names)}
    folder = Path(sysconfig.get_path("stdlib"))
    links = set()
    for name in tqdm(names, unit=" modules", leave=False):
        files = [folder / f"{name}.py", *(folder / name).rglob("*.py")]
        for file in (file for file in files if file.exists() and not {"test", "tests"} & {*file.parts}):
            links |= {(number[name], number[other]) for other in imported(file.read_bytes()) if other in number}
    source, target = torch.tensor(sorted((u, v) for u, v in links if u != v)).T
    return names, tp.coo(source, target, torch.ones(len(source), dtype=torch.float64), (len(names), len(names)))


def main(arguments: list[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--file", type=Path, help="a graph as a Matrix Market file (default: the standard library)")
    options = parser.parse_args(arguments)
    if options.file:
        links = tp.io.read_matrix_market(options.file, duplicates="sum")
        if links.shape[0] != links.shape[1] or (links.values < 0).any():
            raise SystemExit(f"{options.file}: {links.shape[0]} x {links.shape[1]} with negative entries is no graph")
        names = [str(page) for page in range(1, links.shape[0] + 1)]
    else:
        names, links = standard_library()
    ranks, steps = pagerank(links.to(options.device))
    print(f"{len(names):,} pages, {links.nnz:,} links, {steps} steps on {options.device}")
    best = ranks.argsort(descending=True, stable=True)[:15].tolist()
    for rank, page in enumerate(best, 1):
        bar = "\N{FULL BLOCK}" * round(50 * (ranks[page] / ranks[best[0]]).item())
        print(f"{rank:3}  {names[page]:16.16} {ranks[page]:7.2%}  {bar}")
    return [(names[page], ranks[page].item()) for page in best]


if __name__ == "__main__":
    main()
