"""The state of ranks of which some have no further step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reader import MemmapDataset, MemmapLoader


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


def rows(loader: Any) -> list[list[int]]:
    return [batch.rows.tolist() for batch in loader]


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
