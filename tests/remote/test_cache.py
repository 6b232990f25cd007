"""A cache between processes: each block fetched once, whoever dies, and never a wrong byte; small ones keep what serves."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from children import Child
from conftest import Tune
from range_server import RangeServer

from packer import pack
from reader import MemmapDataset, StoreError
from reader.format.manifest import MANIFEST, PIXELS
from reader.remote.block_files import BlockPart
from reader.remote.eviction import Plan
from reader.remote.folder import CacheFolder
from reader.remote.presence import RemoteStore
from reader.remote.table import BlockTable


def _read(pipe: Connection, url: str, cache: Path, local: Path, seed: int, size: str) -> None:
    """Read rows in the order of a seed, and compare each with the local store."""
    remote, expected = MemmapDataset(url, cache=cache, cache_size=size or None), MemmapDataset(local).numpy()
    rows = [*range(len(remote))] * (1 if size else 3)
    random.Random(seed).shuffle(rows)
    pipe.send("ready")
    for n in range(0, len(rows), 20):
        some = rows[n : n + 20]
        assert (remote[some][0].movedim(1, -1).numpy() == expected[some]).all(), some
    pipe.send("all right")


def _reading(range_server: RangeServer, cache: Path, local: Path, seed: int, size: str = "") -> Child:
    return Child(_read, range_server.url, cache, local, seed, size)


@pytest.mark.slow
def test_two_processes_fetch_each_block_once(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    range_server.delay_seconds = 0.01
    readers = [_reading(range_server, tmp_path, many_blocks, seed) for seed in (1, 2)]
    for reader in readers:
        assert (reader.received(), reader.received(), reader.ended()) == ("ready", "all right", 0)
    assert set(range_server.bytes_of(PIXELS).values()) == {1}
    assert next(tmp_path.glob(f"*/{MANIFEST}")).is_file()


@pytest.mark.slow
def test_two_processes_share_a_cache_that_is_too_small(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, small_caches: str
) -> None:
    readers = [_reading(range_server, tmp_path, many_blocks, seed, "100 kB") for seed in (1, 2)]
    for reader in readers:
        assert (reader.received(), reader.received(), reader.ended()) == ("ready", "all right", 0)
    (folder,) = map(CacheFolder, tmp_path.iterdir())
    assert folder.in_slots == (small_caches == "slots")
    assert folder.present_bytes() <= 100_000
    assert not folder.table.is_complete


@pytest.mark.slow
@pytest.mark.usefixtures("small_caches")
def test_a_killed_reader_leaves_nothing_that_another_waits_for(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    """Its fetcher may be anywhere: asking, writing, between data and mark."""
    range_server.delay_seconds = 0.005
    chance = random.Random(0)
    for seed in range(6):
        reader = _reading(range_server, tmp_path, many_blocks, seed, "100 kB" if seed % 2 else "")
        assert reader.received() == "ready"
        time.sleep(chance.uniform(0, 0.2))
        reader.kill()
    for size in ("100 kB", ""):
        last = _reading(range_server, tmp_path, many_blocks, 7, size)
        assert (last.received(), last.received(), last.ended()) == ("ready", "all right", 0)


def test_a_killed_fetcher_is_replaced(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    remote, expected = MemmapDataset(range_server.url, cache=tmp_path), MemmapDataset(many_blocks)
    assert torch.equal(remote[0][0], expected[0][0])
    assert remote.remote is not None
    fetcher = remote.remote._started()._process
    fetcher.kill()
    fetcher.wait()
    assert torch.equal(remote[100][0], expected[100][0])
    assert remote.remote._started()._process.pid != fetcher.pid


def test_a_fetcher_that_dies_while_it_is_asked_is_one_sentence(range_server: RangeServer, tmp_path: Path) -> None:
    remote = RemoteStore(range_server.url, tmp_path)
    fetcher = remote._started()._process
    range_server.trouble = lambda name, count: os.kill(fetcher.pid, signal.SIGKILL)
    with pytest.raises(StoreError, match="the process that fetches from object storage has ended"):
        remote.ensure([3])
    range_server.trouble = lambda name, count: None
    remote.ensure([3])


def test_a_fetcher_that_does_not_end_is_killed(range_server: RangeServer, tmp_path: Path, tune: Tune) -> None:
    tune(fetcher_end_seconds=0.1)
    fetcher = RemoteStore(range_server.url, tmp_path)._started()
    os.kill(fetcher._process.pid, signal.SIGSTOP)
    fetcher.close()
    assert fetcher._process.returncode == -signal.SIGKILL


def _fetch(pipe: Connection, url: str, cache: Path) -> None:
    store = RemoteStore(url, cache)
    pipe.send(store._started()._process.pid)
    time.sleep(300)


def test_a_fetcher_ends_with_its_parent(range_server: RangeServer, tmp_path: Path) -> None:
    parent = Child(_fetch, range_server.url, tmp_path)
    fetcher = parent.received()
    parent.kill()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and _runs(fetcher):
        time.sleep(0.05)
    assert not _runs(fetcher)


def test_a_fetcher_whose_asker_is_gone_says_nothing() -> None:
    # nobody reads its answers, as where its parent was killed after asking
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "reader.remote.fetcher"],
            input=b'{"id": 0, "ask": "ahead", "blocks": []}\n',
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_another_process_was_writing_when_it_died_is_fetched_again(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    remote, expected = MemmapDataset(range_server.url, cache=tmp_path), MemmapDataset(many_blocks)
    assert remote.remote is not None
    table = remote.remote.folder.table
    table.begin(2)
    assert not table.has(2)
    assert torch.equal(remote[16][0], expected[16][0])
    assert table.has(2)


def test_a_fork_has_a_fetcher_of_its_own(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    remote, expected = MemmapDataset(range_server.url, cache=tmp_path), MemmapDataset(many_blocks)
    remote[0]
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(remote[100][0], expected[100][0]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(remote[200][0], expected[200][0])


def test_a_small_cache_never_holds_more_and_never_gives_a_wrong_byte(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, small_caches: str
) -> None:
    remote, expected = MemmapDataset(range_server.url, cache=tmp_path, cache_size=60_000), MemmapDataset(many_blocks)
    assert remote.remote is not None
    folder = remote.remote.folder
    rng = np.random.default_rng(1)
    for _ in range(6):
        rows = rng.permutation(400)[:64]
        assert torch.equal(remote[rows][0], expected[rows][0])
        assert folder.present_bytes() <= 60_000
    # and what is read in one piece may be larger than the cache
    assert torch.equal(remote[:][0], expected[:][0])
    # holes are holes: some of a block's first and last 4 kB are those of its neighbours
    room = 4096 if small_caches == "slots" else folder.count * 2 * 4096
    assert folder.pixels.stat().st_blocks * 512 < 60_000 + room
    with pytest.raises(
        StoreError, match=r"all of .* is asked for, 307.2 kB, but cache_size is 60.0 kB. Give a larger one"
    ):
        assert remote.store is not None


@pytest.mark.usefixtures("small_caches")
def test_a_row_that_leaves_the_cache_while_it_is_read_is_read_again(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteStore(range_server.url, tmp_path, 200_000)
    table, calls, read = remote.folder.table, list[list[int]](), remote.folder.file.read

    def spoiled(memory: memoryview, parts: list[BlockPart]) -> None:
        calls.append([part.block for part in parts])
        if len(calls) == 1:
            table.forget([1])  # as another process does that needs room
        read(memory, parts)

    monkeypatch.setattr(remote.folder.file, "read", spoiled)
    size, memory = remote.folder.size(0), memoryview(bytearray(10_000))
    remote.read(memory, [(0, size, 0), (size, 10, size)])
    assert calls == [[0, 1], [1]]
    assert memory[: size + 10] == (many_blocks / PIXELS).read_bytes()[: size + 10]


def test_a_full_disk_is_one_sentence(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is that of before: what could not be written is fetched when it is asked for next."""
    from reader.remote import blocks
    from reader.remote.opening import prepared

    root, source = prepared(range_server.url, tmp_path / "cache", None)
    fetcher = blocks.BlockFetcher(CacheFolder(root), source, None)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(blocks.os, "pwrite", full)
        with pytest.raises(StoreError) as caught:
            fetcher.ensure([3])
    assert str(caught.value) == (
        f"cache {root} cannot be written: No space left on device. Free some space there, or give a smaller cache_size."
    )
    assert not CacheFolder(root).table.has(3)
    fetcher.ensure([3])
    assert CacheFolder(root).table.has(3)


