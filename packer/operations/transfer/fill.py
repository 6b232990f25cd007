"""`pack pull URL --cache FOLDER`: all of a store brought into a cache, where readers of that URL find it.

Its blocks come as those of a reader do: each is compared with its checksum, is fetched by one process of this machine, and stays
when the command is interrupted.
"""

from __future__ import annotations

import contextlib
import os
import time

from packer.errors import DiskFullError, OptionsError
from packer.operations.transfer.copy import CopyReport, OnBytes
from packer.store.disk_space import free_bytes, needed_bytes
from reader.format.errors import StoreError
from reader.format.filesystem import size_text
from reader.format.manifest import PIXELS
from reader.remote.presence import RemoteStore

# Waited for together; progress is shown behind each step.
_STEP_BLOCKS = 8
# Asked for meanwhile: more than a fetcher has in progress at once.
_STEPS_AHEAD = 16


def fill_cache(url: str, cache: str | os.PathLike[str], *, progress: OnBytes | None = None) -> CopyReport:
    """Bring all of the store at a URL into its folder in a cache, which is a store of its own from then on.

    Raises:
        OptionsError: it is not a URL of a folder.
        StoreError: there is no store, it cannot be read, or the cache cannot be used.
        DiskFullError: the cache's disk has no room for it.
    """
    started = time.monotonic()
    try:
        remote = RemoteStore(url, cache)
    except StoreError:
        raise
    except ValueError as e:
        raise OptionsError(str(e)) from None
    with contextlib.closing(remote):
        sizes = {name: entry.size_bytes for name, entry in remote.folder.manifest.files.items()}
        total, copied = sum(sizes.values()), 0
        if not remote.is_complete:
            _check_room(remote, sizes)
            try:
                _fill(remote, total, progress)
            except StoreError:
                # it may be a disk that has filled up since
                _check_room(remote, sizes)
                raise
            copied = total - sizes[PIXELS] + remote.fetched_bytes()
        if progress is not None:
            progress(total, total)
        seconds = time.monotonic() - started
        return CopyReport(remote.url, str(remote.root), len(sizes) + 1, total, copied, total - copied, seconds)


def _fill(remote: RemoteStore, total: int, progress: OnBytes | None) -> None:
    """Have each block come, in order, and last make the folder a store."""
    folder = remote.folder
    missing = [block for block in range(folder.count) if not folder.table.has(block)]
    done = total - sum(map(folder.room, missing))
    steps = [missing[at : at + _STEP_BLOCKS] for at in range(0, len(missing), _STEP_BLOCKS)]
    asked = 0
    for number, step in enumerate(steps):
        if new := [block for later in steps[asked : number + _STEPS_AHEAD] for block in later]:
            remote.prefetch(new, soon=len(new))
            asked = number + _STEPS_AHEAD
        remote.ensure(step)
        done += sum(map(folder.room, step))
        if progress is not None:
            progress(done, total)
    remote.complete()


def _check_room(remote: RemoteStore, sizes: dict[str, int]) -> None:
    """Refuse a store that the disk of the cache has no room for."""
    need, free = needed_bytes(remote.root, sizes), free_bytes(remote.root / PIXELS)
    if need > free:
        raise DiskFullError(
            f"cache {remote.root} needs {size_text(need)} more for all of {remote.url}, {size_text(free)} are free. Free some"
            " space and give the same command again, or name another folder."
        )
