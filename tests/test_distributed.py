"""torch_patterns.distributed: worlds of 2 and 4 processes, by gloo on the CPU, by NCCL where there are as many GPUs."""

import json
import subprocess
import time

import pytest
from distributed_world import start

SECONDS = 240  # until a world counts as hung


def run(world: int, folder, module: str) -> dict[int, dict[str, str]]:
    """What each rank of a world tells of the cases of a module."""
    ranks, _store = start(world, folder, module)
    end = time.monotonic() + SECONDS
    try:
        for rank in ranks:
            rank.wait(max(end - time.monotonic(), 1))
    except subprocess.TimeoutExpired:
        pytest.fail(f"{module} of {world} ranks hangs; {told(world, folder)}")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return told(world, folder)


def told(world: int, folder) -> dict[int, dict[str, str]]:
    reports = {rank: folder / f"{rank}.json" for rank in range(world)}
    return {rank: json.loads(path.read_text()) if path.exists() else {} for rank, path in reports.items()}


def logs(world: int, folder) -> str:
    return "\n".join(f"rank {rank}: {(folder / f'{rank}.log').read_text()[-2000:]}" for rank in range(world))


@pytest.mark.parametrize("world", [2, 4])
def test_every_function_gives_what_the_operator_gives_for_the_whole(world, tmp_path):
    import distributed_cases

    reports = run(world, tmp_path, "distributed_cases")
    failures = [f"rank {rank}, {name}: {text}" for rank, cases in reports.items() for name, text in cases.items() if text]
    assert not failures, "\n".join(failures)
    expected = [name[5:] for name in vars(distributed_cases) if name.startswith("case_")]
    assert all(list(cases) == expected for cases in reports.values()), logs(world, tmp_path)
