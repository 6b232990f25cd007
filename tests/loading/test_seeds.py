"""The seed of a loader that none was given to: drawn from torch's global generator when the loader is made, 0 under ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reader import MemmapDataset, MemmapLoader


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


def rows_of(loader: MemmapLoader) -> list[int]:
    return [row for batch in loader for row in batch.rows.tolist()]


def test_a_loader_made_in_each_epoch_gives_another_order_each_time(train: MemmapDataset) -> None:
    torch.manual_seed(1)
    epochs = [rows_of(MemmapLoader(train, 16, shuffle="full", as_tuple=False)) for _ in range(3)]
    assert len({tuple(rows) for rows in epochs}) == 3
    torch.manual_seed(1)
    assert rows_of(MemmapLoader(train, 16, shuffle="full", as_tuple=False)) == epochs[0]


def test_several_ranks_without_a_seed_have_0_and_share_the_rows(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"shuffle": "full", "as_tuple": False, "drop_last": True}
    parts = [rows_of(MemmapLoader(train, 15, **given, rank=rank, world_size=3)) for rank in range(3)]
    assert sorted(row for part in parts for row in part) == [*range(90)]
    # a loader that is made before its ranks are known
    loader = MemmapLoader(train, 15, **given)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert rows_of(loader) == parts[1]
    assert loader.seed == 0


def test_a_loader_has_the_seed_that_it_drew_again_where_its_ranks_are_gone(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = MemmapLoader(train, 15, shuffle="full", as_tuple=False)
    drawn, alone = loader.seed, rows_of(loader)
    with monkeypatch.context() as ranks:
        ranks.setenv("RANK", "1")
        ranks.setenv("WORLD_SIZE", "3")
        assert (loader.seed, MemmapLoader(train, 15, seed=7).seed) == (0, 7)
    loader.set_epoch(0)
    assert (loader.seed, rows_of(loader)) == (drawn, alone)


def test_a_state_gives_its_seed_to_loaders_without_one(train: MemmapDataset) -> None:
    loader = MemmapLoader(train, 16, shuffle="full", as_tuple=False)
    steps = iter(loader)
    first = [next(steps).rows.tolist() for _ in range(2)]
    other = MemmapLoader(train, 16, shuffle="full", as_tuple=False)
    other.load_state_dict(loader.state_dict())
    assert other.seed == loader.seed
    rest = [batch.rows.tolist() for batch in other]
    again = MemmapLoader(train, 16, shuffle="full", seed=loader.seed, as_tuple=False)
    assert first + rest == [batch.rows.tolist() for batch in again]
    with pytest.raises(ValueError, match="the state is of another seed"):
        MemmapLoader(train, 16, shuffle="full", seed=loader.seed + 1).load_state_dict(loader.state_dict())
