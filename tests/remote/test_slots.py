"""A small cache where no holes can be punched: blocks in slots of one file, never more than fit, and never a wrong byte."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Tune, make_tree
from range_server import RangeServer
from torch.utils.data import DataLoader

from packer import pack
from reader import MemmapDataset, MemmapLoader, StoreError, system
from reader.format.manifest import MANIFEST, PIXELS
from reader.remote import block_files, blocks
from reader.remote.block_files import BlockPart, SlotFile
from reader.remote.folder import CacheFolder, Locks
from reader.remote.opening import prepared
from reader.remote.presence import RemoteStore
from reader.remote.table import BlockTable

BLOCK = 8 * 16 * 16 * 3


def _same_rows(remote: MemmapDataset, expected: MemmapDataset, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(2):
        rows = rng.permutation(len(expected))[:64]
        assert torch.equal(remote[rows][0], expected[rows][0])


@pytest.mark.usefixtures("no_holes")
def test_a_cache_below_the_store_is_a_file_of_slots(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK)
    (root,) = tmp_path.iterdir()
    assert remote.path == root
    assert root.name.endswith(".slots")
    assert (root / PIXELS).stat().st_size == 0
    _same_rows(remote, MemmapDataset(many_blocks))
    assert 9 * BLOCK <= (root / PIXELS).stat().st_size <= 10 * BLOCK
    assert not (root / MANIFEST).exists()
    with pytest.raises(StoreError, match="is the cache of a store at a URL, and not complete"):
        MemmapDataset(root)


@pytest.mark.usefixtures("no_holes")
@pytest.mark.parametrize("size", [None, 50 * BLOCK])
def test_a_cache_of_all_blocks_is_a_store(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, size: int | None
) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=size)
    assert torch.equal(remote.store.pixels, MemmapDataset(many_blocks).store.pixels)
    (root,) = tmp_path.iterdir()
    assert torch.equal(MemmapDataset(root)[:][0], MemmapDataset(many_blocks)[:][0])
    # and serves a smaller one, without a block that is fetched
    range_server.asked.clear()
    small = MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK)
    assert small.path == root
    _same_rows(small, MemmapDataset(many_blocks))
    assert {name for name, _, _ in range_server.asked} == {MANIFEST}


def test_where_holes_can_be_punched_there_are_no_slots(range_server: RangeServer, tmp_path: Path) -> None:
    assert block_files.punches_holes(tmp_path)
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK)
    assert remote.remote is not None
    assert not remote.remote.folder.in_slots
    assert (remote.path / PIXELS).stat().st_size == 50 * BLOCK


@pytest.fixture
def ramfs(tmp_path: Path) -> Iterator[Path]:
    """A file system that punches no holes, and says nothing of its size."""
    folder = tmp_path / "ramfs"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "ramfs", "ramfs", folder], capture_output=True).returncode:
        pytest.skip("a ramfs cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_file_system_without_holes_serves_a_small_cache(
    range_server: RangeServer, many_blocks: Path, ramfs: Path
) -> None:
    assert not block_files.punches_holes(ramfs)
    remote = MemmapDataset(range_server.url, cache=ramfs, cache_size=10 * BLOCK)
    assert remote.path.name.endswith(".slots")
    _same_rows(remote, MemmapDataset(many_blocks))
    assert (remote.path / PIXELS).stat().st_size <= 10 * BLOCK


@pytest.mark.usefixtures("no_holes")
@pytest.mark.parametrize("kind", ["own sizes", "compressed", "flat and compressed"])
def test_rows_that_are_not_of_one_size_in_the_file(kind: str, tmp_path: Path, tune: Tune) -> None:

    tune(least_block_inputs=2)
    options = {"fit": "none"} if kind != "compressed" else {"size": 24}
    if "compressed" in kind:
        pytest.importorskip("zstandard")
        options["compress"] = "zstd"
    make_tree(tmp_path / "images", each=12)
    pack(tmp_path / "images", tmp_path / "out", **options)  # type: ignore[arg-type]
    local = MemmapDataset(tmp_path / "out")
    cache = CacheFolder(prepared(f"file://{tmp_path}/out", tmp_path / "other", None)[0])
    size = 8 * cache.largest
    assert size < cache.starts[-1], "the store is too small for this test"
    remote = MemmapDataset(f"file://{tmp_path}/out", cache=tmp_path / "cache", cache_size=size)
    assert remote.remote is not None
    assert remote.remote.folder.in_slots
    for index in (5, -1, slice(3, 30), [20, 1, 35]):
        found, expected = remote[index][0], local[index][0]
        pairs = [(found, expected)] if isinstance(index, int) else zip(found, expected, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert (remote.path / PIXELS).stat().st_size <= size
    for ours, theirs in zip(*(MemmapLoader(data, 5, shuffle=False) for data in (remote, local)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours[0], theirs[0], strict=True))


@pytest.mark.usefixtures("no_holes")
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_of_a_dataloader_read_from_slots(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, context: str
) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=16 * BLOCK)
    remote[0]
    got = [
        images.clone()
        for images, _ in DataLoader(remote, batch_size=25, num_workers=2, multiprocessing_context=context)
    ]
    assert torch.equal(torch.cat(got), MemmapDataset(many_blocks)[:][0])
    assert len([*tmp_path.iterdir()]) == 1


@pytest.mark.usefixtures("no_holes")
def test_it_pickles_with_its_slots(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK)
    range_server.asked.clear()
    again = pickle.loads(pickle.dumps(remote))
    assert again.path == remote.path
    # what was opened here is opened again without a request
    assert not range_server.asked
    _same_rows(again, MemmapDataset(many_blocks))


@pytest.mark.usefixtures("no_holes")
def test_a_reader_stays_with_its_slots(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    """Also where its fetcher is killed, and all of the store is in another file by then."""
    remote, expected = (
        MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK),
        MemmapDataset(many_blocks),
    )
    assert remote.remote is not None
    assert MemmapDataset(range_server.url, cache=tmp_path).store is not None
    fetcher = remote.remote._started()._process
    fetcher.kill()
    fetcher.wait()
    _same_rows(remote, expected)
    assert remote.remote.folder.in_slots


@pytest.mark.usefixtures("no_holes")
def test_a_slot_that_has_another_block_by_now_is_not_taken_for_its_first(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RemoteStore(range_server.url, tmp_path, 10 * BLOCK)
    folder, data, calls = store.folder, (many_blocks / PIXELS).read_bytes(), 0
    read = folder.file.read

    def overtaken(memory: memoryview, parts: list[BlockPart]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            # as another process does that needs room: block 3 leaves, and block 7 comes to its slot
            slot = folder.table.slot(3)
            folder.table.forget([3])
            folder.file.begin([7])
            assert folder.table.slot(7) == slot
            folder.file.write([7], memoryview(data[7 * BLOCK : 8 * BLOCK]))
            folder.table.finish(7)
        read(memory, parts)

    monkeypatch.setattr(folder.file, "read", overtaken)
    memory = memoryview(bytearray(BLOCK))
    store.read(memory, [(3 * BLOCK, BLOCK, 0)])
    assert calls == 2
    assert memory == data[3 * BLOCK : 4 * BLOCK]
    assert folder.table.slot(3) != folder.table.slot(7)


@pytest.mark.usefixtures("no_holes")
def test_a_smaller_cache_size_cuts_the_file(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    expected = MemmapDataset(many_blocks)
    for blocks_of_cache in (40, 9):
        remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=blocks_of_cache * BLOCK)
        _same_rows(remote, expected)
        assert (remote.path / PIXELS).stat().st_size <= blocks_of_cache * BLOCK
    assert len([*tmp_path.iterdir()]) == 1


@pytest.mark.usefixtures("no_holes")
def test_a_file_that_was_cut_short_is_one_sentence(range_server: RangeServer, tmp_path: Path) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK)
    remote[0]
    os.truncate(remote.path / PIXELS, 100)
    with pytest.raises(StoreError, match=rf"{PIXELS} ends at byte 100: it was cut short. Remove {remote.path}$"):
        remote[0]


def _fetcher(url: str, cache: Path, limit: int) -> blocks.BlockFetcher:
    root, source = prepared(url, cache, None, limit)
    return blocks.BlockFetcher(CacheFolder(root), source, limit)


@pytest.mark.usefixtures("no_holes")
def test_a_block_is_marked_behind_its_bytes_and_its_slot_given_behind_that_mark(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So after a power cut no block is there whose slot has other bytes."""
    fetcher, events = _fetcher(range_server.url, tmp_path, 9 * BLOCK), list[str]()

    def seen(kind: object, name: str) -> None:
        called = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given: (events.append(name), called(*given))[1])

    for kind, name in (
        (BlockTable, "forget"),
        (BlockTable, "begin"),
        (BlockTable, "finish"),
        (SlotFile, "write"),
        (os, "fdatasync"),
    ):
        seen(kind, name)  # type: ignore[arg-type]
    for block in range(12):
        fetcher.ensure([block])
    assert events[:4] == ["begin", "write", "fdatasync", "finish"]
    assert events[-5:] == ["forget", "begin", "write", "fdatasync", "finish"]
    assert events.count("forget") == 3


