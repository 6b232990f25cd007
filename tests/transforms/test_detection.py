"""ToDetection, and recipes of detection from a store, through a loader, to lists that torchvision's models take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from augmenting import by_torch, labelled, v2
from conftest import Tune, devices
from detecting import boxes_of, detections, make_detection_store

from reader import MemmapDataset, MemmapLoader
from reader.store import RaggedBatch
from reader.transforms import (
    ColorJitter,
    Compose,
    FixedSizeCrop,
    Normalize,
    RandomHorizontalFlip,
    RandomShortestSize,
    ScaleJitter,
    ToDetection,
    from_torchvision,
)

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FLOATS = Normalize([0], [1])
# torchvision's references/detection/presets.py, without SanitizeBoundingBoxes, and ours
PRESETS: dict[str, tuple[Any, list[Any]]] = {
    "hflip": (lambda two: [two.RandomHorizontalFlip(0.5)], [RandomHorizontalFlip()]),
    "multiscale": (
        lambda two: [two.RandomShortestSize((24, 30, 40), max_size=70), two.RandomHorizontalFlip(0.5)],
        [RandomShortestSize((24, 30, 40), 70), RandomHorizontalFlip()],
    ),
    "lsj": (
        lambda two: [two.ScaleJitter((70, 60)), two.RandomHorizontalFlip(0.5)],
        [ScaleJitter((70, 60)), RandomHorizontalFlip()],
    ),
}


def preset(name: str) -> Any:
    two = v2()
    end = [two.ToDtype(torch.float, scale=True), two.ConvertBoundingBoxFormat("XYXY"), two.ToPureTensor()]
    return two.Compose([two.ToImage(), *PRESETS[name][0](two), *end])


def same(ours: RaggedBatch, others: RaggedBatch, most: float = 0) -> bool:
    """Return whether two batches have the same boxes and classes, and images of at most this difference."""
    pairs = list(zip(ours.images, others.images, strict=True))
    are_near = all(a.shape == b.shape and (a.float() - b.float()).abs().max() <= most for a, b in pairs)
    labels = (boxes_of(ours, n) + boxes_of(others, n) for n in range(len(ours)))
    return are_near and all(torch.equal(a, c) and torch.equal(b, d) for a, b, c, d in labels)


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_becomes_a_transform_of_batches(name: str) -> None:
    made, batch, expected = from_torchvision(preset(name)), detections(), detections()
    for transform in [*PRESETS[name][1], FLOATS]:
        expected = transform(expected)
    found = made(batch)
    assert found.pixels.dtype == torch.float32
    assert same(found, expected)
    with by_torch():
        assert same(made(batch), found, 1e-6)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", PRESETS)
def test_every_device_gives_the_same_sizes_boxes_and_nearly_the_same_pixels(name: str, device: str) -> None:
    recipe = Compose([FixedSizeCrop(64, (123, 117, 104)), from_torchvision(preset(name)), ToDetection([3, 1, 4])])
    expected, found = recipe(detections()), recipe(detections(device=device))
    for image, other in zip(found[0], expected[0], strict=True):
        assert image.device.type == device
        torch.testing.assert_close(image.cpu(), other, atol=3.1 / 255, rtol=0)
    for target, other in zip(found[1], expected[1], strict=True):
        assert target["labels"].tolist() == other["labels"].tolist()
        torch.testing.assert_close(target["boxes"].cpu(), other["boxes"])


def test_models_of_torchvision_are_given_what_they_take() -> None:
    batch = detections()
    images, targets = Compose([RandomHorizontalFlip(), Normalize(MEAN, STD), ToDetection()])(batch)
    mirrored = RandomHorizontalFlip().chosen(batch)
    for n, (image, target) in enumerate(zip(images, targets, strict=True)):
        levels = batch.images[n].flip(-1) if mirrored[n] else batch.images[n]
        torch.testing.assert_close(image, Normalize(MEAN, STD)(levels), atol=1e-5, rtol=0)
        assert image.is_contiguous()
        boxes, classes = boxes_of(batch, n)
        if mirrored[n]:
            boxes = torch.stack(
                [image.shape[-1] - boxes[:, 2], boxes[:, 1], image.shape[-1] - boxes[:, 0], boxes[:, 3]], 1
            )
        assert torch.equal(target["boxes"], boxes)
        assert torch.equal(target["labels"], classes + 1)
        assert target["image_id"] == n + 7
        assert {*target} == {"boxes", "labels", "image_id"}


def test_rows_of_one_size_give_lists_too_with_masks_and_columns() -> None:
    batch = labelled(3)
    batch.extras["box_count"][0] = 0
    batch.extras["area"] = torch.ones(3)
    batch.extras["image_id"] = torch.arange(3) + 100
    images, targets = ToDetection()(batch)
    assert torch.equal(torch.stack(images), batch.images / 255)
    assert torch.equal(targets[1]["mask"], batch.extras["masks"][1])
    assert [target["boxes"].tolist() for target in targets] == [[], [[8, 6, 20, 15]], [[8, 6, 20, 15]]]
    assert [target["labels"].tolist() for target in targets] == [[], [8], [8]]
    assert [int(target["image_id"]) for target in targets] == [100, 101, 102]
    assert targets[2]["area"] == 1


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_detection_store(tmp_path_factory.mktemp("detections"), 24)


@pytest.mark.parametrize("is_compiled", [1, 0])
def test_a_loader_gives_lists_whatever_the_size_of_batches(store: Path, is_compiled: int, tune: Tune) -> None:
    tune(compiled_transforms=is_compiled)
    dataset = MemmapDataset(store, transform=Compose([RandomHorizontalFlip(), ScaleJitter((60, 60)), ToDetection()]))
    found: list[dict[int, Any]] = []
    for batch_size in (5, 24):
        loader = MemmapLoader(dataset, batch_size, shuffle="full", seed=1)
        found.append({t["image_id"]: (image, t) for batch in loader for image, t in zip(*batch, strict=True)})
    assert sorted(found[0]) == list(range(24))
    for row, (image, target) in found[0].items():
        assert torch.equal(found[1][row][0], image)
        assert (target["boxes"].dtype, target["labels"].dtype) == (torch.float32, torch.int64)
        assert len(target["labels"]) == len(target["boxes"]) == row % 4
    _, targets = ToDetection([1, 18, 90])(next(iter(MemmapLoader(MemmapDataset(store), 24, as_tuple=False))))
    assert {int(label) for target in targets for label in target["labels"]} == {1, 18, 90}


def test_a_loader_that_keeps_batches_gives_a_list_of_floats(store: Path) -> None:
    dataset = MemmapDataset(store)
    plain = [dataset[n][0] for n in range(24)]
    loader = MemmapLoader(dataset, 7, transform=FLOATS)
    for image, given in zip((image for images, _ in loader for image in images), plain, strict=True):
        torch.testing.assert_close(image, given / 255, atol=1e-6, rtol=0)


def test_an_empty_batch_stays_empty() -> None:
    empty = detections(1)
    columns = {name: getattr(empty, name)[:0] for name in ("pixels", "targets", "offsets", "shapes", "extras", "rows")}
    made = Compose([ColorJitter(0.5), ScaleJitter((9, 9)), FLOATS])(RaggedBatch(**columns, batch_size=[]))
    assert len(made) == 0
    assert ToDetection()(made) == ([], [])
