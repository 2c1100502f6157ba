"""The fully connected layer, activations and Gaussian outputs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from torch_patterns.testing.compare import gamma
from torch_patterns.testing.pooling import ACTIVATIONS, SLOPES, bad_algorithm, ones
from torch_patterns.testing.spec import FLOATS, Spec, around, bad, case


def as_integers(*shapes):
    return lambda device: tuple(x.int() for x in ones(*shapes)(device))


# ---- linear and its two gradients


def linear_reference(x, weight, bias=None):
    y = x.double() @ weight.double().T
    return y if bias is None else y + bias.double()


def linear_bound(u, x, weight, bias=None):
    sizes = [None if t is None else t.double().abs() for t in (x, weight, bias)]
    return gamma(x.shape[-1] + 1, u) * linear_reference(*sizes)


LINEAR = Spec(
    "linear",
    reference=linear_reference,
    bound=linear_bound,
    dtypes=FLOATS,
    samples=(
        case((3, 5), (4, 5), (4,)),
        case((2, 3, 5), (4, 5)),
        case((5,), (4, 5), (4,)),
        case((1, 1), (1, 1), (1,)),
    ),
    edges=(
        *(case((5, n), (3, n), (3,)) for n in around(8, 64, 256)),
        case((65, 30), (84, 30), (84,)),
        case((3, 600), (2, 600)),
    ),
    empty=(case((0, 5), (4, 5), (4,)), case((3, 0), (4, 0), (4,)), case((3, 5), (0, 5), (0,)), case((2, 0), (3, 0))),
    grown=(case((3, 5), (4, 5), (4,)), case((6, 7), (8, 7), (8,))),
    autocast="lower",
    bad=(
        bad("inner", ones((3, 5), (4, 6)), RuntimeError, r"linear: .*x.*6.*\[4, 6\].*\[3, 5\]"),
        bad("weight", ones((3, 5), (5,)), RuntimeError, r"linear: weight.*\[5\]"),
        bad("bias", ones((3, 5), (4, 5), (5,)), RuntimeError, r"linear: bias.*\[4\].*\[5\]"),
        bad("dtype", as_integers((3, 5), (4, 5)), TypeError, "linear: x.*Int"),
        bad(
            "dtypes",
            lambda d: (torch.ones(3, 5, device=d), torch.ones(4, 5, device=d).half()),
            TypeError,
            "Float.*Half",
        ),
        bad_algorithm("linear", (3, 5), (4, 5)),
    ),
    sized=lambda n: case((math.isqrt(n),) * 2, (math.isqrt(n),) * 2, (math.isqrt(n),)),
    named={"F6 of LeNet-5, batch 256": case((256, 120), (84, 120), (84,))},
    peers={"torch": F.linear},
    flops=lambda sample, y: 2 * y.numel() * sample.args[0].shape[-1],
)

LINEAR_DGRAD = Spec(
    "linear_dgrad",
    pattern="linear",
    reference=lambda grad, weight: grad.double() @ weight.double(),
    bound=lambda u, grad, weight: gamma(weight.shape[0] + 1, u) * (grad.double().abs() @ weight.double().abs()),
    dtypes=FLOATS,
    samples=(case((3, 4), (4, 5)), case((2, 3, 4), (4, 5)), case((4,), (4, 5))),
    edges=tuple(case((5, n), (n, 3)) for n in around(256)),
    empty=(case((0, 4), (4, 5)), case((3, 0), (0, 5))),
    grown=(case((3, 4), (4, 5)), case((6, 7), (7, 8))),
    bad=(bad("inner", ones((3, 5), (4, 5)), RuntimeError, r"linear_dgrad: .*grad.*4.*\[3, 5\]"),),
    sized=lambda n: case((math.isqrt(n),) * 2, (math.isqrt(n),) * 2),
)


def flat(x):
    """All dimensions but the last as one, in float64."""
    return x.double().reshape(math.prod(x.shape[:-1]), x.shape[-1])


LINEAR_WGRAD = Spec(
    "linear_wgrad",
    pattern="linear",
    reference=lambda grad, x: flat(grad).T @ flat(x),
    bound=lambda u, grad, x: gamma(flat(x).shape[0] + 1, u) * (flat(grad).abs().T @ flat(x).abs()),
    dtypes=FLOATS,
    samples=(case((3, 4), (3, 5)), case((2, 3, 4), (2, 3, 5)), case((4,), (5,))),
    edges=tuple(case((n, 5), (n, 3)) for n in around(256)),
    empty=(case((0, 4), (0, 5)), case((3, 0), (3, 5))),
    grown=(case((3, 4), (3, 5)), case((6, 7), (6, 8))),
    bad=(bad("batch", ones((3, 4), (2, 5)), RuntimeError, r"linear_wgrad: .*\[3, 4\].*\[2, 5\]"),),
    sized=lambda n: case((math.isqrt(n),) * 2, (math.isqrt(n),) * 2),
)


# ---- activations


def activation(name: str, exact: bool) -> Spec:
    f = ACTIVATIONS[name]
    return Spec(
        name,
        pattern="activation",
        reference=lambda x: f(x.double()),
        bound=lambda u, x: 8 * u * f(x.double()).abs(),
        exact=exact,
        dtypes=FLOATS,
        samples=(case((9,)), case((2, 3, 4)), case(())),
        edges=tuple(case((n,)) for n in around(256, 4096)),
        empty=(case((0,)), case((3, 0))),
        grown=(case((3, 4)), case((5, 7))),
        bad=(bad("dtype", as_integers(3), TypeError, f"{name}: x.*Int"), bad_algorithm(name, 3)),
        sized=lambda n: case((n,)),
        peers={"torch": lambda x: torch.tanh(x / 2)} if name == "bipolar_sigmoid" else {"torch": getattr(torch, name)},
    )


ACTIVATION_BACKWARD = Spec(
    "activation_backward",
    pattern="activation",
    reference=lambda grad, y, activation: grad.double() * SLOPES[activation](y.double()),
    bound=lambda u, grad, y, activation: gamma(4, u) * grad.double().abs() * (1 + y.double() ** 2),
    dtypes=FLOATS,
    samples=tuple(case((2, 5), (2, 5), activation=name) for name in ACTIVATIONS),
    edges=tuple(case((n,), (n,), activation="tanh") for n in around(256)),
    empty=(case((0,), (0,), activation="relu"),),
    grown=(case((3, 4), (3, 4), activation="tanh"), case((5, 7), (5, 7), activation="tanh")),
    special=(float("nan"),),  # an infinite y is no activation's value but relu's
    bad=(
        bad("activation", ones(3, 3), ValueError, "'elu'.*tanh", activation="elu"),
        bad("shapes", ones(3, 4), RuntimeError, r"\[3\].*\[4\]", activation="relu"),
        bad_algorithm("activation_backward", 3, 3, activation="relu"),
    ),
    sized=lambda n: case((n,), (n,), activation="tanh"),
)


# ---- Gaussian outputs


def distances(x, centres):
    return ((x.double()[:, None] - centres.double()[None]) ** 2).sum(-1)


def rbf_reference(x, centres, sigma):
    return torch.exp(-distances(x, centres) / (2 * sigma**2))


def least(u) -> float:
    """Returns the smallest number of the dtype with this unit roundoff, an error that every result may have."""
    return 2.0**-149 if u > 2**-50 else 2.0**-1074


def rbf_bound(u, x, centres, sigma):
    """The absolute error of an exponential's argument is the relative error of the exponential."""
    argument = distances(x, centres) / (2 * sigma**2)
    return (gamma(x.shape[1] + 6, u) * argument + 8 * u) * torch.exp(-argument) + 2 * least(u)


