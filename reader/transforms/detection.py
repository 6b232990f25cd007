"""torchvision's transforms for detection: images of their own sizes with boxes, and the lists for detectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reader.described import Described
from reader.store import Batch, ImageBatch, RaggedBatch
from reader.transforms.kernels.regions import Numbers
from reader.transforms.labels import check_boxes
from reader.transforms.random import (
    FIXED_SIZE_CROP,
    LEVEL,
    POSITIVE,
    SCALE_JITTER,
    SHORTEST_SIZE,
    check_batch,
    checked_size,
    draw,
    integer,
    numbers,
    one_of,
    sides,
    span,
)
from reader.transforms.view import View, ViewTransform

# Extras that ToDetection returns under other names.
_OF_BOXES = ("boxes", "box_count", "box_targets", "masks")


class ScaleJitter(ViewTransform):
    """Resize each image to fit target_size, by a random factor larger or smaller: torchvision's large scale jitter.

    The result is a RaggedBatch of images with their own sizes; FixedSizeCrop puts them on one canvas. Boxes move along.

    Args:
        target_size: the two sides in pixels, as in torchvision.
        scale_range: lowest and highest factor.
        interpolation: "bilinear".
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: target_size is not two sides of 1 or more pixels; scale_range is not two ascending factors above 0; or the
            interpolation is unknown.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> ScaleJitter((32, 32), (0.5, 0.5))(batch).images[0].shape
        torch.Size([3, 16, 16])
    """

    def __init__(
        self,
        target_size: Sequence[int],
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: str = "bilinear",
        *,
        seed: int = 0,
    ) -> None:
        one_of("interpolation", interpolation, ("bilinear",))
        self.target_size, self.scale_range = (
            sides("target_size", target_size),
            span("scale_range", scale_range, POSITIVE),
        )
        if len(self.target_size) != 2:
            raise ValueError(f"target_size is {target_size!r}, expected two sides of 1 or more pixels.")
        self.seed = seed

    def apply(self, view: View) -> View:
        """Resize the images of a view."""
        low, high = self.scale_range
        view = view.of_content()
        scale = low + draw(view.host, self.seed, SCALE_JITTER).numpy()[0] * (high - low)
        # the height uses the second side, as in torchvision
        factor = (np.array(self.target_size) / view.sizes).min(1) * scale
        return view.resized(_scaled(view.sizes, factor), None)


class RandomShortestSize(ViewTransform):
    """Resize each image until its shorter side is a random one of min_size, or its longer side max_size, as torchvision does.

    The result is a RaggedBatch of images with their own sizes. Boxes move along.

    Args:
        min_size: lengths of the shorter side, pixels.
        max_size: limit of the longer side, pixels, or None.
        interpolation: "bilinear".
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: a length is not 1 or more pixels, there are none, or the interpolation is unknown.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomShortestSize(48, max_size=40)(batch).images[0].shape
        torch.Size([3, 40, 40])
    """

    def __init__(
        self,
        min_size: int | Sequence[int],
        max_size: int | None = None,
        interpolation: str = "bilinear",
        *,
        seed: int = 0,
    ) -> None:
        one_of("interpolation", interpolation, ("bilinear",))
        self.min_size = sides("min_size", min_size)
        if not self.min_size:
            raise ValueError("min_size is empty, expected one length or more.")
        self.max_size, self.seed = None if max_size is None else integer("max_size", max_size, 1), seed

    def apply(self, view: View) -> View:
        """Resize the images of a view."""
        view = view.of_content()
        drawn = draw(view.host, self.seed, SHORTEST_SIZE).numpy()[0]
        lengths = np.array(self.min_size)[(drawn * len(self.min_size)).astype(np.int64)]
        factor = lengths / view.sizes.min(1)
        if self.max_size is not None:
            factor = np.minimum(factor, self.max_size / view.sizes.max(1))
        return view.resized(_scaled(view.sizes, factor), None)


class FixedSizeCrop(ViewTransform):
    """Crop size x size pixels at a random place of larger images, and pad smaller ones on the right and below.

    The same as FixedSizeCrop in torchvision's references/detection, used after ScaleJitter for large scale jitter. Boxes are
    clipped; empty ones are dropped. The images have one size, but stay a RaggedBatch.

    Args:
        size: pixels, or (height, width).
        fill: level of filled pixels, or one for each channel.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: size is not 1 or more pixels.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> FixedSizeCrop((24, 40))(batch).images[0].shape
        torch.Size([3, 24, 40])
    """

    def __init__(self, size: int | tuple[int, int], fill: float | Sequence[float] = 0, *, seed: int = 0) -> None:
        self.height, self.width = checked_size(size)
        self.fill, self.seed = tuple(numbers("fill", fill, LEVEL)), seed

    def apply(self, view: View) -> View:
        """Cut the images of a view."""
        view = view.of_content()
        drawn = draw(view.host, self.seed, FIXED_SIZE_CROP).numpy()[0]
        size = np.array([self.width, self.height])
        # one number for both axes, as in torchvision
        start = ((view.sizes - size).clip(min=0) * drawn[:, None]).astype(np.int64)
        return view.cut(np.concatenate([start, start + size], 1), None, self.fill)


class ToDetection(Described):
    """Return the lists that torchvision's detection models take: model(images, targets). It is the last step.

    Each image has a dict with boxes float32[n, 4] (x0, y0, x1, y1 in its pixels), labels int64[n], image_id (the row), and
    mask uint8[H, W] if the rows have masks. These are classes by pixel: Mask R-CNN needs masks of single objects, which
    stores do not have. Columns that a program adds to `extras` follow by name. uint8 images become float32[C, H, W] from 0 to
    1, floats stay.

    Args:
        labels: the label of each class of the store; None: its index + 1, as 0 is the background.
    """

    def __init__(self, labels: Sequence[int] | None = None) -> None:
        self.labels = None
        if labels is not None:
            given = [integer("labels", label) for label in labels]
            self.labels = torch.tensor(given, dtype=torch.int64, device="cpu")

    def __call__(self, batch: ImageBatch | RaggedBatch) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
        """Return the images, [C, H, W] each, and their targets.

        Raises:
            ValueError: the rows have no boxes, a box has no label, a column has the name of another entry, or it is one row.
        """
        if not (isinstance(batch, Batch) and batch.pixels.is_floating_point()):
            check_batch(self, batch)
        extras: dict[str, Any] = {} if batch.extras is None else dict(batch.extras.items())
        if "boxes" not in extras:
            raise ValueError("ToDetection takes rows with boxes, and these have none. Pack them with --boxes.")
        check_boxes(extras)
        columns: dict[str, Any] = {name: extras[name].unbind() for name in extras if name not in _OF_BOXES}
        if taken := columns.keys() & {"labels", "mask"}:
            raise ValueError(
                f"ToDetection gives {min(taken)} of images, and the rows have a column of that name. Rename it."
            )
        if batch.rows is not None:
            columns.setdefault("image_id", batch.rows.tolist())
        if "masks" in extras:
            columns["mask"] = extras["masks"].unbind()
        if isinstance(batch, RaggedBatch) and batch.mask_offsets is not None:
            columns["mask"] = [batch.mask(n) for n in range(len(batch))]
        # boxes of all images are cut at once
        is_there = torch.arange(extras["boxes"].shape[1], device=batch.pixels.device) < extras["box_count"][:, None]
        counts = extras["box_count"].tolist()
        columns["boxes"] = extras["boxes"][is_there].split(counts)
        if "box_targets" in extras:
            columns["labels"] = self._labels_of(extras["box_targets"][is_there]).split(counts)
        images = [image if image.is_floating_point() else image.float() / 255 for image in batch.images]
        return images, [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

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


def _scaled(sizes: Numbers, factor: npt.NDArray[np.float64]) -> Numbers:
    """Multiply int64[B, 2] and round down, as torchvision does; a side of 0 pixels gets 1."""
    return (sizes * factor[:, None]).astype(np.int64).clip(min=1)
