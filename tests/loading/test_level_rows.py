"""Levels of rows that have masks of their own sizes, and of joined stores, wherever rows are read from."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, make_tree, tuned
from PIL import Image

from packer import pack, push
from reader import (
    Compose,
    MemmapDataset,
    MemmapLoader,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
    StoreError,
    concat,
)
from reader.compiled import Crops
from reader.dataset.opened_store import OpenedStore
from reader.loading import levels
from reader.loading.levels import LevelRows
from reader.memory.spans import Spans
from reader.rows import Rows
from reader.transforms.kernels.resample import resized

SIDE = 12
# "cold": the page cache of a file that is not in it
RESIDENCIES = ["cache", "cold", "disk", "ram"]


@pytest.fixture(autouse=True)
def read(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return by what the sides of rows are divided that crops have read."""
    found: set[int] = set()
    given = LevelRows.read

    def read_rows(rows: LevelRows, some: Rows, factor: int, *places: Any) -> Any:
        found.add(factor)
        return given(rows, some, factor, *places)

    monkeypatch.setattr(LevelRows, "read", read_rows)
    return found


def masked_tree(folder: Path) -> Path:
    """Make 12 images of many sizes in images/, and a mask of each in masks/."""
    rng = np.random.default_rng(0)
    make_tree(folder / "images", classes=2, each=6, size=(150, 110))
    for n, path in enumerate(sorted((folder / "images").rglob("*.jpg"))):
        with Image.open(path) as opened:
            image = opened.convert("RGB").resize((90 + 11 * n, 130 - 5 * n))
        image.save(path, quality=95)
        mask = (folder / "masks" / path.relative_to(folder / "images")).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 9, (image.height, image.width), np.uint8)).save(mask)
    return folder / "images"


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 rows with masks, and their half and quarter."""
    folder = tmp_path_factory.mktemp("masked")
    pack(masked_tree(folder), folder / "out", fit="none", masks=folder / "masks", levels=3, workers=1)
    return folder / "out"


def batches_of(data: MemmapDataset, residency: str = "cache", size: int | None = SIDE, **arguments: Any) -> list[Any]:
    """Return the batches of two epochs of small crops."""
    crop = Compose([RandomResizedCrop(SIDE, scale=(0.01, 1.0)), RandomHorizontalFlip()])
    host = "cache" if residency == "cold" else residency
    # chunks of a few batches
    with pytest.MonkeyPatch.context() as patch, tuned(window_ahead_bytes=4 * data.manifest.row_bytes):
        if residency == "cold":
            patch.setattr(LevelRows, "levels_to_read", lambda rows: {*rows.stores})
        given = {"shuffle": "full", "as_tuple": False, "residency": host, "transform": crop, "size": size} | arguments
        with MemmapLoader(data, 5, **given) as loader:
            return [batch for _ in range(2) for batch in loader]


def assert_equal(found: list[Any], wanted: list[Any], *, masks: bool = False) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.rows, other.rows)
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.pixels, other.pixels)
        assert not masks or torch.equal(one.extras["masks"], other.extras["masks"])


# -- masks of their own sizes


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("residency", RESIDENCIES)
def test_masks_of_rows_read_from_levels_are_those_of_the_full_rows(
    masked: Path, residency: str, threads: int, read: set[int]
) -> None:
    data = MemmapDataset(masked)
    full = batches_of(data, size=None)
    assert not read
    small = batches_of(data, residency, threads=threads)
    assert read == {1, 2, 4}
    for one, other in zip(small, full, strict=True):
        assert torch.equal(one.rows, other.rows)
        assert torch.equal(one.extras["masks"], other.extras["masks"])
        assert 0 < (one.pixels.float() - other.pixels.float()).abs().mean() < 20
    assert len({int(value) for batch in small for value in batch.extras["masks"].unique()}) == 9


@pytest.mark.parametrize("order", ["full", "block", False])
def test_rows_with_masks_read_from_levels_are_the_same_wherever_they_are(
    masked: Path, order: Any, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = MemmapDataset(masked).subset([10, 3, 4, 0, 7, 8])
    tune(shuffle_block_bytes=2 * data.manifest.row_bytes, shuffle_window_blocks=2)
    wanted = batches_of(data, shuffle=order)
    # what is read ahead is all that is read
    monkeypatch.setattr(OpenedStore, "place", None)
    for residency in RESIDENCIES[1:]:
        assert_equal(batches_of(data, residency, shuffle=order), wanted, masks=True)


def test_central_crops_move_masks_of_rows_read_from_levels(masked: Path, read: set[int]) -> None:
    data = MemmapDataset(masked)
    found = batches_of(data, "disk", transform=ResizeCenterCrop(SIDE))
    assert read == {4}
    for one, other in zip(found, batches_of(data, size=None, transform=ResizeCenterCrop(SIDE)), strict=True):
        assert torch.equal(one.extras["masks"], other.extras["masks"])


def test_less_is_read_of_the_disk_where_masks_are_read_without_their_pixels(masked: Path) -> None:
    data, wanted, chunk = MemmapDataset(masked), [0], levels.Chunk

    def counted(file: Any, spans: Spans, *lease: Any) -> Any:
        wanted[0] += int(spans.sizes.sum())
        return chunk(file, spans, *lease)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "Chunk", counted)
        batches_of(data, "disk", transform=ResizeCenterCrop(SIDE))
    # of two epochs: a quarter for masks, 1/16 of the pixels
    assert wanted[0] < 2 * 0.32 * data.manifest.pixel_bytes


def test_a_mask_that_is_not_behind_its_image_is_named(masked: Path) -> None:
    for residency in RESIDENCIES:
        data = MemmapDataset(masked)
        data.opened_store._columns["mask_offsets"].tensor[5] += 3
        with pytest.raises(StoreError, match="row 5 is not within the pixels"):
            batches_of(data, residency)


@pytest.mark.parametrize("way", ["compressed", "remote"])
def test_rows_with_masks_that_come_with_their_pixels_are_read_full(
    way: str, masked: Path, tmp_path: Path, read: set[int]
) -> None:
    if way == "compressed":
        pytest.importorskip("zstandard")
        images = masked_tree(tmp_path)
        pack(images, tmp_path / "out", fit="none", masks=tmp_path / "masks", levels=2, workers=1, compress=True)
        data = MemmapDataset(tmp_path / "out")
    else:
        pytest.importorskip("obstore")
        push(masked, (tmp_path / "far").as_uri())
        data = MemmapDataset((tmp_path / "far").as_uri(), cache=tmp_path / "cache")
    arguments: dict[str, Any] = {"shuffle": "block"}
    assert_equal(batches_of(data, "cache", **arguments), batches_of(data, "cache", None, **arguments), masks=True)
    assert not read


# -- joined stores


@pytest.fixture(
    scope="module",
    params=[
        [{"size": (64, 96)}] * 2,
        [{"fit": "none"}] * 2,
        [{"size": 64, "fit": "pad"}, {"size": 64}],
        [{"size": 64, "compress": True}] * 2,
        [{"fit": "none", "compress": "jpeg:95"}, {"fit": "none", "compress": "jpeg:80"}],
    ],
    ids=["equal", "own sizes", "one with padding", "compressed", "jpeg"],
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two stores of other images and classes in another order, with levels."""
    if "compress" in request.param[0]:
        pytest.importorskip("zstandard")
    folder = tmp_path_factory.mktemp("both")
    for name, classes, options in zip("ab", (2, 3), request.param, strict=True):
        make_tree(folder / name / "images", classes=classes, each=3, size=(150 if name == "a" else 170, 110))
        if name == "b":
            (folder / "b/images/class0").rename(folder / "b/images/later")
        pack(folder / name / "images", folder / name / "out", levels=3, workers=1, **options)
    return [folder / name / "out" for name in "ab"]


