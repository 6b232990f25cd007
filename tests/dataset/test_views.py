"""What a reader hands out: changing it changes no batch, a row is pickled as one row, a store that was cut short is an error."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from children import Child
from conftest import make_tree
from torch.utils.data import DataLoader

from packer import pack
from reader import MemmapDataset, MemmapLoader
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS

ROWS = 90


@pytest.fixture
def train(store: Path) -> MemmapDataset:
    return MemmapDataset(store, as_tuple=False)


@pytest.fixture(scope="module")
def own_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 rows of many sizes, with masks."""
    from PIL import Image

    root = tmp_path_factory.mktemp("own")
    make_tree(root / "images", classes=2, each=10)
    for path in sorted((root / "images").rglob("*.jpg")):
        mask = (root / "masks" / path.relative_to(root / "images")).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.convert("L").save(mask)
    pack(root / "images", root / "out", fit="none", masks=root / "masks", workers=1)
    return root / "out"


# -- changes


def test_what_is_changed_in_place_is_seen_by_no_batch_of_any_residency(train: MemmapDataset) -> None:
    right = train[list(range(ROWS))].pixels
    targets = train[list(range(ROWS))].targets
    train[5].pixels.zero_()
    train[5].targets.fill_(7)
    train[10:20].pixels.zero_()
    train[10:20].targets.fill_(7)
    train.store.pixels[30:40].zero_()
    train.subset([1, 2, 3])[:].pixels.zero_()
    for residency in ("cache", "disk"):
        for prefetch in (0, 2):
            loader = MemmapLoader(train, 16, residency=residency, prefetch=prefetch, as_tuple=False)
            assert torch.equal(torch.cat([batch.pixels for batch in loader]), right)
            assert torch.equal(torch.cat([batch.targets for batch in loader]), targets)
    for workers in (0, 2):
        batches = list(DataLoader(train, batch_size=16, num_workers=workers))
        assert torch.equal(torch.cat([batch.pixels for batch in batches]), right)
    assert torch.equal(train[list(range(ROWS))].pixels, right)
    assert torch.equal(torch.stack([train[row].pixels for row in range(ROWS)]), right)
    assert train.targets == targets.tolist()
    # a slice is a view, and views see each other
    assert not train[10:20].pixels.any()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_of_samples_that_works_in_place_gives_the_same_in_every_epoch(store: Path, workers: int) -> None:
    data = MemmapDataset(store, transform=lambda image: image.bitwise_not_())
    loader = DataLoader(data, batch_size=30, num_workers=workers, multiprocessing_context="fork" if workers else None)
    first, second = (torch.cat([images for images, _ in loader]) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first[7], ~MemmapDataset(store)[7][0])


# -- pickling


def forms(data: MemmapDataset) -> dict[str, tuple[Any, int]]:
    """Return what indexing gives, and the bytes of its rows."""
    tuples, row = MemmapDataset(data.path), data.manifest.row_bytes
    return {
        "a row": (data[5], row),
        "a slice": (data[5:8], 3 * row),
        "a list": (data[[5, 1]], 2 * row),
        "a row of tuples": (tuples[5], row),
        "a slice of tuples": (tuples[5:8], 3 * row),
        "targets of a slice": (data[5:8].targets, 24),
    }


def saved(value: Any) -> int:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.tell()


@pytest.mark.parametrize("way", [lambda v: len(pickle.dumps(v)), saved], ids=["pickle", "torch.save"])
def test_what_is_pickled_are_the_rows_and_not_the_store(train: MemmapDataset, way: Callable[[Any], int]) -> None:
    beside = 5000  # names, shapes and the zip archive of torch.save
    for name, (value, size_bytes) in forms(train).items():
        assert size_bytes <= way(value) < size_bytes + beside, name


def test_what_is_pickled_of_rows_with_sizes_of_their_own_is_the_row(own_sizes: Path) -> None:
    data = MemmapDataset(own_sizes, as_tuple=False)
    for row in (0, 7, 19):
        found = data[row]
        size_bytes = found.pixels.numel() + found.extras["masks"].numel()
        assert size_bytes <= len(pickle.dumps(found)) < size_bytes + 5000
        assert torch.equal(pickle.loads(pickle.dumps(found)).pixels, found.pixels)
    part = data[4:6]
    assert len(pickle.dumps(part)) < part.pixels.numel() + 5000 < data.store.pixels.numel()


# -- a store that was cut short

_READS: dict[str, Callable[[Any], Any]] = {
    "a row": lambda data: data[80].pixels.sum(),
    "a slice": lambda data: data[70:80].pixels.sum(),
    "a slice of a subset": lambda data: data.subset([3, 4, 5])[:].pixels.sum(),
    "a list": lambda data: data[[1, 80]].pixels.sum(),
    "targets": lambda data: data.targets,
    "numpy": lambda data: data.numpy().sum(),
    "store": lambda data: data.store.pixels.sum(),
    "all of them": lambda data: data[:].targets.sum(),
}


def _cut(pipe: Connection, store: Path, file: Path, when: str) -> None:
    """Send what each read gives after a file has been cut short; in a process of its own, which SIGBUS may end."""
    data = MemmapDataset(store, as_tuple=False)
    held = (data[3], data[1:2], data.store) if when == "later" else None
    os.truncate(file, 1)
    for name, read in _READS.items():
        try:
            pipe.send(f"{name} gave {read(data)}")
        except StoreError as e:
            pipe.send(f"{name} StoreError: {e}")
    del held


@pytest.mark.parametrize("file", [PIXELS, "_tensordict/targets.memmap"])
@pytest.mark.parametrize("when", ["at first", "later"])
def test_a_store_that_was_cut_short_is_an_error_and_ends_no_process(store: Path, file: str, when: str) -> None:
    process = Child(_cut, store, store / file, when)
    lines = [process.received() for _ in _READS]
    assert process.ended() == 0
    assert [name for name, line in zip(_READS, lines, strict=True) if not line.startswith(f"{name} StoreError: ")] == []
    assert all(Path(file).name in line for line in lines)
