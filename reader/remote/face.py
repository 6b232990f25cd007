"""A store at a URL for programs that read folders: all but the pixels, and of those what was asked for; or a stream of them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from reader.format.errors import StoreError, interrupt_behind
from reader.format.manifest import MANIFEST, PIXELS
from reader.remote.folder import CacheFolder
from reader.remote.leftovers import Scratch, locked_folder
from reader.remote.opening import FACE, ON_DEMAND, Source
from reader.remote.presence import RemoteStore

# Requests ahead of what is read from a stream, each of so many bytes.
_REQUESTS = 8
_REQUEST_BYTES = 8 << 20


class Face:
    """A store at a URL as a folder on a local disk. Use it as a context, which removes it at the end.

    Args:
        cache: a folder that keeps what is fetched; None: nothing is kept.

    Raises:
        StoreError: as `RemoteStore`.
    """

    def __init__(self, url: str, cache: str | os.PathLike[str] | None) -> None:
        self._fetched: set[int] = set()
        with contextlib.ExitStack() as resources:
            cache_folder = resources.enter_context(Scratch("url")) if cache is None else cache
            self._remote = RemoteStore(url, cache_folder)
            resources.callback(self._remote.close)
            # the table of the files in the folder: a damaged cache is rebuilt with others
            self._table = self._remote.folder.table
            self._folder = self._remote.root if self._remote.is_complete else _make_folder(self._remote, resources)
            self._kept = resources.pop_all()

    @property
    def path(self) -> Path:
        """The folder, in which every file of the store is whole, but pixels that were not fetched are zeros."""
        return self._folder

    def fetch(self, spans: Iterator[tuple[int, int]]) -> None:
        """Have bytes [start, stop) of the pixels in the folder.

        Raises:
            StoreError: some cannot be had.
        """
        if not self._remote.is_complete:
            blocks = sorted({block for span in spans for block in self._remote.folder.blocks_of(*span)})
            self._remote.prefetch(blocks)
            self._remote.ensure(blocks)
            self._fetched.update(blocks)

    def fetch_all(self) -> None:
        """Have all pixels in the folder."""
        self._remote.complete()

    def stream(self) -> PixelStream:
        """Return all pixels, from the first byte on, which are kept nowhere."""
        return PixelStream(self._remote.url, self._remote.folder)

    def __enter__(self) -> Face:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        is_there = self._table.is_complete or all(map(self._table.has, self._fetched))
        self._kept.close()
        if not is_there and kind is None:
            raise StoreError(
                f"{self._remote.url}: another program has freed what was read from the cache {self._remote.cache}. Give another"
                " folder."
            )


class PixelStream:
    """The pixels of a store at a URL, read once from the first byte to the last, requests ahead."""

    def __init__(self, url: str, folder: CacheFolder) -> None:
        self._source = Source(url)
        self._source.look()
        if self._source.digest != folder.manifest.digest:
            raise StoreError(f"{url} was replaced by another store just now. Give the same command again.")
        self._objects, size = folder.objects, folder.manifest.files[PIXELS].size_bytes
        self._spans = iter([(start, min(start + _REQUEST_BYTES, size)) for start in range(0, size, _REQUEST_BYTES)])
        self._pool = concurrent.futures.ThreadPoolExecutor(_REQUESTS)
        self._coming: deque[concurrent.futures.Future[memoryview]] = deque()
        self._held = memoryview(b"")

    def read(self, size_bytes: int = -1) -> bytes:
        """Return the next bytes, fewer at the end; all that are left without a size.

        Raises:
            StoreError: they cannot be had.
        """
        parts, left = list[memoryview](), size_bytes if size_bytes >= 0 else 1 << 62
        while left and self._more():
            parts.append(self._held[:left])
            self._held = self._held[left:]
            left -= len(parts[-1])
        return b"".join(parts)

    def __enter__(self) -> PixelStream:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        # after an interrupt nobody waits for a server that does not answer
        self._pool.shutdown(wait=interrupt_behind(error) is None, cancel_futures=True)

    def _more(self) -> bool:
        """Have some bytes; False: there are no more."""
        while len(self._coming) < _REQUESTS and (span := next(self._spans, None)) is not None:
            self._coming.append(self._pool.submit(self._source.read_pixels, self._objects, *span))
        if not self._held and self._coming:
            self._held = self._coming.popleft().result()
        return bool(self._held)


def _make_folder(remote: RemoteStore, resources: contextlib.ExitStack) -> Path:
    """Make a folder of the cache's own files under second names."""
    for name in ON_DEMAND:
        remote.file(name)
    folder, descriptor = locked_folder(remote.folder.inside, FACE)
    resources.callback(os.close, descriptor)
    resources.callback(shutil.rmtree, folder, ignore_errors=True)
    for name in remote.folder.manifest.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(remote.root / name, folder / name)
    with contextlib.suppress(FileExistsError):
        os.link(remote.folder.inside / MANIFEST, folder / MANIFEST)
    return folder
