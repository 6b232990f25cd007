"""State inside torchdata's StatefulDataLoader: every order continues at every step as if never interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset, WeightedRandomSampler

from reader import MemmapDataset, MemmapLoader


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


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


def test_without_pad_the_state_of_a_rank_that_has_no_further_step_is_that_of_the_others(train: MemmapDataset) -> None:
    some = train.subset(range(17))

    def loader(rank: int) -> MemmapLoader:
        return MemmapLoader(some, 4, pad=False, rank=rank, world_size=2, as_tuple=False)

    ranks = [loader(0), loader(1)]
    iterations = [iter(each) for each in ranks]
    for iteration in iterations:
        next(iteration), next(iteration)
    states = [each.state_dict() for each in ranks]
    assert states[0] == states[1]
    rest = []
    for rank in (0, 1):
        resumed = loader(rank)
        resumed.load_state_dict(states[1])
        rest.append(rows(resumed))
        assert (resumed.state_dict()["epoch"], resumed.state_dict()["position"]) == (1, 0)
    assert rest == [[[16]], []]
    assert [list(iteration) for iteration in iterations][1] == []
    assert [each.state_dict()["epoch"] for each in ranks] == [1, 1]
