"""Convolution of channels-last images: what it gives for the same images map by map."""

import pytest
import torch
from common import EACH_DEVICE

from torch_patterns import conv2d

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)


def test_channels_last_is_read_as_it_lies(device):
    """Every pass gives what it gives map by map: few channels, groups, one pixel, padding, strides, dilation."""
    for c, m, groups, size, kernel, stride, padding, dilation in (
        (3, 20, 1, (9, 11), 3, 1, 1, 1),
        (4, 6, 2, (8, 7), 3, 2, 1, 1),
        (5, 5, 5, (6, 20), 3, 1, 1, 1),
        (6, 4, 2, (1, 1), 1, 1, 0, 1),
        (3, 40, 1, (12, 10), 5, 2, 2, 2),
        (8, 16, 1, (5, 33), 1, 3, 0, 1),
        (1, 3, 1, (1, 9), 1, 1, 0, 1),
    ):
        x = torch.randint(-5, 6, (2, c, *size)).to(device, torch.float32)
        w = torch.randint(-5, 6, (m, c // groups, kernel, kernel)).to(device, torch.float32)
        found = []
        for layout in (torch.contiguous_format, torch.channels_last):
            leaves = x.clone(memory_format=layout).requires_grad_(), w.clone().requires_grad_()
            y = conv2d(*leaves, None, stride, padding, dilation, groups)
            grad = (torch.arange(y.numel(), device=device) % 7 - 3).view(y.shape).to(y.dtype)
            found.append((y, *torch.autograd.grad(y, leaves, grad.contiguous(memory_format=layout))))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), (c, m, groups, size)
