"""PerSample: transforms of others on the rows of a batch, with the right axes, seeded for each row, in order."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from augmenting import pictures, v2
from conftest import torchvision_or_skip
from tensordict import TensorDict

from packer import pack
from reader import ImageBatch, MemmapDataset, MemmapLoader, PerSample, RandomHorizontalFlip
from reader.epoch import in_epoch
from reader.transforms import Compose


def shifted(image: torch.Tensor) -> torch.Tensor:
    """Draw from torch's generator, in four ways."""
    flips = torch.rand(()) < 0.5
    order = torch.randperm(3)
    image = image[order].roll(int(torch.randint(5, ())), -1)
    image = image + torch.empty(1).uniform_(0, 9).to(torch.uint8)
    return image.flip(-1) if flips else image


def noisy(image: torch.Tensor) -> torch.Tensor:
    """Draw from the generators of the process."""
    return image.roll((random.randrange(20), int(np.random.randint(20))), (-1, -2))


@pytest.mark.parametrize("transform", [shifted, noisy])
def test_what_a_row_becomes_depends_on_seed_epoch_and_row_alone(transform: Any) -> None:
    batch, torch_before = pictures(16), torch.get_rng_state()
    random.seed(3)
    np.random.seed(3)
    before = (random.getstate(), np.random.get_state()[1].tolist())
    full = PerSample(transform)(batch)
    assert isinstance(full, ImageBatch)
    assert len(full.pixels[2:].flatten(1).unique(dim=0)) == 14
    parts = [PerSample(transform)(part) for part in batch.split(5)]
    assert torch.equal(torch.cat([part.pixels for part in parts]), full.pixels)
    assert torch.equal(torch_before, torch.get_rng_state())
    assert before == (random.getstate(), np.random.get_state()[1].tolist())
    with in_epoch(1):
        assert not torch.equal(PerSample(transform)(batch).pixels, full.pixels)
    assert not torch.equal(PerSample(transform, seed=1)(batch).pixels, full.pixels)


def test_torchvisions_transforms_take_the_right_axes() -> None:
    batch = pictures(20, size=(30, 41))
    flip = PerSample(v2().RandomHorizontalFlip(1))
    assert torch.equal(flip(batch).images, batch.images.flip(-1))
    made = PerSample(
        v2().Compose([v2().RandomResizedCrop(16), v2().ColorJitter(0.4, 0.4, 0.4, 0.1), v2().RandAugment()])
    )
    assert made(batch).pixels.shape == (20, 16, 16, 3)
    assert torch.equal(made(batch[7:12]).pixels, made(batch).pixels[7:12])


def v1() -> Any:
    """Return torchvision's transforms of version 1."""
    return torchvision_or_skip().transforms


def test_every_random_transform_of_torchvision_is_seeded() -> None:
    batch = pictures(12, size=(32, 32))
    for transform in (
        v2().AugMix(),
        v2().AutoAugment(),
        v2().TrivialAugmentWide(),
        v2().ElasticTransform(),
        v2().GaussianNoise(),
        v2().RandomAffine(30),
        v2().RandomApply([v2().GaussianBlur(3)]),
        v2().RandomChoice([v2().RandomInvert(1), v2().RandomEqualize(1)]),
        v2().RandomErasing(1.0),
        v2().RandomPerspective(0.5, 1.0),
        v2().RandomPhotometricDistort(),
        v2().RandomChannelPermutation(),
        v2().RandomOrder([v2().RandomVerticalFlip(), v2().RandomRotation(40)]),
        v2().Compose([v2().RandomResizedCrop(24), v2().ColorJitter(0.4, 0.4, 0.4, 0.1), v2().RandAugment()]),
        v1().Compose([v1().RandomResizedCrop(24), v1().ColorJitter(0.4), v1().RandomHorizontalFlip()]),
        v1().RandomApply([v1().RandomErasing(1.0)], p=0.7),
    ):
        state = torch.get_rng_state()
        made, part = (PerSample(transform)(rows).pixels for rows in (batch, batch[5:]))
        assert torch.equal(made[5:], part), type(transform).__name__
        assert torch.equal(state, torch.get_rng_state()), type(transform).__name__


def test_numbers_with_a_point_come_with_their_targets() -> None:
    batch = pictures(6)
    images, targets = PerSample(lambda image: image.float() / 255)(batch)
    assert torch.equal(images, batch.images / 255)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(targets, batch.targets)


