"""Objects in object storage as inputs: read with retries, and ahead of the decoder.

A resume compares the listed size and version (`packer.inputs.remote`), without another request. Writes nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from packer.errors import DecodeError, SourceError
from packer.sources.base import NO_STATE, State, check_size
from packer.sources.object_storage import open_url, reason
from reader.format.shown import redacted

# Objects that a worker requests ahead, or that wait in its memory; a photograph has 0.1 to 5 MB.
SOURCE_OBJECTS_AHEAD = 64
# A worker decodes some 600 photographs a second, and an object takes 20 to 100 ms. At 30 ms, this many requests give 800 a
# second.
SOURCE_REQUESTS = 32

_TRIES = 3


@dataclass(frozen=True)
class RemoteSource:
    """An object as a source of bytes; `fetched` gives bytes that were requested ahead."""

    root: str
    path: str
    fetched: Future[bytes] | None = None

    def state(self) -> State:
        """Return no state: the listing has it."""
        return NO_STATE

    def read(self, *, most_bytes: int | None = None) -> tuple[bytes, State]:
        """Return the object's bytes, or the first most_bytes of them: one version, as storage never mixes two.

        Raises:
            DecodeError: there is no such object, or it may not be read, though its folder may.
            SourceError: storage cannot be reached, or refuses the credentials.
        """
        data = self.fetch(most_bytes) if self.fetched is None else self.fetched.result()
        check_size(len(data))
        return data, (len(data), 0, 0)

    def fetch(self, most_bytes: int | None = None) -> bytes:
        """Request the bytes now; retry errors of the network."""
        files, root = open_url(self.root)
        bounds = {} if most_bytes is None else {"start": 0, "end": most_bytes}
        error: Exception | None = None
        for _ in range(_TRIES):
            try:
                data: bytes = files.cat_file(f"{root}/{self.path}", **bounds)
                return data
            except (FileNotFoundError, PermissionError) as e:
                self._check_root()
                is_gone = isinstance(e, FileNotFoundError)
                raise DecodeError("there is no such file" if is_gone else f"it cannot be read: {reason(e)}") from e
            except Exception as e:  # each file system raises its own errors
                error = e
        raise SourceError(f"{redacted(self.root)}/{self.path} cannot be read: {reason(error or OSError())}") from error

    def _check_root(self) -> None:
        """Raise SourceError if all objects are missing or refused, rather than one."""
        files, root = open_url(self.root)
        try:
            files.invalidate_cache()  # the cached listing may be out of date
            files.info(root)
        except FileNotFoundError:
            raise SourceError(f"{redacted(self.root)} is gone, or empty") from None
        except Exception as e:  # each file system raises its own errors
            raise SourceError(f"{redacted(self.root)} cannot be read: {reason(e)}") from e


class ObjectPrefetch:
    """Requests the objects of the next blocks, a few at a time, while this worker decodes. Two threads may call it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(SOURCE_REQUESTS, thread_name_prefix="pixpack-fetch")
        self._coming: deque[tuple[int, str]] = deque()
        self._fetched: dict[int, Future[bytes]] = {}
        self._lock = threading.Lock()

    def expect(self, inputs: Iterable[tuple[int, str]]) -> None:
        """Expect requests for these inputs, by number and path, in this order."""
        with self._lock:
            self._coming.extend(inputs)
            self._fill()

    def source(self, index: int, path: str) -> RemoteSource:
        """Return an input's source; the bytes of an expected one are requested already."""
        with self._lock:
            fetched = self._fetched.pop(index, None)
            self._fill()
        return RemoteSource(self._root, path, fetched)

    def _fill(self) -> None:
        while self._coming and len(self._fetched) < SOURCE_OBJECTS_AHEAD:
            index, path = self._coming.popleft()
            self._fetched[index] = self._pool.submit(RemoteSource(self._root, path).fetch)
