"""What is special to sorts: stability, NaN of both signs, signed zeros, bits, unsigned dtypes, values of every size."""

import itertools

import numpy as np
import pytest
import torch
from common import EACH_DEVICE

from torch_patterns import (
    argsort,
    lexsort,
    registry,
    segment_sort,
    segment_sort_pairs,
    sort,
    sort_keys,
    sort_pairs,
)
from torch_patterns.testing import FLOATS, assert_equal, assert_same_bits
from torch_patterns.testing.sort import stable_order

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
INTEGER_OF = {2: torch.int16, 4: torch.int32, 8: torch.int64}
UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def algorithms(device: str) -> list[str]:
    return ["auto", *registry.algorithms("sort", device)]


def of_bits(dtype: torch.dtype, *bits: int) -> torch.Tensor:
    integer = INTEGER_OF[dtype.itemsize]
    wrapped = [b - (1 << 8 * dtype.itemsize) if b >> (8 * dtype.itemsize - 1) else b for b in bits]
    return torch.tensor(wrapped, dtype=integer).view(dtype)


def nans(dtype: torch.dtype) -> list[int]:
    """NaN of both signs, quiet and signalling, with several payloads."""
    infinity = int(torch.tensor(float("inf"), dtype=dtype).view(INTEGER_OF[dtype.itemsize]))
    sign = 1 << (8 * dtype.itemsize - 1)
    return [s | infinity | payload for payload in (1, 2, 3, 5) for s in (sign, 0)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_of_either_sign_is_the_greatest_and_keeps_its_bits(dtype, device):
    numbers = torch.tensor([float("inf"), 1.5, 0.0, -2.0, float("-inf")], dtype=dtype)
    x = torch.cat([of_bits(dtype, *nans(dtype)), numbers, of_bits(dtype, *nans(dtype)[::-1])])
    for repeats in (1, 30):  # a few keys, and more than a tile of the smallest
        keys = x.repeat(repeats)
        n = len(keys)
        position = torch.arange(n)
        is_nan = keys.isnan()
        values = torch.where(is_nan, torch.full((), 100.0), keys.float().nan_to_num(0, 50, -50))
        for descending, algorithm in itertools.product((False, True), algorithms(device)):
            want = torch.tensor(sorted(range(n), key=lambda i: -values[i] if descending else values[i]))
            got, order = sort(keys.to(device), descending=descending, algorithm=algorithm)
            assert_equal(order, want, algorithm)
            assert_same_bits(got.cpu(), keys[want], algorithm)
            alone = sort_keys(keys.to(device), descending=descending, algorithm=algorithm)
            assert_same_bits(alone.cpu(), keys[want], algorithm)
            moved = sort_pairs(keys.to(device), position.to(device), descending=descending, algorithm=algorithm)
            assert_equal(moved[1], want, algorithm)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_signed_zeros_are_equal_and_keep_their_order(dtype, device):
    x = torch.tensor([0.0, -0.0, 1.0, -0.0, 0.0, -1.0, -0.0], dtype=dtype)
    for algorithm in algorithms(device):
        assert sort(x.to(device), algorithm=algorithm)[1].tolist() == [5, 0, 1, 3, 4, 6, 2]
        got = sort_keys(x.to(device), algorithm=algorithm)
        assert_same_bits(got.cpu(), x[[5, 0, 1, 3, 4, 6, 2]], algorithm)
        assert sort(x.to(device), descending=True, algorithm=algorithm)[1].tolist() == [2, 0, 1, 3, 4, 6, 5]


@pytest.mark.parametrize("n", [3, 129, 2048, 4999])
def test_stable_in_both_directions(n, device):
    x = torch.arange(n) % 2
    want = torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2)])
    swapped = torch.cat([torch.arange(1, n, 2), torch.arange(0, n, 2)])
    for algorithm, dtype in itertools.product(algorithms(device), (torch.bool, torch.uint8, torch.float32)):
        keys = x.to(dtype).to(device)
        assert_equal(argsort(keys, algorithm=algorithm), want, f"{algorithm} {dtype}")
        assert_equal(argsort(keys, descending=True, algorithm=algorithm), swapped, f"{algorithm} {dtype}")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_the_whole_range_of_integers(dtype, device):
    info = torch.iinfo(dtype)
    x = torch.tensor([0, info.max, -1, info.min, 1, info.max - 1, info.min + 1], dtype=dtype)
    for algorithm in algorithms(device):
        assert sort_keys(x.to(device), algorithm=algorithm).tolist() == sorted(x.tolist()), algorithm
        got = sort_keys(x.to(device), descending=True, algorithm=algorithm)
        assert got.tolist() == sorted(x.tolist(), reverse=True), algorithm


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_unsigned_integers(dtype, device):
    signed = torch.tensor([0, -1, 5, 1, -2, 5], dtype=UNSIGNED[dtype])  # the sign bit is the highest of all
    x = signed.view(dtype).to(device)
    for algorithm in algorithms(device):
        values, order = sort(x, algorithm=algorithm)
        assert values.dtype == dtype and order.tolist() == [0, 3, 2, 5, 4, 1], algorithm
        assert_same_bits(values.cpu(), signed[[0, 3, 2, 5, 4, 1]].view(dtype), algorithm)
        assert_same_bits(sort_keys(x, algorithm=algorithm), values, algorithm)
        assert argsort(x, descending=True, algorithm=algorithm).tolist() == [1, 4, 2, 5, 3, 0], algorithm
    assert lexsort([x, x]).tolist() == [0, 3, 2, 5, 4, 1]


