"""Detection's transforms against torchvision's own, called with the numbers that ours draw: the same pixels and boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from augmenting import v2
from conftest import torchvision_or_skip
from detecting import boxes_of, detections, given_draws, sample

from reader import RaggedBatch, compiled
from reader.transforms import FixedSizeCrop, RandomShortestSize, ScaleJitter
from reader.transforms.random import SCALE_JITTER, SHORTEST_SIZE, draw
from reader.transforms.view import View


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
    for n in range(len(batch)):
        image, target = sanitize(theirs(n, sample(batch, n)))
        assert ours.images[n].shape == image.shape
        assert torch.equal(ours.images[n], image.as_subclass(torch.Tensor))
        boxes, labels = boxes_of(ours, n)
        sides = boxes[:, 2:] - boxes[:, :2]
        is_kept = (sides >= 1).all(1)
        boxes, labels = boxes[is_kept], labels[is_kept]
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