def test_central_crops_of_joined_stores_are_those_of_each(both: list[Path], read: set[int]) -> None:
    stores = [MemmapDataset(path) for path in both]
    arguments: dict[str, Any] = {"transform": ResizeCenterCrop(8), "size": SIDE}
    alone = torch.cat([images for store in stores for images, _ in MemmapLoader(store, 4, **arguments)])
    read.clear()
    for residency in ("cache", "disk", "ram"):
        with MemmapLoader(concat(stores), 4, residency=residency, **arguments) as loader:
            assert torch.equal(torch.cat([images for images, _ in loader]), alone)
    assert read
    assert 1 not in read


@pytest.mark.parametrize("side", [8, 20])
def test_random_crops_of_joined_stores_read_the_levels_of_each(both: list[Path], side: int, read: set[int]) -> None:
    stores, crop = [MemmapDataset(path, as_tuple=False) for path in both], RandomResizedCrop(side, scale=(0.01, 1.0))
    joined, first = concat(stores), len(stores[0])
    with MemmapLoader(joined, 4, shuffle="full", as_tuple=False, transform=lambda b: (b.rows, crop.boxes(b))) as loader:
        boxes = {int(row): box for rows, found in loader for row, box in zip(rows, found, strict=True)}
    with MemmapLoader(joined, 4, shuffle="full", as_tuple=False, transform=crop, size=side) as loader:
        found = {int(row): image for batch in loader for row, image in zip(batch.rows, batch.pixels, strict=True)}
    assert sorted(found) == list(range(len(joined)))
    for row, pixels in found.items():
        which = int(row >= first)
        assert torch.equal(pixels, _crop_of_level(both[which], row - which * first, boxes[row], side))
    assert len(read) > 1


