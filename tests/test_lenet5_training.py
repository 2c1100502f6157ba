"""Training LeNet-5 as one operator: the numbers of the layered network, in place, step by step and by the epoch."""

import copy
import itertools
import re

import pytest
import torch
from common import EACH_DEVICE, needs_cuda

import torch_patterns
from torch_patterns import data
from torch_patterns.lenet import ACTIVATIONS, OUTPUTS, POOLINGS, LeNet5, Trainer

ops = torch.ops.torch_patterns
FORMS = list(itertools.product(ACTIVATIONS, POOLINGS, OUTPUTS))
forms = pytest.mark.parametrize("form", FORMS, ids="-".join)
devices = pytest.mark.parametrize("device", EACH_DEVICE)
# Those that the fused kernels serve; relu is compared where no argument is near its corner, in C++ programs.
SMOOTH = [form for form in FORMS if form[1] == "subsample" and form[0] != "relu"]
smooth_forms = pytest.mark.parametrize("form", SMOOTH, ids="-".join)


def batch(count, dtype=torch.float32, device="cpu"):
    return torch.randn(count, 1, 32, 32, dtype=dtype, device=device), torch.randint(0, 10, (count,), device=device)


def rates(dtype=torch.float32, device="cpu", lr=0.05, momentum=0.9, weight_decay=0.01):
    return [torch.tensor(value, dtype=dtype, device=device) for value in (lr, momentum, weight_decay)]


def parameters(model):
    return [p.detach() for p in model.parameters()]


def zeros_like(tensors):
    return [torch.zeros_like(t) for t in tensors]


def assert_near(ours, theirs, limit, what=""):
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        error = (a - b).abs().max() / b.abs().max().clamp_min(1e-30)
        assert error <= limit, f"{what} {number}: {error}"


@devices
@forms
def test_outputs_are_those_of_the_module(form, device):
    model, (x, _) = LeNet5(*form).to(device), batch(5, device=device)
    with torch.no_grad():
        expected = model(x)
    outputs = ops.lenet5(x, parameters(model), *form, "layers")
    assert torch.equal(outputs, expected)
    assert_near([ops.lenet5(x, parameters(model), *form)], [expected], 1e-5)