def test_no_more_than_is_planned_is_in_progress(range_server: RangeServer, tmp_path: Path, tune: Tune) -> None:
    """Memory is bounded by requests in progress, whatever is asked for ahead."""
    from reader.remote import blocks
    from reader.remote.opening import prepared

    root, source = prepared(range_server.url, tmp_path / "cache", None)
    folder = CacheFolder(root)
    tune(requests_held_bytes=5 * folder.size(0), request_bytes=1)
    range_server.delay_seconds, range_server.most_in_progress = 0.01, 0
    fetcher = blocks.BlockFetcher(folder, source, None)
    fetcher.ahead(range(50))
    fetcher.ensure(range(50))
    # a block that is looked for while five are under way waits
    assert range_server.most_in_progress <= 5
    assert set(range_server.bytes_of(PIXELS).values()) == {1}


def test_what_an_epoch_begins_with_has_the_link_to_itself_but_for_a_few_requests(
    range_server: RangeServer, tmp_path: Path, tune: Tune
) -> None:
    from reader.remote import blocks
    from reader.remote.opening import prepared

    root, source = prepared(range_server.url, tmp_path / "cache", None)
    folder = CacheFolder(root)
    tune(request_bytes=1)
    asked, answered, most_in_progress, last = set[int](), set[int](), 0, {0, 1, 2}

    def is_ready(name: str, start: int, stop: int) -> bool:
        """Hold three of the first twenty blocks back until fifteen others were asked for."""
        nonlocal most_in_progress
        block = start // folder.size(0)
        asked.add(block)
        if block >= 20 and not last <= answered:
            most_in_progress = max(most_in_progress, len(asked - answered))
        if block not in last or len(asked) >= 35:
            answered.add(block)
        return block in answered

    range_server.is_ready = is_ready
    fetcher = blocks.BlockFetcher(folder, source, None)
    fetcher.ahead(range(50), soon=20)
    fetcher.ensure(range(50))
    assert not range_server.was_late
    assert 0 < most_in_progress <= 4


