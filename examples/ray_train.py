#!/usr/bin/env python3
"""Train the network of network.py by Ray Train: a TorchTrainer with several workers, each with its part of a store.

    python examples/ray_train.py out/ --workers 2 --results results/
    python examples/ray_train.py out/ --workers 4 --results results/ --epochs 4      resumes, with more workers

Every worker opens the store by its path, which all nodes must see, and makes the same MemmapLoader: Ray Train has set up
torch.distributed, which the loader asks for its rank. The loader's state is in the checkpoint. AdamW with warmup and a cosine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from network import datasets, decayed, network, one_size, warmup_and_cosine
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, get_device, prepare_model
from torch import distributed, nn

from pixpack import MemmapLoader, StoreError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store with classes, as `pack` wrote it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", metavar="FOLDER", required=True, help="resume from the last checkpoint there")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    options = parser.parse_args()
    try:
        datasets(options.store, None)
    except (StoreError, ValueError) as e:
        sys.exit(f"ray_train.py: {e}")
    trainer = TorchTrainer(
        work,
        train_loop_config=vars(options) | {"store": os.path.abspath(options.store)},
        torch_config=TorchConfig(backend=None if torch.cuda.is_available() else "gloo"),
        scaling_config=train.ScalingConfig(num_workers=options.workers, use_gpu=torch.cuda.is_available()),
        run_config=train.RunConfig(name="pixpack", storage_path=os.path.abspath(options.results)),
    )
    print(trainer.fit().metrics)
    return 0


def work(options: dict[str, Any]) -> None:
    """Train on one worker, from the last checkpoint on."""
    torch.manual_seed(0)
    data, _ = datasets(options["store"], None)
    share, crop, device = options["batch_size"] // options["workers"], one_size(data.manifest), get_device()
    loader = MemmapLoader(data, share, shuffle="full", device=device, transform=crop, as_tuple=False)
    model = network(data.manifest)
    parallel = prepare_model(model)  # the model on its device; with several workers in a DistributedDataParallel
    optimizer = torch.optim.AdamW(decayed(model, 0.05), lr=1e-3)
    schedule = warmup_and_cosine(optimizer, options["epochs"] * len(loader))
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    if (saved := train.get_checkpoint()) is not None:
        with saved.as_directory() as folder:
            states = torch.load(Path(folder, "run.pt"), map_location=loader.device)
        for name, part in parts.items():
            part.load_state_dict(states[name])
    while (epoch := loader.state_dict()["epoch"]) < options["epochs"]:
        report(parts, {"epoch": epoch + 1, **through_epoch(parallel, optimizer, schedule, loader)})


def through_epoch(model: nn.Module, optimizer: Any, schedule: Any, loader: MemmapLoader) -> dict[str, Any]:
    """Train an epoch; returns its steps, the mean loss of all workers, and how many rows they read in all."""
    loss, seen = torch.zeros((), device=loader.device), torch.zeros(loader.dataset.manifest.rows, device=loader.device)
    for batch in loader:
        batch_loss = nn.functional.cross_entropy(model(batch.images), batch.targets)
        optimizer.zero_grad(set_to_none=True)
        batch_loss.backward()
        optimizer.step()
        schedule.step()
        loss += batch_loss.detach()
        seen[batch.rows] += 1
    distributed.all_reduce(loss)
    distributed.all_reduce(seen)
    mean = loss.item() / len(loader) / distributed.get_world_size()
    return {"steps": len(loader), "loss": mean, "rows": int((seen > 0).sum()), "read": int(seen.sum())}


def report(parts: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Report an epoch to Ray; the first worker's checkpoint is everybody's."""
    if distributed.get_rank():
        train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save({name: part.state_dict() for name, part in parts.items()}, Path(folder, "run.pt"))
        train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    sys.exit(main())
