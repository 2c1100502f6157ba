"""Sparse products: three shapes of rows, transposed, of many columns; their gradients; entry by entry; conversions."""

from __future__ import annotations

import functools
import operator
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import torch_patterns as tp
from problems import Figure, cusparse, integers, segment_of
from torch_patterns import testing

# How long the rows are, and what they point to.
LENGTHS: dict[str, Callable[[int], Tensor]] = {
    "random": lambda rows: torch.full((rows,), 32),
    "power law": lambda rows: (8.3 * (1 - torch.rand(rows, dtype=torch.float64)).pow(-0.65)).clamp(max=100000).long(),
    "banded": lambda rows: torch.full((rows,), 27),
}


def matrix(kind: str, rows: int, index_dtype=torch.int32, lengths: Tensor | None = None) -> tuple[Tensor, ...]:
    """(values, row_ptrs, col_idx) of a square matrix."""
    lengths = LENGTHS[kind](rows) if lengths is None else lengths
    ptrs = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    nnz = int(ptrs[-1])
    if kind == "banded":
        row = torch.arange(rows).repeat_interleave(lengths)
        cols = (row - 13).clamp(0, rows - 27) + torch.arange(nnz) - ptrs[row]
    else:
        cols = torch.randint(0, rows, (nnz,))
    return integers(nnz, low=-3, high=3), ptrs.to(index_dtype), cols.to(index_dtype)


def csr(values: Tensor, ptrs: Tensor, cols: Tensor) -> tp.CSR:
    return tp.CSR(ptrs, cols, values, (ptrs.numel() - 1,) * 2)


