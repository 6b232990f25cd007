"""Datasets with transforms of single samples, as ImageFolder has them, under MemmapLoader: applied, seeded by row, joined."""

from __future__ import annotations

import random
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import torchvision_or_skip
from torch.utils.data import DataLoader, random_split

from packer import pack
from reader import MemmapDataset, MemmapLoader, concat
from reader.loading.sample_transform import transform_of_batches
from reader.transforms import CutMix


def shifted(image: torch.Tensor) -> torch.Tensor:
    """Draw from torch's generator."""
    return image.roll(int(torch.randint(32, ())), -1).float() / 255


def noisy(image: torch.Tensor) -> torch.Tensor:
    """Draw from the generators of the process, and change the image in place."""
    return image.add_(random.randrange(20)).roll(int(np.random.randint(20)), -1)


def epoch_of(loader: MemmapLoader) -> torch.Tensor:
    return torch.cat([images for images, _ in loader])


def test_batches_are_those_of_a_data_loader(shared_store: Path) -> None:
    v2 = torchvision_or_skip().transforms.v2
    recipe = v2.Compose([v2.Resize((24, 24)), v2.CenterCrop(20), v2.ToDtype(torch.float32, scale=True)])
    train = MemmapDataset(shared_store, transform=recipe)
    theirs, ours = DataLoader(train, 16), MemmapLoader(train, 16)
    assert len(ours) == len(theirs)
    for (images, targets), expected in zip(ours, theirs, strict=True):
        assert (images.shape[1:], images.dtype) == ((3, 20, 20), torch.float32)
        assert torch.equal(images, expected[0])
        assert torch.equal(targets, expected[1])


def test_what_is_drawn_depends_on_seed_epoch_and_position_alone(shared_store: Path) -> None:
    train, before = MemmapDataset(shared_store, transform=shifted), torch.get_rng_state()
    loader = MemmapLoader(train, 16, shuffle=True, seed=3)
    first, second = epoch_of(loader), epoch_of(loader)
    assert not torch.equal(first, second)
    for how in ({"num_workers": 0}, {"num_workers": 1}, {"num_workers": 3}, {"prefetch": 0}):
        again = MemmapLoader(train, 16, shuffle=True, seed=3, **how)
        assert torch.equal(epoch_of(again), first)
    assert torch.equal(torch.get_rng_state(), before)
    resumed = MemmapLoader(train, 16, shuffle=True, seed=3)
    resumed.load_state_dict(loader.state_dict() | {"epoch": 1, "position": 32})
    assert torch.equal(epoch_of(resumed), second[32:])


def test_a_data_loader_of_its_batch_sampler_gives_its_batches(shared_store: Path) -> None:
    # as accelerate and transformers' Trainer make one to resume
    loader = MemmapLoader(MemmapDataset(shared_store, transform=shifted), 16, shuffle=True)
    expected = epoch_of(loader)
    loader.set_epoch(0)
    again = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    assert torch.equal(torch.cat([images for images, _ in again]), expected)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_without_workers_it_runs_in_the_thread_of_the_loop(shared_store: Path, prefetch: int) -> None:
    seen: list[int] = []

    def watched(image: torch.Tensor) -> torch.Tensor:
        seen.append(threading.get_ident())
        return noisy(image)

    train = MemmapDataset(shared_store, transform=watched)
    random.seed(5)
    expected = [random.random() for _ in range(3)]
    random.seed(5)
    loader = MemmapLoader(train, 16, num_workers=0, prefetch=prefetch)
    drawn, made = [], []
    for images, _ in loader:
        drawn.append(random.random())
        made.append(images)
    assert drawn[:3] == expected
    assert {*seen} == {threading.get_ident()}
    assert torch.equal(torch.cat(made), epoch_of(MemmapLoader(train, 8, num_workers=2)))


def test_views_of_pil_images_and_changed_targets(shared_store: Path) -> None:
    def two(image: Any) -> list[torch.Tensor]:
        assert image.mode == "RGB"
        pixels = torch.from_numpy(np.array(image))
        return [pixels, pixels.flip(0)]

    train = MemmapDataset(shared_store, transform=two, target_transform=lambda target: target + 10, as_pil=True)
    (first, second), targets = next(iter(MemmapLoader(train, 8)))
    pixels = MemmapDataset(shared_store, as_tuple=False)[:8].pixels
    assert torch.equal(first, pixels)
    assert torch.equal(second, pixels.flip(1))
    assert targets.tolist() == [target + 10 for target in train.targets[:8]]
    named = next(iter(MemmapLoader(train, 8, as_dict=("views", "labels"))))
    assert (sorted(named), len(named["views"])) == (["labels", "views"], 2)


