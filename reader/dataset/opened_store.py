"""An open store: maps its tensors and keeps its files open. Rows are copied from the mappings, or read from the files.

Knows one store and its rows; `dataset.py` decides which rows make a dataset, and their form. The source of batches is never
handed out: views are of a second mapping, which a user may change.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from reader.buffers import own_memory
from reader.format.blocks import Block, read_blocks
from reader.format.check import check_store
from reader.format.errors import StoreError
from reader.format.filesystem import identity
from reader.format.manifest import MANIFEST, PIXELS, SAMPLES, read_manifest
from reader.format.row_values import RowValues
from reader.format.samples import read_line, read_source_paths
from reader.memory.places import InFile, InMemory, Memory, Place, Remote
from reader.memory.raw_file import RawFile
from reader.memory.row_table import Columns, RowTable
from reader.memory.spans import Layout, Spans
from reader.memory.threads import Copies
from reader.rows import Rows
from reader.store import NEEDS_RAW, Batch, RaggedBatch, map_tensor, names_targets, row_of, store_of


class OpenedStore:
    """One store with its files open: a store that later takes its name changes nothing.

    files: by tensor. pixels: the mapped file of pixels: uint8[n]. table: the table of its rows.

    For a remote store, path is its folder in the cache: pixels are read only from `place`, and every result is a copy.

    Raises:
        StoreError: path is not a finished, undamaged store.
    """

    def __init__(self, path: Path, remote: Remote | None = None) -> None:
        self.path, self.remote = path, remote
        self._identity, is_one_store = identity(path / MANIFEST), False
        # another store may take this one's name meanwhile: rows of one must not be paired with targets of the other
        while not is_one_store:
            try:
                self._open()
            except (StoreError, OSError):  # some files may be from one store and some from the other
                if self._identity == identity(path / MANIFEST):
                    raise
            before, self._identity = self._identity, identity(path / MANIFEST)
            is_one_store = before == self._identity
        m = self.manifest
        self.table, self._values = RowTable(m, path), RowValues(m)
        self._names = [name for name in m.tensors if name != "pixels"]
        # the columns that `check_rows` and `RowTable.layout` check
        self._checked = list(dict.fromkeys([*self._values.tensors, *self.table.located_by]))

    def _open(self) -> None:
        self.manifest = m = check_store(self.path) if self.remote is None else self.remote.manifest
        self.files, self._tensors = dict[str, RawFile](), dict[str, torch.Tensor]()
        for name, file in m.tensor_paths().items():
            if name != "pixels" or self.remote is None:
                self.files[name] = RawFile(self.path / file, past_cache=False)
                self._tensors[name] = self._mapped(name, self.path / file)
        self._arrays = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        self.pixels = self._arrays.get("pixels")

    def _mapped(self, name: str, path: Path) -> torch.Tensor:
        """Map the file of a tensor; that of the pixels as uint8[n]."""
        m = self.manifest
        shape = (self.file_bytes,) if name == "pixels" else (m.rows, *m.tensors[name].row_shape)
        return map_tensor(path, getattr(torch, m.tensors[name].dtype), shape)

    @property
    def file_bytes(self) -> int:
        """The bytes of the file of pixels."""
        return self.manifest.files[PIXELS].size_bytes

    def pixel_path(self) -> Path:
        """Return a function that opens the same pixel file again, even if another file has its name by now.

        Raises:
            StoreError: it is at a URL.
        """
        if self.remote is not None:
            raise StoreError(
                f"{self.remote} is at a URL, and views are of files here. Copy it first: pack pull URL OUT"
            )
        return self.files["pixels"].opened

    def check_files(self) -> None:
        """Raise StoreError if a file of the store is no longer as large as it was."""
        for name, file in self.files.items():
            file.check_size(self._tensors[name].nbytes)

    # -- rows

    @functools.cached_property
    def _views(self) -> dict[str, torch.Tensor]:
        """The tensors of users' views: of a second mapping, made for the first view.

        Raises:
            StoreError: rows are compressed.
        """
        if not self.table.is_raw:
            raise StoreError(f"{self.path}: {NEEDS_RAW}.")
        self.pixel_path()
        return {name: self._mapped(name, file.opened) for name, file in self.files.items()}

    @functools.cached_property
    def all_rows(self) -> Batch:
        """All rows, as views, after a check of their targets, content and shapes.

        Raises:
            StoreError: one is invalid in this store; names the row.
        """
        pixels = self._views["pixels"].view(self.manifest.pixel_shape)
        rows = np.arange(self.manifest.rows)
        self.check_rows(rows)
        self.layout(rows)
        return store_of(self.manifest, self._views | {"pixels": pixels})

    def row(self, row: int) -> Batch:
        """Return one row, without a batch dimension: a copy in separate memory.

        Raises:
            StoreError: a file was cut short.
        """
        batch = self.gather(np.array([row]), own_memory)
        one: Any = row_of(batch, 0) if isinstance(batch, RaggedBatch) else batch[0]
        if isinstance(batch, RaggedBatch) and batch.mask_offsets is not None:
            # torch pickles whole storages, and the mask is in the image's
            one.pixels, one.extras["masks"] = one.pixels.clone(), one.extras["masks"].clone()
        return one

    @functools.cached_property
    def has_pairs(self) -> bool:
        """Whether rows are raw, on this disk, and have a class as their only label: `pair` reads them."""
        m = self.manifest
        is_plain = m.target_kind == "class" and not names_targets(m)
        return self.remote is None and self.table.is_raw and is_plain

    def pair(self, row: int) -> tuple[torch.Tensor, int]:
        """Return (uint8[C, H, W], class) of a row, a copy: a faster `row`, if the store `has_pairs`.

        Raises:
            StoreError: a file was cut short, or the target or shape of the row is invalid in this store.
        """
        self.check_files()
        m, largest = self.manifest, self.manifest.sides
        start, shape = row * math.prod(largest), list(largest)
        if m.has_own_sizes:
            start, shape = int(self._arrays["offsets"][row]), self._arrays["shapes"][row].tolist()
        target, size = int(self._arrays["targets"][row]), math.prod(shape)
        is_inside = start >= 0 and start + size <= self.file_bytes and shape[2] == largest[2]
        if not is_inside or not all(0 < side <= most for side, most in zip(shape, largest, strict=True)):
            self.layout(np.array([row]))
            self.check_rows(np.array([row]))
        if not -1 <= target < len(m.classes):
            self.check_rows(np.array([row]))
        if get_worker_info() is None:
            pixels = self._tensors["pixels"][start : start + size].clone()
        else:
            pixels = own_memory(size)
            self.files["pixels"].read(pixels.numpy().data, [(start, size, 0)])
        return pixels.view(shape).movedim(-1, 0), target

    def slice(self, start: int, stop: int) -> Batch:
        """Return rows [start, stop), at least one, as views of a mapping which is not the source of batches.

        For a remote store, or compressed rows, it is a copy.

        Raises:
            StoreError: a file was cut short. If it is cut later, the process that reads the view ends (SIGBUS).
        """
        rows = np.arange(start, stop)
        if not self.table.is_raw or self.remote is not None:
            return self.gather(rows, own_memory)
        self.check_files()
        # from the disk: a user can write to a view
        columns = self.columns(rows, self._checked)
        self.check_rows(rows, columns)
        spans = self.table.layout(rows, columns).spans
        first, end = int(spans.begins.min()), int(spans.ends.max())
        views = {name: _part(self._views[name], start, stop) for name in self._names}
        located = {name: columns[name] for name in self.table.located_by}
        pixels = _part(self._views["pixels"], first, end)
        return self.table.batch(rows, views | located, pixels, spans.begins - first)

    def gather(self, rows: Rows, memory: Memory) -> Batch:
        """Copy rows into memory, and wait.

        Raises:
            StoreError: a file was cut short.
        """
        return self._gathered(rows, self.place(), memory)

    def _gathered(self, rows: Rows, place: Place, memory: Memory) -> Batch:
        batch, copies = self.begin(rows, place, memory)
        if copies is not None:
            copies.wait()
        return batch

    def begin(
        self, rows: Rows, place: Place, memory: Memory, table: RowTable | None = None
    ) -> tuple[Batch, Copies | None]:
        """Begin to read rows from a place into memory, as `RowTable.begin` does, and check their values.

        table: the table of the rows at the place; None: the store's.

        Raises:
            StoreError: as `RowTable.begin`, or a value of a row is invalid in this store.
        """
        self.check_files()
        columns = self.columns(rows, self._names)
        # check sizes before threads unpack rows by them
        self.check_rows(rows, columns)
        return (table or self.table).begin(rows, columns, place, memory)

    def place(self) -> Place:
        """Return the place of the pixels: a URL, the file, or its mapping, which workers do not use."""
        if self.remote is not None:
            return InFile(self.remote)
        # frames are read, not mapped: decoded rows are much larger
        is_read = not self.table.is_raw or get_worker_info() is not None
        return InFile(self.files["pixels"]) if is_read else self.in_memory()

    def in_memory(self) -> Place:
        """Return the file of pixels, mapped. Callers check its size before, see `check_files`."""
        assert self.pixels is not None
        return InMemory(self.pixels)

    def columns(self, rows: Rows, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Copy some tensors of rows: [B, ...] each, by name in the manifest."""
        numbers = torch.from_numpy(rows)
        return {name: self._tensors[name].index_select(0, numbers) for name in names}

    def layout(self, rows: Rows) -> Layout:
        """Return the layout and values of rows in the pixel file; raises StoreError as `RowTable.layout`."""
        return self.table.layout(rows, self.columns(rows, self.table.located_by))

    def spans(self, rows: Rows) -> Spans:
        """Return the layout of rows in the pixel file; raises StoreError as `RowTable.layout`."""
        return self.layout(rows).spans

    def check_rows(self, rows: Rows, columns: Columns | None = None) -> None:
        """Check that targets, content and shapes of rows are valid, before anything relies on them.

        Args:
            columns: those of these rows, which takes a few microseconds; None: they are looked up.

        Raises:
            StoreError: one is invalid, and the row is named; or a file was cut short.
        """
        if columns is None:
            self.check_files()
            columns = self.columns(rows, self._values.tensors)
        self._values.check(str(self.path), rows, {name: columns[name].numpy() for name in self._values.tensors})

    # -- sources of rows: the lines of samples.jsonl, read at the first request

    @functools.cached_property
    def source_paths(self) -> list[str]:
        """The path of each row's source, relative to the packed folder; raises StoreError as `source`."""
        return read_source_paths(self._with_samples(), self.manifest)

    def source(self, row: int) -> dict[str, Any]:
        """Return the line of one row without reading the full file.

        Raises:
            StoreError: the store at its path was replaced: its pixels stay open, but this file does not.
        """
        root, blocks = self._with_samples(), self._blocks
        block = blocks[bisect.bisect_right(blocks, row, key=lambda each: each.start) - 1]
        return read_line(root, block.samples_offset, row - block.start, row)

    @functools.cached_property
    def _blocks(self) -> list[Block]:
        return read_blocks(self.path)

    def _with_samples(self) -> Path:
        """Return the folder of samples.jsonl, after a check that it is still the same store."""
        if self.remote is not None:
            self.remote.file(SAMPLES)
        elif (now := identity(self.path / MANIFEST)) != self._identity:
            if read_manifest(self.path).digest != self.manifest.digest:
                raise StoreError(
                    f"{self.path} was packed again since this dataset was opened. Open it again to see its sources."
                )
            self._identity = now
        return self.path


def _part(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return a view of [start, stop) with a storage of only these bytes: torch pickles, copies and sends whole storages."""
    return torch.from_numpy(tensor.numpy()[start:stop])
