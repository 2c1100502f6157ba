"""Files: matrices in the Matrix Market format (math.nist.gov/MatrixMarket/formats.html)."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch

from torch_patterns import _C
from torch_patterns.arguments import typed
from torch_patterns.literals import Duplicates
from torch_patterns.matrix_market import BLOCK, Reader
from torch_patterns.sparse import COO, Matrix, coo

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DUPLICATES = ("error", "sum", "keep")
LONGEST_COMMENT = 65_000  # bytes of a line, which the reader accepts


def read_matrix_market(
    path: str | os.PathLike,
    *,
    dtype: torch.dtype = torch.float64,
    index_dtype: torch.dtype = torch.int64,
    duplicates: Duplicates = "error",
    device: torch.device | str | None = None,
) -> COO:
    """Reads the matrix of a Matrix Market file, plain or gzip (detected by its content, not by its name).

    Coordinate and array files with real, integer or pattern entries, general, symmetric or skew-symmetric. Entries keep
    the order of the file; the mirror images of symmetric files follow them. Explicit zeros remain entries, and every
    element of an array file becomes one. Pattern entries are 1. The exponent of a real number may be written as Fortran
    writes it: 1.5D+03 is 1500. Blank lines and comments may stand anywhere. A line ``%%GraphBLAS type T`` is obeyed:
    every value must be one that T can hold, and values of type float are rounded to it.

    Args:
        path: the file.
        dtype: the dtype of the values, floating point; decimals are rounded to the nearest float64, then to ``dtype``.
        index_dtype: the dtype of the indices, ``torch.int64`` or ``torch.int32``.
        duplicates: what to do with several entries at one position: ``"error"``, ``"sum"`` or ``"keep"``.
        device: the device of the tensors.

    Returns:
        :class:`COO`: row_idx, col_idx and values [nnz].

    Raises:
        ValueError: the file is malformed, truncated or has complex entries; the message names file, line and cause. Or
            ``duplicates`` is unknown, or ``index_dtype`` is too narrow.
        TypeError: a dtype is not supported.
        OSError: the file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.mtx")
        >>> _ = path.write_text("%%MatrixMarket matrix coordinate real general\\n2 2 1\\n1 2 0.5\\n")
        >>> tp.io.read_matrix_market(path).to_dense()
        tensor([[0.0000, 0.5000],
                [0.0000, 0.0000]], dtype=torch.float64)
    """
    if duplicates not in DUPLICATES:
        raise ValueError(f"read_matrix_market: duplicates={duplicates!r} is none of {', '.join(DUPLICATES)}")
    if index_dtype not in (torch.int32, torch.int64):
        raise TypeError(f"read_matrix_market: index_dtype is {index_dtype}, not torch.int64 or torch.int32")
    if dtype not in DTYPES:
        raise TypeError(f"read_matrix_market: dtype is {dtype}, none of {', '.join(map(str, DTYPES))}")
    with Reader(path) as file:
        header = file.header()
        if index_dtype == torch.int32 and max(header.shape) >= 2**31:
            file.fail(f"{header.shape[0]} x {header.shape[1]} needs index_dtype=torch.int64", header.line)
        coordinates, values, lines = file.entries(header, duplicates)
    if header.symmetry != "general":
        off = coordinates[0] != coordinates[1]
        coordinates = np.concatenate((coordinates, coordinates[::-1, off]), 1)
        mirrored = values[off] if header.symmetry == "symmetric" else -values[off]
        values = np.concatenate((values, mirrored))
    row_idx, col_idx = (torch.from_numpy(indices).to(device, index_dtype) for indices in coordinates)
    return coo(row_idx, col_idx, torch.from_numpy(values).to(device, dtype), header.shape, validate=False)


@typed
def write_matrix_market(path: str | os.PathLike, A: Matrix, *, comment: str = "") -> None:
    """Writes a matrix as a Matrix Market file of coordinates, compressed by gzip if the name ends in ".gz".

    Floating-point values are written in a file of the field ``real``, integers and bool in one of ``integer``.

    Args:
        path: the file; an existing one is overwritten.
        A: a matrix in any format, on any device; duplicates and explicit zeros are written as they are.
        comment: lines for the head of the file.

    Every value is written with enough digits to read it back exactly.

    Raises:
        OSError: the file cannot be written.
        TypeError: ``A`` is not a sparse matrix, or its values are complex, or beyond int64; or ``path`` is no path.
        ValueError: a line of ``comment`` has more than 65,000 bytes, or a NUL.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.mtx")
        >>> tp.io.write_matrix_market(path, tp.sparse.from_torch(torch.eye(2)), comment="the identity")
        >>> print(path.read_text(), end="")
        %%MatrixMarket matrix coordinate real general
        % the identity
        2 2 2
        1 1 1
        2 2 1
    """
    A = A.convert("coo")
    row_idx, col_idx, values = (t.detach().cpu() for t in (A.row_idx.long(), A.col_idx.long(), A.values))
    if values.is_complex():
        raise TypeError(f"write_matrix_market: values are {values.dtype}, and complex ones are not supported")
    if values.dtype == torch.uint64 and (values.view(torch.int64) < 0).any():
        raise TypeError("write_matrix_market: values of 2^63 and more are not supported")
    if any(len(line.encode()) > LONGEST_COMMENT or "\0" in line for line in comment.splitlines()):
        raise ValueError(f"write_matrix_market: a line of comment has a NUL or more than {LONGEST_COMMENT} bytes")
    field = "real" if values.is_floating_point() else "integer"
    values = values.double() if field == "real" else values.long()
    make = gzip.open if Path(path).suffix == ".gz" else open
    with make(path, "wb") as file:
        head = [f"%%MatrixMarket matrix coordinate {field} general", *(f"% {line}" for line in comment.splitlines())]
        file.write("\n".join([*head, f"{A.shape[0]} {A.shape[1]} {len(values)}\n"]).encode())
        for part in zip(row_idx.split(BLOCK), col_idx.split(BLOCK), values.split(BLOCK), strict=True):
            file.write(_C.format_entries(*(t.contiguous().numpy() for t in part)))
