"""Plans in stages: the way from the storage of the values to the order of a plan without random access to memory.

csrc/sparse/csr/staged_tiles.cuh goes that way. Entries are cut into tiles in the order of storage, and into bins, as
long, in the order of the plan. Between the two stages those of a tile lie in the order of their bins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.sorting import argsort, sort, sort_pairs
from torch_patterns.sparse.containers import BIN_ENTRIES

SIZE = BIN_ENTRIES  # of a tile, too
MANY = 1 << 24  # more values of 4 bytes than caches hold


def pay(perm: Tensor) -> bool:
    """Whether a product through `perm` is faster in stages (waits for the device)."""
    n = perm.shape[0]
    if not perm.is_cuda or not MANY <= n < 1 << 31 or torch.compiler.is_compiling():
        return False
    if torch.cuda.is_current_stream_capturing():
        return False
    bins = perm.narrow(0, 0, n - n % SIZE).view(-1, SIZE)
    # Where the entries of a bin are close together in storage, as in a banded matrix, caches serve.
    return bool((bins.amax(1) - bins.amin(1)).float().mean() > 8 * SIZE)


def stages(perm: Tensor, other: Tensor) -> Tensor:
    """What a plan (perm, other) has behind these two rows, [3 or more, entries]: as raw words,

    - local (uint16, by bins, and in them by storage): the position of each entry in its bin, in the order of the plan,
    - source (uint16, in the order between the stages): the position of each entry in its tile,
    - position (uint32, by bins, and in them by storage): the position of each entry between the stages;

    and `other` in the order of storage.
    """
    n, kind = perm.shape[0], perm.dtype
    padded = torch.nn.functional.pad(perm, (0, -n % SIZE), value=n).view(-1, SIZE)
    by_bin, local = (x.flatten()[:n] for x in sort(padded, 1, index_dtype=kind))
    tiles = by_bin // SIZE
    source = sort_pairs(tiles, by_bin)[1] % SIZE
    position = argsort(argsort(tiles, index_dtype=kind), index_dtype=kind)
    words = [
        x.to(d).view(torch.uint8) for x, d in ((local, torch.int16), (source, torch.int16), (position, torch.int32))
    ]
    return torch.cat([torch.cat(words).view(kind).view(-1, n), sort_pairs(perm, other)[1][None]])
