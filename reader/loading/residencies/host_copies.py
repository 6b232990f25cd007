"""A copy of some of a file's rows in memory: which of them it holds, where, and how more are added while others read it."""

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
from reader.memory.row_file import READ_BYTES, Read, RowMemory, bring_rows, reads_in_order
from reader.memory.slots import Slots, count_of
from reader.rows import Rows


class HostCopy:
    """Units of one file, or of several, in anonymous memory that may use huge pages.

    units: uint8[count, unit_bytes] in slots; address space for all of them is reserved, memory is what was added.
    """

    def __init__(self, count: int, unit_bytes: int) -> None:
        self.slots = Slots(count)
        self._memory = RowMemory(count, unit_bytes, is_reserved=True)
        self.units = self._memory.rows
        # the first so many slots are pinned
        self._pinned = 0

    def missing_bytes(self, units: Rows | None) -> int:
        """Return what adding these units would take."""
        return count_of(self.slots.missing(units), self.slots.count) * self.units.shape[1]

    def add(self, source: RowSource, units: Rows | None) -> int:
        """Read those of these units that are not held yet; returns how many bytes those were.

        units: int64[...] sorted and each once; None: all.

        Raises:
            StoreError, OSError: as `RowFile.read`; the copy holds what it held before.
        """
        missing, unit_bytes = self.slots.missing(units), self.units.shape[1]
        size_bytes = count_of(missing, self.slots.count) * unit_bytes
        if size_bytes:
            # only slots that are as the file does can be read past the page cache, see `plan_reads`
            past_cache = missing is None and isinstance(source, Path) and residencies.is_cold(source, size_bytes)
            rows = np.arange(self.slots.count) if missing is None else missing
            reads = _cut(reads_in_order(rows), self.slots.filled, max(1, READ_BYTES // unit_bytes))
            with contextlib.closing(open_rows(source, unit_bytes, past_cache=past_cache)) as file:
                bring_rows(file, self._memory.bytes, reads)
            self.slots.add(missing)
        return size_bytes

    def read_bytes(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Bring bytes of the file to memory, of units that are held: (first byte, how many, first byte of memory) each."""
        bytes_from(self.units, self.slots.of, memory, reads)

    @property
    def file_bytes(self) -> npt.NDArray[np.uint8] | None:
        """The file's bytes, uint8[n], where all of them are held in their order."""
        return self.units.view(-1).numpy() if self.slots.are_in_order else None

    def pin(self, device: torch.device) -> None:
        """Pin what is held now, where it is, for as long as this lives; what is added later stays as it is.

        Raises:
            PinnedMemoryError: the system does not allow it.
        """
        if not self._pinned and self.slots.filled:
            unpin = pin(self.units[: self.slots.filled], device)
            self._pinned = self.slots.filled
            weakref.finalize(self, unpin).atexit = False

    def is_pinned(self, units: Rows | None) -> bool:
        """Say whether all of these units, which are held, are pinned."""
        if units is None:
            return self._pinned == self.slots.count
        return not len(units) or int(self.slots.of(units).max()) < self._pinned


def bytes_from(held: torch.Tensor, slots_of: Callable[[Rows], Rows], memory: memoryview, reads: Sequence[Read]) -> None:
    """Bring bytes of a file to memory from its units, uint8[n, unit_bytes]; slots_of: which of them hold units of the file."""
    into, unit_bytes = np.frombuffer(memory, np.uint8), held.shape[1]
    for start, count, offset in reads:
        slots = slots_of(np.arange(start // unit_bytes, -(-(start + count) // unit_bytes)))
        if is_run(slots):
            found = held.numpy()[int(slots[0]) : int(slots[-1]) + 1]
        else:
            found = np.take(held.numpy(), slots, axis=0)
        into[offset : offset + count] = found.reshape(-1)[start % unit_bytes : start % unit_bytes + count]


def _cut(reads: list[Read], first_slot: int, most: int) -> list[Read]:
    """Move reads behind the slots in use, and cut them into pieces of so many units."""
    return [
        (row + done, min(most, length - done), first_slot + slot + done)
        for row, length, slot in reads
        for done in range(0, length, most)
    ]
