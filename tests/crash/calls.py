"""Runs a command under calls.c: which calls changed files below a folder, in order, or one of them spoiled.

Knows the variables and the log of calls.c; nothing of what the calls mean.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("calls.c")
_STATE_BYTES = 4096

needs_shim = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the shim needs LD_PRELOAD and a C compiler"
)


@dataclass(frozen=True)
class Call:
    """One call that changed a file, or tried to.

    offset: where data begins; of ftruncate and fallocate, the size asked for. result: -1 where it failed (of fallocate: an
    errno). is_spoiled: the shim made it fail or come back short. Name "punch": fallocate that makes a hole, data: its zeros.
    """

    name: str
    path: str
    to: str = ""
    offset: int = 0
    result: int = 0
    data: bytes = b""
    is_spoiled: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it changed anything."""
        return self.result == 0 if self.name == "fallocate" else self.result >= 0


class Shim:
    """The compiled shim, which watches the folder root; runs commands under it."""

    def __init__(self, work: Path, root: Path) -> None:
        self._library, self._state = work / "calls.so", work / "calls.state"
        self._log, self._root = work / "calls.log", root.resolve()
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", self._library, _SOURCE, "-ldl", "-lpthread"]
        subprocess.run(command, check=True, capture_output=True)

    def run(
        self, command: Sequence[str], *, at: int = 0, do: str = "", names: str = "", seconds: float = 120
    ) -> tuple[int, str]:
        """Run a command in a process group of its own; returns its exit code and stderr.

        Args:
            at: spoil the n-th call that counts; 0: none.
            do: "die", "stop", "short" or an errno.
            names: the calls that count, such as "write,fsync"; "": all that change files.
            seconds: kill the group then.
        """
        process = self.start(command, at=at, do=do, names=names)
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _, errors = process.communicate()
        return process.returncode, errors

    def start(self, command: Sequence[str], *, at: int = 0, do: str = "", names: str = "") -> subprocess.Popen[str]:
        """Start a command in a process group of its own, and begin a new record."""
        self._state.write_bytes(bytes(_STATE_BYTES))
        self._log.unlink(missing_ok=True)
        variables = {"LD_PRELOAD": str(self._library), "CALLS_STATE": str(self._state), "CALLS_ROOT": str(self._root)}
        variables |= {"CALLS_LOG": str(self._log), "CALLS_DO": do, "CALLS_AT": str(at)}
        variables |= {"CALLS_NAMES": f",{names},"} if names else {}
        return subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def calls(self) -> list[Call]:
        """Read what the last run did below root, in order."""
        content, calls, cursor = self._log.read_bytes() if self._log.exists() else b"", list[Call](), 0
        while cursor < len(content):
            head, _, _ = content[cursor : cursor + 200].partition(b"\n")
            name, result, offset, is_spoiled, *sizes = head.split(b" ")
            cursor += len(head) + 1
            parts = []
            for size in map(int, sizes):
                parts.append(content[cursor : cursor + size])
                cursor += size
            path, to, data = os.fsdecode(parts[0]), os.fsdecode(parts[1]), parts[2]
            calls.append(Call(name.decode(), path, to, int(offset), int(result), data, is_spoiled == b"1"))
        return calls

    def changes(self) -> list[Call]:
        """Read those that count where no names are given: that change files, or tried to."""
        return [call for call in self.calls() if call.name not in ("close", "read")]
