"""Places of the bytes of rows: memory, a file, or a URL. A place knows no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from reader.format.manifest import Manifest
from reader.memory.spans import Bytes, Read, Spans, begin_copy, reads_of
from reader.memory.threads import Copies
from reader.rows import Rows, Steps

# Returns uint8[size_bytes].
Memory = Callable[[int], torch.Tensor]


class ByteReader(Protocol):
    """Reads bytes of pixels: from a file, or a store at a URL, whose blocks are fetched first."""

    def read(self, memory: memoryview, reads: Sequence[Read], /) -> None:
        """Read bytes to their places in memory."""


class Remote(ByteReader, Protocol):
    """A store at a URL, which `reader.remote` reads through a folder on a local disk.

    root: that folder, with all files of the store except its pixels.
    """

    root: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        """Return the path of a file that opening does not need, after it is fetched."""

    def place(self, plan: Any) -> Place:
        """Return the place of a pass's rows; plan: an `EpochPlan`, whose module imports this one."""


class Place:
    """A place of a file's bytes."""

    def load(self, spans: Spans, places: Rows, memory: Memory) -> tuple[torch.Tensor, Copies | None]:
        """Begin to read spans to their places in uint8[n], which is complete after a wait for the copies, if any.

        The result is in memory from `memory`, or in memory that the place has already read them into.

        Raises:
            StoreError, OSError: as `read`.
        """
        pixels = memory(int(spans.sizes.sum()))
        return pixels, self.read(spans, pixels, places)

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> Copies | None:
        """Begin to read spans to their places in out, uint8[n], contiguous; None: they are complete.

        Raises:
            StoreError: a file was cut short, or a block cannot be fetched.
            OSError: a file cannot be read; names it.
        """
        raise NotImplementedError

    def ahead(self, steps: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the steps of a pass in order, and read their rows ahead. For one thread."""
        return steps

    def close(self) -> None:
        """End the reading ahead."""


class InMemory(Place):
    """A mapped file: uint8[n]."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> Copies | None:
        """Begin to copy spans."""
        return begin_copy(self._memory, spans, out, places)


class InFile(Place):
    """A place that the calling thread reads: a file, or a store at a URL, from which only blocks with spans are fetched."""

    def __init__(self, file: ByteReader) -> None:
        self._file = file

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> None:
        """Read spans."""
        self._file.read(out.numpy().data, reads_of(spans, places))
