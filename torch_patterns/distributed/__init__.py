"""The patterns over ``torch.distributed``: every function is local operators plus collectives.

Data is sharded along dimension 0: rank r of a process group holds the r-th contiguous part, of any length, including 0.
Every rank calls a function with its shard, and the function returns this rank's part of what the operator of the same
name gives for the concatenated shards.

    import torch.distributed as dist
    from torch_patterns import distributed
    dist.init_process_group()                      # torchrun sets rank and address
    y = distributed.scan(x)                        # instead of torch_patterns.scan(x)
"""

from torch_patterns.distributed import dtensor  # noqa: F401 - registers its rules
from torch_patterns.distributed.graph import ShardedGraph, bfs, rmat
from torch_patterns.distributed.matrix import ShardedMatrix, even_lengths, from_local, shard, spmm, spmv
from torch_patterns.distributed.reduction import reduce
from torch_patterns.distributed.scan import linear_recurrence, scan
from torch_patterns.distributed.segmented import segment_reduce, segment_scan
from torch_patterns.distributed.solvers import conjugate_gradient
from torch_patterns.distributed.sorting import merge, sort, sort_keys, sort_pairs

__all__ = [
    "ShardedGraph",
    "ShardedMatrix",
    "bfs",
    "conjugate_gradient",
    "even_lengths",
    "from_local",
    "linear_recurrence",
    "merge",
    "reduce",
    "rmat",
    "scan",
    "segment_reduce",
    "segment_scan",
    "shard",
    "sort",
    "sort_keys",
    "sort_pairs",
    "spmm",
    "spmv",
]
