"""Every derivative in every way that torch can ask for it: both modes, torch.func, and vmap of each of them."""

import itertools

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from common import assert_nearly, defined, described, float_outputs, loss
from common import grad as common_grad
from sparse_matrices import random_matrix
from torch.func import functional_call, functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import torch_patterns as tp
from torch_patterns import nn
from torch_patterns.testing import assert_equal, tensors_of

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of torch's own operators


def finite(out) -> tuple[torch.Tensor, ...]:
    """The floating-point outputs, without the infinities of an identity: their differences are NaN."""
    return tuple(y.masked_fill(~y.isfinite(), 0) for y in float_outputs(out))


def functions(spec, sample):
    """The operator and its wrapper as functions of the sample's floats alone, and these."""
    if not spec.differentiable:
        pytest.skip("not differentiable")
    for name in ("op", "wrapper"):
        function = getattr(spec, name)
        if function is not None:
            f, inputs = sample.bind(function)
            yield name, (lambda *x, f=f: finite(f(*x))), [x.detach() for x in inputs]


def small(spec, device):
    """Samples whose results are float64 and defined: others have no derivative."""
    for case in spec.samples:
        sample = spec.sample(case, torch.float64, device, kind="float")
        if float_outputs(sample(spec.op)) and defined(sample(spec.op)):
            yield case, sample


def test_gradcheck(spec, device):
    """Against finite differences: both modes, and reverse mode of a batch of gradients."""
    for case, sample in small(spec, device):
        for name, f, inputs in functions(spec, sample):
            leaves = [x.clone().requires_grad_() for x in inputs]
            batched = name == "op"
            assert torch.autograd.gradcheck(f, leaves, check_forward_ad=True, check_batched_grad=batched), described(
                spec, case
            )


def test_gradgradcheck(spec, device):
    """Second derivatives against finite differences: reverse over reverse and forward over reverse."""
    empty = [(c, spec.sample(c, torch.float64, device, kind="float")) for c in spec.empty]
    for case, sample in (*small(spec, device), *empty):
        if not float_outputs(sample(spec.op)) or not defined(sample(spec.op)):
            continue
        _, f, inputs = next(functions(spec, sample))
        leaves = [x.clone().requires_grad_() for x in inputs]
        assert torch.autograd.gradgradcheck(f, leaves, check_fwd_over_rev=True), described(spec, case)


def test_func(spec, device):
    """torch.func's grad, vjp, jvp, jacrev, jacfwd and hessian agree with autograd and with each other."""
    for case, sample in small(spec, device):
        for name, f, inputs in functions(spec, sample):
            where, every = described(spec, case, name), tuple(range(len(inputs)))
            scalar = lambda *x, f=f: loss(f(*x))  # noqa: E731
            leaves = [x.clone().requires_grad_() for x in inputs]
            want = common_grad(scalar(*leaves), leaves)
            assert_nearly(grad(scalar, every)(*inputs), want, where)
            value, pull = vjp(scalar, *inputs)
            assert_nearly(pull(torch.ones_like(value)), want, where)
            rows, columns = jacrev(f, every)(*inputs), jacfwd(f, every)(*inputs)
            for by_rows, by_columns in zip(rows, columns, strict=True):
                assert_nearly(by_columns, by_rows, where)
            directions = [torch.ones_like(x) for x in inputs]
            _, pushed = jvp(f, tuple(inputs), tuple(directions))
            for tangent, row in zip(pushed, rows, strict=True):
                total = sum(j.unsqueeze(-1).flatten(tangent.dim()).sum(-1) for j in row)
                torch.testing.assert_close(tangent, total, rtol=1e-11, atol=1e-11, msg=lambda m, w=where: f"{w}: {m}")
            squares = lambda *x, f=f: sum((y * y).sum() for y in f(*x))  # noqa: E731
            twice = jacrev(jacrev(squares, every), every)(*inputs)
            forwards = jacfwd(jacfwd(squares, every), every)(*inputs)
            for found in (hessian(squares, every)(*inputs), forwards):
                for blocks, wanted in zip(found, twice, strict=True):
                    for block, w in zip(blocks, wanted, strict=True):
                        torch.testing.assert_close(block, w, rtol=1e-9, atol=1e-9, msg=lambda m, w=where: f"{w}: {m}")


