"""torchvision's recipes of detection as transforms of batches: from a store, through a loader, to lists that its models take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from augmenting import pictures, v2
from conftest import Tune, devices
from detecting import boxes_of, detections, make_detection_store
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from reader import ImageBatch, MemmapDataset, MemmapLoader, compiled
from reader.epoch import on_threads_of
from reader.store import RaggedBatch, replaced
from reader.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    FixedSizeCrop,
    GaussianBlur,
    Normalize,
    Pad,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomShortestSize,
    RandomVerticalFlip,
    Resize,
    ResizeCenterCrop,
    ScaleJitter,
    ToDetection,
    from_torchvision,
)
from reader.transforms.view import View

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FILL = (123.0, 117.0, 104.0)
FLOATS = Normalize([0], [1])


def preset(name: str) -> Any:
    """Make what torchvision's references/detection/presets.py makes of its v2, without SanitizeBoundingBoxes."""
    two = v2()
    chains = {
        "hflip": [two.RandomHorizontalFlip(0.5)],
        "multiscale": [two.RandomShortestSize((24, 30, 40), max_size=70), two.RandomHorizontalFlip(0.5)],
        "lsj": [two.ScaleJitter((70, 60)), two.RandomHorizontalFlip(0.5)],
    }
    end = [two.ToDtype(torch.float, scale=True), two.ConvertBoundingBoxFormat("XYXY")]
    return two.Compose([two.ToImage(), *chains[name], *end, two.ToPureTensor()])


def same(ours: RaggedBatch, others: RaggedBatch) -> bool:
    """Say whether two batches have the same images, masks, boxes and classes."""
    images = all(torch.equal(a, b) for a, b in zip(ours.images, others.images, strict=True))
    masks = [(ours.mask(n), others.mask(n)) for n in range(len(ours))]
    images = images and all(one is other is None or torch.equal(one, other) for one, other in masks)
    labels = (boxes_of(ours, n) + boxes_of(others, n) for n in range(len(ours)))
    return images and all(torch.equal(a, c) and torch.equal(b, d) for a, b, c, d in labels)


@pytest.mark.parametrize("name", ["hflip", "multiscale", "lsj"])
def test_each_preset_becomes_a_transform_of_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = from_torchvision(preset(name))
    chain = {
        "hflip": [RandomHorizontalFlip()],
        "multiscale": [RandomShortestSize((24, 30, 40), 70), RandomHorizontalFlip()],
        "lsj": [ScaleJitter((70, 60)), RandomHorizontalFlip()],
    }[name]
    batch, expected = detections(), detections()
    for transform in [*chain, FLOATS]:
        expected = transform(expected)
    found = made(batch)
    assert found.pixels.dtype == torch.float32
    assert same(found, expected)
    monkeypatch.setattr(compiled, "_function", lambda: None)
    without = made(batch)
    for image, other in zip(found.images, without.images, strict=True):
        torch.testing.assert_close(image, other, atol=1e-6, rtol=0)


def test_models_of_torchvision_are_given_what_they_take() -> None:
    two, batch = v2(), detections()
    floats = [two.ToDtype(torch.float, scale=True), two.Normalize(MEAN, STD)]
    recipe = two.Compose([two.ToImage(), two.RandomHorizontalFlip(0.5), *floats])
    images, targets = Compose([from_torchvision(recipe), ToDetection()])(batch)
    mirrored = RandomHorizontalFlip().chosen(batch)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    for n, (image, target) in enumerate(zip(images, targets, strict=True)):
        levels = batch.images[n].flip(-1) if mirrored[n] else batch.images[n]
        torch.testing.assert_close(image, (levels / 255 - mean) / std, atol=1e-5, rtol=0)
        assert image.is_contiguous()
        boxes, classes = boxes_of(batch, n)
        if mirrored[n]:
            width = image.shape[-1]
            boxes = torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)
        assert torch.equal(target["boxes"], boxes)
        assert torch.equal(target["labels"], classes + 1)
        assert target["image_id"] == n + 7
        assert {*target} == {"boxes", "labels", "image_id"}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ["hflip", "multiscale", "lsj"])
