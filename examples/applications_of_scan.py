#!/usr/bin/env python3
"""Applications of scans: those that the textbooks name, each in a few lines of parallel operators.

    applications_of_scan.py                   run all of them, each against plain Python
    applications_of_scan.py --device cuda

None of the functions loops over elements. Questions that look sequential (where does my part start? what came before
me? in which state is the machine here?) are answered by a scan, for all elements at once.
"""

import argparse
import random

import torch
from torch import Tensor
from torch.nn.functional import pad

import torch_patterns as tp

# ---- allocation: the exclusive scan of sizes tells where each part starts


def cuts(demands: Tensor) -> Tensor:
    """Returns where to cut a sausage so that all people get the lengths they asked for, with all cuts at once (003;
    §11.1)."""
    return tp.scan(demands)


def allocate(sizes: Tensor, alignment: int = 1) -> tuple[Tensor, Tensor]:
    """Returns (where each buffer starts, total bytes) for threads that request memory at the same time (003)."""
    rounded = (sizes + alignment - 1) // alignment * alignment
    return tp.scan(rounded, exclusive=True), rounded.sum()


def compaction(x: Tensor, keep: Tensor) -> Tensor:
    """Packs the elements to keep: a scan counts those before each (003, "stream compaction"). `tp.compact` does
    this."""
    index = tp.scan(keep, exclusive=True)
    packed = x.new_empty(x.shape[0] + 1)
    packed[index.where(keep, x.shape[0])] = x  # dropped elements go to one additional slot at the end
    return packed[: keep.sum()]


# ---- sorting


def split(keys: Tensor, bit: int) -> Tensor:
    """One step of a radix sort: the keys with a 0 first, then those with a 1, in their old order (§13.3, Fig. 13.4)."""
    one = (keys >> bit & 1).bool()
    zeros_before = tp.scan(~one, exclusive=True)
    ones_before = torch.arange(len(keys), device=keys.device) - zeros_before
    index = torch.where(one, (~one).sum() + ones_before, zeros_before)
    return torch.empty_like(keys).scatter_(0, index, keys)


def radix_sort(keys: Tensor, bits: int) -> Tensor:
    """Sorts numbers 0 <= key < 2**bits by a split for every bit, the least significant first (003; §13.2)."""
    for bit in range(bits):
        keys = split(keys, bit)
    return keys


