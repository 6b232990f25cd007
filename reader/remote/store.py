"""A process's view of a store at a URL: reads blocks from the cache, and asks its fetcher for missing ones.

The fetcher is a separate process, since the runtime of obstore does not survive a fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from reader.format.errors import StoreError
from reader.format.filesystem import size_text
from reader.format.manifest import MANIFEST, Manifest
from reader.format.shown import redacted
from reader.memory.places import InFile, Place
from reader.planning.orders import window_bytes
from reader.planning.plan import EpochPlan
from reader.remote.blocks import Blocks, folder_of
from reader.rows import Steps

# -P: otherwise Python imports from the current folder first, which may hold a foreign json.py.
_FETCHER = [sys.executable, "-P", "-m", "reader.remote.fetcher"]
# The most bytes requested ahead: two windows of shuffle="block". They are in the cache, not in memory.
_AHEAD_BYTES = 512 << 20
_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}


def cache_bytes(size: int | str | None) -> int | None:
    """Return the bytes of a number, or of a text such as "200GB"; None: no limit.

    Raises:
        ValueError: it is not a size.
    """
    if size is None or (isinstance(size, int) and size > 0):
        return size
    if not (found := re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)B", str(size))):
        raise ValueError(f"cache_size is {size!r}, expected bytes or a size such as '200GB'.")
    return int(float(found[1]) * _UNITS[found[2]])


class RemoteStore:
    """The store at a URL, through a cache.

    Args:
        url: URL of its folder.
        cache: a folder on a local disk, for any number of stores.
        cache_size: the space for this store's blocks there: bytes, or "200GB"; None: no limit.
        digest: the digest of the expected store; None: any.

    Raises:
        StoreError: there is no store, or it cannot be read.
        ValueError: cache_size is not a size.
    """

    def __init__(
        self, url: str, cache: str | os.PathLike[str], cache_size: int | str | None = None, digest: str = ""
    ) -> None:
        self.url, self.cache, self.limit = url.rstrip("/"), os.path.abspath(cache), cache_bytes(cache_size)
        self._digest = digest
        self._reset()
        # a store that another process on this machine has opened needs no network
        root = folder_of(self.cache, digest)
        if not digest or not (root / MANIFEST).exists():
            root = Path(self._ask())
        self.blocks = Blocks(root)
        self._digest = self.manifest.digest

    def __str__(self) -> str:
        return redacted(self.url)

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteStore, (self.url, self.cache, self.limit, self._digest)

    @property
    def root(self) -> Path:
        """The store's folder in the cache."""
        return self.blocks.root

    @property
    def manifest(self) -> Manifest:
        """The store's manifest."""
        return self.blocks.manifest

    def place(self, plan: EpochPlan) -> Place:
        """Return the place of a pass's rows, which requests their blocks ahead.

        Raises:
            ValueError: the cache is too small for the order of the pass.
        """
        return RemoteAhead(plan, self)

    def read(self, memory: memoryview, reads: Iterable[tuple[int, int, int]]) -> None:
        """Read bytes of the pixels into memory: (first byte, count, first byte in memory) each.

        Raises:
            StoreError: a block cannot be fetched.
        """
        for start, size, place in reads:
            for block, offset, count in self.blocks.cut(start, size):
                # a block that is evicted before it is opened is fetched again
                while not self._read_block(block, offset, memory[place : place + count]):
                    self._ask(fetch=[block])
                place += count

    def prefetch(self, blocks: Sequence[int]) -> None:
        """Begin to fetch missing blocks, in this order; existing ones are evicted last."""
        if missing := [block for block in blocks if not self._is_there(block)]:
            self._ask(begin=missing)

    def file(self, name: str) -> Path:
        """Return the path of a file that opening does not need, after it is fetched."""
        if not (path := self.root / name).exists():
            self._ask(file=name)
        return path

    def _is_there(self, block: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if self.limit is not None:
                os.utime(self.blocks.path(block))
            return self.limit is not None or self.blocks.path(block).exists()
        return False

    def _read_block(self, block: int, offset: int, memory: memoryview) -> bool:
        """Read bytes of a cached block, which stays readable if it is removed meanwhile; False: it is missing."""
        try:
            descriptor = os.open(self.blocks.path(block), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            if self.limit is not None:
                os.utime(descriptor)
            if os.preadv(descriptor, [memory], offset) == len(memory):
                return True
        finally:
            os.close(descriptor)
        # the disk has lost its end
        self.blocks.path(block).unlink(missing_ok=True)
        return False

    def _reset(self) -> None:
        self._owner, self._asking = os.getpid(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def _ask(self, **question: object) -> str:
        """Ask this process's fetcher, started at the first question; returns its answer, or the folder without a question.

        Raises:
            StoreError: the fetcher reports it, or has ended.
        """
        if self._owner != os.getpid():
            # the fetcher is the parent's; another thread may hold its lock
            self._reset()
        with self._asking:
            if self._process is None:
                self._process = _started()
                weakref.finalize(self, _end, self._process)
                question = {"open": [self.url, self.cache, self.limit, self._digest]} | question
            for name, value in question.items():
                answer = self._answer(self._process, {name: value})
            return answer

    def _answer(self, process: subprocess.Popen[bytes], question: dict[str, object]) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        answer: dict[str, str] = {
            "error": "the process that fetches blocks was killed. Read again: a new one is started."
        }
        is_answered = False
        try:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(json.dumps(question).encode() + b"\n")
                answer = json.loads(process.stdout.readline())
                is_answered = "error" not in answer or "open" not in question
        finally:
            if not is_answered:
                # the answer to an interrupted question would be taken for the next one's
                _end(process)
                self._process = None
        if "error" in answer:
            raise StoreError(f"{self}: {answer['error']}")
        return answer["answer"]


class RemoteAhead(InFile):
    """A store at a URL, whose blocks are fetched in the order of a pass. For one thread.

    Raises:
        ValueError: the cache can hold neither two windows of an order in blocks nor the store.
    """

    def __init__(self, plan: EpochPlan, remote: RemoteStore) -> None:
        super().__init__(remote)
        self._store, self._remote = plan.dataset._opened, remote
        self._most_bytes = _AHEAD_BYTES
        if remote.limit is not None:
            need = min(2 * window_bytes(plan.dataset.manifest), remote.blocks.starts[-1])
            if plan.order().is_in_blocks and remote.limit < need:
                raise ValueError(
                    f"cache_size is {size_text(remote.limit)}, and shuffle='block' needs {size_text(need)}."
                )
            # blocks to be read next must not evict current ones
            self._most_bytes = min(_AHEAD_BYTES, remote.limit // 4)

    def ahead(self, steps: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the steps, after a request for their blocks."""
        waiting, bytes_ahead = deque[tuple[Steps, int]](), 0
        last = set[int]()
        for step in steps:
            spans = self._store.spans(np.concatenate(step.batches))
            blocks = self._remote.blocks.holding(spans.begins, spans.ends)
            self._remote.prefetch(blocks)
            # a block that the previous step also has is not requested twice
            size = max(int(spans.sizes.sum()), sum(map(self._remote.blocks.size, {*blocks} - last)))
            last = {*blocks}
            waiting.append((step, size))
            bytes_ahead += size
            while bytes_ahead > self._most_bytes:
                current, size = waiting.popleft()
                bytes_ahead -= size
                yield current
        for current, _ in waiting:
            yield current


def _started() -> subprocess.Popen[bytes]:
    """Start a fetcher, which finds its modules like this process."""
    paths = os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parents[2])])
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.Popen(_FETCHER, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a fetcher; its unfinished blocks are fetched again. A forked process only closes its copies of the pipes."""
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    process.kill()
    process.wait()
