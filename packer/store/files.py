"""Files that survive a crash or a power cut: written under a temporary name, synced, renamed, and the folder synced too.

Knows nothing about their content.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from reader.format.filesystem import error_path


def write_atomically(path: Path, content: bytes) -> None:
    """Write content to path: a reader, even after a crash, sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    write_synced(temporary, content)
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and sync its bytes; its name is on disk only after its folder is synced."""
    with error_path(path), open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make renames and new names in a folder survive a power loss, if the file system can.

    File systems that cannot sync folders return EINVAL or EBADF, and a parent folder may deny access (PostgreSQL ignores the
    same: src/common/file_utils.c, fsync_fname).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        with error_path(path):
            os.fsync(descriptor)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def sync_names(out: Path) -> None:
    """Make OUT's name and those above it survive a power loss, up to its mount point.

    All of them, since the process that made one, perhaps a killed pack, may not have synced it.
    """
    folder = out.absolute()
    device = folder.stat().st_dev
    for above in folder.parents:
        if above.stat().st_dev != device:
            return
        sync_folder(above)


def remove_tree(folder: Path) -> None:
    """Remove a folder and its content; an error names the full path that it could not remove."""
    try:
        shutil.rmtree(folder)
    except OSError as e:
        # names in a folder are given without it
        if e.filename and not os.path.dirname(e.filename):
            e.filename = str(folder / e.filename)
        raise


# Bytes per write: for larger ones ext4 allocates page cache in large pieces, which a virtual machine may have to request from
# its host.
_WRITE_BYTES = 256 << 10


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of data at a byte offset; short writes continue, errors are raised."""
    while len(data):
        done = os.pwrite(descriptor, data[:_WRITE_BYTES], offset)
        if done == 0:
            raise OSError(errno.EIO, "a write came back without writing anything")
        data, offset = data[done:], offset + done
