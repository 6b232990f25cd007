"""Spans of bytes: the places of rows in a file, the runs that hold them, and their copies into the memory of a batch.

Knows only bytes. A row is one span: a row of one size, a row of its own size followed by its mask, or a compressed row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from reader.compiled import span_copier
from reader.memory.threads import Copies, on_threads
from reader.rows import Rows

# Up to this size, the calling thread copies a batch, or a group of small ones: that takes less CPU time than other threads.
OWN_COPY_BYTES = 8 << 20
# Above that, a thread gets at least this much: passing it costs as much as copying a tenth of it.
COPY_THREAD_BYTES = 2 << 20
# The most bytes of one memcpy: from about 768 kB on, glibc's writes past the caches, which takes longer.
MEMCPY_BYTES = 512 << 10
# From this size on, a batch is larger than the caches, and is written past them. Not into new memory: the kernel has just
# written its zeros to the caches.
STREAMED_BATCH_BYTES = 24 << 20

# Bytes of memory, or of a mapped file: uint8[n].
Bytes = npt.NDArray[np.uint8]
# First byte, number of bytes, and the first byte of their destination in memory.
Read = tuple[int, int, int]
# First byte in a file, and the number of bytes to read at once.
Piece = tuple[int, int]

# Pieces per thread: a late thread leaves the rest of a batch to others.
_PIECES = 2


class Spans(NamedTuple):
    """Bytes of a file: the start and size of each span, int64[B] each."""

    begins: Rows
    sizes: Rows

    @property
    def ends(self) -> Rows:
        """The end of each span."""
        return self.begins + self.sizes


def joined(each: Sequence[Spans]) -> Spans:
    """Return all of these spans, in order."""
    return each[0] if len(each) == 1 else Spans(*map(np.concatenate, zip(*each, strict=True)))


class Layout(NamedTuple):
    """The layout of some rows: their spans in the file, and, int64[B] each, their unpacked sizes and starts in a batch."""

    spans: Spans
    sizes: Rows
    places: Rows


def runs_of(spans: Spans, most_gap_bytes: int) -> Spans:
    """Return the runs of a file that hold spans, which may be unsorted or repeated; runs are sorted and separate.

    most_gap_bytes: smaller gaps are read too, so that there are fewer runs; in total not more than the bytes of the spans.

    Example:
        >>> runs = runs_of(Spans(np.array([9, 2, 3]), np.array([1, 1, 1])), 0)
        >>> runs.begins.tolist(), runs.ends.tolist()
        ([2, 9], [4, 10])
    """
    order = np.argsort(spans.begins, kind="stable")
    begins, ends = spans.begins[order], np.maximum.accumulate(spans.ends[order])
    gaps = begins[1:] - ends[:-1]
    # the smallest first
    smallest = np.argsort(gaps, kind="stable")
    is_bridged = np.zeros(len(gaps), bool)
    read_through = np.cumsum(gaps[smallest].clip(0)) <= int(spans.sizes.sum())
    is_bridged[smallest] = read_through & (gaps[smallest] <= most_gap_bytes)
    cuts = np.flatnonzero(~is_bridged) + 1
    starts, stops = begins[np.append(0, cuts)[: len(begins)]], ends[np.append(cuts, len(ends))[: len(ends)] - 1]
    return Spans(starts, stops - starts)


def pieces_of(runs: Spans, most: int, align: int = 1) -> list[Piece]:
    """Cut runs into pieces of the file, in file order, of at most this many bytes after rounding to whole blocks.

    align: the bytes of a block; `most` is a multiple.
    """
    pieces: list[Piece] = []
    for start, stop in zip(runs.begins.tolist(), runs.ends.tolist(), strict=True):
        first = start
        while first < stop:
            last = min(stop, first - first % align + most)
            pieces.append((first, last - first))
            first = last
    return pieces


def equal_spans(rows: Rows, row_bytes: int) -> tuple[Spans, Rows]:
    """Return the spans of rows of one size in their file, and the start of each in a contiguous batch."""
    sizes, places = _equal(len(rows), row_bytes)
    return Spans(np.asarray(rows, np.int64) * row_bytes, sizes), places


@functools.lru_cache(maxsize=16)
def _equal(count: int, row_bytes: int) -> tuple[Rows, Rows]:
    # batches have the same number of rows again and again; these arrays are never written to
    return np.full(count, row_bytes, np.int64), np.arange(count, dtype=np.int64) * row_bytes


def laid_out(sizes: Rows) -> Rows:
    """Return the starts of these sizes in contiguous memory: [3, 1, 2] -> [0, 3, 4]."""
    return np.cumsum(sizes) - sizes


def reads_of(spans: Spans, places: Rows) -> list[Read]:
    """Return the reads of spans to places in memory; spans that are contiguous in both are read at once."""
    if len(places) == 1:
        # no arithmetic needed: a sixth of the time
        return [(int(spans.begins[0]), int(spans.sizes[0]), int(places[0]))]
    joined, firsts = merged(spans, places)
    return list(zip(joined.begins.tolist(), joined.sizes.tolist(), firsts.tolist(), strict=True))


def merged(spans: Spans, places: Rows) -> tuple[Spans, Rows]:
    """Join spans that are contiguous, if their places are too."""
    follows = (spans.begins[1:] == spans.ends[:-1]) & (places[1:] == places[:-1] + spans.sizes[:-1])
    firsts = np.append(0, np.flatnonzero(~follows) + 1)[: len(places)]
    counts = np.add.reduceat(spans.sizes, firsts) if len(firsts) else spans.sizes
    return Spans(spans.begins[firsts], counts), places[firsts]


def begin_copy(source: Bytes, spans: Spans, out: torch.Tensor, places: Rows) -> Copies | None:
    """Begin to copy spans to their places in out; large copies run on as many threads as torch uses; None: already copied.

    The threads hold source and out until they are done, even if nobody waits.

    Args:
        source: uint8[n].
        out: uint8[n], contiguous; complete after a wait for the returned copies.
        places: int64[B], the start of each in out.
    """
    threads, into, copier = torch.get_num_threads(), out.numpy(), span_copier() or _copy
    size_bytes = int(spans.sizes.sum())
    count = min(_PIECES * threads, size_bytes // COPY_THREAD_BYTES)
    past_caches = size_bytes >= STREAMED_BATCH_BYTES
    if size_bytes <= OWN_COPY_BYTES or count < 1:
        # uncut: cutting a batch of small rows takes three times as long as copying it
        copier(source, *spans, places, into, past_caches)
        return None
    pieces = _pieces(spans, places, count, MEMCPY_BYTES)
    return on_threads("copy", threads, copier, [(source, *piece, into, past_caches) for piece in pieces])


def _pieces(spans: Spans, places: Rows, count: int, most_bytes: int) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Cut spans and their places into about equal pieces (begins, sizes, places); each span has at most most_bytes."""
    short, places = _shortened(spans, places, most_bytes)
    ends = np.cumsum(short.sizes)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) // count, side="right").tolist()
    for a, b in zip([0, *cuts], [*cuts, len(ends)], strict=True):
        if a < b:
            yield short.begins[a:b], short.sizes[a:b], places[a:b]


def _shortened(spans: Spans, places: Rows, most_bytes: int) -> tuple[Spans, Rows]:
    """Cut spans into parts of about equal size, of at most these bytes: see `MEMCPY_BYTES`."""
    if not len(places) or spans.sizes.max() <= most_bytes:
        return spans, places
    counts = -(-spans.sizes // most_bytes)
    span = np.repeat(np.arange(len(counts)), counts)
    # the number of each part in its span; parts end at whole words
    nth = np.arange(len(span)) - np.repeat(laid_out(counts), counts)
    part = (-(-spans.sizes // np.maximum(counts, 1)) + 7) // 8 * 8
    begins = nth * part[span]
    sizes = np.minimum(part[span], spans.sizes[span] - begins)
    return Spans(spans.begins[span] + begins, sizes), places[span] + begins


def _copy(source: Bytes, begins: Rows, sizes: Rows, places: Rows, out: Bytes, _: bool) -> None:
    for begin, count, place in zip(begins.tolist(), sizes.tolist(), places.tolist(), strict=True):
        # releases the GIL, unlike slices of memoryviews
        np.copyto(out[place : place + count], source[begin : begin + count])
