"""What tests/test_guard.py runs in a process of its own, where tests/cpp/guard.c is preloaded: every operator by every
rung of the CPU, forward and backward, on memory that is poisoned and fenced. Each call is announced.
"""

import torch
from common import gradients
from test_ladder import check, is_quadratic

from torch_patterns import testing

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
print("all", flush=True)
