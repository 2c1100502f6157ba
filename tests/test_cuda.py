"""What only CUDA can get wrong: graphs, streams, synchronization, several devices, errors, sizes beyond 2^31."""

import contextlib
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from common import assert_nearly, described, gradients, needs_cuda, problem, results
from test_ladder import repeats

from torch_patterns import conv2d, conv2d_dgrad, conv2d_wgrad, max_pool2d, registry, testing
from torch_patterns.testing import assert_equal, assert_same_bits, tensors_of

pytestmark = [pytest.mark.devices("cuda"), needs_cuda]

N = 2**16
DELAY = 20_000_000  # clock ticks, some ten milliseconds: longer than any launch here


def has_trait(spec, rung: str, trait: str) -> bool:
    if trait == "host_sync" and spec.dynamic:
        return True
    return any(trait in r.traits for r in registry.ladder(spec.pattern) if r.name == rung)


def size(spec, rung: str) -> int:
    return 2000 if has_trait(spec, rung, "quadratic") else N


def rung_problem(spec, device: str, rung: str):
    """A problem of which the rung's every run gives the same bits."""
    kind = "exact" if has_trait(spec, rung, "float_atomics") else "float"
    return problem(spec, size(spec, rung), spec.dtype, device, kind)


@pytest.mark.sanitizer
def test_each_kernel(spec, device, rung):
    """Every dtype, and every combination of arguments once, at sizes that compute-sanitizer can follow."""
    for number, dtype in enumerate(spec.dtypes):
        cases = list({str(c.kwargs): c for c in sorted(spec.cases(dtype, most=3100), key=lambda c: c.size)}.values())
        for case in cases if dtype == spec.dtype else cases[number % len(cases) :: 5]:
            sample = spec.sample(case, dtype)
            out, want = sample.to(device)(spec.op, algorithm=rung), sample(spec.op, algorithm="sequential")
            if spec.exact and not has_trait(spec, rung, "norm_wise"):
                assert_equal(out, want, described(spec, rung, dtype, case))


def captured(function, sample):
    """The graph of a call, and the outputs that its replay fills."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sample(function)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = sample(function)
    return graph, outputs


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # when a rung refuses
def test_graphs(spec, device, rung):
    """A captured call, replayed on changed inputs, gives what an eager one gives; or the rung refuses, and says so."""

    def call(*args, **kwargs):
        return spec.op(*args, **kwargs, algorithm=rung)

    sample = rung_problem(spec, device, rung)
    if has_trait(spec, rung, "host_sync"):
        by = rung if spec.pattern == spec.name else ""  # a composition of others is refused by one of these
        with pytest.raises(RuntimeError, match=f"{by}.*cannot be captured"):
            captured(call, sample)
        return
    if not repeats(spec, rung):
        return
    graph, outputs = captured(call, sample)
    for scale in (1, 2, -1):
        for x in sample.floats:
            x.mul_(scale)
        graph.replay()
        assert_same_bits(outputs, sample(call), described(spec, rung, scale))


def test_training_graph(spec, device):
    """Forward and backward in one graph."""
    waits = all(has_trait(spec, rung.name, "host_sync") for rung in spec.rungs("cuda"))
    if not spec.differentiable or spec.dynamic or waits:
        pytest.skip("not differentiable, or it waits for the device")
    sample = problem(spec, N, spec.dtype, device)
    graph, grads = captured(lambda *args, **kwargs: gradients(spec.op, testing.Sample(args, kwargs)), sample)
    for x in sample.floats:
        x.mul_(-2)
    graph.replay()
    assert_same_bits(grads, gradients(spec.op, sample), spec.name)


def test_side_streams(spec, device, rung):
    """All work is on the current stream: behind a producer that is late, ahead of a consumer on the same stream."""
    if not repeats(spec, rung):
        return
    sample = rung_problem(spec, device, rung)
    want = sample(spec.op, algorithm=rung)
    late = sample.map(torch.zeros_like)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY)
        for x, value in zip(late.tensors, sample.tensors, strict=True):
            x.copy_(value)
        outputs = tensors_of(late(spec.op, algorithm=rung))
        copies = [y.clone() for y in outputs]
        del outputs
    side.synchronize()
    assert_same_bits(copies, want, described(spec, rung))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_synchronization(spec, device, rung):
    """The host never waits for the device."""
    if has_trait(spec, rung, "host_sync"):
        return
    sample = rung_problem(spec, device, rung)
    sample(spec.op, algorithm=rung)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample(spec.op, algorithm=rung)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_workspace_is_leaked(spec, device, rung):
    sample = rung_problem(spec, device, rung)
    sample(spec.op, algorithm=rung)
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        sample(spec.op, algorithm=rung)
    assert torch.cuda.memory_allocated() == before


def test_mixed_devices_are_refused(spec, device):
    """The error names both, and the device remains usable."""
    sample = spec.sample(spec.samples[0], spec.dtype, device)
    for i in range(len(sample.tensors) if len(sample.tensors) > 1 else 0):
        mixed = sample.replace([x.cpu() if i == j else x for j, x in enumerate(sample.tensors)])
        for function in filter(None, (spec.op, spec.wrapper)):
            with pytest.raises(RuntimeError, match="(?s)(cpu.*cuda|cuda.*cpu)"):
                mixed(function)
    assert_same_bits(sample(spec.op), sample(spec.op))
    torch.cuda.synchronize()


def test_other_device(spec, device, rung):
    """Tensors on a device that is not the current one: results there, and nothing is allocated here."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    sample = rung_problem(spec, "cpu", rung)
    here, there = (tensors_of(sample.to(d)(spec.op, algorithm=rung)) for d in ("cuda:0", "cuda:1"))
    assert all(y.device == torch.device("cuda:1") for y in there) and torch.cuda.current_device() == 0
    # A softmax adds exponentials, which are not exact whatever its input is.
    compare = assert_nearly if has_trait(spec, rung, "float_atomics") and not spec.exact else assert_same_bits
    compare([y.cpu() for y in there], [y.cpu() for y in here], described(spec, rung))
    gc.collect()  # or garbage of earlier tests would go while the call runs
    moved, before = sample.to("cuda:1"), torch.cuda.memory_allocated(0)
    moved(spec.op, algorithm=rung)
    assert torch.cuda.memory_allocated(0) == before


