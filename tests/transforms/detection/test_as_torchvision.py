"""Detection's transforms against torchvision's own, called with the numbers that ours draw: the same pixels and boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from augmenting import assert_same_distribution, many, v2
from conftest import torchvision_or_skip
from detecting import boxes_of, detections, given_draws, sample
from tensordict import TensorDict

from reader import RaggedBatch, compiled
from reader.transforms import (
    FixedSizeCrop,
    RandomIoUCrop,
    RandomPhotometricDistort,
    RandomShortestSize,
    RandomZoomOut,
    SanitizeBoundingBoxes,
    ScaleJitter,
)
from reader.transforms.detection.view import View
from reader.transforms.random import IOU_CROP, PHOTOMETRIC, SCALE_JITTER, SHORTEST_SIZE, ZOOM_OUT, draw


@pytest.fixture(params=["compiled", "torch"])
def _by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the compiled part, and without it."""
    if request.param == "torch":
        monkeypatch.setattr(compiled, "_function", lambda: None)
    elif not compiled.is_built():
        pytest.skip("the compiled part is not built here")


def assert_same(ours: RaggedBatch, theirs: Callable[[int, Any], Any], batch: RaggedBatch) -> None:
    """Compare with theirs(n, sample) for each image: pixels and sizes, boxes to the bit, and labels."""
    assert len(ours) == len(batch)
    # torchvision does not clip what a resize's rounding puts beyond the edge, 48.000004 of 48, and would drop it
    sanitize = v2().Compose([v2().ClampBoundingBoxes(), v2().SanitizeBoundingBoxes()])
    made = SanitizeBoundingBoxes()(ours)
    for n in range(len(batch)):
        image, target = sanitize(theirs(n, sample(batch, n)))
        assert made.images[n].shape == image.shape
        assert torch.equal(made.images[n], image.as_subclass(torch.Tensor))
        boxes, labels = boxes_of(made, n)
        assert torch.equal(boxes, target["boxes"].as_subclass(torch.Tensor))
        assert torch.equal(labels, target["labels"])