def test_every_device_gives_the_same_sizes_boxes_and_nearly_the_same_pixels(name: str, device: str) -> None:
    recipe = Compose([FixedSizeCrop(64, FILL), from_torchvision(preset(name)), ToDetection([3, 1, 4])])
    expected, found = recipe(detections()), recipe(detections(device=device))
    for image, other in zip(found[0], expected[0], strict=True):
        assert image.device.type == device
        torch.testing.assert_close(image.cpu(), other, atol=3.1 / 255, rtol=0)
    for target, other in zip(found[1], expected[1], strict=True):
        assert target["labels"].tolist() == other["labels"].tolist()
        torch.testing.assert_close(target["boxes"].cpu(), other["boxes"])


STEP = st.one_of(
    st.tuples(st.sampled_from(["mirrored", "turned"]), st.integers(0, 2**12 - 1)),
    st.tuples(st.just("resized"), st.tuples(st.integers(1, 60), st.integers(1, 60))),
    st.tuples(
        st.just("cut"), st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 50), st.integers(1, 50))
    ),
    st.tuples(st.just("inside"), st.tuples(*[st.floats(0, 1)] * 4)),
)


def stepped(view: View, step: tuple[str, Any], number: int) -> View:
    kind, value = step
    if kind in ("mirrored", "turned"):
        is_chosen = np.array([bool(value >> n & 1) for n in range(len(view.sizes))])
        return view.mirrored(is_chosen) if kind == "mirrored" else view.turned(is_chosen)
    if kind == "resized":
        return view.resized(np.full_like(view.sizes, value), None)
    if kind == "cut":
        x, y, width, height = value
        windows = np.full((len(view.sizes), 4), [x, y, x + width, y + height])
        return view.cut(windows, None, (number % 2, 5, 9), number % 3)
    start = np.minimum((view.sizes * value[:2]).astype(int), view.sizes - 1)
    stop = start + 1 + ((view.sizes - start - 1) * value[2:]).astype(int)
    return view.cut(np.concatenate([start, stop], 1))


@given(steps=st.lists(STEP, min_size=1, max_size=5), is_compiled=st.booleans())
def test_steps_that_are_made_at_once_give_what_each_by_itself_gives(steps: list[Any], is_compiled: bool) -> None:
    one_by_one = with_masks(detections(6))
    at_once = View.of(None, one_by_one)
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(compiled, "_function", lambda: None)
        for number, step in enumerate(steps):
            at_once = stepped(at_once, step, number)
            one_by_one = stepped(View.of(None, one_by_one), step, number).batch()
        assert same(at_once.batch(), one_by_one)


def test_threads_change_nothing(tune: Tune) -> None:
    tune(compiled_thread_bytes=1000)
    recipe = Compose(
        [ColorJitter(0.5), ScaleJitter((90, 90), (0.5, 1.5)), FixedSizeCrop(64, (1, 2, 3)), Normalize(MEAN, STD)]
    )
    with on_threads_of(1):
        expected = recipe(detections(20))
    with on_threads_of(3):
        assert same(recipe(detections(20)), expected)


def test_images_of_one_size_become_ones_of_their_own() -> None:
    batch = pictures(6, size=(40, 30))
    boxes = torch.tensor([[[2.0, 3.0, 20.0, 30.0]]]).repeat(6, 1, 1)
    count = torch.ones(6, dtype=torch.int32)
    batch.extras = TensorDict(
        {"boxes": boxes, "box_count": count, "box_targets": torch.zeros(6, 1).long()}, batch_size=[6]
    )
    content = torch.tensor([[0, 0, 40, 30]] * 3 + [[4, 2, 34, 30]] * 3, dtype=torch.int32)
    batch = replaced(batch, pixels=batch.pixels, content=content, extras=batch.extras)
    made = ScaleJitter((80, 80), (1, 1))(batch)
    # the content of a row is its image
    assert made.shapes.tolist() == [[80, 60, 3]] * 3 + [[80, 74, 3]] * 3
    assert torch.equal(made.images[0], v2().functional.resize(batch.images[0], [80, 60]))
    assert torch.equal(made.images[5], v2().functional.resize(batch.images[5][:, 4:34, 2:30].contiguous(), [80, 74]))
    assert boxes_of(made, 0)[0].tolist() == [[4, 6, 40, 60]]
    expected = (torch.tensor([0.0, -1, 18, 26]) * torch.tensor([74 / 28, 80 / 30] * 2)).clamp(min=0)
    torch.testing.assert_close(boxes_of(made, 5)[0][0], expected)


