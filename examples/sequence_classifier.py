#!/usr/bin/env python3
"""Read digits as sequences: a state-space model on packed sequences, compared with the same model on padded ones.

    sequence_classifier.py                    trains both for 10 epochs, and draws runs/sequences.png
    sequence_classifier.py --device cuda --epochs 20

Each image of scikit-learn's digits becomes the sequence of its 20 to 50 inked pixels (position and ink), in reading
order. A layer is a gated linear recurrence, h[t] = a[t] h[t-1] + (1 - a[t]) v[t], whose gates and values are linear in
its input; the mean state of a sequence goes to a classifier. In the packed form, the sequences of a batch are stored
end to end without padding, and `tp.segment_recurrence` computes all of them in parallel along time. Plain torch pads
the batch and takes one step after another. Both start from the same weights and see the same batches, so they learn the
same.
"""

import argparse
import os
import time
from pathlib import Path

# Read when torch loads OpenMP: threads that spin while they wait would hold up all others of a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from arguments import number
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm import tqdm

import torch_patterns as tp
from torch_patterns import jagged


def sequences(device: str) -> tuple[list[Tensor], Tensor]:
    """Returns the inked pixels of each image, [length, 3]: row, column and ink in -1 to 1; and the digits."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().to(device)
    pixels = [image.nonzero() for image in images]
    found = [
        torch.cat([p / 3.5 - 1, image[p[:, 0], p[:, 1], None] / 8 - 1], 1)
        for p, image in zip(pixels, images, strict=True)
    ]
    return found, torch.from_numpy(digits.target).to(device)


class Layer(nn.Module):
    """One gated recurrence. `forward` takes packed rows; `padded` computes the same step by step on [batch, length,
    ...]."""

    def __init__(self, inputs: int, states: int):
        super().__init__()
        self.gate, self.value = nn.Linear(inputs, states), nn.Linear(inputs, states)
        nn.init.constant_(self.gate.bias, 2.0)  # initially remembers about eight steps

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.gate(x).sigmoid()
        return a, (1 - a) * self.value(x).tanh()

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        return tp.segment_recurrence(*self.factors(x), offsets)

    def padded(self, x: Tensor) -> Tensor:
        a, b = self.factors(x)
        h, states = torch.zeros_like(a[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + b[:, t]
            states.append(h)
        return torch.stack(states, 1)


class Classifier(nn.Module):
    def __init__(self, states: int = 64, layers: int = 2):
        super().__init__()
        self.layers = nn.ModuleList(Layer(3 if i == 0 else states, states) for i in range(layers))
        self.output = nn.Linear(states, 10)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """Returns logits [batch, 10] for packed rows."""
        for layer in self.layers:
            x = layer(x, offsets)
        return self.output(tp.segment_reduce(x, offsets, op="mean"))

    def padded(self, x: Tensor, offsets: Tensor) -> Tensor:
        """Returns the same by plain torch."""
        lengths = offsets.diff()
        x = nn.utils.rnn.pad_sequence(list(x.split(lengths.tolist())), batch_first=True)
        inside = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
        for layer in self.layers:
            x = layer.padded(x)
        return self.output((x * inside).sum(1) / lengths[:, None])


def packed(found: list[Tensor], chosen: Tensor) -> tuple[Tensor, Tensor]:
    rows = [found[i] for i in chosen.tolist()]
    lengths = torch.tensor([len(r) for r in rows], device=rows[0].device)
    return torch.cat(rows), jagged.lengths_to_offsets(lengths)


def train(way: str, found: list[Tensor], digits: Tensor, split: Tensor, options) -> list[dict]:
    """Returns, per epoch, the loss, the accuracy on held-out digits, and the seconds of training."""
    torch.manual_seed(options.seed)
    model = Classifier(options.states).to(digits.device)
    forward = model if way == "packed" else model.padded
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    held_out, learned = split[: len(split) // 5], split[len(split) // 5 :]
    history = []
    for epoch in range(options.epochs):
        order = learned[torch.randperm(len(learned), generator=torch.Generator().manual_seed(epoch))]
        batches, losses = order.split(options.batch), []
        begin = time.perf_counter()
        for chosen in tqdm(batches, f"{way} {epoch + 1}/{options.epochs}", leave=False):
            loss = nn.functional.cross_entropy(forward(*packed(found, chosen)), digits[chosen.to(digits.device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - begin
        with torch.no_grad():
            right = forward(*packed(found, held_out)).argmax(1) == digits[held_out.to(digits.device)]
        history.append(
            {"loss": sum(losses) / len(losses), "accuracy": right.double().mean().item(), "seconds": seconds}
        )
    return history


def draw(histories: dict[str, list[dict]], target: Path) -> None:
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for way, history in histories.items():
        left.plot([100 * h["accuracy"] for h in history], label=way, ls="-" if way == "packed" else "--")
    left.set(title="held-out digits", xlabel="epoch", ylabel="accuracy, %")
    left.legend()
    right.bar(list(histories), [sorted(h["seconds"] for h in hs)[len(hs) // 2] for hs in histories.values()])
    right.set(title="an epoch", ylabel="seconds, median")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)


def main(arguments: list[str] | None = None) -> dict[str, list[dict]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=number(int, 1), default=10)
    parser.add_argument("--batch", type=number(int, 1), default=64)
    parser.add_argument("--states", type=number(int, 1), default=64)
    parser.add_argument("--images", type=number(int, 5), help="of the 1,797; default: all")
    parser.add_argument("--lr", type=number(float), default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/sequences.png"))
    options = parser.parse_args(arguments)
    found, digits = sequences(options.device)
    split = torch.randperm(len(found), generator=torch.Generator().manual_seed(options.seed))[: options.images]
    histories = {way: train(way, found, digits, split, options) for way in ("packed", "padded")}
    for way, history in histories.items():
        seconds = sorted(h["seconds"] for h in history)[len(history) // 2]
        print(f"{way}: accuracy {100 * history[-1]['accuracy']:.2f} %, {seconds:.2f} seconds per epoch")
    draw(histories, options.out)
    return histories


if __name__ == "__main__":
    main()
