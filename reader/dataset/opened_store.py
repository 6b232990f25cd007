"""A store, opened: its tensors mapped and its files held open; rows are copied from the one or read from the other.

Knows one store and rows of it; which of them make a dataset, and in what form they are given, is `dataset.py`'s. What
batches are copied from is never handed out: views are of a second mapping, in which a user may change what he likes.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch.utils.data import get_worker_info

from reader import system
from reader.buffers import alone, own_memory
from reader.dataset.sources import Sources
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, PIXELS, Manifest
from reader.format.row_values import RowValues
from reader.format.tensors import NEEDS_RAW
from reader.memory.joined_file import RawSource
from reader.memory.places import AtUrl, InFile, InMemory, Place
from reader.memory.raw_file import RawFile, reserved
from reader.memory.row_table import Columns, Layout, Memory, RowTable, begin_batch, row_of
from reader.memory.spans import Bytes, Spans, equal_spans, reads_of
from reader.memory.text_file import TextFile
from reader.memory.threads import Copies
from reader.remote.presence import RemoteStore
from reader.rows import Rows
from reader.store import (
    Batch,
    RaggedBatch,
    map_file,
    map_store,
    map_tensor,
    open_store,
    store_of,
    tensor_of,
)

# What rows have in files beside their columns.
_NO_COLUMNS = ("pixels", "frames")


class Views:
    """Tensors over a mapping of a store that belongs to its user, who may change in it what he likes.

    The storage of each is its rows alone: torch pickles, copies and sends whole storages.
    """

    def __init__(
        self, manifest: Manifest, maps: dict[str, mmap.mmap | None], made: dict[str, torch.Tensor] | None = None
    ) -> None:
        """maps: of each tensor's file, None where it has no bytes. made: those that stand in memory; they are copied."""
        self._manifest, self._maps, self._made = manifest, maps, made or {}

    def tensor(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Return rows [start, stop) of a tensor."""
        if name in self._made:
            return self._made[name][start:stop].clone()
        spec = self._manifest.tensors[name]
        dtype, shape = getattr(torch, spec.dtype), (stop - start, *spec.row_shape)
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(self._maps[name], dtype=dtype, count=count, offset=start * spec.row_bytes).view(shape)

    def rows(self, start: int, stop: int) -> Batch:
        """Return rows [start, stop) of a store whose rows have one size."""
        return store_of(self._manifest, {name: self.tensor(name, start, stop) for name in self._manifest.tensors})

    @functools.cached_property
    def store(self) -> Batch:
        """All of the store."""
        return store_of(
            self._manifest, {name: self.tensor(name, 0, self._manifest.count(name)) for name in self._manifest.tensors}
        )


class OpenedStore:
    """One store, whatever takes its name later.

    mapped: all of it, for what copies from it; an ImageBatch, or a RaggedBatch where rows have sizes of their own.
    files: by tensor.
    table: what its rows are.
    made: tensors that stand in memory, in place of those of files or beside them.
    made_id: differs where what a user made of them does.

    Of a remote store, path is its folder in the cache. Until that is complete, pixels are read from `place` alone, which brings
    them there first, and all that is given is a copy.

    Raises:
        StoreError: path is not a finished, undamaged store.
    """

    # where texts of rows are read from, where they have any
    text_file: TextFile | None = None

    def __init__(self, path: Path, remote: RemoteStore | None = None) -> None:
        self.path, self.remote = path, remote
        self.mapped: Batch
        self.files: dict[str, RawFile]
        self.table: RowTable
        self.made: dict[str, torch.Tensor] = {}
        self.made_id = ""
        # what opens it again, in another process too; None: its path says all
        self.opener: Callable[[], OpenedStore] | None = None
        is_one_store = False
        # another store may take this one's name meanwhile: the rows of the one must not go with the targets of the other
        while not is_one_store:
            before = self._seen()
            try:
                self.manifest, self.mapped = self._mapped()
                files = {
                    name: RawFile(path / file, past_cache=False) for name, file in self.manifest.tensor_paths().items()
                }
                self.text_file = TextFile.of(path, self.manifest) if self.manifest.texts else None
            except (StoreError, OSError):  # of files of both
                if before == self._seen():
                    raise
                continue
            is_one_store = before == self._seen()
        sizes = {name: self.manifest.files[file].size_bytes for name, file in self.manifest.tensor_paths().items()}
        # of a small cache, blocks have files of their own
        is_small = remote is not None and remote.folder.is_small
        self._sizes = [(file, sizes[name]) for name, file in files.items() if not (is_small and name == "pixels")]
        self.files = files
        frames = None
        if self.manifest.compression:
            frames = map_tensor(files["frames"].opened, torch.int64, (self.manifest.rows, 2))
        pixel_bytes = self.mapped.pixels.numel()
        self.table = RowTable(self.manifest, lambda row: (str(path), row), pixel_bytes, frames, sizes["pixels"])
        self.sources = Sources(path, self.manifest, remote)
        self.prepare()

    def prepare(self) -> None:
        """Prepare columns and checks of rows, once the manifest is known."""
        self._specs = self.manifest.tensors
        self._columns = [name for name in self._specs if name not in _NO_COLUMNS]
        self._values = RowValues(self.manifest)
        self._checked = self._values.tensors

    @property
    def parts(self) -> list[tuple[OpenedStore, int]]:
        """The stores that this one is of, each with the number of its first row: itself."""
        return [(self, 0)]

    @property
    def levels(self) -> tuple[int, ...]:
        """By what the sides of rows are divided on its levels: (), (2,) or (2, 4)."""
        return self.manifest.levels

    @property
    def is_local(self) -> bool:
        """Whether all pixels are on this machine, and stay."""
        return self.remote is None or self.remote.is_complete

    def opened(self, name: str) -> RawSource:
        """Return what opens a tensor's file again, whatever has its name by now; all of a remote store is fetched.

        Raises:
            StoreError: cache_size is too small for that, or something cannot be had.
        """
        if self.remote is not None:
            self.remote.complete()
        return self.files[name].opened

    def check_files(self) -> None:
        """Raise StoreError if a file of the store is no longer as large as it was."""
        for file, size_bytes in self._sizes:
            file.check_size(size_bytes)

    @functools.cached_property
    def views(self) -> Views:
        """The mapping behind tensors that users get, made with the first of them.

        Raises:
            StoreError: rows are compressed.
        """
        if self.is_compressed:
            raise StoreError(f"{self.path}: {NEEDS_RAW}.")
        sizes = {name: self.manifest.files[file].size_bytes for name, file in self.manifest.tensor_paths().items()}
        self.opened("pixels")
        files = {name: file for name, file in self.files.items() if name not in self.made}
        maps = {name: map_file(file.opened, sizes[name]) for name, file in files.items()}
        return Views(self.manifest, maps, self.made)

    @functools.cached_property
    def all_rows(self) -> Batch:
        """All of the store, as `views` has it, once targets, content and shapes of all rows are checked.

        Raises:
            StoreError: one is none of this store's; names the row.
        """
        store = self.with_texts(self.views.store)
        self.check_rows(None)
        self.layout(np.arange(self.manifest.rows))
        return store

    def row(self, row: int) -> Batch:
        """Return one row, without a batch dimension: a copy in memory of its own.

        Raises:
            StoreError: a file was cut short.
        """
        rows = np.array([row])
        # read, not copied from the mapping: whenever a file is cut short, that is an error, not the end of the process
        reads_files = system.can_read_ahead()
        one: Any = self._gathered(rows, own_memory, reads_files=reads_files, is_one=True)
        if isinstance(one, RaggedBatch):
            batch, one = one, row_of(one, 0)
            if batch.mask_offsets is not None:
                # torch pickles whole storages: the mask stands behind the image
                one.pixels, one.extras["masks"] = alone(one.pixels), alone(one.extras["masks"])
            one.rows = torch.tensor(row)
        return self.with_texts(one)

    def with_texts(self, batch: Batch) -> Batch:
        """Write on a batch where the texts of its rows are read from; returns it."""
        if self.text_file is not None:
            batch.text_file = self.text_file
        return batch

    def texts(self, rows: Rows | None) -> dict[str, list[str]]:
        """Return each text column by name, of these rows, or of all with None."""
        if self.text_file is None:
            return {}
        self.check_rows(rows)
        chosen = np.arange(self.manifest.rows) if rows is None else rows
        spans = self.columns(chosen, [f"extras/{name}" for name in self.manifest.texts])
        found = {name.removeprefix("extras/"): column for name, column in spans.items()}
        return self.text_file.texts(TensorDict(found, batch_size=[len(chosen)]))

    def slice(self, start: int, stop: int) -> Batch:
        """Return rows [start, stop), one at least, as views that share nothing with what batches are copied from.

        Of a remote store that is not all in its cache, and of compressed rows, a copy.

        Raises:
            StoreError: a file was cut short. One that is cut later ends the process that reads the view (SIGBUS).
        """
        return self.with_texts(self._sliced(start, stop))

    def _sliced(self, start: int, stop: int) -> Batch:
        rows = np.arange(start, stop)
        if not self.is_local or self.is_compressed:
            return self._gathered(rows, own_memory, reads_files=False)
        self.check_files()
        if not self.table.has_own_sizes:
            batch = self.views.rows(start, stop)
            batch.rows = torch.from_numpy(rows)
            # check the values on disk: a user can write to a view
            self.check_rows(rows)
            return batch
        columns = self.columns(rows)
        spans = self.table.layout(rows, columns).spans
        first, end = int(spans.begins.min()), int(spans.ends.max())
        self.check_rows(rows, columns)
        return self.table.batch(
            torch.from_numpy(rows), columns, self.views.tensor("pixels", first, end), spans.begins - first
        )

    def gather(self, rows: Rows, memory: Memory) -> Batch:
        """Copy rows into memory.

        Raises:
            StoreError: a file was cut short.
        """
        return self.with_texts(self._gathered(rows, memory, reads_files=_reads_files()))

    def _gathered(self, rows: Rows, memory: Memory, *, reads_files: bool, is_one: bool = False) -> Batch:
        """Copy rows into memory, and wait; is_one: a single row of one size has no batch dimension."""
        place = self.place(reads_files=reads_files)
        batch, copies = self.begin(rows, place, memory, reads_files=reads_files, is_one=is_one)
        if copies is not None:
            copies.wait()
        return batch

    def begin(
        self, rows: Rows, place: Place, memory: Memory, *, reads_files: bool = False, is_one: bool = False
    ) -> tuple[Batch, Copies | None]:
        """Begin to bring rows from a place to memory, as `begin_batch` does, and check their values.

        reads_files: columns are read from their files, not gathered from the mapping.

        Raises:
            StoreError: as `begin_batch`, or a value of a row is none of this store.
        """
        self.check_files()
        columns = self.columns(rows, reads_files=reads_files)
        # before threads unpack what a row says it is
        self.check_rows(rows, columns)
        return begin_batch(self.table, rows, columns, place, memory, is_one=is_one)

    def place(self, *, reads_files: bool = False) -> Place:
        """Return where pixels are now; reads_files: they are read, where the file is here, not copied from its mapping."""
        if self.remote is not None and not self.remote.is_complete:
            return AtUrl(self.remote)
        # frames are read: what is unpacked is much more, and no page of the store is mapped for it
        can_read = system.can_read_ahead()
        is_read = can_read and (reads_files or self.is_compressed)
        return InFile(self.files["pixels"]) if is_read else self.in_memory()

    @property
    def file_bytes(self) -> int:
        """The bytes of the file of pixels."""
        return self.manifest.files[PIXELS].size_bytes

    def in_memory(self, *, is_streamed: bool = False) -> Place:
        """Return the file of pixels, mapped. Who looks at it checks its size before, see `check_files`.

        is_streamed: large batches are written past the caches, as `begin_copy` has it.
        """
        return InMemory(self._mapped_bytes, is_streamed=is_streamed)

    def placed(self, each: Sequence[Place]) -> Place:
        """Return the place of all rows, whose file of pixels is in this one."""
        (place,) = each
        return place

    @functools.cached_property
    def _tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor_of(self.mapped, name) for name in self._columns if name not in self.made}

    @functools.cached_property
    def _mapped_bytes(self) -> Bytes:
        if not self.is_compressed:
            return self.mapped.pixels.view(-1).numpy()
        return map_tensor(self.files["pixels"].opened, torch.uint8, (self.file_bytes,)).numpy()

    def columns(
        self, rows: Rows, names: Sequence[str] | None = None, *, reads_files: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return what rows have beside their pixels: [B, ...] of each tensor, by its name in the manifest.

        names: of the tensors; None: all. reads_files: they are read from their files, not gathered from the mapping.
        """
        index, columns = torch.from_numpy(rows), dict[str, torch.Tensor]()
        for name in self._columns if names is None else names:
            if name in self.made:
                columns[name] = self.made[name].index_select(0, index)
            elif reads_files:
                columns[name] = self._read_column(name, rows)
            else:
                columns[name] = self._tensors[name].index_select(0, index)
        return columns

    def by_store(self, rows: Rows) -> list[Rows]:
        """Return the positions of rows by the store that they are of: int64[...] each."""
        return [np.arange(len(rows))]

    def no_rows(self) -> Batch:
        """Return a batch of no row: it shows which tensors a batch has, and of what type and shape a row of each is."""
        rows = np.arange(0)
        return self.table.batch(torch.from_numpy(rows), self.columns(rows), torch.empty(0, dtype=torch.uint8), rows)

    def layout(self, rows: Rows) -> Layout:
        """Return where rows are in the file of pixels, and what they are; raises StoreError as `RowTable.layout`."""
        return self.table.layout(rows, self.columns(rows) if self.table.has_own_sizes else {})

    def spans(self, rows: Rows) -> Spans:
        """Return where rows are in the file of pixels; raises StoreError as `RowTable.layout`."""
        return self.layout(rows).spans

    def check_rows(self, rows: Rows | None, columns: Columns | None = None) -> None:
        """Check that targets, content and shapes of rows are those of a store, before anything relies on them.

        Args:
            rows: int64[B]; None: all.
            columns: of these rows: a few microseconds; without them they are looked up.

        Raises:
            StoreError: one is not: names the row; or a file was cut short.
        """
        if rows is None:
            rows = np.arange(self.manifest.rows)
        if columns is None:
            self.check_files()
            columns = self.columns(rows, self._checked)
        self._values.check(str(self.path), rows, {name: columns[name].numpy() for name in self._checked})

    @property
    def is_compressed(self) -> bool:
        """Whether rows are unpacked, whoever asks for them."""
        return self.manifest.compression is not None

    def _mapped(self) -> tuple[Manifest, Batch]:
        if self.remote is None:
            return open_store(self.path)
        folder, manifest = self.remote.folder, self.remote.folder.manifest
        size_bytes = manifest.files[PIXELS].size_bytes
        # what stands for blocks in files of their own has the shape of the store's, and takes no memory: nothing looks at it
        pixels = reserved(size_bytes) if folder.is_small else None
        return manifest, map_store(self.path, manifest, pixels)

    def _seen(self) -> tuple[int, int] | None:
        """Identify the file of the manifest; None if it does not exist at the moment."""
        try:
            status = os.stat(self.path / MANIFEST)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _read_column(self, name: str, rows: Rows) -> torch.Tensor:
        """Read rows of a tensor from its file."""
        spec = self._specs[name]
        values = np.empty((len(rows), *spec.row_shape), spec.dtype)
        reads = reads_of(*equal_spans(rows, spec.row_bytes))
        self.files[name].read(values.reshape(-1).view(np.uint8).data, reads)
        return torch.from_numpy(values)


def _reads_files() -> bool:
    """Whether rows are read from the files rather than copied from the mapping: in workers.

    Into fresh memory that is as fast (rows of a few hundred bytes are slower: a system call each), and no page of the store
    is mapped in any worker. A file cut short meanwhile is an error, where the mapping would end the worker by SIGBUS.
    """
    return get_worker_info() is not None and system.can_read_ahead()
