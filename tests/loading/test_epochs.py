"""Epochs of a given number of rows, loops without end, and the last step without rows that come twice."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from reader import MemmapDataset, MemmapLoader
from reader.order import Cut


@given(count=st.integers(0, 60), batch_size=st.integers(1, 9), world_size=st.integers(1, 7))
def test_without_padding_each_row_is_one_ranks(count: int, batch_size: int, world_size: int) -> None:
    seen: list[int] = []
    for rank in range(world_size):
        cut, position = Cut(count, batch_size, False, rank, world_size, pad=False), 0
        steps = cut.steps()
        for left in range(steps, 0, -1):
            assert cut.steps(position) == left
            *_, start, stop = cut.step(position)
            assert 0 < stop - start <= batch_size
            seen += range(start, stop)
            position = cut.step(position).after
        assert cut.steps(position) == 0
        assert steps in (cut.steps(0), Cut(count, batch_size, False).steps() // world_size)
    assert sorted(seen) == list(range(count))


def test_ranks_evaluate_each_row_once(train: MemmapDataset) -> None:
    found = []
    for rank in range(4):
        with MemmapLoader(train.subset(range(85)), 8, pad=False, rank=rank, world_size=4, as_tuple=False) as loader:
            batches = [batch.rows.tolist() for batch in loader]
            assert len(batches) == len(loader)
            assert loader.state_dict()["epoch"] == 1
        found += itertools.chain(*batches)
    assert sorted(found) == list(range(85))
    # 2 rows are left for 4 ranks
    counts = []
    for rank in range(4):
        with MemmapLoader(train.subset(range(34)), 8, pad=False, rank=rank, world_size=4) as loader:
            counts.append([len(images) for images, _ in loader])
    assert counts == [[8, 1], [8, 1], [8], [8]]
