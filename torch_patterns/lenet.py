"""LeNet-5 (Fig. 16.4), the network of chapter 16, composed of the operators of this library.

    INPUT 1@32x32 - C1 6@28x28 - S2 6@14x14 - C3 16@10x10 - S4 16@5x5 - C5 120@1x1 - F6 84 - OUTPUT 10

All kernels are 5x5; C3 is connected to all six maps of S2, as in the book (the network of 1998 omits some connections).
"""

import copy
from collections.abc import Iterable

import torch

from . import nn
from .arguments import real, refuse, type_name, word
from .literals import LeNetActivation, LeNetOutput, LeNetPooling
from .registry import algorithms

ACTIVATIONS = {"tanh": nn.Tanh, "bipolar_sigmoid": nn.BipolarSigmoid, "relu": nn.ReLU}
POOLINGS = {"subsample": nn.Subsample2d, "avg": nn.AvgPool2d, "max": nn.MaxPool2d}
OUTPUTS = ("linear", "rbf")
CLASSES = 10

# Factors of the weights' initial spread: the inverse slope at 0, and a little more because the tails are flat.
_GAINS = {"tanh": 5 / 3, "bipolar_sigmoid": 10 / 3, "relu": 2**0.5}


def _choose(name: str, word: str, choices) -> str:
    if word not in choices:
        raise ValueError(f"LeNet5: {name} must be one of {', '.join(choices)}; it is {word!r}")
    return word


@torch.fx.wrap  # torch.fx traces a call of it without looking at the shape
def _checked(x: torch.Tensor) -> torch.Tensor:
    """Returns the images, or raises an error if they have another shape than the network takes."""
    if x.dim() != 4 or x.size(1) != 1 or x.size(2) != 32 or x.size(3) != 32:
        raise ValueError(f"LeNet5: images must be of shape [N, 1, 32, 32]; these are of shape {list(x.shape)}")
    return x


class LeNet5(torch.nn.Module):
    """LeNet-5 maps images [N, 1, 32, 32] of a float dtype to outputs [N, 10]; the greatest output is the digit.

    The weights are drawn from torch's generator: the same seed gives the same network.

    Args:
        activation: ``"tanh"``, ``"bipolar_sigmoid"`` (the book's) or ``"relu"``.
        pooling: ``"subsample"`` (Fig. 16.7), or ``"avg"`` or ``"max"`` over 2x2. Bias and activation belong to the
            subsampling layer; with the other poolings, to the convolution (caption of Fig. 16.7).
        output: ``"linear"`` gives logits; ``"rbf"`` gives the book's Gaussians, in (0, 1].
        algorithm: how convolutions are computed: a rung of conv2d or ``"auto"``.

    Raises:
        ValueError: an option is unknown, or images have another shape.

    Example:
        >>> tp.lenet.LeNet5(pooling="max")(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        activation: LeNetActivation = "tanh",
        pooling: LeNetPooling = "subsample",
        output: LeNetOutput = "linear",
        algorithm: str = "auto",
    ):
        super().__init__()
        _choose("activation", activation, ACTIVATIONS)
        _choose("pooling", pooling, POOLINGS)
        _choose("output", output, OUTPUTS)
        bias = pooling != "subsample"  # otherwise the bias is in the subsampling layer
        self.c1 = nn.Conv2d(1, 6, 5, bias=bias, algorithm=algorithm)
        self.s2 = _pooling(pooling, activation, 6)
        self.c3 = nn.Conv2d(6, 16, 5, bias=bias, algorithm=algorithm)
        self.s4 = _pooling(pooling, activation, 16)
        self.c5 = nn.Conv2d(16, 120, 5, algorithm=algorithm)
        self.f6 = nn.Linear(120, 84)
        self.activation = ACTIVATIONS[activation]()
        self.output = nn.Linear(84, CLASSES) if output == "linear" else nn.RBF(84, CLASSES)
        for layer in (self.c1, self.c3, self.c5, self.f6):
            torch.nn.init.xavier_uniform_(layer.weight, _GAINS[activation])
            if layer.bias is not None:
                torch.nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.s2(self.c1(_checked(x)))
        x = self.s4(self.c3(x))
        x = self.activation(self.c5(x)).flatten(1)
        x = self.activation(self.f6(x))
        return self.output(x)

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Computes the mean loss of a batch.

        For logits it is the softmax cross-entropy. For the Gaussians of ``output="rbf"`` it is the book's squared error
        (§16.1), summed over the classes: the target is 1 for the digit and 0 for all others.

        Args:
            output: [N, 10], what the network returns.
            target: [N], int64, 0 to 9.

        Returns:
            A 0-D tensor of the dtype of ``output``; differentiable in ``output``.

        Raises:
            IndexError: on the CPU, a target is not a class.
            ValueError, RuntimeError: the shapes do not fit.

        Example:
            >>> model = tp.lenet.LeNet5(output="rbf")
            >>> model.loss(torch.eye(10), torch.arange(10))
            tensor(0.)
        """
        if isinstance(self.output, nn.Linear):
            return torch.ops.torch_patterns.cross_entropy(output, target)
        return torch.ops.torch_patterns.squared_error(output, _one_hot(target, output.dtype)) * CLASSES


