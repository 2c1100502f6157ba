"""The words that the functions take, for type checkers; at run time the operators check them."""

from typing import Literal

ScanOp = Literal["sum", "prod", "max", "min"]
ExtremumOp = Literal["max", "min"]
SegmentOp = Literal["sum", "prod", "max", "min", "mean", "argmax", "argmin"]
ReduceOp = Literal["sum", "prod", "max", "min", "mean", "logsumexp", "argmax", "argmin"]
Activation = Literal["identity", "bipolar_sigmoid", "tanh", "relu", "sign"]
LeNetActivation = Literal["tanh", "bipolar_sigmoid", "relu"]
LeNetPooling = Literal["subsample", "avg", "max"]
LeNetOutput = Literal["linear", "rbf"]
Reduction = Literal["mean", "sum", "none"]
Duplicates = Literal["error", "sum", "keep"]
LaneOrder = Literal["forward", "reverse", "shuffle"]
