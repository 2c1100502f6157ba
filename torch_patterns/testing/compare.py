"""Comparisons that name the first wrong element: exact, bit for bit, or within a proven bound, never by tolerances."""

from __future__ import annotations

import torch

UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.float64: 2.0**-1074, torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}


def unit_roundoff(dtype: torch.dtype) -> float:
    """Returns the unit roundoff of a dtype's arithmetic; half types accumulate in float32."""
    return UNIT_ROUNDOFF[torch.float64 if dtype == torch.float64 else torch.float32]


def gamma(k, u: float):
    """Returns k u / (1 - k u), the greatest relative error of k roundings (Higham, lemma 3.1)."""
    return k * u / (1 - k * u)


def tensors_of(out) -> tuple[torch.Tensor, ...]:
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def round_to(expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds `expected` once, as a kernel must that computes it exactly."""
    return expected.to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().unsqueeze(-1).view(torch.uint8).reshape(-1)  # sizes of 1 may have any stride


def _report(where: str, wrong: torch.Tensor, got: torch.Tensor, expected: torch.Tensor, limit=None) -> None:
    """Raises the AssertionError for the first wrong element."""
    first = tuple(wrong.nonzero()[0].tolist())
    message = f"{where}: element {list(first)} is {got[first].item()!r}, expected {expected[first].item()!r}"
    if limit is not None:
        message += f" within {limit[first].item():.3g}"
    raise AssertionError(f"{message}; {int(wrong.sum())} of {wrong.numel()} wrong")


def _same_shape(got: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    assert got.shape == expected.shape, f"{where}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"


def assert_equal(out, expected, where: str = "") -> None:
    """Asserts equal values, and NaN where it is expected. `expected` is rounded to the dtype of `out`; it may be on the
    CPU."""
    for got, want in zip(tensors_of(out), tensors_of(expected), strict=True):
        _same_shape(got, want, where)
        want = round_to(want, got.dtype).to(got.device)
        if torch.equal(got, want):
            continue
        wrong = (got != want) & ~((got != got) & (want != want))
        if wrong.any():
            _report(where, wrong, got, want)


def assert_same_bits(out, expected, where: str = "") -> None:
    """Asserts equal dtypes, shapes and bytes."""
    for got, want in zip(tensors_of(out), tensors_of(expected), strict=True):
        assert got.dtype == want.dtype, f"{where}: {got.dtype}, expected {want.dtype}"
        _same_shape(got, want, where)
        if not torch.equal(bits(got), bits(want)):
            wrong = (bits(got) != bits(want)).reshape(*got.shape, -1).any(-1)
            _report(f"{where}: not the same bits", wrong, got, want)


def assert_within(out, expected, bound, where: str = "") -> None:
    """Asserts |out - expected| <= bound, plus the rounding to the dtype of `out`; infinities and NaN must be equal."""
    for got, want, limit in zip(tensors_of(out), tensors_of(expected), tensors_of(bound), strict=True):
        if not got.is_floating_point():
            assert_equal(got, want, where)
            continue
        _same_shape(got, want, where)
        value, want = got.detach().cpu().double(), want.double()
        limit = limit.double() + UNIT_ROUNDOFF[got.dtype] * (want.abs() + limit) + SMALLEST[got.dtype]
        wrong = (value - want).abs() > limit
        same = (value == want) | (value.isnan() & want.isnan())
        wrong = torch.where(want.isfinite(), wrong | value.isnan(), ~same)
        if wrong.any():
            _report(where, wrong, value, want, limit)
