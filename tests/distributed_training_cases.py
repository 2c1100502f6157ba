"""Training on several ranks: what one process does with the same batches, checkpoints for any number of ranks."""

import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import train_lenet5
from data_parallel import Ranks
from distributed_world import World
from tqdm import tqdm

from torch_patterns import data

OPTIONS = ["--no-fused", "--batch", "64", "--lr", "0.05", "--threads", "1"]


def digits() -> data.Digits:
    """65 for training: the second step is of one digit, of which all ranks but one have no part."""
    images, labels, test_images, test_labels = data.digits()
    return data.Digits(images[:65], labels[:65], test_images[:40], test_labels[:40])


def run(world: World, ranks: Ranks | None) -> train_lenet5.Run:
    """In float64, in which the order of a sum does not show in the digits that are compared."""
    options = train_lenet5.parse([*OPTIONS, "--device", str(world.device), "--epochs", "9"])
    made = train_lenet5.Run(options, digits(), ranks)
    made.model.double()
    made.network = made.ranks.wrapped(made.model)
    made.optimizer = train_lenet5.make_optimizer(options, made.model)
    return made


def train(made: train_lenet5.Run, epochs: int) -> list[float]:
    floats = made.minibatches

    def minibatches(epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = floats(epoch)
        return images.double(), labels

    made.minibatches, made.accuracy = minibatches, lambda: 0.0  # which takes floats
    with tqdm(disable=True) as bar:
        return [made.train_epoch(bar)["loss"] for _ in range(epochs)]


def assert_near(curve: list[float], other: list[float]) -> None:
    assert all(abs(a - b) <= 1e-8 * abs(b) for a, b in zip(curve, other, strict=True)), f"{curve}, {other}"


def shared_folder() -> Path:
    name = [tempfile.mkdtemp()] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(name)
    return Path(name[0])


def case_the_loss_curve_of_one_process(world: World) -> None:
    together, alone = run(world, Ranks()), run(world, AloneRanks())
    curves = train(together, 3), train(alone, 3)
    # Sums of at most 65 * 28 * 28 terms of size 1, in another order, six steps of at most tenfold growth: under 1e-8.
    assert_near(*curves)
    assert len(set(curves[0])) == 3, "the network learns"
    for mine, whole in zip(together.model.parameters(), alone.model.parameters(), strict=True):
        assert (mine - whole).abs().max() <= 1e-8
        every = [torch.empty_like(mine) for _ in range(world.size)]
        dist.all_gather(every, mine.detach())
        assert all(torch.equal(other, mine) for other in every), "the ranks have drifted apart"


class AloneRanks(Ranks):
    """One process, though there is a group."""

    def __init__(self):
        self.rank, self.size, self.grouped = 0, 1, False


def case_checkpoints_for_another_number_of_ranks(world: World) -> None:
    folder = shared_folder() / "checkpoint.pt"
    before = run(world, Ranks())
    train(before, 2)
    before.save(folder)
    before.save(folder)  # again, over the one before
    expected = train(before, 1)
    alone = run(world, AloneRanks())
    alone.load(folder.with_suffix(""))
    assert [row["loss"] for row in alone.history] == [row["loss"] for row in before.history[:2]]
    assert_near(train(alone, 1), expected)
    resumed = run(world, Ranks())
    resumed.load(folder.with_suffix(""))
    assert train(resumed, 1) == expected, "the same number of ranks goes on bit for bit"


def case_the_program(world: World) -> None:
    """train_lenet5.py --ddp from its options to its files, and on from its checkpoint, layer by layer and fused."""
    original, few = data.digits, digits()
    data.digits = lambda: few
    try:
        for fused in ([], ["--fused"]):
            out = shared_folder()
            arguments = [*OPTIONS[1:], *fused, "--device", world.device.type, "--ddp", "--out", str(out)]
            train_lenet5.main([*arguments, "--epochs", "1"])
            dist.barrier()
            train_lenet5.main([*arguments, "--epochs", "2", "--resume", str(out / "checkpoint")])
            dist.barrier()
            history = json.loads((out / "metrics.json").read_text())["epochs"]
            assert [row["epoch"] for row in history] == [1, 2]
            written = {"checkpoint", "curve.png", "errors.png", "lenet5.pt2", "lenet5.ts", "metrics.json"}
            assert {path.name for path in out.iterdir()} == written
    finally:
        data.digits = original
