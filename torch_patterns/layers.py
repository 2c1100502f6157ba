"""The fully connected layer, activations, Gaussian outputs and losses (PMPP §16.1-16.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from torch_patterns.arguments import real
from torch_patterns.batching import front, loop, vmap_rule
from torch_patterns.calls import ops
from torch_patterns.literals import Reduction
from torch_patterns.registry import documented

_ops = torch.ops.torch_patterns
F = TypeVar("F", bound=Callable[..., Tensor])


@documented("linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, algorithm: str = "auto") -> Tensor:
    """Computes a fully connected layer (§16.2): ``y = x weight^T + bias``, one perceptron per output.

    Differentiable to every order; deterministic.

    Args:
        x: [..., in]; float16, bfloat16, float32 or float64.
        weight: [out, in], of the same dtype.
        bias: [out], or None.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [..., out]. Half types are summed in float32 and rounded once; float32 is never computed in TF32. Under autocast
        it runs in the lower-precision dtype.

    Raises:
        RuntimeError: shapes or devices do not fit; the message names them.
        TypeError: a dtype is not supported, or they differ.
        ValueError: the algorithm is unknown or not offered by the device.

    Example:
        >>> tp.linear(torch.tensor([1.0, 2.0]), torch.tensor([[3.0, 4.0]]), torch.tensor([0.5]))
        tensor([11.5000])
    """
    return ops.linear(x, weight, bias, algorithm)


_ACTIVATION = """

    Args:
        x: any shape; float16, bfloat16, float32 or float64. Half types are computed in float32; NaN stays NaN.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A new contiguous tensor of the shape and dtype of ``x``. Differentiable to every order.

    Raises:
        TypeError: the dtype is not supported.
        ValueError: the algorithm is unknown or not offered by the device.
    """


def _activation(function: F) -> F:
    function.__doc__ = f"{function.__doc__}{_ACTIVATION}"
    return documented("activation")(function)


@_activation
def bipolar_sigmoid(x: Tensor, *, algorithm: str = "auto") -> Tensor:
    """Computes the book's sigmoid (§16.1): ``(1 - e^-x) / (1 + e^-x)``, as ``tanh(x / 2)``.

    Example:
        >>> tp.bipolar_sigmoid(torch.tensor([0.0, 2.0]))
        tensor([0.0000, 0.7616])
    """
    return ops.bipolar_sigmoid(x, algorithm)


@_activation
def tanh(x: Tensor, *, algorithm: str = "auto") -> Tensor:
    """Computes the hyperbolic tangent.

    Example:
        >>> tp.tanh(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 0.7616])
    """
    return ops.tanh(x, algorithm)


@_activation
def relu(x: Tensor, *, algorithm: str = "auto") -> Tensor:
    """Computes ``max(x, 0)`` (§16.2), element by element; its gradient at 0 is 0.

    Example:
        >>> tp.relu(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    return ops.relu(x, algorithm)


@_activation
def sign(x: Tensor, *, algorithm: str = "auto") -> Tensor:
    """Computes the perceptron's activation (§16.1): -1, 0 or 1. Its gradient is 0 everywhere.

    Example:
        >>> tp.sign(torch.tensor([-3.0, 0.0, 2.0]))
        tensor([-1.,  0.,  1.])
    """
    return ops.sign(x, algorithm)


@documented("rbf")
def rbf(x: Tensor, centres: Tensor, sigma: float, *, algorithm: str = "auto") -> Tensor:
    """Computes Gaussian outputs (§16.2): ``y[n, c] = exp(-|x[n] - centres[c]|^2 / (2 sigma^2))``, in [0, 1].

    Differentiable in ``x`` and ``centres``, to every order; deterministic.

    Args:
        x: samples [n, features]; float16, bfloat16, float32 or float64.
        centres: [classes, features], of the same dtype.
        sigma: the width of the Gaussian, in the units of ``x``; positive.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [n, classes]. Under autocast it computes in float32 and returns it.

    Raises:
        RuntimeError: shapes or devices do not fit; the message names them.
        TypeError: a dtype is not supported, or they differ.
        ValueError: ``sigma`` is not positive, or the algorithm is unknown or not offered by the device.

    Example:
        >>> tp.rbf(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]]), sigma=1.0)
        tensor([[1.0000, 0.1353]])
    """
    return ops.rbf(x, centres, real("rbf", "sigma", sigma), algorithm)


@documented("loss")
def cross_entropy(logits: Tensor, target: Tensor, reduction: Reduction = "mean", *, algorithm: str = "auto") -> Tensor:
    """Computes the softmax cross-entropy ``-log softmax(logits[n])[target[n]]``.

    Differentiable in ``logits`` to every order; deterministic. It does not overflow, whatever the logits.

    Args:
        logits: [n, classes]; float16, bfloat16, float32 or float64.
        target: labels [n], int64, from 0 to classes - 1.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean of no samples is NaN.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A scalar, or [n] for ``"none"``. Half types are summed in float32; under autocast it computes in float32 and
        returns it.

    Raises:
        IndexError: a label is out of range (CPU). On CUDA, where a check would cost a synchronization, the loss of that
            sample is NaN and its gradient is 0.
        RuntimeError: shapes or devices do not fit; the message names them.
        TypeError: a dtype is not supported.
        ValueError: the reduction or the algorithm is unknown, or the device does not offer the algorithm.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 100.0]])
        >>> tp.cross_entropy(logits, torch.tensor([0, 1]), "none")
        tensor([0.6931, 0.0000])
    """
    return ops.cross_entropy(logits, target, reduction, algorithm)


_ERROR = """

    Differentiable in both to every order; deterministic.

    Args:
        y: outputs, of any shape; float16, bfloat16, float32 or float64.
        t: what they ought to be, of the same shape and dtype.
        reduction: ``"mean"``, ``"sum"`` (over all elements) or ``"none"``. The mean of nothing is NaN.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        A scalar, or the shape of ``y`` for ``"none"``. Half types are summed in float32; under autocast it runs in and
        returns float32.

    Raises:
        RuntimeError: shapes or devices differ; the message names them.
        TypeError: a dtype is not supported, or they differ.
        ValueError: the reduction or the algorithm is unknown, or the device does not offer the algorithm.
    """


def _error(function: F) -> F:
    function.__doc__ = f"{function.__doc__}{_ERROR}"
    return documented("loss")(function)


@_error
def squared_error(y: Tensor, t: Tensor, reduction: Reduction = "mean", *, algorithm: str = "auto") -> Tensor:
    """Computes the book's error function (§16.1): ``(y - t)^2 / 2``.

    Example:
        >>> tp.squared_error(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]), "sum")
        tensor(5.)
    """
    return ops.squared_error(y, t, reduction, algorithm)


@_error
def absolute_error(y: Tensor, t: Tensor, reduction: Reduction = "mean", *, algorithm: str = "auto") -> Tensor:
    """Computes the book's other error function (§16.1), ``|y - t|``; its gradient is 0 if they are equal.

    Example:
        >>> tp.absolute_error(torch.tensor([1.0, -3.0]), torch.tensor([0.0, 0.0]))
        tensor(2.)
    """
    return ops.absolute_error(y, t, reduction, algorithm)


# ---- vmap: a batch of samples is more samples; if parameters or reduced losses are batched, a loop runs over the batch


@vmap_rule("linear")
def _(info, in_dims, x, weight, bias=None, algorithm="auto"):
    # A sample that is a scalar goes to the loop, where the operator refuses it: its batch would pass for one sample.
    if in_dims[0] is not None and x.dim() > 1 and in_dims[1] is None and (bias is None or in_dims[2] is None):
        return _ops.linear(x.movedim(in_dims[0], 0), weight, bias, algorithm), 0
    dims = (*in_dims[:2], None if bias is None else in_dims[2], None)
    return loop(_ops.linear, info, dims, x, weight, bias, algorithm)


@vmap_rule("linear_dgrad")
def _(info, in_dims, grad, weight, algorithm="auto"):
    if in_dims[1] is None and grad.dim() > 1:
        return _ops.linear_dgrad(grad.movedim(in_dims[0], 0), weight, algorithm), 0
    return loop(_ops.linear_dgrad, info, (*in_dims[:2], None), grad, weight, algorithm)


@vmap_rule("linear_wgrad")
def _(info, in_dims, grad, x, algorithm="auto"):
    return loop(_ops.linear_wgrad, info, (*in_dims[:2], None), grad, x, algorithm)


def _register_elementwise(name: str) -> None:
    op = getattr(_ops, name)
    vmap_rule(name)(lambda info, in_dims, x, algorithm="auto": (op(x.movedim(in_dims[0], 0), algorithm), 0))


for _name in ("bipolar_sigmoid", "tanh", "relu", "sign"):
    _register_elementwise(_name)


@vmap_rule("activation_backward")
def _(info, in_dims, grad, y, activation, algorithm="auto"):
    grad, y = (front(x, d, info.batch_size) for x, d in zip((grad, y), in_dims, strict=False))
    return _ops.activation_backward(grad, y, activation, algorithm), 0


@vmap_rule("rbf")
def _(info, in_dims, x, centres, sigma, algorithm="auto"):
    if in_dims[1] is not None:
        return loop(_ops.rbf, info, (*in_dims[:2], None, None), x, centres, sigma, algorithm)
    x = x.movedim(in_dims[0], 0)
    return _ops.rbf(x.flatten(0, 1), centres, sigma, algorithm).unflatten(0, x.shape[:2]), 0


@vmap_rule("rbf_backward")
def _(info, in_dims, grad, x, centres, sigma, algorithm="auto"):
    return loop(_ops.rbf_backward, info, (*in_dims[:3], None, None), grad, x, centres, sigma, algorithm)


def _register_loss(name: str, flatten: bool) -> None:
    """Registers the rules of a loss and of its backward operator; ``flatten``: samples are rows, not elements."""

    def merged(op, info, in_dims, tensors, reduction, algorithm):
        if reduction != "none":
            return loop(op, info, (*in_dims[: len(tensors)], None, None), *tensors, reduction, algorithm)
        tensors = [front(x, d, info.batch_size) for x, d in zip(tensors, in_dims, strict=False)]
        if not flatten:
            return op(*tensors, reduction, algorithm), 0
        samples = tensors[-1].shape[:2]
        return op(*(x.flatten(0, 1) for x in tensors), reduction, algorithm).unflatten(0, samples), 0

    def forward(info, in_dims, x, second, reduction="mean", algorithm="auto"):
        return merged(getattr(_ops, name), info, in_dims, (x, second), reduction, algorithm)

    def backward(info, in_dims, grad, x, second, reduction="mean", algorithm="auto"):
        return merged(getattr(_ops, f"{name}_backward"), info, in_dims, (grad, x, second), reduction, algorithm)

    vmap_rule(name)(forward)
    vmap_rule(f"{name}_backward")(backward)


_register_loss("cross_entropy", flatten=True)
_register_loss("squared_error", flatten=False)
_register_loss("absolute_error", flatten=False)
