"""Graphs whose vertices are sharded: RMAT generated in place, and direction-optimizing breadth-first search (§15.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

import torch_patterns as tp
from torch_patterns.arguments import type_name
from torch_patterns.distributed.collectives import all_to_all
from torch_patterns.distributed.group import Call, Group, all_gather_single, finish, gather_rows, on_device

_ops = torch.ops.torch_patterns_parts
WORD = 32  # vertices in an int32 of a bitmap; every rank except the last holds whole words
SUMS = 4  # int32 words before a rank's bitmap: two int64, the vertices it has found and the edges that enter them
# Beamer's alpha: the search goes bottom-up if the frontier has more than 1/14 as many edges as the unvisited vertices.
ALPHA = 14


@dataclass(frozen=True)
class ShardedGraph:
    """A graph of which each rank holds the edges that enter its vertices; see :func:`shard`, :func:`from_local`,
    ``rmat``.

    Rank r owns the vertices r * block ... (r + 1) * block - 1, if they exist. Its ``local`` graph has all vertices, but
    only the edges that lead to vertices of the rank.

    Fields:
        local: :class:`torch_patterns.Graph`, with in-edges.
        block: vertices per rank, a multiple of 32.
        group: the ranks.

    Example:
        >>> g = distributed.shard(tp.graph.grid(2, 2))
        >>> levels, parents = distributed.bfs(g, 0)
        >>> levels
        tensor([0, 1, 1, 2], dtype=torch.int32)
    """

    local: tp.Graph
    block: int
    group: dist.ProcessGroup

    @property
    def num_vertices(self) -> int:
        return self.local.num_vertices

    @property
    def device(self) -> torch.device:
        return self.local.device

    @property
    def lengths(self) -> list[int]:
        """Returns how many vertices each rank owns, which are the lengths of the shards that :func:`bfs` returns."""
        size = dist.get_world_size(self.group)
        return [min(max(self.num_vertices - r * self.block, 0), self.block) for r in range(size)]

    @property
    def begin(self) -> int:
        """Returns the first vertex of this rank."""
        return min(dist.get_rank(self.group) * self.block, self.num_vertices)

    @property
    def end(self) -> int:
        return min(self.begin + self.block, self.num_vertices)


def check_sharded(name: str, what: str, value: object, kind: type) -> None:
    """TypeError if an argument is anything else than a sharded matrix, or graph."""
    if not isinstance(value, kind):
        raise TypeError(
            f"{name}: {what} must be a {kind.__name__}, got {type_name(value)}; distributed.shard() makes one"
        )


def _block(num_vertices: int, size: int) -> int:
    per_rank = -(-num_vertices // size)
    return -(-per_rank // WORD) * WORD


def shard_graph(graph: tp.Graph, group: Group = None, *, partial: bool = False) -> ShardedGraph:
    """Returns this rank's part of a graph that all ranks have or, if ``partial``, of which each rank has some edges."""
    vertices = {"num_vertices": graph.num_vertices}
    call = Call("shard", group, lambda: {"col_idx": graph.col_idx}, numbers=[graph.num_edges], **vertices)
    edges = call.lengths()
    if not partial and len(set(edges)) > 1:
        raise RuntimeError(f"shard: the graph must be the same on every rank, it has {edges} edges; see from_local")
    src, dst = graph.coo()
    block = _block(graph.num_vertices, call.size)
    if partial:
        src, dst = _to_owners(src, dst, graph.num_vertices, block, call)
    else:
        mine = dst // block == call.rank
        src, dst = tp.compact(src, mine), tp.compact(dst, mine)
    return _assembled(src, dst, graph.num_vertices, block, call, False, graph.dtype)


def _assembled(src, dst, num_vertices, block, call, dedup, index_dtype) -> ShardedGraph:
    options = {"dedup": dedup, "index_dtype": index_dtype, "validate": False}
    local = tp.graph.from_edges(src, dst, num_vertices, directed=True, **options)
    return ShardedGraph(local, block, call.group)