@forms
def test_gradients_through_the_operator_are_those_of_the_module(form):
    model, (x, _) = LeNet5(*form), batch(3)
    x.requires_grad_()
    weights = torch.randn(3, 10)
    leaves = [x, *model.parameters()]
    expected = torch.autograd.grad((model(x) * weights).sum(), leaves)
    got = torch.autograd.grad((ops.lenet5(x, list(model.parameters()), *form) * weights).sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@devices
@pytest.mark.parametrize("dtype, limit", [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str)
@forms
def test_steps_are_those_of_torch_optim_sgd(form, dtype, limit, device):
    model = LeNet5(*form).to(device, dtype)
    params, momenta = copy.deepcopy(parameters(model)), zeros_like(parameters(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for count in (7, 3, 1):
        x, target = batch(count, dtype, device)
        expected = model.loss(model(x), target)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        loss = ops.lenet5_train_step(x, target, params, momenta, *rates(dtype, device), *form, "layers")
        assert loss.shape == () and loss.dtype == dtype
        assert_near([loss], [expected.detach()], limit, "loss")
    assert_near(params, parameters(model), limit, "parameter")
    assert_near(momenta, [optimizer.state[p]["momentum_buffer"] for p in model.parameters()], limit, "momentum")


def test_an_epoch_is_its_steps():
    model, (x, target) = LeNet5(), batch(23)
    whole, single = (copy.deepcopy(parameters(model)) for _ in range(2))
    whole_momenta, momenta = zeros_like(whole), zeros_like(single)
    lr, *others = rates()
    per_step = torch.tensor([0.1, 0.05, 0.02])
    losses, hits = ops.lenet5_train_epoch(x, target, whole, whole_momenta, per_step, *others, 10)
    for i, (images, labels) in enumerate(zip(x.split(10), target.split(10), strict=True)):
        expected = (ops.lenet5(images, single).argmax(1) == labels).sum()
        loss = ops.lenet5_train_step(images, labels, single, momenta, per_step[i], *others)
        assert torch.equal(losses[i], loss) and hits[i] == expected
    assert all(torch.equal(a, b) for a, b in zip(whole + whole_momenta, single + momenta, strict=True))
    one_rate = ops.lenet5_train_epoch(x, target, single, momenta, lr, *others, 10)
    assert one_rate[0].shape == (3,) and one_rate[1].dtype == torch.int64


def test_bytes_are_normalized_images():
    model, (_, target) = LeNet5(), batch(4)
    x = torch.randint(0, 256, (4, 1, 32, 32), dtype=torch.uint8)
    assert torch.equal(ops.lenet5(x, parameters(model)), ops.lenet5(data.normalize(x), parameters(model)))
    a, b = (copy.deepcopy(parameters(model)) for _ in range(2))
    for images, params in ((x, a), (data.normalize(x), b)):
        ops.lenet5_train_step(images, target, params, zeros_like(params), *rates())
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@devices
def test_versions_go_up_and_gradients_are_refused(device):
    model, (x, target) = LeNet5().to(device), batch(2, device=device)
    params = list(model.parameters())
    momenta = zeros_like(parameters(model))
    with pytest.raises(RuntimeError, match="lenet5_train_step: computes its own gradients"):
        ops.lenet5_train_step(x, target, params, momenta, *rates(device=device))
    loss = model.loss(model(x), target)
    before = [t._version for t in (*params, *momenta)]
    with torch.no_grad():
        ops.lenet5_train_step(x, target, params, momenta, *rates(device=device))
    assert [t._version for t in (*params, *momenta)] == [v + 1 for v in before]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_opcheck():
    model, (x, target) = LeNet5(), batch(3)
    params = parameters(model)
    torch.library.opcheck(ops.lenet5.default, (x, params))
    torch.library.opcheck(ops.lenet5.default, (x, [p.requires_grad_() for p in copy.deepcopy(params)]))
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    args = (x, target, params, zeros_like(params), *rates())
    torch.library.opcheck(ops.lenet5_train_step.default, args, test_utils=utils)
    torch.library.opcheck(ops.lenet5_train_epoch.default, (*args, 2), test_utils=utils)
    images = torch.randint(0, 256, (3, 1, 32, 32), dtype=torch.uint8)
    numbers = torch.tensor(1), torch.tensor(0)
    torch.library.opcheck(ops.lenet5_minibatches.default, (images, target, *numbers), test_utils=utils)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x": torch.zeros(2, 1, 28, 28)}, "images must be of shape [N, 1, 32, 32]; these are of shape [2, 1, 28, 28]"),
        ({"x": torch.zeros(2, 1, 32, 32).double()}, "images must be uint8 or, like the parameters, Float"),
        ({"x": torch.zeros(0, 1, 32, 32), "target": torch.zeros(0).long()}, "a step needs at least one image"),
        ({"target": torch.zeros(3).long()}, "target must have shape [2], one class per image, got [3]"),
        ({"target": torch.zeros(2)}, "target must be int64, got Float"),
        ({"target": torch.tensor([3, 10])}, "target[1] is 10"),
        ({"params": []}, "params must be the 10 parameters of LeNet5 in their order, got 0"),
        ({"momenta": [torch.zeros(6, 1, 5, 5)] * 10}, "momenta[1] must have shape [6], got [6, 1, 5, 5]"),
        ({"lr": torch.zeros(2)}, "lr must be a 0-D tensor, got shape [2]"),
        ({"lr": torch.tensor(0.1).double()}, "lr must be, like the parameters, Float, got Double"),
        ({"momentum": torch.zeros(1)}, "momentum must be a 0-D tensor, got shape [1]"),
        ({"activation": "gauss"}, "activation"),
        ({"pooling": "gauss"}, "pooling must be one of subsample, avg, max, got 'gauss'"),
        ({"output": "gauss"}, "output must be one of linear, rbf, got 'gauss'"),
        ({"algorithm": "gauss"}, "unknown algorithm 'gauss'; choose on cpu from: auto, layers"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_input_is_refused_and_nothing_changes(change, message):
    params = parameters(LeNet5())
    (x, target), (lr, momentum, weight_decay) = batch(2), rates()
    arguments = {"x": x, "target": target, "params": params, "momenta": zeros_like(params)}
    arguments |= {"lr": lr, "momentum": momentum, "weight_decay": weight_decay} | change
    before = copy.deepcopy(params)
    with pytest.raises((ValueError, RuntimeError, TypeError, IndexError), match=re.escape(message)):
        ops.lenet5_train_step(**arguments)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))


def test_the_fused_rung_is_refused_where_it_is_not():
    params = parameters(LeNet5())
    if "fused" not in torch_patterns.algorithms("lenet5", "cpu"):
        with pytest.raises(ValueError, match="algorithm 'fused' is not available on cpu"):
            ops.lenet5(batch(1)[0], params, algorithm="fused")
    with pytest.raises(ValueError, match="'fused' gives no gradients"):
        ops.lenet5(batch(1)[0].requires_grad_(), params, algorithm="fused")


# ---- minibatches


def digits(count=37):
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (count, 1, 32, 32), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count)


@pytest.mark.parametrize("count", [1, 2, 3, 37, 256, 257, 5000])
def test_an_epoch_has_every_image_once_beside_its_label(count):
    images, target = digits(count)
    orders = []
    for epoch in range(3):
        numbers = torch.tensor(7), torch.tensor(epoch)
        x, labels = ops.lenet5_minibatches(images, target, *numbers, distort=False)
        assert torch.equal(labels.sort()[0], target) and torch.equal(x, images[labels])
        orders.append(labels.tolist())
    if count > 30:
        assert len(set(map(tuple, orders))) == 3
        displaced = (torch.tensor(orders[0]) - target).abs().double().mean() / count
        assert 0.2 < displaced < 0.46  # of a random permutation: 1/3
    x, labels = ops.lenet5_minibatches(images, target, *numbers, shuffle=False, distort=False)
    assert torch.equal(x, images) and torch.equal(labels, target)


def test_distorted_images_follow_their_image_and_not_its_index():
    images, target = digits()
    numbers = torch.tensor(7), torch.tensor(2)
    shuffled, labels = ops.lenet5_minibatches(images, target, *numbers)
    in_order, _ = ops.lenet5_minibatches(images, target, *numbers, shuffle=False)
    assert torch.equal(shuffled, in_order[labels])
    assert shuffled.dtype == torch.float32 and shuffled.min() >= -0.1001 and shuffled.max() <= 1.1751


@needs_cuda
def test_minibatches_are_the_same_on_the_gpu():
    images, target = digits(1000)
    here = ops.lenet5_minibatches(images, target, torch.tensor(7), torch.tensor(2))
    there = ops.lenet5_minibatches(*(t.cuda() for t in (images, target, torch.tensor(7), torch.tensor(2))))
    assert torch.equal(there[1].cpu(), here[1])
    assert (there[0].cpu() - here[0]).abs().max() < 1e-4


# ---- the trainer


def trainer(device="cpu", form=("tanh", "subsample", "linear"), count=50, **options):
    torch.manual_seed(3)
    images, labels, *_ = data.digits()
    return Trainer(LeNet5(*form).to(device), images[:count], labels[:count], 16, **options)


@devices
@pytest.mark.parametrize("form", [FORMS[0], ("bipolar_sigmoid", "subsample", "rbf"), ("relu", "max", "linear")])
def test_a_trainer_runs_the_epochs_of_the_module(form, device):
    ours, model = trainer(device, form, weight_decay=0.001), trainer(device, form).model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.001)
    for epoch in range(3):
        numbers = (torch.tensor(n, device=device) for n in (0, epoch))
        x, target = ops.lenet5_minibatches(ours.images, ours.targets, *numbers)
        total = hits = 0
        for images, labels in zip(x.split(16), target.split(16), strict=True):
            output = model(images)
            loss = model.loss(output, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels) / 50
            hits += (output.argmax(1) == labels).sum().item()
        assert ours.epoch().item() == pytest.approx(total, rel=1e-5)
        assert ours.hits.item() == hits
    assert ours.epochs == 3
    assert_near(parameters(ours.model), parameters(model), 1e-4)


@devices
def test_a_trainer_goes_on_where_its_state_was_taken(device):
    whole, first = trainer(device), trainer(device)
    losses = [whole.epoch().item() for _ in range(4)]
    assert [first.epoch().item() for _ in range(2)] == losses[:2]
    second, state = trainer(device), first.state_dict()
    assert [first.epoch().item(), second.epoch().item()] == [losses[2], losses[0]]  # neither changes the state
    second.load_state_dict(state)
    assert [second.epoch().item() for _ in range(2)] == losses[2:]
    assert all(torch.equal(a, b) for a, b in zip(parameters(second.model), parameters(whole.model), strict=True))


@devices
def test_a_trainer_learns_and_evaluates(device):
    ours = trainer(device, count=1437, distort=False, lr=0.02)
    before = ours.evaluate().item()
    for _ in range(8):
        loss = ours.epoch()
    assert loss.device.type == device and loss.item() < 0.3 and before < 0.5 < 0.9 < ours.evaluate().item()
    held_out = data.digits()
    assert ours.evaluate(held_out.test_images, held_out.test_labels) > 0.9


def test_evaluation_needs_one_label_per_image():
    ours = trainer()
    images, labels = ours.images, ours.targets
    for wrong in (labels[:, None], labels[:1], labels.float(), labels[:-1]):
        with pytest.raises(ValueError, match=rf"evaluate: targets must be int64 \[{len(images)}\], not torch\."):
            ours.evaluate(images, wrong)
    for given in ((images, None), (None, labels)):
        with pytest.raises(ValueError, match="evaluate: images need targets, and targets images"):
            ours.evaluate(*given)
    with pytest.raises(TypeError, match="evaluate: targets must be a tensor, got list"):
        ours.evaluate(images, labels.tolist())
    with pytest.raises(TypeError, match="Trainer: seed must be an integer, got float"):
        trainer(seed=1.5)
    with pytest.raises(ValueError, match=r"Trainer: seed must be in -2\^63"):
        ours.seed = 2**63


def test_the_learning_rate_may_change_between_epochs():
    ours = trainer(lr=0.0)
    before = copy.deepcopy(parameters(ours.model))
    ours.epoch()
    assert all(torch.equal(a, b) for a, b in zip(parameters(ours.model), before, strict=True))
    ours.lr = torch.linspace(0.1, 0, ours.steps)
    ours.epoch()
    assert not any(torch.equal(a, b) for a, b in zip(parameters(ours.model), before, strict=True))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((torch.nn.Linear(2, 2), *digits(), 4), "the model must be a LeNet5, not Linear"),
        ((LeNet5(algorithm="threaded"), *digits(), 4), "the model's algorithm must be 'auto', not 'threaded'"),
        ((LeNet5(), digits()[0].float(), digits()[1], 4), "images must be uint8 [N, 1, 32, 32], not torch.float32"),
        ((LeNet5(), digits()[0], digits(3)[1], 4), "targets must be int64 [37], at least one, not torch.int64 [3]"),
        ((LeNet5(), *digits(), 0), "batch must be 1 or more, not 0"),
    ],
)
def test_bad_trainers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Trainer(*arguments)


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay"])
def test_hyperparameters_are_numbers(name):
    for wrong in ("0.1", None, [0.1, 0.2], -0.1, float("nan")):
        with pytest.raises((TypeError, ValueError), match=f"Trainer: {name} must be (a number, got|0 or more, not) "):
            trainer(**{name: wrong})
    with pytest.raises(ValueError, match=r"Trainer: lr must be a number or of shape \[4\], got \[2\]"):
        trainer(lr=torch.ones(2))


