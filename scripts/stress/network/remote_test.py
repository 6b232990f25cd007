"""Does a training over object storage read no wrong byte, whatever is killed, and do two nodes fetch the store once together?

    python -m scripts.stress.network.remote_test --kills 100 --ranks 4

A store of random rows is served on loopback over a shaped link. Two nodes, which are two cache folders, have --ranks ranks each,
which read it by MemmapLoader(shuffle="block", canonical_nodes=2). Each rank compares every batch with the local store, byte for
byte, and keeps its state.

    fetched   two epochs with caches that hold all: the server counts how often each byte is sent, once in all
    killed    with caches of 0.6 of a node's part, at --kills random moments of reading SIGKILL for a rank, its fetcher, all
              ranks of both nodes, or the server; what was killed is started again, ranks from their states. No batch may
              differ from the local store, and each must have the rows that an uninterrupted run has in it
    full disk a cache on a tmpfs that is smaller than the store: one sentence; as root
    small     a cache of a third of the store there, on an overlay above it, and on a ramfs, which punches no holes: two epochs
              with all rows, and no more on the disk

Prints what was seen and one JSON object last; exits 1 at the first failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from packer import pack_dataset
from reader import MemmapDataset, MemmapLoader, StoreError
from reader.format.manifest import PIXELS
from scripts.common.arguments import counts_parser
from scripts.common.program import reported, tune
from scripts.common.shaped_server import started
from scripts.stress._runs import TrialError
from scripts.stress.network._small_disks import full_disk

_NODES = 2
_SIDE, _BATCH = 32, 16
_LATENCY_SECONDS, _BYTES_PER_SECOND = 0.01, 20e6
# Of a node's part, in its cache.
_SHARE = 0.6
_TARGETS = ("rank", "fetcher", "ranks", "server")
_DIFFERS = 9
_LONGEST_SECONDS = 120.0


def main() -> int:
    """Read a store over a link, and kill."""
    parser = counts_parser(__doc__, rows=8000, kills=100, seed=0)
    parser.add_argument("--ranks", type=int, default=4, help="of each of two nodes (default: 4)")
    options = parser.parse_args()
    os.environ["LOCAL_WORLD_SIZE"] = str(options.ranks)
    # blocks of an order as small as the store's, and windows of 8
    tune(shuffle_block_bytes=max(1, options.rows // 128) * _SIDE * _SIDE * 3, shuffle_window_blocks=8)

    def trial(work: Path) -> dict[str, Any]:
        store = _made(work, options)
        result = {"seed": options.seed, "rows": options.rows}
        result["fetched"] = _fetched_once(store, work / "fetched", options.ranks)
        result["killed"] = _killed(store, work / "killed", options)
        return result | {"full_disk": full_disk(store, work / "full")}

    return reported("remote_test", trial)


def _made(work: Path, options: argparse.Namespace) -> Path:
    images = np.random.default_rng(options.seed).integers(0, 256, (options.rows, _SIDE, _SIDE, 3), dtype=np.uint8)
    pack_dataset([(image, n % 7) for n, image in enumerate(images)], work / "out", size=_SIDE)
    return work / "out"


@dataclass
class _NodesTrial:
    """Two nodes of ranks that read a store at a URL; each rank in a process of its own, forked."""

    store: Path
    work: Path
    ranks: int
    share: float | None
    epochs: int
    processes: dict[int, Any] = field(default_factory=dict)
    server: subprocess.Popen[str] | None = None
    port: int = 0

    @property
    def world_size(self) -> int:
        return _NODES * self.ranks

    def serve(self) -> None:
        """Start the server, on the same port as before."""
        self.server = started(self.store, _LATENCY_SECONDS, _BYTES_PER_SECOND, self.port, self.work / "requests")
        assert self.server.stdout is not None
        self.port = int(self.server.stdout.readline().strip().rpartition(":")[2])

    def start(self, rank: int) -> None:
        """Start a rank, from its state where it has one."""
        process = multiprocessing.get_context("fork").Process(target=_rank, args=(self, rank))
        process.start()
        self.processes[rank] = process

    def finish(self) -> None:
        """Wait for all ranks; raises TrialError where one failed."""
        for rank, process in self.processes.items():
            process.join(_LONGEST_SECONDS)
            if process.exitcode != 0:
                raise TrialError(f"rank {rank} ended with {process.exitcode}, see above")

    def end(self) -> None:
        """End what is left."""
        for process in self.processes.values():
            process.kill()
            process.join()
        if self.server is not None:
            self.server.kill()
            self.server.communicate()


@contextlib.contextmanager
def _trial(*given: Any) -> Iterator[_NodesTrial]:
    trial = _NodesTrial(*given)
    trial.work.mkdir()
    trial.serve()
    try:
        for rank in range(trial.world_size):
            trial.start(rank)
        yield trial
    finally:
        trial.end()


def _rank(trial: _NodesTrial, rank: int) -> None:
    """Read epochs in a process of its own, compare each batch with the local store, and keep the state behind it."""
    local = np.memmap(trial.store / PIXELS, np.uint8, "r").reshape(-1, _SIDE, _SIDE, 3)
    size = None if trial.share is None else int(trial.share * local.nbytes / _NODES)
    cache, state, log = (
        trial.work / f"node{rank // trial.ranks}",
        trial.work / f"state{rank}",
        trial.work / f"log{rank}",
    )
    data = _opened(f"http://127.0.0.1:{trial.port}", cache, size)
    with _loader(data, rank, trial.world_size) as loader, open(log, "a") as lines:
        if state.exists():
            loader.load_state_dict(json.loads(state.read_text()))
        while (epoch := loader.state_dict()["epoch"]) < trial.epochs:
            with _fetcher_may_end():
                for step, batch in enumerate(loader):
                    if not np.array_equal(batch.pixels.numpy(), local[batch.rows.numpy()]):
                        print(
                            f"rank {rank}, epoch {epoch}, step {step}: the batch differs from the store.",
                            file=sys.stderr,
                        )
                        os._exit(_DIFFERS)
                    print(json.dumps([_started(loader, batch), batch.rows.tolist()]), file=lines, flush=True)
                    beside = state.with_suffix(".new")
                    beside.write_text(json.dumps(loader.state_dict()))
                    os.replace(beside, state)
            if loader.state_dict()["epoch"] == epoch:
                loader.load_state_dict(loader.state_dict())
    assert data.remote is not None
    data.remote.close()
    os._exit(0)


@contextlib.contextmanager
def _fetcher_may_end() -> Iterator[None]:
    """Pass over the one sentence of a fetcher that was killed; the next one who reads starts another."""
    try:
        yield
    except StoreError as e:
        if "the process that fetches from object storage has ended" not in str(e):
            raise


def _opened(url: str, cache: Path, size: int | None) -> MemmapDataset:
    while True:
        with _fetcher_may_end():
            return MemmapDataset(url, cache=cache, cache_size=size)


def _started(loader: MemmapLoader, batch: Any) -> list[int]:
    return [int(batch.epoch), int(batch.position)]


def _loader(data: MemmapDataset, rank: int, world_size: int) -> MemmapLoader:
    torch.set_num_threads(1)
    return MemmapLoader(
        data,
        _BATCH,
        shuffle="block",
        seed=0,
        canonical_nodes=_NODES,
        rank=rank,
        world_size=world_size,
        as_tuple=False,
        residency="cache",
    )


def _fetched_once(store: Path, work: Path, ranks: int) -> dict[str, Any]:
    """Read two epochs; every byte of the pixels is sent once, to both nodes together, as often as blocks have two parts."""
    with _trial(store, work, ranks, None, 2) as trial:
        trial.finish()
        _check_batches(trial)
    size, spans = (store / PIXELS).stat().st_size, Counter[tuple[int, int]]()
    for line in (work / "requests").read_text().splitlines():
        name, start, stop = line.split()
        if name == PIXELS:
            spans[int(start), int(stop)] += 1
    sent = sum((stop - start) * count for (start, stop), count in spans.items())
    print(f"{_NODES} nodes of {ranks} ranks, two epochs: {sent} bytes of pixels were sent, the store has {size}")
    if sent > size * 1.02:
        raise TrialError(f"{sent} bytes were sent for {size}")
    return {"nodes": _NODES, "ranks_a_node": ranks, "bytes_sent": sent, "bytes": size}


def _killed(store: Path, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Kill at random moments, and compare all batches with those of an uninterrupted run."""
    draw, done = random.Random(options.seed), Counter[str]()
    epochs = 1 << 30
    with _trial(store, work, options.ranks, _SHARE, epochs) as trial:
        while done.total() < options.kills:
            _wait_for_batches(trial, more_than=_logged(trial))
            time.sleep(draw.uniform(0, 0.5))
            if ended := [rank for rank, process in trial.processes.items() if not process.is_alive()]:
                raise TrialError(f"seed {options.seed}: rank {ended[0]} ended by itself, see above")
            done[_kill(trial, draw)] += 1
        for process in trial.processes.values():
            process.kill()
            process.join()
        meanwhile, epochs_read = _check_batches(trial)
        # the next run continues where the last one was killed, to the end of the epoch after
        trial.epochs = epochs_read + 1
        for rank in range(trial.world_size):
            trial.start(rank)
        trial.finish()
        steps, epochs_read = _check_batches(trial)
        if not all(next((trial.work / f"node{n}").glob("*.blocks"), None) for n in range(_NODES)):
            raise TrialError("the caches have not the form that is tried")
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(done.items()))
    print(f"{done.total()} kills of {trial.world_size} ranks ({kinds}): {meanwhile} batches between them,")
    print(f"{steps} of {epochs_read} epochs in all; none differs")
    read = {"batches_between_kills": meanwhile, "batches": steps, "epochs": epochs_read}
    return {"ranks": trial.world_size, "kills": dict(sorted(done.items()))} | read


