"""Does a transform of single samples run in MemmapLoader as fast as in a DataLoader of the same workers?

    PIXPACK_TORCHVISION=.venv/torchvision python -m scripts.benchmarks.transforms.bench_samples

Recipes of torchvision's, called for each sample: v2's on tensors, and the first version's on PIL images. The ways are a
DataLoader over ImageFolder, which decodes JPEGs, a DataLoader over a MemmapDataset, and a MemmapLoader, each shuffled and with
the same number of workers, which each epoch starts anew. Checked here: each epoch has all images. Ways take turns, ratios are
taken round by round.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from packer import pack
from reader import MemmapDataset, MemmapLoader
from scripts.common.arguments import bench_parser
from scripts.common.figures import machine, publish, rate_cells, ratio_cells, ratios, spread, table
from scripts.common.timing import in_turns
from scripts.common.torchvision_part import import_torchvision
from scripts.samples.make_sample import make_sample

_TITLES = ["recipe", "ImageFolder", "min..max", "DataLoader", "min..max", "MemmapLoader", "min..max", "ratio", "p10..p90"]


def main() -> int:
    """Time each recipe in each way."""
    about = {"count": "images", "workers": "of each way"}
    parser = bench_parser(__doc__, about=about, count=1000, batch_size=64, rounds=9, workers=2)
    options = parser.parse_args()
    torchvision = import_torchvision()
    with tempfile.TemporaryDirectory() as folder:
        images, store = Path(folder, "images"), Path(folder, "out")
        make_sample(images, options.count, seed=0)
        pack(images, store, size=256, max_rejects="100%")
        found = {}
        for name, (recipe, as_pil) in recipes(torchvision).items():
            packed = MemmapDataset(store, transform=recipe, as_pil=as_pil)
            loaded = {"shuffle": True, "num_workers": options.workers}
            ways = {
                "ImageFolder": DataLoader(folder_of(torchvision, images, recipe), options.batch_size, **loaded),
                "DataLoader": DataLoader(packed, options.batch_size, **loaded),
                "MemmapLoader": MemmapLoader(packed, options.batch_size, **loaded),
            }
            turns = {way: partial(epoch, loader, len(packed)) for way, loader in ways.items()}
            times = in_turns(turns, options.rounds, untimed=1)
            found[name] = {way: spread([len(packed) / value for value in values], 1) for way, values in times.items()}
            found[name]["ratio"] = ratios(times["DataLoader"], times["MemmapLoader"])
        cells = [
            [name, *(cell for way in ways for cell in rate_cells(each[way])), *ratio_cells(each["ratio"])]
            for name, each in found.items()
        ]
        print(table([_TITLES, *cells]))
        report = {"benchmark": "bench_samples", "workers": options.workers, "recipes": found}
        publish(report | {"load": [round(v, 2) for v in os.getloadavg()], "machine": machine(Path(folder))}, None)
    return 0


def recipes(torchvision: Any) -> dict[str, tuple[Any, bool]]:
    """Return recipes of single images, and whether they take PIL images."""
    v1, v2 = torchvision.transforms, torchvision.transforms.v2
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    crops = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4)]
    v1_crops = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ColorJitter(0.4, 0.4, 0.4)]
    return {
        "v2, tensors": (v2.Compose([v2.ToImage(), *crops, *floats, v2.ToPureTensor()]), False),
        "v1, PIL images": (v1.Compose([*v1_crops, v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)]), True),
    }


def folder_of(torchvision: Any, images: Path, recipe: Any) -> Any:
    """Return the ImageFolder of the images that are whole."""
    broken = ("cut_short", "not_found")
    return torchvision.datasets.ImageFolder(images, recipe, is_valid_file=lambda path: Path(path).stem not in broken)


def epoch(loader: Iterable[Any], count: int) -> float:
    """Return the seconds of an epoch, with the start of its workers; a SystemExit says that images are missing."""
    started = time.perf_counter()
    given = sum(len(images) for images, _ in loader)
    if given != count:
        raise SystemExit(f"an epoch gave {given} images, expected {count}.")
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
