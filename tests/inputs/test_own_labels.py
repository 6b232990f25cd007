"""Boxes and masks of rows with sizes of their own: in the format, through the pack, in the reader, and under random crops."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import photo
from PIL import Image
from redecoding import rows_of_other_sources
from test_boxes import boxes_of, coco
from test_masks import values

from packer import pack
from packer.operations.verify import verify
from reader import MemmapDataset, RaggedBatch
from reader.format.check import metadata_files
from reader.format.errors import StoreError

SIZES = [(90, 60), (40, 64), (130, 41), (77, 77), (20, 120), (64, 48), (33, 50)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven images of sizes of their own, a mask of 0 to 4 for each, and boxes for all but the last."""
    root = tmp_path_factory.mktemp("sources")
    for folder in ("images", "masks"):
        (root / folder).mkdir()
    boxes = []
    for n, size in enumerate(SIZES):
        photo(*size, n).save(root / "images" / f"{n}.png")
        Image.fromarray(values(n, size)).save(root / "masks" / f"{n}.png")
        boxes += [(f"{n}.png", [3 * k, 5, size[0] / 2, size[1] / 3]) for k in range(n % 3 + 1) if n < 6]
    coco(root / "coco.json", {f"{n}.png": size for n, size in enumerate(SIZES)}, boxes)
    return root


def packed(sources: Path, out: Path, **options: Any) -> Path:
    given = {"fit": "none", "boxes": sources / "coco.json", "masks": sources / "masks", "workers": 1}
    pack(sources / "images", out, **{**given, **options})
    return out


@pytest.fixture(scope="module")
def own_store(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seven, packed; no test may change them."""
    return packed(sources, tmp_path_factory.mktemp("own") / "out")


# -- the format


def test_the_meta_json_of_own_masks_is_what_tensordict_writes(own_store: Path, tmp_path: Path) -> None:
    data = MemmapDataset(own_store)
    head, store = data.manifest, data.store
    store.clone().memmap(tmp_path)
    for name, content in metadata_files(head).items():
        assert (tmp_path / name).read_bytes() == content
    assert torch.equal(RaggedBatch.load_memmap(own_store).mask(3), store.mask(3))


def test_a_mask_that_is_not_behind_its_image_is_refused(own_store: Path, tmp_path: Path) -> None:
    shutil.copytree(own_store, tmp_path / "own")
    offsets = np.memmap(tmp_path / "own/_tensordict/mask_offsets.memmap", np.int64, "r+")
    offsets[2], offsets[4] = 1 << 40, -1
    offsets.flush()
    data = MemmapDataset(tmp_path / "own", as_tuple=False)
    for row in (2, 4):
        for index in (row, [0, row]):
            with pytest.raises(StoreError, match=f"row {row}: it is not within the pixels"):
                data[index]
    assert {problem.file for problem in verify(tmp_path / "own").problems} == {"_tensordict/mask_offsets.memmap"}


# -- packing


@pytest.mark.parametrize("max_size", [None, 50, "short:30"])
def test_boxes_and_masks_are_scaled_as_their_image(sources: Path, tmp_path: Path, max_size: Any) -> None:
    data = MemmapDataset(packed(sources, tmp_path / "out", max_size=max_size), as_tuple=False)
    found = boxes_of(tmp_path / "out")
    for n, (width, height) in enumerate(SIZES):
        row = data[n]
        new_height, new_width, _ = row.pixels.shape
        nearest = Image.fromarray(values(n, (width, height))).resize((new_width, new_height), Image.Resampling.NEAREST)
        assert np.array_equal(row.extras["masks"], np.asarray(nearest))
        across, down = new_width / width, new_height / height
        for k, corners in enumerate(found[n]):
            expected = [3 * k * across, 5 * down, (3 * k + width / 2) * across, (5 + height / 3) * down]
            assert corners == pytest.approx(expected, rel=1e-5)
    assert [len(boxes) for boxes in found] == [1, 2, 3, 1, 2, 3, 0]
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", sources / "images") == []
    # mean and std are of pixels alone
    total = np.sum([data[n].pixels.numpy().sum((0, 1), dtype=np.int64) for n in range(7)], axis=0)
    count = sum(data[n].pixels[..., 0].numel() for n in range(7))
    assert data.manifest.mean == pytest.approx(total / count / 255, rel=1e-12)
