"""Reductions of arrays in any layout of memory, at any address.

An array in another order of dimensions has the bits of the contiguous array that lies in memory in the same way. Where
results do not round, those are the bits of every copy."""

import itertools

import pytest
import torch
from common import EACH_DEVICE

from torch_patterns import reduce
from torch_patterns.testing import FLOATS, assert_equal, assert_same_bits
from torch_patterns.testing.reduction import OPS, reduce_reference

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
NAN = float("nan")


def orders_of(x: torch.Tensor):
    """x in every order of dimensions in memory."""
    for order in itertools.permutations(range(x.dim())):
        yield x.permute(order).contiguous().permute(*(order.index(d) for d in range(x.dim())))


def reduce_in_memory_order(x: torch.Tensor, dims: tuple[int, ...], op: str) -> torch.Tensor:
    """Reduces a contiguous copy whose dimensions are in the order of x's memory."""
    order = sorted(range(x.dim()), key=lambda d: -x.stride(d))
    ordered = x.permute(order).contiguous()
    results = reduce(ordered, tuple(order.index(d) for d in dims), op=op, keepdim=True)
    return results.permute(*(order.index(d) for d in range(x.dim()))).squeeze(dims)


def check_memory_order(x: torch.Tensor, dims: tuple[int, ...], op: str):
    torch.set_num_threads(1)
    want = reduce_in_memory_order(x, dims, op)
    for threads in (1, 2) if x.device.type == "cpu" else (1,):
        torch.set_num_threads(threads)
        got = reduce(x, dims, op=op)
        assert got.is_contiguous()
        assert_same_bits(got, want, f"{op} {x.dtype} {tuple(x.shape)} {x.stride()} {dims} {threads} threads")


def test_results_that_do_not_round_are_the_same_in_any_order_of_memory(device):
    """On CUDA, only the bits of NaN may differ."""
    choices = torch.tensor([0.0, 0.5, 1, -1, 2, -2, 3, NAN], device=device)
    numbers = choices[torch.randint(8, (2, 3, 1, 4), generator=torch.Generator().manual_seed(1)).to(device)]
    every_dim = [dims for n in range(1, 5) for dims in itertools.combinations(range(4), n)]
    for dtype in (torch.float32, torch.float16, torch.int16, torch.bool):
        x = numbers.nan_to_num(5).to(dtype) if dtype == torch.int16 else numbers.to(dtype)
        assert_same = assert_equal if device == "cuda" and dtype.is_floating_point else assert_same_bits
        ops = (*OPS[:6], "any", "all", *(() if dtype.is_floating_point else ("bitwise_xor",)))
        for same in orders_of(x):
            for op, dims in itertools.product(ops, every_dim):
                if op.startswith("arg") and len(dims) > 1:
                    continue
                got, want = (reduce(t, dims, op=op, keepdim=len(dims) == 2) for t in (same, x))
                assert got.is_contiguous()
                assert_same(got, want, f"{op} {dtype} {same.stride()} {dims}")
            for op in ("argmax", "argmin"):
                assert_same_bits(reduce(same, None, op=op), reduce(x, None, op=op), f"{op} {dtype} {same.stride()}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int8, torch.bool], ids=str)
def test_images_in_any_order_of_memory(dtype, device):
    """Such as channels_last."""
    x = (torch.rand(2, 17, 18, 20, generator=torch.Generator().manual_seed(3)) * 9).to(dtype).to(device)
    every_dim = [dims for n in range(1, 5) for dims in itertools.combinations(range(4), n)]
    for same in orders_of(x):
        for op, dims in itertools.product(("sum", "max"), every_dim):
            check_memory_order(same, dims, op)
            if op == "max" or not x.is_floating_point():
                assert_same_bits(reduce(same, dims, op=op), reduce(x, dims, op=op), f"{op} {same.stride()} {dims}")
            else:
                bound = 1e-2 if dtype == torch.float16 else 1e-5
                assert torch.allclose(reduce(same, dims).double(), x.double().sum(dims), rtol=bound), f"{dims}"


VIEWS = {  # what is seen of a larger array: slices, every second element, one element or row for all
    "columns": lambda x: x((70, 300))[:, 7:250],
    "few columns": lambda x: x((900, 40))[:, 3:23],
    "every third column": lambda x: x((70, 300))[:, 1::3],
    "every other row": lambda x: x((70, 300))[::2],
    "long rows": lambda x: x((3, 140_001))[:, 1:70_001],
    "every other element": lambda x: x((3, 140_001))[:, ::2],
    "one row": lambda x: x((1, 300)).expand(500, 300),
    "one column": lambda x: x((500, 1)).expand(500, 300),
    "one element": lambda x: x(()).expand(30, 5000),
    "wide columns": lambda x: x((200, 2500))[:, 3:2403],
    "a block": lambda x: x((9, 20, 60))[1:8, 2:19, 5:58],
    "some channels": lambda x: x((4, 9, 30, 40))[:, 2:7],
    "some pixels": lambda x: x((4, 9, 30, 40))[:, :, 3:28, 1:39],
    "colours": lambda x: x((30, 40, 4))[..., :3],
    "one image": lambda x: x((1, 6, 30, 40)).expand(5, 6, 30, 40),
    "pixels of a larger image": lambda x: x((6, 30, 4, 40)).transpose(1, 2)[..., :33],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8], ids=str)
