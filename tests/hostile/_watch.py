"""What a trial of a store may not do, noted as it happens; and the memory that this process takes.

Knows the audit events of Python and the counters of the kernel. Knows no store and no command.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PROGRAMS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "socket.connect",
    "socket.getaddrinfo",
)
# proc(5), clear_refs
_PEAK = "/proc/self/clear_refs"
_IS_WATCHED = [True]
# What was done that a trial may not do.
CAUGHT: list[str] = []


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Let programs start and the network be asked."""
    _IS_WATCHED[0] = False
    try:
        yield
    finally:
        _IS_WATCHED[0] = True


def watch(work: Path) -> None:
    """Note what no trial may do."""
    allowed = (str(work), os.devnull, _PEAK)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = (isinstance(mode, str) and any(c in mode for c in "wxa+")) or (
                isinstance(flags, int) and flags & _WRITES
            )
            if writes and isinstance(path, str | bytes) and not os.fsdecode(path).startswith(allowed):
                CAUGHT.append(f"opened {os.fsdecode(path)!r} to write")
        elif _IS_WATCHED[0] and (event in _PROGRAMS or event == "pickle.find_class"):
            CAUGHT.append(f"{event} {str(arguments)[:200]}")

    sys.addaudithook(hook)


def memory(kind: str) -> int:
    """Return what the kernel says of this process's memory, in bytes; VmHWM: the most that it had since `forget_peak`."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{kind}:"))


def forget_peak() -> int:
    """Have the most memory counted from here on; returns what is used now, in bytes."""
    with open(_PEAK, "w") as file:
        file.write("5")
    return memory("VmRSS")
