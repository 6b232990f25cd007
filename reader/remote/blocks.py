"""Blocks fetched into a cache by a few threads: each compared with its checksum, written, synced, and only then there.

A fixed number of requests is in progress; what they bring is written while others go on. A block is fetched by one process of a
node; what another one fetches just now is waited for. Where that one was killed, the kernel has freed its lock, and the block is
fetched here.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Sequence

from reader.format.errors import MissingObjectError, StoreError, UnreachableError
from reader.format.filesystem import size_text
from reader.format.manifest import MANIFEST, PIXELS
from reader.remote.block_files import BlockFiles, StoreFile
from reader.remote.eviction import GUARDED_SHARE, Eviction, Plan
from reader.remote.folder import LOCK, MARKS, USED, CacheFolder, Locks
from reader.remote.leftovers import write_beside
from reader.remote.opening import ON_DEMAND, Source, fetch_file
from reader.tuning import tuning

# While the first blocks of an epoch come, others are asked for where fewer are in progress: the link is not idle while their last
# come, and the first batch waits for little else.
_BESIDE_FIRST = 8
# Threads that write the answers of requests meanwhile.
_WRITING_THREADS = 8
# Another process's fetch is looked for so often; it takes ten times as long or more.
_LOOK_SECONDS = 0.005
# A block that differs may have been garbled on its way: it is read once more.
_TRIES = 2
# Blocks that are requested at a time to complete a store: more than are in progress.
_COMPLETE_BLOCKS = 1024


class _Run:
    """Blocks that are one after the other in the store, and are requested together.

    started, ended: by time.monotonic; 0.0: not yet. error: why some of them did not come.
    """

    def __init__(self, block: int, size_bytes: int) -> None:
        self.blocks, self.size_bytes = [block], size_bytes
        self.started = self.ended = 0.0
        self.error: Exception | None = None


class BlockFetcher:
    """Fetches blocks of one store into its folder.

    Args:
        limit: bytes of blocks that a small cache may hold.
    """

    def __init__(self, folder: CacheFolder, source: Source, limit: int | None) -> None:
        self._folder, self._source, self._table = folder, source, folder.table
        self._locks = Locks(folder.inside / LOCK)
        self._limit, self._eviction = folder.starts[-1], None
        if isinstance(folder.table, BlockFiles):
            self._limit = min(self._limit, limit or self._limit)
            self._eviction = Eviction(folder.table, folder.inside / USED, folder.room, self._limit)
        sizes = tuning()
        self._most_requests, self._most_held_bytes = sizes.requests_at_once, sizes.requests_held_bytes
        self._request_bytes = min(sizes.request_bytes, int(self._limit * GUARDED_SHARE))
        # threads that seal and that are asked for a file: the second finds what the first has brought
        self._bringing = threading.Lock()
        # one lock for all below
        self._changed = threading.Condition()
        # by block: the run of each that is waited for or on its way
        self._runs: dict[int, _Run] = {}
        self._urgent, self._later = deque[_Run](), deque[_Run]()
        # those that an epoch begins with, that are asked for, and that are in memory: the bytes of the last
        self._first, self._requested, self._held_bytes = set[_Run](), set[_Run](), 0
        self._fetched_bytes = 0
        for _ in range(self._most_requests + _WRITING_THREADS):
            threading.Thread(target=self._serve, daemon=True).start()

    def plan(self, orders: Sequence[Sequence[int]]) -> None:
        """Take the order in which blocks are used in this epoch, and in the next one."""
        if self._eviction is not None:
            self._eviction.plan = Plan(orders)

    def reach(self, index: int) -> None:
        """Note that the reader is at this index of this epoch's order."""
        if self._eviction is not None:
            self._eviction.plan.reach(index)

    def prefetch(self, blocks: Sequence[int], soon: int = 0) -> None:
        """Start to fetch blocks that will be wanted, in this order, and do not wait for them.

        soon: how many of them are to come before any other, as if they were waited for.
        """
        with self._changed:
            self._first.update(self._want(blocks[:soon], self._urgent))
            self._want(blocks[soon:], self._later)

    def ensure(self, blocks: Iterable[int]) -> None:
        """Have blocks in the cache, each of them at some moment: a small cache may have lost one again.

        Raises:
            StoreError: one cannot be had.
        """
        asked = time.monotonic()
        with self._changed:
            missing = [block for block in blocks if not self._table.has(block)]
            self._want(missing, self._urgent)
            for block, run in [(block, self._runs.get(block)) for block in missing]:
                while not self._table.has(block):
                    # a request that began before is repeated
                    if run is not None and run.error is not None and run.started >= asked:
                        raise run.error
                    # a block that another process fetches is looked for again in a while
                    if run is None or (run.ended and time.monotonic() - run.ended >= _LOOK_SECONDS):
                        self._want([block], self._urgent)
                        run = self._runs.get(block)
                    self._changed.wait(_LOOK_SECONDS)

    def complete(self) -> None:
        """Have all of the store in its folder, which is a store of its own from then on.

        Raises:
            StoreError: the cache may not hold all of it, or something cannot be had.
        """
        if self._eviction is not None:
            raise StoreError(
                f"all of {self._source.url} is asked for, {size_text(self._folder.starts[-1])}, but cache_size is"
                f" {size_text(self._limit)}. Give a larger one."
            )
        for start in range(0, self._folder.count, _COMPLETE_BLOCKS):
            self.ensure(range(start, min(start + _COMPLETE_BLOCKS, self._folder.count)))
        self.seal()
        if not self._table.is_complete:
            raise StoreError(f"cache {self._folder.root} was damaged, and is being rebuilt. Open it again.")

    def fetched_bytes(self) -> int:
        """Return the bytes of blocks that were fetched since this was asked last."""
        with self._changed:
            fetched, self._fetched_bytes = self._fetched_bytes, 0
            return fetched

    def file(self, name: str) -> None:
        """Have a file of the store in its folder."""
        with self._bringing:
            fetch_file(self._folder.root, self._source, name, self._folder.manifest)

    def seal(self) -> None:
        """Make the folder a store of its own, if all blocks are there.

        Raises:
            StoreError: a file that opening does not need cannot be had.
        """
        table = self._table
        if not isinstance(table, StoreFile) or table.is_complete or not table.has_all:
            return
        for name in ON_DEMAND:
            self.file(name)
        with self._locks.changing():
            # another process may have dropped a damaged one
            if table.is_at(self._folder.inside / MARKS) and not table.is_complete:
                write_beside(self._folder.root / MANIFEST, [(self._folder.inside / MANIFEST).read_bytes()])
                table.complete()

    def _want(self, blocks: Iterable[int], queue: deque[_Run]) -> list[_Run]:
        """Have missing blocks fetched, neighbors together; returns their runs that have not started."""
        runs = list[_Run]()
        for block in blocks:
            size = self._folder.room(block)
            if (known := self._runs.get(block)) is not None:
                # it may wait behind others: it starts from whichever queue comes to it first
                if not known.started and (not runs or runs[-1] is not known):
                    runs.append(known)
            elif not self._table.has(block):
                run = runs[-1] if runs and runs[-1].blocks[-1] + 1 == block else None
                if run is None or run.size_bytes + size > self._request_bytes:
                    runs.append(_Run(block, size))
                else:
                    run.blocks.append(block)
                    run.size_bytes += size
                self._runs[block] = runs[-1]
        queue.extend(runs)
        self._changed.notify_all()
        return runs

    # -- the threads

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (run := self._next_run()) is None:
                    self._changed.wait()
            try:
                self._fetch_free(run)
            except Exception as e:
                run.error = e
            with self._changed:
                self._end(run)
                self._held_bytes -= run.size_bytes

    def _next_run(self) -> _Run | None:
        """Start the next run; None: none may start now."""
        for queue in self._urgent, self._later:
            is_beside_first = queue is self._later and self._first
            while queue and len(self._requested) < (_BESIDE_FIRST if is_beside_first else self._most_requests):
                run = queue[0]
                if not run.started and self._held_bytes and self._held_bytes + run.size_bytes > self._most_held_bytes:
                    return None
                queue.popleft()
                if run.started or run.ended:
                    continue
                if all(map(self._table.has, run.blocks)):
                    # another process has fetched it
                    self._end(run)
                    continue
                run.started = time.monotonic()
                self._requested.add(run)
                self._held_bytes += run.size_bytes
                return run
        return None

    def _end(self, run: _Run) -> None:
        run.ended = time.monotonic()
        self._requested.discard(run)
        self._first.discard(run)
        for block in run.blocks:
            del self._runs[block]
        self._changed.notify_all()

    def _fetch_free(self, run: _Run) -> None:
        """Fetch those blocks of a run that no other process is fetching."""
        taken = [block for block in run.blocks if self._locks.take(block)]
        try:
            fetched = self._read_wanted([block for block in taken if not self._table.has(block)])
            with self._changed:
                self._requested.discard(run)
                # before the blocks are there: who waits for them may ask for this number next
                self._fetched_bytes += sum(len(data) for _, data in fetched)
                self._changed.notify_all()
            for part, data in fetched:
                self._keep(part, data)
        finally:
            for block in taken:
                self._locks.give(block)

    def _read_wanted(self, wanted: Sequence[int]) -> list[tuple[Sequence[int], memoryview]]:
        """Read blocks, neighbors together: [3, 4, 6] -> [3, 4], then [6]."""
        found = list[tuple[Sequence[int], memoryview]]()
        while wanted:
            count = next((n for n in range(1, len(wanted)) if wanted[n] != wanted[n - 1] + 1), len(wanted))
            found.append((wanted[:count], self._read(wanted[:count])))
            wanted = wanted[count:]
        return found

    def _keep(self, run: Sequence[int], data: memoryview) -> None:
        try:
            self._write(run, data)
        except OSError as e:
            full = e.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = "Free some space there, or give a smaller cache_size" if full else "Look at the disk"
            raise StoreError(f"cache {self._folder.root} cannot be written: {e.strerror}. {hint}.") from None
        # a block that cannot be read now is requested again later
        with contextlib.suppress(StoreError, OSError):
            self.seal()

    def _read(self, run: Sequence[int]) -> memoryview:
        """Read blocks that are one after the other, and compare each with its checksum."""
        starts, name, wrong = self._folder.starts, self._source.name(PIXELS), 0
        for _ in range(_TRIES):
            try:
                fetched = self._source.read_pixels(self._folder.objects, starts[run[0]], starts[run[-1] + 1])
            except UnreachableError:
                raise
            except StoreError as e:
                raise self._replaced(e) from None
            base = starts[run[0]]
            parts = [fetched[starts[block] - base : starts[block + 1] - base] for block in run]
            differing = [b for b, part in zip(run, parts, strict=True) if zlib.crc32(part) != self._folder.crcs[b]]
            if not differing:
                return fetched
            wrong = differing[0]
        first, stop = self._folder.rows[wrong]
        raise self._replaced(
            StoreError(
                f"{self._source.url}/{name} is not what its manifest says, rows {first} to {stop - 1}: it was changed. Push"
                " the store again."
            )
        )

    def _replaced(self, error: StoreError) -> StoreError:
        """Say of what is gone or differs that the whole store is another one by now, where that is so."""
        try:
            now = Source(self._source.url)
            now.look()
        except StoreError as e:
            return error if not isinstance(e, MissingObjectError) else e
        if now.digest == self._source.digest:
            return error
        return StoreError(
            f"{self._source.url} was replaced by another store while it was read ({self._source.name(PIXELS)} differs)."
            " Open it again."
        )

    def _write(self, run: Sequence[int], data: memoryview) -> None:
        """Write blocks that are one after the other, whose locks this process has."""
        if isinstance(self._table, StoreFile):
            self._table.write(run, data)
            return
        assert self._eviction is not None
        base = self._folder.starts[run[0]]
        for block in run:
            with self._locks.changing():
                self._eviction.make_room(block)
                file = self._table.begin(block)
            with file:
                self._table.finish(block, file, data[self._folder.starts[block] - base :][: self._folder.room(block)])
