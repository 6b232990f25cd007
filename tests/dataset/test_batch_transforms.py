"""A dataset whose transform takes batches, as ours do: a row is a batch of one, so that DataLoaders of other libraries work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from packer import pack
from reader import (
    Compose,
    ImageBatch,
    MemmapDataset,
    MemmapLoader,
    MultiView,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from conftest import make_tree

    root = tmp_path_factory.mktemp("own")
    pack(make_tree(root / "images", each=2), root / "out", fit="none", workers=1)
    return root / "out"


LOOK = Compose([ResizeCenterCrop(12), Normalize([0.1, 0.2, 0.3], [0.5, 0.4, 0.3])])


def test_a_row_a_slice_and_a_batch_of_a_dataloader_are_what_the_transform_makes_of_batches(
    shared_store: Path, own: Path
) -> None:
    for store in (shared_store, own):
        wanted = LOOK(MemmapDataset(store, as_tuple=False)[[3, 1, 2]])
        plain, data = MemmapDataset(store), MemmapDataset(store, transform=LOOK)
        image, target = data[3]
        assert torch.equal(image, wanted.images[0])
        assert (type(target), target) == (int, plain[3][1])
        # as ImageFolder takes it
        assert torch.equal(MemmapDataset(store, LOOK)[3][0], image)
        single = MemmapDataset(store, transform=LOOK, as_tuple=False)[3]
        assert isinstance(single, ImageBatch)
        assert torch.equal(single.images, image)
        assert single.rows.tolist() == 3
        for index in ([3, 1, 2], torch.tensor([3, 1, 2])):
            images, targets = data[index]
            assert torch.equal(images, wanted.images)
            assert torch.equal(targets, wanted.targets)
        assert torch.equal(data[1:3][0], wanted.images[1:])
        assert torch.equal(data.subset([1, 2])[:][0], wanted.images[1:])
        batches: tuple[dict[str, Any], ...] = ({}, {"num_workers": 1}, {"collate_fn": torch.utils.data.default_collate})
        for how in batches:
            images, targets = next(iter(DataLoader(data, sampler=[3, 1, 2], batch_size=3, **how)))
            assert torch.equal(images, wanted.images)
            assert torch.equal(targets, wanted.targets)
        rows = next(iter(DataLoader(data, sampler=[3, 1, 2], batch_size=3, collate_fn=list)))
        assert torch.equal(torch.stack([row for row, _ in rows]), wanted.images)
        with MemmapLoader(data, 3) as loader:
            assert torch.equal(next(iter(loader))[0], LOOK(MemmapDataset(store, as_tuple=False)[:3]).images)


def test_what_is_drawn_for_a_row_follows_from_torchs_generator(shared_store: Path) -> None:
    crops = Compose([RandomResizedCrop(8), RandomHorizontalFlip()])
    data = MemmapDataset(shared_store, transform=crops)
    torch.manual_seed(3)
    first, second = data[0][0], data[0][0]
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(data[0][0], first)
    epochs = [torch.cat([images for images, _ in DataLoader(data, 30, num_workers=n)]) for n in (0, 0, 2)]
    assert {images.shape for images in epochs} == {(90, 3, 8, 8)}
    assert not torch.equal(epochs[0], epochs[1])


def test_views_of_a_row_are_those_of_a_batch_of_one(shared_store: Path) -> None:
    views = MultiView([ResizeCenterCrop(8), LOOK])
    data = MemmapDataset(shared_store, transform=views)
    (small, large), targets = views(MemmapDataset(shared_store, as_tuple=False)[[5, 6]])
    (one, other), target = data[5]
    assert torch.equal(one, small[0])
    assert torch.equal(other, large[0])
    assert int(target) == int(targets[0])
    (ones, others), found = next(iter(DataLoader(data, sampler=[5, 6], batch_size=2)))
    assert torch.equal(ones, small)
    assert torch.equal(others, large)
    assert torch.equal(found, targets)
    rows = next(iter(DataLoader(data, sampler=[5, 6], batch_size=2, collate_fn=list)))
    assert torch.equal(rows[1][0][1], large[1])
