"""A disk that gives a process no more than so many bytes a second: by the kernel's own limit of a control group (blkio, io).

Nothing is simulated: requests wait in the kernel until the rate allows them, whichever call they come from. Needs root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from scripts.common.figures import BenchmarkError

_GROUPS = Path("/sys/fs/cgroup")
# Of version 1 and of version 2: the group's parent, the file with the limit, and what is written for a device.
_KINDS = (
    (_GROUPS / "blkio", "blkio.throttle.read_bps_device", "{} {}"),
    (_GROUPS, "io.max", "{} rbps={}"),
)


@contextlib.contextmanager
def limited_disk(path: Path, bytes_per_second: int) -> Iterator[None]:
    """Let this process read the disk that holds a path at this rate at most, all of its threads together.

    Raises:
        BenchmarkError: this user, or this kernel, cannot limit it.
    """
    group: Path | None = None
    try:
        device, (parent, name, line) = _disk_of(path), next(kind for kind in _KINDS if _has_limit(*kind[:2]))
        before = _group_of("blkio" if parent.name == "blkio" else "")
        group = parent / f"pixpack-bench-{os.getpid()}"
        group.mkdir()
        (group / name).write_text(line.format(device, bytes_per_second))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except (OSError, StopIteration) as e:
        if group is not None and group.is_dir():
            group.rmdir()
        raise BenchmarkError(
            f"the disk of {path} cannot be limited here ({str(e) or 'no control groups of disks'}). Run as root on Linux with"
            " blkio or io control groups, or leave --megabytes-per-second out."
        ) from None
    try:
        yield
    finally:
        (parent / before / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _has_limit(parent: Path, name: str) -> bool:
    if name == "io.max":
        enabled = parent / "cgroup.subtree_control"
        return enabled.exists() and "io" in enabled.read_text().split()
    return (parent / name).exists()


def _group_of(controller: str) -> str:
    """Return the group of a controller that this process is in, relative to the root; "": that of version 2."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return next(path for _, names, path in lines if controller in names.split(",")).lstrip("/")


def _disk_of(path: Path) -> str:
    """Return major:minor of the whole disk; of a partition, the disk that it is a part of."""
    number = os.stat(path).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)
    disk = device.parent if (device / "partition").exists() else device
    return (disk / "dev").read_text().strip()
