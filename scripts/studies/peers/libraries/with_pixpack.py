"""Ours: packer.pack, and MemmapLoader with a full shuffle from the page cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packer
from reader import MemmapDataset, MemmapLoader

REQUIREMENTS = ()
WAYS = {"pixpack": "full"}


def pack(job: Any) -> None:
    out = Path(job.packed, "store")
    packer.pack(job.photographs, out, size=job.shape[1], workers=job.threads, max_rejects=0)


def epochs(job: Any, way: str) -> Any:
    data = MemmapDataset(job.store)
    loader = MemmapLoader(data, job.batch_size, shuffle=WAYS[way], drop_last=True, residency="cache", as_tuple=False)
    # targets are gathered, too; for the check the rows stand for them
    return lambda: ((batch.pixels, batch.rows) for batch in loader)


def remote_epochs(job: Any, url: str, cache: str) -> Any:
    """Return what begins an epoch of the store at an s3:// URL, through a cache folder that keeps it."""
    data = MemmapDataset(url, cache=cache)
    loader = MemmapLoader(data, job.batch_size, shuffle="block", drop_last=True, residency="cache", as_tuple=False)
    return lambda: ((batch.pixels, batch.rows) for batch in loader)
