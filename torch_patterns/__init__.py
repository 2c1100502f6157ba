"""torch_patterns: the parallel patterns as PyTorch operators.

Every pattern is an operator on CPU and CUDA tensors with gradients, and the textbook's algorithms for it are selectable
by ``algorithm=``. The operators are ``torch.ops.torch_patterns.*``; the functions here are their typed
and documented wrappers.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch

_library = Path(__file__).with_name("libtorch_patterns.so")
_built_with = _library.with_name("built_with")
_build = "build it with `make build` or `pip install --no-build-isolation .`"
if not _library.exists() or not _built_with.exists():
    raise ImportError(f"{_library} is missing: {_build}")
# A C++ library works only with the torch whose headers it was compiled with: in another, symbols are missing or differ.
if _built_with.read_text().split(".")[:2] != torch.__version__.split(".")[:2]:
    raise ImportError(
        f"{_library} was built with torch {_built_with.read_text().strip()}, this is {torch.__version__}: {_build}"
    )
torch.ops.load_library(str(_library))

from torch_patterns import graph, io, jagged, registry, simt, solvers  # noqa: E402
from torch_patterns.compact import compact, compact_padded, partition  # noqa: E402
from torch_patterns.conv import conv2d, conv2d_dgrad, conv2d_wgrad  # noqa: E402
from torch_patterns.graph import (  # noqa: E402
    Graph,
    bfs,
    bfs_batched,
    connected_components,
    pagerank,
    random_walk,
    reachable,
    sample_neighbors,
    shortest_path,
    sssp,
    triangle_count,
)
from torch_patterns.groups import (  # noqa: E402
    group_by,
    group_expand,
    group_reduce,
    reduce_by_key,
    run_length_encode,
    unique,
)
from torch_patterns.histogram import histogram  # noqa: E402
from torch_patterns.layers import (  # noqa: E402
    absolute_error,
    bipolar_sigmoid,
    cross_entropy,
    linear,
    rbf,
    relu,
    sign,
    squared_error,
    tanh,
)
from torch_patterns.merge import co_rank, merge, merge_pairs  # noqa: E402
from torch_patterns.pooling import avg_pool2d, max_pool2d, subsample2d  # noqa: E402
from torch_patterns.reduction import reduce  # noqa: E402
from torch_patterns.registry import algorithms  # noqa: E402
from torch_patterns.scan import linear_recurrence, scan, scan_with_indices  # noqa: E402
from torch_patterns.segmented import (  # noqa: E402
    segment_expand,
    segment_log_softmax,
    segment_matmul,
    segment_recurrence,
    segment_reduce,
    segment_scan,
    segment_softmax,
    segment_topk,
)
from torch_patterns.sorting import (  # noqa: E402
    argsort,
    lexsort,
    segment_sort,
    segment_sort_pairs,
    sort,
    sort_keys,
    sort_pairs,
)
from torch_patterns.sparse import build as _formats  # noqa: E402
from torch_patterns.sparse import sampled_product, spgemm, spmm, spmv  # noqa: E402
from torch_patterns.sparse.build import *  # noqa: E402, F403
from torch_patterns.version import __version__  # noqa: E402

if TYPE_CHECKING:
    from torch_patterns import bench, data, distributed, lenet, nn, testing  # noqa: F401

_LAZY = ("bench", "data", "distributed", "lenet", "nn", "testing")  # modules that are imported at their first use


def __getattr__(name: str):
    if name in _LAZY:
        return importlib.import_module(f"torch_patterns.{name}")
    raise AttributeError(f"module 'torch_patterns' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = [
    "Graph",
    "__version__",
    "absolute_error",
    "algorithms",
    "argsort",
    "avg_pool2d",
    "bfs",
    "bfs_batched",
    "bipolar_sigmoid",
    "co_rank",
    "compact",
    "compact_padded",
    "connected_components",
    "conv2d",
    "conv2d_dgrad",
    "conv2d_wgrad",
    "cross_entropy",
    "graph",
    "group_by",
    "group_expand",
    "group_reduce",
    "histogram",
    "io",
    "jagged",
    "lenet",
    "lexsort",
    "linear",
    "linear_recurrence",
    "max_pool2d",
    "merge",
    "merge_pairs",
    "nn",
    "partition",
    "pagerank",
    "random_walk",
    "rbf",
    "reachable",
    "reduce",
    "reduce_by_key",
    "registry",
    "relu",
    "run_length_encode",
    "sample_neighbors",
    "sampled_product",
    "scan",
    "scan_with_indices",
    "segment_expand",
    "segment_log_softmax",
    "segment_matmul",
    "segment_recurrence",
    "segment_reduce",
    "segment_scan",
    "segment_softmax",
    "segment_sort",
    "segment_sort_pairs",
    "segment_topk",
    "shortest_path",
    "sign",
    "simt",
    "solvers",
    "sort",
    "sort_keys",
    "sort_pairs",
    "spgemm",
    "spmm",
    "spmv",
    "squared_error",
    "sssp",
    "subsample2d",
    "tanh",
    "triangle_count",
    "unique",
]
__all__ += _formats.__all__
