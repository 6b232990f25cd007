"""Sizes of crops: fixed, set, of an epoch; in the state; and read from the smallest level that has the pixels of the box."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, make_tree
from PIL import Image
from reader.loading.levels import LevelRows

from packer import pack, push
from reader import (
    Compose,
    ConstantPixels,
    MemmapDataset,
    MemmapLoader,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
    StoreError,
)
from reader.compiled import Crops
from reader.dataset.opened_store import OpenedStore
from reader.loading import levels
from reader.memory.raw_file import RawFile
from reader.memory.residency import Reads
from reader.rows import Rows
from reader.transforms.kernels.resample import resized


def shapes(loader: MemmapLoader) -> set[tuple[int, ...]]:
    return {tuple(images.shape[2:]) for images, _ in loader}


def test_a_size_replaces_that_of_the_crops(train: MemmapDataset) -> None:
    crops = Compose([RandomResizedCrop(8), RandomHorizontalFlip()])
    loader = MemmapLoader(train, 30, transform=crops, size=16)
    assert shapes(loader) == {(16, 16)}
    loader.set_size((12, 20))
    assert shapes(loader) == {(12, 20)}
    # what is drawn does not depend on the size
    alone = MemmapLoader(train, 30, transform=Compose([RandomResizedCrop((12, 20)), RandomHorizontalFlip()]))
    alone.set_epoch(2)
    for (images, _), (others, _) in zip(loader, alone, strict=True):
        assert torch.equal(images, others)
    assert (crops.transforms[0].height, shapes(MemmapLoader(train, 30, transform=crops))) == (8, {(8, 8)})


def test_a_size_is_asked_for_where_a_pass_begins_and_not_for_its_steps(train: MemmapDataset) -> None:
    """A schedule of sizes ends with the last epoch; len, rows and samplers go on."""
    sides = [8, 12]
    loader = MemmapLoader(
        train, 30, shuffle=True, seed=0, transform=RandomResizedCrop(8), size=lambda epoch: sides[epoch]
    )
    assert [shapes(loader) for _ in sides] == [{(8, 8)}, {(12, 12)}]
    assert len(loader) == len(loader.batch_sampler) == -(-len(train) // 30)
    assert len([*loader.sampler]) == len(train)
    row = int(loader.rows(5, 0)[0])
    assert (5, 0) in loader.steps_of(row, {**loader.state_dict(), "epoch": 6, "position": 0})
    with pytest.raises(IndexError):
        iter(loader)


def test_a_size_is_a_function_of_the_epoch(train: MemmapDataset) -> None:
    loader = MemmapLoader(train, 45, transform=ResizeCenterCrop(32), size=lambda epoch: (8, 8, 12, 16)[epoch])
    assert [shapes(loader) for _ in range(4)] == [{(side, side)} for side in (8, 8, 12, 16)]
    loader.set_epoch(2)
    assert shapes(loader) == {(12, 12)}


def test_a_state_has_the_size_of_its_epoch(train: MemmapDataset) -> None:
    def made() -> MemmapLoader:
        return MemmapLoader(train, 30, transform=RandomResizedCrop(8), size=16, shuffle=True)

    loader, again = made(), made()
    loader.set_size(20)
    iteration = iter(loader)
    next(iteration)
    state = loader.state_dict()
    assert (state["height"], state["width"]) == (20, 20)
    again.load_state_dict(state)
    for (images, _), (others, _) in zip(iteration, again, strict=True):
        assert images.shape[2:] == (20, 20)
        assert torch.equal(images, others)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 16}, "size= is that of RandomResizedCrop and ResizeCenterCrop, and the transform is None"),
        (
            {"size": 16, "transform": Compose([RandomHorizontalFlip()])},
            "there is no RandomResizedCrop or ResizeCenterCrop",
        ),
        ({"size": 0, "transform": ResizeCenterCrop(8)}, "size is 0 in epoch 0, expected pixels"),
        ({"size": lambda epoch: "a", "transform": ResizeCenterCrop(8)}, "size is 'a' in epoch 0, expected pixels"),
    ],
)
def test_a_size_that_cannot_be_is_refused(train: MemmapDataset, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemmapLoader(train, 8, **arguments)


def test_a_size_cannot_be_set_of_a_loader_without_one(train: MemmapDataset) -> None:
    with pytest.raises(ValueError, match="the loader was made without size="):
        MemmapLoader(train, 8, transform=ResizeCenterCrop(8)).set_size(4)
    loader = MemmapLoader(train, 8, transform=ResizeCenterCrop(8), size=16)
    with pytest.raises(ValueError, match="expected pixels"):
        loader.set_size(-1)
    assert shapes(loader) == {(16, 16)}


def test_a_compose_without_a_crop_may_stand_behind_the_crop(train: MemmapDataset) -> None:
    crops = Compose([RandomResizedCrop(8), Compose([RandomHorizontalFlip()])])
    assert shapes(MemmapLoader(train, 30, transform=crops, size=16)) == {(16, 16)}


def test_a_size_that_is_set_while_an_epoch_runs_is_for_the_next_one_also_in_a_state(train: MemmapDataset) -> None:
    def made() -> MemmapLoader:
        return MemmapLoader(train, 30, transform=RandomResizedCrop(8), size=16)

    loader, again = made(), made()
    iteration = iter(loader)
    next(iteration)
    loader.set_size(24)
    again.load_state_dict(loader.state_dict())
    assert again.state_dict() == loader.state_dict()
    assert {tuple(images.shape[2:]) for images, _ in iteration} == shapes(again) == {(16, 16)}
    assert shapes(again) == shapes(loader) == {(24, 24)}


def test_a_state_behind_the_last_epoch_asks_a_function_for_no_size(train: MemmapDataset) -> None:
    loader = MemmapLoader(train, 30, transform=ResizeCenterCrop(8), size=[16, 24].__getitem__)
    assert [shapes(loader) for _ in range(2)] == [{(16, 16)}, {(24, 24)}]
    assert loader.state_dict()["epoch"] == 2


# -- rows a batch that follow the size


def ramped(train: MemmapDataset, **options: Any) -> MemmapLoader:
    """Make a loader whose epochs 0, 1 and 2 have crops of 8, 12 and 16 pixels, in batches of 24, 10 and 6 rows a rank."""
    rows = ConstantPixels(6, 16, multiple=2)
    options = {"shuffle": "full", "as_tuple": False} | options
    return MemmapLoader(
        train, rows, transform=RandomResizedCrop(32), size=lambda epoch: (8, 12, 16)[min(epoch, 2)], **options
    )


def test_constant_pixels_are_rows_by_the_area() -> None:
    rows = ConstantPixels(64, 160, multiple=8)
    assert [rows(side, side) for side in (160, 128, 224, 2000)] == [64, 96, 32, 8]
    assert rows(80, 160) == 128


@pytest.mark.parametrize("arguments", [(0, 8), (8, 0), (8, 8, 0), (12, 8, 8)])
def test_constant_pixels_that_are_none_are_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected numbers of 1 or more, and rows that multiple= divides"):
        ConstantPixels(*arguments)


@pytest.mark.parametrize("drop_last", [False, True])
def test_rows_a_batch_follow_the_size_of_their_epoch(train: MemmapDataset, drop_last: bool) -> None:
    loader = ramped(train, drop_last=drop_last)
    count = len(train)
    for side, rows in ((8, 24), (12, 10), (16, 6)):
        steps = count // rows if drop_last else -(-count // rows)
        assert len(loader) == steps
        seen = []
        for batch in loader:
            # of the epoch that runs, to its last batch
            assert (len(loader), loader.batch_size) == (steps, rows)
            seen.append(batch)
        assert [len(batch) for batch in seen[:-1]] == [rows] * (steps - 1)
        assert {batch.images.shape[2:] for batch in seen} == {(side, side)}
        if not drop_last:
            assert sorted(torch.cat([batch.rows for batch in seen]).tolist()) == list(range(count))


def test_ranks_have_steps_of_the_same_rows(train: MemmapDataset) -> None:
    loaders = [ramped(train, rank=rank, world_size=3, drop_last=True) for rank in range(3)]
    for rows in (24, 10, 6):
        seen = [list(loader) for loader in loaders]
        assert len({tuple(len(batch) for batch in batches) for batches in seen}) == 1
        assert {len(batch) for batches in seen for batch in batches} == {rows}
        taken = torch.cat([batch.rows for batches in seen for batch in batches])
        assert len(taken.unique()) == len(taken)


def test_an_epoch_is_resumed_in_its_middle_in_batches_of_its_size(train: MemmapDataset) -> None:
    loader, again = ramped(train), ramped(train)
    list(loader)
    iteration = iter(loader)
    next(iteration)
    again.load_state_dict(loader.state_dict())
    assert len(again) == len(loader)
    rest = list(zip(iteration, again, strict=True))
    assert len(rest) == len(train) // 10 - 1
    for one, other in rest:
        assert torch.equal(one.pixels, other.pixels)
    assert loader.state_dict() == again.state_dict()
    assert (len(again), len(loader.batch_sampler)) == (len(train) // 6, len(train) // 6)
    positions = list(loader.batch_sampler)
    assert {len(found) for found in positions} == {6}


def test_a_pass_keeps_its_batches_when_another_size_is_set(train: MemmapDataset) -> None:
    rows = ConstantPixels(10, 16, multiple=5)
    loader = MemmapLoader(train, rows, transform=ResizeCenterCrop(32), size=16, drop_last=True)
    iteration = iter(loader)
    sizes = [len(next(iteration)[1])]
    loader.set_size(8)
    other = iter(loader)
    sizes += [len(targets) for _, targets in iteration]
    assert (set(sizes), len(sizes)) == ({10}, len(train) // 10)
    assert {len(targets) for _, targets in other} == {40}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "batch_size is a function of the size of crops: give the loader size= too, or a number"),
        (
            {"size": 8, "transform": ResizeCenterCrop(8), "made": 2.5},
            "batch_size of crops of 8 x 8 is 2.5, expected an integer",
        ),
        ({"size": 8, "transform": ResizeCenterCrop(8), "made": 0}, "batch_size is 0, expected 1 or more"),
    ],
)
def test_rows_a_batch_that_cannot_be_are_refused(train: MemmapDataset, arguments: dict[str, Any], message: str) -> None:
    made = arguments.pop("made", 4)
    with pytest.raises(ValueError, match=message):
        MemmapLoader(train, lambda height, width: made, **arguments)


# -- levels


LEVELED: dict[str, dict[str, Any]] = {
    "equal": {"size": (64, 96)},
    "own": {"fit": "none"},
    "padded": {"size": 64, "fit": "pad", "compress": True},
    "jpeg": {"size": 64, "compress": "jpeg:95"},
}


@pytest.fixture(scope="module", params=LEVELED)
def leveled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 rows with levels; a test that is for some kinds of rows names them."""
    if "compress" in LEVELED[request.param]:
        pytest.importorskip("zstandard")
    folder = tmp_path_factory.mktemp("leveled")
    make_tree(folder / "images", classes=2, each=6, size=(150, 110))
    pack(folder / "images", folder / "out", levels=3, workers=1, **LEVELED[request.param])
    return folder / "out"