def _crop_of_level(out: Path, row: int, box: torch.Tensor, side: int) -> torch.Tensor:
    """Crop a box of the full row at the smallest level where it has enough pixels, from that level's own store."""
    full = MemmapDataset(out, as_tuple=False)[row].pixels.shape[:2]
    for factor in (4, 2, 1):
        level = MemmapDataset(out if factor == 1 else out / "levels" / str(factor), as_tuple=False)[row]
        at = torch.minimum((box + factor // 2) // factor, torch.tensor([full[1], full[0]] * 2) // factor)
        if level.content is not None:
            y0, x0, y1, x1 = level.content.tolist()
            at = torch.maximum(torch.minimum(at, torch.tensor([x1, y1] * 2)), torch.tensor([x0, y0] * 2))
        if factor == 1 or int((at[2:] - at[:2]).min()) >= side:
            return resized(level.pixels[None], Crops(at[None], side, side))[0]
    raise AssertionError


@pytest.mark.parametrize("threads", [1, 2])
def test_levels_of_joined_stores_are_the_same_wherever_they_are_read_from(
    both: list[Path], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [MemmapDataset(path) for path in both]
    joined = concat(stores).with_targets([*range(15)], classes=list("abcdefghijklmno")).subset([14, 3, 2, 9, 0, 7, 8])
    wanted = batches_of(joined)
    monkeypatch.setattr(OpenedStore, "place", None)
    for residency in RESIDENCIES[1:]:
        assert_equal(batches_of(joined, residency, threads=threads), wanted)


def test_joined_stores_with_masks_read_levels(masked: Path, tmp_path: Path, read: set[int]) -> None:
    images = masked_tree(tmp_path)
    pack(images, tmp_path / "out", fit="none", masks=tmp_path / "masks", levels=2, shuffle=3, workers=1)
    joined = concat([MemmapDataset(masked), MemmapDataset(tmp_path / "out")])
    full = batches_of(joined, size=None)
    wanted = batches_of(joined)
    # a quarter has one of them alone
    assert read == {1, 2}
    for residency in RESIDENCIES[1:]:
        found = batches_of(joined, residency)
        assert_equal(found, wanted, masks=True)
        assert all(torch.equal(a.extras["masks"], b.extras["masks"]) for a, b in zip(found, full, strict=True))


def test_of_joined_stores_of_which_one_has_no_levels_the_rows_are_read_with_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, read: set[int]
) -> None:
    images = make_tree(tmp_path / "images", classes=2, each=6, size=(150, 110))
    pack(images, tmp_path / "a", size=64, levels=2, workers=1)
    pack(images, tmp_path / "b", size=64, workers=1)
    joined = concat([MemmapDataset(tmp_path / "a"), MemmapDataset(tmp_path / "b")])
    assert_equal(batches_of(joined), batches_of(joined, size=None))
    assert not read
    assert f"{tmp_path / 'b'} has no levels, and other stores that it is joined with have" in caplog.text
    assert caplog.text.count("has no levels") == 1


def test_a_level_of_a_joined_store_that_was_packed_again_is_refused(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", classes=2, each=2)
    for name in "ab":
        pack(images, tmp_path / name, size=32, levels=2, workers=1)
    joined = concat([MemmapDataset(tmp_path / name) for name in "ab"])
    sorted(images.rglob("*.jpg"))[0].rename(images / "class1" / "z.jpg")
    pack(images, tmp_path / "b", size=32, levels=2, workers=1, overwrite=True)
    with pytest.raises(StoreError, match="b/levels/2 was packed again since .*b was opened"):
        MemmapLoader(joined, 4, transform=ResizeCenterCrop(8), size=8)


def test_a_row_of_a_level_that_is_of_another_size_is_named_in_its_own_store(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", classes=2, each=4, size=(150, 110))
    for name in "ab":
        pack(images, tmp_path / name, fit="none", levels=2, workers=1)
    shapes = np.memmap(tmp_path / "b/levels/2/_tensordict/shapes.memmap", np.int32, "r+").reshape(-1, 3)
    shapes[5, 0] -= 1
    shapes.flush()
    joined = concat([MemmapDataset(tmp_path / name) for name in "ab"])
    with pytest.raises(StoreError, match=r"^[^+]*b/levels/2: row 5 has"):
        batches_of(joined)


# -- buffers


def test_a_loader_that_is_closed_keeps_no_buffers_of_levels(both: list[Path], masked: Path) -> None:
    for data in (concat([MemmapDataset(path) for path in both]), MemmapDataset(masked)):
        loader = MemmapLoader(data, 5, transform=RandomResizedCrop(8), size=8, residency="ram")
        assert sum(len(targets if isinstance(targets, torch.Tensor) else targets["targets"]) for _, targets in loader)
        rows = loader.gathering.levels
        assert rows is not None
        idle = [weakref.ref(loan.memory) for pool in rows._pools.values() for loan in pool.buffers._idle]
        loader.close()
        gc.collect()
        assert not rows._pools
        assert all(memory() is None for memory in idle)


@pytest.mark.parametrize("classes", [None, ["thing", "other"]])
def test_levels_of_stores_that_are_alike_by_the_targets_they_were_given(
    both: list[Path], classes: list[str] | None, read: set[int]
) -> None:
    given = [MemmapDataset(path) for path in both]
    given = [data.with_targets([n] * len(data), classes=["thing", "other"]) for n, data in enumerate(given)]
    arguments: dict[str, Any] = {"transform": ResizeCenterCrop(8), "size": SIDE}
    with MemmapLoader(concat(given, classes=classes), 30, **arguments) as loader:
        images, targets = next(iter(loader))
    read.clear()
    alone = torch.cat([images for data in given for images, _ in MemmapLoader(data, 4, **arguments)])
    assert torch.equal(images, alone)
    assert targets.tolist() == [0] * len(given[0]) + [1] * len(given[1])


def test_levels_that_are_in_the_page_cache_are_not_read_ahead(both: list[Path]) -> None:
    """All that is read counts, of each store and level."""
    for data in (concat([MemmapDataset(path) for path in both]), MemmapDataset(both[0])):
        for store, _ in data.opened_store.parts:
            for path in store.path.rglob("pixels.memmap"):
                path.read_bytes()
        with MemmapLoader(data, 4, transform=ResizeCenterCrop(8), size=SIDE) as loader:
            assert loader.gathering.levels is not None
            assert loader.gathering.levels.reads.cached_share() == pytest.approx(1)
