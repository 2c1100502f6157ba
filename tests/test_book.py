"""The book's kernels, whole: a rung that has a figure has that figure's kernel in its own file, on one screen."""

import re
from pathlib import Path

import pytest
from test_layout import FOLDERS, name, rungs

SCREEN = 120  # lines
# Rungs whose figure shows how other rungs are put together: the file calls those, and has no kernel of its own.
COMPOSED = {
    "ell_plus_coo": ("spmv_ell::thread_per_row", "spmv_coo::thread_per_nonzero"),
    "layers": ("args.layers()",),
}
RUNGS = [(folder, *rung) for folder in FOLDERS for rung in rungs(folder) if rung[3] != "-"]
WITH_KERNELS = [entry for entry in RUNGS if entry[1] == "RUNG" and entry[2] not in COMPOSED]


def label(entry) -> str:
    return f"{entry[0].name}-{entry[2]}" if isinstance(entry, tuple) else str(entry)


def source(folder: Path, rung: str) -> str:
    return next(path for path in (folder / f"{rung}.cu", folder / f"{rung}.cpp") if path.exists()).read_text()


def head(text: str) -> str:
    """The comment that opens a file, its lines joined."""
    lines = text.splitlines()
    comment = lines[: next(i for i, line in enumerate(lines) if not line.startswith("//"))]
    return " ".join(line.removeprefix("//").strip() for line in comment)


def figure(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in number.split("."))


def figures_named(comment: str) -> list[tuple[int, ...]]:
    """Those of "Fig. 10.6", "Figs. 10.12 and 10.13", "Figs. 11.2 to 11.4", "Figs. 16.6, 16.10 to 16.12"."""
    groups = re.findall(r"Figs?\. (\d+\.\d+(?:(?:,| and| to|, and)+ \d+\.\d+)*)", comment)
    return [figure(number) for group in groups for number in re.findall(r"\d+\.\d+", group)]


def test_every_chapter_has_its_figures():
    assert len(RUNGS) > 30 and len(WITH_KERNELS) > 23
    assert {entry[4].split(".")[0] for entry in RUNGS} == {"10", "11", "12", "13", "14", "15", "16"}
    assert {entry[2] for entry in RUNGS} >= COMPOSED.keys()


@pytest.mark.parametrize("entry", RUNGS, ids=label)
def test_the_head_names_the_figure(entry):
    folder, _, rung, _, figures, *_ = entry
    ranges = [[figure(end) for end in part.split("-")] for part in figures.split(", ")]
    named = figures_named(head(source(folder, rung)))
    assert any(part[0] <= number <= part[-1] for number in named for part in ranges), f"{rung}: {figures} in {named}"


@pytest.mark.parametrize("entry", WITH_KERNELS, ids=label)
def test_the_kernel_is_in_its_file(entry):
    folder, _, rung, *_ = entry
    text = source(folder, rung)
    kernels = re.findall(r"^struct (\w+) \{.*?^\};", text, re.MULTILINE | re.DOTALL)
    bodies = re.findall(r"^struct \w+ \{.*?^\};", text, re.MULTILINE | re.DOTALL)
    own = [body for body in bodies if "operator()(Block& block) const {" in body and "block.phase(" in body]
    assert own, f"{name(folder)}/{rung}: none of {kernels} is a kernel of phases"
    assert len(text.splitlines()) <= SCREEN, f"{name(folder)}/{rung}: more than a screen"
    phases = max(body.count("block.phase(") for body in own)
    assert phases == 1 or "barrier" in head(text).lower(), f"{name(folder)}/{rung}: say why each barrier stands"


@pytest.mark.parametrize("rung", COMPOSED)
def test_a_rung_of_rungs_calls_them(rung):
    folder = next(entry[0] for entry in RUNGS if entry[2] == rung)
    assert all(called in source(folder, rung) for called in COMPOSED[rung])
