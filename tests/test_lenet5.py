"""LeNet-5 and its modules: shapes, an independent reference in torch.nn, errors, and every way torch can run it."""

import copy
import io
import itertools
import math
import re
import warnings

import pytest
import torch
from common import EACH_DEVICE
from torch import nn as reference_nn

import torch_patterns
from torch_patterns import nn
from torch_patterns.lenet import ACTIVATIONS, OUTPUTS, POOLINGS, LeNet5, Trainer

FORMS = list(itertools.product(ACTIVATIONS, POOLINGS, OUTPUTS))
forms = pytest.mark.parametrize("form", FORMS, ids="-".join)
devices = pytest.mark.parametrize("device", EACH_DEVICE)


class Reference(reference_nn.Module):
    """The same network in torch.nn, with the parameters of ours."""

    def __init__(self, model: LeNet5, activation: str, pooling: str, output: str):
        super().__init__()
        for name, parameter in model.named_parameters():
            self.register_parameter(name.replace(".", "_"), reference_nn.Parameter(parameter.detach().clone()))
        self.activation = {"tanh": torch.tanh, "relu": torch.relu, "bipolar_sigmoid": self.bipolar}[activation]
        self.pooling, self.output = pooling, output

    @staticmethod
    def bipolar(x):
        return (1 - torch.exp(-x)) / (1 + torch.exp(-x))

    def pool(self, x, layer):
        if self.pooling == "subsample":
            return self.activation(
                reference_nn.functional.avg_pool2d(x, 2) + getattr(self, f"{layer}_bias")[:, None, None]
            )
        kind = {"avg": reference_nn.functional.avg_pool2d, "max": reference_nn.functional.max_pool2d}[self.pooling]
        return kind(self.activation(x), 2)

    def forward(self, x):
        conv2d, bias = reference_nn.functional.conv2d, dict(self.named_parameters()).get
        x = self.pool(conv2d(x, self.c1_weight, bias("c1_bias")), "s2")
        x = self.pool(conv2d(x, self.c3_weight, bias("c3_bias")), "s4")
        x = self.activation(conv2d(x, self.c5_weight, self.c5_bias)).squeeze((2, 3))
        x = self.activation(x @ self.f6_weight.T + self.f6_bias)
        if self.output == "linear":
            return x @ self.output_weight.T + self.output_bias
        return torch.exp(-((x[:, None] - self.output_centres) ** 2).sum(-1) / (2 * 84 / 4))

    def loss(self, output, target):
        if self.output == "linear":
            return reference_nn.functional.cross_entropy(output, target)
        wanted = reference_nn.functional.one_hot(target, 10)
        return ((output - wanted) ** 2 / 2).sum(1).mean()


def batch(count=5, dtype=torch.float32, device="cpu"):
    return torch.randn(count, 1, 32, 32, dtype=dtype, device=device), torch.randint(0, 10, (count,), device=device)


@devices
@forms
def test_gradients_and_one_step_of_sgd_agree_with_torch_nn(form, device):
    model = LeNet5(*form).to(device, torch.float64)
    expected = Reference(model, *form)
    x, target = batch(5, torch.float64, device)
    steps = []
    for network in (model, expected):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        output = network(x)
        loss = network.loss(output, target)
        loss.backward()
        gradients = [p.grad.clone() for p in network.parameters()]
        optimizer.step()
        steps.append((output.detach(), loss.detach(), *gradients, *(p.detach() for p in network.parameters())))
    names = list(dict(model.named_parameters()))
    for name, ours, theirs in zip(["output", "loss", *names, *names], *steps, strict=True):
        error = (ours - theirs).abs().max() / theirs.abs().max()
        assert error <= 1e-12, f"{name}: {error}"


def test_layers_have_the_shapes_of_figure_16_4():
    model, seen = LeNet5(), {}
    for name in ("c1", "s2", "c3", "s4", "c5", "f6", "output"):
        model.get_submodule(name).register_forward_hook(
            lambda m, i, o, name=name: seen.update({name: tuple(o.shape[1:])})
        )
    model(torch.zeros(2, 1, 32, 32))
    maps = {"c1": (6, 28, 28), "s2": (6, 14, 14), "c3": (16, 10, 10), "s4": (16, 5, 5), "c5": (120, 1, 1)}
    assert seen == {**maps, "f6": (84,), "output": (10,)}


@forms
def test_weights_are_as_many_as_the_network_has_whatever_holds_the_biases(form):
    assert sum(p.numel() for p in LeNet5(*form).parameters()) == 61706 - (10 if form[2] == "rbf" else 0)


