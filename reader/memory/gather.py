"""Rows copied by plain threads while the caller continues: begun now, waited for later; other work of theirs too, such as reads.

One thread can nearly fill the bandwidth of memory, so what counts is that copies follow each other without a gap: those of the
next batch are begun before those of this one are waited for. Threads of OpenMP cannot do that, and all of them wait where
another program holds the core of one.

Queues are SimpleQueues, and threads are started without a lock of Python's: Ctrl-C may come between any two instructions of a
caller, see `prefetch.py`, and what it left locked here would stop every loader of the process.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt
import torch

from reader.compiled import row_copier
from reader.tuning import tuning

# Pieces a thread: a thread that was held up leaves the rest of a batch to others.
_PIECES = 2
# Wider words make index_select faster: over uint8[B, C, H, W] the same call was up to 5 times slower than over int64 rows.
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16))


class Copies:
    """Pieces of work that threads do, such as copying rows."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self._outcomes: list[BaseException | None] = []
        self._completed: SimpleQueue[None] = SimpleQueue()
        # set where one has failed, or nobody wants them any more: pieces that are not begun are skipped
        self.is_canceled = False
        self._process = os.getpid()

    @property
    def are_done(self) -> bool:
        """Say whether each piece is done, or has failed."""
        return len(self._outcomes) >= self._pieces

    def report(self, error: BaseException | None) -> None:
        """Count a piece that is done, or has failed."""
        if error is not None:
            self.is_canceled = True
        self._outcomes.append(error)
        # whoever waits is woken once, by the last; two that both see all there wake it twice, which nobody feels
        if self.are_done:
            self._completed.put(None)

    def wait(self) -> None:
        """Wait for all of them; raises what one has raised."""
        if not self.are_done:
            self._completed.get()
        for error in self._outcomes:
            if error is not None:
                raise error

    def cancel(self) -> None:
        """Skip the pieces that are not begun, and wait for those that are."""
        self.is_canceled = True
        # a process that was forked has none of the threads
        if not self.are_done and os.getpid() == self._process:
            self._completed.get()


# For one thread to do: a call, its arguments, and what it is a part of.
_PieceCall = tuple[Callable[..., object], tuple[object, ...], Copies]


