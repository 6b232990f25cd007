"""Transforms of ours, on threads as a loader runs them, beside torchvision's v2 of the same name and arguments.

Each draws its own numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from reader import ImageBatch, PerSample, transforms
from reader.memory.parts import in_parts
from scripts.common.figures import rate_cells, ratio_cells, ratios, spread
from scripts.common.timing import in_turns, seconds

TITLES = ["transform", "images/s", "min..max", "v2 each", "min..max", "ratio", "p10..p90", "PerSample(v2)", "min..max"]

# Name and arguments, the same of both.
_SAME: list[tuple[str, tuple[Any, ...]]] = [
    ("ColorJitter", (0.4, 0.4, 0.4, 0.1)),
    ("RandomGrayscale", (0.5,)),
    ("GaussianBlur", (23,)),
    ("RandomSolarize", (128,)),
    ("RandomPosterize", (4,)),
    ("RandomEqualize", ()),
    ("RandomAutocontrast", ()),
    ("RandomAdjustSharpness", (2,)),
    ("RandomInvert", ()),
    ("RandomRotation", (30,)),
    ("RandomAffine", (30, (0.1, 0.1), (0.8, 1.2), 10)),
    ("RandomErasing", (1.0,)),
    ("RandAugment", ()),
    ("TrivialAugmentWide", ()),
    ("AutoAugment", ()),
    ("AugMix", ()),
]


def pairs(v2: Any, size: int) -> list[tuple[str, Any, Any]]:
    """Make (name, ours, torchvision's) of each."""
    found = [(name, getattr(transforms, name)(*given), getattr(v2, name)(*given)) for name, given in _SAME]
    # torchvision's reflects too, where airbench pads
    mode = {"padding_mode": "reflect"}
    found.append(("RandomCrop, reflect", transforms.RandomCrop(size, 4, **mode), v2.RandomCrop(size, 4, **mode)))
    found.append((f"Resize(({size}, {size}))", transforms.Resize((size, size)), v2.Resize((size, size))))
    # as torchvision's own program makes it
    policy = v2.RandAugment(interpolation=v2.InterpolationMode.BILINEAR)
    full = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), policy, v2.RandomErasing(0.1)]
    ours = transforms.torchvision_train(size, auto_augment_policy="ra", random_erase_prob=0.1)
    return [*found, ("torchvision_train, ra, erasing", ours, v2.Compose(full))]


def measure_pair(
    pair: tuple[str, Any, Any], batch: ImageBatch, rounds: int, threads: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Time ours for parts of the batch, torchvision's for each image on as many threads, stacked, and the same in PerSample."""
    name, ours, theirs = pair
    is_on_cpu = batch.pixels.device.type == "cpu"
    images, per_sample = batch.images.cpu().unbind(0), PerSample(theirs)
    with ThreadPoolExecutor(threads) as pool:
        ways: dict[str, Callable[[], Any]] = {
            "ours": lambda: in_parts(ours, batch, threads) if is_on_cpu else ours(batch),
            "v2": lambda: torch.stack(list(pool.map(theirs, images))),
            "PerSample": lambda: per_sample(batch.to("cpu")),
        }
        shapes = [
            tuple(ways["ours"]().images.shape),
            tuple(ways["v2"]().shape),
            tuple(ways["PerSample"]().images.shape),
        ]
        if len({*shapes}) > 1:
            raise SystemExit(f"bench_transforms: {name} gives images of the shapes {shapes}.")
        found = in_turns({n: partial(seconds, way, batch.pixels.device, clock) for n, way in ways.items()}, rounds)
    rates = {way: [len(batch) / took for took in values] for way, values in found.items()}
    return {
        "transform": name,
        "images_per_second": spread(rates["ours"], 0),
        "torchvision_images_per_second": spread(rates["v2"], 0),
        "ratio": ratios(rates["ours"], rates["v2"]),
        "per_sample_images_per_second": spread(rates["PerSample"], 0),
    }


def line_of_pair(found: dict[str, Any]) -> list[str]:
    """Return a line of the table."""
    rates = [rate_cells(found[f"{way}images_per_second"]) for way in ("", "torchvision_", "per_sample_")]
    return [found["transform"], *rates[0], *rates[1], *ratio_cells(found["ratio"]), *rates[2]]
