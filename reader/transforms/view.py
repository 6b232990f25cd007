"""The one geometry: crops, resizes, flips and padding of images of one size and of their own sizes.

Regions, boxes and content move at each step; pixels and masks are computed once, at the end. Draws nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from reader.described import Described
from reader.host_values import sent
from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.kernels.pixel_ops import channels_of
from reader.transforms.kernels.regions import (
    IS_CUBIC,
    IS_MIRRORED,
    IS_NEAREST,
    IS_TURNED,
    Bools,
    Numbers,
    Regions,
    write_regions,
)
from reader.transforms.labels import masks_in, with_moved_boxes
from reader.transforms.random import check_batch, host_batch


@dataclass(frozen=True)
class View:
    """The planned crop, resize, flip and padding of a batch's images; boxes and content have moved already.

    Attributes:
        source: the batch with the pixels.
        host: its rows and sizes on the host, for draws.
        regions: the new images.
        content: int64[B, 4] x0, y0, x1, y1 of the image inside the new images; None: all of them.
        extras: extras of the new images, except masks, which are the source's.
        size: height and width of all new images, which become an ImageBatch; None: they have their own sizes.
    """

    source: ImageBatch | RaggedBatch
    host: Any
    regions: Regions
    content: Numbers | None
    extras: TensorDict | None
    size: tuple[int, int] | None

    @classmethod
    def from_batch(cls, transform: object, batch: ImageBatch | RaggedBatch) -> View:
        """Make a view of a batch's unchanged images.

        Raises:
            TypeError: it is not a batch, or its pixels are floats.
            ValueError: it is one row.
        """
        check_batch(transform, batch)
        host = host_batch(batch)
        if isinstance(batch, RaggedBatch):
            images = np.concatenate([host.offsets.numpy()[:, None], host.shapes.numpy()[:, :2]], 1)
            if masks_in(batch.extras) is not None:
                raise ValueError(
                    "extras' masks have one size and the images sizes of their own. Rename those that are not masks."
                )
            return cls(batch, host, Regions.from_images(images), None, batch.extras, None)
        count, height, width, channels = batch.pixels.shape
        regions = _rows_of_one_size(count, height, width, channels)
        content = None if host.content is None else host.content.numpy()[:, [1, 0, 3, 2]].astype(np.int64)
        return cls(batch, host, regions, content, batch.extras, (height, width))

    @functools.cached_property
    def sizes(self) -> Numbers:
        """Width and height of the new images, int64[B, 2]."""
        return sizes_of(self.regions.windows)

    @property
    def has_labels(self) -> bool:
        """Whether boxes, masks or content move with the images."""
        return self.content is not None or self.extras is not None

    @property
    def is_untouched(self) -> bool:
        """Whether the new images are those of the source."""
        before = Regions.from_images(self.regions.images)
        return all(map(np.array_equal, self.regions[:5], before[:5]))

    @property
    def corners(self) -> Numbers:
        """Return int64[B, 4] x0, y0, x1, y1 of the content; of the whole new images without one."""
        return whole(self.sizes) if self.content is None else self.content

    def of_content(self) -> View:
        """Return the view of only the content, if rows record it."""
        return self if self.content is None else replace(self.cut(self.content), content=None)

    def mirrored(self, is_chosen: Bools) -> View:
        """Mirror the images of bool[B] left to right."""
        return self._flipped(is_chosen, IS_MIRRORED, 0)

    def turned(self, is_chosen: Bools) -> View:
        """Turn the images of bool[B] upside down."""
        return self._flipped(is_chosen, IS_TURNED, 1)

    def _flipped(self, is_chosen: Bools, flag: int, axis: int) -> View:
        regions = self.regions._replace(flags=self.regions.flags ^ (flag * is_chosen))
        start, factor = np.zeros_like(self.sizes), np.ones_like(self.sizes)
        start[:, axis], factor[:, axis] = self.sizes[:, axis] * is_chosen, 1 - 2 * is_chosen
        return replace(self._moved(start, factor, self.sizes), regions=regions)

    def resized(self, sizes: Numbers, size: tuple[int, int] | None, interpolation: str = "bilinear") -> View:
        """Resize the images to int64[B, 2] widths and heights, antialiased.

        size: height and width of all; None: they have their own sizes.
        """
        before = self.regions
        if before.are_resized() or before.flags.any() or reach_beyond(before.windows, before.sizes):
            return View.from_batch(self, self.batch()).resized(sizes, size, interpolation)
        boxes = before.windows + np.tile(before.boxes[:, :2], 2)
        flags = before.flags | (IS_CUBIC * (interpolation == "bicubic"))
        regions = before._replace(boxes=boxes, sizes=sizes, windows=whole(sizes), flags=flags)
        factor = sizes.astype(np.float32) / self.sizes.astype(np.float32)
        return replace(self._moved(np.zeros_like(sizes), factor, sizes), regions=regions, size=size)

    def cut(
        self,
        windows: Numbers,
        size: tuple[int, int] | None = None,
        fill: Sequence[float] | None = None,
        mask_fill: int = 255,
    ) -> View:
        """Crop int64[B, 4] x0, y0, x1, y1 from the images, and fill pixels outside them.

        Args:
            size: height and width of all; None: they have their own sizes.
            fill: the level outside, or one for each channel; None: the windows are inside the images.
            mask_fill: the class outside.

        Raises:
            ValueError: the fill has neither one level nor one per channel.
        """
        before = self.regions
        if fill is not None and len(fill) not in (1, channels := channels_of(self.source)) and len(windows):
            raise ValueError(f"fill is {fill}, expected one level, or one for each of {channels} channels.")
        fills = (before.fill, before.mask_fill)
        if fill is not None and reach_beyond(windows, self.sizes):
            if not np.array_equal(before.windows, whole(before.sizes)):
                # the images keep their existing padding
                is_around = (before.windows[:, :2] <= 0).all() and (before.windows[:, 2:] >= before.sizes).all()
                if not is_around or fills != (tuple(fill), mask_fill):
                    return View.from_batch(self, self.batch()).cut(windows, size, fill, mask_fill)
            fills = (tuple(fill), mask_fill)
        moved = self._moved(windows[:, :2], np.ones_like(windows[:, :2]), sizes_of(windows))
        if before.flags.any():
            flipped = np.tile(before.flags[:, None] & [IS_MIRRORED, IS_TURNED] > 0, 2)
            windows = np.where(flipped, np.tile(self.sizes, 2) - windows[:, [2, 3, 0, 1]], windows)
        inner = windows + before.windows.take([0, 1, 0, 1], 1)
        return replace(moved, regions=before._replace(windows=inner, fill=fills[0], mask_fill=fills[1]), size=size)

    def batch(self) -> Any:
        """Compute the pixels and masks of the new images: an ImageBatch if they have one size, else a RaggedBatch."""
        source, channels, count = self.source, channels_of(self.source), len(self.sizes)
        (masks, first), areas = self._masks(channels), np.multiply(*self.sizes.T)
        lengths = areas * (channels + (masks is not None and self.size is None))
        places, total = lengths.cumsum() - lengths, int(lengths.sum())
        flat, device = source.pixels.reshape(-1), source.pixels.device
        pixels = write_regions(flat, self.regions, channels, places, total)
        extras, mask_places = self.extras, None
        if masks is not None:
            images = np.concatenate([first[:, None], self.regions.images[:, 1:]], 1)
            flags, fill = self.regions.flags | IS_NEAREST, (float(self.regions.mask_fill),)
            regions = self.regions._replace(images=images, flags=flags, fill=fill)
            named: dict[str, Any] = {} if extras is None else dict(extras.items())
            named.pop("masks", None)
            if self.size is None:
                mask_places = sent(torch.from_numpy(places + areas * channels), device)
                write_regions(masks, regions, 1, places + areas * channels, total, pixels)
            else:
                made = write_regions(masks, regions, 1, areas.cumsum() - areas, int(areas.sum()))
                named["masks"] = made.view(count, *self.size)
            extras = TensorDict(named, batch_size=[count], device=device) if named else None
        if self.size is not None:
            content = None
            if self.content is not None:
                content = sent(torch.from_numpy(self.content[:, [1, 0, 3, 2]].astype(np.int32)), device)
            return replaced(source, pixels=pixels.view(count, *self.size, channels), content=content, extras=extras)
        shapes = np.column_stack([self.sizes[:, ::-1], np.full(count, channels)]).astype(np.int32)
        return RaggedBatch(
            pixels=pixels,
            targets=source.targets,
            offsets=sent(torch.from_numpy(places), device),
            shapes=sent(torch.from_numpy(shapes), device),
            extras=extras,
            rows=source.rows,
            mask_offsets=mask_places,
            origin=source.origin,
            batch_size=[],
        )

    def _masks(self, channels: int) -> tuple[torch.Tensor | None, Numbers]:
        """Return the bytes of the source's masks and the offset of each, int64[B]; or None."""
        start, height, width = self.regions.images.T
        if isinstance(self.source, RaggedBatch):
            # right after its image
            first = start + height * width * channels
            return (None if self.source.mask_offsets is None else self.source.pixels), first
        masks = masks_in(self.source.extras)
        return (None if masks is None else masks.reshape(-1)), start // channels

    def _moved(self, start: Numbers, factor: npt.NDArray[Any], sizes: Numbers) -> View:
        """Move boxes and content: (x, y) -> ((x, y) - start) * factor, [B, 2] each, then clipped to sizes; below 0 it mirrors."""
        if not self.has_labels:
            return self
        content, extras = self.content, self.extras
        columns = np.concatenate([start, start, factor, factor, sizes, sizes], 1).astype(np.float32)
        numbers = torch.from_numpy(columns)[:, None]
        if extras is not None and extras.get("boxes", None) is not None:
            there = sent(numbers, self.source.pixels.device)
            extras = with_moved_boxes(extras, lambda boxes: _moved_corners(boxes, there))
        if content is not None:
            moved = _moved_corners(torch.from_numpy(content)[:, None].float(), numbers)[:, 0].numpy()
            # rows with padding are only partly image
            content = np.concatenate([np.ceil(moved[:, :2]), np.floor(moved[:, 2:])], 1).astype(np.int64)
        return replace(self, content=content, extras=extras)


