"""Convolutional layers and their two transposes (PMPP chapter 16)."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.arguments import pair as _pair
from torch_patterns.batching import vmap_rule
from torch_patterns.calls import ops
from torch_patterns.registry import documented

_ops = torch.ops.torch_patterns
Pair = int | tuple[int, int]


@documented("conv2d")
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
) -> Tensor:
    """Computes the forward pass of a convolutional layer (Fig. 16.6; Fig. 16.12 over a minibatch).

    ``y[n, m, h, w] = bias[m] + sum over c, p, q of x[n, c, h s - pad + p d, w s - pad + q d] weight[m, c, p, q]``,
    where ``x`` counts as zero outside of its bounds. Differentiable to every order; deterministic.

    Args:
        x: input maps [n, c, rows, columns]; float16, bfloat16, float32 or float64.
        weight: filter banks [m, c / groups, kernel rows, kernel columns], of the same dtype.
        bias: [m], or None.
        stride, padding, dilation: one number, or one for rows and one for columns.
        groups: the number of groups into which input and output maps are divided; each output map reads the input maps
            of its own group only.
        algorithm: ``"auto"`` or one of the ladder below. ``winograd`` and ``fft`` compute with sums of neighbouring
            pixels, so rounding errors are relative to the tile of 4 x 4 pixels (winograd) or the image (fft), not to
            the products of one output; with ``fft``, a NaN spreads over its image. For filters of 3 x 3 without stride
            or dilation, ``"auto"`` uses Winograd's algorithm where it is faster: on CUDA in float32 for more than 32
            channels, on the CPU (within ``threaded``) for outputs and input gradients of 16 or more. It never chooses
            ``fft``, and stores an unrolled matrix only if that is no larger than the image.

    Returns:
        Output maps [n, m, (rows + 2 pad - d (kernel - 1) - 1) // s + 1, ...], channels_last if ``x`` is. Half types
        accumulate in float32; float32 is never computed in TF32. Under autocast it runs in the lower precision.

    Raises:
        RuntimeError: sizes, dtypes or devices do not fit; the message names them.
        ValueError: the algorithm is unknown or not offered by the device.
        TypeError: the dtype is not supported.

    Example:
        >>> x, weight = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2)
        >>> tp.conv2d(x, weight)
        tensor([[[[4., 4.],
                  [4., 4.]]]])
        >>> tp.conv2d(x, weight, stride=2, padding=1, algorithm="winograd").shape
        torch.Size([1, 1, 2, 2])
    """
    return ops.conv2d(x, weight, bias, _pair(stride), _pair(padding), _pair(dilation), groups, algorithm)


@documented("conv2d")
def conv2d_dgrad(
    grad: Tensor,
    weight: Tensor,
    input_size: tuple[int, int, int, int],
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
) -> Tensor:
    """Computes the gradient of :func:`conv2d` for its input (Fig. 16.10), which is the transposed convolution.

    Args:
        grad: gradient of the output maps [n, m, rows out, columns out]; float16, bfloat16, float32 or float64.
        weight: filter banks [m, c / groups, kernel rows, kernel columns], of the same dtype.
        input_size: the sizes [n, c, rows, columns] of the input.
        stride, padding, dilation, groups, algorithm: as in :func:`conv2d`.

    Returns:
        A tensor of ``input_size`` and the dtype of ``grad``, channels_last if ``grad`` is. Elements that no filter
        reads are exactly 0. Half types accumulate in float32. Differentiable to every order.

    Raises:
        RuntimeError: sizes, dtypes or devices do not fit; the message names them.
        ValueError: the algorithm is unknown or not offered by the device.
        TypeError: the dtype is not supported.

    Example:
        >>> grad, weight = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
        >>> tp.conv2d_dgrad(grad, weight, (1, 1, 3, 3))
        tensor([[[[1., 2., 1.],
                  [2., 4., 2.],
                  [1., 2., 1.]]]])
    """
    window = _pair(stride), _pair(padding), _pair(dilation), groups, algorithm
    return ops.conv2d_dgrad(grad, weight, input_size, *window)


@documented("conv2d")
def conv2d_wgrad(
    grad: Tensor,
    x: Tensor,
    kernel_size: Pair,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
) -> Tensor:
    """Computes the gradient of :func:`conv2d` for its filters (Fig. 16.11).

    Args:
        grad: gradient of the output maps [n, m, rows out, columns out]; float16, bfloat16, float32 or float64.
        x: input maps [n, c, rows, columns], of the same dtype.
        kernel_size: rows and columns of a filter, one number or two.
        stride, padding, dilation, groups, algorithm: as in :func:`conv2d`.

    Returns:
        [m, c / groups, kernel rows, kernel columns], of the dtype of ``grad``. Half types accumulate in float32.
        Differentiable to every order.

    Raises:
        RuntimeError: sizes, dtypes or devices do not fit; the message names them.
        ValueError: the algorithm is unknown or not offered by the device.
        TypeError: the dtype is not supported.

    Example:
        >>> grad, x = torch.ones(1, 1, 2, 2), torch.arange(9.0).view(1, 1, 3, 3)
        >>> tp.conv2d_wgrad(grad, x, kernel_size=2)
        tensor([[[[ 8., 12.],
                  [20., 24.]]]])
    """
    window = _pair(stride), _pair(padding), _pair(dilation), groups, algorithm
    return ops.conv2d_wgrad(grad, x, _pair(kernel_size), *window)


# ---- vmap: a batch of inputs becomes more images; if filters are batched, each sample becomes a group of its own


def _fold(t: Tensor, batch_dim: int, into: int) -> Tensor:
    """Merges the batch dimension into the front of dimension ``into`` of the unbatched tensor."""
    t = t.movedim(batch_dim, into)
    return t.reshape(*t.shape[:into], t.shape[into] * t.shape[into + 1], *t.shape[into + 2 :])


def _batched(t: Tensor, batch_dim: int | None, size: int, into: int) -> Tensor:
    if batch_dim is None:
        t, batch_dim = t.expand(size, *t.shape), 0
    return _fold(t, batch_dim, into)


def _unfold(t: Tensor, dim: int, size: int) -> Tensor:
    return t.unflatten(dim, (size, t.shape[dim] // size))


_window = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "algorithm": "auto"}


def _completed(window: tuple) -> tuple:
    return (*window, *list(_window.values())[len(window) :])


@vmap_rule("conv2d")
def _(info, in_dims, x, weight, bias=None, *window):
    size = info.batch_size
    *shape, groups, algorithm = _completed(window)
    if in_dims[1] is None and (bias is None or in_dims[2] is None):
        return _unfold(_ops.conv2d(_fold(x, in_dims[0], 0), weight, bias, *shape, groups, algorithm), 0, size), 0
    x, weight = _batched(x, in_dims[0], size, 1), _batched(weight, in_dims[1], size, 0)
    bias = None if bias is None else _batched(bias, in_dims[2], size, 0)
    return _unfold(_ops.conv2d(x, weight, bias, *shape, groups * size, algorithm), 1, size), 1


@vmap_rule("conv2d_dgrad")
def _(info, in_dims, grad, weight, input_size, *window):
    size = info.batch_size
    *shape, groups, algorithm = _completed(window)
    n, c, *image = input_size
    if in_dims[1] is None:
        sizes = (n * size, c, *image)
        return _unfold(
            _ops.conv2d_dgrad(_fold(grad, in_dims[0], 0), weight, sizes, *shape, groups, algorithm), 0, size
        ), 0
    grad, weight = _batched(grad, in_dims[0], size, 1), _batched(weight, in_dims[1], size, 0)
    sizes = (n, c * size, *image)
    return _unfold(_ops.conv2d_dgrad(grad, weight, sizes, *shape, groups * size, algorithm), 1, size), 1


@vmap_rule("conv2d_wgrad")
def _(info, in_dims, grad, x, kernel_size, *window):
    size = info.batch_size
    *shape, groups, algorithm = _completed(window)
    grad, x = _batched(grad, in_dims[0], size, 1), _batched(x, in_dims[1], size, 1)
    return _unfold(_ops.conv2d_wgrad(grad, x, kernel_size, *shape, groups * size, algorithm), 0, size), 0
