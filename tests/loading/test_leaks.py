"""A loader that is used for long, or left in the middle, gives back every thread, file and buffer."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packer import pack_dataset
from reader import MemmapDataset, MemmapLoader

BATCH_BYTES = 16 * 128 * 128 * 3
# of 200 batches; the allocator keeps some of what the reader's thread freed
MOST_BATCHES_KEPT = 40
# of 100 loops or more, each of which would leave one
MOST_POOL_THREADS = 20


def whole_epoch(loader: MemmapLoader) -> None:
    for _ in loader:
        pass


def one_batch(loader: MemmapLoader) -> None:
    next(iter(loader))


def resources() -> tuple[int, int, int]:
    """Count threads, open files and bytes of this process's own memory, once the threads that are ending have ended."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("pixpack"):
            thread.join(10)
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return threading.active_count(), len(os.listdir("/proc/self/fd")), int(fields["RssAnon"].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("residency", ["cache", "disk"])
@pytest.mark.parametrize(("use", "count"), [(whole_epoch, 100), (one_batch, 200)])
def test_threads_files_and_memory_stay_constant(
    use: Callable[[MemmapLoader], None], count: int, residency: str, tmp_path: Path
) -> None:
    image = np.zeros((128, 128, 3), np.uint8)
    pack_dataset([(image, 0) for _ in range(48)], tmp_path / "out", size=128)
    loader = MemmapLoader(MemmapDataset(tmp_path / "out"), 16, shuffle="full", residency=residency)
    for _ in range(10):
        use(loader)
    before = resources()
    for _ in range(count):
        use(loader)
    after = resources()
    # a pool of threads starts each when it first needs it
    assert after[0] - before[0] < MOST_POOL_THREADS
    assert after[1] == before[1]
    assert after[2] - before[2] < MOST_BATCHES_KEPT * BATCH_BYTES
