"""Jagged NestedTensors in the place of tensors: what each sequence alone gives, with its gradients."""

import pytest
import torch
from common import EACH_DEVICE

import torch_patterns as tp
from torch_patterns import jagged

each_device = pytest.mark.parametrize("device", EACH_DEVICE)
LENGTHS = (3, 1, 4, 2)


def make(device: str, *shape: int, grad: bool = False) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A jagged tensor and its sequences, as leaves of their own."""
    random = torch.Generator().manual_seed(1)
    parts = [torch.randn(n, *shape, generator=random, dtype=torch.float64).to(device) for n in LENGTHS]
    parts = [p.requires_grad_(grad) for p in parts]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged), parts


def same(nested: torch.Tensor, parts: list[torch.Tensor]) -> None:
    assert nested.is_nested and len(nested.unbind()) == len(parts)
    for got, want in zip(nested.unbind(), parts, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


ALONG = {
    "scan": lambda x, d: tp.scan(x, d),
    "reverse max": lambda x, d: tp.scan(x, d, op="max", reverse=True),
    "exclusive prod": lambda x, d: tp.scan(x, d, op="prod", exclusive=True),
    "with indices": lambda x, d: tp.scan_with_indices(x, d),
    "sort": lambda x, d: tp.sort(x, d, descending=True),
    "sort_keys": lambda x, d: tp.sort_keys(x, d),
    "argsort": lambda x, d: tp.argsort(x, d),
    "recurrence": lambda x, d: tp.linear_recurrence(x, x, d),
    "reverse recurrence": lambda x, d: tp.linear_recurrence(x, x, d, reverse=True),
    "softmax": lambda x, d: jagged.softmax(x, d) if x.is_nested else x.softmax(d),
    "log_softmax": lambda x, d: jagged.log_softmax(x, d) if x.is_nested else x.log_softmax(d),
    "relu": lambda x, d: tp.relu(x),
    "tanh": lambda x, d: tp.tanh(x),
    "bipolar_sigmoid": lambda x, d: tp.bipolar_sigmoid(x),
    "linear": lambda x, d: tp.linear(x, torch.ones(5, x.shape[-1], dtype=x.dtype, device=x.device)),
}


@each_device
@pytest.mark.parametrize("name", ALONG)
def test_each_sequence_is_on_its_own(name, device):
    f = ALONG[name]
    for shape, dims in (((), (1, -1)), ((3,), (1, -2, 2, -1))):
        if name == "linear" and not shape:
            continue
        for dim in dims:
            x, parts = make(device, *shape, grad=True)
            got = f(x, dim)
            own = dim - 1 if dim > 0 else dim
            want = [f(p, own) for p in parts]
            if isinstance(got, tuple):
                for i, y in enumerate(got):
                    same(y, [w[i] for w in want])
                got, want = got[0], [w[0] for w in want]
            else:
                same(got, want)
            if got.is_floating_point():
                weigh = lambda y: (y * torch.arange(1, y.numel() + 1, device=device).view_as(y).cos()).sum()  # noqa: E731
                ours = torch.autograd.grad(sum(weigh(y) for y in got.unbind()), parts)
                theirs = torch.autograd.grad(sum(map(weigh, want)), parts)
                for g, w in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-10)
            assert (got + got).is_nested  # of the same lengths, as torch understands it


@each_device
@pytest.mark.parametrize("op", ["sum", "max", "mean", "logsumexp", "argmax", "all"])
def test_reduce(op, device):
    x, parts = make(device, 3)
    want = torch.stack([tp.reduce(p, 0, op=op) for p in parts])
    for keepdim in (False, True):
        got = tp.reduce(x, 1, op=op, keepdim=keepdim)
        assert not got.is_nested
        torch.testing.assert_close(got, want.unsqueeze(1) if keepdim else want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(tp.segment_reduce(x, op="max"), torch.stack([p.amax(0) for p in parts]))
    same(tp.reduce(x, -1, op=op), [tp.reduce(p, -1, op=op) for p in parts])
    if not op.startswith("arg"):
        torch.testing.assert_close(tp.reduce(x, op=op), tp.reduce(torch.cat(parts), op=op))


@each_device
def test_segments_have_their_offsets(device):
    x, parts = make(device)
    same(tp.segment_softmax(x), [p.softmax(0) for p in parts])
    same(tp.segment_scan(x, op="min"), [p.cummin(0)[0] for p in parts])
    same(tp.segment_recurrence(x, x), [tp.linear_recurrence(p, p, 0) for p in parts])
    start = torch.ones(4, dtype=torch.float64, device=device)
    want = [tp.linear_recurrence(p, p, 0, initial=start[0]) for p in parts]
    same(tp.segment_recurrence(x, x, initial=start), want)
    same(tp.linear_recurrence(x, x, 1, initial=start), want)
    for descending in (False, True):
        want = [p.sort(descending=descending, stable=True) for p in parts]
        same(tp.segment_sort(x, descending=descending), [w[0] for w in want])
        for values in (x, x.values()):  # rows without offsets of their own, too
            keys, moved = tp.segment_sort_pairs(x, values, descending=descending)
            same(keys, [w[0] for w in want])
            same(moved, [w[0] for w in want])
    rows = torch.arange(sum(LENGTHS), device=device)
    keys, order = tp.segment_sort_pairs(x, tp.jagged.from_rows(rows, x.offsets()))
    assert torch.equal(x.values()[order.values()], keys.values())
    values, indices = tp.segment_topk(x, k=1)
    torch.testing.assert_close(values[:, 0], torch.stack([p.max() for p in parts]))
    assert torch.equal(x.values()[indices], values)
    assert torch.equal(tp.segment_topk(x, None, 1)[0], values)
    y, parts = make(device, 3)
    weights = torch.arange(24.0, dtype=torch.float64, device=device).view(4, 3, 2)
    want = [p @ w for p, w in zip(parts, weights, strict=True)]
    same(tp.segment_matmul(y, weights=weights), want)
    same(tp.segment_matmul(y, None, weights), want)
    with pytest.raises(TypeError, match="segment_softmax: a jagged tensor has offsets of its own"):
        tp.segment_softmax(x, x.offsets())
    with pytest.raises(TypeError, match="segment_sort_pairs: a jagged tensor has offsets of its own"):
        tp.segment_sort_pairs(x.values(), x, x.offsets())
    for f in (
        tp.segment_softmax,
        tp.segment_sort,
        lambda v: tp.segment_sort_pairs(v, v),
        lambda v: tp.segment_topk(v, k=1),
    ):
        with pytest.raises(TypeError, match="offsets must be a tensor"):
            f(x.values())


def test_arguments_behind_offsets_are_required():
    x, _ = make("cpu", 3)
    for rows, offsets in ((x, None), (x.values(), x.offsets())):
        with pytest.raises(TypeError, match="segment_topk: k must be an integer, and is missing"):
            tp.segment_topk(rows, offsets)
        with pytest.raises(TypeError, match="segment_matmul: weights must be a tensor, and are missing"):
            tp.segment_matmul(rows, offsets)


@pytest.mark.parametrize("module", ["Linear", "ReLU", "Tanh", "BipolarSigmoid", "Sign"])
def test_modules_take_jagged_tensors(module):
    x, parts = make("cpu", 3)
    layer = tp.nn.Linear(3, 2, dtype=torch.float64) if module == "Linear" else getattr(tp.nn, module)()
    same(layer(x), [layer(part) for part in parts])


def test_lengths_must_fit():
    """Two jagged tensors go together if their sequences are of the same lengths, whatever offsets they hold them in."""
    x, parts = make("cpu", 2)
    again, other = (torch.nested.as_nested_tensor(p, layout=torch.jagged) for p in (parts, parts[::-1]))
    same(tp.linear_recurrence(x, again, 1), [tp.linear_recurrence(p, p, 0) for p in parts])
    for f in (lambda a, b: tp.linear_recurrence(a, b, 1), lambda a, b: tp.segment_recurrence(a, b)):
        with pytest.raises(ValueError, match="recurrence: the jagged tensors have sequences of different lengths"):
            f(x, other)
    for lengths in ([4, 1], [-1, 1], [1]):
        with pytest.raises(ValueError, match="^from_dense: .*lengths"):
            jagged.from_dense(torch.ones(2, 3), torch.tensor(lengths))
    with pytest.raises(ValueError, match="lengths must have one dimension"):
        jagged.from_dense(torch.ones(2, 3), torch.tensor([[1, 1]]))
    for lengths in (torch.tensor([1.0]), [1]):
        with pytest.raises(TypeError, match="lengths_to_offsets: lengths must be"):
            jagged.lengths_to_offsets(lengths)


def test_offsets_hold_the_sum_of_the_lengths():
    """Lengths may be of a type that is too small for their sum."""
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int64):
        offsets = jagged.lengths_to_offsets(torch.tensor([100, 0, 120], dtype=dtype))
        assert offsets.dtype == torch.int64 and offsets.tolist() == [0, 100, 100, 220]
    most = torch.tensor([2**30, 2**30 - 1], dtype=torch.int32)
    offsets = jagged.lengths_to_offsets(most)
    assert offsets.dtype == torch.int32 and offsets.tolist() == [0, 2**30, 2**31 - 1]
    with pytest.raises(ValueError, match="lengths_to_offsets: lengths are int32, but their sum is 2147483648"):
        jagged.lengths_to_offsets(most + torch.tensor([0, 1], dtype=torch.int32))
    packed = jagged.from_dense(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([2, 1], dtype=torch.uint8))
    assert packed.values().tolist() == [1, 2, 3]


def test_what_is_not_for_jagged_tensors():
    x, _ = make("cpu", 3)
    with pytest.raises(ValueError, match="scan: .*dim 0, its batch"):
        tp.scan(x, 0)
    with pytest.raises(IndexError, match="scan: dim 3 is out of range"):
        tp.scan(x, 3)
    with pytest.raises(TypeError, match="merge takes no jagged tensor"):
        tp.merge(x, x)
    with pytest.raises(TypeError, match="segment_expand takes no jagged tensor"):
        tp.segment_expand(x, x.offsets(), 10)
    with pytest.raises(ValueError, match="ragged dimension at 1"):
        tp.relu(x.transpose(1, 2))
    with pytest.raises(TypeError, match="rows_of: x must be a NestedTensor"):
        jagged.rows_of(x.values())


@each_device
def test_dense_and_back(device):
    x, parts = make(device, 3, grad=True)
    dense = jagged.to_dense(x, fill=-1.0)
    assert dense.shape == (4, 4, 3)
    for row, part in zip(dense, parts, strict=True):
        assert torch.equal(row[: len(part)], part) and bool((row[len(part) :] == -1).all())
    lengths = torch.tensor(LENGTHS, device=device)
    back = jagged.from_dense(dense, lengths)
    same(back, parts)
    grads = torch.autograd.grad(sum(y.square().sum() for y in back.unbind()), parts)
    for g, p in zip(grads, parts, strict=True):
        torch.testing.assert_close(g, 2 * p)
    assert torch.equal(jagged.offsets_to_lengths(jagged.lengths_to_offsets(lengths)), lengths)
    assert jagged.to_dense(x, length=2).shape == (4, 2, 3)
    with pytest.raises(ValueError, match="lengths must be in 0 to 4, the length of x, got 6 to 9"):
        jagged.from_dense(dense, lengths + 5)


def test_offsets_of_padded_sequences_are_checked():
    """On the CPU, which raises where CUDA steps over them; the error names the function that was called."""
    values, dense = torch.arange(5.0), torch.ones(2, 3)
    wrong = {
        (1, 2, 5): "must be 0",
        (0, 6, 5): "out of range",
        (0, -1, 5): "out of range",
        (0, 2, 4): "must be 5",
        (0, 3, 2, 5): "must not decrease",
    }
    for offsets, message in wrong.items():
        with pytest.raises((IndexError, ValueError), match=rf"^jagged_to_dense: offsets\[\d\].*{message}"):
            jagged.jagged_to_dense(values, torch.tensor(offsets), 3)
    for offsets, total in (((0, 3, 2), None), ((1, 2, 3), None), ((0, 2, 3), 5), ((0, -1, 3), 3)):
        with pytest.raises((IndexError, ValueError), match=r"^dense_to_jagged: offsets\["):
            jagged.dense_to_jagged(dense, torch.tensor(offsets), total)
    for total in (None, 5):
        with pytest.raises(ValueError, match="^dense_to_jagged: a sequence .*length"):
            jagged.dense_to_jagged(dense, torch.tensor([0, 4, 5]), total)
    with pytest.raises(ValueError, match="^dense_to_jagged: x must be"):
        jagged.dense_to_jagged(values, torch.tensor([0, 2, 3]))
    with pytest.raises(ValueError, match="^from_dense: x must be"):
        jagged.from_dense(values, torch.tensor([2, 3]))
    with pytest.raises(TypeError, match="^from_dense: x must be a tensor, got list"):
        jagged.from_dense([[1.0]], torch.tensor([1]))
    with pytest.raises(ValueError, match="^jagged_to_dense: values must be rows, got a scalar"):
        jagged.jagged_to_dense(values[0], torch.tensor([0, 1]), 3)
    for f in (
        lambda o: jagged.jagged_to_dense(values, o, 3),
        lambda o: jagged.dense_to_jagged(dense, o),
        jagged.offsets_to_lengths,
    ):
        for offsets in (torch.tensor([0.0, 2.0, 5.0]), [0, 2, 5]):
            with pytest.raises(TypeError, match="offsets must be"):
                f(offsets)
        with pytest.raises(ValueError, match="offsets must have one dimension"):
            f(torch.tensor([[0, 2, 5]]))
    with pytest.raises(ValueError, match="fill must be whole for torch.int64, got 0.5"):
        jagged.jagged_to_dense(torch.arange(5), torch.tensor([0, 2, 5]), 3, 0.5)
    with pytest.raises(TypeError, match="length must be an integer, got float"):
        jagged.jagged_to_dense(values, torch.tensor([0, 2, 5]), 2.5)


def test_padded_sequences_under_vmap():
    values, dense = torch.randn(3, 5), torch.randn(3, 2, 4)
    offsets = torch.tensor([[0, 2, 5], [0, 4, 5], [0, 1, 5]])
    got = torch.vmap(lambda v, o: jagged.jagged_to_dense(v, o, 4))(values, offsets)
    assert torch.equal(
        got, torch.stack([jagged.jagged_to_dense(v, o, 4) for v, o in zip(values, offsets, strict=True)])
    )
    got = torch.vmap(lambda x, o: jagged.dense_to_jagged(x, o, 5))(dense, offsets)
    want = [jagged.dense_to_jagged(x, o) for x, o in zip(dense, offsets, strict=True)]
    assert torch.equal(got, torch.stack(want))


def test_no_option_is_ignored():
    x, parts = make("cpu")
    for f in (tp.sort, tp.sort_keys, tp.argsort, tp.scan, tp.reduce):
        with pytest.raises(ValueError, match="unknown algorithm 'no_such'"):
            f(x, 1, algorithm="no_such")
    for algorithm in tp.algorithms("segment_sort", "cpu"):
        same(tp.sort_keys(x, 1, algorithm=algorithm), [p.sort()[0] for p in parts])
    for f in (tp.sort, tp.argsort):
        with pytest.raises(TypeError, match="index_dtype must be"):
            f(x, 1, index_dtype=torch.float32)
    y, parts = make("cpu", 3)
    torch.testing.assert_close(tp.reduce(y, keepdim=True), torch.cat(parts).sum().view(1, 1, 1))
    with pytest.raises(TypeError, match="scan: dim must be an integer, got float"):
        tp.scan(x, 1.5)


def test_gaps_between_sequences():
    """A jagged tensor may be a view of rows that belong to none of its sequences."""
    values = torch.arange(12.0)
    x = torch.nested.nested_tensor_from_jagged(
        values, offsets=torch.tensor([0, 4, 8, 12]), lengths=torch.tensor([2, 4, 1])
    )
    same(tp.scan(x, 1), [values[0:2].cumsum(0), values[4:8].cumsum(0), values[8:9]])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled():
    x, parts = make("cpu", 3, grad=True)

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def f(x):
        return tp.relu(tp.scan(x, 1)), tp.reduce(x, 1, op="logsumexp")

    got, total = f(x)
    same(got, [p.cumsum(0).relu() for p in parts])
    want = torch.stack([p.logsumexp(0) for p in parts])
    torch.testing.assert_close(total, want)
    ours = torch.autograd.grad(total.sum() + got.values().sum(), parts)
    theirs = torch.autograd.grad(want.sum() + sum(p.cumsum(0).relu().sum() for p in parts), parts)
    for g, w in zip(ours, theirs, strict=True):
        torch.testing.assert_close(g, w)


def test_recurrences_broadcast_as_torch_does():
    lengths = torch.tensor([2, 0, 3])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    x = torch.nested.nested_tensor_from_jagged(torch.randn(5, 4), offsets)
    for shape in ((), (4,), (1, 4), (3, 1, 4), (1, 1, 4), (3, 1, 1), (1, 1)):
        dense = torch.randn(shape)
        same = x * dense if shape else x * dense.item()
        whole = torch.nested.nested_tensor_from_jagged(torch.ones(5, 4), offsets) * dense
        assert same.values().shape == whole.values().shape
        want = tp.linear_recurrence(whole, x, 1)
        assert torch.equal(tp.linear_recurrence(dense, x, 1).values(), want.values()), shape
    for shape in ((5, 4), (3, 4), (5, 1, 4), (3, 2, 4), (2, 1, 4), (1, 3, 1, 4)):
        with pytest.raises(ValueError, match="linear_recurrence: shape .* does not broadcast with a jagged"):
            tp.linear_recurrence(torch.ones(shape), x, 1)
    line = torch.nested.nested_tensor_from_jagged(torch.ones(5), offsets)
    with pytest.raises(ValueError, match="linear_recurrence: shape .* does not broadcast with a jagged"):
        tp.linear_recurrence(line, x, 1)


def test_recurrences_promote():
    offsets = torch.tensor([0, 2, 5])
    single, double, whole = (
        torch.nested.nested_tensor_from_jagged(torch.ones(5, 4, dtype=dtype), offsets)
        for dtype in (torch.float32, torch.float64, torch.int64)
    )
    assert tp.linear_recurrence(double, single, 1).dtype == torch.float64
    assert tp.linear_recurrence(whole, single, 1).dtype == torch.float32
    assert tp.linear_recurrence(single, torch.tensor(2.0, dtype=torch.float64), 1).dtype == torch.float32
    assert tp.linear_recurrence(double, double, 1, initial=torch.ones(2, 4)).dtype == torch.float64
    assert tp.linear_recurrence(single, single, 1, initial=torch.ones(2, 4).double()).dtype == torch.float64


# ---- what is refused


@each_device
def test_variances_exist_along_the_ragged_dimension_alone(device):
    x, parts = make(device, 3)
    torch.testing.assert_close(tp.reduce(x, 1, op="var")[0], parts[0].var(0))
    torch.testing.assert_close(tp.reduce(x, 1, op="std", keepdim=True)[2], parts[2].std(0, keepdim=True))
    assert tp.reduce(x, 1, op="var")[1].isnan().all()
    for dense_or_jagged, dim in ((x, 2), (x, None), (parts[0], 0)):
        with pytest.raises(ValueError, match="reduce: unknown op 'var'; choose from: sum, "):
            tp.reduce(dense_or_jagged, dim, op="var")
    with pytest.raises(TypeError, match="op 'var' needs floating point"):
        tp.reduce(x.long(), 1, op="var")


def test_what_from_rows_refuses():
    rows, offsets = torch.arange(3.0), torch.tensor([0, 2, 3])
    nested = jagged.from_rows(rows, offsets)
    for args, error, words in (
        (([0.0], offsets), TypeError, "values must be a dense tensor, got list"),
        ((nested, offsets), TypeError, "values must be a dense tensor, got NestedTensor"),
        ((rows, [0, 3]), TypeError, "offsets must be a dense tensor, got list"),
        ((rows, offsets.double()), TypeError, "offsets must be int32 or int64, got torch.float64"),
        ((rows[0], offsets), ValueError, r"values must be rows \[n, ...\], got \[\]"),
        ((rows, offsets[None]), ValueError, r"offsets must be \[batch \+ 1\], got \[1, 3\]"),
        ((rows, offsets[:0]), ValueError, r"offsets must be \[batch \+ 1\], got \[0\]"),
        ((rows, offsets.to("meta")), RuntimeError, "values are on cpu, offsets on meta"),
    ):
        with pytest.raises(error, match=f"^from_rows: {words}"):
            jagged.from_rows(*args)
    assert [y.tolist() for y in jagged.from_rows(rows, offsets.int()).unbind()] == [[0.0, 1.0], [2.0]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("x", [None, 3, "x", [torch.ones(2)], torch.ones(2), torch.ones(2).to_sparse()])
def test_anything_may_be_asked_whether_it_is_jagged(x):
    assert not jagged.is_jagged(x)
    assert not jagged.is_jagged(torch.nested.nested_tensor([torch.ones(2)], layout=torch.strided))
    assert jagged.is_jagged(torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged))