def test_vmap_of_derivatives(spec, device):
    """vmap of grad and of jvp is a loop over them."""
    for case, sample in small(spec, device):
        for name, f, inputs in functions(spec, sample):
            where, every = described(spec, case, name), tuple(range(len(inputs)))
            batch = [torch.stack([x, x / 2, x * 0.75]) for x in inputs]
            loop = list(zip(*batch, strict=True))
            scalar = lambda *x, f=f: loss(f(*x))  # noqa: E731
            want = [torch.stack(g) for g in zip(*(grad(scalar, every)(*x) for x in loop), strict=True)]
            assert_nearly(vmap(grad(scalar, every))(*batch), want, where)
            push = lambda *x, f=f: jvp(f, x, tuple(map(torch.ones_like, x)))[1]  # noqa: E731
            want = [torch.stack(t) for t in zip(*(push(*x) for x in loop), strict=True)]
            assert_nearly(vmap(push)(*batch), want, where)


def test_dual_numbers(spec, device):
    """Tangents of some inputs, those of the others being zero, in every dtype: of the inputs' dtype and sizes."""
    for dtype in {torch.float32, torch.bfloat16} & set(spec.dtypes):
        sample = spec.sample(spec.samples[0], dtype, device)
        for _, f, inputs in functions(spec, sample):
            for chosen in range(len(inputs)):
                with forward_ad.dual_level():
                    duals = list(inputs)
                    duals[chosen] = forward_ad.make_dual(inputs[chosen], torch.ones_like(inputs[chosen]))
                    for y in f(*duals):
                        tangent = forward_ad.unpack_dual(y).tangent
                        assert tangent is None or (tangent.dtype, tangent.shape) == (y.dtype, y.shape)


def test_derivatives_under_autocast(spec, device):
    """Autocast has its say where an operator is called: results and tangents are those of the cast arguments, in
    inference mode and under torch.func, too, and a backward pass within autocast gives what it gives outside, in a half
    type that is not autocast's, too.
    """
    dtypes = [dtype for dtype in (torch.float32, torch.float16) if dtype in spec.dtypes]
    for dtype, case in itertools.product(dtypes, spec.samples):
        sample, where = spec.sample(case, dtype, device, kind="float"), f"{described(spec, case)}, {dtype}"
        runs_in = {"float32": torch.float32, "lower": torch.bfloat16, None: dtype}[spec.autocast_of(case)]
        for _, f, inputs in functions(spec, sample):
            if not f(*inputs):
                continue
            leaves = [x.clone().requires_grad_() for x in inputs]
            total = loss(f(*leaves))
            want = common_grad(total, leaves, retain_graph=True)
            cast = tuple(x.to(runs_in) for x in inputs)
            ones = tuple(map(torch.ones_like, inputs))
            results, tangents = jvp(f, cast, tuple(map(torch.ones_like, cast)))
            with torch.autocast(device, torch.bfloat16):
                assert_equal(common_grad(total, leaves), want, where)
                assert_equal(jvp(f, tuple(inputs), ones)[1], tangents, where)
                with torch.inference_mode():
                    assert_equal(f(*inputs), results, where)


def test_functionalize(spec, device):
    if spec.dynamic:
        pytest.skip("no size without data")
    sample = spec.sample(spec.samples[0], spec.dtype, device)
    for function in filter(None, (spec.op, spec.wrapper)):
        f = lambda *x, function=function: sample.replace(x)(function)  # noqa: E731
        assert_equal(functionalize(f)(*sample.tensors), sample(function), spec.name)


