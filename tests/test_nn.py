"""Modules take what the torch.nn classes of their names take, in the same order, or refuse it by name."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch

from torch_patterns import lenet, nn
from torch_patterns.testing import tensors_of

F = torch.nn.functional
SAME_NAME = [name for name in vars(nn) if isinstance(getattr(torch.nn, name, None), type) and name != "Parameter"]


@pytest.mark.parametrize("name", SAME_NAME)
def test_arguments_are_those_of_torch_nn(name):
    """Positions, names and defaults; what follows is ours, and by keyword alone."""
    ours, theirs = (
        list(inspect.signature(m).parameters.values()) for m in (getattr(nn, name), getattr(torch.nn, name))
    )
    theirs = [p for p in theirs if p.kind == p.POSITIONAL_OR_KEYWORD]  # a class without a constructor takes none
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.default, p.kind) for p in theirs]
    assert [(p.name, p.kind.name) for p in ours[len(theirs) :]] == [("algorithm", "KEYWORD_ONLY")]


def test_there_are_modules_to_compare():
    assert {"Conv2d", "AvgPool2d", "MaxPool2d", "Linear", "ReLU", "Tanh", "CrossEntropyLoss"} <= set(SAME_NAME)


@pytest.mark.parametrize("name", SAME_NAME)
def test_modules_derive_from_those_of_torch_nn(name):
    assert issubclass(getattr(nn, name), getattr(torch.nn, name))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: nn.AvgPool2d(2, divisor_override=3), "AvgPool2d: divisor_override=3 is not supported, only None"),
        (lambda: nn.ReLU(True), "ReLU: inplace=True is not supported, only False"),
        (lambda: nn.CrossEntropyLoss(torch.ones(3)), "CrossEntropyLoss: weight=tensor.* is not supported, only None"),
        (lambda: nn.CrossEntropyLoss(ignore_index=1), "CrossEntropyLoss: ignore_index=1 is not supported, only -100"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), "label_smoothing=0.1 is not supported, only 0.0"),
        (lambda: nn.CrossEntropyLoss(reduce=False), "CrossEntropyLoss: reduce=False is not supported, only None"),
        (lambda: nn.Conv2d(1, 1, 2, padding="full"), "padding"),
        (lambda: nn.Conv2d(1, 1, 2, padding_mode="mirror"), "padding_mode"),
        (lambda: nn.Conv2d(1, 1, 3, 2, padding="same"), "padding='same' is not supported for strided"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def agree(ours: torch.nn.Module, theirs: torch.nn.Module, x: torch.Tensor) -> None:
    ours.load_state_dict(theirs.state_dict())
    assert [(p.dtype, p.device) for p in ours.parameters()] == [(p.dtype, p.device) for p in theirs.parameters()]
    scripted = torch.jit.script(copy.deepcopy(ours))
    for got in (ours(x), scripted(x)):
        torch.testing.assert_close(got, theirs(x), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", ["same", "valid", 1, (2, 1)])
@pytest.mark.parametrize("kernel", [3, (2, 3), 4])
def test_padding(padding, kernel, mode):
    """By name, in every mode, where what is missing on both sides is the same and where it is not."""
    x = torch.randn(2, 4, 7, 8, dtype=torch.float64)
    options = {"padding": padding, "padding_mode": mode, "dilation": (1, 2), "groups": 2, "dtype": torch.float64}
    agree(nn.Conv2d(4, 6, kernel, **options), torch.nn.Conv2d(4, 6, kernel, **options), x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_one_image(mode):
    options = {"padding": 1, "padding_mode": mode, "dtype": torch.float64}
    image = torch.randn(2, 6, 5, dtype=torch.float64)
    agree(nn.Conv2d(2, 3, 3, **options), torch.nn.Conv2d(2, 3, 3, **options), image)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_pooling():
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    for args in ((2,), (3, 2, 1, 1, True), (3, 2, 1, 2, False, True), ((2, 3), None, 0, 1, True, True)):
        agree(nn.MaxPool2d(*args), torch.nn.MaxPool2d(*args), x)
    for args in ((2,), (3, 2, 1, True, False), ((2, 3), 1)):
        agree(nn.AvgPool2d(*args), torch.nn.AvgPool2d(*args), x)
    for pool in (nn.AvgPool2d(2, stride=0), nn.MaxPool2d(2, stride=0)):
        with pytest.raises(RuntimeError, match="pool2d: stride"):
            pool(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_devices_and_dtypes():
    agree(
        nn.Linear(5, 3, False, "cpu", torch.float64),
        torch.nn.Linear(5, 3, False, "cpu", torch.float64),
        torch.ones(2, 5).double(),
    )
    for module in (
        nn.Conv2d(1, 2, 3, device="meta", dtype=torch.float16),
        nn.Linear(5, 3, device="meta", dtype=torch.float16),
        nn.Subsample2d(4, device="meta", dtype=torch.float16),
        nn.RBF(4, 3, device="meta", dtype=torch.float16),
    ):
        assert {(p.device.type, p.dtype) for p in module.parameters()} == {("meta", torch.float16)}


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: nn.Conv2d(1, 2, 3), (2, 1, 6, 6)),
        (lambda: nn.Conv2d(1, 2, 3, padding="same", padding_mode="reflect"), (1, 6, 6)),
        (lambda: nn.Subsample2d(2), (2, 2, 6, 6)),
        (lambda: nn.AvgPool2d(2), (2, 2, 6, 6)),
        (lambda: nn.MaxPool2d(2, return_indices=True), (2, 2, 6, 6)),
        (lambda: nn.Linear(4, 3), (2, 4)),
        (lambda: nn.RBF(4, 3), (2, 4)),
        (lambda: nn.Tanh(), (2, 4)),
        (lambda: lenet.LeNet5(pooling="max", output="rbf"), (2, 1, 32, 32)),
    ],
)
def test_symbolic_trace(make, shape):
    """torch.fx traces modules of ours as well as those of torch.nn, whose insides it does not trace."""
    model = make()
    traced, x = torch.fx.symbolic_trace(model), torch.randn(shape)
    for got, want in zip(tensors_of(pickle.loads(pickle.dumps(traced))(x)), tensors_of(model(x)), strict=True):
        assert torch.equal(got, want)
    if isinstance(model, lenet.LeNet5):
        with pytest.raises(ValueError, match="images must be of shape"):
            traced(x[0])


def test_losses_and_activations():
    x, t = torch.randn(3, 5, dtype=torch.float64), torch.tensor([4, 0, 2])
    assert torch.equal(
        nn.CrossEntropyLoss(None, None, -100, None, "sum")(x, t), nn.CrossEntropyLoss(reduction="sum")(x, t)
    )
    torch.testing.assert_close(nn.CrossEntropyLoss()(x, t), F.cross_entropy(x, t))
    assert torch.equal(nn.ReLU(False)(x), x.relu())


def test_sizes_of_numpy():
    conv = nn.Conv2d(np.int64(4), np.int32(6), np.array([3, 2]), stride=(np.int64(2),), padding=[1])
    assert (conv.kernel_size, conv.stride, conv.padding) == ((3, 2), (2, 2), (1, 1))
    assert all(type(n) is int for n in (*conv.kernel_size, *conv.stride, conv.in_channels))
    with pytest.raises(TypeError, match="integer or a sequence of them, not 2.5"):
        nn.Conv2d(1, 1, 2.5)


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_padding_may_change(mode):
    """As in models whose strides become dilations, before and after TorchScript."""
    x = torch.randn(2, 1, 9, 8)
    ours, theirs = (module(1, 2, 3) for module in (nn.Conv2d, torch.nn.Conv2d))
    ours.load_state_dict(theirs.state_dict())
    for padding, dilation in (((1, 2), (1, 1)), ("same", (2, 1)), ((0, 0), (1, 1)), ((2, 2), (2, 2))):
        for layer in (ours, theirs):
            layer.padding, layer.dilation, layer.padding_mode = padding, dilation, "zeros"
        torch.testing.assert_close(ours(x), theirs(x))
    ours.padding_mode, ours.padding = mode, (1, 1)
    want = torch.nn.functional.pad(x, (1, 1, 1, 1), "constant" if mode == "zeros" else mode)
    want = torch.nn.functional.conv2d(want, ours.weight, ours.bias, dilation=2)
    torch.testing.assert_close(ours(x), want)
    torch.testing.assert_close(torch.jit.script(ours)(x), want)
