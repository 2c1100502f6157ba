#!/usr/bin/env python3
"""Train LeNet-5 on handwritten digits with the operators of torch_patterns, and export it.

    train_lenet5.py                      the 1,797 digits of scikit-learn: 98-99 % of the held-out fifth
    train_lenet5.py --data DIR           MNIST from its four IDX files, gzip or not: 99 %
    train_lenet5.py --activation bipolar_sigmoid --output rbf     the book's own network (chapter 16)
    train_lenet5.py --epochs 80 --resume runs/lenet5/checkpoint.pt     go on, to 80 epochs in all
    train_lenet5.py --no-fused                layer by layer through autograd and torch.optim
    torchrun --nproc-per-node 4 train_lenet5.py --ddp     on four GPUs, each with a part of a batch; or --ddp --fused

Written to --out: metrics.json (one row per epoch), curve.png, errors.png (digits it got wrong), checkpoint.pt,
lenet5.ts (TorchScript) and lenet5.pt2 (torch.export). Both exports are loaded again and must give what the network
gives.

With SGD, an epoch is one call of lenet.Trainer: on a GPU that is one CUDA graph of fused kernels (--fused, the default
where it applies).

A run is a function of its options: what an epoch draws (order, distortion) depends on --seed and its number alone. A
resumed run is therefore bit for bit the uninterrupted one, on the same device with the same number of threads. With
--ddp the checkpoint is a folder, checkpoint/, which any number of processes can resume.
"""

import argparse
import json
import os
import pickle
import sys
import time
import warnings
import zlib
from pathlib import Path

# Read when torch loads OpenMP: threads that spin while they wait would hold up all others of a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from arguments import number
from data_parallel import Ranks
from data_parallel import load as load_folder
from data_parallel import save as save_folder
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from tqdm import tqdm

import torch_patterns
from torch_patterns import data
from torch_patterns.distributed import lenet as distributed_lenet
from torch_patterns.lenet import ACTIVATIONS, OUTPUTS, POOLINGS, LeNet5, Trainer

# Each takes parameters, learning rate, momentum (if it has one) and weight decay.
OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
WITH_MOMENTUM = ("sgd", "rmsprop")

# What a resumed run must share with the run before it.
SHARED = ("algorithm", "batch", "lr", "lr_decay", "optimizer", "momentum", "weight_decay", "seed")
SHARED += ("activation", "pooling", "output", "fused", "data")