@functools.lru_cache(maxsize=1)
def torch_csr(values: Tensor, ptrs: Tensor, cols: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(ptrs, cols, values, (ptrs.numel() - 1,) * 2, check_invariants=False)


@functools.lru_cache(maxsize=1)
def torch_transpose(*tensors: Tensor) -> Tensor:
    """A transposed copy, made once as ours is."""
    return torch_csr(*tensors).t().to_sparse_csr()


@functools.lru_cache(maxsize=1)
def permutation(cols: Tensor) -> Tensor:
    """The entry that each entry of the transpose is."""
    return cols.sort(stable=True)[1]


def permuted(v: Tensor, p: Tensor, c: Tensor, g: Tensor) -> Tensor:
    """What torch can do with a copy that, as a plan, holds for other values, too."""
    t = torch_transpose(v, p, c)
    values = v[permutation(c)]
    return torch.sparse_csr_tensor(t.crow_indices(), t.col_indices(), values, t.shape, check_invariants=False) @ g


@functools.lru_cache(maxsize=1)
def scipy_csr(values: Tensor, ptrs: Tensor, cols: Tensor):
    import scipy.sparse

    return scipy.sparse.csr_array((values.numpy(), cols.numpy(), ptrs.numpy()), shape=(ptrs.numel() - 1,) * 2)


@functools.lru_cache(maxsize=1)
def converted(format: str, *tensors: Tensor):
    return csr(*tensors).convert(format)


@functools.lru_cache(maxsize=1)
def plan(*tensors: Tensor):
    return csr(*tensors).plan()


@functools.lru_cache(maxsize=1)
def transpose(*tensors: Tensor) -> tp.CSR:
    return csr(*tensors).transpose().convert("csr")


def exact(values: Tensor, to: Tensor, at: Tensor, x: Tensor, size: int) -> Tensor:
    """y[to[i]] += values[i] x[at[i]], in int64, one column at a time."""
    columns = x.long().reshape(x.shape[0], -1).unbind(1)
    sums = [torch.zeros_like(c).new_zeros(size).index_add_(0, to, values.long() * c[at]) for c in columns]
    return torch.stack(sums, 1).reshape(size, *x.shape[1:])


def product(v: Tensor, p: Tensor, c: Tensor, x: Tensor) -> Tensor:
    return exact(v, segment_of(p), c.long(), x, p.numel() - 1)


def transposed_product(v: Tensor, p: Tensor, c: Tensor, g: Tensor) -> Tensor:
    return exact(v, c.long(), segment_of(p), g, p.numel() - 1)


def sampled(v: Tensor, p: Tensor, c: Tensor, g: Tensor, x: Tensor) -> Tensor:
    pairs = zip(g.long().unbind(1), x.long().unbind(1), strict=True)
    return sum(a[segment_of(p)] * b[c.long()] for a, b in pairs)


def vectors(device: str, rows: int) -> list[Figure]:
    figures = []
    peers = {"torch": lambda v, p, c, x: torch_csr(v, p, c) @ x}
    if device == "cpu":
        peers["scipy, 1 thread"] = lambda v, p, c, x: torch.from_numpy(scipy_csr(v, p, c) @ x.numpy())
    else:
        peers["cuSPARSE"] = cusparse.spmv
    for kind in LENGTHS:
        data = lambda kind=kind: (*matrix(kind, rows), integers(rows))  # noqa: E731
        figures += [
            Figure(f"spmv csr {kind}", data, lambda v, p, c, x: tp.spmv(csr(v, p, c), x), product, peers),
            Figure(
                f"spmv best format {kind}",
                data,
                lambda v, p, c, x: tp.spmv(converted("auto", v, p, c), x),
                product,
                peers,
            ),
            Figure(
                f"spmv transposed copy {kind}",
                data,
                lambda v, p, c, g: tp.spmv(transpose(v, p, c), g),
                transposed_product,
                {"torch": lambda v, p, c, g: torch_transpose(v, p, c) @ g},
            ),
            Figure(
                f"spmv transposed through a plan {kind}",
                data,
                lambda v, p, c, g: transposed(v, p, c, g[:, None])[:, 0],
                transposed_product,
                {"torch": lambda v, p, c, g: torch_csr(v, p, c).t() @ g, "torch, values permuted": permuted},
            ),
        ]
    return figures


def transposed(v: Tensor, p: Tensor, c: Tensor, g: Tensor) -> Tensor:
    rows = p.numel() - 1
    return torch.ops.torch_patterns.spmm_transposed("csr", [p, c], v, g, rows, rows, 0, *plan(v, p, c), "auto")


def sampled_addmm(v: Tensor, p: Tensor, c: Tensor, g: Tensor, x: Tensor) -> Tensor:
    return torch.sparse.sampled_addmm(torch_csr(v, p, c), g, x.mT, beta=0).values()


def columns(rows: int, widths: tuple[int, ...]) -> list[Figure]:
    def data(k: int, sides: int) -> tuple[Tensor, ...]:
        square = matrix("random", rows, torch.int64, torch.full((rows,), 16))
        return *square, *(integers(rows, k, low=-3, high=3) for _ in range(sides))

    figures = []
    for k in widths:
        one, both = functools.partial(data, k, 1), functools.partial(data, k, 2)
        figures += [
            Figure(
                f"spmm {rows} x 16 k={k}",
                one,
                lambda v, p, c, x: tp.spmm(csr(v, p, c), x),
                product,
                {"torch": lambda v, p, c, x: torch_csr(v, p, c) @ x},
            ),
            Figure(
                f"spmm gradient of x {rows} x 16 k={k}",
                one,
                transposed,
                transposed_product,
                {"torch, transposed copy": lambda v, p, c, g: torch_transpose(v, p, c) @ g},
            ),
            Figure(
                f"sampled_product {rows} x 16 k={k}",
                both,
                lambda v, p, c, g, x: torch.ops.torch_patterns.sampled_product("csr", [p, c], g, x, rows, rows),
                sampled,
                {"torch.sparse.sampled_addmm": sampled_addmm},
                unread=1,
            ),
        ]
    return figures


def squares(rows: int) -> list[Figure]:
    """Of a matrix by itself: on CUDA 2^26 products of entries or, where rows are longer, about three times as many.

    Short rows have 16 products each.
    """

    def data(kind: str) -> tuple[Tensor, ...]:
        if kind == "short rows":
            return matrix("random", 4 * rows, lengths=torch.full((4 * rows,), 4))
        lengths = torch.full((rows,), 16) if kind == "random" else None
        return matrix(kind, rows, lengths=lengths)

    def ours(v: Tensor, p: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        square = csr(v, p, c) @ csr(v, p, c)
        return square.values, square.row_ptrs, square.col_idx

    def want(v: Tensor, p: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        rows = len(p) - 1
        counts = p.diff()[c].long()
        first = torch.arange(c.numel()).repeat_interleave(counts)
        begin = counts.cumsum(0) - counts
        second = torch.arange(int(counts.sum())) + (p[c] - begin)[first]
        positions, inverse = (segment_of(p)[first] * rows + c[second]).unique(return_inverse=True)
        values = torch.zeros_like(positions).index_add_(0, inverse, v.long()[first] * v.long()[second])
        ends = (positions // rows).bincount(minlength=rows).cumsum(0)
        return values, torch.cat([ends.new_zeros(1), ends]), positions % rows

    def by_torch(v: Tensor, p: Tensor, c: Tensor) -> Tensor:
        return (torch_csr(v, p, c) @ torch_csr(v, p, c)).values()

    def by_scipy(v: Tensor, p: Tensor, c: Tensor) -> Tensor:
        square = scipy_csr(v, p, c) @ scipy_csr(v, p, c)
        square.sort_indices()  # torch's are sorted, too
        return torch.from_numpy(square.data)

    on_cuda = torch.get_default_device().type == "cuda"
    peers = {"torch": by_torch} if on_cuda else {"torch": by_torch, "scipy, 1 thread": by_scipy}
    # Peers may drop entries that cancel.
    return [
        Figure(f"spgemm {kind}", functools.partial(data, kind), ours, want, peers, exact_peers=False)
        for kind in (*LENGTHS, "short rows")
    ]


def by_entry(rows: int) -> list[Figure]:
    """Sums and products of two matrices whose rows are sorted and distinct: of the same positions, or others."""

    def operand(kind: str) -> tuple[Tensor, ...]:
        _, p, c = matrix(kind, rows)
        positions = (segment_of(p) * rows + c).unique()
        ends = (positions // rows).bincount(minlength=rows).cumsum(0)
        ptrs = torch.cat([ends.new_zeros(1), ends])
        return integers(positions.numel(), low=1, high=3), ptrs.to(p.dtype), (positions % rows).to(c.dtype)

    def want(op: Callable, common: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, y = (segment_of(p) * rows + c for _, p, c in (tensors[:3], tensors[3:]))
        positions = x[torch.isin(x, y)] if common else torch.cat([x, y]).unique()
        values = [
            torch.where(
                torch.isin(positions, at), v.long()[torch.searchsorted(at, positions).clamp(max=at.numel() - 1)], 0
            )
            for at, v in ((x, tensors[0]), (y, tensors[3]))
        ]
        ends = (positions // rows).bincount(minlength=rows).cumsum(0)
        return op(*values), torch.cat([ends.new_zeros(1), ends]), positions % rows

    def ours(op: Callable, *tensors: Tensor) -> tuple[Tensor, ...]:
        result = op(csr(*tensors[:3]), csr(*tensors[3:]))
        return result.values, result.row_ptrs, result.col_idx

    @functools.lru_cache(maxsize=1)
    def pair(*tensors: Tensor) -> tuple:
        return tuple(scipy_csr.__wrapped__(*m) for m in (tensors[:3], tensors[3:]))

    def by_scipy(op: Callable, *tensors: Tensor) -> tuple[Tensor, ...]:
        a, b = pair(*tensors)
        result = op(a, b) if op is operator.add else a.multiply(b).tocsr()
        return tuple(map(torch.from_numpy, (result.data, result.indptr, result.indices)))

    @functools.lru_cache(maxsize=1)
    def torch_pair(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return torch_csr.__wrapped__(*tensors[:3]), torch_csr.__wrapped__(*tensors[3:])

    def sum_by_torch(*tensors: Tensor) -> Tensor:
        a, b = torch_pair(*tensors)
        return (a + b).values()

    def peers(op: Callable) -> dict[str, Callable]:
        if not on_cuda:
            return {"scipy, 1 thread": functools.partial(by_scipy, op)}
        # Torch multiplies only coordinates; torch 2.11 crashes where there are so many.
        return {"torch": sum_by_torch} if op is operator.add else {}

    on_cuda = torch.get_default_device().type == "cuda"
    return [
        Figure(
            f"{name} {kind}",
            lambda kind=kind: operand(kind) + operand(kind),
            functools.partial(ours, op),
            functools.partial(want, op, op is operator.mul),
            peers(op),
            exact_peers=not on_cuda,  # torch's values come alone
        )
        for name, op in (("A+B", operator.add), ("A*B", operator.mul))
        for kind in LENGTHS
    ]


def conversions(entries: int) -> list[Figure]:
    rows = entries // 32

    def make() -> tuple[Tensor, ...]:
        values, _, cols = matrix("random", rows)
        return values, torch.randint(0, rows, (values.numel(),), dtype=torch.int32), cols

    def ours(v: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        a = tp.COO(r, c, v, (rows, rows)).convert("csr")
        return a.values, a.row_ptrs, a.col_idx

    def want(v: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        order = r.sort(stable=True)[1]
        return v[order], offsets_of(r, r.dtype), c[order]

    def offsets_of(r: Tensor, dtype: torch.dtype) -> Tensor:
        ends = r.bincount(minlength=rows).cumsum(0)
        return torch.cat([ends.new_zeros(1), ends]).to(dtype)

    def ours_once(v: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        a = tp.COO(r, c, v, (rows, rows)).coalesce().convert("csr")
        return a.values, a.row_ptrs, a.col_idx

    def want_once(v: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        positions, inverse = (r.long() * rows + c).unique(return_inverse=True)
        values = torch.zeros_like(positions).index_add_(0, inverse, v.long())
        return values, offsets_of(positions // rows, r.dtype), (positions % rows).to(c.dtype)

    @functools.lru_cache(maxsize=1)
    def indices(r: Tensor, c: Tensor) -> Tensor:
        return torch.stack([r, c]).long()  # as torch requires

    def by_torch(v: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        a = torch.sparse_coo_tensor(indices(r, c), v, (rows, rows), check_invariants=False).coalesce().to_sparse_csr()
        return a.values(), a.crow_indices(), a.col_indices()

    def by_scipy(v: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        import scipy.sparse

        a = scipy.sparse.coo_array((v.numpy(), (r.numpy(), c.numpy())), shape=(rows, rows)).tocsr()
        a.sum_duplicates()
        return tuple(map(torch.from_numpy, (a.data, a.indptr, a.indices)))

    on_cuda = torch.get_default_device().type == "cuda"
    peers = {"torch": by_torch} | ({} if on_cuda else {"scipy, 1 thread": by_scipy})
    return [
        Figure(f"convert coo to csr {entries}", make, ours, want, {}),
        Figure(f"coalesce coo to csr {entries}", make, ours_once, want_once, peers),
    ]


def files(entries: int) -> list[Figure]:
    """A Matrix Market file, which is in the memory of the operating system."""
    path = Path(tempfile.mkdtemp()) / "matrix.mtx"
    shape = (entries // 16, 64_000)

    def make() -> tuple[Tensor, ...]:
        positions = torch.randperm(shape[0] * 64)[:entries].sort()[0]
        entry = torch.rand(len(positions), dtype=torch.float64), positions // 64, positions % 64 * 1000
        write(*entry)
        return entry

    def write(v: Tensor, r: Tensor, c: Tensor) -> Tensor:
        tp.io.write_matrix_market(path, tp.COO(r, c, v, shape))
        return v.new_zeros(())

    def scipy_write(v: Tensor, r: Tensor, c: Tensor) -> Tensor:
        import scipy.io
        import scipy.sparse

        matrix = scipy.sparse.coo_array((v.numpy(), (r.numpy(), c.numpy())), shape=shape)
        scipy.io.mmwrite(path, matrix, precision=17)
        return v.new_zeros(())

    def ours(v: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        a = tp.io.read_matrix_market(path)
        return a.values, a.row_idx, a.col_idx

    def by_scipy(v: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        import scipy.io

        a = scipy.io.mmread(path)
        return tuple(map(torch.from_numpy, (a.data, a.row, a.col)))

    def written(*entry: Tensor) -> Tensor:
        testing.assert_equal(by_scipy(*entry), entry, "the file that make() wrote")
        return entry[0].new_zeros(())

    return [
        Figure(f"read_matrix_market {entries}", make, ours, lambda *entry: entry, {"scipy": by_scipy}),
        Figure(f"write_matrix_market {entries}", make, write, written, {"scipy": scipy_write}),
    ]


def figures(device: str) -> list[Figure]:
    if device == "cuda":
        products = vectors(device, 2**21) + columns(2**20, (32, 128)) + squares(2**18)
        return products + by_entry(2**20) + conversions(2**26)
    products = vectors(device, 2**17) + columns(2**15, (32,)) + squares(2**14)
    return products + by_entry(2**16) + conversions(2**20) + files(500_000)