def _logged(trial: _NodesTrial) -> int:
    """Return how much the ranks have read, in bytes of their logs."""
    return sum(log.stat().st_size for log in trial.work.glob("log*"))


def _wait_for_batches(trial: _NodesTrial, more_than: int) -> None:
    """Wait until something was read: a kill while all ranks start shows little."""
    end = time.monotonic() + _LONGEST_SECONDS
    while _logged(trial) <= more_than:
        if time.monotonic() > end:
            raise TrialError(f"no rank has read a batch for {_LONGEST_SECONDS:.0f} s")
        time.sleep(0.01)


def _kill(trial: _NodesTrial, draw: random.Random) -> str:
    """Kill something, and start it again."""
    target, rank = draw.choice(_TARGETS), draw.randrange(trial.world_size)
    if target == "server":
        assert trial.server is not None
        trial.server.kill()
        trial.server.communicate()
        trial.serve()
    elif target == "fetcher":
        for child in _children(trial.processes[rank].pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    else:
        ranks = [rank] if target == "rank" else list(trial.processes)
        for number in ranks:
            trial.processes[number].kill()
        for number in ranks:
            trial.processes[number].join()
            trial.start(number)
    return target


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _check_batches(trial: _NodesTrial) -> tuple[int, int]:
    """Compare the rows of every batch with an uninterrupted run's; returns how many there are, and the epochs."""
    local, steps, epochs = MemmapDataset(trial.store), 0, 0
    for rank in range(trial.world_size):
        # the last line of a rank that was killed may be cut short
        lines = [line for line in (trial.work / f"log{rank}").read_text().splitlines() if line.endswith("]]")]
        found = {tuple(at): rows for at, rows in map(json.loads, lines)}
        steps += len(lines)
        epochs = _loader(local, rank, trial.world_size).epochs
        for epoch in sorted({epoch for epoch, _ in found}):
            expected = {(epoch, b.start): b.positions.tolist() for b in epochs.at(epoch).batches(iter(()))}
            wrong = [at for at, rows in found.items() if at[0] == epoch and expected.get(at) != rows]
            if wrong:
                raise TrialError(f"rank {rank}, epoch {epoch}: the batch at {wrong[0][1]} has other rows")
            last = max(found)[0]
            if epoch < last and (missing := expected.keys() - found.keys()):
                raise TrialError(f"rank {rank}, epoch {epoch}: no batch at {min(missing)[1]}")
            epochs = max(epochs, epoch + 1)
    return steps, epochs


if __name__ == "__main__":
    sys.exit(main())
