"""How many more rows a second has a phase of small crops that reads levels, and what are its pixels worth?

    python -m scripts.benchmarks.storage.bench_levels --rows 3000 --size 320 --rounds 5

Packs photographs with --levels 2 and reads small crops, epochs of a MemmapLoader in turns: the same crops once of
levels (size=) and once of the store's own rows (without size=):

    central             CenterCrop of half the size: the level has just these pixels
    random              RandomResizedCrop of a quarter, scale 0.25 to 1: the level has as many pixels as each box needs
    rows alone          rows without a transform, of the level as a store and of the store

from the page cache, which both files are read into first, and from the disk (residency "disk") with their pages dropped first
(posix_fadvise) and seen to be gone. A turn is one epoch of so many passes over the rows that it takes --seconds or more.
Compared with the source, decoded whole and resized once by Pillow's antialiased filter, as PSNR of the central crop: the level;
the store's row, resized once more; resized by areas, as FFCV does; and by the nearest pixel, as Composer does.
Checked: each epoch brings each row once; crops of a level are within 1 of antialiased resizing of that level in float32.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from packer import pack
from reader import CenterCrop, MemmapDataset, MemmapLoader, RandomResizedCrop
from reader.bench.disk import drop
from reader.format.errors import NotMeasured
from reader.format.manifest import PIXELS
from scripts.common.arguments import bench_parser
from scripts.common.figures import (
    BenchmarkError,
    machine,
    photographs,
    rate_cells,
    ratio_cells,
    ratios,
    repeat_files,
    spread,
    table,
)
from scripts.common.pictures import central_crop
from scripts.common.program import reported
from scripts.common.timing import in_turns, seconds

BATCH = 256
SCALE = (0.25, 1.0)
# Photographs whose pixels are compared.
COMPARED = 100
KINDS = ("level", "row", "row by areas", "row by nearest")


def main() -> int:
    parser = bench_parser(__doc__, rows=3000, size=320, rounds=5, images=None, json=None)
    parser.add_argument("--disk", choices=("yes", "no"), default="yes", help="also read with nothing in the page cache")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn, at least")
    options = parser.parse_args()
    if options.size % 4:
        parser.error(f"--size is {options.size}, expected a multiple of 4.")
    measured = partial(measure, options=options)
    return reported("bench_levels", measured, text=text, json=options.json, also=(NotMeasured, ValueError))


def measure(work: Path, options: Namespace) -> dict[str, Any]:
    """Pack, check, and time each way in turns."""
    found = photographs(options.images, work, options.size)
    names = repeat_files(found, work / "images", options.rows, link=True)
    out, half = work / "out", options.size // 2
    pack(work / "images", out, size=options.size, levels=2, max_rejects=0, exact=True)
    check_crops(out, half)
    turns: dict[tuple[str, str, str], Callable[[], float]] = {}
    for where in ("cache", "disk") if options.disk == "yes" else ("cache",):
        for kind, crop in crops(half).items():
            turns[where, kind, "level"] = LevelEpochs(out, where, crop, {"size": crop.height}, options.seconds)
            turns[where, kind, "store"] = LevelEpochs(out, where, crop, {}, options.seconds)
        turns[where, "rows alone", "level"] = LevelEpochs(out / "levels" / "2", where, None, {}, options.seconds)
        turns[where, "rows alone", "store"] = LevelEpochs(out, where, None, {}, options.seconds)
    # in the first one each learns how many passes it takes
    rates = in_turns(turns, options.rounds, untimed=2)
    described: dict[str, dict[str, Any]] = {}
    for where, kind, _ in turns:
        level, store = rates[where, kind, "level"], rates[where, kind, "store"]
        described[f"{where}, {kind}"] = {
            "level": spread(level, 1),
            "store": spread(store, 1),
            "ratio": ratios(level, store),
        }
    return {
        "benchmark": "bench_levels",
        "machine": machine(work),
        "rows": options.rows,
        "size": options.size,
        "crop": half,
        "threads": torch.get_num_threads(),
        "rounds": options.rounds,
        "rows_per_second": described,
        "psnr_db": compared(out, work / "images", {name: photo.path for name, photo in names.items()}, half),
    }


def crops(side: int) -> dict[str, Any]:
    """Return what crops rows in each way that is timed."""
    return {"central": CenterCrop(side), "random": RandomResizedCrop(side // 2, scale=SCALE)}


class LevelEpochs:
    """Epochs of a store that is opened again each time; a call returns rows/s, the start of its thread included.

    size: of the loader.
    least: seconds that an epoch takes.
    """

    def __init__(self, out: Path, where: str, crop: Any, size: dict[str, int], least: float) -> None:
        self._out, self._where, self._least = out, where, least
        self._options = {"shuffle": "full", "residency": where, "as_tuple": False, "transform": crop, **size}
        self._passes = 1

    def __call__(self) -> float:
        """Read an epoch."""
        root = self._out if self._out.parent.name != "levels" else self._out.parent.parent
        for path in (root / PIXELS, root / "levels" / "2" / PIXELS):
            if self._where == "disk":
                # what is mapped stays: nothing of the store is open now
                drop(path, path.stat().st_size)
            else:
                # by a turn before this one it may have been dropped
                path.read_bytes()
        data = MemmapDataset(self._out)
        seen, rows = np.zeros(len(data), np.int64), self._passes * len(data)

        def epoch() -> None:
            """Read it."""
            with MemmapLoader(data, BATCH, epoch_rows=rows, **self._options) as loader:
                for batch in loader:
                    np.add.at(seen, batch.rows.numpy(), 1)

        took = seconds(epoch)
        if not (seen == self._passes).all():
            raise BenchmarkError(
                f"an epoch of {self._out} from {self._where} does not bring each row {self._passes} times."
            )
        # some more, for an epoch that nothing disturbs is shorter
        self._passes = max(self._passes, math.ceil(1.25 * self._passes * self._least / took))
        return rows / took


def check_crops(out: Path, side: int) -> None:
    """Compare a batch of crops of the level with antialiased resizing of the level in float32.

    Raises:
        BenchmarkError: they are more than 1 apart.
    """
    data, level = MemmapDataset(out), MemmapDataset(out / "levels" / "2", as_tuple=False)
    with MemmapLoader(data, 32, transform=CenterCrop(side // 2), size=side // 2, as_tuple=False) as loader:
        batch = next(iter(loader))
    images = level[batch.rows].images.float()
    expected = torch.nn.functional.interpolate(images, (side // 2, side // 2), mode="bilinear", antialias=True)
    apart = float((batch.images.float() - expected.round()).abs().max())
    if apart > 1:
        raise BenchmarkError(f"crops of the level are {apart:g} apart from antialiased resizing of it, expected 1 at most.")


def compared(out: Path, images: Path, originals: dict[str, Path], side: int) -> dict[str, float | None]:
    """Return the PSNR of each kind of pixels against the source resized once, over the first photographs together."""
    data, level = MemmapDataset(out, as_tuple=False), MemmapDataset(out / "levels" / "2", as_tuple=False)
    paths = [path for path, _ in data.samples]
    squares = dict.fromkeys(KINDS, 0.0)
    # each photograph once
    once = sorted({originals[path]: row for row, path in enumerate(paths)}.values())
    rows = once[:: max(1, len(once) // COMPARED)][:COMPARED]
    for row in rows:
        true = source(images / paths[row], side)
        image = data[row].pixels.movedim(-1, 0)[None]
        found = {
            "level": level[row].pixels.numpy(),
            "row": resized(image, side, mode="bilinear", antialias=True),
            "row by areas": resized(image.float(), side, mode="area"),
            "row by nearest": resized(image, side, mode="nearest"),
        }
        for kind, pixels in found.items():
            squares[kind] += float(np.square(pixels.astype(np.float64) - true).mean())
    return {kind: psnr(total / len(rows)) for kind, total in squares.items()}


def psnr(square: float) -> float | None:
    """Return the PSNR of a mean square of differences, dB; None: there are none."""
    return round(10 * math.log10(255**2 / square), 2) if square else None


def source(path: Path, side: int) -> np.ndarray:
    """Decode a photograph whole, and resize it once: uint8[side, side, 3]."""
    with Image.open(path) as opened:
        return np.asarray(central_crop(ImageOps.exif_transpose(opened).convert("RGB"), side))


def resized(image: torch.Tensor, side: int, **how: Any) -> np.ndarray:
    """Resize [1, 3, H, W] to uint8[side, side, 3]."""
    made = torch.nn.functional.interpolate(image, (side, side), **how)
    return made[0].round().clamp(0, 255).to(torch.uint8).movedim(0, -1).numpy()


def text(report: dict[str, Any]) -> str:
    """Draw the report for a person."""
    lines = [["rows/s", "level", "min..max", "store", "min..max", "level/store", "p10..p90"]]
    for name, found in report["rows_per_second"].items():
        lines.append([name, *rate_cells(found["level"]), *rate_cells(found["store"]), *ratio_cells(found["ratio"])])
    psnrs = report["psnr_db"].items()
    worth = ", ".join(f"{kind} {'equal' if value is None else f'{value} dB'}" for kind, value in psnrs)
    return (
        f"{report['rows']} rows of {report['size']} x {report['size']}, crops of {report['crop']}, {report['threads']} threads,"
        f" {report['rounds']} rounds: medians\n{table(lines)}\nagainst the source resized once: {worth}"
    )


if __name__ == "__main__":
    sys.exit(main())
