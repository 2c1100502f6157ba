"""What lenet.Trainer refuses, and what an error leaves as it was."""

import re

import pytest
import torch
import torch.nn.utils.prune

from torch_patterns import data, nn
from torch_patterns.lenet import LeNet5, Trainer


def digits(count=20):
    images, labels, *_ = data.digits()
    return images[:count], labels[:count]


def trainer(**options):
    return Trainer(LeNet5(), *digits(), 8, **options)


def test_changed_models_are_refused():
    """A step would train frozen parameters, too, and has its own activations."""
    model = LeNet5().requires_grad_(False)
    with pytest.raises(ValueError, match=r"Trainer: c1.weight does not require a gradient"):
        Trainer(model, *digits(), 4)
    model.requires_grad_(True).activation = torch.nn.Sigmoid()
    with pytest.raises(ValueError, match="Trainer: the model's activation must be .*, not torch.Sigmoid"):
        Trainer(model, *digits(), 4)
    with pytest.raises(ValueError, match="weight must be contiguous"):
        Trainer(LeNet5(pooling="max").to(memory_format=torch.channels_last), *digits(), 4)


class Doubled(LeNet5):
    def forward(self, x):
        return 2 * super().forward(x)


CHANGES = [
    ("output", ("tanh", "subsample", "rbf"), lambda m: setattr(m.output, "sigma", 2.0)),
    ("s2", (), lambda m: setattr(m.s2, "activation", "relu")),
    ("s4.1", ("tanh", "max"), lambda m: m.s4.__setitem__(1, nn.AvgPool2d(2))),
    ("s2.0", ("tanh", "max"), lambda m: m.s2.__setitem__(0, nn.ReLU())),
    ("s2.1", ("tanh", "max"), lambda m: m.s2.__setitem__(1, torch.nn.MaxPool2d(2))),
    ("s2.0", ("tanh", "avg"), lambda m: setattr(m, "s2", torch.nn.Sequential())),
    ("c1", (), lambda m: torch.nn.utils.prune.l1_unstructured(m.c1, "weight", 0.5)),
    ("c5", (), lambda m: torch.nn.utils.parametrizations.weight_norm(m.c5)),
    ("c3", (), lambda m: m.c3.register_forward_hook(lambda *given: given[2] * 2)),
    ("f6", (), lambda m: setattr(m.f6, "forward", torch.relu)),
    ("s4", (), lambda m: setattr(m.s4, "algorithm", "sequential")),
    ("the model", (), lambda m: setattr(m, "__class__", Doubled)),
]


@pytest.mark.parametrize("name, form, change", CHANGES)
def test_changed_layers_are_refused(name, form, change):
    """A step computes what LeNet5 does, whatever the layers have become."""
    model = LeNet5(*form)
    Trainer(model, *digits(), 4)
    change(model)
    with pytest.raises(ValueError, match=rf"Trainer: {re.escape(name)}(\.\w+)? must"):
        Trainer(model, *digits(), 4)


def test_a_subclass_trains():
    class Named(LeNet5):
        title = "digits"

    before = torch.get_rng_state()
    Trainer(Named(), *digits(), 4)
    torch.set_rng_state(before)
    model = LeNet5()
    state = torch.get_rng_state()
    Trainer(model, *digits(), 4)
    assert torch.equal(state, torch.get_rng_state())


def test_a_bad_state_changes_nothing():
    ours, theirs = trainer(), trainer()
    theirs.epoch()
    weights = [p.detach().clone() for p in ours.params]
    unreadable = [m.to("meta") for m in theirs.momenta]
    for key, value, error in (("epochs", -1, ValueError), ("momenta", unreadable, NotImplementedError)):
        with pytest.raises(error):
            ours.load_state_dict(theirs.state_dict() | {key: value})
        assert ours.epochs == 0 and all(map(torch.equal, weights, ours.params))
    ours.load_state_dict(theirs.state_dict() | {"momenta": iter(theirs.momenta)})
    assert ours.epochs == 1 and all(map(torch.equal, theirs.momenta, ours.momenta))


def test_rates_are_no_part_of_a_graph():
    ours = trainer()
    ours.lr = torch.tensor(0.02, requires_grad=True)
    assert not ours.lr.requires_grad
    with pytest.raises(ValueError, match="lr must be 0 or more"):
        ours.lr = torch.tensor(-1.0)