EVALUATION_BATCH = 1000


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    cuda = torch.cuda.is_available() and torch_patterns.algorithms("conv2d", "cuda")

    def add(name: str, text: str, **how) -> None:
        known = f" (default: {how['default']})" if how.get("default") is not None else ""
        parser.add_argument(name, help=text + known, **how)

    add("--data", "folder of MNIST's files (default: scikit-learn's digits)", metavar="DIR")
    add("--device", "cpu, cuda, cuda:1, ...", type=device, default="cuda" if cuda else "cpu")
    add("--algorithm", "of the convolutions: auto or a rung of conv2d", default="auto")
    fused = "whole epochs by lenet.Trainer, which takes --optimizer sgd and --algorithm auto (default without --ddp)"
    add("--fused", fused, action=argparse.BooleanOptionalAction, default=None)
    add("--ddp", "on all processes that torchrun started, each with a part of every batch", action="store_true")
    add("--batch", "images per step", type=number(int, 1), default=64)
    add("--epochs", "in all, with those before --resume (default: 60, MNIST: 10)", type=number(int, 1))
    add("--lr", "learning rate (default: by optimizer and output)", type=number(float))
    add("--lr-decay", "factor on it after each epoch (default: 0.95, MNIST: 0.75)", type=number(float))
    add("--optimizer", "how the weights follow the gradients", choices=OPTIMIZERS, default="sgd")
    add("--momentum", f"of {' and '.join(WITH_MOMENTUM)} (default: 0.9, rmsprop: 0)", type=number(float))
    add("--weight-decay", "pull of the weights towards 0", type=number(float), default=0.0)
    add("--seed", "of the weights, the order and the distortions", type=number(int, 0, 2**63 - 1), default=0)
    add("--out", "folder for what is written", type=Path, metavar="DIR", default=Path("runs/lenet5"))
    add("--resume", "go on from this checkpoint.pt", type=Path, metavar="FILE")
    add("--activation", "of all layers", choices=ACTIVATIONS, default="tanh")
    add("--pooling", "the layers S2 and S4", choices=POOLINGS, default="subsample")
    add("--output", "the last layer, and with it the loss", choices=OUTPUTS, default="linear")
    add("--threads", "of the CPU", type=number(int, 1), default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    if options.momentum is not None and options.optimizer not in WITH_MOMENTUM:
        parser.error(f"--momentum: {options.optimizer} has none")
    can_fuse = options.optimizer == "sgd" and options.algorithm == "auto"
    if options.fused and not can_fuse:
        parser.error("--fused: it takes --optimizer sgd and --algorithm auto")
    options.fused = can_fuse and not options.ddp if options.fused is None else options.fused
    complete(options)
    rungs = torch_patterns.algorithms("conv2d", options.device)
    if not rungs:
        parser.error(f"--device: torch_patterns was built without {options.device}")
    if options.algorithm not in ("auto", *rungs):
        parser.error(f"--algorithm: {options.algorithm} is not auto or, on {options.device}, one of {', '.join(rungs)}")
    return options


def device(text: str) -> torch.device:
    if not text.startswith(("cpu", "cuda")):
        raise argparse.ArgumentTypeError(f"must be cpu, cuda, cuda:0, ..., not {text}")
    try:
        return torch.empty(0, device=text).device
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(str(error).splitlines()[0]) from error


def complete(options: argparse.Namespace) -> None:
    """Fills in the defaults that depend on other options. The squared error of Gaussians has smaller gradients."""
    rates = {"sgd": 0.5 if options.output == "rbf" else 0.05, "rmsprop": 0.001, "adam": 0.003, "adamw": 0.003}
    defaults = {
        "epochs": 10 if options.data else 60,
        "lr": rates[options.optimizer],
        "lr_decay": 0.75 if options.data else 0.95,
        "momentum": 0.9 if options.optimizer == "sgd" else 0.0,
    }
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def make_optimizer(options: argparse.Namespace, model: LeNet5) -> torch.optim.Optimizer:
    rates = {"lr": options.lr, "weight_decay": options.weight_decay}
    if options.optimizer in WITH_MOMENTUM:
        rates["momentum"] = options.momentum
    return OPTIMIZERS[options.optimizer](model.parameters(), **rates)


class Run:
    """A network in training: the state for checkpoints, and the measurements after each epoch."""

    def __init__(self, options: argparse.Namespace, digits: data.Digits, ranks: Ranks | None = None):
        torch.manual_seed(options.seed)
        self.ranks = ranks or Ranks()
        self.options = options
        self.digits = data.Digits(*(tensor.to(options.device) for tensor in digits))
        self.model = LeNet5(options.activation, options.pooling, options.output, options.algorithm).to(options.device)
        self.network = self.model if options.fused else self.ranks.wrapped(self.model)
        self.optimizer = None if options.fused else make_optimizer(options, self.model)
        self.trainer = self.make_trainer() if options.fused else None
        self.history: list[dict] = []
        # The digits themselves rather than the path: files may have moved or been replaced.
        self.shared = {name: getattr(options, name) for name in SHARED}
        self.shared["data"] = f"{len(digits.train_labels)} digits, crc32 {zlib.crc32(digits.train_images.numpy()):08x}"

    def make_trainer(self) -> Trainer:
        options, rates = self.options, {"momentum": self.options.momentum, "weight_decay": self.options.weight_decay}
        images, labels = self.digits.train_images, self.digits.train_labels
        trainer = distributed_lenet.Trainer if self.ranks.grouped else Trainer
        return trainer(self.model, images, labels, options.batch, seed=options.seed, **rates)

    def save(self, path: Path) -> None:
        if self.ranks.grouped:
            more = {"options": self.shared, "history": self.history}
            save_folder(path.with_suffix(""), self.model, self.trainer or self.optimizer, more, self.ranks)
            return
        state = {
            "options": self.shared,
            "history": self.history,
            "model": self.model.state_dict(),
            "optimizer": (self.trainer or self.optimizer).state_dict(),
        }
        partial = path.with_suffix(".partial")  # an interrupted write leaves the previous checkpoint intact
        torch.save(state, partial)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        try:
            if path.is_dir():
                state = load_folder(path, self.model, self.trainer or self.optimizer)
            else:
                state = torch.load(path, map_location="cpu", weights_only=True)
            options, history = state["options"], state["history"]
        except OSError as error:
            sys.exit(f"--resume: {error}")
        except (EOFError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError):
            sys.exit(f"--resume: {path} is no checkpoint of this program")
        for name, value in self.shared.items():
            if options.get(name) != value:
                flag = f"--{name.replace('_', '-')}"
                sys.exit(f"--resume: {path} was trained with {flag} {options.get(name)}; this run has {value}")
        if len(history) > self.options.epochs:
            sys.exit(
                f"--resume: {path} has {len(history)} epochs behind it, and --epochs {self.options.epochs} is in all"
            )
        if not path.is_dir():
            self.model.load_state_dict(state["model"])
            (self.trainer or self.optimizer).load_state_dict(state["optimizer"])
        self.history = history

    def train_epoch(self, bar: tqdm) -> dict:
        """Makes one pass over the training digits. Its loss and accuracy are measured on the distorted digits during
        the pass."""
        started, epoch = time.perf_counter(), len(self.history)
        lr = self.options.lr * self.options.lr_decay**epoch
        loss, accuracy = self.fused_steps(bar, lr) if self.trainer else self.steps(bar, epoch, lr)
        row = {"epoch": epoch + 1, "loss": loss, "train_accuracy": accuracy, "test_accuracy": self.accuracy()}
        self.history.append(row | {"seconds": time.perf_counter() - started})
        return self.history[-1]

    def fused_steps(self, bar: tqdm, lr: float) -> tuple[float, float]:
        self.trainer.lr = lr
        loss = self.trainer.epoch().item()
        self.insist_on_a_number(loss)
        bar.update(self.trainer.steps)
        bar.set_postfix(epoch=len(self.history) + 1, loss=f"{loss:.4f}")
        return loss, self.trainer.hits.item() / len(self.digits.train_labels)

    def steps(self, bar: tqdm, epoch: int, lr: float) -> tuple[float, float]:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        images, labels = self.minibatches(epoch)
        sums = torch.zeros(2, device=images.device, dtype=torch.float64)  # of loss and hits; read only now and then
        seen = 0
        for step, (batch, classes) in enumerate(
            zip(images.split(self.options.batch), labels.split(self.options.batch), strict=True)
        ):
            part = self.ranks.part(len(batch))
            target = classes[part]
            output = self.network(batch[part])
            loss = self.model.loss(output, target) if len(target) else output.sum()
            self.optimizer.zero_grad()
            self.ranks.weighed(loss, len(target), len(batch)).backward()
            self.optimizer.step()
            hits = (output.detach().argmax(1) == target).sum()
            sums += torch.stack((loss.detach().double() * len(target), hits))
            seen += len(batch)
            bar.update()
            if step % 50 == 49 or seen == len(labels):
                mean_loss, accuracy = (self.ranks.total(sums) / seen).tolist()
                self.insist_on_a_number(mean_loss)
                bar.set_postfix(epoch=epoch + 1, loss=f"{mean_loss:.4f}")
        return mean_loss, accuracy

    def minibatches(self, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the digits of an epoch in their order, distorted and normalized, as the Trainer uses them."""
        images, labels = self.digits.train_images, self.digits.train_labels
        seed, number = (torch.tensor(value, device=images.device) for value in (self.options.seed, epoch))
        return torch.ops.torch_patterns.lenet5_minibatches(images, labels, seed, number)

    def insist_on_a_number(self, loss: float) -> None:
        if not abs(loss) < float("inf"):  # also catches NaN
            epoch = len(self.history) + 1
            sys.exit(f"the loss is {loss} in epoch {epoch}: try a smaller --lr than {self.options.lr}")

    def outputs(self, network=None) -> torch.Tensor:
        """Returns the outputs of a network, by default the one in training, for the test digits."""
        network = network or self.model
        with torch.no_grad():
            batches = self.digits.test_images.split(EVALUATION_BATCH)
            return torch.cat([network(data.normalize(images)) for images in batches])

    def accuracy(self) -> float:
        if self.trainer:
            return self.trainer.evaluate(self.digits.test_images, self.digits.test_labels).item()
        return (self.outputs().argmax(1) == self.digits.test_labels).double().mean().item()


def export(run: Run, out: Path) -> None:
    """Writes lenet5.ts and lenet5.pt2, loads both again, and checks that they give exactly the network's outputs."""
    model, script_path, export_path = run.model.eval(), out / "lenet5.ts", out / "lenet5.pt2"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        torch.jit.script(model).save(script_path)
        scripted = torch.jit.load(script_path, map_location=run.options.device)
    example = data.normalize(run.digits.test_images[:2])  # two images: export would treat a batch of one as a constant
    program = torch.export.export(model, (example,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    torch.export.save(program, export_path)
    exported = torch.export.load(export_path).module()
    expected = run.outputs()
    for path, network in ((script_path, scripted), (export_path, exported)):
        if not torch.equal(run.outputs(network), expected):
            sys.exit(f"{path}: loaded again, it does not give the outputs of the network it was made from")


def record(run: Run, out: Path) -> None:
    run.save(out / "checkpoint.pt")
    if not run.ranks.is_chief:
        return
    rows = ",\n    ".join(json.dumps(row) for row in run.history)
    text = f'{{\n  "options": {json.dumps(run.shared)},\n  "epochs": [\n    {rows}\n  ]\n}}\n'
    (out / "metrics.json").write_text(text)


def plot_curve(history: list[dict], path: Path) -> None:
    epochs = [row["epoch"] for row in history]
    style = {"marker": "o" if len(epochs) < 20 else None, "markersize": 4}
    figure = Figure(figsize=(10, 4), layout="constrained")
    loss, error = figure.subplots(1, 2)
    loss.plot(epochs, [row["loss"] for row in history], **style)
    loss.set(title="loss", ylabel="mean of the training digits")
    for name, label in (("train", "training digits, distorted"), ("test", "test digits")):
        error.plot(epochs, [100 * (1 - row[f"{name}_accuracy"]) for row in history], label=label, **style)
    error.set(title=f"error: {100 * (1 - history[-1]['test_accuracy']):.2f} % on the test digits", ylabel="%")
    error.legend()
    for axes in (loss, error):
        axes.set(xlabel="epoch", yscale="log")
        axes.grid(alpha=0.3, which="both")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    figure.savefig(path, dpi=120)


def plot_errors(run: Run, path: Path, most: int = 60) -> None:
    guesses, labels = run.outputs().argmax(1), run.digits.test_labels
    wrong = (guesses != labels).nonzero().flatten().tolist()
    shown = wrong[:most]
    columns = min(10, max(6, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(columns, 0.5 + 1.2 * rows), layout="constrained")
    arrow = "\N{RIGHTWARDS ARROW}"
    first = f", the first {most}" if len(wrong) > most else ""
    figure.suptitle(
        f"{len(wrong)} of {len(labels)} test digits misclassified (true {arrow} predicted){first}", fontsize=12
    )
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.axis("off")
    for axes, index in zip(figure.axes, shown, strict=False):
        axes.imshow(run.digits.test_images[index, 0].numpy(force=True), cmap="gray_r", vmin=0, vmax=255)
        axes.set_title(f"{labels[index]} {arrow} {guesses[index]}", fontsize=10)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    ranks, options.device = Ranks.of_torchrun(options.device) if options.ddp else (Ranks(), options.device)
    try:
        digits = data.mnist(options.data) if options.data else data.digits()
    except (OSError, ValueError) as error:
        sys.exit(f"--data: {error}")
    run = Run(options, digits, ranks)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.resume:
        run.load(options.resume)
        record(run, options.out)
    steps, done = -(-len(digits.train_labels) // options.batch), len(run.history)
    with tqdm(
        total=options.epochs * steps, initial=done * steps, unit="step", disable=None if ranks.is_chief else True
    ) as bar:
        for _ in range(done, options.epochs):
            row = run.train_epoch(bar)
            record(run, options.out)
            if not ranks.is_chief:
                continue
            accuracies = f"train {100 * row['train_accuracy']:.2f} %   test {100 * row['test_accuracy']:.2f} %"
            counted = f"epoch {row['epoch']:2d} of {options.epochs}"
            bar.write(f"{counted}   loss {row['loss']:.4f}   {accuracies}   {row['seconds']:.1f} s")
    if not ranks.is_chief:
        return
    plot_curve(run.history, options.out / "curve.png")
    plot_errors(run, options.out / "errors.png")
    export(run, options.out)
    print(f"written to {options.out}: " + ", ".join(sorted(path.name for path in options.out.iterdir())))
    print(f"test accuracy {100 * run.history[-1]['test_accuracy']:.2f} %")


if __name__ == "__main__":
    main()
