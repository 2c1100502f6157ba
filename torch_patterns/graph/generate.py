"""Graphs generated on the device: RMAT, uniform, grids and mazes.

Random numbers are a function of the seed and the number of the edge, computed in integer arithmetic alone. Therefore
the same call gives the same graph, bit for bit, on every device, and any part of the edges can be generated without the
others.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from torch_patterns.arguments import integer, real, word
from torch_patterns.graph.build import MAX_VERTICES, from_edges
from torch_patterns.graph.container import Graph, check_index_dtype, pointer_dtype

_ops = torch.ops.torch_patterns
LEVELS = 3  # levels of an RMAT matrix chosen by 16 random bits: the rarest choice, 0.05^3, has 8 of their values
CHOICES = 1 << 16

# ---- random numbers


def _mix(x: Tensor) -> Tensor:
    """Maps 64-bit words one to one to words that look random (the finalizer of SplitMix64; Steele, Lea and Flood)."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & (1 << 33) - 1)


def random_words(begin: int, end: int, seed: int, stream: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Returns words begin ... end - 1 of the random sequence of 64-bit words that (seed, stream) names: int64.

    Example:
        >>> torch.equal(tp.graph.random_words(0, 4, seed=1)[2:], tp.graph.random_words(2, 4, seed=1))
        True
    """
    begin, end = integer("random_words", "begin", begin), integer("random_words", "end", end)
    key = int(_mix(_mix(torch.tensor(word("random_words", "seed", seed), device="cpu")) + stream))
    return _mix(torch.arange(begin, end, device=device) * -0x61C8864680B583EB + key)


def _shuffled(ids: Tensor, bits: int, seed: int) -> Tensor:
    """Permutes the numbers of `bits` bits: each round multiplies by an odd number, adds an offset and xors a shift."""
    mask, half = (1 << bits) - 1, (bits + 1) // 2
    for multiple, offset in random_words(0, 6, seed, stream=-1, device="cpu").view(3, 2).tolist():
        ids = (ids * (multiple & mask | 1) + (offset & mask)) & mask
        ids = ids ^ ids >> half
    return ids


def _chunks(count: int, device: torch.device):
    """Yields (begin, end) of pieces that fit a core's cache, or need only a part of a GPU's memory."""
    step = 1 << (17 if device.type == "cpu" else 25)
    return ((begin, min(begin + step, count)) for begin in range(0, count, step))


# ---- random graphs


def rmat(
    scale: int,
    edge_factor: int = 16,
    seed: int = 0,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    directed: bool = False,
    dedup: bool = False,
    index_dtype: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
) -> Graph:
    """Generates a graph with few hubs and many leaves, as social networks have: Graph500's Kronecker generator, RMAT.

    Each edge falls into a random quarter of the adjacency matrix, then into a random quarter of that quarter, and so
    on; the vertices are then renumbered at random. Self loops and multiple edges occur and are kept. (Chakrabarti, Zhan
    and Faloutsos 2004.)

    Args:
        scale: 2^scale vertices; at most 31.
        edge_factor: generated edges per vertex. Undirected edges are stored in both directions.
        seed: selects the graph; it is the same on every device.
        a, b, c: the probabilities of the top left, top right and bottom left quarter; the rest is that of the bottom
            right one. The probabilities of three levels together are rounded to multiples of 2^-16.
        directed, dedup, index_dtype: as :func:`from_edges`.
        device: where to generate it.

    Raises:
        ValueError: a negative size or chance, chances above 1, too large a ``scale`` or too narrow an ``index_dtype``.
        TypeError: ``index_dtype`` is neither int32 nor int64.

    Example:
        >>> tp.graph.rmat(scale=4, edge_factor=2, seed=1)
        Graph(num_vertices=16, num_edges=60, symmetric=True, dtype=torch.int64, device='cpu')
    """
    device, scale = torch.device(device), integer("rmat", "scale", scale)
    rmat_edges(scale, 0, 0, seed, a=a, b=b, c=c)  # raises if an argument is out of range

    def edges(begin: int, end: int) -> tuple[Tensor, Tensor]:
        return _rmat_edges(scale, begin, end, seed, table)

    table = _quarters(a, b, c).to(device)
    return _random_graph("rmat", edges, 1 << scale, edge_factor, directed, dedup, index_dtype, device)


def rmat_edges(
    scale: int,
    begin: int,
    end: int,
    seed: int = 0,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    index_dtype: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Generates only the edges begin ... end - 1 of :func:`rmat`: (src, dst), [end - begin] each.

    Args:
        scale, seed, a, b, c: as for :func:`rmat`.
        begin, end: the range of the edges, which are numbered in the order in which :func:`rmat` draws them.
        index_dtype: the dtype of the vertex ids.
        device: where to generate them.

    Raises:
        ValueError, TypeError: as :func:`rmat`.

    Example:
        >>> src, dst = tp.graph.rmat_edges(scale=4, begin=0, end=3, seed=1)
        >>> src.shape, bool((src < 16).all())
        (torch.Size([3]), True)
    """
    scale, seed = integer("rmat", "scale", scale), word("rmat", "seed", seed)
    begin, end = word("rmat", "begin", begin), word("rmat", "end", end)
    a, b, c = (real("rmat", name, value) for name, value in (("a", a), ("b", b), ("c", c)))
    if not begin <= end:
        raise ValueError(f"rmat: begin must not be beyond end, got {begin} and {end}")
    if not 0 <= scale <= 31:
        raise ValueError(f"rmat: scale must be in 0 ... 31, got {scale}")
    if not all(chance >= -1e-9 for chance in (a, b, c, 1 - a - b - c)):  # min() would pass over some NaN
        raise ValueError(f"rmat: a, b, c must be chances whose sum is 1 at most, got {a}, {b}, {c}")
    check_index_dtype("rmat", index_dtype, 1 << scale)
    device = torch.device(device)
    table = _quarters(a, b, c).to(device)
    src, dst = (torch.empty(end - begin, dtype=index_dtype, device=device) for _ in range(2))
    for first, last in _chunks(end - begin, device):
        src[first:last], dst[first:last] = _rmat_edges(scale, begin + first, begin + last, seed, table)
    return src, dst


def _rmat_edges(scale: int, begin: int, end: int, seed: int, table: Tensor) -> tuple[Tensor, Tensor]:
    groups = -(-scale // LEVELS)
    surplus = groups * LEVELS - scale
    both = torch.zeros(end - begin, dtype=torch.int64, device=table.device)  # row above column, 32 bits each
    for group in range(groups):
        if group % 4 == 0:
            words = random_words(begin, end, seed, group // 4, table.device)
        both = both << LEVELS | table.take(words >> 16 * (group % 4) & CHOICES - 1)
    row, column = both >> 32 + surplus, (both & (1 << 32) - 1) >> surplus
    return _shuffled(row, scale, seed), _shuffled(column, scale, seed)


def _quarters(a: float, b: float, c: float) -> Tensor:
    """Returns, for each value of 16 random bits, the row (upper half) and column bits that it chooses in LEVELS
    levels."""
    table, begin, chance = torch.zeros(CHOICES, dtype=torch.int64, device="cpu"), 0, 0.0
    quarters = ((a, 0, 0), (b, 0, 1), (c, 1, 0), (1 - a - b - c, 1, 1))
    for levels in itertools.product(quarters, repeat=LEVELS):
        product, row, column = 1.0, 0, 0
        for p, down, right in levels:
            product, row, column = product * p, row * 2 + down, column * 2 + right
        chance += product
        end = min(max(round(chance * CHOICES), begin), CHOICES)
        table[begin:end] = row << 32 | column
        begin = end
    return table


def uniform(
    num_vertices: int,
    edge_factor: int = 16,
    seed: int = 0,
    *,
    directed: bool = False,
    dedup: bool = False,
    index_dtype: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
) -> Graph:
    """Generates edges between vertices drawn at random, all equally likely (Erdős and Rényi's, with repetition).

    Args:
        num_vertices: V, at most 2^31.
        edge_factor: generated edges per vertex. Undirected edges are stored in both directions.
        seed: selects the graph; it is the same on every device.
        directed, dedup, index_dtype: as :func:`from_edges`.
        device: where to generate it.

    Raises:
        ValueError: a negative size, or too many vertices or too narrow an ``index_dtype``.
        TypeError: ``index_dtype`` is neither int32 nor int64.

    Example:
        >>> tp.graph.uniform(10, edge_factor=1, seed=1, directed=True)
        Graph(num_vertices=10, num_edges=10, symmetric=False, dtype=torch.int64, device='cpu')
    """
    device, seed = torch.device(device), word("uniform", "seed", seed)
    num_vertices = integer("uniform", "num_vertices", num_vertices)

    def edges(begin: int, end: int) -> tuple[Tensor, Tensor]:
        words = random_words(begin, end, seed, 0, device)
        low, high = words & (1 << 31) - 1, words >> 32 & (1 << 31) - 1
        return high * num_vertices >> 31, low * num_vertices >> 31

    return _random_graph("uniform", edges, num_vertices, edge_factor, directed, dedup, index_dtype, device)


def _random_graph(where, edges, num_vertices, edge_factor, directed, dedup, index_dtype, device) -> Graph:
    edge_factor = integer(where, "edge_factor", edge_factor)
    if not 0 <= num_vertices <= MAX_VERTICES or not 0 <= edge_factor < 2**32:
        raise ValueError(f"{where}: {num_vertices} vertices and {edge_factor} edges per vertex are out of range")
    count = num_vertices * edge_factor
    check_index_dtype(where, index_dtype, num_vertices)
    src, dst = (torch.empty(count, dtype=index_dtype, device=device) for _ in range(2))
    for begin, end in _chunks(count, device):
        src[begin:end], dst[begin:end] = edges(begin, end)
    return from_edges(src, dst, num_vertices, directed=directed, dedup=dedup, validate=False)


# ---- grids


def grid(
    rows: int, columns: int, *, index_dtype: torch.dtype = torch.int64, device: torch.device | str = "cpu"
) -> Graph:
    """Builds a grid: each vertex is joined to its neighbours above, below, left and right; vertex [i, j] is ``i *
    columns + j``. A search from a corner has rows + columns - 1 levels.

    Raises:
        ValueError: a negative size, or an ``index_dtype`` too narrow for the vertices.
        TypeError: ``index_dtype`` is neither int32 nor int64.

    Example:
        >>> tp.graph.grid(2, 3)
        Graph(num_vertices=6, num_edges=14, symmetric=True, dtype=torch.int64, device='cpu')
    """
    rows, columns = integer("grid", "rows", rows), integer("grid", "columns", columns)
    if rows < 0 or columns < 0:
        raise ValueError(f"grid: sizes must not be negative, got {rows} x {columns}")
    check_index_dtype("grid", index_dtype, rows * columns)
    return maze(torch.ones(rows, columns, dtype=torch.bool, device=device), index_dtype=index_dtype)


def maze(passable: Tensor, *, index_dtype: torch.dtype = torch.int64) -> Graph:
    """Builds the graph of one maze or of a batch of mazes: a passable cell is joined to its passable neighbours above,
    below, left and right (the routing blocks of Fig. 15.5). The other cells are vertices without edges.

    Args:
        passable: [..., rows, columns], bool; the vertex of cell [..., i, j] is its index in row-major order. The mazes
            of a batch are not joined to each other, so one search with a source in each maze labels all of them.
        index_dtype: ``torch.int32`` or ``torch.int64``.

    Raises:
        ValueError: fewer than two dimensions, or an ``index_dtype`` too narrow for the vertices.
        TypeError: ``passable`` is not bool, or ``index_dtype`` is neither int32 nor int64.

    Example:
        >>> tp.graph.maze(torch.tensor([[1, 1], [0, 1]], dtype=torch.bool))
        Graph(num_vertices=4, num_edges=4, symmetric=True, dtype=torch.int64, device='cpu')
    """
    if passable.dim() < 2:
        raise ValueError(f"maze: passable must be [..., rows, columns], got {[*passable.shape]}")
    if passable.dtype != torch.bool:
        raise TypeError(f"maze: passable must be bool, got {passable.dtype}")
    check_index_dtype("maze", index_dtype, passable.numel())
    joined = torch.zeros(*passable.shape, 4, dtype=torch.bool, device=passable.device)  # above, left, right, below
    below, right = passable[..., 1:, :] & passable[..., :-1, :], passable[..., 1:] & passable[..., :-1]
    joined[..., 1:, :, 0], joined[..., 1:, 1], joined[..., :-1, 2], joined[..., :-1, :, 3] = below, right, right, below
    joined = joined.view(-1, 4)
    columns = passable.shape[-1]
    steps = torch.tensor([-columns, -1, 1, columns], dtype=index_dtype, device=passable.device)
    vertices = torch.arange(len(joined), dtype=index_dtype, device=passable.device)
    col_idx = _ops.compact((vertices[:, None] + steps).view(-1), joined.view(-1))
    row_ptrs = col_idx.new_zeros(len(joined) + 1, dtype=pointer_dtype(index_dtype, len(col_idx)))
    row_ptrs[1:] = _ops.scan(joined.sum(1), 0)
    return Graph(row_ptrs, col_idx, None, None, True)
