"""Softmax cross-entropy, squared and absolute error."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from torch_patterns.testing.compare import gamma
from torch_patterns.testing.layers import as_integers
from torch_patterns.testing.pooling import bad_algorithm, ones
from torch_patterns.testing.spec import FLOATS, Sample, Spec, around, bad, case


def reduced(losses, reduction):
    return losses if reduction == "none" else losses.sum() / (losses.numel() if reduction == "mean" else 1)


def each(grad, reduction, count):
    return grad.double() / (count if reduction == "mean" else 1)


def labelled(case, make):
    """Logits and labels after the gradient, if the case has one."""
    *grad, logits = case.shapes
    labels = make.indices(logits[:1], logits[1])
    return Sample((*(make(g) for g in grad), make(logits), labels), dict(case.kwargs))


def cross_entropy_reference(logits, target, reduction="mean"):
    losses = F.cross_entropy(logits.double(), target, reduction="none") if logits.numel() else logits.double().sum(1)
    return reduced(losses, reduction)


def softmax_error(u, logits):
    """Bounds the error of log softmax: each exponential's argument has one rounding, and the sum has one per term."""
    wide = logits.double()
    spread = (wide.amax(1) - wide.amin(1)) if wide.shape[1] else wide.sum(1)
    return gamma(wide.shape[1] + 12, u) * (1 + spread + math.log(max(wide.shape[1], 1)))


def cross_entropy_bound(u, logits, target, reduction="mean"):
    error = softmax_error(u, logits)
    if reduction == "none":
        return error
    losses = cross_entropy_reference(logits, target, "none")
    return reduced(error + gamma(len(target) + 2, u) * (losses.abs() + error), reduction)


def no_label(device):
    return torch.ones(2, 3, device=device), torch.tensor([1, 3], dtype=torch.int32, device=device)


