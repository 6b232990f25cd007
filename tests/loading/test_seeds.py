"""The seed of a loader that none was given to: chosen once, when its first epoch begins, and kept in its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from reader import MemmapDataset, MemmapLoader, concat


@pytest.fixture(scope="module")
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


def loader(train: MemmapDataset, **options: Any) -> MemmapLoader:
    return MemmapLoader(train, 10, **{"shuffle": "full", "as_tuple": False, "residency": "cache"} | options)


def rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.rows.tolist()]


def test_manual_seed_sets_the_order_of_a_loader_without_a_seed(train: MemmapDataset) -> None:
    orders = []
    for seed in (1, 2, 2**31 + 1, -1):
        running = loader(train)  # before manual_seed, as programs do in any order
        torch.manual_seed(seed)
        orders.append(rows(running))
        # chosen once: later epochs continue it
        torch.manual_seed(77)
        given = loader(train, seed=seed % 2**31)
        assert [orders[-1], rows(running)] == [rows(given), rows(given)]
        assert running.seed == given.seed == seed % 2**31
    assert orders[0] == orders[2] != orders[1] != orders[3]
    # a seed that is given stays
    assert rows(loader(train, seed=2)) == orders[1]


def test_repr_log_and_state_show_the_seed_once_it_is_chosen(
    train: MemmapDataset, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(5)
    with caplog.at_level("INFO", logger="pixpack"):
        running = loader(train)
        assert running.seed is running.state_dict()["seed"] is None
        assert "seed None" in repr(running)
        iteration = iter(running)
        assert running.seed == running.state_dict()["seed"] == 5
        assert ", seed 5, " in repr(running)
        rows(iteration)
        rows(running)
    logged = [record.getMessage() for record in caplog.records if "first epoch" in record.getMessage()]
    assert len(logged) == 1
    assert "seed 5 (torch.initial_seed())" in logged[0]
    assert "seed 3" in repr(loader(train, seed=3))


def test_several_ranks_without_a_seed_have_0_and_share_the_rows(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = []
    for rank in range(2):
        torch.manual_seed(rank)
        running = loader(train, rank=rank, world_size=2)
        parts.append(rows(running))
        assert running.seed == 0
    assert sorted(parts[0] + parts[1]) == list(range(90))
    # a batch that was looked at before the process group was made says nothing of its order
    parts = []
    for rank in range(2):
        torch.manual_seed(rank + 1)
        running = loader(train)
        next(iter(running))
        assert running.seed == rank + 1
        with monkeypatch.context() as patch:
            patch.setattr("torch.distributed.is_initialized", lambda: True)
            patch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
            patch.setattr("torch.distributed.get_world_size", lambda: 2)
            parts.append(rows(running))
    assert sorted(parts[0] + parts[1]) == list(range(90))


@pytest.mark.parametrize("order", ["full", "block", "weights", "mixture"])
def test_a_state_gives_its_seed_to_loaders_without_one(train: MemmapDataset, order: str) -> None:
    data, options = train, dict[str, Any](shuffle=order)
    if order == "weights":
        options = {"shuffle": False, "weights": [1.0] * 45 + [5.0] * 45}
    if order == "mixture":
        data = concat({"a": train.subset(range(30)), "b": train.subset(range(30, 90))})
        options = {"shuffle": False, "weights": {"a": 0.5, "b": 0.5}}
    torch.manual_seed(8)
    running = loader(data, **options)
    iteration = iter(running)
    for _ in range(4):
        next(iteration)
    state, rest = running.state_dict(), rows(iteration)
    assert state["seed"] == 8
    torch.manual_seed(9)
    resumed = loader(data, **options)
    resumed.load_state_dict(state)
    assert ", seed 8, " in repr(resumed)
    assert rows(resumed) == rest
    # also one that has begun with another
    begun = loader(data, **options)
    running_pass = iter(begun)
    before = [next(running_pass) for _ in range(2)]
    begun.load_state_dict(state)
    assert rows(begun) == rest
    # the pass that ran stays as it was
    assert rows([*before, *running_pass]) == rows(loader(data, **options))
    # and on other world sizes
    parts = []
    for rank in range(2):
        of_rank = MemmapLoader(data, 5, as_tuple=False, rank=rank, world_size=2, **options)
        of_rank.load_state_dict(state)
        parts.append([batch.rows.tolist() for batch in of_rank])
    assert [row for step in zip(*parts, strict=True) for part in step for row in part] == rest
    for seed in (8, 9):
        explicit = loader(data, seed=seed, **options)
        if seed == 8:
            explicit.load_state_dict(state)
            assert rows(explicit) == rest
        else:
            with pytest.raises(ValueError, match="the state is of another seed: it says 8, this loader has 9"):
                explicit.load_state_dict(state)
            assert explicit.state_dict()["seed"] == 9


def test_a_state_from_before_the_first_epoch_begins_anew_with_any_seed(train: MemmapDataset) -> None:
    state = loader(train).state_dict()
    assert [state[key] for key in ("epoch", "position", "seed")] == [0, 0, None]
    torch.manual_seed(6)
    fresh, given, begun = loader(train), loader(train, seed=4), loader(train)
    first = rows(begun)
    for each in (fresh, given, begun):
        each.load_state_dict(state)
    assert rows(fresh) == rows(begun) == first == rows(loader(train, seed=6))
    assert rows(given) == rows(loader(train, seed=4))
    damaged = [{**state, "seed": "6"}, {**state, "seed": True}, {key: state[key] for key in state if key != "seed"}]
    for other in damaged:
        with pytest.raises(ValueError, match=r"the state is .*, expected what state_dict\(\) gave"):
            fresh.load_state_dict(other)
    # a state that is refused changes nothing
    of_others = loader(train.subset(range(40)))
    rows(of_others)
    untouched = loader(train)
    with pytest.raises(ValueError, match="number of rows"):
        untouched.load_state_dict(of_others.state_dict())
    assert untouched.seed is None


class Whole(IterableDataset[Any]):
    """A loader where an iterable dataset is wanted; each worker of a DataLoader then reads everything."""

    def __init__(self, batches: MemmapLoader) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return ((batch.rows.tolist(), self.batches.seed) for batch in self.batches)


def test_samplers_and_workers_have_the_seed_of_the_loader(train: MemmapDataset) -> None:
    torch.manual_seed(11)
    expected = rows(loader(train, seed=11))
    assert list(loader(train).sampler) == expected
    running = loader(train)
    assert [row for step in running.batch_sampler for row in step] == expected == rows(running)
    by_worker = DataLoader(train, 10, sampler=loader(train).sampler, num_workers=2)
    assert rows(by_worker) == expected
    # workers that are forked while the seed is yet to be chosen
    whole = DataLoader(Whole(loader(train)), batch_size=None, num_workers=2, multiprocessing_context="fork")
    seen = list(whole)
    assert {seed for _, seed in seen} == {11}
    assert sorted(row for found, _ in seen for row in found) == sorted(expected * 2)
