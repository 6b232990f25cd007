"""How true to the source are random crops that are made from a store?

    python -m scripts.benchmarks.accuracy.truth IMAGES [--plot docs/truth.svg]

The same random boxes, of torchvision's RandomResizedCrop, are cut from the photographs and from stores packed in several ways,
and resized to one size. From the source: decoded whole by Pillow, cut at whole pixels, resized by torch's antialiased kernel on
uint8, as torchvision's v2 does. From rows with sizes of their own: by the transform's own function. From other rows the box is
mapped, and resized with the same triangle of weights at the fraction of a pixel where it is, since rounding it would add an
error of its own; what differs then is what the row has lost. A box that is not whole in its row has no crop there.
Stores are packed by default options, so JPEGs may be decoded at a reduced size first. The figures are those of the pixels, not
of time; no two runs differ.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from packer import pack
from packer.operations.planning.crop_boxes import boxes_in
from packer.operations.planning.plan import placement
from packer.pixels.geometry import Geometry
from reader import MemmapDataset
from reader.compiled import Crops
from reader.transforms.kernels.resample import resized_images
from scripts.common.figures import machine, table
from scripts.common.program import reported
from scripts.common.svg import DARK, GRAY, OTHER, OURS, svg_bytes

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
WAYS: dict[str, dict[str, Any]] = {
    "--size 224": {"size": 224},
    "--size 256": {"size": 256},
    "--size 320": {"size": 320},
    "--size 320 --fit inside": {"size": 320, "fit": "inside"},
    "--size 512 --fit inside": {"size": 512, "fit": "inside"},
    "--fit none --max-size 384": {"fit": "none", "max_size": 384},
    "--fit none --max-size 512": {"fit": "none", "max_size": 512},
    "--fit none": {"fit": "none"},
}

# dB; drawn for crops that are the same bytes, which have none
_NO_ERROR = 60.0

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Box:
    """A row, and the box in its source: whole pixels, half-open."""

    row: int
    x0: int
    y0: int
    x1: int
    y1: int


def main() -> int:
    """Compare each way with the sources."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--boxes", type=int, default=1000)
    parser.add_argument("--crop", type=int, default=224, help="side of the crops")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="draw the figures into this PNG; needs matplotlib")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()

    def measured(work: Path) -> dict[str, Any]:
        report = compare(options.images, work, options.boxes, options.crop, options.seed) | {"machine": machine(work)}
        if options.plot:
            plot(report, options.plot)
        return report

    return reported("truth", measured, text=as_table, json=options.output, also=(ValueError,))


def compare(images: Path, work: Path, count: int, crop: int, seed: int) -> dict[str, Any]:
    """Pack each way, and compare its crops with those of the sources."""
    stores = {name: packed(images, work / name.replace(" ", "-"), how) for name, how in WAYS.items()}
    paths = [path for path, _ in next(iter(stores.values())).samples]
    if any([path for path, _ in store.samples] != paths for store in stores.values()):
        raise ValueError("not every way packed the same images: leave out those that are rejected.")
    sources = [np.asarray(ImageOps.exif_transpose(Image.open(images / path)).convert("RGB")) for path in paths]
    boxes = drawn(sources, count, seed)
    true = [from_source(sources[box.row], box, crop) for box in boxes]
    ways = [measured(name, store, sources, boxes, true, crop) for name, store in stores.items()]
    few = np.mean([min(box.x1 - box.x0, box.y1 - box.y0) < crop for box in boxes])
    return {
        "images": len(paths),
        "boxes": count,
        "crop": crop,
        "seed": seed,
        "source_upsampled": round(float(few), 4),
        "ways": ways,
    }


def packed(images: Path, out: Path, how: dict[str, Any]) -> MemmapDataset:
    """Pack one way."""
    pack(images, out, **how)
    return MemmapDataset(out, as_tuple=False)