def test_checkpoint(spec, device):
    """Recomputed in backward, the gradients are the same."""
    sample = spec.sample(spec.samples[0], spec.dtype, device)
    for _, f, inputs in functions(spec, sample):
        leaves = [x.clone().requires_grad_() for x in inputs]
        outputs = torch.utils.checkpoint.checkpoint(f, *leaves, use_reentrant=False)
        assert_equal(common_grad(loss(outputs), leaves), common_grad(loss(f(*leaves)), leaves), spec.name)


def test_empty_batch(spec, device):
    """vmap over no samples gives no samples, of the sizes that others have."""
    if spec.dynamic:
        pytest.skip("no size without data")
    for case in spec.samples:
        sample = spec.sample(case, spec.dtype, device)
        batch = [x.new_empty(0, *x.shape) for x in sample.tensors]
        got = torch.vmap(lambda *x: sample.replace(x)(spec.op))(*batch)  # noqa: B023
        for y, single in zip(tensors_of(got), tensors_of(sample(spec.op)), strict=True):
            assert y.shape == (0, *single.shape) and y.dtype == single.dtype, described(spec, case)


# ---- what the Specs do not say

ALONG_DIM = {
    "scan": lambda t, d: tp.scan(t, d),
    "scan_with_indices": lambda t, d: tp.scan_with_indices(t, d),
    "linear_recurrence": lambda t, d: tp.linear_recurrence(t, t, d),
    "reduce": lambda t, d: tp.reduce(t, d),
    "sort": lambda t, d: tp.sort(t, d),
    "sort_keys": lambda t, d: tp.sort_keys(t, d),
    "sort_pairs": lambda t, d: tp.sort_pairs(t, t, d),
    "argsort": lambda t, d: tp.argsort(t, d),
    "lexsort": lambda t, d: tp.lexsort([t, t], dim=d),
}


def last_of(x):
    return x[-1] if isinstance(x, tuple) else x


@pytest.mark.parametrize("name", ALONG_DIM)
def test_dim_never_reaches_the_batch(name):
    f = ALONG_DIM[name]
    for sample in (torch.randn(5), torch.randn(2, 5)):
        for dim in (-sample.dim() - 1, sample.dim()):
            with pytest.raises(IndexError, match=f"dim {dim} is out of range"):
                f(sample, dim)
            with pytest.raises(IndexError, match=f"dim {dim} is out of range"):
                vmap(lambda t: f(t, dim))(torch.stack([sample, sample]))  # noqa: B023
    with pytest.raises(IndexError):
        vmap(lambda t: f(t, 1))(torch.randn(3))
    scalars = torch.randn(3)
    if name == "linear_recurrence":  # refuses them with and without vmap
        for g in (lambda: f(scalars[0], 0), lambda: vmap(lambda t: f(t, 0))(scalars)):
            with pytest.raises(RuntimeError, match="need a dimension to run along, got scalars"):
                g()
        return
    got = vmap(lambda t: last_of(f(t, 0)))(scalars)
    assert_equal(got, torch.stack([last_of(f(t, 0)) for t in scalars]), "scalar samples")


@pytest.mark.parametrize("name", ["linear", "linear_dgrad"])
def test_a_batch_of_scalars_is_no_sample(name):
    op, weight = getattr(torch.ops.torch_patterns, name), torch.randn(4, 4)
    with pytest.raises(RuntimeError, match=f"{name}: the last dimension of .* must be 4 .* got shape \\[\\]"):
        vmap(lambda t: op(t, weight))(torch.randn(4))


COMPLEX_PAYLOADS = {
    "sort_pairs": lambda k, v: tp.sort_pairs(k, v)[1],
    "merge_pairs": lambda k, v: tp.merge_pairs(k.sort().values, v, k.sort().values, v * 2)[1],
    "segment_sort_pairs": lambda k, v: tp.segment_sort_pairs(k, v, torch.tensor([0, 3, 3, 7]))[1],
}


