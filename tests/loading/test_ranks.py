"""Which rank a loader reads for: settled when an epoch begins, counted by `len` before, said aloud where the two differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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
