"""State: every order continues at every step as if never interrupted, also inside torchdata's StatefulDataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune
from torch.utils.data import DistributedSampler, IterableDataset, WeightedRandomSampler

from reader import MemmapDataset, MemmapLoader

ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "full": {"shuffle": "full"},
    "block": {"shuffle": "block"},
    "weights": {"weights": np.arange(90)},
    "drop_last": {"shuffle": "full", "drop_last": True},
    "one of three ranks": {"shuffle": "block", "rank": 1, "world_size": 3},
}


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("part", ["all rows", "a subset"])
@pytest.mark.parametrize(("residency", "prefetch"), [("cache", 2), ("cache", 0), ("disk", 1)])
def test_a_state_resumes_at_every_step(
    train: MemmapDataset, order: str, part: str, residency: str, prefetch: int, tune: Tune
) -> None:
    # blocks, windows and groups so small that the epoch has several of each, and steps begin inside of them
    tune(
        shuffle_block_bytes=5 * train.manifest.row_bytes,
        shuffle_window_blocks=3,
        batch_group_bytes=3 * 7 * train.manifest.row_bytes,
    )
    data = train if part == "all rows" else train.subset(np.arange(89, -1, -2))
    options = ORDERS[order] | {"seed": 2, "residency": residency, "prefetch": prefetch}
    if order == "weights":
        options["weights"] = options["weights"][: len(data)]

    def loader() -> MemmapLoader:
        return MemmapLoader(data, 7, **options, as_tuple=False)

    running = loader()
    running.set_epoch(4)
    full = [batch.rows.tolist() for batch in running]
    following = [batch.rows.tolist() for batch in running]
    assert len(full) == len(running) >= 2
    running.set_epoch(4)
    for step, _ in enumerate(running, start=1):
        state = running.state_dict()
        assert all(type(value) is int for value in state.values())
        fresh = loader()
        fresh.load_state_dict(state)
        # after its last step an epoch is over: the state is that of the next one's beginning
        if step < len(full):
            assert [batch.rows.tolist() for batch in fresh] == full[step:]
        assert [batch.rows.tolist() for batch in fresh] == following


@pytest.mark.parametrize("order", [order for order in ORDERS if "ranks" not in order])
@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_state_of_any_step_resumes_with_any_number_of_ranks(
    train: MemmapDataset, order: str, before: int, after: int, tune: Tune
) -> None:
    tune(shuffle_block_bytes=5 * train.manifest.row_bytes, shuffle_window_blocks=3)

    def ranks(world: int, **options: Any) -> list[MemmapLoader]:
        options = ORDERS[order] | {"seed": 2, "prefetch": 0, "residency": "cache"} | options
        return [MemmapLoader(train, 7, rank=rank, world_size=world, **options, as_tuple=False) for rank in range(world)]

    full = [row for batch in ranks(1, drop_last=False)[0] for row in batch.rows.tolist()]
    running = ranks(before)
    for taken, _ in enumerate(zip(*running, strict=True), start=1):
        states = [loader.state_dict() for loader in running]
        assert all(state == states[0] for state in states)
        position = states[0]["position"]
        assert position == (min(7 * before * taken, 90) if taken < len(running[0]) else 0)
        resumed_loaders = ranks(after)
        for loader in resumed_loaders:
            loader.load_state_dict(states[0])
        if not position:
            continue  # the epoch was over
        steps = [[batch.rows.tolist() for batch in step] for step in zip(*resumed_loaders, strict=True)]
        rest = [row for step in steps for rows in step for row in rows]
        if order == "drop_last":
            left = (90 - position) // (7 * after) * 7 * after
            assert rest == full[position : position + left]
        else:
            # where the last step does not divide, it wraps around to the first rows
            assert rest == full[position:] + full[: len(rest) - (90 - position)]
            assert len(rest) - (90 - position) < after


# -- torchdata


class FullBatches(IterableDataset[Any]):
    """A MemmapLoader where an iterable dataset is wanted, as the reference shows it."""

    def __init__(self, loader: MemmapLoader) -> None:
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self) -> Any:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def stateful(data: Any, **options: Any) -> Any:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(data, **options)


def rows(loader: Any) -> list[list[int]]:
    return [batch.rows.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["sequential", "shuffle", "weights", "ranks"])
@pytest.mark.parametrize("step", [1, 4])
def test_a_stateful_dataloader_of_the_dataset_resumes(
    train: MemmapDataset, workers: int, order: str, step: int
) -> None:
    def loader() -> Any:
        options: dict[str, Any] = {"shuffle": order == "shuffle"}
        if order == "weights":
            # torch's own samplers have no state: torchdata draws again and skips, so the draws must be seeded
            generator = torch.Generator().manual_seed(1)
            options = {"sampler": WeightedRandomSampler([1.0] * 45 + [5.0] * 45, 90, generator=generator)}
        if order == "ranks":
            options = {"sampler": DistributedSampler(train, num_replicas=2, rank=1, seed=5)}
        return stateful(train, batch_size=9, num_workers=workers, **options)

    running = loader()
    iterator = iter(running)
    for _ in range(step):
        next(iterator)
    state = running.state_dict()
    rest = rows(iterator)
    assert len(rest) == (5 if order == "ranks" else 10) - step
    fresh = loader()
    fresh.load_state_dict(state)
    assert rows(fresh) == rest


def test_a_memmap_loader_inside_a_stateful_dataloader_keeps_its_own_state(train: MemmapDataset) -> None:
    def loader() -> Any:
        return stateful(FullBatches(MemmapLoader(train, 9, shuffle="full", seed=3, as_tuple=False)), batch_size=None)

    running = loader()
    epochs = [rows(running) for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [len(running)] * 3 == [10] * 3
    assert epochs[0] != epochs[1]
    running = loader()
    rows(running)
    for step, _ in enumerate(running, start=1):
        state, fresh = running.state_dict(), loader()
        fresh.load_state_dict(state)
        if step < 10:
            assert rows(fresh) == epochs[1][step:]
        assert rows(fresh) == epochs[2]