@pytest.mark.parametrize("name", COMPLEX_PAYLOADS)
def test_complex_payloads(name):
    """They travel with gradients and tangents, under autograd and torch.func alike."""
    f, keys = COMPLEX_PAYLOADS[name], torch.randn(7)
    values = torch.randn(7, dtype=torch.complex128)
    leaf = values.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: f(keys, v), leaf, check_forward_ad=True)
    weights = torch.arange(1, f(keys, values).numel() + 1).to(torch.complex128) * (1 + 2j)
    scalar = lambda v: (f(keys, v) * weights).sum().real  # noqa: E731
    (want,) = torch.autograd.grad(scalar(leaf), leaf)
    assert want.abs().min() > 0
    assert_equal(grad(scalar)(values), want, name)


MODULES = {
    "Linear": (lambda: nn.Linear(3, 2), (4, 3)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 2, 5, 6)),
    "RBF": (lambda: nn.RBF(4, 3), (2, 4)),
    "Subsample2d": (lambda: nn.Subsample2d(3, 2), (2, 3, 4, 6)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (2, 3, 4, 6)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 3, 4, 6)),
    "LeNet5": (lambda: tp.lenet.LeNet5(), (2, 1, 32, 32)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    """functional_call under grad, jvp and vmap(grad), which gives per-sample gradients, as autograd has them."""
    make, shape = MODULES[name]
    module, x = make().double(), torch.randn(shape, dtype=torch.double)
    params = {key: p.detach() for key, p in module.named_parameters()}

    def scalar(params, x):
        return functional_call(module, params, (x,)).square().sum()

    by_params, by_x = grad(scalar, (0, 1))(params, x)
    leaf = x.clone().requires_grad_()
    want = torch.autograd.grad(module(leaf).square().sum(), [*module.parameters(), leaf])
    for got, w in zip([*by_params.values(), by_x], want, strict=True):
        torch.testing.assert_close(got, w, rtol=1e-12, atol=1e-12)
    _, pushed = jvp(scalar, (params, x), ({k: torch.ones_like(p) for k, p in params.items()}, torch.ones_like(x)))
    torch.testing.assert_close(pushed, sum(g.sum() for g in want), rtol=1e-10, atol=1e-10)
    if params:
        singles = vmap(grad(scalar), (None, 0))(params, x.unsqueeze(1))
        for key, p in params.items():
            torch.testing.assert_close(singles[key].sum(0), by_params[key], rtol=1e-10, atol=1e-10)
            assert singles[key].shape == (x.shape[0], *p.shape)


def test_sparse_constructors_and_solvers():
    """Entries of a matrix are learned through constructors, conversions, products and solvers, under torch.func too."""
    n = 6
    rows = torch.tensor([0, 0, 1, 1, 2, 2, 3, 4, 5, 5, 3])
    cols = torch.tensor([0, 1, 1, 0, 2, 3, 3, 4, 5, 5, 2])
    values = torch.rand(11, dtype=torch.double) + 0.5
    x = torch.randn(n, dtype=torch.double)
    dense = lambda v: torch.zeros(n, n, dtype=v.dtype).index_put((rows, cols), v, accumulate=True)  # noqa: E731
    for make in (
        lambda v: tp.coo(rows, cols, v, (n, n)),
        lambda v: tp.coo(rows, cols, v, (n, n)).coalesce(),
        *(lambda v, f=f: tp.coo(rows, cols, v, (n, n)).convert(f) for f in "csr csc ell hyb jds sell blocked".split()),
    ):
        f = lambda v, make=make: tp.spmv(make(v), x).square().sum()  # noqa: E731
        want = grad(lambda v: (dense(v) @ x).square().sum())(values)
        torch.testing.assert_close(grad(f)(values), want, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(jacfwd(f)(values), want, rtol=1e-12, atol=1e-12)
        leaf = values.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(f(leaf), leaf)[0], want, rtol=1e-12, atol=1e-12)
    to_dense = lambda v: tp.coo(rows, cols, v, (n, n)).to_dense()  # noqa: E731
    torch.testing.assert_close(jacrev(to_dense)(values), jacrev(dense)(values))

    def solved(v, b):
        a = dense(v)
        return torch.linalg.solve(a @ a.T + torch.eye(n, dtype=v.dtype), b)

    def by_cg(v, b):
        a = dense(v)
        spd = a @ a.T + torch.eye(n, dtype=v.dtype)
        matrix = tp.csr(torch.arange(0, n * n + 1, n), torch.arange(n).repeat(n), spd.flatten(), (n, n))
        return tp.solvers.conjugate_gradient(matrix, b, rtol=1e-14)[0]

    for transform in (jacrev, jacfwd):
        for got, want in zip(transform(by_cg, (0, 1))(values, x), jacrev(solved, (0, 1))(values, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


ALGEBRA = {
    "to_dense": lambda a, b: a.to_dense(),
    "add": lambda a, b: (a + b).to_dense(),
    "subtract": lambda a, b: (a - b).to_dense(),
    "entries": lambda a, b: (a * b).to_dense(),
    "product": lambda a, b: tp.spgemm(a, b.T).to_dense(),
    "rows": lambda a, b: a.select_rows(torch.tensor([2, 0, 2])).to_dense(),
}


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "ell", "hyb", "jds", "sell", "blocked"])
@pytest.mark.parametrize("name", ALGEBRA)
def test_sparse_algebra(name, form):
    """vmap over values whose positions are those of every sample, vmap(grad), vmap(jvp) and functionalize."""
    rows, cols = torch.tensor([2, 0, 1, 1, 0, 2, 2]), torch.tensor([1, 0, 3, 1, 0, 1, 2])

    def f(v):
        a = tp.coo(rows, cols, v, (4, 5)).convert(form)
        return ALGEBRA[name](a, tp.coo(cols, rows, v * v, (4, 5)).convert("csr"))

    samples = torch.randn(3, 7, dtype=torch.double)
    scalar = lambda v: f(v).square().sum()  # noqa: E731
    push = lambda v: jvp(f, (v,), (torch.ones_like(v),))[1]  # noqa: E731
    for g, h in ((vmap(f), f), (vmap(grad(scalar)), grad(scalar)), (vmap(push), push)):
        torch.testing.assert_close(g(samples), torch.stack([h(v) for v in samples]), rtol=1e-12, atol=1e-12)
    if form != "hyb":  # torch.cat fails where all that it joins is empty and there are no samples
        assert vmap(f)(samples[:0]).shape == (0, *f(samples[0]).shape)
    assert_equal(functionalize(f)(samples[0]), f(samples[0]), "functionalize")


@pytest.mark.parametrize("form", tp.sparse.FORMATS)
@pytest.mark.parametrize("name", ALGEBRA)
def test_sparse_algebra_over_no_samples(name, form):
    """Also where a HYB has no tail, so that one of its two arrays of values is empty."""
    f = ALGEBRA[name]
    for width in (1, 4):
        options = {"width": width} if form == "hyb" else {}
        A = random_matrix(4, 5, 9, seed=3).convert(form, **options)
        fields = [i for i, x in enumerate(A) if isinstance(x, torch.Tensor) and x.is_floating_point()]

        def call(*values, A=A, fields=fields):
            B = A._replace(**{A._fields[i]: v for i, v in zip(fields, values, strict=True)})
            return f(B, B)

        values = [A[i] for i in fields]
        got = torch.vmap(call)(*(v.new_empty(0, *v.shape) for v in values))
        assert got.shape == (0, *call(*values).shape)


@pytest.mark.parametrize("solver", ["conjugate_gradient", "bicgstab", "gmres"])
def test_functionalize_steps_over_solvers(solver):
    matrix = tp.csr(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), torch.tensor([4.0, 1.0, 1.0, 3.0]), (2, 2))
    f = lambda v, b: getattr(tp.solvers, solver)(matrix._replace(values=v), b).x  # noqa: E731
    b = torch.tensor([1.0, 2.0])
    assert_equal(functionalize(f)(matrix.values, b), f(matrix.values, b))
    inner, outer = grad(lambda v: functionalize(f)(v, b).sum()), grad(lambda v: f(v, b).sum())
    torch.testing.assert_close(inner(matrix.values), outer(matrix.values))


