"""Start the ranks of a script like torchrun, forked from a process that has imported the reader and other modules.

torchrun starts an interpreter for itself and for each rank, and each imports torch and tensordict, 4 seconds of CPU time.
tests/frameworks/test_distributed.py also runs torchrun itself.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

from children import program

ROOT = Path(__file__).resolve().parents[2]


def launch(script: Path, *runs: tuple[int, list[object]], modules: tuple[str, ...] = ()) -> str:
    """Run a script with these numbers of ranks and arguments, one run after the other; returns the output of all.

    The rendezvous and gloo use the loopback device; each rank has one thread.

    Args:
        script: the Python program of a rank.
        runs: for each, the number of ranks and the arguments.
        modules: modules to import once, for all ranks.
    """
    from torch.distributed import TCPStore

    # the rendezvous server is here, as in torchrun's agent: no port is chosen before it is bound
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in runs]
    plan = [[count, store.port, [*map(str, words)]] for (count, words), store in zip(runs, stores, strict=True)]
    words = json.dumps([str(script), modules, plan])
    done = program(Path(__file__), words, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> int:
    script, modules, plan = json.loads(sys.argv[1])
    for name in modules:
        importlib.import_module(name)
    for count, port, words in plan:
        ranks = {}
        for rank in range(count):
            process = os.fork()
            if not process:
                os.environ.update(_variables(rank, count, port))
                sys.argv = [script, *words]
                sys.path[0] = str(Path(script).parent)
                runpy.run_path(script, run_name="__main__")
                return 0
            ranks[process] = rank
        if not _all_succeed(ranks):
            return 1
    return 0


def _variables(rank: int, count: int, port: int) -> dict[str, str]:
    of_all = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "ROLE_WORLD_SIZE": count, "GROUP_WORLD_SIZE": 1}
    of_one = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "ROLE_NAME": "default"}
    elastic = {"RUN_ID": "test", "RESTART_COUNT": 0, "MAX_RESTARTS": 0, "USE_AGENT_STORE": True}
    found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **of_all, **of_one}
    found |= {f"TORCHELASTIC_{name}": value for name, value in elastic.items()}
    return {name: str(value) for name, value in found.items()}


def _all_succeed(ranks: dict[int, int]) -> bool:
    """Wait for the ranks; if one fails, end the others."""
    succeeded = True
    while ranks:
        process, status = os.wait()
        rank = ranks.pop(process)
        if status and succeeded:
            print(f"rank {rank} has ended with status {status}", file=sys.stderr)
            succeeded = False
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return succeeded


if __name__ == "__main__":
    sys.exit(main())