class Gatherer:
    """Copies rows of one tensor, batch after batch.

    What is the same for all batches is done once: beside threads that stream through the caches, each line of Python takes ten
    times as long as alone.
    """

    def __init__(self, source: torch.Tensor, *, is_streamed: bool = False) -> None:
        """Prepare to copy rows of source, any[N, ...] contiguous, on the CPU.

        is_streamed: large batches are written past the caches; memory that was written before, such as a pool's, gains by that.
        """
        words = as_words(source)[0].numpy() if source.numel() else np.empty((0, 1), np.int64)
        self._source, self._is_streamed, self._sizes = source, is_streamed, tuning()
        self._parts = _parts(words, self._sizes.memcpy_bytes)
        self._table = words.reshape(len(words) * self._parts, words.shape[1] // self._parts)

    def begin(self, rows: npt.NDArray[np.int64], out: torch.Tensor) -> Copies | None:
        """Begin to copy source[rows] into out, on as many threads as torch uses; None: it was small, and is copied already.

        rows: int64[B] in [0, N); out: any[B, ...] of the source's dtype, contiguous, whole when what is returned was waited
        for. The threads hold source and out until they are done, also where nobody waits.
        """
        threads = torch.get_num_threads()
        pieces = min(_PIECES * threads, out.nbytes // self._sizes.copy_thread_bytes)
        if pieces < 1:
            _gather_small(self._source, rows, out)
            return None
        table, parts = self._table, self._parts
        if out.data_ptr() % table.itemsize:
            table, into = (tensor.numpy() for tensor in as_words(self._source, out))
            parts = 1
        else:
            into = out.numpy().reshape(-1).view(table.dtype).reshape(-1, table.shape[1])
        rows = np.ascontiguousarray(rows, np.int64)
        if parts > 1:
            rows = (rows[:, None] * parts + np.arange(parts)).reshape(-1)
        copy = (row_copier() if self._is_streamed and out.nbytes >= self._sizes.streamed_batch_bytes else None) or _copy
        step = -(-len(rows) // pieces)
        starts = range(0, len(rows), step)
        return on_threads(
            "copy",
            threads,
            copy,
            [(table, rows[start : start + step], into[start : start + step]) for start in starts],
        )


def gather(source: torch.Tensor, rows: npt.NDArray[np.int64], out: torch.Tensor) -> torch.Tensor:
    """Copy source[rows] into out, which may be fresh memory, as `Gatherer` does, and return out."""
    if (copies := Gatherer(source).begin(rows, out)) is not None:
        copies.wait()
    return out


def on_threads(kind: str, threads: int, call: Callable[..., object], each: Sequence[tuple[object, ...]]) -> Copies:
    """Begin call(*arguments) for each, on threads that all work of a kind shares; where none may be started it is done here."""
    copies = Copies(len(each))
    queue = _queue(kind, threads)
    for arguments in each:
        if queue is None:
            copies.report(_outcome(call, arguments, copies))
        else:
            queue.put((call, arguments, copies))
    return copies


def is_run(rows: npt.NDArray[np.int64]) -> bool:
    """Say whether rows are consecutive and rising: [4, 5, 6]."""
    return len(rows) == 0 or (int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all()))


def as_words(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """View each any[N, ...] as [N, K] of the widest integers that divide a row of all and that all are aligned to."""
    flat = [tensor.reshape(tensor.shape[0], -1).view(torch.uint8) for tensor in tensors]
    for size, dtype in _WORDS:
        if all(t.shape[1] % size == 0 and t.data_ptr() % size == 0 for t in flat):
            return [t.view(dtype) for t in flat]
    return flat


def _gather_small(source: torch.Tensor, rows: npt.NDArray[np.int64], out: torch.Tensor) -> None:
    if is_run(rows):
        out.copy_(source[int(rows[0]) : int(rows[-1]) + 1] if len(rows) else source[:0])
    else:
        words, into = as_words(source, out)
        torch.index_select(words, 0, torch.from_numpy(rows), out=into)


def _parts(words: npt.NDArray[np.int64], most_bytes: int) -> int:
    """Return into how many equal parts rows are cut, where some such number cuts them into whole words."""
    least = -(-words[:1].nbytes // most_bytes)
    return next((n for n in range(least, 4 * least) if words.shape[1] % n == 0), 1)


def _copy(source: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], out: npt.NDArray[np.int64]) -> None:
    # row by row also where they are consecutive, see memcpy_bytes;
    # numpy would check the rows again, into a buffer of its own: with "clip" it does not
    np.take(source, rows, axis=0, out=out, mode="clip")


# -- the threads

# (kind, number of threads) -> what they wait for; those that were asked for once stay
_queues: dict[tuple[str, int], SimpleQueue[_PieceCall | None]] = {}
_ended: SimpleQueue[None] = SimpleQueue()
_at_exit = False


def _queue(kind: str, threads: int) -> SimpleQueue[_PieceCall | None] | None:
    """Return what so many threads take pieces from; None where no thread may be started."""
    if _at_exit or (kind, threads) in _queues:
        return None if _at_exit else _queues[kind, threads]
    made: SimpleQueue[_PieceCall | None] = SimpleQueue()
    started = 0
    with contextlib.suppress(RuntimeError):  # a limit of this user's, or of the container
        while started < threads:
            _thread.start_new_thread(_serve, (made,))
            started += 1
    # known only now: an interrupt before this leaves threads without work, the other way round work without threads
    known = _queues.setdefault((kind, threads), made) if started else None
    if known is not made:
        _end(made, started)
    return known


def _serve(queue: SimpleQueue[_PieceCall | None]) -> None:
    while (piece := queue.get()) is not None:
        copies, error = piece[2], _outcome(*piece)
        del piece  # before the caller continues: then nothing here holds its batch
        copies.report(error)
        del copies, error
    _ended.put(None)


def _outcome(call: Callable[..., object], arguments: tuple[object, ...], copies: Copies) -> BaseException | None:
    """Do a piece, unless nobody wants it any more; returns what it raised."""
    try:
        if not copies.is_canceled:
            call(*arguments)
    except BaseException as e:
        return e
    return None


def _end(queue: SimpleQueue[_PieceCall | None], threads: int) -> None:
    for _ in range(threads):
        queue.put(None)
    for _ in range(threads):
        _ended.get()


def _end_all() -> None:
    global _at_exit
    _at_exit = True
    for (_, threads), queue in list(_queues.items()):
        _end(queue, threads)


# a process that is forked has none of the threads
os.register_at_fork(after_in_child=_queues.clear)
# threading's own hook, see `prefetch.py`, whose feeders it ends first: what is registered later is called earlier
threading._register_atexit(_end_all)  # type: ignore[attr-defined]