# ---- what only the fused kernels can get wrong


@needs_cuda
@pytest.mark.parametrize("count", [1, 3, 64, 100, 133, 300, 1024])
@smooth_forms
def test_fused_steps_are_the_layered_ones_in_float64(form, count):
    model = LeNet5(*form).cuda()
    params = parameters(model)
    exact = [p.double() for p in params]
    momenta, exact_momenta = zeros_like(params), zeros_like(exact)
    for _ in range(3):
        x, target = batch(count, device="cuda")
        loss = ops.lenet5_train_step(x, target, params, momenta, *rates(device="cuda"), *form, "fused")
        want = ops.lenet5_train_step(
            x.double(), target, exact, exact_momenta, *rates(torch.float64, "cuda"), *form, "layers"
        )
        assert abs(loss.item() - want.item()) <= 1e-5 * want.item()
    assert_near(momenta, exact_momenta, 5e-5, "momentum")
    assert_near(params, exact, 5e-5, "parameter")


@needs_cuda
@pytest.mark.parametrize("count", [1, 5, 1000])
def test_fused_outputs_are_exact_on_integers(count):
    generator = torch.Generator("cuda").manual_seed(1)

    def integers(shape, share):
        values = torch.randint(-1, 2, shape, device="cuda", generator=generator).float()
        return values * (torch.rand(shape, device="cuda", generator=generator) < share)

    shares = (1, 1, 0.2, 1, 0.03, 1, 0.1, 1, 0.5, 1)
    model = LeNet5("relu").cuda()
    params = [integers(p.shape, share) for p, share in zip(model.parameters(), shares, strict=True)]
    x = torch.randint(0, 4, (count, 1, 32, 32), device="cuda", generator=generator).float()
    fused = ops.lenet5(x, params, "relu", algorithm="fused")
    want = ops.lenet5(x.double(), [p.double() for p in params], "relu", algorithm="layers")
    assert torch.equal(fused.double(), want)


