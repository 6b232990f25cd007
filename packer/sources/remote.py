"""Folders of images in object storage, by fsspec: listing them, and reading objects before the decoder asks for them.

The only module that imports fsspec. What a listing says of an object (its size and version) is what a resume compares: no
request is made for that. Writes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.inputs.folders import Counter, inputs_of, named_trees
from packer.inputs.samples import Column, Inputs, ScanError
from packer.options import MAX_PIXELS
from packer.pixels.opening import DecodeError
from packer.sources.local import State, check_size
from packer.sources.roots import SourceError, UnreadableError

# A worker decodes some 600 photographs a second, and an object takes 20 to 100 ms: so many requests hide that.
_REQUESTS = 16
# Objects that are asked for or wait in memory; a photograph has 0.1 to 5 MB.
_AHEAD = 64
_TRIES = 3
# What a file system raises of a URL that names nothing there, or makes no sense to it.
_WRONG = (FileNotFoundError, ValueError, TypeError, NotImplementedError, ImportError)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)


class RemoteError(ScanError):
    """A URL cannot be listed or opened; says why."""


def is_url(text: str) -> bool:
    """Whether IMAGES, or the root of inputs, is a URL for fsspec rather than a path."""
    return _URL.match(text) is not None


@functools.lru_cache(maxsize=8)
def open_url(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it, without a slash at its end; asks nothing of the network.

    Raises:
        RemoteError: nothing here knows URLs of this kind, or what knows them is not installed.
    """
    try:
        import fsspec

        # a local disk, unlike object storage, wants its folders made
        settings = {"auto_mkdir": True} if url.startswith("file:") else {}
        files, path = fsspec.core.url_to_fs(url, **settings)
    except ImportError as e:
        raise RemoteError(f"{url} cannot be opened: {e}. For s3:// install 'pixpack[remote]'.") from None
    except ValueError as e:
        raise RemoteError(f"{url} cannot be opened: {e}. Expected for example s3://bucket/folder.") from None
    return files, path.rstrip("/")


def scan_url(
    url: str, classes: tuple[str, ...] | None, count: Counter, *, max_pixels: int, are_classes: bool = True
) -> dict[str, Inputs]:
    """List a folder of class folders, of images, or of splits of those, by the rules of a local folder.

    Args:
        max_pixels: what has more bytes than such an image may have is rejected without being asked for.
        are_classes: whether the folders are classes; else all targets are -1.

    Raises:
        RemoteError: it cannot be listed, or is no folder.
        ScanError: it holds no image.
    """
    url = url.rstrip("/")
    objects = list_objects(url)
    count.add(len(objects))
    found = inputs_of(named_trees(objects), url, classes, count, are_classes=are_classes)
    for split, inputs in found.items():
        inside = f"{split}/" if split else ""
        inputs.root = Path()
        inputs.url = f"{url}/{split}" if split else url
        known = [objects[inside + path] for path in inputs.paths]
        inputs.states = Column.of("int64", known, 2)
        for index, (size_bytes, _) in enumerate(known):
            try:
                check_size(size_bytes, max_pixels)
            except DecodeError as e:  # known without asking for it
                inputs.refused.setdefault(index, str(e))
    return found


def list_objects(url: str) -> dict[str, State]:
    """Return what lies below a URL: relative path -> (bytes, a number that changes with its version).

    Raises:
        RemoteError: there is no such bucket or folder, or the URL makes no sense.
        SourceError: storage refuses the credentials; as UnreadableError: it does not answer, or fails.
    """
    files, root = open_url(url)
    try:
        listed = files.find(root, detail=True)
    except _WRONG as e:
        raise RemoteError(f"{url} cannot be listed: {reason(e)}.") from None
    except Exception as e:  # each file system has errors of its own
        kind = SourceError if _is_refused(e) else UnreadableError
        raise kind(f"{url} cannot be listed: {reason(e)}") from None
    if root in listed:
        raise RemoteError(
            f"{url} is one object. Expected a folder of images: archives and lists are read from local disks."
        )
    return {
        path[len(root) :].lstrip("/"): (int(about["size"] or 0), _version(about))
        for path, about in listed.items()
        if about["type"] == "file" and not path.endswith("/")
    }


