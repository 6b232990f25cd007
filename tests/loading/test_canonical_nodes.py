"""shuffle="block" over canonical nodes: every row once, a node's rows its own in all epochs, one order on any number of nodes."""

from __future__ import annotations

import contextlib
import logging
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune
from hypothesis import given
from hypothesis import strategies as st
from range_server import RangeServer

from reader import MemmapDataset, MemmapLoader
from reader.format.errors import OrderError
from reader.format.manifest import PIXELS
from reader.order import CanonicalNodes, Cut

ROW = 16 * 16 * 3
BLOCK = 8 * ROW

FROZEN = [106, 105, 147, 111, 225, 300, 297, 283]


@pytest.fixture(autouse=True)
def _small_blocks(tune: Tune) -> None:
    """Blocks of 8 rows, as the store has them, in windows of 4."""
    tune(shuffle_block_bytes=BLOCK, shuffle_window_blocks=4, batch_group_bytes=4 * BLOCK)


@pytest.fixture(scope="module")
def data(many_blocks: Path) -> MemmapDataset:
    return MemmapDataset(many_blocks)


def _loader(
    data: MemmapDataset, batch: int, rank: int = 0, ranks: int = 1, nodes: int = 4, **more: Any
) -> MemmapLoader:
    return MemmapLoader(
        data, batch, shuffle="block", canonical_nodes=nodes, rank=rank, world_size=ranks, seed=0, as_tuple=False, **more
    )


def _rows(loader: MemmapLoader) -> list[list[int]]:
    with loader:
        return [batch.rows.tolist() for batch in loader]


def _steps(ranks: list[list[list[int]]]) -> list[list[int]]:
    """Join what the ranks read in each step."""
    return [[row for part in step for row in part] for step in zip(*ranks, strict=True)]


