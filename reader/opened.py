"""A store, opened: its tensors mapped and its files held open; rows are copied from the one or read from the other.

Knows one whole store and rows of it; which of them make a dataset, and in what form they are given, is `dataset.py`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch.utils.data import get_worker_info

from reader.copying import gather
from reader.manifest import MANIFEST, PAGE_BYTES
from reader.order import Rows
from reader.ragged import gathered, row_of
from reader.rawfile import Read, RowFile, reads_in_order
from reader.residency import can_read_ahead
from reader.store import ImageBatch, RaggedBatch, batch_of, open_store

# Gives uint8[size_bytes].
Memory = Callable[[int], torch.Tensor]


class OpenedStore:
    """One store, whatever takes its name later.

    store: an ImageBatch, or a RaggedBatch where rows have sizes of their own; files: by tensor.

    Raises:
        StoreError: path is no finished, undamaged store.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.store: Any
        is_one_store = False
        # another store may take this one's name meanwhile: the rows of the one must not go with the targets of the other
        while not is_one_store:
            before = self._seen()
            self.manifest, self.store = open_store(path)
            self.files = {
                name: RowFile(path / file, self._unit_bytes(name), past_cache=False)
                for name, file in self.manifest.tensor_paths().items()
            }
            is_one_store = before == self._seen()
        sizes = {name: self.manifest.files[file].size_bytes for name, file in self.manifest.tensor_paths().items()}
        self._sizes = [(file, sizes[name]) for name, file in self.files.items()]

    def check_files(self) -> None:
        """Raise StoreError if a file of the store is no longer as large as it was."""
        for file, size_bytes in self._sizes:
            file.check_size(size_bytes)

    def row(self, row: int) -> Any:
        """Return one row, without a batch dimension: views of the mapped store, in workers a copy."""
        store, place = self.store, row
        if _reads_files():
            self.check_files()
            store, place = self._read(np.array([row]), _own), 0
        found = row_of(store, place) if self.manifest.has_own_sizes else store[place]
        found.rows = torch.tensor(row, device="cpu")
        return found

    def gather(self, rows: Rows, memory: Memory) -> ImageBatch | RaggedBatch:
        """Copy rows into memory.

        Raises:
            StoreError: a file was cut short.
        """
        self.check_files()
        if _reads_files():
            return self._read(rows, memory)
        if self.manifest.has_own_sizes:
            return gathered(self.store, rows, memory)
        pixels = memory(len(rows) * self.manifest.row_bytes).view(len(rows), *self.store.pixels.shape[1:])
        gather(self.store.pixels, rows, pixels)
        return batch_of(self.store, rows, pixels)

    def _seen(self) -> tuple[int, int] | None:
        """Say which file the manifest is; None where there is none just now."""
        try:
            status = os.stat(self._path / MANIFEST)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _unit_bytes(self, name: str) -> int:
        """Return what a tensor's file is read by: rows, but of flat pixels pages."""
        is_flat = name == "pixels" and self.manifest.has_own_sizes
        return PAGE_BYTES if is_flat else self.manifest.tensors[name].row_bytes

    def _read(self, rows: Rows, memory: Memory) -> ImageBatch | RaggedBatch:
        """Gather without the mapping."""
        reads = reads_in_order(rows)
        columns: dict[str, Any] = {n: self._read_column(n, len(rows), reads) for n in self.files if n != "pixels"}
        extras = {name[7:]: columns.pop(name) for name in list(columns) if name.startswith("extras/")}
        columns["extras"] = TensorDict(extras, batch_size=[len(rows)]) if extras else None
        if self.manifest.has_own_sizes:
            some = RaggedBatch(pixels=self.store.pixels, **columns, batch_size=[])
            batch = gathered(some, np.arange(len(rows)), memory, self._read_pages)
            batch.rows = torch.from_numpy(rows)
            return batch
        pixels = memory(len(rows) * self.manifest.row_bytes).view(len(rows), *self.store.pixels.shape[1:])
        self.files["pixels"].read(pixels.view(-1).numpy().data, reads)
        return ImageBatch(pixels=pixels, **columns, rows=torch.from_numpy(rows), batch_size=[len(rows)])

    def _read_column(self, name: str, count: int, reads: Sequence[Read]) -> torch.Tensor:
        spec = self.manifest.tensors[name]
        values = np.empty((count, *spec.row_shape), spec.dtype)
        self.files[name].read(values.reshape(-1).view(np.uint8).data, reads)
        return torch.from_numpy(values)

    def _read_pages(self, pages: Rows, into: torch.Tensor) -> None:
        self.files["pixels"].read(into.view(-1).numpy().data, reads_in_order(pages))


def fresh(size_bytes: int) -> torch.Tensor:
    """Allocate uint8[size_bytes]: in a DataLoader worker in shared memory, so that nothing is copied on the way out."""
    if get_worker_info() is not None:
        storage = torch.UntypedStorage._new_shared(size_bytes)
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    return _own(size_bytes)


def _own(size_bytes: int) -> torch.Tensor:
    """Allocate uint8[size_bytes] of this process alone."""
    return torch.from_numpy(np.empty(size_bytes, np.uint8))


def _reads_files() -> bool:
    """Whether rows are read from the files rather than copied from the mapping: in workers.

    Into fresh memory that is as fast (rows of a few hundred bytes are slower: a system call each), and no page of the store
    is mapped in any worker. A file cut short meanwhile is an error, where the mapping would end the worker by SIGBUS.
    """
    return get_worker_info() is not None and can_read_ahead()
