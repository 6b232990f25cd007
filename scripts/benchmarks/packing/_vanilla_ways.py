"""Two of bench_pack.py's ways with another Pillow than the installed one: run with PYTHONPATH set to it, prints the seconds.

    PYTHONPATH=DIR python -m scripts.benchmarks.packing._vanilla_ways {pool,tutorial} < job.json

The installed Pillow cannot change within a process, so each turn is a process of its own; its imports are not timed. pool is
what people write by hand: a multiprocessing.Pool whose processes open, resize and crop with Pillow and write their rows into a
shared numpy memmap.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch

from scripts.benchmarks.packing._pack_ways import ListedFolder, PictureFolder, time_tutorial

_CHUNK = 8


def time_pool(job: ListedFolder) -> float:
    """Fill a memmap from a pool; returns seconds."""
    started = time.perf_counter()
    shape = (len(job.paths), job.size, job.size, 3)
    rows = np.memmap(job.work / "pool", np.uint8, "w+", shape=shape)
    with multiprocessing.get_context("fork").Pool(job.workers, _begin, (job, rows)) as pool:
        for _ in pool.imap_unordered(_fill, range(len(job.paths)), _CHUNK):
            pass
    return time.perf_counter() - started


def _begin(job: ListedFolder, rows: Any) -> None:
    global _folder, _rows
    _folder, _rows = PictureFolder(job), rows


def _fill(index: int) -> None:
    _rows[index] = _folder[index][0].numpy()


def main() -> None:
    known = json.load(sys.stdin)
    paths = [Path(path) for path in known.pop("paths")]
    images, work = Path(known.pop("images")), Path(known.pop("work"))
    job = ListedFolder(images=images, work=work, paths=paths, names=[], scales=[], **known)
    torch.set_num_threads(job.workers)
    seconds = {"pool": time_pool, "tutorial": time_tutorial}[sys.argv[1]](job)
    print(json.dumps({"seconds": seconds, "pillow": PIL.__version__, "from": PIL.__file__}))


if __name__ == "__main__":
    main()
