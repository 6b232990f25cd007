"""A folder of this machine, exported by its own kernel over NFS 4.2 and mounted twice, each mount a client of its own.

Knows exportfs, rpc.nfsd, rpc.mountd and mount; takes back what it did, and leaves a server that was there before running.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

_PROGRAMS = ("exportfs", "rpc.nfsd", "rpc.mountd", "mount.nfs")
_THREADS = Path("/proc/fs/nfsd/threads")
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
# Seconds in which a server that has just started grants no lock: 90 by default.
_GRACE = "10"
_MOUNT_SECONDS = 60


class NoNfsError(RuntimeError):
    """This machine cannot do it; says why."""


@contextlib.contextmanager
def two_mounts(work: Path) -> Iterator[tuple[Path, Path]]:
    """Yield two mounts of one export, below work.

    Raises:
        NoNfsError: it cannot be exported, or not mounted.
    """
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]:
        raise NoNfsError(f"{', '.join(missing)} not found. On Debian: apt-get install nfs-kernel-server")
    if os.geteuid() != 0:
        raise NoNfsError("exporting and mounting needs root.")
    folder = work / "export"
    folder.mkdir()
    with contextlib.ExitStack() as undo:
        # alone it is the server's root, so that nothing above it need be exported
        is_root = _serve(undo)
        number, source = (0, "127.0.0.1:/") if is_root else (uuid.uuid4(), f"127.0.0.1:{folder}")
        options = f"rw,sync,no_root_squash,no_subtree_check,insecure,fsid={number}"
        _run("exportfs", "-o", options, f"127.0.0.1:{folder}")
        undo.callback(_run, "exportfs", "-u", f"127.0.0.1:{folder}", check=False)
        mounts = (work / "a", work / "b")
        for mount in mounts:
            mount.mkdir()
            # without a shared cache what one writes reaches the other through the server alone
            _run("mount", "-t", "nfs4", "-o", "vers=4.2,nosharecache", source, str(mount))
            undo.callback(_run, "umount", "-l", str(mount), check=False)
        yield mounts


def _serve(undo: contextlib.ExitStack) -> bool:
    """Start the kernel's server where none runs, and say whether it was started."""
    if not _THREADS.exists():
        if "\tnfsd\n" not in Path("/proc/filesystems").read_text():
            _run("modprobe", "nfsd")
        _run("mount", "-t", "nfsd", "nfsd", str(_THREADS.parent))
        undo.callback(_run, "umount", str(_THREADS.parent), check=False)
    if int(_THREADS.read_text()) > 0:
        return False
    answering = subprocess.Popen([_found("rpc.mountd"), "-F", "-N", "2", "-N", "3"], stderr=subprocess.DEVNULL)
    undo.callback(answering.wait)
    undo.callback(answering.terminate)
    _run("rpc.nfsd", "-G", _GRACE, "-L", _GRACE, "-N", "3", "-V", "4", "-V", "4.2", "8")
    undo.callback(_run, "rpc.nfsd", "0", check=False)
    return True


def _found(program: str) -> str:
    return shutil.which(program, path=_PATH) or program


def _run(program: str, *words: str, check: bool = True) -> None:
    """Run a program; raises NoNfsError with what it said."""
    try:
        done = subprocess.run([_found(program), *words], capture_output=True, text=True, timeout=_MOUNT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise NoNfsError(f"{program}: {e}") from None
    if check and done.returncode:
        error = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NoNfsError(f"{program}: {error}")
