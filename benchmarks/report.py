"""Tables and plots from the rows that torch_patterns.bench wrote.

    python benchmarks/report.py docs/figures.md                 tables at <!-- bench:NAME --> ... <!-- /bench -->
    python benchmarks/report.py docs/figures.md --plots FOLDER  and draws FOLDER/NAME.png

NAME is a file of benchmarks/results without its .csv; operators may follow it, and the table then has their rows alone.
A table of algorithms has one row per algorithm and one column per problem, or the reverse; a cell is the time in
milliseconds and the share of a copy's bandwidth. A table of the library and its peers has one row per problem. Where a
peer is more than MARGIN faster than the library, it says why: benchmarks/results/behind.csv has the reasons.
"""

import argparse
import csv
import math
import re
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
OURS = "torch_patterns"
MARGIN = 0.02  # what two runs of the same code differ by
MARKED = re.compile(r"(<!-- bench:(\S+)((?: \S+)*) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def read(name: str) -> list[dict[str, str]]:
    """Reads the rows of a file; of rows that measure the same thing the last one counts."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        rows = {(r["operator"], r["problem"], r["dtype"], r["algorithm"]): r for r in csv.DictReader(file)}
    return list(rows.values())


def key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["operator"], row["problem"], row["dtype"]


def behind(rows: list[dict[str, str]]) -> dict[tuple[str, str, str], float]:
    """Returns the problems in which a peer is faster, each with the ratio of our time to the peer's."""
    ours = {key(row): float(row["milliseconds"]) for row in rows if row["algorithm"] == OURS}
    peers: dict[tuple[str, str, str], float] = {}
    for row in rows:
        if row["algorithm"] != OURS and key(row) in ours:
            peers[key(row)] = min(float(row["milliseconds"]), peers.get(key(row), math.inf))
    return {of: ours[of] / best for of, best in peers.items() if ours[of] > best}


def reasons(name: str) -> dict[tuple[str, str, str], str]:
    """Returns the reason for each problem of a file in which a peer must be ahead."""
    with (RESULTS / "behind.csv").open(newline="") as file:
        return {key(row): row["reason"] for row in csv.DictReader(file) if row["results"] == name}


def heading(row: dict[str, str]) -> str:
    power = row["elements"].isdigit() and int(row["elements"]).bit_length() - 1
    label = row["problem"]
    if power and 1 << power == int(row["elements"]):
        label = label.replace(row["elements"], f"2^{power}")
    return f"{row['operator']} {row['dtype']} {label}"


def markdown(lines: list[list[str]], rows: list[dict[str, str]]) -> str:
    lines.insert(1, ["---"] * len(lines[0]))
    sources = sorted({f"{r['device']}, torch {r['torch']}, commit {r['commit']}, {r['date']}" for r in rows})
    return "\n".join(
        [*("| " + " | ".join(line) + " |" for line in lines), "", f"Measured on: {'; '.join(sources)}.", ""]
    )


def comparison(rows: list[dict[str, str]], why: dict[tuple[str, str, str], str]) -> str:
    """Returns Markdown with one line per problem: the library, its peers, and why a peer is faster; the fastest is
    bold."""
    lines = [["problem", OURS, "peers, ms", "why a peer is faster"]]
    for of in dict.fromkeys(map(key, rows)):
        contestants = sorted((row for row in rows if key(row) == of), key=lambda row: float(row["milliseconds"]))
        ours = next(row for row in contestants if row["algorithm"] == OURS)
        cells = {row["algorithm"]: f"{row['algorithm']} {row['milliseconds']}" for row in contestants}
        cells[OURS] = f"{ours['milliseconds']} ms, {ours['percent_of_copy']} %"
        fastest = contestants[0]["algorithm"]
        cells[fastest] = f"**{cells[fastest]}**"
        lines.append([heading(ours), cells.pop(OURS), "; ".join(cells.values()), why.get(of, "")])
    return markdown(lines, rows)


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
    return markdown(lines, rows)


def of_rows(name: str, rows: list[dict[str, str]]) -> str:
    """Returns the table that suits rows of a file."""
    return comparison(rows, reasons(name)) if any(row["algorithm"] == OURS for row in rows) else table(rows)


def fresh(name: str, operators: list[str]) -> str:
    return of_rows(name, [row for row in read(name) if not operators or row["operator"] in operators])


def with_fresh_tables(text: str) -> str:
    return MARKED.sub(lambda match: match[1] + fresh(match[2], match[3].split()) + match[4], text)


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
        for name in dict.fromkeys(match[2] for match in MARKED.finditer(text)):
            plot(name, options.plots)


if __name__ == "__main__":
    main()