VALUES = [torch.bool, torch.uint8, torch.bfloat16, torch.uint16, torch.int32, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_values_of_any_dtype(dtype, device):
    random = torch.Generator().manual_seed(2)
    for keys in (torch.randint(0, 9, (700,), generator=random), torch.rand(700, generator=random)):
        bytes_ = torch.randint(0, 256, (700 * dtype.itemsize,), generator=random).to(torch.uint8)
        values = (bytes_ % 2).bool() if dtype == torch.bool else bytes_.view(dtype)
        rows = np.frombuffer(values.contiguous().view(torch.uint8).numpy().tobytes(), np.uint8).reshape(700, -1)
        want = torch.from_numpy(rows[stable_order(keys).numpy()].copy())
        for algorithm in algorithms(device):
            got = sort_pairs(keys.to(device), values.to(device), algorithm=algorithm)[1]
            assert got.dtype == dtype
            assert_equal(got.cpu().view(torch.uint8).reshape(700, -1), want, f"{algorithm} {dtype}")


def test_bits_of_the_image(device):
    """Bit 0 is the least, the sign is flipped, descending complements; outside the window input order holds."""
    x = torch.tensor([5, 2, -3, 7, -8, 2], dtype=torch.int8, device=device)
    for algorithm in algorithms(device):
        by = lambda **bits: argsort(x, algorithm=algorithm, **bits).tolist()  # noqa: B023, E731
        assert by(end_bit=1) == [1, 4, 5, 0, 2, 3], algorithm
        assert by(begin_bit=7) == [2, 4, 0, 1, 3, 5], algorithm
        assert by(begin_bit=7, descending=True) == [0, 1, 3, 5, 2, 4], algorithm
        assert by(begin_bit=3, end_bit=3) == list(range(6)), algorithm
        assert by(begin_bit=8) == list(range(6)), algorithm
        assert by(begin_bit=0, end_bit=8) == [4, 2, 1, 5, 0, 3], algorithm


def test_two_windows_make_a_sort(device):
    x = torch.randn(3000, generator=torch.Generator().manual_seed(1)).to(device)
    for algorithm in registry.algorithms("sort", device)[1:8]:
        halves = sort_keys(sort_keys(x, end_bit=13, algorithm=algorithm), begin_bit=13, algorithm=algorithm)
        assert_same_bits(halves, sort_keys(x), algorithm)


def test_argsort_of_argsort_is_the_inverse(device):
    x = torch.randint(0, 50, (4, 999), generator=torch.Generator().manual_seed(4)).to(device)
    order = argsort(x)
    assert_equal(argsort(order).gather(-1, order), torch.arange(999).expand(4, 999))


def test_gradients_go_back_to_where_values_came_from(device):
    x = torch.tensor([3.0, 1.0, 2.0, 1.0], device=device, requires_grad=True)
    weights = torch.tensor([1.0, 10.0, 100.0, 1000.0], device=device)
    for y in (sort(x)[0], sort_keys(x), sort_pairs(x, x.detach())[0], segment_sort(x, torch.tensor([0, 4]).to(device))):
        assert torch.autograd.grad(y, x, weights)[0].tolist() == [1000, 1, 100, 10]
    keys = torch.tensor([3, 1, 2, 1], device=device)
    y = sort_pairs(keys, x, descending=True)[1]
    assert torch.autograd.grad(y, x, weights)[0].tolist() == [1, 100, 10, 1000]
    low = sort(x, index_dtype=torch.int32)[0]
    assert torch.autograd.grad(low, x, weights)[0].tolist() == [1000, 1, 100, 10]
    z = torch.tensor([1j, 2j, 3j, 4j], device=device, requires_grad=True)
    y = sort_pairs(keys, z)[1]
    assert torch.autograd.grad(y, z, torch.complex(weights, weights * 0))[0].real.tolist() == [1000, 1, 100, 10]


def test_complex_values_are_differentiable_in_both_modes(device):
    keys = torch.tensor([3, 1, 2, 1], device=device)
    z = torch.tensor([1j, 2, 3j, 4], device=device)
    weights = torch.tensor([1.0, 10.0, 100.0, 1000.0], device=device)
    offsets = torch.tensor([0, 4], device=device)
    for f in (lambda z: sort_pairs(keys, z)[1], lambda z: segment_sort_pairs(keys, z, offsets)[1]):
        got = torch.func.grad(lambda z: (f(z).imag * weights).sum())(z)  # noqa: B023
        assert got.imag.tolist() == [1000, 1, 100, 10] and not got.real.any()
        assert torch.func.jvp(f, (z,), (1j * z,))[1].tolist() == f(1j * z).tolist()


def test_keys_may_change_before_the_backward_pass(device):
    """As those of torch.sort: the gradient needs the indices alone."""
    offsets = torch.tensor([0, 4], device=device)
    sorts = (
        lambda x: sort(x)[0],
        sort_keys,
        lambda x: sort_pairs(x, x)[1],
        lambda x: segment_sort(x, offsets),
        lambda x: segment_sort_pairs(x, x, offsets)[1],
    )
    for f in sorts:
        x = torch.tensor([3.0, 1.0, 2.0, 1.0], device=device, requires_grad=True)
        changing = x * 1
        y = f(changing)
        changing.zero_()
        assert torch.autograd.grad(y, x, torch.arange(4.0, device=device))[0].tolist() == [3, 0, 2, 1]


def test_narrow_indices_of_sizes_that_only_the_data_knows(device):
    """int32 is refused where a dimension is known to be too long, not where its size is unknown."""

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def f(x):
        kept = x[x > 0]
        return *sort(kept, index_dtype=torch.int32), argsort(kept, index_dtype=torch.int32), sort_pairs(kept, kept)[1]

    x = torch.tensor([3.0, -1.0, 1.0, 2.0], device=device, requires_grad=True)
    values, indices, order, moved = f(x)
    assert values.tolist() == moved.tolist() == [1, 2, 3] and indices.tolist() == order.tolist() == [1, 2, 0]
    (values * moved).sum().backward()
    assert x.grad.tolist() == [6, 0, 2, 4]
    for op in (sort, argsort):
        with pytest.raises(ValueError, match="index_dtype int32 does not hold the 4294967296 positions"):
            op(torch.empty(2**32, device="meta"), index_dtype=torch.int32)


@pytest.mark.parametrize("shape", [(5, 7, 2049), (7, 2049, 5), (2049, 5, 7)], ids=str)
def test_every_dimension(shape, device):
    x = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(3)).to(torch.int16)
    for view in (x, x.permute(2, 0, 1)):
        for dim in range(-3, 3):
            values, order = sort(view.to(device), dim)
            want = stable_order(view, dim)
            assert_equal(order, want)
            assert_equal(values, view.gather(dim, want))


