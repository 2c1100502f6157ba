"""What every world runs on sparse matrices and graphs: against the operators on the whole."""

import torch
from distributed_cases import check_gradients, raises
from distributed_world import World
from torch.distributed.tensor.debug import CommDebugMode

import torch_patterns as tp
from torch_patterns import distributed, solvers
from torch_patterns.testing import assert_within


def matrix(rows: int, columns: int, per_row: int, dtype=torch.float32, index=torch.int64) -> tp.CSR:
    """Rows of 0 to 2 * per_row entries, duplicates among them; small integers."""
    lengths = torch.randint(0, 2 * per_row + 1, (rows,)) if columns else torch.zeros(rows, dtype=torch.int64)
    ptrs = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    nnz = int(ptrs[-1])
    col_idx = torch.randint(0, max(columns, 1), (nnz,))
    values = torch.randint(-4, 5, (nnz,)).to(dtype)
    return tp.csr(ptrs.to(index), col_idx.to(index), values, (rows, columns))


def laplace(n: int, dtype=torch.float64) -> tp.CSR:
    """The tridiagonal matrix of the one-dimensional Laplace equation, plus 1 on the diagonal: positive definite."""
    i = torch.arange(n)
    row = torch.cat([i, i[1:], i[:-1]])
    col = torch.cat([i, i[:-1], i[1:]])
    values = torch.cat([torch.full((n,), 3.0), torch.full((2 * n - 2,), -1.0)]).to(dtype)
    return tp.coo(row, col, values, (n, n)).convert("csr")


def case_products(world: World) -> None:
    shapes = [(40, 40, 3), (37, 61, 4), (61, 37, 2), (3, 3, 1), (1, 50, 9), (50, 1, 1), (40, 0, 0), (0, 7, 0)]
    for number, (rows, columns, per_row) in enumerate(shapes):
        whole = matrix(rows, columns, per_row, index=(torch.int64, torch.int32)[number % 2])
        A = distributed.shard(whole.to(world.device))
        rows_of, columns_of = (distributed.even_lengths(n, world.size) for n in (rows, columns))
        assert A.row_lengths == rows_of and A.column_lengths == columns_of and A.shape == (rows, columns)
        x, X = torch.randint(-5, 6, (columns,)).float(), torch.randint(-5, 6, (columns, 3)).float()
        world.assert_part(A @ world.part(x, columns_of), tp.spmv(whole, x), rows_of, f"spmv {rows} x {columns}")
        Y = distributed.spmm(A, world.part(X, columns_of), validate=True)
        world.assert_part(Y, tp.spmm(whole, X), rows_of, f"spmm {rows} x {columns}")


def case_rows_of_each_rank(world: World) -> None:
    """from_local, in every format and layout."""
    whole = matrix(40, 40, 3)
    x = torch.randint(-5, 6, (40,)).float()
    for number, format in enumerate(("csr", "coo", "csc", "ell", "hyb", "jds", "sell", "csr")):
        lengths = world.layout(40, number)
        begin = sum(lengths[: world.rank])
        ptrs = whole.row_ptrs[begin : begin + lengths[world.rank] + 1]
        part = tp.csr(ptrs - ptrs[0], *(t[ptrs[0] : ptrs[-1]] for t in whole[1:3]), (lengths[world.rank], 40))
        A = distributed.from_local(part.to(world.device).convert(format))
        assert A.column_lengths == lengths
        world.assert_part(A @ world.part(x, lengths), tp.spmv(whole, x), lengths, format)


def case_gradients_of_products(world: World) -> None:
    whole = matrix(30, 30, 3, torch.float64)
    lengths = distributed.even_lengths(30, world.size)
    x, X = torch.randint(-5, 6, (30,)).double(), torch.randint(-5, 6, (30, 2)).double()
    A = distributed.shard(whole.to(world.device))
    check_gradients(world, lambda v: distributed.spmv(A, v), lambda v: tp.spmv(whole, v), [x], lengths, "x")
    check_gradients(world, lambda v: distributed.spmm(A, v), lambda v: tp.spmm(whole, v), [X], lengths, "X")
    # Of the values: every rank has all of them, and the gradient of those whose rows it holds.
    values, whole_values = (whole.values.to(d, copy=True).requires_grad_() for d in (world.device, "cpu"))
    weights = torch.arange(30) % 5 - 2.0
    A = distributed.shard(whole.to(world.device)._replace(values=values))
    y = A @ world.part(x, lengths)
    (got,) = torch.autograd.grad((y * world.part(weights, lengths)).sum(), values)
    torch.distributed.all_reduce(got)
    whole_y = tp.spmv(whole._replace(values=whole_values), x)
    (expected,) = torch.autograd.grad((whole_y * weights).sum(), whole_values)
    assert torch.equal(got.cpu(), expected)


