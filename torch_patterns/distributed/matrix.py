"""Sparse matrices whose rows are sharded, and their products with sharded vectors and dense matrices.

A plan, made once, says which entries of x each rank needs from each other rank. A product sends these entries,
meanwhile multiplies the columns whose entries the rank itself holds, and adds the others when they arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

import torch_patterns as tp
from torch_patterns.arguments import refuse
from torch_patterns.distributed.collectives import Exchange, all_to_all, start_all_to_all
from torch_patterns.distributed.graph import ShardedGraph, check_sharded, shard_graph
from torch_patterns.distributed.group import Call, Group, gather_rows
from torch_patterns.sparse import CSR, Matrix
from torch_patterns.sparse.containers import format_of


@dataclass(frozen=True)
class ShardedMatrix:
    """A matrix of which each rank holds contiguous rows; made by :func:`shard` or :func:`from_local`.

    ``A @ x`` multiplies. The product is differentiable in the values of the matrix that it was made from.

    Fields:
        shape: (rows, columns) of the whole matrix.
        row_lengths, column_lengths: rows of each rank, and entries of x on each rank.
        own: [rows of this rank, entries of x on this rank]: the columns for this rank's entries of x, numbered from the
            first.
        others: [rows that need others, received entries]: all other columns, in the order in which their entries are
            received.
        other_rows: [rows that need others], the indices of these rows, all distinct.
        wanted: the entries of x on this rank that other ranks need, those for rank 0 first.
        send, receive: the numbers of entries that go to and come from each rank.
        group: the ranks.

    Example:
        >>> A = distributed.shard(tp.sparse.from_torch(torch.eye(3)))
        >>> A.shape
        (3, 3)
    """

    shape: tuple[int, int]
    row_lengths: list[int]
    column_lengths: list[int]
    own: Matrix
    others: CSR
    other_rows: Tensor
    wanted: Tensor
    send: list[int]
    receive: list[int]
    group: dist.ProcessGroup

    @property
    def dtype(self) -> torch.dtype:
        return self.others.values.dtype

    @property
    def device(self) -> torch.device:
        return self.others.values.device

    def __matmul__(self, x: Tensor) -> Tensor:
        return spmv(self, x) if x.dim() == 1 else spmm(self, x)


def shard(whole: Matrix | tp.Graph, group: Group = None) -> ShardedMatrix | ShardedGraph:
    """Returns this rank's part of a matrix or graph that every rank has: its rows or vertices, in nearly equal shards.

    Args:
        whole: the same on every rank; a matrix of any format, or a :class:`torch_patterns.Graph`.
        group: a process group or one-dimensional DeviceMesh; the world if None.

    Returns:
        :class:`ShardedMatrix`, or :class:`ShardedGraph`. x of a product is sharded by :func:`even_lengths`.

    Example:
        >>> A = distributed.shard(tp.sparse.from_torch(torch.eye(3)))
        >>> distributed.spmv(A, torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 2., 3.])
    """
    if isinstance(whole, tp.Graph):
        return shard_graph(whole, group)

    def prepare() -> dict[str, Tensor]:
        refuse("shard", "whole", whole, "Matrix")
        return {"values": whole.convert("csr").values}

    call = Call("shard", group, prepare, shape=lambda: whole.shape)
    call.numbers()
    rank, size = call.rank, call.size
    csr = whole.convert("csr")
    lengths = even_lengths(whole.shape[0], size)
    begin = sum(lengths[:rank])
    ptrs = csr.row_ptrs[begin : begin + lengths[rank] + 1]
    first, last = ptrs[[0, -1]].tolist()
    part = CSR(ptrs - first, csr.col_idx[first:last], csr.values[first:last], (lengths[rank], whole.shape[1]))
    return from_local(part, group, format=format_of(whole))


def even_lengths(total: int, size: int) -> list[int]:
    """Returns the lengths of even shards of ``total`` rows, which differ by at most one.

    Example:
        >>> distributed.even_lengths(10, 4)
        [2, 3, 2, 3]
    """
    return [total * (r + 1) // size - total * r // size for r in range(size)]


def from_local(
    part: Matrix | tp.Graph, group: Group = None, *, format: str | None = None
) -> ShardedMatrix | ShardedGraph:
    """Builds a matrix of which each rank has some rows, or a graph of which each rank has some edges.

    Args:
        part: a matrix: this rank's rows [rows of this rank, all columns], in any format. A graph: all vertices, with
            any part of the edges; every edge is sent to the rank that owns its destination.
        group: a process group or one-dimensional DeviceMesh; the world if None.
        format: the format of ``own``, as ``part.convert`` takes it; by default, the format of ``part``.

    Returns:
        :class:`ShardedMatrix` or :class:`ShardedGraph`. x of a product with a square matrix is sharded as the rows are;
        otherwise it is sharded evenly.

    Raises:
        RuntimeError: another rank raised, has another dtype or number of columns, or did not take part; it is named.

    Example:
        >>> A = distributed.from_local(tp.sparse.from_torch(torch.eye(3)))  # this rank's rows
        >>> A.shape
        (3, 3)
    """
    if isinstance(part, tp.Graph):
        return shard_graph(part, group, partial=True)

    parts: list[CSR] = []

    def prepare() -> dict[str, Tensor]:
        refuse("from_local", "part", part, "Matrix")
        parts.append(part.convert("csr"))
        return {"rows": parts[0].row_ptrs[1:].long(), "values": parts[0].values}

    call = Call("from_local", group, prepare, columns=lambda: part.shape[1], format=format)
    csr = parts[0]
    rows, columns = part.shape
    row_lengths = call.lengths()
    square = sum(row_lengths) == columns
    column_lengths = row_lengths if square else even_lengths(columns, call.size)
    begin = sum(column_lengths[: call.rank])
    end = begin + column_lengths[call.rank]
    mine = (csr.col_idx >= begin) & (csr.col_idx < end)
    own = _kept(csr, mine, csr.col_idx - begin, end - begin)
    needed, positions = torch.unique(csr.col_idx[~mine].long(), return_inverse=True)
    column = torch.zeros_like(csr.col_idx).masked_scatter_(~mine, positions.to(csr.col_idx.dtype))
    others = _kept(csr, ~mine, column, len(needed))
    other_rows = others.row_ptrs.diff().nonzero().flatten()
    full = torch.cat([other_rows, other_rows.new_tensor([rows])])
    others = CSR(others.row_ptrs[full], others.col_idx, others.values, (len(other_rows), len(needed)))
    wanted, send, receive = _wanted(needed, column_lengths, call)
    return ShardedMatrix(
        (sum(row_lengths), columns),
        row_lengths,
        column_lengths,
        own.convert(format or format_of(part)),
        others,
        other_rows,
        wanted - begin,
        send,
        receive,
        call.group,
    )


def _kept(csr: CSR, mask: Tensor, column: Tensor, columns: int) -> CSR:
    """Returns the entries where ``mask`` is true, with other columns."""
    counts = torch.cat([csr.row_ptrs.new_zeros(1), tp.scan(mask.to(csr.row_ptrs.dtype)).to(csr.row_ptrs.dtype)])
    return CSR(
        counts[csr.row_ptrs.long()],
        tp.compact(column, mask),
        tp.compact(csr.values, mask),
        (csr.shape[0], columns),
    )


def _wanted(needed: Tensor, column_lengths: list[int], call: Call) -> tuple[Tensor, list[int], list[int]]:
    """Returns (the columns that other ranks need of this rank, how many go to each rank, how many come from each)."""
    edges = needed.new_tensor([0, *accumulate(column_lengths)])
    counts = gather_rows(torch.searchsorted(needed, edges).diff(), call.group).tolist()
    receive, send = counts[call.rank], [row[call.rank] for row in counts]
    return all_to_all(needed, receive, send, call.group), send, receive


def spmv(A: ShardedMatrix, x: Tensor, *, validate: bool = False) -> Tensor:
    """Multiplies a sharded matrix by a sharded vector: A x.

    The entries that other ranks need are sent while this rank multiplies its own columns. Differentiable in the values
    and x; all ranks must run backward. The sum of a row adds the rank's own columns first.

    Args:
        A: the matrix.
        x: this rank's part [A.column_lengths[rank]].
        validate: check on CUDA, before the product, that all ranks agree, for which the host waits; the CPU always
            checks.

    Returns:
        This rank's part of the product, [A.row_lengths[rank]].

    Raises:
        ValueError: ``x`` has the wrong shape.
        RuntimeError: another rank raised, was called with other arguments, or did not take part; the message names it.

    Example:
        >>> A = distributed.shard(tp.sparse.from_torch(2 * torch.eye(3)))
        >>> distributed.spmv(A, torch.tensor([1.0, 2.0, 3.0]))
        tensor([2., 4., 6.])
    """
    return _multiply("spmv", A, x, validate)


def spmm(A: ShardedMatrix, x: Tensor, *, validate: bool = False) -> Tensor:
    """Multiplies a sharded matrix by a dense matrix whose rows are sharded: :func:`spmv` for k columns at once.

    Args:
        A: the matrix.
        x: this rank's part [A.column_lengths[rank], k].
        validate: as for :func:`spmv`.

    Returns:
        This rank's part of the product, [A.row_lengths[rank], k].

    Raises:
        ValueError, RuntimeError: as :func:`spmv`.

    Example:
        >>> A = distributed.shard(tp.sparse.from_torch(2 * torch.eye(2)))
        >>> distributed.spmm(A, torch.ones(2, 2))
        tensor([[2., 2.],
                [2., 2.]])
    """
    return _multiply("spmm", A, x, validate)


def _multiply(name: str, A: ShardedMatrix, x: Tensor, validate: bool) -> Tensor:
    check_sharded(name, "A", A, ShardedMatrix)

    def prepare() -> dict[str, Tensor]:
        refuse(name, "x", x, "Tensor")
        rank = dist.get_rank(A.group)
        dims, length = {"spmv": 1, "spmm": 2}[name], A.column_lengths[rank]
        if x.dim() != dims or len(x) != length:
            expected = f"[{length}]" if name == "spmv" else f"[{length}, k]"
            raise ValueError(f"{name}: x on rank {rank} must be of shape {expected}, got {list(x.shape)}")
        return {"x": x}

    if validate or not getattr(x, "is_cuda", False):
        Call(name, A.group, prepare, shape=A.shape).numbers()
    else:
        prepare()
    multiply = getattr(tp, name)
    exchange = Exchange(A.send, A.receive, A.group)
    wanted = x.index_select(0, A.wanted)
    if _own_columns_first(A, x):
        y = multiply(A.own, x)
        received = start_all_to_all(wanted, exchange)
    else:
        received = start_all_to_all(wanted, exchange)
        y = multiply(A.own, x)
    exchange.wait()
    rest = multiply(A.others, received).to(y.dtype)
    in_graph = torch.is_grad_enabled() and (y.requires_grad or rest.requires_grad)
    return (y.index_add if in_graph else y.index_add_)(0, A.other_rows, rest)


SMALL = 1 << 20  # bytes that travel in a fraction of the time that the host takes to start an exchange


def _own_columns_first(A: ShardedMatrix, x: Tensor) -> bool:
    """Whether the product of the own columns is launched before the exchange of what the others need.

    The GPU then works while the host prepares the exchange, which begins when the product ends. A large exchange is
    better under way meanwhile. So is any in a CUDA graph, where the host's time does not count.
    """
    if not x.is_cuda or torch.cuda.is_current_stream_capturing():
        return False
    return x.element_size() * x.shape[1:].numel() * max(sum(A.send), sum(A.receive)) <= SMALL
