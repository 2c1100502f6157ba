"""Sparse matrices in eight formats (chapter 14): containers, conversions, products with gradients."""

from torch_patterns.sparse import algebra, build, containers, convert, interop, product, select
from torch_patterns.sparse.build import *  # noqa: F403
from torch_patterns.sparse.containers import FORMATS, Matrix, Plan
from torch_patterns.sparse.interop import from_scipy, from_torch
from torch_patterns.sparse.multiply import spgemm
from torch_patterns.sparse.product import sampled_product, spmm, spmv
from torch_patterns.tuples import not_a_sequence

__all__ = [
    "FORMATS",
    "Matrix",
    "Plan",
    "from_scipy",
    "from_torch",
    "sampled_product",
    "spgemm",
    "spmm",
    "spmv",
]
__all__ += build.__all__

# The methods of all containers; a NamedTuple has no base class to inherit them from.
_METHODS = {
    "to": containers.to,
    "nnz": property(containers.nnz),
    "nbytes": property(containers.nbytes),
    "padding": property(containers.padding),
    "convert": convert.convert,
    "row_lengths": convert.row_lengths,
    "transpose": convert.transpose,
    "T": property(convert.transpose),
    "dtype": property(algebra.dtype_of),
    "device": property(algebra.device_of),
    "select_rows": select.select_rows,
    "select_columns": select.select_columns,
    "diagonal": select.diagonal,
    "sum": select.sum_of,
    "__matmul__": algebra.matmul,
    "__rmatmul__": algebra.rmatmul,
    "__mul__": algebra.multiply,
    "__rmul__": algebra.multiply,
    "__truediv__": algebra.divide,
    "__neg__": algebra.negative,
    "__add__": algebra.add,
    "__radd__": algebra.add,
    "__sub__": algebra.subtract,
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
    not_a_sequence(_cls)
not_a_sequence(Plan)