def test_sizes_that_the_data_knows_in_sparse_algebra():
    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def f(a, b):
        return (a + b).to_dense(), (a * b).to_dense(), a.select_columns(torch.tensor([1, 0])).to_dense()

    a, b = (tp.sparse.from_torch(torch.tensor(x)).convert("csr") for x in ([[1.0, 2.0], [0.0, 3.0]], [[0.0, 4.0]] * 2))
    for got, want in zip(f(a, b), ([[1, 6], [0, 7]], [[0, 8], [0, 12]], [[2, 1], [3, 0]]), strict=True):
        assert_equal(got, torch.tensor(want).float())


def test_unbacked_sizes_have_gradients():
    """Under torch.compile, what follows a compaction, whose size only the data knows, is differentiated too."""

    def f(x):
        kept = tp.compact(x, x > 0)
        return tp.scan(kept).sum() + tp.reduce(tp.scan(kept, op="max"), op="logsumexp")

    x = torch.tensor([1.0, -2.0, 3.0, 0.5, -1.0])
    compiled = torch.compile(f, fullgraph=True, dynamic=True)
    got, want = (torch.autograd.grad(g(leaf), leaf)[0] for g in (compiled, f) for leaf in [x.clone().requires_grad_()])
    torch.testing.assert_close(got, want)
    ranked = torch.compile(lambda x: tp.argsort(tp.compact(x, x > 0), index_dtype=torch.int32), fullgraph=True)
    assert ranked(x).tolist() == [2, 0, 1]