@pytest.mark.parametrize("shape", [(70_000, 3), (3, 70_000)], ids=str)
def test_many_rows(shape, device):
    x = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(3)).float()
    for dim in (0, 1):
        assert_equal(sort(x.to(device), dim)[1], stable_order(x, dim))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, *UNSIGNED, *FLOATS], ids=str)
def test_many_short_rows_of_keys_alone(dtype, device):
    """Rows of every length around powers of two, as many as fill vectors and some more."""
    torch.manual_seed(7)
    signed = UNSIGNED.get(dtype, dtype)
    for n in (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 128, 129, 255, 256, 257, 1000, 1024, 1025):
        for rows in (1, 3, 4, 5, 8, 16, 37):
            for most in (2, 30_000):
                x = torch.randint(-most, most, (rows, n))
                x = x[:, torch.randperm(n)] if n % 2 else x.sort(1, descending=True)[0]
                x = x.to(signed).view(dtype).to(device)
                for descending in (False, True):
                    keys = torch.from_numpy(np.sort(x.cpu().numpy(), 1)) if dtype in UNSIGNED else x.cpu().sort(1)[0]
                    want = keys.view(signed).flip(1) if descending else keys.view(signed)
                    got = sort_keys(x, dim=1, descending=descending).cpu()
                    assert torch.equal(got.view(signed), want), (rows, n, descending)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.float32], ids=str)
