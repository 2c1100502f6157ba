"""The text of Matrix Market files: what `torch_patterns.io` reads.

Nothing is taken on trust: memory grows with what the file holds, not with what it declares, and a fault is an error
that names the line. Blocks of lines are parsed in C++; a block with anything unusual is parsed again line by line, by
`_slow`, which defines what a line may hold.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import numpy as np
import torch

from torch_patterns import _C
from torch_patterns.sorting import argsort

MAX_LINE = 2**16  # bytes; the format says 1,024
BLOCK = 2**24  # bytes: enough for all threads
FORMATS = ("coordinate", "array")
FIELDS = ("real", "integer", "pattern")
SYMMETRIES = ("general", "symmetric", "skew-symmetric")

_TOO_LONG = f"longer than {MAX_LINE:,} bytes"
_NUL = "a NUL byte, which no text file has"
# Fortran writes the exponent of a double behind a D.
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([ed][+-]?\d+)?|[+-]?(inf(inity)?|nan)", re.IGNORECASE)
_INTEGER = re.compile(rb"[+-]?\d+")
_SAFE_DIGITS = 18  # this many digits always fit in int64
_TYPE = ["%%graphblas", "type"]
_BITS = (8, 16, 32, 64)
_BOUNDS = {"bool": (0, 1), **{f"int{b}_t": (-(2 ** (b - 1)), 2 ** (b - 1) - 1) for b in _BITS}}
_BOUNDS |= {f"uint{b}_t": (0, 2**b - 1) for b in _BITS}
_FLOATS = ("float", "double")
_FLOAT_END = 2.0**128 - 2.0**103  # the least that rounds to infinity


class _Header(NamedTuple):
    format: str
    field: str
    symmetry: str
    type: str  # GraphBLAS's, or ""
    shape: tuple[int, int]
    count: int  # entries that the file must hold
    line: int  # of the sizes

    @property
    def columns(self) -> int:
        """Numbers in the line of an entry."""
        return self.indices + (self.field != "pattern")

    @property
    def indices(self) -> int:
        return 2 if self.format == "coordinate" else 0


class _Entries(NamedTuple):
    """What a block holds: indices int64 [2 or 0, n] as written, values int64 or float64 [n], lines [n]; and the number
    of its last line."""

    indices: np.ndarray
    values: np.ndarray
    lines: np.ndarray
    end: int


class _Fault(Exception):
    """(cause, line), where the file's name is not at hand."""