def case_conjugate_gradient(world: World) -> None:
    whole, n = laplace(60), 60
    lengths = distributed.even_lengths(n, world.size)
    b = torch.randint(-5, 6, (n,)).double()
    values = whole.values.to(world.device, copy=True).requires_grad_()
    A = distributed.shard(whole.to(world.device)._replace(values=values))
    right = world.part(b, lengths).requires_grad_()
    steps = []
    found = distributed.conjugate_gradient(A, right, rtol=1e-12, callback=lambda i, norm: steps.append(norm))
    whole_b, whole_values = b.clone().requires_grad_(), whole.values.clone().requires_grad_()
    expected = solvers.conjugate_gradient(whole._replace(values=whole_values), whole_b, rtol=1e-12)
    assert found.converged and found.iterations == len(steps) and abs(found.iterations - expected.iterations) <= 1
    # No eigenvalue is below 1: solutions are as close to the exact one as their residuals are small.
    near = 2e-12 * b.norm()
    exact = world.part(expected.x.detach(), lengths).cpu()
    assert_within(found.x, exact, near.expand_as(exact), "x")
    weights = torch.arange(n) % 5 - 2.0
    got = torch.autograd.grad((found.x * world.part(weights, lengths)).sum(), [right, values])
    whole_grads = torch.autograd.grad((expected.x * weights).sum(), [whole_b, whole_values])
    torch.distributed.all_reduce(got[1])
    near_grad = 2e-12 * weights.norm()
    assert_within(got[0], world.part(whole_grads[0], lengths).cpu(), near_grad.expand_as(exact), "gradient of b")
    near_values = (near * weights.norm() + near_grad * b.norm()).expand_as(whole_grads[1])
    assert_within(got[1], whole_grads[1], near_values, "gradient of the values")
    scaled = distributed.conjugate_gradient(A, right.detach(), rtol=1e-12, preconditioner=lambda r: r / 3)
    assert_within(scaled.x, exact, near.expand_as(exact), "with a preconditioner")
    for exponent in (-900, 900):  # squares of such numbers vanish or overflow
        tiny = world.part(b.ldexp(torch.tensor(exponent)), lengths)
        power = distributed.conjugate_gradient(A, tiny, rtol=1e-12, x0=torch.zeros_like(tiny))
        assert power.converged and power.iterations == found.iterations
        assert torch.equal(power.x, found.x.detach().ldexp(torch.tensor(exponent, device=world.device)))
    negative = distributed.shard(whole._replace(values=-whole.values).to(world.device))
    raises(ValueError, "positive definite", distributed.conjugate_gradient, negative, right.detach())


def edges(graph: tp.Graph) -> torch.Tensor:
    src, dst = graph.coo()
    return torch.stack([src, dst]).cpu()


def assert_owned(graph: distributed.ShardedGraph, whole: tp.Graph) -> None:
    """Each rank has just those edges of the whole that lead to its vertices."""
    src, dst = edges(whole)
    mine = (dst >= graph.begin) & (dst < graph.end)
    assert torch.equal(edges(graph.local), torch.stack([src[mine], dst[mine]]))
    assert sum(graph.lengths) == whole.num_vertices and graph.local.dtype == whole.dtype


def case_rmat_at_any_number_of_ranks(world: World) -> None:
    for scale, kwargs in ((0, {}), (3, {"dedup": True}), (7, {"directed": True}), (8, {"index_dtype": torch.int32})):
        graph = distributed.rmat(scale, 6, 5, device=world.device, **kwargs)
        assert_owned(graph, tp.graph.rmat(scale, 6, 5, **kwargs))


def case_graphs_of_edges_anywhere(world: World) -> None:
    src, dst = torch.randint(0, 50, (2, 300))
    whole = tp.graph.from_edges(src, dst, 50)
    assert_owned(distributed.shard(whole.to(world.device)), whole)
    lengths = world.layout(300, 1)
    part = tp.graph.from_edges(world.part(src, lengths), world.part(dst, lengths), 50)
    assert_owned(distributed.from_local(part), whole)