@given(st.integers(1, 300), st.integers(1, 6), st.integers(1, 12), st.integers(1, 5), st.booleans(), st.data())
def test_every_position_of_a_node_comes_once(
    count: int, nodes: int, batch: int, world_size: int, pad: bool, drawn: st.DataObject
) -> None:
    canonical = CanonicalNodes(count, min(nodes, count))
    cuts = [Cut(count, batch, False, rank, world_size, pad) for rank in range(world_size)]
    position = drawn.draw(st.integers(0, count - 1))
    before = {(p % canonical.nodes, p // canonical.nodes) for p in range(position)}
    found = list[tuple[int, int]]()
    while position < count:
        size = cuts[0].step(position).rows
        for cut in cuts:
            *_, start, stop = cut.step(position)
            pieces = canonical.pieces(position, size, start - position, stop - position)
            assert sum(high - low for _, low, high in pieces) == stop - start
            found += [(node, offset) for node, low, high in pieces for offset in range(low, high)]
        position = cuts[0].step(position).after
    inside = [(node, offset) for node, offset in found if offset < canonical.rows(node)]
    assert len(inside) == len(set(inside))
    all_offsets = {(node, offset) for node in range(canonical.nodes) for offset in range(canonical.rows(node))}
    assert set(inside) == all_offsets - before
    assert len(found) - len(inside) < world_size
    assert pad or len(found) == len(inside)


def test_the_order_is_the_same_on_any_number_of_nodes_that_divides_it(data: MemmapDataset) -> None:
    full = _rows(_loader(data, 16))
    assert sorted(row for step in full for row in step) == list(range(400))
    for ranks in (2, 4):
        parts = [_rows(_loader(data, 16 // ranks, rank, ranks)) for rank in range(ranks)]
        assert _steps(parts) == full


def test_rows_that_come_twice_are_the_last_of_a_step(data: MemmapDataset) -> None:
    """accelerate's gather_for_metrics keeps the first `shared_rows` of the last step of all ranks."""
    part = data.subset(range(390))
    loaders = [_loader(part, 4, rank, 4) for rank in range(4)]
    steps = _steps([_rows(loader) for loader in loaders])
    assert [len(step) for step in steps] == [16] * 24 + [8]
    count = loaders[0].epochs.plan.shared_rows(24 * 16)
    steps[-1] = steps[-1][:count]
    assert sorted(row for step in steps for row in step) == list(range(390))


def test_the_order_is_frozen(data: MemmapDataset) -> None:
    # a checkpoint of an old version must resume to the same rows: these numbers never change
    assert _rows(_loader(data, 8, nodes=2))[0] == FROZEN


def test_a_node_reads_its_own_rows_in_every_epoch(data: MemmapDataset) -> None:
    loaders = [_loader(data, 10, rank, 4, nodes=2) for rank in range(4)]
    for rank, loader in enumerate(loaders):
        orders = []
        with loader:
            for _ in range(3):
                orders.append([batch.rows for batch in loader])
        assert [len(order) for order in orders] == [10] * 3
        rows = torch.cat([torch.cat(order) for order in orders])
        assert {int(row) // 200 for row in rows} == {rank // 2}
        assert not torch.equal(orders[0][0], orders[1][0])


def test_a_state_is_resumed_on_another_number_of_ranks(data: MemmapDataset) -> None:
    with _loader(data, 16) as loader:
        steps = iter(loader)
        seen = [next(steps).rows.tolist() for _ in range(7)]
        state = loader.state_dict()
        del steps
    rest = []
    for rank in range(4):
        loader = _loader(data, 4, rank, 4)
        loader.load_state_dict(state)
        rest.append(_rows(loader))
    assert seen + _steps(rest) == _rows(_loader(data, 16))
    with pytest.raises(ValueError, match="another store, subset or weights, epoch_rows or canonical_nodes"):
        _loader(data, 16, nodes=2).load_state_dict(state)
    with pytest.raises(ValueError, match="another store, subset or weights, epoch_rows or canonical_nodes"):
        MemmapLoader(data, 16, shuffle="block").load_state_dict(state)


def test_windows_of_all_nodes_are_mixed_in_a_step(data: MemmapDataset) -> None:
    """Of 400 rows each step has as many of every part, and none of its windows is in store order."""
    for step in _rows(_loader(data, 40)):
        assert np.bincount(np.array(step) // 100, minlength=4).tolist() == [10] * 4
        assert any(np.diff(step[:10]) < 0)


def test_it_is_shown(data: MemmapDataset, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pixpack"):
        loader = _loader(data, 16)
    assert "order block over 4 canonical nodes, seed 0, rank 0 of 1" in repr(loader)
    assert "order block over 4 canonical nodes, rank 0 of 1" in caplog.text
    assert MemmapLoader(data, 16, shuffle=True, canonical_nodes=4).order == "block"


@pytest.mark.parametrize(
    ("batch", "more", "text"),
    [
        (16, {"shuffle": "full"}, "canonical_nodes is for shuffle='block', in epochs of all rows. Leave it out."),
        (16, {"epoch_rows": 100}, "canonical_nodes is for shuffle='block', in epochs of all rows. Leave it out."),
        (
            10,
            {"rank": 0, "world_size": 1},
            "a step has 10 rows, batch_size 10 x world_size 1, expected a multiple of canonical_nodes, 4",
        ),
        (16, {"canonical_nodes": 401}, "canonical_nodes is 401, expected 1 to 400, the rows of an epoch."),
        (16, {"canonical_nodes": 0}, "canonical_nodes is 0, expected 1 to 400, the rows of an epoch."),
        (16, {"canonical_nodes": 2.5}, "canonical_nodes is 2.5, expected an integer."),
    ],
)
def test_wrong_numbers_are_refused(data: MemmapDataset, batch: int, more: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, OrderError)) as error:
        MemmapLoader(data, batch, **{"shuffle": "block", "canonical_nodes": 4} | more)
    assert text in str(error.value)


def test_a_step_is_compared_with_nodes_once_the_ranks_are_known(
    data: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader that was made before init_process_group: 8 rows of each of 4 ranks are 2 of each of 16 nodes."""
    loader = MemmapLoader(data, 8, shuffle="block", canonical_nodes=16, as_tuple=False)
    with pytest.raises(OrderError, match="a step has 8 rows, batch_size 8 x world_size 1, expected a multiple of"):
        iter(loader)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    assert _rows(loader) == _rows(_loader(data, 8, 1, 4, nodes=16))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(OrderError, match="a step has 24 rows, batch_size 8 x world_size 3"):
        iter(loader)


def test_a_cache_is_compared_with_the_nodes_of_a_host_once_the_ranks_are_known(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """12 blocks hold a window each of two canonical nodes, and not of four; three real nodes share four."""
    data = MemmapDataset(range_server.url, cache=tmp_path, cache_size=12 * BLOCK)
    loader = MemmapLoader(data, 16, shuffle="block", canonical_nodes=4)
    with pytest.raises(ValueError, match="a window each of 4 canonical nodes of shuffle='block' needs up to"):
        iter(loader)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    iter(loader)
    assert "canonical nodes" not in caplog.text
    monkeypatch.setenv("WORLD_SIZE", "6")
    for _ in range(2):
        iter(loader)
    assert caplog.text.count("3 nodes read 4 canonical nodes, and some of these are fetched by several") == 1


def test_two_nodes_fetch_the_store_once_together(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of two ranks, by two cache folders; each rank has a fetcher of its own."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(4):
            data = MemmapDataset(range_server.url, cache=tmp_path / f"node{rank // 2}")
            ranks.append(stack.enter_context(_loader(data, 10, rank, 4, nodes=2)))
        seen = [batch.rows for steps in zip(*ranks, strict=True) for batch in steps]
    assert sorted(torch.cat(seen).tolist()) == list(range(400))
    assert set(range_server.bytes_of(PIXELS).values()) == {1}


def test_a_cache_of_a_share_of_a_nodes_rows_serves_it_in_later_epochs(
    range_server: RangeServer, tmp_path: Path, many_blocks: Path
) -> None:
    """One real node reads both canonical nodes: two windows of 4 blocks at once, 30 of 50 blocks in its cache."""
    local = MemmapDataset(many_blocks)
    data = MemmapDataset(range_server.url, cache=tmp_path, cache_size=30 * BLOCK)
    with _loader(data, 16, nodes=2) as loader:
        later = []
        for epoch in range(4):
            range_server.asked.clear()
            for batch in loader:
                assert torch.equal(batch.pixels, local[batch.rows][0].movedim(1, -1))
            blocks = sum((b - a) * n for (name, a, b), n in range_server.asked.items() if name == PIXELS) // BLOCK
            # a block that two parts share may be fetched for each of them
            assert epoch or blocks <= 51
            later += [blocks] if epoch else []
    # what fetchers do at the same time on a busy machine costs an epoch some blocks; without a plan each would fetch 50
    assert statistics.median(later) <= 28


def test_a_cache_below_the_windows_of_its_nodes_is_refused(range_server: RangeServer, tmp_path: Path) -> None:
    data = MemmapDataset(range_server.url, cache=tmp_path, cache_size=10 * BLOCK)
    with pytest.raises(ValueError, match="a window each of 4 canonical nodes of shuffle='block' needs up to"):
        _loader(data, 16)


def test_nodes_that_each_fetch_all_of_a_store_are_reported(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    data = MemmapDataset(range_server.url, cache=tmp_path)
    MemmapLoader(data, 16, shuffle="full", rank=0, world_size=4)
    assert "2 nodes read rows from everywhere, and each fetches all of the store: 2 times its 307.2 kB" in caplog.text
    assert "Use shuffle='block' with canonical_nodes=2" in caplog.text
    caplog.clear()
    _loader(data, 4, 0, 6, nodes=4)
    assert "3 nodes read 4 canonical nodes, and some of these are fetched by several" in caplog.text
    caplog.clear()
    _loader(data, 4, 0, 4, nodes=4)
    MemmapLoader(data, 16, shuffle="block", rank=0, world_size=2)
    assert not caplog.records
