"""`MemmapDataset`: a store as a torch Dataset that is indexed a batch at a time and never decodes.

Slices are views of the mapped store; single rows are copies, lists of rows one gather. It pickles to a path.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, get_worker_info

from reader import compiled
from reader.buffers import BufferPool, empty_shared
from reader.dataset import collate
from reader.dataset.indexing import Index, checked_position, checked_positions, is_row, split_positions
from reader.dataset.opened_store import OpenedStore
from reader.dataset.store_location import remote_store, store_path
from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.rows import Rows, is_run, rows_named
from reader.store import Batch, ImageBatch, RaggedBatch, as_tuple, names_targets

if TYPE_CHECKING:
    from PIL.Image import Image

# A user's function of an image, a target or a batch.
Transform = Callable[[Any], Any]
# One number, K numbers of a vector, or all targets of a row by name.
Target = int | float | torch.Tensor | dict[str, Any]
# A loop holds a batch while the next one is gathered.
_LOOP_BUFFERS = 2


class MemmapDataset(Dataset[Any]):
    """A packed store, or some rows of it.

    Args:
        path: the folder that `pack` wrote, or the URL that it was pushed to: s3://bucket/out, gs://, az://, https://, file://.
        cache, cache_size: for a URL: a folder on a local disk, and the space for the store's pixels there, such as "200GB"
            (None: all). Slices are copies, and `store` and `numpy` are refused.
        split: one of the stores in that folder, such as "train"; their classes must be the same.
        transform: one of `reader.transforms` gets batches, or a batch of one for a row. Any other gets one image uint8[C, H,
            W], as in ImageFolder: per sample, for torch's DataLoader. With as_tuple=False it gets the ImageBatch of one row,
            without a batch dimension. Whole batches are many times faster.
        target_transform: called with one target, only with as_tuple.
        as_tuple: indexing gives plain tuples: (image, target) of a row, (images, targets) of rows. With boxes or masks the
            second is a dict: `targets`, and the others by name. False: an ImageBatch, or a RaggedBatch for several rows with
            sizes of their own.
        as_pil: images are PIL images, of mode L, RGB or RGBA, for transforms of those: per sample, only with as_tuple.

    Raises:
        StoreError: path is not a finished, undamaged store, or has other classes.
        ValueError: arguments that contradict each other.

    Examples:
        >>> train = MemmapDataset(store_path)
        >>> images, targets = train[10:20]
        >>> images.shape, train[10][1]
        (torch.Size([10, 3, 32, 32]), 0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        split: str | None = None,
        as_tuple: bool = True,
        as_pil: bool = False,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
    ) -> None:
        check_forms(target_transform, as_tuple=as_tuple, as_pil=as_pil)
        remote = remote_store(path, split, cache, cache_size)
        self.path = store_path(path, split) if remote is None else remote.root
        self.transform, self.target_transform = transform, target_transform
        self.as_tuple, self.as_pil = as_tuple, as_pil
        # rows of the store; None: all
        self._rows: Rows | None = None
        self._open(OpenedStore(self.path, remote))

    def _open(self, opened: OpenedStore) -> None:
        # before workers are forked: else each would load it at its first batch
        compiled.load()
        self._opened = opened
        self.manifest: Manifest = opened.manifest
        # the second item of a tuple is a dict by name
        self._by_name = names_targets(self.manifest)
        self._pool = BufferPool(keep=_LOOP_BUFFERS)

    def __len__(self) -> int:
        return self.manifest.rows if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        m, where = self.manifest, str(self._opened.remote or self.path)
        return f"MemmapDataset({where!r}: {len(self)} rows of {m.shape_text}, {len(m.classes)} classes)"

    def _kept(self) -> dict[str, Any]:
        """Return the attributes that a pickle, and a subset of rows, share."""
        dropped = ("manifest", "_opened", "_pool", "_unlabeled", "targets", "samples", "_rows_by_path")
        return {name: value for name, value in self.__dict__.items() if name not in dropped}

    def __getstate__(self) -> dict[str, Any]:
        return self._kept() | {"opened": (self._opened.remote, self.manifest.digest)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        remote, digest = state.pop("opened")
        self.__dict__.update(state)
        self._open(OpenedStore(self.path, remote))
        if self.manifest.digest != digest:
            raise StoreError(f"{self.path} was packed again since this dataset was pickled. Open it again.")

    # -- rows

    @property
    def store(self) -> Batch:
        """All rows, as views: an ImageBatch, or a RaggedBatch if rows have sizes of their own.

        Raises:
            StoreError: a file was cut short, a target, content or shape of a row is not valid in this store, or it is at a URL.
        """
        self._opened.check_files()
        return self._opened.all_rows

    def __getitem__(self, index: Index) -> Any:
        """Return one row (a copy, no batch dimension), a slice (views if rows are contiguous), or a gather (a copy).

        A change in a view shows in other views of this dataset, and nowhere else.

        Raises:
            IndexError: there is no such row.
            StoreError: a file of the store was cut short.
        """
        if is_row(index):
            return self._sample(operator.index(index))
        positions = self._positions(index)
        if self._is_by_row:
            return self._joined([self._sample(int(position)) for position in positions])
        rows = self._store_rows(positions)
        batch = self._slice(rows) if isinstance(index, slice) else self._opened.gather(rows, empty_shared)
        result = self._transformed(batch) if self._takes_batches else batch
        return as_tuple(result, by_name=self._by_name) if self.as_tuple and isinstance(result, Batch) else result

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows in order; without this, an IndexError of a transform would end a loop silently."""
        return (self[index] for index in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the rows of a batch gathered at once; torch's DataLoader calls this instead of one `__getitem__` per item.

        They are a sequence of (image, target), each created on request; with as_tuple=False the batch itself. It is a copy:
        in shared memory in a worker, else in memory that is reused once all its views are dropped.
        """
        if self.as_tuple:
            self._check_labels()
        if self._is_by_row:
            return [self[int(i)] for i in indices]
        memory = self._pool.lease if get_worker_info() is None else empty_shared
        batch = self._opened.gather(self._store_rows(self._positions(indices)), memory)
        if self._takes_batches:
            batch = self._transformed(batch)
            if not isinstance(batch, Batch):
                return collate.transformed_rows(batch, len(indices))
        if self.as_tuple:
            return collate.tuple_rows(*as_tuple(batch, by_name=self._by_name))
        collate.seeded(batch)
        return collate.ragged_rows(batch) if isinstance(batch, RaggedBatch) else batch

    def _positions(self, index: Index) -> Rows:
        """Return a slice, list, array, tensor or mask of rows as positions in this dataset, int64[B] in [0, len).

        Raises:
            IndexError: there is no such row.
        """
        if isinstance(index, slice):
            return np.arange(*index.indices(len(self)))
        return checked_positions(index, len(self), self.path)

    def _store_rows(self, positions: Rows) -> Rows:
        """Map positions in this dataset, int64[B] in [0, len), to rows of the store."""
        return positions if self._rows is None else self._rows[positions]

    @property
    def _all_rows(self) -> Rows:
        """The store's rows of this dataset: int64[N]."""
        return self._store_rows(np.arange(len(self)))

    def _check_labels(self) -> None:
        """Raise ValueError, in a loop over (image, target), if a row has no label: its target is -1, which is no class."""
        if self._unlabeled:
            raise ValueError(
                f"{self.path}: targets is -1, no label, in {self._unlabeled:,} of {len(self):,} rows. Loop over"
                " dataset.subset(...) of the others, or with as_tuple=False."
            )

    @functools.cached_property
    def _unlabeled(self) -> int:
        """The number of rows without a class."""
        if self.manifest.target_kind != "class" or self._by_name:
            return 0
        return int((self._opened.columns(self._all_rows, ["targets"])["targets"] < 0).sum())

    # -- what ImageFolder has

    @property
    def classes(self) -> list[str]:
        """Class names; a class target is an index into them."""
        return list(self.manifest.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name -> target."""
        return {name: i for i, name in enumerate(self.manifest.classes)}

    @functools.cached_property
    def targets(self) -> list[Any]:
        """The targets as a list, as in ImageFolder; the tensor is `store.targets`."""
        self._opened.check_rows(self._all_rows)
        targets: list[Any] = self._opened.columns(self._all_rows, ["targets"])["targets"].tolist()
        return targets

    @functools.cached_property
    def samples(self) -> list[tuple[str, Any]]:
        """(path, target) of each row; paths are relative to the packed folder."""
        paths = self._opened.source_paths
        return list(zip((paths[row] for row in self._all_rows), self.targets, strict=True))

    @property
    def imgs(self) -> list[tuple[str, Any]]:
        """`samples`."""
        return self.samples

    @property
    def root(self) -> str:
        """The folder of the store; the images that it was packed from may be gone."""
        return str(self.path)

    def loader(self, path: str) -> Any:
        """Return the image of a path in `samples`, as `transform` gets it: uint8[C, H, W], or with as_pil a PIL image.

        Raises:
            KeyError: no row has this path.
        """
        if path not in self._rows_by_path:
            raise KeyError(f"no row of {self.path} came from {path!r}. `samples` lists the paths.")
        image, _ = sample_of(self._opened.row(self._rows_by_path[path]), by_name=False)
        return pil_image(image) if self.as_pil else image

    @functools.cached_property
    def _rows_by_path(self) -> dict[str, int]:
        """The first row of each source, by path."""
        return {path: row for row, path in reversed(list(enumerate(self._opened.source_paths))) if path}

    def source(self, index: int) -> dict[str, Any]:
        """Return the line of samples.jsonl for the row at index: path, target, source bytes, sha256, size, decoder.

        Raises:
            IndexError: there is no such row.
            StoreError: the store at its path was replaced.
        """
        return self._opened.source(self._store_row(index))

    # -- parts, without copying a pixel

    def subset(self, rows: Index) -> MemmapDataset:
        """Return a dataset of some rows, without copying pixels: positions in this order, a slice, or a boolean mask.

        Raises:
            IndexError: there is no such row.
        """
        part: MemmapDataset = object.__new__(type(self))
        part.__dict__.update(self._kept())
        part._rows = np.ascontiguousarray(self._store_rows(self._positions(rows)))
        part._open(self._opened)
        return part

    def split(self, fraction: float, *, seed: int = 0, stratify: bool = False) -> tuple[MemmapDataset, MemmapDataset]:
        """Split by seed into a random fraction, 0 to 1, and the rest, in store order; stratify: the same share of each class.

        Raises:
            ValueError: fraction is not inside (0, 1), or stratify without class targets.
        """
        if stratify and self.manifest.target_kind != "class":
            raise ValueError(f"stratify needs class targets, this store has {self.manifest.target_kind} targets.")
        first, rest = split_positions(len(self), fraction, seed=seed, targets=self.targets if stratify else None)
        return self.subset(first), self.subset(rest)

    def numpy(self) -> npt.NDArray[np.uint8]:
        """Return the pixels as a read-only uint8[N, H, W, C] that shares the store's memory (scattered rows are copied).

        Raises:
            StoreError: the store is at a URL.
            ValueError: rows have sizes of their own.
        """
        if self.manifest.has_own_sizes:
            raise ValueError(
                f"the rows of {self.path} have sizes of their own, which no one array holds. Take dataset[i][0].numpy()."
            )
        pixels = (self.store if self._rows is None else self._slice(self._rows)).pixels.numpy()
        pixels.flags.writeable = False
        return pixels

    def _store_row(self, index: int) -> int:
        position = checked_position(index, len(self), self.path)
        return position if self._rows is None else int(self._rows[position])

    def _slice(self, rows: Rows) -> Batch:
        if not len(rows) or not is_run(rows):
            return self._opened.gather(rows, empty_shared)
        return self._opened.slice(int(rows[0]), int(rows[-1]) + 1)

    @property
    def _is_by_row(self) -> bool:
        """Return whether rows are changed one by one: not by one of `reader.transforms`, which take batches."""
        has_own = type(self).__getitem__ is not MemmapDataset.__getitem__
        is_other = self.transform is not None and not self._is_ours
        return has_own or is_other or self.as_pil or self.target_transform is not None

    @property
    def _is_ours(self) -> bool:
        return type(self.transform).__module__.startswith("reader.transforms.")

    @property
    def _takes_batches(self) -> bool:
        """Return whether one of `reader.transforms` is all that changes rows."""
        return self._is_ours and not self.as_pil and self.target_transform is None

    def _transformed(self, batch: Batch) -> Any:
        """Apply a transform of batches; its draws follow from torch's generator."""
        assert self.transform is not None
        return self.transform(collate.seeded(batch))

    def _sample(self, index: int) -> object:
        """Return one row as indexing gives it."""
        row = self._store_row(index)
        if self.as_tuple and not self._takes_batches and self._opened.has_pairs:
            pair = self._opened.pair(row)
            if not self._is_by_row:
                return pair
            with rows_named(self.path, row):
                return self._changed(pair)
        read: Any = self._opened.row(row)
        with rows_named(self.path, row):
            if self._takes_batches:
                read = collate.row_at(self._transformed(read.unsqueeze(0)), 0)
            if self.as_tuple and isinstance(read, ImageBatch):
                read = sample_of(read, by_name=self._by_name)
            return read if self._takes_batches else self._changed(read)

    def _changed(self, read: Any) -> Any:
        """Call the dataset's transforms with a single image and target, or with one row."""
        if not self.as_tuple:
            return read if self.transform is None else self.transform(read)
        image, target = read
        image = pil_image(image) if self.as_pil else image
        return (
            image if self.transform is None else self.transform(image),
            target if self.target_transform is None else self.target_transform(target),
        )

    def _joined(self, samples: list[Any]) -> object:
        """Join transformed samples as torch's default_collate does; PIL images are a list.

        Raises:
            ValueError: there are none.
        """
        if not self.as_pil or self.transform is not None:
            return collate.joined(samples)
        return [image for image, _ in samples], collate.joined([target for _, target in samples])


def sample_of(row: Batch, *, by_name: bool) -> tuple[torch.Tensor, Target]:
    """Return (uint8[C, H, W], target) of one row."""
    image, targets = as_tuple(row, by_name=by_name)
    assert isinstance(image, torch.Tensor)
    value: Target = row.targets.item() if row.targets.ndim == 0 else row.targets
    return image, targets | {"targets": value} if isinstance(targets, dict) else value


def pil_image(image: torch.Tensor) -> Image:
    """Return uint8[C, H, W] as an image of mode L, RGB or RGBA; it may share the tensor's memory."""
    import PIL.Image

    pixels = image.movedim(0, -1).contiguous().numpy()
    return PIL.Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def check_forms(target_transform: object, *, as_tuple: bool, as_pil: bool) -> None:
    """Raise ValueError if a dataset's arguments contradict each other."""
    if not as_tuple and (as_pil or target_transform is not None):
        raise ValueError("as_pil and target_transform need as_tuple=True: without it a row is one ImageBatch.")
