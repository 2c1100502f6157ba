"""Puts the site's sources together in build/site-source, and builds it in build/site, without a warning.

    python docs/site/make.py [--sources-only]

What people write stands in docs/*.md. The pages of the patterns are made here: the essay from the pattern's header, the
ladders from the library, the functions from their docstrings, figures and plots from benchmarks/results.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(HERE)]

import drawings  # noqa: E402
import report  # noqa: E402

from torch_patterns import registry  # noqa: E402
from torch_patterns.sparse import FORMATS  # noqa: E402

SOURCE, SITE, RESULTS = ROOT / "build/site-source", ROOT / "build/site", ROOT / "benchmarks/results"


@dataclass
class Page:
    """A pattern: its ladders, its public functions, and the operators whose figures belong to it."""

    title: str
    folder: str
    functions: str
    ladders: str
    operators: str = ""
    tables: tuple[str, ...] = ()  # CSV files with other columns, shown whole
    see: str = ""
    classes: str = ""


PAGES = {
    "reduce": Page("Reduction", "reduction", "reduce", "reduce", "reduce"),
    "segments": Page(
        "Segments and groups",
        "segmented",
        "segment_reduce segment_expand segment_scan segment_softmax segment_log_softmax segment_recurrence "
        "segment_topk segment_matmul group_by group_reduce group_expand reduce_by_key",
        "segment_reduce segment_scan segment_matmul",
        "segment_reduce segment_scan segment_softmax segment_topk segment_matmul group_reduce reduce_by_key",
    ),
    "scan": Page(
        "Scan and linear recurrences",
        "scan",
        "scan scan_with_indices linear_recurrence",
        "scan",
        "scan linear_recurrence",
    ),
    "histogram": Page("Histogram", "histogram", "histogram", "histogram"),
    "compact": Page(
        "Compaction",
        "compact",
        "compact compact_padded partition unique run_length_encode",
        "compact",
        "compact partition unique",
    ),
    "merge": Page("Merge", "merge", "merge merge_pairs co_rank", "merge co_rank", "merge"),
    "sort": Page(
        "Sort",
        "sort",
        "sort sort_keys sort_pairs argsort lexsort segment_sort segment_sort_pairs",
        "sort segment_sort",
        "sort sort_keys sort_pairs segment_sort",
    ),
    "sparse": Page(
        "Sparse matrices",
        "sparse",
        f"spmv spmm spgemm sampled_product {' '.join(FORMATS)} sparse.from_torch sparse.from_scipy",
        " ".join(f"spmv_{form}" for form in FORMATS) + " sampled_product spgemm",
        "spmv spmm sampled_product convert spgemm",
        see="{doc}`../sparse_formats` compares what a product takes in each format.",
        classes=" ".join(FORMATS).upper() + " sparse.Plan",
    ),
    "bfs": Page(
        "Graph search",
        "graph",
        "bfs bfs_batched shortest_path graph.path reachable connected_components sssp pagerank triangle_count "
        "sample_neighbors random_walk graph.batch graph.collate graph.from_edges graph.from_edge_index graph.from_csr "
        "graph.from_torch graph.from_scipy graph.from_networkx graph.read graph.rmat graph.rmat_edges graph.uniform "
        "graph.grid graph.maze graph.random_words",
        "bfs sssp triangle_count",
        "bfs sssp pagerank triangle_count",
        see="{doc}`../graphs` leads from your data to paths, ranks and batches.",
        classes="Graph",
    ),
    "conv2d": Page(
        "Convolution",
        "conv",
        "conv2d conv2d_dgrad conv2d_wgrad",
        "conv2d",
        "conv2d",
        see="{doc}`../notes/h200_conv_kernels` has the kernels by themselves.",
    ),
    "pooling": Page(
        "Pooling",
        "pooling",
        "subsample2d avg_pool2d max_pool2d",
        "max_pool2d",
        "subsample2d subsample2d_backward avg_pool2d avg_pool2d_backward max_pool2d max_pool2d_backward",
    ),
    "layers": Page(
        "Layers, activations and losses",
        "layers",
        "linear bipolar_sigmoid tanh relu sign rbf cross_entropy squared_error absolute_error",
        "linear activation loss rbf",
        "linear cross_entropy cross_entropy_backward activation_backward squared_error absolute_error tanh relu sign "
        "bipolar_sigmoid absolute_error_backward",
    ),
    "lenet5": Page("LeNet-5", "lenet", "", "lenet5", tables=("h200_lenet5",), classes="lenet.LeNet5 lenet.Trainer"),
}
REFERENCE = {  # module: what a page about it opens with
    "nn": "",
    "jagged": "",
    "distributed": "{doc}`../distributed` tells what travels between the ranks.",
    "solvers": "",
    "io": "",
    "data": "",
    "simt": "{doc}`../learn` shows it at work.",
    "registry": "",
}
PRIVATE = "documented, solve"  # which other modules of the package use


# ---- pages of patterns


def essay(header: Path) -> str:
    """The comment that a header opens with, as Markdown: indented lines are literal."""
    lines = []
    for line in header.read_text().splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").removeprefix(" "))
    paragraphs: list[str] = []
    literal = False
    for line in lines:
        indented = line.startswith("  ")
        if indented != literal and (line.strip() or literal):
            paragraphs += ["```text"] if indented else ["```"] if literal else []
            paragraphs += [] if indented or not line.strip() else [""]
            literal = indented
        paragraphs.append(line if indented else escaped(line))
    return "\n".join([*paragraphs, *(["```"] if literal else []), ""])


def escaped(text: str) -> str:
    """Prose of a comment whose brackets, stars and underscores are no markup; what stands in backquotes stays."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_\[\]<>#|])", r"\\\1", part) for part in parts)


