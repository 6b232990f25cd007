"""The process that reads: one for a peer, one for ours, which reads from stdin what to do next.

    PYTHON -m scripts.studies.peers._reader '{"module": ..., ...}'      a Job

    pack FOLDER   write the job's rows into it in the peer's own format, timed
    versions      of the libraries
    check WAY     read an epoch and compare it with the store
    turn WAY      read an epoch, timed
    copying       copy consecutive slices of the store, timed

Each is answered by one line of JSON on stdout; what libraries print goes to stderr. Between commands the process waits for
the next line. Runs in the peers' environments: imports numpy, torch, the peer's module and the Pillow that is
lent to it, nothing of pixpack.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from scripts.common.timing import seconds

# The steady rate leaves out so many batches: queues hold at most 5 at a time, and FFCV's 5 output buffers, fresh memory in
# each epoch, have all been written once.
LEAD = 6
# Copying writes to as many buffers as MemmapLoader does.
RING = 4

Epochs = Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]]


@dataclass(frozen=True)
class PeerJob:
    """What to pack and to read: `pixels` is the raw file of `shape` (N, H, W, C) in `store`; `packed` is the peer's folder.

    `module` is a file that has pack(job), which writes row(i) for each i, and epochs(job, way) -> a function that begins an
    epoch each time it is called, which yields (pixels uint8[B, H, W, C], rows int64[B]). A peer is given the number of the
    row as its label. Where `photographs` names a folder, its file i is what row i is made of.
    """

    module: str
    store: str
    pixels: str
    shape: tuple[int, int, int, int]
    packed: str
    batch_size: int
    threads: int
    libraries: tuple[str, ...] = ()
    photographs: str = ""
    # a folder for sys.path: all that decode by Pillow decode by the same
    pillow: str = ""
    # so many batches are compared, one of every 8 or all; how far pixels may be off on average, in levels of 0..255
    checked_every: int = 8
    levels: float = 0

    def rows(self) -> np.ndarray:
        """Map the store's pixels, uint8[N, H, W, C]; writing to them would change this process's copy alone."""
        return np.memmap(self.pixels, np.uint8, "c", shape=tuple(self.shape))

    def photograph(self, row: int) -> str:
        return os.path.join(self.photographs, f"{row:06}.jpg")

    def row(self, row: int) -> np.ndarray:
        """Return uint8[H, W, C]: a row of the store, or a photograph decoded, resized and cropped."""
        if not self.photographs:
            return self.rows()[row].copy()
        # Pillow is lent to what packs photographs alone
        from scripts.common.pictures import picture

        return picture(self.photograph(row), self.shape[1])

    def stream(self) -> Iterator[np.ndarray]:
        """Yield every row in order; photographs are decoded by as many processes as there are threads."""
        if not self.photographs:
            yield from self.rows()
            return
        with multiprocessing.get_context("fork").Pool(self.threads) as pool:
            yield from pool.imap(self.row, range(self.shape[0]), chunksize=8)


class Reader:
    """Does what the lines say."""

    def __init__(self, job: PeerJob) -> None:
        self.job, self._module, self._raw = job, load(job.module), job.rows()
        self._epochs: dict[str, Epochs] = {}
        shape = (job.batch_size, *self._raw.shape[1:])
        # numpy asks for huge pages where torch does not
        self._ring = [torch.from_numpy(np.ones(shape, np.uint8)) for _ in range(RING)]

    def pack(self, dest: str) -> dict[str, float]:
        """Return images/s of packing into an empty folder, the processes' start included."""
        return {"packing": self.job.shape[0] / seconds(lambda: self._module.pack(replace(self.job, packed=dest)))}

    def versions(self) -> dict[str, str]:
        return {name: found for name in self.job.libraries if (found := installed(name))}

    def check(self, way: str) -> dict[str, Any]:
        """Read one epoch; returns how many rows came, how many batches were compared, how far off, and how far mixed.

        Raises:
            ValueError: a batch is not its rows, or a row came twice.
        """
        seen, levels = [], []
        for step, (pixels, rows) in enumerate(self.begin(way)):
            # copied: some peers write their labels into the same memory again
            seen.append(np.asarray(rows).reshape(-1).copy())
            if step % self.job.checked_every == 0:
                levels.append(levels_off(np.asarray(pixels), self._raw[seen[-1]]))
                if levels[-1] > self.job.levels:
                    raise ValueError(f"{way}: the pixels of batch {step} are not those of the store.")
        order = np.concatenate(seen)
        if len(np.unique(order)) < len(order):
            raise ValueError(f"{way}: {len(order) - len(np.unique(order))} rows came twice in an epoch.")
        found = {"rows": len(order), "compared_batches": len(levels), "levels": round(max(levels), 2)}
        return found | {"neighbors": neighbors(order, len(self._raw))}

    def turn(self, way: str) -> dict[str, float]:
        """Return images/s of an epoch: `steady` after its first LEAD batches, `epoch` all of it, its beginning included."""
        return timed(lambda: self.begin(way))

    def copying(self) -> dict[str, float]:
        """Return images/s of copying as many consecutive batches."""
        return timed(self._slices)

    def _slices(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        size, raw = self.job.batch_size, torch.from_numpy(self._raw)
        for step in range(len(raw) // size):
            start = step * size
            yield self._ring[step % RING].copy_(raw[start : start + size]), torch.arange(start, start + size)

    def begin(self, way: str) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        if way not in self._epochs:
            self._epochs[way] = self._module.epochs(self.job, way)
        return self._epochs[way]()


def main() -> None:
    given = json.loads(sys.argv[1])
    job = PeerJob(**given)
    torch.set_num_threads(job.threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    reader = Reader(job)
    for line in sys.stdin:
        command, *way = line.split(maxsplit=1)
        # a collection in the middle of a turn would be charged to whose turn it is
        gc.collect()
        gc.disable()
        answer = getattr(reader, command)(*(word.strip() for word in way))
        gc.enable()
        print(json.dumps(answer), file=answers, flush=True)


def timed(begin: Epochs) -> dict[str, float]:
    """Read an epoch; a batch is dropped when the next one has come, as in a training loop."""
    counts, clock = [0], [time.perf_counter()]
    for _, rows in begin():
        # the clock at each batch: the workers' end comes after the last, and is not reading
        counts.append(counts[-1] + len(rows))
        clock.append(time.perf_counter())
    return {
        "steady": (counts[-1] - counts[LEAD]) / (clock[-1] - clock[LEAD]),
        "epoch": counts[-1] / (clock[-1] - clock[0]),
    }


def load(path: str) -> ModuleType:
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module.")
    module = importlib.util.module_from_spec(spec)
    # what it defines can then be pickled
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def installed(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def levels_off(pixels: np.ndarray, others: np.ndarray) -> float:
    """Return the mean absolute difference of two uint8 arrays; other shapes differ wholly."""
    return float(np.abs(pixels.astype(np.int16) - others).mean()) if pixels.shape == others.shape else 255.0


def neighbors(order: np.ndarray, count: int) -> float:
    """Return the mean distance in the store of rows that follow each other: 1 in a random permutation, near 0 in file order."""
    return round(float(np.abs(np.diff(order.astype(np.int64))).mean() / (count / 3)), 2)


if __name__ == "__main__":
    main()
