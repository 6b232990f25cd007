"""The photographs that everybody packs, the rows that they must become, and the Pillow that decodes them for all.

Runs in pixpack's environment. Times nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import PIL
from PIL import Image

import packer
from scripts.common.figures import BenchmarkError, photographs

_ORIENTATION = 0x112


def photograph_store(images: Path | None, work: Path, count: int, size: int) -> Path:
    """Fill work/photographs with links 000000.jpg, 000001.jpg, ... and pack them; returns the store.

    Only photographs whose rows are the same to the byte for ImageFolder and for pack are taken, again and again: none that
    EXIF turns, nor any that is large enough to be decoded DCT-scaled.

    Raises:
        BenchmarkError, ScanError: there is none.
    """
    found = [photo.path for photo in photographs(images, work, size) if photo.dct_scale == 1 and is_upright(photo.path)]
    if not found:
        raise BenchmarkError(
            f"no photograph can be compared to the byte at --size {size}: all are turned or decoded smaller."
        )
    folder, out = work / "photographs", work / "photographs-store"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:06}.jpg").symlink_to(found[number % len(found)].absolute())
    packer.pack(folder, out, size=size, max_rejects=0, overwrite=out.exists())
    return out


def is_upright(path: Path) -> bool:
    with Image.open(path) as image:
        return bool(image.getexif().get(_ORIENTATION, 1) == 1)


def lent_pillow(work: Path) -> Path:
    """Return a folder with nothing but this environment's Pillow: peers decode by it, too, whatever pip gave them."""
    folder, package = work / "pillow", Path(PIL.__file__).parent
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # its wheel's libraries are beside it
    for path in package, package.with_name("pillow.libs"):
        if path.exists():
            (folder / path.name).symlink_to(path)
    return folder
