"""Several opened stores as one: their files side by side, their classes by name, targets and offsets made to fit.

The number of a row here is not what its batch says: files begin at whole pages, so that numbers have gaps, see
`joined_file.py`; `numbers` counts without them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from tensordict import TensorDict

from reader.dataset.alike import check_alike, joined_classes, joined_manifest, names_columns
from reader.dataset.opened_store import OpenedStore
from reader.dataset.sources import JoinedSources
from reader.format.errors import StoreError
from reader.format.manifest import PAGE_BYTES, PIXELS
from reader.format.row_values import has_boxes
from reader.format.tensors import TEXTS_FILE
from reader.memory.joined_file import FileSpan, JoinedFiles, RawSource, first_units, map_pieces
from reader.memory.places import InMemory
from reader.memory.row_table import Columns, RowTable
from reader.memory.text_file import JoinedTexts
from reader.rows import Rows
from reader.store import Batch, store_of, tensor_of

# Stands for a target that its own store does not have: the check of rows then names it.
_WRONG = -2


class JoinedStores(OpenedStore):
    """Stores with rows of the same form, concatenated.

    classes: the list that theirs are joined to; None: those of the first, then what the others have beside them.
    joined_id: the made_id that it has of its stores; another one says that its rows were given targets or extras since.

    Raises:
        StoreError: rows are not alike, or classes clash.
    """

    def __init__(self, stores: Sequence[OpenedStore], classes: Sequence[str] | None) -> None:
        self.made_id = self.joined_id = _made_id(stores)
        openers = [store.opener or functools.partial(OpenedStore, store.path) for store in stores]
        given = None if classes is None else list(classes)
        self.opener = functools.partial(open_joined, openers, [s.manifest.digest for s in stores], given)
        manifests = [store.manifest for store in stores]
        check_alike([(str(store.path), store.manifest) for store in stores])
        if given is not None and names_columns(manifests[0]) and (*given,) != manifests[0].classes:
            raise StoreError(
                f"the targets have columns of their own, {list(manifests[0].classes)}: leave classes= out."
            )
        if os.name == "nt":
            raise StoreError("several stores are mapped side by side, which Windows cannot do: use Linux or macOS.")
        self.path, self.remote = Path(" + ".join(str(store.path) for store in stores)), None
        self._stores, self._firsts = stores, first_units([manifest.rows for manifest in manifests])
        # behind the number of the last row
        self._end = self._firsts[-1] + manifests[-1].rows
        self._starts = np.cumsum([0, *(manifest.rows for manifest in manifests[:-1])])
        self._classes = given
        self._pages = first_units([manifest.count("pixels") // PAGE_BYTES for manifest in manifests])
        # offset of the pixels of each store in the concatenation
        self._begins = in_file = [page * PAGE_BYTES for page in self._pages]
        if manifests[0].compression:
            self._begins = [0, *itertools.accumulate(manifest.pixel_bytes for manifest in manifests)][:-1]
        names, self._tables = joined_classes([(str(store.path), store.manifest.classes) for store in stores], classes)
        self.manifest = joined_manifest(manifests, names)
        self.prepare()
        texts = [store.text_file for store in stores if store.text_file is not None]
        self.text_file = JoinedTexts(texts) if texts else None
        self.made = self._made()
        self.files = {name: self._opened_files(name) for name in self._specs if name not in self.made}
        tensors = {name: self._mapped_tensor(name) for name in self.files} | self.made
        self.mapped: Batch = store_of(self.manifest, {name: tensors[name] for name in self._specs})
        frames = None
        if self.manifest.compression:
            frames = self._shifted("frames", in_file, lambda store: store.manifest.files[PIXELS].size_bytes)
        self.table = RowTable(self.manifest, self._locate, self.mapped.pixels.numel(), frames, self.file_bytes)
        self.mapped.rows = torch.from_numpy(self._numbered())
        named = zip(stores, distinct_names([store.path for store in stores]), self._firsts, strict=True)
        self.sources = JoinedSources([(store.sources, name, first) for store, name, first in named])

    @property
    def parts(self) -> list[tuple[OpenedStore, int]]:
        """The stores, each with the number of its first row."""
        return list(zip(self._stores, self._firsts, strict=True))

    def numbers(self, rows: Rows) -> torch.Tensor:
        """Return the positions of rows among the rows of all stores, int64[*rows.shape]."""
        assert self.mapped.rows is not None
        return self.mapped.rows[torch.from_numpy(rows)]

    def rows_of(self, numbers: torch.Tensor) -> Rows:
        """Return the rows that have these positions among the rows of all stores, int64[*numbers.shape]."""
        which = np.searchsorted(self._starts, numbers.numpy(), side="right") - 1
        return numbers.numpy() + (np.array(self._firsts) - self._starts)[which]

    @property
    def file_bytes(self) -> int:
        """The bytes of the files of pixels, with those between them."""
        last = self._pieces("pixels")[-1]
        return last.first + last.size_bytes

    @functools.cached_property
    def in_memory(self) -> InMemory:
        """The files of pixels, mapped side by side."""
        if not self.is_compressed:
            return super().in_memory
        source = self.opened("pixels")
        assert not isinstance(source, Path)
        return InMemory(map_pieces(source).numpy())

    @property
    def levels(self) -> tuple[int, ...]:
        """Those that all of the stores have."""
        return min((store.levels for store in self._stores), key=len)

    def with_stores(self, stores: Sequence[OpenedStore]) -> JoinedStores:
        """Join others in place of these, each of as many rows and of the same classes."""
        return JoinedStores(stores, self._classes)

    def opened(self, name: str) -> RawSource:
        """Return what opens a tensor's files again."""
        opened = [store.opened(name) for store in self._stores]
        pieces = zip(opened, self._pieces(name), strict=True)
        return tuple(dataclasses.replace(p, path=path) for path, p in pieces if isinstance(path, Path))

    def check_files(self) -> None:
        """Raise StoreError if a file of one of the stores is no longer as large as it was."""
        for store in self._stores:
            store.check_files()

    @property
    def views(self) -> NoReturn:
        """Raise: there is no single tensor of all rows.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"the rows of {self.path} are no one array. Take dataset[:], dataset.numpy() or dataset.targets."
        )

    def slice(self, start: int, stop: int) -> Batch:
        """Return rows [start, stop) as `OpenedStore` does; views if all are of one store, else a copy."""
        which = int(np.searchsorted(self._firsts, start, side="right")) - 1
        store, first = self.parts[which]
        if stop - first > store.manifest.rows:
            return self.gather(np.arange(start, stop), functools.partial(torch.empty, dtype=torch.uint8))
        batch, rows = store.slice(start - first, stop - first), np.arange(start, stop)
        for name in self.made.keys() - {"offsets", "mask_offsets"}:
            if name.startswith("extras/") and batch.extras is None:
                batch.extras = TensorDict({}, batch_size=[stop - start])
            held: Any = batch.extras if name.startswith("extras/") else batch
            held.set(name.removeprefix("extras/"), self.made[name][start:stop].clone())
        batch.rows = self.numbers(rows)
        return self.with_texts(batch)

    def check_rows(self, rows: Rows | None, columns: Columns | None = None) -> None:
        """Check rows as `OpenedStore` does; the error names the row's own store."""
        if rows is None:
            for store in self._stores:
                store.check_rows(None)
            return
        try:
            super().check_rows(rows, columns)
        except StoreError:
            for store, first in self.parts:
                store.check_rows(rows[(rows >= first) & (rows < first + store.manifest.rows)] - first)
            raise

    def _locate(self, row: int) -> tuple[str, int]:
        store, first = next(part for part in reversed(self.parts) if part[1] <= row)
        return str(store.path), row - first

    def _opened_files(self, name: str) -> JoinedFiles:
        """Open a tensor's files as one."""
        pieces = zip(self._stores, self._pieces(name), strict=True)
        return JoinedFiles([(store.files[name], p.first, p.size_bytes) for store, p in pieces])  # type: ignore[misc]

    def _pieces(self, name: str) -> list[FileSpan]:
        """Return where the files of a tensor are among the bytes of all."""
        is_flat = name == "pixels" and self.manifest.is_flat
        firsts, unit = (self._pages, PAGE_BYTES) if is_flat else (self._firsts, self._specs[name].row_bytes)
        sizes = [store.manifest.files[store.manifest.tensor_paths()[name]].size_bytes for store in self._stores]
        each = zip(self._stores, firsts, sizes, strict=True)
        return [FileSpan(store.path, first * unit, size) for store, first, size in each]

    def _mapped_tensor(self, name: str) -> torch.Tensor:
        if name == "pixels" and self.manifest.compression:
            m, last = self.manifest, self._stores[-1].manifest
            shape = m.kind.pixel_shape(self._end, m.sides, self._begins[-1] + last.pixel_bytes)
            return torch.empty(shape, dtype=torch.uint8, device="meta")
        source, spec = self.opened(name), self._specs[name]
        assert not isinstance(source, Path)
        flat, count = map_pieces(source), self._end
        return flat.view(getattr(torch, spec.dtype)).view(-1 if flat.numel() else count, *spec.row_shape)

    def _numbered(self) -> Rows:
        numbers = np.full(self._end, -1, np.int64)
        done = 0
        for store, first in self.parts:
            count = store.manifest.rows
            numbers[first : first + count] = np.arange(done, done + count)
            done += count
        return numbers

    def _made(self) -> dict[str, torch.Tensor]:
        """Make the tensors that files alone do not say: classes by their joined numbers, offsets in all the pixels."""
        made: dict[str, torch.Tensor] = {}
        are_same = all(table.tolist() == list(range(len(self.manifest.classes))) for table in self._tables)
        if not are_same and self.manifest.target_kind == "class":
            made["targets"] = self._column("targets", -1, _renumbered)
        if not are_same and self.manifest.target_kind == "multi-hot":
            made["targets"] = self._column("targets", 0, self._spread)
        if not are_same and has_boxes(self.manifest):
            made["extras/box_targets"] = self._column("extras/box_targets", -1, _renumbered)
        if self.manifest.has_content and not all(store.manifest.has_content for store in self._stores):
            made["content"] = self._column("content", 0, lambda values, table: values)
        for name in self.manifest.texts:
            assert isinstance(self.text_file, JoinedTexts)
            begins, column = self.text_file.begins[: len(self._stores)], f"extras/{name}"
            made[column] = self._shifted(column, begins, lambda store: store.manifest.files[TEXTS_FILE].size_bytes)
        for name in self._specs.keys() - made.keys():
            # the targets or extras that replace those of a store
            if any(name in store.made for store in self._stores):
                made[name] = self._column(name, 0, lambda values, table: values)
        for name in ("offsets", "mask_offsets"):
            if name in self._specs:
                made[name] = self._shifted(name, self._begins, lambda store: store.manifest.pixel_bytes - 1)
        return made

    def _column(
        self, name: str, fill: int, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Make a tensor of all rows; change: maps the values of one store, given its table of classes."""
        spec = self._specs[name]
        made = torch.full((self._end, *spec.row_shape), fill, dtype=getattr(torch, spec.dtype), device="cpu")
        for (store, first), table in zip(self.parts, self._tables, strict=True):
            made[first : first + store.manifest.rows] = change(self._own(store, name), torch.from_numpy(table))
        return made

    def _own(self, store: OpenedStore, name: str) -> torch.Tensor:
        """Return the tensor of one store; without padding, content covers each row."""
        m, held = store.manifest, store.mapped
        if name == "content" and not m.has_content:
            return torch.tensor([[0, 0, m.height, m.width]], dtype=torch.int32).expand(m.rows, 4)
        if name == "frames":
            assert store.table.frames is not None
            return store.table.frames
        return tensor_of(held, name)

    def _spread(self, values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Move the columns of uint8[N, K] to where the joined list has their classes."""
        spread = values.new_zeros(len(values), len(self.manifest.classes))
        spread[:, table] = values
        return spread

    def _shifted(self, name: str, begins: Sequence[int], largest: Callable[[OpenedStore], int]) -> torch.Tensor:
        """Make offsets in the files of stores those in the concatenation, int64[N, ...]; -1: larger than the file has any."""
        made = torch.full((self._end, *self._specs[name].row_shape), -1, dtype=torch.int64, device="cpu")
        for (store, first), begin in zip(self.parts, begins, strict=True):
            own = self._own(store, name)
            # outside its own store it must be outside of all, not inside the next one
            is_inside = (own >= 0) & (own <= largest(store))
            made[first : first + len(own)] = torch.where(is_inside, own + begin, -1)
        return made


def open_joined(
    openers: Sequence[Callable[[], OpenedStore]], digests: Sequence[str], classes: Sequence[str] | None
) -> JoinedStores:
    """Open stores as one; raises StoreError if the digest of one has changed."""
    stores = [open_one() for open_one in openers]
    for store, digest in zip(stores, digests, strict=True):
        if store.manifest.digest != digest:
            raise StoreError(f"{store.path} was packed again since this dataset was made. Open it again.")
    return JoinedStores(stores, classes)


def _made_id(stores: Sequence[OpenedStore]) -> str:
    """Return what differs where one of the stores was given other targets or extras; "": none was."""
    ids = [store.made_id for store in stores]
    return hashlib.sha256(" ".join(ids).encode()).hexdigest() if any(ids) else ""


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that differ: /x/a/train, /x/b/train -> a/train, b/train; equal paths stay equal."""
    for length in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len({*names}) == len({*paths}):
            return names
    return [str(path) for path in paths]


def _renumbered(values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Map classes of one store to the joined ones; -1 (no label) stays."""
    known = (values >= 0) & (values < len(table))
    found = table[values.clamp(0, max(0, len(table) - 1))] if len(table) else values
    return torch.where(known, found, torch.where(values == -1, -1, _WRONG))
