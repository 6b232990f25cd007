"""How many images a second does a loop of detection get: of JPEGs by torchvision's transforms, and of a store in batches?

    PIXPACK_TORCHVISION=.venv/torchvision python -m scripts.benchmarks.transforms.bench_detection

The recipes are those of torchvision's references/detection/presets.py, with its v2 and tensors. The first way is its program's:
JPEGs decoded by Pillow, the recipe called for each image in worker processes, a DataLoader that makes lists. The second is a
MemmapLoader of the same images, packed with --fit none, with Compose([from_torchvision(recipe), ToDetection()]); of lsj, whose
FixedSizeCrop is not in torchvision, torchvision's RandomCrop with padding does the same work. Both draw for themselves; that they
give the same pixels and boxes for the same numbers is tested. Checked here: both give all images, as
float32, and of hflip the same sizes and widths of boxes. Ways take turns, ratios are taken round by round.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from packer import pack
from reader import FixedSizeCrop, MemmapDataset, MemmapLoader, from_torchvision
from reader.transforms import Compose, ToDetection, ToDtype
from scripts.common.arguments import bench_parser
from scripts.common.figures import machine, publish, rate_cells, ratio_cells, ratios, spread, table
from scripts.common.timing import in_turns
from scripts.common.torchvision_part import torchvision_v2
from scripts.samples.make_labelled import make

PRESETS = ("hflip", "ssdlite", "ssd", "multiscale", "lsj")
# ImageNet's mean, which the presets fill with.
_MEAN = (123.0, 117.0, 104.0)
_LENGTHS, _LONGEST, _CANVAS = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800), 1333, 1024
_TITLES = ["preset", "DataLoader, images/s", "min..max", "MemmapLoader", "min..max", "ratio", "p10..p90"]

Lists = tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]


class JpegFiles(Dataset[Any]):
    """Images decoded by Pillow, with the boxes that are given, called with a recipe as torchvision's wrapped datasets are."""

    def __init__(self, paths: list[Path], labels: list[dict[str, torch.Tensor]], recipe: Callable[..., Any]) -> None:
        self._paths, self._labels, self._recipe = paths, labels, recipe

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        from torchvision import tv_tensors

        image, labels = Image.open(self._paths[index]).convert("RGB"), self._labels[index]
        boxes: Any = partial(tv_tensors.BoundingBoxes, format="XYXY", canvas_size=image.size[::-1])
        return self._recipe(image, {"boxes": boxes(labels["boxes"]), "labels": labels["labels"]})


def main() -> int:
    """Time each preset both ways."""
    about = {"count": "images", "workers": "of the DataLoader"}
    parser = bench_parser(__doc__, about=about, count=128, batch_size=8, rounds=5, workers=2)
    parser.add_argument("--only", nargs="+", choices=PRESETS, default=PRESETS, metavar="PRESET")
    options = parser.parse_args()
    v2 = torchvision_v2()
    with tempfile.TemporaryDirectory() as folder:
        store, paths, labels = made_store(Path(folder), options.count)
        found = {}
        for name in options.only:
            turns = {
                "files": partial(run, files_loader(paths, labels, recipe(v2, name), options)),
                "store": partial(run, store_loader(store, v2, name, options)),
            }
            check(name, [partial(collected, turn.args[0]) for turn in turns.values()], options.count)
            times = in_turns(turns, options.rounds, untimed=1)
            rates = {way: spread([options.count / seconds for seconds in values], 1) for way, values in times.items()}
            found[name] = {**rates, "ratio": ratios(times["files"], times["store"])}
        cells = [
            [name, *rate_cells(each["files"]), *rate_cells(each["store"]), *ratio_cells(each["ratio"])]
            for name, each in found.items()
        ]
        print(table([_TITLES, *cells]))
        about_run = {"count": options.count, "batch_size": options.batch_size, "workers": options.workers}
        load = [round(value, 2) for value in os.getloadavg()]
        publish(
            {
                "benchmark": "bench_detection",
                **about_run,
                "presets": found,
                "load": load,
                "machine": machine(Path(folder)),
            },
            None,
        )
    return 0