def with_draws(transform: Any, draws: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Any], Any]:
    """Call torchvision's transform with the column of an image, float64[D, B]."""

    def call(n: int, given: Any) -> Any:
        with monkeypatch.context() as patch:
            given_draws(patch, iter(draws[:, n].tolist()))
            return transform(*given)

    return call


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("scale_range", [(0.1, 2.0), (1.0, 1.0), (0.3, 0.4)])
def test_scale_jitter(scale_range: tuple[float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = v2().ScaleJitter((70, 50), scale_range)
    ours, batch = ScaleJitter((70, 50), scale_range, seed=3), detections(24)
    call = with_draws(theirs, draw(batch, 3, SCALE_JITTER), monkeypatch)
    assert_same(ours(batch), call, batch)


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("max_size", [None, 80])
def test_random_shortest_size(max_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = v2().RandomShortestSize([32, 48, 64], max_size)
    ours, batch = RandomShortestSize([32, 48, 64], max_size), detections(24)
    call = with_draws(theirs, draw(batch, 0, SHORTEST_SIZE), monkeypatch)
    assert_same(ours(batch), call, batch)


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("fill", [0, 77, (123.0, 117.0, 104.0)])
def test_random_zoom_out(fill: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = v2().RandomZoomOut(fill=fill if isinstance(fill, int) else list(fill))
    ours, batch = RandomZoomOut(fill), detections(24)
    # torchvision draws left before top, after the side
    call = with_draws(theirs, draw(batch, 0, ZOOM_OUT), monkeypatch)
    made = ours(batch)
    assert_same(made, call, batch)
    assert 0 < int((made.shapes[:, 0] > batch.shapes[:, 0]).sum()) < len(batch)


def tries_of(draws: list[float], height: int, width: int, transform: RandomIoUCrop) -> Iterator[float]:
    """Give the numbers of an image as torchvision asks for them: of a crop of a wrong shape not where it is."""
    numbers = 1 + 4 * transform.trials
    for start in range(0, len(draws), numbers):
        yield draws[start]
        for first in range(start + 1, start + numbers, 4):
            across, down, left, top = draws[first : first + 4]
            yield across
            yield down
            low, high = transform.scale
            size = [int(side * (low + (high - low) * share)) for side, share in ((width, across), (height, down))]
            if transform.ratio[0] <= size[0] / size[1] <= transform.ratio[1]:
                yield left
                yield top


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("options", [None, [0.5, 1.0], [0.0, 0.3, 1.0]])
def test_random_iou_crop(options: list[float] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = v2().RandomIoUCrop(sampler_options=options), RandomIoUCrop(sampler_options=options, seed=1)
    batch = detections(40)
    draws = draw(batch, 1, range(IOU_CROP, IOU_CROP + 60 * (1 + 4 * ours.trials)))

    def call(n: int, given: Any) -> Any:
        height, width = given[0].shape[-2:]
        with monkeypatch.context() as patch:
            given_draws(patch, tries_of(draws[:, n].tolist(), height, width, ours))
            return theirs(*given)

    made = ours(batch)
    is_same = (made.shapes == batch.shapes).all(1)
    assert 0 < int(is_same.sum()) < len(batch)
    has_boxes = torch.tensor([len(boxes_of(batch, n)[0]) > 0 for n in range(len(batch))])
    assert bool(is_same[~has_boxes].all())
    assert_same(made, call, batch)


def test_an_overlap_of_just_the_share_is_enough() -> None:
    two, rows = v2(), many(50, (20, 20))
    # at most 7 x 10 of the 10 x 10 pixels of a crop
    boxes = torch.tensor([[[4.0, 5, 11, 15]]]).repeat(50, 1, 1)
    rows.extras = TensorDict({"boxes": boxes, "box_count": torch.ones(50, dtype=torch.int32)}, batch_size=[50])
    for share in (0.7, 0.6999):
        limits = {"min_scale": 0.5, "max_scale": 0.5, "sampler_options": [share]}
        assert {tuple(shape) for shape in RandomIoUCrop(**limits)(rows).shapes.tolist()} == {(10, 10, 3)}
        kind: Any = torchvision_or_skip().tv_tensors.BoundingBoxes
        image, _ = two.RandomIoUCrop(**limits)(rows.images[0], kind(boxes[0], format="XYXY", canvas_size=(20, 20)))
        assert image.shape == (3, 10, 10)


@pytest.mark.usefixtures("_by")
def test_fixed_size_crop_is_that_of_the_references() -> None:
    torchvision = torchvision_or_skip()
    functional: Any = torchvision.transforms.v2.functional
    ours, batch = FixedSizeCrop((45, 60), fill=(9, 8, 7), seed=2), detections(24)
    windows = ours.on(View.of(ours, batch)).regions.windows

    def call(n: int, given: Any) -> Any:
        (height, width), (left, top, _, _) = given[0].shape[-2:], windows[n].tolist()
        assert left == 0 or width > 60
        assert top == 0 or height > 45
        size = min(45, height), min(60, width)
        padding = [0, 0, 60 - size[1], 45 - size[0]]

        def change(value: Any) -> Any:
            if not isinstance(value, torchvision.tv_tensors.TVTensor):
                return value
            return functional.pad(functional.crop(value, top, left, *size), padding, fill=[9.0, 8.0, 7.0])

        return change(given[0]), {name: change(value) for name, value in given[1].items()}

    made = ours(batch)
    assert {tuple(shape) for shape in made.shapes.tolist()} == {(45, 60, 3)}
    assert_same(made, call, batch)


@pytest.mark.usefixtures("_by")
def test_random_photometric_distort(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours, batch = v2().RandomPhotometricDistort(), RandomPhotometricDistort(seed=5), detections(40)
    shares, (_, factors, orders) = draw(batch, 5, PHOTOMETRIC), ours.drawn(batch)
    made = ours(batch)
    assert torch.equal(made.shapes, batch.shapes)
    for n in range(len(batch)):
        with monkeypatch.context() as patch:
            given_draws(patch, iter([*shares[:4, n].tolist(), *shares[8:10, n].tolist()]))
            values = [value for value, share in zip(factors[n, :4].tolist(), shares[:4, n], strict=True) if share < 0.5]
            patch.setattr(v2().ColorJitter, "_generate_value", staticmethod(Mock(side_effect=values)))
            patch.setattr(torch, "randperm", Mock(return_value=orders[n]))
            image = theirs(sample(batch, n)[0])
        difference = (made.images[n].int() - image.as_subclass(torch.Tensor).int()).abs()
        # sums of float32 may be rounded in another order, and each of the five steps truncates
        assert int(difference.max()) <= 2
        assert float((difference > 0).float().mean()) < 0.01


def test_crops_are_distributed_as_torchvisions() -> None:
    two, rows = v2(), many(1500, (40, 50))
    boxes = torch.tensor([[[5.0, 5, 25, 30], [20, 10, 48, 38]]]).expand(1500, 2, 4)
    rows.extras = TensorDict({"boxes": boxes, "box_count": torch.full((1500,), 2)}, batch_size=[1500])
    ours = RandomIoUCrop()
    windows, is_left = ours.windows(View.of(ours, rows))
    kind: Any = torchvision_or_skip().tv_tensors
    given = [kind.Image(torch.zeros(1, 40, 50)), kind.BoundingBoxes(boxes[0], format="XYXY", canvas_size=(40, 50))]  # type: ignore[call-arg]
    torch.manual_seed(0)
    theirs = [two.RandomIoUCrop().make_params(given) for _ in range(1500)]
    unchanged = {"left": 0, "top": 0, "width": 50, "height": 40, "is_within_crop_area": torch.tensor([True, True])}
    found = [each or unchanged for each in theirs]
    sizes = windows[:, 2:] - windows[:, :2]
    for n, name in enumerate(("left", "top")):
        assert_same_distribution(windows[:, n], [each[name] for each in found])
    for n, name in enumerate(("width", "height")):
        assert_same_distribution(sizes[:, n], [each[name] for each in found])
    assert is_left is not None
    assert_same_distribution(is_left.sum(1), [int(each["is_within_crop_area"].sum()) for each in found])


def test_steps_of_color_are_drawn_as_often_as_torchvisions() -> None:
    v2()
    is_done, factors, orders = RandomPhotometricDistort(p=0.3).drawn(many(4000))
    shares = is_done.double().mean(0)
    torch.testing.assert_close(shares, torch.tensor([0.3, 0.15, 0.3, 0.3, 0.15]).double(), atol=0.025, rtol=0)
    # of six orders one changes nothing
    is_other = (orders != torch.arange(3)).any(1)
    assert float(is_other.double().mean()) == pytest.approx(0.3 * 5 / 6, abs=0.025)
    assert_same_distribution(factors[:, 1], torch.rand(4000) + 0.5)