@needs_cuda
@pytest.mark.parametrize("size", [64, 128, 256, 1000])
def test_fused_training_gives_the_same_bits_in_every_run_and_in_a_graph(size):
    x, target = batch(2500, device="cuda")

    def run(graph):
        torch.manual_seed(1)
        params = parameters(LeNet5().cuda())
        momenta = zeros_like(params)
        arguments = (x, target, params, momenta, *rates(device="cuda"), size)
        if not graph:
            return [*ops.lenet5_train_epoch(*arguments, algorithm="fused"), *params, *momenta]
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            results = ops.lenet5_train_epoch(*arguments, algorithm="fused")
        recorded.replay()
        return [*results, *params, *momenta]

    expected = run(False)
    for graph in (False, True):
        assert all(torch.equal(a, b) for a, b in zip(run(graph), expected, strict=True))


@needs_cuda
def test_what_the_fused_kernels_do_not_serve_is_refused_and_auto_takes_the_layers():
    x, target = batch(4, device="cuda")
    for form, dtype, message in (
        (("tanh", "avg", "linear"), torch.float32, 'its pooling is "subsample"'),
        (("tanh", "subsample", "linear"), torch.float64, "it computes in float32"),
    ):
        params = parameters(LeNet5(*form).to("cuda", dtype))
        images = x.to(dtype)
        with pytest.raises(ValueError, match=f"algorithm 'fused' cannot serve this call: {message}"):
            ops.lenet5(images, params, *form, "fused")
        assert torch.equal(ops.lenet5(images, params, *form), ops.lenet5(images, params, *form, "layers"))
        ops.lenet5_train_step(images, target, params, zeros_like(params), *rates(dtype, "cuda"), *form)


@needs_cuda
def test_an_image_of_nan_and_a_label_that_is_no_class_reach_the_loss():
    params = parameters(LeNet5().cuda())
    x, target = batch(5, device="cuda")
    x[2, 0, 16, 16] = float("nan")
    outputs = ops.lenet5(x, params, algorithm="fused")
    assert outputs.isnan().any(1).tolist() == [False, False, True, False, False]
    assert ops.lenet5_train_step(x, target, copy.deepcopy(params), zeros_like(params), *rates(device="cuda")).isnan()
    x, target = batch(5, device="cuda")
    target[3] = 10
    after = copy.deepcopy(params)
    assert ops.lenet5_train_step(x, target, after, zeros_like(params), *rates(device="cuda")).isnan()
    assert all(p.isfinite().all() for p in after)


@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_trainer_of_fused_epochs_never_waits():
    ours = trainer("cuda", count=1000)
    ours.capture()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = [ours.epoch() for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert losses[2].item() < losses[0].item()