def quicksort(keys: Tensor) -> Tensor:
    """Splits every segment into less, equal and greater at once, until all are equal in each (003)."""
    n = len(keys)
    offsets = torch.tensor([0, n], device=keys.device)
    while n:
        start, length = offsets[:-1], offsets.diff()
        pivots = tp.segment_expand(keys[start + length // 2], offsets, n)
        parts = torch.stack((keys < pivots, keys == pivots, keys > pivots), 1)
        sizes = tp.segment_reduce(parts, offsets)
        if (sizes[:, 1] == length).all():
            break
        starts = start[:, None] + tp.scan(sizes, 1, exclusive=True)
        indices = tp.segment_expand(starts, offsets, n) + tp.segment_scan(parts, offsets, exclusive=True)
        keys = torch.empty_like(keys).scatter_(0, indices[parts], keys)
        offsets = torch.cat((starts.flatten(), offsets[-1:])).unique_consecutive()  # no segment is empty
    return keys


def histogram(keys: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Returns (the distinct keys, the count of each): after a sort, equal keys are adjacent, and a segment ends where
    keys change (003). `tp.histogram` needs no sort."""
    ordered = radix_sort(keys, bits)
    last = pad(ordered[1:] != ordered[:-1], (0, 1), value=True)[: len(keys)]
    ends = tp.compact(torch.arange(1, len(keys) + 1, device=keys.device), last)
    return tp.compact(ordered, last), ends.diff(prepend=ends.new_zeros(1))


# ---- recurrences: maps h -> a h + b can be composed in any grouping


def balance(deposits: Tensor, interest: Tensor) -> Tensor:
    """Computes the yearly balance of an account: interest, then a deposit or withdrawal (003, "solving
    recurrences")."""
    return tp.linear_recurrence(1 + interest, deposits)


def second_order(x: Tensor, p: float, q: float) -> Tensor:
    """Solves y[t] = p y[t-1] + q y[t-2] + x[t] by two first-order recurrences: with the backward shift B, 1 - p B - q
    B^2 = (1 - r B)(1 - s B), where r and s are the roots of z^2 = p z + q, which must be real (003)."""
    discriminant = p * p + 4 * q
    if discriminant < 0:
        raise ValueError(f"second_order: the roots of z^2 = {p} z + {q} are not real")
    r, s = (p + discriminant**0.5) / 2, (p - discriminant**0.5) / 2
    return tp.linear_recurrence(torch.full_like(x, s), tp.linear_recurrence(torch.full_like(x, r), x))


def polynomial(coefficients: Tensor, x: Tensor) -> Tensor:
    """Computes c[0] + c[1] x + c[2] x^2 + ... for every x: Horner's rule is the recurrence h[k] = x h[k+1] + c[k]
    (003)."""
    return tp.linear_recurrence(x[:, None], pad(coefficients, (0, 1)), reverse=True)[:, 0]


def polynomial_by_powers(coefficients: Tensor, x: Tensor) -> Tensor:
    """Computes the same polynomial; the powers of x are an exclusive scan of products."""
    powers = tp.scan(x[:, None].repeat(1, len(coefficients)), op="prod", exclusive=True)
    return powers @ coefficients


# ---- text: characters are maps, too


def codes(texts: list[str], length: int, device: str) -> Tensor:
    """Returns Unicode numbers, one row per text, with -1 after its end."""
    rows = [[*map(ord, text), *[-1] * (length - len(text))] for text in texts]
    return torch.tensor(rows, dtype=torch.int64, device=device).view(len(texts), length)


def compare(left: list[str], right: list[str], device: str = "cpu") -> Tensor:
    """Compares each pair: -1 (before), 0 (equal) or 1 (after). The first difference decides, so an equal character
    passes on the result of those after it (h -> h), and a different one returns its own sign (h -> sign) (003)."""
    length = max(map(len, [*left, *right]), default=0) + 1
    x, y = codes(left, length, device), codes(right, length, device)
    return tp.linear_recurrence((x == y).float(), (x - y).sign().float(), reverse=True)[:, 0].long()


def inside(text: str, opening: str = "", closing: str = "", toggling: str = "", device: str = "cpu") -> Tensor:
    """Tells which characters a two-state lexer reads as inside, for example inside a comment or between quotes (003).

    Opening characters set the state (h -> 1), closing ones reset it (h -> 0), toggling ones invert it (h -> 1 - h), and
    all others leave it (h -> h). These maps do not commute, but they do compose.
    """

    def is_in(characters: str) -> Tensor:
        return torch.isin(x, codes([characters], len(characters), device)[0])

    x = codes([text], len(text), device)[0]
    opens, closes, toggles = is_in(opening), is_in(closing), is_in(toggling)
    a = torch.ones(len(text), device=device).masked_fill(opens | closes, 0).masked_fill(toggles, -1)
    before = torch.zeros((), device=device)
    return tp.linear_recurrence(a, (opens | toggles).float(), initial=before).bool()


# ---- trees


def depths_and_sizes(tour: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (depth, size of the subtree) of every vertex of a tree, from a walk that enters (`down`) and leaves each
    vertex once: the depth counts vertices entered and not yet left, the size those entered between entering and leaving
    this one (003, "tree operations")."""
    n = len(tour) // 2
    entered, left = tp.scan(down), tp.scan(~down)
    enter, leave = (
        torch.empty_like(tour[:n]).scatter_(0, tp.compact(tour, way), way.nonzero()[:, 0]) for way in (down, ~down)
    )
    return (entered - left)[enter] - 1, entered[leave] - entered[enter] + 1


# ---- all of them against plain Python


def walk(children: list[list[int]]) -> tuple[list[int], list[bool]]:
    """Returns the walk around a tree with root 0."""
    tour, down, stack = [], [], [(0, True)] if children else []
    while stack:
        vertex, entering = stack.pop()
        tour.append(vertex)
        down.append(entering)
        if entering:
            stack += [(vertex, False), *((child, True) for child in reversed(children[vertex]))]
    return tour, down


def demonstrations(device: str, n: int = 1000):
    """Returns (name, result, result of plain Python, a line to print) for every application."""
    draw = random.Random(11)
    numbers = [draw.randrange(100) for _ in range(n)]
    x = torch.tensor(numbers, device=device)

    demands = [3, 5, 2, 7, 28, 4, 3, 0, 8, 1]
    y = cuts(torch.tensor(demands, device=device))
    yield "resource allocation", y, [sum(demands[: i + 1]) for i in range(10)], f"cut at {y.tolist()}"

    starts, total = allocate(x, 16)
    rounded = [-(-size // 16) * 16 for size in numbers]
    want = [sum(rounded[:i]) for i in range(n)]
    yield "memory allocation", starts, want, f"{n} buffers in {total} bytes, each aligned to 16"

    y = compaction(x, x % 2 == 1)
    yield "stream compaction", y, [k for k in numbers if k % 2], f"{len(y)} of {n} numbers are odd"
    yield "radix sort", radix_sort(x, 7), sorted(numbers), f"7 splits for {n} numbers of 7 bits"
    yield "quicksort", quicksort(x), sorted(numbers), f"{n} numbers, all segments at once"
    keys, counts = histogram(x, 7)
    most = counts.argmax()
    line = f"{keys[most]} is there {counts[most]} times"
    yield "histogram", counts, [numbers.count(k) for k in sorted(set(numbers))], line

    deposits, interest = (
        torch.tensor([100.0, 0, -50, 100], device=device),
        torch.tensor([0.0, 0.5, 0, 1], device=device),
    )
    y = balance(deposits, interest)
    yield "recurrence", y, [100, 150, 100, 300], f"the account holds {y.tolist()}"

    impulse = torch.zeros(50, dtype=torch.float64, device=device)
    impulse[0] = 1
    fibonacci = [1, 1]
    while len(fibonacci) < 50:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    y = second_order(impulse, 1, 1).round().long()
    yield "second order", y, fibonacci, f"Fibonacci's number 50 is {y[-1]}"

    coefficients, points = torch.tensor([1.0, -2, 0, 3], device=device), torch.arange(-2.0, 3, device=device)
    y = polynomial(coefficients, points)
    want = [1 - 2 * t + 3 * t**3 for t in range(-2, 3)]
    yield "polynomial", y, want, f"3 x^3 - 2 x + 1 is {y.tolist()} at -2 ... 2"
    yield "its powers", polynomial_by_powers(coefficients, points), want, "and by a scan of products"

    left, right = ["scan", "scan", "scan", ""], ["scar", "scan", "sca", "s"]
    y = compare(left, right, device)
    want = [(a > b) - (a < b) for a, b in zip(left, right, strict=True)]
    yield (
        "string comparison",
        y,
        want,
        ", ".join(f"{a!r} {'=><'[s]} {b!r}" for a, b, s in zip(left, right, y, strict=True)),
    )

    code = "x = 1  # one\ny = 2"
    comment = inside(code, opening="#", closing="\n", device=device)
    found = "".join(c for c, yes in zip(code, comment.tolist(), strict=True) if yes)
    yield "lexical analysis", comment, [7 <= i < 12 for i in range(len(code))], f"the comment is {found!r}"

    children = [[1, 2], [3, 4], [], [], [5], []]
    tour, down = walk(children)
    depth, size = depths_and_sizes(torch.tensor(tour, device=device), torch.tensor(down, device=device))
    line = f"depths {depth.tolist()}, subtrees of {size.tolist()} vertices"
    yield "tree operations", torch.stack((depth, size)), [[0, 1, 1, 2, 2, 3], [6, 4, 1, 1, 2, 1]], line


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    device = parser.parse_args(arguments).device
    count = 0
    for name, result, want, line in demonstrations(device):
        if result.tolist() != want:
            raise SystemExit(f"{name}: {result.tolist()} instead of {want}")
        print(f"{name:20}{line}")
        count += 1
    print(f"all {count} applications agree with their references")


if __name__ == "__main__":
    main()
