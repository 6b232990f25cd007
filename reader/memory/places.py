"""Where the bytes of rows are: in memory, in a file, in object storage, or in several of these. A place knows no row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from reader.format.manifest import Manifest
from reader.memory.spans import Bytes, Read, Spans, begin_copy, laid_out, reads_of
from reader.memory.threads import Copies
from reader.rows import Rows, Steps

# Gives uint8[size_bytes].
Memory = Callable[[int], torch.Tensor]


class ByteReader(Protocol):
    """Reads bytes of pixels: from a file, or a store at a URL, whose blocks are fetched first."""

    def read(self, memory: memoryview, reads: Sequence[Read], /) -> None:
        """Bring bytes to their places in memory."""


class Remote(ByteReader, Protocol):
    """A store at a URL, as `reader.remote` reads it through a folder on a local disk.

    root: that folder, with the store's files but its pixels.
    """

    root: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        """Return the path of a file that opening does not need, now that it is there."""

    def place(self, plan: Any) -> Place:
        """Return where the rows of a pass are read from, by its `EpochPlan`, which rests on this module."""


class Located(NamedTuple):
    """Spans in memory, uint8[n], and where each begins there, int64[B]. The memory stays while this is referenced."""

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

    def bring(self, spans: Spans, places: Rows, memory: Memory) -> tuple[torch.Tensor, Copies | None]:
        """Begin to bring spans to their places in uint8[n], which is complete when the copies, if any, were waited for.

        That is in memory that is asked for, or that the place has read them into.

        Raises:
            StoreError, OSError: as `read`.
        """
        pixels = memory(int(spans.sizes.sum()))
        return pixels, self.read(spans, pixels, places)

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> Copies | None:
        """Begin to bring spans to their places in out, uint8[n], contiguous; None: they are there.

        Raises:
            StoreError: a file was cut short, or something cannot be had.
            OSError: a file cannot be read; names it.
        """
        raise NotImplementedError

    def ahead(self, steps: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the steps of a pass, each to be taken before the next, and read ahead what they will ask for. For one thread."""
        return steps

    def close(self) -> None:
        """End what reads ahead."""


class InMemory(Place):
    """A file that is mapped, or bytes of it that were copied to memory.

    Args:
        memory: uint8[n].
        is_streamed: as of `begin_copy`.
    """

    def __init__(self, memory: Bytes, *, is_streamed: bool = False) -> None:
        self._memory, self._is_streamed = memory, is_streamed

    def locate(self, spans: Spans) -> Located:
        """Return where spans are."""
        return Located(self._memory, spans.begins)

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> Copies | None:
        """Begin to copy spans."""
        return begin_copy(self._memory, spans, out, places, is_streamed=self._is_streamed)


class InFile(Place):
    """A place that the calling thread reads: a file, or a store at a URL, of which no block is fetched that holds no span."""

    def __init__(self, file: ByteReader) -> None:
        self._file = file

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> None:
        """Read spans."""
        self._file.read(out.numpy().data, reads_of(spans, places))


def bytes_of(place: Place, spans: Spans, memory: Memory) -> Located:
    """Return spans in memory: where they are, or read to memory, which gives uint8[size_bytes]; waits."""
    located = place.locate(spans)
    if located is None:
        places, out = laid_out(spans.sizes), memory(int(spans.sizes.sum()))
        if (copies := place.read(spans, out, places)) is not None:
            copies.wait()
        located = Located(out.numpy(), places)
    return located
