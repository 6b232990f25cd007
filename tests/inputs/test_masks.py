"""Masks: beside their images through EXIF, resize, crop and padding into the row, and what is wrong with them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_splits, photo, store_bytes
from PIL import Image
from test_boxes import FITS, ORIENTATIONS, placed, stopped

from packer import PackError, ScanError, pack
from packer.operations.verify import verify
from reader import MemmapDataset, MemmapLoader, RandomHorizontalFlip


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Path, Path]:
    """Five images of 60 x 40 in images/, and a mask of 0 to 4 for each in masks/."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for n in range(5):
        photo(60, 40, n).save(tmp_path / "images" / f"{n}.jpg")
        Image.fromarray(values(n)).save(tmp_path / "masks" / f"{n}.png")
    return tmp_path / "images", tmp_path / "masks"


def values(seed: int, size: tuple[int, int] = (60, 40)) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 5, size[::-1], dtype=np.uint8)


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def masks_of(out: Path) -> np.ndarray[Any, Any]:
    extras = MemmapDataset(out).store.extras
    assert extras is not None
    return np.asarray(extras["masks"])


# -- where they go


@pytest.mark.parametrize("fit", FITS)
def test_a_mask_takes_the_nearest_pixel_where_its_image_is(fit: str, tmp_path: Path) -> None:
    size, row = (90, 50), 36
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    upright = values(1, size)
    for orientation in ORIENTATIONS:
        # stored so that EXIF's turn gives the upright one: numpy's own turns, not Pillow's
        turned = {1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1]}
        turned |= {5: upright.T, 6: np.rot90(upright), 7: upright[::-1, ::-1].T, 8: np.rot90(upright, -1)}
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = turned[orientation]
        photo(stored.shape[1], stored.shape[0], 0).save(tmp_path / "images" / f"{orientation}.jpg", exif=exif)
        Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "masks" / f"{orientation}.png")
    pack(tmp_path / "images", tmp_path / "out", size=row, fit=fit, masks=tmp_path / "masks", workers=1)
    across, down, left, top = placed(size, fit, row)
    # the source pixel under the centre of each pixel of the row; outside of the picture there is 255, which losses ignore
    x, y = ((np.arange(row) - left + 0.5) / across), ((np.arange(row) - top + 0.5) / down)
    expected = upright[np.ix_(y.astype(int).clip(0, 49), x.astype(int).clip(0, 89))]
    expected[~(((y >= 0) & (y < 50))[:, None] & ((x >= 0) & (x < 90)))] = 255
    for mask in masks_of(tmp_path / "out"):
        assert np.array_equal(mask, expected)


