"""Pixels of rows in a device's memory, decoded and each once; batches are gathered there.

Knows neither orders nor columns, which are copied as for other batches. All of it runs on a CPU as well.
"""

from __future__ import annotations

import numpy as np
import torch

from reader.buffers import own_memory
from reader.dataset.dataset import MemmapDataset
from reader.host_values import sent
from reader.memory.places import Memory, Place
from reader.memory.row_table import CopiedTable
from reader.memory.spans import Spans, merged
from reader.rows import Rows

# Bytes of mapped memory copied to a device at a time: page faults and copies then take turns.
DEVICE_COPY_BYTES = 64 << 20

# Wider words make index_select faster: over uint8[B, C, H, W] the same call was up to 5 times slower than over int64 rows.
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16))


class Resident:
    """Rows of a dataset on a device, each once.

    table: their table there. place: their place.

    Raises:
        torch.OutOfMemoryError: the device has no room for them.
    """

    def __init__(self, dataset: MemmapDataset, device: torch.device) -> None:
        store, rows = dataset._opened, np.unique(dataset._all_rows)
        sizes = store.layout(rows).sizes
        memory, start = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=device), 0
        step = max(1, DEVICE_COPY_BYTES // dataset.manifest.row_bytes)
        for first in range(0, len(rows), step):
            pixels = store.gather(rows[first : first + step], own_memory).pixels.reshape(-1)
            memory[start : start + len(pixels)].copy_(pixels)
            start += len(pixels)
        self.table = CopiedTable(dataset.manifest, dataset.path, rows, sizes)
        self.place = OnDevice(memory)


class OnDevice(Place):
    """Bytes in the memory of a device: uint8[n]."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory

    def load(self, spans: Spans, places: Rows, memory: Memory) -> tuple[torch.Tensor, None]:
        """Gather spans on the device, on the current stream and without waiting for it.

        Spans of one size are gathered by one index_select of rows of wide words. Spans of their own sizes are one
        concatenation of slices: a CUDA kernel copies 128 of them. An index of bytes would take 8 times the batch's memory.

        Raises:
            RuntimeError, torch.OutOfMemoryError: as `Place.load`.
        """
        table, sizes = _recorded(self.memory), spans.sizes
        size = int(sizes[0]) if len(sizes) else 0
        if size and (sizes == size).all() and not (spans.begins % size).any():
            out = table.new_empty((len(sizes), size))
            words, into = _as_words(table[: len(table) // size * size].view(-1, size), out)
            torch.index_select(words, 0, sent(torch.from_numpy(spans.begins // size), table.device), out=into)
            return out.view(-1), None
        joined, _ = merged(spans, places)
        each = zip(joined.begins.tolist(), joined.ends.tolist(), strict=True)
        return torch.cat([table[:0], *(table[begin:end] for begin, end in each)]), None


def _recorded(memory: torch.Tensor) -> torch.Tensor:
    """Keep memory from reuse before the current stream has finished its work: the loader may end earlier."""
    if memory.is_cuda:
        memory.record_stream(torch.cuda.current_stream(memory.device))
    return memory


def _as_words(*tables: torch.Tensor) -> list[torch.Tensor]:
    """View each uint8[N, size] as [N, K] of the widest integers that fit the row size and the alignment of all."""
    for size, dtype in _WORDS:
        if all(t.shape[1] % size == 0 and t.data_ptr() % size == 0 for t in tables):
            return [t.view(dtype) for t in tables]
    return list(tables)
