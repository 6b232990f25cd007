"""torchvision's transforms on what we give: images are changed along the right axes, a whole batch or row is refused."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import torchvision_or_skip
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from packer import pack
from reader import ImageBatch, MemmapDataset, MemmapLoader, RaggedBatch

SENTENCE = r"torchvision's transforms take single images.* whole batch\. Give the loader from_torchvision\(transform\)"

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


def test_no_transform_takes_a_batch_or_a_row(torchvision: Any, batches: MemmapDataset) -> None:
    for module in modules(torchvision):
        for name, transform in made(module).items():
            for given in (batches[:4], batches[3], next(iter(MemmapLoader(batches, 4, as_tuple=False)))):
                before = given.pixels.clone()
                # those of v1 say it themselves: they expect a PIL image
                sentence = SENTENCE if module is torchvision.transforms.v2 else "."
                with pytest.raises((TypeError, AttributeError, IndexError), match=sentence):
                    raise_if_skipped(transform(given), name)
                assert torch.equal(given.pixels, before)


def raise_if_skipped(found: Any, name: str) -> None:
    raise AssertionError(f"{name} gave {type(found).__name__}")


def test_no_function_changes_a_batch_without_an_error(torchvision: Any, batches: MemmapDataset) -> None:
    batch = batches[:4]
    for module in (torchvision.transforms.functional, torchvision.transforms.v2.functional):
        flips = [n for n, f in vars(module).items() if "flip" in n and inspect.isfunction(f)]
        assert {"hflip", "vflip"} <= set(flips)
        for name in [*flips, "resize", "center_crop", "rotate", "pad", "adjust_hue", "rgb_to_grayscale", "crop"]:
            if name.endswith(("bounding_boxes", "keypoints")):
                continue
            given = {"resize": ([8],), "center_crop": ([8],), "rotate": (30.0,), "pad": ([2],), "adjust_hue": (0.2,)}
            with pytest.raises((TypeError, AttributeError, ValueError, RuntimeError)):
                raise_if_skipped(
                    getattr(module, name)(batch, *given.get(name, (1, 1, 8, 8) if name == "crop" else ())), name
                )


def test_a_loaders_transform_of_torchvision_is_refused_with_what_to_write(
    torchvision: Any, train: MemmapDataset
) -> None:
    flip = torchvision.transforms.v2.RandomHorizontalFlip(1)
    for transform in (flip, torchvision.transforms.v2.MixUp(num_classes=3)):
        with pytest.raises(ValueError, match=r"takes single images.*: give from_torchvision\(transform\)"):
            MemmapLoader(train, 4, transform=transform)
    for prefetch in (0, 2):
        with pytest.raises(TypeError, match=SENTENCE):
            next(iter(MemmapLoader(train, 4, transform=lambda batch: flip(batch), prefetch=prefetch)))
    right = MemmapLoader(train, 4, transform=lambda batch: (flip(batch.images), batch.targets))
    images, targets = next(iter(right))
    assert torch.equal(images, train[:4][0].flip(-1))
    assert torch.equal(targets, train[:4][1])


def test_rows_with_sizes_of_their_own_are_refused_too(torchvision: Any, images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", fit="none", workers=1)
    own = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert isinstance(own[:4], RaggedBatch)
    for name, transform in made(torchvision.transforms.v2).items():
        with pytest.raises(TypeError, match=SENTENCE):
            raise_if_skipped(transform(own[:4]), name)


def test_as_the_datasets_transform_it_takes_images(torchvision: Any, train: MemmapDataset) -> None:
    for module in modules(torchvision):
        flip = module.RandomHorizontalFlip(1)
        flipped = MemmapDataset(train.path, transform=flip)
        assert torch.equal(flipped[3][0], train[3][0].flip(-1))
        images, _ = next(iter(DataLoader(flipped, 4)))
        assert torch.equal(images, train[:4][0].flip(-1))
    of_rows = MemmapDataset(train.path, transform=torchvision.transforms.v2.RandomHorizontalFlip(1), as_tuple=False)
    with pytest.raises(TypeError, match=SENTENCE):
        of_rows[3]


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