def test_numbers_with_a_point_come_with_extras_and_texts_by_name() -> None:
    batch = pictures(3)
    batch.extras = TensorDict({"color": torch.arange(3)}, batch_size=[3])
    _, named = PerSample(lambda image: image.float())(batch)
    assert {name: values.tolist() for name, values in named.items()} == {
        "color": [0, 1, 2],
        "targets": batch.targets.tolist(),
    }
    batch.text_file = Texts()
    _, named = PerSample(lambda image: image.float())(batch)
    assert (sorted(named), named["caption"]) == (["caption", "color", "targets"], ["a cat"] * 3)


def test_in_a_loader_and_after_our_own(shared_store: Path) -> None:
    chain = Compose([PerSample(shifted), PerSample(shifted)])
    found = []
    for how in ({"prefetch": 0}, {"num_workers": 0}, {"num_workers": 3}):
        loader = MemmapLoader(MemmapDataset(shared_store), 16, shuffle=True, seed=4, transform=chain, **how)
        found.append([torch.cat([images for images, _ in loader]) for _ in range(2)])
    for epoch in zip(*found, strict=True):
        assert all(torch.equal(epoch[0], other) for other in epoch[1:])
    assert not torch.equal(*found[0])


def test_images_of_many_sizes_become_one(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", fit="none", workers=1)
    own = MemmapDataset(tmp_path / "out", as_tuple=False)[:6]
    made = PerSample(lambda image: image[:, :20, :22])(own)
    assert made.pixels.shape == (6, 20, 22, 3)
    with pytest.raises(ValueError, match=r"gave images of the shapes \(3, .* Let it end in one size"):
        PerSample(lambda image: image)(own)


def test_albumentations_get_arrays_and_are_seeded() -> None:
    albumentations = pytest.importorskip("albumentations")

    batch = pictures(20, size=(30, 41))
    flip = PerSample(albumentations.Compose([albumentations.HorizontalFlip(p=1.0)]))
    assert torch.equal(flip(batch).images, batch.images.flip(-1))
    chain = albumentations.Compose(
        [albumentations.RandomCrop(16, 16), albumentations.ColorJitter(p=0.7), albumentations.Rotate(30)]
    )
    made = PerSample(chain)(batch).pixels
    assert torch.equal(PerSample(chain)(batch[5:9]).pixels, made[5:9])


class FakeCompose:
    """As albumentations' Compose is called: image= uint8[H, W, C], and seeds of its own."""

    def __init__(self) -> None:
        self.generator, self.processors = random.Random(), {}

    def set_random_seed(self, seed: int) -> None:
        self.generator = random.Random(seed)

    def __call__(self, *, image: np.ndarray, **labels: Any) -> dict[str, Any]:
        assert image.dtype == np.uint8
        assert image.shape[-1] == 3
        if labels:
            moved = {
                "bboxes": labels["bboxes"][1:],
                "names": labels["names"][1:].astype(float),
                "mask": labels["mask"][::-1],
            }
            return {"image": image[::-1], **moved}
        return {"image": np.roll(image, self.generator.randrange(15), 0)}


def test_what_is_called_as_albumentations_is_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeCompose, "__module__", "albumentations.core.composition")
    batch = pictures(16)
    made = PerSample(FakeCompose())(batch)
    assert torch.equal(PerSample(FakeCompose())(batch[3:]).pixels, made.pixels[3:])
    assert made.pixels.shape == batch.pixels.shape


