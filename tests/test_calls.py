"""Calls of operators as the wrappers make them: which modes a call skips, and which ones see it.

A call that goes straight to the dispatcher leaves nothing to `general`, the operator of torch.ops. The mode of a
default device changes no operator of this library, so a call under it alone goes straight on.
"""

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

import torch_patterns as tp
from torch_patterns import _C

X = torch.tensor([3.0, 1.0, 2.0])
SCAN = torch.ops.torch_patterns.scan.default
REST = (-1, "sum", False, False, "auto")


class Calls(TorchFunctionMode):
    """Records the functions that it sees."""

    def __init__(self):
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Derived(DeviceContext):
    """Turns the results of scans round."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        y = super().__torch_function__(func, types, args, kwargs)
        return y.flip(0) if func is SCAN else y


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return ("seen", func)


@pytest.fixture
def default_device():
    yield torch.set_default_device
    torch.set_default_device(None)


def left_to_torch(x=X) -> bool:
    """Whether a call of scan is passed on to torch.ops."""
    passed_on = []

    def general(*args):
        passed_on.append(args)
        return SCAN(*args)

    y = _C.operator_call("scan", general)(x, *REST)
    assert y.shape == x.shape
    return bool(passed_on)


def modes() -> int:
    return torch._C._len_torch_function_stack()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_under_a_default_device_calls_go_straight_to_the_dispatcher(default_device, device):
    assert not left_to_torch()
    default_device(device)
    assert not left_to_torch() and modes() == 1
    y = tp.scan(X)
    assert y.device.type == "cpu" and y.tolist() == [3.0, 4.0, 6.0]
    assert torch.empty(1).device.type == device


def test_so_they_do_in_a_context_of_a_device(default_device):
    default_device("cpu")
    with torch.device("cpu"):
        assert not left_to_torch()
        with torch.device("meta"):
            assert not left_to_torch()
            assert torch.empty(1).device.type == "meta"
        assert torch.empty(1).device.type == "cpu"
    assert not left_to_torch()
    default_device(None)
    assert not left_to_torch() and modes() == 0


def test_contexts_of_devices_come_back_in_their_order():
    with torch.device("cpu"), torch.device("meta"):
        before = [torch._C._get_function_stack_at(i) for i in range(modes())]
        assert len(before) == 2 and not left_to_torch()
        tp.scan(X)
        assert all(torch._C._get_function_stack_at(i) is mode for i, mode in enumerate(before))


def test_other_modes_see_every_call(default_device):
    with Calls() as calls:
        tp.scan(X)
        assert left_to_torch()
    assert calls.seen[0] is SCAN
    default_device("cpu")
    with Calls() as calls:
        tp.scan(X)
        assert left_to_torch() and modes() == 2
    assert calls.seen[0] is SCAN


def test_a_default_device_inside_another_mode_does_not_hide_it():
    with Calls() as calls, torch.device("cpu"):
        tp.scan(X)
        assert left_to_torch()
    assert SCAN in calls.seen


def test_a_derived_device_context_is_another_mode():
    with Derived("cpu"):
        assert left_to_torch()
        assert tp.scan(X).tolist() == [6.0, 4.0, 3.0]


def test_without_torch_functions_no_mode_sees_a_call(default_device):
    default_device("cpu")
    with Calls() as calls, torch._C.DisableTorchFunction():
        assert tp.scan(X).tolist() == [3.0, 4.0, 6.0]
        assert modes() == 2
    assert not calls.seen


def test_subclasses_see_calls_under_a_default_device(default_device):
    default_device("cpu")
    assert tp.scan(X.as_subclass(Subclass)) == ("seen", SCAN)


def test_the_mode_stays_after_an_error(default_device):
    default_device("meta")
    with pytest.raises(ValueError, match="algorithm"):
        tp.scan(X, algorithm="none of them")
    with pytest.raises(IndexError):
        tp.scan(X, 5)
    assert modes() == 1 and torch.empty(1).device.type == "meta"


@pytest.mark.parametrize(
    "call", [lambda x: tp.scan(x, op="prod"), lambda x: torch.mul(x, x)], ids=["scan", "torch.mul"]
)
def test_hooks_of_saved_tensors_run_without_the_mode(default_device, call):
    """As they do where torch's own functions call them."""
    seen = []

    def pack(x):
        seen.append((modes(), torch.empty(1).device.type))
        return x

    default_device("meta")
    x = X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y = call(x)
    assert seen and set(seen) == {(0, "cpu")}
    assert modes() == 1
    y.backward(X)
    assert x.grad.isfinite().all()


def test_gradients_and_transforms_under_a_default_device(default_device):
    def total(x):
        return (tp.scan(x, op="prod") * X).sum()

    def results():
        return [
            torch.func.grad(total)(X),
            torch.vmap(total)(torch.stack([X, X + 1])),
            torch.func.jacfwd(tp.scan)(X),
            torch.func.functionalize(tp.scan)(X),
            make_fx(total)(X)(X),
        ]

    want = results()
    default_device("cpu")
    assert all(map(torch.equal, results(), want))


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_traces_hold_the_operator_under_a_default_device(default_device, pre_dispatch):
    default_device("cpu")
    traced = make_fx(lambda x: tp.scan(x), pre_dispatch=pre_dispatch)(X)
    assert any(node.target is SCAN for node in traced.graph.nodes)


def test_fake_tensors_under_a_default_device(default_device):
    fake = FakeTensorMode(shape_env=ShapeEnv())
    x, mask = fake.from_tensor(X), fake.from_tensor(X > 1)
    default_device("meta")
    with fake:
        y, kept = tp.scan(x), tp.compact(x, mask)
    assert isinstance(y, FakeTensor) and y.device.type == "cpu" and y.shape == X.shape
    assert isinstance(kept, FakeTensor) and kept.device.type == "cpu"


def test_exported_programs_under_a_default_device(default_device):
    class Scan(torch.nn.Module):
        def forward(self, x):
            return tp.scan(x)

    default_device("cpu")
    for strict in (False, True):
        program = torch.export.export(Scan(), (X,), strict=strict)
        assert any(node.target is SCAN for node in program.graph.nodes)
        assert program.module()(X).tolist() == [3.0, 4.0, 6.0]


def test_jagged_tensors_under_a_default_device(default_device):
    rows = torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged)
    default_device("cpu")
    assert [y.tolist() for y in tp.scan(rows, 1).unbind()] == [[3.0, 4.0, 6.0], [3.0, 4.0]]


def test_a_thread_has_modes_of_its_own(default_device):
    results = []

    def work():
        with torch.device("meta"):
            results.append((left_to_torch(), tp.scan(X).tolist()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(False, [3.0, 4.0, 6.0])] * 4 and modes() == 0