def made_store(root: Path, count: int) -> tuple[Path, list[Path], list[dict[str, torch.Tensor]]]:
    """Draw images with boxes, none of them turned, and pack them; returns store, JPEGs in its order, and their labels."""
    for name in ("images", "labels", "masks"):
        (root / name).mkdir()
    for number in range(count):
        make(root, number, np.random.default_rng(number))
    (root / "labels" / "classes.txt").write_text("ball\nkite\ncrate\n")
    for path in (root / "images").iterdir():
        with Image.open(path) as image:
            plain = image.convert("RGB")
        # without an orientation, which the DataLoader's way would not apply
        plain.save(path, quality=92)
    pack(root / "images", root / "out", fit="none", boxes=root / "labels", workers=1)
    dataset = MemmapDataset(root / "out", as_tuple=False)
    _, targets = ToDetection()(dataset[:])
    return root / "out", [root / "images" / path for path, _ in dataset.samples], targets


def recipe(v2: Any, name: str, *, is_ours: bool = False) -> Any:
    """Make torchvision's recipe of a preset; is_ours: what of it `from_torchvision` takes, without FixedSizeCrop."""
    flip = v2.RandomHorizontalFlip(0.5)
    crop = [] if is_ours else [v2.RandomCrop(_CANVAS, pad_if_needed=True, fill=list(_MEAN))]
    chain = {
        "hflip": [flip],
        "ssdlite": [v2.RandomIoUCrop(), flip],
        "ssd": [v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=list(_MEAN)), v2.RandomIoUCrop(), flip],
        "multiscale": [v2.RandomShortestSize(_LENGTHS, _LONGEST), flip],
        "lsj": [v2.ScaleJitter((_CANVAS, _CANVAS)), *crop, flip],
    }[name]
    floats = [] if is_ours else [v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose([v2.ToImage(), *chain, *floats, v2.SanitizeBoundingBoxes(), v2.ToPureTensor()])


def files_loader(paths: list[Path], labels: list[dict[str, torch.Tensor]], chain: Any, options: Any) -> Iterable[Lists]:
    """Return the program's loader."""
    return DataLoader(
        JpegFiles(paths, labels, chain),
        options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        collate_fn=_lists,
    )


def _lists(samples: list[Any]) -> Lists:
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


def store_loader(store: Path, v2: Any, name: str, options: Any) -> Iterable[Lists]:
    """Return the loader of the same images from a store."""
    canvas = [FixedSizeCrop(_CANVAS, _MEAN)] if name == "lsj" else []
    ours = [
        from_torchvision(recipe(v2, name, is_ours=True)),
        *canvas,
        ToDtype(torch.float32, scale=True),
        ToDetection(),
    ]
    return MemmapLoader(MemmapDataset(store), options.batch_size, shuffle="full", transform=Compose(ours))


def run(loader: Iterable[Lists]) -> float:
    """Return the seconds of an epoch."""
    started = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - started


def collected(loader: Iterable[Lists]) -> list[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """Return all images of an epoch, each with its target."""
    return [pair for images, targets in loader for pair in zip(images, targets, strict=True)]


def check(name: str, epochs: list[Callable[[], list[Any]]], count: int) -> None:
    """Check what both ways give of a preset; a SystemExit says what differs."""
    sizes = []
    for epoch in epochs:
        pairs = epoch()
        is_float = all(image.dtype == torch.float32 and len(image) == 3 for image, _ in pairs)
        if len(pairs) != count or not is_float:
            raise SystemExit(f"{name} gave {len(pairs)} images, expected {count} of float32[3, H, W].")
        # widths are those of a flip too
        sizes.append(sorted((tuple(image.shape), *_widths(target["boxes"])) for image, target in pairs))
    if name == "hflip" and sizes[0] != sizes[1]:
        raise SystemExit("hflip gave other boxes from the store than from the files.")


def _widths(boxes: torch.Tensor) -> list[int]:
    return [round(width) for width in (boxes[:, 2] - boxes[:, 0]).tolist()]


if __name__ == "__main__":
    sys.exit(main())