class Reader:
    """A file, its name for the errors, and the number of the line last read."""

    def __init__(self, path: str | os.PathLike):
        self.path, self.line = path, 0
        self.raw = open(os.fspath(path), "rb")  # a number is no path, but a descriptor
        packed = self.raw.peek(2)[:2] == b"\x1f\x8b"
        self.file: io.BufferedIOBase = gzip.GzipFile(fileobj=self.raw) if packed else self.raw

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind, error, _) -> None:
        self.raw.close()
        if isinstance(error, _Fault):
            self.fail(*error.args)
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
            raise ValueError(f"{self.path}: damaged or truncated gzip data behind line {self.line}: {error}") from error

    def fail(self, cause: str, line: int | None = None) -> NoReturn:
        raise ValueError(f"{self.path}: line {self.line if line is None else line}: {cause}") from None

    def next_line(self) -> bytes:
        """The next line without its end; empty behind the last."""
        text = self.file.readline(MAX_LINE + 1)
        self.line += 1
        if len(text) > MAX_LINE:
            self.fail(_TOO_LONG)
        if not text:
            self.fail("the file ends within its header")
        if b"\0" in text:
            self.fail(_NUL)
        return text

    def header(self) -> _Header:
        """Reads up to and with the sizes."""
        words = _words(self.next_line())
        if words[:1] != ["%%matrixmarket"]:
            self.fail("not a Matrix Market file: it does not begin with %%MatrixMarket")
        if len(words) != 5 or words[1] != "matrix":
            self.fail("the header must be %%MatrixMarket matrix FORMAT FIELD SYMMETRY")
        form, field, symmetry = words[2:]
        if field == "complex":
            self.fail("complex entries are not supported")
        if symmetry == "hermitian":
            self.fail(f"hermitian entries must be complex, which is not supported, and these are {field}")
        for word, known in ((form, FORMATS), (field, FIELDS), (symmetry, SYMMETRIES)):
            if word not in known:
                self.fail(f"{word!r} is none of {', '.join(known)}")
        if field == "pattern" and (form == "array" or symmetry == "skew-symmetric"):
            self.fail(f"{form} pattern {symmetry} is no valid combination: pattern entries have no values")
        type_ = ""
        while True:
            text = self.next_line().strip()
            if text.startswith(b"%"):
                name = self.graphblas_type(text, symmetry)
                if name and type_:
                    self.fail("a second GraphBLAS type")
                type_ = name or type_
            elif text:
                return self.sizes(text, form, field, symmetry, type_)

    def graphblas_type(self, text: bytes, symmetry: str) -> str:
        """The type T of a comment "%%GraphBLAS type T", "" of any other."""
        words = _words(text)
        if words[:2] != _TYPE:
            return ""
        name = " ".join(words[2:])
        if name not in (*_BOUNDS, *_FLOATS):
            self.fail(f"GraphBLAS type {name!r} is none of {', '.join((*_BOUNDS, *_FLOATS))}")
        if symmetry == "skew-symmetric" and _BOUNDS.get(name, (-1,))[0] == 0:
            self.fail(f"skew-symmetric, but GraphBLAS type {name} has no negative numbers")
        return name

    def sizes(self, text: bytes, form: str, field: str, symmetry: str, type_: str) -> _Header:
        words = text.split()
        names = ["rows", "columns", "entries"][: 3 if form == "coordinate" else 2]
        if len(words) != len(names) or not all(word.isdigit() for word in words):
            self.fail(f"{form} files give here {' '.join(names)}, in digits: {_shown(text)}")
        if max(map(len, words)) > _SAFE_DIGITS:
            self.fail(f"sizes beyond {_SAFE_DIGITS} digits: {_shown(text)}")
        rows, cols, *given = map(int, words)
        if symmetry != "general" and rows != cols:
            self.fail(f"{symmetry}, but {rows} x {cols} is not square")
        triangle = {"general": rows * cols, "symmetric": rows * (rows + 1) // 2}
        count = given[0] if given else triangle.get(symmetry, rows * (rows - 1) // 2)
        return _Header(form, field, symmetry, type_, (rows, cols), count, self.line)

    def blocks(self) -> Iterator[memoryview]:
        """Whole lines that end in a newline, to the end of the file, in memory that the next block takes. The caller
        counts them in `line`."""
        unpacked = 1 if self.file is self.raw else 1032  # bytes that one of the file holds at most, by deflate
        most = min(BLOCK, os.fstat(self.raw.fileno()).st_size * unpacked) or BLOCK  # a pipe has no size
        text, rest = bytearray(MAX_LINE + most + 1), 0  # how many bytes of an unfinished line are at its front
        while size := self.file.readinto(memoryview(text)[rest : rest + most]):
            end = text.rfind(b"\n", 0, rest + size) + 1
            if end:
                yield memoryview(text)[:end]
            rest += size - end
            text[:rest] = text[end : end + rest]
            if rest > MAX_LINE:
                raise _Fault(_TOO_LONG, self.line + 1)
        if rest:
            text[rest] = ord("\n")
            yield memoryview(text)[: rest + 1]

    def entries(self, header: _Header, duplicates: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(indices from 0 [2, n], float64 values [n], their lines [n]); of a symmetric file the lower triangle."""
        parts, found = [], 0
        for text in self.blocks():
            part = _fast(text, self.line + 1, header) or _slow(text, self.line + 1, header)
            self.line = part.end
            found += len(part.lines)
            if found > header.count:
                extra = part.lines[header.count - found]
                self.fail(f"one entry more than the {header.count} that line {header.line} promises", extra)
            _check(part, header)
            parts.append(part._replace(values=part.values.astype(np.float64, copy=False)))
        if found < header.count:
            self.fail(f"the file ends after {found} of the {header.count} entries that line {header.line} promises")
        if not parts:
            parts.append(_Entries(np.zeros((header.indices, 0), np.int64), np.zeros(0), np.zeros(0, np.int64), 0))
        arrays = [list(part[:3]) for part in parts]
        coordinates, values, lines = (
            arrays[0] if len(arrays) == 1 else (np.concatenate(a, -1) for a in zip(*arrays, strict=True))
        )
        if header.type == "float":
            values = values.astype(np.float32).astype(np.float64)
        if header.format == "array":
            return _array_coordinates(header), values, lines
        coordinates -= 1
        if header.symmetry != "general":
            upper = coordinates[0] < coordinates[1]
            coordinates = np.where(upper, coordinates[::-1], coordinates)
            values = np.where(upper & (header.symmetry == "skew-symmetric"), -values, values)
        if duplicates != "keep":
            return _unique(coordinates, values, lines, header.shape, duplicates)
        return coordinates, values, lines


def _words(text: bytes) -> list[str]:
    return [word.decode("latin-1") for word in text.lower().split()]


def _shown(text: bytes) -> str:
    return repr(text[:60].decode("latin-1"))


# ---- blocks of lines


def _fast(text: memoryview, first: int, header: _Header) -> _Entries | None:
    """The entries of whole lines, the first of which has that number; None where one is unusual or wrong."""
    found = _C.parse_entries(text, first, header.indices, header.field, MAX_LINE)
    return found and _Entries(*found)


def _slow(text: memoryview, first: int, header: _Header) -> _Entries:
    """The same line by line: raises what is wrong with the first bad line."""
    coordinates, values, lines, number = [], [], [], first
    for number, line in enumerate(bytes(text).split(b"\n")[:-1], first):
        if len(line) >= MAX_LINE:
            raise _Fault(_TOO_LONG, number)
        if b"\0" in line:
            raise _Fault(_NUL, number)
        words = line.split()
        if not words or words[0].startswith(b"%"):
            if _words(line)[:2] == _TYPE:
                raise _Fault("a GraphBLAS type belongs before the sizes", number)
            continue
        if len(words) != header.columns:
            raise _Fault(f"{header.columns} numbers make an entry, and not {_shown(line)}", number)
        *row_and_column, value = words if header.field != "pattern" else (*words, b"1")
        coordinates.append([_index(word, number) for word in row_and_column])
        values.append(_decimal(value, number) if header.field == "real" else _integer(value, number))
        lines.append(number)
    indices = np.array(coordinates, np.int64).reshape(len(lines), header.indices).T
    kind = np.float64 if header.field == "real" else object
    return _Entries(indices, np.array(values, kind), np.array(lines, np.int64), number)


def _integer(word: bytes, line: int) -> int:
    if not _INTEGER.fullmatch(word):
        raise _Fault(f"{_shown(word)} is no integer", line)
    digits = word.lstrip(b"+-").lstrip(b"0")
    value = int(digits or b"0") if len(digits) <= 20 else 2**65
    value = -value if word.startswith(b"-") else value
    if not -(2**63) <= value < 2**64:
        raise _Fault(f"{_shown(word)} does not fit in 64 bits", line)
    return value


def _index(word: bytes, line: int) -> int:
    value = _integer(word, line)
    if value >= 2**63:
        raise _Fault(f"{_shown(word)} is no index: sizes have at most {_SAFE_DIGITS} digits", line)
    return value


def _decimal(word: bytes, line: int) -> float:
    if not _NUMBER.fullmatch(word):
        raise _Fault(f"{_shown(word)} is no real number", line)
    value = float(word.lower().replace(b"d", b"e"))
    if abs(value) == float("inf") and b"n" not in word.lower():
        raise _Fault(f"{_shown(word)} does not fit in float64", line)
    return value


def _check(part: _Entries, header: _Header) -> None:
    """Every index within the matrix, every value of the type that the file declares."""

    def refuse(bad: np.ndarray, cause: str, given: np.ndarray) -> None:
        if bad.any():
            worst = int(bad.argmax())
            raise _Fault(f"{given[worst]} {cause}", int(part.lines[worst]))

    values = part.values
    for index, size, name in zip(part.indices, header.shape, ("rows", "columns"), strict=False):
        if len(index) and (index.min() < 1 or index.max() > size):
            refuse((index < 1) | (index > size), f"is outside the {name} 1 to {size}", index)
    if header.symmetry == "skew-symmetric" and header.indices:
        diagonal = part.indices[0] == part.indices[1]
        refuse(diagonal & (values != 0), "is on the diagonal, which is 0 in a skew-symmetric matrix", values)
    if header.type in _BOUNDS:
        low, high = _BOUNDS[header.type]
        fits = (values >= low) & (values < high + 1)
        if header.field == "real":
            fits &= values == np.trunc(values)
        refuse(~fits.astype(bool), f"is no value of GraphBLAS type {header.type}", values)
    if header.type == "float":
        given = values.astype(np.float64)
        refuse(np.isfinite(given) & (abs(given) >= _FLOAT_END), "does not fit in GraphBLAS type float", values)


# ---- coordinates


def _array_coordinates(header: _Header) -> np.ndarray:
    """Where the entries of an array file belong: column by column, of symmetric ones the lower triangle."""
    n = header.shape[0]
    if header.symmetry == "general":
        k = np.arange(header.count)
        return np.stack((k % max(n, 1), k // max(n, 1)))
    first = int(header.symmetry == "skew-symmetric")  # row of a column, below the diagonal
    heights = np.arange(n - first, 0, -1)
    col = np.repeat(np.arange(len(heights)), heights)
    tops = np.cumsum(heights) - heights
    return np.stack((np.arange(header.count) - tops[col] + col + first, col))


def _keys(coordinates: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """One number per position, in the order of columns and then of rows."""
    rows, cols = shape
    if rows * cols >= 2**63:
        coordinates = np.stack([np.unique(axis, return_inverse=True)[1] for axis in coordinates])
        rows = coordinates.shape[1]
    return coordinates[1] * rows + coordinates[0]


def _unique(
    coordinates: np.ndarray, values: np.ndarray, lines: np.ndarray, shape: tuple[int, int], duplicates: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries, those at one position added up where the first of them stood; or an error about the first pair."""
    (row, col), (next_row, next_col) = coordinates[:, :-1], coordinates[:, 1:]
    if ((next_row > row) | ((next_row == row) & (next_col > col))).all():
        return coordinates, values, lines  # row by row
    keys = _keys(coordinates, shape)
    if (np.diff(keys) > 0).all():
        return coordinates, values, lines  # column by column
    order = argsort(torch.from_numpy(keys)).numpy()
    keys = keys[order]
    again = np.flatnonzero(keys[1:] == keys[:-1]) + 1
    if duplicates == "error" and len(again):
        k = again[order[again].argmin()]
        row, col = coordinates[:, order[k]] + 1
        raise _Fault(f"row {row}, column {col} has an entry already, of line {lines[order[k - 1]]}", lines[order[k]])
    first = np.searchsorted(keys, keys[again])
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(values, order[first], values[order[again]])
    kept = np.ones(len(keys), bool)
    kept[order[again]] = False
    return coordinates[:, kept], values[kept], lines[kept]
