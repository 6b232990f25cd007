"""Mistakes that would train on the wrong thing without a word: each is impossible, or refused with what to write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import torchvision_or_skip
from torch.utils.data import DataLoader

from reader import ImageBatch, MemmapDataset, MemmapLoader


def test_a_batch_of_two_is_images_and_targets_or_no_pair_at_all(train: MemmapDataset) -> None:
    for batch in (next(iter(MemmapLoader(train, 2))), next(iter(DataLoader(train, 2))), train[:2], train[[0, 1]]):
        images, targets = batch
        assert (images.shape, targets.dtype) == ((2, 3, 32, 32), torch.int64)
    with pytest.raises(TypeError, match="ImageBatch. object is not iterable"):
        images, targets = next(iter(MemmapLoader(train, 2, as_tuple=False)))


def test_torchvision_never_takes_a_batch_along_the_wrong_axes(train: MemmapDataset) -> None:
    flip = torchvision_or_skip().transforms.v2.RandomHorizontalFlip(1.0)
    sentence = "torchvision's transforms take single images"
    for given in (flip, torch.nn.Sequential(flip)):
        with pytest.raises(TypeError, match=sentence):
            MemmapLoader(train, 8, transform=given)
    with pytest.raises(TypeError, match=sentence):
        next(iter(MemmapLoader(train, 8, transform=lambda batch: flip(batch))))
    images, _ = next(iter(MemmapLoader(train, 8)))
    assert torch.equal(flip(images)[3], flip(train[3][0]))


def test_a_step_of_torchvision_behind_one_that_returns_a_tensor_is_called(train: MemmapDataset) -> None:
    class Pixels(torch.nn.Module):
        def forward(self, batch: ImageBatch) -> torch.Tensor:
            return batch.images

    flip = torchvision_or_skip().transforms.v2.RandomHorizontalFlip(1.0)
    flipped = next(iter(MemmapLoader(train, 8, transform=torch.nn.Sequential(Pixels(), flip))))
    images, _ = next(iter(MemmapLoader(train, 8)))
    assert torch.equal(flipped, images.flip(-1))


def test_an_epoch_that_a_program_sets_on_the_sampler_is_never_lost(train: MemmapDataset) -> None:
    # as timm, torchvision's references and Lightning do: of a program that resumes at epoch 3, the order is that of epoch 3
    loader = MemmapLoader(train, 16, shuffle="full", as_tuple=False)
    epochs = [[batch.rows.tolist() for batch in loader] for _ in range(4)]
    resumed = MemmapLoader(train, 16, shuffle="full", as_tuple=False)
    if hasattr(resumed.sampler, "set_epoch"):
        resumed.sampler.set_epoch(3)
    assert [batch.rows.tolist() for batch in resumed] == epochs[3]


def test_a_loader_is_never_shared_among_ranks_twice_nor_made_a_dataset(train: MemmapDataset) -> None:
    loader = MemmapLoader(train, 16, shuffle="full")
    loop: Any = loader
    with pytest.raises(TypeError):
        next(iter(DataLoader(loop, batch_size=2)))
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.prepare(loader) is loader
    with pytest.raises(AttributeError, match="reads the part of its rank itself.* Give it to accelerate's prepare"):
        accelerator.prepare_data_loader(loader)


def first_of_images(samples: Any) -> Any:
    """Return the first pixel of each image: of tensors, or of PIL images."""
    images, targets = samples
    pixels = images[:, 0, 0, 0] if torch.is_tensor(images) else torch.tensor([i.getpixel((0, 0))[0] for i in images])
    return pixels.tolist(), targets.tolist(), type(images)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["transform", "target_transform", "transforms", "as_pil"])
def test_a_transform_of_a_dataset_is_never_left_out(train: MemmapDataset, when: str, name: str) -> None:
    part = train.subset(slice(None))
    made = MemmapLoader(part, 16)
    changes: dict[str, Any] = {"as_pil": True, "transforms": lambda image, target: (image // 2, target + 1)}
    setattr(part, name, changes.get(name, torch.neg if name == "transform" else lambda target: target + 1))
    plain = first_of_images(train[:16])
    found = first_of_images(next(iter(made if when == "after" else MemmapLoader(part, 16))))
    assert found == first_of_images(part[list(range(16))])
    assert found != plain
