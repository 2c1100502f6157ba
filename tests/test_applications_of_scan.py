"""The applications of scan, each against plain Python on random data, and the program as a learner runs it."""

import itertools
import random

import pytest
import torch
from common import EACH_DEVICE, example

from torch_patterns.testing import assert_equal

SIZES = (0, 1, 2, 3, 17, 100, 1000)
DRAWS = list(itertools.product(SIZES, range(3)))

pytestmark = pytest.mark.parametrize("device", EACH_DEVICE)


@pytest.fixture(scope="module")
def program():
    return example("applications_of_scan")


def draws(below: int):
    """(a source of random numbers, a list of them) for every size and seed."""
    for n, seed in DRAWS:
        draw = random.Random(1000 * n + seed)
        yield draw, [draw.randrange(below) for _ in range(n)]


def tensor(values: list, device: str, dtype=torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def test_the_program_agrees_with_its_references(program, device, capsys):
    program.main(["--device", device])
    said = capsys.readouterr().out.splitlines()
    count = sum(1 for _ in program.demonstrations(device))
    assert len(said) == count + 1
    assert said[-1] == f"all {count} applications agree with their references"


def test_the_program_tells_a_wrong_result(program, device, monkeypatch):
    monkeypatch.setattr(program, "radix_sort", lambda keys, bits: keys)
    with pytest.raises(SystemExit, match="radix sort: "):
        program.main(["--device", device])


def test_cuts_and_allocation(program, device):
    for draw, sizes in draws(50):
        x = tensor(sizes, device)
        assert program.cuts(x).tolist() == list(itertools.accumulate(sizes))
        alignment = draw.choice((1, 8, 256))
        starts, total = program.allocate(x, alignment)
        want, end = [], 0
        for size in sizes:
            want.append(end)
            while end < want[-1] + size or end % alignment:
                end += 1
        assert (starts.tolist(), total.item()) == (want, end)


def test_compaction(program, device):
    for draw, values in draws(1000):
        keep = [draw.random() < 0.4 for _ in values]
        got = program.compaction(tensor(values, device), tensor(keep, device, torch.bool))
        assert got.tolist() == [v for v, k in zip(values, keep, strict=True) if k]


def test_sorts(program, device):
    for _, keys in draws(2**10):
        x = tensor(keys, device)
        assert program.split(x, 3).tolist() == sorted(keys, key=lambda key: key // 8 % 2)
        assert program.radix_sort(x, 10).tolist() == sorted(keys)
        assert program.quicksort(x).tolist() == sorted(keys)
        assert program.quicksort(x % 3 - 1).tolist() == sorted(key % 3 - 1 for key in keys)
    ramp = torch.arange(1000, device=device)
    for keys in (ramp, ramp.flip(0), torch.zeros_like(ramp), (ramp - 500).double() / 7):
        assert_equal(program.quicksort(keys), keys.sort()[0])


def test_histogram(program, device):
    for _, keys in draws(32):
        values, counts = program.histogram(tensor(keys, device), 5)
        assert values.tolist() == sorted(set(keys))
        assert counts.tolist() == [keys.count(key) for key in sorted(set(keys))]


def test_balance(program, device):
    for draw, payments in draws(9):
        interest = [draw.choice((0.0, 0.25, 0.5, -1.0)) for _ in payments]
        want, held = [], 0.0
        for paid, rate in zip(payments, interest, strict=True):
            held = held * (1 + rate) + paid
            want.append(held)
        got = program.balance(tensor(payments, device, torch.float64), tensor(interest, device, torch.float64))
        torch.testing.assert_close(got, tensor(want, device, torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("p, q", [(1.0, 1.0), (0.5, 0.25), (1.0, -0.25), (0.0, 0.49), (-0.6, -0.05), (0.0, 0.0)])
def test_second_order(program, device, p, q):
    """Roots of either sign, a double root, and none."""
    for _, values in draws(9):
        values, want = values[:60], [0.0, 0.0]
        for x in values:
            want.append(p * want[-1] + q * want[-2] + x)
        got = program.second_order(tensor(values, device, torch.float64), p, q)
        torch.testing.assert_close(got, tensor(want[2:], device, torch.float64), rtol=1e-9, atol=1e-12)


def test_second_order_refuses_complex_roots(program, device):
    with pytest.raises(ValueError, match="not real"):
        program.second_order(torch.ones(3, device=device), 0.0, -1.0)


def test_polynomials(program, device):
    """On integers that fit in 53 bits every grouping is exact."""
    for draw, coefficients in draws(9):
        coefficients = coefficients[:25]
        points = [draw.randrange(-3, 4) for _ in range(draw.randrange(4))]
        want = [float(sum(c * t**k for k, c in enumerate(coefficients))) for t in points]
        x, c = tensor(points, device, torch.float64), tensor(coefficients, device, torch.float64)
        assert program.polynomial(c, x).tolist() == want
        assert program.polynomial_by_powers(c, x).tolist() == want


def test_compare(program, device):
    def word() -> str:
        return "".join(draw.choice("aab~é") for _ in range(draw.randrange(draw.choice((1, 3, 40)))))

    for draw, values in draws(2):
        left = [word() for _ in values]
        right = [
            a[: draw.randrange(len(a) + 1)] + draw.choice(("", "a", a)) if draw.random() < 0.5 else word() for a in left
        ]
        want = [(a > b) - (a < b) for a, b in zip(left, right, strict=True)]
        assert program.compare(left, right, device).tolist() == want


def test_inside(program, device):
    for _, values in draws(7):
        text = "".join('ab#\n"</'[v] for v in values)
        want, state = [], False
        for c in text:
            state = True if c in "#<" else False if c == "\n" else not state if c in '"/' else state
            want.append(state)
        assert program.inside(text, opening="#<", closing="\n", toggling='"/', device=device).tolist() == want
        quoted = [text[: i + 1].count('"') % 2 == 1 for i in range(len(text))]
        assert program.inside(text, toggling='"', device=device).tolist() == quoted


def test_trees(program, device):
    for draw, values in draws(2):
        n = len(values)
        children = [[] for _ in range(n)]
        depth, size = [0] * n, [1] * n
        parents = [None, *(draw.randrange(max(0, v - draw.choice((1, 3, n))), v) for v in range(1, n))][:n]
        for v, parent in enumerate(parents):
            if parent is not None:
                children[parent].append(v)
                depth[v] = depth[parent] + 1
        for v in reversed(range(1, n)):
            size[parents[v]] += size[v]
        tour, down = program.walk(children)
        got = program.depths_and_sizes(tensor(tour, device), tensor(down, device, torch.bool))
        assert [g.tolist() for g in got] == [depth, size]
