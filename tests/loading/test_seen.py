"""`loader.rows` and `loader.steps_of` say what the batches of a loop were, in every order, without a log and without reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tune, make_tree
from torch.utils.data import RandomSampler

from packer import pack
from reader import MemmapDataset, MemmapLoader, RandomResizedCrop, concat
from reader.order import BlockOrder, drawn, draws_of, permuted, place_of

EPOCHS = 4
ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {"shuffle": False},
    "full": {"shuffle": "full"},
    "block": {"shuffle": "block"},
    "nodes": {"shuffle": "block", "canonical_nodes": 2},
    "short epochs": {"shuffle": "full", "epoch_rows": 17},
    "long epochs of blocks": {"shuffle": "block", "epoch_rows": 101},
    "weights": {"weights": "given"},
    "mixture": {"weights": {"a": 0.75, "b": 0.25}},
    "no last step": {"shuffle": "full", "drop_last": True},
    "no padding": {"shuffle": "full", "pad": False},
    "growing batches": {
        "shuffle": "full",
        "size": lambda epoch: 8 + epoch,
        "batch_size": lambda height, width: height - 4,
    },
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """41 rows: no number of ranks and no batch divides them."""
    root = tmp_path_factory.mktemp("seen")
    images = make_tree(root / "images", classes=1, each=41, size=(20, 20))
    pack(images, root / "out", size=16, workers=1)
    return root / "out"


@pytest.fixture(autouse=True)
def _small_blocks(tune: Tune) -> None:
    tune(shuffle_block_bytes=16 * 16 * 3 * 4, shuffle_window_blocks=3)


def loader_of(store: Path, order: str, rank: int, world_size: int) -> MemmapLoader:
    given = {"batch_size": 4, **ORDERS[order]}
    data = MemmapDataset(store)
    if order == "mixture":
        data = concat({"a": data.subset(slice(0, 9)), "b": data.subset(slice(9, 41))})
    if given.get("weights") == "given":
        given["weights"] = np.arange(len(data)) % 5
    if "size" in given:
        given["transform"] = RandomResizedCrop(8)
    batch_size = given.pop("batch_size")
    return MemmapLoader(data, batch_size, seed=3, rank=rank, world_size=world_size, as_tuple=False, **given)


def logged(store: Path, order: str, world_size: int) -> dict[tuple[int, int], list[list[int]]]:
    """Train, and log (epoch, step) -> the rows of each rank."""
    log: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for rank in range(world_size):
        loader = loader_of(store, order, rank, world_size)
        for epoch in range(EPOCHS):
            for step, batch in enumerate(loader):
                log[epoch, step].append(batch.rows.tolist())
    return log


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_steps_and_rows_are_those_of_the_loop(store: Path, order: str, world_size: int) -> None:
    if order == "nodes" and world_size == 3:
        world_size = 2
    log, asked = logged(store, order, world_size), loader_of(store, order, world_size - 1, world_size)
    assert len(log) > EPOCHS
    for (epoch, step), by_rank in log.items():
        assert asked.rows(epoch, step).tolist() == [row for rows in by_rank for row in rows]
        # ranks that have no such step come last
        assert [asked.rows(epoch, step, rank).tolist() for rank in range(len(by_rank))] == by_rank
    last = {epoch: max(step for of, step in log if of == epoch) for epoch in range(EPOCHS)}
    with pytest.raises(
        IndexError, match=rf"step is {last[2] + 1}, and epoch 2 has steps 0 to {last[2]}; steps are counted"
    ):
        asked.rows(2, last[2] + 1)
    state = {**asked.state_dict(), "epoch": EPOCHS}
    for row in range(len(asked.dataset)):
        expected = sorted(at for at, by_rank in log.items() for rows in by_rank for found in rows if found == row)
        assert asked.steps_of(row, state) == expected


def states(loader: MemmapLoader) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield (epoch, steps taken of it, state) after each batch of two epochs."""
    for epoch in range(2):
        for taken, _ in enumerate(loader, 1):
            yield epoch, taken, loader.state_dict()


@pytest.mark.parametrize("order", ["full", "block", "weights", "mixture", "short epochs", "nodes"])
def test_a_state_in_the_middle_of_an_epoch_has_seen_the_steps_before_it(store: Path, order: str) -> None:
    log = logged(store, order, 1)
    asked = loader_of(store, order, 0, 1)
    for epoch, taken, state in states(loader_of(store, order, 0, 1)):
        for row in range(0, 41, 5):
            expected = sorted(
                at for at, (rows,) in log.items() for found in rows if found == row and at < (epoch, taken)
            )
            assert asked.steps_of(row, state) == expected


