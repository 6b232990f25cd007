"""Does a MemmapLoader give back every thread, buffer, file and byte, over 1,000 epochs and 10,000 abandoned iterators?

    python -m scripts.stress.limits.leak_test --epochs 1000 --iterators 10000

For each residency: whole epochs whose batches are dropped, then iterators of which one batch is taken, next(iter(loader)).
Counted at its end: threads, open files and buffers that are still there; ten times on the way: this process's own memory. Rows
are 224 x 224, batches of 8 (1.2 MB), here never gathered in groups: a buffer each. Exits 1 when there are more threads or files
than before, or more than prefetch + 2 buffers, or when the most memory of the second half is 32 MB above that of the first (the
allocator keeps some of what readers' threads freed, now more, now less). The last line is one JSON object.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reader import MemmapDataset, MemmapLoader
from reader.buffers import BufferPool
from scripts.common.arguments import counts_parser
from scripts.common.figures import machine
from scripts.common.program import reported, tune
from scripts.common.timing import drain
from scripts.samples.stores import sparse_store

ROWS, BATCH, PREFETCH = 48, 8, 2
MOST_GROWTH_MB = 32
RESIDENCIES = ("cache", "ram", "disk")


def main() -> int:
    parser = counts_parser(__doc__, epochs=1000, iterators=10_000)
    parser.add_argument("--residency", nargs="*", choices=RESIDENCIES, default=RESIDENCIES)
    options = parser.parse_args()
    tune(batch_group_bytes=0)

    def trial(work: Path) -> dict[str, Any]:
        data, found = MemmapDataset(sparse_store(work / "store", ROWS)), []
        for residency in options.residency:
            found.append(repeated("epochs", options.epochs, residency, data, drain))
            found.append(repeated("abandoned iterators", options.iterators, residency, data, one_batch))
        return {"machine": machine(work), "runs": found, "holds": all(run["holds"] for run in found)}

    return reported("leak_test", trial, is_right=lambda report: report["holds"])


def repeated(
    what: str, count: int, residency: str, data: MemmapDataset, action: Callable[[MemmapLoader], None]
) -> dict[str, Any]:
    """Do it `count` times with one loader; returns what was there before, on the way and at the end."""
    before, started = resources(), time.perf_counter()
    loader = MemmapLoader(data, BATCH, shuffle="full", prefetch=PREFETCH, residency=residency)
    counted = Counted()
    loader.gathering.pool.lease(BATCH * data.manifest.row_bytes)
    pool = loader.gathering.pool.buffers
    pool._allocate = counted.allocate_for(pool)
    memory = []
    for n in range(count):
        action(loader)
        if (n + 1) % max(1, count // 10) == 0:
            memory.append(resources()["memory_mb"])
    late = resources()
    early, end = max(memory[: len(memory) // 2]), max(memory[len(memory) // 2 :])
    run: dict[str, Any] = {
        "what": what,
        "count": count,
        "residency": residency,
        "seconds": time.perf_counter() - started,
    }
    run |= {"before": before, "at_the_end": late, "memory_mb": memory}
    run |= {"buffers_allocated": pool.allocated, "buffers_there": counted.there()}
    run["holds"] = (
        (late["threads"], late["files"]) == (before["threads"], before["files"])
        and loader.gathering.pool.buffers is pool
        and run["buffers_there"] <= PREFETCH + 2
        and end - early < MOST_GROWTH_MB
    )
    verdict = "holds" if run["holds"] else "LEAKS"
    print(
        f"{count:6} {what:19} {residency:5}: threads {before['threads']} -> {late['threads']}, files {before['files']} ->"
        f" {late['files']}, buffers {run['buffers_there']} (allocated {run['buffers_allocated']}), memory"
        f" {early:.1f} -> {end:.1f} MB, {run['seconds']:.1f} s: {verdict}",
        flush=True,
    )
    return run


def one_batch(loader: MemmapLoader) -> None:
    next(iter(loader))


class Counted:
    """Knows which of the buffers that a pool has allocated are still in memory."""

    def __init__(self) -> None:
        self._buffers: list[weakref.ref[Any]] = []

    def allocate_for(self, pool: BufferPool) -> Callable[[], Any]:
        def allocate() -> Any:
            memory = BufferPool._allocate(pool)
            self._buffers.append(weakref.ref(memory))
            return memory

        return allocate

    def there(self) -> int:
        return sum(buffer() is not None for buffer in self._buffers)


def resources() -> dict[str, float]:
    """Count threads and files once those that are ending have ended, and this process's own memory."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("pixpack"):
            thread.join(10)
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    anonymous = int(fields["RssAnon"].split()[0]) * 1024
    return {
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "memory_mb": anonymous / 1e6,
    }


if __name__ == "__main__":
    sys.exit(main())
