"""Where the rows of a store are read from, and why: measures memory, page cache and file system; reads no pixel.

"cache" is the mapped file, "ram" a copy of the store in this process, "disk" large reads ahead of their use that leave
nothing to page faults, "gpu" the memory of the device that batches are wanted on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from reader import system
from reader.format.filesystem import size_text
from reader.system import MEMORY_FILE_SYSTEMS
from reader.tuning import tuning

RESIDENCIES = ("auto", "cache", "ram", "disk", "gpu")

# The share of free memory that a store may take as page cache: the rest is for the training program.
_CACHE_SHARE = 0.8
# A copy stays for as long as the loader lives.
COPY_SHARE = 0.5
# A share of pages below this is a cold store.
WARM = 0.95


@dataclass(frozen=True)
class Residency:
    """A choice and its reason, for the log.

    host: from where rows come to the device, with "gpu"; else the name again.
    is_warm: what is read is in memory: no epoch reads ahead from the disk, nor asks whether it should.
    """

    name: str
    reason: str
    host: str = ""
    is_warm: bool = False


@dataclass(frozen=True)
class Reads:
    """The bytes that are read of a file of rows: where they are, how many, and by how many processes.

    size_bytes: of all rows that are read, each counted once.
    missing_bytes: of those, what a copy in this process would still take; None: all.
    processes: of this host that read so.
    offset: draws the offset of one byte that is read; None: they are all of the file.
    """

    path: Path
    size_bytes: int
    missing_bytes: int | None = None
    processes: int = 1
    offset: Callable[[], int] | None = None

    @property
    def copy_bytes(self) -> int:
        """What a copy would still take."""
        return self.size_bytes if self.missing_bytes is None else self.missing_bytes

    def cached_share(self) -> float:
        """Estimate the share of it that is in the page cache, 0..1, see `cached_share`."""
        return system.cached_share(self.path, offset=self.offset)

    def is_cold(self, path: Path) -> bool:
        """Say whether reading the mapped file would mostly wait for page faults; path: what opens it."""
        return is_cold(path, self.size_bytes, self.offset)


@dataclass(frozen=True)
class Room:
    """Memory of a device: what is free, and what the rows still need there.

    processes: of this host that put their rows there; total_bytes: what the device has, where those are several.
    """

    free_bytes: int
    store_bytes: int
    processes: int = 1
    total_bytes: int = 0

    @property
    def fits_rows(self) -> bool:
        """Say whether the rows fit, those of the other processes too: what is free says nothing of what those still bring."""
        has_all = self.processes == 1 or self.store_bytes * self.processes <= self.total_bytes
        return self.store_bytes <= self.free_bytes and has_all


def choose(asked: str | Residency, reads: Reads, room: Room | None = None) -> Residency:
    """Choose where rows are read from; room: of the device that batches are wanted on, None: the CPU.

    asked: one of RESIDENCIES, or what was chosen already.

    "auto" takes no memory of a device: that is for the model, and mostly not taken yet when a loader opens.

    Raises:
        ValueError: the rows do not fit where they are asked for, or cannot be read so here.
    """
    if isinstance(asked, Residency):
        return asked
    if asked == "gpu":
        return _on_device(reads, room)
    if asked == "disk" and not system.has_preadv():
        raise ValueError("residency 'disk' needs os.preadv, which this system has not. Use 'cache' or 'ram'.")
    if asked == "ram":
        _check_copy(reads)
    if asked != "auto":
        return Residency(asked, "as asked", asked, is_warm=asked == "ram")
    chosen = _chosen(reads)
    return replace(chosen, host=chosen.name)


def _check_copy(reads: Reads) -> None:
    """Raise ValueError where a copy in each process of this host does not fit."""
    free, all_bytes, several = system.available_bytes(), system.memory_bytes(), ""
    if reads.processes > 1:
        # other ranks may have their copies by now, or not: what is free says nothing of them, what the machine has does
        several = f" in each of {reads.processes} processes of this host, which has {size_text(all_bytes)}"
    if reads.copy_bytes > free or reads.copy_bytes * reads.processes > all_bytes:
        raise ValueError(
            f"residency 'ram' needs {size_text(reads.copy_bytes)}{several}, but {size_text(free)} of memory are free."
            " Use 'disk', or leave it to 'auto'."
        )


def _on_device(reads: Reads, room: Room | None) -> Residency:
    if room is None:
        raise ValueError("residency 'gpu' needs a CUDA device, but device is 'cpu'. Use device='cuda', or 'ram'.")
    host = _way_there(reads)
    if room.fits_rows:
        return Residency("gpu", "as asked" if room.store_bytes else "as asked, and there already", host)
    several = ""
    if room.processes > 1:
        several = f" in each of {room.processes} processes that share the device of {size_text(room.total_bytes)}"
    raise ValueError(
        f"residency 'gpu': the rows need {size_text(room.store_bytes)}{several}, and {size_text(room.free_bytes)} are free on"
        " the device. Leave it to 'auto'."
    )


def _way_there(reads: Reads) -> str:
    # a copy in memory would be read once and then be in the way
    return "disk" if _chosen(reads).name == "disk" else "cache"


def _chosen(reads: Reads) -> Residency:
    kind = system.file_system(reads.path)
    if kind in MEMORY_FILE_SYSTEMS:
        return Residency("cache", f"{kind} is memory itself", is_warm=True)
    # all processes share the page cache; a copy belongs to one
    room, cached = system.available_bytes(), reads.cached_share()
    size = f"{size_text(reads.size_bytes)} of rows, {size_text(room)} of memory free"
    if system.is_network(kind) and cached < WARM and _may_copy(reads, room):
        there = (
            ""
            if reads.copy_bytes == reads.size_bytes
            else f", of which {size_text(reads.copy_bytes)} are not copied yet"
        )
        ranks = f", {reads.processes} processes of this host" if reads.processes > 1 else ""
        return Residency("ram", f"{size}{there}{ranks}, and {kind} is a network file system", is_warm=True)
    if reads.size_bytes <= room * _CACHE_SHARE or not system.has_preadv():
        return Residency("cache", f"{size}, {cached:.0%} of them in the page cache on {kind}")
    return Residency("disk", f"{size}: they do not fit; {kind}")


def _may_copy(reads: Reads, room: int) -> bool:
    """Say whether each process of this host may have its copy; the ranks of a host come to one answer, see `_check_copy`."""
    is_one = reads.processes == 1 or reads.copy_bytes * reads.processes <= system.memory_bytes() * COPY_SHARE
    return is_one and reads.copy_bytes <= room * COPY_SHARE


def is_cold(path: Path, size_bytes: int, offset: Callable[[], int] | None = None) -> bool:
    """Say whether reading the mapped file, or what `offset` draws of it, would mostly wait for page faults."""
    return (
        size_bytes > tuning().small_store_bytes
        and system.has_preadv()
        and system.cached_share(path, offset=offset) < WARM
    )