def test_without_a_state_it_is_that_of_the_loader(store: Path) -> None:
    loader = MemmapLoader(MemmapDataset(store), 8, shuffle="full", seed=1)
    with pytest.raises(ValueError, match="this loader has given no batch yet. Give the state of a checkpoint"):
        loader.steps_of(7)
    assert loader.steps_of(7, loader.state_dict()) == []
    for _ in range(2):
        for _ in loader:
            pass
    assert [epoch for epoch, _ in loader.steps_of(7)] == [0, 1]


def test_rows_are_those_of_the_dataset_not_of_the_store(store: Path) -> None:
    part = MemmapDataset(store).subset([40, 3, 5])
    loader = MemmapLoader(part, 2, seed=0)
    assert loader.rows(0, 0).tolist() == [0, 1]
    assert part.samples[int(loader.rows(0, 0)[0])] == MemmapDataset(store).samples[40]


def test_the_seed_of_a_state_is_taken(store: Path) -> None:
    trained = MemmapLoader(MemmapDataset(store), 8, shuffle="full", seed=77)
    for _ in trained:
        pass
    asked = MemmapLoader(MemmapDataset(store), 8, shuffle="full")
    (at,) = asked.steps_of(5, trained.state_dict())
    assert 5 in trained.rows(*at)
    # nothing of the loader has changed
    assert asked.seed is None


def test_what_cannot_be_computed_is_refused_in_a_sentence(store: Path) -> None:
    data = MemmapDataset(store)
    sampled = MemmapLoader(data, 8, sampler=RandomSampler(data))
    for ask in (lambda: sampled.rows(0, 0), lambda: sampled.steps_of(0)):
        with pytest.raises(ValueError, match="come from the sampler, a RandomSampler, which alone knows its order"):
            ask()
    loader = MemmapLoader(data, 8, shuffle="full")
    with pytest.raises(ValueError, match="no seed is chosen yet"):
        loader.rows(0, 0)
    assert loader.steps_of(0, loader.state_dict()) == []
    # store order has none
    assert MemmapLoader(data, 8).rows(epoch=5, step=1).tolist() == [*range(8, 16)]
    seeded = MemmapLoader(data, 8, shuffle="full", seed=0, rank=0, world_size=2)
    for ask, error, said in (
        (lambda: seeded.rows(-1, 0), ValueError, "epoch is -1, expected 0 or more"),
        (lambda: seeded.rows(0, -1), IndexError, "step is -1, and epoch 0 has steps 0 to 2; steps are counted"),
        (lambda: MemmapLoader(data.subset([]), 8).rows(0, 0), IndexError, "step is 0, and epoch 0 has no steps"),
        (lambda: seeded.rows(0, 0, rank=2), IndexError, "rank is 2, expected 0 to 1"),
        (lambda: seeded.steps_of(41), IndexError, "row is 41, and the dataset has rows 0 to 40"),
        (lambda: seeded.steps_of(-1), IndexError, "row is -1, and the dataset has rows 0 to 40"),
        (lambda: seeded.steps_of(0, {"epoch": 3}), ValueError, "expected what state_dict"),
        (lambda: seeded.steps_of(0, {"model": [0] * 99}), ValueError, "give the entry that the state was"),
        (lambda: seeded.steps_of(0, {**seeded.state_dict(), "seed": 9}), ValueError, "the state is of another seed"),
        (lambda: seeded.steps_of(0, {**seeded.state_dict(), "order": 2}), ValueError, "the state is of another order"),
    ):
        with pytest.raises(error, match=said):
            ask()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 65, 1000])
def test_a_place_in_a_permutation_is_its_inverse(count: int) -> None:
    order = permuted(count, 0, count, seed=9, epoch=4, part=2).tolist()
    assert [place_of(count, value, seed=9, epoch=4, part=2) for value in order] == [*range(count)]


@pytest.mark.parametrize("first", [0, 3, 8])
def test_a_place_in_an_order_of_blocks_is_its_inverse(first: int) -> None:
    order = BlockOrder(50, 4, 3, seed=1, epoch=2, first=first, part=1)
    assert [order.places_of(row) for row in order.rows(0, 50).tolist()] == [[place] for place in range(50)]


@pytest.mark.parametrize("weights", [[1.0], [0.0, 1.0, 1e-9, 3.0, 0.0], [*range(200)]], ids=["one", "few", "many"])
def test_the_draws_of_a_row_are_those_that_give_it(weights: list[float]) -> None:
    cumulative = np.cumsum(weights)
    # more than are computed at a time, and no multiple of them
    rows = drawn(cumulative, 5, 100_003, seed=2, epoch=8)
    for row in range(len(weights)):
        found = draws_of(cumulative, row, 5, 100_003, seed=2, epoch=8)
        assert np.array_equal(found, 5 + np.flatnonzero(rows == row))
