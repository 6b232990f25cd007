"""What programs that expect a DataLoader ask of a MemmapLoader: its samplers, and attributes with a DataLoader's names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import torchvision_or_skip
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)

from reader import MemmapDataset, MemmapLoader


def rows(loader: Any) -> list[list[int]]:
    return [batch.rows.tolist() for batch in loader]


def test_a_sampler_that_is_exchanged_later_gets_the_epochs(train: MemmapDataset) -> None:
    """As Lightning does, which gives a BatchSampler another sampler."""
    batches = BatchSampler(SequentialSampler(train), 5, drop_last=False)
    loader = MemmapLoader(train, 5, sampler=batches, rank=0, world_size=1)
    batches.sampler = DistributedSampler(train, num_replicas=1, rank=0)
    loader.set_epoch(4)
    assert batches.sampler.epoch == 4


class Rows(Dataset[int]):
    """The numbers of 90 rows."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, row: int) -> int:
        return row


class PerClass(Sampler[int]):
    """Gives rows, and has a batch_size, as pytorch-metric-learning's MPerClassSampler and catalyst's BalanceBatchSampler have."""

    def __init__(self, count: int, batch_size: int) -> None:
        self.count, self.batch_size = count, batch_size

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(self.count).tolist())


class Batches(Sampler[list[int]]):
    """Gives lists of rows, and says so by no attribute."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[int]]:
        return (random.sample(range(90), 5) for _ in range(self.count))


def timm_sampler(train: MemmapDataset) -> Any:
    torchvision_or_skip()
    samplers = pytest.importorskip("timm.data.distributed_sampler", reason="timm is not installed")
    return samplers.RepeatAugSampler(train, num_replicas=1, rank=0)


# name -> makes a sampler of 90 rows, and says whether a DataLoader takes it for batches
FOREIGN: dict[str, tuple[Callable[[MemmapDataset], Any], bool]] = {
    "sequential": (SequentialSampler, False),
    "random": (RandomSampler, False),
    "random, of a generator": (lambda train: RandomSampler(train, generator=torch.Generator().manual_seed(3)), False),
    "subset": (lambda train: SubsetRandomSampler(range(33)), False),
    "weighted": (lambda train: WeightedRandomSampler([1.0] * 90, 70), False),
    "distributed": (lambda train: DistributedSampler(train, 2, 1), False),
    "batches of torch": (lambda train: BatchSampler(RandomSampler(train), 7, drop_last=True), True),
    "timm": (timm_sampler, False),
    "rows, with a batch_size": (lambda train: PerClass(64, 32), False),
    "batches": (lambda train: Batches(9), True),
    "list of rows": (lambda train: list(range(50)), False),
    "list of batches": (lambda train: [[1, 2], [3, 4, 5]], True),
}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_sampler_gives_the_steps_that_len_and_a_dataloader_say(
    train: MemmapDataset, kind: str, drop_last: bool
) -> None:
    make, gives_batches = FOREIGN[kind]
    seen = []
    for as_loader in (True, False):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        sampler = make(train)
        if as_loader:
            loader: Any = MemmapLoader(train, 8, sampler=sampler, drop_last=drop_last, as_tuple=False)
        elif gives_batches:
            loader = DataLoader(Rows(), batch_sampler=sampler, collate_fn=list)
        else:
            loader = DataLoader(Rows(), 8, sampler=sampler, drop_last=drop_last, collate_fn=list)
        steps = len(loader)
        seen.append(rows(loader) if as_loader else [*loader])
        assert steps == len(seen[-1])
    # a DataLoader draws a seed for its workers before torch's samplers draw theirs
    if not kind.startswith(("random", "subset", "weighted", "batches of torch")):
        assert seen[0] == seen[1]


def test_what_random_split_gives_is_read_as_a_subset(train: MemmapDataset) -> None:
    part, _ = random_split(train, [50, 40], torch.Generator().manual_seed(3))
    loader = MemmapLoader(Subset(part, [4, 0]), 2, as_tuple=False)
    assert rows(loader) == [[part.indices[4], part.indices[0]]]
    assert isinstance(loader.dataset, MemmapDataset)
    own = type("Own", (Subset,), {"__getitem__": lambda self, row: None, "__getitems__": lambda self, rows: []})
    with pytest.raises(ValueError, match="dataset is a Own, expected a MemmapDataset or a subset of one"):
        MemmapLoader(own(train, [4, 0]), 2)
    with pytest.raises(ValueError, match="dataset is a ConcatDataset, expected a MemmapDataset or a subset of one"):
        MemmapLoader(ConcatDataset([train, range(3)]), 2)  # type: ignore[list-item]


@pytest.mark.parametrize("batch_size", [3, 4, 16])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_sampler_continues_behind_the_rows_that_were_taken_in_batches_of_any_size(
    train: MemmapDataset, batch_size: int, drop_last: bool
) -> None:
    def loader(size: int) -> MemmapLoader:
        generator = torch.Generator().manual_seed(5)
        sampler = RandomSampler(train, generator=generator)
        return MemmapLoader(train, size, sampler=sampler, drop_last=drop_last, as_tuple=False)

    order = [row for batch in loader(1) for row in batch.rows.tolist()]
    first = loader(10)
    taken = [next(iter(first)).rows.tolist()]
    resumed = loader(batch_size)
    resumed.load_state_dict(first.state_dict())
    rest = rows(resumed)
    assert taken == [order[:10]]
    left = order[10:]
    expected = [left[n : n + batch_size] for n in range(0, len(left), batch_size)]
    assert rest == [batch for batch in expected if not drop_last or len(batch) == batch_size]
    assert (resumed.state_dict()["epoch"], resumed.state_dict()["position"]) == (1, 0)


@pytest.mark.parametrize(("before", "now"), [(2, 4), (4, 2), (1, 3), (2, 3)])
def test_a_distributed_sampler_continues_on_any_number_of_ranks(train: MemmapDataset, before: int, now: int) -> None:
    def loader(rank: int, world_size: int) -> MemmapLoader:
        sampler = DistributedSampler(train, num_replicas=world_size, rank=rank, seed=3)
        return MemmapLoader(train, 6, sampler=sampler, rank=rank, world_size=world_size, as_tuple=False)

    first = [loader(rank, before) for rank in range(before)]
    batches = [iter(each) for each in first]
    taken = [row for each in batches for _ in range(3) for row in next(each).rows.tolist()]
    states = [each.state_dict() for each in first]
    assert states == states[:1] * before
    resumed = [loader(rank, now) for rank in range(now)]
    for each in resumed:
        each.load_state_dict(states[0])
    rest = [row for each in resumed for batch in each for row in batch.rows.tolist()]
    assert {*taken, *rest} == {*range(90)}
    again = len(taken) + len(rest) - 90
    # what the ranks do not share evenly comes again
    assert len({*taken} & {*rest}) < now
    assert again < now + before


def test_a_batch_sampler_continues_behind_the_batches_that_were_taken(train: MemmapDataset) -> None:
    batches = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
    loader = MemmapLoader(train, 5, sampler=batches, as_tuple=False)
    iterator = iter(loader)
    next(iterator), next(iterator)
    other = MemmapLoader(train, 5, sampler=batches, as_tuple=False)
    other.load_state_dict(loader.state_dict())
    assert rows(other) == batches[2:]
    # other batches continue at the same row
    other = MemmapLoader(train, 5, sampler=[[1, 2], [3, 4, 5], [6, 7]], as_tuple=False)
    other.load_state_dict(loader.state_dict())
    assert rows(other) == [[5], [6, 7]]