def test_views_give_the_bits_of_a_copy(dtype, view, device):
    """On the CPU, most of them are read where they are."""
    random = torch.Generator().manual_seed(4)
    x = VIEWS[view](lambda shape: (torch.rand(shape, generator=random) * 9 + 0.5).to(dtype).to(device))
    assert not x.is_contiguous()
    order = sorted(range(x.dim()), key=lambda d: -x.stride(d) if 0 not in x.stride() else 0)
    copied = x.permute(order).contiguous().permute(*(order.index(d) for d in range(x.dim())))
    ops = ("sum", "prod", "max", "argmin", "logsumexp") if x.is_floating_point() else ("sum", "min", "argmax", "all")
    dims = [d for n in range(1, x.dim() + 1) for d in itertools.combinations(range(x.dim()), n)]
    for op, dim in itertools.product(ops, dims):
        if op.startswith("arg") and len(dim) > 1:
            continue
        for threads in (1, 2) if device == "cpu" else (1,):
            torch.set_num_threads(threads)
            assert_same_bits(reduce(x, dim, op=op), reduce(copied, dim, op=op), f"{op} {dim} {threads}")


ROUNDING = ("sum", "prod", "mean", "logsumexp")
# Rows that are short, have a rest, or several chunks; one column, a few, and more than a strip has.
TRANSPOSED = [(1, 5), (3, 7), (129, 16), (130, 12), (37, 20), (5, 33), (2100, 17), (1030, 300), (1100, 37), (70, 1037)]
TRANSPOSED += [(260, 4099), (65, 9000), (1, 70003), (2, 70003), (9, 70001), (70003, 2), (70003, 7)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_transposed_arrays(dtype, device):
    for columns, n in TRANSPOSED:
        values = torch.randn(n, columns, generator=torch.Generator().manual_seed(1)).to(device)
        for op, dim in itertools.product(ROUNDING, (0, 1)):
            factors = 1 + values / 2 / n**0.5 if op == "prod" else values
            check_memory_order(factors.to(dtype).t(), (dim,), op)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_permuted_arrays(dtype, device):
    every_dim = [dims for n in range(1, 4) for dims in itertools.combinations(range(3), n)]
    for shape in ((3, 50, 70), (20, 3, 1500), (1030, 2, 33), (2, 3, 30001)):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
        for op, order, dims in itertools.product(ROUNDING, itertools.permutations(range(3)), every_dim):
            factors = 1 + values / 100 if op == "prod" else values
            check_memory_order(factors.to(dtype).permute(order), dims, op)


def test_short_rows_do_not_depend_on_their_number(device):
    """Rows that are reduced side by side have the same bits if one is left alone."""
    for n in (8, 12, 16, 31, 48):
        x = torch.randn(1025, n, generator=torch.Generator().manual_seed(n)).to(device)
        sums = reduce(x, 1)
        for row in (0, 127, 128, 1024):
            assert_same_bits(sums[row], reduce(x[row : row + 1], 1)[0], f"{n} {row}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_columns_that_blocks_share(dtype, device):
    """On CUDA a pair of blocks, a cluster, or many blocks share a column; or one has several."""
    for shape in ((600, 16384), (300, 20000), (512, 2048), (100, 1027), (9000, 40), (70, 40000), (3, 2000, 260)):
        x = (torch.arange(torch.Size(shape).numel()) * 31 % 7 - 3).view(shape).to(device, dtype)
        dim = len(shape) - 2
        got = reduce(x, dim)
        assert_equal(got, x.long().sum(dim).to(got.dtype), shape)
        assert_equal(reduce(x, dim, op="argmax"), x.float().argmax(dim), shape)
        assert_equal(reduce(x, dim, op="max"), x.amax(dim), shape)


@pytest.mark.parametrize("op", ["sum", "prod", "logsumexp"])
def test_bits_do_not_depend_on_the_address(op, device):
    """Nor on whether vectors of neighbouring columns can be loaded: float64 shows the order in which sums are added."""
    for shape, dim, dtype in itertools.product(((700, 20), (3, 900, 8), (40, 33), (5, 1000)), (0, 1), FLOATS):
        x = (torch.rand(shape, dtype=torch.float64) + 0.5).to(device, dtype)
        memory = torch.empty(x.numel() + 1, dtype=dtype, device=device)[1:]
        assert_same_bits(reduce(memory.view(shape).copy_(x), dim, op=op), reduce(x, dim, op=op), (shape, dim, dtype))


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "logsumexp", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_bits_of_rows_do_not_depend_on_their_address(dtype, op, device):
    for shape in ((17,), (256,), (2043,), (2655,), (8193,), (100_001,), (16, 32), (3, 1000), (70, 5000), (1100, 771)):
        x = (torch.rand(shape, generator=torch.Generator().manual_seed(6)) + 0.5).to(device, dtype)
        want = reduce(x, -1, op=op)
        for offset in (1, 2, 3, 4, 7):
            moved = x.new_zeros(x.numel() + offset)[offset:].view(shape).copy_(x)
            assert_same_bits(reduce(moved, -1, op=op), want, f"{op} {dtype} {shape} {offset}")


PARTS = (  # shapes, and the dims that are reduced: kept ones lie between them
    ((5, 7, 33), (0, 2)),
    ((3, 4, 7, 9), (0, 2, 3)),
    ((64, 3, 56, 56), (0, 2, 3)),
    ((2, 2000, 40), (0, 2)),
    ((2, 1, 3, 1, 70_000), (0, 4)),
    ((300, 2, 129), (0, 2)),
    ((40, 8, 8), (0, 2)),  # short parts
    ((300, 3, 20), (0, 2)),
    ((200, 7, 70), (0, 2)),
    ((90, 5, 501), (0, 2)),
    ((400, 3, 7), (0, 2)),
    ((4, 5, 6, 50), (0, 2)),  # a kept dim after them
    ((3, 5, 6, 50), (1, 3)),
    ((4, 100, 40, 20), (0, 2)),
    ((2, 3, 5000, 4), (0, 2)),
    ((3, 64, 11, 37, 12), (1, 3)),
    ((2, 3, 4, 7, 6), (1, 3)),
    ((5, 129, 7, 11), (0, 2, 3)),
    ((3, 40, 9, 30), (1, 3)),
)


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "max", "min", "logsumexp"])
def test_reduced_dims_apart(op, device):
    """Exact integers first; then floats, in other orders of memory too."""
    for shape, dim in PARTS:
        random = torch.Generator().manual_seed(7)
        if op in ("sum", "max", "min"):
            for dtype in (torch.int64, torch.float32, torch.bfloat16, torch.int8, torch.bool):
                x = torch.randint(-2, 3, shape, generator=random).to(dtype)
                want = reduce_reference(x, dim, op, False)
                for layout in (x, x.movedim(1, -1).contiguous().movedim(-1, 1)):
                    assert_equal(reduce(layout.to(device), dim, op=op), want, f"{op} {shape} {dtype}")
        x = torch.rand(shape, generator=random).add(0.5).to(device)
        want = reduce(x, dim, op=op)
        kept = [d for d in range(len(shape)) if d not in dim]
        lines = x.cpu().permute(*kept, *dim).flatten(len(kept)).double()
        near = {"sum": lines.sum(-1), "mean": lines.mean(-1), "max": lines.amax(-1), "min": lines.amin(-1)}
        near |= {"prod": lines.prod(-1), "logsumexp": lines.logsumexp(-1)}
        bound = 1e-2 if op == "prod" else 1e-5
        assert torch.allclose(want.cpu().double(), near[op], rtol=bound, atol=1e-30), f"{op} {shape}"
        for first in range(1, len(shape)):
            moved = x.movedim(first, 0).contiguous().movedim(0, first)
            check_memory_order(moved, dim, op)
            assert torch.allclose(reduce(moved, dim, op=op).cpu().double(), near[op], rtol=bound, atol=1e-30)


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_of_reduced_dims_apart(op, device):
    """Which of several NaNs a maximum returns may depend on the layout of memory."""
    for shape, dim in PARTS:
        random = torch.Generator().manual_seed(8)
        bits = torch.randint(0x7FC00000, 0x7FC0FFFF, shape, generator=random, dtype=torch.int32)
        x = bits.view(torch.float32).where(bits % 7 == 0, torch.tensor(1.0)).to(device)
        want = reduce(x, dim, op=op)
        for first in range(1, len(shape)):
            moved = x.movedim(first, 0).contiguous().movedim(0, first)
            assert_equal(reduce(moved, dim, op=op), want, f"{op} {shape} {first}")
