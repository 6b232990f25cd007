"""The environment that the programs run in: a virtual environment that sees the packages of this one, and has theirs beside.

Knows venv and pip. Changes nothing of the environment that this runs in: torch, numpy and Pillow stay those that are here.
"""

from __future__ import annotations

import json
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from scripts.studies.peers._environment import pip_install

# cv2 is of opencv-python
_VERSIONS = """
import json, sys
from importlib.metadata import packages_distributions, version

homes = packages_distributions()
print(json.dumps({name: version(homes.get(name, [name])[0]) for name in sys.argv[1:]}))
"""
# What pip must leave as it is.
_HERE = ("torch", "numpy", "pillow")


def python_with(requirements: Sequence[str], environments: Path) -> Path:
    """Return a Python below environments in which requirements are installed; programs with the same ones share it.

    What an earlier run has installed stays.

    Raises:
        NotInstalled: a package is missing or does not install.
    """
    folder = environments / "-".join(sorted(requirement.partition("==")[0] for requirement in requirements))
    python, stamp = folder / "venv" / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join([sys.version, *requirements])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    print(f"programs: installing {' '.join(requirements)} into {folder / 'venv'}", file=sys.stderr, flush=True)
    stamp.unlink(missing_ok=True)
    venv.create(folder / "venv", clear=True, with_pip=True)
    theirs = sysconfig.get_path("purelib", vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")})
    Path(theirs, "here.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version(name)}\n" for name in _HERE))
    pip_install(python, ["-c", str(constraints), *requirements], folder / "install.log")
    stamp.write_text(wanted)
    return python


def versions_of(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages, named as they are imported, as that Python has them, and of pixpack and torch."""
    names = ["pixpack", "torch", *packages]
    done = subprocess.run([python, "-c", _VERSIONS, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
