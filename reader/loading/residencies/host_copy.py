"""A copy of a file's bytes, or of some, in memory: which runs of the file are there, and how they come there."""

from __future__ import annotations

import contextlib
import weakref
from pathlib import Path

import numpy as np
import torch

from reader.device.transfer import pin
from reader.memory import residency as residencies
from reader.memory.joined_file import RawSource, open_raw
from reader.memory.places import InMemory
from reader.memory.raw_file import READ_BYTES, ReadMemory, bring
from reader.memory.spans import Runs, Spans


class HostCopy:
    """Bytes of one file, or of several, in anonymous memory that may use huge pages.

    Args:
        source: the file.
        spans: of the file, in any order; None: all of it.
        size_bytes: of the file.

    Raises:
        StoreError, OSError: as `RawFile.read`.
    """

    def __init__(self, source: RawSource, spans: Spans | None, size_bytes: int) -> None:
        # all of it is one run
        runs = Runs.holding(Spans(np.array([0]), np.array([size_bytes])) if spans is None else spans)
        memory = ReadMemory(runs.size_bytes)
        self._bytes, self._runs, self.is_pinned = memory.bytes, None if spans is None else runs, False
        # only memory that is as the file can be read past the page cache, see `Runs.holding`
        past_cache = spans is None and isinstance(source, Path) and residencies.is_cold(source, size_bytes)
        with contextlib.closing(open_raw(source, past_cache=past_cache)) as file:
            bring(file, memory.room, runs.reads(READ_BYTES))

    @property
    def nbytes(self) -> int:
        """The bytes that are there."""
        return self._bytes.nbytes

    @property
    def address(self) -> int:
        """Where the memory begins."""
        return self._bytes.data_ptr()

    def place(self, *, has_views: bool = False, is_streamed: bool = False) -> InMemory:
        """Return where the bytes are; has_views: batches may have them as they are, where they are pinned."""
        memory = self._bytes.numpy()
        return InMemory(memory, self._runs, is_pinned=has_views and self.is_pinned, is_streamed=is_streamed)

    def pin(self, device: torch.device) -> None:
        """Pin the bytes, where they are, for as long as this lives.

        Raises:
            PinnedMemoryError: the system does not allow it.
        """
        if not self.is_pinned and self.nbytes:
            unpin = pin(self._bytes, device)
            self.is_pinned = True
            weakref.finalize(self, unpin).atexit = False
