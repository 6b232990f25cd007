"""One pass over a loader's batches: a feeder thread prepares groups ahead, the caller's thread takes and finishes them."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Generator
from typing import Any, Generic

import torch
from typing_extensions import TypeVar

from reader.loading.batch_transform import BatchTransform, PendingBatch
from reader.planning.epochs import Progress

# An item of the loop, without its position.
Given = TypeVar("Given", default=tuple[torch.Tensor, torch.Tensor])
# An item of the loop, with the global position after it.
LoopItem = tuple[Any, int]
Group = list[LoopItem]

# A feeder that waits for room checks at this interval whether its iteration, or the program, has ended.
_LOOK_SECONDS = 0.1


class Iteration(Generic[Given]):
    """Iterates over the batches of one pass, and keeps its progress up to date.

    The feeder thread ends with its source, and when the iteration is closed or collected. An error is raised after the
    earlier batches. A batch counts as taken when the caller gets it. After Ctrl-C, the loader's state is that after the last
    batch, and the rest of the epoch continues from there.

    Args:
        source: makes the groups, in a separate thread unless prefetch is 0.
        transform: its remaining steps run in the caller's thread.
        prefetch: the most groups that wait.
    """

    def __init__(
        self, progress: Progress, source: Generator[Group, None, None], transform: BatchTransform, *, prefetch: int
    ) -> None:
        self._progress, self._transform, self._plan = progress, transform, progress.plan
        self._source, self._process = source, os.getpid()
        self._group: deque[LoopItem] = deque()
        self._ready: queue.Queue[Any] = queue.Queue(prefetch)
        self._stopped = threading.Event()
        self._feeder: threading.Thread | None = None
        if prefetch:
            arguments = (source, self._ready, self._stopped)
            self._feeder = threading.Thread(target=_feed, args=arguments, name="pixpack-feeder")
            weakref.finalize(self, self._stopped.set)
            try:
                self._feeder.start()
            except BaseException:
                # Ctrl-C: a thread that starts while the interpreter exits would abort it in torch's code
                self._stopped.set()
                raise

    def __iter__(self) -> Iteration[Given]:
        return self

    def __next__(self) -> Given:
        before = self._progress.position, self._progress.is_over
        try:
            # a local reference: another thread may close the loader meanwhile
            if not (group := self._group):
                group = self._group = deque(self._next_group())
            item, position = group.popleft()
            if isinstance(item, PendingBatch):
                item = self._transform.in_caller(item)
            self._progress.position, self._progress.is_over = position, self._plan.is_over(position)
            return item
        except StopIteration:
            self._progress.finished = not self._stopped.is_set()
            raise
        except BaseException:
            # the caller did not get the batch: it comes again in a pass from the state
            self._progress.position, self._progress.is_over = before
            self._end(StopIteration())
            raise

    def close(self) -> None:
        """End the thread; a waiting caller gets a RuntimeError."""
        self._end(RuntimeError("the loader was closed while it was iterated. Iterate over it again."))

    def _next_group(self) -> Group:
        """Wait for the next group; raises the source's error."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this iterator belongs to the process that was forked. Iterate over the loader again here."
            )
        if self._feeder is None and not self._stopped.is_set():
            return next(self._source)
        group = self._ready.get()
        if not isinstance(group, BaseException):
            return group
        # all later items are the end
        self._put_end(group if isinstance(group, RuntimeError) and self._stopped.is_set() else StopIteration())
        try:
            raise group
        finally:
            del group  # else error and frame refer to each other, and keep the failed batch

    def _end(self, error: BaseException) -> None:
        """End the thread and drop the waiting batches; every later request raises the error."""
        self._stopped.set()
        self._group = deque()
        if self._feeder is None:
            # another thread inside it gets its group, then the error
            with contextlib.suppress(ValueError):
                self._source.close()
        else:
            self._feeder.join()
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        self._put_end(error)

    def _put_end(self, error: BaseException) -> None:
        """Put the end for all later waits, unless another thread has closed the loader meanwhile."""
        with contextlib.suppress(queue.Full):
            self._ready.put_nowait(error)


def _feed(source: Generator[Group, None, None], ready: queue.Queue[Any], stopped: threading.Event) -> None:
    """Put the groups of a source, then its error or the end, until the iteration is stopped."""
    if stopped.is_set():
        return
    last: BaseException = StopIteration()
    try:
        for group in source:
            if not _put(ready, group, stopped):
                break
            del group
    except BaseException as e:  # raised in the caller's thread
        last = e
    finally:
        # free its memory before the end is visible
        source.close()
    _put(ready, last, stopped)


def _put(ready: queue.Queue[Any], what: object, stopped: threading.Event) -> bool:
    """Wait for room; returns False if the iteration or the program ended first."""
    while not stopped.is_set() and threading.main_thread().is_alive():
        with contextlib.suppress(queue.Full):
            ready.put(what, timeout=_LOOK_SECONDS)
            return True
    return False
