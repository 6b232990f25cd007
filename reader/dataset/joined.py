"""Several opened stores as one, one behind the other: rows are their stores' own, and classes are numbered by one list.

Knows what stores must have in common for that, and the manifest of all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from tensordict import TensorDict

from reader.buffers import own_memory
from reader.dataset.opened_store import OpenedStore
from reader.dataset.sources import JoinedSources
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS, FileEntry, Manifest
from reader.format.row_values import has_boxes
from reader.format.shown import shown
from reader.format.tensors import JPEG, TEXTS_FILE, ZSTD
from reader.memory.places import Place, Places
from reader.memory.raw_file import bases_of
from reader.memory.row_table import Columns, joined_table
from reader.memory.text_file import JoinedTexts
from reader.rows import Rows, routed
from reader.store import Batch

# Stands for a target that its own store does not have: the check of rows then names it.
_WRONG = -2


class JoinedStores(OpenedStore):
    """Stores with rows of the same form, concatenated.

    classes: the list that theirs are joined to; None: those of the first, then what the others have beside them.
    joined_id: the given_id that it has of its stores; another one says that its rows were given targets or extras since.

    Raises:
        StoreError: rows are not alike, or classes clash.
    """

    def __init__(self, stores: Sequence[OpenedStore], classes: Sequence[str] | None) -> None:
        self.given_id = self.joined_id = _given_id(stores)
        openers = [store.opener or functools.partial(OpenedStore, store.path) for store in stores]
        given = None if classes is None else list(classes)
        self.opener = functools.partial(open_joined, openers, [s.manifest.digest for s in stores], given)
        manifests = [store.manifest for store in stores]
        check_alike([(str(store.path), store.manifest) for store in stores])
        if given is not None and names_columns(manifests[0]) and (*given,) != manifests[0].classes:
            raise StoreError(
                f"the targets have columns of their own, {list(manifests[0].classes)}: leave classes= out."
            )
        self.path, self.remote = Path(" + ".join(str(store.path) for store in stores)), None
        self._stores, self._classes = stores, given
        # the number of the first row of each
        self._firsts = np.cumsum([0, *(manifest.rows for manifest in manifests[:-1])])
        self.bases = bases_of([store.file_bytes for store in stores])
        names, self._tables = joined_classes([(str(store.path), store.manifest.classes) for store in stores], classes)
        self.manifest = joined_manifest(manifests, names)
        # those that a user gave: others are their stores'
        self._columns = {}
        self._changes = [self._changed_columns(n) for n in range(len(stores))]
        self._prepare()
        texts = [store.text_file for store in stores if store.text_file is not None]
        self.text_file = JoinedTexts(texts) if texts else None
        tables = [store.table for store in stores]
        self.table = joined_table(self.manifest, self._locate, tables, self._firsts, self.bases)
        named = zip(stores, distinct_names([store.path for store in stores]), self._firsts.tolist(), strict=True)
        self.sources = JoinedSources([(store.sources, name, first) for store, name, first in named])

    @property
    def parts(self) -> list[tuple[OpenedStore, int]]:
        """The stores, each with the number of its first row."""
        return list(zip(self._stores, self._firsts.tolist(), strict=True))

    @property
    def file_bytes(self) -> int:
        """The bytes of the files of pixels."""
        return sum(store.file_bytes for store in self._stores)

    def place(self, *, reads_files: bool = False) -> Place:
        """Return where pixels are now, as `OpenedStore.place` does."""
        return Places([store.place(reads_files=reads_files) for store in self._stores], self.bases)

    def in_memory(self, *, is_streamed: bool = False) -> Place:
        """Return the files of pixels, mapped, as `OpenedStore.in_memory` does."""
        return Places([store.in_memory(is_streamed=is_streamed) for store in self._stores], self.bases)

    def placed(self, each: Sequence[Place]) -> Place:
        """Return the place of all rows whose stores' files of pixels are in these."""
        return Places(each, self.bases)

    def pixel_paths(self) -> list[Path]:
        """Return what opens the files of pixels again, as `OpenedStore.pixel_paths` does."""
        return [path for store in self._stores for path in store.pixel_paths()]

    def check_files(self) -> None:
        """Raise StoreError if a file of one of the stores is no longer as large as it was."""
        for store in self._stores:
            store.check_files()

    @property
    def _views(self) -> NoReturn:
        """Raise: there is no single tensor of all rows.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"the rows of {self.path} are no one array. Take dataset[:], dataset.numpy() or dataset.targets."
        )

    def slice(self, start: int, stop: int) -> Batch:
        """Return rows [start, stop) as `OpenedStore` does; views if all are of one store, else a copy."""
        rows = np.arange(start, stop)
        (n, _, own), *others = routed(self._firsts, rows)
        if others:
            return self.gather(rows, own_memory)
        batch = self._stores[n].slice(int(own[0]), int(own[-1]) + 1)
        for name, column in self.columns(rows, [*(self._changes[n] | self._columns.keys())]).items():
            if name.startswith("extras/") and batch.extras is None:
                batch.extras = TensorDict({}, batch_size=[stop - start])
            fields: Any = batch.extras if name.startswith("extras/") else batch
            fields.set(name.removeprefix("extras/"), column)
        batch.rows = torch.from_numpy(rows)
        return self.with_texts(batch)

    def columns(
        self, rows: Rows, names: Sequence[str] | None = None, *, reads_files: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return what rows have beside their pixels, as `OpenedStore.columns` does, each store's changed to fit the others'."""
        names = self._names if names is None else names
        of_stores = [name for name in names if name not in self._columns]
        columns = dict[str, torch.Tensor]()
        for n, at, own in routed(self._firsts, rows):
            for name, column in self._fitting(n, own, of_stores, reads_files=reads_files).items():
                if isinstance(at, slice):
                    columns[name] = column
                else:
                    if name not in columns:
                        columns[name] = column.new_empty((len(rows), *column.shape[1:]))
                    columns[name][torch.from_numpy(at)] = column
        given = super().columns(rows, [name for name in names if name in self._columns])
        return {name: (columns | given)[name] for name in names}

    def check_rows(self, rows: Rows | None, columns: Columns | None = None) -> None:
        """Check rows as `OpenedStore` does; the error names the row's own store."""
        if rows is None:
            for store in self._stores:
                store.check_rows(None)
            return
        try:
            super().check_rows(rows, columns)
        except StoreError:
            for n, _, own in routed(self._firsts, rows):
                self._stores[n].check_rows(own)
            raise

    def _locate(self, row: int) -> tuple[str, int]:
        n, _, own = next(routed(self._firsts, np.array([row])))
        return str(self._stores[n].path), int(own[0])

    def _fitting(self, n: int, rows: Rows, names: Sequence[str], *, reads_files: bool) -> dict[str, torch.Tensor]:
        """Return columns of a store's rows as those of all stores are."""
        store, manifest = self._stores[n], self._stores[n].manifest
        own = [name for name in names if name != "content" or manifest.has_content]
        columns = store.columns(rows, own, reads_files=reads_files)
        for name in self._changes[n] & {*names}:
            columns[name] = self._changed(n, name, columns.get(name), len(rows))
        return columns

    def _changed_columns(self, n: int) -> set[str]:
        """Return the columns that are not as the file of a store has them."""
        store, manifest = self._stores[n], self.manifest
        changed = {f"extras/{name}" for name in manifest.texts}
        if manifest.has_content and not store.manifest.has_content:
            changed.add("content")
        if self._tables[n].tolist() != list(range(len(manifest.classes))):
            changed |= {"targets"} if manifest.target_kind in ("class", "multi-hot") else set()
            changed |= {"extras/box_targets"} if has_boxes(manifest) else set()
        return changed

    def _changed(self, n: int, name: str, values: torch.Tensor | None, count: int) -> torch.Tensor:
        """Return the values of a store as those of all stores are; None: it has no such column."""
        manifest, table = self._stores[n].manifest, torch.from_numpy(self._tables[n])
        if values is None:
            # without padding, content covers each row
            whole = torch.tensor([[0, 0, manifest.height, manifest.width]], dtype=torch.int32, device="cpu")
            return whole.repeat(count, 1)
        if name.removeprefix("extras/") in manifest.texts:
            assert isinstance(self.text_file, JoinedTexts)
            # outside its own store it must be outside of all, not inside the next one
            is_inside = (values >= 0) & (values <= manifest.files[TEXTS_FILE].size_bytes)
            return torch.where(is_inside, values + self.text_file.begins[n], -1)
        if name == "targets" and manifest.target_kind == "multi-hot":
            spread = values.new_zeros(len(values), len(self.manifest.classes))
            spread[:, table] = values
            return spread
        return _renumbered(values, table)


