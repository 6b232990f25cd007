"""A store in object storage as a training process has it: its folder in the cache, and blocks that are brought there before use.

What is there is read without a lock and without asking anybody. The rest is asked of a fetcher of this process, see
`fetcher.py`, which is started when something is wanted first; so a process that was forked starts its own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reader.format.errors import MissingObjectError, StoreError, UnreachableError
from reader.format.fields import Json
from reader.format.filesystem import absolute_path
from reader.format.manifest import MANIFEST
from reader.remote.block_files import BlockPart
from reader.remote.eviction import GUARDED_SHARE
from reader.remote.folder import INSIDE, CacheFolder, folder_of
from reader.remote.urls import checked_url, size_of
from reader.tuning import tuning

# The usual size of a block, which has one row more than that at most; see `check_cache_size`.
_USUAL_BLOCK_BYTES = 8 << 20
# Errors that a fetcher reports by their names; of others the first that fits.
_KINDS: tuple[type[Exception], ...] = (MissingObjectError, UnreachableError, StoreError, ValueError)


class RemoteStore:
    """The store at a URL, through a cache.

    Args:
        url: of the folder: s3://bucket/out, gs://, az://, https://, file://.
        cache: a folder on a local disk, for any number of stores and programs.
        cache_size: what the blocks of this store may take there: bytes, or "200GB"; None: all of it.
        digest: of the store that is expected; None: whichever is there.

    Raises:
        ValueError: an argument is none.
        StoreError: there is no store, or another than expected; or the cache cannot be used.
    """

    def __init__(
        self,
        url: str,
        cache: str | os.PathLike[str],
        cache_size: int | str | None = None,
        digest: str | None = None,
    ) -> None:
        self.url, self.cache = checked_url(url), Path(absolute_path(cache))
        self.limit = None if cache_size is None else size_of(cache_size)
        self._digest = digest
        # whether its folder is that of small caches, once that is known
        self._in_small: bool | None = None
        self._is_renewed = False
        self._reset()
        _ = self.folder

    def _reset(self) -> None:
        # the index in the planned order that is read now
        self.reached = 0
        self._fetcher: _Fetcher | None = None
        self._starting, self._process = threading.Lock(), os.getpid()

    def __getstate__(self) -> dict[str, object]:
        names = ("url", "cache", "limit", "_digest", "_in_small")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._is_renewed = False
        self._reset()

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r}, cache={str(self.cache)!r}, cache_size={self.limit})"

    @functools.cached_property
    def folder(self) -> CacheFolder:
        """The store's folder in the cache. In a process that was sent this, it is opened on first use.

        Raises:
            StoreError: as the class.
        """
        # a store that another process of this node has opened needs no network
        is_known = self._digest is not None and self._in_small is not None
        root = folder_of(self.cache, self._digest or "", is_small=bool(self._in_small))
        if not is_known or not (root / INSIDE / MANIFEST).exists():
            self._in_small = None
            root = Path(self._started().folder)
        folder = CacheFolder(root)
        self._digest, self._in_small = folder.manifest.digest, folder.is_small
        return folder

    @property
    def root(self) -> Path:
        """The store's folder in the cache."""
        return self.folder.root

    @property
    def is_complete(self) -> bool:
        """Whether all of the store is in its folder, for good: it is read as a local one then."""
        return self.folder.table.is_complete and not self._is_renewed

    @property
    def short_limit(self) -> int | None:
        """What the blocks may take in a cache that cannot hold all of them; None: it can, or it has them."""
        is_short = self.limit is not None and not self.is_complete and self.limit < self.folder.starts[-1]
        return self.limit if is_short else None

    def ensure(self, blocks: Iterable[int]) -> None:
        """Have blocks in the cache, each at some moment.

        Raises:
            StoreError: one cannot be had.
        """
        table = self.folder.table
        if missing := [block for block in blocks if not table.has(block)]:
            self._fitting().ask("ensure", blocks=missing, reached=self.reached)

    def read(self, memory: memoryview, reads: Iterable[tuple[int, int, int]]) -> None:
        """Bring bytes of the pixels to memory: (first byte, how many, first byte of memory) each.

        What leaves the cache while it is read, is read again.

        Raises:
            StoreError: a block cannot be had.
        """
        left, end = list[BlockPart](), self.folder.starts[-1]
        for start, size, offset in reads:
            left.extend(self.folder.parts(start, size, offset))
            if (filling := start + size - end) > 0:
                filling = min(filling, size)
                memory[offset + size - filling : offset + size] = bytes(filling)
        while left:
            group = self._group(left)
            self.ensure(sorted({part.block for part in group}))
            left = self.folder.table.read(memory, group) + left[len(group) :]

    def prefetch(self, blocks: Sequence[int], *, soon: int = 0) -> None:
        """Start to fetch blocks that will be wanted, in this order; the first `soon` of them before any other."""
        table = self.folder.table
        if any(not table.has(block) for block in blocks):
            self._fitting().ask("prefetch", blocks=list(blocks), soon=soon, reached=self.reached)

    def plan(self, orders: Sequence[Sequence[int]]) -> None:
        """Say in which order blocks are used in this epoch and in the next one; what is used last leaves a full cache first."""
        self.reached = 0
        self._fitting().ask("plan", orders=orders)

    def complete(self) -> None:
        """Have all of the store in its folder.

        Raises:
            StoreError: the cache may not hold it, or something cannot be had.
        """
        if self.is_complete:
            return
        fetcher = self._fitting()
        if self._is_renewed:
            raise StoreError(
                f"cache {self.root} was damaged, and rebuilt since this dataset was opened. Open it again to have all of it."
            )
        fetcher.ask("complete")

    def fetched_bytes(self) -> int:
        """Return the bytes of pixels that this process has had fetched since this was asked last."""
        return 0 if self._fetcher is None else int(self._started().ask("fetched_bytes"))

    def file(self, name: str) -> Path:
        """Return the path of a file that opening does not need, samples.jsonl or rejected.jsonl, now that it is there."""
        path, expected = self.root / name, self.folder.manifest.files[name].size_bytes
        if not path.exists() or path.stat().st_size != expected:
            self._started().ask("file", name=name)
        return path

    def close(self) -> None:
        """End the fetcher of this process."""
        if self._fetcher is not None and self._process == os.getpid():
            self._fetcher.close()
        self._fetcher = None

    def _group(self, left: list[BlockPart]) -> list[BlockPart]:
        """Return the first parts whose blocks, once fetched, stay in a small cache until they are read."""
        size, seen, most = 0, set[int](), (self.limit or 0) * GUARDED_SHARE if self.folder.is_small else math.inf
        for count, part in enumerate(left):
            if part.block not in seen:
                size += self.folder.room(part.block)
                seen.add(part.block)
            if count and size > most:
                return left[:count]
        return left

    def _fitting(self) -> _Fetcher:
        """Return the fetcher, once both have the same files open: a damaged cache is rebuilt with others."""
        while (fetcher := self._started()).table != self.folder.table.identity:
            # whichever is older; threads that use either keep it meanwhile
            self._fetcher = None
            # from now on blocks are read through the new folder alone: who has opened files of the old one has those still
            self._is_renewed = True
            self.__dict__.pop("folder", None)
        return fetcher

    def _started(self) -> _Fetcher:
        if self._process != os.getpid():
            # the fetcher is the parent's; another thread may have had its lock
            self._reset()
        with self._starting:
            if self._fetcher is None or not self._fetcher.is_alive:
                self._fetcher = _Fetcher(self.url, self.cache, self.limit, self._digest, self._in_small)
            return self._fetcher


