"""Rows that a device's copy engine takes from pinned memory: the page cache, or a copy. The host gathers none of them."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, make_tree
from tensordict import TensorDict

import reader
from packer import pack
from reader import ImageBatch, MemmapDataset, MemmapLoader, RandomCrop, RandomHorizontalFlip
from reader.device.transfer import send_batch
from reader.epoch import stamped
from reader.format.errors import PinnedMemoryError, StoreError
from reader.format.manifest import PIXELS
from reader.loading import shared_residency
from reader.memory import device_copies
from reader.memory.spans import Spans, merged


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty rows of one size, with content, and of their own sizes."""
    root = tmp_path_factory.mktemp("stores")
    make_tree(root / "images", classes=2, each=20, size=(90, 70))
    pack(root / "images", root / "one", size=48, fit="pad", workers=1)
    pack(root / "images", root / "own", fit="none", workers=1)
    return root


@pytest.fixture(autouse=True)
def _file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary folders are wherever they are."""
    monkeypatch.setattr("reader.system.file_system", lambda path: "ext4")


def opened(stores: Path, kind: str) -> MemmapDataset:
    if kind == "joined":
        return reader.concat([MemmapDataset(stores / "one"), MemmapDataset(stores / "one").subset(range(7, 30))])
    data = MemmapDataset(stores / kind.removeprefix("some of "))
    return data.subset([n for n in range(40) if n % 5]) if kind.startswith("some") else data


@pytest.mark.cuda
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
@pytest.mark.parametrize("residency", ["cache", "ram"])
@pytest.mark.parametrize("kind", ["one", "own", "joined", "some of one", "some of own"])
def test_batches_are_those_of_the_cpu_and_the_host_gathers_none(
    stores: Path, kind: str, residency: str, shuffle: Any, tune: Tune
) -> None:
    tune(sent_span_bytes=1000)
    data = opened(stores, kind)
    loader = MemmapLoader(data, 6, shuffle=shuffle, device="cuda", residency=residency, as_tuple=False)
    cpu = MemmapLoader(data, 6, shuffle=shuffle, residency="cache", as_tuple=False)
    for _ in range(3):
        kept = list(loader)
        for there, here in zip(kept, cpu, strict=True):
            assert there.pixels.is_cuda
            for name in ("pixels", "targets", "rows", "content", "offsets", "shapes"):
                both = [getattr(batch, name, None) for batch in (there, here)]
                assert both[0] is both[1] is None or torch.equal(both[0].cpu(), both[1])
    assert not loader._gathering.pool.buffers.allocated


@pytest.mark.cuda
def test_small_rows_are_gathered_unless_they_follow_each_other(stores: Path, tune: Tune) -> None:
    tune(sent_span_bytes=20_000)
    data = MemmapDataset(stores / "one")
    for shuffle, is_gathered in (("full", True), (False, False)):
        loader = MemmapLoader(data, 8, shuffle=shuffle, device="cuda", residency="ram")
        assert sum(len(images) for images, _ in loader) == 40
        assert bool(loader._gathering.pool.buffers.allocated) is is_gathered


@pytest.mark.cuda
def test_loaders_share_a_pinned_file_and_unpin_it_in_the_end(stores: Path, tune: Tune) -> None:
    tune(sent_span_bytes=1000)
    data = MemmapDataset(stores / "one")
    loaders = [MemmapLoader(data, 8, device="cuda", residency="cache") for _ in range(2)]
    assert [sum(len(images) for images, _ in loader) for loader in loaders] == [40, 40]
    assert len(shared_residency._pinned) == 1
    kept = next(iter(loaders[0]))[0]
    for loader in loaders:
        loader.close()
    del loader
    loaders.clear()
    gc.collect()
    assert len(shared_residency._pinned) == 0
    assert torch.equal(kept.cpu(), torch.stack([data[n][0] for n in range(8)]))


@pytest.mark.cuda
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_that_is_closed_unpins_its_file_and_pins_it_again(stores: Path, prefetch: int, tune: Tune) -> None:
    tune(sent_span_bytes=1000)
    loader = MemmapLoader(MemmapDataset(stores / "one"), 8, device="cuda", residency="cache", prefetch=prefetch)
    for _ in range(2):
        assert sum(len(images) for images, _ in loader) == 40
        assert len(shared_residency._pinned) == 1
        loader.close()
        gc.collect()
        assert len(shared_residency._pinned) == 0


@pytest.mark.cuda
def test_a_file_that_is_cut_short_meanwhile_is_refused(stores: Path, tmp_path: Path, tune: Tune) -> None:
    tune(sent_span_bytes=1000)
    pack(stores / "images", tmp_path / "out", size=48, workers=1)
    loader = MemmapLoader(MemmapDataset(tmp_path / "out"), 8, device="cuda", residency="cache")
    assert len(list(loader)) == 5
    os.truncate(tmp_path / "out" / PIXELS, 4096)
    with pytest.raises(StoreError, match="bytes"):
        list(loader)


@pytest.mark.cuda
@pytest.mark.parametrize("residency", ["cache", "ram"])
def test_where_the_driver_copies_no_batches_rows_are_gathered(
    stores: Path, residency: str, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(sent_span_bytes=1000)
    monkeypatch.setattr("reader.loading.gathering.can_send", lambda device: False)
    loader = MemmapLoader(MemmapDataset(stores / "one"), 8, device="cuda", residency=residency)
    assert sum(len(images) for images, _ in loader) == 40
    assert loader._gathering.pool.buffers.allocated


@pytest.mark.cuda
def test_a_file_of_another_file_system_is_gathered_from(
    stores: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(sent_span_bytes=1000)
    monkeypatch.setattr("reader.system.file_system", lambda path: "fuse.other")
    loader = MemmapLoader(MemmapDataset(stores / "one"), 8, device="cuda", residency="cache")
    assert sum(len(images) for images, _ in loader) == 40
    assert loader._gathering.pool.buffers.allocated


@pytest.mark.cuda
def test_rows_that_fill_a_device_may_be_sent(stores: Path, tune: Tune) -> None:
    tune(sent_span_bytes=1000)
    data = MemmapDataset(stores / "one")
    loader = MemmapLoader(data, 8, device="cuda", residency="gpu")
    assert torch.equal(torch.cat([images.cpu() for images, _ in loader]), torch.stack([image for image, _ in data]))


@pytest.mark.cuda
def test_a_file_that_was_cut_short_before_is_one_sentence(stores: Path, tmp_path: Path, tune: Tune) -> None:
    tune(sent_span_bytes=1000)
    pack(stores / "images", tmp_path / "out", size=48, workers=1)
    loader = MemmapLoader(MemmapDataset(tmp_path / "out"), 8, device="cuda", residency="cache")
    os.truncate(tmp_path / "out" / PIXELS, 4096)
    with pytest.raises(StoreError, match="bytes"):
        list(loader)


@pytest.mark.cuda
def test_pinned_memory_that_is_refused_keeps_its_sentence(
    stores: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any) -> Any:
        raise PinnedMemoryError("1 MB of pinned memory for batches cannot be had: out of memory.")

    monkeypatch.setattr("reader.buffers._pinned", refused)
    with pytest.raises(PinnedMemoryError, match="for batches cannot be had"):
        list(MemmapLoader(MemmapDataset(stores / "one"), 8, shuffle="full", device="cuda", residency="cache"))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.int32])
def test_masks_of_other_types_are_moved_on_a_device_as_on_the_host(dtype: torch.dtype) -> None:
    masks = (torch.arange(2 * 8 * 6).view(2, 8, 6) * 7).to(dtype)
    pixels, rows = torch.zeros(2, 8, 6, 3, dtype=torch.uint8), torch.arange(2)
    here = ImageBatch(pixels, rows, extras=TensorDict({"masks": masks}, batch_size=[2]), rows=rows, batch_size=[2])
    for transform in (RandomHorizontalFlip(1.0), RandomCrop(5)):
        made, expected = transform(here.to("cuda")).extras["masks"], transform(here).extras["masks"]
        assert made.dtype == dtype
        assert torch.equal(made.cpu(), expected)


@pytest.mark.cuda
def test_transforms_stand_in_a_captured_graph() -> None:
    pixels, rows = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8), torch.arange(4)
    batch = stamped(
        send_batch(ImageBatch(pixels, rows, rows=rows, batch_size=[4]), torch.device("cuda", 0)),
        epoch=0,
        position=0,
        seed=1,
    )
    flip = RandomHorizontalFlip()
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        flip(batch)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        made = flip(batch).pixels
    batch.rows.copy_(rows + 10)
    graph.replay()
    torch.cuda.synchronize()
    other = ImageBatch(pixels, rows, rows=rows + 10, batch_size=[4])
    assert torch.equal(made.cpu(), flip(stamped(other, epoch=0, position=0, seed=1)).pixels)


@pytest.mark.cuda
def test_a_device_that_copies_batches_says_so() -> None:
    device_copies.can_send.cache_clear()
    assert device_copies.can_send(torch.device("cuda", 0))


@pytest.mark.cuda
def test_a_file_that_cannot_be_pinned_is_gathered_from(
    stores: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*given: Any, **named: Any) -> Any:
        raise PinnedMemoryError("1 MB of memory cannot be pinned.")

    tune(sent_span_bytes=1000)
    monkeypatch.setattr("reader.loading.shared_residency.pin", refused)
    caplog.set_level("INFO", "pixpack")
    loader = MemmapLoader(MemmapDataset(stores / "one"), 8, device="cuda", residency="cache")
    assert sum(len(images) for images, _ in loader) == 40
    assert "cannot be pinned. Batches are gathered into pinned memory first." in caplog.text


def test_spans_that_follow_each_other_are_one() -> None:
    begins, sizes, places = (np.array(each) for each in ([5, 8, 8, 20, 2], [3, 2, 0, 4, 1], [0, 3, 5, 5, 9]))
    spans, firsts = merged(Spans(begins, sizes), places)
    assert (spans.begins.tolist(), spans.sizes.tolist(), firsts.tolist()) == ([5, 20, 2], [5, 4, 1], [0, 5, 9])
    assert len(merged(Spans(begins[:0], sizes[:0]), places[:0])[1]) == 0
