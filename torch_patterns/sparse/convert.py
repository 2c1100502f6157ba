"""Conversions between the formats, on the device, built from sorts, searches, histograms and scans (exercise 14.3).

Every format becomes CSR by a stable sort of its entries by row. CSR becomes every other format by the row of each entry
and its position in the row. Values are moved by gathers and scatters, so conversions are differentiable in them.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from torch_patterns.arguments import integer
from torch_patterns.batching import runs_at_once, transforms_active
from torch_patterns.groups import reduce_by_key
from torch_patterns.scan import scan
from torch_patterns.segmented import segment_expand, segment_reduce
from torch_patterns.sorting import sort_pairs
from torch_patterns.sparse.containers import (
    BIN_ENTRIES,
    BLOCK_COLUMNS,
    BLOCKED,
    COO,
    CSC,
    CSR,
    ELL,
    FORMATS,
    HYB,
    JDS,
    OCTET,
    SELL,
    Matrix,
    format_of,
    layout_of,
    nbytes,
    ordered_positions,
    structure_of,
    value_fields,
)
from torch_patterns.sparse.stages import MIN_STAGED_ENTRIES

_ops = torch.ops.torch_patterns


def convert(a: Matrix, format: str, **options) -> Matrix:
    """Converts a matrix to another format.

    Duplicates stay in their order, and indices keep their dtype. Differentiable in the values. The host waits for the
    device if a size depends on the data, which it does not between COO, CSR and CSC. The contents of index tensors are
    not checked, but even wrong ones never cause an access out of bounds.

    Args:
        format: ``"coo"``, ``"csr"``, ``"csc"``, ``"ell"``, ``"hyb"``, ``"jds"``, ``"sell"``, ``"blocked"``, or
            ``"auto"``, the best for products with a vector: CSR; but on CUDA BLOCKED if 2^24 entries or more are
            scattered over 2^17 to 2^23 columns, or else ELL if at most a tenth of it is padding.
        width: ELL: the width of the padded rows, at least the length of the longest row (default: that length). HYB:
            how many entries of a row go into the padded part (default: the most that a third of the rows have).
        max_bytes: ELL, HYB, SELL, BLOCKED: raise an error rather than take more memory (default: 16 times the bytes of
            the CSR, at least 64 MiB).
        section_rows: SELL: rows per section (default 32).
        window: SELL: sort rows by length only within windows of this many rows (default: all rows at once).

    Raises:
        ValueError: the format or an option is unknown, an option is out of range, or rows are longer than ``width``.
        TypeError: an option is not an integer.
        RuntimeError: ELL, HYB, SELL or BLOCKED would take more than ``max_bytes``; the message says how many bytes, and
            what to use instead.
    """
    if format == "auto":
        csr = _to_csr(a)
        format = choose(csr)
        a = a if format_of(a) == format else csr
    if format not in FORMATS:
        raise ValueError(f"convert: unknown format {format!r}; choose from: auto, {', '.join(FORMATS)}")
    unknown = options.keys() - _OPTIONS.get(format, set())
    if unknown:
        raise ValueError(f"convert: {format} has no option {sorted(unknown)[0]!r}")
    options = {name: _checked_option(name, value) for name, value in options.items() if value is not None}
    if format_of(a) == format and not options:
        return a
    if format == "csc":
        return _to_csc(a)
    if format == "coo" and isinstance(a, CSC):
        return COO(*_coordinates(a), a.values, a.shape)
    csr = _to_csr(a)
    return csr if format == "csr" else _FROM_CSR[format](csr, **options)


_LEAST = {"width": 0, "max_bytes": 0, "section_rows": 1, "window": 1}


def _checked_option(name: str, value) -> int:
    number = integer("convert", name, value)
    if not _LEAST[name] <= number < 2**63:
        raise ValueError(f"convert: {name} must be in {_LEAST[name]} ... 2^63 - 1, got {number}")
    return number


def row_lengths(a: Matrix) -> Tensor:
    """Returns how many entries each row has, [rows]."""
    return _lengths(_to_csr(a))


def choose(csr: CSR) -> str:
    """Returns the format that ``convert("auto")`` chooses (waits for the device)."""
    if not csr.values.is_cuda:
        return "csr"
    if csr.values.shape[0] >= MIN_STAGED_ENTRIES and 1 << 17 <= csr.shape[1] <= 1 << 23 and _scattered(csr.col_idx):
        return "blocked"
    lengths = _lengths(csr)
    rows = lengths.shape[0]
    if rows == 0 or not lengths.any():
        return "csr"
    return "ell" if int(lengths.max()) * rows <= 1.1 * int(lengths.sum()) else "csr"


_GROUP, _SECTOR = 4096, 8  # consecutive entries whose gathers share a cache; elements of x that one gather loads


def _scattered(col_idx: Tensor) -> bool:
    """Tells whether, on average, a group touches more sectors of x than half its number of entries."""
    groups = col_idx.narrow(0, 0, col_idx.shape[0] // _GROUP * _GROUP).view(-1, _GROUP)
    sectors = _ops.sort_keys(groups // _SECTOR, 1)
    return bool((sectors.diff(dim=1) != 0).float().mean() > 0.5)


# ---- to CSR and CSC


def flat_values(a: Matrix) -> Tensor:
    """Returns one value per entry; for HYB, the values of the tail follow those of the padded rows."""
    parts = [getattr(a, name).flatten() for name in value_fields(a)]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Tensor]) -> Tensor:
    """Joins tensors also where ``torch.cat`` fails: under autocast on the CPU for the half type that is not autocast's
    own, and under vmap over no samples for tensors without elements."""
    if transforms_active() and not torch.compiler.is_compiling():
        parts = [part for part in parts if part.numel() > 0] or parts[:1]
    device = parts[0].device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return torch.cat(parts)
    with torch.autocast(device, enabled=False):
        return torch.cat(parts)


def _coordinates(a: COO | CSR | CSC) -> tuple[Tensor, Tensor]:
    """Returns the row and the column of each entry."""
    if isinstance(a, COO):
        return a.row_idx, a.col_idx
    ptrs, idx = a[:2]
    expanded = segment_expand(_arange(idx, ptrs.shape[0] - 1), ptrs, idx.shape[0])
    return (expanded, idx) if isinstance(a, CSR) else (idx, expanded)


def _sorted(a: Matrix, by_rows: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Sorts the entries stably by row or column: (pointers, the other coordinate, values)."""
    if isinstance(a, COO | CSR | CSC) and a.values.is_cuda and not a.values.requires_grad:
        # On CUDA a gather of single words costs as much as a sort, so values that need no gradient are sorted with the
        # keys.
        keys, other = _coordinates(a) if by_rows else reversed(_coordinates(a))
        ordered, other = sort_pairs(keys, other)
        bounds = _arange(keys, a.shape[0 if by_rows else 1] + 1)
        ptrs = torch.searchsorted(ordered, bounds, out_int32=keys.dtype == torch.int32)
        return ptrs, other, sort_pairs(keys, a.values)[1]
    ptrs, perm, other = _ops.sparse_plan(*structure_of(a), by_rows)
    if layout_of(a).padded:  # padding comes last
        entries = _size(ptrs[-1])
        torch._check(entries <= perm.shape[0])
        perm, other = perm.narrow(0, 0, entries), other.narrow(0, 0, entries).clone()
    return ptrs, other, flat_values(a).index_select(0, perm)


