"""The list of faults to seed fits the sources (tests/faults)."""

import importlib.util
from pathlib import Path

HERE = Path(__file__).parent


def test_every_fault_can_be_seeded():
    spec = importlib.util.spec_from_file_location("faults", HERE / "faults" / "faults.py")
    faults = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faults)
    assert len(faults.FAULTS) >= 50
    assert len({fault.name for fault in faults.FAULTS}) == len(faults.FAULTS)
    wrong = []
    for fault in faults.FAULTS:
        file = HERE.parent / "csrc" / fault.file
        if not file.exists() or fault.before not in file.read_text() or fault.before == fault.after:
            wrong.append(fault.name)
    assert not wrong
