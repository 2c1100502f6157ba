# What type checkers see of containers.py: the methods that sparse/__init__.py gives to every format, too.
# tests/test_types.py compares both.
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar, overload

import torch
from torch import Tensor
from typing_extensions import Self

_M = TypeVar("_M", bound=Matrix)

class _Methods:
    @property
    def nnz(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def padding(self) -> int: ...
    @property
    def T(self) -> Self: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @overload
    def convert(self, format: Literal["coo"]) -> COO: ...
    @overload
    def convert(self, format: Literal["csr"]) -> CSR: ...
    @overload
    def convert(self, format: Literal["csc"]) -> CSC: ...
    @overload
    def convert(self, format: Literal["ell"], *, width: int | None = None, max_bytes: int | None = None) -> ELL: ...
    @overload
    def convert(self, format: Literal["hyb"], *, width: int | None = None, max_bytes: int | None = None) -> HYB: ...
    @overload
    def convert(self, format: Literal["jds"]) -> JDS: ...
    @overload
    def convert(
        self,
        format: Literal["sell"],
        *,
        section_rows: int | None = None,
        window: int | None = None,
        max_bytes: int | None = None,
    ) -> SELL: ...
    @overload
    def convert(self, format: Literal["blocked"], *, max_bytes: int | None = None) -> BLOCKED: ...
    @overload
    def convert(self, format: str, **options: int | None) -> Matrix: ...
    def to(
        self,
        target: torch.device | str | int | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
        *,
        device: torch.device | str | int | None = None,
    ) -> Self: ...
    def row_lengths(self) -> Tensor: ...
    def select_rows(self, index: slice | Tensor | Sequence[int]) -> Self: ...
    def select_columns(self, index: slice | Tensor | Sequence[int]) -> Self: ...
    def diagonal(self) -> Tensor: ...
    def sum(self, dim: int | None = None) -> Tensor: ...
    def transpose(self) -> Self: ...
    def coalesce(self) -> Self: ...
    def to_dense(self) -> Tensor: ...
    def to_torch(self) -> Tensor: ...
    def to_scipy(self) -> Any: ...
    def plan(self) -> Plan: ...
    @classmethod
    def from_torch(cls, x: Tensor) -> Self: ...
    @classmethod
    def from_scipy(
        cls, x: Any, *, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None
    ) -> Self: ...
    @overload
    def __matmul__(self, x: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, x: Matrix) -> Self: ...
    def __rmatmul__(self, x: Tensor) -> Tensor: ...
    def __truediv__(self, number: float | Tensor) -> Self: ...
    def __neg__(self) -> Self: ...
    def __sub__(self, b: Matrix) -> Self: ...
    def __add__(self, b: Matrix) -> Self: ...
    def __mul__(self, number: float | Tensor | Matrix) -> Self: ...
    def __rmul__(self, number: float | Tensor) -> Self: ...

class _COO(NamedTuple):
    row_idx: Tensor
    col_idx: Tensor
    values: Tensor
    shape: tuple[int, int]

class _CSR(NamedTuple):
    row_ptrs: Tensor
    col_idx: Tensor
    values: Tensor
    shape: tuple[int, int]

class _CSC(NamedTuple):
    col_ptrs: Tensor
    row_idx: Tensor
    values: Tensor
    shape: tuple[int, int]

class _ELL(NamedTuple):
    row_nnz: Tensor
    col_idx: Tensor
    values: Tensor
    shape: tuple[int, int]

class _HYB(NamedTuple):
    ell_row_nnz: Tensor
    ell_col_idx: Tensor
    ell_values: Tensor
    coo_row_idx: Tensor
    coo_col_idx: Tensor
    coo_values: Tensor
    shape: tuple[int, int]

class _JDS(NamedTuple):
    row_perm: Tensor
    diag_ptrs: Tensor
    col_idx: Tensor
    values: Tensor
    shape: tuple[int, int]

class _SELL(NamedTuple):
    row_perm: Tensor
    row_nnz: Tensor
    section_ptrs: Tensor
    col_idx: Tensor
    values: Tensor
    section_rows: int
    shape: tuple[int, int]

class _BLOCKED(NamedTuple):
    row_ptrs: Tensor
    block_ptrs: Tensor
    bin_ptrs: Tensor
    octet_idx: Tensor
    col_idx: Tensor
    entry_idx: Tensor
    values: Tensor
    shape: tuple[int, int]

# Sums and multiples are the matrices' own, not the tuples'.
class COO(_Methods, _COO): ...
class CSR(_Methods, _CSR): ...
class CSC(_Methods, _CSC): ...
class ELL(_Methods, _ELL): ...
class HYB(_Methods, _HYB): ...
class JDS(_Methods, _JDS): ...
class SELL(_Methods, _SELL): ...
class BLOCKED(_Methods, _BLOCKED): ...

Matrix = COO | CSR | CSC | ELL | HYB | JDS | SELL | BLOCKED
FORMATS: dict[str, type[Matrix]]
BIN_ENTRIES: int
BLOCK_COLUMNS: int
OCTET: int

class Plan(NamedTuple):
    ptrs: Tensor
    perm: Tensor

class Layout(NamedTuple):
    index: list[str]
    values: list[str]
    gives_rows: bool
    has_coordinates: bool
    padded: bool
    in_sections: bool

LAYOUTS: dict[str, Layout]

def format_of(a: Matrix) -> str: ...
def layout_of(a: Matrix) -> Layout: ...
def structure_of(a: Matrix) -> tuple[str, list[Tensor], int, int, int]: ...
def index_fields(a: Matrix) -> list[str]: ...
def value_fields(a: Matrix) -> list[str]: ...
def tensors_of(a: Matrix) -> list[Tensor]: ...
def to(
    a: _M,
    target: torch.device | str | int | torch.dtype | None = None,
    dtype: torch.dtype | None = None,
    *,
    device: torch.device | str | int | None = None,
) -> _M: ...
def nbytes(a: Matrix) -> int: ...
def stored(a: Matrix) -> int: ...
def nnz(a: Matrix) -> int: ...
def padding(a: Matrix) -> int: ...
