"""Blocks on their way to being committed: rows synced, or sent to a URL, then their line in the journal.

In a thread beside the workers.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from packer.clock import StageClock
from packer.store.blocks import Result
from packer.store.journal import Journal
from packer.system import BINARY
from reader.format.filesystem import error_path

if TYPE_CHECKING:
    from packer.store.remote.upload import Upload

# For each worker, while as many more are being committed: a death costs them. Of 4.0 seconds that 1,000 photographs took on 2
# workers, `put` waited 0.02 for room (2026-11-21, ext4).
_PENDING_BLOCKS = 2


class Committer:
    """Syncs written rows and appends their lines, in a thread of its own, so that no worker waits for the disk.

    Blocks that arrive while a sync runs are committed together by the next one.

    Args:
        check: called before each commit; raises where OUT was renamed or removed.
        upload: what sends rows and journal to the URL that is packed to; None: they stay here.
    """

    def __init__(
        self,
        rows: list[Path],
        journal: Journal,
        inputs_done: int,
        rows_done: int,
        check: Callable[[], None],
        *,
        workers: int,
        upload: Upload | None = None,
    ) -> None:
        self._journal, self._files, self._check, self._upload = journal, rows, check, upload
        self._inputs, self._rows = inputs_done, rows_done
        # bounded: what waits here is lost in a crash, and a disk slower than the decoders must slow them down
        self._results: queue.Queue[Result | None] = queue.Queue(_PENDING_BLOCKS * workers)
        self._error: BaseException | None = None
        self._clock = StageClock("wait")
        self._descriptors = [os.open(path, os.O_RDWR | BINARY) for path in rows]
        self._thread = threading.Thread(target=self._commit, name="pixpack-committer", daemon=True)
        self._thread.start()

    def put(self, result: Result) -> None:
        """Hand over a written block; raises what a former commit raised."""
        if self._error is not None:
            raise self._error
        self._results.put(result)

    def finish(self) -> None:
        """Wait until everything handed over is on disk."""
        self._end()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread after it has committed all queued blocks."""
        self._end()
        for path, descriptor in zip(self._files, self._descriptors, strict=True):
            with error_path(path):
                os.close(descriptor)

    def stages(self) -> dict[str, float]:
        """Return the seconds of each stage of its thread; to be asked when that has ended."""
        return self._clock.seconds()

    def _end(self) -> None:
        if self._thread.is_alive():
            self._results.put(None)
            self._thread.join()

    def _commit(self) -> None:
        last = False
        try:
            while not last:
                self._clock.enter("wait")
                batch = [self._results.get()]
                while len(batch) < self._results.maxsize and not self._results.empty():
                    batch.append(self._results.get())
                last = None in batch
                results = [result for result in batch[: batch.index(None) if last else None] if result is not None]
                if results:
                    self._check()
                    self._save(results)
                    self._inputs += sum(result.inputs for result in results)
                    self._rows += sum(result.rows for result in results)
                    self._clock.enter("journal")
                    self._journal.append(results, self._inputs, self._rows)
                    if self._upload is not None:
                        self._upload.put_journal()
        except BaseException as e:  # it belongs to the caller: `put` and `finish` raise it
            self._error = e
            while not last:  # `put` must never wait for a thread that is gone
                last = self._results.get() is None

    def _save(self, results: list[Result]) -> None:
        """Bring rows where a crash leaves them."""
        if self._upload is not None:
            self._clock.enter("upload")
            self._upload.put_blocks(results)
            return
        self._clock.enter("sync")
        for path, descriptor in zip(self._files, self._descriptors, strict=True):
            with error_path(path):
                getattr(os, "fdatasync", os.fsync)(descriptor)
