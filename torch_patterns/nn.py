"""Modules for the convolution, pooling, dense and loss operators, of which LeNet-5 is made (§16.1-16.2).

Each `forward` is one call of `torch.ops.torch_patterns`, so that `torch.jit.script`, `torch.compile` and `torch.export`
take the modules as they are; outside scripts `Linear` and the activations also take jagged NestedTensors. If torch.nn
has a module of the same name, ours derives from it: the parameters, their names in the state_dict and their
initialization are the same, and so are the arguments and their order; only `algorithm` is added. An argument that is
not supported raises a ValueError that names it.

`algorithm` names a rung of the pattern's ladder (`torch_patterns.algorithms("conv2d")` lists them) or is "auto"; it may
be assigned at any time. Shapes: N samples, C input maps, M output maps, H x W pixels. Float dtypes: float16, bfloat16,
float32, float64.
"""

import operator
from typing import Literal, cast

import torch

from torch_patterns.arguments import pair
from torch_patterns.calls import ops
from torch_patterns.literals import Activation, Reduction

IntPair = int | tuple[int, ...]


def _pair(value: IntPair) -> tuple[int, int]:
    """Returns plain integers for integers of any kind; like torch.nn, it accepts only one or two."""
    both = value if isinstance(value, tuple) and len(value) == 2 else pair(_plain(value))
    if not isinstance(both, tuple):
        raise TypeError(f"sizes of a window must be an integer or a sequence of them, not {value!r}")
    return cast(tuple[int, int], tuple(map(operator.index, both)))


def _plain(value):
    try:
        return operator.index(value)
    except TypeError:
        return value


def _refuse(module: torch.nn.Module, **arguments) -> None:
    """Raises a ValueError for the first argument, given as (default, value), whose value is not torch.nn's default."""
    for name, (default, value) in arguments.items():
        if value is not default and value != default:
            raise ValueError(f"{type(module).__name__}: {name}={value!r} is not supported, only {default!r}")


class _Operator(torch.nn.Module):
    """The base of all modules: it holds the algorithm, and shows it in the repr."""

    algorithm: str

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (super().extra_repr(), f"algorithm={self.algorithm!r}")))


# torch.fx traces calls of these two without looking inside, where the code depends on the number of dimensions.
@torch.fx.wrap
def _batch_of(x: torch.Tensor) -> torch.Tensor:
    """Returns one image as a batch of one, and a batch as it is."""
    return x.unsqueeze(0) if x.dim() == 3 else x


