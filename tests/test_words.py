"""The words of code, comments and docs are those of the field, in plain English: old words, and their replacements."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("csrc", "torch_patterns", "tests", "benchmarks", "examples", "docs")
SUFFIXES = {".h", ".cuh", ".cu", ".cpp", ".inc", ".def", ".c", ".py", ".md"}
FILES = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES)
FILES = [p for p in (*FILES, ROOT / "README.md") if p != Path(__file__)]

WHAT = (
    "(?:thread|lane|block|warp|row|column|segment|tile|level|vertex|pixel|output|element|key|rung|pattern|entry|file|"
    "kernel|bit|digit|copy|chunk|line|problem|ladder|module|cell|round|epoch|step|image|batch|process|rank|format|"
    "sample|edge|matrix|strip|part|bin|barrier|multiprocessor|section|group|word|byte|score|value|number|maze|device)"
)
# As plurals, these may be verbs.
WHICH = f"(?:{WHAT}|launch|search|sum|pass|stage|share|source|index)"
PLACE = "index, position, slot, offset, destination or rank: which of them it is"
WORDS = {  # old words -> what to write instead
    rf"\b(?:a|an|one|two|four) {WHICH}s? an? {WHICH}\b": '"per": one thread per row',
    rf"(?<!many )(?<!which )\b{WHAT}s an? {WHICH}\b": '"per": threads per row',
    r"\b(?!is_)[a-z]+s_an?_[a-z]+\b(?=[^\n]*[;,)])": "tiles_per_row",
    r"\bstretch(?:es)?\b": "chunk, run, range or slice",
    r"\b(?:near|far)_keys\b": "current_keys, alternate_keys",
    r"\bstruct None\b": "struct NoPayload",
    r"\bwhoever\b": "the thread that",
    r"\banew\b": "again, restarts",
    r"\bplainness\b": "clarity",
    r"\b(?:un)?fores(?:een|ee)\b|\bforetell\b": "predicted, unpredictable",
    r"\bdearer\b": "cost more",
    r"\bone trade each\b": "specialized warps",
    r"\bbelongs nowhere\b": "is dropped",
    r"\bmeets? in (?:no|few) banks?\b": "do not conflict on a bank",
    # Names only: what is "in place", "in the last place" or "takes the place of" something are plain words.
    r"(?-i:\bplaces\b)|\b(?!\w*in_place)\w+_places?\b|\bplaces?_\w+|\b\w*(?-i:[a-z0-9]Places?)\b": PLACE,
    r"\bplace(?:[\[(]| [=<+%] )|\b(?:int|int64_t|unsigned|auto|I) place\b": PLACE,
}
# (file, words) that mean something else there.
ALLOWED: set[tuple[str, str]] = set()
ANY = re.compile("|".join(WORDS), re.IGNORECASE)


def found(path: Path) -> list[str]:
    name, text = str(path.relative_to(ROOT)), path.read_text()
    if not ANY.search(text):
        return []
    hits = [(match, new) for old, new in WORDS.items() for match in re.finditer(old, text, re.IGNORECASE)]
    at = [(text.count("\n", 0, match.start()) + 1, match[0], new) for match, new in hits]
    return [f"{name}:{line}: {old!r}: {new!r}" for line, old, new in sorted(at) if (name, old) not in ALLOWED]


def test_old_words_are_gone():
    hits = [hit for path in FILES for hit in found(path)]
    assert not hits, "\n" + "\n".join(hits)


def test_allowed_words_are_there():
    unused = [(name, words) for name, words in ALLOWED if words not in (ROOT / name).read_text()]
    assert not unused


OLD = (
    "a thread a row",
    "Two elements a lane",
    "int tiles_a_row;",
    "more keys a thread",
    "a launch a level",
    "each stretch",
    "const int64_t place = begin;",
    "int* places;",
    "x[place[j]]",
    "place_of(column)",
    "find_places(s)",
    "StripPlace at{};",
)


@pytest.mark.parametrize("text", OLD)
def test_old_words_are_noticed(text):
    assert ANY.search(text)


PLAIN = (
    "scanned in place, then",
    "train_in_place(op)",
    "in the last place; on CUDA",
    "emplace_back(x)",
    "it replaces x",
)


@pytest.mark.parametrize(
    "text", ["one thread per row", "how many elements a block scans", "a row of the matrix", "is_a_view", *PLAIN]
)
def test_plain_words_pass(text):
    assert not ANY.search(text)