def _to_owners(src: Tensor, dst: Tensor, num_vertices: int, block: int, call: Call) -> tuple[Tensor, Tensor]:
    """Sends every edge to the rank that owns its destination: one exchange of packed edges, ordered by owner."""
    bits = max(num_vertices - 1, 1).bit_length()
    packed = tp.sort_keys(dst.long() << bits | src.long(), begin_bit=bits, end_bit=2 * bits)
    edges = torch.arange(call.size + 1, device=src.device) * block << bits
    counts = gather_rows(torch.searchsorted(packed, edges).diff(), call.group).tolist()
    packed = all_to_all(packed, counts[call.rank], [row[call.rank] for row in counts], call.group)
    return packed & (1 << bits) - 1, packed >> bits


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
    group: Group = None,
) -> ShardedGraph:
    """Generates Graph500's Kronecker graph, each rank its part: ``torch_patterns.graph.rmat`` for any number of ranks.

    Rank r draws the r-th part of the edges, and one all_to_all sends each edge to the rank that owns its destination.

    Args:
        scale, edge_factor, seed, a, b, c, directed, dedup, index_dtype: as for ``torch_patterns.graph.rmat``; the same
            on every rank.
        device: the device of this rank.
        group: a process group or one-dimensional DeviceMesh; the world if None.

    Returns:
        :class:`ShardedGraph`.

    Raises:
        ValueError, TypeError: as ``torch_patterns.graph.rmat``.
        RuntimeError: another rank raised, was called with other arguments, or did not take part; the message names it.

    Example:
        >>> g = distributed.rmat(scale=4, edge_factor=2, seed=1)
        >>> distributed.bfs(g, 0)[0].shape
        torch.Size([16])
    """
    chances = {"a": a, "b": b, "c": c}

    def prepare() -> dict[str, Tensor]:
        if edge_factor < 0:
            raise ValueError(f"rmat: edge_factor must not be negative, got {edge_factor}")
        return dict(zip(("src", "dst"), tp.graph.rmat_edges(scale, 0, 0, seed, **chances, device=device), strict=True))

    flags = {"directed": directed, "dedup": dedup, "index_dtype": index_dtype}
    call = Call("rmat", group, prepare, scale=scale, edge_factor=edge_factor, seed=seed, **chances, **flags)
    call.numbers()
    count, num_vertices = edge_factor << scale, 1 << scale
    begin, end = count * call.rank // call.size, count * (call.rank + 1) // call.size
    src, dst = tp.graph.rmat_edges(scale, begin, end, seed, **chances, index_dtype=index_dtype, device=device)
    if not directed:
        other = src != dst
        src, dst = (torch.cat([x, tp.compact(y, other)]) for x, y in ((src, dst), (dst, src)))
    block = _block(num_vertices, call.size)
    src, dst = _to_owners(src, dst, num_vertices, block, call)
    return _assembled(src, dst, num_vertices, block, call, dedup, index_dtype)


