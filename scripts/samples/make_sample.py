"""Make a folder of photograph-like images, for quickstart, tests and benchmarks that need no download.

    python -m scripts.samples.make_sample sample/images
    python -m scripts.samples.make_sample labelled --labels

Its class folders resemble a real collection: mostly JPEG, some of it gray, progressive or stored turned (all eight EXIF
orientations); PNG (plain, palette, with alpha); WebP; and two broken files, a JPEG cut short and a web page saved as .jpg.
With --labels DEST has images/, some stored turned; labels/, YOLO's .txt and classes.txt; and masks/, PNGs of class + 1; both
fit the stored images to the pixel. --seed alone determines the pictures. DEST appears once it is complete: an interrupted run
leaves DEST.part, which the next run replaces.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.Image import Transpose

from scripts.samples.scenes import CLASSES, DISCS, draw, draw_discs

# Width x height; mostly ImageNet's most frequent sizes.
SIZES = [(500, 375), (500, 333), (375, 500), (480, 360), (500, 375), (333, 500), (500, 400), (640, 427), (420, 420)]

# The kind of the n-th picture of a class; every other one is a plain JPEG.
KINDS = ["gray", "turned", "png", "progressive", "turned", "webp", "turned", "rgba", "turned", "palette"]

# EXIF orientation -> the turn from an upright picture to the stored one (the inverse of a viewer's).
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_90,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}
EXIF_ORIENTATION = 0x0112

WEB_PAGE = "<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body><h1>Not Found</h1></body></html>\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path, help="the folder to make; left as it is where it exists")
    parser.add_argument("--count", type=int, default=240, help="good images in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--labels", action="store_true", help="with boxes and masks, in place of class folders")
    options = parser.parse_args()
    if options.dest.exists():
        print(f"{options.dest} is there already: left as it is.")
        return 0
    make_sample(options.dest, options.count, options.seed, labels=options.labels)
    print(f"Made {options.count} images in {options.dest}")
    return 0


def make_sample(dest: Path, count: int, seed: int, *, labels: bool = False) -> None:
    """Write the images beside `dest`, then rename: an interrupted run must not look complete."""
    part = dest.with_name(dest.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    for name in ("images", "labels", "masks") if labels else CLASSES:
        (part / name).mkdir(parents=True)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        write = write_labelled if labels else write_image
        for _ in pool.map(write, repeat(part), range(count), repeat(seed), chunksize=4):
            pass
    if labels:
        (part / "labels" / "classes.txt").write_text("".join(f"{name}\n" for name in DISCS))
    else:
        intact = min(part.rglob("*.jpg"))
        intact.with_name("cut_short.jpg").write_bytes(intact.read_bytes()[: intact.stat().st_size * 2 // 5])
        (part / CLASSES[0] / "not_found.jpg").write_text(WEB_PAGE, encoding="ascii")
    part.rename(dest)


def write_image(folder: Path, index: int, seed: int) -> None:
    """Draw picture `index` and write it; classes alternate, and file kinds within a class."""
    name, number = CLASSES[index % len(CLASSES)], index // len(CLASSES)
    rng = np.random.default_rng([seed, index])
    width, height = SIZES[int(rng.integers(len(SIZES)))]
    picture = Image.fromarray(draw(name, rng, height, width))
    # Shifted by class, so that few pictures hold all kinds.
    turn = number + 7 * (index % len(CLASSES))
    kind, stem = KINDS[turn // 2 % len(KINDS)] if turn % 2 else "plain", folder / name / f"{name}_{number:04d}"
    if kind == "gray":
        picture = picture.convert("L")
    elif kind == "palette":
        picture = picture.quantize(128)
    elif kind == "rgba":
        # transparent on the left
        picture.putalpha(Image.linear_gradient("L").rotate(90).resize(picture.size))
    if kind in ("png", "palette", "rgba", "webp"):
        picture.save(stem.with_suffix(".webp" if kind == "webp" else ".png"), quality=88)
    else:
        save_jpeg(
            picture, stem.with_suffix(".jpg"), 1 + turn // 4 % 8 if kind == "turned" else 1, kind == "progressive"
        )


def write_labelled(folder: Path, index: int, seed: int) -> None:
    """Draw discs, and write them with boxes and a mask of their visible parts."""
    rng = np.random.default_rng([seed, index])
    width, height = SIZES[index % len(SIZES)]
    kinds = rng.integers(len(DISCS), size=int(rng.integers(2, 5)))
    pixels, owners = draw_discs([DISCS[kind] for kind in kinds], rng, height, width)
    orientation = (1, 6, 1, 3, 1, 8)[index % 6]
    save_jpeg(Image.fromarray(pixels), folder / "images" / f"{index:03}.jpg", orientation)
    owners = np.asarray(turned(Image.fromarray(owners), orientation))
    lines = [yolo_line(owners == number, kind) for number, kind in enumerate(kinds, 1) if (owners == number).any()]
    (folder / "labels" / f"{index:03}.txt").write_text("".join(lines))
    values = np.append(0, kinds + 1).astype(np.uint8)
    Image.fromarray(values[owners]).save(folder / "masks" / f"{index:03}.png")


def save_jpeg(picture: Image.Image, path: Path, orientation: int, progressive: bool = False) -> None:
    """Write a picture like a camera held in this orientation."""
    exif = Image.Exif()
    if orientation > 1:
        exif[EXIF_ORIENTATION] = orientation
    turned(picture, orientation).save(path, quality=90, exif=exif, progressive=progressive)


def turned(picture: Image.Image, orientation: int) -> Image.Image:
    return picture.transpose(TURNS[orientation]) if orientation in TURNS else picture


def yolo_line(is_there: np.ndarray, kind: int) -> str:
    """Return class, center x, center y, width and height of the set pixels, as fractions of the picture."""
    spans = []
    for axis in (0, 1):
        places = np.flatnonzero(is_there.any(axis))
        spans.append((places[0] / is_there.shape[1 - axis], (places[-1] + 1) / is_there.shape[1 - axis]))
    shares = [*((start + stop) / 2 for start, stop in spans), *(stop - start for start, stop in spans)]
    return f"{kind} " + " ".join(f"{share:.6f}" for share in shares) + "\n"


if __name__ == "__main__":
    sys.exit(main())
