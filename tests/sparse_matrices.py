"""Sparse matrices that several test files use."""

import pytest
import scipy.sparse
import torch

import torch_patterns as tp
from torch_patterns import sparse
from torch_patterns.sparse import FORMATS
from torch_patterns.testing.sparse_formats import index_dtype

each_format = pytest.mark.parametrize("form", FORMATS)
BOOK = tp.coo(  # Fig. 14.1 to 14.3
    torch.tensor([0, 0, 1, 1, 1, 2, 2, 3]),
    torch.tensor([0, 1, 0, 2, 3, 1, 2, 3]),
    torch.tensor([1.0, 7, 5, 3, 9, 2, 8, 6]),
    (4, 4),
)


def random_matrix(rows, cols, n, dtype=torch.float64, index=torch.int64, seed=0, device="cpu"):
    """A COO matrix of small integers in any order, with duplicates, explicit zeros and empty rows."""
    random = torch.Generator().manual_seed(seed)
    row = torch.randint(0, max(rows, 1), (n,), generator=random) // 2 * 2 % max(rows, 1)
    col = torch.randint(0, max(cols, 1), (n,), generator=random)
    values = torch.randint(-3, 4, (n,), generator=random).to(dtype)
    return tp.coo(row.to(index), col.to(index), values, (rows, cols)).to(device)


def dense(a) -> torch.Tensor:
    """By scipy."""
    rows, cols, values = (x.detach().cpu().numpy() for x in a[:3])
    return torch.from_numpy(scipy.sparse.coo_matrix((values, (rows, cols)), shape=a.shape).toarray())


def with_values(a, values):
    """`a` with flat values."""
    fields, start = {}, 0
    for name in sparse.containers.value_fields(a):
        like = getattr(a, name)
        fields[name] = values[start : start + like.numel()].view(like.shape)
        start += like.numel()
    return a._replace(**fields)


def with_indices(a, index):
    """`a` with indices of this dtype."""
    form, names = sparse.containers.format_of(a), sparse.containers.index_fields(a)
    return a._replace(**{name: getattr(a, name).to(index_dtype(form, name, index)) for name in names})


def flat(a) -> torch.Tensor:
    return torch.cat([getattr(a, name).reshape(-1) for name in sparse.containers.value_fields(a)])


def valid_entries(a) -> torch.Tensor:
    """Which of the flat values are entries."""
    return torch.cat(
        [
            getattr(a, n).reshape(-1) >= 0
            for n in a._fields
            if n in ("col_idx", "ell_col_idx", "coo_col_idx", "row_idx")
        ][-len(sparse.containers.value_fields(a)) :]
    )