@pytest.mark.usefixtures("no_holes")
def test_a_full_disk_is_one_sentence_and_nothing_is_lost(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = _fetcher(range_server.url, tmp_path, 9 * BLOCK)
    folder = fetcher._folder

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(block_files.os, "pwrite", full)
        with pytest.raises(StoreError, match="cannot be written: No space left on device. Free some space there"):
            fetcher.ensure([3])
    assert not folder.table.has(3)
    fetcher.ensure(range(9))
    memory = memoryview(bytearray(9 * BLOCK))
    folder.file.read(memory, folder.parts(0, 9 * BLOCK, 0))
    assert memory == (many_blocks / PIXELS).read_bytes()[: 9 * BLOCK]
    assert folder.pixels.stat().st_size == 9 * BLOCK


def test_a_disk_that_is_too_full_to_be_asked_is_one_sentence(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(block_files.tempfile, "TemporaryFile", full)
    with pytest.raises(StoreError, match="cannot be written: No space left on device. Free some space there"):
        prepared(range_server.url, tmp_path, None, 10 * BLOCK)


def test_a_slot_comes_and_goes_with_the_number_of_its_block(tmp_path: Path) -> None:
    (tmp_path / "blocks").write_bytes(BlockTable.empty(3))
    table, again = BlockTable(tmp_path / "blocks", 3), BlockTable(tmp_path / "blocks", 3)
    for slot in (0, 7, (1 << 25) - 1):
        table.begin(1, slot)
        assert (again.slot(1), again.is_writing(1), again.has(1)) == (slot, True, False)
        table.finish(1)
        assert (again.slot(1), again.is_writing(1), again.has(1)) == (slot, False, True)
        assert again.slot_of(again.number(1)) == slot
    assert table.age(1) == 3


def test_a_system_without_holes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_libc", lambda: None)
    assert not block_files.punches_holes(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_block_that_is_started_while_it_is_thought_abandoned_keeps_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = object.__new__(blocks.BlockFetcher)
    fetcher._locks, fetcher._changed, fetcher._under_way = Locks(tmp_path / "lock"), threading.Condition(), set()
    take = fetcher._locks.take

    def begin() -> None:
        """Do as a thread of the fetcher that comes to the block."""
        with fetcher._changed:
            fetcher._under_way.add(7)
        take(7)

    other = threading.Thread(target=begin)

    def taken(block: int) -> bool:
        is_taken = take(block)
        other.start()
        other.join(0.3)
        return is_taken

    monkeypatch.setattr(fetcher._locks, "take", taken)
    fetcher._is_abandoned(7)
    other.join(10)
    program = "import sys; from reader.remote.folder import Locks; print(Locks(sys.argv[1]).take(7))"
    asked = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "lock"], capture_output=True, text=True, check=True, timeout=60
    )
    # by another process
    assert asked.stdout.strip() == "False"
