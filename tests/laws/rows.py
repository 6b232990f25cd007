"""One form of a row from any source: the files of a store, a batch, a single row or a tuple. Laws compare such rows.

`second_reader`, written only from the pages of the format, reads the files.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import second_reader
from kinds import MakeStore, stores_of

from packer import subset

# every test run has these fixtures, and runs of only the packer do not import torch
if TYPE_CHECKING:
    from reader import ImageBatch, MemmapDataset, RaggedBatch

# By name: dtype, shape and bytes of an array.
Row = dict[str, Any]


@dataclass(frozen=True)
class Files:
    """A store and the content of its files: rows, paths, and whether a tuple has a dict of targets by name."""

    path: Path
    rows: list[Row]
    paths: list[str]
    is_named: bool

    @classmethod
    def of(cls, path: Path) -> Files:
        """Read all of a store's files."""
        store = second_reader.Store(path)
        names = {"boxes", "masks"} & store.head["extras"].keys()
        lines = (path / "samples.jsonl").read_text().splitlines()
        rows = [_row_in_files(store, number) for number in range(store.rows)]
        return cls(path, rows, [json.loads(line)["path"] for line in lines], bool(names) or store.masks)

    def expected(self, number: int, *, as_tuple: bool) -> Row:
        """Return a row as in a batch, or as in a tuple."""
        row = self.rows[number]
        if not as_tuple:
            return row
        return {
            name: value
            for name, value in row.items()
            if name in ("pixels", "targets") or (self.is_named and name != "content")
        }

    def numbers(self, data: MemmapDataset) -> list[int]:
        """Return the store's row of each row of a dataset, by its path."""
        return [self.paths.index(path) for path, _ in data.samples]


def _row_in_files(store: second_reader.Store, number: int) -> Row:
    return {name.removeprefix("extras/"): _value(array) for name, array in store.row(number).items()}


def rows_in(found: Any) -> list[Row]:
    """Return the rows of a batch or of a tuple (images, targets), or a single row."""
    return _rows_of_tuple(*found) if isinstance(found, tuple) else _rows_of_batch(found)


def _rows_of_batch(batch: ImageBatch | RaggedBatch) -> list[Row]:
    from reader import RaggedBatch

    columns = {} if batch.extras is None else dict(batch.extras.items())
    columns |= {"targets": batch.targets}
    if isinstance(batch, RaggedBatch):
        images = [batch.image(n) for n in range(len(batch))]
        masks = [mask for mask in map(batch.mask, range(len(batch))) if mask is not None]
        return _cut(columns | {"pixels": images} | ({"masks": masks} if masks else {}), len(batch))
    columns["pixels"] = batch.pixels
    if batch.content is not None:
        columns["content"] = batch.content
    return [{n: _value(c) for n, c in columns.items()}] if batch.pixels.ndim == 3 else _cut(columns, len(batch))


def _rows_of_tuple(images: Any, targets: Any) -> list[Row]:
    import torch

    columns = targets if isinstance(targets, dict) else {"targets": targets}
    if isinstance(images, torch.Tensor) and images.ndim == 3:
        images, columns = [images], {name: [value] for name, value in columns.items()}
    return _cut(columns | {"pixels": [image.movedim(0, -1) for image in images]}, len(images))


def _cut(columns: dict[str, Any], count: int) -> list[Row]:
    """Cut columns of this many rows into rows."""
    import torch

    assert {len(column) for column in columns.values()} == {count}
    arrays = {name: c.numpy() if isinstance(c, torch.Tensor) else c for name, c in columns.items()}
    return [{name: _value(column[n]) for name, column in arrays.items()} for n in range(count)]


def _value(value: Any) -> Any:
    array = np.asarray(value)
    return str(array.dtype), array.shape, array.tobytes()


FilesOf = Callable[[str], Files]


@pytest.fixture(scope="session")
def files_of(store_of: MakeStore) -> FilesOf:
    """Return a function that reads the files of a kind's store; with splits, of the first."""

    @functools.cache
    def read(kind: str) -> Files:
        return Files.of(next(iter(stores_of(store_of(kind)).values())))

    return read


@pytest.fixture(scope="session")
def second_of(files_of: FilesOf, tmp_path_factory: pytest.TempPathFactory) -> FilesOf:
    """Make another store of a kind, with some of its rows in another order, and read its files."""

    @functools.cache
    def made(kind: str) -> Files:
        out = tmp_path_factory.mktemp(f"second-{kind}") / "second"
        subset(files_of(kind).path, out, rows=[12, 3, 4, 5, 0, 9, 7])
        return Files.of(out)

    return made


@pytest.fixture(scope="session")
def process() -> Iterator[ProcessPoolExecutor]:
    """Another process, forked from a server that shares nothing with this one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        yield pool


def small_sizes(data: MemmapDataset) -> dict[str, int]:
    """Return constants with which a few rows are several blocks, windows, groups of batches and reads."""
    row = data.manifest.row_bytes
    return {
        "shuffle_block_bytes": 2 * row,
        "shuffle_window_blocks": 2,
        "batch_group_bytes": 6 * row,
        "transformed_group_bytes": 6 * row,
        "window_ahead_bytes": 4 * row,
        "stream_ahead_bytes": 5 * row,
    }
