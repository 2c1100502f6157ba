"""Matrix Market files that were valid before they were mutated: read as an independent reader does, or refused."""

import gzip
import re

import numpy as np
import pytest
from data_files import data_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_patterns import io, matrix_market

BOUNDS = {"bool": (0, 1), "int8_t": (-128, 127), "uint8_t": (0, 255), "int64_t": (-(2**63), 2**63 - 1)}


def entries(A) -> list[tuple[int, int, float]]:
    return list(zip(A.row_idx.tolist(), A.col_idx.tolist(), A.values.tolist(), strict=True))


def independent(text: bytes):
    """(shape, entries as they are after mirroring) by one plain loop, or None for what must be refused."""

    def number(word: str, kind: type):
        if "_" in word or not word.isascii() or "(" in word:
            raise ValueError(word)
        value = kind(re.sub("d", "e", word, flags=re.IGNORECASE) if kind is float else word)
        if kind is int and not -(2**63) <= value < 2**64:
            raise ValueError(word)
        if kind is float and value in (np.inf, -np.inf) and "inf" not in word.lower():
            raise ValueError(word)
        return value

    if 0 in text:
        return None
    lines = [line.decode("latin-1").encode("ascii", "replace").decode() for line in text.split(b"\n")]
    banner = lines[0].lower().split()
    if len(banner) != 5 or banner[:2] != ["%%matrixmarket", "matrix"]:
        return None
    form, field, symmetry = banner[2:]
    known = form in ("coordinate", "array") and field in ("real", "integer", "pattern")
    if not known or symmetry not in ("general", "symmetric", "skew-symmetric"):
        return None
    if field == "pattern" and (form == "array" or symmetry == "skew-symmetric"):
        return None
    body, kinds = [], []
    for line in lines[1:]:
        words = line.split()
        if [word.lower() for word in words[:2]] == ["%%graphblas", "type"]:
            kinds.append(" ".join(words[2:]).lower())
            unsigned = BOUNDS.get(kinds[0], (0,))[0] == 0
            if body or len(kinds) > 1 or kinds[0] not in BOUNDS or (unsigned and symmetry == "skew-symmetric"):
                return None
        elif words and not words[0].startswith("%"):
            body.append(words)
    try:
        if not body or any("+" in word or "-" in word or len(word) > 18 for word in body[0]):
            return None
        rows, cols, *count = (number(word, int) for word in body[0])
        if len(count) != (form == "coordinate") or (symmetry != "general" and rows != cols):
            return None
        if form == "array":
            strict = symmetry == "skew-symmetric"
            lower = symmetry != "general"
            if (count := [rows * (rows - 1 + 2 * (not strict)) // 2 if lower else rows * cols])[0] > 10**6:
                return None
            coordinates = [(r, c) for c in range(cols) for r in range((c + strict) if lower else 0, rows)]
        if len(body) - 1 != count[0]:
            return None
        found = {}
        for k, words in enumerate(body[1:]):
            if form == "coordinate":
                r, c = number(words.pop(0), int) - 1, number(words.pop(0), int) - 1
            else:
                r, c = coordinates[k]
            (v,) = [number(word, float if field == "real" else int) for word in words] if field != "pattern" else (1,)
            if field == "pattern" and words:
                return None
            low, high = BOUNDS[kinds[0]] if kinds else (-np.inf, np.inf)
            if kinds and not (low <= v <= high and v == int(v)):
                return None
            sign = -1 if symmetry == "skew-symmetric" else 1
            if not (0 <= r < rows and 0 <= c < cols) or (sign < 0 and r == c and v != 0):
                return None
            if symmetry != "general" and r < c:
                r, c, v = c, r, sign * v
            if (r, c) in found:
                return None
            found[r, c] = float(v)
        if symmetry != "general":
            found |= {(c, r): sign * v for (r, c), v in found.items() if r != c}
    except (ValueError, IndexError):
        return None
    return (rows, cols), [(*at, v) for at, v in found.items()]


NUMBERS = st.one_of(
    st.floats(width=64).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["0", "-0", "1.", ".5", "+3", "1e5", "1E-5", "inf", "-Infinity", "nan", "1e999", "00012", "-"]),
    st.sampled_from(["1.5D+03", "2d-1", "-.5d0", "1D", "1d999"]),
)
INTEGERS = st.one_of(st.integers(-200, 300).map(str), st.sampled_from(["+7", f"{2**63}", f"-{2**63}", "007", "1.0"]))
GAPS = st.sampled_from(["\n", "\n", "\n", "\r\n", "\n\n", "\n% words\n", " \n", "\n \t\r\n%%GraphBLAS comment\n"])
KINDS = st.sampled_from(
    ["", "", "", "%%GraphBLAS type int8_t\n", "%%GraphBLAS type bool\n", "%%graphblas TYPE uint8_t\n"]
)
PIECES = [b"", b"0", b"1", b"9", b"-", b"+", b".", b"e", b" ", b"\t", b"\n", b"\r", b"\0", b"%", b"_", b"\x0b", b"\xe9"]
PIECES += [
    b"D",
    b"1 1 1\n",
    b"\n\n",
    b"nan",
    b"inf",
    b"99999999999999999999",
    b"%%GraphBLAS type bool\n",
    b"complex",
    b"\xc2\xa0",
]


@st.composite
def files(draw) -> bytes:
    form = draw(st.sampled_from(["coordinate", "coordinate", "array"]))
    field = draw(st.sampled_from(["real", "integer", "pattern"]))
    symmetry = draw(st.sampled_from(["general", "symmetric", "skew-symmetric"]))
    rows, cols = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    cols = cols if symmetry == "general" else rows
    coordinates = [(r, c) for r in range(1, rows + 1) for c in range(1, cols + 1)]
    if symmetry != "general":
        coordinates = [(r, c) for r, c in coordinates if r > c or (r == c and symmetry == "symmetric")]
    if form == "coordinate" and coordinates:
        coordinates = draw(st.lists(st.sampled_from(coordinates), unique=True))
    numbers = {"real": NUMBERS, "integer": INTEGERS, "pattern": st.just("")}[field]
    text = f"%%MatrixMarket matrix {form} {field} {symmetry}\n{draw(KINDS)}{rows} {cols}"
    text += f" {len(coordinates)}" if form == "coordinate" else ""
    for r, c in coordinates:
        at = f"{r} {c} " if form == "coordinate" else ""
        text += draw(GAPS) + at + draw(numbers)
    return (text + draw(st.sampled_from(["", "\n", "\r\n", "\n%", " \n\n"]))).encode()


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files(),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.sampled_from(PIECES)), max_size=3),
    st.sampled_from([1, 9, 2**18]),
)
def test_mutations_read_as_an_independent_reader_does_or_are_refused(tmp_path, file, edits, block):
    for where, length, piece in edits:
        at = int(where * len(file))
        file = file[:at] + piece + file[at + length :]
    path = tmp_path / "fuzzed.mtx"
    path.write_bytes(file)
    want = independent(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix_market, "BLOCK", block)
        try:
            A = io.read_matrix_market(path)
        except ValueError as error:
            assert re.fullmatch(rf"{path}: line \d+: .+", str(error)), error
            assert want is None, error
            return
    assert want is not None
    assert A.shape == want[0]
    assert list(map(repr, entries(A))) == list(map(repr, want[1]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files(), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=2)), max_size=2), st.floats(0, 1))
