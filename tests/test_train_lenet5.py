"""The training example, end to end on a few digits: what it writes, says, resumes and refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from common import EACH_DEVICE, example
from data_files import data_folder

import torch_patterns
from torch_patterns import data

WRITTEN = ["checkpoint.pt", "curve.png", "errors.png", "lenet5.pt2", "lenet5.ts", "metrics.json"]


@pytest.fixture(scope="module")
def program():
    return example("train_lenet5")


@pytest.fixture
def few(monkeypatch):
    """Few digits instead of all: 150 for training, which 64 does not divide, and 50 for the test."""
    images, labels, test_images, test_labels = data.digits()
    digits = data.Digits(images[:150], labels[:150], test_images[:50], test_labels[:50])
    monkeypatch.setattr(data, "digits", lambda: digits)
    return digits


def train(program, out, *arguments, device="cpu"):
    program.main(["--device", device, "--threads", "1", "--out", str(out), *map(str, arguments)])
    return torch.load(out / "checkpoint.pt", weights_only=True)


def refusal(program, out, *arguments) -> str:
    with pytest.raises(SystemExit) as caught:
        train(program, out, *arguments)
    return str(caught.value)


def test_everything_is_written_and_the_last_line_is_the_accuracy(program, few, tmp_path, capsys):
    train(program, tmp_path, "--epochs", 3)
    said = capsys.readouterr().out.splitlines()
    assert sorted(path.name for path in tmp_path.iterdir()) == WRITTEN
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert [row["epoch"] for row in metrics["epochs"]] == [1, 2, 3]
    for row in metrics["epochs"]:
        assert row.keys() == {"epoch", "loss", "train_accuracy", "test_accuracy", "seconds"}
        assert row["loss"] > 0 and row["seconds"] > 0
        assert 0 <= row["train_accuracy"] <= 1 and round(row["test_accuracy"] * 50) == pytest.approx(
            row["test_accuracy"] * 50
        )
        line = f"epoch  {row['epoch']} of 3   loss {row['loss']:.4f}"
        assert any(text.startswith(line) for text in said)
    assert metrics["options"]["lr"] == 0.05
    assert said[-1] == f"test accuracy {100 * metrics['epochs'][-1]['test_accuracy']:.2f} %"
    for name in ("curve.png", "errors.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


IN_A_NEW_PROCESS = """
import sys, warnings, torch
torch.set_num_threads(1)  # as in the training: the order of sums in a matrix product may depend on it
torch.ops.load_library(sys.argv[1])
images, expected = torch.load(sys.argv[2])
warnings.filterwarnings("ignore", r"`torch\\.jit\\.load` is deprecated")
for network in (torch.jit.load(sys.argv[3]), torch.export.load(sys.argv[4]).module()):
    assert torch.equal(network(images), expected)