def test_many_long_rows_of_keys_alone(dtype, device):
    """Of lengths around powers of two and between them, as networks take them and beyond."""
    torch.manual_seed(8)
    few = [(40, n) for n in (1100, 1536, 2047, 2049, 3000, 5000, 8192, 8193, 20_000, 65_536, 65_537)]
    for rows, n in [*few, (270, 2048), (270, 3001), (270, 8191)]:
        x = torch.randint(-30_000, 30_000, (rows, n)).to(dtype)
        for descending in (False, True):
            want = x.sort(1, descending=descending)[0]
            assert torch.equal(sort_keys(x.to(device), dim=1, descending=descending).cpu(), want), (n, descending)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64], ids=str)
def test_single_arrays_of_keys_alone(dtype, device):
    """Of every length around what fills vectors, and around the most that a network takes; many keys or few."""
    random = torch.Generator().manual_seed(9)
    sizes = (21, 32, 33, 63, 65, 100, 129, 511, 513, 1025, 1500, 3000, 4097, 16_384, 16_385, 65_535, 65_537, 150_000)
    for n in sizes:
        for most in (3, 2**12, 2**31):
            x = torch.randint(-most, most, (n,), generator=random).to(dtype)
            for descending in (False, True):
                want = x.sort(descending=descending)[0]
                assert torch.equal(sort_keys(x.to(device), descending=descending).cpu(), want), (n, most, descending)
    lengths = torch.tensor([0, 21, 0, 64, 1000, 3, 70_000, 15])
    x = torch.randint(-(2**31), 2**31, (int(lengths.sum()),), generator=random).to(dtype)
    got = segment_sort(x.to(device), lengths.cumsum(0).to(device)).cpu()
    for part, sorted_part in zip(x.split(lengths.tolist()), got.split(lengths.tolist()), strict=True):
        assert torch.equal(sorted_part, part.sort()[0])


def test_short_rows_with_nan_and_signed_zeros(device):
    """Keys that only their bits tell apart keep their order, whichever rows hold them."""
    x = torch.randint(-3, 4, (50, 100)).float()
    x[7, 5:90:3] = -0.0
    x[11, ::9] = torch.nan
    x[11, 1::9] = -torch.nan
    want = sort_keys(x, dim=1, algorithm="sequential")
    got = sort_keys(x.to(device), dim=1).cpu()
    assert torch.equal(got.view(torch.int32), want.view(torch.int32))
    window = torch.randint(0, 2**20, (40, 60), dtype=torch.int32)
    got = sort_keys(window.to(device), dim=1, begin_bit=4, end_bit=9).cpu()
    assert torch.equal(got, sort_keys(window, dim=1, begin_bit=4, end_bit=9, algorithm="sequential"))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.bfloat16, torch.float32], ids=str)
def test_rows_with_payloads(dtype, device):
    """Positions and values of every size, where words hold keys with positions or values, and where they do not."""
    torch.manual_seed(9)
    for rows, n in ((40, 100), (9, 1025), (3, 4100), (2, 17_000), (1, 66_000)):
        x = torch.randint(-60, 60, (rows, n)).to(dtype)
        if dtype.is_floating_point:
            x[:, 2::7], x[:, 3::9], x[0, ::50] = 0.0, -0.0, torch.nan
        order = stable_order(x, 1)
        sorted_, indices = sort(x.to(device), 1, index_dtype=torch.int32)
        assert_equal(indices, order.int())
        assert_equal(argsort(x.to(device), 1, index_dtype=torch.int64), order)
        assert_same_bits(sorted_.cpu(), sort(x, 1, algorithm="sequential")[0])
        for value in (torch.int16, torch.float32, torch.int64, torch.complex128):
            values = torch.arange(rows * n).view(rows, n).to(value)
            assert_equal(sort_pairs(x.to(device), values.to(device), 1)[1], values.gather(1, order))
            narrow = sort_pairs(x.to(device), values.to(device), 1, begin_bit=2, end_bit=5)
            want = sort_pairs(x, values, 1, begin_bit=2, end_bit=5, algorithm="sequential")
            assert_same_bits(narrow[0].cpu(), want[0])
            assert_equal(narrow[1], want[1])


