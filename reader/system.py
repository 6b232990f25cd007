"""What the operating system says of CPUs, memory, file systems and the page cache. Reads no pixel."""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

# Pages looked at: the share is then known to about 6 %.
_PROBES = 256
# The memory of a system that does not say how much it has.
_ENDLESS = 1 << 62
# fallocate(2): FALLOC_FL_PUNCH_HOLE, and FALLOC_FL_KEEP_SIZE, which it needs
_PUNCH = 0x02 | 0x01
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


def available_cpus() -> int:
    """Count the CPUs that this process may use: affinity and the cgroup's quota, where the system has them."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, _cgroup_cpus())))


def _cgroup_cpus() -> float:
    """Return the cgroup's CPU quota (v2), infinity where there is none."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota == "max" else int(quota) / int(period)


def has_preadv() -> bool:
    """Say whether this system reads at an offset into given memory."""
    return hasattr(os, "preadv")


def is_network(kind: str) -> bool:
    """Say whether a type of file system is behind a network; FUSE usually does, but for disks ("fuseblk")."""
    return kind in _NETWORK_FILE_SYSTEMS or kind.partition(".")[0] == "fuse"


def cached_share(path: Path, first_bytes: int | None = None, *, offset: Callable[[], int] | None = None) -> float:
    """Estimate the share of a file, of its first bytes, or of what `offset` draws of it, that is in the page cache, 0..1.

    Where the system does not say it is 1, over a network 0.

    Asks for bytes that can be had without waiting, and whether the disk was asked for them: a fast one has answered by then.
    mincore says it too, but not to a process that may only read the file.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return 1.0
    hits = 0
    try:
        opened = open(path, "rb", buffering=0)  # noqa: SIM115 (closed below)
    except OSError as e:
        if e.errno == errno.ESTALE:
            return 0.0  # gone from its server (NFS): reading it raises the error
        raise
    with opened as file, _disk_bytes() as asked_bytes:
        size_bytes = os.fstat(file.fileno()).st_size if first_bytes is None else first_bytes
        if size_bytes == 0:
            return 1.0
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # looking must not read the neighbors
        # seeded by the system: to ask for a page may bring it in, and the next time these would all be there
        draw = random.Random().randrange
        next_offset = (lambda: draw(size_bytes)) if offset is None else offset
        byte, before = bytearray(1), asked_bytes()
        for _ in range(_PROBES):
            try:
                found = os.preadv(file.fileno(), [byte], next_offset(), os.RWF_NOWAIT)
            except BlockingIOError:
                found = 0
            except OSError:  # a file system without it: network file systems, mostly
                return 0.0 if is_network(file_system(path)) else 1.0
            now = asked_bytes()
            hits, before = hits + (found if now == before else 0), now
    return hits / _PROBES


@contextlib.contextmanager
def _disk_bytes() -> Iterator[Callable[[], bytes]]:
    """Give a function of the bytes that this thread has asked of disks so far; always the same where they are not counted."""
    try:
        file = open("/proc/thread-self/io", "rb", buffering=0)  # noqa: SIM115 (closed below)
    except OSError:
        yield lambda: b""
        return
    with file:
        # rchar, wchar, syscr, syscw, read_bytes, a line each; by proc(5) the last counts what the storage layer was asked for
        yield lambda: os.pread(file.fileno(), 1024, 0).split(b"\n")[4]


def file_system(path: Path) -> str:
    """Name the type of the file system that holds path: "ext4", "nfs4"; "unknown" where the system does not say."""
    real, found = os.path.realpath(path), (0, "unknown")
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, mount, kind, *_ = line.split(" ")
            mount = mount.replace("\\040", " ").rstrip("/")
            # a later mount on the same folder hides the earlier one
            if (real == mount or real.startswith(mount + "/")) and len(mount) >= found[0]:
                found = len(mount), kind
    return found[1]


def meminfo(name: str) -> int | None:
    """Return what /proc/meminfo says, in bytes, whatever cgroup this process is in; None where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def memory_bytes() -> int:
    """Return the memory that this machine, or the cgroup around this process, has: the same at any time."""
    return min([meminfo("MemTotal") or _ENDLESS, *(limit for limit, _ in _cgroups())])


def available_bytes() -> int:
    """Return the memory that can be had now without swapping: free, or page cache of others; the cgroup's limit included."""
    return max(0, min([meminfo("MemAvailable") or _ENDLESS, *(free for _, free in _cgroups())]))


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


def punch_hole(descriptor: int, start: int, size_bytes: int) -> None:
    """Free bytes of a file, which are zeros then.

    Raises:
        OSError: this system or file system cannot.
    """
    import ctypes

    libc = _libc()
    if libc is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    if libc.fallocate(descriptor, _PUNCH, ctypes.c_int64(start), ctypes.c_int64(size_bytes)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@functools.cache
def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "fallocate") else None
