"""Every way to a row of a dataset gives its content in the files of the store, for all kinds of stores."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from kinds import KINDS, ROWS, refusal, spread
from rows import FilesOf, Row, rows_in
from torch.utils.data import ConcatDataset, DataLoader, Subset

from reader import MemmapDataset, MemmapLoader, StoreError

SOME = [11, 2, 3, 4, 0, 12, 2]
MASK = np.arange(ROWS) % 3 == 1
# The requested row numbers, and the result.
Found = Iterable[tuple[list[int], Any]]

INDICES: dict[str, Callable[[MemmapDataset], Found]] = {
    "int": lambda data: [([n], data[n]) for n in range(ROWS)],
    "negative int": lambda data: [([n], data[n - ROWS]) for n in range(ROWS)],
    "numpy int": lambda data: [([n], data[kind(n)]) for n, kind in ((3, np.int64), (12, np.uint8), (0, np.int32))],
    "tensor of one number": lambda data: [([7], data[torch.tensor(7)])],
    "slice": lambda data: [([*range(*cut.indices(ROWS))], data[cut]) for cut in map(slice, (0, 3, -4), (13, 9, -1))],
    "empty slice": lambda data: [([], data[5:5])],
    "slice with a step": lambda data: [([1, 4, 7, 10], data[1::3]), ([12, 10, 8], data[:7:-2])],
    "list": lambda data: [(SOME, data[SOME]), ([4, 5, 6], data[[4, np.int64(5), 6]]), ([12, 0], data[[-1, -13]])],
    "tensor": lambda data: [(SOME, data[torch.tensor(SOME)])],
    "array": lambda data: [(SOME, data[np.array(SOME, np.int32)])],
    "mask": lambda data: [([1, 4, 7, 10], data[mask]) for mask in (MASK, torch.from_numpy(MASK), MASK.tolist())],
    "iteration": lambda data: [([n], row) for n, row in enumerate(data)],
    "a copy of the dataset": lambda data: [(SOME, copy.copy(data)[SOME])],
    "a pickled dataset": lambda data: [(SOME, pickle.loads(pickle.dumps(data))[SOME])],
    "subset of a list": lambda data: [(SOME, data.subset(SOME)[:]), ([3, 0], data.subset(SOME)[[2, -3]])],
    "subset of a slice": lambda data: [([4, 5, 6], data.subset(slice(3, 9))[1:4]), ([8], data.subset(slice(3, 9))[-1])],
    "subset of a mask": lambda data: [([1, 4, 7, 10], data.subset(MASK)[:])],
    "subset of a subset": lambda data: [([12, 3], data.subset(SOME).subset([5, 2])[:])],
    "pickled subset": lambda data: [(SOME, pickle.loads(pickle.dumps(data.subset(SOME)))[:])],
    "torch Subset": lambda data: [([12], Subset(data, SOME)[5]), (SOME, _collated(Subset(data, SOME), 7))],
    "torch ConcatDataset": lambda data: [
        ([12], ConcatDataset([data, data.subset(SOME)])[12]),
        ([11], ConcatDataset([data, data.subset(SOME)])[13]),
    ],
}
# Kinds whose rows no single array holds, and the message.
AS_ONE = {kind: "its rows are compressed: read them by MemmapDataset" for kind in KINDS if kind.startswith("jpeg")}
ONE_ARRAY = {kind: "have sizes of their own, which no one array holds" for kind in KINDS if "own-sizes" in kind}
FORMS = [pytest.param(False, id="batch"), pytest.param(True, id="tuple")]


def _collated(data: Any, batch_size: int, **options: Any) -> Any:
    """Return the first batch of a torch DataLoader."""
    return _tuple(next(iter(DataLoader(data, batch_size, **options))))


def _tuple(batch: Any) -> Any:
    """Return the tuple for a list from a DataLoader."""
    return tuple(batch) if isinstance(batch, list) else batch


@pytest.mark.parametrize("as_tuple", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_index_gives_the_rows_of_the_files(kind: str, as_tuple: bool, files_of: FilesOf) -> None:
    files = files_of(kind)
    data = MemmapDataset(files.path, as_tuple=as_tuple)
    assert len(data) == ROWS
    for name, index in INDICES.items():
        for numbers, found in index(data):
            assert rows_in(found) == [files.expected(n, as_tuple=as_tuple) for n in numbers], name


@pytest.mark.parametrize("as_tuple", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_splits_of_a_dataset_have_each_row_once(kind: str, as_tuple: bool, files_of: FilesOf) -> None:
    files = files_of(kind)
    data = MemmapDataset(files.path, as_tuple=as_tuple)
    stratify = data.manifest.target_kind == "class" and "boxes" not in data.manifest.extras
    parts = [*data.split(0.6, seed=3, stratify=stratify), *torch.utils.data.random_split(data, [0.5, 0.5])]
    assert [len(part) for part in parts[2:]] == [7, 6]
    numbers = [files.numbers(part) for part in parts[:2]] + [[*part.indices] for part in parts[2:]]
    for two in (numbers[:2], numbers[2:]):
        assert sorted([*two[0], *two[1]]) == [*range(ROWS)]
    for part, rows in zip(parts, numbers, strict=True):
        found = part[:] if isinstance(part, MemmapDataset) else _collated(part, ROWS)
        assert rows_in(found) == [files.expected(n, as_tuple=as_tuple) for n in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_is_its_files(kind: str, files_of: FilesOf) -> None:
    files = files_of(kind)
    data = MemmapDataset(files.path)
    targets = [row["targets"] for row in files.rows]
    assert [np.asarray(value, targets[0][0]).tobytes() for value in data.targets] == [value for _, _, value in targets]
    assert [path for path, _ in data.samples] == files.paths
    with refusal(AS_ONE.get(kind), StoreError):
        assert rows_in(data.store) == files.rows


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_has_the_pixels_of_the_files(kind: str, files_of: FilesOf) -> None:
    files = files_of(kind)
    data = MemmapDataset(files.path)
    with refusal(ONE_ARRAY.get(kind), ValueError):
        assert [row.tobytes() for row in data.subset(SOME).numpy()] == [files.rows[n]["pixels"][2] for n in SOME]
    with refusal(AS_ONE.get(kind), StoreError):
        assert [row.tobytes() for row in data.numpy()] == [row["pixels"][2] for row in files.rows]


@pytest.mark.parametrize(("kind", "workers", "as_tuple"), spread([*KINDS], [0, 2], [False, True]))
def test_torchs_loader_gives_the_batches_of_ours(kind: str, workers: int, as_tuple: bool, files_of: FilesOf) -> None:
    files = files_of(kind)
    data = MemmapDataset(files.path, as_tuple=as_tuple)
    with MemmapLoader(data, 5, as_tuple=as_tuple) as loader:
        ours = [rows_in(batch) for batch in loader]
    theirs = [rows_in(_tuple(batch)) for batch in DataLoader(data, 5, num_workers=workers)]
    assert [len(batch) for batch in ours] == [5, 5, 3]
    assert [row for batch in ours for row in batch] == [files.expected(n, as_tuple=as_tuple) for n in range(ROWS)]
    assert theirs == ours == [rows_in(data[start : start + 5]) for start in (0, 5, 10)]


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_reads_the_same_rows(kind: str, process: ProcessPoolExecutor, files_of: FilesOf) -> None:
    files = files_of(kind)
    data = MemmapDataset(files.path, as_tuple=False)
    for sent, numbers in ((data, [*range(ROWS)]), (data.subset(SOME), SOME)):
        found = process.submit(read_there, sent).result(120)
        assert found == ([files.rows[n] for n in numbers],) * 2


def read_there(data: MemmapDataset) -> tuple[list[Row], list[Row]]:
    """Return all rows of a dataset by indexing and by a loader."""
    with MemmapLoader(data, 4, as_tuple=False) as loader:
        return rows_in(data[:]), [row for batch in loader for row in rows_in(batch)]
