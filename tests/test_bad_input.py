"""Calls that are wrong, in a process of its own: it must live, and so must its device (tests/bad_input.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from common import EACH_DEVICE

from torch_patterns import testing


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_wrong_calls_are_survived(device):
    script = [sys.executable, str(Path(__file__).with_name("bad_input.py")), device, os.environ["FUZZ_SEED"]]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=900)
    lines = done.stdout.split("\n")
    at = lines[-1] or lines[-2:]
    told = f"FUZZ_SEED={os.environ['FUZZ_SEED']}, exit {done.returncode}, at {at}: {done.stderr[-3000:]}"
    assert done.returncode == 0 and "alive" in lines, told
    refused = dict(line.split(" ") for line in lines if " " in line)
    assert set(refused) == set(testing.specs())
    assert sum(map(int, refused.values())) > 10 * len(refused), "hardly any call was wrong"
