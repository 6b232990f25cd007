"""Rows copied by plain threads while the caller goes on: begun now, waited for later.

One thread can nearly fill the bandwidth of memory, so what counts is that copies follow each other without a gap: those of the
next batch are begun before those of this one are waited for. Threads of OpenMP cannot do that, and all of them wait where
another program holds the core of one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

Copies = Sequence[Future[None]]

# A thread is given this much at least: handing it over costs some 20 us, in which 200 kB are copied.
_LEAST_BYTES = 2 << 20
# Pieces a thread: a thread that was held up leaves the rest of a batch to others.
_PIECES = 2
# Of one memcpy: glibc's writes past the caches from about 768 kB on, which took 1.5 times as long (rows of 1280 x 960 x 3,
# 2 cores, 2026-11-21).
_MOST_BYTES = 512 << 10
# Wider words make index_select faster: over uint8[B, C, H, W] the same call was up to 5 times slower than over int64 rows.
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16))


def begin_gather(source: torch.Tensor, rows: npt.NDArray[np.int64], out: torch.Tensor) -> Copies:
    """Begin to copy source[rows] into out, on as many threads as torch uses; what is small is copied at once.

    source: any[N, ...] contiguous, on the CPU; rows: int64[B] in [0, N); out: any[B, ...] of the same dtype, contiguous, whole
    when all that is returned is done. Both are held until then.
    """
    threads = torch.get_num_threads()
    pieces = min(_PIECES * threads, out.nbytes // _LEAST_BYTES)
    if pieces < 1:
        _gather_small(source, rows, out)
        return ()
    words, into = (tensor.numpy() for tensor in as_words(source, out))
    if (parts := _parts(words)) > 1:
        words, into = (array.reshape(len(array) * parts, -1) for array in (words, into))
        rows = (rows[:, None] * parts + np.arange(parts)).reshape(-1)
    step, pool = -(-len(rows) // pieces), _pool(threads)
    return [pool.submit(_copy, words, rows[i : i + step], into[i : i + step]) for i in range(0, len(rows), step)]


def gather(source: torch.Tensor, rows: npt.NDArray[np.int64], out: torch.Tensor) -> torch.Tensor:
    """Copy source[rows] into out, as `begin_gather` does, and return out."""
    for copy in begin_gather(source, rows, out):
        copy.result()
    return out


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


def _parts(words: npt.NDArray[np.int64]) -> int:
    """Return into how many equal parts rows are cut, where some such number cuts them into whole words."""
    least = -(-words[:1].nbytes // _MOST_BYTES)
    return next((n for n in range(least, 4 * least) if words.shape[1] % n == 0), 1)


def _copy(source: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], out: npt.NDArray[np.int64]) -> None:
    # row by row also where they are consecutive, see _MOST_BYTES;
    # numpy would check the rows again, into a buffer of its own: with "clip" it does not
    np.take(source, rows, axis=0, out=out, mode="clip")


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="pixpack-copier")


# a process that is forked has none of the threads
os.register_at_fork(after_in_child=_pool.cache_clear)