def drawn(sources: list[Pixels], count: int, seed: int) -> list[Box]:
    """Draw images evenly, and a box in each."""
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, len(sources), count)
    sizes = np.array([sources[row].shape[1::-1] for row in rows], dtype=np.float64)
    found = boxes_in(sizes, SCALE, RATIO, draw).astype(int).tolist()
    return [Box(row, x, y, x + w, y + h) for row, (x, y, w, h) in zip(rows.tolist(), found, strict=True)]


def from_source(pixels: Pixels, box: Box, crop: int) -> Pixels:
    """Cut and resize as torchvision's v2 does: uint8[crop, crop, 3]."""
    part = torch.from_numpy(pixels[box.y0 : box.y1, box.x0 : box.x1].copy()).movedim(-1, 0)[None]
    made = torch.nn.functional.interpolate(part, (crop, crop), mode="bilinear", antialias=True)
    return made[0].movedim(0, -1).numpy()


def measured(
    name: str, store: MemmapDataset, sources: list[Pixels], boxes: list[Box], true: list[Pixels], crop: int
) -> dict[str, Any]:
    """Compare the crops of one way with the true ones."""
    geometry, errors, few = Geometry.recorded(store.manifest), [], 0
    for box, expected in zip(boxes, true, strict=True):
        height, width, _ = sources[box.row].shape
        across, down, left, top, right, bottom = placement(geometry, width, height)
        x0, x1, y0, y1 = box.x0 * across, box.x1 * across, box.y0 * down, box.y1 * down
        few += min(x1 - x0, y1 - y0) < crop - 1e-3
        if x0 < left - 1e-3 or y0 < top - 1e-3 or x1 > right + 1e-3 or y1 > bottom + 1e-3:
            continue
        if store.manifest.has_own_sizes and (across, down) == (1, 1):
            corners = torch.tensor([[box.x0, box.y0, box.x1, box.y1]])
            made = resized_images(store[[box.row]], Crops(corners, crop, crop))[0].numpy()
        else:
            row = store[box.row].pixels.numpy()
            made = at_fractions(row, x0 - left, y0 - top, x1 - left, y1 - top, crop)
        errors.append(float(np.square(made.astype(np.float64) - expected).mean()))
    psnr = 10 * np.log10(255**2 / np.maximum(errors, 1e-10)) if errors else np.zeros(0)
    return {
        "way": name,
        "row_bytes": round(store.store.pixels.nbytes / len(store)),
        "reachable": round(len(errors) / len(boxes), 4),
        "upsampled": round(few / len(boxes), 4),
        "identical": round(float(np.mean([error == 0 for error in errors])), 4) if errors else 0.0,
        "psnr": [round(float(value), 2) for value in np.sort(psnr)],
    }


def at_fractions(pixels: Pixels, x0: float, y0: float, x1: float, y1: float, crop: int) -> Pixels:
    """Resize a box that may begin and end within pixels: a triangle as wide as a new pixel, or as two old ones if wider."""
    top, left = max(0, math.floor(y0 + 1e-6)), max(0, math.floor(x0 + 1e-6))
    pixels = pixels[top : math.ceil(y1 - 1e-6), left : math.ceil(x1 - 1e-6)]
    vertical = weights(y0 - top, y1 - top, pixels.shape[0], crop)
    horizontal = weights(x0 - left, x1 - left, pixels.shape[1], crop)
    down = np.tensordot(vertical, pixels.astype(np.float64), (1, 0))
    both = np.tensordot(horizontal, down, (1, 1)).transpose(1, 0, 2)
    return np.clip(np.round(both), 0, 255).astype(np.uint8)


def weights(start: float, stop: float, size: int, new_size: int) -> npt.NDArray[np.float64]:
    """Return float64[new_size, size], rows that sum to 1, for a box within these pixels."""
    scale = (stop - start) / new_size
    center = start + (np.arange(new_size)[:, None] + 0.5) * scale
    pixel = np.arange(size)
    found = np.maximum(0, 1 - np.abs((pixel + 0.5 - center) / max(scale, 1)))
    return found / found.sum(1, keepdims=True)


