"""Objects below a URL, whole or a range of bytes: the only module that imports obstore.

Requests are retried within a budget of time. Credentials come from the environment alone: they are never kept, and what servers
answer is shown without them. For a process that is not forked after its first request: obstore's runtime would hang there.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reader.format.errors import LibraryError, MissingObjectError, StoreError, UnreachableError
from reader.format.filesystem import open_regular
from reader.format.urls import file_path
from reader.remote.failures import Failure, Kind, failure_of
from reader.remote.urls import checked_url
from reader.tuning import tuning

if TYPE_CHECKING:
    from obstore import GetOptions

_T = TypeVar("_T")

_FIRST_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 10.0
# Answers to HEAD of a server that knows only GET (RFC 9110, 15.5.6 and 15.6.2), such as Python's http.server without do_HEAD.
_NO_HEAD = (405, 501)


class Objects:
    """The folder at a URL; asks nothing of the network until something is read.

    Raises:
        ValueError: it is not a URL of a folder.
        StoreError: obstore is not installed, or does not take the URL.
    """

    def __init__(self, url: str) -> None:
        self.url = checked_url(url)
        self._carrier = _connected(self.url)

    def read(
        self,
        name: str,
        start: int = 0,
        stop: int | None = None,
        budget_seconds: float = math.inf,
    ) -> memoryview:
        """Return an object's bytes [start, stop), or all of a manifest's; may be called by several threads.

        Args:
            budget_seconds: for so long it is tried, and never longer than any request.

        Raises:
            MissingObjectError, UnreachableError: as their names say.
            StoreError: access is denied, the object ends before stop, or the server sends more than is asked for.
        """
        most_bytes = tuning().fetched_manifest_bytes if stop is None else stop - start
        data = self._retried(name, lambda: self._get(name, start, stop, most_bytes), budget_seconds)
        if stop is not None and len(data) != stop - start:
            raise StoreError(
                f"{self.url}/{name} ends at byte {start + len(data)}, expected {stop} or more: it was cut short or replaced."
                " Push the store again."
            )
        return data

    def read_once(self, name: str, most_bytes: int) -> memoryview:
        """Return all of an object, asked for once; raises whatever is wrong, as a StoreError or an error of what carries it."""
        return self._get(name, 0, None, most_bytes)

    def size(self, name: str) -> int:
        """Return the bytes of an object, as the server says it to HEAD, or to GET where it knows no HEAD; raises as `read`."""
        return self._retried(name, lambda: self._carrier.size(name))

    def listed(self) -> Iterator[tuple[str, int, str, str]]:
        """Yield name, bytes, ETag and time of the last change of every object, by obstore, asked for once.

        Raises:
            StoreError: this is not read by obstore, which has errors of its own.
        """
        if not isinstance(self._carrier, _ByObstore):
            raise StoreError(f"{self.url} is not read by obstore, which alone lists objects here.")
        return self._carrier.listed()

    def _get(self, name: str, start: int, stop: int | None, most_bytes: int) -> memoryview:
        data = self._carrier.get(name, start, stop, most_bytes)
        if len(data) > most_bytes:
            raise StoreError(
                f"{self.url}/{name} has more than the {most_bytes} bytes that are expected. Look at the URL."
            )
        return data

    def _retried(self, name: str, get: Callable[[], _T], budget_seconds: float = math.inf) -> _T:
        started, tries, wait = time.monotonic(), 0, _FIRST_WAIT_SECONDS
        while True:
            tries += 1
            try:
                return get()
            except StoreError:
                raise
            except Exception as e:
                failure, seconds = failure_of(e), time.monotonic() - started
                # on a local disk nothing passes
                is_final = isinstance(self._carrier, _DiskFolder) or isinstance(
                    e, OSError | TypeError | NotImplementedError
                )
                if failure.kind != Kind.PASSING or is_final:
                    raise _final(f"{self.url}/{name}", failure) from LibraryError(failure.text)
                if seconds + wait > min(budget_seconds, _retry_seconds()):
                    raise UnreachableError(
                        f"{self.url}/{name} cannot be read: {failure.words}. It was tried {tries} times in {seconds:.0f} s."
                        " Look at the network, the address and the server; training can be resumed from the loader's state."
                    ) from LibraryError(failure.text)
            time.sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


class _DiskFolder:
    """A folder of this machine; raises errors of the system."""

    library = "Python"

    def __init__(self, url: str) -> None:
        self._folder = Path(file_path(url))
        if not self._folder.exists():
            raise MissingObjectError(f"{url} does not exist. Expected the folder of a store.")

    def get(self, name: str, start: int, stop: int | None, most_bytes: int) -> memoryview:
        """Return the bytes [start, stop) of a file, stop None: to its end; of one that has more than most_bytes, one more."""
        # a pipe would be waited for
        with open_regular(Path(os.path.realpath(self._folder / name))) as file:
            file.seek(start)
            return memoryview(file.read(most_bytes + 1 if stop is None else most_bytes))

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return (self._folder / name).stat().st_size


class _ByObstore:
    """Objects by obstore; raises ImportError where that is not installed."""

    library = "obstore"

    def __init__(self, url: str) -> None:
        import obstore
        from obstore.store import from_url

        # plain HTTP where the caller names it: a server on this machine, or within a cluster
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        options: dict[str, Any] = {
            "client_options": {
                "allow_http": url.startswith("http:") or endpoint.startswith("http:"),
                "connect_timeout": f"{_stall_seconds():.3f}s",
                "read_timeout": f"{_stall_seconds():.3f}s",
                "timeout": f"{_retry_seconds():.3f}s",
            },
            "retry_config": {"max_retries": 0},
        }
        self._obstore, self._store = obstore, from_url(url, **options)

    def get(self, name: str, start: int, stop: int | None, most_bytes: int) -> memoryview:
        """Return bytes of an object, as `_DiskFolder.get`, of one that has more than most_bytes some more."""
        options: GetOptions = {} if stop is None else {"range": (start, stop)}
        # one chunk, as more than that is too much: a stranger's server sends what it likes, and without an end
        found = self._obstore.get(self._store, name, options=options)
        return memoryview(next(found.stream(min_chunk_size=most_bytes + 1), b""))

    def size(self, name: str) -> int:
        """Return the bytes of an object; a server that refuses HEAD is asked for one byte."""
        try:
            return int(self._obstore.head(self._store, name)["size"])
        except Exception as e:  # obstore has errors of its own
            if failure_of(e).status not in _NO_HEAD:
                raise
        try:
            return int(self._obstore.get(self._store, name, options={"range": (0, 1)}).meta["size"])
        except Exception as e:
            if failure_of(e).kind != Kind.BEHIND_END:
                raise
            return 0

    def listed(self) -> Iterator[tuple[str, int, str, str]]:
        """Yield path, bytes, ETag and time of each object."""
        for page in self._obstore.list(self._store):
            for about in page:
                yield about["path"], int(about["size"]), str(about["e_tag"]), str(about["last_modified"])


def _retry_seconds() -> float:
    """Return for how long a request is tried: a server may be throttling or restarted; a training program should end at last."""
    text = os.environ.get("PIXPACK_REMOTE_SECONDS") or "120"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise StoreError(f"the variable PIXPACK_REMOTE_SECONDS is {text!r}, expected a number of seconds above 0.")
    return seconds


def _stall_seconds() -> float:
    """Return after how long a connection over which nothing comes is given up; a server that is asked for 16 MiB may think."""
    return min(20.0, _retry_seconds() / 4)


def _connected(url: str) -> _DiskFolder | _ByObstore:
    try:
        if url.startswith("file:"):
            return _DiskFolder(url)
        return _ByObstore(url)
    except ImportError:
        raise StoreError(f"{url} needs obstore, which is not installed: pip install 'pixpack[remote]'") from None
    except StoreError:
        raise
    except Exception as e:
        failure = failure_of(e)
        raise StoreError(f"{url} cannot be opened: {failure.words}.") from LibraryError(failure.text)


def _final(what: str, failure: Failure) -> StoreError:
    """Return the error of what no other try would change."""
    match failure.kind:
        case Kind.MISSING:
            return MissingObjectError(
                f"{what} does not exist, or nothing shows it to these credentials."
                " Expected a store that was pushed there: pack push OUT URL"
            )
        case Kind.NO_CREDENTIALS:
            return StoreError(f"{what} cannot be read: there are no credentials. {failure.advice}.")
        case Kind.NO_RANGES:
            return StoreError(f"{what} cannot be read: its server gives no ranges of bytes. Take another server.")
        case Kind.DENIED if not what.startswith("file:"):
            return StoreError(f"{what} cannot be read: access is denied ({failure.words}). {failure.advice}.")
        case Kind.BEHIND_END:
            return StoreError(f"{what} is shorter than its manifest says. It was cut short or replaced: push it again.")
    return StoreError(f"{what} cannot be read: {failure.words}.")