def bfs(
    graph: ShardedGraph, sources: int | Sequence[int] | Tensor, max_level: int | None = None
) -> tuple[Tensor, Tensor]:
    """Finds the distance of each vertex from the nearest source, in edges, and its parent on such a path (§15.2).

    In each level, every rank finds which of its vertices the frontier leads to, and one all_gather of bitmaps tells all
    ranks the next frontier and how many edges enter it. If these are few, the next level follows the edges of the
    frontier (top-down); otherwise the ranks search from their unvisited vertices (bottom-up, §15.3). A level takes one
    collective of num_vertices / 8 bytes, and one wait for the device.

    Args:
        graph: the graph.
        sources: an int, ints, or a 0-D or 1-D integer tensor; the same on every rank.
        max_level: the greatest distance to search; without it, the search goes to the end.

    Returns:
        (levels, parents) of this rank's vertices, [graph.lengths[rank]]: the same as ``torch_patterns.bfs`` gives for
        the whole graph, with the smallest parents.

    Raises:
        IndexError: a source is out of range.
        ValueError: there are no sources, or ``max_level`` is negative.
        RuntimeError: another rank raised, was called with other arguments, or did not take part; the message names it.

    Example:
        >>> g = distributed.shard(tp.graph.grid(2, 2))
        >>> distributed.bfs(g, 0, max_level=1)[0]
        tensor([ 0,  1,  1, -1], dtype=torch.int32)
    """
    check_sharded("bfs", "graph", graph, ShardedGraph)
    local, begin, end = graph.local, graph.begin, graph.end
    given: list[int] = []

    def prepare() -> dict[str, Tensor]:
        given.extend(_checked(torch.as_tensor(sources).flatten(), max_level, local.num_vertices))
        return {"col_idx": local.col_idx}

    known = {"sources": lambda: given, "max_level": max_level, "num_vertices": local.num_vertices}
    call = Call("bfs", graph.group, prepare, numbers=[local.num_edges], **known)
    ids = sorted(set(given))
    own = [v for v in ids if begin <= v < end]
    bits = _bits(ids)
    here, positions, words = on_device([*own, *bits, *bits.values()], graph.device).split(
        [len(own), len(bits), len(bits)]
    )
    levels = torch.full((end - begin,), -1, dtype=torch.int32, device=graph.device).index_fill_(0, here - begin, 0)
    parents = torch.full((end - begin,), -1, dtype=local.dtype, device=graph.device)
    parents.index_copy_(0, here - begin, here.to(local.dtype))
    found = torch.zeros(SUMS + graph.block // WORD, dtype=torch.int32, device=graph.device)
    every = found.new_zeros(call.size, len(found))
    frontier = found.new_zeros(call.size * (graph.block // WORD)).index_copy_(0, positions, words.to(torch.int32))
    rows = local.row_ptrs, local.col_idx, local.in_row_ptrs, local.in_col_idx
    size, level, pull, open_edges = len(ids), 0, False, None
    while size > 0 and (max_level is None or level < max_level):
        level += 1
        _ops.bfs_level(*rows, frontier, size, begin, level, pull, levels, parents, found)
        if open_edges is None:
            open_edges = sum(call.lengths())
        work = all_gather_single(every.view(-1), found, group=graph.group, async_op=True)
        finish(work, every, "bfs", graph.group)
        frontier = every[:, SUMS:].contiguous().view(-1)
        size, entering = _sums(every[:, :SUMS].tolist())
        open_edges -= entering
        pull = entering * ALPHA > open_edges
    call.numbers()
    return levels, parents


def _sums(words: list[list[int]]) -> list[int]:
    """Sums, over ranks, two int64, which each rank passes as four int32, low words first."""
    return [sum((row[i] & 0xFFFFFFFF) + (row[i + 1] << 32) for row in words) for i in (0, 2)]


def _checked(sources: Tensor, max_level: int | None, num_vertices: int) -> list[int]:
    if max_level is not None and max_level < 0:
        raise ValueError(f"bfs: max_level must not be negative, got {max_level}")
    if len(sources) == 0:
        raise ValueError("bfs: there are no sources")
    if sources.dtype == torch.bool or sources.is_floating_point():
        raise TypeError(f"bfs: sources must be integers, got {sources.dtype}")
    for source in sources.tolist():
        if not 0 <= source < num_vertices:
            raise IndexError(f"bfs: {source} is no vertex of a graph of {num_vertices}")
    return sources.tolist()


def _bits(vertices: Sequence[int]) -> dict[int, int]:
    """Returns the nonzero words of the bitmap of these vertices, by their index."""
    words: dict[int, int] = {}
    for vertex in vertices:
        words[vertex // WORD] = words.get(vertex // WORD, 0) | 1 << vertex % WORD
    return words
