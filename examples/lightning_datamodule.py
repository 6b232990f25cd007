#!/usr/bin/env python3
"""Train the network of network.py under a Lightning Trainer, on one process or several, and resume after an interruption.

    python examples/lightning_datamodule.py out/ --steps 5 --save-every 5
    torchrun --standalone --nproc-per-node 2 examples/lightning_datamodule.py out/

AdamW with warmup and a cosine; then the weights are tested, and predict a class for each held-out row. With --profile,
Lightning's simple profiler prints the time of each stage. A MemmapLoader gets its rank from torch.distributed and reads that
part of each step; no sampler is wrapped. Lightning saves and restores its state with its own checkpoint, also in mid epoch.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from network import datasets, decayed, network, one_size, warmup_and_cosine
from torch import nn

from pixpack import Manifest, MemmapLoader, StoreError


class StoreModule(LightningDataModule):
    """The loaders of a store; batch_size is that of all processes together."""

    def __init__(self, store: str, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.train, self.held_out = datasets(store, None)

    def train_dataloader(self) -> MemmapLoader:
        return self.loader(self.train, shuffle="full")

    def val_dataloader(self) -> MemmapLoader:
        return self.loader(self.held_out)

    def test_dataloader(self) -> MemmapLoader:
        return self.loader(self.held_out)

    def predict_dataloader(self) -> MemmapLoader:
        return self.loader(self.held_out)

    def loader(self, data: Any, **options: Any) -> MemmapLoader:
        share, device = self.batch_size // self.trainer.world_size, self.trainer.strategy.root_device
        return MemmapLoader(data, share, device=device, transform=one_size(data.manifest), **options)


class Classifier(LightningModule):
    """The network, its loss, and a schedule of this many steps."""

    def __init__(self, manifest: Manifest, steps: int) -> None:
        super().__init__()
        self.network, self.steps = network(manifest), steps

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, targets = batch
        return nn.functional.cross_entropy(self.network(images), targets)

    def validation_step(self, batch: Any, index: int) -> None:
        images, targets = batch
        right = (self.network(images).argmax(1) == targets).float().mean()
        self.log("held out", right, batch_size=len(targets), sync_dist=True)

    def test_step(self, batch: Any, index: int) -> None:
        self.validation_step(batch, index)

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        images, _ = batch
        return self.network(images).argmax(1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(decayed(self.network, 0.05), lr=1e-3)
        return [optimizer], [{"scheduler": warmup_and_cosine(optimizer, self.steps), "interval": "step"}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store with classes, as `pack` wrote it")
    parser.add_argument("--checkpoints", metavar="FOLDER", default="checkpoints", help="resume from the last one there")
    parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--steps", type=int, default=-1, help="stop when so many are done, wherever that is")
    parser.add_argument("--profile", action="store_true", help="print where the time went")
    options = parser.parse_args()
    seed_everything(0, verbose=False)
    try:
        data = StoreModule(options.store, options.batch_size)
    except (StoreError, ValueError) as e:
        print(f"lightning_datamodule.py: {e}", file=sys.stderr)
        return 1
    last = os.path.join(options.checkpoints, "last.ckpt")
    steps = options.epochs * math.ceil(len(data.train) / options.batch_size)
    trainer = Trainer(
        max_epochs=options.epochs,
        max_steps=options.steps,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # torchrun's
        callbacks=[ModelCheckpoint(options.checkpoints, save_last=True, every_n_train_steps=options.save_every)],
        profiler="simple" if options.profile else None,
        logger=False,
        enable_progress_bar=False,
    )
    model = Classifier(data.train.manifest, steps)
    trainer.fit(model, data, ckpt_path=last if os.path.exists(last) else None)
    if trainer.is_global_zero:
        print(f"{trainer.global_step} steps done, held out {trainer.callback_metrics.get('held out', torch.nan):.3f}")
    if options.steps < 0:
        trainer.test(model, data)
        predicted = trainer.predict(model, data)
        print(f"{sum(map(len, predicted))} rows predicted by this process")
    return 0


if __name__ == "__main__":
    sys.exit(main())
