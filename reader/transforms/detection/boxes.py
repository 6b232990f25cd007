"""ToDetection: lists of images and of dicts, as torchvision's detectors take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from reader.described import Described
from reader.store import Batch, ImageBatch, RaggedBatch
from reader.transforms.labels import check_boxes
from reader.transforms.random import check_batch, integer

_Batch = TypeVar("_Batch", ImageBatch, RaggedBatch)
# Extras that ToDetection gives under names of its own.
_OF_BOXES = ("boxes", "box_count", "box_targets", "masks")


class ToDetection(Described):
    """Give the lists that torchvision's detection models take: model(images, targets). It stands last, behind a recipe.

    Of each image a dict with boxes float32[n, 4] (x0, y0, x1, y1 in its pixels), labels int64[n], image_id (the row, or the
    store's column of that name), mask uint8[H, W] where the rows have masks (classes by pixel: Mask R-CNN
    takes masks of single objects, which stores do not have), and further columns and texts of the store by name. uint8 images
    become float32[C, H, W] from 0 to 1, floats stay.

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
        if not (isinstance(batch, Batch) and batch.pixels.is_floating_point()):
            check_batch(self, batch, takes_ragged=True)
        extras: dict[str, Any] = {} if batch.extras is None else dict(batch.extras.items())
        if "boxes" not in extras:
            raise ValueError("ToDetection takes rows with boxes, and these have none. Pack them with --boxes.")
        check_boxes(extras)
        images = [image if image.is_floating_point() else image.float() / 255 for image in batch.images]
        targets: list[dict[str, Any]] = [{} for _ in images]
        self._add_boxes(targets, extras)
        if batch.rows is not None:
            _add(targets, "image_id", batch.rows.tolist())
        if "masks" in extras:
            _add(targets, "mask", extras["masks"].unbind())
        if isinstance(batch, RaggedBatch) and batch.mask_offsets is not None:
            _add(targets, "mask", [batch.mask(n) for n in range(len(batch))])
        further: dict[str, Sequence[object]] = {name: extras[name].unbind() for name in extras if name not in _OF_BOXES}
        for name, values in further.items():
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
