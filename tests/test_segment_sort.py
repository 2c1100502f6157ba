"""What is special to sorts of segments: lengths, offsets, and the ways in which long ones are sorted."""

import itertools

import numpy as np
import pytest
import torch
from common import EACH_DEVICE
from test_sort import ON_CHIP

from torch_patterns import registry, segment_sort, segment_sort_pairs
from torch_patterns.testing import assert_equal, assert_same_bits
from torch_patterns.testing.sort import stable_order

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)


def algorithms(device: str) -> list[str]:
    return ["auto", *registry.algorithms("segment_sort", device)]


def test_segments_never_mix(device):
    """Every length from 0 to 65, those around the classes, then one long segment and a thousand of one key."""
    edges = torch.tensor([m + more for m in ON_CHIP if m > 65 for more in (-1, 0, 1)])
    lengths = torch.cat([torch.arange(66), edges, torch.tensor([40_000]), torch.ones(1000).long()])
    lengths = lengths[torch.randperm(len(lengths), generator=torch.Generator().manual_seed(6))]
    offsets = torch.cat([torch.zeros(1).long(), lengths.cumsum(0)])
    n = int(offsets[-1])
    segment = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    keys = torch.randint(-100, 100, (n,), generator=torch.Generator().manual_seed(7))
    want = torch.from_numpy(np.lexsort([keys.numpy(), segment.numpy()]))
    for algorithm, dtype in itertools.product(algorithms(device), (torch.int32, torch.int64)):
        where = offsets.to(dtype).to(device)
        got, moved = segment_sort_pairs(keys.to(device), torch.arange(n, device=device), where, algorithm=algorithm)
        assert_equal(got, keys[want], algorithm)
        assert_equal(moved, want, algorithm)
        assert_equal(segment_sort(keys.to(device), where, algorithm=algorithm), keys[want], algorithm)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int64, torch.float32])
def test_segments_beyond_one_block(dtype, descending, device):
    """CUDA divides a segment into buckets by its highest digits, unless too many keys have the same ones."""
    lengths = [8193, 3, 30_000, 0, 17, 100_000, 8192, 9, 12_000, 0, 250_000, 1, 8700, 65_536, 2]
    random = torch.Generator().manual_seed(12)
    parts = {
        "different": lambda n: torch.randint(-(2**31), 2**31, (n,), generator=random),
        "few": lambda n: torch.randint(-3, 4, (n,), generator=random),
        "small": lambda n: torch.randint(0, 2**20, (n,), generator=random),
        "equal": lambda n: torch.full((n,), 7),
        "ascending": lambda n: torch.linspace(-(2**31), 2**31 - 1, n, dtype=torch.float64).long(),
        "one": lambda n: parts["different"](n) * (torch.arange(n) % 9 == 0),
    }
    mixed = itertools.cycle(parts.values())
    for name, part in [*parts.items(), ("mixed", lambda n: next(mixed)(n))]:
        keys = [part(n).int().to(dtype) for n in lengths]
        want = torch.cat([k[stable_order(k, descending=descending)] for k in keys])
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        for where in (offsets.int(), offsets):
            got = segment_sort(torch.cat(keys).to(device), where.to(device), descending=descending)
            assert_same_bits(got.cpu(), want, name)


def test_bad_offsets(device):
    keys = torch.ones(5, device=device)
    for values, error in (((0, 3, 2, 5), ValueError), ((0, 9, 5), IndexError), ((-1, 5), IndexError)):
        with pytest.raises(error, match=r"segment_sort: offsets\["):
            segment_sort(keys, torch.tensor(values, device=device), validate=True)
    assert segment_sort(keys, torch.tensor([0, 5], device=device)).tolist() == [1] * 5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.int64])
def test_cuda_copies_keys_that_lie_in_no_segment(dtype, device):
    """The CPU refuses offsets that do not span the keys."""
    n = 5000
    keys, values = torch.randint(0, 100, (n,)).to(dtype), torch.arange(n)
    for first, last in ((1, n), (0, n - 1), (700, 4000), (0, 0), (n, n), (4999, n)):
        ends = torch.randint(first, last + 1, (40,)).sort()[0]
        offsets = torch.cat([torch.tensor([first]), ends, torch.tensor([last])])
        if device == "cpu":
            with pytest.raises(ValueError, match=r"segment_sort: offsets"):
                segment_sort(keys, offsets)
            continue
        segment = torch.bucketize(values, offsets, right=True)  # 0 before all segments
        ranks = torch.where((values >= first) & (values < last), keys.double(), values.double())
        order = torch.from_numpy(np.lexsort([ranks.numpy(), segment.numpy()]))
        for algorithm in algorithms(device):
            where = f"{algorithm} {first} {last}"
            got = segment_sort_pairs(keys.to(device), values.to(device), offsets.to(device), algorithm=algorithm)
            assert_equal(got, (keys[order], order), where)
            assert_equal(segment_sort(keys.to(device), offsets.to(device), algorithm=algorithm), keys[order], where)
