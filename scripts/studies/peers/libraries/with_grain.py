"""Grain: an ArrayRecord of one row a record, a full shuffle, read by threads."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

TITLE = "Grain"
REQUIREMENTS = ("grain==0.2.18", "array_record==0.8.6")
SYSTEM = ()
WAYS = {"ArrayRecord": "full"}


def pack(job: Any) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    # groups of one: a record can be read alone; uncompressed, as all others here
    writer = ArrayRecordWriter(path(job), "group_size:1,uncompressed")
    for row, pixels in enumerate(job.stream()):
        writer.write(struct.pack("<q", row) + pixels.tobytes())
    writer.close()


def epochs(job: Any, way: str) -> Any:
    import grain
    import numpy as np
    import torch

    def parse(record: bytes) -> tuple[Any, Any]:
        return np.frombuffer(record, np.uint8, offset=8).reshape(job.shape[1:]), np.frombuffer(record, np.int64, 1)[0]

    source = grain.sources.ArrayRecordDataSource(path(job))
    options = grain.ReadOptions(num_threads=job.threads, prefetch_buffer_size=2 * job.batch_size)
    seeds = itertools.count()

    def epoch() -> Any:
        rows = grain.MapDataset.source(source).shuffle(seed=next(seeds)).map(parse)
        # batched after the threads, which then read single rows
        batches = rows.to_iter_dataset(options).batch(job.batch_size, drop_remainder=True)
        return ((torch.from_numpy(pixels), torch.from_numpy(numbers)) for pixels, numbers in batches)

    return epoch


def path(job: Any) -> str:
    return str(Path(job.packed, "rows.array_record"))