@forms
def test_outputs_start_neither_dead_nor_saturated(form):
    spread = LeNet5(*form)(torch.randn(64, 1, 32, 32)).std(0).mean().item()
    assert 1e-3 < spread < 2


def test_the_same_seed_gives_the_same_network():
    def network(seed):
        torch.manual_seed(seed)
        return LeNet5(output="rbf").state_dict()

    assert all(torch.equal(a, b) for a, b in zip(network(1).values(), network(1).values(), strict=True))
    assert not torch.equal(network(1)["c1.weight"], network(2)["c1.weight"])


@pytest.mark.parametrize("name, choices", [("activation", ACTIVATIONS), ("pooling", POOLINGS), ("output", OUTPUTS)])
def test_unknown_words_are_refused_with_the_choices(name, choices):
    with pytest.raises(ValueError) as caught:
        LeNet5(**{name: "gauss"})
    assert str(caught.value) == f"LeNet5: {name} must be one of {', '.join(choices)}; it is 'gauss'"


@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (2, 3, 32, 32), (1, 32, 32), (32, 32), (2, 1, 32, 33)], ids=str)
def test_images_of_another_shape_are_refused(shape):
    message = f"images must be of shape [N, 1, 32, 32]; these are of shape {list(shape)}"
    for network in (LeNet5(), scripted(LeNet5())):
        with pytest.raises((ValueError, torch.jit.Error), match=re.escape(message)):
            network(torch.zeros(shape))


def scripted(module):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated")
        file = io.BytesIO()
        torch.jit.save(torch.jit.script(module), file)
        file.seek(0)
        return torch.jit.load(file)


def outputs_and_gradients(network, model, x, target):
    model.zero_grad()
    output = network(x)
    model.loss(output, target).backward()
    return [output.detach(), *(p.grad.clone() for p in model.parameters())]


def assert_same(ours, theirs):
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@devices
@forms
def test_scripted_saved_and_loaded_gives_the_same_bits(form, device):
    model, (x, target) = LeNet5(*form).to(device), batch(device=device)
    network = scripted(model)
    expected = outputs_and_gradients(model, model, x, target)
    for _ in range(3):  # the profiling executor rewrites the graph after its first runs
        network.zero_grad()
        output = network(x)
        model.loss(output, target).backward()
        assert_same([output.detach(), *(p.grad for p in network.parameters())], expected)


@devices
@forms
def test_exported_with_a_dynamic_batch_gives_the_same_bits(form, device):
    model = LeNet5(*form).to(device).eval()
    file = io.BytesIO()
    shapes = {"x": {0: torch.export.Dim("batch")}}
    torch.export.save(torch.export.export(model, (batch(2, device=device)[0],), dynamic_shapes=shapes), file)
    file.seek(0)
    network = torch.export.load(file).module()
    for count in (1, 2, 7):
        x, _ = batch(count, device=device)
        assert torch.equal(network(x), model(x))


@pytest.mark.parametrize("form", [("tanh", "subsample", "linear"), ("relu", "max", "rbf")], ids="-".join)
def test_compiled_whole_gives_the_same_network(form):
    model = LeNet5(*form)
    network = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 5):
        x, target = batch(count)
        assert_same(outputs_and_gradients(network, model, x, target), outputs_and_gradients(model, model, x, target))


@devices
def test_every_algorithm_of_the_convolution_trains_the_same_network(device):
    x, target = batch(2, torch.float64, device)
    model = LeNet5().to(device, torch.float64)
    expected = outputs_and_gradients(model, model, x, target)
    for name in torch_patterns.algorithms("conv2d", device):
        other = LeNet5(algorithm=name).to(device, torch.float64)
        other.load_state_dict(model.state_dict())
        for ours, theirs in zip(outputs_and_gradients(other, other, x, target), expected, strict=True):
            assert (ours - theirs).abs().max() <= 1e-12 * theirs.abs().max(), name


def test_an_unknown_algorithm_is_refused():
    with pytest.raises((ValueError, RuntimeError), match="gauss"):
        LeNet5(algorithm="gauss")(batch()[0])