def case_bfs(world: World) -> None:
    generator = torch.Generator().manual_seed(3)
    path = tp.graph.from_edges(torch.arange(40), torch.arange(1, 41), 41)
    graphs = [tp.graph.rmat(8, 8, 1), tp.graph.rmat(9, 2, 2, directed=True, index_dtype=torch.int32), path]
    graphs += [tp.graph.grid(9, 13), tp.graph.from_edges([], [], 5), tp.graph.rmat(0)]
    for number, whole in enumerate(graphs):
        graph = distributed.shard(whole.to(world.device))
        one = int(torch.randint(0, whole.num_vertices, (1,), generator=generator))
        several = torch.randint(0, whole.num_vertices, (3,), generator=generator)
        for sources, max_level in ((0, None), (one, None), (several, None), (several.tolist(), 2), (0, 0)):
            expected = tp.bfs(whole, sources, max_level)
            here = sources.to(world.device) if isinstance(sources, torch.Tensor) else sources
            for got, want in zip(distributed.bfs(graph, here, max_level), expected, strict=True):
                world.assert_part(got, want, graph.lengths, f"graph {number} from {sources}, {max_level}")
    raises(IndexError, "41 is no vertex", distributed.bfs, distributed.shard(path.to(world.device)), 41)
    raises(ValueError, "no sources", distributed.bfs, distributed.shard(path.to(world.device)), [])


def hub_behind_a_star(rays: int) -> tp.Graph:
    """0 leads to all rays, each ray to the last vertex: a level of one vertex, one of many, one long row."""
    middle = torch.arange(1, rays + 1)
    return tp.graph.from_edges(
        torch.cat([torch.zeros_like(middle), middle]),
        torch.cat([middle, torch.full_like(middle, rays + 1)]),
        rays + 2,
        directed=False,
    )


def case_bfs_along_long_rows(world: World) -> None:
    """Rows that are taken in pieces: by a push from the hubs, and by a pull to the one that is not reached yet."""
    whole = hub_behind_a_star(5000)
    graph = distributed.shard(whole.to(world.device))
    for source in (0, 5001, 17):
        for got, want in zip(distributed.bfs(graph, source), tp.bfs(whole, source), strict=True):
            world.assert_part(got, want, graph.lengths, f"from {source}")


def case_collectives_of_each_call(world: World) -> None:
    """What the documentation says of traffic: (all_gathers, all_to_alls) of a call."""
    x = torch.arange(40.0, device=world.device)
    whole = laplace(40, torch.float32).to(world.device)
    A, X = distributed.shard(whole), world.part(x.cpu(), distributed.even_lengths(40, world.size))
    path = tp.graph.from_edges(torch.arange(40), torch.arange(1, 41), 41, directed=False)
    graph = distributed.shard(path.to(world.device))
    header_of_products = int(world.device.type == "cpu")
    calls = [
        (lambda: distributed.scan(x), (1, 0)),
        (lambda: distributed.scan(x.int(), op="max", reverse=True), (1, 0)),
        (lambda: distributed.scan(torch.ones(3, 300, device=world.device)), (2, 0)),  # totals of 1,200 bytes
        (lambda: distributed.reduce(x, op="mean"), (1, 0)),
        (lambda: distributed.reduce(x, op="argmax"), (1, 0)),
        (lambda: distributed.linear_recurrence(x, x), (2, 0)),
        (lambda: distributed.sort_keys(x), (2, 1)),  # one round of cuts
        (lambda: distributed.sort(x), (2, 2)),
        (lambda: distributed.merge(x, x), (2, 2)),
        (lambda: A @ X, (header_of_products, 1)),
        (lambda: distributed.bfs(graph, 0), (42, 0)),  # 40 levels, and one that stays empty
        (lambda: distributed.bfs(graph, 0, 3), (4, 0)),
    ]
    for number, (call, expected) in enumerate(calls):
        with CommDebugMode() as mode:
            call()
        counts = {str(op): n for op, n in mode.get_comm_counts().items()}
        found = tuple(sum(n for op, n in counts.items() if kind in op) for kind in ("allgather", "alltoall"))
        assert found == expected and sum(found) == sum(counts.values()), f"call {number}: {counts}"


def case_levels_obey_the_rules_of_simt(world: World) -> None:
    """The kernels of a level in checked mode, where every access is looked at; on the CPU."""
    if world.device.type == "cuda":
        return
    whole = hub_behind_a_star(2100)
    graph = distributed.shard(whole)
    for order in ("forward", "shuffle"):
        with tp.simt.checked(order):
            results = distributed.bfs(graph, 0)
        for got, want in zip(results, tp.bfs(whole, 0), strict=True):
            world.assert_part(got, want, graph.lengths, order)
