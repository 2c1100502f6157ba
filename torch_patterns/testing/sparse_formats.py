"""Sparse matrices for tests, written and read straight from what the formats mean, without the library."""

from __future__ import annotations

import numpy as np
import torch

from torch_patterns.sparse import FORMATS
from torch_patterns.sparse.containers import BIN_ENTRIES, BLOCK_COLUMNS, OCTET

SECTION_ROWS = 4

# ---- matrices: how long the rows are is the same for every sample of a case, so that samples can be stacked


def lengths_of(kind: str, n: int, rows: int) -> np.ndarray:
    """The numbers of entries of `rows` rows, `n` in all."""
    random = np.random.default_rng(n * 1009 + rows)
    if rows == 0:
        return np.zeros(0, np.int64)
    if kind == "ragged":
        return np.bincount(random.integers(0, rows, n), minlength=rows)
    if kind == "one long":  # half of all entries in one row, an empty row behind it
        lengths = np.bincount(random.integers(0, rows, n - n // 2), minlength=rows)
        lengths[rows // 2] += n // 2
        lengths[0] += lengths[(rows // 2 + 1) % rows]
        lengths[(rows // 2 + 1) % rows] = 0
        return lengths
    if kind == "hypersparse":
        return np.bincount(
            random.choice(rows, max(rows // 50, 1))[random.integers(0, max(rows // 50, 1), n)], None, rows
        )
    raise ValueError(kind)


def rectangle(lengths: np.ndarray, width: int, rows: np.ndarray, x: np.ndarray, fill) -> np.ndarray:
    """[width, len(rows)]: the first `width` of the entries of each of these rows."""
    out = np.full((width, len(rows)), fill, x.dtype)
    starts = np.concatenate([[0], lengths.cumsum()])
    for position, row in enumerate(rows):
        n = min(lengths[row], width)
        out[:n, position] = x[starts[row] : starts[row] + n]
    return out


def stored(form: str, lengths: np.ndarray, cols: np.ndarray, values: np.ndarray, columns: int) -> list[np.ndarray]:
    """The tensors of a format, of entries in the order of rows."""
    rows, n = len(lengths), len(cols)
    ptrs, row_idx = np.concatenate([[0], lengths.cumsum()]), np.repeat(np.arange(rows), lengths)
    order = np.argsort(-lengths, kind="stable")
    if form == "coo":
        shuffled = np.random.default_rng(n).permutation(n)
        return [row_idx[shuffled], cols[shuffled], values[shuffled]]
    if form == "csr":
        return [ptrs, cols, values]
    if form == "csc":
        by_column = np.argsort(cols, kind="stable")
        col_ptrs = np.concatenate([[0], np.bincount(cols, minlength=columns).cumsum()])
        return [col_ptrs, row_idx[by_column], values[by_column]]
    if form in ("ell", "hyb"):
        longest = lengths.max(initial=0)
        width = longest if form == "ell" else min(n // max(rows, 1) + 1, longest)
        padded = [rectangle(lengths, width, np.arange(rows), x, fill) for x, fill in ((cols, -1), (values, 0))]
        tail = np.arange(n) - ptrs[row_idx] >= width if n else np.zeros(0, bool)
        rest = [row_idx[tail], cols[tail], values[tail]] if form == "hyb" else []
        return [np.minimum(lengths, width), *padded, *rest]
    if form == "jds":
        width = lengths.max(initial=0)
        diagonals = [(lengths > j).sum() for j in range(width)]
        flat = [rectangle(lengths, width, order, x, 0) for x in (cols, values)]
        return [order, np.cumsum([0, *diagonals]), *(cut(x, diagonals) for x in flat)]
    if form == "blocked":
        return [ptrs, *by_blocks(cols, values, columns)]
    assert form == "sell"
    starts = range(0, rows, SECTION_ROWS)
    sections = [order[i : i + SECTION_ROWS] for i in starts]
    widths = [lengths[s].max() for s in sections]
    parts = [
        [rectangle(lengths, w, s, x, f).ravel() for w, s in zip(widths, sections, strict=True)]
        for x, f in ((cols, -1), (values, 0))
    ]
    flat = [np.concatenate(p) if p else x[:0] for p, x in zip(parts, (cols, values), strict=True)]
    section_ptrs = np.cumsum([0, *(w * len(s) for w, s in zip(widths, sections, strict=True))])
    return [order, lengths[order], section_ptrs, *flat]


def by_blocks(cols: np.ndarray, values: np.ndarray, columns: int) -> list[np.ndarray]:
    """The tensors of a blocked matrix but for row_ptrs."""
    n, blocks = len(cols), range(-(-columns // BLOCK_COLUMNS))
    bins = [np.arange(first, min(first + BIN_ENTRIES, n)) for first in range(0, n, BIN_ENTRIES)]
    runs = [[some[cols[some] // BLOCK_COLUMNS == block] for block in blocks] for some in bins]
    runs = [[np.pad(run, (0, -len(run) % OCTET), constant_values=-1) for run in some] for some in runs]
    numbers = iter(range(n * OCTET))  # of octets, in the order of bins
    octets = [[[next(numbers) for _ in run[::OCTET]] for run in some] for some in runs]
    first = np.array([entry for block in blocks for some in runs for entry in some[block]], np.int64)
    second = np.array([entry for some in runs for run in some for entry in run], np.int64)
    return [
        np.cumsum([0, *(sum(len(some[block]) for some in runs) for block in blocks)]),
        np.cumsum([0, *(sum(map(len, some)) for some in runs)]),
        np.array([octet for block in blocks for some in octets for octet in some[block]], np.int64),
        np.where(first < 0, -1, cols[first] % BLOCK_COLUMNS),
        np.where(second < 0, -1, second % BIN_ENTRIES),
        np.where(first < 0, 0, values[first]),
    ]


def cut(rows: np.ndarray, sizes) -> np.ndarray:
    """The first sizes[j] of row j, one row after another."""
    return np.concatenate([r[:k] for r, k in zip(rows, sizes, strict=True)]) if len(rows) else rows.ravel()


def coordinates(form: str, fields: list[np.ndarray], rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, column, index in the flat values) of each entry, straight from what the formats mean."""
    if form == "coo":
        return fields[0], fields[1], np.arange(len(fields[0]))
    if form in ("csr", "csc"):
        outer, inner = np.repeat(np.arange(len(fields[0]) - 1), np.diff(fields[0])), fields[1]
        return (outer, inner, np.arange(len(inner))) if form == "csr" else (inner, outer, np.arange(len(inner)))
    if form in ("ell", "hyb"):
        k, r = np.nonzero(np.arange(len(fields[1]))[:, None] < fields[0])
        found = [r, fields[1][k, r], k * rows + r]
        if form == "hyb":
            tail = (fields[2], fields[3], fields[1].size + np.arange(len(fields[2])))
            found = [np.concatenate(pair) for pair in zip(found, tail, strict=True)]
        return tuple(found)
    if form == "jds":
        lengths = np.diff(fields[1])
        position = np.concatenate([np.arange(n) for n in lengths]) if len(lengths) else np.zeros(0, np.int64)
        return fields[0][position], fields[2], np.arange(len(fields[2]))
    if form == "blocked":
        ptrs, block_ptrs, bin_ptrs, octet_idx, cols, entry_idx = fields
        at = np.flatnonzero(cols >= 0)
        there = octet_idx[at // OCTET] * OCTET + at % OCTET
        entry = (np.searchsorted(bin_ptrs, there, "right") - 1) * BIN_ENTRIES + entry_idx[there]
        first = (np.searchsorted(block_ptrs, at, "right") - 1) * BLOCK_COLUMNS
        return np.searchsorted(ptrs, entry, "right") - 1, first + cols[at], at
    assert form == "sell"
    perm, row_nnz, ptrs, cols = fields
    found = [
        (perm[position], int(ptrs[s]) + k * h + position - s * SECTION_ROWS)
        for s in range(len(ptrs) - 1)
        for h in [min(SECTION_ROWS, rows - s * SECTION_ROWS)]
        for position in range(s * SECTION_ROWS, s * SECTION_ROWS + h)
        for k in range(row_nnz[position])
    ]
    r, at = np.array(found, np.int64).reshape(-1, 2).T
    return r, cols[at], at


def index_dtype(form: str, name: str, index: torch.dtype) -> torch.dtype:
    """Of this index tensor, in a matrix with indices of dtype `index`."""
    return torch.int16 if form == "blocked" and name in ("col_idx", "entry_idx") else index


def matrix(form: str, c, make) -> tuple[list[torch.Tensor], int, int]:
    """The tensors of the container of a case of shapes (entries,), (rows,), (columns, ...); rows and columns."""
    (n,), (rows,), (columns, *_) = c.shapes
    index = c.kwargs.get("index", torch.int64)
    cols = make.indices((n,), columns).cpu().numpy()
    values = make((n,))
    fields = stored(form, lengths_of(c.kwargs.get("lengths", "ragged"), n, rows), cols, np.arange(1, n + 1), columns)
    padded = torch.cat([values.new_zeros(1), values])
    names = FORMATS[form]._fields
    tensors = [
        padded[torch.from_numpy(x)]
        if "values" in name
        else torch.from_numpy(x.astype(np.int64)).to(index_dtype(form, name, index))
        for name, x in zip(names, fields, strict=False)
    ]
    return tensors, rows, columns


def plan_of(form: str, fields: list[np.ndarray], rows: int, columns: int, entries: int, by_rows: bool = False):
    """(ptrs, perm, other) as numpy gives them; padding, behind all else, has -1 for the other."""
    r, c, at = coordinates(form, fields, rows)
    key, other = (r, c) if by_rows else (c, r)
    keys, others = np.full(entries, rows if by_rows else columns), np.zeros(entries, np.int64)
    keys[at], others[at] = key, other
    perm = np.argsort(keys, kind="stable")
    counts = np.bincount(key, minlength=rows if by_rows else columns)
    return np.concatenate([[0], counts.cumsum()]), perm, others[perm]


def index_arrays(form: str, fields) -> list[np.ndarray]:
    return [
        x.cpu().numpy().astype(np.int64) for n, x in zip(FORMATS[form]._fields, fields, strict=False) if "val" not in n
    ]
