"""Tables and plots from the rows that torch_patterns.bench wrote.

    python benchmarks/report.py docs/figures.md                 tables at <!-- bench:NAME --> ... <!-- /bench -->
    python benchmarks/report.py docs/figures.md --plots FOLDER  and draws FOLDER/NAME.png

NAME is a file of benchmarks/results without its .csv. A table has one row per algorithm and one column per problem; a
cell is the time in milliseconds and the share of a copy's bandwidth.
"""

import argparse
import csv
import re
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
MARKED = re.compile(r"(<!-- bench:(\S+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def read(name: str) -> list[dict[str, str]]:
    """Reads the rows of a file; of rows that measure the same thing the last one counts."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        rows = {(r["operator"], r["problem"], r["dtype"], r["algorithm"]): r for r in csv.DictReader(file)}
    return list(rows.values())


def heading(row: dict[str, str]) -> str:
    power = row["elements"].isdigit() and int(row["elements"]).bit_length() - 1
    label = row["problem"]
    if power and 1 << power == int(row["elements"]):
        label = label.replace(row["elements"], f"2^{power}")
    return f"{row['operator']} {row['dtype']} {label}"


def table(rows: list[dict[str, str]]) -> str:
    """Returns Markdown with the longer of problems and algorithms as lines; the fastest of each problem is bold."""
    problems = list(dict.fromkeys(map(heading, rows)))
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    cells = {(row["algorithm"], heading(row)): row for row in rows}
    fastest = {p: min(float(r["milliseconds"]) for r in rows if heading(r) == p) for p in problems}

    def cell(algorithm: str, problem: str) -> str:
        row = cells.get((algorithm, problem))
        share = f", {row['percent_of_copy']} %" if row and row["percent_of_copy"] else ""
        text = f"{row['milliseconds']} ms{share}" if row else "-"
        return f"**{text}**" if row and float(row["milliseconds"]) == fastest[problem] else text

    if len(problems) > len(algorithms):
        lines = [["problem", *algorithms], *([p, *(cell(a, p) for a in algorithms)] for p in problems)]
    else:
        lines = [["algorithm", *problems], *([f"`{a}`", *(cell(a, p) for p in problems)] for a in algorithms)]
    lines.insert(1, ["---"] * len(lines[0]))
    sources = sorted({f"{r['device']}, torch {r['torch']}, commit {r['commit']}, {r['date']}" for r in rows})
    return "\n".join(
        [*("| " + " | ".join(line) + " |" for line in lines), "", f"Measured on: {'; '.join(sources)}.", ""]
    )


def with_fresh_tables(text: str) -> str:
    return MARKED.sub(lambda match: match[1] + table(read(match[2])) + match[3], text)


def plot(name: str, folder: Path) -> None:
    from matplotlib import pyplot

    rows = read(name)
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        points = sorted(
            (int(r["elements"]), float(r["gigabytes_per_second"])) for r in rows if r["algorithm"] == algorithm
        )
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=algorithm)
    axes.set(xscale="log", yscale="log", xlabel="elements", ylabel="GB/s", title=f"{name}: {rows[0]['device']}")
    axes.legend(fontsize="small")
    figure.savefig(folder / f"{name}.png", dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--plots", type=Path)
    options = parser.parse_args()
    text = options.file.read_text()
    options.file.write_text(with_fresh_tables(text))
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)
        for match in MARKED.finditer(text):
            plot(match[2], options.plots)


if __name__ == "__main__":
    main()
