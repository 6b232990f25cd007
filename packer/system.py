"""Facts of the system: flags of `open`, errno of full disks and used-up descriptors, versions of installed packages."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys

FULL = (errno.ENOSPC, errno.EDQUOT)

# This process, or the system, can open no more files: the file itself is not at fault.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None.

    The folder of its metadata states it (packaging.python.org, "Recording installed projects"). importlib.metadata, which
    is slow to import, is asked if no folder does.
    """
    wanted = _normalized(distribution)
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                stem, _, version = name.removesuffix(".dist-info").partition("-")
                if name.endswith(".dist-info") and version and _normalized(stem) == wanted:
                    return version
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return None


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
