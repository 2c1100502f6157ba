"""The ways in which the CPU sums the rows of a CSR matrix (csrc/sparse/csr/row_sums.h)."""

import pytest
import torch

from torch_patterns import sparse
from torch_patterns.sparse import spmv
from torch_patterns.testing import assert_equal, assert_same_bits


def many_entries(longest: int, index: torch.dtype, consecutive: bool) -> sparse.CSR:
    """1.6 million entries, more than caches hold, in rows of 0 to `longest`, of -1, 0 and 1.

    If `consecutive`, so are the columns of rows. In every fifth row, two columns in the middle are exchanged, which the
    first and the last one do not tell.
    """
    generator = torch.Generator().manual_seed(longest)
    rows = 2 * 1_600_000 // longest
    lengths = torch.randint(longest + 1, (rows,), generator=generator)
    ptrs = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    row = torch.repeat_interleave(torch.arange(rows), lengths)
    within = torch.arange(row.numel()) - ptrs[row]
    first = torch.randint(rows - longest + 1, (rows,), generator=generator)
    if consecutive:
        n = lengths[row]
        swapped = torch.where(within == n // 2, n // 2 - 1, torch.where(within == n // 2 - 1, n // 2, within))
        col = first[row] + torch.where((row % 5 == 0) & (n >= 4), swapped, within)
    else:
        col = torch.randint(rows, row.shape, generator=generator)
    values = torch.randint(-1, 2, row.shape, generator=generator)
    return sparse.CSR(ptrs.to(index), col.to(index), values, (rows, rows))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("longest, consecutive", [(40, False), (40, True), (8, False)])
def test_csr_in_each_way_of_summing_its_rows(longest, consecutive, index):
    """Beyond the cache and in it, of long and short rows, with consecutive columns; bit by bit, by any threads."""
    large = many_entries(longest, index, consecutive)
    few = 2_000
    ptrs = large.row_ptrs[: few + 1]
    small = sparse.CSR(ptrs, large.col_idx[: ptrs[-1]], large.values[: ptrs[-1]], (few, large.shape[1]))
    x = torch.randint(-1, 2, (large.shape[1],), generator=torch.Generator().manual_seed(1))
    for a in (small, large):
        row = torch.repeat_interleave(torch.arange(a.shape[0]), a.row_ptrs.diff())
        want = torch.zeros(a.shape[0], dtype=torch.int64).index_add_(0, row, a.values * x[a.col_idx])
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32):
            assert_equal(spmv(a._replace(values=a.values.to(dtype)), x.to(dtype)), want.to(dtype), dtype)
        noise = a._replace(values=torch.randn(a.values.shape)), torch.randn(x.shape)
        torch.set_num_threads(1)
        one = spmv(*noise)
        torch.set_num_threads(2)
        assert_same_bits(spmv(*noise), one)
        for at, column in ((0, a.shape[1]), (a.nnz // 2, -1), (a.nnz // 3, 2**31 - 1), (a.nnz - 1, -(2**31))):
            wrong = a.col_idx.clone()
            wrong[at] = column
            with pytest.raises(IndexError, match=rf"col_idx\[{at}\] is {column}, .*expected 0 to {a.shape[1] - 1}"):
                spmv(a._replace(col_idx=wrong, values=a.values.float()), x.float())
    for a in (small, large):
        with pytest.raises(IndexError, match=r"col_idx\[\d+\] is "):
            spmv(a._replace(values=a.values.float(), shape=(a.shape[0], 0)), x[:0].float())
