"""LeNet-5: the outputs for many images, and the steps of an epoch, both from bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from problems import Figure, compiled
from torch_patterns.data import normalize
from torch_patterns.lenet import LeNet5, Trainer

LR, MOMENTUM = 0.01, 0.9


def digits(count: int) -> tuple[Tensor, Tensor]:
    images = torch.randint(0, 256, (count, 1, 32, 32), dtype=torch.uint8)
    return images, torch.randint(0, 10, (count,))


def model_of(images: Tensor) -> LeNet5:
    torch.manual_seed(0)
    return LeNet5().to(images.device)


class Network(torch.nn.Module):
    """The same network by torch's functions, with the weights of ours."""

    def __init__(self, model: LeNet5):
        super().__init__()
        self.weights = torch.nn.ParameterList(p.detach().clone() for p in model.parameters())

    def forward(self, x: Tensor) -> Tensor:
        w = self.weights
        x = torch.tanh(F.avg_pool2d(F.conv2d(x, w[0]), 2) + w[1][:, None, None])
        x = torch.tanh(F.avg_pool2d(F.conv2d(x, w[2]), 2) + w[3][:, None, None])
        x = torch.tanh(F.conv2d(x, w[4], w[5])).flatten(1)
        x = torch.tanh(F.linear(x, w[6], w[7]))
        return F.linear(x, w[8], w[9])


def captured(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A call as the replay of a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


class Steps:
    """An epoch by torch.nn and torch.optim. On CUDA all its steps are one graph, as ours are."""

    def __init__(self, images: Tensor, targets: Tensor, batch: int):
        self.images, self.targets, self.batch = images, targets, batch
        self.network = Network(model_of(images))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=LR, momentum=MOMENTUM, fused=True)
        self.run = captured(self.epoch) if images.is_cuda else self.epoch

    def epoch(self) -> Tensor:
        losses = []
        for x, target in zip(normalize(self.images).split(self.batch), self.targets.split(self.batch), strict=True):
            loss = F.cross_entropy(self.network(x), target)
            self.optimizer.zero_grad(set_to_none=False)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()


def exact_steps(images: Tensor, targets: Tensor, batch: int) -> Tensor:
    """The mean loss of the first epoch, in float64, by the rule of SGD with momentum."""
    network = Network(model_of(images)).double()
    weights = list(network.parameters())
    momenta = [torch.zeros_like(w) for w in weights]
    losses = []
    for x, target in zip(normalize(images).double().split(batch), targets.split(batch), strict=True):
        losses.append(F.cross_entropy(network(x), target))
        for w, m, g in zip(weights, momenta, torch.autograd.grad(losses[-1], weights), strict=True):
            w.data -= LR * m.mul_(MOMENTUM).add_(g)
    return torch.stack(losses).mean().detach()


def epochs(count: int, batch: int) -> Figure:
    """The first call is the epoch that is checked. Images keep their order, as they do in torch's steps."""

    @functools.lru_cache(maxsize=1)
    def trainer(images: Tensor, targets: Tensor) -> Trainer:
        settings = {"lr": LR, "momentum": MOMENTUM, "shuffle": False, "distort": False}
        return Trainer(model_of(images), images, targets, batch, **settings)

    @functools.lru_cache(maxsize=1)
    def steps(images: Tensor, targets: Tensor) -> Steps:
        return Steps(images, targets, batch)

    on_cuda = torch.get_default_device().type == "cuda"
    return Figure(
        f"lenet5 epoch of {count} images, batch {batch}",
        lambda: digits(count),
        lambda images, targets: trainer(images, targets).epoch(),
        lambda images, targets: exact_steps(images, targets, batch),
        {"torch, CUDA graph" if on_cuda else "torch": lambda images, targets: steps(images, targets).run()},
        exact_peers=False,  # graphs have run before they are captured
        bound=1e-4,
    )


def outputs(count: int) -> Figure:
    @functools.lru_cache(maxsize=1)
    def trainer(images: Tensor, targets: Tensor) -> Trainer:
        return Trainer(model_of(images), images, targets, 64)

    @functools.lru_cache(maxsize=1)
    def network(images: Tensor) -> Network:
        return Network(model_of(images))

    @torch.no_grad()
    def by_torch(images: Tensor, targets: Tensor) -> Tensor:
        return network(images)(normalize(images))

    @torch.no_grad()
    def want(images: Tensor, targets: Tensor) -> Tensor:
        return Network(model_of(images)).double()(normalize(images).double())

    return Figure(
        f"lenet5 outputs of {count} images",
        lambda: digits(count),
        lambda images, targets: trainer(images, targets).outputs(images),
        want,
        {"torch": by_torch, "torch.compile": compiled(by_torch)},
        bound=1e-4,
    )


def figures(device: str) -> list[Figure]:
    count = 2**14 if device == "cuda" else 2**10
    return [outputs(count), *(epochs(count, batch) for batch in (64, 256))]
