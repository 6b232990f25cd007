#!/usr/bin/env python3
"""How long do the random transforms take for a batch, against torchvision's v2 called for each sample?

    PIXPACK_TORCHVISION=.venv/torchvision python scripts/bench_transforms.py

Both do the same work: torchvision's functions get the parameters that ours drew, one image at a time, as it must where each
sample has its own, and their results are stacked to a batch. So drawing is in our time alone. The limit beside it is a copy of
the batch. Checked before anything is timed: both gave the same pixels, up to 2 levels for ColorJitter and 1 for a GPU's resize.
Each round times all ways in turn; ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _bench import machine, publish, rate_cells, ratio_cells, ratios, spread, table

from reader import ColorJitter, ImageBatch, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from reader.draws import COLOR_JITTER, CROP, FLIP, draw

_SHIM = Path(__file__).resolve().parents[2] / "shared" / "tools"


@dataclass(frozen=True)
class Case:
    """Ours for a batch, torchvision's for one image and its number, and how many levels they may differ by."""

    name: str
    ours: Callable[[ImageBatch], ImageBatch]
    sample: Callable[[torch.Tensor, int], torch.Tensor]
    levels: int


def main() -> int:
    """Time each transform both ways."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--row", type=int, default=256, help="side of the stored rows")
    parser.add_argument("--size", type=int, default=224, help="side of the crops")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    batch = smooth_batch(options.batch_size, options.row).to(options.device)
    results = [measure(case, batch, options.rounds) for case in cases(batch, options.size)]
    lines = [["transform", "images/s", "min..max", "torchvision", "min..max", "ratio", "p10..p90"]]
    for found in results:
        ours, theirs = rate_cells(found["images_per_second"]), rate_cells(found["torchvision_images_per_second"])
        lines.append([found["transform"], *ours, *theirs, *ratio_cells(found["ratio"])])
    print(table(lines))
    shape = {name: getattr(options, name) for name in ("batch_size", "row", "size", "rounds", "threads", "device")}
    about = machine(Path(tempfile.gettempdir()))
    publish({"benchmark": "bench_transforms", **shape, "machine": about, "transforms": results}, options.output)
    return 0


def smooth_batch(count: int, side: int) -> ImageBatch:
    """Make photograph-like rows: noise of a few pixels' grain. What they show changes no time, only the comparison."""
    grain = torch.rand(count, 3, side // 4, side // 4, generator=torch.Generator().manual_seed(0)) * 255
    images = torch.nn.functional.interpolate(grain, (side, side), mode="bilinear").to(torch.uint8)
    rows = torch.arange(count)
    pixels = images.movedim(1, -1).contiguous()
    return ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[count])


def cases(batch: ImageBatch, size: int) -> list[Case]:
    """Pair each transform with torchvision's functions and the same parameters."""
    functional = torchvision_functional()
    flips = (draw(batch, 0, FLIP)[0] < 0.5).tolist()
    slack = batch.pixels.shape[1] - size
    corners = (draw(batch, 0, CROP) * (slack + 1)).long().T.tolist()
    resized = RandomResizedCrop(size)
    boxes = resized.boxes(batch).tolist()
    factors = (0.6 + draw(batch, 0, COLOR_JITTER) * 0.8).T.tolist()

    def resized_crop(image: torch.Tensor, n: int) -> torch.Tensor:
        x0, y0, x1, y1 = boxes[n]
        return functional.resized_crop(image, y0, x0, y1 - y0, x1 - x0, [size, size], antialias=True)

    def jitter(image: torch.Tensor, n: int) -> torch.Tensor:
        brightness, contrast, saturation = factors[n]
        image = functional.adjust_contrast(functional.adjust_brightness(image, brightness), contrast)
        return functional.adjust_saturation(image, saturation)

    return [
        Case("copy", copied, lambda image, n: image, 0),
        Case(
            "RandomHorizontalFlip()",
            RandomHorizontalFlip(),
            lambda image, n: functional.horizontal_flip(image) if flips[n] else image,
            0,
        ),
        Case(
            f"RandomCrop({size})", RandomCrop(size), lambda image, n: functional.crop(image, *corners[n], size, size), 0
        ),
        Case(f"RandomResizedCrop({size})", resized, resized_crop, 0 if batch.pixels.device.type == "cpu" else 1),
        Case("ColorJitter(0.4, 0.4, 0.4)", ColorJitter(0.4, 0.4, 0.4), jitter, 2),
    ]


def copied(batch: ImageBatch) -> ImageBatch:
    """Copy the batch: the limit."""
    return batch.clone()


def measure(case: Case, batch: ImageBatch, rounds: int) -> dict[str, Any]:
    """Compare the results of both ways, then time them in turns."""

    def theirs() -> torch.Tensor:
        return torch.stack([case.sample(image, n) for n, image in enumerate(batch.images)])

    # both are warm after this
    difference = int((case.ours(batch).images.int() - theirs().int()).abs().max())
    if difference > case.levels:
        raise SystemExit(f"bench_transforms: {case.name} differs from torchvision by {difference} levels.")
    our_rates, their_rates = [], []
    for _ in range(rounds):
        our_rates.append(len(batch) / seconds(lambda: case.ours(batch), batch.pixels.device))
        their_rates.append(len(batch) / seconds(theirs, batch.pixels.device))
    return {
        "transform": case.name,
        "images_per_second": spread(our_rates, 0),
        "torchvision_images_per_second": spread(their_rates, 0),
        "ratio": ratios(our_rates, their_rates),
        "largest_difference": difference,
    }


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Time a call, with the work that it left on a GPU."""
    begun = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def torchvision_functional() -> Any:
    """Import torchvision from where scripts/test puts it, or wherever Python finds it."""
    sys.path[:0] = [os.environ.get("PIXPACK_TORCHVISION", ""), str(_SHIM)]
    try:
        if (_SHIM / "torchvision_shim.py").exists():
            import torchvision_shim  # noqa: F401
        from torchvision.transforms.v2 import functional
    except (ImportError, RuntimeError) as e:
        raise SystemExit(
            f"bench_transforms: torchvision cannot be imported ({e}). Name its folder in PIXPACK_TORCHVISION."
        ) from e
    return functional


if __name__ == "__main__":
    sys.exit(main())
