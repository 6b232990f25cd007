"""Stores at a URL, read through caches on disks that are smaller than they are: what `remote_test` tries as root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reader import MemmapDataset, MemmapLoader, StoreError
from reader.format.manifest import PIXELS
from scripts.common.shaped_server import started
from scripts.stress._runs import TrialError


def full_disk(store: Path, work: Path) -> dict[str, Any]:
    """Read through a cache on a disk that is smaller than the store."""
    size = (store / PIXELS).stat().st_size
    work.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size // 2}", "tmpfs", str(work)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        print("full disk: not tried, since a tmpfs cannot be mounted here")
        return {"skipped": "no tmpfs can be mounted"}
    server = started(store, 0.0, 1e9)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        says = _sentence(url, work / "cache")
        _read_through(url, store, work / "small")
        shutil.rmtree(work / "small")
        kinds = ["tmpfs"]
        with _overlay(work) as folder:
            if folder is not None:
                _read_through(url, store, folder / "small")
                kinds.append("overlay")
        with _ramfs(work / "ramfs") as folder:
            if folder is not None:
                _read_through(url, store, folder / "small")
                kinds.append("ramfs")
    finally:
        server.kill()
        server.communicate()
        subprocess.run(["umount", "-l", str(work)], capture_output=True)
    print(f"full disk: {says}; through a cache of a third of the store all rows come, on {' and '.join(kinds)}")
    return {"says": says.replace(str(work), "CACHE"), "small_caches_on": kinds}


@contextlib.contextmanager
def _overlay(work: Path) -> Iterator[Path | None]:
    """Mount an overlay whose upper layer is below a folder; None: it cannot be mounted."""
    lower, upper, beside, folder = (work / name for name in ("lower", "upper", "beside", "overlay"))
    for path in (lower, upper, beside, folder):
        path.mkdir()
    layers = f"lowerdir={lower},upperdir={upper},workdir={beside}"
    if subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", folder], capture_output=True).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True)


@contextlib.contextmanager
def _ramfs(folder: Path) -> Iterator[Path | None]:
    """Mount a file system that punches no holes; None: it cannot be mounted."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "ramfs", folder], capture_output=True).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def _read_through(url: str, store: Path, cache: Path) -> None:
    """Read two epochs through a cache of a third of the store, and compare them; what leaves it leaves the disk."""
    size, expected = (store / PIXELS).stat().st_size, MemmapDataset(store).numpy()
    small = MemmapDataset(url, cache=cache, cache_size=size // 3)
    assert small.remote is not None
    with MemmapLoader(small, 64, shuffle="block", as_tuple=False, residency="cache") as loader:
        for _ in range(2):
            seen = np.zeros(len(small), dtype=np.int64)
            for batch in loader:
                if not np.array_equal(batch.pixels.numpy(), expected[batch.rows.numpy()]):
                    raise TrialError(f"a batch that came through {cache} differs from the store")
                seen[batch.rows.numpy()] += 1
            if not (seen == 1).all():
                raise TrialError(f"not every row came once through {cache}")
    root = small.remote.root
    small.remote.close()
    held = sum(path.stat().st_size for path in root.glob("blocks/*/*"))
    if held > size // 3:
        raise TrialError(f"{cache} has {held} bytes of pixels on the disk, cache_size is {size // 3}")


def _sentence(url: str, cache: Path) -> str:
    data = MemmapDataset(url, cache=cache)
    assert data.remote is not None
    try:
        _ = data.store
    except StoreError as e:
        if "No space left on device" not in str(e):
            raise TrialError(f"a full disk says: {e}") from None
        return str(e)
    finally:
        data.remote.close()
        for path in sorted(cache.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    raise TrialError("all of a store is on a disk half its size")
