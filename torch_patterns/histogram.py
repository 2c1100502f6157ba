"""Histograms."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_patterns.batching import loop
from torch_patterns.calls import ops
from torch_patterns.registry import documented

_ops = torch.ops.torch_patterns


@documented("histogram")
def histogram(
    x: Tensor, bins: int, *, min: float | None = None, max: float | None = None, algorithm: str = "auto"
) -> Tensor:
    """Counts the elements of ``x`` that fall in each bin (beyond the book's chapters 10 to 16).

    Integers and bools fall in the bin of their own number, from 0 on, as in ``torch.bincount``. Floats, and integers if
    ``min`` or ``max`` is given, fall in uniform bins of [min, max], as in ``torch.histc``: bin i reaches from edge i up
    to, but not including, edge i + 1, and the last bin includes ``max``. Edge i is ``min + i * (max - min) / bins``,
    each operation rounded to float64, and an element is compared with it exactly (int64 beyond 2^53 as its nearest
    float64). Elements outside the range, and NaN, are not counted.

    If ``min`` or ``max`` is not given, the least or the greatest finite element takes its place; it is found on the
    device, and the host does not wait. If ``min`` equals ``max``, the range is [min - 1, max + 1].

    The result is the same on every device, by every algorithm, and in every run. It has no gradient.

    Args:
        x: any shape; bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        bins: the number of bins; positive.
        min: the first edge; finite.
        max: the last edge; finite, not less than ``min``.
        algorithm: ``"auto"`` or one of the ladder below.

    Returns:
        [bins], int64.

    Raises:
        ValueError: ``bins`` is not positive, ``min`` is greater than ``max``, one of them is NaN or infinite, or
            ``algorithm`` is unknown or not offered by the device.
        TypeError: the dtype is not supported.

    Example:
        >>> tp.histogram(torch.tensor([0, 2, 2, 5]), bins=4)  # 5 lies outside
        tensor([1, 0, 2, 0])
        >>> tp.histogram(torch.tensor([0.0, 0.25, 1.0]), bins=2, min=0.0, max=1.0)
        tensor([2, 1])
    """
    return ops.histogram(x, bins, min, max, algorithm)


@torch.library.register_vmap("torch_patterns::histogram")
def _(info, in_dims, x, bins, min=None, max=None, algorithm="auto"):
    return loop(_ops.histogram, info, (*in_dims[:1], *(None,) * 4), x, bins, min, max, algorithm)