def test_threads_on_their_own_streams(spec, device):
    """Python threads that call at once, each on its own stream, do not disturb each other."""
    sample = problem(spec, N, spec.dtype, device)
    want = results(spec, sample)
    torch.cuda.synchronize()

    def work(_):
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [results(spec, sample) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4)):
            for got in found:
                assert_same_bits(got, want, spec.name)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_first_call_of_a_thread(layout):
    """Tensor maps need a context of the driver, and a thread that only autograd has used may have none."""
    x, weight = (torch.ones(64, 64, n, n, dtype=torch.float16, device="cuda") for n in (9, 3))
    x, weight = x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
    for call in (
        lambda: conv2d(x, weight, padding=1),
        lambda: conv2d_dgrad(x, weight, list(x.shape), padding=1),
        lambda: conv2d_wgrad(x, x, 3, padding=1),
    ):
        with ThreadPoolExecutor(1) as pool:
            got = pool.submit(call).result()
        assert_same_bits(got.cpu(), call().cpu())


def test_threads_of_different_shapes():
    """The blocks of a kernel take more or less shared memory, and no thread lowers the limit of another one."""
    half = {"dtype": torch.float16, "device": "cuda"}
    calls = [
        (
            torch.ones(n, 64, size, size, **half).contiguous(memory_format=layout),
            torch.ones(64, 64, kernel, kernel, **half),
        )
        for n, size, kernel in ((1, 8, 3), (8, 40, 3), (64, 9, 5), (2, 20, 1), (16, 30, 1))
        for layout in (torch.contiguous_format, torch.channels_last)
    ]
    wants = [conv2d(*call) for call in calls]
    torch.cuda.synchronize()

    def work(call):
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [conv2d(*call) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(len(calls)) as pool:
        for want, found in zip(wants, pool.map(work, calls), strict=True):
            for got in found:
                assert_same_bits(got, want)


@pytest.mark.large
def test_large(spec, device):
    """More than 2^31 elements and more than 4 GiB, for real."""
    for large in spec.large:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] / 2**30
        if free < large.gigabytes:
            pytest.skip(f"{large.name}: {large.gigabytes:.0f} GiB needed, {free:.0f} free")
        sample = large.make()
        large.check(sample, sample(spec.op))
        del sample


@pytest.mark.large
def test_a_batch_of_several_launches():
    """Beyond 2^30 elements, pooling takes several launches; here the outputs of the second begin at an odd element."""
    x = torch.randn(21_401, 224, 224, dtype=torch.float16, device="cuda")
    y, indices = max_pool2d(x, 3, 2, return_indices=True)
    want = max_pool2d(x[-4:].clone(), 3, 2, return_indices=True)
    assert_same_bits((y[-4:], indices[-4:]), want)
    assert_same_bits(max_pool2d(x, 3, 2)[-4:], want[0])


@contextlib.contextmanager
def busy_device(stream: torch.cuda.Stream):
    """Other work keeps the device busy, so that blocks start late and out of step."""
    x = torch.ones(2**22, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())  # whose kernels may still use the memory that x was given
    with torch.cuda.stream(stream):
        for _ in range(200):
            x.mul_(1.0001)
    yield
    stream.synchronize()


def test_deterministic_under_contention(spec, device, rung):
    """The same bits while other kernels fight for the multiprocessors."""
    if not repeats(spec, rung):
        return
    sample = rung_problem(spec, device, rung)
    want = sample(spec.op, algorithm=rung)
    with busy_device(torch.cuda.Stream()):
        found = [sample(spec.op, algorithm=rung) for _ in range(100)]
    for got in found:
        assert_same_bits(got, want, described(spec, rung))
