"""`MemmapDataset`: a store as a torch Dataset that is indexed a batch at a time and never decodes.

Slices are views of the mapped store; single rows are copies, lists of rows one gather. It pickles to a path.
"""

from __future__ import annotations

import bisect
import itertools
import json
import multiprocessing
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from reader.dataset import collate
from reader.dataset.opened_store import OpenedStore, fresh
from reader.format.errors import StoreError
from reader.format.manifest import SAMPLES, Block, Manifest, read_blocks, read_json_lines, read_manifest
from reader.memory.buffers import BufferPool
from reader.memory.gather import is_run
from reader.memory.pages import row_of
from reader.order import permuted
from reader.rows import Rows, rows_named
from reader.store import Batch, RaggedBatch, names_targets, plain

# A loop holds a batch while the next one is gathered.
_LOOP_BUFFERS = 2

Index = int | slice | Sequence[int] | torch.Tensor | npt.NDArray[Any]


class MemmapDataset(Dataset[Any]):
    """A packed store, or some rows of it.

    Args:
        path: the folder that `pack` wrote.
        transform: called with one image uint8[C, H, W], as ImageFolder does: per sample; with as_tuple=False with a one-row
            ImageBatch. Whole batches on the device are `MemmapLoader(transform=...)`'s, and many times faster.
        target_transform: called with one target, only with as_tuple.
        as_tuple: indexing gives plain tuples: (image, target) of a row, (images, targets) of rows. With boxes, masks or several
            target columns the second is a dict: `targets`, and each of the others by its name. False: an ImageBatch.

    Raises:
        StoreError: path is no finished, undamaged store.

    Example:
        >>> train = MemmapDataset(store_path)
        >>> images, targets = train[10:20]
        >>> images.shape, train[10][1]
        (torch.Size([10, 3, 32, 32]), 0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        as_tuple: bool = True,
    ) -> None:
        if target_transform is not None and not as_tuple:
            raise ValueError(
                "target_transform needs as_tuple=True: with as_tuple=False a row is one ImageBatch, for transform alone."
            )
        self.path = Path(os.path.abspath(path))
        self.transform = transform
        self.target_transform = target_transform
        self.as_tuple = as_tuple
        self._rows: Rows | None = None
        self.manifest: Manifest
        # the store as batches are copied from it, never handed out; see `store`
        self.mapped: Batch
        self._open()

    def _open(self) -> None:
        self._opened = OpenedStore(self.path)
        self.manifest, self.mapped = self._opened.manifest, self._opened.mapped
        self._pool = BufferPool(0, keep=_LOOP_BUFFERS)
        self._blocks: tuple[list[int], list[Block]] | None = None
        self._lists: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return self.manifest.rows if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        m = self.manifest
        row = f"{'up to ' if m.has_own_sizes else ''}uint8[{m.height}, {m.width}, {m.channels}]"
        return f"MemmapDataset({str(self.path)!r}: {len(self)} rows of {row}, {len(m.classes)} classes)"

    def _repr_html_(self) -> str:
        """Show a notebook a contact sheet."""
        from reader.dataset.preview import html_of, shown_positions

        self.check_files()
        shown = self.subset(shown_positions(len(self)))
        # as it is stored, and rows know their numbers
        shown.transform = shown.target_transform = None
        shown.as_tuple = False
        return html_of(repr(self), self.manifest, (shown[i] for i in range(len(shown))))

    def __getstate__(self) -> dict[str, Any]:
        opened = ("manifest", "mapped", "_opened", "_pool", "_blocks", "_lists")
        state = {k: v for k, v in self.__dict__.items() if k not in opened}
        return state | {"digest": self.manifest.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        digest = state.pop("digest")
        self.__dict__.update(state)
        try:
            self._open()
            if self.manifest.digest != digest:
                raise StoreError(f"{self.path} was packed anew since this dataset was pickled. Open it again.")
        except StoreError as e:
            # A DataLoader worker that fails to start is a riddle; one whose first batch fails says why in the training
            # program. The attribute is there while a spawned process takes over what its parent sent.
            if not getattr(multiprocessing.current_process(), "_inheriting", False):
                raise
            for name in ("manifest", "mapped", "_opened"):
                self.__dict__.pop(name, None)
            self._refusal = e

    def __getattr__(self, name: str) -> Any:
        """Raise what a worker could not say while it started; called only for what is not there."""
        if "_refusal" in self.__dict__:
            raise self._refusal
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")

    # -- rows

    @property
    def store(self) -> Batch:
        """All of the store, as views: an ImageBatch, or a RaggedBatch where rows have sizes of their own.

        Raises:
            StoreError: a file was cut short.
        """
        self.check_files()
        return self._opened.views.store

    def __getitem__(self, index: Index) -> Any:
        """Return one row (a copy, no batch dimension), a slice (views where rows are contiguous), or a gather (a copy).

        What is changed in a view is seen by other views of this dataset, and by nothing else.

        Raises:
            StoreError: a file of the store was cut short.
        """
        if isinstance(index, slice):
            if self._transforms_samples():
                return self[np.arange(len(self))[index]]
            return self._present(self._slice(index))
        if _is_row(index):
            return self._sample(operator.index(index))
        positions = self._positions(index)
        if self._transforms_samples():
            return default_collate([self._sample(int(i)) for i in positions])
        return self._present(self._gather(positions))

    def __iter__(self) -> Iterator[Any]:
        """Give one row after the other; without this, an IndexError of a transform would end the loop as if all were given."""
        return (self[index] for index in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return a whole batch at once; torch's DataLoader calls this instead of one `__getitem__` an item.

        The batch is a copy that belongs to the caller: in a worker in shared memory, so that nothing is copied on the way
        out, else in memory that is used again once the batch and all views of it are dropped.
        """
        if self._transforms_samples():
            return [self._sample(int(i)) for i in indices]
        batch = self._gather(self._positions(indices), self._leased if get_worker_info() is None else fresh)
        if self.as_tuple:
            return collate.tuple_rows(*plain(batch, by_name=self.names_targets))
        collate.seeded(batch)
        return collate.Rows(batch, len(batch), lambda n: row_of(batch, n)) if isinstance(batch, RaggedBatch) else batch

    def store_rows(self, positions: Rows) -> Rows:
        """Map positions in this dataset, int64[B] in [0, len), to rows of the store."""
        return positions if self._rows is None else self._rows[positions]

    def check_files(self) -> None:
        """Raise StoreError if a file of the store is no longer as large as it was."""
        self._opened.check_files()

    def opened(self, name: str) -> Path:
        """Return a path that opens a tensor's file, as this dataset holds it, again: another store may have its name by now."""
        return self._opened.files[name].opened

    # -- what ImageFolder has

    @property
    def classes(self) -> list[str]:
        """Class names; a class target is an index into them."""
        return list(self.manifest.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name -> target."""
        return {name: i for i, name in enumerate(self.manifest.classes)}

    @property
    def targets(self) -> list[Any]:
        """The targets as a list, as ImageFolder has them; the tensor is `store.targets`."""
        if "targets" not in self._lists:
            self.check_files()
            targets = self.mapped.targets
            self._lists["targets"] = (targets if self._rows is None else targets[torch.from_numpy(self._rows)]).tolist()
        return self._lists["targets"]

    @property
    def samples(self) -> list[tuple[str, Any]]:
        """(path, target) of each row; paths are relative to the packed folder."""
        if "samples" not in self._lists:
            self._check_sources()
            paths = [line["path"] for line in read_json_lines(self.path / SAMPLES)]
            rows = range(len(paths)) if self._rows is None else self._rows.tolist()
            self._lists["samples"] = list(zip((paths[row] for row in rows), self.targets, strict=True))
        return self._lists["samples"]

    imgs = samples

    def source(self, index: int) -> dict[str, Any]:
        """Return what samples.jsonl says of one row: path, target, source bytes, sha256, size, what was done.

        Raises:
            IndexError: there is no such row.
            StoreError: the store at its path is another one by now.
        """
        row = self._store_row(index)
        if self._blocks is None:
            self._check_sources()
            blocks = read_blocks(self.path)
            self._blocks = [b.start for b in blocks], blocks
        starts, blocks = self._blocks
        block = blocks[bisect.bisect_right(starts, row) - 1]
        with open(self.path / SAMPLES, "rb") as file:
            file.seek(block.samples_offset)
            line = next(itertools.islice(file, row - block.start, None))
        source: dict[str, Any] = json.loads(line)
        return source

    # -- parts of it, without copying a pixel

    def subset(self, rows: Index) -> MemmapDataset:
        """Return a dataset of these rows, in this order; a boolean mask keeps the rows that are True.

        Raises:
            IndexError: there is no such row.
        """
        part = object.__new__(MemmapDataset)
        part.__dict__.update(self.__dict__)
        part._lists = {}
        positions = np.arange(len(self))[rows] if isinstance(rows, slice) else self._positions(rows)
        part._rows = np.ascontiguousarray(self.store_rows(positions))
        return part

    @property
    def is_whole(self) -> bool:
        """Say whether these are all rows of the store, in its order."""
        return self._rows is None

    @property
    def names_targets(self) -> bool:
        """Say whether the second of a tuple is a dict by name: with boxes, masks or several target columns."""
        return names_targets(self.manifest)

    def whole(self) -> MemmapDataset:
        """Return a dataset of all rows of the store, whatever part of them this is."""
        part = object.__new__(MemmapDataset)
        part.__dict__.update(self.__dict__)
        part._rows, part._lists = None, {}
        return part

    def split(self, fraction: float, *, seed: int = 0, stratify: bool = False) -> tuple[MemmapDataset, MemmapDataset]:
        """Split at random into fraction and the rest; stratify keeps each class's share. Each part keeps store order.

        Raises:
            ValueError: fraction is not inside (0, 1), or stratify without class targets.
        """
        if not isinstance(fraction, int | float) or not 0 < fraction < 1:
            raise ValueError(f"fraction is {fraction!r}, expected a number between 0 and 1, both left out.")
        if stratify and self.manifest.target_kind != "class":
            raise ValueError(f"stratify needs class targets, this store has {self.manifest.target_kind} targets.")
        order = permuted(len(self), 0, len(self), seed=seed)
        groups = [order]
        if stratify:
            targets = np.asarray(self.targets)[order]
            groups = [order[targets == value] for value in np.unique(targets)]
        first = np.sort(np.concatenate([order[:0], *(g[: round(fraction * len(g))] for g in groups)]))
        mask = np.ones(len(self), dtype=bool)
        mask[first] = False
        return self.subset(first), self.subset(np.flatnonzero(mask))

    def numpy(self) -> npt.NDArray[np.uint8]:
        """Return the pixels as a read-only uint8[N, H, W, C] that shares the store's memory (a subset is a copy).

        Raises:
            ValueError: rows have sizes of their own.
        """
        if self.manifest.has_own_sizes:
            raise ValueError(
                f"the rows of {self.path} have sizes of their own, which no one array holds. Take dataset[i].pixels.numpy()."
            )
        pixels = self._slice(slice(None)).pixels.numpy()
        pixels.flags.writeable = False
        return pixels

    # -- private

    def _check_sources(self) -> None:
        """Raise StoreError if the files that say where rows come from are another store's by now; pixels and targets are held."""
        if read_manifest(self.path).digest != self.manifest.digest:
            raise StoreError(
                f"{self.path} was packed anew since this dataset was opened. Open it again to see its sources."
            )

    def _positions(self, index: Any) -> Rows:
        """Check and normalise any list of rows to int64[B] in [0, len)."""
        try:
            rows = np.asarray(index.cpu() if isinstance(index, torch.Tensor) else index)
        except ValueError:
            raise IndexError(f"rows are a {type(index).__name__} of lists, expected a list of whole numbers.") from None
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise IndexError(f"the mask has the shape {list(rows.shape)}, expected [{len(self)}].")
            return np.flatnonzero(rows)
        if rows.ndim == 0:
            raise IndexError(
                f"the index is {' '.join(repr(index).split())}, expected a whole number, a slice, a list of rows or a mask."
            )
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise IndexError(f"rows are {rows.dtype}{list(rows.shape)}, expected a list of whole numbers.")
        rows = rows.astype(np.int64)
        if rows.size and (rows.min() < -len(self) or rows.max() >= len(self)):
            worst = int(rows.max() if rows.max() >= len(self) else rows.min())
            raise IndexError(f"row {worst} is out of range: {self.path} has {len(self)} rows.")
        return np.where(rows < 0, rows + len(self), rows)

    def _store_row(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} is out of range: {self.path} has {len(self)} rows.")
        position = index % len(self)
        return position if self._rows is None else int(self._rows[position])

    def _sample(self, index: int) -> Any:
        sample = self._opened.row(row := self._store_row(index))
        if not self._transforms_samples():
            return self._present(sample, single=True)
        with rows_named(self.path, row):
            return self._present(sample, single=True)

    def _transforms_samples(self) -> bool:
        return self.transform is not None or self.target_transform is not None

    def _slice(self, index: slice) -> Batch:
        positions = np.arange(*index.indices(len(self)))
        rows = self.store_rows(positions)
        if not is_run(rows) or not len(rows):
            return self._gather(positions)
        return self._opened.slice(int(rows[0]), int(rows[-1]) + 1)

    def _gather(self, positions: Rows, memory: Callable[[int], torch.Tensor] = fresh) -> Batch:
        return self._opened.gather(self.store_rows(positions), memory)

    def _leased(self, size_bytes: int) -> torch.Tensor:
        """Lease uint8[size_bytes]; the buffers kept are those of the size that was asked for last, or somewhat larger."""
        pool = self._pool
        if not size_bytes <= pool.size_bytes <= 2 * size_bytes:
            # batches of rows with sizes of their own differ: a little room spares most of them a fresh buffer
            room = size_bytes // 4 if self.manifest.has_own_sizes else 0
            pool = self._pool = BufferPool(size_bytes + room, keep=_LOOP_BUFFERS)
        return pool.lease(size_bytes)

    def _present(self, batch: Batch, *, single: bool = False) -> Any:
        if not self.as_tuple:
            return self.transform(batch) if single and self.transform else batch
        images, targets = plain(batch, by_name=self.names_targets)
        if not single:
            return images, targets
        value = batch.targets.item() if batch.targets.ndim == 0 else batch.targets
        target = targets | {"targets": value} if isinstance(targets, dict) else value
        return (
            self.transform(images) if self.transform else images,
            self.target_transform(target) if self.target_transform else target,
        )


def _is_row(index: Any) -> TypeGuard[SupportsIndex]:
    """Whether an index is one whole number: an int, numpy's, or a tensor without dimensions; a bool is none."""
    if torch.is_tensor(index):
        return index.ndim == 0 and not (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool)
    return isinstance(index, int | np.integer) and not isinstance(index, bool)
