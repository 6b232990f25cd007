"""A cache of a URL whose processes end at any moment, by a kill or a power cut: whoever reads through it gets the right rows.

What a cache does to its disk is recorded call by call; what the disk may hold at each moment follows from that. How blocks
are kept there plays no part.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import random
import shutil
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from packer import pack_dataset
from reader import MemmapDataset, StoreError
from tests.crash.calls import Call, Shim, needs_shim
from tests.crash.disk import Disk, Tree, write_tree

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")

pytestmark = needs_shim

ROWS, SIDE = 96, 16
# room for the 12 blocks of the store, and for 8: others leave
UNLIMITED, SMALL = None, 8 * 8 * SIDE * SIDE * 3
_WRITES, _SYNCS = ("write", "pwrite"), ("fsync", "fdatasync", "msync")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@functools.cache
def store(folder: Path) -> tuple[str, np.ndarray]:
    """Make a store in blocks of 8 rows; returns its URL, and the rows."""
    images = np.random.default_rng(0).integers(1, 256, (ROWS, SIDE, SIDE, 3), dtype=np.uint8)
    pack_dataset([(image, n % 3) for n, image in enumerate(images)], folder / "store", size=SIDE)
    return (folder / "store").as_uri(), images


def check_rows(url: str, images: np.ndarray, cache: Path, size: int | None) -> None:
    """Read all rows through a cache: of a small one, blocks leave meanwhile."""
    rows = random.Random(0).sample(range(ROWS), ROWS)
    read, _ = MemmapDataset(url, cache=cache, cache_size=size)[rows]
    assert (read.movedim(1, -1).numpy() == images[rows]).all()


@dataclass(frozen=True)
class Recorded:
    """What reading all rows does to a disk, which holds what `start` does before, and the cache behind it."""

    disk: Path
    start: Path
    calls: list[Call]

    def trees(self, cuts: Container[int]) -> Iterator[Tree]:
        """Yield what a power cut behind so many calls may leave, each once."""
        self.lay_out()
        disk, seen = Disk(self.disk), list[Tree]()
        for at, call in enumerate(self.calls, 1):
            disk.apply(call)
            if at in cuts:
                for tree in (disk.only_synced(), disk.all_names(), disk.everything(), *disk.apart()):
                    if tree not in seen:
                        seen.append(tree)
                        yield tree

    def lay_out(self) -> None:
        """Bring the disk to where the record begins."""
        shutil.rmtree(self.disk)
        shutil.copytree(self.start, self.disk)


@contextlib.contextmanager
def recording(shim: Shim, *, at: int = 0, do: str = "") -> Iterator[None]:
    """Have the processes that are started meanwhile recorded, or one of them die."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in shim.variables(at=at, do=do).items():
            patch.setenv(name, value)
        yield
    # a fetcher ends with who asked it
    gc.collect()


@functools.cache
def recorded(folder: Path, size: int | None, is_new: bool) -> Recorded:
    """Record a cache that is new, or was opened and closed before."""
    (url, images), work = store(folder), folder / f"{size}-{is_new}"
    disk, start = work / "disk", work / "start"
    disk.mkdir(parents=True)
    if not is_new:
        MemmapDataset(url, cache=disk / "cache", cache_size=size)
        gc.collect()
    shutil.copytree(disk, start)
    shim = Shim(work, disk)
    with recording(shim):
        check_rows(url, images, disk / "cache", size)
    return Recorded(disk, start, shim.changes())


def spread(numbers: Sequence[int], count: int) -> set[int]:
    """Return so many of the numbers, evenly spread."""
    return {numbers[len(numbers) * (2 * n + 1) // (2 * count)] for n in range(count)}


@pytest.mark.parametrize(
    ("size", "cuts"),
    [(UNLIMITED, 2), (SMALL, 2), *(pytest.param(size, 8, marks=pytest.mark.nightly) for size in (UNLIMITED, SMALL))],
)
def test_rows_are_right_after_a_power_cut(folder: Path, size: int | None, cuts: int) -> None:
    (url, images), found = store(folder), recorded(folder, size, is_new=False)
    changes = [(at, call.name) for at, call in enumerate(found.calls) if call.name in (*_WRITES, *_SYNCS)]
    # before what was just written is synced
    unsynced = [at for (_, last), (at, name) in itertools.pairwise(changes) if last in _WRITES and name in _SYNCS]
    freed = [at for at, call in enumerate(found.calls, 1) if call.name == "unlink"]
    chosen = spread(unsynced, cuts) | (spread(freed, cuts) if freed else set())
    for number, tree in enumerate(found.trees(chosen)):
        left = found.disk.parent / f"left-{cuts}-{number}"
        write_tree(tree, left)
        check_rows(url, images, left / "cache", size)
    assert number >= len(chosen)


@pytest.mark.parametrize("size", [UNLIMITED, SMALL])
@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.nightly)])
def test_rows_are_right_after_a_kill(folder: Path, size: int | None, kills: int) -> None:
    (url, images), found = store(folder), recorded(folder, size, is_new=True)
    shim = Shim(found.disk.parent, found.disk)
    deaths = 0
    for at in spread(range(1, sum(call.name != "mapped" for call in found.calls)), kills):
        found.lay_out()
        try:
            with recording(shim, at=at, do="die alone"):
                check_rows(url, images, found.disk / "cache", size)
        except StoreError as e:
            if "was killed" not in str(e):
                raise
            deaths += 1
        check_rows(url, images, found.disk / "cache", size)
    # how many calls there are is up to threads
    assert deaths


@pytest.mark.parametrize("size", [UNLIMITED, SMALL])
def test_a_file_of_a_cache_is_synced_before_it_gets_its_name(folder: Path, size: int | None) -> None:
    unsynced, renamed = set[str](), 0
    for call in recorded(folder, size, is_new=True).calls:
        if call.name == "write":
            unsynced.add(call.path)
        if call.name in ("fsync", "fdatasync"):
            unsynced.discard(call.path)
        if call.name == "rename":
            assert call.path not in unsynced
            renamed += 1
    assert renamed > 6


def test_rows_are_right_after_a_power_cut_of_a_new_cache(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (url, images), found = store(folder), recorded(folder, UNLIMITED, is_new=True)
    for number, tree in enumerate(found.trees(spread(range(1, len(found.calls) + 1), 5))):
        left = found.disk.parent / f"left-{number}"
        write_tree(tree, left)
        check_rows(url, images, left / "cache", UNLIMITED)
    # none was dropped for having been damaged
    assert capfd.readouterr().err == ""


def test_what_is_stored_in_a_mapping_has_its_room_on_the_disk_before(folder: Path) -> None:
    room = set[str]()
    for call in recorded(folder, UNLIMITED, is_new=True).calls:
        if call.name in ("fallocate", "write", "pwrite"):
            room.add(call.path)
        if call.name == "rename" and call.path in room:
            room.add(call.to)
        assert call.name != "mapped" or call.path in room
