"""LeNet-5 (Fig. 16.4), the network of chapter 16, composed of the operators of this library.

    INPUT 1@32x32 - C1 6@28x28 - S2 6@14x14 - C3 16@10x10 - S4 16@5x5 - C5 120@1x1 - F6 84 - OUTPUT 10

All kernels are 5x5; C3 is connected to all six maps of S2, as in the book (the network of 1998 leaves connections out).
"""

import torch

from . import nn

ACTIVATIONS = {"tanh": nn.Tanh, "bipolar_sigmoid": nn.BipolarSigmoid, "relu": nn.ReLU}
POOLINGS = {"subsample": nn.Subsample2d, "avg": nn.AvgPool2d, "max": nn.MaxPool2d}
OUTPUTS = ("linear", "rbf")
CLASSES = 10

# Of the weights' initial spread: the inverse slope at 0, and a little more for what the tails flatten.
_GAINS = {"tanh": 5 / 3, "bipolar_sigmoid": 10 / 3, "relu": 2**0.5}


def _choose(name: str, word: str, choices) -> str:
    if word not in choices:
        raise ValueError(f"LeNet5: {name} must be one of {', '.join(choices)}; it is {word!r}")
    return word


class LeNet5(torch.nn.Module):
    """LeNet-5: images [N, 1, 32, 32] of a float dtype -> outputs [N, 10]; the greatest output is the digit.

    activation: "tanh", "bipolar_sigmoid" (the book's) or "relu".
    pooling: "subsample" (Fig. 16.7), or "avg" or "max" over 2x2. Bias and activation sit in the subsampling layer;
      without one, in the convolution (caption of Fig. 16.7).
    output: "linear" gives logits; "rbf" gives the book's Gaussians, in (0, 1].
    algorithm: of the convolutions, a rung of conv2d or "auto".

    The weights are drawn from torch's generator: the same seed gives the same network.
    Raises ValueError for an unknown word and for images of another shape.
    """

    def __init__(
        self, activation: str = "tanh", pooling: str = "subsample", output: str = "linear", algorithm: str = "auto"
    ):
        super().__init__()
        _choose("activation", activation, ACTIVATIONS)
        _choose("pooling", pooling, POOLINGS)
        _choose("output", output, OUTPUTS)
        bias = pooling != "subsample"  # else the subsampling layer has it
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
        if x.dim() != 4 or x.size(1) != 1 or x.size(2) != 32 or x.size(3) != 32:
            raise ValueError(f"LeNet5: images must be of shape [N, 1, 32, 32]; these are of shape {list(x.shape)}")
        x = self.s2(self.c1(x))
        x = self.s4(self.c3(x))
        x = self.activation(self.c5(x)).flatten(1)
        x = self.activation(self.f6(x))
        return self.output(x)

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean loss of outputs [N, 10] for digits [N] (int64): softmax cross-entropy of logits, or the book's
        squared error (§16.1), summed over the classes, of Gaussians that ought to be 1 for the digit and 0 for others.
        """
        if isinstance(self.output, nn.Linear):
            return torch.ops.torch_patterns.cross_entropy(output, target)
        return torch.ops.torch_patterns.squared_error(output, _one_hot(target, output.dtype)) * CLASSES


def _pooling(pooling: str, activation: str, channels: int) -> torch.nn.Module:
    if pooling == "subsample":
        return nn.Subsample2d(channels, 2, activation)
    return torch.nn.Sequential(ACTIVATIONS[activation](), POOLINGS[pooling](2))


def _one_hot(target: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # As everywhere, the CPU raises; on the GPU, where a check would wait for the device, a bad label matches no class.
    if target.device.type == "cpu":
        torch.ops.torch_patterns.cross_entropy(torch.zeros(*target.shape, CLASSES, dtype=dtype), target, "none")
    return (target.unsqueeze(-1) == torch.arange(CLASSES, device=target.device)).to(dtype)
