"""What random transforms draw: other numbers for each epoch, position and seed, wherever in a program they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, WeightedRandomSampler

import reader.transforms
from reader import (
    ColorJitter,
    Compose,
    ImageBatch,
    MemmapDataset,
    MemmapLoader,
    Normalize,
    RandomApply,
    RandomCrop,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    RandomSolarize,
    ResizeCenterCrop,
)
from reader.epoch import stamped
from reader.transforms.random import draw

OURS = [ResizeCenterCrop(8), ColorJitter(0.4), RandomCrop(8), RandomHorizontalFlip(), RandomResizedCrop(8)]
CROP = RandomResizedCrop(16)


def epochs(loader: Any, view: Any = lambda batch: batch.images) -> list[torch.Tensor]:
    """Return the images of two epochs, in store order."""
    return [torch.cat([view(batch) for batch in loader]) for _ in range(2)]


def test_crops_in_the_loop_are_those_of_the_transform_and_other_ones_each_epoch(train: MemmapDataset) -> None:
    inside = epochs(MemmapLoader(train, 16, seed=1, transform=CROP), lambda pair: pair[0])
    outside = epochs(MemmapLoader(train, 16, seed=1, as_tuple=False), lambda batch: CROP(batch).images)
    assert not torch.equal(*outside)
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


def crop(rows: Any) -> torch.Tensor:
    return CROP(rows).images


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["in the loop", "collate_fn", "persistent workers", "rows of two stores"])
def test_crops_behind_torchs_dataloader_are_other_ones_each_epoch(train: MemmapDataset, workers: int, way: str) -> None:
    batches: Any = MemmapDataset(train.path, as_tuple=False)
    data = ConcatDataset([batches, batches.subset([1, 2])]) if way == "rows of two stores" else batches
    is_collated = way in ("collate_fn", "persistent workers")
    options: dict[str, Any] = {"collate_fn": crop} if is_collated else {}
    options |= {"persistent_workers": True} if workers and way == "persistent workers" else {}

    def run() -> list[torch.Tensor]:
        torch.manual_seed(3)
        loader = DataLoader(data, 16, num_workers=workers, **options)
        return epochs(loader, lambda made: made if is_collated else CROP(made).images)

    once, again = run(), run()
    assert not torch.equal(*once)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_a_row_that_torchs_sampler_gives_twice_gets_two_crops(train: MemmapDataset) -> None:
    batches: Any = MemmapDataset(train.path, as_tuple=False)
    sampler = WeightedRandomSampler([1.0] + [0.0] * 89, 16)
    made = next(iter(DataLoader(batches, 16, sampler=sampler, collate_fn=crop)))
    assert len(made.flatten(1).unique(dim=0)) == 16


def test_a_row_that_comes_twice_in_an_epoch_gets_two_crops(train: MemmapDataset) -> None:
    sampler = [5, 7, 5, 5, 7, 7] * 2
    images = torch.cat([images for images, _ in MemmapLoader(train, 4, sampler=sampler, transform=CROP)])
    assert len(images.flatten(1).unique(dim=0)) == len(sampler)
    weights = torch.zeros(90)
    weights[[3, 4]] = 1
    images = torch.cat([images for images, _ in MemmapLoader(train, 16, weights=weights, transform=CROP)])
    assert len(images.flatten(1).unique(dim=0)) == 90


def test_repeated_augmentation_over_ranks_crops_each_repeat_otherwise(train: MemmapDataset) -> None:
    # as DeiT's sampler: each row goes to every rank, at the same step of each
    found = []
    for rank in range(3):
        loader = MemmapLoader(train, 4, sampler=[8, 2, 9, 8], transform=CROP, rank=rank, world_size=3)
        found += [images for images, _ in loader]
    assert len(torch.cat(found).flatten(1).unique(dim=0)) == 12


def test_the_loaders_seed_reaches_its_transforms(train: MemmapDataset) -> None:
    one, other, again = (
        torch.cat([images for images, _ in MemmapLoader(train, 16, seed=seed, transform=CROP)]) for seed in (0, 1, 0)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_neither_batch_size_ranks_nor_prefetch_change_what_a_row_becomes(train: MemmapDataset) -> None:
    def crops(batch_size: int, **options: Any) -> dict[int, torch.Tensor]:
        loader = MemmapLoader(train, batch_size, shuffle="full", seed=1, transform=CROP, as_tuple=False, **options)
        return {int(row): image for batch in loader for row, image in zip(batch.rows, batch.images, strict=True)}

    expected = crops(16)
    ranks = crops(9, rank=0, world_size=2) | crops(9, rank=1, world_size=2)
    for found in (crops(7), crops(16, prefetch=0), ranks):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[row], expected[row]) for row in expected)


def test_a_part_of_a_batch_draws_as_the_batch_does(train: MemmapDataset) -> None:
    batch = next(iter(MemmapLoader(train, 16, shuffle="full", as_tuple=False)))
    full = CROP(batch).images
    assert torch.equal(CROP(batch[[9, 2]]).images, full[[9, 2]])
    assert torch.equal(torch.cat([CROP(part).images for part in batch.split(5)]), full)
    assert torch.equal(CROP(torch.cat([batch[8:], batch[:8]])).images, torch.cat([full[8:], full[:8]]))


def test_an_indexed_batch_draws_the_same_each_time(train: MemmapDataset) -> None:
    batches = MemmapDataset(train.path, as_tuple=False)
    assert torch.equal(CROP(batches[[3, 4]]).images, CROP(batches[[3, 4]]).images)


def test_the_numbers_of_a_loaders_batches_stay_what_they_are() -> None:
    pixels = torch.zeros(2, 1, 1, 3, dtype=torch.uint8)
    batch = ImageBatch(pixels=pixels, targets=torch.zeros(2), rows=torch.tensor([7, 8]), batch_size=[2])
    drawn = draw(stamped(batch, epoch=3, position=40, seed=5), 1, range(2))
    assert drawn.flatten().tolist() == pytest.approx(FROZEN, abs=1e-15)


FROZEN = [0.46003894940691425, 0.24467332472600067, 0.4036699074510779, 0.0970828683634315]


@pytest.mark.parametrize(
    "chain",
    [
        [RandomInvert(), RandomSolarize(100), RandomApply([RandomInvert()])],
        [RandomApply([RandomInvert()]), RandomApply([RandomSolarize(100)])],
        [RandomHorizontalFlip(), reader.transforms.RandomVerticalFlip()],
    ],
)
def test_what_torch_compile_leaves_to_python_draws_the_same(train: MemmapDataset, chain: Any) -> None:
    torch._dynamo.reset()
    transform, rows = Compose(chain), MemmapDataset(train.path, as_tuple=False)
    compiled = torch.compile(lambda batch: transform(batch).pixels, backend="eager")
    for batch in (rows[:9], rows[9:18]):
        assert torch.equal(compiled(batch), transform(batch).pixels)


@pytest.mark.parametrize("transform", OURS, ids=lambda transform: type(transform).__name__)
def test_what_is_no_batch_is_reported_where_the_transform_belongs(train: MemmapDataset, transform: Any) -> None:
    name = type(transform).__name__
    images, targets = train[:4]
    for given in ((images, targets), images, train[3], [images]):
        with pytest.raises(TypeError, match=rf"{name} takes a whole ImageBatch, and was given a \w+: ") as caught:
            transform(given)
        assert "transform=" in str(caught.value)
        assert "as_tuple=False" in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"give a batch, not a row, such as dataset\[3:4\]."):
        transform(MemmapDataset(train.path, as_tuple=False)[3])


def test_normalize_says_what_to_write_instead(train: MemmapDataset) -> None:
    normalize = Normalize.of(train.manifest)
    with pytest.raises(TypeError, match=r"was given a tuple. Write images, targets = batch; normalize\(images\)"):
        normalize(train[:4])
    batch = MemmapDataset(train.path, as_tuple=False)[:4]
    made = normalize(batch)
    torch.testing.assert_close(made.images, normalize(batch.images))
    for floats in (made, made.images):
        with pytest.raises(TypeError, match=r"^Normalize takes uint8 (pixels|images).*, and these are torch.float32"):
            normalize(floats)
