"""Rows that are JPEGs, as a reader gets them: decoded where they are, read ahead, and refused where they are not in the file."""

from __future__ import annotations

import gc
import os
import shutil
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune
from row_forms import FRAMES, WAYS, Formed
from tensordict import TensorDict

from packer.operations.verify import verify
from reader import ImageBatch, MemmapDataset, MemmapLoader
from reader.buffers import BufferPool
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from reader.format.manifest import PAGE_BYTES, PIXELS


@pytest.fixture(params=[way for way in WAYS if way != "rgba"])
def packed(request: pytest.FixtureRequest, formed: Formed) -> Path:
    return formed(request.param, 95)


@pytest.fixture
def equal(formed: Formed) -> Path:
    return formed("equal", 95)


@pytest.fixture
def copy(equal: Path, tmp_path: Path) -> Path:
    """A store of a test's own."""
    return Path(shutil.copytree(equal, tmp_path / "out"))


def test_frames_that_are_in_memory_are_decoded(packed: Path) -> None:
    data = MemmapDataset(packed)
    with MemmapLoader(data, 4, shuffle="full", seed=0, residency="cache") as loader:
        rows = [list(loader.rows(0, step)) for step in range(len(loader))]
        expected = [[data[number][0] for number in numbers] for numbers in rows]
        for wanted, (images, _) in zip(expected, loader, strict=True):
            assert all(map(torch.equal, images, wanted))


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_frames_on_the_disk_are_read_ahead_and_decoded(packed: Path, shuffle: Any, tune: Tune) -> None:
    data = MemmapDataset(packed)
    # several windows and chunks
    tune(
        shuffle_block_bytes=3 * data.manifest.row_bytes,
        shuffle_window_blocks=2,
        window_ahead_bytes=5 * PAGE_BYTES,
        stream_ahead_bytes=5 * PAGE_BYTES,
    )
    with MemmapLoader(data, 5, shuffle=shuffle, seed=0, residency="disk") as loader:
        images = [data[number][0] for number in range(len(data))]
        for epoch in range(2):
            for step, (found, _) in enumerate(loader):
                assert all(map(torch.equal, found, [images[n] for n in list(loader.rows(epoch, step))]))


def test_a_loader_that_is_closed_keeps_no_frames(equal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, lease = list[weakref.ref[Any]](), BufferPool.lease

    def leased(pool: BufferPool, size_bytes: int) -> torch.Tensor:
        given = lease(pool, size_bytes)
        # the pool's own array, of which a lease is a view
        memory.extend(weakref.ref(loan.memory) for loan in pool._leases.values())
        return given

    monkeypatch.setattr(BufferPool, "lease", leased)
    loader = MemmapLoader(MemmapDataset(equal), 5, residency="disk")
    assert sum(len(images) for images, _ in loader) == len(loader.dataset)
    assert memory
    loader.close()
    gc.collect()
    assert all(held() is None for held in memory)


def test_what_would_look_at_the_file_says_that_it_needs_a_raw_store(
    equal: Path,
) -> None:
    sentence = "its rows are compressed: read them by MemmapDataset, or pack a raw store, without --compress"
    with pytest.raises(StoreError, match=sentence):
        MemmapDataset(equal).numpy()
    with pytest.raises(StoreError, match=sentence):
        ImageBatch.load_memmap(equal)
    assert TensorDict.load_memmap(equal / "_tensordict", mode="r", allow_pickle=False)["pixels"].ndim == 1


def test_the_blocks_have_checksums_of_the_frames(packed: Path) -> None:
    stored = (packed / PIXELS).read_bytes()
    done = 0
    for block in read_blocks(packed):
        assert zlib.crc32(stored[done : done + block.size_bytes]) == block.crc32
        done += block.size_bytes
    assert len(stored) % 4096 == 0
    assert not any(stored[done:])


@pytest.mark.parametrize(
    "span", [(-1, 5), (0, 1 << 40), (5, 5), (9, 3), (0, 5), ((1 << 63) - 1, (1 << 63) - 1)], ids=str
)
def test_a_frame_outside_the_file_is_refused(copy: Path, span: Any) -> None:
    table = np.fromfile(copy / FRAMES, "<i8").reshape(-1, 2)
    table[5] = span
    table.tofile(copy / FRAMES)
    data = MemmapDataset(copy)
    assert len(data[4:5][0]) == 1
    with pytest.raises(StoreError, match="row 5: its frame"):
        data[5]
    with MemmapLoader(data, 4, residency="disk") as loader, pytest.raises(StoreError, match="row 5: its frame"):
        list(loader)
    assert verify(copy).problems


def test_a_file_cut_short_is_an_error(copy: Path) -> None:
    data = MemmapDataset(copy)
    os.truncate(copy / PIXELS, 4096)
    with pytest.raises(StoreError, match="Copy the store again"):
        data[[20, 21]]
    with MemmapLoader(data, 4, residency="disk") as loader, pytest.raises(StoreError, match="Copy the store again"):
        list(loader)
