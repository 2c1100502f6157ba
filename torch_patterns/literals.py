"""The words that the functions take, for type checkers; at run time the operators check them."""

from typing import Literal

_Bits = Literal["any", "all", "bitwise_and", "bitwise_or", "bitwise_xor"]
ScanOp = Literal["sum", "prod", "max", "min", "argmax", "argmin", _Bits]
ExtremumOp = Literal["max", "min"]
ReduceOp = Literal["sum", "prod", "max", "min", "mean", "logsumexp", "argmax", "argmin", _Bits]
SegmentOp = Literal[ReduceOp, "std", "var"]
Activation = Literal["identity", "bipolar_sigmoid", "tanh", "relu", "sign"]
LeNetActivation = Literal["tanh", "bipolar_sigmoid", "relu"]
LeNetPooling = Literal["subsample", "avg", "max"]
LeNetOutput = Literal["linear", "rbf"]
Reduction = Literal["mean", "sum", "none"]
Duplicates = Literal["error", "sum", "keep"]
LaneOrder = Literal["forward", "reverse", "shuffle"]
