"""The fused trainer on several ranks: the loss curve of one process with the same batches."""

import torch
from distributed_world import World

from torch_patterns import lenet
from torch_patterns.distributed.lenet import Trainer
from torch_patterns.lenet import LeNet5


def case_fused_steps_of_all_ranks(world: World) -> None:
    """In float64, then as "auto" has it; the second step is of one image, of which all ranks but one have no part."""
    images = torch.randint(0, 256, (65, 1, 32, 32), dtype=torch.uint8).to(world.device)
    targets = torch.randint(0, 10, (65,)).to(world.device)
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01, "seed": 3}
    # Sums of at most 65 * 28 * 28 terms of size 1 in another order, through six steps: the roundoff times 2^16 or so.
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
        torch.manual_seed(world.rank)  # the network of rank 0 counts
        together = Trainer(LeNet5().to(world.device, dtype), images, targets, 64, **options)
        torch.manual_seed(0)
        alone = lenet.Trainer(LeNet5().to(world.device, dtype), images, targets, 64, **options)
        for _ in range(3):
            loss, whole = together.epoch().item(), alone.epoch().item()
            assert abs(loss - whole) <= near * abs(whole), f"{dtype}: {loss}, {whole}"
        assert together.hits.item() <= len(images) and together.epochs == 3
        for mine, expected in zip(together.params, alone.params, strict=True):
            assert (mine - expected).abs().max() <= near
