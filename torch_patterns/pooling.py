"""Subsampling and pooling (PMPP §16.2, Fig. 16.7; exercise 16.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.arguments import pair as _pair
from torch_patterns.batching import fold
from torch_patterns.functional import differentiable
from torch_patterns.layers import activation_double_backward
from torch_patterns.registry import documented

_ops = torch.ops.torch_patterns
Pair = int | tuple[int, int]


@documented("subsample2d")
def subsample2d(
    x: Tensor, bias: Tensor, size: Pair = 2, activation: str = "bipolar_sigmoid", *, algorithm: str = "auto"
) -> Tensor:
    """The subsampling layer of LeNet-5 (Fig. 16.7): ``y = f(mean of the window + bias of the map)``.

    The windows lie side by side. Differentiable to every order; deterministic.

    Args:
        x: maps [n, c, rows, columns] or [c, rows, columns]; float16, bfloat16, float32 or float64.
        bias: [c], of the same dtype.
        size: rows and columns of a window, one number or two; those of ``x`` must be multiples.
        activation: ``"identity"``, ``"bipolar_sigmoid"``, ``"tanh"``, ``"relu"`` or ``"sign"``.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [n, c, rows / size, columns / size], channels_last if ``x`` is. Half types are computed in float32 and rounded
        once. Under autocast the bias is cast to the dtype of ``x``.

    Raises:
        RuntimeError: rows or columns are not multiples of ``size``, or shapes or devices do not fit.
        TypeError: a dtype is not supported, or they differ.
        ValueError: the activation or the algorithm is unknown, or the device does not offer the algorithm.
    """
    return _subsample(x, bias, _pair(size), activation, algorithm)


@documented("avg_pool2d")
def avg_pool2d(
    x: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    algorithm: str = "auto",
) -> Tensor:
    """The mean of each window, as ``torch.nn.functional.avg_pool2d``. Differentiable to every order; deterministic.

    Args:
        x: maps [n, c, rows, columns] or [c, rows, columns]; float16, bfloat16, float32 or float64. Only n may be 0.
        kernel_size: rows and columns of a window, one number or two.
        stride: from window to window; that of side by side if not given.
        padding: zeros around the maps, at most half of ``kernel_size``.
        ceil_mode: a last window may hang over the far edge if it begins inside, or in the padding before it.
        count_include_pad: the mean counts the zeros of the padding (never what hangs over beyond it).
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [n, c, (rows + 2 padding - kernel) // stride + 1, ...], channels_last if ``x`` is. Half types are summed in
        float32.

    Raises:
        RuntimeError: no window fits, or an argument makes no sense; the message names it.
        TypeError: the dtype is not supported.
        ValueError: the algorithm is unknown or not offered by the device.
    """
    stride = kernel_size if stride is None else stride
    return _avg(x, _pair(kernel_size), _pair(stride), _pair(padding), ceil_mode, count_include_pad, algorithm)


@documented("max_pool2d")
def max_pool2d(
    x: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    algorithm: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """The greatest value of each window, as ``torch.nn.functional.max_pool2d``.

    NaN is greater than any number. Of equal values, and of NaNs, the first in row-major order is taken, and gets the
    gradient. Differentiable to every order; deterministic.

    Args:
        x: maps [n, c, rows, columns] or [c, rows, columns]; uint8, int8, int16, int32, int64, float16,
            bfloat16, float32 or float64. Only n may be 0.
        kernel_size: rows and columns of a window, one number or two.
        stride: from window to window; that of side by side if not given.
        padding: around the maps, at most half of ``kernel_size``; never the greatest.
        dilation: from pixel to pixel of a window.
        ceil_mode: a last window may hang over the far edge if it begins inside, or in the padding before it.
        return_indices: give the places of the maxima, too.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [n, c, (rows + 2 padding - dilation (kernel - 1) - 1) // stride + 1, ...], channels_last if ``x`` is; with
        ``return_indices`` also int64 places row * columns + column in the map, of the same shape.

    Raises:
        RuntimeError: no window fits, a window holds no pixel, or an argument makes no sense; the message names it.
        TypeError: the dtype is not supported.
        ValueError: the algorithm is unknown or not offered by the device.
    """
    stride = kernel_size if stride is None else stride
    windows = _pair(kernel_size), _pair(stride), _pair(padding), _pair(dilation), ceil_mode, algorithm
    values, indices = _max(x, *windows)
    return (values, indices) if return_indices else values


# ---- gradient formulas for torch.func; csrc/torch has the same in C++


def _subsample_backward(inputs, y, g):
    return *_subsample_grad(g, y, *inputs[2:]), None, None, None


def _subsample_grad_backward(inputs, outputs, into_x, into_bias):
    grad, y, size, activation, algorithm = inputs
    into = 0 if into_x is None else _avg(into_x, size, size, (0, 0), False, True, algorithm)
    if into_bias is not None:
        into = (into + into_bias[:, None, None]).expand(grad.shape)
    return *activation_double_backward(into, grad, y, activation, algorithm), None, None, None


def _avg_backward(inputs, y, g):
    x, *windows = inputs
    return _avg_grad(g, tuple(x.shape[-2:]), *windows), *(None,) * 6


def _avg_grad_backward(inputs, grad_x, g):
    _, _, *windows = inputs
    return _avg(g, *windows), *(None,) * 7


def _max_backward(inputs, outputs, g, _):
    x, *windows = inputs
    return _max_grad(g, outputs[1], tuple(x.shape[-2:]), *windows), *(None,) * 6


def _max_grad_backward(inputs, grad_x, g):
    _, indices, _, *windows = inputs
    return _max_tangent(g, indices, *windows), *(None,) * 8


def _max_tangent_backward(inputs, y, g):
    x, indices, *windows = inputs
    return _max_grad(g, indices, tuple(x.shape[-2:]), *windows), *(None,) * 7


_subsample = differentiable(_ops.subsample2d, _subsample_backward)
_subsample_grad = differentiable(_ops.subsample2d_backward, _subsample_grad_backward)
_avg = differentiable(_ops.avg_pool2d, _avg_backward)
_avg_grad = differentiable(_ops.avg_pool2d_backward, _avg_grad_backward)
_max = differentiable(_ops.max_pool2d, _max_backward)
_max_grad = differentiable(_ops.max_pool2d_backward, _max_grad_backward)
_max_tangent = differentiable(_ops.max_pool2d_tangent, _max_tangent_backward)


# ---- vmap: a batch of maps is more maps


def _register_vmap(name: str, tensors: int) -> None:
    """The rule for an operator whose first arguments are maps, and the others numbers."""
    op = getattr(_ops, name)

    def rule(info, in_dims, *args, **kwargs):
        size = info.batch_size
        maps = [fold(x, d, size, -3) for x, d in zip(args[:tensors], in_dims, strict=False)]
        out = op(*maps, *args[tensors:], **kwargs)
        if isinstance(out, tuple):
            return tuple(y.unflatten(-3, (size, -1)) for y in out), tuple(y.dim() - 3 for y in out)
        return out.unflatten(-3, (size, -1)), out.dim() - 3

    torch.library.register_vmap(f"torch_patterns::{name}", rule)


_register_vmap("avg_pool2d", 1)
_register_vmap("avg_pool2d_backward", 1)
_register_vmap("max_pool2d", 1)
_register_vmap("max_pool2d_backward", 2)
_register_vmap("max_pool2d_tangent", 2)


@torch.library.register_vmap("torch_patterns::subsample2d")
def _(info, in_dims, x, bias, *rest, **kwargs):
    size = info.batch_size
    out = _ops.subsample2d(fold(x, in_dims[0], size, -3), fold(bias, in_dims[1], size, -1), *rest, **kwargs)
    return out.unflatten(-3, (size, -1)), out.dim() - 3


@torch.library.register_vmap("torch_patterns::subsample2d_backward")
def _(info, in_dims, grad, y, *rest, **kwargs):
    size = info.batch_size
    maps = fold(grad, in_dims[0], size, -3), fold(y, in_dims[1], size, -3)
    grad_x, grad_bias = _ops.subsample2d_backward(*maps, *rest, **kwargs)
    return (grad_x.unflatten(-3, (size, -1)), grad_bias.unflatten(0, (size, -1))), (grad_x.dim() - 3, 0)
