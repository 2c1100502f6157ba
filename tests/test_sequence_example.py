"""The sequence classifier at a small size: packed and padded are one model, and it learns."""

import pytest
import torch
from common import example

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:matplotlib")


@pytest.fixture(scope="module")
def program():
    return example("sequence_classifier")


def test_packed_and_padded_are_one_model(program):
    found, _ = program.sequences("cpu")
    assert len({len(x) for x in found}) > 10  # of different lengths
    torch.manual_seed(0)
    model = program.Classifier(states=8).double()
    x, offsets = program.packed([f.double() for f in found], torch.arange(6))
    results = [forward(x, offsets) for forward in (model, model.padded)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    grads = [torch.autograd.grad(y.square().sum(), model.parameters()) for y in results]
    for g, w in zip(*grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-12)


def test_it_learns(program, tmp_path):
    histories = program.main(
        ["--epochs", "3", "--images", "400", "--states", "32", "--batch", "16", "--lr", "0.02"]
        + ["--out", str(tmp_path / "sequences.png")]
    )
    assert (tmp_path / "sequences.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    packed, padded = histories["packed"], histories["padded"]
    assert packed[-1]["loss"] < 0.9 * packed[0]["loss"]
    assert abs(packed[0]["loss"] - padded[0]["loss"]) < 0.02 * packed[0]["loss"]
