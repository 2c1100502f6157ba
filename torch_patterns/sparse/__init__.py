"""Sparse matrices in seven formats (chapter 14): containers, conversions, products with gradients."""

from torch_patterns.sparse import containers
from torch_patterns.sparse.build import coo, csc, csr, ell, hyb, jds, sell
from torch_patterns.sparse.containers import COO, CSC, CSR, ELL, FORMATS, HYB, JDS, SELL, Matrix

__all__ = [
    "COO",
    "CSC",
    "CSR",
    "ELL",
    "HYB",
    "JDS",
    "SELL",
    "Matrix",
    "coo",
    "csc",
    "csr",
    "ell",
    "hyb",
    "jds",
    "sell",
]

_METHODS = {
    "to": containers.to,
    "nnz": property(containers.nnz),
    "nbytes": property(containers.nbytes),
    "padding": property(containers.padding),
}
for _cls in FORMATS.values():
    for _name, _method in _METHODS.items():
        setattr(_cls, _name, _method)
