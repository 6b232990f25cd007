"""Where the rows of a store are read from, and why: measures memory, page cache and file system; reads no pixel.

"cache" is the mapped file, "ram" a copy of the store in this process, "disk" large reads ahead of their use that leave
nothing to page faults, "gpu" the memory of the device that batches are wanted on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reader.format.filesystem import size_text

RESIDENCIES = ("auto", "cache", "ram", "disk", "gpu")

# Of free memory, what a store may take as page cache: the rest is the training program's.
_CACHE_SHARE = 0.8
# A copy stays for as long as the loader lives.
COPY_SHARE = 0.5
# A share of pages below this is a cold store.
WARM = 0.95
# Pages looked at: the share is then known to about 6 %.
_PROBES = 256
# Smaller stores are warm after a few page faults.
SMALL_BYTES = 32 << 20

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "hugetlbfs")
_NETWORK_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "lustre",
    "glusterfs",
    "afs",
    "beegfs",
    "gpfs",
)


@dataclass(frozen=True)
class Residency:
    """A choice and its reason, for the log.

    host: from where rows come to the device, with "gpu"; else the name again.
    in_windows: with "gpu": a window of blocks at a time, since the whole does not fit.
    """

    name: str
    reason: str
    host: str = ""
    in_windows: bool = False


@dataclass(frozen=True)
class Reads:
    """What is read of a file of rows: where, how much, and by how many.

    size_bytes: of all rows that are read, each counted once.
    missing_bytes: of those, what a copy in this process would still take; None: all.
    processes: of this host that read so.
    offset: draws the place of one byte that is read; None: they are all of the file.
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
        return cached_share(self.path, offset=self.offset)


@dataclass(frozen=True)
class Room:
    """Memory of a device: what is free, what the rows still need there, and windows of blocks (0: none here).

    processes: of this host that put their rows there; total_bytes: what the device has, where those are several.
    """

    free_bytes: int
    store_bytes: int
    windows_bytes: int
    processes: int = 1
    total_bytes: int = 0

    @property
    def fits_rows(self) -> bool:
        """Say whether the rows fit, those of the other processes too: what is free says nothing of what those still bring."""
        has_all = self.processes == 1 or self.store_bytes * self.processes <= self.total_bytes
        return self.store_bytes <= self.free_bytes and has_all


def choose(asked: str, reads: Reads, room: Room | None = None) -> Residency:
    """Settle where rows are read from; room: of the device that batches are wanted on, None: the CPU.

    "auto" takes no memory of a device: that is for the model, and mostly not taken yet when a loader is made.

    Raises:
        ValueError: there is no such residency, or the rows do not fit where they are asked for.
    """
    if asked not in RESIDENCIES:
        raise ValueError(f"residency is {asked!r}, expected one of {', '.join(map(repr, RESIDENCIES))}.")
    if asked == "gpu":
        return _on_device(reads, room)
    if asked == "disk" and not can_read_ahead():
        raise ValueError("residency 'disk' needs os.preadv, which this system has not. Use 'cache' or 'ram'.")
    if asked == "ram":
        _check_copy(reads)
    if asked != "auto":
        return Residency(asked, "as asked", asked)
    chosen = _chosen(reads)
    return Residency(chosen.name, chosen.reason, chosen.name)


def _check_copy(reads: Reads) -> None:
    """Raise ValueError where a copy in each process of this host does not fit."""
    free, all_bytes, several = available_bytes(), memory_bytes(), ""
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
    found = (
        f"the rows need {size_text(room.store_bytes)}{several}, and {size_text(room.free_bytes)} are free on the device"
    )
    if 0 < room.windows_bytes <= room.free_bytes:
        return Residency("gpu", f"as asked, in windows of blocks: {found}", host, in_windows=True)
    raise ValueError(
        f"residency 'gpu': {found}. Leave it to 'auto'; or shuffle='block' sends windows of"
        " blocks, of a whole dataset to one rank."
    )


def _way_there(reads: Reads) -> str:
    # a copy in memory would be read once and then be in the way
    return "disk" if _chosen(reads).name == "disk" else "cache"


def _chosen(reads: Reads) -> Residency:
    kind = file_system(reads.path)
    if kind in MEMORY_FILE_SYSTEMS:
        return Residency("cache", f"{kind} is memory itself")
    # what is in the page cache is there for all processes; a copy is not
    room, cached = available_bytes(), reads.cached_share()
    size = f"{size_text(reads.size_bytes)} of rows, {size_text(room)} of memory free"
    if is_network(kind) and cached < WARM and _may_copy(reads, room):
        there = (
            ""
            if reads.copy_bytes == reads.size_bytes
            else f", of which {size_text(reads.copy_bytes)} are not copied yet"
        )
        ranks = f", {reads.processes} processes of this host" if reads.processes > 1 else ""
        return Residency("ram", f"{size}{there}{ranks}, and {kind} is a network file system")
    if reads.size_bytes <= room * _CACHE_SHARE or not can_read_ahead():
        return Residency("cache", f"{size}, {cached:.0%} of them in the page cache on {kind}")
    return Residency("disk", f"{size}: they do not fit; {kind}")


