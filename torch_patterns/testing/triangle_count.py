"""The number of triangles of a symmetric graph."""

from __future__ import annotations

import torch

from torch_patterns.testing.bfs import GRAPHS, INDICES, rows, tensors
from torch_patterns.testing.spec import Case, Maker, Sample, Spec, around, bad, case


def inputs(case: Case, make: Maker) -> Sample:
    """A case's shapes are those of row_ptrs and col_idx; half of the edges are those of a graph in GRAPHS, the other
    half lead back. `unsorted`: the rows are in any order."""
    kwargs = dict(case.kwargs)
    name, unsorted = kwargs.pop("graph", "random"), kwargs.pop("unsorted", False)
    pointers = kwargs.pop("pointers", None)
    (length,), (edges,) = case.shapes
    src, dst = (torch.from_numpy(x) for x in GRAPHS[name](length - 1, edges // 2, make.random))
    src, dst = torch.cat([src, dst]), torch.cat([dst, src])
    row_ptrs, col_idx = rows(src.numpy(), dst.numpy(), length - 1)
    if unsorted:
        order = torch.randperm(edges, generator=make.random)
        src, dst = src[order], dst[order]
        col_idx = dst[src.argsort(stable=True)]
    index = make.dtype if make.dtype in INDICES else torch.int64
    return Sample((row_ptrs.to(pointers or index), col_idx.to(index)), kwargs)


def reference(row_ptrs, col_idx):
    """Of each vertex, each pair of its greater neighbours that are neighbours, too."""
    n = len(row_ptrs) - 1
    ahead = [{v for v in col_idx[row_ptrs[u] : row_ptrs[u + 1]].tolist() if v > u} for u in range(n)]
    return torch.tensor(sum(len(ahead[u] & ahead[v]) for u in range(n) for v in ahead[u]))


HARD = (
    *((5, 16, name) for name in GRAPHS if name not in ("complete", "no edge")),
    *((v + 1, 2 * v * v, "complete") for v in (2, 3, 4, 31, 32, 33, 40)),
    (41, 800, "bipartite"),
    (4, 0, "no edge"),
    (100, 198, "star"),
    (64, 252, "loops"),
    (512, 1020, "tree"),
)

SPECS = [
    Spec(
        "triangle_count",
        dtypes=INDICES,
        reference=reference,
        inputs=inputs,
        wrapper=False,  # the public function returns an int
        samples=(
            case((7,), (24,)),
            case((10,), (40,), pointers=torch.int64),
            case((6,), (50,), graph="complete", unsorted=True),
        ),
        edges=(
            *(case((length,), (edges,), graph=name) for length, edges, name in HARD),
            *(case((length,), (edges,), graph=name, unsorted=True) for length, edges, name in HARD[::3]),
            *(case((v + 1,), (12 * v,)) for v in around(1, 32, 64, 256)[1:]),
            *(case((v + 1,), (8 * v,), unsorted=True) for v in (30, 200)),
            case((301,), (12_000,)),
            case((61,), (2_000,), pointers=torch.int64),
        ),
        empty=(case((4,), (0,), graph="no edge"), case((1,), (0,), graph="no edge")),
        grown=(case((8,), (30,)), case((21,), (50,))),
        checked=INDICES,
        differentiable=False,
        bad=tuple(
            bad(what, lambda device, make=make: make(device)[:2], error, f"triangle_count: .*{message}", **kwargs)
            for what, make, error, message, kwargs in (
                ("no pointers", tensors((), (), [0]), ValueError, r"row_ptrs.*\[0\]", {}),
                ("columns of a matrix", tensors((0, 1), ((0,),), [0]), ValueError, r"col_idx.*\[1, 1\]", {}),
                ("float pointers", tensors((0, 0), (), [0], torch.float32, torch.int64), TypeError, "row_ptrs", {}),
                ("small columns", tensors((0, 1), (0,), [0], torch.int64, torch.int16), TypeError, "Short", {}),
                ("algorithm", tensors((0, 0), (), [0]), ValueError, "'no_such'.*auto", {"algorithm": "no_such"}),
            )
        ),
        sized=lambda n: case((n // 16 + 1,), (n // 2 * 2,)),
        peers={},
        flops=lambda sample, out: sample.args[1].numel(),
    )
]
