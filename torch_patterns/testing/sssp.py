"""Shortest paths along weighted edges from a set of sources."""

from __future__ import annotations

import numpy as np
import torch

import torch_patterns
from torch_patterns.graph import Graph
from torch_patterns.testing.bfs import GRAPHS, hard_graphs, rows
from torch_patterns.testing.spec import ALL, Case, Maker, Sample, Spec, around, bad, case


def inputs(case: Case, make: Maker) -> Sample:
    """A case's shapes are those of row_ptrs, col_idx and sources; its graph is in GRAPHS.

    `most`: the greatest weight of exact samples, so small that many paths are of one length; every third weight is
    infinite if `cut`. Weights of float samples are not 0, so that their small changes change no parent.
    """
    kwargs = dict(case.kwargs)
    name, first, cut = kwargs.pop("graph", "random"), kwargs.pop("source", None), kwargs.pop("cut", False)
    index, pointers, most = kwargs.pop("index", torch.int64), kwargs.pop("pointers", None), kwargs.pop("most", 8)
    (length,), (edges,), shape = case.shapes
    src, dst = GRAPHS[name](length - 1, edges, make.random)
    row_ptrs, col_idx = rows(src, dst, length - 1)
    if make.kind == "float" and make.dtype.is_floating_point:
        weights = make((edges,)).abs() + 0.125
    else:
        weights = make.indices((edges,), most + 1).to(make.dtype)
    if cut and make.dtype.is_floating_point:
        weights[::3] = torch.inf
    sources = make.indices(shape, length - 1)
    if first is not None:
        sources = torch.full_like(sources, first)
    return Sample((row_ptrs.to(pointers or index), col_idx.to(index), weights, sources), kwargs)


# ---- reference: rounds over all edges


def distance_dtype(weights: torch.Tensor) -> torch.dtype:
    return torch.promote_types(weights.dtype, torch.float32) if weights.is_floating_point() else torch.float64


def fixpoint(values: np.ndarray, to: np.ndarray, offers) -> np.ndarray:
    """Lowers values[to] to offers(values) until nothing changes."""
    while True:
        lower = values.copy()
        np.minimum.at(lower, to, offers(values))
        if np.array_equal(lower, values):
            return values
        values = lower


def reference(row_ptrs, col_idx, weights, sources):
    """Bellman and Ford's rounds, in the arithmetic of the distances: sums along paths, whose minima do not depend on
    the order of the rounds."""
    n, dst, roots = len(row_ptrs) - 1, col_idx.numpy().astype(np.int64), sources.reshape(-1).numpy()
    src, lengths = np.repeat(np.arange(n), np.diff(row_ptrs.numpy())), weights.to(distance_dtype(weights)).numpy()
    distances = np.full(n, np.inf, lengths.dtype)
    distances[roots] = 0
    distances = fixpoint(distances, dst, lambda d: d[src] + lengths)
    tight = (distances[src] + lengths == distances[dst]) & np.isfinite(distances[dst]) & (src != dst)
    steps = np.full(n, n)
    steps[roots] = 0
    steps = fixpoint(steps, dst[tight], lambda s: s[src[tight]] + 1)
    leads = tight & ((distances[src] < distances[dst]) | (steps[src] < steps[dst]))
    parents = np.full(n, n)
    np.minimum.at(parents, dst[leads], src[leads])
    parents[parents == n] = -1
    parents[roots] = roots
    return torch.from_numpy(distances).double(), torch.from_numpy(parents)


def wrapper(row_ptrs, col_idx, weights, sources, algorithm="auto"):
    return torch_patterns.sssp(Graph(row_ptrs, col_idx), sources, weights, algorithm=algorithm)


# ---- calls that must be refused


def tensors(row_ptrs=(0, 1, 2, 2), col_idx=(1, 2), weights=(1.0, 2.0), sources=(0,), dtype=torch.int64):
    """device -> the operator's arguments; a path of three vertices if nothing else is said."""

    def make(device):
        pointers, columns = (torch.tensor(x, dtype=dtype, device=device) for x in (row_ptrs, col_idx))
        return pointers, columns, torch.tensor(weights, device=device), torch.tensor(sources, device=device)

    return make