def test_a_mask_of_the_upright_size_is_not_turned(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for name, orientation, size in (("a", 6, (20, 40)), ("b", 3, (40, 20))):
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo(40, 20, 0).save(tmp_path / "images" / f"{name}.jpg", exif=exif)
        Image.fromarray(values(2, size)).save(tmp_path / "masks" / f"{name}.png")
    options: dict[str, Any] = {"size": 20, "masks": tmp_path / "masks", "workers": 1}
    pack(tmp_path / "images", tmp_path / "out", **options)
    expected = [values(2, (20, 40))[10:30], values(2, (40, 20))[:, 10:30]]
    assert np.array_equal(masks_of(tmp_path / "out"), [expected[0], expected[1][::-1, ::-1]])


def test_palette_gray_and_black_and_white_masks_keep_their_values_also_as_rgb(
    pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    images, masks = pairs
    palette = Image.fromarray(values(0)).convert("P")
    palette.putpalette([0, 0, 0, 9, 9, 9, 8, 8, 8, 7, 7, 7, 6, 6, 6])
    palette.putdata(values(0).flatten().tolist())
    palette.save(masks / "0.png")
    Image.fromarray(values(1) > 2).save(masks / "1.png")
    Image.fromarray(values(2).astype(np.uint16)).save(masks / "2.png")
    (masks / "3.png").unlink()
    Image.fromarray(values(3)).convert("RGB").save(masks / "3.TIF")
    Image.fromarray(values(4)).convert("RGBA").save(masks / "4.png")
    report = pack(images, tmp_path / "out", masks=masks, workers=2)
    assert (report.rows, report.notes) == (5, [])
    expected = [values(0), values(1) > 2, *(values(n) for n in (2, 3, 4))]
    assert np.array_equal(masks_of(tmp_path / "out"), expected)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    batch = next(iter(MemmapLoader(train, 5, transform=RandomHorizontalFlip(1), as_tuple=False)))
    assert np.array_equal(batch.extras["masks"], np.array(expected)[:, :, ::-1])
    assert verify(tmp_path / "out").problems == []


def test_splits_and_class_folders_have_masks_at_the_same_path(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), classes=2, each=2)
    for path in (tmp_path / "images").rglob("*.jpg"):
        mask = (tmp_path / "masks" / path.relative_to(tmp_path / "images")).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", size_of(path), len(path.parts[-2]) + int(path.parent.name[-1])).save(mask)
    pack(tmp_path / "images", tmp_path / "out", size=16, masks=tmp_path / "masks", workers=1)
    for split in ("train", "val"):
        assert masks_of(tmp_path / "out" / split)[:, 3, 3].tolist() == [6, 6, 7, 7]
        assert MemmapDataset(tmp_path / "out" / split).classes == ["class0", "class1"]


# -- what is wrong with them


def test_an_image_without_a_usable_mask_is_rejected_with_the_reason(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    images, masks = pairs
    for n in range(5, 8):
        photo(60, 40, n).save(images / f"{n}.jpg")
    (masks / "0.png").unlink()
    Image.fromarray(values(1)).save(masks / "1.gif")
    Image.fromarray(values(2, (61, 40))).save(masks / "2.png")
    photo(60, 40, 3).save(masks / "3.png")
    (masks / "4.png").write_bytes((masks / "4.png").read_bytes()[:-60])
    Image.fromarray(np.full((40, 60), 300, np.uint16)).save(masks / "5.png")
    photo(60, 40, 0).save(masks / "6.png", format="JPEG")
    for name in ("7.png", "stray.png"):
        Image.fromarray(values(7)).save(masks / name)
    report = pack(images, tmp_path / "out", masks=masks, workers=1)
    assert report.rows == 1
    reasons = sorted(report.reasons)
    cut = reasons.pop(next(i for i, reason in enumerate(reasons) if reason.startswith("its mask 4.png")))
    assert "image file is truncated" in cut
    assert reasons == [
        "it has no mask 0.png",
        "it has two masks, 1.gif and 1.png",
        "its mask 2.png: it has 61 x 40 pixels, the image 60 x 40",
        "its mask 3.png: its pixels are RGB; expected a palette or gray: save the class of each as a level",
        "its mask 5.png: it has values from 300 to 300; expected 0 to 255",
        "its mask 6.png: it is a JPEG, which does not keep values; save masks as PNG",
    ]
    assert report.notes == []


def test_a_folder_without_masks_ends_the_pack_before_it_begins(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    images, _ = pairs
    with pytest.raises(ScanError, match="gone' is not a folder. Expected one with masks named as the images are"):
        pack(images, tmp_path / "out", masks=tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScanError, match="empty holds no mask"):
        pack(images, tmp_path / "out", masks=tmp_path / "empty")
    assert not (tmp_path / "out").exists()


# -- the same bytes, whatever happens


def test_a_mask_that_changed_since_is_read_again_by_a_resume(images: Path, tmp_path: Path) -> None:
    for n, path in enumerate(sorted(images.rglob("*.jpg"))):
        mask = (tmp_path / "masks" / path.relative_to(images)).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values(n, size_of(path))).save(mask, compress_level=0)
    options: dict[str, Any] = {"size": 32, "masks": tmp_path / "masks"}
    stopped(images, tmp_path / "out", workers=1, **options)
    mask = options["masks"] / "class0" / "000.png"
    before = mask.stat()
    # as by an exchange of names: of the same size and time
    Image.fromarray(values(99, size_of(mask))).save(mask, compress_level=0)
    os.utime(mask, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert mask.stat().st_size == before.st_size
    report = pack(images, tmp_path / "out", workers=1, **options)
    assert (report.changed_paths, report.resumed_from) == (["class0/000.png"], 0)
    pack(images, tmp_path / "again", workers=1, **options)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "again")
    # another list of masks is another pack
    stopped(images, tmp_path / "other", workers=1, **options)
    mask.rename(mask.with_suffix(".gif"))
    with pytest.raises(PackError, match="was started with other inputs"):
        pack(images, tmp_path / "other", workers=1, **options)
