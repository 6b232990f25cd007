"""Shares of joined datasets: exact over any 10,000 rows, the same for any world size and batch, resumed at any step."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import pack_dataset
from reader import MemmapDataset, MemmapLoader, concat
from reader.dataset.groups import PERIOD, Groups, Mixture
from reader.loading.iteration import Iteration

COUNTS = {"a": 30, "b": 21, "c": 5}
STARTS = {"a": 0, "b": 30, "c": 51}


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> MemmapDataset:
    root = tmp_path_factory.mktemp("mixture")
    for n, (name, count) in enumerate(COUNTS.items()):
        images = np.random.default_rng(n).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
        pack_dataset([(image, 0) for image in images], root / name, size=4, classes=["x"])
    return concat([MemmapDataset(root / name, as_tuple=False) for name in COUNTS])


def loader_of(joined: MemmapDataset, batch_size: int = 8, **options: object) -> MemmapLoader:
    options = {"weights": {"a": 0.7, "b": 0.3, "c": 0}, "seed": 0, "as_tuple": False, "prefetch": 0} | options
    return MemmapLoader(joined, batch_size, **options)  # type: ignore[arg-type]


def rows_of(batches: Iteration | itertools.islice[object]) -> list[int]:
    return [row for batch in batches for row in batch.rows.tolist()]  # type: ignore[attr-defined]


@given(
    weights=st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(any),
    seed=st.integers(0, 5),
    start=st.integers(0, 10**7),
)
@settings(max_examples=15)
def test_any_window_of_ten_thousand_rows_has_the_shares(weights: list[int], seed: int, start: int) -> None:
    names = tuple("abcd"[: len(weights)])
    groups = Groups(names, np.repeat(np.arange(len(names), dtype=np.int32), 701))
    mixture = Mixture(groups, dict(zip(names, weights, strict=True))).order(seed)
    found = np.bincount(groups.of[mixture(start, start + PERIOD)], minlength=len(names))
    assert found.sum() == PERIOD
    assert np.abs(found - PERIOD * np.array(weights) / sum(weights)).max() < 1
    if PERIOD % sum(weights) == 0:
        assert found.tolist() == [PERIOD * weight // sum(weights) for weight in weights]
    assert np.array_equal(mixture(start, start + 99)[40:], mixture(start + 40, start + 99))


def test_each_dataset_comes_in_complete_passes_in_new_orders(joined: MemmapDataset) -> None:
    assert joined.groups is not None
    rows = Mixture(joined.groups, {"a": 1, "b": 1, "c": 2}).order(3)(0, 4000)
    for name, count in COUNTS.items():
        own = rows[(rows >= STARTS[name]) & (rows < STARTS[name] + count)] - STARTS[name]
        passes = own[: len(own) // count * count].reshape(-1, count)
        assert (np.sort(passes, axis=1) == np.arange(count)).all()
        assert len({tuple(each) for each in passes.tolist()}) > (100 if count == 5 else len(passes) * 0.9)
    # they take turns from the first batch on
    assert len({int(np.searchsorted([30, 51], row, side="right")) for row in rows[:64]}) == 3


def test_datasets_of_one_length_come_each_in_an_order_of_its_own(joined: MemmapDataset) -> None:
    parts = joined.subset(range(20)), joined.subset(range(30, 50))
    both = concat(dict(zip("ab", parts, strict=True)))
    with loader_of(both, weights={"a": 1, "b": 1}, seed=2) as loader:
        rows = rows_of(iter(loader)) + rows_of(iter(loader)) + rows_of(iter(loader))
    own = [row for row in rows if row < 30], [row - 30 for row in rows if row >= 30]
    assert sorted(own[0][:20]) == sorted(own[1][:20]) == list(range(20))
    assert own[0][:20] != own[1][:20]


def test_shares_hold_in_the_loop_over_epochs(joined: MemmapDataset) -> None:
    with loader_of(joined, 100, epoch_rows=2500) as loader:
        assert (loader.order, len(loader)) == ("mixture", 25)
        rows = np.array(rows_of(itertools.islice(loader.forever(), 150)))
    for start in (0, 1234, 5000):
        window = rows[start : start + PERIOD]
        assert [int(((window >= s) & (window < s + COUNTS[n])).sum()) for n, s in STARTS.items()] == [7000, 3000, 0]


def test_a_state_of_other_shares_or_epochs_is_refused(joined: MemmapDataset) -> None:
    with loader_of(joined) as one:
        state = one.state_dict()
    for other in ({"weights": {"a": 0.6, "b": 0.4, "c": 0}}, {"epoch_rows": 7}):
        with (
            loader_of(joined, **other) as loader,
            pytest.raises(ValueError, match="the state is of another store, subset"),
        ):
            loader.load_state_dict(state)


def test_subsets_keep_the_names_of_their_rows(joined: MemmapDataset) -> None:
    part, _ = joined.split(0.5, seed=1)
    assert part.groups is not None
    with loader_of(part, 10, weights={"a": 0, "b": 1, "c": 0}) as loader:
        rows = rows_of(iter(loader))
    assert {*rows} == {row for row in part[:].rows.tolist() if 30 <= row < 51}
    assert part.groups.names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 0.5, "b": 0.5}, "weights name 'a', 'b', expected each of 'a', 'b', 'c' once; 0 leaves one out"),
        ({}, "weights name nothing, expected each of 'a', 'b', 'c' once"),
        (
            {"a": 0, "b": 0, "c": 0},
            r"weights are \{'a': 0, 'b': 0, 'c': 0\}, expected finite numbers of 0 or more, not all 0",
        ),
        ({"a": -1, "b": 1, "c": 1}, "expected finite numbers of 0 or more"),
        ({"a": float("nan"), "b": 1, "c": 1}, "expected finite numbers of 0 or more"),
        ({"a": "x", "b": 1, "c": 1}, "expected finite numbers of 0 or more"),
        ({"a": 1, "b": 1, "c": 1e-6}, "the weight of 'c', 1e-06, is less than one row of 10,000: give more, or 0"),
    ],
)
def test_weights_that_are_no_shares_are_refused(joined: MemmapDataset, weights: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader_of(joined, weights=weights)


def test_weights_by_name_need_rows_of_that_name(joined: MemmapDataset, shared_store: Path) -> None:
    with pytest.raises(ValueError, match="weights give 'c' a share, but the dataset has no row of it"):
        loader_of(joined.subset(range(51)), weights={"a": 1, "b": 1, "c": 1})
    with pytest.raises(
        ValueError, match=r"names are those of datasets that reader.concat joined. Give one weight a row"
    ):
        MemmapLoader(MemmapDataset(shared_store), 4, weights={"a": 1})
    twice = concat([joined.subset([1]), joined.subset([2])])
    with pytest.raises(ValueError, match="gives other names"):
        loader_of(twice, weights={"a": 1})


def test_a_state_of_datasets_that_were_divided_otherwise_is_refused(shared_store: Path) -> None:
    full = MemmapDataset(shared_store)
    one, other = (
        loader_of(
            concat({"a": full.subset(range(cut)), "b": full.subset(range(cut, len(full)))}), weights={"a": 1, "b": 1}
        )
        for cut in (30, 60)
    )
    with pytest.raises(ValueError, match="the state is of another store, subset or weights"):
        other.load_state_dict(one.state_dict())
