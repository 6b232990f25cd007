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
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict
from torch.utils.data import get_worker_info

from reader import system
from reader.buffers import alone, own_memory
from reader.dataset.sources import Sources
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, PAGE_BYTES, PIXELS, Manifest
from reader.format.row_values import RowValues
from reader.format.tensors import NEEDS_RAW
from reader.memory.frame_file import FrameFile, FrameSource, mapped_bytes
from reader.memory.gather import Copies, gather, is_run
from reader.memory.joined_file import RowSource
from reader.memory.pages import PagedRows, extents, gathered, paged, row_of
from reader.memory.row_file import Read, RowFile, RowMemory, RowReader, reads_in_order
from reader.memory.text_file import TextFile
from reader.remote.presence import RemoteStore
from reader.rows import Rows
from reader.store import (
    Batch,
    RaggedBatch,
    batch_around,
    batch_of,
    columns_of,
    map_file,
    map_store,
    map_tensor,
    open_store,
    store_of,
)

# Gives uint8[size_bytes].
Memory = Callable[[int], torch.Tensor]


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
    files: by tensor, but for those that were made in memory.
    frames: of compressed rows, which are unpacked, whoever asks for them.
    made: tensors that stand in memory, in place of those of files or beside them.
    made_id: differs where what a user made of them does.

    Of a remote store, path is its folder in the cache. Until that is complete, nothing but `read_rows` may look at its pixels,
    which brings them there first, and all that is given is a copy.

    Raises:
        StoreError: path is not a finished, undamaged store.
    """

    frames: FrameFile | None = None
    # where texts of rows are read from, where they have any
    text_file: TextFile | None = None

    def __init__(self, path: Path, remote: RemoteStore | None = None) -> None:
        self.path, self.remote = path, remote
        self.mapped: Batch
        self.files: dict[str, RowReader]
        self.made: dict[str, torch.Tensor] = {}
        self.made_id = ""
        # what opens it again, in another process too; None: its path says all
        self.opener: Callable[[], OpenedStore] | None = None
        is_one_store = False
        # another store may take this one's name meanwhile: the rows of the one must not go with the targets of the other
        while not is_one_store:
            before = self._seen()
            self.manifest, self.mapped = self._mapped()
            files = {
                name: RowFile(path / file, self._unit_bytes(name), past_cache=False)
                for name, file in self.manifest.tensor_paths().items()
            }
            self.text_file = TextFile.of(path, self.manifest) if self.manifest.texts else None
            is_one_store = before == self._seen()
        sizes = {name: self.manifest.files[file].size_bytes for name, file in self.manifest.tensor_paths().items()}
        # a file of slots has its own size
        in_slots = remote is not None and remote.folder.in_slots
        self._sizes = [(file, sizes[name]) for name, file in files.items() if not (in_slots and name == "pixels")]
        self.files, self._row_files = {**files}, files
        if self.manifest.compression:
            read = (
                self._read_pixels if system.can_read_ahead() else mapped_bytes(files["pixels"].opened, sizes["pixels"])
            )
            table = map_tensor(files["frames"].opened, torch.int64, (self.manifest.rows, 2))
            self.frames = FrameFile(lambda row: (str(path), row), self.manifest, table, sizes["pixels"], read)
        self.sources = Sources(path, self.manifest, remote)
        self.begin()

    def begin(self) -> None:
        """Prepare the checks of rows, once the manifest is known."""
        self._specs = self.manifest.tensors
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

    def numbers(self, rows: Rows) -> torch.Tensor:
        """Return what rows are called in a batch, int64[*rows.shape]."""
        return torch.from_numpy(rows)

    def rows_of(self, numbers: torch.Tensor) -> Rows:
        """Return the rows that are called so in a batch, int64[*numbers.shape]."""
        return numbers.numpy()

    @property
    def is_local(self) -> bool:
        """Whether all pixels are on this machine, and stay."""
        return self.remote is None or self.remote.is_complete

    def opened(self, name: str) -> RowSource:
        """Return what opens a tensor's file again, whatever has its name by now; all of a remote store is fetched.

        Raises:
            StoreError: cache_size is too small for that, or something cannot be had.
        """
        if self.remote is not None:
            self.remote.complete()
        return self._row_files[name].opened

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
        if self.frames is not None:
            raise StoreError(f"{self.path}: {NEEDS_RAW}.")
        sizes = {name: self.manifest.files[file].size_bytes for name, file in self.manifest.tensor_paths().items()}
        self.opened("pixels")
        files = {name: file for name, file in self._row_files.items() if name not in self.made}
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
        if isinstance(self.mapped, RaggedBatch):
            extents(self.mapped, np.arange(self.manifest.rows))
        return store

    def row(self, row: int) -> Batch:
        """Return one row, without a batch dimension: a copy in memory of its own.

        Raises:
            StoreError: a file was cut short.
        """
        self.check_files()
        # read, not copied from the mapping: whenever a file is cut short, that is an error, not the end of the process
        if system.can_read_ahead() and not isinstance(self.mapped, RaggedBatch):
            return self.with_texts(self._read(np.array(row), own_memory))
        rows = np.array([row])
        some = self._read(rows, own_memory) if system.can_read_ahead() else self.gather(rows, own_memory)
        found: Any = row_of(some, 0) if isinstance(some, RaggedBatch) else some[0]
        if isinstance(some, RaggedBatch):
            # the pages that were read hold other rows too
            found.pixels = alone(found.pixels)
            if some.mask_offsets is not None:
                found.extras["masks"] = alone(found.extras["masks"])
        found.rows = self.numbers(rows)[0]
        return self.with_texts(found)

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
        held = cast(TensorDict, self.mapped.extras)
        chosen = torch.arange(self.manifest.rows) if rows is None else torch.from_numpy(rows)
        return self.text_file.texts(held.select(*self.manifest.texts)[chosen])

    def slice(self, start: int, stop: int) -> Batch:
        """Return rows [start, stop), one at least, as views that share nothing with what batches are copied from.

        Of a remote store that is not all in its cache, and of compressed rows, a copy.

        Raises:
            StoreError: a file was cut short. One that is cut later ends the process that reads the view (SIGBUS).
        """
        return self.with_texts(self._sliced(start, stop))

    def _sliced(self, start: int, stop: int) -> Batch:
        self.check_files()
        rows = np.arange(start, stop)
        if not self.is_local or self.frames is not None:
            return self._read(rows, own_memory)
        if not isinstance(self.mapped, RaggedBatch):
            batch = self.views.rows(start, stop)
            batch.rows = torch.from_numpy(rows)
            # check the values on disk: a user can write to a view
            self.check_rows(rows)
            return batch
        offsets, sizes = extents(self.mapped, rows)
        first, end = int(offsets.min()), int((offsets + sizes).max())
        pixels = self.views.tensor("pixels", first, end)
        return self._checked_batch(self.mapped.chosen(rows, pixels, torch.from_numpy(offsets - first)), rows)

    def gather(self, rows: Rows, memory: Memory) -> Batch:
        """Copy rows into memory.

        Raises:
            StoreError: a file was cut short.
        """
        return self.with_texts(self._gathered(rows, memory))

    def _gathered(self, rows: Rows, memory: Memory) -> Batch:
        self.check_files()
        if _reads_files() or not self.is_local or self.frames is not None:
            return self._read(rows, memory)
        if isinstance(self.mapped, RaggedBatch):
            return self._checked_batch(gathered(self.mapped, rows, memory), rows)
        pixels = memory(len(rows) * self.manifest.row_bytes).view(len(rows), *self.mapped.pixels.shape[1:])
        gather(self.mapped.pixels, rows, pixels)
        return self._checked_batch(batch_of(self.mapped, rows, pixels), rows)

    def check_rows(self, rows: Rows | None, batch: Batch | None = None) -> None:
        """Check that targets, content and shapes of rows are those of a store, before anything relies on them.

        Args:
            rows: int64[B]; None: all.
            batch: of these rows, on the CPU: a few microseconds; without it they are looked up.

        Raises:
            StoreError: one is not: names the row; or a file was cut short.
        """
        if batch is None:
            self.check_files()
        columns = columns_of(self.mapped if batch is None else batch, self._checked)
        if batch is None and rows is not None:
            # of consecutive rows a view
            index = slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) and is_run(rows) else rows
            columns = {name: values[index] for name, values in columns.items()}
        self._values.check(str(self.path), np.arange(self.manifest.rows) if rows is None else rows, columns)

    def _checked_batch(self, batch: Batch, rows: Rows) -> Batch:
        self.check_rows(rows, batch)
        return batch

    def read_rows(self, rows: Rows, into: torch.Tensor) -> int:
        """Read rows from the file into the first bytes of uint8[n], as `gathered` has them there; returns how many bytes.

        Of a remote store their blocks are fetched first, and no others.

        Raises:
            StoreError: the file was cut short, or a block cannot be had.
        """
        if isinstance(self.mapped, RaggedBatch):
            wanted = paged(self.mapped, rows)
            self._read_paged(wanted, into)
            return len(wanted.pages) * PAGE_BYTES
        size_bytes = len(rows) * self.manifest.row_bytes
        self._read_pixels(into[:size_bytes].numpy().data, reads_in_order(rows))
        return size_bytes

    def _read_paged(self, wanted: PagedRows, into: torch.Tensor) -> None:
        memory = into.view(-1).numpy().data
        if self.remote is None or self.remote.is_complete:
            self._read_pixels(memory, reads_in_order(wanted.pages))
        else:
            # not their pages: the first and the last may hold bytes of other blocks
            begins, sizes, at = wanted.begins.tolist(), wanted.sizes.tolist(), wanted.at.tolist()
            self.remote.read(memory, list(zip(begins, sizes, at, strict=True)))

    def begin_unpacking(self, rows: Rows, memory: Memory, source: FrameSource | None = None) -> tuple[Batch, Copies]:
        """Begin to unpack compressed rows into memory, complete when the copies were waited for; source: see `FrameFile`.

        Raises:
            StoreError: a file was cut short, or a frame is not in it; what else is wrong with one, waiting raises.
        """
        assert self.frames is not None
        self.check_files()
        if isinstance(self.mapped, RaggedBatch):
            batch, copies = self.frames.begin_ragged(self.mapped, rows, rows, memory, source)
            return self._checked_batch(batch, rows), copies
        flat, copies = self.frames.begin_equal(rows, memory, source)
        equal = batch_of(self.mapped, rows, flat.view(len(rows), *self.mapped.pixels.shape[1:]))
        return self._checked_batch(equal, rows), copies

    @functools.cached_property
    def frame_bytes(self) -> npt.NDArray[np.uint8] | None:
        """The file of compressed rows, mapped: uint8[n]; None: there are several.

        Whoever looks at it checks its size before, see `check_files`.
        """
        assert self.frames is not None
        return map_tensor(self._row_files["pixels"].opened, torch.uint8, (self.frames.size_bytes,)).numpy()

    def file_extents(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return where in the file of rows these begin, and how many bytes they have there; StoreError where one is not in it."""
        own = extents(self.mapped, rows) if isinstance(self.mapped, RaggedBatch) else None
        begins, sizes = own or (rows * self.manifest.row_bytes, np.full(len(rows), self.manifest.row_bytes))
        return (begins, sizes) if self.frames is None else self.frames.extents(rows, sizes)

    def _mapped(self) -> tuple[Manifest, Batch]:
        if self.remote is None:
            return open_store(self.path)
        folder, manifest = self.remote.folder, self.remote.folder.manifest
        size_bytes = manifest.files[PIXELS].size_bytes
        # what stands for blocks in slots has the shape of the store's, and takes no memory: nothing looks at it
        pixels = RowMemory(size_bytes, 1, is_reserved=True).rows if folder.in_slots else None
        return manifest, map_store(self.path, manifest, pixels)

    def _seen(self) -> tuple[int, int] | None:
        """Identify the file of the manifest; None if it does not exist at the moment."""
        try:
            status = os.stat(self.path / MANIFEST)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _unit_bytes(self, name: str) -> int:
        """Return what a tensor's file is read by: rows, but of flat pixels pages, and of frames bytes."""
        if name != "pixels" or not self.manifest.is_flat:
            return self.manifest.tensors[name].row_bytes
        return 1 if self.manifest.compression else PAGE_BYTES

    def _read(self, rows: Rows, memory: Memory) -> Batch:
        """Gather without the mapping. Rows of one size can also be read one at a time, int64[], without a batch dimension."""
        # a single row needs no arithmetic: a sixth of the time
        reads = reads_in_order(rows) if rows.ndim else [(int(rows), 1, 0)]
        columns = self._read_columns(rows, reads)
        if isinstance(self.mapped, RaggedBatch):
            some = RaggedBatch(pixels=self.mapped.pixels, **columns, rows=self.numbers(rows), batch_size=[])
            if self.frames is not None:
                batch, copies = self.frames.begin_ragged(some, np.arange(len(rows)), rows, memory)
                copies.wait()
                return batch
            return gathered(some, np.arange(len(rows)), memory, self._read_paged)
        shape = self.mapped.pixels.shape[1:]
        if self.frames is not None:
            flat, copies = self.frames.begin_equal(rows.reshape(-1), memory)
            copies.wait()
        else:
            flat = memory(rows.size * self.manifest.row_bytes)
            self._read_pixels(flat.numpy().data, reads)
        pixels = flat.view(*rows.shape, *shape)
        return batch_around(pixels, rows=self.numbers(rows), **columns)

    def _read_columns(self, rows: Rows, reads: Sequence[Read]) -> dict[str, Any]:
        """Read all but the pixels of rows: [*rows.shape, ...] of each tensor, the extras as one TensorDict."""
        columns: dict[str, object] = {}
        extras: dict[str, torch.Tensor] = {}
        found: dict[str, npt.NDArray[Any]] = {}
        shape = rows.shape
        for name, file in self.files.items():
            if name not in ("pixels", "frames"):
                values = np.empty((rows.size, *self._specs[name].row_shape), self._specs[name].dtype)
                file.read(values.reshape(-1).view(np.uint8).data, reads)
                found[name] = values
        for name, made in self.made.items():
            found[name] = made.numpy()[rows.reshape(-1)]
        for name, values in found.items():
            held, key = (extras, name[7:]) if name.startswith("extras/") else (columns, name)
            held[key] = torch.from_numpy(values.reshape((*shape, *values.shape[1:])))
        self._values.check(str(self.path), rows.reshape(-1), found)
        return columns | {"extras": TensorDict(extras, batch_size=shape) if extras else None}

    def _read_pixels(self, memory: memoryview, reads: Sequence[Read]) -> None:
        if self.remote is None or self.remote.is_complete:
            self.files["pixels"].read(memory, reads)
            return
        unit = self.files["pixels"].row_bytes
        self.remote.read(memory, [(row * unit, count * unit, slot * unit) for row, count, slot in reads])


def _reads_files() -> bool:
    """Whether rows are read from the files rather than copied from the mapping: in workers.

    Into fresh memory that is as fast (rows of a few hundred bytes are slower: a system call each), and no page of the store
    is mapped in any worker. A file cut short meanwhile is an error, where the mapping would end the worker by SIGBUS.
    """
    return get_worker_info() is not None and system.can_read_ahead()