def test_albumentations_is_called_with_boxes_and_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeCompose, "__module__", "albumentations.core.composition")
    batch, transform = labelled(3), FakeCompose()
    with pytest.raises(ValueError, match=r"bbox_params=BboxParams\('pascal_voc', label_fields=\['labels'\]\)"):
        PerSample(transform)(batch)
    params = SimpleNamespace(format="pascal_voc", label_fields=["names"])
    transform.processors = {"bboxes": SimpleNamespace(params=params)}
    made = PerSample(transform)(batch)
    assert torch.equal(made.pixels, batch.pixels.flip(1))
    assert torch.equal(made.extras["masks"], batch.extras["masks"].flip(1))
    assert made.extras["boxes"][2].tolist() == [[11, 4, 20, 24], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert (made.extras["box_count"].tolist(), made.extras["box_targets"][0].tolist()) == ([1] * 3, [6, -1, -1])
    # it drops the first box, and a row has only that
    batch.extras["box_count"][1] = 1
    made = PerSample(transform)(batch)
    assert made.extras["box_count"].tolist() == [1, 0, 1]
    assert made.extras["boxes"][1].tolist() == [[0] * 4] * 3
    assert made.extras["box_targets"].tolist() == [[6, -1, -1], [-1] * 3, [6, -1, -1]]


def test_real_albumentations_moves_boxes_and_masks() -> None:
    albumentations = pytest.importorskip("albumentations")

    params = albumentations.BboxParams("pascal_voc", label_fields=["labels"])
    made = PerSample(albumentations.Compose([albumentations.HorizontalFlip(p=1.0)], bbox_params=params))(labelled(4))
    ours = RandomHorizontalFlip(1)(labelled(4))
    assert torch.equal(made.pixels, ours.pixels)
    assert torch.allclose(made.extras["boxes"], ours.extras["boxes"], atol=1e-4)
    assert all(torch.equal(made.extras[name], ours.extras[name]) for name in ("box_count", "box_targets", "masks"))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(TypeError, match="transform is 3, expected a function of one image"):
        PerSample(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the transform gave a str"):
        PerSample(lambda image: "white")(pictures(1))
    with pytest.raises(ValueError, match=r"cannot know whether function moves boxes and masks.* v2.Compose"):
        PerSample(shifted)(labelled(2))


class Texts:
    """As what reads the texts of a batch."""

    def texts(self, extras: TensorDict) -> dict[str, list[str]]:
        return {"caption": ["a cat"] * len(extras)}


def labelled(count: int) -> ImageBatch:
    """Pictures of 24 x 20, each with two boxes of room for three, and a mask."""
    batch = pictures(count)
    boxes = torch.tensor([[2.0, 3, 9, 10], [11, 4, 20, 24], [0, 0, 0, 0]]).expand(count, 3, 4).clone()
    extras = {"boxes": boxes, "box_count": torch.full((count,), 2, dtype=torch.int32)}
    extras["box_targets"] = torch.tensor([[5, 6, -1]]).expand(count, 3).clone()
    extras["masks"] = batch.pixels[..., 0].clone()
    batch.extras = TensorDict(extras, batch_size=[count])
    return batch


def test_boxes_and_masks_move_with_torchvisions_transforms() -> None:
    batch = labelled(4)
    flipped, ours = PerSample(v2().RandomHorizontalFlip(1))(batch), RandomHorizontalFlip(1)(batch)
    assert torch.equal(flipped.pixels, ours.pixels)
    assert all(
        torch.equal(flipped.extras[name], ours.extras[name]) for name in ("boxes", "box_count", "box_targets", "masks")
    )
    # the first 10 columns: of the second box nothing is left
    floats = [v2().CenterCrop((24, 20)), v2().ToDtype(torch.float32, scale=True)]
    images, named = PerSample(v2().Compose([v2().RandomAffine(0, (0.0, 0.0)), v2().Pad((0, 0, 10, 0)), *floats]))(batch)
    assert images.dtype == torch.float32
    assert named["boxes"][0].tolist() == [[0, 3, 4, 10], [6, 4, 15, 24], [0, 0, 0, 0]]
    assert torch.equal(named["targets"], batch.targets)
    with_texts = labelled(1)
    with_texts.text_file = Texts()
    assert PerSample(v2().ToDtype(torch.float32))(with_texts)[1]["caption"] == ["a cat"]
    assert torch.equal(named["masks"][:, :, :15], batch.extras["masks"][:, :, 5:])
    cropped = PerSample(v2().Compose([v2().RandomCrop((24, 10)), v2().SanitizeBoundingBoxes()]), seed=3)(labelled(20))
    counts, targets = cropped.extras["box_count"].tolist(), cropped.extras["box_targets"]
    assert {0, 1, 2} >= {*counts} > {2}
    assert all(
        (row[:count] >= 5).all() and (row[count:] == -1).all() for row, count in zip(targets, counts, strict=True)
    )


def test_one_that_changes_its_image_in_place_is_called_once_for_each_and_leaves_the_batch() -> None:
    def brighter(image: torch.Tensor) -> torch.Tensor:
        random.random()
        return image.add_(1)

    given = pictures(4)
    before = given.pixels.clone()
    made = PerSample(brighter)(given)
    assert torch.equal(given.pixels, before)
    assert torch.equal(made.pixels, before + 1)
