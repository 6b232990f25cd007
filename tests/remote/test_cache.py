"""A cache between processes: each block fetched once, whoever dies, and never a wrong byte; small ones keep what serves."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from children import Child
from conftest import PACK, Tune
from range_server import RangeServer

from packer import pack
from reader import MemmapDataset, StoreError
from reader.format.errors import UnreachableError
from reader.format.manifest import MANIFEST, PIXELS
from reader.remote import presence
from reader.remote.eviction import Plan
from reader.remote.folder import CacheFolder, known_digest
from reader.remote.presence import RemoteStore


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
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    readers = [_reading(range_server, tmp_path, many_blocks, seed, "100 kB") for seed in (1, 2)]
    for reader in readers:
        assert (reader.received(), reader.received(), reader.ended()) == ("ready", "all right", 0)
    (folder,) = map(CacheFolder, tmp_path.iterdir())
    assert folder.is_small
    assert folder.present_bytes() <= 100_000
    assert not folder.table.is_complete


@pytest.mark.slow
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
            [sys.executable, "-c", presence._FETCHER],
            input=b'{"id": 0, "ask": "prefetch", "blocks": []}\n',
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
    size = remote.remote.folder.room(0)
    with open(remote.path / PIXELS, "r+b") as file:
        file.seek(2 * size)
        file.write(b"half of a block" * 100)
    assert torch.equal(remote[16][0], expected[16][0])
    assert remote.remote.folder.table.has(2)


def test_a_fork_has_a_fetcher_of_its_own(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    remote, expected = MemmapDataset(range_server.url, cache=tmp_path), MemmapDataset(many_blocks)
    remote[0]
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(remote[100][0], expected[100][0]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(remote[200][0], expected[200][0])


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
        patch.setattr(os, "pwrite", full)
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
    tune(requests_held_bytes=5 * folder.room(0), request_bytes=1)
    range_server.delay_seconds, range_server.most_in_progress = 0.01, 0
    fetcher = blocks.BlockFetcher(folder, source, None)
    fetcher.prefetch(range(50))
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
        block = start // folder.room(0)
        asked.add(block)
        if block >= 20 and not last <= answered:
            most_in_progress = max(most_in_progress, len(asked - answered))
        if block not in last or len(asked) >= 35:
            answered.add(block)
        return block in answered

    range_server.is_ready = is_ready
    fetcher = blocks.BlockFetcher(folder, source, None)
    fetcher.prefetch(range(50), soon=20)
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


def test_who_completes_a_store_fetches_each_file_once(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    # the thread that brings the last block and the one that waits for it both look for what is missing
    range_server.delay_seconds = 0.2
    remote = MemmapDataset(range_server.url, cache=tmp_path)
    assert remote.store is not None
    names = Counter(name for name, _, _ in range_server.asked.elements())
    assert names["samples.jsonl"] == 1
    assert not [path for path in remote.path.iterdir() if path.name.startswith(".samples")]


def test_completing_a_store_looks_at_each_block_a_few_times(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    """However many requests it takes: what is waited for is looked at, not all that is still to come."""
    from reader.remote import blocks
    from reader.remote.block_files import StoreFile
    from reader.remote.opening import prepared

    tune(request_bytes=1, requests_at_once=2)
    root, source = prepared(range_server.url, tmp_path / "cache", None)
    fetcher, has, looks = blocks.BlockFetcher(CacheFolder(root), source, None), StoreFile.has, itertools.count()
    monkeypatch.setattr(StoreFile, "has", lambda table, block: (next(looks), has(table, block))[1])
    # of waiting for a request that takes long
    monkeypatch.setattr(blocks, "_LOOK_SECONDS", 60.0)
    fetcher.complete()
    # 50 blocks and as many requests; a pass over all that is missing with each would be 1,250
    assert next(looks) < 600


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


def test_a_copy_of_a_cache_without_what_says_which_blocks_it_has_is_fetched_again(
    many_blocks: Path, tmp_path: Path
) -> None:
    """No manifest of a complete store is above pixels that are not there."""
    url, cache, expected = many_blocks.as_uri(), tmp_path / "cache", MemmapDataset(many_blocks)
    with contextlib.closing(RemoteStore(url, cache)) as remote:
        remote.complete()
        root = remote.root
    assert (root / MANIFEST).is_file()
    shutil.rmtree(root / ".remote")
    data = MemmapDataset(url, cache=cache)
    with pytest.raises(StoreError, match="not complete"):
        MemmapDataset(root)
    assert torch.equal(data[7][0], expected[7][0])


def test_a_store_that_the_url_has_no_longer_held_is_not_opened_without_a_network(
    many_blocks: Path, store: Path, tmp_path: Path
) -> None:
    url, cache, place = (tmp_path / "url").as_uri(), tmp_path / "cache", tmp_path / "url"
    shutil.copytree(many_blocks, place)
    with contextlib.closing(RemoteStore(url, cache)) as remote:
        remote.complete()
        first = remote.folder.manifest.digest
    assert known_digest(cache, url) == first
    shutil.rmtree(place)
    shutil.copytree(store, place)
    data = MemmapDataset(url, cache=cache)
    assert known_digest(cache, url) is None
    with contextlib.closing(RemoteStore(url, cache)) as remote:
        remote.complete()
    assert known_digest(cache, url) == data.manifest.digest


def test_the_fetcher_runs_no_module_of_the_current_folder(many_blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('mine')")
    (tmp_path / "reader").mkdir()
    (tmp_path / "reader/__init__.py").write_text("raise SystemExit('mine')")
    done = subprocess.run(
        [*PACK, "info", many_blocks.as_uri()], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_cache_in_a_store_is_refused(many_blocks: Path, store: Path) -> None:
    with pytest.raises(StoreError, match=rf"cache .*_tensordict/c is in the store {store}\. Choose another folder"):
        MemmapDataset(many_blocks.as_uri(), cache=store / "_tensordict/c")


def test_a_server_that_is_gone_is_asked_for_the_block_alone(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reader.remote import blocks
    from reader.remote.opening import Source, prepared

    root, source = prepared(range_server.url, tmp_path / "cache", None)
    fetcher, asked = blocks.BlockFetcher(CacheFolder(root), source, None), list[int]()

    def unreachable(*_: object) -> memoryview:
        asked.append(1)
        # it is asked for while the request is in progress
        time.sleep(0.2)
        raise UnreachableError("no server answers")

    monkeypatch.setattr(source, "read_pixels", unreachable)
    monkeypatch.setattr(Source, "look", lambda *_: pytest.fail("it is asked what else it has"))
    fetcher.prefetch([3])
    with pytest.raises(UnreachableError, match="no server answers"):
        fetcher.ensure([3])
    # by the request that was on its way, and by one that is made when it is asked for
    assert len(asked) <= 2
