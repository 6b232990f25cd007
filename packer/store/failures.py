"""What the system refused in the middle of a pack, as a sentence: which file, why, and how to resume."""

from __future__ import annotations

import errno
from pathlib import Path

from packer.errors import DiskFullError, PackError
from packer.option_names import Option
from packer.store.disk_space import disk_full, free_bytes, needed_bytes
from packer.system import FULL, NO_DESCRIPTOR
from packer.text import system_reason
from reader.format.manifest import PIXELS

# What could not be written needs a page at least, even where the estimate of all files is used up.
_LEAST_BYTES = 4096


def as_pack_error(error: OSError, out: Path, sizes: dict[str, int], again: str = "") -> PackError:
    """Return what to raise instead of an error of files, processes or the disk; DiskFullError where room is lacking.

    Args:
        sizes: name below OUT -> bytes that the file will have.
        again: what to do once it is fixed; "": the same command.
    """
    fewer = "" if again else f" or give fewer {Option('workers')}"
    again = again or "give the same command again"
    if error.errno in NO_DESCRIPTOR:
        return PackError(
            f"{error.filename or 'a pipe to a worker'} cannot be opened: {system_reason(error)}, {open_files_limit()}."
            f" Allow more{fewer}, and {again}."
        )
    if error.filename is None and error.errno not in FULL:  # whatever opens, reads or writes a file names it
        return PackError(
            f"a worker process cannot be started or reached: {system_reason(error)}. {again[0].upper()}{again[1:]}."
        )
    path = Path(error.filename or out / PIXELS)
    what = f"{path} cannot be read or written: {system_reason(error)}"
    if error.errno == errno.ENAMETOOLONG:
        return PackError(f"{what}. Choose a folder with a shorter path, or shorten the name.")
    if error.errno not in FULL:
        return PackError(f"{what}. {again[0].upper()}{again[1:]} once it can.")
    free = free_bytes(path)
    need = max(_LEAST_BYTES, needed_bytes(out, sizes))
    if need > free:
        return disk_full(path, need, free, again)
    # a quota is used up, or someone has made room meanwhile
    return DiskFullError(
        f"{what}; {need} more bytes are needed, its disk has {free} free."
        f" Free some space or raise your quota, and {again}."
    )


def open_files_limit() -> str:
    """Say how many files this process may have open."""
    try:
        import resource
    except ImportError:
        return "the system's limit"
    return f"of which this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n)"