def _to_csr(a: Matrix) -> CSR:
    return a if isinstance(a, CSR) else CSR(*_sorted(a, True), a.shape)


def _to_csc(a: Matrix) -> CSC:
    return CSC(*_sorted(a, False), a.shape)


# ---- from CSR


def _arange(like: Tensor, n: int) -> Tensor:
    return torch.arange(n, dtype=like.dtype, device=like.device)


def _entries(a: CSR) -> tuple[Tensor, Tensor]:
    """Returns the row of each entry, and its position in the row."""
    rows = _coordinates(a)[0]
    if a.shape[0] == 0:
        return rows, rows
    return rows, _arange(rows, rows.shape[0]) - a.row_ptrs.index_select(0, rows)


def _lengths(a: CSR) -> Tensor:
    """Returns the lengths of the rows, clamped to the number of entries even if the pointers are wrong."""
    return a.row_ptrs.clamp(0, a.col_idx.shape[0]).diff().clamp(min=0)


def _scatter(x: Tensor, at: Tensor, size: int, fill: int, valid: Tensor | None = None) -> Tensor:
    """Returns [size] with x[i] at at[i], if it is valid and in bounds, and `fill` elsewhere."""
    fits = (at >= 0) & (at < size)
    if valid is not None:
        fits = fits & valid
    slots = torch.where(fits, at, size).long()
    filled = torch.full((size + 1,), fill, dtype=x.dtype, device=x.device)
    return (filled.scatter_ if runs_at_once() else filled.scatter)(0, slots, x).narrow(0, 0, size)


