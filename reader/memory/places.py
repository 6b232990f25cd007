"""Where the bytes of rows are: in memory, in a file, in object storage, or in several of these. A place knows no row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from reader.memory.raw_file import RawReader
from reader.memory.spans import Bytes, CopyPart, Runs, Spans, begin_copy, laid_out, reads_of
from reader.memory.threads import AllCopies, Copies
from reader.remote.presence import RemoteStore
from reader.rows import Rows, routed


class Located(NamedTuple):
    """Spans in memory, uint8[n], and where each begins there, int64[B]. What was located stays while this is referenced."""

    memory: Bytes
    begins: Rows


class Place:
    """Where the bytes of a file are."""

    def locate(self, spans: Spans) -> Located | None:
        """Return where spans are in memory; None: they have to be read.

        Raises:
            StoreError, OSError: they are on their way to memory, and cannot be read.
        """
        return None

    def view(self, spans: Spans) -> torch.Tensor | None:
        """Return a view of spans one after the other in memory that a batch may have, uint8[n]; None: they have to be read.

        Raises:
            StoreError, OSError: as `locate`.
        """
        return None

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> Copies | None:
        """Begin to bring spans to their places in out, uint8[n], contiguous; None: they are there.

        Raises:
            StoreError: a file was cut short, or something cannot be had.
            OSError: a file cannot be read; names it.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End what reads ahead."""


class InMemory(Place):
    """A file that is mapped, or bytes of it that were copied to memory.

    Args:
        memory: uint8[n].
        runs: of the file that are there; None: all of it.
        is_pinned: a batch may have the memory: it is sent to a device from there.
        is_streamed: as of `begin_copy`.
    """

    def __init__(
        self, memory: Bytes, runs: Runs | None = None, *, is_pinned: bool = False, is_streamed: bool = False
    ) -> None:
        self._memory, self._runs, self._is_pinned, self.is_streamed = memory, runs, is_pinned, is_streamed

    def locate(self, spans: Spans) -> Located | None:
        """Return where spans are; None: they are not all here."""
        begins = spans.begins if self._runs is None else self._runs.find(spans)
        return None if begins is None else Located(self._memory, begins)

    def view(self, spans: Spans) -> torch.Tensor | None:
        """Return a view of spans that follow each other, where the memory is pinned."""
        if not self._is_pinned or not len(spans.begins):
            return None
        located = self.locate(spans)
        assert located is not None
        first, stop = int(located.begins[0]), int(located.begins[-1] + spans.sizes[-1])
        is_run = bool((located.begins[1:] == (located.begins + spans.sizes)[:-1]).all())
        return torch.from_numpy(self._memory[first:stop]) if is_run else None

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> Copies | None:
        """Begin to copy spans."""
        located = self.locate(spans)
        assert located is not None
        part = CopyPart(located.memory, Spans(located.begins, spans.sizes), places)
        return begin_copy([part], out, is_streamed=self.is_streamed)


class InFile(Place):
    """A file that is read in the calling thread."""

    def __init__(self, file: RawReader) -> None:
        self._file = file

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> None:
        """Read spans."""
        self._file.read(out.numpy().data, reads_of(spans, places))


class AtUrl(Place):
    """The pixels of a store at a URL, whose blocks are fetched where they are not in its cache; no block that holds no span."""

    def __init__(self, remote: RemoteStore) -> None:
        self._remote = remote

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> None:
        """Fetch and read spans."""
        self._remote.read(out.numpy().data, reads_of(spans, places))


class Places(Place):
    """Several files, each in a place of its own: its bytes begin at a base, as those of `JoinedFiles`."""

    def __init__(self, each: Sequence[Place], bases: Sequence[int]) -> None:
        self._each, self._bases = each, np.array(bases)

    def locate(self, spans: Spans) -> Located | None:
        """Return where spans of one file are; None also where they are of several."""
        found = self._one(spans)
        return None if found is None else found[0].locate(found[1])

    def view(self, spans: Spans) -> torch.Tensor | None:
        """Return a view of spans of one file, as its place does."""
        found = self._one(spans)
        return None if found is None else found[0].view(found[1])

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> Copies | None:
        """Begin to bring the spans of each file; those in memory are copied as one batch."""
        parts, under_way = list[CopyPart](), list[Copies]()
        is_streamed = False
        for n, at, begins in routed(self._bases, spans.begins):
            place, own = self._each[n], Spans(begins, spans.sizes[at])
            if isinstance(place, InMemory) and (located := place.locate(own)) is not None:
                parts.append(CopyPart(located.memory, Spans(located.begins, own.sizes), places[at]))
                is_streamed = place.is_streamed
            elif (copies := place.read(own, out, places[at])) is not None:
                under_way.append(copies)
        if parts and (copies := begin_copy(parts, out, is_streamed=is_streamed)) is not None:
            under_way.append(copies)
        return AllCopies(under_way) if under_way else None

    def _one(self, spans: Spans) -> tuple[Place, Spans] | None:
        """Return the place that has all of the spans, and where they are in its file; None: there are several."""
        of_files = list(routed(self._bases, spans.begins))
        n, _, begins = of_files[0]
        return (self._each[n], Spans(begins, spans.sizes)) if len(of_files) == 1 else None


def bytes_of(place: Place, spans: Spans, memory: Callable[[int], torch.Tensor]) -> Located:
    """Return spans in memory: where they are, or read to memory, which gives uint8[size_bytes]; waits."""
    located = place.locate(spans)
    if located is None:
        places, out = laid_out(spans.sizes), memory(int(spans.sizes.sum()))
        if (copies := place.read(spans, out, places)) is not None:
            copies.wait()
        located = Located(out.numpy(), places)
    return located