def test_damaged_gzip_files_are_refused_or_read(tmp_path, file, edits, end):
    packed = gzip.compress(file)
    for where, piece in edits:
        at = int(where * len(packed))
        packed = packed[:at] + piece + packed[at + len(piece) :]
    path = tmp_path / "fuzzed.mtx.gz"
    path.write_bytes(packed[: int(end * 1.2 * len(packed))])
    try:
        A = io.read_matrix_market(path)
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")
    else:
        assert independent(gzip.decompress(path.read_bytes())) is not None
        assert len(A.values) >= 0


def test_every_valid_file_is_read_and_every_malformed_one_refused():
    for path in sorted(data_folder("mm_malformed").iterdir()):
        with pytest.raises(ValueError, match=rf"^{path}: line \d+: "):
            io.read_matrix_market(path)
    for path in sorted(data_folder("mm_valid").iterdir()):
        A = io.read_matrix_market(path)
        shape, want = independent(path.read_bytes().replace(b"type int32_t", b"comment"))
        assert (A.shape, entries(A)) == (shape, want), path
    jumbled, straight = (
        sorted(entries(io.read_matrix_market(data_folder("mm_valid") / name)))
        for name in ("west0067_jumbled.mtx", "west0067.mtx")
    )
    assert [at for *at, _ in jumbled] == [at for *at, _ in straight]
