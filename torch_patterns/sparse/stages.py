"""Plans for transposed products in two stages, which read and write memory in order where a plain plan reads at random.

The plan of a transposed product lists the entries of a matrix by column, so a product that follows it reads the values
in a random order. The kernel in csrc/sparse/csr/staged_tiles.cuh avoids that. It divides the entries into tiles of
BIN_ENTRIES entries in storage order, and into bins of the same size in plan order:

1. The first stage multiplies the entries of each tile in storage order, and writes the products of the tile ordered by
   bin. A product is then in its slot.
2. The second stage collects the products of each bin from their slots, where those of one tile are contiguous, puts
   them in plan order, and sums the columns.

If the operand has several columns, the stages put the values, not the products, in plan order, and the matrix is then
multiplied as one without a plan.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.sorting import argsort, sort, sort_pairs
from torch_patterns.sparse.containers import BIN_ENTRIES

# From this many entries on, the values (64 MiB in float32) do not fit in the caches, so random reads are slow.
MIN_STAGED_ENTRIES = 1 << 24


def stages_are_faster(perm: Tensor) -> bool:
    """Tells whether a product through the plan `perm` is faster in two stages (waits for the device)."""
    n = perm.shape[0]
    if not perm.is_cuda or not MIN_STAGED_ENTRIES <= n < 1 << 31 or torch.compiler.is_compiling():
        return False
    if torch.cuda.is_current_stream_capturing():
        return False
    bins = perm.narrow(0, 0, n - n % BIN_ENTRIES).view(-1, BIN_ENTRIES)
    # If the entries of a bin are close together in storage, as in a banded matrix, the caches make random reads fast.
    return bool((bins.amax(1) - bins.amin(1)).float().mean() > 8 * BIN_ENTRIES)


def stages(perm: Tensor, other: Tensor) -> Tensor:
    """Returns the rows that a plan (perm, other) has after these two, [3 or more, entries], of the same dtype.

    All rows but the last hold the bytes of three arrays, which csrc/sparse/csr/staged_tiles.cuh describes:

    - local (uint16): the position in its bin, in plan order, of the i-th item of all bins,
    - source (uint16): the position in its tile of the i-th product that the first stage writes,
    - slot (uint32): the index, among the products of the first stage, of the i-th item of all bins.

    The items of a bin are ordered by storage. The last row is origin: `other` in storage order.
    """
    n, index_dtype = perm.shape[0], perm.dtype
    padded = torch.nn.functional.pad(perm, (0, -n % BIN_ENTRIES), value=n).view(-1, BIN_ENTRIES)
    by_bin, local = (x.flatten()[:n] for x in sort(padded, 1, index_dtype=index_dtype))
    tiles = by_bin // BIN_ENTRIES
    source = sort_pairs(tiles, by_bin)[1] % BIN_ENTRIES
    slot = argsort(argsort(tiles, index_dtype=index_dtype), index_dtype=index_dtype)
    words = [x.to(d).view(torch.uint8) for x, d in ((local, torch.int16), (source, torch.int16), (slot, torch.int32))]
    origin = sort_pairs(perm, other)[1]
    return torch.cat([torch.cat(words).view(index_dtype).view(-1, n), origin[None]])
