"""A cache that cannot hold all of a store: a file for each block, never more than fit, and never a wrong byte."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Tune, make_tree
from range_server import RangeServer
from torch.utils.data import DataLoader

from packer import pack
from reader import MemmapDataset, MemmapLoader, StoreError
from reader.format.manifest import MANIFEST, PIXELS
from reader.remote.block_files import BlockFiles, BlockPart
from reader.remote.blocks import BlockFetcher
from reader.remote.folder import CacheFolder
from reader.remote.opening import prepared
from reader.remote.presence import RemoteStore

BLOCK = 8 * 16 * 16 * 3


def _same_rows(remote: MemmapDataset, expected: MemmapDataset, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(2):
        rows = rng.permutation(len(expected))[:64]
        assert torch.equal(remote[rows][0], expected[rows][0])


def _held_bytes(root: Path) -> int:
    """The bytes of all files of blocks, those without a name among them."""
    return sum(path.stat().st_size for path in [*root.glob("blocks/*/*"), *root.glob(".remote/.[0-9]*")])


def _fetcher(url: str, cache: Path, limit: int) -> BlockFetcher:
    root, source = prepared(url, cache, None, limit)
    return BlockFetcher(CacheFolder(root), source, limit)


def test_a_cache_below_the_store_has_a_file_for_each_block(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    remote, expected = (
        MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK),
        MemmapDataset(many_blocks),
    )
    (root,) = tmp_path.iterdir()
    assert remote.path == root
    assert root.name.endswith(".blocks")
    rng = np.random.default_rng(1)
    for _ in range(6):
        rows = rng.permutation(400)[:64]
        assert torch.equal(remote[rows][0], expected[rows][0])
        assert 8 * BLOCK <= _held_bytes(root) <= 10 * BLOCK
    data = (many_blocks / PIXELS).read_bytes()
    for path in root.glob("blocks/*/*"):
        assert path.read_bytes() == data[int(path.name) * BLOCK :][:BLOCK]
    # and what is read in one piece may be larger than the cache
    assert torch.equal(remote[:][0], expected[:][0])
    says = r"all of .* is asked for, 307.2 kB, but cache_size is 61.4 kB. Give a larger one"
    with pytest.raises(StoreError, match=says):
        assert remote.store is not None
    with pytest.raises(StoreError, match="is the cache of a store at a URL, and not complete"):
        MemmapDataset(root)


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


def test_a_store_that_was_damaged_serves_no_smaller_cache(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path)
    assert remote.store is not None
    (remote.path / "meta.json").unlink()
    small = MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK)
    _same_rows(small, MemmapDataset(many_blocks))
    assert _held_bytes(small.path) <= 10 * BLOCK


@pytest.fixture
def ramfs(tmp_path: Path) -> Iterator[Path]:
    """A file system that says nothing of its size."""
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
    remote = MemmapDataset(range_server.url, cache=ramfs, cache_size=10 * BLOCK)
    _same_rows(remote, MemmapDataset(many_blocks))
    assert _held_bytes(remote.path) <= 10 * BLOCK


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
    for index in (5, -1, slice(3, 30), [20, 1, 35]):
        found, expected = remote[index][0], local[index][0]
        pairs = [(found, expected)] if isinstance(index, int) else zip(found, expected, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert 0 < _held_bytes(remote.path) <= size
    for ours, theirs in zip(*(MemmapLoader(data, 5, shuffle=False) for data in (remote, local)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours[0], theirs[0], strict=True))


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_of_a_dataloader_share_a_small_cache(
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


def test_it_pickles_with_its_folder(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK)
    range_server.asked.clear()
    again = pickle.loads(pickle.dumps(remote))
    assert again.path == remote.path
    # what was opened here is opened again without a request
    assert not range_server.asked
    _same_rows(again, MemmapDataset(many_blocks))


def test_a_reader_stays_with_its_folder(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    """Also where its fetcher is killed, and all of the store is in another folder by then."""
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
    assert _held_bytes(remote.path)


def test_a_block_that_leaves_before_it_is_read_is_fetched_again(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, calls = RemoteStore(range_server.url, tmp_path, 40 * BLOCK), list[list[int]]()
    read = store.folder.table.read

    def overtaken(memory: memoryview, parts: Sequence[BlockPart]) -> list[BlockPart]:
        calls.append([part.block for part in parts])
        if len(calls) == 1:
            # as another process does that needs room
            (store.root / "blocks/01/1").unlink()
        return read(memory, parts)

    monkeypatch.setattr(store.folder.table, "read", overtaken)
    memory = memoryview(bytearray(2 * BLOCK))
    store.read(memory, [(0, BLOCK, 0), (BLOCK, BLOCK, BLOCK)])
    assert calls == [[0, 1], [1]]
    assert memory == (many_blocks / PIXELS).read_bytes()[: 2 * BLOCK]


def test_a_block_whose_file_was_cut_short_is_fetched_again(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    remote, expected = (
        MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK),
        MemmapDataset(many_blocks),
    )
    for size in (0, 100):
        assert torch.equal(remote[0:8][0], expected[0:8][0])
        os.truncate(remote.path / "blocks/00/0", size)
    assert torch.equal(remote[0:8][0], expected[0:8][0])


def test_a_smaller_cache_size_frees_blocks(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    expected = MemmapDataset(many_blocks)
    for blocks_of_cache in (40, 9):
        remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=blocks_of_cache * BLOCK)
        _same_rows(remote, expected)
        assert _held_bytes(remote.path) <= blocks_of_cache * BLOCK
    assert len([*tmp_path.iterdir()]) == 1


def test_what_a_killed_process_was_writing_is_removed_and_counts_no_more(
    range_server: RangeServer, tmp_path: Path
) -> None:
    first = _fetcher(range_server.url, tmp_path, 10 * BLOCK)
    first.ensure(range(10))
    (root,) = tmp_path.iterdir()
    # with what it had counted as its own
    (root / ".remote/used").write_bytes((1 << 40).to_bytes(8, "little"))
    left = root / ".remote/.17.12345.67"
    left.write_bytes(bytes(BLOCK))
    first.ensure([20])
    assert not left.exists()
    assert _held_bytes(root) == 10 * BLOCK
    (root / ".remote/used").unlink()
    _fetcher(range_server.url, tmp_path, 10 * BLOCK).ensure(range(30, 40))
    assert _held_bytes(root) == 10 * BLOCK


def test_what_another_process_is_writing_stays_and_counts(range_server: RangeServer, tmp_path: Path) -> None:
    fetcher = _fetcher(range_server.url, tmp_path, 10 * BLOCK)
    (root,) = tmp_path.iterdir()
    with BlockFiles(root / "blocks", root / ".remote", []).begin(17) as file:
        for block in range(12):
            fetcher.ensure([block])
        prepared(range_server.url, tmp_path, None, 10 * BLOCK)
        assert Path(file.name).exists()
        assert len([*root.glob("blocks/*/*")]) == 9


def test_all_blocks_are_looked_through_for_many_that_leave(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reader.remote import eviction

    listed, looks = BlockFiles.listed, list[BlockFiles]()
    monkeypatch.setattr(BlockFiles, "listed", lambda files: (looks.append(files), listed(files))[1])
    # of 20 blocks 10 that leave are chosen at once
    monkeypatch.setattr(eviction, "_CHOSEN_SHARE", 1 / 2)
    fetcher = _fetcher(range_server.url, tmp_path, 20 * BLOCK)
    for block in range(50):
        fetcher.ensure([block])
    # when the first came, and for each ten of the 30 that left
    assert len(looks) == 4


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = _fetcher(range_server.url, tmp_path, 9 * BLOCK)
    folder = fetcher._folder

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(StoreError, match="cannot be written: No space left on device. Free some space there"):
            fetcher.ensure([3])
    assert not folder.table.has(3)
    assert _held_bytes(folder.root) == 0
    fetcher.ensure(range(9))
    memory = memoryview(bytearray(9 * BLOCK))
    assert folder.table.read(memory, [*folder.parts(0, 9 * BLOCK, 0)]) == []
    assert memory == (many_blocks / PIXELS).read_bytes()[: 9 * BLOCK]
    assert _held_bytes(folder.root) == 9 * BLOCK
