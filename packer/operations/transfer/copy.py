"""A store on its way to or from a URL: how many bytes of it were copied, and its errors as sentences."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packer.errors import DiskFullError, OptionsError, PackError, RemoteError
from packer.operations.transfer.objects import open_objects
from packer.sources.object_storage import reason
from packer.system import FULL
from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import FileEntry

_READ_BYTES = 4 << 20

Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class CopyReport:
    """What a push or pull did; kept_bytes were there already."""

    url: str
    out: str
    files: int
    store_bytes: int
    copied_bytes: int
    kept_bytes: int
    seconds: float


class Copy:
    """A copy under way, counted."""

    def __init__(self, url: str, progress: Tell | None) -> None:
        self.url, self.total_bytes, self._progress = url.rstrip("/") or "/", 0, progress
        self.objects = open_objects(url)
        self._begun = time.monotonic()
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
                place = e.filename or (out if what == "read" else self.url)
                what = f"{place} cannot be written: {e.strerror} ({errno.errorcode[e.errno]})."
                raise DiskFullError(f"{what} Free some space and give the same command again.") from None
            if isinstance(e, OSError) and e.filename and out in Path(str(e.filename)).parents:
                raise
            again = "The same command continues from here." if self._copied_bytes else "Look at the URL."
            code, found = getattr(e, "errno", None), reason(e)
            if isinstance(e, OSError) and e.filename and code:
                found = f"{e.filename}: {e.strerror} ({errno.errorcode.get(code, code)})"
            raise PackError(f"{self.url} cannot be {what}: {found}. {again}") from None

    def count(self, size_bytes: int, *, is_copied: bool) -> None:
        """Add bytes that are now in place, copied or found there, and report them."""
        if is_copied:
            self._copied_bytes += size_bytes
        else:
            self._kept_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._copied_bytes + self._kept_bytes, self.total_bytes)

    def report(self, out: Path, files: int) -> CopyReport:
        """Sum the copy up."""
        seconds = time.monotonic() - self._begun
        return CopyReport(self.url, str(out), files, self.total_bytes, self._copied_bytes, self._kept_bytes, seconds)


def file_digest(path: Path, entry: FileEntry) -> str:
    """Return the digest of a file, of the kind that the manifest has for it."""
    kind = entry.digest.partition(":")[0]
    crc32, sha256 = 0, hashlib.sha256()
    with error_path(path), open(path, "rb") as file:
        while data := file.read(_READ_BYTES):
            if kind == "crc32":
                crc32 = zlib.crc32(data, crc32)
            else:
                sha256.update(data)
    return f"crc32:{crc32:08x}" if kind == "crc32" else f"sha256:{sha256.hexdigest()}"