def as_table(report: dict[str, Any]) -> str:
    """Write the figures for people."""
    lines = [["way to pack", "kB a row", "reachable", "upsampled", "same bytes", "PSNR median", "p10"]]
    for way in report["ways"]:
        shares = [f"{way[key]:.1%}" for key in ("reachable", "upsampled", "identical")]
        lines.append([way["way"], f"{way['row_bytes'] / 1000:.0f}", *shares, *psnr_cells(way)])
    boxes = f"{report['boxes']:,} boxes in {report['images']:,} images, crops of {report['crop']}"
    return f"{boxes}; of the sources {report['source_upsampled']:.1%} are upsampled\n{table(lines)}"


def psnr_cells(way: dict[str, Any]) -> list[str]:
    """Format the median and the lower tenth; where more than half are the same bytes there is no error to report."""
    if not way["psnr"]:
        return ["", ""]
    found = [float(np.percentile(way["psnr"], share)) for share in (50, 10)]
    return ["no error" if value > 100 else f"{value:.1f} dB" for value in found]


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw a line for each way to pack: the crops that it holds, how true they are, how many are upsampled."""
    from matplotlib.figure import Figure

    ways = report["ways"]
    figure = Figure(figsize=(11, 4.6), dpi=100, layout="constrained", facecolor="white")
    held, true, few = figure.subplots(1, 3, sharey=True, width_ratios=(2, 3, 2), subplot_kw={"facecolor": "white"})
    cut = ways[0]["reachable"]
    figure.suptitle(
        f"Rows of whole images hold every random crop, center crops hold {cut:.0%} of them", weight="bold", color=DARK
    )
    heights = np.arange(len(ways))[::-1]
    for axes, key in ((held, "reachable"), (few, "upsampled")):
        values = [100 * way[key] for way in ways]
        bars = axes.barh(heights, values, 0.55, color=[_color(way) for way in ways])
        for label in axes.bar_label(bars, [f"{value:.0f}" for value in values], padding=4, size=9, color=DARK):
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})  # clear of the dotted line
        axes.set_xlim(0, 118)
    sources = 100 * report["source_upsampled"]
    few.axvline(sources, color=GRAY, lw=1, ls=":")
    few.text(sources, -0.5, f"of the images themselves {sources:.0f}", color=GRAY, size=8, ha="center", va="top")
    for way, height in zip(ways, heights, strict=True):
        low, middle = (min(float(np.percentile(way["psnr"] or [0], share)), _NO_ERROR) for share in (10, 50))
        true.plot([low, middle], [height, height], color=_color(way), lw=3, solid_capstyle="round")
        true.plot([middle], [height], "o", color=_color(way), ms=8)
        text = " to ".join(
            "no error" if value == _NO_ERROR else f"{value:.0f}" for value in dict.fromkeys((low, middle))
        )
        true.text(low - 1.5, height, text, color=DARK, size=9, ha="right", va="center")
    true.set_xlim(12, _NO_ERROR + 2)
    held.set_yticks(heights, [f"{way['way']}, {way['row_bytes'] / 1000:.0f} kB" for way in ways], size=9, color=DARK)
    for axes, title in (
        (held, "reachable crops, %"),
        (true, "their PSNR, dB: worst tenth to median"),
        (few, "upsampled crops, %"),
    ):
        axes.set_title(title, loc="left", size=10, color=DARK)
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    figure.supxlabel(
        f"{report['boxes']:,} random boxes of {report['images']} photographs, resized to {report['crop']} x {report['crop']}",
        size=9,
        color=GRAY,
    )
    if path.suffix == ".svg":
        path.write_bytes(svg_bytes(figure))
    else:
        figure.savefig(path)


def _color(way: dict[str, Any]) -> str:
    """Return blue for rows that hold every crop, gray for others."""
    return OURS if way["reachable"] == 1 else OTHER


if __name__ == "__main__":
    sys.exit(main())
