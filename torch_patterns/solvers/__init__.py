"""Linear systems with sparse matrices: Krylov methods, preconditioners, and their derivatives."""

from torch_patterns.solvers.conjugate import conjugate_gradient, solve
from torch_patterns.solvers.implicit import Solution
from torch_patterns.solvers.nonsymmetric import bicgstab, gmres
from torch_patterns.solvers.preconditioners import block_jacobi, jacobi

__all__ = ["Solution", "bicgstab", "block_jacobi", "conjugate_gradient", "gmres", "jacobi", "solve"]
