"""What the programs of this study share: their options, a model that takes no time, and the line that they print an epoch.

A stand-in is a folder: original.py has the structure of a program that others published; dataset.diff and loader.diff are the
lines that change when it reads a store.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# the grid of means that the model sees
_GRID = 4


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options of a program, and seed every generator that it may draw from."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="a folder with train and val: class folders, or stores")
    for name, default in (("epochs", 2), ("batch-size", 32), ("workers", 2), ("seed", 0), ("size", 224)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(words)
    random.seed(options.seed)
    np.random.seed(options.seed)
    torch.manual_seed(options.seed)
    return options


def network(outputs: int) -> nn.Sequential:
    """float[B, 3, H, W] -> float[B, outputs], for any H and W: a linear layer on a grid of means, so that time is loading's."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(_GRID), nn.Flatten(), nn.Linear(3 * _GRID**2, outputs))


class Log:
    """Prints {"epoch", "loss", "val_loss", "seconds"} for each epoch: of its training steps, evaluation not included."""

    def __init__(self) -> None:
        self._epoch = 0

    def begin(self) -> None:
        """Begin an epoch."""
        self._losses: list[float] = []
        self._started = time.perf_counter()
        self._seconds: float | None = None

    def pause(self) -> None:
        """Count no more seconds to this epoch: its evaluation begins."""
        self._seconds = time.perf_counter() - self._started

    def step(self, loss: torch.Tensor) -> None:
        """Count a training step."""
        self._losses.append(float(loss.detach()))

    def end(self, val_loss: Any = None) -> None:
        """End an epoch's training, and print its line once val_loss(), where there is one, has measured."""
        seconds = self._seconds or time.perf_counter() - self._started
        line = {"epoch": self._epoch, "loss": sum(self._losses) / len(self._losses), "seconds": seconds}
        line["val_loss"] = line["loss"] if val_loss is None else val_loss()
        print(json.dumps(line), flush=True)
        self._epoch += 1
