"""`pack push` and `pack pull`: a store copied to object storage and back, every byte compared with the manifest's checksums.

Only what differs is copied, so the same command goes on after an interruption. As on a disk, the manifest goes last and is
the commit: what has none is no store. Knows nothing of how a store is made.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer import journal as journals
from packer.disk import allocate, write_at
from packer.durable import sync_folder, write_atomically
from packer.place import OWN_NAMES, sync_names
from packer.remote import open_url, reason
from packer.report import PackError
from packer.seal import remove_working_folder
from packer.source import BINARY
from reader.manifest import (
    MANIFEST,
    PIXELS,
    PULLED,
    Block,
    FileEntry,
    Manifest,
    StoreError,
    check_store,
    naming,
    read_blocks,
    read_manifest,
)

# What a push under way has copied: file -> digest. Beside the files, gone with the last of them.
_RECORD = ".pushing.json"
_READ_BYTES = 4 << 20
# Enough to fill a link while one answer is on its way; each holds a block, 8 MB.
_REQUESTS = 8

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


def push(out: str | os.PathLike[str], url: str, *, progress: Tell | None = None) -> CopyReport:
    """Copy the store OUT to a URL, such as s3://bucket/store; only files that differ from what lies there.

    Each file is read and compared with its checksum before it is sent.

    Raises:
        StoreError: OUT is no store, or a file is not what its manifest says.
        PackError: the URL cannot be written.
    """
    begun, root = time.monotonic(), Path(out)
    manifest = check_store(root)
    copy = _Copy(url, sum(entry.size_bytes for entry in manifest.files.values()), progress)
    with copy.explaining("written", root):
        # what differs is left out before it is sent: which version of it lies there is not known until then
        there = {name: digest for name, digest in _pushed(copy).items() if digest == _entry_digest(manifest, name)}
        copy.write(_RECORD, json.dumps(there).encode())
        copy.remove(MANIFEST)
        for name, entry in manifest.files.items():
            if there.get(name) == entry.digest and copy.size(name) == entry.size_bytes:
                copy.count(entry.size_bytes, is_copied=False)
                continue
            if _digest(root / name, entry) != entry.digest:
                raise StoreError(
                    f"{root / name} is not what the manifest says: nothing of it was sent. Run: pack verify {root}"
                )
            copy.send(root / name, name)
            there[name] = entry.digest
            copy.write(_RECORD, json.dumps(there).encode())
            copy.count(entry.size_bytes, is_copied=True)
        copy.write(MANIFEST, (root / MANIFEST).read_bytes())
        copy.remove(_RECORD)
    return copy.report(root, len(manifest.files) + 1, begun)


def pull(url: str, out: str | os.PathLike[str], *, progress: Tell | None = None) -> CopyReport:
    """Copy the store at a URL to OUT; of an interrupted pull only what is missing or differs, of the pixels block by block.

    Raises:
        PackError: the URL holds no store or cannot be read, or OUT is in the way; LockedError, DiskFullError.
    """
    begun, root = time.monotonic(), Path(os.path.normpath(os.fspath(out)))
    copy = _Copy(url, 0, progress)
    with copy.explaining("read", root):
        head = copy.read(MANIFEST)
    if (root / MANIFEST).exists():
        return _already_there(copy, root, head, begun)
    _check_place(root)
    (root / PULLED).parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(journals.Lock(root)):
        # read from a file of its own name, as every manifest is
        write_atomically(root / PULLED, head)
        manifest, blocks = read_manifest((root / PULLED).parent), read_blocks((root / PULLED).parent)
        copy.total_bytes = sum(entry.size_bytes for entry in manifest.files.values())
        with copy.explaining("read", root):
            for name, entry in manifest.files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                if name == PIXELS:
                    _pull_pixels(copy, root / name, manifest, blocks)
                else:
                    _pull_file(copy, root / name, name, entry)
        for folder in {(root / name).parent for name in manifest.files}:
            sync_folder(folder)
        sync_names(root)
        write_atomically(root / MANIFEST, head)
        check_store(root)
        remove_working_folder(root)
    return copy.report(root, len(manifest.files) + 1, begun)


class _Copy:
    """A folder at a URL, and how many bytes of a store were copied or kept."""

    def __init__(self, url: str, total_bytes: int, progress: Tell | None) -> None:
        self.url, self.total_bytes, self._progress = url.rstrip("/"), total_bytes, progress
        self._files, self._root = open_url(self.url)
        self._copied_bytes = self._kept_bytes = 0

    @contextlib.contextmanager
    def explaining(self, what: str, out: Path) -> Iterator[None]:
        """Turn what a file system of fsspec raises into one sentence; errors of ours, and of a file in OUT, pass."""
        try:
            yield
        except (PackError, StoreError):
            raise
        except Exception as e:
            if isinstance(e, OSError) and e.filename and out in Path(str(e.filename)).parents:
                raise
            again = "The same command goes on from here." if self._copied_bytes else "Look at the URL."
            raise PackError(f"{self.url} cannot be {what}: {reason(e)}. {again}") from None

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Return an object's bytes, or those of [start, stop) alone."""
        bounds = {} if start is None else {"start": start, "end": stop}
        data: bytes = self._files.cat_file(f"{self._root}/{name}", **bounds)
        return data

    def write(self, name: str, content: bytes) -> None:
        """Put content at the URL under a name, whatever was there."""
        self._files.pipe_file(f"{self._root}/{name}", content)

    def send(self, path: Path, name: str) -> None:
        """Copy a local file to the URL, whatever was there."""
        self._files.put_file(str(path), f"{self._root}/{name}")

    def fetch(self, name: str, path: Path) -> None:
        """Copy an object to a local file, over what was there."""
        self._files.get_file(f"{self._root}/{name}", str(path))

    def remove(self, name: str) -> None:
        """Remove an object; one that is not there is as good as removed."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def size(self, name: str) -> int:
        """Return the size of an object as it is now; -1 where there is none."""
        self._files.invalidate_cache()
        try:
            return int(self._files.info(f"{self._root}/{name}")["size"])
        except FileNotFoundError:
            return -1

    def count(self, size_bytes: int, *, is_copied: bool) -> None:
        """Add bytes that are now in place, copied or found there, and tell."""
        if is_copied:
            self._copied_bytes += size_bytes
        else:
            self._kept_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._copied_bytes + self._kept_bytes, self.total_bytes)

    def report(self, out: Path, files: int, begun: float) -> CopyReport:
        """Sum the copy up; begun is the monotonic time of its start."""
        seconds = time.monotonic() - begun
        return CopyReport(self.url, str(out), files, self.total_bytes, self._copied_bytes, self._kept_bytes, seconds)


def _pushed(copy: _Copy) -> dict[str, str]:
    """Return which files lie at the URL for certain: those of a store that is there, or of a push under way."""
    for name, digests in ((_RECORD, dict), (MANIFEST, _manifest_digests)):
        with contextlib.suppress(FileNotFoundError, ValueError, AttributeError, KeyError):
            found: dict[str, str] = digests(json.loads(copy.read(name)))
            return found
    return {}


def _entry_digest(manifest: Manifest, name: str) -> str:
    return manifest.files[name].digest if name in manifest.files else ""


def _manifest_digests(head: dict[str, Any]) -> dict[str, str]:
    return {name: entry["digest"] for name, entry in head["files"].items()}


def _already_there(copy: _Copy, root: Path, head: bytes, begun: float) -> CopyReport:
    if (root / MANIFEST).read_bytes() != head:
        raise PackError(f"{root} holds another store than {copy.url}. Choose another OUT, or remove it.")
    manifest = check_store(root)
    copy.total_bytes = sum(entry.size_bytes for entry in manifest.files.values())
    copy.count(copy.total_bytes, is_copied=False)
    remove_working_folder(root)
    return copy.report(root, len(manifest.files) + 1, begun)


def _check_place(out: Path) -> None:
    """Refuse an OUT that holds anything but a pull that was interrupted."""
    if os.path.lexists(out) and not out.is_dir():
        raise PackError(f"{out} is a file. Expected a folder that does not exist yet.")
    found = sorted(os.listdir(out)) if out.exists() else []
    foreign = [name for name in found if name not in OWN_NAMES]
    if foreign or (found and not (out / PULLED).exists()):
        raise PackError(
            f"{out} is not empty (it holds {(foreign or found)[0]}). Choose another OUT, or an empty folder."
        )


def _digest(path: Path, entry: FileEntry) -> str:
    """Return the digest of a file, of the kind that the manifest has for it."""
    kind = entry.digest.partition(":")[0]
    crc32, sha256 = 0, hashlib.sha256()
    with naming(path), open(path, "rb") as file:
        while data := file.read(_READ_BYTES):
            if kind == "crc32":
                crc32 = zlib.crc32(data, crc32)
            else:
                sha256.update(data)
    return f"crc32:{crc32:08x}" if kind == "crc32" else f"sha256:{sha256.hexdigest()}"


def _pull_file(copy: _Copy, path: Path, name: str, entry: FileEntry) -> None:
    if path.is_file() and path.stat().st_size == entry.size_bytes and _digest(path, entry) == entry.digest:
        copy.count(entry.size_bytes, is_copied=False)
        return
    copy.fetch(name, path)
    if _digest(path, entry) != entry.digest:
        raise _damaged(copy, name)
    with naming(path), open(path, "rb") as file:
        os.fsync(file.fileno())
    copy.count(entry.size_bytes, is_copied=True)


def _pull_pixels(copy: _Copy, path: Path, manifest: Manifest, blocks: list[Block]) -> None:
    """Bring each block whose checksum is not right yet, several at a time; all are on disk when it returns."""
    size_bytes, is_new = manifest.files[PIXELS].size_bytes, not path.exists()
    path.touch()
    os.truncate(path, min(path.stat().st_size, size_bytes))
    allocate(path, size_bytes, lambda done: None)

    ends = itertools.accumulate((block.size_bytes for block in blocks), initial=0)
    starts = {block.start: end for block, end in zip(blocks, ends, strict=False)}

    def bring(block: Block) -> tuple[int, bool]:
        """Have a block's rows in the local file; returns how many bytes they are and whether they were copied."""
        start = starts[block.start]
        stop = start + block.size_bytes
        if not is_new and zlib.crc32(os.pread(descriptor, stop - start, start)) == block.crc32:
            return stop - start, False
        data = copy.read(PIXELS, start, stop)
        if len(data) != stop - start or zlib.crc32(data) != block.crc32:
            raise _damaged(copy, f"{PIXELS}, rows {block.start} to {block.stop - 1},")
        with naming(path):
            write_at(descriptor, memoryview(data), start)
        return stop - start, True

    descriptor = os.open(path, os.O_RDWR | BINARY)
    try:
        with concurrent.futures.ThreadPoolExecutor(_REQUESTS) as pool:
            for count, is_copied in _as_they_end(pool, [pool.submit(bring, block) for block in blocks]):
                copy.count(count, is_copied=is_copied)
        with naming(path):
            os.ftruncate(descriptor, size_bytes)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_they_end(
    pool: concurrent.futures.Executor, waiting: list[Future[tuple[int, bool]]]
) -> Iterator[tuple[int, bool]]:
    """Yield results as they come; the first error ends the others."""
    try:
        for future in concurrent.futures.as_completed(waiting):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _damaged(copy: _Copy, name: str) -> PackError:
    return PackError(f"{copy.url}/{name} is not what the manifest there says. Push the store again.")
