"""What is special to compaction: shapes of masks, sizes that only the data knows, gradients, long tensors."""

import pytest
import torch
from common import EACH_DEVICE, needs_cuda

from torch_patterns import compact, compact_padded, partition, registry, scan
from torch_patterns.testing import ALL, assert_equal, assert_same_bits

each_device = pytest.mark.parametrize("device", EACH_DEVICE)
INF, NAN = float("inf"), float("nan")


def algorithms(device: str) -> list[str]:
    return ["auto", *registry.algorithms("compact", device)]


def random_mask(shape, keep: float, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < keep


@each_device
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_is_indexing(keep, device):
    shape = (3, 40, 11, 5)
    for dtype in ALL:
        x = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        for dims in range(len(shape) + 1):
            mask = random_mask(shape[:dims], keep)
            want, (n, *rest) = x[mask], x[mask].shape
            for algorithm in algorithms(device):
                got = compact(x.to(device), mask.to(device), algorithm=algorithm)
                assert_same_bits(got.cpu(), want, f"{algorithm} {dtype} {dims}")
                values, count = compact_padded(x.to(device), mask.to(device), 7, algorithm=algorithm)
                assert values.shape == x.shape and count.dtype == torch.int64 and count.shape == () and count == n
                rows = values.cpu().reshape(mask.numel(), *rest)
                assert_same_bits(rows[:n], want)
                assert_same_bits(rows[n:], torch.full_like(rows[n:], 7))


@each_device
def test_rows_of_every_length(device):
    """Words of 1 to 16 bytes, whatever the address."""
    mask = random_mask((1000,), 0.4).to(device)
    for bytes_, offset in (
        (1, 0),
        (2, 0),
        (3, 0),
        (4, 1),
        (6, 2),
        (8, 4),
        (12, 0),
        (16, 8),
        (24, 0),
        (48, 16),
        (64, 1),
    ):
        buffer = torch.randint(0, 256, (1000 * bytes_ + offset,), dtype=torch.uint8, device=device)
        x = buffer[offset:].view(1000, bytes_)
        for algorithm in algorithms(device):
            assert torch.equal(compact(x, mask, algorithm=algorithm), x[mask]), (algorithm, bytes_, offset)


@each_device
def test_gradients(device):
    x = torch.arange(6.0, device=device).view(3, 2).requires_grad_()
    mask = torch.tensor([[True, False], [False, True], [True, True]], device=device)
    for algorithm in algorithms(device):
        (g,) = torch.autograd.grad(compact(x, mask, algorithm=algorithm).pow(2).sum(), x)
        assert g.tolist() == [[0, 0], [0, 6], [8, 10]]
        values, count = compact_padded(x, mask, 9.0, algorithm=algorithm)
        assert count == 4 and not count.requires_grad
        (g,) = torch.autograd.grad(values.flatten() @ torch.arange(1.0, 7.0, device=device), x)
        assert g.tolist() == [[1, 0], [0, 2], [3, 4]]  # the gradient of what is filled goes nowhere


@each_device
def test_fill_is_of_the_dtype(device):
    mask = torch.tensor([False, True, False], device=device)
    assert compact_padded(torch.tensor([1, 2, 3], device=device), mask, -5)[0].tolist() == [2, -5, -5]
    assert compact_padded(torch.tensor([1.0, 2, 3], device=device), mask, float("nan"))[0].isnan().sum() == 2
    assert compact_padded(torch.tensor([True] * 3, device=device), mask)[0].tolist() == [True, False, False]


@each_device
def test_fill_that_the_dtype_cannot_hold(device):
    """Refused, by tensors without data as well."""
    cases = [
        (torch.int8, 128),
        (torch.uint8, -1),
        (torch.uint8, 256),
        (torch.int64, 2.5),
        (torch.int64, 1e30),
        (torch.int32, float("nan")),
        (torch.float16, 1e6),
        (torch.float32, 1j),
    ]
    for where in (device, "meta"):
        mask = torch.ones(3, dtype=torch.bool, device=where)
        for dtype, fill in cases:
            with pytest.raises(RuntimeError, match="cannot be converted"):
                compact_padded(torch.ones(3, device=where).to(dtype), mask, fill)
        for dtype, fill in [(torch.int8, -128), (torch.uint8, 255.0), (torch.bool, 1), (torch.float16, float("inf"))]:
            assert compact_padded(torch.ones(3, device=where).to(dtype), mask, fill)[0].dtype == dtype


@each_device
def test_tangents(device):
    x = torch.arange(6.0, device=device).view(3, 2)
    mask = torch.tensor([[True, False], [False, True], [True, True]], device=device)
    for algorithm in algorithms(device):
        jvp = lambda f: torch.func.jvp(lambda x: f(x, mask, algorithm=algorithm), (x,), (-x,))  # noqa: B023, E731
        assert [y.tolist() for y in jvp(compact)] == [[0, 3, 4, 5], [0, -3, -4, -5]]
        _, (tangent, _) = jvp(lambda x, mask, **options: compact_padded(x, mask, 9, **options))
        assert tangent.flatten().tolist() == [0, -3, -4, -5, 0, 0]


@each_device
def test_gradients_of_a_size_that_only_the_data_knows(device):
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def f(x, mask):
        return scan(compact(x, mask).exp()).sum()

    for n in (5, 9):
        x = torch.linspace(0, 1, n, device=device).requires_grad_()
        mask = torch.arange(n, device=device) % 2 == 0
        (got,) = torch.autograd.grad(f(x, mask), x)
        (want,) = torch.autograd.grad(x[mask].exp().cumsum(0).sum(), x)
        torch.testing.assert_close(got, want)


@each_device
def test_long_masks(device):
    """More rows than one group of tiles, and than two, with counts that do not repeat."""
    for n in (8192 * 256 - 3, 8192 * 512 + 77):
        x = torch.arange(n, dtype=torch.int32)
        mask = random_mask((n,), 0.3, seed=n)
        for algorithm in algorithms(device):
            got = compact(x.to(device), mask.to(device), algorithm=algorithm)
            assert torch.equal(got.cpu(), x[mask]), algorithm


def test_vmap_over_no_masks():
    x, masks = torch.ones(5, 2), torch.ones(0, 5, dtype=torch.bool)
    assert torch.vmap(compact, (None, 0))(x, masks).shape == (0, 0, 2)
    values, counts = torch.vmap(compact_padded, (None, 0))(x, masks)
    assert values.shape == (0, 5, 2) and counts.shape == (0,) and counts.dtype == torch.int64


def test_vmap_over_masks():
    x = torch.arange(5)
    masks = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 1, 1]]).bool()
    assert_equal(torch.vmap(compact, (None, 0))(x, masks), torch.tensor([[0, 2], [3, 4]]))
    masks[0, 0] = False
    with pytest.raises(RuntimeError, match="every mask must keep equally many"):
        torch.vmap(compact, (None, 0))(x, masks)
    values, counts = torch.vmap(compact_padded, (None, 0))(x, masks)
    assert counts.tolist() == [1, 2] and values.tolist() == [[2, 0, 0, 0, 0], [3, 4, 0, 0, 0]]


