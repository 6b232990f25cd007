"""Stores at URLs for operations that read a folder: what they read is fetched, and kept only in a cache that is named."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from packer.errors import OptionsError
from packer.option_names import Option
from reader.format.manifest import PIXELS, Manifest, read_manifest
from reader.format.urls import is_url


class FetchedPixels(Protocol):
    """All pixels of a store, read from the first byte to the last: a file, or what comes from a URL."""

    def __enter__(self) -> FetchedPixels: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def read(self, size_bytes: int = -1, /) -> bytes:
        """Return the next bytes, fewer at the end."""


@dataclass(frozen=True)
class LocalStore:
    """A store as a folder.

    path: of it; fetch: called with rows before their pixels are read; open_pixels: opens all pixels, to be read once.
    """

    path: str
    fetch: Callable[[Iterable[int]], None]
    open_pixels: Callable[[Path], FetchedPixels]


@contextlib.contextmanager
def local_store(store: str, cache: str | None, *, all_pixels: bool = False) -> Iterator[LocalStore]:
    """Give the store at a path or URL as a folder.

    cache: of a URL, the folder that keeps what is fetched; None: nothing is kept. all_pixels: all of them are fetched now.

    Raises:
        OptionsError: a cache for a path, or what is not a URL of a folder.
        StoreError: there is no store at the URL, or it cannot be read.
    """
    if not is_url(store):
        if cache is not None:
            raise OptionsError(f"{Option('cache')} is for a store at a URL, and {store} is a folder.")
        yield LocalStore(store, lambda rows: None, open_pixels)
        return
    from reader.remote.face import Face

    try:
        face = Face(store, cache)
    except ValueError as e:
        raise e if type(e) is not ValueError else OptionsError(str(e)) from None
    with face:
        if all_pixels:
            face.fetch_all()
        manifest = read_manifest(face.path)

        def opened(path: Path) -> FetchedPixels:
            """Open the pixels of the store, or of a level, whose file is in the folder whole."""
            return face.stream() if path == face.path else open_pixels(path)

        yield LocalStore(str(face.path), lambda rows: face.fetch(_spans(face.path, manifest, rows)), opened)


def open_pixels(store: Path) -> FetchedPixels:
    """Open the pixels of a store on a disk."""
    return open(store / PIXELS, "rb")


def _spans(store: Path, manifest: Manifest, rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Return the bytes of the pixels that rows have."""
    import numpy as np

    from packer.store.sealed.ragged_rows import row_extents, tensor_rows

    # of others whoever asked says that they are not there
    there = np.array([row for row in map(int, rows) if 0 <= row < manifest.rows], np.int64)
    if manifest.compression:
        return map(tuple, tensor_rows(store, manifest, "frames", there).tolist())
    begins, sizes, _ = row_extents(store, manifest, there)
    return zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
