"""Inputs that exchange names while a pack is interrupted are noticed, though their sizes and times are equal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import interrupted, make_tree, store_bytes
from PIL import Image

from packer import pack

KINDS: dict[str, dict[str, Any]] = {"one size": {"size": 32}, "own sizes": {"fit": "none"}}


def alike(one: Path, other: Path) -> None:
    """Give two files one size and one mtime; bytes behind a JPEG's end mean nothing."""
    size_bytes = max(path.stat().st_size for path in (one, other))
    for path in (one, other):
        data = path.read_bytes()
        path.write_bytes(data + bytes(size_bytes - len(data)))
        os.utime(path, ns=(10**18, 10**18))


def exchange(one: Path, other: Path) -> None:
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_two_images_that_exchange_names_are_packed_under_their_new_names(
    options: dict[str, Any], tmp_path: Path
) -> None:
    images = make_tree(tmp_path / "images")
    one, other = images / "class0/000.jpg", images / "class0/002.jpg"
    alike(one, other)
    interrupted(pack, images, tmp_path / "out", **options)
    exchange(one, other)
    pack(images, tmp_path / "out", **options)
    pack(images, tmp_path / "fresh", **options)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "fresh")


@pytest.mark.usefixtures("small_blocks")
def test_an_image_that_takes_the_name_of_a_broken_one_is_packed(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images")
    one, other = images / "class0/000.jpg", images / "class0/002.jpg"
    alike(one, other)
    one.write_bytes(bytes(one.stat().st_size))
    os.utime(one, ns=(10**18, 10**18))
    interrupted(pack, images, tmp_path / "out", size=32, max_rejects=1)
    exchange(one, other)
    pack(images, tmp_path / "out", size=32, max_rejects=1)
    pack(images, tmp_path / "fresh", size=32, max_rejects=1)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "fresh")


@pytest.mark.usefixtures("small_blocks")
def test_masks_that_exchange_names_are_packed_under_their_new_names(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", classes=1, each=24)
    for path in sorted(images.rglob("*.jpg")):
        with Image.open(path) as image:
            mask = tmp_path / "masks" / path.relative_to(images).with_suffix(".png")
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", image.size, int(path.stem) % 7).save(mask)
    one, other = (tmp_path / "masks/class0" / f"{name}.png" for name in ("000", "001"))
    for path in (one, other):
        with Image.open(images / "class0/000.jpg") as image:
            Image.new("L", image.size, 1 + (path == one)).save(path, compress_level=0)
        os.utime(path, ns=(10**18, 10**18))
    (images / "class0/001.jpg").write_bytes((images / "class0/000.jpg").read_bytes())
    interrupted(pack, images, tmp_path / "out", size=32, masks=tmp_path / "masks")
    exchange(one, other)
    pack(images, tmp_path / "out", size=32, masks=tmp_path / "masks")
    pack(images, tmp_path / "fresh", size=32, masks=tmp_path / "masks")
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "fresh")
