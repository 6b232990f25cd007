"""Bytes of a file in memory: a copy of them, or of some, with the runs of the file that are there; or its page cache, pinned."""

from __future__ import annotations

import contextlib
import mmap
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

    def place(self, *, device: torch.device | None = None, is_streamed: bool = False) -> InMemory:
        """Return where the bytes are; device: that they are sent to, where they are pinned."""
        return InMemory(self._bytes.numpy(), self._runs, device=device, owner=self, is_streamed=is_streamed)

    def pin(self, device: torch.device) -> None:
        """Pin the bytes, where they are, for as long as this lives.

        Raises:
            PinnedMemoryError: the system does not allow it.
        """
        if not self.is_pinned and self.nbytes:
            unpin = pin(self._bytes.numpy(), device)
            self.is_pinned = True
            weakref.finalize(self, unpin).atexit = False


class PinnedFile:
    """A file that is mapped and pinned where its pages are in the page cache; they stay there.

    device: any CUDA device; it is pinned for all.

    Raises:
        PinnedMemoryError: the system, or the driver, does not allow it.
    """

    def __init__(self, path: Path, size_bytes: int, device: torch.device) -> None:
        # shared, unlike the mapping that rows are gathered from: the driver would make copies of private pages
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._bytes = np.frombuffer(mapped, np.uint8)
        weakref.finalize(self, pin(self._bytes, device, is_read_only=True)).atexit = False

    @property
    def nbytes(self) -> int:
        """The bytes that are pinned."""
        return self._bytes.nbytes

    def place(self, device: torch.device) -> InMemory:
        """Return where the bytes are, and which device they are sent to."""
        return InMemory(self._bytes, device=device, owner=self, is_streamed=True)
