"""Real processes under torchrun: disjoint parts of one order, equal steps, a checkpoint of two ranks elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import make_tree
from launcher import launch

from reader import MemmapDataset, MemmapLoader

ROOT = Path(__file__).resolve().parents[2]

_RANK = """
import json, sys
from pathlib import Path
from torch import distributed
from reader import MemmapDataset, MemmapLoader

distributed.init_process_group("gloo")
work, rank, world = Path(sys.argv[2]), distributed.get_rank(), distributed.get_world_size()
data = MemmapDataset(sys.argv[1])

def loader(**options):
    return MemmapLoader(data, 24 // world, seed=3, as_tuple=False, **options)  # neither rank nor world_size

found = {"epochs": {}}
for name, options in json.loads(sys.argv[3]).items():
    found["epochs"][name] = [batch.rows.tolist() for batch in loader(**options)]
running = loader(shuffle="full")
if checkpoint := json.loads(sys.argv[4]):
    running.load_state_dict(checkpoint)
    found["rest"] = [batch.rows.tolist() for batch in running]
else:
    found["begun"] = [batch.rows.tolist() for _, batch in zip(range(2), running)]
    found["state"] = running.state_dict()
(work / f"{world}-{rank}").write_text(json.dumps(found))
distributed.barrier()  # a rank that is done must not leave while another is still connecting to it
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
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=500)
    assert done.returncode == 0, done.stderr
    return done


def ranks(processes: int, store: Path, work: Path, checkpoint: Any = None) -> list[dict[str, Any]]:
    """Return what each of so many real ranks has read, and its first two steps, or all that are left after a checkpoint."""
    script, words = work / "rank.py", [store, work, json.dumps(ORDERS), json.dumps(checkpoint)]
    script.write_text(_RANK)
    if checkpoint is None:
        torchrun(processes, script, *words)
    else:
        launch(script, (processes, words))
    return [json.loads((work / f"{processes}-{rank}").read_text()) for rank in range(processes)]


def joined(parts: list[list[list[int]]]) -> list[list[int]]:
    """Put the ranks' rows of each step behind one another: the step that one process alone would have read."""
    return [[row for rows in step for row in rows] for step in zip(*parts, strict=True)]


@pytest.mark.slow
def test_ranks_under_torchrun_share_one_order_and_a_checkpoint_moves_between_worlds(
    shared_store: Path, tmp_path: Path
) -> None:
    alone = {
        name: [
            batch.rows.tolist()
            for batch in MemmapLoader(
                MemmapDataset(shared_store, as_tuple=False), 24, seed=3, **options, as_tuple=False
            )
        ]
        for name, options in ORDERS.items()
    }
    two = ranks(2, shared_store, tmp_path)
    checkpoint = two[0]["state"]
    assert two[1]["state"] == checkpoint
    four = ranks(4, shared_store, tmp_path, checkpoint)
    for found in (two, four):
        for name, full in alone.items():
            steps = joined([rank["epochs"][name] for rank in found])
            # 90 rows: the last step has 18, which four ranks can share only with two rows of the epoch's beginning
            wrapped = 2 if len(found) == 4 and name != "drop_last" else 0
            assert steps[:3] == full[:3]
            assert sorted(steps[-1]) == sorted(full[-1] + full[0][:wrapped])
            rows = [row for step in steps for row in step]
            assert len(set(rows)) == (72 if name == "drop_last" else 90) == len(rows) - wrapped
    assert joined([rank["begun"] for rank in two]) == alone["full"][:2]
    rest = joined([rank["rest"] for rank in four])
    assert rest[0] == alone["full"][2]
    assert sorted(rest[1]) == sorted(alone["full"][3] + alone["full"][0][:2])
    loader = MemmapLoader(MemmapDataset(shared_store, as_tuple=False), 24, shuffle="full", seed=3, as_tuple=False)
    loader.load_state_dict(checkpoint)
    assert [batch.rows.tolist() for batch in loader] == alone["full"][2:]


@pytest.mark.slow
def test_the_example_packs_and_resumes_in_the_middle_of_an_epoch_with_fewer_processes(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", each=30)
    words = [tmp_path / "out", "--images", images, "--checkpoint", tmp_path / "run.pt", "--batch-size", 16]
    printed = launch(ROOT / "examples/ddp.py", (2, [*words, "--steps", 8]), (1, words))
    assert [line.partition(",")[0] for line in printed.splitlines()] == [
        "epoch 1: steps 1 to 6 of 6",
        "epoch 2: steps 1 to 2 of 6",
        "epoch 2: steps 3 to 6 of 6",
    ]