def source_of(folder: Path, name: str, ladder: str) -> str:
    """The file of a rung; several ladders of a folder have rungs of one name, each in a folder of its own."""
    inside = (folder / ladder, folder / ladder.rsplit("_", 1)[-1])
    for path in (p for parent in (*inside, folder) for p in sorted(parent.glob(f"{name}.c*"))):
        return f"`{path.relative_to(ROOT)}`"
    return ""


def ladder_table(page: Page, ladder: str) -> list[str]:
    rungs = registry.ladder(ladder)
    lines = ["| algorithm | source | work | steps | devices | what |", "| --- | --- | --- | --- | --- | --- |"]
    for r in rungs:
        cells = (f"`{r.name}`", r.section, r.work, r.steps, ", ".join(r.written_for), escaped(r.summary))
        lines.append("| " + " | ".join(cells) + " |")
    files = [source_of(ROOT / "csrc" / page.folder, r.name, ladder) for r in rungs]
    return [*lines, "", "Files, in this order: " + ", ".join(filter(None, files)) + ".", ""]


def rows_of(operators: set[str]) -> dict[str, list[dict[str, str]]]:
    """By file: the rows that measure one of the operators."""
    found = {}
    for path in sorted(RESULTS.glob("*.csv"), key=lambda path: (path.stem.startswith("cpu"), path.stem)):
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if not {"operator", "percent_of_copy", "algorithm"} <= set(reader.fieldnames or ()):
                continue
        if rows := [row for row in report.read(path.stem) if row["operator"] in operators]:
            found[path.stem] = rows
    return found


def whole_table(name: str) -> list[str]:
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    kept = [i for i, title in enumerate(rows[0]) if title not in ("device", "torch", "cuda", "date")]
    lines = ["| " + " | ".join(row[i].replace("_", " ") for i in kept) + " |" for row in rows]
    return [
        lines[0],
        "|" + " --- |" * len(kept),
        *lines[1:],
        "",
        f"On an {rows[1][0]}; `benchmarks/results/{name}.csv`.",
        "",
    ]


def autodoc(kind: str, names: str, options: str = "") -> list[str]:
    body = [f".. {kind}:: torch_patterns.{name}{options}" for name in names.split()]
    return ["```{eval-rst}", *(line for entry in body for line in (entry, "")), "```", ""]


def pattern_page(name: str, page: Page) -> str:
    text = [f"# {page.title}", "", essay(ROOT / f"csrc/{page.folder}/{page.folder}.h")]
    text += ["## The ladder" + "s" * (" " in page.ladders), ""]
    text += ['`algorithm=` takes one of these names, or `"auto"`. They stand in textbook order.', ""]
    for ladder in page.ladders.split():
        text += [f"### {ladder}", ""] * (" " in page.ladders) + ladder_table(page, ladder)
    if page.functions:
        text += ["## Functions", "", *autodoc("autofunction", page.functions)]
    if page.classes:
        text += [
            "## Classes",
            "",
            *autodoc("autoclass", page.classes, "\n   :members:\n   :inherited-members: tuple, Module"),
        ]
    files = rows_of(set(page.operators.split()))
    if files or page.tables:
        text += ["## Figures", "", *([page.see, ""] if page.see else [])]
    for stem, rows in files.items():
        text += [f"### {rows[0]['device']}, `{stem}`", ""]
        image = f"{name}_{stem}.svg"
        if drawings.plot(rows, SOURCE / "patterns" / image):
            text += [f"![{page.title}: {stem}]({image})", ""]
        text += [report.of_rows(stem, rows), ""]
    for stem in page.tables:
        text += whole_table(stem)
    return "\n".join(text)


