"""A store on its way to or from a URL: how many bytes of it were copied, and its errors as sentences."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packer.checksums import sha256_file
from packer.errors import DiskFullError, OptionsError, PackError, RemoteError
from packer.sources.object_storage import cause, reason
from packer.store.remote.objects import open_objects
from packer.system import FULL
from packer.text import system_reason
from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import FileEntry
from reader.format.shown import redacted

_READ_BYTES = 4 << 20

OnBytes = Callable[[int, int], None]


@dataclass(frozen=True)
class CopyReport:
    """What a push or pull did.

    Attributes:
        url: of the store, or of the folder of the stores of splits.
        out: the same on this machine.
        files: how many there are.
        store_bytes: of all of them.
        copied_bytes: that this run copied.
        kept_bytes: that were there already.
        seconds: from the call to its return.
    """

    url: str
    out: str
    files: int
    store_bytes: int
    copied_bytes: int
    kept_bytes: int
    seconds: float


class Transfer:
    """A copy in progress, counted."""

    def __init__(self, url: str, progress: OnBytes | None) -> None:
        # as it is shown and recorded, without credentials; only what opens it knows them
        self.url, self.total_bytes, self._progress = redacted(url).rstrip("/") or "/", 0, progress
        self.objects = open_objects(url)
        self._started = time.monotonic()
        self._copied_bytes = self._kept_bytes = 0

    @contextlib.contextmanager
    def explaining(self, what: str, out: Path) -> Iterator[None]:
        """Turn what a file system raises into one sentence; errors of ours, and of a file in OUT, pass."""
        try:
            yield
        except (PackError, StoreError, OptionsError, RemoteError):
            raise
        except Exception as e:
            if isinstance(e, OSError) and e.errno in FULL:
                full = e.filename or (out if what == "read" else self.url)
                raise DiskFullError(
                    f"{full} cannot be written: {system_reason(e)}. Free some space and give the same command again."
                ) from None
            if isinstance(e, OSError) and e.filename and out in Path(str(e.filename)).parents:
                raise
            again = "The same command continues from here." if self._copied_bytes else "Look at the URL."
            found = reason(e)
            if isinstance(e, OSError) and e.filename and e.errno:
                found = f"{e.filename}: {system_reason(e)}"
            raise PackError(f"{self.url} cannot be {what}: {found}. {again}") from cause(e)

    def count(self, size_bytes: int, *, is_copied: bool) -> None:
        """Add bytes that are now at the destination, copied or found there, and report them."""
        if is_copied:
            self._copied_bytes += size_bytes
        else:
            self._kept_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._copied_bytes + self._kept_bytes, self.total_bytes)

    def report(self, out: Path, files: int) -> CopyReport:
        """Sum the copy up."""
        seconds = time.monotonic() - self._started
        return CopyReport(self.url, str(out), files, self.total_bytes, self._copied_bytes, self._kept_bytes, seconds)


def file_digest(path: Path, entry: FileEntry) -> str:
    """Return the digest of a file, of the kind that the manifest has for it."""
    if entry.digest.startswith("sha256:"):
        return sha256_file(path)
    crc32 = 0
    with error_path(path), open(path, "rb") as file:
        while data := file.read(_READ_BYTES):
            crc32 = zlib.crc32(data, crc32)
    return f"crc32:{crc32:08x}"
