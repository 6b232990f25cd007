"""Is a training step at least 30 % faster under torch.compile?

A small network of convolutions, batch normalization and ReLU, Normalize its first layer, over a batch of uint8 images; forward,
backward and SGD, with and without torch.compile, in turns, after the compiler is done. Checked: both begin with the same loss.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reader import Normalize
from scripts.common import plot
from scripts.common.figures import ratios, spread
from scripts.common.timing import synchronize
from scripts.studies.claims._claim import (
    NOTES,
    Calls,
    ClaimResult,
    compiling_device,
    lacking,
    medians,
    seconds_in_turns,
)

CLAIM = "torch.compile makes a model at least 30 % faster."
SOURCE = NOTES

ROUNDS = 15
EAGER, COMPILED = "as it is", "torch.compile"
CLAIMED = 1.3


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return milliseconds a step, and how many times as fast compiled."""
    device = compiling_device()
    batch, side = (2, 8) if quick else (32, 96)
    images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=device)
    model = network(quick).to(device)
    # a quick run compiles nothing here, which takes seconds, since kernels.py does
    compiled = copy.deepcopy(model) if quick else torch.compile(copy.deepcopy(model))
    steps = {EAGER: step_of(model, images), COMPILED: step_of(compiled, images)}
    losses = {name: float(step()) for name, step in steps.items()}
    # a GPU's convolutions round to 10 bits unless set not to, and in another order once compiled
    if abs(losses[EAGER] - losses[COMPILED]) > (1e-2 if device.type == "cuda" else 1e-3):
        raise RuntimeError(f"compiled, the network has another loss: {losses}.")
    calls = {name: Calls(lambda step=step: (step(), synchronize(device))) for name, step in steps.items()}
    seconds = seconds_in_turns(calls, 1 if quick else ROUNDS)
    return {
        "device": device.type,
        "batch_size": batch,
        "side": side,
        "milliseconds": {name: spread([1e3 * s for s in of], 3) for name, of in seconds.items()},
        "ratio": ratios(seconds[EAGER], seconds[COMPILED]),
        "not_measured": {} if device.type == "cuda" else {"cuda": "no GPU"},
    }


def network(quick: bool) -> nn.Module:
    """Return uint8[B, 3, H, W] -> float32[B, 10]; a quick one has no convolution."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    before = 3
    for after in () if quick else (32, 64, 128, 256):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def step_of(model: Callable[..., Any], images: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return a step of training, which gives the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    targets = torch.arange(len(images), device=images.device) % 10

    def step() -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found = medians(figures["milliseconds"])
    ratio, size = figures["ratio"], f"{figures['batch_size']} images of {figures['side']} x {figures['side']}"
    return ClaimResult(
        f"A training step on {figures['device']} is {ratio['median']:.2f} times as fast under torch.compile",
        f"A step of {size} on {figures['device']}: {found[EAGER]:.1f} ms, compiled {found[COMPILED]:.1f}, {ratio['median']:.2f}"
        f" times as fast (p10 {ratio['p10']:.2f}, p90 {ratio['p90']:.2f}){lacking(figures)}.",
        ratio["median"] >= CLAIMED,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    values = medians(figures["milliseconds"])
    label = f"milliseconds a training step on {figures['device']}, median"
    plot.bars(axes, values, [f"{value:.1f} ms" for value in values.values()], xlabel=label)
    return figure
