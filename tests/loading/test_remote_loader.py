"""A loader of a store at a URL: the batches of a local one, blocks fetched once and ahead, small caches that serve a share."""

from __future__ import annotations

import itertools
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tune
from range_server import RangeServer, serving

from reader import MemmapDataset, MemmapLoader, StoreError
from reader.format.manifest import MANIFEST, PIXELS
from reader.tuning import tuning

ROW = 16 * 16 * 3
BLOCK = 8 * ROW


@pytest.fixture
def small_blocks(tune: Tune) -> None:
    """Blocks of 8 rows, as the store has them, in windows of 4."""
    tune(shuffle_block_bytes=BLOCK, shuffle_window_blocks=4, batch_group_bytes=4 * BLOCK)


def _fetched(server: RangeServer) -> int:
    return sum((stop - start) * count for (name, start, stop), count in server.asked.items() if name == PIXELS)


def test_the_order_of_a_store_at_a_url_is_block(range_server: RangeServer, tmp_path: Path) -> None:
    loader = MemmapLoader(MemmapDataset(range_server.url, cache=tmp_path), 8, shuffle=True)
    assert loader.order == "block"
    assert "order block" in repr(loader)


def _asked(server: RangeServer) -> set[int]:
    """The blocks that were asked for."""
    spans = [(start, stop) for name, start, stop in server.asked if name == PIXELS]
    return {block for start, stop in spans for block in range(start // BLOCK, stop // BLOCK)}


def _first_blocks(loader: MemmapLoader, batches: int = 1) -> set[int]:
    """The blocks of the first batches."""
    steps = itertools.islice(loader.epochs.at(0).batches(iter(())), batches)
    return {int(row) * ROW // BLOCK for step in steps for row in step.positions}


@pytest.mark.usefixtures("many_blocks")
def test_as_many_requests_are_in_progress_as_may_be(tmp_path: Path, tune: Tune) -> None:
    """No block comes before 16 are asked for; 17 never are."""
    from packer import pack_dataset

    tune(shuffle_block_bytes=BLOCK, batch_group_bytes=256 * ROW)
    images = torch.zeros(1024, 16, 16, 3, dtype=torch.uint8)
    pack_dataset([(image, 0) for image in images.numpy()], tmp_path / "out", size=16)
    with serving(tmp_path / "out") as server:
        data = MemmapDataset(server.url, cache=tmp_path / "cache")
        with MemmapLoader(data, 256, shuffle="block", seed=0) as loader:
            most = list[int]()

            def is_ready(name: str, start: int, stop: int) -> bool:
                requests = sum(name == PIXELS for name, _, _ in server.asked)
                if not most and requests >= tuning().requests_at_once:
                    # those beyond it would be asked for meanwhile
                    time.sleep(0.2)
                    most.append(sum(name == PIXELS for name, _, _ in server.asked))
                return bool(most)

            server.is_ready = is_ready
            next(iter(loader))
        assert not server.was_late
        assert most == [16]


@pytest.mark.usefixtures("small_blocks")
def test_blocks_are_asked_for_ahead_together(range_server: RangeServer, tmp_path: Path) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path)
    with MemmapLoader(remote, 8, shuffle="block", seed=0) as loader:
        first = _first_blocks(loader, batches=4)
        # what comes behind the first window is sent once 4 such blocks are asked for: so many are while any is waited for
        range_server.is_ready = lambda name, start, stop: (
            start // BLOCK in first or len(_asked(range_server) - first) >= 4
        )
        assert len([*loader]) == 50
    assert not range_server.was_late


@pytest.mark.usefixtures("many_blocks")
def test_the_first_batch_takes_three_round_trips(tmp_path: Path, tune: Tune) -> None:
    """The manifest, what else opening needs, then the blocks of a window, as many at once as may be, and nothing beside them."""
    from packer import pack_dataset

    tune(shuffle_block_bytes=BLOCK, batch_group_bytes=256 * ROW, requests_at_once=tuning().shuffle_window_blocks)
    # 128 blocks of 8 rows
    images = torch.randint(0, 256, (1024, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pack_dataset([(image, 0) for image in images.numpy()], tmp_path / "out", size=16)
    with serving(tmp_path / "out") as server:
        data = MemmapDataset(server.url, cache=tmp_path / "cache")
        assert sorted(name for name, _, _ in server.asked) == ["_tensordict/targets.memmap", MANIFEST]
        with MemmapLoader(data, 256, shuffle="block", seed=0, as_tuple=False) as loader:
            first, asked = _first_blocks(loader), set[int]()

            def is_ready(name: str, start: int, stop: int) -> bool:
                if not first <= _asked(server):
                    return False
                asked.update(asked or _asked(server))
                return True

            server.is_ready = is_ready
            batch = next(iter(loader))
        assert torch.equal(batch.pixels, images[batch.rows])
        assert not server.was_late
        assert len(first) == tuning().shuffle_window_blocks
        assert asked == first


@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.usefixtures("small_blocks")
def test_a_small_cache_serves_its_share_of_later_epochs(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, share: float
) -> None:
    size = int(share * 50 * BLOCK)
    local = MemmapDataset(many_blocks)
    with MemmapLoader(
        MemmapDataset(range_server.url, cache=tmp_path, cache_size=size), 16, shuffle="block", as_tuple=False
    ) as loader:
        later = 0.0
        for epoch in range(4):
            range_server.asked.clear()
            for batch in loader:
                assert torch.equal(batch.pixels, local[batch.rows][0].movedim(1, -1))
            # of 50 blocks: the first epoch fetches each once
            blocks = _fetched(range_server) / BLOCK
            assert epoch or blocks == 50
            later += blocks if epoch else 0
    # what fetchers do at the same time on a busy machine costs an epoch up to 3 blocks; without a plan each would fetch 50
    assert later / 3 <= (1 - share) * 50 + 3


@pytest.mark.usefixtures("small_blocks")
def test_a_subset_fetches_its_blocks_alone(range_server: RangeServer, tmp_path: Path) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path)
    with MemmapLoader(remote.subset(range(100, 180)), 10, shuffle="block") as loader:
        assert len([*loader]) == 8
    assert _fetched(range_server) == (184 - 96) * ROW


def test_a_copy_in_memory_takes_all_of_it(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path)
    with MemmapLoader(remote, 50, residency="ram", as_tuple=False) as loader:
        assert remote.remote is not None
        assert remote.remote.is_complete
        assert torch.equal(torch.cat([batch.pixels for batch in loader]), MemmapDataset(many_blocks).store.pixels)


def test_a_cache_below_a_window_is_refused(range_server: RangeServer, tmp_path: Path, tune: Tune) -> None:
    tune(shuffle_block_bytes=BLOCK)
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=20 * BLOCK)
    with pytest.raises(
        ValueError, match=r"cache_size is 122.9 kB, and a window of shuffle='block' needs up to 196.6 kB"
    ):
        MemmapLoader(remote, 8, shuffle="block")


def test_a_full_shuffle_through_a_small_cache_warns(
    range_server: RangeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=25 * BLOCK)
    with caplog.at_level(logging.WARNING, logger="pixpack"):
        MemmapLoader(remote, 8, shuffle="full")
    assert "a cache of 153.6 kB holds a share of 50 %, and fetches whole blocks: up to 4 times the bytes" in caplog.text


@pytest.mark.usefixtures("small_blocks")
def test_an_error_of_the_network_reaches_the_loop_and_the_epoch_is_resumed(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIXPACK_REMOTE_SECONDS", "6")
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": "block", "as_tuple": False}
    loader = MemmapLoader(MemmapDataset(range_server.url, cache=tmp_path), **settings)
    expected = [batch.rows.tolist() for batch in MemmapLoader(MemmapDataset(many_blocks), **settings)]
    got, opened = list[list[int]](), range_server.asked.total()
    # the blocks of the first window come, and some others; were it the loop that stops the server, all might be there by then
    first = {(PIXELS, row // 8 * BLOCK, row // 8 * BLOCK + BLOCK) for row in expected[0] + expected[1]}
    assert len(first) == 4
    range_server.trouble = lambda name, count: (
        503 if count >= opened + 16 and first <= range_server.asked.keys() else None
    )

    def rest() -> None:
        for batch in loader:
            got.append(batch.rows.tolist())

    with pytest.raises(StoreError, match=r"pixels.memmap cannot be read: .*503.* It was tried"):
        rest()
    assert 0 < len(got) < len(expected)
    range_server.trouble = lambda name, count: None
    loader.load_state_dict(loader.state_dict())
    got += [batch.rows.tolist() for batch in loader]
    assert got == expected
    loader.close()


@pytest.mark.usefixtures("small_blocks")
def test_the_log_says_what_came_over_the_network(
    range_server: RangeServer, tmp_path: Path, tune: Tune, caplog: pytest.LogCaptureFixture
) -> None:
    tune(cache_log_seconds=0.0)
    with caplog.at_level(logging.INFO, logger="pixpack"):
        assert len([*MemmapLoader(MemmapDataset(range_server.url, cache=tmp_path), 50)]) == 8
    lines = [record.getMessage() for record in caplog.records if "MB/s from the network" in record.getMessage()]
    assert lines
    assert all(line.startswith(f"{range_server.url}: ") for line in lines)
    assert "secret" not in caplog.text