@pytest.mark.parametrize(
    "form", [("tanh", "subsample", "linear"), ("bipolar_sigmoid", "subsample", "rbf")], ids="-".join
)
def test_overfits_64_samples(form):
    model, (x, target) = LeNet5(*form), batch(64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(300):
        loss = model.loss(model(x), target)
        if loss < 0.01:
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pytest.fail(f"the loss is still {loss.item():.4f} after 300 steps")


@devices
def test_training_is_deterministic(device):
    def train():
        torch.manual_seed(3)
        model = LeNet5().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(20):
            x, target = batch(16, device=device)
            optimizer.zero_grad()
            model.loss(model(x), target).backward()
            optimizer.step()
        return list(model.parameters())

    assert_same(train(), train())


def test_a_sample_means_the_same_alone_and_in_any_batch():
    model, (x, _) = LeNet5().double(), batch(9, torch.float64)
    whole = model(x)
    alone = torch.cat([model(image) for image in x.split(1)])
    parts = torch.cat([model(images) for images in x.split(4)])  # 4, 4 and a last one of 1
    assert (alone - whole).abs().max() <= 1e-13
    assert (parts - whole).abs().max() <= 1e-13


def test_eval_and_no_grad_give_what_training_gives():
    model, (x, _) = LeNet5(), batch()
    expected = model(x).detach()
    with torch.no_grad():
        assert torch.equal(model.eval()(x), expected)
    with torch.inference_mode():
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("bad", [10, -1])
def test_labels_out_of_range_are_refused(output, bad):
    model, (x, target) = LeNet5(output=output), batch()
    target[3] = bad
    with pytest.raises(IndexError, match=rf"target\[3\] is {bad}"):
        model.loss(model(x), target)


@devices
@pytest.mark.parametrize("output", OUTPUTS)
def test_gradients_per_sample(output, device):
    """vmap(grad) of the loss through functional_call is a loop over the samples."""
    model, (x, target) = LeNet5(output=output).to(device, torch.float64), batch(3, torch.float64, device)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def loss(params, image, digit):
        return model.loss(torch.func.functional_call(model, params, (image[None],)), digit[None])

    got = torch.vmap(torch.func.grad(loss), (None, 0, 0))(params, x, target)
    for i in range(len(x)):
        want = torch.autograd.grad(model.loss(model(x[i : i + 1]), target[i : i + 1]), list(model.parameters()))
        for name, w in zip(got, want, strict=True):
            torch.testing.assert_close(got[name][i], w, rtol=1e-11, atol=1e-12)
    if device == "cpu":
        with pytest.raises(IndexError, match=r"target\[\d\] is 10"):
            torch.vmap(loss, (None, 0, 0))(params, x, torch.tensor([3, 10, 2]))


@pytest.mark.parametrize("form", [("tanh", "subsample", "rbf"), ("relu", "max", "linear")], ids="-".join)
def test_a_batch_whose_size_only_the_data_knows_compiles_with_gradients(form):
    model, (x, target) = LeNet5(*form).double(), batch(6, torch.float64)

    def loss(x, target, kept):
        return model.loss(model(x[kept]), target[kept])

    inputs = x, target, torch.tensor([True, False, True, True, False, True])
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got = torch.autograd.grad(compiled(*inputs), list(model.parameters()))
    want = torch.autograd.grad(loss(*inputs), list(model.parameters()))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-13)


def test_loss_of_uniform_logits_is_the_logarithm_of_ten():
    assert LeNet5().loss(torch.full((4, 10), 7.0), torch.tensor([0, 3, 9, 9])).item() == pytest.approx(
        math.log(10), abs=1e-6
    )


@devices
@pytest.mark.parametrize("output", OUTPUTS)
def test_nan_in_the_images_is_nan_in_the_loss(output, device):
    model, (x, target) = LeNet5(output=output).to(device), batch(device=device)
    x[2, 0, 16, 16] = math.nan
    assert model.loss(model(x), target).isnan()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_runs_in_other_dtypes(dtype):
    model, (x, target) = LeNet5().to(dtype), batch(dtype=dtype)
    model.loss(model(x), target).backward()
    assert model(x).dtype == dtype
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in model.parameters())


@devices
def test_autocast_trains_in_bfloat16_with_gradients_in_float32(device):
    model, (x, target) = LeNet5().to(device), batch(device=device)
    with torch.autocast(device, torch.bfloat16):
        output = model(x)
        loss = model.loss(output, target)
    loss.backward()
    assert (output.float() - model(x)).abs().max() < 0.1 * model(x).abs().max()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


