"""The race of examples/race_lenet5.py, on a few digits: who takes part, what is written."""

import json

import pytest
from common import EACH_DEVICE, example

import torch_patterns
from torch_patterns import data


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_all_contestants_reach_the_line(device, monkeypatch, tmp_path, capsys):
    program = example("race_lenet5")
    images, labels, test_images, test_labels = data.digits()
    few = data.Digits(images[:150], labels[:150], test_images[:50], test_labels[:50])
    monkeypatch.setattr(data, "digits", lambda: few)
    sizes = ["--batches", "64", "--batch", "32", "--epochs", "2", "--seeds", "2", "--repeats", "1", "--target", "5"]
    program.main(["--device", device, "--out", str(tmp_path), *sizes])
    said = capsys.readouterr().out
    result = json.loads((tmp_path / "race.json").read_text())
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")
    names = [row["contestant"] for row in result["contestants"]]
    ours = [f"ours, {name}" for name in torch_patterns.algorithms("lenet5", device)]
    assert names[0] == "torch, eager" and names[-len(ours) :] == ours
    finals = {}
    for row in result["contestants"]:
        assert row["contestant"] in said
        if "compile" in row["contestant"]:
            continue  # where there is no compiler, its row says so
        assert "error" not in row, row["error"]
        assert row["epoch_ms"]["64"] > 0 and [run["seed"] for run in row["runs"]] == [0, 1]
        assert all(run["seconds"] > 0 and len(run["accuracies"]) == 2 for run in row["runs"])
        finals[row["contestant"]] = row["runs"][0]["accuracies"][-1]
    # The same weights, minibatches and learning rates: the same network, but for roundings.
    assert max(finals.values()) - min(finals.values()) <= 4