def test_rows_of_one_size_give_lists_too() -> None:
    batch = replaced(pictures(3), pixels=pictures(3).pixels, content=None, extras=None)
    boxes = {"boxes": torch.rand(3, 2, 4), "box_count": torch.tensor([0, 1, 2]).int()}
    masks = torch.arange(3 * 24 * 20).view(3, 24, 20).byte()
    batch.extras = TensorDict({**boxes, "masks": masks, "area": torch.ones(3)}, batch_size=[3])
    images, targets = ToDetection()(batch)
    assert torch.equal(torch.stack(images), batch.images / 255)
    assert torch.equal(targets[1]["mask"], masks[1])
    assert torch.equal(targets[1]["boxes"], boxes["boxes"][1, :1])
    assert "labels" not in targets[1]
    assert [target["image_id"] for target in targets] == [0, 1, 2]
    assert targets[2]["area"] == 1


def test_slots_without_a_box_are_left_out_of_the_lists(tmp_path: Path) -> None:
    images, labels = MemmapDataset(make_detection_store(tmp_path, size=64, fit="pad"))[0:10]
    batch = MemmapDataset(tmp_path / "out", as_tuple=False)[0:10]
    pictures, found = ToDetection()(batch)
    counts = (labels["box_targets"] >= 0).sum(1).tolist()
    assert min(counts) < labels["box_targets"].shape[1]
    assert [len(one["boxes"]) for one in found] == [len(one["labels"]) for one in found] == counts
    assert {label for one in found for label in one["labels"].tolist()} == {1, 2, 3}
    assert torch.equal(pictures[7], images[7] / 255)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_detection_store(tmp_path_factory.mktemp("detections"), 24)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_loader_gives_lists(store: Path, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(compiled, "_function", lambda: None)
    recipe = Compose([RandomHorizontalFlip(), ScaleJitter((60, 60)), ToDetection()])
    dataset = MemmapDataset(store, transform=recipe)
    found: dict[int, torch.Tensor] = {}
    boxes = 0
    for images, targets in MemmapLoader(dataset, 5, shuffle="full", seed=1):
        for image, target in zip(images, targets, strict=True):
            found[target["image_id"]] = image
            boxes += len(target["boxes"])
            assert target["boxes"].dtype == torch.float32
            assert target["labels"].dtype == torch.int64
            assert len(target["labels"]) == len(target["boxes"])
    assert sorted(found) == list(range(24))
    assert boxes == sum(n % 4 for n in range(24))
    # whatever the size of batches
    for images, targets in MemmapLoader(dataset, 24, shuffle="full", seed=1):
        for image, target in zip(images, targets, strict=True):
            assert torch.equal(found[target["image_id"]], image)


def test_a_loader_that_keeps_batches_gives_a_list_of_floats(store: Path) -> None:
    dataset = MemmapDataset(store)
    plain = {n: dataset[n][0] for n in range(24)}
    for images, labels in MemmapLoader(dataset, 7, transform=FLOATS):
        assert isinstance(images, list)
        assert {"boxes", "box_count", "targets"} <= {*labels}
        for image in images:
            levels = [other for other in plain.values() if other.shape == image.shape]
            assert any(torch.allclose(image, other / 255, atol=1e-6) for other in levels)


def test_labels_are_those_that_are_given(store: Path) -> None:
    batch = next(iter(MemmapLoader(MemmapDataset(store), 24, as_tuple=False)))
    _, targets = ToDetection([1, 18, 90])(batch)
    _, plain = ToDetection()(batch)
    assert {int(label) for target in targets for label in target["labels"]} == {1, 18, 90}
    assert [t["labels"].tolist() for t in targets] == [
        [[1, 18, 90][label - 1] for label in t["labels"].tolist()] for t in plain
    ]
    with pytest.raises(
        ValueError, match=r"ToDetection has 2 labels, and a box has class 2\. Give one for each class\."
    ):
        ToDetection([1, 2])(batch)


REFUSED: dict[str, tuple[Any, str]] = {
    "nearest": (lambda: ScaleJitter((8, 8), interpolation="nearest"), 'expected "bilinear"'),
    "one side": (lambda: ScaleJitter((8,)), "expected two sides of 1 or more pixels"),
    "a scale of 0": (lambda: ScaleJitter((8, 8), (0, 1)), "expected two factors above 0"),
    "no length": (lambda: RandomShortestSize([]), "min_size is empty"),
    "a length of 0": (lambda: RandomShortestSize(8, max_size=0), "expected 1 or more pixels"),
    "a size of 0": (lambda: FixedSizeCrop(0), "size is 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments_are_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make()


def with_masks(batch: RaggedBatch) -> RaggedBatch:
    """Put a mask behind each image: 1, 2, 3, .. in the order of its pixels, so that each shows where it was."""
    shapes, parts = batch.shapes.long(), []
    for n, (height, width, _) in enumerate(shapes.tolist()):
        parts += [batch.image(n).reshape(-1), (torch.arange(height * width) % 251).to(torch.uint8)]
    area, counts = shapes[:, 0] * shapes[:, 1], shapes.prod(1)
    offsets = (area + counts).cumsum(0) - area - counts
    made: RaggedBatch = batch.replace(pixels=torch.cat(parts), offsets=offsets, mask_offsets=offsets + counts)
    return made


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize(
    "recipe",
    [
        [CenterCrop(40)],
        [Resize(29)],
        [Resize((31, 26), "bicubic")],
        [ResizeCenterCrop(24, 0.8)],
        [RandomResizedCrop(20), RandomHorizontalFlip()],
        [RandomCrop(30, 5, pad_if_needed=True), RandomVerticalFlip()],
        [Resize(40), RandomCrop(40)],
        [Pad((1, 2, 3, 4), fill={"Image": 5, "Mask": 7})],
        [ScaleJitter((50, 60)), FixedSizeCrop(48)],
        [RandomShortestSize((20, 30)), RandomHorizontalFlip()],
    ],
    ids=lambda recipe: " ".join(type(step).__name__ for step in recipe),
)
def test_masks_of_their_own_sizes_move_as_those_of_one_size_do(
    recipe: list[Any], is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = with_masks(detections(8))
    found = Compose(recipe)(batch)
    if not is_compiled:
        monkeypatch.setattr(compiled, "_function", lambda: None)
    for n in range(8):
        extras = TensorDict({"masks": batch.mask(n)[None]}, batch_size=[1])
        rows = batch.rows[n : n + 1]
        alone = ImageBatch(batch.image(n)[None], rows, extras=extras, rows=rows, batch_size=[1])
        # one transform after the other
        for step in recipe:
            alone = step(alone)
        mask = alone.mask(0) if isinstance(alone, RaggedBatch) else alone.extras["masks"][0]
        assert torch.equal(found.mask(n) if isinstance(found, RaggedBatch) else found.extras["masks"][n], mask)
        assert torch.equal(found.images[n], alone.images[0])


@pytest.mark.parametrize("transform", [ColorJitter(0.4), GaussianBlur(3), RandomRotation(9), RandomErasing(1), FLOATS])
def test_masks_of_their_own_sizes_are_refused_by_what_moves_none(transform: Any) -> None:
    with pytest.raises(ValueError, match="of images with sizes of their own takes no masks, which the rows have"):
        transform(with_masks(detections(2)))


def test_crops_behind_them_make_one_size_again() -> None:
    made = Compose([ScaleJitter((50, 60)), RandomHorizontalFlip(), ResizeCenterCrop(24)])(detections())
    assert made.pixels.shape == (12, 24, 24, 3)


def test_an_empty_batch_stays_empty() -> None:
    empty = detections(1)
    empty = RaggedBatch(
        pixels=empty.pixels[:0],
        targets=empty.targets[:0],
        offsets=empty.offsets[:0],
        shapes=empty.shapes[:0],
        rows=torch.arange(0),
        batch_size=[],
    )
    made = Compose([ColorJitter(0.5), ScaleJitter((9, 9)), FLOATS])(empty)
    assert len(made) == 0
    made.extras = detections(1).extras[:0]
    assert ToDetection()(made) == ([], [])


def test_rows_without_boxes_are_refused_where_a_detector_is_to_learn_from_them() -> None:
    with pytest.raises(
        ValueError, match=r"ToDetection takes rows with boxes, and these have none\. Pack them with --boxes\."
    ):
        ToDetection()(pictures(2))
