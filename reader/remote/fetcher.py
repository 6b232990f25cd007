"""The program that fetches for one process: one question, one answer per line; see `store.py`. It ends with its parent."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reader.format.blocks import parse_content
from reader.format.errors import StoreError
from reader.format.filesystem import size_text
from reader.format.manifest import MANIFEST, PIXELS, REJECTED, SAMPLES, FileEntry
from reader.format.shown import redacted
from reader.format.urls import file_path
from reader.remote.blocks import Blocks, folder_of

_REQUESTS = 16
# Pauses between the tries of a request, in seconds.
_PAUSES = (0.2, 1.0, 5.0)
_CLIENT = {"connect_timeout": "10s", "read_timeout": "20s", "timeout": "120s"}
# Access is denied, the object ends before the range, or there are no keys, not even from a cloud's machine.
_FINAL = re.compile(r"status code: (401|403|416)|169\.254\.169\.254")
_LOOK_SECONDS = 0.01
# In a smaller cache, blocks in progress would evict the blocks to be read next.
_FEWEST_BLOCKS = 8
# The share of a full cache that is freed at a time, since each pass lists the folder.
_FREED = 1 / 16
# A manifest is held in memory: this is the size for 70 TB.
_MOST_MANIFEST_BYTES = 256 << 20
_PIECE_BYTES = 8 << 20
# Bytes of the file of locks: one for opening, one for the limit, and then one per block.
_OPENING, _ROOM, _BLOCK = 0, 1, 2


class Fetcher:
    """Fetches files and blocks of one store; each method without an underscore answers a question."""

    def open(self, given: list[Any]) -> str:
        """Fetch the files that opening needs; returns the store's folder in the cache.

        Raises:
            StoreError: there is no store at the URL, it has changed since it was opened, or the cache is too small.
        """
        url, cache, self._limit, digest = given
        self._store = _connected(url)
        root = folder_of(cache, digest)
        if not digest or not (root / MANIFEST).exists():
            head = self._get(MANIFEST, 0, _MOST_MANIFEST_BYTES)
            manifest, _ = parse_content(bytes(head), Path(MANIFEST))
            if digest not in ("", manifest.digest):
                raise StoreError("another store was pushed there since this dataset was opened. Open it again.")
            root = folder_of(cache, manifest.digest)
            (root / "blocks").mkdir(parents=True, exist_ok=True)
            with _Locks(root).held(_OPENING):
                for name in manifest.files.keys() - {PIXELS, SAMPLES, REJECTED}:
                    self._fetch_file(root, name, manifest.files[name])
                _write(_part_of(root / MANIFEST), [head])
                os.replace(_part_of(root / MANIFEST), root / MANIFEST)
        self._blocks, self._locks = Blocks(root), _Locks(root)
        largest, requests = self._blocks.largest_bytes, _REQUESTS
        if self._limit is not None:
            if self._limit < _FEWEST_BLOCKS * largest:
                least = size_text(_FEWEST_BLOCKS * largest)
                raise StoreError(
                    f"cache_size is {size_text(self._limit)}, expected {_FEWEST_BLOCKS} blocks or more: {least}."
                )
            # blocks in progress take at most a quarter of the cache
            requests = min(_REQUESTS, self._limit // (4 * largest))
        self._pool, self._coming, self._guard = (
            ThreadPoolExecutor(requests),
            dict[int, Future[None]](),
            threading.Lock(),
        )
        return str(root)

    def begin(self, blocks: list[int]) -> str:
        """Begin to fetch blocks."""
        for block in blocks:
            self._started(block)
        return ""

    def fetch(self, blocks: list[int]) -> str:
        """Fetch blocks, and wait."""
        for coming in [*map(self._started, blocks)]:
            coming.result()
        return ""

    def file(self, name: str) -> str:
        """Fetch a file of the store."""
        with self._locks.held(_OPENING):
            self._fetch_file(self._blocks.root, name, self._blocks.manifest.files[name])
        return ""

    def _started(self, block: int) -> Future[None]:
        with self._guard:
            if block not in self._coming:
                self._coming[block] = self._pool.submit(self._fetch, block)
            return self._coming[block]

    def _fetch(self, block: int) -> None:
        path, start, stop = self._blocks.path(block), *self._blocks.starts[block : block + 2]
        try:
            # a block that another process fetches exists once its lock is free
            with self._locks.held(_BLOCK + block):
                while not path.exists():
                    self._reserve(_part_of(path), stop - start)
                    data = self._get(PIXELS, start, stop)
                    if len(data) != stop - start or zlib.crc32(data) != self._blocks.crcs[block]:
                        raise StoreError(
                            f"block {block} of its pixels does not match its manifest. Push the store again."
                        )
                    # a part may be removed as the oldest file; if it were created again, it would not be counted
                    with contextlib.suppress(FileNotFoundError):
                        _write(_part_of(path), [data], flags=os.O_WRONLY)
                        with self._guard, self._locks.held(_ROOM):
                            os.replace(_part_of(path), path)
        finally:
            with self._guard:
                del self._coming[block]

    def _reserve(self, part: Path, size_bytes: int) -> None:
        """Create the file of a block, counted in the limit, and evict the least recently used blocks for it."""
        with self._guard, self._locks.held(_ROOM):
            if self._limit is not None and self._locks.added(size_bytes) > self._limit:
                self._locks.set_used(size_bytes + self._freed(part.parent, self._limit * (1 - _FREED) - size_bytes))
            with open(part, "wb") as file:
                file.truncate(size_bytes)

    def _freed(self, folder: Path, most_bytes: float) -> int:
        """Remove the least recently used blocks; returns the bytes of the remaining ones."""
        there = list[tuple[int, int, str]]()
        for entry in os.scandir(folder):
            # a reader removes a file that a disk has cut short
            with contextlib.suppress(FileNotFoundError):
                there.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path))
        left = sum(size for _, size, _ in there)
        for _, size, path in sorted(there):
            if left <= most_bytes:
                break
            Path(path).unlink(missing_ok=True)
            left -= size
        return left

    def _fetch_file(self, root: Path, name: str, entry: FileEntry) -> None:
        """Fetch a file of the store into the cache, under the lock of opening."""
        if (root / name).exists():
            return

        def checked() -> Iterator[memoryview]:
            """Yield the file piece by piece; raises StoreError at its end if the digest differs."""
            digest = hashlib.sha256()
            for start in range(0, entry.size_bytes, _PIECE_BYTES):
                data = self._get(name, start, min(start + _PIECE_BYTES, entry.size_bytes))
                digest.update(data)
                yield data
            if f"sha256:{digest.hexdigest()}" != entry.digest:
                raise StoreError(f"{name} does not match its manifest. Push the store again.")

        (root / name).parent.mkdir(parents=True, exist_ok=True)
        _write(_part_of(root / name), checked())
        os.replace(_part_of(root / name), root / name)

    def _get(self, name: str, start: int, stop: int) -> memoryview:
        """Return bytes [start, stop) of an object, fewer at its end; retry temporary errors."""
        import obstore

        for pause in (*_PAUSES, None):
            try:
                found = obstore.get(self._store, name, options={"range": (start, stop)})
                # only one chunk: a foreign server may send endless data
                return memoryview(next(found.stream(min_chunk_size=stop - start + 1), b""))[: stop - start]
            except FileNotFoundError:
                raise StoreError(
                    f"there is no {name}. Expected a store that was pushed there: pack push OUT URL"
                ) from None
            except Exception as e:  # obstore raises its own errors
                if pause is None or _FINAL.search(str(e)):
                    raise StoreError(
                        f"{name} cannot be read: {_words(e)}. Look at the URL, the network and the keys."
                    ) from None
                time.sleep(pause)
        raise AssertionError


class _Locks:
    """A file of locks in the folder of a store, one byte each; the kernel releases those of a dead process.

    Locks are tried again and again, never waited for. The kernel sees processes, not threads. If two processes each hold one
    block and wait for the other's, it reports a deadlock (EDEADLK), although other threads would release both.

    The file also counts the bytes of blocks: too many if some were removed by hand, until the next count.
    """

    def __init__(self, root: Path) -> None:
        self._file = os.open(root / "locks", os.O_RDWR | os.O_CREAT, 0o666)

    @contextlib.contextmanager
    def held(self, byte: int) -> Iterator[None]:
        """Hold a lock; only one thread of this process may request it."""
        while not self._taken(byte):
            time.sleep(_LOOK_SECONDS)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)

    def added(self, size_bytes: int) -> int:
        """Add bytes to the count, and return the total; the caller holds _ROOM."""
        used = int(os.pread(self._file, 32, 0) or 0) + size_bytes
        self.set_used(used)
        return used

    def set_used(self, used: int) -> None:
        """Set the number of bytes that `added` starts from."""
        os.pwrite(self._file, b"%32d" % used, 0)

    def _taken(self, byte: int) -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            return True
        return False


def _connected(url: str) -> Any:
    """Return obstore's store for a URL, without a request."""
    try:
        from obstore.store import LocalStore, from_url
    except ImportError:
        raise StoreError("it needs obstore, which is not installed: pip install 'pixpack[remote]'") from None
    try:
        if url.startswith("file:"):
            return LocalStore(file_path(url))
        # plain HTTP if the user requests it: a server on this machine or cluster
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or url
        client: Any = _CLIENT | {"allow_http": endpoint.startswith("http:")}
        return from_url(url, client_options=client, retry_config={"max_retries": 0})
    except Exception as e:  # obstore raises its own errors
        raise StoreError(f"it cannot be opened: {_words(e)}.") from None


def _words(error: Exception) -> str:
    """Return the first line of an obstore error, without credentials or the body of an answer."""
    line = str(error).partition("\n")[0]
    answer = re.match(r".*?status code: \d+[^:]*", line)
    return redacted(answer[0] if answer else line)


def _part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _write(path: Path, pieces: Iterable[memoryview], flags: int = os.O_WRONLY | os.O_CREAT) -> None:
    """Write a file and sync it."""
    with open(os.open(path, flags, 0o666), "wb") as file:
        for data in pieces:
            file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    """Answer questions until standard input ends."""
    # Ctrl-C is for the parent, which ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fetcher = Fetcher()
    for line in sys.stdin:
        ((ask, given),) = json.loads(line).items()
        try:
            answer = {"answer": getattr(fetcher, ask)(given)}
        except Exception as e:  # the parent raises it
            answer = {"error": str(e) if isinstance(e, StoreError) else f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)
    # a block in progress has no name yet
    os._exit(0)


if __name__ == "__main__":
    main()
