#!/usr/bin/env python3
"""Race the ways to train LeNet-5: PyTorch's own against this library's layers and its fused kernels.

    race_lenet5.py --data DIR        MNIST: time per epoch at several batch sizes, and time to 99.0 % over five seeds
    race_lenet5.py                   the 1,797 digits of scikit-learn, for a quick look

All contestants train the same network in float32 (no TF32) on the same minibatches, shuffled and distorted on the
device, by SGD with momentum and the same learning rates; they start from the same weights. A time covers training
alone, including the minibatches: the device is idle before and after. Compilation and capture happen beforehand. The
script prints a table, and writes race.json and race.png to --out.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch
from arguments import number
from matplotlib.figure import Figure

import torch_patterns
from torch_patterns import data
from torch_patterns.lenet import LeNet5, Trainer

MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
WARM_UP = 0.2  # share of the steps in which the learning rate rises; then it falls to 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    has_cuda = torch.cuda.is_available() and "fused" in torch_patterns.algorithms("lenet5", "cuda")
    parser.add_argument("--data", metavar="DIR", help="folder of MNIST's files (default: scikit-learn's digits)")
    parser.add_argument("--device", default="cuda" if has_cuda else "cpu")
    parser.add_argument(
        "--batches", type=number(int, 1), nargs="+", default=[64, 256, 1024], help="images per step, to be timed"
    )
    parser.add_argument(
        "--repeats", type=number(int, 1), default=5, help="epochs timed of each, after two that are not"
    )
    parser.add_argument("--batch", type=number(int, 1), default=256, help="images per step in the race to the target")
    parser.add_argument("--epochs", type=number(int, 1), default=8, help="epochs of the race to the target")
    parser.add_argument("--lr", type=number(float), default=0.2, help="greatest learning rate of that race")
    parser.add_argument("--seeds", type=number(int, 1), default=5, help="how often it is run")
    parser.add_argument("--target", type=float, default=99.0, help="accuracy on the test digits, in percent")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs/race_lenet5"))
    return parser.parse_args(arguments)


class TorchLeNet5(torch.nn.Module):
    """The same network in torch.nn, with the parameters of ours in their order."""

    def __init__(self, model: LeNet5):
        super().__init__()
        self.weights = torch.nn.ParameterList(p.detach().clone() for p in model.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        f, w = torch.nn.functional, self.weights
        x = torch.tanh(f.avg_pool2d(f.conv2d(x, w[0]), 2) + w[1][:, None, None])
        x = torch.tanh(f.avg_pool2d(f.conv2d(x, w[2]), 2) + w[3][:, None, None])
        x = torch.tanh(f.conv2d(x, w[4], w[5])).flatten(1)
        x = torch.tanh(f.linear(x, w[6], w[7]))
        return f.linear(x, w[8], w[9])


class TorchContestant:
    """torch.nn and torch.optim: eager, compiled, or with each step replayed from a CUDA graph."""

    def __init__(self, model: LeNet5, digits: data.Digits, batch: int, compiled: bool, captured: bool):
        self.digits, self.batch, self.captured = digits, batch, captured
        self.network = TorchLeNet5(model)
        self.forward = torch.compile(self.network) if compiled else self.network
        device = digits.train_images.device
        self.rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=self.rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.seed, self.number = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
        self.graphs: dict[int, tuple] = {}
        sizes = {min(batch, len(digits.train_labels)), len(digits.train_labels) % batch} - {0}
        for size in sizes:
            self.prepare(size)

    def step(self, x: torch.Tensor, target: torch.Tensor) -> None:
        loss = torch.nn.functional.cross_entropy(self.forward(x), target)
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()

    def prepare(self, size: int) -> None:
        x = torch.zeros(size, 1, 32, 32, device=self.rate.device)
        target = torch.zeros(size, dtype=torch.int64, device=self.rate.device)
        if not self.captured:
            for _ in range(3):
                self.step(x, target)
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step(x, target)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(x, target)
        self.graphs[size] = graph, x, target

    def reset(self, model: LeNet5, seed: int) -> None:
        with torch.no_grad():
            for ours, initial in zip(self.network.parameters(), model.parameters(), strict=True):
                ours.copy_(initial)
                self.optimizer.state[ours]["momentum_buffer"].zero_()
        self.seed.fill_(seed)
        self.number.zero_()

    def epoch(self, rates: torch.Tensor) -> None:
        images, labels = self.digits.train_images, self.digits.train_labels
        x, target = torch.ops.torch_patterns.lenet5_minibatches(images, labels, self.seed, self.number)
        steps = zip(x.split(self.batch), target.split(self.batch), rates, strict=True)
        for batch, classes, rate in steps:
            self.rate.copy_(rate)
            if self.captured:
                graph, static_x, static_target = self.graphs[len(classes)]
                static_x.copy_(batch)
                static_target.copy_(classes)
                graph.replay()
            else:
                self.step(batch, classes)
        self.number.add_(1)

    def accuracy(self) -> float:
        with torch.no_grad():
            outputs = self.network(data.normalize(self.digits.test_images))
        return 100 * (outputs.argmax(1) == self.digits.test_labels).double().mean().item()


class Ours:
    """lenet.Trainer, by one rung of the ladder."""

    def __init__(self, model: LeNet5, digits: data.Digits, batch: int, algorithm: str):
        self.digits = digits
        rates = {"momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
        images, labels = digits.train_images, digits.train_labels
        self.trainer = Trainer(model, images, labels, batch, algorithm=algorithm, **rates)
        self.trainer.capture()

    def reset(self, model: LeNet5, seed: int) -> None:
        momenta = [torch.zeros_like(m) for m in self.trainer.momenta]
        self.trainer.load_state_dict({"model": model.state_dict(), "momenta": momenta, "epochs": 0})
        self.trainer.seed = seed

    def epoch(self, rates: torch.Tensor) -> None:
        self.trainer.lr = rates
        self.trainer.epoch()

    def accuracy(self) -> float:
        return 100 * self.trainer.evaluate(self.digits.test_images, self.digits.test_labels).item()


def contestants(device: str) -> dict:
    """Returns, by name, a function that makes each contestant from a network, the digits and a batch size."""
    all_of_them = {
        "torch, eager": lambda *a: TorchContestant(*a, compiled=False, captured=False),
        "torch, CUDA graph": lambda *a: TorchContestant(*a, compiled=False, captured=True),
        "torch.compile, CUDA graph": lambda *a: TorchContestant(*a, compiled=True, captured=True),
        **{
            f"ours, {name}": lambda *a, name=name: Ours(*a, name)
            for name in torch_patterns.algorithms("lenet5", device)
        },
    }
    return all_of_them if device != "cpu" else {n: c for n, c in all_of_them.items() if "graph" not in n}


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def network(seed: int, device: str) -> LeNet5:
    torch.manual_seed(seed)
    return LeNet5().to(device)


def timed(device: str, function, *arguments) -> float:
    """Returns the seconds of a call, with an idle device before and after."""
    synchronize(device)
    started = time.perf_counter()
    function(*arguments)
    synchronize(device)
    return time.perf_counter() - started


def schedule(options: argparse.Namespace, steps: int) -> torch.Tensor:
    """Returns learning rates [epochs, steps]: a linear rise, then a linear fall to 0."""
    part = torch.arange(options.epochs * steps, dtype=torch.float64) / (options.epochs * steps)
    rates = torch.minimum(0.1 + 0.9 * part / WARM_UP, (1 - part) / (1 - WARM_UP)) * options.lr
    return rates.view(options.epochs, steps).float().to(options.device)


def steps_of(digits: data.Digits, batch: int) -> int:
    return -(-len(digits.train_labels) // batch)


def time_epochs(options: argparse.Namespace, digits: data.Digits, make, batch: int) -> float:
    """Returns the median milliseconds of an epoch."""
    contestant = make(network(0, options.device), digits, batch)
    contestant.reset(network(0, options.device), 0)
    rates = torch.full((steps_of(digits, batch),), 0.01, device=options.device)
    times = [timed(options.device, contestant.epoch, rates) for _ in range(2 + options.repeats)]
    return 1000 * statistics.median(times[2:])


def race(options: argparse.Namespace, digits: data.Digits, make) -> list[dict]:
    """Returns, per seed, the seconds of training until the target (or null), and the accuracy after every epoch."""
    contestant = make(network(0, options.device), digits, options.batch)
    rates = schedule(options, steps_of(digits, options.batch))
    runs = []
    for seed in range(options.seeds):
        contestant.reset(network(seed, options.device), seed)
        seconds, reached, accuracies = 0.0, None, []
        for epoch in range(options.epochs):
            seconds += timed(options.device, contestant.epoch, rates[epoch])
            accuracies.append(round(contestant.accuracy(), 4))
            if reached is None and accuracies[-1] >= options.target:
                reached = seconds
        runs.append({"seed": seed, "seconds": seconds, "seconds_to_target": reached, "accuracies": accuracies})
    return runs


def median_to_target(runs: list[dict]) -> float:
    return statistics.median(math.inf if r["seconds_to_target"] is None else r["seconds_to_target"] for r in runs)


def measure(options: argparse.Namespace, digits: data.Digits) -> list[dict]:
    rows = []
    for name, make in contestants(options.device).items():
        row = {"contestant": name, "epoch_ms": {}, "runs": []}
        try:
            for batch in options.batches:
                row["epoch_ms"][batch] = time_epochs(options, digits, make, batch)
            row["runs"] = race(options, digits, make)
        except Exception as error:  # a compiler may be missing: the table says so, and the others continue
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        rows.append(row)
        print(line(options, row), flush=True)
    return rows


def line(options: argparse.Namespace, row: dict) -> str:
    times = [row["epoch_ms"].get(batch) for batch in options.batches]
    cells = [f"{t:.2f}" if t else "-" for t in times]
    seconds = median_to_target(row["runs"]) if row["runs"] else math.inf
    cells.append(f"{seconds:.3f}" if seconds < math.inf else "-")
    cells.append(f"{statistics.median(r['accuracies'][-1] for r in row['runs']):.2f}" if row["runs"] else "-")
    return f"| {row['contestant']:26} | " + " | ".join(f"{c:>9}" for c in cells) + " | " + row.get("error", "")


def plot(options: argparse.Namespace, rows: list[dict], path: Path) -> None:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    epochs, target = figure.subplots(1, 2)
    shown = [row for row in rows if row["epoch_ms"]]
    width = 0.8 / max(1, len(shown))
    for i, row in enumerate(shown):
        lefts = [x + i * width for x in range(len(row["epoch_ms"]))]
        bars = epochs.bar(lefts, row["epoch_ms"].values(), width, label=row["contestant"])
        epochs.bar_label(bars, fmt="%.3g", fontsize=7)
    epochs.set(title="an epoch", ylabel="ms", xlabel="images per step", yscale="log")
    epochs.set_xticks([x + 0.4 - width / 2 for x in range(len(options.batches))], map(str, options.batches))
    epochs.legend(fontsize=8)
    for row in rows:
        if not row["runs"]:
            continue
        accuracies = [statistics.median(a) for a in zip(*(r["accuracies"] for r in row["runs"]), strict=True)]
        seconds = statistics.median(r["seconds"] for r in row["runs"])
        times = [seconds * (n + 1) / len(accuracies) for n in range(len(accuracies))]
        target.plot(times, [100 - a for a in accuracies], marker="o", markersize=3, label=row["contestant"])
    target.axhline(100 - options.target, color="grey", linestyle=":")
    target.set(title=f"{options.batch} images per step, median of {options.seeds} seeds", xlabel="seconds of training")
    target.set(ylabel="error on the test digits, %", xscale="log", yscale="log")
    target.legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> list[dict]:
    options = parse(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    digits = data.mnist(options.data) if options.data else data.digits()
    digits = data.Digits(*(tensor.to(options.device) for tensor in digits))
    options.out.mkdir(parents=True, exist_ok=True)
    heads = [f"{batch} a step" for batch in options.batches] + [f"s to {options.target}", "final %"]
    print(f"| {'ms per epoch':26} | " + " | ".join(f"{h:>9}" for h in heads) + " |")
    rows = measure(options, digits)
    about = {
        "device": torch.cuda.get_device_name(options.device) if options.device != "cpu" else "cpu",
        "torch": torch.__version__,
        "torch_patterns": torch_patterns.__version__,
        "options": {name: str(value) for name, value in vars(options).items()},
    }
    (options.out / "race.json").write_text(json.dumps(about | {"contestants": rows}, indent=1) + "\n")
    plot(options, rows, options.out / "race.png")
    print(f"written to {options.out}: race.json, race.png")
    return rows


if __name__ == "__main__":
    main()
