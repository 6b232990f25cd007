"""torchvision's transforms on what we give: images are changed along the right axes, a whole batch or row is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import torchvision_or_skip
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from reader import ImageBatch, MemmapDataset, MemmapLoader

# Of v1 and v2: what each is made with, where it needs something.
GIVEN: dict[str, tuple[Any, ...]] = {
    "CenterCrop": (8,),
    "ColorJitter": (0.4, 0.4, 0.4, 0.1),
    "FiveCrop": (8,),
    "GaussianBlur": (3,),
    "Pad": (2,),
    "RandomAdjustSharpness": (2, 1.0),
    "RandomAffine": (30,),
    "RandomAutocontrast": (1.0,),
    "RandomCrop": (8,),
    "RandomEqualize": (1.0,),
    "RandomErasing": (1.0,),
    "RandomGrayscale": (1.0,),
    "RandomHorizontalFlip": (1.0,),
    "RandomInvert": (1.0,),
    "RandomPerspective": (0.5, 1.0),
    "RandomPosterize": (3, 1.0),
    "RandomResizedCrop": (8,),
    "RandomRotation": (30,),
    "RandomSolarize": (100, 1.0),
    "RandomVerticalFlip": (1.0,),
    "Resize": (8,),
    "ScaleJitter": ((16, 16),),
    "TenCrop": (8,),
}
BARE = [
    "AugMix",
    "AutoAugment",
    "RandAugment",
    "TrivialAugmentWide",
    "RandomPhotometricDistort",
    "RandomZoomOut",
    "ToImage",
]
BARE += [
    "RandomChannelPermutation",
    "ElasticTransform",
    "RandomIoUCrop",
    "ToPureTensor",
    "ToTensor",
]


@pytest.fixture
def torchvision() -> Any:
    return torchvision_or_skip()


@pytest.fixture
def batches(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


def made(module: Any) -> dict[str, Any]:
    """Make each transform of transforms or transforms.v2 that there is."""
    named = {name: GIVEN.get(name, ()) for name in (*GIVEN, *BARE) if hasattr(module, name)}
    return {name: getattr(module, name)(*given) for name, given in named.items()}


def modules(torchvision: Any) -> list[Any]:
    return [torchvision.transforms, torchvision.transforms.v2]


def test_a_loaders_transform_of_torchvision_is_refused_with_what_to_write(
    torchvision: Any, train: MemmapDataset
) -> None:
    flip = torchvision.transforms.v2.RandomHorizontalFlip(1)
    for transform in (flip, torchvision.transforms.v2.MixUp(num_classes=3)):
        with pytest.raises(ValueError, match=r"takes single images.*: give from_torchvision\(transform\)"):
            MemmapLoader(train, 4, transform=transform)
    right = MemmapLoader(train, 4, transform=lambda batch: (flip(batch.images), batch.targets))
    images, targets = next(iter(right))
    assert torch.equal(images, train[:4][0].flip(-1))
    assert torch.equal(targets, train[:4][1])


def test_as_the_datasets_transform_it_takes_images(torchvision: Any, train: MemmapDataset) -> None:
    for module in modules(torchvision):
        flip = module.RandomHorizontalFlip(1)
        flipped = MemmapDataset(train.path, transform=flip)
        assert torch.equal(flipped[3][0], train[3][0].flip(-1))
        images, _ = next(iter(DataLoader(flipped, 4)))
        assert torch.equal(images, train[:4][0].flip(-1))


def test_images_are_changed_as_a_contiguous_tensor_is(torchvision: Any, train: MemmapDataset) -> None:
    batch, row = train[:4][0], train[5][0]
    for module in modules(torchvision):
        for name, transform in made(module).items():
            # the one wants arrays, the other one boxes
            if name in ("ToTensor", "RandomIoUCrop"):
                continue
            for images in (batch, row):
                found = []
                for given in (images, images.contiguous(memory_format=torch.contiguous_format)):
                    torch.manual_seed(1)
                    found.append(transform(given))
                views, plain = (pytree.tree_leaves(part) for part in found)
                assert all(torch.equal(a, b) for a, b in zip(views, plain, strict=True)), (module, name)


def test_a_tuple_of_a_loop_is_changed_in_its_images_alone(torchvision: Any, train: MemmapDataset) -> None:
    v2 = torchvision.transforms.v2
    images, targets = next(iter(MemmapLoader(train, 4)))
    changed, same = v2.RandomHorizontalFlip(1)(images, targets)
    assert torch.equal(changed, images.flip(-1))
    assert torch.equal(same, targets)
    mixed, labels = v2.MixUp(num_classes=3)(images.float(), targets)
    assert (mixed.shape, labels.shape) == (images.shape, (4, 3))


def test_pytrees_of_others_still_walk_a_batch(batches: MemmapDataset) -> None:
    batch = batches[:4]
    again = pytree.tree_map(lambda tensor: tensor.clone(), {"a": [batch]})["a"][0]
    assert isinstance(again, ImageBatch)
    assert torch.equal(again.pixels, batch.pixels)
    assert torch.equal(batch.flip(0).pixels, batch.pixels.flip(0))