def open_joined(
    openers: Sequence[Callable[[], OpenedStore]], digests: Sequence[str], classes: Sequence[str] | None
) -> JoinedStores:
    """Open stores as one; raises StoreError if the digest of one has changed."""
    stores = [open_one() for open_one in openers]
    for store, digest in zip(stores, digests, strict=True):
        if store.manifest.digest != digest:
            raise StoreError(f"{store.path} was packed again since this dataset was opened. Open it again.")
    return JoinedStores(stores, classes)


def _given_id(stores: Sequence[OpenedStore]) -> str:
    """Return what differs where one of the stores was given other targets or extras; "": none was."""
    ids = [store.given_id for store in stores]
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
    joined = table[values.clamp(0, max(0, len(table) - 1))] if len(table) else values
    return torch.where(known, joined, torch.where(values == -1, -1, _WRONG))


def check_alike(stores: Sequence[tuple[str, Manifest]]) -> None:
    """Check that rows of these stores, each with its path, can share a batch.

    Raises:
        StoreError: says which two differ, and in what.
    """
    path, first = stores[0]
    for other_path, other in stores[1:]:
        kinds = [_kind(manifest) for manifest in (other, first)]
        if kinds[0] != kinds[1]:
            raise StoreError(
                f"{other_path} has {kinds[0]} rows, {path} has {kinds[1]} ones, and concat takes one kind. Make them alike: pack"
                " subset OUT NEW --compress, or --no-compress."
            )
        for what, of_first, of_other in _compared(first, other):
            if of_first != of_other:
                raise StoreError(
                    f"{other_path} has {what} {of_other}, {path} has {of_first}: rows of one batch must be alike. Pack one of"
                    " them again as the other was, or make a loader for each."
                )