CROSS_ENTROPY = Spec(
    "cross_entropy",
    pattern="loss",
    reference=cross_entropy_reference,
    inputs=labelled,
    bound=cross_entropy_bound,
    exact=False,
    dtypes=FLOATS,
    samples=(case((3, 4)), case((2, 5), reduction="sum"), case((4, 3), reduction="none"), case((1, 1))),
    edges=(*(case((n, 10)) for n in around(256)), *(case((2, n), reduction="sum") for n in around(32, 256, 1024))),
    empty=(case((0, 4), reduction="none"), case((0, 4), reduction="sum")),
    grown=(case((3, 4)), case((5, 7))),
    special=(float("nan"),),
    autocast="float32",
    bad=(
        bad("labels", no_label, TypeError, "cross_entropy: target.*int64.*Int"),
        bad("rank", ones(3, 3), RuntimeError, r"cross_entropy: logits.*\[3\]"),
        bad(
            "target",
            lambda d: (torch.ones(2, 3, device=d), torch.zeros(3, dtype=torch.int64, device=d)),
            RuntimeError,
            r"cross_entropy: target.*\[2\].*\[3\]",
        ),
        bad("reduction", ones((2, 3), 2), ValueError, "cross_entropy: .*'most'.*mean, sum, none", reduction="most"),
    ),
    sized=lambda n: case((max(n // 10, 1), 10)),
    peers={"torch": F.cross_entropy},
)


def cross_entropy_backward_reference(grad, logits, target, reduction="mean"):
    g = each(grad, reduction, max(len(target), 1))
    g = g[:, None] if reduction == "none" else g
    hit = target[:, None] == torch.arange(logits.shape[1])
    return (logits.double().softmax(1) - hit.double()) * g


def cross_entropy_backward_bound(u, grad, logits, target, reduction="mean"):
    g = each(grad, reduction, max(len(target), 1)).abs()
    return 2 * softmax_error(u, logits)[:, None] * (g[:, None] if reduction == "none" else g)


CROSS_ENTROPY_BACKWARD = Spec(
    "cross_entropy_backward",
    pattern="loss",
    reference=cross_entropy_backward_reference,
    inputs=labelled,
    bound=cross_entropy_backward_bound,
    exact=False,
    dtypes=FLOATS,
    samples=(case((), (3, 4)), case((), (2, 5), reduction="sum"), case((4,), (4, 3), reduction="none")),
    edges=(
        *(case((), (n, 10)) for n in around(256)),
        *(case((2,), (2, n), reduction="none") for n in around(32, 256, 1024)),
    ),
    empty=(case((), (0, 4), reduction="sum"), case((0,), (0, 4), reduction="none")),
    grown=(case((), (3, 4)), case((), (5, 7))),
    special=(float("nan"),),
    bad=(
        bad(
            "grad",
            lambda d: (*ones(3, (2, 3))(d), torch.zeros(2, dtype=torch.int64, device=d)),
            RuntimeError,
            r"grad.*\[2\].*\[3\]",
            reduction="none",
        ),
    ),
    sized=lambda n: case((), (max(n // 10, 1), 10)),
)

ERRORS = {
    "squared_error": (
        lambda d: d * d / 2,
        lambda d: d,
        lambda y, t, reduction="mean": F.mse_loss(y, t, reduction=reduction) / 2,
    ),
    "absolute_error": (torch.abs, torch.sign, F.l1_loss),
}


def error(name: str) -> Spec:
    loss, _, peer = ERRORS[name]

    def reference(y, t, reduction="mean"):
        return reduced(loss(y.double() - t.double()), reduction)

    def bound(u, y, t, reduction="mean"):
        return gamma(4 + (y.numel() if reduction != "none" else 0), u) * reference(y, t, reduction)

    return Spec(
        name,
        pattern="loss",
        reference=reference,
        bound=bound,
        dtypes=FLOATS,
        samples=(
            case((2, 4), (2, 4)),
            case((3, 2), (3, 2), reduction="sum"),
            case((5,), (5,), reduction="none"),
            case((), ()),
        ),
        edges=tuple(case((n,), (n,)) for n in (*around(256, 8192), 256 * 256 + 1)),
        empty=(case((3, 0), (3, 0), reduction="none"), case((0,), (0,), reduction="sum")),
        grown=(case((2, 4), (2, 4)), case((5, 7), (5, 7))),
        autocast="float32",
        bad=(
            bad("shapes", ones((2, 4), 4), RuntimeError, rf"{name}: y.*\[2, 4\].*t.*\[4\]"),
            bad("dtype", as_integers(3, 3), TypeError, f"{name}: y.*Int"),
            bad(
                "dtypes", lambda d: (torch.ones(3, device=d), torch.ones(3, device=d).half()), TypeError, "Float.*Half"
            ),
            bad("reduction", ones(3, 3), ValueError, f"{name}: .*'most'.*mean, sum, none", reduction="most"),
            bad_algorithm(name, 3, 3),
        ),
        sized=lambda n: case((n,), (n,)),
        peers={"torch": peer},
    )


def error_backward(name: str) -> Spec:
    _, slope, _ = ERRORS[name]

    def reference(grad, y, t, reduction="mean"):
        return each(grad, reduction, max(y.numel(), 1)) * slope(y.double() - t.double())

    return Spec(
        f"{name}_backward",
        pattern="loss",
        reference=reference,
        bound=lambda u, grad, y, t, **how: gamma(4, u) * reference(grad, y, t, **how).abs(),
        exact=False,  # a mean divides by any number
        dtypes=FLOATS,
        samples=(
            case((), (2, 4), (2, 4)),
            case((), (3, 2), (3, 2), reduction="sum"),
            case((5,), (5,), (5,), reduction="none"),
        ),
        edges=tuple(case((), (n,), (n,)) for n in around(256)),
        empty=(case((), (0,), (0,), reduction="sum"), case((0,), (0,), (0,), reduction="none")),
        grown=(case((), (2, 4), (2, 4)), case((), (5, 7), (5, 7))),
        bad=(
            bad("grad", ones(3, 4, 4), RuntimeError, r"grad.*\[4\].*\[3\]", reduction="none"),
            bad_algorithm(f"{name}_backward", (), 3, 3),
        ),
        sized=lambda n: case((), (n,), (n,)),
    )


SPECS = [CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, *map(error, ERRORS), *map(error_backward, ERRORS)]