def no_source(device):
    return *tensors()(device)[:3], torch.zeros(0, dtype=torch.int64, device=device)


REFUSED = (
    ("no pointers", tensors(()), ValueError, r"row_ptrs.*\[0\]"),
    ("matrix", tensors(((0, 1),)), ValueError, r"row_ptrs.*\[1, 2\]"),
    ("columns of a matrix", tensors(col_idx=((1, 2),)), ValueError, r"col_idx.*\[1, 2\]"),
    ("float edges", tensors(dtype=torch.float32), TypeError, "row_ptrs.*Float"),
    ("bool weights", tensors(weights=(True, False)), TypeError, "weights must be real numbers.*[bB]ool"),
    ("few weights", tensors(weights=(1.0,)), ValueError, r"weights must be \[2\], one per edge, got \[1\]"),
    ("matrix of weights", tensors(weights=((1.0, 2.0),)), ValueError, r"weights must be \[2\].*got \[1, 2\]"),
    ("negative weight", tensors(weights=(1.0, -0.5)), ValueError, r"weights\[1\] is -0.5; .*not be negative"),
    ("negative integer", tensors(weights=(-3, 1)), ValueError, r"weights\[0\] is -3; .*not be negative"),
    ("NaN", tensors(weights=(1.0, float("nan"))), ValueError, r"weights\[1\] is nan"),
    ("edge beyond", tensors(col_idx=(1, 3)), IndexError, r"col_idx\[1\] is 3, not in 0 \.\.\. 2"),
    ("edge below", tensors(col_idx=(-1, 2)), IndexError, r"col_idx\[0\] is -1"),
    ("float sources", tensors(sources=(0.0,)), TypeError, "sources must be integers.*[fF]loat"),
    ("source beyond", tensors(sources=(0, 3)), IndexError, r"sources\[1\]: 3 is no vertex of a graph of 3"),
    ("source below", tensors(sources=(-1,)), IndexError, r"sources\[0\]: -1 is no vertex"),
    ("no source", no_source, ValueError, "there are no sources"),
    ("no vertex", tensors((0,), (), ()), IndexError, r"sources\[0\]: 0 is no vertex of a graph of 0"),
)

# ---- the operator

WEIGHTS = ({}, {"most": 0}, {"most": 1}, {"most": 100}, {"cut": True})

SPECS = [
    Spec(
        "sssp",
        dtypes=ALL[1:],
        reference=reference,
        inputs=inputs,
        wrapper=wrapper,
        samples=(
            case((8,), (12,), (1,)),
            case((10,), (20,), (2,), index=torch.int32, cut=True),
            case((7,), (9,), ()),
            case((9,), (18,), (3,), index=torch.int32, pointers=torch.int64, graph="loops", most=1),
        ),
        edges=(
            *(
                case((length,), (edges,), (1 + i % 2,), graph=name, source=0, index=torch.int32, **more)
                for i, (length, edges, name) in enumerate(hard_graphs(1000))
                for more in (WEIGHTS[i % len(WEIGHTS)], WEIGHTS[(i + 2) % len(WEIGHTS)])
            ),
            *(
                case((v + 1,), (3 * v,), (1 + v % 3,), **WEIGHTS[i % len(WEIGHTS)])
                for i, v in enumerate(around(1, 32, 64, 128, 256)[1:])
            ),
            *(case((1001,), (8_000,), (1,), most=most) for most in (1, 3, 120)),
            case((1001,), (1600,), (700,)),
            case((600,), (3000,), (4,), most=2, index=torch.int32, pointers=torch.int64),
        ),
        empty=(case((4,), (0,), (2,), graph="no edge"), case((2,), (0,), (1,), graph="no edge")),
        grown=(case((8,), (30,), (3,)), case((21,), (50,), (5,))),
        special=(float("inf"),),
        bad=(
            *(bad(what, make, error, f"sssp: .*{message}") for what, make, error, message in REFUSED),
            bad("algorithm", tensors(), ValueError, "sssp: .*'no_such'.*auto", algorithm="no_such"),
        ),
        sized=lambda n: case((n // 16 + 1,), (n,), (1,), most=100),
        peers={},
        flops=lambda sample, out: sample.args[1].numel(),
    )
]
