"""What users write, for `mypy` and `pyright` to look at (`make lint`, `make types`): every type is the one stated.

Nothing here runs. A line that must not pass carries a `type: ignore`, which is itself an error where it is not needed.
"""

from typing import assert_type

import torch
from torch import Tensor

import torch_patterns as tp


def functions(x: Tensor, offsets: Tensor) -> None:
    assert_type(tp.scan(x, op="max", exclusive=True), Tensor)
    assert_type(tp.scan_with_indices(x, op="min"), tuple[Tensor, Tensor])
    assert_type(tp.linear_recurrence(x, x, initial=x[..., 0]), Tensor)
    assert_type(tp.reduce(x, dim=[0, 1], op="logsumexp", keepdim=True), Tensor)
    assert_type(tp.segment_reduce(x, offsets, op="argmax"), Tensor)
    assert_type(tp.segment_scan(x, offsets, reverse=True), Tensor)
    assert_type(tp.segment_expand(x, offsets, 10), Tensor)
    assert_type(tp.histogram(x, 10, min=0.0, max=1.0), Tensor)
    assert_type(tp.compact_padded(x, x > 0, fill=-1), tuple[Tensor, Tensor])
    assert_type(tp.sort(x, descending=True, index_dtype=torch.int32), tuple[Tensor, Tensor])
    assert_type(tp.sort_keys(x, begin_bit=0, end_bit=8), Tensor)
    assert_type(tp.sort_pairs(x, x), tuple[Tensor, Tensor])
    assert_type(tp.segment_sort(x, offsets), Tensor)
    assert_type(tp.merge(x, x), Tensor)
    assert_type(tp.co_rank(3, x, x), Tensor)
    assert_type(tp.conv2d(x, x, stride=(1, 2), padding=1), Tensor)
    assert_type(tp.max_pool2d(x, 2), Tensor)
    assert_type(tp.max_pool2d(x, 2, return_indices=True), tuple[Tensor, Tensor])
    assert_type(tp.subsample2d(x, x, activation="tanh"), Tensor)
    assert_type(tp.relu(x), Tensor)
    assert_type(tp.cross_entropy(x, x, reduction="none"), Tensor)
    assert_type(tp.segment_softmax(x, offsets), Tensor)
    assert_type(tp.segment_reduce(x, offsets, op="logsumexp"), Tensor)
    assert_type(tp.group_reduce(x, offsets, 3, op="std"), Tensor)
    assert_type(tp.reduce_by_key(x, x), tuple[Tensor, Tensor])
    assert_type(tp.algorithms("scan", "cuda"), list[str])


def mistakes(x: Tensor) -> None:
    tp.scan(x, op="mean")  # type: ignore[arg-type]
    tp.scan(x, -1, "sum")  # type: ignore[call-arg]
    tp.reduce(x, op="median")  # type: ignore[arg-type]
    tp.cross_entropy(x, x, reduction="average")  # type: ignore[arg-type]
    tp.scan([1, 2, 3])  # type: ignore[arg-type]


def matrices(row: Tensor, col: Tensor, values: Tensor, x: Tensor, X: Tensor) -> None:
    a = tp.coo(row, col, values, (10, 10))
    assert_type(a, tp.COO)
    assert_type(a.convert("csr"), tp.CSR)
    assert_type(a.convert("sell", section_rows=64), tp.SELL)
    assert_type(a.convert("csr").transpose(), tp.CSR)
    assert_type(a.T.coalesce().to("cuda"), tp.COO)
    assert_type(a @ x, Tensor)
    assert_type((2 * a + a / 3 - a), tp.COO)
    assert_type(a.values, Tensor)
    assert_type(a.nnz, int)
    assert_type(a.select_rows([0, 2]).sum(dim=0), Tensor)
    assert_type(tp.spmv(a, x, plan=a.plan()), Tensor)
    assert_type(tp.spmm(a.convert("ell", width=4), X), Tensor)
    assert_type(tp.CSR.from_torch(X), tp.CSR)
    assert_type(tp.io.read_matrix_market("a.mtx", duplicates="sum"), tp.COO)


def graphs(src: Tensor, dst: Tensor) -> None:
    g = tp.graph.from_edges(src, dst, directed=False)
    assert_type(g, tp.Graph)
    assert_type(g.num_vertices, int)
    assert_type(tp.bfs(g, 0, max_level=3), tuple[Tensor, Tensor])
    assert_type(tp.shortest_path(g, 0, 5), Tensor)
    assert_type(tp.pagerank(g), Tensor)
    assert_type(tp.triangle_count(g), int)


def modules(images: Tensor) -> None:
    net = torch.nn.Sequential(tp.nn.Conv2d(1, 6, 5), tp.nn.Subsample2d(6, activation="tanh"))
    net(images)
    tp.nn.CrossEntropyLoss(reduction="sum")
    tp.lenet.LeNet5(pooling="max")
