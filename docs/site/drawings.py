"""Pictures of the documents, as SVG: how a call flows, and bars or lines of what was measured.

python docs/site/drawings.py     draws docs/images/flow.svg again, after a change of docs/architecture.md
"""

from __future__ import annotations

import re
from collections import Counter
from html import escape
from pathlib import Path

from matplotlib import pyplot

from torch_patterns import registry

DOCS = Path(__file__).parent.parent
MOST_BARS = 60
STEP = re.compile(r"^\d+\. `(?P<path>[^`]+)` · `(?P<name>[^`]+)`: (?P<text>.+)$", re.MULTILINE)
OURS = "#d9480f"
OTHERS = ("#495057", "#868e96", "#1971c2", "#2f9e44", "#9c36b5", "#f08c00", "#0c8599", "#e03131", "#5f3dc4", "#74b816")


def traces(page: str) -> dict[str, list[dict[str, str]]]:
    """The numbered steps under each heading of docs/architecture.md."""
    parts = re.split(r"^### (\w+)$", page, flags=re.MULTILINE)
    found = {
        name: [m.groupdict() for m in STEP.finditer(body)] for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {name: steps for name, steps in found.items() if steps}


def layer_of(path: str) -> str:
    if path.endswith(".py"):
        return "Python"
    return "operators, csrc/torch" if path.startswith("csrc/torch/") else f"pattern, {'/'.join(path.split('/')[:2])}"


def flow(page: str, path: Path, name: str = "scan") -> None:
    """The steps of one call from top to bottom, a band for each layer."""
    steps = traces(page)[name]
    width, height, gap, left = 820, 46, 26, 210
    colors = {"Python": "#e7f5ff", "operators, csrc/torch": "#fff3bf"}
    parts, y = [], 34
    bands: list[tuple[str, int, int]] = []
    for i, step in enumerate(steps):
        layer = layer_of(step["path"])
        if bands and bands[-1][0] == layer:
            bands[-1] = (layer, bands[-1][1], y + height)
        else:
            bands.append((layer, y, y + height))
        parts.append(f'<rect x="{left}" y="{y}" width="{width - left - 20}" height="{height}" rx="6" class="box"/>')
        text = step["text"].split(";")[0].rstrip(".").replace("`", "")
        file = step["path"].removeprefix("torch_patterns/").removeprefix("csrc/")
        title = "" if step["name"].startswith("__") else f"{step['name']} · "
        parts.append(f'<text x="{left + 14}" y="{y + 19}" class="name">{escape(title + file)}</text>')
        parts.append(f'<text x="{left + 14}" y="{y + 37}" class="what">{escape(text)}</text>')
        if i + 1 < len(steps):
            x = left + 60
            parts.append(f'<path d="M{x} {y + height} V{y + height + gap - 4}" class="arrow" marker-end="url(#head)"/>')
        y += height + gap
    frames = []
    for layer, top, bottom in bands:
        color = colors.get(layer, "#ffe8cc")
        frames.append(
            f'<rect x="8" y="{top - 9}" width="{width - 16}" height="{bottom - top + 18}" rx="9" fill="{color}"/>'
        )
        frames.append(f'<text x="22" y="{(top + bottom) // 2 + 5}" class="layer">{escape(layer)}</text>')
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}">\n'
        "<style>text{font-family:system-ui,sans-serif;fill:#212529}.name{font-size:14px;font-weight:600}"
        ".what{font-size:12.5px;fill:#495057}.layer{font-size:13px;font-weight:600;fill:#495057}"
        ".box{fill:#fff;stroke:#adb5bd}.arrow{stroke:#495057;stroke-width:1.6;fill:none}.title{font-size:14px}</style>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#495057"/></marker></defs>\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text x="22" y="16" class="title">tp.{escape(name)}(x) on CUDA, algorithm="auto"</text>\n'
        + "\n".join([*frames, *parts])
        + "\n</svg>\n"
    )


def _color(algorithm: str, algorithms: list[str]) -> str:
    if algorithm in ("auto", "torch_patterns"):
        return OURS
    others = [a for a in algorithms if a not in ("auto", "torch_patterns")]
    return OTHERS[others.index(algorithm) % len(OTHERS)]


def plot(rows: list[dict[str, str]], path: Path) -> bool:
    """Lines over sizes where one problem was measured at many, else bars; False where there is too little to draw.

    Of many problems by many algorithms the defaults and their peers are drawn; the table has the rest.
    """
    if len({row["problem"] for row in rows}) > 4 and len(rows) > MOST_BARS:
        rungs = {rung.name for pattern in registry.patterns() for rung in registry.ladder(pattern)}
        if "auto" in {row["algorithm"] for row in rows}:
            rows = [row for row in rows if row["algorithm"] not in rungs]
        measured = Counter((row["operator"], row["problem"], row["dtype"]) for row in rows)
        rows = [row for row in rows if measured[row["operator"], row["problem"], row["dtype"]] > 1]
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    sizes = {row["elements"] for row in rows}
    labels = {re.sub(r"\d+", "", row["problem"]) + row["dtype"] for row in rows}
    if len(algorithms) < 2:
        return False
    with pyplot.rc_context({"svg.hashsalt": "torch_patterns", "font.size": 9}):
        figure = _lines(rows, algorithms) if len(labels) == 1 and len(sizes) > 2 else _bars(rows, algorithms)
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
    return True


def _lines(rows: list[dict[str, str]], algorithms: list[str]):
    figure, axes = pyplot.subplots(figsize=(8, 4.4))
    for algorithm in algorithms:
        points = sorted(
            (int(r["elements"]), float(r["gigabytes_per_second"])) for r in rows if r["algorithm"] == algorithm
        )
        style = {"linewidth": 2.2, "zorder": 3} if algorithm == "auto" else {"linewidth": 1.1}
        color = _color(algorithm, algorithms)
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=color, label=algorithm, **style)
    axes.set(xscale="log", yscale="log", xlabel="elements", ylabel="GB/s")
    axes.xaxis.get_major_locator().set_params(base=2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def _bars(rows: list[dict[str, str]], algorithms: list[str]):
    def label(row: dict[str, str]) -> str:
        power = int(row["elements"]).bit_length() - 1 if row["elements"].isdigit() else 0
        problem = row["problem"]
        if power and 1 << power == int(row["elements"]):
            problem = problem.replace(row["elements"], f"2^{power}")
        return f"{row['operator']} {row['dtype']} {problem}"

    problems = list(dict.fromkeys(map(label, rows)))
    cells = {(label(row), row["algorithm"]): float(row["milliseconds"]) for row in rows}
    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.17 * len(cells) + 0.1 * len(problems)))
    y, ticks = 0.0, []
    for problem in problems:
        here = [a for a in algorithms if (problem, a) in cells]
        ticks.append(y + (len(here) - 1) / 2)
        for algorithm in here:
            axes.barh(y, cells[problem, algorithm], height=0.85, color=_color(algorithm, algorithms))
            y += 1
        y += 0.7
    axes.set(xscale="log", xlabel="milliseconds (less is better)", ylim=(y, -1))
    axes.set_yticks(ticks, problems)
    axes.grid(axis="x", alpha=0.3)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=_color(a, algorithms)) for a in algorithms]
    axes.legend(
        handles,
        algorithms,
        fontsize="small",
        ncols=min(6, len(handles)),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        frameon=False,
    )
    return figure


if __name__ == "__main__":
    flow((DOCS / "architecture.md").read_text(), DOCS / "images/flow.svg")
