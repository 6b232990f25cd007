#!/usr/bin/env python3
"""Train a small convolutional network on a packed store, on the CPU or a CUDA device.

    pack images/ out/ --size 224
    python examples/train.py out/ --epochs 2
    python examples/train.py out/ --epochs 90 --checkpoint run.pt --compile

The store must have classes: the network learns to tell them apart. Without --val, a tenth of each class is held out. Crops,
flips and normalisation happen on the device. With --checkpoint the same command goes on after an interruption, in the middle
of an epoch too, with the weights that an uninterrupted run would have had there.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
from network import datasets, network, views
from torch import nn

from reader import MemmapLoader, StoreError

SAVE_EVERY_STEPS = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack` wrote it")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--val", metavar="STORE", help="measure accuracy on this one")
    parser.add_argument("--crop", type=int, help="side of what the network sees; default: 7/8 of a row's short side")
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, help="bfloat16 arithmetic; default: on CUDA")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile the network")
    parser.add_argument("--checkpoint", metavar="FILE", help="go on from it where it is there; written as it goes")
    parser.add_argument("--steps", type=int, help="stop after so many, wherever that is")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        train, held_out = datasets(options.store, options.val)
        learn, look = views(options.crop or min(train.manifest.height, train.manifest.width) * 7 // 8)
        common = {"device": options.device, "as_tuple": True}
        loader = MemmapLoader(train, options.batch_size, shuffle=True, transform=learn, **common)
        val_loader = MemmapLoader(held_out, options.batch_size, transform=look, **common)
        Run(network(train.manifest).to(loader.device), loader, options).fit(val_loader)
    except (StoreError, ValueError) as e:
        print(f"train.py: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("train.py: interrupted. With --checkpoint the same command goes on.", file=sys.stderr)
        return 130
    return 0


class Run:
    """Weights, optimizer and the place in the data: what a checkpoint holds."""

    def __init__(self, model: nn.Module, loader: MemmapLoader, options: argparse.Namespace) -> None:
        self.loader, self.options = loader, options
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
        self.model = torch.compile(model, backend=options.compile) if options.compile else model
        self.parts: dict[str, Any] = {"model": model, "optimizer": self.optimizer, "loader": loader}
        if options.checkpoint and os.path.exists(options.checkpoint):
            saved = torch.load(options.checkpoint, map_location=loader.device)
            for name, part in self.parts.items():
                part.load_state_dict(saved[name])

    def fit(self, val: MemmapLoader) -> None:
        """Train and print a line an epoch."""
        left = sys.maxsize if self.options.steps is None else self.options.steps
        while (epoch := self.loader.state_dict()["epoch"]) < self.options.epochs and left > 0:
            start, batches = time.perf_counter(), iter(self.loader)
            steps, images, loss, accuracy = self.through(itertools.islice(batches, left), is_training=True)
            rate, left = images / (time.perf_counter() - start), left - steps
            self.save()
            if self.loader.state_dict()["epoch"] == epoch:
                print(f"epoch {epoch + 1}: stopped {len(batches) - steps} steps before its end, loss {loss:.4f}")
                return
            held_out = self.through(val, is_training=False)[-1]
            print(
                f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy:.3f}, held out {held_out:.3f},"
                f" {rate:,.0f} images/s"
            )

    def through(self, batches: Iterable[Any], *, is_training: bool) -> tuple[int, int, float, float]:
        """Go through batches, learning or not; returns steps, images, mean loss and accuracy."""
        device, steps, images = self.loader.device, 0, 0
        is_half = device.type == "cuda" if self.options.amp is None else self.options.amp
        # the sums stay on the device until the end: reading them waits for it
        totals = torch.zeros(2, device=device)
        self.model.train(is_training)
        with torch.set_grad_enabled(is_training):
            for steps, (pixels, targets) in enumerate(batches, start=1):
                with torch.autocast(device.type, torch.bfloat16, enabled=is_half):
                    scores = self.model(pixels)
                loss = nn.functional.cross_entropy(scores.float(), targets)
                if is_training:
                    self.optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    self.optimizer.step()
                    if steps % SAVE_EVERY_STEPS == 0:
                        self.save()
                totals += torch.stack([loss.detach() * len(targets), (scores.argmax(1) == targets).sum()])
                images += len(targets)
        mean_loss, accuracy = (totals / max(1, images)).tolist()
        return steps, images, mean_loss, accuracy

    def save(self) -> None:
        """Write beside, then rename: whenever this is interrupted, there is a whole checkpoint."""
        if self.options.checkpoint:
            torch.save(
                {name: part.state_dict() for name, part in self.parts.items()}, self.options.checkpoint + ".part"
            )
            os.replace(self.options.checkpoint + ".part", self.options.checkpoint)


if __name__ == "__main__":
    sys.exit(main())
