"""Runs a command under calls.c, which records calls that change files below a folder, or spoils one of them.

Knows the variables and the log of calls.c, but not the meaning of the calls.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SOURCE = Path(__file__).with_name("calls.c")
_STATE_BYTES = 4096

needs_shim = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the shim needs LD_PRELOAD and a C compiler"
)


@dataclass(frozen=True)
class Call:
    """One call that changed a file, or tried to.

    offset: the start of data; for ftruncate and fallocate, the requested size. result: below 0 if it failed.
    is_spoiled: the shim made it fail or return short. Name "punch": fallocate that makes a hole, data: its zeros.
    """

    name: str
    result: int
    offset: int
    is_spoiled: bool
    path: str
    to: str
    data: bytes


class Shim:
    """The compiled shim, which watches the folder root; runs commands under it."""

    def __init__(self, work: Path, root: Path) -> None:
        self._state, self._log, library = work / "calls.state", work / "calls.log", work / "calls.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl", "-lpthread"], check=True)
        self._variables = {"LD_PRELOAD": str(library), "CALLS_ROOT": str(root.resolve())}
        self._variables |= {"CALLS_STATE": str(self._state), "CALLS_LOG": str(self._log)}

    def start(self, command: Sequence[str], *, at: int = 0, do: str = "", names: str = "") -> subprocess.Popen[str]:
        """Start a command in its own process group, and begin a new record.

        Args:
            at: spoil the n-th call that counts; 0: none.
            do: "die", "stop", "short" or an errno.
            names: the calls that count, such as " write fsync "; "": all but close and read.
        """
        self._state.write_bytes(bytes(_STATE_BYTES))
        self._log.write_bytes(b"")
        variables = self._variables | {"CALLS_DO": do, "CALLS_AT": str(at), "CALLS_NAMES": names}
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        return subprocess.Popen(
            command, env=os.environ | variables, stdout=nothing, stderr=pipe, text=True, start_new_session=True
        )

    def run(self, command: Sequence[str], **how: Any) -> tuple[int, str]:
        """Run a command as `start` does; returns its exit code and stderr."""
        process = self.start(command, **how)
        # only for hangs
        _, errors = process.communicate(timeout=500)
        return process.returncode, errors

    def calls(self) -> list[Call]:
        """Read the calls of the last run below root, in order."""
        calls = []
        for line in self._log.read_text().splitlines():
            name, result, offset, is_spoiled, path, to, data = line.split("\t")
            calls.append(Call(name, int(result), int(offset), is_spoiled == "1", path, to, bytes.fromhex(data)))
        return calls
