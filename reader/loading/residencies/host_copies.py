"""A copy of a file's rows, or of some, in memory: where they are in it, and how they come there."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from reader.device.transfer import pin
from reader.memory import residency as residencies
from reader.memory.gather import is_run
from reader.memory.joined_file import RowSource, open_rows
from reader.memory.positions import Positions
from reader.memory.row_file import READ_BYTES, Read, RowMemory, bring_rows, reads_in_order
from reader.rows import Rows


class HostCopy:
    """Units of one file, or of several, in anonymous memory that may use huge pages.

    Args:
        source: the file.
        held: int64[n] of the units, sorted and each once; None: all.
        count: of the file.

    Attributes:
        units: uint8[n, unit_bytes].
        positions: where each unit is among them.

    Raises:
        StoreError, OSError: as `RowFile.read`.
    """

    def __init__(self, source: RowSource, unit_bytes: int, held: Rows | None, count: int) -> None:
        self.positions = Positions(held, count)
        memory = RowMemory(self.positions.count, unit_bytes)
        self.units, self._is_whole, self._is_pinned = memory.rows, held is None, False
        # only memory that is as the file can be read past the page cache, see `plan_reads`
        past_cache = held is None and isinstance(source, Path) and residencies.is_cold(source, self.units.nbytes)
        reads = _cut(reads_in_order(np.arange(count) if held is None else held), max(1, READ_BYTES // unit_bytes))
        with contextlib.closing(open_rows(source, unit_bytes, past_cache=past_cache)) as file:
            bring_rows(file, memory.bytes, reads)

    def read_bytes(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Bring bytes of the file to memory, of units that are held: (first byte, how many, first byte of memory) each."""
        bytes_from(self.units, self.positions.of, memory, reads)

    @property
    def file_bytes(self) -> npt.NDArray[np.uint8] | None:
        """The file's bytes, uint8[n], where all of them are held."""
        return self.units.view(-1).numpy() if self._is_whole else None

    def pin(self, device: torch.device) -> None:
        """Pin the units, where they are, for as long as this lives.

        Raises:
            PinnedMemoryError: the system does not allow it.
        """
        if not self._is_pinned and len(self.units):
            unpin = pin(self.units, device)
            self._is_pinned = True
            weakref.finalize(self, unpin).atexit = False


def bytes_from(
    held: torch.Tensor, positions_of: Callable[[Rows], Rows], memory: memoryview, reads: Sequence[Read]
) -> None:
    """Bring bytes of a file to memory from its units, uint8[n, unit_bytes]; positions_of: where units of the file are there."""
    into, unit_bytes = np.frombuffer(memory, np.uint8), held.shape[1]
    for start, count, offset in reads:
        found_at = positions_of(np.arange(start // unit_bytes, -(-(start + count) // unit_bytes)))
        if is_run(found_at):
            found = held.numpy()[int(found_at[0]) : int(found_at[-1]) + 1]
        else:
            found = np.take(held.numpy(), found_at, axis=0)
        into[offset : offset + count] = found.reshape(-1)[start % unit_bytes : start % unit_bytes + count]


def _cut(reads: list[Read], most: int) -> list[Read]:
    """Cut reads into pieces of so many units."""
    return [
        (row + done, min(most, length - done), position + done)
        for row, length, position in reads
        for done in range(0, length, most)
    ]