def test_bfs_compiles_once_for_every_level():
    graph = tp.graph.grid(4, 4)
    counter = torch._dynamo.testing.CompileCounter()
    search = torch.compile(lambda g, m: tp.bfs(g, 0, m)[0], backend=counter, fullgraph=True, dynamic=True)
    for most in (2, 3, 4, 5):
        assert_equal(search(graph, most), tp.bfs(graph, 0, most)[0], str(most))
    assert counter.frame_count == 1


def test_default_export_of_a_symbolic_window():
    class Mean(torch.nn.Module):
        def forward(self, x):
            return tp.avg_pool2d(x, x.shape[-1])

    x = torch.randn(2, 3, 4, 4)
    exported = torch.export.export(Mean(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    torch.testing.assert_close(exported.module()(x), torch.nn.functional.avg_pool2d(x, 4))


def test_batched_gradients():
    """is_grads_batched and jacobian(vectorize=True), of operators whose tensors come in lists."""
    a = tp.csr(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]), torch.rand(3, dtype=torch.double), (2, 3))
    x, g = torch.randn(3, 4, dtype=torch.double), torch.randn(2, 4, dtype=torch.double)
    index = [a.row_ptrs, a.col_idx]
    transposed = lambda v, g: torch.ops.torch_patterns.spmm_transposed("csr", index, v, g, 2, 3)  # noqa: E731
    sampled = lambda g, x: torch.ops.torch_patterns.sampled_product("csr", index, g, x, 2, 3)  # noqa: E731
    for f, inputs in ((transposed, (a.values, g)), (sampled, (g, x))):
        want = torch.autograd.functional.jacobian(f, inputs)
        for strategy in ("reverse-mode", "forward-mode"):
            got = torch.autograd.functional.jacobian(f, inputs, vectorize=True, strategy=strategy)
            for one, other in itertools.zip_longest(got, want):
                torch.testing.assert_close(one, other)
