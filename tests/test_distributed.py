"""Real processes under torchrun: disjoint parts of one order, equal steps, a checkpoint of two ranks elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reader import MemmapDataset, MemmapLoader

ROOT = Path(__file__).resolve().parents[1]
TAKEN = 2  # steps before the checkpoint

_RANK = """
import json, sys
from pathlib import Path
from torch import distributed
from reader import MemmapDataset, MemmapLoader

distributed.init_process_group("gloo")
work, rank, world = Path(sys.argv[2]), distributed.get_rank(), distributed.get_world_size()
data = MemmapDataset(sys.argv[1])

def loader(**options):
    return MemmapLoader(data, 24 // world, seed=3, **options)  # neither rank nor world_size

found = {"epochs": {}, "whole": []}
for name, options in json.loads(sys.argv[3]).items():
    found["epochs"][name] = [batch.rows.tolist() for batch in loader(**options)]
running = loader(shuffle="full")
for _, batch in zip(range(int(sys.argv[4])), running):
    found["whole"].append(batch.rows.tolist())
found["state"] = running.state_dict()
(work / f"{world}-{rank}").write_text(json.dumps(found))
distributed.destroy_process_group()
"""
ORDERS = {
    "full": {"shuffle": "full"},
    "block": {"shuffle": "block"},
    "sequential": {},
    "drop_last": {"shuffle": "full", "drop_last": True},
}


def torchrun(processes: int, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a script on this machine alone: rendezvous and gloo over the loopback device, one thread a process."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def ranks(processes: int, store: Path, work: Path) -> list[dict[str, Any]]:
    """Return what each of so many real ranks has read."""
    script = work / "rank.py"
    script.write_text(_RANK)
    torchrun(processes, script, store, work, json.dumps(ORDERS), TAKEN)
    return [json.loads((work / f"{processes}-{rank}").read_text()) for rank in range(processes)]


def as_rank(rank: int, world_size: int, store: Path, checkpoint: dict[str, int]) -> dict[str, Any]:
    """Return what such a rank reads."""

    def loader(**options: Any) -> MemmapLoader:
        return MemmapLoader(MemmapDataset(store), 24 // world_size, seed=3, rank=rank, world_size=world_size, **options)

    resumed = loader(shuffle="full")
    resumed.load_state_dict(checkpoint)
    epochs = {name: [b.rows.tolist() for b in loader(**options)] for name, options in ORDERS.items()}
    return {"epochs": epochs, "rest": [batch.rows.tolist() for batch in resumed]}


def joined(parts: list[list[list[int]]]) -> list[list[int]]:
    """Put the ranks' rows of each step behind one another: the step that one process alone would have read."""
    return [[row for rows in step for row in rows] for step in zip(*parts, strict=True)]


@pytest.mark.slow
def test_ranks_under_torchrun_share_one_order_and_a_checkpoint_moves_between_worlds(
    shared_store: Path, tmp_path: Path
) -> None:
    alone = {
        name: [batch.rows.tolist() for batch in MemmapLoader(MemmapDataset(shared_store), 24, seed=3, **options)]
        for name, options in ORDERS.items()
    }
    two = ranks(2, shared_store, tmp_path)
    checkpoint = two[0]["state"]
    assert two[1]["state"] == checkpoint
    # real ranks of two go on as four; those are loaders of this process, since starting four more takes ten seconds
    four = [as_rank(rank, 4, shared_store, checkpoint) for rank in range(4)]
    for found in (two, four):
        for name, whole in alone.items():
            steps = joined([rank["epochs"][name] for rank in found])
            # 90 rows: the last step has 18, which four ranks can share only with two rows of the epoch's beginning
            wrapped = 2 if len(found) == 4 and name != "drop_last" else 0
            assert steps[:3] == whole[:3]
            assert sorted(steps[-1]) == sorted(whole[-1] + whole[0][:wrapped])
            rows = [row for step in steps for row in step]
            assert len(set(rows)) == (72 if name == "drop_last" else 90) == len(rows) - wrapped
    assert joined([rank["whole"] for rank in two]) == alone["full"][:TAKEN]
    rest = joined([rank["rest"] for rank in four])
    assert rest[0] == alone["full"][TAKEN]
    assert sorted(rest[1]) == sorted(alone["full"][TAKEN + 1] + alone["full"][0][:2])
    loader = MemmapLoader(MemmapDataset(shared_store), 24, shuffle="full", seed=3)
    loader.load_state_dict(checkpoint)
    assert [batch.rows.tolist() for batch in loader] == alone["full"][TAKEN:]


@pytest.mark.slow
def test_the_example_goes_on_in_the_middle_of_an_epoch_with_fewer_processes(shared_store: Path, tmp_path: Path) -> None:
    words = (ROOT / "examples/ddp.py", shared_store, "--checkpoint", tmp_path / "run.pt", "--batch-size", 16)
    first = torchrun(2, *words, "--steps", 8)
    assert [line.partition(",")[0] for line in first.stdout.splitlines()] == [
        "epoch 1: steps 1 to 6 of 6",
        "epoch 2: steps 1 to 2 of 6",
    ]
    second = torchrun(1, *words)
    assert second.stdout.startswith("epoch 2: steps 3 to 6 of 6, loss ")
    assert second.stdout.count("\n") == 1
