"""Places of the bytes of rows: memory, a file, or a URL. A place knows no row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from reader.format.manifest import Manifest
from reader.memory.spans import Bytes, Read, Spans, begin_copy, reads_of
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
        """Return the place of a pass's rows, by its `EpochPlan`, whose module imports this one."""


class Place:
    """A place of a file's bytes."""

    def load(self, spans: Spans, places: Rows, memory: Memory) -> tuple[torch.Tensor, Copies | None]:
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
        """Yield the steps of a pass in order, and read their rows ahead. For one thread."""
        return steps

    def close(self) -> None:
        """End the reading ahead."""


class InMemory(Place):
    """A file that is mapped: uint8[n]."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> Copies | None:
        """Begin to copy spans."""
        return begin_copy(self._memory, spans, out, places)


class InFile(Place):
    """A place that the calling thread reads: a file, or a store at a URL, of which no block is fetched that holds no span."""

    def __init__(self, file: ByteReader) -> None:
        self._file = file

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> None:
        """Read spans."""
        self._file.read(out.numpy().data, reads_of(spans, places))