RBF = Spec(
    "rbf",
    reference=rbf_reference,
    bound=rbf_bound,
    exact=False,
    dtypes=FLOATS,
    samples=(case((3, 4), (2, 4), sigma=2.0), case((1, 1), (1, 1), sigma=0.5), case((4, 5), (3, 5), sigma=8.0)),
    edges=tuple(case((3, n), (5, n), sigma=math.sqrt(n) * 2) for n in around(256)),
    empty=(case((0, 4), (2, 4), sigma=1.0), case((3, 4), (0, 4), sigma=1.0), case((3, 0), (2, 0), sigma=1.0)),
    grown=(case((3, 4), (2, 4), sigma=2.0), case((5, 7), (6, 7), sigma=2.0)),
    autocast="float32",
    bad=(
        bad("sigma", ones((3, 4), (2, 4)), ValueError, "rbf: sigma.*0", sigma=0.0),
        bad("nan", ones((3, 4), (2, 4)), ValueError, "rbf: sigma.*nan", sigma=float("nan")),
        bad("features", ones((3, 4), (2, 5)), RuntimeError, r"rbf: .*\[3, 4\].*\[2, 5\]", sigma=1.0),
        bad("dtype", as_integers((3, 4), (2, 4)), TypeError, "rbf: x.*Int", sigma=1.0),
        bad_algorithm("rbf", (3, 4), (2, 4), sigma=1.0),
    ),
    sized=lambda n: case((max(n // 84, 1), 84), (10, 84), sigma=4.0),
)


def rbf_backward_reference(grad, x, centres, sigma):
    pull = grad.double() * rbf_reference(x, centres, sigma) / sigma**2
    apart = centres.double()[None] - x.double()[:, None]
    return torch.einsum("nc,ncd->nd", pull, apart), -torch.einsum("nc,ncd->cd", pull, apart)


def rbf_backward_bound(u, grad, x, centres, sigma):
    relative = gamma(x.shape[1] + 6, u) * distances(x, centres) / (2 * sigma**2)
    relative = relative + gamma(12 + x.shape[0] + centres.shape[0], u)
    pull = relative * grad.double().abs() * rbf_reference(x, centres, sigma) / sigma**2
    pull = pull + least(u) * (2 * grad.double().abs() + 2) * (1 + 1 / sigma**2)
    apart = (centres.double()[None] - x.double()[:, None]).abs()
    by_point, by_centre = torch.einsum("nc,ncd->nd", pull, apart), torch.einsum("nc,ncd->cd", pull, apart)
    return by_point + least(u) * centres.shape[0], by_centre + least(u) * x.shape[0]  # every term may underflow


RBF_BACKWARD = Spec(
    "rbf_backward",
    pattern="rbf",
    reference=rbf_backward_reference,
    bound=rbf_backward_bound,
    exact=False,
    dtypes=FLOATS,
    samples=(
        case((3, 2), (3, 4), (2, 4), sigma=2.0),
        case((1, 1), (1, 1), (1, 1), sigma=0.5),
        case((4, 3), (4, 5), (3, 5), sigma=8.0),
    ),
    edges=(case((300, 3), (300, 2), (3, 2), sigma=4.0), case((2, 270), (2, 3), (270, 3), sigma=4.0)),
    empty=(case((0, 2), (0, 4), (2, 4), sigma=1.0), case((3, 0), (3, 4), (0, 4), sigma=1.0)),
    grown=(case((3, 2), (3, 4), (2, 4), sigma=2.0), case((5, 6), (5, 7), (6, 7), sigma=2.0)),
    bad=(bad("grad", ones((2, 3), (3, 4), (2, 4)), RuntimeError, r"grad.*\[3, 2\].*\[2, 3\]", sigma=1.0),),
    sized=lambda n: case((max(n // 84, 1), 10), (max(n // 84, 1), 84), (10, 84), sigma=4.0),
)


SPECS = [
    LINEAR,
    LINEAR_DGRAD,
    LINEAR_WGRAD,
    activation("bipolar_sigmoid", exact=False),
    activation("tanh", exact=False),
    activation("relu", exact=True),
    activation("sign", exact=True),
    ACTIVATION_BACKWARD,
    RBF,
    RBF_BACKWARD,
]