def test_meta_tensors_have_no_size_to_give():
    with pytest.raises(RuntimeError, match="data-dependent"):
        compact(torch.ones(3, device="meta"), torch.ones(3, dtype=torch.bool, device="meta"))


@needs_cuda
def test_capture_is_refused_by_the_one_and_taken_by_the_other():
    x, mask = torch.arange(5.0, device="cuda"), torch.tensor([True, False, True, False, False], device="cuda")
    compact_padded(x, mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, count = compact_padded(x, mask)
        with pytest.raises(RuntimeError, match="compact: .*cannot be captured"):
            compact(x, mask)
    mask.logical_not_()
    graph.replay()
    assert (values.tolist(), count.item()) == ([1, 3, 4, 0, 0], 3)


@each_device
def test_fills_that_the_dtype_cannot_hold_are_refused(device):
    """By the CPU, CUDA and Meta kernels, and before anything else."""
    mask = torch.tensor([True, False])
    for dtype, good, bad in (
        (torch.bool, (0, 1, True, 0.5, 7), ()),
        (torch.uint8, (0, 255, 255.0, True), (256, -1, 1.5, INF, NAN)),
        (torch.int8, (-128, 127), (128, -129, 1e300)),
        (torch.int64, (2**63 - 1, -(2**63), -5.0), (2.0**63, 0.5, NAN)),
        (torch.float16, (65504, -65504, INF, NAN, 0.1), (65520, -65519, 1e5, 2**40)),
        (torch.float32, (1e38, -INF, 2**40), (1e39, -1e300)),
        (torch.float64, (1e308, NAN), ()),
    ):
        x = torch.ones(2).to(dtype)
        for where in (device, "meta"):
            for fill in good:
                values, _ = compact_padded(x.to(where), mask.to(where), fill)
                if where != "meta":
                    assert_equal(values, torch.stack([x[0], torch.full((), fill, dtype=dtype)]))
            for fill in bad:
                with pytest.raises(RuntimeError, match="^compact_padded: fill .* cannot be converted"):
                    compact_padded(x.to(where), mask.to(where), fill)


# ---- rows that are moved by their numbers


@each_device
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("width", [65, 66, 68, 72, 80, 200, 1536])
def test_wide_rows(width, keep, device):
    """Rows of bytes of every alignment, of more than one tile, and from an odd address."""
    x = torch.randint(-99, 99, (20_001, width), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    mask = random_mask(len(x), keep, 2)
    mask[::5000] = keep > 0
    want = x[mask]
    padded = torch.cat([want, torch.full((len(x) - len(want), width), -3, dtype=x.dtype)])
    for there in (x.to(device), torch.cat([x.new_zeros(1), x.flatten()]).to(device)[1:].view(x.shape)):
        keeps = mask.to(device)
        assert_equal(compact(there, keeps), want, "compact")
        assert_equal(compact_padded(there, keeps, -3), (padded, torch.tensor(len(want))), "compact_padded")
        parts, count = partition(there, keeps)
        assert_equal((parts, count), (torch.cat([want, x[~mask]]), torch.tensor(len(want))), "partition")
    if width % 4 == 0:
        floats = x[:, : width // 4].float().to(device).requires_grad_()
        y = compact(floats, mask.to(device))
        (grad,) = torch.autograd.grad(y, floats, torch.arange(1.0, len(y) + 1, device=device)[:, None].expand_as(y))
        rows = torch.where(mask, mask.cumsum(0), 0).float()
        assert_equal(grad, rows[:, None].expand_as(floats), "gradient")
