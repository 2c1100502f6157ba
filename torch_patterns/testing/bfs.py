"""Breadth-first search: from a set of sources, and from each of many."""

from __future__ import annotations

import numpy as np
import torch

import torch_patterns
from torch_patterns.graph import Graph
from torch_patterns.testing.compare import assert_equal
from torch_patterns.testing.spec import Case, Large, Maker, Sample, Spec, around, bad, case

INDICES = (torch.int32, torch.int64)
# Vertices around the words of a bitmap, warps and blocks.
EDGES = (1, 2, *around(32, 64, 128, 256))

# ---- graphs: (src, dst) of a number of vertices and edges, as numpy arrays


def repeated(src: np.ndarray, dst: np.ndarray, edges: int) -> tuple[np.ndarray, np.ndarray]:
    """Repeats the given edges up to a number of `edges`, each as often as any other or once more."""
    order = np.arange(edges) % len(src)
    return src[order], dst[order]


def at_random(vertices: int, edges: int, random: torch.Generator, first: int = 0):
    return torch.randint(first, vertices, (2, edges), generator=random).numpy()


def chain(vertices: int, *more: tuple[int, int]) -> np.ndarray:
    """Returns a path through all vertices, and the given edges."""
    return np.array([(v, v + 1) for v in range(vertices - 1)] + list(more)).reshape(-1, 2).T


