"""An open store: maps its tensors and keeps its files open. Rows are copied from the mappings, or read from the files.

Knows one store and rows of it; which of them make a dataset, and in what form they are given, is `dataset.py`'s. What
batches are copied from is never handed out: views are of a second mapping, in which a user may change what he likes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from reader.buffers import alone, own_memory
from reader.dataset.sources import Sources
from reader.format.check import check_store
from reader.format.errors import StoreError
from reader.format.filesystem import identity
from reader.format.manifest import MANIFEST, PIXELS, TensorSpec
from reader.format.row_values import RowValues
from reader.memory.places import InFile, InMemory, Memory, Place, Remote
from reader.memory.raw_file import RawFile
from reader.memory.row_table import Columns, RowTable, row_of, row_table
from reader.memory.spans import Bytes, Layout, Spans, equal_spans, reads_of
from reader.memory.threads import Copies
from reader.rows import Rows
from reader.store import NEEDS_RAW, Batch, RaggedBatch, map_tensor, names_targets, store_of

# Tensors of a store that are not columns of its rows.
_NO_COLUMNS = ("pixels", "frames")


class FileColumn:
    """One tensor of all rows, but for the pixels, that is mapped from its file.

    Args:
        path: the file, which `file` has open.
        shape: of all rows.
    """

    def __init__(self, path: Path, file: RawFile, spec: TensorSpec, shape: tuple[int, ...]) -> None:
        self._spec, self._shape, self._file = spec, shape, file
        self._dtype = getattr(torch, spec.dtype)
        self.tensor = map_tensor(path, self._dtype, shape)

    def take(self, rows: Rows, *, reads_file: bool) -> torch.Tensor:
        """Copy some rows; reads_file: from the file, not from its mapping."""
        if not reads_file:
            return self.tensor.index_select(0, torch.from_numpy(rows))
        values = np.empty((len(rows), *self._shape[1:]), self._spec.dtype)
        reads = reads_of(*equal_spans(rows, self._spec.row_bytes))
        self._file.read(values.reshape(-1).view(np.uint8).data, reads)
        return torch.from_numpy(values)

    def for_views(self) -> torch.Tensor:
        """Return memory that a user may change, which no batch is copied from: the file, mapped once more."""
        return map_tensor(self._file.opened, self._dtype, self._shape)


class OpenedStore:
    """One store with its files open: another store that takes its name later changes nothing.

    files: by tensor.
    table: what its rows are.
    pixels: the file of pixels, mapped: uint8[n].

    Of a remote store, path is its folder in the cache: pixels are read from `place` alone, and all that is given is a copy.

    Raises:
        StoreError: path is not a finished, undamaged store.
    """

    # where texts of rows are read from, where they have any

    def __init__(self, path: Path, remote: Remote | None = None) -> None:
        self.path, self.remote = path, remote
        is_one_store = False
        # another store may take this one's name meanwhile: the rows of the one must not go with the targets of the other
        while not is_one_store:
            before = identity(path / MANIFEST)
            try:
                self.manifest = check_store(path) if remote is None else remote.manifest
                inside = self.manifest.tensor_paths()
                paths = {name: path / file for name, file in inside.items()}
                here = {name: file for name, file in paths.items() if remote is None or name != "pixels"}
                self.files = {name: RawFile(file, past_cache=False) for name, file in here.items()}
                tensors = {name: spec for name, spec in self.manifest.tensors.items() if name != "pixels"}
                columns = {
                    name: FileColumn(paths[name], self.files[name], spec, (self.manifest.rows, *spec.row_shape))
                    for name, spec in tensors.items()
                }
                mapped = None if remote else map_tensor(paths["pixels"], torch.uint8, (self.file_bytes,))
            except (StoreError, OSError):  # some files may be of one store and some of the other
                if before == identity(path / MANIFEST):
                    raise
                continue
            is_one_store = before == identity(path / MANIFEST)
        self.pixels: Bytes | None = None if mapped is None else mapped.numpy()
        self._sizes = [(file, self.manifest.files[inside[name]].size_bytes) for name, file in self.files.items()]
        frames = columns.pop("frames", None)
        self._columns = columns
        self.table = row_table(
            self.manifest, lambda row: (str(path), row), None if frames is None else frames.tensor, self.file_bytes
        )
        self.sources = Sources(path, self.manifest, remote)
        self._names = [name for name in self.manifest.tensors if name not in _NO_COLUMNS]
        self._values = RowValues(self.manifest)
        self._checked = self._values.tensors

    def pixel_path(self) -> Path:
        """Return what opens its files of pixels again, whatever has their names by now.

        Raises:
            StoreError: they are at a URL.
        """
        if self.remote is not None:
            raise StoreError(
                f"{self.remote} is at a URL, and views are of files here. Copy it first: pack pull URL OUT"
            )
        return self.files["pixels"].opened

    def check_files(self) -> None:
        """Raise StoreError if a file of the store is no longer as large as it was."""
        for file, size_bytes in self._sizes:
            file.check_size(size_bytes)

    @functools.cached_property
    def _views(self) -> dict[str, torch.Tensor]:
        """The tensors behind all that users get as views: of a second mapping, which comes with the first of them.

        Raises:
            StoreError: rows are compressed.
        """
        if not self.table.is_raw:
            raise StoreError(f"{self.path}: {NEEDS_RAW}.")
        tensors = {"pixels": map_tensor(self.pixel_path(), torch.uint8, (self.file_bytes,))}
        return tensors | {name: self._columns[name].for_views() for name in self._names}

    @functools.cached_property
    def all_rows(self) -> Batch:
        """All of the store, as views, once targets, content and shapes of all rows are checked.

        Raises:
            StoreError: one is none of this store's; names the row.
        """
        pixels = self._views["pixels"].view(self.manifest.pixel_shape)
        store = store_of(self.manifest, self._views | {"pixels": pixels})
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
        one: Any = self._gathered(rows, own_memory, reads_files=True, is_one=True)
        if isinstance(one, RaggedBatch):
            batch, one = one, row_of(one, 0)
            if batch.mask_offsets is not None:
                # torch pickles whole storages, and the mask is in that of the image
                one.pixels, one.extras["masks"] = alone(one.pixels), alone(one.extras["masks"])
            one.rows = torch.tensor(row)
        return one

    @functools.cached_property
    def has_pairs(self) -> bool:
        """Whether rows are raw, on this disk, and a class is all that a loop gets beside the image: `pair` reads them."""
        m = self.manifest
        is_plain = m.target_kind == "class" and not names_targets(m)
        return self.remote is None and self.table.is_raw and is_plain

    def pair(self, row: int) -> tuple[torch.Tensor, int]:
        """Return (uint8[C, H, W], class) of a row, a copy: the short way of `row`, where the store `has_pairs`.

        Raises:
            StoreError: a file was cut short, or the target or shape of the row is none of this store's.
        """
        m, largest = self.manifest, self.manifest.sides
        start, shape = row * math.prod(largest), list(largest)
        if m.has_own_sizes:
            (start,), shape = self._numbers("offsets", row, 1, np.int64), self._numbers("shapes", row, 3, np.int32)
        (target,) = self._numbers("targets", row, 1, np.int64)
        size = math.prod(shape)
        is_inside = start >= 0 and start + size <= self.file_bytes and shape[2] == largest[2]
        if not is_inside or not all(0 < side <= most for side, most in zip(shape, largest, strict=True)):
            self.layout(np.array([row]))
        if not -1 <= target < len(m.classes):
            self.check_rows(np.array([row]))
        pixels = np.empty(size, np.uint8)
        self.files["pixels"].read(pixels.data, [(start, size, 0)])
        return torch.from_numpy(pixels.reshape(shape)).movedim(-1, 0), target

    def _numbers(self, name: str, row: int, count: int, dtype: type[np.integer[Any]]) -> list[int]:
        """Read the numbers of a row from the file of a tensor."""
        numbers = np.empty(count, dtype)
        self.files[name].read(numbers.view(np.uint8).data, [(row * numbers.nbytes, numbers.nbytes, 0)])
        return numbers.tolist()

    def slice(self, start: int, stop: int) -> Batch:
        """Return rows [start, stop), one at least, as views that share nothing with what batches are copied from.

        Of a remote store, and of compressed rows, a copy.

        Raises:
            StoreError: a file was cut short. One that is cut later ends the process that reads the view (SIGBUS).
        """
        rows = np.arange(start, stop)
        if not self.table.is_raw or self.remote is not None:
            return self._gathered(rows, own_memory, reads_files=False)
        self.check_files()
        # as they are on disk: a user can write to a view
        columns = self.columns(rows, list(dict.fromkeys([*self._checked, *self.table.form.located_by])))
        self.check_rows(rows, columns)
        spans = self.table.layout(rows, columns).spans
        first, end = int(spans.begins.min()), int(spans.ends.max())
        views = {name: _part(self._views[name], start, stop) for name in self._names}
        located = {name: columns[name] for name in self.table.form.located_by}
        pixels = _part(self._views["pixels"], first, end)
        return self.table.form.batch(rows, views | located, pixels, spans.begins - first)

    def gather(self, rows: Rows, memory: Memory) -> Batch:
        """Copy rows into memory.

        Raises:
            StoreError: a file was cut short.
        """
        return self._gathered(rows, memory, reads_files=_reads_files())

    def _gathered(self, rows: Rows, memory: Memory, *, reads_files: bool, is_one: bool = False) -> Batch:
        """Copy rows into memory, and wait; is_one: a single row of one size has no batch dimension."""
        place = self.place(reads_files=reads_files)
        batch, copies = self.begin(rows, place, memory, reads_files=reads_files, is_one=is_one)
        if copies is not None:
            copies.wait()
        return batch

    def begin(
        self,
        rows: Rows,
        place: Place,
        memory: Memory,
        *,
        reads_files: bool = False,
        is_one: bool = False,
        table: RowTable | None = None,
    ) -> tuple[Batch, Copies | None]:
        """Begin to bring rows from a place to memory, as `RowTable.begin` does, and check their values.

        reads_files: columns are read from their files, not gathered from the mapping.
        table: of the rows at the place; None: as the store has them.

        Raises:
            StoreError: as `RowTable.begin`, or a value of a row is none of this store.
        """
        self.check_files()
        columns = self.columns(rows, reads_files=reads_files)
        # before threads unpack what a row says it is
        self.check_rows(rows, columns)
        return (table or self.table).begin(rows, columns, place, memory, is_one=is_one)

    def place(self, *, reads_files: bool = False) -> Place:
        """Return where pixels are now; reads_files: they are read, where the file is here, not copied from its mapping."""
        if self.remote is not None:
            return InFile(self.remote)
        # frames are read: what is unpacked is much more, and no page of the store is mapped for it
        is_read = reads_files or not self.table.is_raw
        return InFile(self.files["pixels"]) if is_read else self.in_memory()

    @property
    def file_bytes(self) -> int:
        """The bytes of the file of pixels."""
        return self.manifest.files[PIXELS].size_bytes

    def in_memory(self, *, is_streamed: bool = False) -> Place:
        """Return the file of pixels, mapped. Who looks at it checks its size before, see `check_files`.

        is_streamed: large batches are written past the caches, as `begin_copy` has it.
        """
        assert self.pixels is not None
        return InMemory(self.pixels, is_streamed=is_streamed)

    def columns(
        self, rows: Rows, names: Sequence[str] | None = None, *, reads_files: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return what rows have beside their pixels: [B, ...] of each tensor, by its name in the manifest.

        names: of the tensors; None: all. reads_files: they are read from their files, not gathered from the mapping.
        """
        names = self._names if names is None else names
        return {name: self._columns[name].take(rows, reads_file=reads_files) for name in names}

    def layout(self, rows: Rows) -> Layout:
        """Return where rows are in the file of pixels, and what they are; raises StoreError as `RowTable.layout`."""
        return self.table.layout(rows, self.columns(rows, self.table.form.located_by))

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


def _part(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return a view of [start, stop) whose storage is no more than that: torch pickles, copies and sends whole storages."""
    return torch.from_numpy(tensor.numpy()[start:stop])


def _reads_files() -> bool:
    """Say whether rows are read from the files rather than copied from the mapping: in workers.

    Into fresh memory that is as fast (rows of a few hundred bytes are slower: a system call each), and no page of the store
    is mapped in any worker. A file cut short meanwhile is an error, where the mapping would end the worker by SIGBUS.
    """
    return get_worker_info() is not None