def _may_copy(reads: Reads, room: int) -> bool:
    """Say whether each process of this host may have its copy; the ranks of a host come to one answer, see `_check_copy`."""
    is_one = reads.processes == 1 or reads.copy_bytes * reads.processes <= memory_bytes() * COPY_SHARE
    return is_one and reads.copy_bytes <= room * COPY_SHARE


def is_cold(path: Path, size_bytes: int, offset: Callable[[], int] | None = None) -> bool:
    """Say whether reading the mapped file, or what `offset` draws of it, would mostly wait for page faults."""
    return size_bytes > SMALL_BYTES and can_read_ahead() and cached_share(path, offset=offset) < WARM


def can_read_ahead() -> bool:
    """Say whether this system reads at an offset into given memory."""
    return hasattr(os, "preadv")


def is_network(kind: str) -> bool:
    """Say whether a type of file system lies behind a network; FUSE usually does."""
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse")


def cached_share(path: Path, first_bytes: int | None = None, *, offset: Callable[[], int] | None = None) -> float:
    """Estimate the share of a file, of its first bytes, or of what `offset` draws of it, that is in the page cache, 0..1.

    Where the system does not tell it is 1, over a network 0.

    Asks for bytes that can be had without waiting, and whether the disk was asked for them: a fast one has answered by then.
    mincore would tell it too, but not to who may only read the file.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return 1.0
    hits = 0
    try:
        opened = open(path, "rb", buffering=0)  # noqa: SIM115 (closed below)
    except OSError as e:
        if e.errno == errno.ESTALE:
            return 0.0  # gone from its server (NFS): who reads it is told
        raise
    with opened as file, _disk_bytes() as asked_bytes:
        size_bytes = os.fstat(file.fileno()).st_size if first_bytes is None else first_bytes
        if size_bytes == 0:
            return 1.0
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # looking must not read the neighbours
        # not seeded: to ask for a page may bring it in, and the next time these would all be there
        draw = random.SystemRandom().randrange
        place = (lambda: draw(size_bytes)) if offset is None else offset
        byte, before = bytearray(1), asked_bytes()
        for _ in range(_PROBES):
            try:
                found = os.preadv(file.fileno(), [byte], place(), os.RWF_NOWAIT)
            except BlockingIOError:
                found = 0
            except OSError:  # a file system without it: network file systems, mostly
                return 0.0 if is_network(file_system(path)) else 1.0
            now = asked_bytes()
            hits, before = hits + (found if now == before else 0), now
    return hits / _PROBES


@contextlib.contextmanager
def _disk_bytes() -> Iterator[Callable[[], bytes]]:
    """Give what tells how many bytes this thread has asked of disks so far; where the system does not count, always the same."""
    try:
        file = open("/proc/thread-self/io", "rb", buffering=0)  # noqa: SIM115 (closed below)
    except OSError:
        yield lambda: b""
        return
    with file:
        # rchar, wchar, syscr, syscw, read_bytes, a line each; by proc(5) the last counts what the storage layer was asked for
        yield lambda: os.pread(file.fileno(), 1024, 0).split(b"\n")[4]


def file_system(path: Path) -> str:
    """Name the type of the file system that holds path: "ext4", "nfs4"; "unknown" where the system does not tell."""
    real, found = os.path.realpath(path), (0, "unknown")
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, mount, kind, *_ = line.split(" ")
            mount = mount.replace("\\040", " ").rstrip("/")
            # a later mount on the same folder hides the earlier one
            if (real == mount or real.startswith(mount + "/")) and len(mount) >= found[0]:
                found = len(mount), kind
    return found[1]


def memory_bytes() -> int:
    """Return the memory that this machine, or the cgroup around this process, has: the same at any time."""
    return min([_meminfo("MemTotal"), *(limit for limit, _ in _cgroups())])


def available_bytes() -> int:
    """Return the memory that can be had now without swapping: free, or page cache of others; the cgroup's limit included."""
    return max(0, min([_meminfo("MemAvailable"), *(free for _, free in _cgroups())]))


def huge_page_bytes(address: int, size_bytes: int) -> int | None:
    """Return how much of this process's memory [address, address + size_bytes) lies in huge pages; None: the system hides it."""
    found, inside = 0, False
    try:
        with open("/proc/self/smaps") as lines:
            for line in lines:
                if line.startswith("AnonHugePages:"):
                    found += int(line.split()[1]) * 1024 * inside
                elif (span := line.split(" ", 1)[0]).count("-") == 1:  # 7f2a00000000-7f2a40000000 rw-p ...
                    start, stop = (int(bound, 16) for bound in span.split("-"))
                    inside = start < address + size_bytes and stop > address
    except OSError:
        return None
    return min(found, size_bytes)


def _meminfo(name: str) -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 1 << 62


def _cgroups() -> Iterator[tuple[int, int]]:
    """Yield (limit, free bytes) of each memory cgroup around this process, versions 1 and 2; page cache counts as free."""
    for folder, limit_file, usage_file in _cgroup_folders():
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_file).read_text())  # "max": no limit
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached = [stat.get(f"total_{name}", stat.get(name, "0")) for name in ("active_file", "inactive_file")]
            yield limit, limit - int((folder / usage_file).read_text()) + sum(map(int, cached))


def _cgroup_folders() -> Iterator[tuple[Path, str, str]]:
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root):
                yield folder, *names
