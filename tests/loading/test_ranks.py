"""Which rank a loader reads for, settled when an epoch begins; its state, and its seed where none is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from launcher import launch

from reader import MemmapDataset, MemmapLoader


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def started(patch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """Let torch say that a process group was started."""
    patch.setattr("torch.distributed.is_initialized", lambda: world_size > 0)
    patch.setattr("torch.distributed.get_rank", lambda: rank)
    patch.setattr("torch.distributed.get_world_size", lambda: world_size)


def rows(loader: MemmapLoader) -> list[int]:
    return [row for batch in loader for row in batch.rows.tolist()]


def test_len_before_the_first_epoch_takes_world_size_and_asks_nobody_else_afterwards(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loader = MemmapLoader(train, 10, as_tuple=False)
    assert len(loader) == 9
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert len(loader) == 3
    assert len(MemmapLoader(train, 10)) == 3
    assert len(MemmapLoader(train, 10, rank=0, world_size=1)) == 9
    started(monkeypatch, 2, 3)
    assert len(rows(loader)) == 30
    assert not caplog.text


def test_a_world_size_without_a_rank_is_refused_when_an_epoch_begins(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = MemmapLoader(train, 10, as_tuple=False)
    assert len(loader) == 5
    with pytest.raises(
        ValueError, match=r"^WORLD_SIZE is 2, but RANK is not set and torch\.distributed is not init.*\.$"
    ):
        iter(loader)
    started(monkeypatch, 0, 2)
    assert len(rows(loader)) == 45


def test_what_the_process_group_leaves_nothing_of_is_refused_when_an_epoch_begins(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = MemmapLoader(train, 40, drop_last=True, as_tuple=False)
    started(monkeypatch, 0, 4)
    with pytest.raises(
        ValueError, match="drop_last leaves nothing: 90 rows are fewer than batch_size 40 x world_size 4"
    ):
        iter(loader)


def test_a_state_of_one_rank_resumes_with_two_that_came_later(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = MemmapLoader(train, 10, shuffle="full", as_tuple=False)
    order = rows(loader)
    loader.load_state_dict(loader.state_dict() | {"epoch": 0, "position": 40})
    started(monkeypatch, 1, 2)
    assert rows(loader) == order[50:60] + order[70:80] + order[85:90]


# -- real processes

_EARLY = """
import json, logging, os, sys
from pathlib import Path
logging.basicConfig(level="WARNING", filename=f"{sys.argv[2]}/{os.environ['RANK']}.log")
from torch import distributed
from reader import MemmapDataset, MemmapLoader
loader = MemmapLoader(MemmapDataset(sys.argv[1]), 10, shuffle="full", as_tuple=False)
without = MemmapLoader(loader.dataset, 10, shuffle="full", as_tuple=False)
first = [batch.rows.tolist() for batch in without]
steps = len(loader)
distributed.init_process_group("gloo")
rows = [batch.rows.tolist() for batch in loader]
rank = distributed.get_rank()
Path(sys.argv[2], f"{rank}.json").write_text(json.dumps([steps, rows, first, repr(loader)]))
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_share_an_epoch_though_their_loaders_were_made_first(shared_store: Path, tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(_EARLY)
    launch(tmp_path / "early.py", (2, [shared_store, tmp_path]))
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, (steps, batches, first, shown) in enumerate(found):
        # without a process group the variables say the same
        assert first == batches
        assert steps == len(batches) == 5
        assert f"rank {rank} of 2" in shown
    assert sorted(row for _, batches, _, _ in found for rows in batches for row in rows) == list(range(90))


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
        rest.append([batch.rows.tolist() for batch in resumed])
        assert (resumed.state_dict()["epoch"], resumed.state_dict()["position"]) == (1, 0)
    assert rest == [[[16]], []]
    assert [list(iteration) for iteration in iterations][1] == []
    assert [each.state_dict()["epoch"] for each in ranks] == [1, 1]


# -- the seed of a loader that none was given to


def test_a_loader_made_in_each_epoch_gives_another_order_each_time(train: MemmapDataset) -> None:
    torch.manual_seed(1)
    epochs = [rows(MemmapLoader(train, 16, shuffle="full", as_tuple=False)) for _ in range(3)]
    assert len({tuple(rows) for rows in epochs}) == 3
    torch.manual_seed(1)
    assert rows(MemmapLoader(train, 16, shuffle="full", as_tuple=False)) == epochs[0]


def test_several_ranks_without_a_seed_have_0_and_share_the_rows(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"shuffle": "full", "as_tuple": False, "drop_last": True}
    parts = [rows(MemmapLoader(train, 15, **given, rank=rank, world_size=3)) for rank in range(3)]
    assert sorted(row for part in parts for row in part) == [*range(90)]
    # a loader that is made before its ranks are known
    loader = MemmapLoader(train, 15, **given)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert rows(loader) == parts[1]
    assert loader.seed == 0


def test_a_loader_has_the_seed_that_it_drew_again_where_its_ranks_are_gone(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = MemmapLoader(train, 15, shuffle="full", as_tuple=False)
    drawn, alone = loader.seed, rows(loader)
    with monkeypatch.context() as ranks:
        ranks.setenv("RANK", "1")
        ranks.setenv("WORLD_SIZE", "3")
        assert (loader.seed, MemmapLoader(train, 15, seed=7).seed) == (0, 7)
    loader.set_epoch(0)
    assert (loader.seed, rows(loader)) == (drawn, alone)


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
