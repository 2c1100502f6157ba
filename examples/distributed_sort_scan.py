#!/usr/bin/env python3
"""Sort and scan data that no single process holds: sales by customer, and each customer's running total.

    torchrun --nproc-per-node 4 examples/distributed_sort_scan.py                      # on CPUs
    torchrun --nproc-per-node 4 examples/distributed_sort_scan.py --device cuda --sales 268435456

Every rank makes its own --sales (customer, amount), and no rank ever holds all of them. Three calls do the work; each
has the operator's name after `distributed.`:

    sort_pairs      all sales by customer, in time within a customer; each rank gets an equal part
    segment_scan    the running total of every customer, who may begin on one rank and end on another
    scan            where in the whole each rank's part begins
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from arguments import number

from torch_patterns import distributed


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sales", type=number(int, 0), default=1 << 20, help="per rank (default: %(default)s)")
    parser.add_argument("--customers", type=number(int, 1), default=1000, help="in all (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of each rank (default: %(default)s)")
    return parser.parse_args(arguments)


def make_sales(count: int, customers: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (customer, cents) of each sale; a few customers buy most."""
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    customer = (torch.rand(count, generator=generator, device=device).square() * customers).int()
    return customer, torch.randint(1, 10_000, (count,), generator=generator, device=device, dtype=torch.int32)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if options.device == "cuda" else torch.device("cpu")
    if options.device == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    customer, cents = make_sales(options.sales, options.customers, device)
    paid = distributed.reduce(cents)

    started = time.perf_counter()
    customer, cents = distributed.sort_pairs(customer, cents)
    # A customer's sales are a segment: each rank counts them, and the sums over ranks are scanned to offsets on all
    # ranks.
    counts = torch.bincount(customer, minlength=options.customers)
    dist.all_reduce(counts)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    spent = distributed.segment_scan(cents.long(), offsets)
    seconds = time.perf_counter() - started

    first = distributed.scan(torch.tensor([len(customer)], device=device), exclusive=True).item()
    check(customer, spent, offsets, first, paid)
    lines = [None] * dist.get_world_size()
    sample = f"customer {customer[-1]} had spent {spent[-1] / 100:,.2f}" if len(customer) else "no sales"
    dist.all_gather_object(
        lines, f"rank {dist.get_rank()}: sales {first:,} to {first + len(customer):,}; last: {sample}"
    )
    if dist.get_rank() == 0:
        print(*lines, sep="\n")
        print(f"sorted and scanned {offsets[-1]:,} sales on {dist.get_world_size()} ranks in {seconds:.3f} s")
    dist.destroy_process_group()


def check(customer: torch.Tensor, spent: torch.Tensor, offsets: torch.Tensor, first: int, paid: torch.Tensor) -> None:
    """Checks that the parts are in order, and that the customers' last totals sum to everything that was paid."""
    assert (customer.diff() >= 0).all()
    rows = torch.arange(first, first + len(customer), device=customer.device)
    is_last = rows == offsets[customer.long() + 1] - 1
    total = distributed.reduce(spent.masked_fill(~is_last, 0))
    assert total == paid, f"customers spent {total}, and paid were {paid}"


if __name__ == "__main__":
    main()