class Seen:
    """Counts the rows that are read of each level."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[int, list[int]] = {1: [], 2: [], 4: []}
        read = levels.LevelRows.read

        def seen(source: levels.LevelRows, rows: Rows, factor: int, *places: Any) -> Any:
            self.rows[factor] += rows.tolist()
            return read(source, rows, factor, *places)

        monkeypatch.setattr(levels.LevelRows, "read", seen)


def expected(out: Path, row: int, box: torch.Tensor, side: int) -> tuple[torch.Tensor, int]:
    """Crop a box of the full row at the smallest level where it has enough pixels, from that level's own store."""
    full = MemmapDataset(out, as_tuple=False)[row].pixels.shape[:2]
    for factor in (4, 2, 1):
        level = MemmapDataset(out if factor == 1 else out / "levels" / str(factor), as_tuple=False)
        most = torch.tensor([full[1], full[0]] * 2) // factor
        at = torch.minimum((box + factor // 2) // factor, most)
        if (content := level[row].content) is not None:
            y0, x0, y1, x1 = content.tolist()
            at = torch.maximum(torch.minimum(at, torch.tensor([x1, y1] * 2)), torch.tensor([x0, y0] * 2))
        if factor == 1 or (int((at[2:] - at[:2]).min())) >= side:
            wanted = resized(level[row].pixels[None], Crops(at[None], side, side))[0]
            # by floats: within 1 of antialiased resizing of what is on that level
            x0, y0, x1, y1 = at.tolist()
            part = level[row].pixels[y0:y1, x0:x1].movedim(-1, 0)[None].float()
            true = torch.nn.functional.interpolate(part, (side, side), mode="bilinear", antialias=True)
            assert (wanted.movedim(-1, 0)[None].float() - true.round()).abs().max() <= 1
            return wanted, factor
    raise AssertionError


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("side", [8, 16, 40])
def test_random_crops_read_the_smallest_level_that_has_their_pixels(
    leveled: Path, side: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, crop = Seen(monkeypatch), RandomResizedCrop(99, scale=(0.2, 1.0))
    data = MemmapDataset(leveled)
    arguments: dict[str, Any] = {"shuffle": "full", "as_tuple": False, "threads": threads}
    full = MemmapLoader(data, 5, transform=lambda batch: (crop.boxes(batch), batch.rows), **arguments)
    boxes = {int(row): box for found, rows in full for row, box in zip(rows, found, strict=True)}
    assert seen.rows == {1: [], 2: [], 4: []}
    loader = MemmapLoader(data, 5, transform=Compose([crop]), size=side, **arguments)
    assert loader.residency == "cache"
    used: dict[int, list[int]] = {1: [], 2: [], 4: []}
    for batch in loader:
        for row, pixels in zip(batch.rows.tolist(), batch.pixels, strict=True):
            wanted, factor = expected(leveled, row, boxes[row], side)
            assert torch.equal(pixels, wanted)
            used[factor].append(row)
    assert {factor: sorted(rows) for factor, rows in seen.rows.items()} == {f: sorted(rows) for f, rows in used.items()}
    if side == 8:
        assert len(used[4]) > len(used[1])


def test_central_crops_read_a_level_too(leveled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, data = Seen(monkeypatch), MemmapDataset(leveled)
    small = torch.cat([images for images, _ in MemmapLoader(data, 5, transform=ResizeCenterCrop(9, 0.9), size=12)])
    assert seen.rows[1] == []
    # of a padded row the content decides, which is 47 of 64 lines: 11 of the quarter
    assert sorted(seen.rows[2 if data.manifest.has_content else 4]) == list(range(12))
    plain = torch.cat([images for images, _ in MemmapLoader(data, 5, transform=ResizeCenterCrop(12, 0.9))])
    assert (small.float() - plain.float()).abs().mean() < 12


@pytest.mark.parametrize("leveled", ["equal", "padded", "jpeg"], indirect=True)
def test_what_comes_before_a_crop_sees_full_rows(leveled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, data = Seen(monkeypatch), MemmapDataset(leveled)
    steps = [RandomHorizontalFlip(), RandomResizedCrop(8)]
    one = MemmapLoader(data, 12, transform=Compose(steps), size=8)
    other = MemmapLoader(data, 12, transform=Compose(steps))
    assert torch.equal(next(iter(one))[0], next(iter(other))[0])
    assert seen.rows == {1: [], 2: [], 4: []}


def test_another_transform_without_a_crop_first_is_refused(leveled: Path) -> None:
    class Mine(RandomResizedCrop):
        """Looks at pixels before it crops."""

    data = MemmapDataset(leveled)
    loader = MemmapLoader(data, 12, transform=RandomResizedCrop(8), size=8)
    loader.transform = Compose([RandomHorizontalFlip(), RandomResizedCrop(8)])
    with pytest.raises(ValueError, match="Make another loader"):
        next(iter(loader))
    assert MemmapLoader(data, 12, transform=Mine(8), size=8).gathering.levels is None


def test_subsets_and_relabeled_rows_read_levels(leveled: Path) -> None:
    data = MemmapDataset(leveled).with_targets([5] * 12, classes=list("abcdef")).subset([7, 2, 9])
    found = [(images, targets) for images, targets in MemmapLoader(data, 3, transform=ResizeCenterCrop(8), size=8)]
    plain = next(iter(MemmapLoader(MemmapDataset(leveled).subset([7, 2, 9]), 3, transform=ResizeCenterCrop(8), size=8)))
    assert found[0][1].tolist() == [5, 5, 5]
    assert torch.equal(found[0][0], plain[0])


@pytest.mark.parametrize("leveled", ["equal", "jpeg"], indirect=True)
def test_a_small_crop_of_the_quarter_is_that_of_the_level_alone(leveled: Path) -> None:
    level = MemmapDataset(leveled / "levels" / "4", as_tuple=False)
    data = MemmapDataset(leveled)
    small = next(iter(MemmapLoader(data, 12, transform=ResizeCenterCrop(8), size=8)))[0]
    alone = next(iter(MemmapLoader(level, 12, transform=ResizeCenterCrop(8))))[0]
    assert torch.equal(small, alone)


def test_a_second_crop_cuts_what_the_first_one_made(leveled: Path, tmp_path: Path) -> None:
    steps = [ResizeCenterCrop(9), RandomResizedCrop(9, scale=(0.2, 0.5))]
    data = MemmapDataset(leveled)
    first = next(iter(MemmapLoader(data, 12, transform=steps[0], size=16, as_tuple=False)))
    both = next(iter(MemmapLoader(data, 12, transform=Compose(steps), size=16)))[0]
    assert torch.equal(both, RandomResizedCrop(16, scale=(0.2, 0.5))(first).images)


def test_no_crop_of_a_level_reaches_into_its_padding(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for n in range(3):
        Image.new("RGB", (150, 110 + n), (200, 200, 200)).save(tmp_path / "images" / f"{n}.png")
    pack(tmp_path / "images", tmp_path / "out", levels=3, workers=1, size=64, fit="pad")
    for side in (8, 20):
        images = next(iter(MemmapLoader(MemmapDataset(tmp_path / "out"), 3, transform=ResizeCenterCrop(8), size=side)))[
            0
        ]
        assert images.min() > 190


def test_levels_of_a_store_that_took_the_name_of_an_open_one_are_refused(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=2, each=2)
    pack(tmp_path / "images", tmp_path / "out", size=32, levels=2, workers=1)
    data = MemmapDataset(tmp_path / "out")
    one = sorted((tmp_path / "images").rglob("*.jpg"))[0]
    one.rename(tmp_path / "images" / "class1" / "z.jpg")
    pack(tmp_path / "images", tmp_path / "out", size=32, levels=2, workers=1, overwrite=True)
    with pytest.raises(StoreError, match="levels/2 was packed again since .* was opened. Open the dataset again"):
        MemmapLoader(data, 4, transform=ResizeCenterCrop(8), size=8)


# -- levels, wherever rows are read from


def batches_of(data: MemmapDataset, **arguments: Any) -> list[tuple[Any, Any]]:
    """Return rows and pixels of two epochs of small crops, of all levels."""
    crop = Compose([RandomResizedCrop(99, scale=(0.1, 1.0)), RandomHorizontalFlip()])
    with MemmapLoader(data, 3, transform=crop, size=12, as_tuple=False, **arguments) as loader:
        return [(batch.rows.tolist(), batch.pixels) for _ in range(2) for batch in loader]


def assert_equal(found: list[tuple[Any, Any]], wanted: list[tuple[Any, Any]]) -> None:
    assert [rows for rows, _ in found] == [rows for rows, _ in wanted]
    for (_, pixels), (_, others) in zip(found, wanted, strict=True):
        assert torch.equal(pixels, others)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", ["full", "block"])
def test_levels_read_from_the_disk_and_from_memory_are_those_of_the_page_cache(
    leveled: Path, order: str, threads: int, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = MemmapDataset(leveled)
    tune(shuffle_block_bytes=2 * data.manifest.row_bytes, shuffle_window_blocks=2)
    # chunks of a few batches
    tune(window_ahead_bytes=4 * data.manifest.row_bytes)
    arguments: dict[str, Any] = {"shuffle": order, "threads": threads}
    wanted = batches_of(data, residency="cache", **arguments)
    monkeypatch.setattr(OpenedStore, "place", _none)
    for residency in ("ram", "disk"):
        assert_equal(batches_of(data, residency=residency, **arguments), wanted)


def _none(*_: Any) -> None:
    raise AssertionError("rows were read when a crop asked for them")


def test_a_cold_file_of_levels_is_read_ahead(leveled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MemmapDataset(leveled)
    wanted = batches_of(data)
    monkeypatch.setattr(Reads, "are_cold", lambda *_: True)
    monkeypatch.setattr(OpenedStore, "place", _none)
    monkeypatch.setattr(LevelRows, "levels_to_read", _of_all_levels(LevelRows.levels_to_read))
    assert_equal(batches_of(data, residency="cache"), wanted)


def _of_all_levels(asked: Any) -> Any:
    def levels_to_read(rows: LevelRows) -> set[int]:
        found: set[int] = asked(rows)
        assert found == {1, 2, 4}
        return found

    return levels_to_read


def test_of_levels_those_that_are_not_in_the_page_cache_are_read_ahead(
    leveled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, opened = MemmapDataset(leveled), []
    wanted = batches_of(data)
    monkeypatch.setattr(Reads, "are_cold", lambda reads, source: "levels/4" in str(reads.path))
    given = levels.open_raw

    def open_raw(*arguments: Any, **options: Any) -> Any:
        opened.append(arguments)
        return given(*arguments, **options)

    monkeypatch.setattr(levels, "open_raw", open_raw)
    assert_equal(batches_of(data, residency="cache"), wanted)
    # once an epoch; the content of padded rows has too few pixels on the quarter
    assert len(opened) == (0 if data.manifest.has_content else 2)


@pytest.mark.parametrize("threads", [1, 2])
def test_levels_are_there_when_the_crops_of_a_batch_begin(
    leveled: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that wait for one read: one of them would wait forever."""
    data, read = MemmapDataset(leveled), RawFile.read_pieces
    wanted = batches_of(data, residency="cache")

    left = [0.05] * 4

    def late(*arguments: Any) -> None:
        if left:
            time.sleep(left.pop())
        read(*arguments)

    monkeypatch.setattr(RawFile, "read_pieces", late)
    monkeypatch.setattr(OpenedStore, "place", _none)
    assert_equal(batches_of(data, residency="disk", threads=threads), wanted)


def test_what_was_not_read_ahead_is_read_when_a_crop_asks(leveled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MemmapDataset(leveled)
    wanted = batches_of(data, residency="cache")
    monkeypatch.setattr(levels.LevelsAhead, "_planned", lambda *_: {1: np.array([0])})
    assert_equal(batches_of(data, residency="disk"), wanted)


def test_a_loop_that_ends_early_ends_the_reads_of_levels(leveled: Path) -> None:
    with MemmapLoader(
        MemmapDataset(leveled), 2, transform=RandomResizedCrop(8), size=8, residency="disk", shuffle="full"
    ) as loader:
        for _ in range(3):
            next(iter(loader))
        assert sum(len(targets) for _, targets in loader) == 12


def test_a_level_that_is_damaged_is_named_wherever_it_is_read_from(leveled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(leveled, out)
    data = MemmapDataset(out)
    pixels = out / "levels/4/_tensordict/pixels.memmap"
    for residency in ("cache", "disk"):
        loader = MemmapLoader(data, 6, transform=ResizeCenterCrop(8), size=8, residency=residency)
        size = pixels.stat().st_size
        os.truncate(pixels, size // 2)
        with pytest.raises(StoreError, match="levels/4"):
            list(loader)
        os.truncate(pixels, size)


@pytest.mark.cuda
@pytest.mark.parametrize("residency", ["cache", "disk", "ram"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_crops_of_levels_on_cuda_are_those_of_the_cpu(leveled: Path, residency: str, prefetch: int) -> None:
    data = MemmapDataset(leveled)
    arguments: dict[str, Any] = {"shuffle": "full", "residency": residency, "prefetch": prefetch}
    found = batches_of(data, device="cuda", **arguments)
    assert {pixels.device.type for _, pixels in found} == {"cuda"}
    assert_equal([(rows, pixels.cpu()) for rows, pixels in found], batches_of(data, **arguments))
    # where nothing comes behind the crop
    with MemmapLoader(data, 12, transform=ResizeCenterCrop(9), size=12, device="cuda", residency=residency) as loader:
        images, targets = next(iter(loader))
    plain, labels = next(iter(MemmapLoader(data, 12, transform=ResizeCenterCrop(9), size=12)))
    assert torch.equal(images.cpu(), plain)
    assert torch.equal(targets.cpu(), labels)


@pytest.mark.parametrize("leveled", ["padded", "jpeg"], indirect=True)
def test_levels_of_a_store_at_a_url_are_fetched_instead_of_its_rows(leveled: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    push(leveled, (tmp_path / "far").as_uri())
    wanted = batches_of(MemmapDataset(leveled), shuffle="block")
    data = MemmapDataset((tmp_path / "far").as_uri(), cache=tmp_path / "cache")
    assert_equal(batches_of(data, shuffle="block"), wanted)
    small = MemmapDataset((tmp_path / "far").as_uri(), cache=tmp_path / "other")
    with MemmapLoader(small, 12, transform=ResizeCenterCrop(8), size=8) as loader:
        assert next(iter(loader))[0].shape[2:] == (8, 8)
    assert small.remote is not None
    # what has enough pixels on a level is not fetched of the store
    assert small.remote.folder.present_bytes() == 0


def test_levels_that_were_packed_straight_to_a_url_are_read_there(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    images = make_tree(tmp_path / "images", classes=2, each=6, size=(150, 110))
    far = (tmp_path / "far").as_uri()
    for out in (far, tmp_path / "near"):
        pack(images, out, size=64, levels=3, workers=1)
    data = MemmapDataset(far, cache=tmp_path / "cache")
    assert_equal(batches_of(data, shuffle="block"), batches_of(MemmapDataset(tmp_path / "near"), shuffle="block"))
    with MemmapLoader(data, 12, transform=ResizeCenterCrop(8), size=8, residency="ram") as loader:
        assert next(iter(loader))[0].shape[2:] == (8, 8)


@pytest.mark.parametrize("leveled", ["own"], indirect=True)
def test_levels_of_a_store_at_a_url_fit_beside_a_small_cache(leveled: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    push(leveled, (tmp_path / "far").as_uri())
    data = MemmapDataset((tmp_path / "far").as_uri(), cache=tmp_path / "cache", cache_size="1MB")
    assert_equal(batches_of(data, shuffle="block"), batches_of(MemmapDataset(leveled), shuffle="block"))
