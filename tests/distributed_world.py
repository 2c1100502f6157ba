"""One rank of a process group that runs the cases of some modules, and what these use.

    python tests/distributed_world.py RANK RANKS PORT FOLDER MODULE,MODULE

The group is NCCL where there is a GPU for each rank, else gloo. What happened goes to FOLDER/RANK.json: a traceback or
"" for each case.
"""

import importlib
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}  # which torch can handle
# Busy CPUs take their time. On GPUs it is what passes until a killed rank is noticed; gloo sees its connections close.
TIMEOUT = {"cpu": timedelta(seconds=180), "cuda": timedelta(seconds=30)}


class World:
    def __init__(self, rank: int, size: int, port: int):
        self.rank, self.size = rank, size
        cuda = torch.cuda.device_count() >= size
        self.device = torch.device("cuda", rank) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(rank)
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False)  # the test holds it: it outlives every rank
        dist.init_process_group(
            "nccl" if cuda else "gloo", store=self.store, rank=rank, world_size=size, timeout=TIMEOUT[self.device.type]
        )
        torch.set_num_threads(1)

    def arrive(self, name: str) -> None:
        """Tells the other ranks that this one will do no more for a case."""
        self.store.set(f"{name}/{self.rank}", "ended")

    def all_arrived(self, name: str) -> bool:
        """Whether every rank has come to the end of a case, even if it failed, so that the next one can run."""
        self.arrive(name)
        try:
            self.store.wait([f"{name}/{rank}" for rank in range(self.size)], TIMEOUT[self.device.type] / 2)
        except dist.DistStoreError:
            return False
        return True

    def layouts(self, n: int) -> list[list[int]]:
        """Ways to shard n elements: evenly, unevenly, all on the first or last rank, empty ranks in between."""
        size = self.size
        even = [n * (r + 1) // size - n * r // size for r in range(size)]
        uneven = [n * (r + 1) ** 2 // size**2 - n * r**2 // size**2 for r in range(size)]
        gaps = [0] * size
        gaps[size // 2] = n // 3
        gaps[-1] += n - n // 3
        return [even, uneven, [n] + [0] * (size - 1), [0] * (size - 1) + [n], gaps]

    def layout(self, n: int, which: int) -> list[int]:
        return self.layouts(n)[which % 5]

    def part(self, whole: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """This rank's shard, on its device, of a tensor that all ranks have on the CPU."""
        begins = [0, *itertools.accumulate(lengths)]
        return whole[begins[self.rank] : begins[self.rank + 1]].to(self.device)

    def assert_part(self, part: torch.Tensor, whole: torch.Tensor, lengths: list[int], where: str) -> None:
        """This rank's shard is its part of `whole`, bit for bit."""
        begin = sum(lengths[: self.rank])
        expected = whole.detach()[begin : begin + lengths[self.rank]]
        got, where = part.detach().cpu(), f"{where}, {lengths}, rank {self.rank}"
        assert len(whole) == sum(lengths), f"{where}: the whole is of {len(whole)}"
        assert got.dtype == whole.dtype and got.shape == expected.shape, f"{where}: {got.dtype}{[*got.shape]}"
        same = torch.equal(as_integers(got), as_integers(expected))
        assert same, f"{where}: {got.flatten()[:20]} is not {expected.flatten()[:20]}"


def as_integers(x: torch.Tensor) -> torch.Tensor:
    """Something that torch.equal compares: NaN equals NaN, -0.0 equals 0.0."""
    if x.is_floating_point():
        return torch.nan_to_num(x.double(), nan=1.5e300) + 0.0
    return x.view(SIGNED.get(x.dtype, x.dtype))


def start(world: int, folder: Path, modules: str) -> tuple[list, dist.TCPStore]:
    """The processes of a world that run the cases of some modules, and the store that they meet in."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths()))}
    command = [sys.executable, __file__]
    ranks = []
    for rank in range(world):
        arguments = [str(rank), str(world), str(store.port), str(folder), modules]
        with open(folder / f"{rank}.log", "w") as log:
            ranks.append(
                subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    return ranks, store


def paths() -> list[Path]:
    here = Path(__file__).parent
    return [here, here.parent, here.parent / "examples"]


def cases_of(module: str) -> dict:
    """The cases that a module defines, in order."""
    found = vars(importlib.import_module(module)).items()
    return {name[5:]: f for name, f in found if name.startswith("case_") and f.__module__ == module}


def main(rank: int, size: int, port: int, folder: str, modules: str) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="torch")
    cases = {name: case for one in modules.split(",") for name, case in cases_of(one).items()}
    told, report = {}, Path(folder, f"{rank}.json")
    world = World(rank, size, port)
    for name, case in cases.items():
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            case(world)
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
        print(f"{name}: {time.monotonic() - began:.2f} s", flush=True)
        report.write_text(json.dumps(told))
        if not world.all_arrived(name):
            break
    sys.stdout.flush()
    os._exit(0)  # a group whose ranks have been killed cannot be destroyed


if __name__ == "__main__":
    rank, size, port, folder, modules = sys.argv[1:]
    main(int(rank), int(size), int(port), folder, modules)
