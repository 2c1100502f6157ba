"""torch_patterns.distributed: worlds of 2 and 4 processes, by gloo on the CPU, by NCCL where there are as many GPUs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distributed_world import cases_of, paths, start

SECONDS = 400  # until a world counts as hung


def run(world: int, folder: Path, modules: str) -> dict[int, dict[str, str]]:
    """What each rank of a world tells of the cases of some modules."""
    ranks, _store = start(world, folder, modules)
    end = time.monotonic() + SECONDS
    try:
        for rank in ranks:
            rank.wait(max(end - time.monotonic(), 1))
    except subprocess.TimeoutExpired:
        pytest.fail(f"{modules} of {world} ranks hang; {told(world, folder)}")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return told(world, folder)


def told(world: int, folder: Path) -> dict[int, dict[str, str]]:
    reports = {rank: folder / f"{rank}.json" for rank in range(world)}
    return {rank: json.loads(path.read_text()) if path.exists() else {} for rank, path in reports.items()}


def logs(world: int, folder: Path) -> str:
    return "\n".join(f"rank {rank}: {(folder / f'{rank}.log').read_text()[-2000:]}" for rank in range(world))


# The last one kills a rank.
MODULES = ("distributed_cases", "distributed_sparse_cases", "distributed_dtensor_cases", "distributed_failure_cases")
LAST = "a_killed_rank_is_named"


@pytest.mark.parametrize("world", [2, 4])
def test_every_function_gives_what_the_operator_gives_for_the_whole(world, tmp_path):
    modules = ("distributed_training_cases", "distributed_lenet_cases") * (world == 2) + MODULES
    reports = run(world, tmp_path, ",".join(modules))
    failures = [
        f"rank {rank}, {name}: {text}" for rank, cases in reports.items() for name, text in cases.items() if text
    ]
    assert not failures, "\n".join(failures)
    expected = [name for module in modules for name in cases_of(module)]
    assert expected[-1] == LAST
    for rank, cases in reports.items():
        assert list(cases) == expected[: len(expected) - (rank == world - 1)], logs(world, tmp_path)


def test_the_example_runs_by_torchrun():
    program = Path(__file__).parents[1] / "examples" / "distributed_sort_scan.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "3",
        "--standalone",
        str(program),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths()))}
    out = subprocess.run(
        [*command, "--sales", "5000"], capture_output=True, text=True, env=environment, timeout=SECONDS
    )
    assert out.returncode == 0, out.stderr[-3000:]
    assert "sorted and scanned 15,000 sales on 3 ranks" in out.stdout
    assert "rank 1: sales 5,000 to 10,000;" in out.stdout
