"""Variances of segments and of groups: they keep their digits, and leak no NaN."""

import itertools

import pytest
import torch
from common import EACH_DEVICE

from torch_patterns import group_reduce, registry, segment_reduce
from torch_patterns.testing import assert_equal, assert_within
from torch_patterns.testing.segmented import reduce_reference

INF, NAN = float("inf"), float("nan")
each_device = pytest.mark.parametrize("device", EACH_DEVICE)


def reductions(device: str) -> list[str]:
    return ["auto", *registry.algorithms("segment_reduce", device)]


@each_device
def test_variances_keep_their_digits_far_from_zero(device):
    """Squares of 10^6 would leave float32 no digit of a variance of about 1."""
    lengths = torch.tensor([1, 2, 3, 40, 700, 5000, 0, 9])
    o = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    x = 1e6 + torch.randint(-2, 3, (int(o[-1]), 2), generator=torch.Generator().manual_seed(1)).float()
    want = reduce_reference(x.double(), o, "var")
    for algorithm, width in itertools.product(reductions(device), (1, 2)):
        values, known = x[:, :width].to(device), want[:, :width].isfinite()
        groups = torch.arange(len(lengths)).repeat_interleave(lengths).to(device)
        for y in (
            segment_reduce(values, o.to(device), op="var", algorithm=algorithm).cpu().double(),
            group_reduce(values, groups, len(lengths), op="var", algorithm=algorithm).cpu().double(),
        ):
            assert torch.equal(y.isfinite(), known), algorithm
            limits = torch.full_like(want[:, :width], 1e-5)
            if algorithm == "atomic":  # squares are added in any order, with a rounding each
                limits = 2.0**-23 * lengths[:, None] * want[:, :width]
            assert ((y - want[:, :width]).abs() <= limits)[known].all(), algorithm


@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", [1, 3])
def test_variances_of_extreme_values(width, dtype, device):
    """Equal values have no variance, however large; an infinity or NaN makes that of its own segment NaN, wherever it
    is."""
    large = torch.finfo(dtype).max * 0.9
    rows = [[large] * 300, [0.1] * 77, [INF, INF], [NAN, 1.0], [1.0, 5.0], [INF, -INF], [-INF], [large, large]]
    want = [0, 0, NAN, NAN, 8, NAN, NAN, 0]
    for n in (2, 3, 9, 40, 300):
        for at in {0, 1, n // 2, n - 1}:
            rows.append([float(i % 4) for i in range(n)])
            rows[-1][at] = INF
            want.append(NAN)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    o, index = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), torch.arange(len(rows), device=device)
    index = index.repeat_interleave(lengths)
    x = torch.tensor(sum(rows, []), device=device, dtype=dtype)[:, None].expand(-1, width).contiguous()
    want = torch.tensor(want, dtype=torch.float64)[:, None].expand(-1, width)
    roots, ulp = want.sqrt(), want.sqrt().nan_to_num() * torch.finfo(dtype).eps
    for algorithm in reductions(device):
        assert_equal(segment_reduce(x, o, op="var", algorithm=algorithm), want, algorithm)
        assert_within(segment_reduce(x, o, op="std", algorithm=algorithm), roots, ulp, algorithm)
        assert_equal(group_reduce(x, index, len(rows), op="var", algorithm=algorithm), want, algorithm)
        assert_within(group_reduce(x, index, len(rows), op="std", algorithm=algorithm), roots, ulp, algorithm)