def _exclusive(counts: Tensor) -> Tensor:
    """Returns [0, counts[0], counts[0] + counts[1], ...], one longer than `counts` and of its dtype."""
    padded = torch.nn.functional.pad(counts.long(), (0, 1))
    return scan(padded, exclusive=True).to(counts.dtype)


def _to_coo(a: CSR) -> COO:
    return COO(_coordinates(a)[0], a.col_idx, a.values, a.shape)


def _refuse(a: CSR, name: str, slots: int, max_bytes: int | None, more: int = 0) -> None:
    """Raises if a format with `slots` slots for entries and `more` pointers beside those of the rows would take too
    much memory, or if its pointers cannot count them."""
    limit = max(16 * nbytes(a), 64 << 20) if max_bytes is None else max_bytes
    pointers = (a.shape[0] + more) * a.row_ptrs.element_size()
    needed = slots * (a.col_idx.element_size() + a.values.element_size()) + pointers
    index = {"SELL": a.row_ptrs.dtype, "BLOCKED": a.col_idx.dtype}.get(name, torch.int64)  # of pointers to slots
    if torch.compiler.is_exporting():
        torch._check(needed <= limit)  # strict export knows no messages
    elif torch.compiler.is_compiling():
        # The message must not use a variable, because torch 2.11 does not compile that.
        torch._check(needed <= limit, lambda: "convert: the format would take more than max_bytes; use 'hyb' or 'csr'")
    elif needed > limit:
        others = "'jds' or 'csr'" if name == "HYB" else "'hyb', 'jds' or 'csr'"
        raise RuntimeError(
            f"convert: {name} of {a.shape[0]} rows, {slots} slots, takes {needed} bytes, more than max_bytes {limit};"
            f" use {others}, which pad less"
        )
    elif slots > torch.iinfo(index).max:
        raise RuntimeError(f"convert: {name} takes {slots} slots, too many for {index}; use int64 indices or 'csr'")


