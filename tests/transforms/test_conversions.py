"""A recipe that was written for torchvision's Compose stands in ours as it is, and gives what torchvision gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_tree, torchvision_or_skip

from packer import pack
from reader import MemmapDataset, MemmapLoader, Normalize, transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_a_recipe_gives_the_floats_that_torchvision_gives(train: MemmapDataset) -> None:
    v2 = torchvision_or_skip().transforms.v2

    def recipe(names: Any) -> Any:
        return names.Compose(
            [
                names.Resize((24, 24)),
                names.PILToTensor(),
                names.ToDtype(torch.float32, scale=True),
                names.Normalize(mean=MEAN, std=STD),
            ]
        )

    images, targets = next(iter(MemmapLoader(train, 16, transform=recipe(transforms))))
    expected = torch.stack([recipe(v2)(train[n][0]) for n in range(16)])
    assert targets.tolist() == train.targets[:16]
    assert images.dtype == torch.float32
    # a level of uint8 is a 255th of 1 / std: the resize may round one apart
    assert (images - expected).abs().max() <= 1 / 255 / min(STD) + 1e-5
    assert (images - expected).abs().mean() < 1e-3


@pytest.mark.parametrize("last", [transforms.ToTensor(), transforms.ConvertImageDtype(torch.float16)])
def test_floats_from_0_to_1_without_normalize(train: MemmapDataset, last: transforms.ToDtype) -> None:
    images, _ = next(iter(MemmapLoader(train, 8, transform=transforms.Compose([transforms.ToImage(), last]))))
    assert images.dtype == last.dtype
    assert torch.equal(images, (train[:8][0].float() / 255).to(last.dtype))


def test_what_changes_nothing_is_left_out(train: MemmapDataset) -> None:
    recipe = transforms.Compose([transforms.ToImage(), transforms.ToDtype(torch.uint8), transforms.ToPureTensor()])
    images, _ = next(iter(MemmapLoader(train, 8, transform=recipe)))
    assert torch.equal(images, train[:8][0])
    # as the documentation of torchvision has it
    augmented = [transforms.RandomInvert(1.0), transforms.ToDtype(torch.float32, scale=True)]
    recipe = transforms.Compose([transforms.ToImage(), transforms.ToDtype(torch.uint8, scale=True), *augmented])
    images, _ = next(iter(MemmapLoader(train, 8, transform=recipe)))
    assert torch.equal(images, (255 - train[:8][0]).float() / 255)
    with pytest.raises(ValueError, match="ToDtype takes uint8 pixels, and what comes before it makes them floats"):
        transforms.Compose([transforms.ToDtype(torch.float32, scale=True), transforms.ToDtype(torch.uint8)])


def test_erasing_behind_normalize_leaves_zeros(train: MemmapDataset) -> None:
    recipe = [transforms.ToDtype(torch.float32, scale=True), Normalize(MEAN, STD), transforms.RandomErasing(p=1.0)]
    images, _ = next(iter(MemmapLoader(train, 8, transform=transforms.Compose(recipe))))
    plain = Normalize(MEAN, STD)(train[:8][0])
    is_erased = (images == 0).all(1)
    assert is_erased.flatten(1).any(1).all()
    assert torch.equal(images.movedim(1, -1)[~is_erased], plain.movedim(1, -1)[~is_erased])


def test_erasing_of_a_compose_leaves_the_rows_that_it_is_called_with_by_itself(train: MemmapDataset) -> None:
    recipe = transforms.Compose([Normalize(MEAN, STD), transforms.RandomErasing(p=1.0)])
    batch = MemmapDataset(train.path, as_tuple=False)[[1, 2, 3]]
    before = batch.pixels.clone()
    erased: Any = recipe.transforms[1]
    assert not torch.equal(erased(batch).pixels, before)
    assert torch.equal(batch.pixels, before)


def test_gray_pixels_get_a_channel_for_each_mean(train: MemmapDataset) -> None:
    recipe = transforms.Compose([transforms.Grayscale(1), Normalize(MEAN, STD)])
    images, _ = next(iter(MemmapLoader(train, 8, transform=recipe)))
    gray, _ = next(iter(MemmapLoader(train, 8, transform=transforms.Grayscale(1))))
    assert torch.equal(images, Normalize(MEAN, STD)(gray))


def test_normalize_in_a_compose_refuses_a_row(train: MemmapDataset) -> None:
    row = MemmapDataset(train.path, as_tuple=False)[3]
    with pytest.raises(ValueError, match=r"give a batch, not a row, such as dataset\[3:4\]."):
        transforms.Compose([Normalize([0.5], [0.5])])(row)


def test_a_class_made_of_normalize_sees_the_images(train: MemmapDataset) -> None:
    class OfEachImage(Normalize):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.float() - images.float().mean((-1, -2), keepdim=True)

    images, _ = next(iter(MemmapLoader(train, 8, transform=transforms.Compose([OfEachImage(MEAN, STD)]))))
    assert torch.equal(images, OfEachImage(MEAN, STD)(train[:8][0]))


@pytest.mark.parametrize(
    "behind", [transforms.ColorJitter(0.4), transforms.RandomHorizontalFlip(), transforms.RandomErasing(1.0, value=9)]
)
def test_what_takes_uint8_is_refused_behind_floats(behind: object) -> None:
    with pytest.raises(ValueError, match="takes uint8 pixels, and what comes before it makes them floats"):
        transforms.Compose([transforms.ToDtype(torch.float32, scale=True), Normalize(MEAN, STD), behind])


NORMALIZED = [transforms.ToDtype(torch.float32, scale=True), Normalize(MEAN, STD)]
OF_LEVELS = [
    transforms.MixUp(num_classes=3),
    transforms.GaussianBlur(3),
    transforms.RandomRotation(30),
    transforms.RandomGrayscale(),
    transforms.ColorJitter(0.4),
    transforms.RandAugment(),
    transforms.RandomInvert(),
    transforms.RandomEqualize(),
    transforms.RandomErasing(1.0, value=9),
    transforms.ToDtype(torch.uint8),
]


@pytest.mark.parametrize("behind", OF_LEVELS, ids=lambda transform: type(transform).__name__)
def test_floats_are_refused_whatever_comes_between(train: MemmapDataset, behind: Any) -> None:
    within = transforms.Compose(NORMALIZED)
    for known in ([*NORMALIZED, transforms.RandomErasing()], [within], [within, transforms.RandomErasing()]):
        with pytest.raises(ValueError, match="takes uint8 pixels, and what comes before it makes them floats"):
            transforms.Compose([*known, behind])
    batch = MemmapDataset(train.path, as_tuple=False)[[1, 2, 3]]
    with pytest.raises(ValueError, match=r"takes uint8 pixels, and these are torch\.float32\. Let it come before"):
        transforms.Compose([within, lambda batch: batch, behind])(batch)


def test_a_recipe_within_a_recipe_is_one_of_all_steps(train: MemmapDataset) -> None:
    batch = MemmapDataset(train.path, as_tuple=False)[[1, 2, 3]]
    expected = transforms.Compose(NORMALIZED)(batch).pixels
    for apart in ([transforms.Compose([part]) for part in NORMALIZED], [transforms.Compose(NORMALIZED)]):
        assert torch.equal(transforms.Compose(apart)(batch).pixels, expected)
    # what moves floats computes no levels
    flipped = transforms.Compose([*NORMALIZED, lambda batch: batch, transforms.RandomHorizontalFlip(1.0)])
    assert torch.equal(flipped(batch).pixels, expected.flip(2))


def test_floats_that_are_not_scaled_are_refused(train: MemmapDataset) -> None:
    with pytest.raises(ValueError, match="without scale=True leaves pixels from 0 to 255"):
        transforms.ToDtype(torch.float32)
    with pytest.raises(ValueError, match="expected a float one such as torch.float32"):
        transforms.ToDtype(torch.int64)
    # two that are apart would divide twice
    with pytest.raises(ValueError, match="Let it come right behind ToDtype"):
        transforms.Compose([transforms.ToTensor(), lambda batch: batch, Normalize(MEAN, STD)])
    halved = transforms.Compose([lambda batch: batch.replace(pixels=batch.pixels / 2), Normalize(MEAN, STD)])
    with pytest.raises(ValueError, match="Let it come right behind ToDtype"):
        next(iter(MemmapLoader(train, 8, transform=halved)))


def test_a_recipe_of_the_dataset_runs_on_the_batches_of_its_loader(shared_store: Path, train: MemmapDataset) -> None:
    recipe = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    own = MemmapDataset(shared_store, transform=recipe)
    images, _ = next(iter(MemmapLoader(own, 16, shuffle=True)))
    expected, _ = next(iter(MemmapLoader(train, 16, shuffle=True, transform=recipe)))
    assert torch.equal(images, expected)
    with pytest.raises(ValueError, match="the dataset has a transform, and the loader a transform of batches"):
        MemmapLoader(own, 16, transform=transforms.CenterCrop(8))
    own.transform = lambda image: image.flip(-1)
    images, _ = next(iter(MemmapLoader(own, 16)))
    assert torch.equal(images, train[:16][0].flip(-1))


@pytest.mark.parametrize("side", [28, 31, 36, 40])
def test_resize_and_center_crop_of_images_of_many_sizes_are_torchvisions(tmp_path: Path, side: int) -> None:
    v2 = torchvision_or_skip().transforms.v2
    pack(make_tree(tmp_path / "images", each=4), tmp_path / "out", fit="none", workers=1)
    full = MemmapDataset(tmp_path / "out")
    images, _ = next(
        iter(MemmapLoader(full, 12, transform=transforms.Compose([transforms.Resize(side), transforms.CenterCrop(28)])))
    )
    expected = torch.stack([v2.Compose([v2.Resize(side), v2.CenterCrop(28)])(full[n][0]) for n in range(12)])
    assert images.shape == expected.shape
    assert (images.int() - expected.int()).abs().max() <= 1
