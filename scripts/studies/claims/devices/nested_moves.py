"""What does it cost to move a nest of tensors to a device?

A nest of dicts of lists, or of dicts alone for tensordict, which takes no lists; 64 small tensors. To the CPU, where they are,
`to` gives back the tensor itself, so that what is timed is walking the nest and building another; to a GPU, the copies as well.
optree and dm-tree are installed in a folder of their own below --work. Checked: each way gives every tensor its place.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch.utils import _pytree as pytree

from reader import to_device
from scripts.common import plot
from scripts.common.figures import spread
from scripts.studies.claims._claim import (
    LOOPS,
    Calls,
    ClaimResult,
    MissingRequirement,
    installed,
    lacking,
    medians,
    seconds_in_turns,
)

CLAIM = (
    "A nest of tensors is moved faster by a tree library written in C than by a recursive function or torch's pytree."
)
SOURCE = LOOPS

ROUNDS, CALLS = 40, 20
KEYS, EACH = 16, 4
OURS, RECURSIVE, PYTREE, TENSORDICT = (
    "pixpack to_device",
    "a recursive function",
    "torch's pytree",
    "tensordict (dicts alone)",
)
# the name of the module, and what to install
TREES = {
    "optree": ("optree", ("optree==0.20.0",)),
    "dm-tree": ("tree", ("dm-tree==0.1.10", "absl-py==2.3.1", "attrs==26.1.0", "wrapt==1.17.3")),
}


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return microseconds a nest, for each device there is."""
    rounds, calls = (2, 2) if quick else (ROUNDS, CALLS)
    found: dict[str, Any] = {"tensors": KEYS * EACH, "microseconds": {}, "not_measured": {}}
    nest = {f"key{k}": [torch.full((8,), k * EACH + n) for n in range(EACH)] for k in range(KEYS)}
    trees = {}
    for name, (module, packages) in TREES.items():
        try:
            sys.path.insert(0, str(installed(packages, work / f"with-{name}", may_install=not quick)))
            trees[name] = importlib.import_module(module)
        except (MissingRequirement, ImportError) as e:
            found["not_measured"][name] = str(e)
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append("cuda")
    else:
        found["not_measured"]["cuda"] = "no GPU"
    for device in devices:
        ways = ways_to(nest, device, trees)
        seconds = seconds_in_turns({name: Calls(way, calls) for name, way in ways.items()}, rounds)
        found["microseconds"][device] = {name: spread([1e6 * s for s in values], 2) for name, values in seconds.items()}
    return found


def ways_to(nest: dict[str, list[torch.Tensor]], device: str, trees: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return each way to move the nest; raises if one misplaces a tensor."""

    def move(tensor: Any) -> Any:
        return tensor.to(device, non_blocking=True)

    flat = TensorDict({f"{key}.{n}": t for key, values in nest.items() for n, t in enumerate(values)})
    ways: dict[str, Callable[[], Any]] = {
        OURS: lambda: to_device(nest, device),
        RECURSIVE: lambda: recursively(nest, move),
        PYTREE: lambda: pytree.tree_map(move, nest),
    }
    if "optree" in trees:
        ways["optree"] = lambda: trees["optree"].tree_map(move, nest)
    if "dm-tree" in trees:
        ways["dm-tree"] = lambda: trees["dm-tree"].map_structure(move, nest)
    for name, way in ways.items():
        moved = way()
        if any(not torch.equal(a.cpu(), b) for key in nest for a, b in zip(moved[key], nest[key], strict=True)):
            raise RuntimeError(f"{name} does not give every tensor its place.")
    return ways | {TENSORDICT: lambda: flat.apply(move)}


def recursively(nest: Any, move: Callable[[Any], Any]) -> Any:
    if isinstance(nest, dict):
        return {key: recursively(value, move) for key, value in nest.items()}
    if isinstance(nest, list | tuple):
        return type(nest)(recursively(value, move) for value in nest)
    return move(nest) if isinstance(nest, torch.Tensor) else nest


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found = medians(figures["microseconds"]["cpu"])
    in_c = {name: found[name] for name in TREES if name in found}
    reported = ", ".join(f"{name} {value:.0f}" for name, value in sorted(found.items(), key=lambda item: item[1]))
    in_python = min(found[RECURSIVE], found[PYTREE])
    return ClaimResult(
        f"{figures['tensors']} tensors are walked in {min(found.values()):.0f} to {max(found.values()):.0f} µs,"
        f" by to_device in {found[OURS]:.0f}",
        f"µs for a nest of {figures['tensors']} tensors that are there already: {reported}{lacking(figures)}.",
        bool(in_c) and max(in_c.values()) < in_python,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    found = medians(figures["microseconds"]["cpu"])
    found = dict(sorted(found.items(), key=lambda item: -item[1]))
    plot.bars(axes, found, [f"{value:.0f} µs" for value in found.values()], xlabel="microseconds a nest of 64 tensors")
    return figure
