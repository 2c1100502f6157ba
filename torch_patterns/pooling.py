"""Subsampling and pooling (PMPP §16.2, Fig. 16.7; exercise 16.1)."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from torch_patterns.arguments import pair as _pair
from torch_patterns.batching import fold, vmap_rule
from torch_patterns.calls import ops
from torch_patterns.literals import Activation
from torch_patterns.registry import documented

_ops = torch.ops.torch_patterns
Pair = int | tuple[int, int]


@documented("subsample2d")
def subsample2d(
    x: Tensor, bias: Tensor, size: Pair = 2, activation: Activation = "bipolar_sigmoid", *, algorithm: str = "auto"
) -> Tensor:
    """Computes the subsampling layer of LeNet-5 (Fig. 16.7): ``y = f(mean of the window + bias of the map)``.

    The windows do not overlap. Differentiable to every order; deterministic.

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

    Example:
        >>> x = torch.arange(8.0).view(1, 2, 2, 2)
        >>> tp.subsample2d(x, torch.tensor([0.0, 1.0]), activation="identity")
        tensor([[[[1.5000]],
        <BLANKLINE>
                 [[6.5000]]]])
    """
    return ops.subsample2d(x, bias, _pair(size), activation, algorithm)


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
    """Averages each window, as ``torch.nn.functional.avg_pool2d`` does. Differentiable to every order; deterministic.

    Args:
        x: maps [n, c, rows, columns] or [c, rows, columns]; float16, bfloat16, float32 or float64. Only n may be 0.
        kernel_size: rows and columns of a window, one number or two.
        stride: the distance between windows; by default ``kernel_size``, so that they do not overlap.
        padding: zeros around the maps, at most half of ``kernel_size``.
        ceil_mode: the last window may extend past the far edge if it begins inside the map or in the padding before it.
        count_include_pad: the mean counts the zeros of the padding (but never positions past the padding).
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [n, c, (rows + 2 padding - kernel) // stride + 1, ...], channels_last if ``x`` is. Half types are summed in
        float32.

    Raises:
        RuntimeError: no window fits, or an argument makes no sense; the message names it.
        TypeError: the dtype is not supported.
        ValueError: the algorithm is unknown or not offered by the device.

    Example:
        >>> tp.avg_pool2d(torch.arange(16.0).view(1, 1, 4, 4), 2)
        tensor([[[[ 2.5000,  4.5000],
                  [10.5000, 12.5000]]]])
    """
    stride = kernel_size if stride is None else stride
    return ops.avg_pool2d(x, _pair(kernel_size), _pair(stride), _pair(padding), ceil_mode, count_include_pad, algorithm)


@overload
def max_pool2d(
    x: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    algorithm: str = "auto",
) -> Tensor: ...
@overload
def max_pool2d(
    x: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]: ...
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
    """Computes the greatest value of each window, as ``torch.nn.functional.max_pool2d`` does.

    NaN is greater than any number. Of equal values, and of NaNs, the first in row-major order is the maximum and gets
    the gradient. Differentiable to every order; deterministic.

    Args:
        x: maps [n, c, rows, columns] or [c, rows, columns]; uint8, int8, int16, int32, int64, float16,
            bfloat16, float32 or float64. Only n may be 0.
        kernel_size: rows and columns of a window, one number or two.
        stride: the distance between windows; by default ``kernel_size``, so that they do not overlap.
        padding: around the maps, at most half of ``kernel_size``; it counts as less than every value.
        dilation: the distance between the pixels of a window.
        ceil_mode: the last window may extend past the far edge if it begins inside the map or in the padding before it.
        return_indices: also return the indices of the maxima.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [n, c, (rows + 2 padding - dilation (kernel - 1) - 1) // stride + 1, ...], channels_last if ``x`` is; with
        ``return_indices`` also indices row * columns + column in the map, int64, of the same shape.

    Raises:
        RuntimeError: no window fits, a window holds no pixel, or an argument makes no sense; the message names it.
        TypeError: the dtype is not supported.
        ValueError: the algorithm is unknown or not offered by the device.

    Example:
        >>> x = torch.arange(16.0).view(1, 1, 4, 4)
        >>> tp.max_pool2d(x, 2)
        tensor([[[[ 5.,  7.],
                  [13., 15.]]]])
        >>> tp.max_pool2d(x, 2, return_indices=True)[1]
        tensor([[[[ 5,  7],
                  [13, 15]]]])
    """
    stride = kernel_size if stride is None else stride
    windows = _pair(kernel_size), _pair(stride), _pair(padding), _pair(dilation), ceil_mode, algorithm
    values, indices = ops.max_pool2d(x, *windows, return_indices)
    return (values, indices) if return_indices else values


# ---- vmap: a batch of maps is more maps


def _register_vmap(name: str, tensors: int) -> None:
    """Registers the rule of an operator whose first ``tensors`` arguments are maps, and the others numbers."""
    op = getattr(_ops, name)

    def rule(info, in_dims, *args):
        size = info.batch_size
        maps = [fold(x, d, size, -3) for x, d in zip(args[:tensors], in_dims, strict=False)]
        out = op(*maps, *args[tensors:])
        if isinstance(out, tuple):
            return tuple(y.unflatten(-3, (size, -1)) for y in out), tuple(y.dim() - 3 for y in out)
        return out.unflatten(-3, (size, -1)), out.dim() - 3

    vmap_rule(name)(rule)


_register_vmap("avg_pool2d", 1)
_register_vmap("avg_pool2d_backward", 1)
_register_vmap("max_pool2d", 1)
_register_vmap("max_pool2d_backward", 2)
_register_vmap("max_pool2d_tangent", 2)


@vmap_rule("subsample2d")
def _(info, in_dims, x, bias, *rest):
    size = info.batch_size
    out = _ops.subsample2d(fold(x, in_dims[0], size, -3), fold(bias, in_dims[1], size, -1), *rest)
    return out.unflatten(-3, (size, -1)), out.dim() - 3


@vmap_rule("subsample2d_backward")
def _(info, in_dims, grad, y, *rest):
    size = info.batch_size
    maps = fold(grad, in_dims[0], size, -3), fold(y, in_dims[1], size, -3)
    grad_x, grad_bias = _ops.subsample2d_backward(*maps, *rest)
    return (grad_x.unflatten(-3, (size, -1)), grad_bias.unflatten(0, (size, -1))), (grad_x.dim() - 3, 0)
