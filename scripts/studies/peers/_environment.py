"""A virtual environment for each peer, made once and kept; what does not install says why.

Knows pip, venv and apt-get. Imports no peer, and changes nothing of the environment that this runs in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

_APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=120")


class NotInstalled(Exception):
    """A peer cannot be had on this machine; the text says why, in one line."""


def python_with(requirements: Sequence[str], system: Sequence[str], folder: Path) -> Path:
    """Return the Python of folder/venv, in which requirements are installed; what an earlier run has installed stays.

    Args:
        requirements: as pip takes them, installed at once, so that one that pins torch binds what the others ask for.
        system: Debian packages that they need, installed with apt-get where this user may.

    Raises:
        NotInstalled: a package is missing or does not install; pip's talk is in folder/install.log.
    """
    python, stamp = folder / "venv" / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join([sys.version, *requirements])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    _install_system(system)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"peers: installing {' '.join(requirements)} into {folder / 'venv'}", file=sys.stderr, flush=True)
    stamp.unlink(missing_ok=True)
    venv.create(folder / "venv", clear=True, with_pip=True)
    pip_install(python, requirements, folder / "install.log")
    stamp.write_text(wanted)
    return python


def pip_install(python: Path, requirements: Sequence[str], log: Path) -> None:
    """Install into the environment of that Python; pip's talk goes to the log. Raises NotInstalled."""
    command = [python, "-m", "pip", "install", "--progress-bar", "off", *requirements]
    with open(log, "w", encoding="utf-8") as talk:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=talk, stderr=talk, env=clean()).returncode
    if code:
        raise NotInstalled(f"pip: {last_error(log)} (log: {log})")


def clean() -> dict[str, str]:
    """Return this process's environment without what would lead another Python to this one's packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def last_error(log: Path) -> str:
    """Return the last line of a log that names an error, else the last one."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    reported = [line for line in lines if "error" in line.partition(":")[0].lower() and line.partition(":")[2]]
    return ((reported or lines)[-1:] or ["it ended without a word"])[0][:300]


def _install_system(packages: Sequence[str]) -> None:
    """Install what is missing of the system's packages, as scripts/setup.sh does: never asks for a password."""
    missing = _missing(packages)
    if not missing:
        return
    names = " ".join(missing)
    if os.environ.get("PIXPACK_APT") == "no":
        raise NotInstalled(f"it needs the packages {names}, and PIXPACK_APT=no forbids apt-get.")
    if os.geteuid() and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode:
        raise NotInstalled(f"it needs the packages {names}. As root: apt-get install {names}, then run this again.")
    print(f"peers: installing with apt-get: {names}", file=sys.stderr, flush=True)
    apt = [*(["sudo", "-n"] if os.geteuid() else []), *_APT]
    for command in [*apt, "update"], [*apt, "install", "--no-install-recommends", *missing]:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reported = [line for line in done.stderr.splitlines() if line.startswith("E:")] or [
                f"code {done.returncode}"
            ]
            raise NotInstalled(f"it needs the packages {names}; apt-get: {reported[0]}")


def _missing(packages: Sequence[str]) -> list[str]:
    """Name those that are not installed; none where there is no Debian to ask, and the build itself will say."""
    if not packages or not shutil.which("dpkg-query"):
        return []
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *packages]
    known = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [name for name in packages if f"installed {name}" not in known]
