"""A transform called with parts of a batch on threads gives, to the bit, what it gives for the batch."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from augmenting import pictures
from conftest import Tune
from tensordict import TensorDict

from reader import Compose, ImageBatch, Normalize, RaggedBatch, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from reader import transforms as ours
from reader.epoch import in_epoch, stamped
from reader.loading import finish
from reader.memory import parts

COUNT, SIDES = 13, (37, 31)
# Arguments of those that need some; what is not here is made of nothing, see `test_every_transform_is_compared`.
BY_ROW: dict[str, Any] = {
    "CenterCrop": ours.CenterCrop(24),
    "ResizeCenterCrop": ours.ResizeCenterCrop(24, 0.875),
    "ColorJitter": ours.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "Compose": Compose([RandomResizedCrop(24), RandomHorizontalFlip(), Normalize([0.5] * 3, [0.2] * 3)]),
    "GaussianBlur": ours.GaussianBlur(9),
    "Grayscale": ours.Grayscale(3),
    "MultiCrop": ours.MultiCrop(2, 2, global_size=24, local_size=16),
    "MultiView": ours.MultiView([RandomResizedCrop(24), RandomResizedCrop(24), ours.RandomRotation(30)]),
    "Pad": ours.Pad(3),
    "RandAugment": ours.RandAugment(),
    "RandomAdjustSharpness": ours.RandomAdjustSharpness(2),
    "RandomAffine": ours.RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10),
    "RandomApply": ours.RandomApply([RandomCrop(SIDES, padding=2)], 0.3),
    "RandomAutocontrast": ours.RandomAutocontrast(),
    "RandomCrop": RandomCrop(24, padding=4),
    "RandomEqualize": ours.RandomEqualize(),
    "RandomErasing": ours.RandomErasing(1, value="random"),
    "RandomGrayscale": ours.RandomGrayscale(0.5),
    "RandomHorizontalFlip": RandomHorizontalFlip(),
    "RandomInvert": ours.RandomInvert(),
    "RandomPosterize": ours.RandomPosterize(4),
    "RandomResizedCrop": RandomResizedCrop(24, interpolation="bicubic"),
    "RandomRotation": ours.RandomRotation(30, "bilinear"),
    "RandomSolarize": ours.RandomSolarize(128),
    "Resize": ours.Resize((24, 20), "bicubic"),
    "TimmRandAugment": ours.TimmRandAugment("rand-m9-mstd0.5-inc1"),
    "RandomVerticalFlip": ours.RandomVerticalFlip(),
    "TrivialAugmentWide": ours.TrivialAugmentWide(),
}
OF_IMAGES = {"Normalize"}
FULL_BATCH = {"CutMix", "MixUp", "RandomChoice"}
# Of images of different sizes, and of boxes: they have threads of their own.
ON_OWN_THREADS: dict[str, Any] = {
    "FixedSizeCrop": ours.FixedSizeCrop(24),
    "RandomShortestSize": ours.RandomShortestSize(24),
    "ScaleJitter": ours.ScaleJitter(SIDES),
    "ToDetection": ours.ToDetection(),
}
# Makes transforms that are among the others.
MAKERS = {"from_torchvision"}
# Of rows that have boxes and masks: all but these, which refuse them.
WITHOUT_LABELS = {"Resize", "MultiCrop", "MultiView"}


def batch_of(*, labels: bool = False) -> ImageBatch:
    """Make a batch whose rows have numbers of their own, with boxes, masks and content or without."""
    batch = pictures(COUNT, size=SIDES)
    if labels:
        generator = torch.Generator().manual_seed(1)
        corners = torch.rand(COUNT, 4, 2, 2, generator=generator).sort(2).values * 30
        batch.extras = TensorDict(
            {
                "boxes": corners.view(COUNT, 4, 4),
                "box_count": torch.arange(COUNT, dtype=torch.int32) % 5,
                "box_targets": torch.arange(4).repeat(COUNT, 1),
                "masks": batch.pixels[..., 0].clone(),
            },
            batch_size=[COUNT],
        )
        batch.content = torch.tensor([[2, 1, 33, 29]], dtype=torch.int32).repeat(COUNT, 1)
    return stamped(batch, epoch=3, position=40, seed=5)


def ragged() -> RaggedBatch:
    """Make a batch of images of three sizes."""
    images = [row[: 30 + n % 3, : 28 + n % 2].reshape(-1) for n, row in enumerate(batch_of().pixels)]
    shapes = torch.tensor([[30 + n % 3, 28 + n % 2, 3] for n in range(COUNT)], dtype=torch.int32)
    sizes, rows = torch.tensor([len(image) for image in images]), torch.arange(COUNT)
    made = RaggedBatch(torch.cat(images), rows, sizes.cumsum(0) - sizes, shapes, rows=rows, batch_size=[])
    return stamped(made, epoch=3, position=40, seed=5)


def tensors(made: Any) -> dict[str, torch.Tensor]:
    """Return all tensors of a result by name."""
    if isinstance(made, torch.Tensor):
        return {"": made}
    if isinstance(made, ImageBatch):
        return dict(made.to_tensordict().flatten_keys().items())
    return {f"{n}/{name}": value for n, each in enumerate(made) for name, value in tensors(each).items()}


def assert_same(found: Any, expected: Any) -> None:
    """Compare two results: kinds, names, types, order in memory and bits."""
    assert type(found) is type(expected)
    a, b = tensors(found), tensors(expected)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name


@pytest.fixture(params=[1, 6000, 1 << 40], ids=["a row", "a few rows", "what each thread gets"])
def part_bytes(request: pytest.FixtureRequest, tune: Tune) -> int:
    """How many bytes a part has at most, or about."""
    tune(transform_part_bytes=request.param, least_transform_part_bytes=1)
    return request.param


def test_every_transform_is_compared() -> None:
    assert {*BY_ROW, *OF_IMAGES, *FULL_BATCH, *ON_OWN_THREADS, *MAKERS} == {*ours.__all__}


@pytest.mark.parametrize("name", ON_OWN_THREADS)
def test_those_with_threads_of_their_own_get_complete_batches(name: str) -> None:
    transform = ON_OWN_THREADS[name]

    assert not finish._is_in_parts(False, transform)
    assert not finish._is_in_parts(False, Compose([RandomHorizontalFlip(), transform]))
    assert finish._is_in_parts(False, Compose([RandomHorizontalFlip()]))


@pytest.mark.parametrize("name", BY_ROW)
def test_parts_give_what_the_batch_gives(name: str, part_bytes: int) -> None:
    threads = {1: 2, 6000: 5}.get(part_bytes, 3)
    labelled = {False} if name in WITHOUT_LABELS else {True, part_bytes != 6000}
    for labels in labelled:
        batch = batch_of(labels=labels)
        before = batch.clone()
        assert_same(parts.in_parts(BY_ROW[name], batch, threads), BY_ROW[name](batch))
        assert_same(batch, before)


@pytest.mark.parametrize("transform", [RandomResizedCrop(24), ours.ResizeCenterCrop(20), ours.Resize((24, 24))])
def test_images_of_their_own_sizes_go_by_parts_too(transform: Any, part_bytes: int) -> None:
    assert_same(parts.in_parts(transform, ragged(), 3), transform(ragged()))


def test_an_epoch_that_is_running_is_that_of_the_threads(part_bytes: int) -> None:
    batch, transform = pictures(COUNT), RandomHorizontalFlip()
    found = []
    for epoch in (1, 2):
        with in_epoch(epoch):
            found.append(parts.in_parts(transform, batch, 2).pixels)
            assert torch.equal(found[-1], transform(batch).pixels)
    assert not torch.equal(*found)


def test_parts_run_on_threads_each_with_one_of_torchs(part_bytes: int) -> None:
    before, seen = torch.get_num_threads(), []

    def looked(batch: ImageBatch) -> ImageBatch:
        seen.append((threading.get_ident(), len(batch), torch.get_num_threads()))
        return batch

    torch.set_num_threads(3)
    try:
        parts.in_parts(looked, batch_of(), 2)
        assert torch.get_num_threads() == 3
        asked = threading.Thread(target=lambda: seen.append((0, 0, torch.get_num_threads())))
        asked.start()
        asked.join()
    finally:
        torch.set_num_threads(before)
    assert seen.pop()[2] == 3
    assert sum(count for _, count, _ in seen) == COUNT
    assert {count for _, _, count in seen} == {1}
    assert threading.get_ident() not in {thread for thread, _, _ in seen}


def test_an_error_in_a_part_is_raised(part_bytes: int) -> None:
    def fails(batch: ImageBatch) -> ImageBatch:
        if 7 in batch.targets:
            raise ValueError("row 7")
        return batch

    with pytest.raises(ValueError, match="row 7"):
        parts.in_parts(fails, batch_of(), 2)
    assert len(parts.in_parts(lambda batch: batch, batch_of(), 2)) == COUNT


def test_small_batches_are_not_divided() -> None:
    lengths = []

    def looked(batch: ImageBatch) -> ImageBatch:
        lengths.append(len(batch))
        return batch

    parts.in_parts(looked, batch_of(), 8)
    assert lengths == [COUNT]


def test_a_torch_without_openmp_gets_complete_batches(part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_one_torch_thread", lambda: None)
    assert_same(parts.in_parts(len, batch_of(), 4) * torch.ones(1), COUNT * torch.ones(1))
