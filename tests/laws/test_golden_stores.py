"""Golden stores give the same batches from any place: those that the second reader finds in the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import second_reader
from conftest import devices

from reader import ImageBatch, MemmapDataset, MemmapLoader, RaggedBatch

GOLDEN = Path(__file__).parents[1] / "golden"
STORES = sorted(path.parent.name for path in GOLDEN.glob("*/manifest.json"))

# The content of a row, by name.
Row = dict[str, Any]


def rows_in_files(path: Path) -> list[Row]:
    """Read all rows of a store by the second reader."""
    store = second_reader.Store(path)
    return [store.row(number) for number in range(store.rows)]


def rows_of(batch: ImageBatch | RaggedBatch) -> list[tuple[int, Row]]:
    """Return the number and content of each row of a batch."""
    batch = batch.cpu()
    found = []
    for index, number in enumerate(batch.rows.tolist()):
        image = batch.images[index].numpy().transpose(1, 2, 0)
        row: Row = {"pixels": image, "targets": batch.targets[index].numpy()}
        if isinstance(batch, RaggedBatch):
            row |= {} if batch.mask(index) is None else {"masks": batch.mask(index).numpy()}
        elif batch.content is not None:
            row["content"] = batch.content[index].numpy()
        if batch.extras is not None:
            row |= {f"extras/{name}": value[index].numpy() for name, value in batch.extras.items()}
        found.append((number, row))
    return found


def assert_same(found: Row, expected: Row) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# -- ways to read


Opened = tuple[MemmapDataset, dict[str, Any]]


def from_url(path: Path, folder: Path) -> Opened:
    """Open it at a URL, with its own cache."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    return MemmapDataset(path.as_uri(), cache=folder / "cache", as_tuple=False), {}


def by_residency(name: str) -> Callable[[Path, Path], Opened]:
    """Open it in place, with this residency."""
    return lambda path, folder: (MemmapDataset(path, as_tuple=False), {"residency": name})


WAYS: dict[str, Callable[[Path, Path], Opened]] = {
    "cache": by_residency("cache"),
    "disk": by_residency("disk"),
    "URL": from_url,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", STORES)
def test_a_golden_store_gives_what_is_in_its_files_read_in_each_way(name: str, way: str, tmp_path: Path) -> None:
    data, how = WAYS[way](GOLDEN / name, tmp_path)
    for shuffle in (False, "full", "block"):
        check(data, rows_in_files(GOLDEN / name), shuffle=shuffle, **how)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", STORES)
def test_a_golden_store_on_a_device_gives_what_is_in_its_files(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu":
        # the CPU acts as a device with room
        monkeypatch.setattr("reader.loading.gathering.ROW_DEVICES", ("cpu", "cuda"))
    data = MemmapDataset(GOLDEN / name, as_tuple=False)
    check(data, rows_in_files(GOLDEN / name), shuffle="full", residency="gpu", device=device)


def check(data: MemmapDataset, expected: list[Row], **how: Any) -> None:
    """Check that two epochs hold each row once, with the content of the files, for all batches."""
    loader = MemmapLoader(data, 2, seed=3, as_tuple=False, **how)
    for _ in range(2):
        found = [row for batch in loader for row in rows_of(batch)]
        assert sorted(number for number, _ in found) == list(range(len(data)))
        for number, row in found:
            assert_same(row, expected[number % len(expected)])
    if "device" not in how:
        for number in range(len(data)):
            ((_, row),) = rows_of(data[[number]])
            assert_same(row, expected[number % len(expected)])


def test_every_golden_store_is_tried() -> None:
    assert STORES == ["jpeg", "jpeg-gray", "jpeg-own-sizes", "own-masks", "own-sizes", "v1.0"]
