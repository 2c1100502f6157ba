"""Modules over the convolution, pooling, dense and loss operators: what LeNet-5 is made of (§16.1-16.2).

Each `forward` is one call of `torch.ops.torch_patterns`, so that `torch.jit.script`, `torch.compile` and `torch.export`
take the modules as they are. Where torch.nn has a module of the same name, ours derives from it: the parameters, their
names in the state_dict and their initialisation are the same; `algorithm` is all that is added.

`algorithm` names a rung of the pattern's ladder (`torch_patterns.algorithms("conv2d")` lists them) or is "auto"; it may
be assigned at any time. Shapes: N samples, C input maps, M output maps, H x W pixels. Float dtypes: float16, bfloat16,
float32, float64.
"""

import torch
from torch.nn.modules.utils import _pair

IntPair = int | tuple[int, int]


class _Operator(torch.nn.Module):
    """What all modules share: the algorithm, shown in the repr."""

    algorithm: str

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (super().extra_repr(), f"algorithm={self.algorithm!r}")))


class Conv2d(_Operator, torch.nn.Conv2d):
    """Convolution layer (Fig. 16.6): [N, C, H, W] -> [N, M, H_out, W_out]; an output map sums over all input maps.

    Parameters: weight [M, C / groups, K_h, K_w] and, with `bias`, bias [M]. Without padding, H_out = H - K_h + 1.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntPair,
        stride: IntPair = 1,
        padding: IntPair = 0,
        dilation: IntPair = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        algorithm: str = "auto",
    ):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.algorithm = algorithm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups, self.algorithm
        )


class Subsample2d(_Operator):
    """Subsampling layer (Fig. 16.7): mean of each window, plus the map's learned bias, through the activation.

    [N, C, H, W] -> [N, C, H / size, W / size], windows side by side. Parameter: bias [C], zero at first.
    `activation` is "bipolar_sigmoid", "tanh" or "relu"; the convolution before this layer has none of its own.
    """

    def __init__(
        self, channels: int, size: IntPair = 2, activation: str = "bipolar_sigmoid", *, algorithm: str = "auto"
    ):
        super().__init__()
        self.size = _pair(size)
        self.activation = activation
        self.algorithm = algorithm
        self.bias = torch.nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.subsample2d(x, self.bias, self.size, self.activation, self.algorithm)

    def extra_repr(self) -> str:
        return f"{self.bias.numel()}, size={self.size}, activation={self.activation!r}, {super().extra_repr()}"


class AvgPool2d(_Operator, torch.nn.AvgPool2d):
    """Mean of each window, without bias or activation: [N, C, H, W] -> [N, C, H_out, W_out]. `stride`: the window's."""

    def __init__(
        self,
        kernel_size: IntPair,
        stride: IntPair | None = None,
        padding: IntPair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        *,
        algorithm: str = "auto",
    ):
        super().__init__(_pair(kernel_size), _pair(stride or kernel_size), _pair(padding), ceil_mode, count_include_pad)
        self.algorithm = algorithm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.algorithm
        )


class MaxPool2d(_Operator, torch.nn.MaxPool2d):
    """Greatest value of each window: [N, C, H, W] -> [N, C, H_out, W_out]. `stride`: the window's if not given."""

    def __init__(
        self,
        kernel_size: IntPair,
        stride: IntPair | None = None,
        padding: IntPair = 0,
        dilation: IntPair = 1,
        ceil_mode: bool = False,
        *,
        algorithm: str = "auto",
    ):
        super().__init__(
            _pair(kernel_size), _pair(stride or kernel_size), _pair(padding), _pair(dilation), ceil_mode=ceil_mode
        )
        self.algorithm = algorithm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.max_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.algorithm
        )[0]


class Linear(_Operator, torch.nn.Linear):
    """Fully connected layer (§16.1): [..., in_features] -> [..., out_features], one perceptron an output.

    Parameters: weight [out_features, in_features] and, with `bias`, bias [out_features].
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, algorithm: str = "auto"):
        super().__init__(in_features, out_features, bias)
        self.algorithm = algorithm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.linear(x, self.weight, self.bias, self.algorithm)


class RBF(_Operator):
    """Gaussian output layer (§16.2): [N, features] -> [N, classes], exp(-|x - centre|^2 / (2 sigma^2)), in (0, 1].

    Parameter: centres [classes, features], random corners of the cube [-1, 1]^features at first. `sigma` defaults to
    sqrt(features) / 2: corners, on average sqrt(2 features) apart, then see each other at exp(-4).
    """

    def __init__(self, features: int, classes: int, sigma: float | None = None, *, algorithm: str = "auto"):
        super().__init__()
        self.sigma = features**0.5 / 2 if sigma is None else float(sigma)
        self.algorithm = algorithm
        self.centres = torch.nn.Parameter(torch.randint(0, 2, (classes, features)) * 2.0 - 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.rbf(x, self.centres, self.sigma, self.algorithm)

    def extra_repr(self) -> str:
        classes, features = self.centres.shape
        return f"{features}, {classes}, sigma={self.sigma:.4g}, {super().extra_repr()}"


class _Activation(_Operator):
    """An activation function: any shape -> the same shape."""

    def __init__(self, *, algorithm: str = "auto"):
        super().__init__()
        self.algorithm = algorithm


class BipolarSigmoid(_Activation):
    """The book's sigmoid (§16.1): (1 - e^-x) / (1 + e^-x), which is tanh(x / 2)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.bipolar_sigmoid(x, self.algorithm)


class Tanh(_Activation):
    """Hyperbolic tangent."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.tanh(x, self.algorithm)


class ReLU(_Activation):
    """max(x, 0) (§16.2)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.relu(x, self.algorithm)


class Sign(_Activation):
    """The perceptron's activation (§16.1): -1, 0 or 1. Its gradient is zero: a perceptron is not trained through it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.sign(x, self.algorithm)


class _Loss(_Operator):
    """A loss. `reduction`: "mean" or "sum" (over all elements) gives a scalar, "none" one value an element."""

    def __init__(self, reduction: str = "mean", *, algorithm: str = "auto"):
        super().__init__()
        self.reduction = reduction
        self.algorithm = algorithm

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, {super().extra_repr()}"


class CrossEntropyLoss(_Loss):
    """Softmax cross-entropy of logits [N, classes] and class indices [N] (int64)."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.cross_entropy(logits, target, self.reduction, self.algorithm)


class SquaredErrorLoss(_Loss):
    """The book's error function (§16.1): (y - t)^2 / 2; y and t of one shape."""

    def forward(self, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.squared_error(y, t, self.reduction, self.algorithm)


class AbsoluteErrorLoss(_Loss):
    """The book's other error function (§16.1): |y - t|; y and t of one shape."""

    def forward(self, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.absolute_error(y, t, self.reduction, self.algorithm)
