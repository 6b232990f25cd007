"""What the operating system gives: the CPUs that are ours, flags of `open`, and errno of full disks and used-up descriptors."""

from __future__ import annotations

import errno
import math
import os

FULL = (errno.ENOSPC, errno.EDQUOT)

# Without it Windows opens files as text.
BINARY = getattr(os, "O_BINARY", 0)
# This process, or the system, can open nothing more: no file is to blame.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def available_cpus() -> int:
    """Count the CPUs that this process may use: affinity and the cgroup's quota, where the system has them."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, _cgroup_cpus())))


def _cgroup_cpus() -> float:
    """Return the cgroup's CPU quota (v2, then v1), infinity where there is none."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        try:
            with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") as file:
                quota = file.read().strip()
            with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as file:
                period = file.read().strip()
        except OSError:
            return math.inf
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)
