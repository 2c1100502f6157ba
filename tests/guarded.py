"""What tests/test_guard.py runs in a process of its own, where tests/cpp/guard.c is preloaded: every operator by every
rung of the CPU, forward and backward, on memory that is poisoned and fenced. Each call is announced.
"""

import itertools

import torch
from common import gradients
from test_ladder import check, is_quadratic

import torch_patterns as tp
from torch_patterns import testing
from torch_patterns.testing import reduction

torch.set_num_threads(2)
for spec in testing.specs().values():
    for rung in spec.rungs("cpu"):
        print(spec.name, rung.name, flush=True)
        most = 300 if is_quadratic(spec, rung.name) or rung.name not in ("sequential", "threaded") else 3000
        edge = max((c for c in spec.edges if c.size <= most and not c.dtypes), key=lambda c: c.size, default=None)
        for case in (*spec.samples, *spec.empty, *([edge] if edge else [])):
            for dtype in {spec.dtype, spec.dtypes[-1], spec.dtypes[0]}:
                if not case.dtypes or dtype in case.dtypes:
                    check(spec, rung.name, case, dtype, "cpu", "exact")
            if spec.differentiable and rung.name == "threaded":
                gradients(spec.op, spec.sample(case, spec.dtype))
# Rows of consecutive columns, which are read as vectors, near the ends of x and of the entries, which are whole lines.
print("consecutive columns", flush=True)
for length, columns_after, entries_after in itertools.product(range(16, 24), range(6), range(6)):
    lengths = torch.tensor([-(3 * length + entries_after) % 16, length, length, length, entries_after])
    ptrs = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    cols = torch.cat([torch.arange(32 - columns_after - n, 32 - columns_after) for n in lengths.tolist()])
    a = tp.CSR(ptrs.int(), cols.int(), torch.ones(cols.numel()), (5, 32))
    assert torch.equal(tp.spmv(a, torch.ones(32)), lengths.float())
# Equal rows, of which all but the last one are followed by as many elements as a vector has.
print("equal rows", flush=True)
for n, dtype, op in itertools.product((31, 33, 49, 63, 65, 100, 129), testing.FLOATS, reduction.OPS):
    row = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    for numbers in (row, row.masked_fill(row < 0, -torch.inf), row.masked_fill(row < 2, torch.nan)):
        results = tp.reduce(numbers.expand(5, n).contiguous(), 1, op=op)
        testing.assert_same_bits(results, results[:1].expand(5).contiguous(), f"{op} {dtype} {n}")
print("all", flush=True)
