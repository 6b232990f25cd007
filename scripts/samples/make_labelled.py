"""Make images with boxes and masks that are right to the pixel, for pictures and trials that need no download.

    python -m scripts.samples.make_labelled labelled
    pack labelled/images out/ --fit none --max-size 320 --boxes labelled/labels --masks labelled/masks
    pack show out/ --count 8 --columns 4 -o labels.png

Balls, kites and crates are over drawn scenes of several sizes. images/ has JPEGs, some stored turned (EXIF orientations 3, 6
and 8); labels/ YOLO's .txt and classes.txt, masks/ PNGs of class + 1, both drawn on the pixels as they are stored. Everything
follows from --seed alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from scripts.samples.make_sample import EXIF_ORIENTATION, TURNS
from scripts.samples.scenes import SCENES, draw

CLASSES = ("ball", "kite", "crate")
COLORS = [(214, 62, 48), (242, 190, 60), (52, 120, 190), (236, 236, 228), (96, 60, 130)]
SIZES = [(480, 360), (360, 480), (500, 333), (420, 420), (375, 500), (640, 400)]
ORIENTATIONS = (1, 6, 1, 3, 1, 8)
# A shape is drawn so many times as large, then made smaller: soft edges.
SUPERSAMPLED = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path, help="the folder to make; refused where it exists")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.dest.exists():
        parser.error(f"{options.dest} exists. Name a folder that does not.")
    for name in ("images", "labels", "masks"):
        (options.dest / name).mkdir(parents=True)
    for number in range(options.count):
        make(options.dest, number, np.random.default_rng([options.seed, number]))
    (options.dest / "labels" / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    print(f"{options.dest}: {options.count} images with boxes and masks")
    return 0


def make(dest: Path, number: int, rng: np.random.Generator) -> None:
    """Write one image, its boxes and its mask."""
    width, height = SIZES[number % len(SIZES)]
    image = Image.fromarray(draw(list(SCENES)[number % len(SCENES)], rng, height, width))
    mask = Image.new("L", image.size)
    for _ in range(int(rng.integers(2, 5))):
        add_shape(image, mask, int(rng.integers(len(CLASSES))), rng)
    orientation, exif = ORIENTATIONS[number % len(ORIENTATIONS)], Image.Exif()
    if orientation > 1:
        exif[EXIF_ORIENTATION] = orientation
        image, mask = (each.transpose(TURNS[orientation]) for each in (image, mask))
    image.save(dest / "images" / f"{number:03}.jpg", quality=92, exif=exif)
    # each shape has a value of its own until here, so that those of one class stay apart
    values = np.asarray(mask)
    lines = [line(values == value, (value - 1) % len(CLASSES)) for value in np.unique(values) if value]
    (dest / "labels" / f"{number:03}.txt").write_text("".join(lines))
    kinds = np.where(values > 0, (values.astype(int) - 1) % len(CLASSES) + 1, 0)
    Image.fromarray(kinds.astype(np.uint8)).save(dest / "masks" / f"{number:03}.png")


def add_shape(image: Image.Image, mask: Image.Image, kind: int, rng: np.random.Generator) -> None:
    """Draw one shape over the picture, and over its mask with a value that no other shape has."""
    side = int(rng.uniform(0.15, 0.4) * min(image.size))
    left, top = (int(rng.integers(0, length - side)) for length in image.size)
    big = Image.new("L", (side * SUPERSAMPLED,) * 2)
    end, half = big.width - 1, big.width // 2
    pen = ImageDraw.Draw(big)
    if CLASSES[kind] == "ball":
        pen.ellipse((0, 0, end, end), fill=255)
    elif CLASSES[kind] == "kite":
        pen.polygon([(half, 0), (end, half), (half, end), (0, half)], fill=255)
    else:
        pen.rectangle((0, end // 5, end, end), fill=255)
    cover = big.resize((side, side), Image.Resampling.BOX)
    # lit from the upper left
    light = 1.25 - 0.8 * np.add.outer(np.arange(side), np.arange(side)) / (2 * side)
    color = np.multiply.outer(light, COLORS[int(rng.integers(len(COLORS)))]).clip(0, 255)
    image.paste(Image.fromarray(color.astype(np.uint8)), (left, top), cover)
    highest = (np.asarray(mask).max() + len(CLASSES) - 1) // len(CLASSES) * len(CLASSES)
    mask.paste(int(highest) + kind + 1, (left, top), cover.point(lambda value: 255 * (value > 127)))


def line(is_there: np.ndarray, kind: int) -> str:
    """Return YOLO's line of the pixels that are there: class, center x, center y, width, height, in shares."""
    rows, columns = (np.flatnonzero(is_there.any(axis)) for axis in (1, 0))
    height, width = is_there.shape
    (top, bottom), (left, right) = ((edge[0], edge[-1] + 1) for edge in (rows, columns))
    shares = (left + right) / 2 / width, (top + bottom) / 2 / height, (right - left) / width, (bottom - top) / height
    return f"{kind} " + " ".join(f"{share:.6f}" for share in shares) + "\n"


if __name__ == "__main__":
    sys.exit(main())
