"""Runs a command under shims/calls.c: which calls changed files below a folder, in order, or one of them spoiled.

Knows the shim's variables and its log, and how strace writes down the same calls; nothing of what they mean.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash._program import TrialError

_SOURCE = Path(__file__).parent / "shims" / "calls.c"
_STATE_BYTES = 4096
# every way there is to change a file; a call of the lower lines that pack makes and the shim does not know is found here
_TRACED = (
    "open,openat,creat,write,pwrite64,fsync,fdatasync,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,rmdir,"
    "mkdir,mkdirat,writev,pwritev,pwritev2,sendfile,copy_file_range,splice,truncate,link,linkat,symlink,symlinkat,"
    "sync,syncfs,sync_file_range,mmap,io_uring_setup"
)


@dataclass(frozen=True)
class Call:
    """One call that changed a file, or tried to.

    offset: where data begins; of ftruncate and fallocate, the size asked for. result: -1 where it failed (of fallocate: an
    errno). is_spoiled: the shim made it fail or come back short. Of name "mapped" it is no call: a program stored data in a
    shared mapping; "punch": fallocate that makes a hole, data: its zeros.
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
    """The compiled shim; runs commands under it.

    Raises:
        TrialError: there is no C compiler, or the linker cannot be given the path of work.
    """

    def __init__(self, work: Path, root: Path) -> None:
        self._library, self._state = work / "calls.so", work / "calls.state"
        self.log, self._root = work / "calls.log", root.resolve()
        if self._library.exists():
            return
        if {*" :"} & {*str(work)}:
            raise TrialError(
                f"{work} has a space or a colon, at which the linker cuts LD_PRELOAD. Give another folder."
            )
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", self._library, _SOURCE, "-ldl", "-lpthread"]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as e:
            raise TrialError(f"the shim cannot be compiled ({e}). Install a C compiler.") from e

    def run(
        self, command: Sequence[str], *, at: int = 0, do: str = "", names: str = "", under: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in a process group of its own.

        Args:
            at: spoil the n-th call that counts; 0: none.
            do: "die", "die alone", "short" or an errno.
            names: the calls that count, such as "write,fsync"; "": all that change files.
            under: words to put before the command, such as strace's.
        """
        settings = [f"{key}={value}" for key, value in self.variables(at=at, do=do, names=names).items()]
        return subprocess.run(
            [*under, "env", *settings, *command], capture_output=True, text=True, start_new_session=True, timeout=120
        )

    def variables(self, *, at: int = 0, do: str = "", names: str = "") -> dict[str, str]:
        """Return the environment of a program that begins a new record, with arguments as those of `run`."""
        self._state.write_bytes(bytes(_STATE_BYTES))
        self.log.unlink(missing_ok=True)
        files = {
            "LD_PRELOAD": self._library,
            "CALLS_STATE": self._state,
            "CALLS_ROOT": self._root,
            "CALLS_LOG": self.log,
        }
        variables = {name: str(path) for name, path in files.items()} | {"CALLS_DO": do, "CALLS_AT": str(at)}
        return variables | ({"CALLS_NAMES": f",{names},"} if names else {})

    def calls(self) -> list[Call]:
        """Read what the last run did below root, in order."""
        return read_log(self.log) if self.log.exists() else []


def read_log(path: Path) -> list[Call]:
    """Parse the shim's log."""
    content, calls, cursor = path.read_bytes(), [], 0
    while cursor < len(content):
        head, _, _ = content[cursor : cursor + 200].partition(b"\n")
        name, result, offset, is_spoiled, *sizes = head.split(b" ")
        cursor += len(head) + 1
        parts = []
        for size in map(int, sizes):
            parts.append(content[cursor : cursor + size])
            cursor += size
        fields = (name.decode(), os.fsdecode(parts[0]), os.fsdecode(parts[1]), int(offset), int(result), parts[2])
        calls.append(Call(*fields, is_spoiled=is_spoiled == b"1"))
    return calls


def strace_words(log: Path) -> list[str]:
    """Return what to put before a command so that strace writes its calls to log."""
    return ["strace", "-f", "-y", "-xx", "-s", "1000000", "-e", "signal=none", "-e", f"trace={_TRACED}", "-o", str(log)]


def read_strace(path: Path, root: Path) -> list[Call]:
    """Parse what strace wrote, named as the shim names it: the calls below root, without opens, whose effect it does not show.

    A shared, writable mapping of a file comes as "mmap": bytes that reach a file so are in no call.
    """
    started: dict[str, str] = {}
    calls = []
    for line in path.read_text(encoding="ascii").splitlines():
        process, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            started[process] = text.removesuffix("<unfinished ...>")
            continue
        if text.startswith("<... "):
            text = started.pop(process) + text.partition(" resumed>")[2]
        call = _traced(text)
        if call is not None and call.is_done and Path(call.path).is_relative_to(root):
            calls.append(call)
    return calls


def without_opens(calls: Sequence[Call]) -> list[tuple[str, str, str, bytes]]:
    """Return name, paths and data of the calls that changed something, but for opens and closes, to compare two recorders."""
    left = [call for call in calls if call.is_done and call.name not in _UNCOMPARED]
    return [(call.name, call.path, call.to, call.data) for call in left]


_UNCOMPARED = ("create", "truncate", "close", "read", "mapped", "msync")
_STRACE_NAMES = {"pwrite64": "pwrite", "mkdirat": "mkdir", "unlinkat": "unlink", "renameat": "rename", "linkat": "link"}


def _traced(text: str) -> Call | None:
    """Parse one line: 'pwrite64(4<\\x2f..>, "\\x00..", 1, 0) = 1'; None for what changes nothing."""
    match = re.fullmatch(r"(\w+)\((.*)\)\s+= (-?\d+)\b.*", text)
    if match is None:
        return None
    traced, arguments, result = match[1], match[2], int(match[3])
    if traced in ("open", "openat", "creat") or (traced == "mmap" and not _is_written_back(arguments)):
        return None
    name = _STRACE_NAMES.get(traced, traced)
    if traced == "unlinkat" and "AT_REMOVEDIR" in arguments:
        name = "rmdir"
    if traced == "renameat2":
        name = "exchange" if "RENAME_EXCHANGE" in arguments else "rename"
    folders = [_bytes(found) for found in re.findall(r"(?:AT_FDCWD|\d+)<([^>]*)>", arguments)]
    quoted = [_bytes(found) for found in re.findall(r'"([^"]*)"', arguments)]
    if traced in ("write", "pwrite64"):
        offset = int(arguments.rpartition(", ")[2]) if traced == "pwrite64" else 0
        return Call(name, os.fsdecode(folders[0]), "", offset, result, quoted[0][: max(result, 0)])
    if folders and not quoted:
        return Call(name, os.fsdecode(folders[0]), result=result)
    paths = [os.fsdecode(os.path.join(base, path)) for base, path in zip(folders or [b"", b""], quoted, strict=False)]
    return Call(name, *paths, result=result)


def _is_written_back(arguments: str) -> bool:
    return "MAP_SHARED" in arguments and "PROT_WRITE" in arguments


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))