def _pooling(pooling: LeNetPooling, activation: LeNetActivation, channels: int) -> torch.nn.Module:
    if pooling == "subsample":
        return nn.Subsample2d(channels, 2, activation)
    return torch.nn.Sequential(ACTIVATIONS[activation](), POOLINGS[pooling](2))


def _one_hot(target: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # As everywhere, the CPU raises for a bad label. On the GPU a check would wait for the device: a bad label matches
    # no class.
    if target.device.type == "cpu":
        torch.ops.torch_patterns.cross_entropy(
            torch.zeros(*target.shape, CLASSES, dtype=dtype, device="cpu"), target, "none"
        )
    return (target.unsqueeze(-1) == torch.arange(CLASSES, device=target.device)).to(dtype)


def _words(model: LeNet5) -> tuple[str, str, str]:
    """Returns the activation, pooling and output of a network, which must be one that LeNet5 makes: a step computes
    nothing else."""
    activation = next((word for word, kind in ACTIVATIONS.items() if type(model.activation) is kind), "")
    if not activation:
        raise ValueError(f"Trainer: the model's activation must be one of LeNet5's, not {type_name(model.activation)}")
    pooling = "subsample"
    if isinstance(model.s2, torch.nn.Sequential):
        pooling = next((word for word, kind in POOLINGS.items() if kind in map(type, model.s2)), "avg")
    words = activation, pooling, "linear" if type(model.output) is nn.Linear else "rbf"
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        plain = LeNet5(*words)  # type: ignore[arg-type]
    expected_layers, layers = dict(plain.named_modules()), dict(model.named_modules())
    for name in [*expected_layers, *layers]:
        expected_layer, layer = expected_layers.get(name), layers.get(name)
        names = [] if expected_layer is None else [n for n in vars(expected_layer) if n[0] != "_" and n != "training"]
        if expected_layer is None or layer is None or _settings(expected_layer, names) != _settings(layer, names):
            raise ValueError(f"Trainer: {name or 'the model'} must be as LeNet5{words} makes it, not {layer}")
    expected = sorted(name for name, _ in plain.named_parameters())
    found = sorted(name for name, _ in (*model.named_parameters(), *model.named_buffers()))
    if found != expected:
        raise ValueError(f"Trainer: the model must have the parameters {expected} and no buffers, not {found}")
    return words


def _settings(layer: torch.nn.Module, names: Iterable[str]) -> tuple:
    """Returns what a layer's results depend on besides its parameters."""
    hooks = [layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks]
    forward = vars(layer).get("forward", type(layer).forward)
    return forward, any(hooks), {name: getattr(layer, name, None) for name in names}


def _rate(name: str, value: float) -> float:
    """Returns a hyperparameter as a Python float; like torch.optim.SGD, it accepts no negative one."""
    rate = real("Trainer", name, value)
    if not rate >= 0:
        raise ValueError(f"Trainer: {name} must be 0 or more, not {rate}")
    return rate


class Trainer:
    """Trains a LeNet5 by stochastic gradient descent with momentum, without any work of the host between the steps.

    The data set stays on the model's device as bytes. An epoch is one replay of a CUDA graph. First the images are
    shuffled and, with `distort`, moved by up to 2 pixels, turned by up to 10 degrees and scaled by up to a tenth; the
    random numbers depend only on the seed, the epoch and the image, and are the same on every device. Then
    `torch.ops.torch_patterns.lenet5_train_epoch` trains on every batch. The host does not wait for the device. On the
    CPU the same steps run layer by layer; there the BLAS multiplies the dense layers, and its bits may depend on the
    number of threads.

    Source: §16.2; fused kernels in csrc/lenet.

    Args:
        model: a LeNet5 with ``algorithm="auto"``; its parameters are updated in place and need no optimizer.
        images: uint8 [N, 1, 32, 32], 0 for background and 255 for ink.
        targets: int64 [N], 0 to 9.
        batch: images per step; the last step of an epoch takes the remaining images.
        lr: the learning rate, one number or one per step; it may be set before any epoch (``trainer.lr = 0.01``).
        momentum, weight_decay: as in torch.optim.SGD.
        seed: determines the order of the images and their distortions; ``trainer.seed`` may be set before any epoch.
        shuffle: whether to draw a new order of the images for every epoch; else they keep their order.
        distort: whether to move, turn and scale each image at random.
        algorithm: a rung of the ladder ``"lenet5"``, or ``"auto"``: ``fused`` if it supports the network, else
            ``layers``.

    Raises:
        ValueError: another model, a parameter that does not require a gradient, images or targets of another shape or
            dtype, an empty data set, a negative ``lr``, ``momentum`` or ``weight_decay``, a tensor ``lr`` of another
            shape, or an algorithm that the device does not have.
        TypeError: images or targets are not tensors, ``batch`` or ``seed`` not integers, or ``lr``, ``momentum`` or
            ``weight_decay`` not numbers.
        IndexError: on the CPU, a target is not a class.

    Example:
        >>> digits = tp.data.digits()
        >>> model = tp.lenet.LeNet5()  # .cuda(), where there is a GPU
        >>> trainer = tp.lenet.Trainer(model, digits.train_images[:64], digits.train_labels[:64], batch=16, lr=0.05)
        >>> for _ in range(2):
        ...     loss = trainer.epoch()  # a 0-D tensor, the mean over the epoch; reading it waits
        >>> accuracy = trainer.evaluate(digits.test_images, digits.test_labels)
        >>> accuracy.shape
        torch.Size([])
    """

    def __init__(
        self,
        model: LeNet5,
        images: torch.Tensor,
        targets: torch.Tensor,
        batch: int,
        *,
        lr: float | torch.Tensor = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        seed: int = 0,
        shuffle: bool = True,
        distort: bool = True,
        algorithm: str = "auto",
    ):
        if not isinstance(model, LeNet5):
            raise ValueError(f"Trainer: the model must be a LeNet5, not {type(model).__name__}")
        refuse("Trainer", "images", images, "Tensor")
        refuse("Trainer", "targets", targets, "Tensor")
        batch = word("Trainer", "batch", batch)
        if model.c1.algorithm != "auto":
            raise ValueError(f"Trainer: the model's algorithm must be 'auto', not {model.c1.algorithm!r}")
        if images.dtype != torch.uint8 or images.dim() != 4 or tuple(images.shape[1:]) != (1, 32, 32):
            raise ValueError(f"Trainer: images must be uint8 [N, 1, 32, 32], not {images.dtype} {list(images.shape)}")
        if targets.dtype != torch.int64 or targets.shape != images.shape[:1] or len(targets) == 0:
            raise ValueError(
                f"Trainer: targets must be int64 [{len(images)}], at least one, not {targets.dtype} "
                f"{list(targets.shape)}"
            )
        if batch < 1:
            raise ValueError(f"Trainer: batch must be 1 or more, not {batch}")
        for name, p in model.named_parameters():
            if not p.requires_grad:
                raise ValueError(f"Trainer: {name} does not require a gradient, but a step trains every parameter")
            if not p.is_contiguous():
                raise ValueError(f"Trainer: {name} must be contiguous, its strides are {p.stride()}")
        self.model, self.batch, self.shuffle, self.distort, self.algorithm = model, batch, shuffle, distort, algorithm
        self.params = list(model.parameters())
        device, dtype = self.params[0].device, self.params[0].dtype
        names = ["auto", *algorithms("lenet5", device)]
        if algorithm not in names:
            raise ValueError(f"Trainer: algorithm must be one of {', '.join(names)}, not {algorithm!r}")
        self.images, self.targets = images.to(device), targets.to(device)
        self.momenta = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        self.steps = -(-len(images) // batch)
        self._lr = torch.zeros(self.steps, device=device, dtype=dtype)
        self._momentum = torch.tensor(_rate("momentum", momentum), device=device, dtype=dtype)
        self._weight_decay = torch.tensor(_rate("weight_decay", weight_decay), device=device, dtype=dtype)
        self._seed = torch.tensor(word("Trainer", "seed", seed), device=device, dtype=torch.int64)
        self._epoch = torch.zeros((), device=device, dtype=torch.int64)
        self._weights = torch.full((self.steps,), batch / len(images), device=device, dtype=torch.float64)
        self._weights[-1] = (len(images) - (self.steps - 1) * batch) / len(images)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._words = _words(model)
        self.lr = lr
        self.hits = torch.zeros((), device=device, dtype=torch.int64)  # images recognized in the last epoch

    @property
    def lr(self) -> torch.Tensor:
        """The learning rates of the next epoch, one per step; a number or one number per step may be assigned."""
        return self._lr

    @lr.setter
    def lr(self, value: float | torch.Tensor) -> None:
        if isinstance(value, torch.Tensor):
            if value.shape not in ((), (self.steps,)):
                raise ValueError(f"Trainer: lr must be a number or of shape [{self.steps}], got {list(value.shape)}")
            if not value.is_cuda and not bool((value >= 0).all()):
                raise ValueError(f"Trainer: lr must be 0 or more, not {value.tolist()}")
            self._lr.copy_(value.detach(), non_blocking=True)
        else:
            self._lr.fill_(_rate("lr", value))

    @property
    def seed(self) -> int:
        """The seed of the order and of the distortions; it may be set before any epoch. Reading it waits."""
        return int(self._seed)

    @seed.setter
    def seed(self, value: int) -> None:
        self._seed.fill_(word("Trainer", "seed", value))

    @property
    def epochs(self) -> int:
        """How many epochs the network has been trained for. Reading it waits for the device."""
        return int(self._epoch)

    def _run_epoch(self) -> tuple[torch.Tensor, torch.Tensor]:
        ops = torch.ops.torch_patterns
        x, targets = ops.lenet5_minibatches(
            self.images, self.targets, self._seed, self._epoch, self.shuffle, self.distort
        )
        if x.is_floating_point():
            x = x.to(self.params[0].dtype)
        losses, hits = ops.lenet5_train_epoch(
            x,
            targets,
            self.params,
            self.momenta,
            self._lr,
            self._momentum,
            self._weight_decay,
            self.batch,
            *self._words,
            self.algorithm,
        )
        self._epoch.add_(1)
        return (losses.double() * self._weights).sum(), hits.sum()

    def capture(self) -> None:
        """Records the CUDA graph of an epoch, which `epoch` otherwise does at its first call. Nothing is trained."""
        if self._graph is not None or not self._lr.is_cuda:
            return
        state = [t.clone() for t in (*self.params, *self.momenta, self._epoch)]
        stream = torch.cuda.Stream(self._lr.device)
        stream.wait_stream(torch.cuda.current_stream(self._lr.device))
        with torch.no_grad():
            with torch.cuda.stream(stream):
                self._run_epoch()  # loads the kernels and warms up the allocator
                for t, value in zip((*self.params, *self.momenta, self._epoch), state, strict=True):
                    t.copy_(value)
            torch.cuda.current_stream(self._lr.device).wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._results = self._run_epoch()

    def epoch(self) -> torch.Tensor:
        """Trains on every image once. On CUDA the call returns before the device has finished.

        Afterwards ``trainer.hits`` is a 0-D tensor that counts the images which were recognized in their own step,
        before it changed the network.

        Returns:
            The mean loss of the images, a 0-D float64 tensor on the device; reading it waits.

        Raises:
            IndexError: on the CPU, a target is not a class.
        """
        self.capture()
        with torch.no_grad():
            if self._graph is None:
                loss, self.hits = self._run_epoch()
                return loss
            self._graph.replay()
            self.hits = self._results[1].clone()
            return self._results[0].clone()

    def outputs(self, images: torch.Tensor) -> torch.Tensor:
        """Computes the outputs of the network, without gradients, by the operator ``lenet5``.

        Args:
            images: [N, 1, 32, 32], uint8, or already normalized and of the dtype of the parameters.

        Returns:
            [N, 10], of the dtype of the parameters, on the device of the network.

        Raises:
            ValueError: images are of another shape.
            TypeError: images are of another dtype.

        Example:
            >>> digits = tp.data.digits()
            >>> trainer = tp.lenet.Trainer(tp.lenet.LeNet5(), digits.train_images, digits.train_labels, batch=64)
            >>> trainer.outputs(digits.test_images).shape
            torch.Size([360, 10])
        """
        with torch.no_grad():
            images = images.to(self._lr.device)
            return torch.ops.torch_patterns.lenet5(images, self.params, *self._words, self.algorithm)

    def evaluate(self, images: torch.Tensor | None = None, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Computes the share of images that the network recognizes: those whose greatest output is that of their
        target.

        Args:
            images: as for :meth:`outputs`; by default the training images, without distortion.
            targets: int64 [N], given if and only if ``images`` are.

        Returns:
            A 0-D float64 tensor on the device.

        Raises:
            ValueError: only one of the two is given, or a shape or the dtype of ``targets`` does not fit.
            TypeError: one of them is not a tensor, or images are of another dtype.
        """
        if (images is None) != (targets is None):
            raise ValueError("Trainer.evaluate: images need targets, and targets images")
        if images is None or targets is None:
            images, targets = self.images, self.targets
        refuse("Trainer.evaluate", "images", images, "Tensor")
        refuse("Trainer.evaluate", "targets", targets, "Tensor")
        if targets.dtype != torch.int64 or targets.shape != images.shape[:1]:
            raise ValueError(
                f"Trainer.evaluate: targets must be int64 [{len(images)}], not {targets.dtype} {list(targets.shape)}"
            )
        hits = self.outputs(images).argmax(1) == targets.to(self._lr.device)
        return hits.double().mean()

    def state_dict(self) -> dict:
        """Returns copies of what `load_state_dict` needs to continue as if there had been no interruption."""
        model = {name: t.clone() for name, t in self.model.state_dict().items()}
        return {"model": model, "momenta": [m.clone() for m in self.momenta], "epochs": self.epochs}

    def load_state_dict(self, state: dict) -> None:
        """Continues from a `state_dict` of a trainer with the same network, data and options.

        After an error, nothing has changed.

        Raises:
            ValueError: the momenta are not those of the parameters, or epochs are negative.
            RuntimeError: the state is of another network.
            KeyError: a part of the state is missing.
        """
        epochs = word("Trainer.load_state_dict", "epochs", state["epochs"])
        given = list(state["momenta"])
        shapes, found = ([list(t.shape) for t in tensors] for tensors in (self.momenta, given))
        if found != shapes:
            raise ValueError(f"Trainer.load_state_dict: the momenta must have shapes {shapes}, got {found}")
        if epochs < 0:
            raise ValueError(f"Trainer.load_state_dict: epochs must be 0 or more, not {epochs}")
        with torch.no_grad():
            # What raises does so before anything has changed.
            momenta = [torch.empty_like(ours).copy_(theirs) for ours, theirs in zip(self.momenta, given, strict=True)]
            copy.deepcopy(self.model).load_state_dict(state["model"])
            self.model.load_state_dict(state["model"])
            for ours, theirs in zip(self.momenta, momenta, strict=True):
                ours.copy_(theirs)
        self._epoch.fill_(epochs)