def test_pairs_need_values(device):
    """torch passes None for a tensor on to the operator, which has a form without values inside."""
    for requires_grad in (False, True):
        keys = torch.ones(3, device=device, requires_grad=requires_grad)
        for function in (sort_pairs, torch.ops.torch_patterns.sort_pairs):
            with pytest.raises(TypeError, match="sort_pairs: values must be a tensor, got NoneType"):
                function(keys, None)


def test_lexsort_as_numpy(device):
    random = torch.Generator().manual_seed(5)
    last, middle = (torch.randint(0, 4, (6, 500), generator=random) for _ in range(2))
    first = torch.rand(6, 500, generator=random)
    for dim in (0, 1):
        want = torch.from_numpy(np.lexsort([first.numpy(), middle.numpy(), last.numpy()], axis=dim))
        assert_equal(lexsort([k.to(device) for k in (first, middle, last)], dim), want)
    stacked = torch.stack([middle, last]).to(device)
    assert_equal(lexsort(stacked, index_dtype=torch.int32), torch.from_numpy(np.lexsort(stacked.cpu().numpy())))
    with pytest.raises(ValueError, match="lexsort: .*one"):
        lexsort([])
    for wrong in (None, 3, np.ones((2, 3))):
        with pytest.raises(TypeError, match="lexsort: keys must be a tensor"):
            lexsort(wrong)
    with pytest.raises(ValueError, match="lexsort: keys must be tensors.*scalar"):
        lexsort(torch.tensor(1.0, device=device))
    with pytest.raises(RuntimeError, match=r"lexsort: keys\[0\] has shape \[6, 500\], keys\[2\] has \[6, 499\]"):
        lexsort([first, middle, last[:, 1:]])


# On CUDA: what a few lanes, a warp, and blocks hold, and what takes two tiles.
ON_CHIP = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 8448)


@pytest.mark.parametrize("rows", [1, 700], ids=str)
def test_rows_of_every_class(rows, device):
    random = torch.Generator().manual_seed(8)
    for n in (m + more for m in ON_CHIP for more in (0, 1) if m * rows < 2**20):
        x = torch.randint(-(2**31), 2**31, (rows, n), generator=random).int()
        for keys in (x, x.view(torch.float32), (x % 7).long()):
            for descending in (False, True):
                want = stable_order(keys, descending=descending)
                got, order = sort(keys.to(device), descending=descending)
                assert_equal(order, want, f"{n} {keys.dtype}")
                assert_same_bits(got.cpu(), keys.gather(1, want), f"{n} {keys.dtype}")
                alone = sort_keys(keys.to(device), descending=descending)
                assert_same_bits(alone.cpu(), got.cpu(), f"{n} {keys.dtype}")


@pytest.mark.parametrize("descent", [None, 0, 5_000, 40_000, 99_997], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_keys_in_order_but_for_one(descent, descending, device):
    """Keys that are in order may take fewer passes; one that is not, wherever it stands, must be seen."""
    x = torch.arange(100_000, dtype=torch.int32) // 3 - 7_000
    if descending:
        x = x.flip(0)
    if descent is not None:
        x[descent] = x[descent + 1] + (-1 if descending else 1)
    order = stable_order(x, descending=descending)
    keys, index = sort(x.to(device), descending=descending)
    assert_equal(keys, x[order], "keys")
    assert_equal(index, order, "index")
    rows = torch.stack([x, x.sort(descending=descending).values])
    assert_equal(sort_keys(rows.to(device), descending=descending), rows.sort(descending=descending).values, "rows")


@pytest.mark.parametrize("n", [50, 300, 9_000, 300_001])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32], ids=str)
def test_keys_that_leading_digits_do_not_tell_apart(n, dtype, device):
    """Many keys share their leading bits and differ far below; values tell equal keys apart. From an odd address."""
    high, low = torch.randint(-3, 3, (n + 1,)), torch.randint(0, 40, (n + 1,))
    scale = {torch.int32: 2**28, torch.int64: 2**58, torch.float32: 2**20}[dtype]
    keys = (high * scale + low).to(dtype)[1:]
    values = torch.arange(n + 1)[1:]
    got = sort_pairs(keys.to(device), values.to(device))
    want, order = keys.sort(stable=True)
    assert_equal(got, (want, values[order]), f"{n} {dtype}")
    assert_equal(sort_keys(keys.to(device)), want, f"{n} {dtype}")
    assert_equal(sort(keys.to(device)), (want, order), f"{n} {dtype}")
