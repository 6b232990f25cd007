#!/usr/bin/env python3
"""Train on several processes with random crops and flips, and continue after an interruption with more or fewer of them.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py out/ --images images/ --checkpoint run.pt --steps 5
    torchrun --standalone --nproc-per-node 4 examples/ddp.py out/ --checkpoint run.pt

Every process makes the same MemmapLoader: it gets its rank from torch.distributed and reads that part of each step. The order
does not depend on the number of processes, and the loader's state is the same few integers on all of them, so one checkpoint
serves all. The batch size is that of all processes together, so that a step stays the same step.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from checkpoints import restore, save
from network import datasets, decayed, network, views, warmup_and_cosine
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from pixpack import MemmapLoader, PackError, StoreError, packed

SAVE_EVERY_STEPS = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store with classes, as `pack` wrote it")
    parser.add_argument("--images", help="pack them first, where the store is not there yet")
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="continue from this file if it exists; written on the way"
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--steps", type=int, help="stop after so many")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("torchrun starts it, as the first lines of this file show.")
    is_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device("cpu")
    distributed.init_process_group("nccl" if is_cuda else "gloo")
    try:
        if options.images is not None:  # one process packs, the others wait
            packed(options.images, options.store, fit="none", max_size=512)
        train, _ = datasets(options.store, None)
        batch_size = options.batch_size // distributed.get_world_size()
        # crops and flips depend on (seed, epoch, position, row), and not on the number of processes
        augment, _ = views(train.manifest)
        loader = MemmapLoader(train, batch_size, shuffle="full", device=device, transform=augment)
        torch.manual_seed(0)
        model = network(train.manifest).to(device)
        # batch norm over all processes needs CUDA; without it, a step has the same statistics only per process
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if is_cuda else model
        fit(DistributedDataParallel(model), loader, options)
    except (PackError, StoreError, ValueError, OSError) as e:
        print(f"ddp.py: {e}", file=sys.stderr)
        return 1
    else:
        return 0
    finally:
        distributed.destroy_process_group()


def fit(model: nn.Module, loader: MemmapLoader, options: argparse.Namespace) -> None:
    """Train from the checkpoint on; rank 0 prints a line per epoch, and saves."""
    optimizer = torch.optim.AdamW(decayed(model, 0.05), lr=1e-3)
    schedule = warmup_and_cosine(optimizer, options.epochs * len(loader))
    parts = {"loader": loader, "model": model.module, "optimizer": optimizer, "schedule": schedule}
    if options.checkpoint.exists():
        restore(options.checkpoint, parts, loader.device)
    left = sys.maxsize if options.steps is None else options.steps
    while (state := loader.state_dict())["epoch"] < options.epochs and left > 0:
        first = state["position"] // options.batch_size
        loss = torch.zeros((), device=loader.device)
        for steps, (images, targets) in enumerate(loader, start=1):
            batch_loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad(set_to_none=True)
            batch_loss.backward()
            optimizer.step()
            schedule.step()
            loss += batch_loss.detach()
            if distributed.get_rank() == 0 and steps % SAVE_EVERY_STEPS == 0:
                save(options.checkpoint, parts)
            if steps == left:
                break
        left -= steps
        distributed.all_reduce(loss)
        if distributed.get_rank() == 0:
            save(options.checkpoint, parts)
            mean = loss.item() / steps / distributed.get_world_size()
            done = f"steps {first + 1} to {first + steps} of {len(loader)}"
            print(f"epoch {state['epoch'] + 1}: {done}, loss {mean:.4f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