def _padded_rows(a: CSR, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the first `width` entries of each row as the fields of an ELL, and the position of each entry in its
    row."""
    (rows, position), n = _entries(a), a.shape[0]
    at = position.long() * n + rows
    fields = (_scatter(x, at, width * n, fill, position < width) for x, fill in ((a.col_idx, -1), (a.values, 0)))
    return _lengths(a).clamp(max=width), *(x.view(width, n) for x in fields), position


def _size(x: Tensor) -> int:
    """Reads a size from the device."""
    n = x.item()
    torch._check(n >= 0)
    return n


def _longest(a: CSR) -> int:
    return _size(_lengths(a).max()) if a.shape[0] else 0


def _to_ell(a: CSR, width: int | None = None, max_bytes: int | None = None) -> ELL:
    longest = _longest(a)
    if width is None:
        width = longest
    elif longest > width:
        row = int((_lengths(a) > width).nonzero()[0])
        raise ValueError(f"convert: row {row} is longer than width {width}, the longest has {longest}; 'hyb' cuts them")
    _refuse(a, "ELL", width * a.shape[0], max_bytes)
    return ELL(*_padded_rows(a, width)[:3], a.shape)


def _to_hyb(a: CSR, width: int | None = None, max_bytes: int | None = None) -> HYB:
    (rows, _), lengths = _entries(a), _lengths(a)
    if width is not None or max_bytes is not None:
        _refuse(a, "HYB", (width or 0) * a.shape[0] + a.values.shape[0], max_bytes)
    if width is None:
        third = _ops.sort_keys(lengths, 0, True)[a.shape[0] // 3 :]
        width = _size(third[0]) if a.shape[0] else 0
    row_nnz, col_idx, values, position = _padded_rows(a, width)
    tail = _ops.compact(_arange(position, position.shape[0]), position >= width)
    rest = (x.index_select(0, tail) for x in (rows, a.col_idx, a.values))
    return HYB(row_nnz, col_idx, values, *rest, a.shape)


def _to_jds(a: CSR) -> JDS:
    (rows, position), lengths = _entries(a), _lengths(a)  # raises on the CPU if pointers are wrong
    perm, longest = _by_length(lengths), _longest(a)
    # The length of diagonal k is the number of rows with more than k entries.
    counts = _ops.histogram(lengths, longest + 1) if a.shape[0] else lengths.new_zeros(1, dtype=torch.long)
    diagonals = a.shape[0] - scan(counts).narrow(0, 0, longest)
    ptrs = _exclusive(diagonals.to(lengths.dtype))
    n = a.col_idx.shape[0]
    at = rows
    if a.shape[0]:
        at = ptrs.index_select(0, position.clamp(min=0).clamp(max=longest)).long() + _inverse(perm).index_select(
            0, rows
        )
    return JDS(perm, ptrs, _scatter(a.col_idx, at, n, -1), _scatter(a.values, at, n, 0), a.shape)


def _by_length(lengths: Tensor) -> Tensor:
    """Returns the rows by length, the longest first; rows of equal length keep their order."""
    return _ops.argsort(lengths, 0, True, index_dtype=lengths.dtype)


def _inverse(perm: Tensor) -> Tensor:
    return torch.empty_like(perm).scatter(0, perm.long(), _arange(perm, perm.shape[0]))


_SECTION_ROWS = 32


def _to_sell(
    a: CSR, section_rows: int = _SECTION_ROWS, window: int | None = None, max_bytes: int | None = None
) -> SELL:
    (rows, position), lengths, n = _entries(a), _lengths(a), a.shape[0]
    given, section_rows = section_rows, min(section_rows, max(n, 1))  # at most one section of all rows
    perm = _by_length(lengths)
    if window is not None:
        perm = perm.index_select(
            0, _ops.argsort(perm.div(min(window, max(n, 1)), rounding_mode="floor"), index_dtype=perm.dtype)
        )
    row_nnz = lengths.index_select(0, perm)
    sections = -(-n // section_rows)
    by_section = torch.nn.functional.pad(row_nnz, (0, sections * section_rows - n)).view(sections, section_rows)
    heights = (n - _arange(lengths, sections) * section_rows).clamp(max=section_rows)
    widths = by_section.amax(1) if sections else heights
    ptrs = _exclusive(heights.long() * widths)  # may go beyond int32
    total = _size(ptrs[-1])
    _refuse(a, "SELL", total, max_bytes)
    ptrs, at = ptrs.to(lengths.dtype), rows
    if n:
        there = _inverse(perm).index_select(0, rows)
        section = there.div(section_rows, rounding_mode="floor")
        at = ptrs.index_select(0, section).long() + position.long() * heights.index_select(0, section)
        at = at + there.remainder(section_rows)
    fields = (_scatter(x, at, total, fill) for x, fill in ((a.col_idx, -1), (a.values, 0)))
    return SELL(perm, row_nnz, ptrs, *fields, given, a.shape)


def _to_blocked(a: CSR, max_bytes: int | None = None) -> BLOCKED:
    cols, n, index = a.shape[1], a.col_idx.shape[0], a.col_idx.dtype
    blocks, bins = (cols + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS, (n + BIN_ENTRIES - 1) // BIN_ENTRIES
    runs = blocks * bins
    torch._check(runs >= 0)  # a fact that compilers cannot infer
    _refuse(a, "BLOCKED", n, max_bytes, runs + blocks + bins)  # at least
    entry, col = _arange(a.col_idx, n).long(), a.col_idx.clamp(min=0).clamp(max=max(cols - 1, 0))
    counts = _ops.histogram(col.long() // BLOCK_COLUMNS * bins + entry // BIN_ENTRIES, runs + 1).narrow(0, 0, runs)
    octets = (counts + OCTET - 1) // OCTET
    # Where runs begin, by blocks: among the entries, in octets; and by bins, in octets.
    starts, by_blocks, by_bins = map(_exclusive, (counts, octets, octets.view(blocks, bins).T.flatten()))
    # How many octets further on in the order of bins each run, by blocks, begins.
    moved = by_bins.narrow(0, 0, runs).view(bins, blocks).T.flatten() - by_blocks.narrow(0, 0, runs)
    total = _size(by_blocks[-1])
    slots = OCTET * total
    _refuse(a, "BLOCKED", slots, max_bytes, runs + blocks + bins)
    low = BLOCK_COLUMNS.bit_length() - 1
    order = _ops.argsort(col, 0, False, low, low + max(1, (blocks - 1).bit_length()), index_dtype=index)
    at = entry + segment_expand(OCTET * by_blocks.narrow(0, 0, runs) - starts.narrow(0, 0, runs), starts, n)
    there = at + OCTET * segment_expand(moved, starts, n)
    local = torch.where(col == a.col_idx, col % BLOCK_COLUMNS, -1).to(torch.int16)  # -1 if the column is out of range
    return BLOCKED(
        a.row_ptrs,
        (OCTET * by_blocks.index_select(0, _arange(starts, blocks + 1) * bins)).to(index),
        (OCTET * by_bins.index_select(0, _arange(starts, bins + 1) * blocks)).to(index),
        (_arange(starts, total) + segment_expand(moved, by_blocks, total)).to(index),
        _scatter(local.index_select(0, order), at, slots, -1),
        _scatter((order % BIN_ENTRIES).to(torch.int16), there, slots, -1),
        _scatter(a.values.index_select(0, order), at, slots, 0),
        a.shape,
    )


_FROM_CSR = {"coo": _to_coo, "ell": _to_ell, "hyb": _to_hyb, "jds": _to_jds, "sell": _to_sell, "blocked": _to_blocked}
_OPTIONS = {name: set(inspect.signature(function).parameters) - {"a"} for name, function in _FROM_CSR.items()}


# ---- of the same format


def transpose(a: Matrix) -> Matrix:
    """Returns the transpose in the same format. For COO it shares the tensors; for CSR and CSC it is one sort."""
    shape = (a.shape[1], a.shape[0])
    if isinstance(a, COO):
        return COO(a.col_idx, a.row_idx, a.values, shape)
    if isinstance(a, CSC):
        return CSC(*_to_csr(a)[:3], shape)
    turned = CSR(*_to_csc(a)[:3], shape)
    return _again(turned, a)


def _again(csr: CSR, like: Matrix) -> Matrix:
    """Returns `csr` in the format of `like`."""
    options = {"section_rows": like.section_rows} if layout_of(like).in_sections else {}
    return convert(csr, format_of(like), **options)


def coalesce(a: Matrix) -> Matrix:
    """Adds up duplicates: the matrix with each position once, in the order of rows and then columns.

    Explicit zeros remain entries. Differentiable in the values; waits for the device.
    """
    coo = a if isinstance(a, COO) else _to_coo(_to_csr(a))
    *indices, values = _once(coo)
    once = COO(*(x.to(coo.row_idx.dtype) for x in indices), values.to(coo.values.dtype), coo.shape)
    return once if isinstance(a, COO) else _again(_to_csr(once), a)


def _once(coo: COO) -> tuple[Tensor, ...]:
    """Returns (rows, columns, values) of the distinct positions. Below 2^31 rows and columns, a key has the row in its
    high word, and the column in its low word; a radix sort skips the digits in which no two keys differ."""
    rows, cols = coo.row_idx, coo.col_idx
    if max(coo.shape) >= 2**31:
        order = _ops.lexsort([cols, rows])
        rows, cols, values = (x.index_select(0, order) for x in coo[:3])
        return _add_runs(_heads(rows) | _heads(cols), rows, cols, values)
    if rows.dtype == torch.long:  # indices out of range stay out of range
        rows, cols = rows.clamp(-1, 2**31 - 1), cols.clamp(-1, 2**31 - 1)
    keys, values = sort_pairs(torch.add(cols, rows.long(), alpha=1 << 32), coo.values)
    # The gradient of segments, unlike that of reduce_by_key, need not find the runs again.
    keys, values = _add_runs(_heads(keys), keys, values) if values.requires_grad else reduce_by_key(keys, values)
    cols = keys.to(torch.int32)
    return keys.view(torch.int32)[1::2] - (cols >> 31), cols, values  # a negative column was subtracted from the row


def _heads(x: Tensor) -> Tensor:
    """Tells which elements differ from the one before; the first one does."""
    return torch.nn.functional.pad(x[1:] != x[:-1], (1, 0), value=True).narrow(0, 0, x.shape[0])


def _add_runs(heads: Tensor, *lines: Tensor) -> tuple[Tensor, ...]:
    """Returns lines where a run begins, and the sums of the runs of the last line (waits for the device)."""
    starts = _ops.compact(torch.arange(heads.shape[0], device=heads.device), heads)
    sums = segment_reduce(lines[-1], torch.cat([starts, starts.new_full((1,), heads.shape[0])]))
    return *(x.index_select(0, starts) for x in lines[:-1]), sums


def to_dense(a: Matrix) -> Tensor:
    """Returns [rows, cols], duplicates added up; differentiable; the same bits in every run (waits for the device)."""
    (rows, cols), coo = a.shape, a if isinstance(a, COO) else convert(a, "coo")
    if runs_at_once() and (at := ordered_positions(coo)) is not None:
        return coo.values.new_zeros(rows * cols).scatter_(0, at, coo.values).view(rows, cols)
    once = coalesce(coo)
    inside = (once.row_idx >= 0) & (once.row_idx < rows) & (once.col_idx >= 0) & (once.col_idx < cols)
    return _scatter(once.values, once.row_idx.long() * cols + once.col_idx, rows * cols, 0, inside).view(rows, cols)