@torch.fx.wrap
def _unbatched(maps: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns the maps without the dimension of the batch if `x` is one image."""
    return maps.squeeze(0) if x.dim() == 3 else maps


class Conv2d(_Operator, torch.nn.Conv2d):
    """Convolution layer (Fig. 16.6): [N, C, H, W] -> [N, M, H_out, W_out]; an output map sums over all input maps.
    One image [C, H, W] gives [M, H_out, W_out].

    Parameters: weight [M, C / groups, K_h, K_w] and, with `bias`, bias [M]. Without padding, H_out = H - K_h + 1.
    `padding` may be "valid" or, if the stride is 1, "same"; `padding_mode` "zeros", "reflect", "replicate" or
    "circular".

    Example:
        >>> tp.nn.Conv2d(1, 6, kernel_size=5)(torch.ones(2, 1, 32, 32)).shape
        torch.Size([2, 6, 28, 28])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntPair,
        stride: IntPair = 1,
        padding: IntPair | str = 0,
        dilation: IntPair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device=None,
        dtype=None,
        *,
        algorithm: str = "auto",
    ):
        super().__init__(
            operator.index(in_channels),
            operator.index(out_channels),
            _pair(kernel_size),
            _pair(stride),
            padding if isinstance(padding, str) else _pair(padding),
            _pair(dilation),
            operator.index(groups),
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.algorithm = algorithm
        self._divide_padding()

    def __setattr__(self, name: str, value) -> None:
        super().__setattr__(name, value)
        if name in ("padding", "padding_mode", "dilation") and "zeros_around" in vars(self):
            self._divide_padding()

    def _divide_padding(self) -> None:
        """The operator itself pads with zeros, equally on both sides; all other padding is done before the call."""
        sides = []
        for d in (1, 0):  # as torch.nn.functional.pad takes them, columns first
            if isinstance(self.padding, str):
                both = self.dilation[d] * (self.kernel_size[d] - 1) if self.padding == "same" else 0
                sides += [both // 2, both - both // 2]
            else:
                sides += [_pair(self.padding)[d]] * 2
        left, right, top, bottom = self._reversed_padding_repeated_twice = sides
        self.pads_before = self.padding_mode != "zeros" or left != right or top != bottom
        self.pad_mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        self.zeros_around = (0, 0) if self.pads_before else (top, left)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = _batch_of(x)
        if self.pads_before:
            images = torch.nn.functional.pad(images, self._reversed_padding_repeated_twice, self.pad_mode)
        maps = torch.ops.torch_patterns.conv2d(
            images, self.weight, self.bias, self.stride, self.zeros_around, self.dilation, self.groups, self.algorithm
        )
        return _unbatched(maps, x)


class Subsample2d(_Operator):
    """Subsampling layer (Fig. 16.7): the activation of each window's mean plus the map's learned bias.

    [N, C, H, W] -> [N, C, H / size, W / size], by windows that do not overlap. Parameter: bias [C], initially zero.
    `activation` is "bipolar_sigmoid", "tanh", "relu", "sign" or "identity", as for :func:`torch_patterns.subsample2d`.
    The convolution before this layer has no activation of its own.

    Example:
        >>> tp.nn.Subsample2d(6)(torch.ones(2, 6, 28, 28)).shape
        torch.Size([2, 6, 14, 14])
    """

    def __init__(
        self,
        channels: int,
        size: IntPair = 2,
        activation: Activation = "bipolar_sigmoid",
        *,
        device=None,
        dtype=None,
        algorithm: str = "auto",
    ):
        super().__init__()
        self.size = _pair(size)
        self.activation = activation
        self.algorithm = algorithm
        self.bias = torch.nn.Parameter(torch.zeros(channels, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.subsample2d(x, self.bias, self.size, self.activation, self.algorithm)

    def extra_repr(self) -> str:
        return f"{self.bias.numel()}, size={self.size}, activation={self.activation!r}, {super().extra_repr()}"


class AvgPool2d(_Operator, torch.nn.AvgPool2d):
    """Mean of each window, without bias or activation: [N, C, H, W] -> [N, C, H_out, W_out]. `stride` is by default the
    window's.

    Example:
        >>> tp.nn.AvgPool2d(2)(torch.ones(2, 6, 28, 28)).shape
        torch.Size([2, 6, 14, 14])
    """

    def __init__(
        self,
        kernel_size: IntPair,
        stride: IntPair | None = None,
        padding: IntPair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        algorithm: str = "auto",
    ):
        _refuse(self, divisor_override=(None, divisor_override))
        stride = kernel_size if stride is None else stride
        super().__init__(_pair(kernel_size), _pair(stride), _pair(padding), ceil_mode, count_include_pad)
        self.algorithm = algorithm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.algorithm
        )


class MaxPool2d(_Operator, torch.nn.MaxPool2d):
    """Greatest value of each window: [N, C, H, W] -> [N, C, H_out, W_out]. `stride` is by default the window's.

    With `return_indices` it also returns the index of each maximum in its map, row * W + column.

    Example:
        >>> tp.nn.MaxPool2d(2)(torch.ones(2, 6, 28, 28)).shape
        torch.Size([2, 6, 14, 14])
    """

    def __init__(
        self,
        kernel_size: IntPair,
        stride: IntPair | None = None,
        padding: IntPair = 0,
        dilation: IntPair = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        *,
        algorithm: str = "auto",
    ):
        stride = kernel_size if stride is None else stride
        windows = _pair(kernel_size), _pair(stride), _pair(padding), _pair(dilation)
        super().__init__(*windows, return_indices, ceil_mode)
        self.algorithm = algorithm

    def forward(self, x: torch.Tensor):  # without a return type: torch.jit.script infers it
        pooled = torch.ops.torch_patterns.max_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.algorithm
        )
        if self.return_indices:
            return pooled
        else:  # noqa: RET505
            return pooled[0]


class Linear(_Operator, torch.nn.Linear):
    """Fully connected layer (§16.1): [..., in_features] -> [..., out_features], one perceptron per output.

    Parameters: weight [out_features, in_features] and, with `bias`, bias [out_features].

    Example:
        >>> tp.nn.Linear(120, 84)(torch.ones(2, 120)).shape
        torch.Size([2, 84])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device=None,
        dtype=None,
        *,
        algorithm: str = "auto",
    ):
        super().__init__(operator.index(in_features), operator.index(out_features), bias, device, dtype)
        self.algorithm = algorithm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            return torch.ops.torch_patterns.linear(x, self.weight, self.bias, self.algorithm)
        return ops.linear(x, self.weight, self.bias, self.algorithm)


class RBF(_Operator):
    """Gaussian output layer (§16.2): [N, features] -> [N, classes], ``exp(-|x - centre|^2 / (2 sigma^2))``.

    Parameter: centres [classes, features], initially random corners of the cube [-1, 1]^features. `sigma` defaults to
    sqrt(features) / 2: corners are sqrt(2 features) apart on average, so the output of one at another is then exp(-4).

    Example:
        >>> tp.nn.RBF(84, 10)(torch.ones(2, 84)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        features: int,
        classes: int,
        sigma: float | None = None,
        *,
        device=None,
        dtype=None,
        algorithm: str = "auto",
    ):
        super().__init__()
        self.sigma = features**0.5 / 2 if sigma is None else float(sigma)
        self.algorithm = algorithm
        corners = torch.randint(0, 2, (classes, features), device=device) * 2.0 - 1.0
        self.centres = torch.nn.Parameter(corners.to(dtype or torch.get_default_dtype()))

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
    """The book's sigmoid (§16.1): (1 - e^-x) / (1 + e^-x), which is tanh(x / 2).

    Example:
        >>> tp.nn.BipolarSigmoid()(torch.tensor([0.0, 2.0]))
        tensor([0.0000, 0.7616])
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            return torch.ops.torch_patterns.bipolar_sigmoid(x, self.algorithm)
        return ops.bipolar_sigmoid(x, self.algorithm)


class Tanh(_Activation, torch.nn.Tanh):
    """Hyperbolic tangent.

    Example:
        >>> tp.nn.Tanh()(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 0.7616])
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            return torch.ops.torch_patterns.tanh(x, self.algorithm)
        return ops.tanh(x, self.algorithm)


class ReLU(_Activation, torch.nn.ReLU):
    """max(x, 0) (§16.2).

    Example:
        >>> tp.nn.ReLU()(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """

    def __init__(self, inplace: bool = False, *, algorithm: str = "auto"):
        super().__init__(algorithm=algorithm)
        _refuse(self, inplace=(False, inplace))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            return torch.ops.torch_patterns.relu(x, self.algorithm)
        return ops.relu(x, self.algorithm)


class Sign(_Activation):
    """The perceptron's activation (§16.1): -1, 0 or 1. Its gradient is zero: a perceptron is not trained through it.

    Example:
        >>> tp.nn.Sign()(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  1.])
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            return torch.ops.torch_patterns.sign(x, self.algorithm)
        return ops.sign(x, self.algorithm)


class _Loss(_Operator):
    """A loss. `reduction`: "mean" or "sum" (over all elements) gives a scalar, "none" one value per element."""

    def __init__(self, reduction: Reduction = "mean", *, algorithm: str = "auto"):
        super().__init__()
        self.reduction: str = reduction
        self.algorithm = algorithm

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, {super().extra_repr()}"


class CrossEntropyLoss(_Loss, torch.nn.CrossEntropyLoss):
    """Softmax cross-entropy of logits [N, classes] and class indices [N] (int64).

    Every target must be a class: unlike in torch.nn, a target of -100 is not ignored but raises an IndexError.

    Example:
        >>> tp.nn.CrossEntropyLoss()(torch.zeros(1, 2), torch.tensor([1]))
        tensor(0.6931)
    """

    def __init__(
        self,
        weight: torch.Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        *,
        algorithm: str = "auto",
    ):
        super().__init__(reduction, algorithm=algorithm)
        _refuse(self, weight=(None, weight), size_average=(None, size_average), ignore_index=(-100, ignore_index))
        _refuse(self, reduce=(None, reduce), label_smoothing=(0.0, label_smoothing))

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.cross_entropy(logits, target, self.reduction, self.algorithm)


class SquaredErrorLoss(_Loss):
    """The book's error function (§16.1): ``(y - t)^2 / 2``; y and t of one shape.

    Example:
        >>> tp.nn.SquaredErrorLoss(reduction="sum")(torch.tensor([1.0, 3.0]), torch.zeros(2))
        tensor(5.)
    """

    def forward(self, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.squared_error(y, t, self.reduction, self.algorithm)


class AbsoluteErrorLoss(_Loss):
    """The book's other error function (§16.1): ``|y - t|``; y and t of one shape.

    Example:
        >>> tp.nn.AbsoluteErrorLoss()(torch.tensor([1.0, 3.0]), torch.zeros(2))
        tensor(2.)
    """

    def forward(self, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_patterns.absolute_error(y, t, self.reduction, self.algorithm)