# Python puts the current folder first, where json.py may be anyone's.
_FETCHER = "import sys; sys.path[:] = filter(None, sys.path); from reader.remote.fetcher import main; main()"


class _Fetcher:
    """The fetcher of this process; `ask` is for any of its threads, one after the other."""

    def __init__(self, url: str, cache: Path, limit: int | None, digest: str | None, in_small: bool | None) -> None:
        # as this process finds its modules
        # this package may be found in the current folder alone
        paths = os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parents[2])])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FETCHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths},
            text=True,
        )
        self._ids, self._asking = itertools.count(), threading.Lock()
        self.close = weakref.finalize(self, _end, self._process)
        self.folder, self.table = self.ask(
            "open", url=url, cache=str(cache), limit=limit, digest=digest, in_small=in_small
        )

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self.close.alive and self._process.poll() is None

    def ask(self, ask: str, **values: Json) -> Json:
        """Ask, and return the answer.

        Raises:
            StoreError, ValueError: as it says; or it has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            number = next(self._ids)
            try:
                self._process.stdin.write(json.dumps({"id": number, "ask": ask} | values) + "\n")
                self._process.stdin.flush()
                # the answer to a question whose asker was interrupted may come first
                answer: dict[str, Any] = {"id": -1}
                while answer["id"] != number:
                    answer = json.loads(self._process.stdout.readline() or "null") or {}
            except (OSError, KeyError, ValueError):
                # its pipe closes before the kernel reports its end: asked again at once, it would pass as alive
                self.close()
                raise StoreError(
                    "the process that fetches from object storage has ended (was it killed?). Read again: a new one is started."
                ) from None
        if "error" in answer:
            raise _decoded_error(*answer["error"])
        return answer["answer"]


def encode_error(error: BaseException) -> tuple[str, str]:
    """Return the kind and the text of an error that a fetcher reports."""
    found = next((kind for kind in _KINDS if isinstance(error, kind)), None)
    return (found.__name__, str(error)) if found else (RuntimeError.__name__, f"{type(error).__name__}: {error}")


def _decoded_error(name: str, text: str) -> Exception:
    return next((kind for kind in _KINDS if kind.__name__ == name), RuntimeError)(text)


def _end(process: subprocess.Popen[str]) -> None:
    # it ends by itself where there is nobody to ask; a process that was forked only drops its copy
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(timeout=tuning().fetcher_end_seconds)
    except subprocess.TimeoutExpired:
        # it waits for the network; what it has not marked as whole is fetched again
        process.kill()
        process.wait()