def test_a_transform_of_one_image_batch_gives_batches(shared_store: Path) -> None:
    def dark(row: Any) -> Any:
        row.pixels = row.pixels // 2
        return row

    loader = MemmapLoader(MemmapDataset(shared_store, as_tuple=False, transform=dark), 8, as_tuple=False)
    batch, expected = next(iter(loader)), MemmapDataset(shared_store, as_tuple=False)[:8]
    assert torch.equal(batch.pixels, expected.pixels // 2)
    assert torch.equal(batch.rows, expected.rows)


def test_texts_come_by_name() -> None:
    texts = MemmapDataset(
        Path(__file__).parents[1] / "golden" / "texts",
        transforms=lambda image, named: (image[:, :2, :2].float(), named),
    )
    images, named = next(iter(MemmapLoader(texts, 3)))
    assert (len(images), images.dtype) == (3, torch.float32)
    expected = {name: column[:3] for name, column in texts.texts.items()}
    assert expected
    assert {name: named[name] for name in expected} == expected


def test_samples_are_joined_by_the_programs_own_function(shared_store: Path) -> None:
    def joined(samples: list[Any]) -> dict[str, Any]:
        return {"count": len(samples), "last": samples[-1]}

    train = MemmapDataset(shared_store, target_transform=str)
    batch = next(iter(MemmapLoader(train, 7, collate_fn=joined)))
    assert (batch["count"], batch["last"][1]) == (7, str(train.targets[6]))
    assert torch.equal(batch["last"][0], train[6][0])
    with pytest.raises(TypeError, match="collate_fn is 3, expected a function of a list of samples"):
        MemmapLoader(train, 7, collate_fn=3)


def test_a_collate_function_draws_apart_from_the_samples(shared_store: Path) -> None:
    train = MemmapDataset(shared_store, transform=lambda _: float(torch.rand(())))

    def drawn(samples: list[Any]) -> list[float]:
        return [*(sample[0] for sample in samples), float(torch.rand(()))]

    loader = MemmapLoader(train, 7, seed=1, collate_fn=drawn)
    epochs = [list(loader), list(loader)]
    numbers = [number for epoch in epochs for batch in epoch for number in batch]
    assert len(set(numbers)) == len(numbers)
    assert list(MemmapLoader(train, 7, seed=1, collate_fn=drawn)) == epochs[0]


def test_parts_and_joined_stores_keep_the_transform(shared_store: Path) -> None:
    train = MemmapDataset(shared_store, transform=lambda image: image.float().mean())
    means = torch.stack([image for image, _ in (train[n] for n in range(len(train)))])
    part, _ = random_split(train, [0.5, 0.5], generator=torch.Generator().manual_seed(0))
    assert torch.equal(epoch_of(MemmapLoader(part, 8)), means[part.indices])
    both = concat([train.subset([3, 4]), train.subset([9])])
    assert torch.equal(epoch_of(MemmapLoader(both, 2)), means[[3, 4, 9]])


def test_images_of_many_sizes_end_in_one_or_are_refused(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", fit="none", workers=1)
    own = MemmapDataset(tmp_path / "out", transform=lambda image: image[:, :20, :22])
    found = epoch_of(MemmapLoader(own, 6))
    assert torch.equal(found, torch.stack([own[n][0] for n in range(len(own))]))
    numbered = MemmapDataset(tmp_path / "out", as_tuple=False, transform=lambda row: row.rows)
    assert torch.equal(next(iter(MemmapLoader(numbered, 6))), torch.arange(6))
    own.transform = shifted
    with pytest.raises(ValueError, match=r"gave images of the shapes \(3, .* Let it end in one size"):
        next(iter(MemmapLoader(own, 6)))


def test_an_error_of_joining_is_not_its_own_cause(shared_store: Path) -> None:
    # a program that prints the causes of an error would never end
    lengths = iter(range(1, 1000))
    train = MemmapDataset(shared_store, transform=lambda image: [0] * next(lengths))
    with pytest.raises(RuntimeError, match="should be of equal size") as caught:
        next(iter(MemmapLoader(train, 4, num_workers=0)))
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_its_row_alone(shared_store: Path, workers: int) -> None:
    bad = MemmapDataset(shared_store)[5][0]

    def failing(image: torch.Tensor) -> torch.Tensor:
        if torch.equal(image, bad):
            raise OSError("no such palette")
        return image

    with pytest.raises(OSError, match="no such palette") as caught:
        next(iter(MemmapLoader(MemmapDataset(shared_store, transform=failing), 8, num_workers=workers)))
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("The transform failed on these rows") == 1
    assert f"The transform failed on these rows of {shared_store}: [5]\n" in text


def test_two_transforms_and_a_device_are_refused_with_the_way_out(shared_store: Path) -> None:
    train = MemmapDataset(shared_store, transform=shifted)
    with pytest.raises(
        ValueError, match="the dataset has a transform, and the loader a transform of batches. Give one"
    ):
        MemmapLoader(train, 8, transform=CutMix(num_classes=4))
    with pytest.raises(ValueError, match=r"one image at a time on the CPU, and device is 'cuda'.*pixpack.to_device"):
        transform_of_batches(train, None, torch.device("cuda"), None)
