"""Facts of the operating system about CPUs, memory, file systems and the page cache. Reads no pixel."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

# Pages that are checked: the share is then known to about 6 %.
_PROBES = 256
_CGROUPS = Path("/sys/fs/cgroup")
_NETWORK_FILE_SYSTEMS = re.compile("(nfs|nfs4|cifs|smb3|smbfs|9p|ceph|lustre|glusterfs|afs|beegfs|gpfs)|fuse(\\..*)?")


def available_cpus() -> int:
    """Count the CPUs that this process may use, by affinity and the cgroup's quota, if the system has them."""
    count: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUPS / "cpu.max").read_text().split()  # "max": no quota
        count = min(count, int(quota) / int(period))
    return max(1, math.ceil(count))


def is_network(kind: str) -> bool:
    """Return whether a type of file system uses a network; FUSE usually does, except for disks ("fuseblk")."""
    return _NETWORK_FILE_SYSTEMS.fullmatch(kind) is not None


def cached_share(path: Path) -> float:
    """Estimate the share of a file in the page cache, 0..1; 1 if the system does not say, 0 over a network.

    Reads bytes that are available without waiting, and checks that the disk was not asked: a fast one may have answered by
    then. mincore tells the same, but not to a process that may only read the file.
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
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes == 0:
            return 1.0
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # a check must not read the neighbors
        # seeded by the system: a checked page may get into the cache, and the same pages would be found the next time
        draw = random.Random()
        byte, before = bytearray(1), asked_bytes()
        for _ in range(_PROBES):
            try:
                found = os.preadv(file.fileno(), [byte], draw.randrange(size_bytes), os.RWF_NOWAIT)
            except BlockingIOError:
                found = 0
            except OSError:  # a file system without it: network file systems, mostly
                return 0.0 if is_network(file_system(path)) else 1.0
            now = asked_bytes()
            hits, before = hits + (found if now == before else 0), now
    return hits / _PROBES


@contextlib.contextmanager
def _disk_bytes() -> Iterator[Callable[[], bytes]]:
    """Return a function that returns the bytes this thread has read from disks; a constant if the system does not count them."""
    try:
        file = open("/proc/thread-self/io", "rb", buffering=0)  # noqa: SIM115 (closed below)
    except OSError:
        yield lambda: b""
        return
    with file:
        # rchar, wchar, syscr, syscw, read_bytes, a line each; by proc(5) the last counts bytes fetched from the storage layer
        yield lambda: os.pread(file.fileno(), 1024, 0).split(b"\n")[4]


def file_system(path: Path) -> str:
    """Return the type of the file system that holds path: "ext4", "nfs4"; "unknown" if the system does not say."""
    real, found = os.path.realpath(path), (0, "unknown")
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, mount, kind, *_ = line.split(" ")
            mount = mount.replace("\\040", " ").rstrip("/")
            # a later mount on the same folder hides the earlier one
            if (real == mount or real.startswith(mount + "/")) and len(mount) >= found[0]:
                found = len(mount), kind
    return found[1]


def available_bytes() -> int:
    """Return the memory available now without swapping: free, or page cache of others; within the cgroup's limit."""
    free = list(_cgroups_free())
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    # a system may not say how much it has
    return max(0, min(free, default=1 << 62))


def _cgroups_free() -> Iterator[int]:
    """Yield the free bytes of each memory cgroup (version 2) around this process; page cache counts as free."""
    inner = _CGROUPS
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        inner = next((_CGROUPS / line[4:] for line in lines if line.startswith("0::")), inner)
    for folder in (inner, *inner.parents):
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / "memory.max").read_text())  # "max": no limit
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached = int(stat["active_file"]) + int(stat["inactive_file"])
            yield limit - int((folder / "memory.current").read_text()) + cached