assert "torch_patterns" not in sys.modules
"""


def test_exports_work_in_a_new_process_with_the_operator_library_alone(program, few, tmp_path):
    state = train(program, tmp_path, "--epochs", 1, "--pooling", "max", "--output", "rbf", "--activation", "relu")
    model = program.LeNet5("relu", "max", "rbf")
    model.load_state_dict(state["model"])
    images = data.normalize(few.test_images[:7])
    torch.save((images, model(images).detach()), tmp_path / "expected.pt")
    library = Path(torch_patterns.__file__).with_name("libtorch_patterns.so")
    files = [tmp_path / name for name in ("expected.pt", "lenet5.ts", "lenet5.pt2")]
    run = subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS, library, *files], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def assert_same_training(ours, theirs):
    flat_ours, flat_theirs = (torch.utils._pytree.tree_leaves((s["model"], s["optimizer"])) for s in (ours, theirs))
    for a, b in zip(flat_ours, flat_theirs, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    for a, b in zip(ours["history"], theirs["history"], strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


@pytest.mark.parametrize("device", EACH_DEVICE)
@pytest.mark.parametrize("options", ["", "--no-fused", "--optimizer adamw --weight-decay 0.01 --seed 7"])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(program, few, tmp_path, options, device):
    def run(name, *arguments):
        return train(program, tmp_path / name, *arguments, *options.split(), device=device)

    whole = run("whole", "--epochs", 4)
    run("part", "--epochs", 1)
    run("part", "--epochs", 3, "--resume", tmp_path / "part" / "checkpoint.pt")
    assert_same_training(run("resumed", "--epochs", 4, "--resume", tmp_path / "part" / "checkpoint.pt"), whole)
    assert_same_training(run("done", "--epochs", 4, "--resume", tmp_path / "whole" / "checkpoint.pt"), whole)
    assert sorted(path.name for path in (tmp_path / "done").iterdir()) == WRITTEN


def test_whole_epochs_and_single_steps_train_the_same_network(program, few, tmp_path):
    options = ("--epochs", 3, "--weight-decay", 0.001)
    fused, steps = (train(program, tmp_path / flag, *options, flag) for flag in ("--fused", "--no-fused"))
    for ours, theirs in zip(fused["history"], steps["history"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
        assert ours["train_accuracy"] == theirs["train_accuracy"] and ours["test_accuracy"] == theirs["test_accuracy"]
    for name, ours in fused["model"].items():
        theirs = steps["model"][name]
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max(), name


def test_another_seed_is_another_training(program, few, tmp_path):
    ours, theirs = (train(program, tmp_path / seed, "--epochs", 1, "--seed", seed) for seed in "01")
    assert ours["history"][0]["loss"] != theirs["history"][0]["loss"]


OTHERS = {
    "--algorithm": ("auto", "threaded"),
    "--batch": (64, 32),
    "--lr": (0.05, 0.1),
    "--lr-decay": (0.95, 0.9),
    "--optimizer": ("sgd", "rmsprop"),
    "--momentum": (0.9, 0.5),
    "--weight-decay": (0.0, 0.001),
    "--seed": (0, 1),
    "--activation": ("tanh", "relu"),
    "--pooling": ("subsample", "avg"),
    "--output": ("linear", "rbf"),
    "--no-fused": (True, False),
}


def test_a_checkpoint_of_other_options_is_refused(program, few, tmp_path, monkeypatch):
    train(program, tmp_path, "--epochs", 2)
    checkpoint = tmp_path / "checkpoint.pt"
    for option, (before, now) in OTHERS.items():
        rate = () if option == "--lr" else ("--lr", 0.05)
        momentum = () if option == "--momentum" else ("--momentum", 0.9)
        value = () if option == "--no-fused" else (now,)
        said = refusal(program, tmp_path, "--resume", checkpoint, *rate, *momentum, option, *value)
        name = option.replace("--no-", "--")
        assert said == f"--resume: {checkpoint} was trained with {name} {before}; this run has {now}"
    said = refusal(program, tmp_path, "--resume", checkpoint, "--epochs", 1)
    assert said == f"--resume: {checkpoint} has 2 epochs behind it, and --epochs 1 is in all"
    monkeypatch.setattr(data, "digits", lambda: few._replace(train_images=255 - few.train_images))
    assert re.fullmatch(
        r"--resume: .* was trained with --data 150 digits, crc32 \w{8}; this run has 150 digits, crc32 \w{8}",
        refusal(program, tmp_path, "--resume", checkpoint),
    )


def test_what_is_no_checkpoint_is_refused(program, few, tmp_path):
    assert "No such file" in refusal(program, tmp_path, "--resume", tmp_path / "missing.pt")
    for name, content in {"empty": b"", "text": b"loss 0.1\n", "zip": b"PK\3\4 cut short"}.items():
        (tmp_path / name).write_bytes(content)
        said = refusal(program, tmp_path, "--resume", tmp_path / name)
        assert said == f"--resume: {tmp_path / name} is no checkpoint of this program"
    torch.save({"weights": 1}, tmp_path / "other")
    assert refusal(program, tmp_path, "--resume", tmp_path / "other").endswith("is no checkpoint of this program")


def test_a_loss_that_is_no_number_stops_the_training(program, few, tmp_path):
    said = refusal(program, tmp_path, "--epochs", 3, "--activation", "relu", "--lr", 1e30)
    assert re.fullmatch(r"the loss is (nan|inf) in epoch 1: try a smaller --lr than 1e\+30", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--batch", 0), "argument --batch: must be 1 or more, not 0"),
        (("--lr", -1), "argument --lr: must be 0 or more, not -1"),
        (("--seed", 2**63), "argument --seed: must be 9223372036854775807 or less, not 9223372036854775808"),
        (("--lr", "fast"), "argument --lr: invalid float value: 'fast'"),
        (("--optimizer", "adam", "--momentum", 0.5), "--momentum: adam has none"),
        (("--algorithm", "gauss"), "--algorithm: gauss is not auto or, on cpu, one of sequential, "),
        (("--device", "abacus"), "argument --device: must be cpu, cuda, cuda:0, ..., not abacus"),
        (("--fused", "--optimizer", "adam"), "--fused: it takes --optimizer sgd and --algorithm auto"),
        (("--fused", "--algorithm", "threaded"), "--fused: it takes --optimizer sgd and --algorithm auto"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_bad_options_are_refused(program, tmp_path, capsys, arguments, message):
    assert refusal(program, tmp_path, *arguments) == "2"
    assert message in capsys.readouterr().err


def test_bad_data_is_refused_with_the_file_named(program, tmp_path):
    said = refusal(program, tmp_path / "out", "--data", tmp_path)
    assert said == f"--data: {tmp_path}: neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz is there"


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_a_short_run_on_all_digits_learns_them(program, tmp_path, device):
    state = train(program, tmp_path, "--epochs", 12, "--lr-decay", 0.85, device=device)
    assert state["history"][-1]["test_accuracy"] >= 0.95
    assert state["history"][-1]["loss"] < 0.3 < 0.8 < state["history"][0]["loss"]


def test_one_epoch_on_mnist(program, tmp_path):
    folder = data_folder("mnist")
    state = train(program, tmp_path, "--data", folder, "--epochs", 1)
    assert state["history"][0]["test_accuracy"] >= 0.96
