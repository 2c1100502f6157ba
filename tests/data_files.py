"""Where the tests find real data that is too large for the project: the folder that TORCH_PATTERNS_DATA names."""

import os
from pathlib import Path

import pytest


def data_folder(name: str) -> Path:
    """The folder `name` of the data; skips the test that asks where it is missing."""
    root = os.environ.get("TORCH_PATTERNS_DATA")
    if not root:
        pytest.skip(f"needs {name}: TORCH_PATTERNS_DATA names no folder of real data")
    folder = Path(root) / name
    if not folder.is_dir():
        pytest.skip(f"needs {name}: {folder} is no folder")
    return folder