def reason(error: BaseException) -> str:
    """Say in a few words, without a full stop, why a request failed."""
    kind = type(error).__name__
    if _lacks_credentials(error):
        return (
            "there are no credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what your storage asks for"
        )
    if isinstance(error, PermissionError):
        return f"access is denied ({str(error).rstrip('.')}). Look at the credentials and the bucket's rights"
    text = " ".join(str(error).split()).rstrip(".")
    return text if text and not isinstance(error, KeyError) else kind


def _lacks_credentials(error: BaseException) -> bool:
    return "Credentials" in type(error).__name__


def _is_refused(error: BaseException) -> bool:
    return isinstance(error, PermissionError) or _lacks_credentials(error)


@dataclass(frozen=True)
class RemoteSource:
    """An object as a source of bytes; `fetched` is where they come from when they were asked for before."""

    root: str
    path: str
    fetched: Future[bytes] | None = None

    def state(self) -> State:
        """Return nothing known: the listing says it."""
        return -1, -1

    def read(self, *, max_pixels: int = MAX_PIXELS, most_bytes: int | None = None) -> tuple[bytes, State]:
        """Return the object's bytes, or the first most_bytes of them: one version, as storage gives whole objects.

        Raises:
            DecodeError: there is no such object, or it may not be read, though its folder may.
            SourceError: storage cannot be reached, or refuses the credentials.
        """
        data = self._expected() or self.fetch(most_bytes)
        check_size(len(data), max_pixels)
        return data, (len(data), 0)

    def fetch(self, most_bytes: int | None = None) -> bytes:
        """Ask for the bytes now; tries again where the network is to blame."""
        files, root = open_url(self.root)
        bounds = {} if most_bytes is None else {"start": 0, "end": most_bytes}
        error: Exception | None = None
        for _ in range(_TRIES):
            try:
                data: bytes = files.cat_file(f"{root}/{self.path}", **bounds)
                return data
            except FileNotFoundError:
                self._check_root()
                raise DecodeError("there is no such file") from None
            except PermissionError as e:
                self._check_root()
                raise DecodeError(f"it cannot be read: {reason(e)}") from e
            except Exception as e:  # each file system has errors of its own
                error = e
        raise SourceError(f"{self.root}/{self.path} cannot be read: {reason(error or OSError())}") from error

    def _expected(self) -> bytes:
        """Return what was asked for before; nothing where it was not, or storage could not be reached then."""
        with contextlib.suppress(SourceError):
            return b"" if self.fetched is None else self.fetched.result()
        return b""

    def _check_root(self) -> None:
        """Raise SourceError where not one object is missing or refused, but all of them."""
        files, root = open_url(self.root)
        try:
            files.invalidate_cache()  # what the listing said is no answer
            files.info(root)
        except FileNotFoundError:
            raise SourceError(f"{self.root} is gone, or empty") from None
        except Exception as e:  # each file system has errors of its own
            raise SourceError(f"{self.root} cannot be read: {reason(e)}") from e


class Fetcher:
    """Asks for the objects of coming blocks, a few at a time, while this worker decodes. Safe from two threads."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="pixpack-fetch")
        self._coming: dict[int, str] = {}
        self._fetched: dict[int, Future[bytes]] = {}
        self._lock = threading.Lock()

    def expect(self, inputs: Iterable[tuple[int, str]]) -> None:
        """Learn which inputs, by number and path, will be asked for, in order."""
        with self._lock:
            self._coming.update(inputs)
            self._fill()

    def forget(self, start: int, stop: int) -> None:
        """Learn that inputs [start, stop) will not be asked for."""
        with self._lock:
            for index in range(start, stop):
                self._coming.pop(index, None)
                if (fetched := self._fetched.pop(index, None)) is not None:
                    fetched.cancel()
            self._fill()

    def source(self, index: int, path: str) -> RemoteSource:
        """Return an input's source; its bytes are there or on their way where it was expected."""
        with self._lock:
            self._coming.pop(index, None)
            fetched = self._fetched.pop(index, None)
            self._fill()
        return RemoteSource(self._root, path, fetched)

    def _fill(self) -> None:
        while self._coming and len(self._fetched) < _AHEAD:
            index = next(iter(self._coming))
            self._fetched[index] = self._pool.submit(RemoteSource(self._root, self._coming.pop(index)).fetch)


def _version(about: dict[str, Any]) -> int:
    """Make a number of what tells one version of an object from another: 0..2^56."""
    told = [about.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated", "created")]
    return int.from_bytes(hashlib.sha256(repr([str(value) for value in told]).encode()).digest()[:7], "big")
