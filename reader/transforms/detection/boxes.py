"""What torchvision's recipes do to boxes alone, and ToDetection: lists of images and of dicts, as its detectors take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from reader.compiled import CompiledTransform
from reader.store import ImageBatch, RaggedBatch
from reader.transforms.annotations import check_boxes, kept_boxes
from reader.transforms.random import check_batch, integer, number

_Batch = TypeVar("_Batch", ImageBatch, RaggedBatch)
# Extras that ToDetection gives under names of its own.
_OF_BOXES = ("boxes", "box_count", "box_targets", "masks")


class _OfBoxes(CompiledTransform):
    """Changes no pixels, of whatever type they are, but boxes."""

    takes_floats = has_own_threads = True


class SanitizeBoundingBoxes(_OfBoxes):
    """Drop boxes that are too small, with their classes: torchvision's. Not random.

    Args:
        min_size: least width and height, pixels.
        min_area: least area, pixels.

    Raises:
        ValueError: one is less than 1.
    """

    def __init__(self, min_size: float = 1.0, min_area: float = 1.0) -> None:
        self.min_size, self.min_area = number("min_size", min_size), number("min_area", min_area)
        if not self.min_size >= 1 or not self.min_area >= 1:
            raise ValueError(f"min_size is {min_size!r} and min_area {min_area!r}, expected 1 or more pixels.")

    def __call__(self, batch: _Batch) -> _Batch:
        """Return a batch with the same pixels; one without boxes as it is."""
        check_batch(self, batch, takes_ragged=True, takes_floats=True)
        if batch.extras is None or batch.extras.get("boxes", None) is None:
            return batch
        check_boxes(batch.extras)
        width, height = (batch.extras["boxes"][..., 2:] - batch.extras["boxes"][..., :2]).unbind(-1)
        is_kept = (width >= self.min_size) & (height >= self.min_size) & (width * height >= self.min_area)
        result: _Batch = batch.replace(extras=kept_boxes(batch.extras, is_kept))
        return result


class ClampBoundingBoxes(_OfBoxes):
    """Return the batch as it is: boxes are clipped to their images at each step already."""

    def __call__(self, batch: _Batch) -> _Batch:
        """Return the batch unchanged."""
        return batch


class ConvertBoundingBoxFormat(_OfBoxes):
    """Return the batch as it is: boxes are x0, y0, x1, y1 already, and other formats are refused.

    Args:
        format: "XYXY", or torchvision's enumeration of that name.

    Raises:
        ValueError: it is another format.
    """

    def __init__(self, format: str) -> None:
        name = getattr(format, "value", format)
        if not isinstance(name, str) or name.upper() != "XYXY":
            raise ValueError(f'format is {name!r}, expected "XYXY": convert boxes to others in the loop.')

    def __call__(self, batch: _Batch) -> _Batch:
        """Return the batch unchanged."""
        return batch


class ToDetection(_OfBoxes):
    """Give the lists that torchvision's detection models take: model(images, targets). It stands last, behind a recipe.

    Of each image a dict with boxes float32[n, 4] (x0, y0, x1, y1 in its pixels), labels int64[n], image_id (the row, or the
    store's column of that name), mask uint8[H, W] where the rows have masks (classes by pixel: Mask R-CNN
    takes masks of single objects, which stores do not have), and further columns and texts of the store by name. Images stay as
    they are: ToDtype(torch.float32, scale=True) comes first.

    Args:
        labels: the label of each class of the store; None: its index + 1, as 0 is the background.
    """

    def __init__(self, labels: Sequence[int] | None = None) -> None:
        if labels is None:
            self.labels = None
            return
        if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
            raise ValueError(f"labels is {labels!r}, expected a list of integers, one for each class of the store.")
        given = [integer("labels", label) for label in labels]
        self.labels = torch.tensor(given, dtype=torch.int64, device="cpu")

    def __call__(self, batch: ImageBatch | RaggedBatch) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
        """Return the images, [C, H, W] each, and their targets.

        Raises:
            ValueError: the rows have no boxes, a box has no label, a column has the name of what is given, or it is one row.
        """
        check_batch(self, batch, takes_ragged=True, takes_floats=True)
        extras: dict[str, Any] = {} if batch.extras is None else dict(batch.extras.items())
        if "boxes" not in extras:
            raise ValueError("ToDetection takes rows with boxes, and these have none. Pack them with --boxes.")
        check_boxes(extras)
        images = batch.images if isinstance(batch, RaggedBatch) else list(batch.images.unbind())
        targets: list[dict[str, Any]] = [{} for _ in images]
        self._add_boxes(targets, extras)
        if batch.rows is not None:
            _add(targets, "image_id", batch.rows.tolist())
        if "masks" in extras:
            _add(targets, "mask", extras["masks"].unbind())
        if isinstance(batch, RaggedBatch) and batch.mask_offsets is not None:
            _add(targets, "mask", [batch.mask(n) for n in range(len(batch))])
        further: dict[str, Sequence[object]] = {name: extras[name].unbind() for name in extras if name not in _OF_BOXES}
        for name, values in (further | batch.texts).items():  # type: ignore[misc]
            if name in ("boxes", "labels", "mask"):
                raise ValueError(
                    f"ToDetection gives {name} of images, and the rows have a column of that name. Rename it."
                )
            _add(targets, name, values)
        return images, targets

    def _add_boxes(self, targets: list[dict[str, Any]], extras: dict[str, torch.Tensor]) -> None:
        """Add boxes and labels of each image; those of all images are cut at once."""
        count, boxes = extras["box_count"], extras["boxes"]
        is_there = torch.arange(boxes.shape[1], device=boxes.device) < count[:, None]
        counts = count.tolist()
        _add(targets, "boxes", boxes[is_there].split(counts))
        if "box_targets" in extras:
            classes = extras["box_targets"][is_there]
            _add(targets, "labels", self._labels_of(classes).split(counts))

    def _labels_of(self, classes: torch.Tensor) -> torch.Tensor:
        if classes.numel() and int(classes.min()) < 0:
            raise ValueError("ToDetection has no label for a box without a class (-1). Drop it before.")
        if self.labels is None:
            return classes + 1
        if classes.numel() and int(classes.max()) >= len(self.labels):
            raise ValueError(
                f"ToDetection has {len(self.labels)} labels, and a box has class {int(classes.max())}. Give one for each class."
            )
        return self.labels.to(classes.device)[classes]


def _add(targets: list[dict[str, Any]], name: str, values: Sequence[object]) -> None:
    for target, value in zip(targets, values, strict=True):
        target[name] = value
