"""What is special to the small layers: labels that are no class, huge logits, roundings, long sums, corners."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from common import EACH_DEVICE

import torch_patterns as tp
from torch_patterns import cross_entropy, linear, rbf, registry
from torch_patterns.testing import FLOATS, assert_equal, assert_same_bits

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)
INF, NAN = float("inf"), float("nan")
ACTIVATIONS = ("bipolar_sigmoid", "tanh", "relu", "sign")
ERRORS = ("squared_error", "absolute_error")


def algorithms(pattern: str, device: str) -> list[str]:
    return ["auto", *registry.algorithms(pattern, device)]


# ---- the fully connected layer


def test_a_perceptron(device):
    """Fig. 16.1: w = (2, 3), b = -6; and the two-layer one of Fig. 16.2, which classifies (0.55, 0.65) right."""
    x = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 0.0]], device=device)
    for algorithm in algorithms("linear", device):
        k = linear(
            x, torch.tensor([[2.0, 3.0]], device=device), torch.tensor([-6.0], device=device), algorithm=algorithm
        )
        assert tp.sign(k).flatten().tolist() == [-1, 1, 0]


def test_half_types_round_once(device):
    """The product alone would round to 2048, and the sum of two roundings would be another number."""
    x, weight = torch.tensor([[1.0, 1.0]], device=device), torch.tensor([[2048.0, 1.0]], device=device)
    bias = torch.tensor([1.0], device=device)
    for algorithm in algorithms("linear", device):
        y = linear(x.half(), weight.half(), bias.half(), algorithm=algorithm)
        assert y.item() == 2050.0, algorithm
        y = linear(x.bfloat16(), weight.bfloat16() / 8, bias.bfloat16(), algorithm=algorithm)
        assert y.item() == 258.0, algorithm


def test_float32_is_not_computed_in_tf32(device):
    x = torch.full((64, 64), 1 + 2.0**-12, device=device)
    eye = torch.eye(64, device=device)
    for algorithm in algorithms("linear", device):
        assert_same_bits(linear(x, eye, algorithm=algorithm), x, algorithm)


def test_long_sums_do_not_lose_small_terms(device):
    """2^24 and then 2^16 ones: one running float32 sum would stop at 2^24."""
    x = torch.ones(1, 2**16 + 1, device=device)
    x[0, 0] = 2.0**24
    for algorithm in algorithms("linear", device):
        error = linear(x, torch.ones_like(x), algorithm=algorithm).item() - (2**24 + 2**16)
        assert abs(error) <= 2**14, algorithm
    for name, algorithm in itertools.product(ERRORS, algorithms("loss", device)):
        y = x.flatten() if name == "absolute_error" else (2 * x.flatten()).sqrt()
        error = getattr(tp, name)(y, torch.zeros_like(y), "sum", algorithm=algorithm).item() - (2**24 + 2**16)
        assert abs(error) <= 2**10, (name, algorithm)


def test_views_and_many_dimensions(device):
    x = torch.randint(-9, 10, (3, 4, 5, 6), device=device).float()
    weight = torch.randint(-9, 10, (6, 7), device=device).float().T
    for algorithm in algorithms("linear", device):
        assert_equal(linear(x.transpose(0, 2), weight, algorithm=algorithm), x.transpose(0, 2) @ weight.T)


def test_many_rows_of_few_inputs(device):
    """Tiles with and without columns and rows to spare, a last vector of inputs, and rows apart in memory."""
    random = torch.Generator().manual_seed(3)
    integers = lambda *size: torch.randint(-4, 5, size, generator=random).float()  # noqa: E731
    for rows, inner, columns in ((1500, 120, 84), (4100, 4, 33), (1025, 128, 127), (70, 36, 1400), (1400, 37, 96)):
        x, weight, bias = integers(rows, inner + 4), integers(columns, inner), integers(columns)
        want = x[:, :inner].double() @ weight.double().T
        for algorithm in algorithms("linear", device):
            apart = x.to(device)[:, :inner]
            assert_equal(linear(apart, weight.to(device), algorithm=algorithm), want, algorithm)
            y = linear(apart.contiguous(), weight.to(device), bias.to(device), algorithm=algorithm)
            assert_equal(y, want + bias.double(), algorithm)


def test_a_nan_reaches_only_what_reads_it(device):
    """Tiles padded with zeros, and slices of a long inner dimension, keep the rows and columns of others clean."""
    for rows, inner, columns in ((5, 7, 6), (70, 9000, 3), (130, 40, 68), (1030, 40, 130)):
        x, weight = torch.ones(rows, inner, device=device), torch.ones(columns, inner, device=device)
        x[1, inner - 1] = weight[2, 0] = NAN
        want = torch.full((rows, columns), float(inner))
        want[1] = want[:, 2] = NAN
        for algorithm in algorithms("linear", device):
            assert_equal(linear(x, weight, algorithm=algorithm), want, algorithm)


# ---- activations


def test_activations_at_their_ends_and_corners(device):
    x = torch.tensor([-INF, -100.0, -0.0, 0.0, 100.0, INF, NAN], device=device)
    want = {
        "bipolar_sigmoid": [-1, -1, -0.0, 0, 1, 1, NAN],
        "tanh": [-1, -1, -0.0, 0, 1, 1, NAN],
        "relu": [0, 0, -0.0, 0, 100, INF, NAN],
        "sign": [-1, -1, -0.0, 0, 1, 1, NAN],
    }
    for name, algorithm, dtype in itertools.product(ACTIVATIONS, algorithms("activation", device), FLOATS):
        y = getattr(tp, name)(x.to(dtype), algorithm=algorithm)
        assert_equal(y, torch.tensor(want[name]), f"{name} {algorithm} {dtype}")


def test_activations_are_accurate_everywhere(device):
    """Within three units in the last place of float32, from the smallest subnormal on; odd."""
    x = torch.logspace(-45, 2, 100_000, dtype=torch.float64).float().to(device)
    for name, algorithm in itertools.product(("bipolar_sigmoid", "tanh"), algorithms("activation", device)):
        y, wide = getattr(tp, name)(x, algorithm=algorithm), x.double() / (2 if name == "bipolar_sigmoid" else 1)
        exact = torch.tanh(wide)
        ulp = torch.exp2(torch.floor(torch.log2(exact.clamp(min=2.0**-126))) - 23)
        assert ((y.double() - exact).abs() / ulp).max() <= 3, (name, algorithm)
        assert_same_bits(getattr(tp, name)(-x, algorithm=algorithm), -y)


def test_gradients_at_corners(device):
    x = torch.tensor([-1.0, 0.0, 2.0, NAN], device=device, requires_grad=True)
    for algorithm in algorithms("activation", device):
        g = torch.tensor([INF, INF, 5.0, 7.0], device=device)
        assert torch.autograd.grad(tp.relu(x, algorithm=algorithm), x, g)[0].tolist() == [0, 0, 5, 7]
        assert torch.autograd.grad(tp.sign(x, algorithm=algorithm), x, g)[0].tolist() == [0, 0, 0, 0]


def test_bipolar_sigmoid_and_its_slope_are_those_of_the_book(device):
    """(1 - e^-k) / (1 + e^-k) and 2 e^-k / (1 + e^-k)^2, §16.1."""
    k = torch.linspace(-20, 20, 101, dtype=torch.float64, device=device, requires_grad=True)
    e = torch.exp(-k.detach())
    y = tp.bipolar_sigmoid(k)
    torch.testing.assert_close(y, (1 - e) / (1 + e), rtol=0, atol=1e-15)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), k)[0], 2 * e / (1 + e) ** 2, rtol=0, atol=1e-15)


# ---- losses


@pytest.mark.parametrize("label", [10, -1, -100, 2**40])
def test_labels_that_are_no_class(label, device):
    """The CPU names the position and the value; CUDA makes that loss NaN, its gradient 0, and reads nothing outside."""
    logits = torch.randn(4, 10, device=device, requires_grad=True)
    target = torch.tensor([3, 9, label, 0], device=device)
    for algorithm in algorithms("loss", device):
        if device == "cpu":
            with pytest.raises(IndexError, match=rf"cross_entropy: target\[2\] is {label}; .*10 classes.*0 to 9"):
                cross_entropy(logits, target, algorithm=algorithm)
            continue
        losses = cross_entropy(logits, target, "none", algorithm=algorithm)
        assert losses.isnan().tolist() == [False, False, True, False]
        grads = torch.autograd.grad(losses, logits, torch.ones_like(losses))[0]
        assert grads[2].eq(0).all() and grads[0].ne(0).any()
        assert cross_entropy(logits, target, algorithm=algorithm).isnan()


def test_uniform_logits(device):
    for algorithm, value, dtype in itertools.product(algorithms("loss", device), (0.0, 1000.0, -1000.0), FLOATS):
        logits = torch.full((5, 10), value, dtype=dtype, device=device)
        loss = cross_entropy(logits, torch.arange(5, device=device), algorithm=algorithm)
        assert_equal(loss, torch.tensor(math.log(10), dtype=torch.float64).to(dtype), f"{algorithm} {value}")


def test_large_and_infinite_logits(device):
    logits = torch.tensor([[1e38, -1e38, 0.0], [-INF, 0.0, 0.0], [5000.0, 5001.0, 4000.0]], device=device)
    logits.requires_grad_()
    target = torch.tensor([0, 1, 1], device=device)
    for algorithm in algorithms("loss", device):
        losses = cross_entropy(logits, target, "none", algorithm=algorithm)
        want = F.cross_entropy(logits.double(), target, reduction="none")
        torch.testing.assert_close(losses.double(), want, rtol=1e-6, atol=0)
        grads = torch.autograd.grad(losses.sum(), logits)[0]
        assert grads.isfinite().all() and grads.sum(1).abs().max() <= 1e-6


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_numbers_of_rows_and_classes(dtype, device):
    """Neither the loss of a row nor its gradient depends on the rows beside it."""
    for rows, classes in itertools.product((1, 15, 16, 17, 33), (1, 2, 15, 16, 17, 31, 32, 100, 127, 128, 129)):
        logits = (torch.arange(rows * classes) * 7 % 13 / 4).view(rows, classes).to(device, dtype).requires_grad_()
        target = torch.arange(rows, device=device) * 5 % classes
        losses = cross_entropy(logits, target, "none")
        (grads,) = torch.autograd.grad(losses.sum(), logits)
        exact = logits.detach().double().requires_grad_()
        want = F.cross_entropy(exact, target, reduction="none")
        tolerance = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(losses.double(), want, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(
            grads.double(), torch.autograd.grad(want.sum(), exact)[0], rtol=tolerance, atol=tolerance
        )
        alone = logits[-1:].detach().requires_grad_()
        loss = cross_entropy(alone, target[-1:], "none")
        assert_same_bits(loss, losses[-1:], (rows, classes))
        assert_same_bits(torch.autograd.grad(loss.sum(), alone)[0], grads[-1:], (rows, classes))


def test_nan_is_not_hidden(device):
    logits = torch.zeros(3, 4, device=device)
    logits[1, 2] = NAN
    target = torch.zeros(3, dtype=torch.int64, device=device)
    for algorithm in algorithms("loss", device):
        assert cross_entropy(logits, target, "none", algorithm=algorithm).isnan().tolist() == [False, True, False]
        assert cross_entropy(logits, target, algorithm=algorithm).isnan()
        for name in ERRORS:
            assert getattr(tp, name)(logits, torch.zeros_like(logits), algorithm=algorithm).isnan()


def test_the_mean_of_nothing_is_nan_and_its_gradient_empty(device):
    for algorithm in algorithms("loss", device):
        logits = torch.empty(0, 4, device=device, requires_grad=True)
        loss = cross_entropy(logits, torch.empty(0, dtype=torch.int64, device=device), algorithm=algorithm)
        assert loss.isnan() and torch.autograd.grad(loss, logits)[0].shape == (0, 4)
        for name in ERRORS:
            y = torch.empty(0, device=device, requires_grad=True)
            loss = getattr(tp, name)(y, y.detach(), algorithm=algorithm)
            assert loss.isnan() and torch.autograd.grad(loss, y)[0].shape == (0,)


def test_half_losses_are_summed_before_they_are_rounded(device):
    """4,096 losses of 1 + 2^-10: their float16 sum is beyond what float16 additions reach, their mean is exact."""
    y = torch.full((4096,), 1 + 2.0**-10, dtype=torch.float16, device=device)
    for algorithm in algorithms("loss", device):
        mean = tp.absolute_error(y, torch.zeros_like(y), algorithm=algorithm)
        assert mean.item() == 1 + 2.0**-10 and mean.dtype == torch.float16
        assert tp.absolute_error(y, torch.zeros_like(y), "sum", algorithm=algorithm).item() == 4100


def test_gradients_of_errors(device):
    """dE/dy = y - t (§16.1), and the opposite for t; the absolute error has none where they are equal."""
    y = torch.tensor([1.0, 2.0, 5.0], device=device, requires_grad=True)
    t = torch.tensor([3.0, 2.0, 1.0], device=device, requires_grad=True)
    for algorithm in algorithms("loss", device):
        grads = torch.autograd.grad(tp.squared_error(y, t, "sum", algorithm=algorithm), (y, t))
        assert [g.tolist() for g in grads] == [[-2, 0, 4], [2, 0, -4]]
        grads = torch.autograd.grad(tp.absolute_error(y, t, "sum", algorithm=algorithm), (y, t))
        assert [g.tolist() for g in grads] == [[-1, 0, 1], [1, 0, -1]]


# ---- Gaussian outputs


def test_rbf_at_its_centre_and_far_away(device):
    centres = torch.tensor([[1.0, -1.0], [1e30, 0.0]], device=device)
    for algorithm in algorithms("rbf", device):
        y = rbf(centres[:1], centres, 0.5, algorithm=algorithm)
        assert y.tolist() == [[1, 0]]
        x = centres[:1].clone().requires_grad_()
        grads = torch.autograd.grad(rbf(x, centres[:1], 0.5, algorithm=algorithm).sum(), x)[0]
        assert grads.eq(0).all()


# ---- LeNet-5's dense part against torch.nn, in float64


def test_gradients_are_those_of_torch(device):
    torch.manual_seed(1)
    x = torch.randn(32, 120, dtype=torch.float64, device=device)
    shapes = ((84, 120), (84,), (10, 84), (10,))
    params = [torch.randn(s, dtype=torch.float64, device=device).mul_(0.1).requires_grad_() for s in shapes]
    target = torch.randint(0, 10, (32,), device=device)
    w1, b1, w2, b2 = params
    want = F.cross_entropy(F.linear(torch.tanh(F.linear(x, w1, b1)), w2, b2), target)
    want_grads = torch.autograd.grad(want, params)
    names = [set(algorithms(pattern, device)) for pattern in ("linear", "activation", "loss")]
    for algorithm in sorted(set.intersection(*names)):
        hidden = tp.tanh(linear(x, w1, b1, algorithm=algorithm), algorithm=algorithm)
        loss = cross_entropy(linear(hidden, w2, b2, algorithm=algorithm), target, algorithm=algorithm)
        torch.testing.assert_close(loss, want, rtol=1e-14, atol=0)
        for got, wanted in zip(torch.autograd.grad(loss, params), want_grads, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [-300, -60, -23, 23, 60, 300])
def test_rbf_of_any_sigma(device, dtype, exponent):
    """sigma squared leaves the range of the dtype where no output does: 1 at the centre, 0 far away, and no NaN."""
    sigma, far = 10.0**exponent, 1.0 if exponent < 0 else 0.0
    centres = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=dtype, device=device)
    x = centres.clone().requires_grad_()
    for algorithm in algorithms("rbf", device):
        y = rbf(x, centres, sigma, algorithm=algorithm)
        assert y.tolist() == [[1, 1 - far], [1 - far, 1]]
        (g,) = torch.autograd.grad(y.sum(), x)
        assert g.abs().max().item() < 1e-40  # 0, or what sigma^2 leaves of a distance of 2; the limit is 0 in float16
    if dtype == torch.float64 and abs(exponent) < 100:  # as far as sigma itself
        x = (centres[:1] + sigma).requires_grad_()
        y = rbf(x, centres[:1], sigma)
        assert y.item() == pytest.approx(math.exp(-1), rel=1e-12)
        (g,) = torch.autograd.grad(y, x)
        assert g[0].tolist() == pytest.approx([-math.exp(-1) / sigma] * 2, rel=1e-12)


def test_rbf_far_from_the_origin_has_derivatives_of_every_mode(device):
    """Where x and the centres are large and near each other, the products in tangents and second derivatives cancel."""
    centres = torch.tensor([[3000.7, -8000.3]], device=device)
    x, direction = centres + torch.tensor([[1.1, -0.6]], device=device), torch.tensor([[1.7, 3.3]], device=device)
    a, b = (x.double() - centres.double())[0].tolist()
    y = math.exp(-(a * a + b * b) / 2)
    f = lambda x: rbf(x, centres, 1.0)[0, 0]  # noqa: E731
    _, tangent = torch.func.jvp(f, (x,), (direction,))
    assert tangent.item() == pytest.approx(-y * (1.7 * a + 3.3 * b), rel=1e-6)
    for twice in (torch.func.hessian, lambda f: torch.func.jacrev(torch.func.jacrev(f))):
        found = twice(f)(x)[0, :, 0].flatten().tolist()
        assert found == pytest.approx([y * (a * a - 1), y * a * b, y * a * b, y * (b * b - 1)], rel=1e-6)


@pytest.mark.parametrize("exponent", [-23, 23])
def test_rbf_of_any_sigma_has_second_derivatives(device, exponent):
    """At the centre, where the first derivative is 0: both modes give what the formula does, though sigma^2 is inf."""
    sigma = 10.0**exponent
    x = torch.zeros(1, 2, device=device, requires_grad=True)
    centres = torch.zeros(1, 2, device=device)
    (g,) = torch.autograd.grad(rbf(x, centres, sigma).sum(), x, create_graph=True)
    (gg,) = torch.autograd.grad(g[0, 0], x)
    want = -math.inf if exponent < 0 else 0.0  # -1 / sigma^2 in float32
    assert gg[0].tolist() == [want, 0.0]
    primal, tangent = torch.func.jvp(lambda x: rbf(x, centres, sigma), (x.detach(),), (torch.ones_like(x),))
    assert (primal.item(), tangent.item()) == (1.0, 0.0)