def modules():
    """Every module of torch_patterns.nn, with inputs and what torch makes of them."""
    f = reference_nn.functional
    x, flat = torch.randn(2, 4, 6, 8, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    t, classes = torch.randn(3, 5, dtype=torch.float64), torch.tensor([4, 0, 2])
    conv, strided = nn.Conv2d(4, 6, (3, 2)), nn.Conv2d(4, 6, 3, (2, 1), (1, 2), (1, 2), groups=2, bias=False)
    linear, rbf, subsample = nn.Linear(5, 3), nn.RBF(5, 7, sigma=1.5), nn.Subsample2d(4, (2, 4), "tanh")
    reference_nn.init.normal_(subsample.bias)
    yield conv, (x,), lambda m: f.conv2d(x, m.weight, m.bias)
    yield strided, (x,), lambda m: f.conv2d(x, m.weight, None, (2, 1), (1, 2), (1, 2), 2)
    yield subsample, (x,), lambda m: torch.tanh(f.avg_pool2d(x, (2, 4)) + m.bias[:, None, None])
    yield nn.AvgPool2d(3, 2, 1, True, False), (x,), lambda m: f.avg_pool2d(x, 3, 2, 1, True, False)
    yield nn.AvgPool2d((2, 3)), (x,), lambda m: f.avg_pool2d(x, (2, 3))
    yield nn.MaxPool2d(3, 2, 1, 1, False, True), (x,), lambda m: f.max_pool2d(x, 3, 2, 1, 1, True)
    yield nn.MaxPool2d(2), (x,), lambda m: f.max_pool2d(x, 2)
    yield linear, (flat,), lambda m: f.linear(flat, m.weight, m.bias)
    yield rbf, (flat,), lambda m: torch.exp(-((flat[:, None] - m.centres) ** 2).sum(-1) / 4.5)
    yield nn.BipolarSigmoid(), (flat,), lambda m: 2 * torch.sigmoid(flat) - 1
    yield nn.Tanh(), (flat,), lambda m: torch.tanh(flat)
    yield nn.ReLU(), (flat,), lambda m: torch.relu(flat)
    yield nn.Sign(), (flat,), lambda m: torch.sign(flat)
    for reduction in ("mean", "sum", "none"):
        options = {"reduction": reduction}
        yield nn.CrossEntropyLoss(**options), (flat, classes), lambda m, o=options: f.cross_entropy(flat, classes, **o)
        yield nn.SquaredErrorLoss(**options), (flat, t), lambda m, o=options: f.mse_loss(flat, t, **o) / 2
        yield nn.AbsoluteErrorLoss(**options), (flat, t), lambda m, o=options: f.l1_loss(flat, t, **o)


MODULES = list(modules())


@pytest.mark.parametrize("module, inputs, expected", MODULES, ids=[repr(m)[:60] for m, _, _ in MODULES])
def test_modules_agree_with_torch_and_can_be_scripted(module, inputs, expected):
    module = copy.deepcopy(module).double()
    assert module.algorithm == "auto"
    assert "algorithm='auto'" in repr(module)
    output = module(*inputs)
    torch.testing.assert_close(output, expected(module), rtol=1e-13, atol=1e-13)
    assert torch.equal(scripted(module)(*inputs), output)


def test_modules_of_torch_nn_give_and_take_the_state_of_ours():
    for ours, theirs in (
        (nn.Conv2d(3, 4, 5), reference_nn.Conv2d(3, 4, 5)),
        (nn.Linear(3, 4), reference_nn.Linear(3, 4)),
    ):
        theirs.load_state_dict(ours.state_dict())
        ours.load_state_dict(theirs.state_dict())
        assert isinstance(ours, type(theirs))


def test_the_default_device_makes_no_difference_to_the_loss():
    outputs, target = torch.rand(3, 10), torch.tensor([1, 2, 3])
    for output in ("linear", "rbf"):
        model = LeNet5(output=output)
        want = model.loss(outputs, target)
        with torch.device("meta"):
            assert torch.equal(model.loss(outputs, target), want)


def test_rbf_centres_are_corners_and_sigma_follows_the_features():
    rbf = nn.RBF(84, 10)
    assert (rbf.centres.abs() == 1).all()
    assert rbf.sigma == pytest.approx(math.sqrt(84) / 2)


def test_a_trainer_refuses_other_algorithms_and_other_states():
    data = torch.zeros(4, 1, 32, 32, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="Trainer: algorithm must be one of auto, layers, not 'quick'"):
        Trainer(LeNet5(), *data, 2, algorithm="quick")
    trainer, other = Trainer(LeNet5(), *data, 2), Trainer(LeNet5(), *data, 2)
    before = copy.deepcopy(trainer.state_dict())
    for change in (lambda momenta: momenta[:-1], lambda momenta: [m.flatten()[:1] for m in momenta]):
        state = other.state_dict()
        with pytest.raises(ValueError, match="Trainer.load_state_dict: the momenta must have shapes"):
            trainer.load_state_dict({**state, "momenta": change(state["momenta"])})
    state = other.state_dict()
    model = dict(list(state["model"].items())[:-1])  # what comes before the missing tensor must not be copied either
    for wrong, error in (({"model": model}, RuntimeError), ({"epochs": "1"}, TypeError), ({"epochs": 0.5}, TypeError)):
        with pytest.raises(error):
            trainer.load_state_dict({**state, **wrong})
    assert all(torch.equal(a, b) for a, b in zip(trainer.params, before["model"].values(), strict=True))
