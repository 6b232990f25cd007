"""Epochs of a given number of rows, loops without end, and the last step without rows that come twice."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader import MemmapDataset, MemmapLoader
from reader.order import Cut


def rows_of(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.rows.tolist()]


@pytest.mark.parametrize("residency", ["cache", "disk"])
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
@pytest.mark.parametrize("epoch_rows", [20, 90, 200])
def test_epochs_of_any_length_continue_one_order(
    train: MemmapDataset, shuffle: bool | str, epoch_rows: int, residency: str
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 4, "as_tuple": False}
    with MemmapLoader(train, 16, **options) as plain:
        expected = [row for _ in range(7) for row in rows_of(plain)]
    with MemmapLoader(train, 16, epoch_rows=epoch_rows, residency=residency, **options) as loader:
        assert len(loader) == -(-epoch_rows // 16)
        found = [rows_of(loader) for _ in range(3)]
    assert [len(rows) for rows in found] == [epoch_rows] * 3
    assert list(itertools.chain(*found)) == expected[: 3 * epoch_rows]


def test_an_epoch_of_given_rows_resumes_and_is_shared_by_ranks(train: MemmapDataset) -> None:
    options: dict[str, Any] = {"shuffle": "full", "seed": 0, "epoch_rows": 40, "as_tuple": False}
    with MemmapLoader(train, 8, **options) as full:
        epochs = [rows_of(full) for _ in range(3)]
    loaders = [MemmapLoader(train, 4, rank=rank, world_size=2, **options) for rank in (0, 1)]
    for loader in loaders:
        loader.set_epoch(2)
    steps = zip(*map(iter, loaders), strict=True)
    assert [row for step in steps for row in rows_of(step)] == epochs[2]
    with MemmapLoader(train, 8, **options) as started, MemmapLoader(train, 8, **options) as resumed:
        started.set_epoch(1)
        taken = rows_of(itertools.islice(started, 2))
        resumed.load_state_dict(started.state_dict())
        assert taken + rows_of(resumed) == epochs[1]
        assert rows_of(resumed) == epochs[2]


def test_a_loop_without_end_continues_over_epochs_and_resumes(train: MemmapDataset) -> None:
    options: dict[str, Any] = {"shuffle": "full", "as_tuple": False}
    with MemmapLoader(train, 40, **options) as plain:
        expected = [row for _ in range(3) for row in rows_of(plain)]
    with MemmapLoader(train, 40, **options) as loader, MemmapLoader(train, 40, **options) as resumed:
        taken = [batch.rows.tolist() for _, batch in zip(range(4), loader.forever(), strict=False)]
        assert [len(rows) for rows in taken] == [40, 40, 10, 40]
        resumed.load_state_dict(loader.state_dict())
        assert loader.state_dict()["epoch"] == 1
        rest = rows_of(itertools.islice(resumed.forever(), 5))
    assert [*itertools.chain(*taken), *rest] == expected


def test_a_loop_without_end_of_no_batches_is_an_error(train: MemmapDataset) -> None:
    with MemmapLoader(train.subset([]), 4) as loader, pytest.raises(ValueError, match="has no batch"):
        next(iter(loader.forever()))


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
            assert len(list(loader.sampler)) == len(loader.sampler) == sum(map(len, batches))
            assert loader.state_dict()["epoch"] == 1
        found += itertools.chain(*batches)
    assert sorted(found) == list(range(85))
    # 2 rows are left for 4 ranks
    counts = []
    for rank in range(4):
        with MemmapLoader(train.subset(range(34)), 8, pad=False, rank=rank, world_size=4) as loader:
            counts.append([len(images) for images, _ in loader])
    assert counts == [[8, 1], [8, 1], [8], [8]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch_rows": 0}, "epoch_rows is 0, expected 1 or more"),
        ({"epoch_rows": 1.5}, "epoch_rows is 1.5, expected an integer"),
        ({"pad": "no"}, "pad is 'no', expected True or False"),
        ({"epoch_rows": 5, "sampler": [1, 2]}, "epoch_rows is for orders of the loader"),
        ({"pad": False, "sampler": [1, 2]}, "pad=False is for orders of the loader"),
        ({"epoch_rows": 5, "drop_last": True}, "drop_last leaves nothing: 5 rows are fewer than batch_size 8"),
    ],
)
def test_what_an_epoch_cannot_be_is_refused(train: MemmapDataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemmapLoader(train, 8, **options)


def test_weights_of_rows_draw_as_many_as_an_epoch_has(train: MemmapDataset) -> None:
    weights = np.zeros(90)
    weights[[3, 5]] = 1
    with MemmapLoader(train, 8, weights=weights, epoch_rows=30, as_tuple=False) as loader:
        rows = rows_of(loader)
    assert (len(rows), {*rows}) == (30, {3, 5})
