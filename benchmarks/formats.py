"""The cost of a sparse matrix in each format: bytes, padding, and the time of a product with a vector.

    python benchmarks/formats.py FOLDER --csv benchmarks/results/cpu_formats.csv
    python benchmarks/formats.py --size 2^20 --device cuda
    python benchmarks/formats.py --readme docs/sparse_formats.md
        tables at <!-- formats:NAME --> ... <!-- /formats -->

Some generated matrices come first, then the Matrix Market files of FOLDER. Values are float32, indices int32. Every
product is checked against scipy's in float64, within the bound of any order of summation, and then timed, as are
torch's and scipy's products of the CSR. NAME is a file of benchmarks/results without its .csv.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import torch_patterns as tp
from torch_patterns.bench import Clock, environment, sizes
from torch_patterns.sparse import COO, FORMATS

RESULTS = Path(__file__).parent / "results"
MARKED = re.compile(r"(<!-- formats:(\S+) -->\n).*?(<!-- /formats -->)", re.DOTALL)
SHOWN = 20_000  # entries; with fewer, the time is that of the call
FIELDS = "device torch commit date matrix rows cols entries format bytes padding_percent milliseconds".split()


# ---- matrices


def matrix(row: Tensor, col: Tensor, shape: tuple[int, int]) -> COO:
    return tp.coo(row.int(), col.int(), torch.randint(-8, 9, row.shape).float(), shape)


def by_lengths(lengths: Tensor, cols: int) -> COO:
    """Makes rows of the given lengths, with entries at random columns."""
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return matrix(row, torch.randint(cols, row.shape), (len(lengths), cols))


def banded(n: int, width: int) -> COO:
    row = torch.arange(n)[:, None].expand(n, width)
    col = row + torch.arange(width) - width // 2
    inside = (col >= 0) & (col < n)
    return matrix(row[inside], col[inside], (n, n))


def generated(n: int) -> Iterator[tuple[str, COO]]:
    yield "banded, 27 a row", banded(n, 27)
    yield "random, 32 a row", by_lengths(torch.full((n,), 32), n)
    lengths = (1 - torch.rand(n, dtype=torch.float64)).pow(-0.875).long().clamp(max=n // 8)
    yield "power law", by_lengths(lengths, n)
    lengths = torch.full((n,), 4).index_fill(0, torch.tensor([n // 2]), n)
    yield "one full row, others 4", by_lengths(lengths, n)


def files(folder: Path) -> Iterator[tuple[str, COO]]:
    for path in sorted([*folder.glob("*.mtx"), *folder.glob("*.mtx.gz")]):
        A = tp.io.read_matrix_market(path, dtype=torch.float32, index_dtype=torch.int32, duplicates="sum")
        yield path.name.split(".")[0], A


# ---- products


def contestants(A: COO) -> Iterator[tuple[str, int, int, Callable[[Tensor], object]]]:
    """Yields (format or library, bytes, slots without an entry, product) for each that can store the matrix."""
    for name in FORMATS:
        try:
            B = A.convert(name)
        except RuntimeError:  # ELL would be too large
            continue
        yield name, B.nbytes, B.padding, lambda x, B=B: tp.spmv(B, x)
    csr = A.convert("csr")
    theirs = csr.to_torch()
    yield "torch", csr.nbytes, 0, lambda x: theirs @ x
    if A.values.device.type == "cpu":
        scipys = csr.to_scipy()
        yield "scipy", csr.nbytes, 0, lambda x: scipys @ x.numpy()


def check(y: object, A: COO, x: Tensor, where: str) -> None:
    """The error of a sum of n products, in any order, is at most n eps times the sum of their absolute values."""
    row, col, values = (np.asarray(part.cpu()) for part in A[:3])
    terms = values.astype(np.float64) * x.cpu().double().numpy()[col]
    want, scale = (np.bincount(row, weights, A.shape[0]) for weights in (terms, abs(terms)))
    bound = (np.bincount(row, minlength=A.shape[0]) + 2) * np.finfo(np.float32).eps * scale
    error = abs(np.asarray(torch.as_tensor(y).cpu(), np.float64) - want)
    if not (error <= bound).all():
        worst = int((error - bound).argmax())
        raise SystemExit(f"{where}: row {worst} is off by {error[worst]:g}, the bound is {bound[worst]:g}")


def measure(name: str, A: COO, clock: Clock) -> list[dict]:
    x = torch.randint(-8, 9, (A.shape[1],), device=A.values.device).float()
    chosen = list(contestants(A))
    for kind, _, _, product in chosen:
        check(product(x), A, x, f"{name} {kind}")
    times = clock(*(lambda product=product: product(x) for *_, product in chosen))
    return [
        {
            "matrix": name,
            "rows": A.shape[0],
            "cols": A.shape[1],
            "entries": A.nnz,
            "format": kind,
            "bytes": bytes_,
            "padding_percent": f"{100 * padding / max(padding + A.nnz, 1):.3g}",
            "milliseconds": f"{seconds * 1e3:.3g}",
        }
        for (kind, bytes_, padding, _), seconds in zip(chosen, times, strict=True)
    ]


# ---- tables


def table(rows: list[dict[str, str]]) -> str:
    """Returns Markdown with one line per matrix and one cell per format: time, bytes per entry, padding; fastest in
    bold."""
    cells = {(row["matrix"], row["format"]): row for row in rows}
    formats = list(dict.fromkeys(row["format"] for row in rows))

    def cell(matrix: str, format: str) -> str:
        row = cells.get((matrix, format))
        if row is None:
            return "-"
        fastest = min(float(r["milliseconds"]) for (m, _), r in cells.items() if m == matrix)
        text = f"{row['milliseconds']} ms"
        text = f"**{text}**" if float(row["milliseconds"]) == fastest else text
        if format not in FORMATS:
            return text
        per_entry = int(row["bytes"]) / max(int(row["entries"]), 1)
        return f"{text}, {per_entry:.3g} B" + f", {row['padding_percent']} %" * (float(row["padding_percent"]) > 0)

    lines = [["matrix", "entries", *formats], ["---"] * (2 + len(formats))]
    for matrix in dict.fromkeys(row["matrix"] for row in rows):
        entries = next(row["entries"] for row in rows if row["matrix"] == matrix)
        lines.append([matrix, f"{int(entries):,}", *(cell(matrix, format) for format in formats)])
    sources = sorted({f"{r['device']}, torch {r['torch']}, commit {r['commit']}, {r['date']}" for r in rows})
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\nMeasured on: {'; '.join(sources)}.\n"


def read(name: str) -> list[dict[str, str]]:
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def with_fresh_tables(text: str) -> str:
    def fresh(match: re.Match) -> str:
        return match[1] + table([row for row in read(match[2]) if int(row["entries"]) >= SHOWN]) + match[3]

    return MARKED.sub(fresh, text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of Matrix Market files")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="2^16", help="rows of the generated matrices, 0 for none")
    parser.add_argument("--csv", type=Path, help="write the rows to this file")
    parser.add_argument("--readme", type=Path, help="only write the tables of this file")
    options = parser.parse_args(arguments)
    if options.readme:
        options.readme.write_text(with_fresh_tables(options.readme.read_text()))
        return
    torch.manual_seed(0)
    clock, fixed = Clock(options.device), environment(options.device)
    fixed = {name: value for name, value in fixed.items() if name in FIELDS}
    size = sizes(options.size)[0]
    matrices = [*(generated(size) if size else ()), *(files(options.folder) if options.folder else ())]
    rows = []
    for name, A in matrices:
        rows += [fixed | row for row in measure(name, A.to(options.device), clock)]
        print(table([row for row in rows if row["matrix"] == name]).splitlines()[2], flush=True)
    if options.csv:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