# ---- the rest


def reference_page(name: str, see: str) -> str:
    options = f"\n   :members:\n   :undoc-members:\n   :exclude-members: {PRIVATE}"
    if name == "distributed":
        options += "\n   :imported-members:"
    if name == "nn":
        options += ", training, forward"
    return "\n".join([f"# torch_patterns.{name}", "", see, "", *autodoc("automodule", name, options)])


def tree(*pages: str, caption: str = "") -> list[str]:
    return ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), *pages, "```", ""]


def rungs_of(page: Page) -> set[str]:
    return {rung.name for ladder in page.ladders.split() for rung in registry.ladder(ladder)}


def index_page() -> str:
    patterns = "\n".join(
        f"| {{doc}}`{page.title} <patterns/{name}>` | {len(rungs_of(page))} | "
        f"{', '.join(f'`{f}`' for f in page.functions.split()[:6]) or '`lenet.LeNet5`, `lenet.Trainer`'} |"
        for name, page in PAGES.items()
    )
    text = (HERE / "index.md").read_text().replace("PATTERNS", patterns)
    guides = ("overview", "learn", "coming_from", "graphs", "sparse_formats", "distributed", "cpp")
    design = ("architecture", "glossary", "determinism", "integrations", "performance", "testing")
    more = ("extend", "add_an_operator", "contributing", "changelog")
    parts = tree(*guides, caption="Guides") + tree("patterns/index", "reference/index", caption="Patterns")
    parts += tree(*design, caption="Design") + tree("ladders", "figures", "notes/index", caption="Tables")
    return "\n".join([text, *parts, *tree(*more, caption="Contribute")])


def listing(title: str, lead: str, pages: list[str]) -> str:
    return "\n".join([f"# {title}", "", lead, "", "```{toctree}", ":maxdepth: 1", *pages, "```", ""])


def linked(text: str) -> str:
    """A page that is read in the repository, too: the files that it names which are pages are links here."""
    pages = {f"docs/{path.name}": f"/{path.stem}" for path in (ROOT / "docs").glob("*.md")}
    pages |= {f"benchmarks/results/{path.name}": f"/notes/{path.stem}" for path in RESULTS.glob("*.md")}
    text = text.replace("](docs/images/", "](images/")
    return re.sub(r"`([\w/]+\.md)`", lambda m: f"{{doc}}`{pages[m[1]]}`" if m[1] in pages else m[0], text)


def sources() -> None:
    shutil.rmtree(SOURCE, ignore_errors=True)
    for folder in ("patterns", "reference", "notes", "_static"):
        (SOURCE / folder).mkdir(parents=True)
    shutil.copy(HERE / "conf.py", SOURCE)
    shutil.copy(HERE / "site.css", SOURCE / "_static")
    shutil.copytree(ROOT / "docs/images", SOURCE / "images")
    written = {"index.md": index_page()}
    written |= {path.name: linked(path.read_text()) for path in (ROOT / "docs").glob("*.md")}
    for name, page in {"overview": "README", "changelog": "CHANGELOG", "contributing": "CONTRIBUTING"}.items():
        written[f"{name}.md"] = linked((ROOT / f"{page}.md").read_text())
    written |= {f"patterns/{name}.md": pattern_page(name, page) for name, page in PAGES.items()}
    written["patterns/index.md"] = listing(
        "Patterns", "One page per pattern: its essay, ladder, functions, figures.", list(PAGES)
    )
    written |= {f"reference/{name}.md": reference_page(name, see) for name, see in REFERENCE.items()}
    written["reference/index.md"] = listing("Modules", "What is beside the patterns.", list(REFERENCE))
    notes = {path.stem: path.read_text() for path in sorted(RESULTS.glob("*.md"))}
    written |= {f"notes/{name}.md": text for name, text in notes.items()}
    written["notes/index.md"] = listing("Notes on figures", "What limits them, and what was tried.", list(notes))
    for name, text in written.items():
        (SOURCE / name).write_text(text)


def main() -> int:
    sources()
    if "--sources-only" in sys.argv:
        return 0
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto", "-b", "html"]
    return subprocess.run([*command, "-d", str(ROOT / "build/site-doctrees"), str(SOURCE), str(SITE)]).returncode


if __name__ == "__main__":
    sys.exit(main())