def joined_classes(
    stores: Sequence[tuple[str, Sequence[str]]], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Rows]]:
    """Join class lists by name: those of the first store, then the further ones of the others.

    Args:
        stores: each path with its classes.
        classes: the list to take instead.

    Returns: the list, and for each store the places of its classes in it.

    Raises:
        StoreError: two names differ in case alone, or a store has a class that the given list has not.
    """
    names: dict[str, int] = {name: n for n, name in enumerate(classes or ())}
    spelled: dict[str, tuple[str, str]] = {}
    for path, own in stores:
        for name in own:
            if classes is not None and name not in names:
                raise StoreError(f"{path} has the class {shown(name)!r}, which is not in classes=.")
            before, where = spelled.setdefault(name.casefold(), (name, path))
            if classes is None and before != name and name not in dict(stores)[where]:
                raise StoreError(
                    f"{where} has a class {shown(before)!r}, {path} a class {shown(name)!r}: are they one? Pack one of them again"
                    " with --classes of the other, or give concat classes=, a list with both."
                )
            names.setdefault(name, len(names))
    return tuple(names), [np.array([names[name] for name in own], np.int64) for _, own in stores]


def joined_manifest(manifests: Sequence[Manifest], classes: tuple[str, ...]) -> Manifest:
    """Return one manifest for several stores: mean and std over all rows, total sizes of files.

    Options and decoders are those of the first.
    """
    first, rows = manifests[0], np.array([m.rows for m in manifests], np.float64)
    share = rows / rows.sum()
    means, stds = np.array([m.mean for m in manifests]), np.array([m.std for m in manifests])
    mean = share @ means
    std = np.sqrt(np.maximum(share @ (stds**2 + means**2) - mean**2, 0))
    size_bytes = sum(m.files[PIXELS].size_bytes for m in manifests)
    frames = [m.compression for m in manifests if m.compression]
    has_content = any(m.has_content for m in manifests)
    holder = next((m for m in manifests if m.has_content), first)
    digest = hashlib.sha256(" ".join([*(m.digest for m in manifests), *classes]).encode(errors="surrogatepass"))
    return dataclasses.replace(
        first,
        rows=int(rows.sum()),
        height=max(m.height for m in manifests),
        width=max(m.width for m in manifests),
        target_count=len(classes) if first.target_kind == "multi-hot" and classes else first.target_count,
        has_content=has_content,
        classes=classes,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        inputs=sum(m.inputs for m in manifests),
        rejected=sum(m.rejected for m in manifests),
        compression=None if not frames else frames[0].joined(frames[1:]),
        reader_features=first.reader_features,
        files={
            **holder.files,
            PIXELS: FileEntry(size_bytes, ""),
            **_texts_entry(manifests),
        },
        digest=f"sha256:{digest.hexdigest()}",
    )


def _texts_entry(manifests: Sequence[Manifest]) -> dict[str, FileEntry]:
    """Return the entry of the texts, if rows have any."""
    if not manifests[0].texts:
        return {}
    return {TEXTS_FILE: FileEntry(sum(m.files[TEXTS_FILE].size_bytes for m in manifests), "")}


def _kind(manifest: Manifest) -> str:
    """Name how rows are kept; JPEGs of any quality are read alike."""
    return {"": "raw", ZSTD: "compressed", JPEG: "JPEG"}[manifest.coding.codec]


def names_columns(manifest: Manifest) -> bool:
    """Say whether the classes are names of columns of numbers, not of what rows or boxes show."""
    return manifest.target_kind == "regression" and not has_boxes(manifest)


def _compared(first: Manifest, other: Manifest) -> list[tuple[str, str, str]]:
    """List what must be the same, in words: what, of the first, of the other."""

    def described(manifest: Manifest) -> list[str]:
        m = manifest
        count = "" if m.target_count is None or (m.target_kind == "multi-hot" and m.classes) else f" x {m.target_count}"
        extras = ", ".join(f"{name} {spec.dtype}{list(spec.row_shape)}" for name, spec in sorted(m.extras.items()))
        further = {name: (t.kind, t.classes) for name, t in m.further_targets.items()}
        masks = "masks behind its pixels" if m.has_own_masks else "no masks behind its pixels"
        # no class that a row has or not, but a place in each row
        columns = str(list(m.classes)) if names_columns(m) else ""
        texts = ", ".join(m.texts) or "none"
        return [
            m.kind.alike_text(m.sides),
            f"of kind {m.target_kind}{count}",
            extras or "none",
            str(further),
            masks,
            columns,
            texts,
        ]

    names = ("rows", "targets", "extras", "further targets", "rows with", "target columns", "text columns")
    return list(zip(names, described(first), described(other), strict=True))
