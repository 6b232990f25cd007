"""Make a folder of photograph-like images in class folders, for quickstart, tests and benchmarks that need no download.

    python -m scripts.samples.make_sample sample/images

It has what a real collection has: mostly JPEG, some of it gray, progressive or stored turned (all eight EXIF
orientations); PNG (plain, palette, with alpha); WebP; and two broken files, a JPEG cut short and a web page saved as
.jpg. The pictures are drawn from --seed alone. DEST appears once it is complete: an interrupted run leaves DEST.part,
which the next run replaces.
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

from scripts.samples.scenes import SCENES, draw

# Width x height; most are ImageNet's most frequent ones.
SIZES = [(500, 375), (500, 333), (375, 500), (480, 360), (500, 375), (333, 500), (500, 400), (640, 427), (420, 420)]

# What the n-th picture of a class is written as; every other one is a plain JPEG.
KINDS = ["gray", "turned", "png", "progressive", "turned", "webp", "turned", "rgba", "turned", "palette"]

# EXIF orientation -> the turn that stores an upright picture so (the inverse of what a viewer does).
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dest", type=Path, help="the folder to make; left as it is where it exists")
    parser.add_argument("--count", type=int, default=240, help="good images in all; two broken ones come on top")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.dest.exists():
        print(f"{options.dest} is there already: left as it is.")
        return 0
    if options.count < len(SCENES):
        print(f"--count {options.count} is too few. Expected at least {len(SCENES)}, one a class.", file=sys.stderr)
        return 2
    make_sample(options.dest, options.count, options.seed)
    print(f"Made {options.count} images of {len(SCENES)} classes and 2 broken files in {options.dest}")
    return 0


def make_sample(dest: Path, count: int, seed: int) -> None:
    """Write the images beside `dest`, then rename: an interrupted run must not be taken for a complete one."""
    part = dest.with_name(dest.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    for name in SCENES:
        (part / name).mkdir(parents=True)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        for _ in pool.map(write_image, repeat(part), range(count), repeat(seed), chunksize=4):
            pass
    intact = min(part.rglob("*.jpg"))
    intact.with_name("cut_short.jpg").write_bytes(intact.read_bytes()[: intact.stat().st_size * 2 // 5])
    (part / "sea" / "not_found.jpg").write_text(WEB_PAGE, encoding="ascii")
    part.rename(dest)


def write_image(folder: Path, index: int, seed: int) -> None:
    """Draw picture `index` and write it: classes take turns, and within a class the kinds of file."""
    name = sorted(SCENES)[index % len(SCENES)]
    number = index // len(SCENES)
    rng = np.random.default_rng([seed, index])
    width, height = SIZES[int(rng.integers(len(SIZES)))]
    picture = Image.fromarray(draw(name, rng, height, width))
    # Shifted by class, so that few pictures hold all kinds.
    turn = number + 7 * (index % len(SCENES))
    kind = KINDS[turn // 2 % len(KINDS)] if turn % 2 else "plain"
    save(picture, folder / name / f"{name}_{number:04d}", kind, orientation=1 + turn // 4 % 8)


def save(picture: Image.Image, stem: Path, kind: str, orientation: int) -> None:
    jpeg = {"quality": 90, "subsampling": "4:2:0"}
    if kind == "png":
        picture.save(stem.with_suffix(".png"))
    elif kind == "palette":
        picture.quantize(128).save(stem.with_suffix(".png"))
    elif kind == "rgba":
        picture.putalpha(rounded_corners(picture.height, picture.width))
        picture.save(stem.with_suffix(".png"))
    elif kind == "webp":
        picture.save(stem.with_suffix(".webp"), quality=88)
    elif kind == "gray":
        picture.convert("L").save(stem.with_suffix(".jpg"), quality=90)
    elif kind == "turned":
        exif = Image.Exif()
        exif[EXIF_ORIENTATION] = orientation
        stored = picture.transpose(TURNS[orientation]) if orientation in TURNS else picture
        stored.save(stem.with_suffix(".jpg"), exif=exif, **jpeg)
    else:
        picture.save(stem.with_suffix(".jpg"), progressive=kind == "progressive", **jpeg)


def rounded_corners(height: int, width: int, radius: int = 24) -> Image.Image:
    y, x = np.mgrid[0.5:height, 0.5:width]
    across = np.maximum(np.abs(x - width / 2) - width / 2 + radius, 0)
    down = np.maximum(np.abs(y - height / 2) - height / 2 + radius, 0)
    return Image.fromarray((np.clip(radius - np.hypot(across, down) + 0.5, 0, 1) * 255).astype(np.uint8))


if __name__ == "__main__":
    sys.exit(main())
