"""Rows that a device's copy engine takes from pinned memory: the page cache, or a copy. The host gathers none of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import make_tree
from tensordict import TensorDict

import reader
from packer import pack
from reader import ImageBatch, MemmapDataset, RandomCrop, RandomHorizontalFlip
from reader.device.transfer import send_batch
from reader.epoch import stamped


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
