"""What tests/test_bad_input.py runs in a process of its own: python tests/bad_input.py DEVICE SEED.

Every operator gets 25 calls that are wrong in some way. A call may be refused by one of the errors below, or turn out
to be good; it may not end the process, hang, change its inputs, or leave the device in a state in which a good call
gives other bits. Each operator is announced before its calls, so that who died is known.
"""

import random
import resource
import sys
import zlib
from pathlib import Path

import torch

from torch_patterns import testing
from torch_patterns.testing import Sample, assert_same_bits

CALLS = 25
REFUSALS = (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError, OverflowError, MemoryError)
MEMORY = 4 << 30  # what calls may take: a matrix of 2^31 rows is right, but not for this machine
NUMBERS = (-1, -(2**31), 2**31, 2**40, -(2**62), 2**62, 2**63 - 1, 0, 3)
OTHERS = (None, "no_such", 2.5, float("nan"), True, [], [1, 2], {}, 1 + 2j)
DTYPES = (torch.complex64, torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64, torch.uint16)


def other_tensor(x: torch.Tensor, r: random.Random) -> torch.Tensor:
    """Of another shape, dtype or device, or with values that mean nothing where they are indices."""
    way = r.randrange(9)
    if way == 0:
        return x.to(r.choice(DTYPES))
    if way == 1:
        return x[None] if r.random() < 0.5 else x.reshape(-1)
    if way == 2:
        return x[..., :-1] if x.dim() else x[None]
    if way == 3:
        return torch.cat([x, x]) if x.dim() else x
    if way == 4:
        return x[:0] if x.dim() else x.to("meta")
    if way == 5:
        return x.to("meta")
    if way == 6:
        return x.to_sparse() if x.dim() and x.dtype != torch.float16 else x.cpu()
    y = x.clone()
    if y.numel() and not (
        y.is_floating_point() or y.is_complex() or y.dtype == torch.bool
    ):  # wrong indices, lengths, pointers
        least, most = torch.iinfo(y.dtype).min, torch.iinfo(y.dtype).max
        for _ in range(r.randint(1, 3)):
            junk = r.choice((-1, most, least, y.numel(), 10**6))
            y.view(-1)[r.randrange(y.numel())] = min(max(junk, least), most)
    elif y.numel() and y.is_floating_point():
        y.view(-1)[r.randrange(y.numel())] = r.choice((float("nan"), float("inf"), -float("inf")))
    return y


def other_value(value, r: random.Random):
    if isinstance(value, torch.Tensor):
        return other_tensor(value, r) if r.random() < 0.8 else r.choice(OTHERS)
    if isinstance(value, (list, tuple)) and value and r.random() < 0.7:
        changed = list(value)
        at = r.randrange(len(changed))
        changed[at] = other_value(changed[at], r)
        return changed if r.random() < 0.7 else changed[:-1]
    return r.choice(NUMBERS if isinstance(value, int) and r.random() < 0.7 else OTHERS)


def worse(sample: Sample, r: random.Random) -> Sample:
    """One argument, or the algorithm, is another."""
    args, kwargs = list(sample.args), dict(sample.kwargs)
    arguments = [*range(len(args)), *kwargs, "algorithm"]
    argument = r.choice(arguments)
    if argument == "algorithm":
        kwargs["algorithm"] = r.choice(("", "no_such", "AUTO", "sequential ", None, 3))
    elif isinstance(argument, int):
        args[argument] = other_value(args[argument], r)
    else:
        kwargs[argument] = other_value(kwargs[argument], r)
    return Sample(tuple(args), kwargs)


def tensors(values) -> list[torch.Tensor]:
    return [x for x in Sample(tuple(values), {}).tensors if x.layout == torch.strided and not x.is_meta]


def torture(spec, device: str, seed: int) -> int:
    """How many calls were refused."""
    refused, good = 0, spec.sample(spec.samples[0], spec.dtype, device)
    want = good(spec.op)
    for number in range(CALLS):
        r = random.Random(zlib.crc32(f"{seed} {spec.name} {number}".encode()))
        sample = worse(spec.sample(r.choice(spec.samples), r.choice(spec.dtypes), device), r)
        held = tensors((*sample.args, *sample.kwargs.values()))
        before = [x.clone() for x in held]
        try:
            sample(spec.op)
        except REFUSALS as error:
            refused += 1
            assert "CUDA error" not in str(error) and "INTERNAL ASSERT" not in str(error), error
        assert_same_bits(held, before, f"{spec.name} {number}: an input changed")
        if device == "cuda":
            torch.cuda.synchronize()
        if number % 5 == 4:
            assert_same_bits(good(spec.op), want, f"{spec.name} {number}: a good call is no longer good")
    return refused


def limit_memory() -> None:
    """More is refused by the allocator, instead of ending the process."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "cpu":
        limit_memory()
    for found in testing.specs().values():
        print(found.name, end=" ", flush=True)
        print(torture(found, sys.argv[1], int(sys.argv[2])), flush=True)
    print("alive", flush=True)