def test_two_stores_in_one_folder_have_caches_of_their_own(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    from conftest import make_tree

    make_tree(tmp_path / "images", each=3)
    pack(tmp_path / "images", tmp_path / "other", size=16)
    cache = tmp_path / "cache"
    first, second = (MemmapDataset(url, cache=cache) for url in (range_server.url, (tmp_path / "other").as_uri()))
    assert torch.equal(first[:][0], MemmapDataset(many_blocks)[:][0])
    assert torch.equal(second[:][0], MemmapDataset(tmp_path / "other")[:][0])
    assert first.path.parent == second.path.parent == cache
    assert first.path != second.path


def test_a_table_never_gives_a_number_twice(tmp_path: Path) -> None:
    (tmp_path / "blocks").write_bytes(BlockTable.empty(3))
    table, again = BlockTable(tmp_path / "blocks", 3), BlockTable(tmp_path / "blocks", 3)
    seen = set()
    for _ in range(5):
        table.begin(1)
        assert again.is_writing(1)
        assert not again.has(1)
        table.finish(1)
        assert again.has(1)
        seen.add(again.number(1))
        table.forget([1])
        assert not again.number(1)
    assert len(seen) == 5


def test_what_is_used_last_leaves_first() -> None:
    plan = Plan([[4, 2, 0, 1, 3], [3, 0, 2, 4, 1]])
    assert sorted(range(5), key=plan.next_use) == [4, 2, 0, 1, 3]
    plan.reach(1)  # 4 was used
    assert sorted(range(5), key=plan.next_use) == [2, 0, 1, 3, 4]
    plan.reach(3)
    assert sorted(range(5), key=plan.next_use) == [1, 3, 0, 2, 4]
    # a block that two windows share is used again; one that is not used at all leaves first
    plan = Plan([[0, 1, 2, 0, 3], [2, 1]])
    plan.reach(2)
    assert sorted(range(5), key=plan.next_use) == [2, 0, 3, 1, 4]


def test_without_an_order_blocks_have_a_rank_that_stays() -> None:
    ranks = [Plan().next_use(block) for block in range(100)]
    assert ranks == [Plan().next_use(block) for block in range(100)]
    assert len({*ranks}) == 100
    assert ranks != sorted(ranks)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