GRAPHS = {
    "random": at_random,
    "path": lambda v, e, random: repeated(*chain(v), e),
    "path back": lambda v, e, random: repeated(*chain(v)[::-1], e),
    "star": lambda v, e, random: repeated(np.zeros(v - 1, int), np.arange(1, v), e),
    "star in": lambda v, e, random: repeated(np.arange(1, v), np.zeros(v - 1, int), e),
    "loops": lambda v, e, random: repeated(*chain(v, *((u, u) for u in range(v))), e),
    "cycle and tail": lambda v, e, random: repeated(*chain(v, (2, 0)), e),
    "two components": lambda v, e, random: repeated(*np.delete(chain(v), v // 2 - 1, 1), e),
    "isolated 0": lambda v, e, random: at_random(v, e, random, first=1),
    "tree": lambda v, e, random: repeated((np.arange(1, v) - 1) // 2, np.arange(1, v), e),
    "complete": lambda v, e, random: repeated(*np.indices((v, v)).reshape(2, -1), e),
    "bipartite": lambda v, e, random: repeated(*(np.indices((v // 2, v // 2)).reshape(2, -1) + [[0], [v // 2]]), e),
    "no edge": lambda v, e, random: np.zeros((2, 0), int),
}


def rows(src: np.ndarray, dst: np.ndarray, vertices: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(row_ptrs, col_idx), int64, of sorted rows."""
    order = np.lexsort((dst, src))
    ptrs = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=vertices))])
    return torch.from_numpy(ptrs), torch.from_numpy(dst[order].astype(np.int64))


def inputs(case: Case, make: Maker) -> Sample:
    """A case's shapes are those of row_ptrs, col_idx and sources; its graph is in GRAPHS.

    `given`: the in-edges, "symmetric" for edges in both directions, or nothing. Variants of a case with in-edges share
    its graph, so that out-edges and in-edges of different variants fit together.
    """
    kwargs = dict(case.kwargs)
    name, given, first = kwargs.pop("graph", "random"), kwargs.pop("given", ""), kwargs.pop("source", None)
    (pointers,), (edges,), sources = case.shapes
    vertices = pointers - 1
    random = torch.Generator().manual_seed(edges) if given else make.random
    if given == "symmetric":
        src, dst = GRAPHS[name](vertices, edges // 2, random)
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    else:
        src, dst = GRAPHS[name](vertices, edges, random)
    index = make.dtype if make.dtype in INDICES else torch.int64
    pointer_dtype, roots = kwargs.pop("pointers", index), make.indices(sources, vertices)
    if first is not None:
        roots = torch.full_like(roots, first)
    out = rows(src, dst, vertices)
    back = rows(dst, src, vertices) if given == "in-edges" else (None, None)
    (row_ptrs, in_row_ptrs), (col_idx, in_col_idx) = (
        [x if x is None else x.to(dtype) for x in pair]
        for pair, dtype in zip(zip(out, back, strict=True), (pointer_dtype, index), strict=True)
    )
    return Sample((row_ptrs, col_idx, roots, in_row_ptrs, in_col_idx, given == "symmetric"), kwargs)


# ---- references: plain Python


def search(row_ptrs, col_idx, sources, max_level=-1) -> tuple[list[int], list[int]]:
    """Searches level by level, in the order of vertices within a level, so the first to reach a vertex is its
    parent."""
    levels, parents = [-1] * (len(row_ptrs) - 1), [-1] * (len(row_ptrs) - 1)
    level, frontier = 0, sorted(set(sources))
    for source in frontier:
        levels[source], parents[source] = 0, source
    while frontier and level != max_level:
        level, reached = level + 1, []
        for u in frontier:
            for v in col_idx[row_ptrs[u] : row_ptrs[u + 1]]:
                if levels[v] < 0:
                    levels[v], parents[v] = level, u
                    reached.append(v)
        frontier = sorted(reached)
    return levels, parents


def reference(row_ptrs, col_idx, sources, in_row_ptrs=None, in_col_idx=None, symmetric=False, max_level=-1):
    found = search(row_ptrs.tolist(), col_idx.tolist(), sources.reshape(-1).tolist(), max_level)
    return tuple(torch.tensor(x, dtype=torch.int64) for x in found)


def batched_reference(row_ptrs, col_idx, sources, *others, **kwargs):
    found = [reference(row_ptrs, col_idx, source, *others, **kwargs) for source in sources]
    if not found:
        return (torch.zeros(0, len(row_ptrs) - 1, dtype=torch.int64),) * 2
    return tuple(map(torch.stack, zip(*found, strict=True)))


def wrapper(function):
    """The public function, called as the operator is."""

    def call(
        row_ptrs,
        col_idx,
        sources,
        in_row_ptrs=None,
        in_col_idx=None,
        symmetric=False,
        max_level=-1,
        validate=False,
        algorithm="auto",
    ):
        graph = Graph(row_ptrs, col_idx, in_row_ptrs, in_col_idx, symmetric)
        most = None if max_level == -1 else max_level
        return function(graph, sources, most, validate=validate, algorithm=algorithm)

    return call


# ---- calls that must be refused


def tensors(row_ptrs, col_idx, sources, dtype=torch.int64, ids=None):
    """device -> the operator's first arguments."""

    def make(device):
        pointers, columns = torch.tensor(row_ptrs, dtype=dtype), torch.tensor(col_idx, dtype=ids or dtype)
        return pointers.to(device), columns.to(device), torch.tensor(sources).to(device)

    return make


def with_in_edges(in_row_ptrs, in_col_idx, dtype=torch.int64):
    """device -> a path 0 -> 1 -> 2, searched from 0, and these in-edges."""

    def make(device):
        given = (None if x is None else torch.tensor(x, dtype=dtype).to(device) for x in (in_row_ptrs, in_col_idx))
        return *tensors((0, 1, 2, 2), (1, 2), [0])(device), *given

    return make


def refused(name: str):
    """Calls that both operators refuse; values only under `validate`, where CUDA looks at them, too."""
    path = ((0, 1, 2, 2), (1, 2), [0])
    for what, make, error, message in (
        ("no pointers", tensors((), (), [0]), ValueError, r"row_ptrs.*\[0\]"),
        ("matrix", tensors(((0, 1),), (0,), [0]), ValueError, r"row_ptrs.*\[1, 2\]"),
        ("columns of a matrix", tensors((0, 1), ((0,),), [0]), ValueError, r"col_idx.*\[1, 1\]"),
        ("float pointers", tensors(*path, torch.float32, torch.int64), TypeError, "row_ptrs.*Float"),
        ("float columns", tensors(*path, torch.int64, torch.float32), TypeError, "col_idx.*Float"),
        ("small columns", tensors(*path, torch.int64, torch.int16), TypeError, "col_idx.*Short"),
        ("float sources", tensors(path[0], path[1], [0.0]), TypeError, "sources.*Float"),
        ("sources of a matrix", tensors(path[0], path[1], [[0]]), ValueError, r"sources.*\[1, 1\]"),
        ("half of the in-edges", with_in_edges((0, 0, 1, 2), None), ValueError, "in_row_ptrs and in_col_idx"),
        ("short in-pointers", with_in_edges((0, 0, 2), (0, 1)), ValueError, r"in_row_ptrs.*\[3\].*\[4\]"),
        ("few in-edges", with_in_edges((0, 0, 1, 2), (0,)), ValueError, r"in_col_idx.*\[1\].*\[2\]"),
        ("narrow in-edges", with_in_edges((0, 0, 1, 2), (0, 1), torch.int32), TypeError, "in_col_idx.*Int.*Long"),
    ):
        yield bad(what, make, error, f"{name}: .*{message}")
    yield bad("max_level", tensors(*path), ValueError, f"{name}|bfs: .*max_level.*-2", max_level=-2)
    yield bad("algorithm", tensors(*path), ValueError, f"{name}: .*'no_such'.*auto", algorithm="no_such")
    for what, make, error, message in (
        ("begin", tensors((1, 1, 2), (0, 1), [0]), ValueError, r"row_ptrs\[0\] is 1"),
        ("end", tensors((0, 1, 1), (0, 1), [0]), ValueError, r"row_ptrs\[2\].*is 1.*2"),
        ("decreasing", tensors((0, 2, 1, 2), (0, 1), [0]), ValueError, r"row_ptrs\[2\] is 1.*row_ptrs\[1\].*2"),
        ("pointer beyond", tensors((0, 3, 2), (0, 1), [0]), IndexError, r"row_ptrs\[1\] is 3.*2"),
        ("edge beyond", tensors((0, 1, 2), (1, 2), [0]), IndexError, r"col_idx\[1\] is 2.*1"),
        ("edge below", tensors((0, 1, 2), (1, -1), [0]), IndexError, r"col_idx\[1\] is -1"),
        ("source beyond", tensors(path[0], path[1], [1, 3]), IndexError, r"sources\[1\] is 3.*2"),
        ("source below", tensors(path[0], path[1], [-1]), IndexError, r"sources\[0\] is -1"),
        ("source far beyond", tensors(path[0], path[1], [2**40]), IndexError, r"sources\[0\] is 1099511627776"),
        ("no vertex", tensors((0,), (), [0]), IndexError, r"sources\[0\] is 0"),
        ("in-edge beyond", with_in_edges((0, 0, 1, 2), (0, 3)), IndexError, r"in_col_idx\[1\] is 3"),
        ("other in-edges", with_in_edges((0, 0, 1, 2), (0, 0)), ValueError, "in-edges"),
    ):
        yield bad(what, make, error, f"{name}: .*{message}", validate=True)
    make = tensors((0, 1, 2, 2), (1, 2), [0])
    yield bad("not symmetric", make, ValueError, f"{name}: symmetric=True.*", symmetric=True, validate=True)


def many_edges() -> Large:
    """Makes 2^31 + 11 edges: each of the first 2^16 vertices leads to the second half of them, the last to 11 more."""
    half = 2**15

    def make():
        ptrs = torch.arange(2 * half + 12, device="cuda").clamp(max=2 * half) * half
        ptrs[2 * half :] += 11
        col_idx = torch.arange(half, 2 * half, device="cuda", dtype=torch.int32).repeat(2 * half)
        last = torch.arange(2 * half, 2 * half + 11, device="cuda", dtype=torch.int32)
        return Sample((ptrs, torch.cat([col_idx, last]), torch.tensor(5, device="cuda")), {})

    def check(sample, out):
        levels, parents = (torch.full((2 * half + 11,), -1, device="cuda") for _ in range(2))
        levels[half:], parents[half:] = 1, 5
        levels[2 * half :], parents[2 * half :] = 2, 2 * half - 1
        levels[5], parents[5] = 0, 5
        assert_equal(out, (levels, parents), "2^31 + 11 edges")

    return Large("2^31 + 11 edges", 30, make, check)


# ---- the operators

SAMPLES = (
    case((8,), (12,), (1,)),
    case((10,), (20,), (2,), given="in-edges", max_level=2),
    case((9,), (18,), (3,), given="symmetric"),
)


def hard_graphs(parallel: int) -> tuple[tuple[int, int, str], ...]:
    """Returns pointers, edges and names of small graphs of all kinds; one has `parallel` edges between two vertices."""
    return (
        *((5, 8, name) for name in GRAPHS if name not in ("complete", "no edge")),
        (7, 36, "complete"),
        (41, 400, "bipartite"),
        (4, 0, "no edge"),
        (3, parallel, "path"),
        (100, 99, "star"),
        (100, 99, "star in"),
        (64, 126, "loops"),
        (129, 128, "cycle and tail"),
        (301, 298, "two components"),
        (512, 510, "tree"),
    )


def hard_cases(sources: tuple[int, ...]):
    """Returns every graph without and with in-edges, and symmetric, searched from its first and its last vertex."""
    for i, (pointers, edges, name) in enumerate(hard_graphs(2000)):
        for given in ("", "in-edges", "symmetric"):
            both = 2 if given == "symmetric" else 1
            source = 0 if (i + both) % 2 else pointers - 2
            yield case((pointers,), (both * edges,), sources, graph=name, given=given, source=source)


SINGLE = Spec(
    "bfs_csr",
    pattern="bfs",
    dtypes=INDICES,
    reference=reference,
    inputs=inputs,
    wrapper=wrapper(torch_patterns.bfs),
    samples=(*SAMPLES, case((7,), (9,), ()), case((6,), (8,), (1,), max_level=0, graph="loops", pointers=torch.int64)),
    edges=(
        *hard_cases((1,)),
        *(case((v + 1,), (3 * v,), (1 + v % 3,), given=("", "in-edges", "")[v % 3]) for v in EDGES),
        *(case((v + 1,), (4 * v,), (1,), given="symmetric") for v in EDGES),
        *(case((1001,), (16_000,), (1,), given=given) for given in ("", "in-edges", "symmetric")),
        case((1001,), (1600,), (700,)),
        case((40,), (39,), (1,), graph="path", source=0, max_level=20),
    ),
    empty=(case((4,), (0,), (2,)), case((2,), (0,), (1,), given="symmetric")),
    grown=(case((8,), (30,), (3,)), case((21,), (50,), (5,))),
    checked=INDICES,
    differentiable=False,
    bad=(
        *refused("bfs_csr"),
        bad("no sources", tensors((0, 0), (), torch.zeros(0).long().tolist()), TypeError, "sources.*Float"),
        bad(
            "empty", lambda d: (*tensors((0, 0), (), [0])(d)[:2], torch.zeros(0, device=d).long()), ValueError, "empty"
        ),
    ),
    large=(many_edges(),),
    sized=lambda n: case((n // 16 + 1,), (n,), (1,), given="symmetric"),
    peers={},
    flops=lambda sample, out: sample.args[1].numel(),
)

BATCHED = Spec(
    "bfs_batched",
    pattern="bfs",
    dtypes=INDICES,
    reference=batched_reference,
    inputs=inputs,
    wrapper=wrapper(torch_patterns.bfs_batched),
    samples=SAMPLES,
    edges=(
        *(c for i, c in enumerate(hard_cases((2,))) if i % 4 == 0),
        *(case((100,), (300,), (searches,)) for searches in (1, 63, 64, 65, 130)),
        *(case((200,), (900,), (66,), given=given, max_level=3) for given in ("in-edges", "symmetric")),
        *(case((2601,), (5200,), (3,), graph=name, given="symmetric") for name in ("star", "tree")),
        *(case((v,), (v * v,), (70,), graph="complete", given="in-edges") for v in (9, 71)),
        *(case((v + 1,), (4 * v,), (5,), given="symmetric") for v in (32, 65)),
    ),
    empty=(case((4,), (6,), (0,)), case((3,), (0,), (2,)), case((1,), (0,), (0,), graph="no edge")),
    grown=(case((8,), (30,), (3,)), case((21,), (50,), (5,))),
    checked=INDICES,
    differentiable=False,
    bad=(
        *refused("bfs_batched"),
        bad("scalar", tensors((0, 0), (), 0), ValueError, r"bfs_batched: sources.*\[\]"),
    ),
    sized=lambda n: case((n // 64 + 1,), (n // 4,), (4,), given="symmetric"),
    peers={},
    flops=lambda sample, out: sample.args[1].numel() * len(sample.args[2]),
)

SPECS = [SINGLE, BATCHED]
