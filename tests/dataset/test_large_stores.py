"""What is asked of a store of 268 million rows costs memory for what is asked, not for all rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reader import MemmapDataset, MemmapLoader
from scripts.samples.stores import sparse_store

ROWS = 1 << 28
# an int64 for each row would be 2 GB
MOST_BYTES = 64 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> MemmapDataset:
    return MemmapDataset(sparse_store(tmp_path_factory.mktemp("large") / "out", ROWS, side=1), as_tuple=False)


def first_batch(data: MemmapDataset) -> Any:
    with MemmapLoader(data, 16, shuffle="block", residency="cache", prefetch=0, as_tuple=False) as loader:
        return next(iter(loader))


ASKED: dict[str, Callable[[MemmapDataset], Any]] = {
    "a slice": lambda data: data[1000:1016],
    "a slice with steps": lambda data: data[:: -ROWS // 16],
    "a subset of a slice": lambda data: data.subset(slice(ROWS - 16, ROWS))[:],
    "the first batch of blocks": first_batch,
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_memory_is_that_of_the_rows_that_are_asked_for(
    data: MemmapDataset, asked: Callable[[MemmapDataset], Any]
) -> None:
    tracemalloc.start()
    try:
        batch = asked(data)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(np.unique(batch.rows)) == 16
    assert peak_bytes < MOST_BYTES
