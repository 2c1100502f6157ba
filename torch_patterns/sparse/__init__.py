"""Sparse matrices in eight formats (chapter 14): containers, conversions, products with gradients."""

from torch_patterns.sparse import containers, convert, interop, product
from torch_patterns.sparse.build import blocked, coo, csc, csr, ell, hyb, jds, sell
from torch_patterns.sparse.containers import BLOCKED, COO, CSC, CSR, ELL, FORMATS, HYB, JDS, SELL, Matrix
from torch_patterns.sparse.interop import from_scipy, from_torch
from torch_patterns.sparse.product import Plan, spmm, spmv

__all__ = [
    "BLOCKED",
    "COO",
    "CSC",
    "CSR",
    "ELL",
    "FORMATS",
    "HYB",
    "JDS",
    "SELL",
    "Matrix",
    "Plan",
    "blocked",
    "coo",
    "csc",
    "csr",
    "ell",
    "from_scipy",
    "from_torch",
    "hyb",
    "jds",
    "sell",
    "spmm",
    "spmv",
]

# The methods of all containers; a NamedTuple has no base class to inherit them from.
_METHODS = {
    "to": containers.to,
    "nnz": property(containers.nnz),
    "nbytes": property(containers.nbytes),
    "padding": property(containers.padding),
    "convert": convert.convert,
    "row_lengths": convert.row_lengths,
    "transpose": convert.transpose,
    "coalesce": convert.coalesce,
    "to_dense": convert.to_dense,
    "to_torch": interop.to_torch,
    "to_scipy": interop.to_scipy,
    "plan": product.make_plan,
    "from_torch": classmethod(lambda cls, x: from_torch(x).convert(cls.__name__.lower())),
    "from_scipy": classmethod(lambda cls, x, **options: from_scipy(x, **options).convert(cls.__name__.lower())),
}
for _cls in FORMATS.values():
    for _name, _method in _METHODS.items():
        setattr(_cls, _name, _method)