class ViewTransform(Described):
    """A transform that moves pixels, boxes, masks and content by steps of a view."""

    def apply(self, view: View) -> View:
        """Return the changed view."""
        raise NotImplementedError

    def __call__(self, batch: ImageBatch | RaggedBatch) -> Any:
        """Return new images, uint8: an ImageBatch if all have one size, else a RaggedBatch.

        Raises:
            TypeError: it is not a batch, or its pixels are floats.
            ValueError: it is one row, or boxes or masks have another shape.
        """
        return self.apply(View.from_batch(self, batch)).batch()


def _moved_corners(boxes: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Move [B, K, 4] x0, y0, x1, y1 by float32[B, 1, 12] of `_moved`; the first corner is the upper left one again."""
    start, factor, limit = numbers.split(4, -1)
    first, second = ((boxes - start) * factor).clamp(min=0).minimum(limit).split(2, -1)
    return torch.cat([first.minimum(second), first.maximum(second)], -1)


def sizes_of(windows: Numbers) -> Numbers:
    """Return int64[B, 2] widths and heights of int64[B, 4] x0, y0, x1, y1."""
    return windows[:, 2:] - windows[:, :2]


def whole(sizes: Numbers) -> Numbers:
    """Return int64[B, 4] 0, 0, width, height."""
    return np.concatenate([np.zeros_like(sizes), sizes], 1)


def reach_beyond(windows: Numbers, sizes: Numbers) -> bool:
    """Return whether a window, int64[B, 4], reaches beyond its image, int64[B, 2] width and height."""
    return bool((windows[:, :2] < 0).any() or (windows[:, 2:] > sizes).any())


@functools.lru_cache(maxsize=8)
def _rows_of_one_size(count: int, height: int, width: int, channels: int) -> Regions:
    images = np.full((count, 3), [0, height, width])
    images[:, 0] = np.arange(count) * (height * width * channels)
    return Regions.from_images(images)
