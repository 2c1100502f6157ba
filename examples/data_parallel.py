"""Training on several processes, for train_lenet5.py --ddp: divides batches among ranks, and saves checkpoints.

torchrun starts a process per GPU, or several on CPUs. Every rank has the whole data set and draws the same random
numbers; it takes its part of each batch, and DistributedDataParallel (with --fused, torch_patterns.distributed.lenet)
averages the gradients. So the network, and the loss of an epoch, are those of one process with the same batch, except
for rounding, because gradients are summed in another order.
"""

import json
import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from torch_patterns.lenet import Trainer

TIMEOUT = timedelta(minutes=10)
Learner = torch.optim.Optimizer | Trainer


class Ranks:
    """The processes of a run; without a process group, the single process."""

    def __init__(self):
        grouped = dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
        self.grouped = grouped

    @classmethod
    def of_torchrun(cls, device: torch.device) -> tuple["Ranks", torch.device]:
        """Joins the processes that torchrun started; with CUDA, each takes its own GPU."""
        if not dist.is_initialized():
            if "RANK" not in os.environ:
                sys.exit(
                    "--ddp: torchrun starts the processes: torchrun --nproc-per-node 2 examples/train_lenet5.py --ddp"
                )
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", dist.get_rank())))
            torch.cuda.set_device(device)
        return cls(), device

    @property
    def is_chief(self) -> bool:
        """Tells whether this rank writes the files that only one rank may write."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """Returns which of `count` items are this rank's."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def wrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        """Returns the network for training: backward stores the average of all ranks' gradients in its parameters."""
        return DistributedDataParallel(model) if self.grouped else model

    def weighed(self, loss: torch.Tensor, part: int, count: int) -> torch.Tensor:
        """Scales the mean loss of a part of a batch, so that the average over ranks is the mean of the batch."""
        return loss * (self.size * part / count)

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the sum over the ranks."""
        if self.grouped:
            x = x.clone()
            dist.all_reduce(x)
        return x


def state_of(model: torch.nn.Module, learner: Learner) -> dict:
    """Returns the state of a network and of its optimizer or trainer, for a checkpoint."""
    if isinstance(learner, Trainer):
        return {"trainer": learner.state_dict()}
    weights, moments = get_state_dict(model, learner)
    return {"model": weights, "optimizer": moments}


def save(path: Path, model: torch.nn.Module, learner: Learner, more: dict, ranks: Ranks) -> None:
    """Saves a checkpoint in a folder, which any number of ranks can load (torch.distributed.checkpoint). `more` is
    JSON."""
    partial = path.with_suffix(".partial")  # an interrupted write leaves the previous checkpoint intact
    if ranks.is_chief:
        shutil.rmtree(partial, ignore_errors=True)
    dcp.save({**state_of(model, learner), "more": json.dumps(more)}, checkpoint_id=partial)
    if ranks.is_chief:
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
    if ranks.grouped:
        dist.barrier()


def load(path: Path, model: torch.nn.Module, learner: Learner) -> dict:
    """Loads a checkpoint of :func:`save` into the model and its optimizer or trainer, and returns `more`."""
    more = {"more": ""}
    dcp.load(more, checkpoint_id=path)
    state = state_of(model, learner)
    dcp.load(state, checkpoint_id=path)
    if isinstance(learner, Trainer):
        learner.load_state_dict(state["trainer"])
    else:
        set_state_dict(model, learner, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return json.loads(more["more"])
